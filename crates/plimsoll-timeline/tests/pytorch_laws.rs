//! Laws of the allocator on random sequences, and agreement with the naive simulator: the same addresses, the same
//! statistics after every event, with streams, private pools, captures, pending frees and limits mixed.

mod naive;

use std::collections::BTreeMap;

use naive::{Kind, Naive};
use plimsoll_timeline::{
    BlockHandle, BlockState, CaptureRule, Layout, LayoutReservation, PendingFrees, PoolId,
    PoolKind, PoolOptions, PoolStatistics, PyTorchAllocator, PyTorchConfig, RoundupDivisions,
    TieBreak,
};
use plimsoll_units::Bytes;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Malloc {
        bytes: u64,
        stream: u16,
    },
    Free(usize),
    RecordStream(usize, u16),
    RequestFree(usize),
    CompleteFree(usize),
    FinishStreams,
    EmptyCache,
    /// Begins to route to a pool, or ends it; with a capture or without.
    Route(u16, bool),
    Leave(u16),
    Options(u16, bool, bool),
    Expandable(bool),
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

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        60 => op(3),
        3 => (any::<usize>(), 0..4u16).prop_map(|(n, stream)| Op::RecordStream(n, stream)),
        2 => any::<usize>().prop_map(Op::RequestFree),
        2 => any::<usize>().prop_map(Op::CompleteFree),
        1 => Just(Op::FinishStreams),
        2 => (1..4u16, any::<bool>()).prop_map(|(pool, capture)| Op::Route(pool, capture)),
        1 => (1..4u16).prop_map(Op::Leave),
        1 => (1..4u16, any::<bool>(), any::<bool>()).prop_map(|(p, a, b)| Op::Options(p, a, b)),
        1 => any::<bool>().prop_map(Op::Expandable),
    ]
}

fn config() -> impl Strategy<Value = PyTorchConfig> {
    let tie = prop::sample::select(vec![
        TieBreak::LowestAddress,
        TieBreak::OldestBlock,
        TieBreak::OldestSegment,
    ]);
    let captures = prop::sample::select(vec![CaptureRule::AnyRouting, CaptureRule::GraphCapture]);
    let pending = prop::sample::select(vec![
        PendingFrees::Immediate,
        PendingFrees::NextRequest,
        PendingFrees::Synchronize,
    ]);
    let memory = prop::option::of(80 * MIB..600 * MIB);
    let limits = (memory.clone(), prop::option::weighted(0.2, 80 * MIB..600 * MIB), memory);
    (
        prop::option::of(20 * MIB..80 * MIB),
        prop::sample::select(vec![0u32, 0, 2, 8]),
        prop::option::of(0.1..0.95f64),
        any::<bool>(),
        prop::sample::select(vec![12 * MIB, 20 * MIB, 20 * MIB, 40 * MIB]),
        (tie, captures, pending),
        limits,
    )
        .prop_map(|(max_split, divisions, gc, expandable, segment, rules, limits)| {
            let mut config = PyTorchConfig::default();
            config.max_split_size = max_split.map(|b| Bytes::new(b).max(Bytes::new(segment)));
            config.roundup_power2_divisions = RoundupDivisions::uniform(divisions);
            config.garbage_collection_threshold = gc;
            config.expandable_segments = expandable;
            config.large_segment = Bytes::new(segment);
            (config.tie_break, config.captures, config.pending_frees) = rules;
            config.memory_limit = limits.0.map(Bytes::new);
            config.reject_above = limits.1.map(Bytes::new);
            config.capacity = limits.2.map(Bytes::new);
            config
        })
}

/// What holds after every event: tiling, coalescing, pool sizes, slack, conservation. `settled`: neither the
/// expandable setting nor an option of a pool ever changed.
fn check_layout(torch: &PyTorchAllocator, settled: bool) {
    let config = torch.config().clone();
    let (mut reserved, mut allocated, mut active) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
    let mut requested = Bytes::ZERO;
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
                if segment.kind == PoolKind::Large && !segment.expandable && settled {
                    assert!(block.size > Bytes::mib(1));
                }
                continue;
            }
            active += block.size;
            requested += block.requested;
            if block.state == BlockState::Allocated {
                allocated += block.size;
            }
            let slack = block.size.checked_sub(config.rounded(block.requested)).unwrap();
            if settled && (segment.kind == PoolKind::Small || segment.expandable) {
                assert!(slack.is_zero());
            } else if settled && config.max_split_size.is_none() {
                assert!(slack <= Bytes::mib(1));
            }
        }
        assert_eq!(at, segment.address + segment.size.get());
        match (segment.kind, segment.expandable) {
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
    let all = &torch.statistics().all;
    assert_eq!(all.reserved_bytes.current, reserved);
    assert_eq!(all.allocated_bytes.current, allocated);
    assert_eq!(all.active_bytes.current, active);
    assert_eq!(all.requested_bytes.current, requested);
    assert!(requested <= active && allocated <= active && active <= reserved);
    assert!(all.reserved_bytes.peak >= all.active_bytes.peak);
    // The limit is checked against the segment that would be made, so mapped pages may exceed it.
    let limit = config.memory_limit.filter(|_| !config.expandable_segments && settled);
    for most in [limit, config.capacity].into_iter().flatten() {
        assert!(reserved <= most);
    }
}

