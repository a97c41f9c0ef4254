//! What an allocator keeps from one request to the next: frees that wait, private pools, settings that change, the
//! layout that it begins with, the addresses of a recording.

use plimsoll_timeline::{
    Allocation, BlockState, Category, Device, DriverCall, DriverEvent, DriverLog, Layout,
    LayoutBlock, LayoutError, LayoutReservation, LayoutSegment, PendingFrees, PoolId, PoolKind,
    PoolOptions, PyTorchAllocator, PyTorchConfig, RecordedDriver, ReplayOptions, TimelineBuilder,
    replay_from,
};
use plimsoll_units::Bytes;

const MIB: u64 = 1 << 20;

fn torch(change: impl FnOnce(&mut PyTorchConfig)) -> PyTorchAllocator {
    let mut config = PyTorchConfig::default();
    change(&mut config);
    PyTorchAllocator::new(config)
}

fn reserved(torch: &PyTorchAllocator) -> Bytes {
    torch.statistics().all.reserved_bytes.current
}

#[test]
fn a_free_waits_for_the_recorded_stream() {
    // Policy, and after how many further requests the block of the first one is handed out again.
    for (policy, requests) in [
        (PendingFrees::Immediate, 1),
        (PendingFrees::NextRequest, 1),
        (PendingFrees::After(1), 1),
        (PendingFrees::After(3), 3),
        (PendingFrees::Synchronize, 5),
    ] {
        let mut torch = torch(|config| config.pending_frees = policy);
        let block = torch.malloc(Bytes::mib(3), 0).unwrap();
        let home = torch.address(&block);
        torch.record_stream(&block, 0);
        torch.record_stream(&block, 1);
        torch.free(block);
        let all = torch.statistics().all;
        assert!(all.allocated_bytes.current.is_zero());
        assert_eq!(all.active.current, u64::from(policy != PendingFrees::Immediate));
        let mut count = 0;
        while count < 5 {
            count += 1;
            let next = torch.malloc(Bytes::mib(3), 0).unwrap();
            if torch.address(&next) == home {
                break;
            }
        }
        assert_eq!(count, requests, "{policy:?}");
    }
}

#[test]
fn a_requested_free_neither_merges_nor_lets_its_segment_go() {
    let mut torch = torch(|_| {});
    let [a, b] = [0; 2].map(|_| torch.malloc(Bytes::mib(4), 0).unwrap());
    torch.request_free(&a);
    torch.free(b);
    let blocks = &torch.layout().segments[0].blocks;
    assert_eq!(blocks[0].state, BlockState::PendingFree);
    assert_eq!((blocks.len(), blocks[0].requested), (2, Bytes::mib(4)));
    assert_eq!(torch.statistics().all.requested_bytes.current, Bytes::mib(4));
    torch.free(a);
    assert_eq!(torch.layout().segments[0].blocks.len(), 1);
    torch.empty_cache();
    assert!(reserved(&torch).is_zero());
}

#[test]
fn waiting_for_every_stream_completes_requested_frees_and_their_handles_stay_harmless() {
    let mut torch = torch(|config| config.capacity = Some(Bytes::mib(40)));
    let waiting = torch.malloc(Bytes::mib(30), 0).unwrap();
    torch.request_free(&waiting);
    let block = torch.malloc(Bytes::mib(40), 0).unwrap();
    let statistics = torch.statistics();
    assert_eq!((statistics.num_sync_all_streams, statistics.num_alloc_retries), (1, 1));
    // The old handle names no block any more, also after others were made.
    let small = torch.malloc(Bytes::new(512), 0);
    assert!(small.is_err());
    torch.free(waiting);
    assert_eq!(torch.statistics().all.allocation.current, 1);
    torch.free(block);
    assert_eq!(torch.statistics().all.allocation.current, 0);
}

