//! Laws of the rewind and of the replays, on recordings whose truth is known.

mod emulator;

use emulator::{Op, Process};
use plimsoll_explain::{Recording, TuneOptions, devices, recording, replay_exact, tune, what_if};
use plimsoll_formats::snapshot::{Action, Snapshot};
use plimsoll_timeline::{BlockState, Layout, PoolKind, PyTorchConfig, RoundupDivisions};
use plimsoll_units::Bytes;
use proptest::prelude::*;

/// Sizes of both pools, around every border between rules.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..4096u64,
        1..(1u64 << 20),
        (1u64 << 20)..(12 << 20),
        (1u64 << 20)..(12 << 20),
        (10u64 << 20)..(70 << 20),
        Just(1 << 20),
        Just((1 << 20) + 1),
        Just(10 << 20),
    ]
}

fn op(streams: u16, pools: u16) -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (size(), 0..streams, 0..pools).prop_map(|(size, s, p)| Op::Alloc(size, s, p)),
        6 => any::<usize>().prop_map(Op::Free),
        1 => any::<usize>().prop_map(Op::FreeLater),
        1 => any::<usize>().prop_map(Op::Complete),
        1 => Just(Op::EmptyCache),
    ]
}

fn ops(streams: u16, pools: u16) -> impl Strategy<Value = (Vec<Op>, usize)> {
    (prop::collection::vec(op(streams, pools), 1..160), any::<prop::sample::Index>()).prop_map(
        |(ops, cut)| {
            let cut = cut.index(ops.len());
            (ops, cut)
        },
    )
}

fn config() -> impl Strategy<Value = PyTorchConfig> {
    let capacity = prop_oneof![
        2 => Just(None),
        1 => (60u64..400).prop_map(|mib| Some(Bytes::mib(mib))),
    ];
    let split = prop_oneof![2 => Just(None), 1 => Just(Some(Bytes::mib(32)))];
    (capacity, split, prop_oneof![2 => Just(0u32), 1 => Just(4)], any::<bool>()).prop_map(
        |(capacity, split, roundup, expandable)| {
            let mut config = PyTorchConfig::default();
            // Torch reserves addresses for 9/8 of the device, which no snapshot tells: what is assumed instead is
            // right for an unlimited one.
            config.capacity = if expandable { None } else { capacity };
            config.max_split_size = split;
            config.roundup_power2_divisions = RoundupDivisions::uniform(roundup);
            config.expandable_segments = expandable;
            config
        },
    )
}

/// A process that is recorded from `cut` on.
fn recorded(config: &PyTorchConfig, ops: &[Op], cut: usize) -> (Snapshot, Layout, Process) {
    let mut process = Process::new(config.clone());
    let ops: Vec<Op> = ops
        .iter()
        .map(|op| match *op {
            // With a largest split, a request may give back segments of a private pool that is in use, which looks like
            // the end of the pool.
            Op::Alloc(size, stream, _) if config.max_split_size.is_some() => {
                Op::Alloc(size, stream, 0)
            }
            op => op,
        })
        .collect();
    process.run(&ops[..cut]);
    process.reset_peaks();
    let start = process.record();
    process.run(&ops[cut..]);
    (process.dump(), start, process)
}

