//! Laws of the allocator on random sequences, and agreement with the naive simulator: the same addresses, the same
//! reserved bytes after every event.

mod naive;

use std::collections::BTreeMap;

use naive::{Kind, Naive};
use plimsoll_timeline::{
    BlockHandle, BlockState, PoolKind, PyTorchAllocator, PyTorchConfig, RoundupDivisions, TieBreak,
};
use plimsoll_units::Bytes;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Malloc { bytes: u64, stream: u16 },
    Free(usize),
    EmptyCache,
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..4096u64,
        3 => 1..MIB + 1024,
        3 => MIB..10 * MIB,
        2 => 9 * MIB..70 * MIB,
        // Sizes that repeat, as those of a network do.
        6 => prop::sample::select(vec![
            512, 4096, 200_000, MIB, MIB + 1, 3 * MIB, 8 * MIB, 10 * MIB - 512, 10 * MIB, 11 * MIB, 20 * MIB, 64 * MIB,
        ]),
    ]
}

fn op(streams: u16) -> impl Strategy<Value = Op> {
    prop_oneof![
        60 => (size(), 0..streams).prop_map(|(bytes, stream)| Op::Malloc { bytes, stream }),
        50 => any::<usize>().prop_map(Op::Free),
        1 => Just(Op::EmptyCache),
    ]
}

fn config() -> impl Strategy<Value = PyTorchConfig> {
    let tie = prop::sample::select(vec![TieBreak::LowestAddress, TieBreak::OldestBlock]);
    let memory = prop::option::of(80 * MIB..600 * MIB);
    (
        prop::option::of(20 * MIB..80 * MIB),
        prop::sample::select(vec![0u32, 0, 2, 8]),
        prop::option::of(0.1..0.95f64),
        any::<bool>(),
        prop::sample::select(vec![12 * MIB, 20 * MIB, 20 * MIB, 40 * MIB]),
        tie,
        memory.clone(),
        memory,
    )
        .prop_map(
            |(max_split, divisions, gc, expandable, segment, tie_break, limit, capacity)| {
                let mut config = PyTorchConfig::default();
                config.max_split_size = max_split.map(|b| Bytes::new(b).max(Bytes::new(segment)));
                config.roundup_power2_divisions = RoundupDivisions::uniform(divisions);
                config.garbage_collection_threshold = gc;
                config.expandable_segments = expandable;
                config.large_segment = Bytes::new(segment);
                config.tie_break = tie_break;
                config.memory_limit = limit.map(Bytes::new);
                config.capacity = capacity.map(Bytes::new);
                config
            },
        )
}

/// What holds after every event: tiling, coalescing, pool sizes, slack, conservation.
fn check_layout(torch: &PyTorchAllocator) {
    let config = torch.config().clone();
    let (mut reserved, mut allocated, mut requested) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
    let mut end_of_last = 0;
    for segment in torch.layout().segments {
        assert!(segment.address >= end_of_last, "segments overlap");
        end_of_last = segment.address + segment.size.get();
        reserved += segment.size;
        let mut at = segment.address;
        let mut free_before = false;
        for block in &segment.blocks {
            assert_eq!(block.address, at, "blocks tile their segment");
            at += block.size.get();
            assert!(block.size.get() % 512 == 0 && !block.size.is_zero());
            let free = block.state == BlockState::Free;
            assert!(!(free && free_before), "two neighbours are free");
            free_before = free;
            if free {
                // Splitting leaves no small rest in the large pool. Merging cannot make one smaller.
                if segment.kind == PoolKind::Large && !config.expandable_segments {
                    assert!(block.size > Bytes::mib(1));
                }
            } else {
                allocated += block.size;
                requested += block.requested;
                let slack = block.size.checked_sub(config.rounded(block.requested)).unwrap();
                let exact = segment.kind == PoolKind::Small || config.expandable_segments;
                if exact {
                    assert!(slack.is_zero());
                } else if config.max_split_size.is_none() {
                    assert!(slack <= Bytes::mib(1));
                }
            }
        }
        assert_eq!(at, segment.address + segment.size.get());
        match (segment.kind, config.expandable_segments) {
            (PoolKind::Small, false) => assert_eq!(segment.size, Bytes::mib(2)),
            (PoolKind::Small, true) => assert_eq!(segment.size.get() % (2 * MIB), 0),
            (PoolKind::Large, false) => assert!(
                segment.size == config.large_segment
                    || segment.size >= Bytes::mib(10) && segment.size.get() % (2 * MIB) == 0
            ),
            (PoolKind::Large, true) => {
                assert_eq!(segment.size.get() % config.large_segment.get(), 0);
            }
        }
    }
    let statistics = torch.statistics();
    assert_eq!(statistics.all.reserved_bytes.current, reserved);
    assert_eq!(statistics.all.allocated_bytes.current, allocated);
    assert_eq!(statistics.all.active_bytes, statistics.all.allocated_bytes);
    assert_eq!(statistics.all.requested_bytes.current, requested);
    assert!(requested <= allocated && allocated <= reserved);
    assert!(statistics.all.reserved_bytes.peak >= statistics.all.allocated_bytes.peak);
    // The limit is checked against the segment that would be made, so mapped pages may exceed it.
    let limit = config.memory_limit.filter(|_| !config.expandable_segments);
    for most in [limit, config.capacity].into_iter().flatten() {
        assert!(reserved <= most);
    }
}

