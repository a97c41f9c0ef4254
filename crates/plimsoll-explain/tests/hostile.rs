//! Snapshots that no torch writes: any order of any events over any segments. Whatever they hold, they are read with
//! remarks and every analysis comes to an end.

use plimsoll_explain::{
    ExplainOptions, Export, Format, PageText, Table, TuneOptions, devices, diff, explain,
    flame_graph, page, ranks, recording, replay_exact, tune, what_if, write_perfetto, write_table,
};
use plimsoll_formats::snapshot::{
    Action, Annotation, Block, BlockState, Builder, ExtraId, PoolId, Segment, SegmentKind,
    Settings, Snapshot, StackId, Stage, StreamId, TraceEvent, Writer,
};
use plimsoll_units::Bytes;
use proptest::prelude::*;

/// Few addresses, so that they meet, and some at the ends of the range.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0..64u64).prop_map(|n| 0x7000_0000_0000 + n * (1 << 19)),
        2 => (0..64u64).prop_map(|n| 0x7000_0000_0000 + n * 512),
        1 => any::<u64>(),
        1 => Just(u64::MAX),
        1 => Just(0),
    ]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..64u64).prop_map(|n| n << 19),
        4 => 0..5000u64,
        1 => Just(2 << 20),
        1 => Just(20 << 20),
        1 => any::<u64>(),
    ]
}

fn event() -> impl Strategy<Value = TraceEvent> {
    let action = prop::sample::select(vec![
        Action::Alloc,
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Snapshot,
        Action::OutOfMemory,
        Action::Other,
    ]);
    (action, address(), size(), 0..3u16, 0..3u16, 0..5u32, any::<u64>()).prop_map(
        |(action, address, size, stream, pool, stack, time_us)| TraceEvent {
            address,
            size,
            time_us,
            stack: StackId(stack),
            extra: ExtraId(0),
            stream: StreamId(stream),
            pool: PoolId(pool),
            action,
        },
    )
}

fn segment() -> impl Strategy<Value = (Segment, Vec<Block>)> {
    let state = prop::sample::select(vec![
        BlockState::Allocated,
        BlockState::PendingFree,
        BlockState::Free,
    ]);
    let block = (address(), size(), size(), state, 0..5u32).prop_map(
        |(address, size, requested, state, stack)| Block {
            address,
            size: Bytes::new(size),
            requested: Bytes::new(requested),
            state,
            stack: StackId(stack),
        },
    );
    let blocks = prop::collection::vec(block, 0..6);
    (address(), size(), any::<(bool, bool)>(), 0..3u16, 0..3u16, blocks).prop_map(
        |(address, size, (small, expandable), stream, pool, blocks)| {
            let segment = Segment {
                device: 0,
                address,
                total_size: Bytes::new(size),
                allocated_size: Bytes::ZERO,
                active_size: Bytes::ZERO,
                requested_size: None,
                stream: StreamId(stream),
                kind: if small { SegmentKind::Small } else { SegmentKind::Large },
                pool: PoolId(pool),
                expandable,
                stack: StackId(7),
                blocks: 0..0,
            };
            (segment, blocks)
        },
    )
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let writer = prop::sample::select(vec![
        Writer::Unknown,
        Writer::V2_0,
        Writer::V2_5,
        Writer::V2_10,
        Writer::V2_12,
    ]);
    let settings = prop::option::of((
        prop::option::of(size()),
        prop::option::of(any::<f64>()),
        any::<bool>(),
        prop::option::of(prop::collection::vec(any::<u32>(), 16)),
        prop::sample::select(vec![
            "",
            "large_segment_size_mb:64",
            "nonsense:[",
            "max_split_size_mb:1",
        ]),
    ));
    let scopes = prop::collection::vec((any::<bool>(), any::<u64>(), -2..3i32), 0..6);
    (
        writer,
        settings,
        prop::collection::vec(segment(), 0..8),
        prop::collection::vec(event(), 0..60),
        scopes,
        any::<bool>(),
    )
        .prop_map(|(writer, settings, segments, events, scopes, cut)| {
            let mut builder = Builder::new(writer);
            let frame = builder.frame("/home/u/train.py", 1, "backward").unwrap();
            builder.stack(&[frame]).unwrap();
            let other = builder.frame("", 0, "at::x(Backward0 apply").unwrap();
            builder.stack(&[other, frame]).unwrap();
            for (segment, blocks) in &segments {
                builder.segment(segment.clone(), blocks);
            }
            for event in events {
                builder.event(0, event);
            }
            for (start, time_us, device) in scopes {
                let name = builder.name("ProfilerStep#1").unwrap();
                let stage = if start { Stage::Start } else { Stage::End };
                builder.annotation(Annotation { name, stage, device, time_us });
            }
            if let Some((split, threshold, expandable, roundup, conf)) = settings {
                builder.settings(Settings {
                    conf: conf.to_owned(),
                    max_split_size: split.map(Bytes::new),
                    garbage_collection_threshold: threshold,
                    expandable_segments: Some(expandable),
                    roundup_power2_divisions: roundup.and_then(|r| r.try_into().ok()),
                    ..Settings::default()
                });
            }
            let mut snapshot = builder.finish();
            snapshot.cut_at = cut.then_some(1);
            snapshot
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::with_cases(256)
    })]

    #[test]
    fn no_snapshot_stops_an_analysis(snapshot in snapshot()) {
        for device in [0, 1, 7] {
            let Ok(recording) = recording(&snapshot, device) else {
                prop_assert!(!devices(&snapshot).contains(&device));
                continue;
            };
            let exact = replay_exact(&recording);
            prop_assert_eq!(exact.exact, exact.departures_in_all == 0);
            let mut options = ExplainOptions::default();
            options.device_total = Some(Bytes::gib(1));
            let explanation = explain(&recording, &options);
            let mut config = recording.config.clone();
            config.capacity = Some(Bytes::gib(1));
            config.expandable_segments = !config.expandable_segments;
            what_if(&recording, &config);
            let mut options = TuneOptions::for_recording(&recording, Some(Bytes::mib(100)));
            options.device_total = Some(Bytes::gib(1));
            options.budget = 2_000;
            tune(&recording, &options);
            diff(&recording, &recording, 3);
            let export = Export::new(&recording, 0);
            for table in [Table::Blocks, Table::Events, Table::Stacks, Table::Curve] {
                write_table(&export, table, Format::Csv, &mut std::io::sink()).unwrap();
            }
            write_perfetto(&export, &mut std::io::sink()).unwrap();
            flame_graph(&export, exact.peaks.allocated_event, "a");
            page(&recording, &PageText::default());
            ranks(&[("a".to_owned(), &explanation), ("b".to_owned(), &explanation)]);
        }
    }
}