#[test]
fn a_private_pool_keeps_its_segments_as_long_as_it_has_a_user() {
    let mut torch = torch(|_| {});
    let pool = PoolId(1);
    torch.begin_pool(pool);
    let block = torch.malloc_in(pool, Bytes::mib(30), 0).unwrap();
    torch.free(block);
    torch.end_pool(pool);
    torch.empty_cache();
    assert_eq!(reserved(&torch), Bytes::mib(30));
    // Its blocks serve nobody else.
    let other = torch.malloc(Bytes::mib(30), 0).unwrap();
    assert_eq!(reserved(&torch), Bytes::mib(60));
    torch.free(other);
    torch.begin_pool(pool);
    torch.end_pool(pool);
    torch.release_pool(pool);
    torch.empty_cache();
    assert_eq!(reserved(&torch), Bytes::mib(30));
    torch.release_pool(pool);
    torch.empty_pool_cache(pool);
    assert!(reserved(&torch).is_zero());
}

#[test]
fn nothing_is_given_back_during_a_capture() {
    for captures in [0, 1] {
        let mut torch = torch(|config| {
            *config = PyTorchConfig::for_torch(2, 15);
            config.capacity = Some(Bytes::mib(40));
        });
        let cached = torch.malloc(Bytes::mib(30), 0).unwrap();
        torch.free(cached);
        torch.begin_pool(PoolId(1));
        (0..captures).for_each(|_| torch.begin_capture());
        let served = torch.malloc_in(PoolId(1), Bytes::mib(20), 0);
        assert_eq!(served.is_ok(), captures == 0);
        assert_eq!(torch.statistics().num_alloc_retries, 1 - captures);
    }
}

#[test]
fn pools_can_help_out_and_refuse_to_split() {
    let mut torch = torch(|config| config.capacity = Some(Bytes::mib(40)));
    let pool = PoolId(2);
    torch.set_pool_options(pool, PoolOptions { use_on_oom: true, no_split: true });
    let block = torch.malloc_in(pool, Bytes::mib(5), 0).unwrap();
    assert_eq!(torch.block_size(&block), Bytes::mib(20));
    torch.free(block);
    let _kept = torch.malloc(Bytes::mib(20), 0).unwrap();
    let helped = torch.malloc(Bytes::mib(12), 0).unwrap();
    assert_eq!(torch.block_size(&helped), Bytes::mib(20));
    assert_eq!(torch.statistics().num_alloc_retries, 0);
    assert!(torch.malloc(Bytes::mib(12), 0).is_err());
}

#[test]
fn requests_above_the_fraction_are_rejected_without_a_try() {
    let mut torch = torch(|config| config.reject_above = Some(Bytes::mib(100)));
    let cached = torch.malloc(Bytes::mib(60), 0).unwrap();
    torch.free(cached);
    torch.malloc(Bytes::mib(80), 0).unwrap_err();
    let statistics = torch.statistics();
    assert_eq!((statistics.num_oom_rejections, statistics.num_ooms), (1, 0));
    assert_eq!(reserved(&torch), Bytes::mib(60));
}

#[test]
fn blocks_of_expandable_segments_wait_until_the_setting_comes_back() {
    let mut torch = torch(|config| config.expandable_segments = true);
    let block = torch.malloc(Bytes::mib(30), 0).unwrap();
    let home = torch.address(&block);
    torch.free(block);
    let mut config = torch.config().clone();
    config.expandable_segments = false;
    torch.reconfigure(config.clone());
    let other = torch.malloc(Bytes::mib(30), 0).unwrap();
    assert_ne!(torch.address(&other), home);
    assert_eq!(torch.statistics().all.segment.current, 1);
    config.expandable_segments = true;
    torch.reconfigure(config);
    let again = torch.malloc(Bytes::mib(30), 0).unwrap();
    assert_eq!(torch.address(&again), home);
}

fn block(address: u64, size: u64, state: BlockState) -> LayoutBlock {
    LayoutBlock { address, size: Bytes::new(size), requested: Bytes::new(size), state }
}

fn segment(address: u64, size: u64, expandable: bool, blocks: Vec<LayoutBlock>) -> LayoutSegment {
    LayoutSegment {
        address,
        size: Bytes::new(size),
        kind: PoolKind::Large,
        stream: 0,
        pool: PoolId::DEFAULT,
        expandable,
        blocks,
    }
}