fn run(config: &PyTorchConfig, ops: &[Op]) {
    let mut torch = PyTorchAllocator::new(config.clone());
    let mut naive = Naive::new(config.clone());
    let mut live: Vec<(u32, u16, BlockHandle)> = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let owner = i as u32;
        match *op {
            Op::Malloc { bytes, stream } => {
                let expected = naive.malloc(owner, bytes, stream);
                match torch.malloc(Bytes::new(bytes), stream) {
                    Ok(block) => {
                        assert_eq!(Some(torch.address(&block)), expected, "event {i}: {op:?}");
                        live.push((owner, stream, block));
                    }
                    Err(error) => {
                        assert_eq!(expected, None, "event {i}: {op:?}: {error}");
                        assert_eq!(error.rounded, config.rounded(Bytes::new(bytes)));
                    }
                }
            }
            Op::Free(_) if live.is_empty() => {}
            Op::Free(n) => {
                let (owner, _, block) = live.swap_remove(n % live.len());
                naive.free(owner);
                torch.free(block);
            }
            Op::EmptyCache => {
                naive.flush();
                torch.empty_cache();
            }
        }
        let statistics = torch.statistics();
        assert_eq!(
            statistics.all.reserved_bytes.current.get(),
            naive.reserved(),
            "event {i}: {op:?}"
        );
        if i % 16 == 0 {
            check_layout(&torch);
        }
    }
    check_layout(&torch);
    let statistics = *torch.statistics();
    assert_eq!(statistics.all.reserved_bytes.peak.get(), naive.reserved_peak);
    assert_eq!(statistics.all.allocated_bytes.current.get(), naive.allocated());
    assert_eq!(statistics.all.requested_bytes.current.get(), naive.requested());
    assert_eq!(statistics.num_alloc_retries, naive.retries);
    if !config.expandable_segments {
        assert_eq!(statistics.all.inactive_split_bytes.current.get(), naive.inactive_split());
        assert_eq!(statistics.all.segment.current as usize, naive.regions.len());
    } else {
        assert_eq!(statistics.all.segment.peak, 0, "mapping pages makes no segment");
    }
    let ours: BTreeMap<u64, Bytes> = (torch.layout().segments.iter())
        .flat_map(|s| s.blocks.iter().map(|b| (b.address, b.size)))
        .collect();
    let theirs: BTreeMap<u64, Bytes> = (naive.pieces().filter(|p| p.kind != Kind::Unmapped))
        .map(|p| (p.at, Bytes::new(p.size)))
        .collect();
    assert_eq!(ours, theirs);

    // Conservation: everything freed and flushed leaves nothing.
    for (_, _, block) in live {
        torch.free(block);
    }
    for segment in torch.layout().segments {
        assert_eq!(segment.blocks.len(), 1, "an unused segment is one free block");
    }
    torch.empty_cache();
    let statistics = torch.statistics();
    assert!(
        statistics.all.reserved_bytes.current.is_zero()
            && statistics.all.allocated_bytes.current.is_zero()
    );
    assert!(statistics.all.inactive_split_bytes.current.is_zero());
    assert!(torch.layout().segments.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn defaults_agree_with_the_naive_simulator(ops in prop::collection::vec(op(1), 1..400)) {
        run(&PyTorchConfig::default(), &ops);
    }

    #[test]
    fn any_setting_agrees_with_the_naive_simulator(
        config in config(),
        ops in prop::collection::vec(op(3), 1..300),
    ) {
        prop_assert_eq!(config.check(), Ok(()));
        run(&config, &ops);
    }

    #[test]
    fn streams_never_share_a_segment(ops in prop::collection::vec(op(4), 1..200)) {
        let mut torch = PyTorchAllocator::new(PyTorchConfig::default());
        let mut live = Vec::new();
        for op in ops {
            match op {
                Op::Malloc { bytes, stream } => {
                    let block = torch.malloc(Bytes::new(bytes), stream).unwrap();
                    let at = torch.address(&block);
                    let segments = torch.layout().segments;
                    let home = segments.iter().rfind(|s| s.address <= at).unwrap();
                    prop_assert_eq!(home.stream, stream);
                    live.push(block);
                }
                Op::Free(n) if !live.is_empty() => {
                    let i = n % live.len();
                    torch.free(live.swap_remove(i));
                }
                _ => torch.empty_cache(),
            }
        }
    }
}
