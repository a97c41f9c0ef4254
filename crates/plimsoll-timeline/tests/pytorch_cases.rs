//! Single decisions of the allocator, each against a figure that was observed or read in torch's source.

use plimsoll_timeline::{PyTorchAllocator, PyTorchConfig};
use plimsoll_units::Bytes;

const MIB: u64 = 1 << 20;

fn torch() -> PyTorchAllocator {
    PyTorchAllocator::new(PyTorchConfig::default())
}

/// Request, rounded, segment, free remainder, whether the block was split. The last three rows were observed in a
/// public trace.
#[test]
fn segments_and_splits() {
    for (requested, rounded, segment, remainder, split) in [
        (200_000, 200_192, 2_097_152, 1_896_960, true),
        (1_048_576, 1_048_576, 2_097_152, 1_048_576, true),
        (1_048_577, 1_049_088, 20_971_520, 19_922_432, true),
        (10_485_248, 10_485_248, 20_971_520, 10_486_272, true),
        (10_485_760, 10_485_760, 10_485_760, 0, false),
        (10_485_761, 10_486_272, 12_582_912, 2_096_640, true),
        (200_000_000, 200_000_000, 201_326_592, 1_326_592, true),
        (1_000_000_000, 1_000_000_000, 1_000_341_504, 341_504, false),
        (2_000_000_000, 2_000_000_000, 2_000_683_008, 683_008, false),
    ] {
        let mut torch = torch();
        let config = torch.config().clone();
        let block = torch.malloc(Bytes::new(requested), 0).unwrap();
        assert_eq!(config.rounded(Bytes::new(requested)).get(), rounded);
        assert_eq!(torch.statistics().all.reserved_bytes.current.get(), segment, "{requested}");
        let rest = segment - torch.block_size(&block).get();
        assert_eq!(rest, if split { remainder } else { 0 }, "{requested}");
        assert_eq!(torch.layout().segments[0].blocks.len(), 1 + usize::from(split));
    }
}

#[test]
fn a_rest_of_exactly_one_mib_is_not_split_off() {
    for (rest, blocks) in [(MIB, 1), (MIB + 512, 2)] {
        let mut torch = torch();
        let whole = torch.malloc(Bytes::mib(30), 0).unwrap();
        torch.free(whole);
        let part = torch.malloc(Bytes::new(30 * MIB - rest), 0).unwrap();
        assert_eq!(torch.layout().segments[0].blocks.len(), blocks);
        assert_eq!(torch.statistics().all.reserved_bytes.peak, Bytes::mib(30));
        torch.free(part);
    }
}

#[test]
fn one_free_merges_both_neighbours() {
    let mut torch = torch();
    let [a, b, c] = [0; 3].map(|_| torch.malloc(Bytes::mib(4), 0).unwrap());
    torch.free(a);
    torch.free(c);
    assert_eq!(torch.statistics().all.inactive_split_bytes.current, Bytes::mib(16));
    torch.free(b);
    assert_eq!(torch.layout().segments[0].blocks.len(), 1);
    assert!(torch.statistics().all.inactive_split_bytes.current.is_zero());
}

#[test]
fn best_fit_takes_the_smallest_block_and_then_the_lowest_address() {
    let mut torch = torch();
    let blocks = [3, 2, 5, 2, 3].map(|n| torch.malloc(Bytes::mib(n), 0).unwrap());
    let addresses: Vec<u64> = blocks.iter().map(|b| torch.address(b)).collect();
    let [_a, b, _c, d, _e] = blocks;
    torch.free(d);
    torch.free(b);
    let first = torch.malloc(Bytes::new(MIB + 512), 0).unwrap();
    assert_eq!(torch.address(&first), addresses[1]);
}

#[test]
fn a_block_of_another_stream_is_not_reused() {
    let mut torch = torch();
    let block = torch.malloc(Bytes::mib(3), 0).unwrap();
    torch.free(block);
    torch.malloc(Bytes::mib(3), 1).unwrap();
    assert_eq!(torch.statistics().all.reserved_bytes.current, Bytes::mib(40));
}

#[test]
fn garbage_collection_needs_a_limit() {
    let run = |limit| {
        let mut config = PyTorchConfig::default();
        config.garbage_collection_threshold = Some(0.5);
        config.memory_limit = limit;
        let mut torch = PyTorchAllocator::new(config);
        for n in [30, 40, 50, 60] {
            let block = torch.malloc(Bytes::mib(n), 0).unwrap();
            torch.free(block);
        }
        torch.statistics().all.reserved_bytes.peak
    };
    assert_eq!(run(None), Bytes::mib(180));
    assert!(run(Some(Bytes::mib(200))) < Bytes::mib(180));
}

