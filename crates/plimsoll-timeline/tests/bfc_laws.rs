//! Laws of the best-fit allocator on random sequences and settings, and agreement with the naive one: the same
//! addresses, the same bytes held after every event.

mod naive_bfc;

use naive_bfc::Naive;
use plimsoll_timeline::{Allocator, Bfc, BfcBlock, BfcConfig, Growth, Placement};
use plimsoll_units::Bytes;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Allocate { bytes: u64, stream: u16 },
    Reserve(u64),
    Free(usize),
    Shrink,
    ReleaseStream(u16),
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..4096u64,
        3 => 1..MIB,
        2 => MIB..40 * MIB,
        6 => prop::sample::select(vec![256, 4096, 200_000, MIB, 3 * MIB, 8 * MIB, 20 * MIB]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        60 => (size(), 0..2u16).prop_map(|(bytes, stream)| Op::Allocate { bytes, stream }),
        2 => size().prop_map(Op::Reserve),
        55 => any::<usize>().prop_map(Op::Free),
        2 => Just(Op::Shrink),
        2 => (0..2u16).prop_map(Op::ReleaseStream),
    ]
}

fn config() -> impl Strategy<Value = BfcConfig> {
    let memory = prop::option::of(40 * MIB..400 * MIB);
    let first = prop_oneof![Just(MIB), 1..64 * MIB];
    let growth = prop_oneof![
        2 => Just(Growth::Doubling { cap: None }),
        2 => (MIB..64 * MIB).prop_map(|cap| Growth::Doubling { cap: Some(Bytes::new(cap / 256 * 256)) }),
        1 => Just(Growth::Exact),
    ];
    let placement = prop::sample::select(vec![
        Placement::Apart,
        Placement::Apart,
        Placement::Behind,
        Placement::Before,
    ]);
    let dead = prop_oneof![Just(128 * MIB), 0..MIB];
    (
        memory.clone(),
        memory,
        first,
        growth,
        placement,
        dead,
        prop::option::of(1..8 * MIB),
        any::<[bool; 5]>(),
    )
        .prop_map(|(limit, capacity, first, growth, placement, dead, regrowth, flags)| {
            let mut config = BfcConfig::onnxruntime(false);
            config.limit = limit.map(Bytes::new);
            config.capacity = capacity.map(Bytes::new);
            config.first_region = Bytes::new(first);
            config.growth = growth;
            config.placement = placement;
            config.max_dead_bytes = Bytes::new(dead);
            config.regrowth = regrowth.map(|n| Bytes::new(n.div_ceil(256) * 256));
            [
                config.collects_regions,
                config.shrinks,
                config.keeps_first_region,
                config.by_stream,
                _,
            ] = flags;
            config.smallest_retreat = Bytes::new(if flags[4] { 8192 } else { 0 });
            config
        })
}

/// What holds after every event.
fn check_layout(bfc: &Bfc, reserved: u64) {
    let config = bfc.config().clone();
    let (mut held, mut used, mut requested) = (reserved, reserved, reserved);
    let mut end = 0;
    for region in bfc.regions() {
        assert!(region.address >= end, "regions overlap");
        end = region.address + region.size.get();
        held += region.size.get();
        let mut at = region.address;
        let mut free_before = false;
        for chunk in &region.chunks {
            assert_eq!(chunk.address, at, "chunks tile their region");
            assert!(!chunk.size.is_zero());
            at += chunk.size.get();
            assert!(config.by_stream || chunk.used || !free_before, "two neighbours are free");
            free_before = !chunk.used;
            if chunk.used {
                used += chunk.size.get();
                requested += chunk.requested.get();
                let rounded = BfcConfig::rounded(chunk.requested).get();
                let slack = chunk.size.get() - rounded;
                assert!(slack < rounded, "a chunk of twice the request is split");
                assert!(slack < config.max_dead_bytes.get().max(1), "so much is left over");
            }
        }
        assert_eq!(at, end);
    }
    let usage = bfc.usage();
    assert_eq!(usage.reserved.get(), held);
    assert_eq!(usage.allocated.get(), used);
    assert_eq!(usage.requested.get(), requested);
    assert!(requested <= used && used <= held);
    for most in [config.limit, config.capacity].into_iter().flatten() {
        assert!(usage.reserved <= most, "{usage:?}");
    }
    let s = bfc.statistics();
    assert!(
        s.reserved_peak >= usage.reserved
            && s.in_use_peak >= s.in_use
            && s.in_use == usage.allocated
    );
}