fn segments_of(recording: &Recording<'_>) -> Vec<(u64, Bytes)> {
    recording.start_segments.iter().map(|s| (s.address, s.size)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 40_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened before and during the recording, the replay under its own settings meets every address,
    /// every segment and every final block.
    #[test]
    fn a_recording_is_reproduced_exactly(config in config(), (ops, cut) in ops(2, 2)) {
        let (snapshot, start, process) = recorded(&config, &ops, cut);
        // Completions without any request look like a recording that leaves requests out.
        let has = |action| snapshot.traces[0].events.iter().any(|event| event.action == action);
        prop_assume!(has(Action::FreeRequested) || !has(Action::FreeCompleted));
        let Ok(recording) = recording(&snapshot, 0) else {
            prop_assert!(devices(&snapshot).is_empty());
            return Ok(());
        };
        let expected: Vec<_> = start.segments.iter().map(|s| (s.address, s.size)).collect();
        prop_assert_eq!(segments_of(&recording), expected);
        let blocks: Vec<_> = start.active_blocks().collect();
        prop_assert_eq!(recording.start_blocks.len(), blocks.len());
        for (found, (segment, block)) in recording.start_blocks.iter().zip(blocks) {
            prop_assert_eq!((found.address, found.requested), (block.address, block.requested));
            prop_assert_eq!(found.pending, block.state == BlockState::PendingFree);
            // The slack of a block that is freed before anything is allocated beside it leaves no trace.
            let slack = block.size.checked_sub(found.size).unwrap();
            let exact = segment.kind == PoolKind::Small || segment.expandable;
            let most = if exact { Bytes::ZERO } else { Bytes::mib(20) };
            prop_assert!(slack <= most, "{found:?} {block:?}");
        }
        let exact = replay_exact(&recording);
        prop_assert!(exact.exact, "{:#?}\n{:#?}", exact, recording.remarks);
        prop_assert_eq!(exact.peaks.reserved, process.reserved_peak());
        prop_assert_eq!(exact.recorded_reserved_peak, process.reserved_peak());
    }

    /// A what-if under the recorded settings and the recorded capacity is the recording.
    #[test]
    fn nothing_changes_under_the_recorded_settings(config in config(), (ops, cut) in ops(1, 1)) {
        let (snapshot, _, process) = recorded(&config, &ops, cut);
        let Ok(recording) = recording(&snapshot, 0) else { return Ok(()) };
        let mut same = recording.config.clone();
        same.capacity = config.capacity;
        let outcome = what_if(&recording, &same);
        match outcome.failure {
            None => {
                prop_assert!(outcome.fits && recording.ooms.is_empty());
                prop_assert_eq!(outcome.peaks.reserved, process.reserved_peak());
            }
            Some(failure) => prop_assert!(failure.failed_in_recording, "{}", failure.text),
        }
    }

    /// No settings of a simple grid do better than the winner, and the figures of every candidate are those of a
    /// replay of its own.
    #[test]
    fn the_winner_of_a_search_is_the_best(
        config in config(),
        (ops, cut) in ops(2, 1),
        capacity in prop_oneof![Just(None), (40u64..300).prop_map(|mib| Some(Bytes::mib(mib)))],
    ) {
        let (snapshot, ..) = recorded(&config, &ops, cut);
        let Ok(recording) = recording(&snapshot, 0) else { return Ok(()) };
        let mut options = TuneOptions::for_recording(&recording, capacity);
        options.listed = 1000;
        let tuning = tune(&recording, &options);
        prop_assert_eq!(tuning.left_out, 0);
        for candidate in tuning.winner.iter().chain([&tuning.recorded]) {
            let outcome = what_if(&recording, &candidate.config);
            prop_assert_eq!(candidate.fits, outcome.fits);
            prop_assert_eq!(candidate.reserved_peak, outcome.peaks.reserved);
            prop_assert_eq!(candidate.retries, outcome.retries);
        }
        let best = tuning.winner.as_ref().map(|w| (w.retries, w.reserved_peak));
        for (expandable, roundup, split) in
            [(false, 0, 0), (true, 0, 0), (false, 4, 0), (true, 16, 0), (false, 0, 32), (false, 8, 128)]
        {
            let mut other = PyTorchConfig::default();
            other.expandable_segments = expandable;
            other.roundup_power2_divisions = RoundupDivisions::uniform(roundup);
            other.max_split_size = (split > 0).then(|| Bytes::mib(split));
            other.capacity = capacity;
            let outcome = what_if(&recording, &other);
            if outcome.fits {
                let figures = (outcome.retries, outcome.peaks.reserved);
                prop_assert!(best.is_some_and(|best| best <= figures), "{:?} {:#?}", figures, tuning);
            }
        }
    }

    /// Recordings that leave out an action: what can be known is, and the rest is said.
    #[test]
    fn actions_that_were_not_recorded_are_made_up_for(
        (ops, cut) in ops(2, 1),
        skipped in prop::sample::select(vec![
            Action::Alloc,
            Action::FreeRequested,
            Action::FreeCompleted,
            Action::SegmentAlloc,
            Action::SegmentFree,
        ]),
    ) {
        // Without another stream every free completes at once, so that one of its two events tells all.
        let ops: Vec<Op> = (ops.into_iter())
            .filter(|op| !matches!(op, Op::FreeLater(_) | Op::Complete(_)))
            .collect();
        let cut = cut.min(ops.len());
        let (mut snapshot, ..) = recorded(&PyTorchConfig::default(), &ops, cut);
        let events = &mut snapshot.traces[0].events;
        let before = events.len();
        events.retain(|event| event.action != skipped);
        let removed = before - events.len();
        let Ok(recording) = recording(&snapshot, 0) else { return Ok(()) };
        let exact = replay_exact(&recording);
        if removed == 0 || matches!(skipped, Action::FreeRequested | Action::FreeCompleted) {
            prop_assert!(exact.exact, "{:#?}\n{:#?}", exact, recording.remarks);
        } else if !exact.exact {
            prop_assert!(!recording.remarks.is_empty());
        }
    }
}