#[test]
fn everything_unused_is_given_back_before_giving_up() {
    let mut config = PyTorchConfig::default();
    config.capacity = Some(Bytes::mib(100));
    let mut torch = PyTorchAllocator::new(config);
    let cached = torch.malloc(Bytes::mib(60), 0).unwrap();
    torch.free(cached);
    let kept = torch.malloc(Bytes::mib(80), 0).unwrap();
    assert_eq!(torch.statistics().num_alloc_retries, 1);
    let error = torch.malloc(Bytes::mib(21), 0).unwrap_err();
    assert_eq!((error.allocated, error.free), (Bytes::mib(80), Some(Bytes::mib(20))));
    check_message(&error.to_string());
    torch.free(kept);
    torch.malloc(Bytes::mib(21), 0).unwrap();
}

fn check_message(message: &str) {
    assert_eq!(
        message,
        "out of memory: 21.00 MiB were requested (22.00 MiB from the driver), 80.00 MiB are allocated, 80.00 MiB \
         reserved, 20.00 MiB free"
    );
}

#[test]
fn oversize_blocks_wait_for_oversize_requests() {
    let mut config = PyTorchConfig::default();
    config.max_split_size = Some(Bytes::mib(64));
    let mut torch = PyTorchAllocator::new(config);
    let big = torch.malloc(Bytes::mib(100), 0).unwrap();
    let home = torch.address(&big);
    torch.free(big);
    let small = torch.malloc(Bytes::mib(30), 0).unwrap();
    assert_ne!(torch.address(&small), home);
    let much_smaller = torch.malloc(Bytes::mib(70), 0).unwrap();
    assert_ne!(torch.address(&much_smaller), home);
    let near = torch.malloc(Bytes::mib(90), 0).unwrap();
    assert_eq!(torch.address(&near), home);
}

#[test]
fn expandable_segments_grow_by_pages_and_shrink_by_whole_pages() {
    let mut config = PyTorchConfig::default();
    config.expandable_segments = true;
    let mut torch = PyTorchAllocator::new(config);
    let a = torch.malloc(Bytes::mib(30), 0).unwrap();
    assert_eq!(torch.statistics().all.reserved_bytes.current, Bytes::mib(40));
    let b = torch.malloc(Bytes::mib(50), 0).unwrap();
    assert_eq!(torch.statistics().all.reserved_bytes.current, Bytes::mib(80));
    assert_eq!(torch.address(&b), torch.address(&a) + 30 * MIB);
    torch.free(a);
    torch.empty_cache();
    // 30 MiB are free: one whole page of 20 MiB goes, 10 MiB stay.
    assert_eq!(torch.statistics().all.reserved_bytes.current, Bytes::mib(60));
    assert_eq!(torch.layout().segments.len(), 1);
    let again = torch.malloc(Bytes::mib(25), 0).unwrap();
    assert_eq!(torch.statistics().all.reserved_bytes.current, Bytes::mib(80));
    torch.free(again);
    torch.free(b);
    torch.empty_cache();
    assert!(torch.layout().segments.is_empty());
    assert_eq!(torch.statistics().all.segment.peak, 0);
}

#[test]
fn absurd_requests_fail_and_leave_nothing_behind() {
    for expandable in [false, true] {
        let mut config = PyTorchConfig::default();
        config.expandable_segments = expandable;
        let mut torch = PyTorchAllocator::new(config);
        assert!(torch.malloc(Bytes::MAX, 0).is_err());
        assert!(torch.malloc(Bytes::new((1 << 55) + 1), u16::MAX).is_err());
        let null = torch.malloc(Bytes::ZERO, 0).unwrap();
        assert_eq!((torch.address(&null), torch.block_size(&null)), (0, Bytes::ZERO));
        torch.free(null);
        let mut huge = Vec::new();
        while let Ok(block) = torch.malloc(Bytes::new(1 << 55), 7) {
            huge.push(block);
        }
        assert!((1..=4).contains(&huge.len()));
        huge.into_iter().for_each(|b| torch.free(b));
        torch.empty_cache();
        assert!(torch.statistics().all.reserved_bytes.current.is_zero());
    }
}
