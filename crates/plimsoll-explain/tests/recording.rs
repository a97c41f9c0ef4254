//! What a recording makes of its file, case by case.

mod emulator;

use emulator::program::{Frames, Program};
use emulator::{Op, Process};
use plimsoll_explain::{RemarkKind, devices, recording, replay_exact, what_if};
use plimsoll_formats::snapshot::{Action, Snapshot};
use plimsoll_timeline::{Event, PyTorchConfig, TieBreak};
use plimsoll_units::Bytes;

const MIB: u64 = 1 << 20;
const LINE: Frames<'_> = &[("/home/u/a.py", 1, "f")];
const EMPTY: Frames<'_> =
    &[("/v/site-packages/torch/cuda/memory.py", 224, "empty_cache"), ("/home/u/a.py", 2, "g")];

fn config(change: impl FnOnce(&mut PyTorchConfig)) -> PyTorchConfig {
    let mut config = PyTorchConfig::default();
    change(&mut config);
    config
}

fn process(config: &PyTorchConfig, before: &[Op], recorded: &[Op]) -> Snapshot {
    let mut process = Process::new(config.clone());
    process.run(before);
    process.record();
    process.run(recorded);
    process.dump()
}

/// A block of 8.5 MiB in a place of 9 MiB, whose neighbour was freed later: the gap after it is larger than 1 MiB, and
/// half a MiB of it is the block's. Only the first allocation in the gap tells.
#[test]
fn a_block_may_own_the_beginning_of_a_large_gap() {
    let before = [
        Op::Alloc(9 * MIB, 0, 0),
        Op::Alloc(4 * MIB, 0, 0),
        Op::Free(0),
        Op::Alloc(17 * MIB / 2, 0, 0),
        Op::Free(0),
    ];
    let after = [Op::Alloc(2 * MIB, 0, 0), Op::Free(0)];
    let snapshot = process(&PyTorchConfig::default(), &before, &after);
    let recording = recording(&snapshot, 0).unwrap();
    let [block] = recording.start_blocks.as_slice() else { panic!() };
    assert_eq!((block.requested, block.size), (Bytes::new(17 * MIB / 2), Bytes::mib(9)));
    assert!(replay_exact(&recording).exact);
    assert!(recording.remarks.iter().any(|remark| remark.text.contains("large gap")));
}

#[test]
fn a_gap_of_a_mebibyte_belongs_to_the_block_before_it() {
    // 11 MiB in a segment of 12: the last one is not split off.
    let snapshot = process(&PyTorchConfig::default(), &[Op::Alloc(11 * MIB, 0, 0)], &[Op::Free(0)]);
    let recording = recording(&snapshot, 0).unwrap();
    assert_eq!(recording.start_blocks[0].size, Bytes::mib(12));
}

#[test]
fn one_address_has_many_lives() {
    let ops = [Op::Alloc(512, 0, 0), Op::Free(0), Op::Alloc(400, 0, 0), Op::Free(0)];
    let snapshot = process(&PyTorchConfig::default(), &[], &ops);
    let recording = recording(&snapshot, 0).unwrap();
    assert_eq!(recording.timeline.allocations().len(), 2);
    let kinds: Vec<bool> =
        recording.timeline.events().iter().map(|e| matches!(e, Event::Alloc(_))).collect();
    assert_eq!(kinds, [true, false, true, false]);
    // A free that completes at once is one event, at its request.
    assert_eq!(recording.trace_index, [1, 2, 4, 5]);
}

#[test]
fn an_emptied_cache_is_told_from_a_request_that_found_no_room() {
    // 30 MiB are cached; the next request of 40 fits only if they are given back.
    let filled = |capacity| {
        let mut p = Program::new(config(|c| c.capacity = capacity));
        let tag = p.alloc(LINE, 30 * MIB);
        p.free(LINE, tag);
        p
    };
    let mut p = filled(Some(Bytes::mib(60)));
    p.alloc(LINE, 40 * MIB);
    let snapshot = p.dump();
    let recorded = recording(&snapshot, 0).unwrap();
    assert_eq!((recorded.caches_emptied, recorded.retries), (0, 1));
    assert!(!recorded.timeline.events().contains(&Event::EmptyCache));
    // With more memory nothing would have been given back.
    let outcome = what_if(&recorded, &PyTorchConfig::default());
    assert_eq!((outcome.peaks.reserved, outcome.retries), (Bytes::mib(70), 0));

    let mut p = filled(None);
    p.empty_cache(EMPTY);
    p.alloc(LINE, 40 * MIB);
    let snapshot = p.dump();
    let recorded = recording(&snapshot, 0).unwrap();
    assert_eq!((recorded.caches_emptied, recorded.retries), (1, 0));
    let outcome = what_if(&recorded, &PyTorchConfig::default());
    assert_eq!((outcome.peaks.reserved, outcome.device_frees), (Bytes::mib(40), 1));
    assert!(replay_exact(&recorded).exact);
}