/// The statistics of the moment are sums over the naive simulator's blocks.
fn check_statistics(torch: &PyTorchAllocator, naive: &Naive, event: &str) {
    let all = torch.statistics();
    let used = |p: &naive::Piece| matches!(p.kind, Kind::Used(_));
    for (small, pool) in [(true, &all.small_pool), (false, &all.large_pool)] {
        let (allocated, _, allocations) = naive.sum(small, |_, p| used(p));
        let (active, requested, blocks) =
            naive.sum(small, |_, p| !matches!(p.kind, Kind::Free | Kind::Unmapped));
        let (reserved, ..) = naive.sum(small, |_, p| p.kind != Kind::Unmapped);
        let (split, _, splits) =
            naive.sum(small, |r, p| p.kind == Kind::Free && !r.expandable && r.pieces.len() > 1);
        let segments =
            naive.regions.iter().filter(|r| r.home.1 == small && !r.expandable).count() as u64;
        assert_eq!(pool.allocated_bytes.current.get(), allocated, "{event}");
        assert_eq!(pool.allocation.current, allocations, "{event}");
        assert_eq!(pool.active_bytes.current.get(), active, "{event}");
        assert_eq!(pool.active.current, blocks, "{event}");
        assert_eq!(pool.requested_bytes.current.get(), requested, "{event}");
        assert_eq!(pool.reserved_bytes.current.get(), reserved, "{event}");
        assert_eq!(pool.inactive_split_bytes.current.get(), split, "{event}");
        assert_eq!(pool.inactive_split.current, splits, "{event}");
        assert_eq!(pool.segment.current, segments, "{event}");
    }
    assert_eq!(all.num_alloc_retries, naive.retries, "{event}");
    assert_eq!(all.num_ooms, naive.ooms, "{event}");
    assert_eq!(all.num_oom_rejections, naive.rejections, "{event}");
    assert_eq!(all.num_sync_all_streams, naive.synchronized, "{event}");
    assert_eq!((all.num_device_alloc, all.num_device_free), naive.device, "{event}");
    let sum = |pick: &dyn Fn(&PoolStatistics) -> u64| {
        assert_eq!(pick(&all.all), pick(&all.small_pool) + pick(&all.large_pool), "{event}");
    };
    sum(&|p| p.allocated_bytes.current.get());
    sum(&|p| p.reserved_bytes.allocated.get());
    sum(&|p| p.inactive_split.allocated);
    sum(&|p| p.active_bytes.freed().get());
}

/// Both allocators and what the program holds.
struct Pair {
    torch: PyTorchAllocator,
    naive: Naive,
    live: Vec<(u32, BlockHandle)>,
    /// Frees that were requested and not completed.
    requested: Vec<(u32, BlockHandle)>,
    /// Pools that requests are routed to, newest last, and whether it is for a capture.
    routes: Vec<(u16, bool)>,
    users: BTreeMap<u16, u32>,
    settled: bool,
}

impl Pair {
    fn malloc(&mut self, owner: u32, bytes: u64, stream: u16) {
        let pool = self.routes.last().map_or(0, |route| route.0);
        let expected = self.naive.malloc(owner, bytes, stream, pool);
        match self.torch.malloc_in(PoolId(pool), Bytes::new(bytes), stream) {
            Ok(block) => {
                assert_eq!(Some(self.torch.address(&block)), expected, "event {owner}");
                self.live.push((owner, block));
            }
            Err(error) => {
                assert_eq!(expected, None, "event {owner}: {error}");
                assert_eq!(error.rounded, self.torch.config().rounded(Bytes::new(bytes)));
            }
        }
    }