#[test]
fn impossible_layouts_are_refused() {
    use BlockState::{Allocated, Free};
    let whole = |at| segment(at, 20 * MIB, false, vec![block(at, 20 * MIB, Allocated)]);
    let made = |segments| {
        let layout = Layout { segments, reservations: Vec::new() };
        PyTorchAllocator::from_layout(PyTorchConfig::default(), &layout).map(|(_, b)| b.len())
    };
    let at = 0x7000_0000_0000;
    assert_eq!(made(vec![whole(at), whole(at + 20 * MIB)]), Ok(2));
    let overlap = made(vec![whole(at + 2 * MIB), whole(at)]);
    assert_eq!(overlap, Err(LayoutError::Overlap { first: at, second: at + 2 * MIB }));
    let gap = segment(at, 20 * MIB, false, vec![block(at, MIB, Free)]);
    let (expected, found) = (at + 20 * MIB, at + MIB);
    assert_eq!(made(vec![gap]), Err(LayoutError::Tiling { segment: at, expected, found }));
    for (address, size) in
        [(at, 0), (at, 100), (at + 1, 512), (u64::MAX - 511, 512), (1 << 57, 512)]
    {
        let odd = segment(address, size, false, vec![block(address, size, Free)]);
        assert_eq!(made(vec![odd]), Err(LayoutError::Range { address, size: Bytes::new(size) }));
    }
}

#[test]
fn free_neighbours_of_a_layout_are_merged() {
    use BlockState::{Allocated, Free, PendingFree};
    let at = 0x7000_0000_0000;
    let blocks = vec![
        block(at, 2 * MIB, Free),
        block(at + 2 * MIB, 2 * MIB, Free),
        block(at + 4 * MIB, 6 * MIB, PendingFree),
        block(at + 10 * MIB, 10 * MIB, Allocated),
    ];
    let layout =
        Layout { segments: vec![segment(at, 20 * MIB, false, blocks)], reservations: Vec::new() };
    let (mut torch, handles) =
        PyTorchAllocator::from_layout(PyTorchConfig::default(), &layout).unwrap();
    assert_eq!(torch.layout().segments[0].blocks.len(), 3);
    let all = torch.statistics().all;
    assert_eq!((all.inactive_split.current, all.active.current, all.allocation.current), (1, 2, 1));
    for handle in handles {
        torch.free(handle);
    }
    torch.empty_cache();
    assert!(torch.layout().segments.is_empty());
}

#[test]
fn mapped_ranges_grow_from_the_beginning_of_their_reservation() {
    // A reservation that is no multiple of its page, as drivers give them.
    let base = 0x7000_0020_0000;
    let mapped = block(base, 20 * MIB, BlockState::Allocated);
    let mut layout = Layout {
        segments: vec![segment(base, 20 * MIB, true, vec![mapped])],
        reservations: Vec::new(),
    };
    for known in [false, true] {
        if known {
            layout.reservations.push(LayoutReservation {
                address: base,
                size: Bytes::mib(60),
                kind: PoolKind::Large,
                stream: 0,
                pool: PoolId::DEFAULT,
            });
        }
        let mut config = PyTorchConfig::default();
        config.expandable_segments = true;
        let (mut torch, _) = PyTorchAllocator::from_layout(config, &layout).unwrap();
        let next = torch.malloc(Bytes::mib(30), 0).unwrap();
        assert_eq!(torch.address(&next), base + 20 * MIB);
        assert_eq!(reserved(&torch), Bytes::mib(60));
        torch.free(next);
        torch.empty_cache();
        assert_eq!(reserved(&torch), Bytes::mib(20));
        // What a reservation of known length cannot hold goes into another one.
        let large = torch.malloc(Bytes::mib(50), 0).unwrap();
        assert_eq!(torch.address(&large) == base + 20 * MIB, !known);
    }
}

fn event(call: DriverCall, address: u64, mib: u64) -> DriverEvent {
    DriverEvent { call, address, size: Bytes::mib(mib) }
}