fn run(config: &BfcConfig, ops: &[Op]) {
    let mut bfc = Bfc::new(config.clone());
    let mut naive = Naive::new(config.clone());
    let mut live: Vec<(u32, u64, BfcBlock)> = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let owner = i as u32;
        match *op {
            Op::Allocate { bytes, stream } => {
                let expected = naive.allocate(owner, bytes, stream);
                let held = bfc.usage().reserved;
                let block = bfc.allocate(Bytes::new(bytes), stream).ok();
                assert!(
                    block.is_some() || bfc.usage().reserved <= held,
                    "event {i}: {op:?} fails and leaves a region"
                );
                assert_eq!(block.as_ref().map(|b| bfc.address(b)), expected, "event {i}: {op:?}");
                live.extend(block.map(|b| (owner, 0, b)));
            }
            Op::Reserve(bytes) => {
                let block = bfc.reserve(Bytes::new(bytes)).ok();
                assert_eq!(block.is_some(), naive.reserve(owner, bytes), "event {i}: {op:?}");
                live.extend(block.map(|b| (owner, bytes, b)));
            }
            Op::Free(_) if live.is_empty() => {}
            Op::Free(n) => {
                let (owner, _, block) = live.swap_remove(n % live.len());
                naive.free(owner);
                bfc.release(block);
            }
            Op::Shrink => {
                naive.shrink();
                bfc.empty_cache();
            }
            Op::ReleaseStream(stream) => {
                naive.release_stream(stream);
                bfc.release_stream(stream);
            }
        }
        assert_eq!(bfc.usage().reserved.get(), naive.held(), "event {i}: {op:?}");
        assert_eq!(bfc.usage().allocated.get(), naive.in_use(), "event {i}: {op:?}");
        if i % 8 == 0 {
            check_layout(&bfc, live.iter().map(|l| l.1).sum());
        }
    }
    check_layout(&bfc, live.iter().map(|l| l.1).sum());
    let mut ours: Vec<(u64, u64)> = (bfc.regions().iter())
        .flat_map(|r| r.chunks.iter().map(|c| (c.address, c.size.get())))
        .collect();
    let mut theirs: Vec<(u64, u64)> = naive.pieces().map(|p| (p.at, p.size)).collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);

    // Conservation: what is freed is one free chunk per region again.
    for (.., block) in live {
        bfc.release(block);
    }
    (0..2).for_each(|stream| bfc.release_stream(stream));
    assert!(bfc.regions().iter().all(|r| r.chunks.len() == 1));
    assert!(bfc.usage().allocated.is_zero() && bfc.usage().requested.is_zero());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_setting_agrees_with_the_naive_one(config in config(), ops in prop::collection::vec(op(), 1..250)) {
        run(&config, &ops);
    }

    #[test]
    fn frameworks_agree_with_the_naive_one(which in 0..6usize, ops in prop::collection::vec(op(), 1..300)) {
        let limit = Bytes::mib(160);
        let config = match which {
            0 => BfcConfig::tensorflow(limit, false),
            1 => BfcConfig::tensorflow(limit, true),
            2 => BfcConfig::jax(limit, true),
            3 => BfcConfig::jax_growing(Bytes::mib(120), limit),
            4 => BfcConfig::onnxruntime(false),
            _ => BfcConfig::onnxruntime(true),
        };
        run(&config, &ops);
    }
}

/// Regions of the size of each request that lie before the first one, with little left of the limit: the free chunk at
/// the front covers a part of the last request, and a region of the whole of it went beyond the limit.
#[test]
fn an_exact_region_before_a_free_chunk_keeps_to_the_limit() {
    let mut config = BfcConfig::onnxruntime(true);
    config.limit = Some(Bytes::new(125_137_920));
    config.regrowth = None;
    config.max_dead_bytes = Bytes::ZERO;
    config.shrinks = false;
    config.smallest_retreat = Bytes::ZERO;
    config.placement = Placement::Before;
    config.by_stream = true;
    let allocate = |bytes, stream| Op::Allocate { bytes, stream };
    let mut ops = vec![allocate(1, 0); 7];
    ops.extend([
        Op::Free(0),
        Op::Free(0),
        Op::Free(0),
        Op::Free(16_138),
        allocate(574_354, 0),
        Op::Free(16_917_824_141_157_056_718),
        Op::Free(12_050_466_034_911_990_659),
        allocate(995_643, 1),
        allocate(33_789_088, 1),
        Op::Free(1_091_882_542_487_875_447),
        Op::Free(16_662_778_151_971_008_982),
        allocate(20_971_520, 0),
        allocate(35_161_266, 1),
        allocate(521, 1),
        Op::Free(4_461_946_168_900_674_014),
        Op::Free(11_924_233_434_922_225_234),
        Op::Free(17_573_547_154_478_721_986),
        allocate(38_156_887, 0),
    ]);
    run(&config, &ops);
}