    fn route(&mut self, pool: u16, capture: bool) {
        if let Some(at) = self.routes.iter().position(|route| route.0 == pool) {
            let (_, capture) = self.routes.remove(at);
            if capture {
                self.torch.end_capture();
                self.naive.capture(false);
            }
            self.torch.end_pool(PoolId(pool));
            self.naive.end(pool);
            return;
        }
        // Torch has no way back for a pool whose last user left.
        if self.users.get(&pool) == Some(&0) {
            return;
        }
        *self.users.entry(pool).or_default() += 1;
        self.torch.begin_pool(PoolId(pool));
        self.naive.begin(pool);
        if capture {
            self.torch.begin_capture();
            self.naive.capture(true);
        }
        self.routes.push((pool, capture));
    }

    fn do_one(&mut self, owner: u32, op: &Op) {
        let pick = |n: usize, of: usize| n.checked_rem(of);
        match *op {
            Op::Malloc { bytes, stream } => self.malloc(owner, bytes, stream),
            Op::Free(n) => {
                if let Some(n) = pick(n, self.live.len()) {
                    let (owner, block) = self.live.swap_remove(n);
                    self.naive.free(owner);
                    self.torch.free(block);
                }
            }
            Op::RecordStream(n, stream) => {
                if let Some(n) = pick(n, self.live.len()) {
                    self.naive.record(self.live[n].0, stream);
                    self.torch.record_stream(&self.live[n].1, stream);
                }
            }
            Op::RequestFree(n) => {
                if let Some(n) = pick(n, self.live.len()) {
                    let (owner, block) = self.live.swap_remove(n);
                    self.naive.ask_free(owner);
                    self.torch.request_free(&block);
                    self.requested.push((owner, block));
                }
            }
            Op::CompleteFree(n) => {
                if let Some(n) = pick(n, self.requested.len()) {
                    let (owner, block) = self.requested.swap_remove(n);
                    self.naive.complete(owner);
                    self.torch.free(block);
                }
            }
            Op::FinishStreams => {
                self.naive.finish_streams();
                self.torch.finish_streams();
            }
            Op::EmptyCache => {
                self.naive.flush();
                self.torch.empty_cache();
            }
            Op::Route(pool, capture) => self.route(pool, capture),
            Op::Leave(pool) => {
                let routed = self.routes.iter().any(|route| route.0 == pool);
                if let Some(users) = self.users.get_mut(&pool).filter(|n| **n > 0 && !routed) {
                    *users -= 1;
                    self.naive.leave(pool);
                    self.torch.release_pool(PoolId(pool));
                }
            }
            Op::Options(pool, use_on_oom, no_split) => {
                if self.users.contains_key(&pool) {
                    let options = PoolOptions { use_on_oom, no_split };
                    self.naive.options(pool, options);
                    self.torch.set_pool_options(PoolId(pool), options);
                    self.settled = false;
                }
            }
            Op::Expandable(on) => {
                self.naive.config.expandable_segments = on;
                self.torch.reconfigure(self.naive.config.clone());
                self.settled = false;
            }
        }
    }
}