#[test]
fn settings_that_the_file_hides_are_inferred() {
    let large = config(|c| c.large_segment = Bytes::mib(40));
    let snapshot = process(&large, &[], &[Op::Alloc(3 * MIB, 0, 0)]);
    let recorded = recording(&snapshot, 0).unwrap();
    assert_eq!(recorded.config.large_segment, Bytes::mib(40));
    assert!(recorded.remarks.iter().any(|remark| {
        remark.kind == RemarkKind::Assumed && remark.text.contains("large_segment_size_mb is 40")
    }));
    // Without an event, three final segments show it.
    let before: Vec<Op> = (0..12).map(|_| Op::Alloc(9 * MIB, 0, 0)).collect();
    let snapshot = process(&large, &before, &[]);
    assert_eq!(recording(&snapshot, 0).unwrap().config.large_segment, Bytes::mib(40));
    // One does not: it may have been made for one larger request.
    let snapshot = process(&PyTorchConfig::default(), &[Op::Alloc(15 * MIB, 0, 0)], &[Op::Free(0)]);
    assert_eq!(recording(&snapshot, 0).unwrap().config.large_segment, Bytes::mib(20));
    // A page of expandable segments that no multiple of 20 MiB explains.
    let page = config(|c| {
        c.large_segment = Bytes::mib(12);
        c.expandable_segments = true;
    });
    let snapshot = process(&page, &[], &[Op::Alloc(3 * MIB, 0, 0), Op::Alloc(30 * MIB, 0, 0)]);
    assert_eq!(recording(&snapshot, 0).unwrap().config.large_segment, Bytes::mib(12));
}

#[test]
fn the_text_of_the_settings_is_believed() {
    let mut snapshot = process(&PyTorchConfig::default(), &[Op::Alloc(MIB, 0, 0)], &[]);
    let mut set = |conf: &str| {
        snapshot.settings.as_mut().unwrap().conf = conf.to_owned();
        let recorded = recording(&snapshot, 0).unwrap();
        let text: String = recorded.remarks.iter().map(|remark| remark.text.as_str()).collect();
        (recorded.config.large_segment, text)
    };
    assert_eq!(set("large_segment_size_mb:32").0, Bytes::mib(32));
    assert!(set("per_process_memory_fraction:0.5").1.contains("the limit is left out"));
    assert!(set("max_split_size_mb").1.contains("not valid"));
}

#[test]
fn the_order_of_equal_blocks_follows_the_release() {
    for tie_break in [TieBreak::LowestAddress, TieBreak::OldestBlock] {
        let config = config(|c| c.tie_break = tie_break);
        let snapshot = process(&config, &[], &[Op::Alloc(MIB, 0, 0)]);
        assert_eq!(recording(&snapshot, 0).unwrap().config.tie_break, tie_break);
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let snapshot = process(&PyTorchConfig::default(), &[Op::Alloc(MIB, 0, 0)], &[]);
    assert_eq!(devices(&snapshot), [0]);
    let error = recording(&snapshot, 3).unwrap_err();
    assert_eq!(error.to_string(), "the snapshot holds nothing of device 3; it has device 0");
    let empty = process(&PyTorchConfig::default(), &[], &[]);
    let error = recording(&empty, 0).unwrap_err().to_string();
    assert!(error.contains("no device at all"), "{error}");
}

/// A block that is allocated where one still is: said, and no more than that goes wrong.
#[test]
fn contradictions_are_remarks() {
    let ops = [Op::Alloc(600, 0, 0), Op::Alloc(700, 0, 0), Op::Free(0), Op::Alloc(MIB, 0, 0)];
    let mut snapshot = process(&PyTorchConfig::default(), &[], &ops);
    let events = &mut snapshot.traces[0].events;
    let alloc = *events.iter().find(|event| event.action == Action::Alloc).unwrap();
    events.insert(2, alloc);
    let recorded = recording(&snapshot, 0).unwrap();
    assert!(recorded.remarks.iter().any(|remark| remark.text.contains("allocated again")));
    // The earlier block is taken as freed, so the rest is met.
    assert!(replay_exact(&recorded).exact);
}