#[test]
fn a_recorded_driver_answers_as_recorded_and_counts_what_departs() {
    let recorded = vec![
        event(DriverCall::SegmentAlloc, 0x7f00_0000_0000, 20),
        event(DriverCall::Refused, 0, 30),
        event(DriverCall::SegmentFree, 0x7f00_0000_0000, 20),
        event(DriverCall::SegmentAlloc, 0x7e00_0000_0000, 30),
        event(DriverCall::SegmentAlloc, 0x7d00_0000_0000, 2),
    ];
    let driver = DriverLog::new(RecordedDriver::new(recorded.clone(), None));
    let mut torch = PyTorchAllocator::with_driver(PyTorchConfig::default(), driver);
    let first = torch.malloc(Bytes::mib(3), 0).unwrap();
    assert_eq!(torch.address(&first), 0x7f00_0000_0000);
    torch.free(first);
    // The driver refuses, the cache goes back, the driver gives.
    let second = torch.malloc(Bytes::mib(30), 0).unwrap();
    assert_eq!(torch.address(&second), 0x7e00_0000_0000);
    assert_eq!(torch.driver().events(), &recorded[..4]);
    assert_eq!(torch.driver().inner().departures(), 0);
    // A segment of another size than the recorded one lies elsewhere.
    let third = torch.malloc(Bytes::mib(12), 0).unwrap();
    assert!(torch.address(&third) > 0x7f00_0000_0000);
    let driver = torch.driver().inner();
    assert_eq!((driver.departures(), driver.position()), (1, 4));
}

#[test]
fn a_recorded_window_closes_in_time() {
    let recorded = vec![
        event(DriverCall::SegmentAlloc, 0x7f00_0000_0000, 20),
        event(DriverCall::SegmentAlloc, 0x7e00_0000_0000, 20),
    ];
    let mut torch = PyTorchAllocator::with_driver(
        PyTorchConfig::default(),
        RecordedDriver::new(recorded, None),
    );
    torch.driver_mut().window(0, 0);
    let early = torch.malloc(Bytes::mib(3), 1).unwrap();
    assert!(torch.address(&early) > 0x7f00_0000_0000);
    torch.driver_mut().window(1, 2);
    let late = torch.malloc(Bytes::mib(3), 2).unwrap();
    assert_eq!(torch.address(&late), 0x7e00_0000_0000);
    assert_eq!(torch.driver().departures(), 2);
}

#[test]
fn a_footprint_can_begin_with_tensors_that_are_there() {
    let mut before = PyTorchAllocator::new(PyTorchConfig::default());
    let _weights = before.malloc(Bytes::mib(30), 0).unwrap();
    let layout = before.layout();

    let mut t = TimelineBuilder::new();
    let origin = t.origin("", "x");
    let weights = t.existing(Allocation {
        requested: Bytes::mib(30),
        category: Category::Parameters,
        origin,
        stream: 0,
        pool: PoolId::DEFAULT,
    });
    let saved = t.alloc(Bytes::mib(12), Category::Activations, origin);
    t.free_requested(saved);
    t.alloc(Bytes::mib(12), Category::Activations, origin);
    t.free_completed(saved);
    t.free(weights);
    let timeline = t.finish();

    let (mut torch, blocks) =
        PyTorchAllocator::from_layout_on(PyTorchConfig::default(), &layout, Device::new(None))
            .unwrap();
    let options = ReplayOptions::default();
    let footprint = replay_from(&timeline, &mut torch, blocks, &options).unwrap();
    assert_eq!(footprint.allocated_peak, Bytes::mib(42));
    // The second tensor could not have the first one's block.
    assert_eq!(footprint.reserved_peak, Bytes::mib(54));
    assert_eq!(
        footprint.live.by_category,
        [(Category::Parameters, Bytes::mib(30)), (Category::Activations, Bytes::mib(12))]
    );
    assert_eq!(footprint.end_by_category, [(Category::Activations, Bytes::mib(12))]);
    assert_eq!(footprint.live.tensors, 2);

    // Nothing that happens reaches what was there.
    let mut t = TimelineBuilder::new();
    let weights = t.existing(timeline.allocations()[0]);
    t.free(weights);
    let timeline = t.finish();
    let (mut torch, blocks) =
        PyTorchAllocator::from_layout(PyTorchConfig::default(), &layout).unwrap();
    let footprint = replay_from(&timeline, &mut torch, blocks, &options).unwrap();
    assert_eq!((footprint.allocated_peak, footprint.peak_event), (Bytes::mib(30), None));
    assert_eq!(footprint.live.by_category, [(Category::Parameters, Bytes::mib(30))]);
}