fn run(config: &PyTorchConfig, ops: &[Op]) {
    let mut pair = Pair {
        torch: PyTorchAllocator::new(config.clone()),
        naive: Naive::new(config.clone()),
        live: Vec::new(),
        requested: Vec::new(),
        routes: Vec::new(),
        users: BTreeMap::new(),
        settled: true,
    };
    for (i, op) in ops.iter().enumerate() {
        pair.do_one(i as u32, op);
        check_statistics(&pair.torch, &pair.naive, &format!("event {i}: {op:?}"));
        if i % 16 == 0 {
            check_layout(&pair.torch, pair.settled);
        }
    }
    let Pair { mut torch, naive, live, requested, routes, users, settled } = pair;
    check_layout(&torch, settled);
    assert_eq!(torch.statistics().all.reserved_bytes.peak.get(), naive.reserved_peak);
    let layout = torch.layout();
    let ours: BTreeMap<u64, Bytes> = (layout.segments.iter())
        .flat_map(|s| s.blocks.iter().map(|b| (b.address, b.size)))
        .collect();
    let theirs: BTreeMap<u64, Bytes> = (naive.pieces().filter(|p| p.kind != Kind::Unmapped))
        .map(|p| (p.at, Bytes::new(p.size)))
        .collect();
    assert_eq!(ours, theirs);

    // An allocator made from a layout shows the same layout.
    let (copy, handles) = PyTorchAllocator::from_layout(torch.config().clone(), &layout).unwrap();
    assert_eq!(copy.layout(), layout);
    assert_eq!(handles.len(), layout.active_blocks().count());
    let (now, then) = (&copy.statistics().all, &torch.statistics().all);
    assert_eq!(now.inactive_split.current, then.inactive_split.current);
    assert_eq!(now.allocated_bytes.current, then.allocated_bytes.current);

    // Conservation: everything freed and flushed leaves nothing.
    for (pool, capture) in routes {
        torch.end_pool(PoolId(pool));
        if capture {
            torch.end_capture();
        }
    }
    for (pool, users) in users {
        (0..users).for_each(|_| torch.release_pool(PoolId(pool)));
    }
    live.into_iter().chain(requested).for_each(|(_, block)| torch.free(block));
    torch.empty_cache();
    let statistics = torch.statistics();
    for bytes in [
        statistics.all.reserved_bytes,
        statistics.all.allocated_bytes,
        statistics.all.active_bytes,
        statistics.all.requested_bytes,
        statistics.all.inactive_split_bytes,
    ] {
        assert!(bytes.current.is_zero() && bytes.allocated == bytes.freed());
    }
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
    fn everything_mixed_agrees_with_the_naive_simulator(
        config in config(),
        ops in prop::collection::vec(any_op(), 1..300),
    ) {
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

/// A change to a layout that a file could hold.
#[derive(Clone, Debug)]
enum Damage {
    DropSegment(usize),
    DropReservations,
    Stream(usize, u16),
    Expandable(usize),
    Move(usize, u64),
    Block(usize, u64),
    Reservation(u64, u64),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        3 => any::<usize>().prop_map(Damage::DropSegment),
        3 => Just(Damage::DropReservations),
        3 => (any::<usize>(), 0..4u16).prop_map(|(n, stream)| Damage::Stream(n, stream)),
        3 => any::<usize>().prop_map(Damage::Expandable),
        1 => (any::<usize>(), any::<u64>()).prop_map(|(n, by)| Damage::Move(n, by)),
        1 => (any::<usize>(), any::<u64>()).prop_map(|(n, size)| Damage::Block(n, size)),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(at, size)| Damage::Reservation(at, size)),
    ]
}

fn spoil(layout: &mut Layout, damage: &Damage) {
    let count = layout.segments.len();
    if count == 0 {
        return;
    }
    match *damage {
        Damage::DropSegment(n) => drop(layout.segments.remove(n % count)),
        Damage::DropReservations => layout.reservations.clear(),
        Damage::Stream(n, stream) => layout.segments[n % count].stream = stream,
        Damage::Expandable(n) => layout.segments[n % count].expandable ^= true,
        Damage::Move(n, to) => layout.segments[n % count].address = to,
        Damage::Block(n, size) => layout.segments[n % count].blocks[0].size = Bytes::new(size),
        Damage::Reservation(address, size) => layout.reservations.push(LayoutReservation {
            address,
            size: Bytes::new(size),
            kind: PoolKind::Large,
            stream: 0,
            pool: PoolId::DEFAULT,
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_layout_is_refused_or_works(
        config in config(),
        before in prop::collection::vec(op(3), 1..100),
        damages in prop::collection::vec(damage(), 0..4),
        after in prop::collection::vec(op(3), 1..100),
    ) {
        let mut torch = PyTorchAllocator::new(config.clone());
        let mut live = Vec::new();
        let go = |torch: &mut PyTorchAllocator, live: &mut Vec<BlockHandle>, ops: &[Op]| {
            for op in ops {
                match *op {
                    Op::Malloc { bytes, stream } => {
                        live.extend(torch.malloc(Bytes::new(bytes), stream));
                    }
                    Op::Free(n) if !live.is_empty() => torch.free(live.swap_remove(n % live.len())),
                    _ => torch.empty_cache(),
                }
            }
        };
        go(&mut torch, &mut live, &before);
        let mut layout = torch.layout();
        damages.iter().for_each(|damage| spoil(&mut layout, damage));
        let Ok((mut torch, mut live)) = PyTorchAllocator::from_layout(config, &layout) else {
            return Ok(());
        };
        prop_assert_eq!(live.len(), layout.active_blocks().count());
        prop_assert_eq!(torch.layout().reserved(), layout.reserved());
        go(&mut torch, &mut live, &after);
        let (mut end, mut reserved) = (0, Bytes::ZERO);
        for segment in torch.layout().segments {
            prop_assert!(segment.address >= end, "segments overlap");
            end = segment.address + segment.size.get();
            reserved += segment.size;
        }
        prop_assert_eq!(torch.statistics().all.reserved_bytes.current, reserved);
        live.into_iter().for_each(|block| torch.free(block));
        prop_assert!(torch.statistics().all.allocated_bytes.current.is_zero());
    }
}
