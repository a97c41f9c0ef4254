//! Law: what is written reads the same, whatever release it imitates and whoever pickles.

use std::fmt::Write as _;

use plimsoll_units::Bytes;
use proptest::prelude::*;

use super::*;

/// Everything that a snapshot says, with ids resolved.
fn content(s: &Snapshot) -> String {
    let mut text = format!("{:?} {:?}\n", s.writer, s.settings);
    let stack = |id| {
        let frame = |f: &FrameId| {
            let f = s.frames[f.0 as usize];
            let fx = f.fx.map(|x| [x.op, x.name, x.original_trace, x.info].map(|n| s.names.get(n)));
            format!("{}:{}:{}:{fx:?}", s.names.get(f.file), f.line, s.names.get(f.function))
        };
        s.stacks.get(id).iter().map(frame).collect::<Vec<_>>().join("|")
    };
    let stream = |id: StreamId| s.streams[usize::from(id.0)];
    let pool = |id: PoolId| s.pools[usize::from(id.0)];
    for g in s.segments.iter().chain(&s.host_segments) {
        let plain = Segment {
            stream: StreamId(0),
            pool: PoolId(0),
            stack: StackId::NONE,
            blocks: 0..0,
            ..g.clone()
        };
        let _ =
            writeln!(text, "{plain:?} {} {:?} {}", stream(g.stream), pool(g.pool), stack(g.stack));
        for b in &s.blocks[g.blocks.start as usize..g.blocks.end as usize] {
            let _ = writeln!(text, "{:?} {}", Block { stack: StackId::NONE, ..*b }, stack(b.stack));
        }
    }
    for t in s.traces.iter().chain(&s.host_traces) {
        let _ = writeln!(text, "trace {} {}", t.events.len(), t.has_pools && !t.events.is_empty());
        for e in &t.events {
            let x = &s.extras[e.extra.0 as usize];
            let names =
                [x.action, x.compile_context, x.user_metadata, x.internal_metadata, x.category];
            let names = names.map(|n| n.map(|n| s.names.get(n)));
            let forward: Vec<&str> = x.forward_frames.iter().map(|n| s.names.get(*n)).collect();
            let plain = (e.action, e.address, e.size, e.time_us, stream(e.stream), pool(e.pool));
            let _ = writeln!(text, "{plain:?} {names:?} {forward:?} {}", stack(e.stack));
        }
    }
    for a in &s.annotations {
        let _ = writeln!(text, "{} {:?} {} {}", s.names.get(a.name), a.stage, a.device, a.time_us);
    }
    text
}

const WRITERS: [Writer; 10] = [
    Writer::V2_0,
    Writer::V2_1,
    Writer::V2_2,
    Writer::V2_3,
    Writer::V2_5,
    Writer::V2_8,
    Writer::V2_9,
    Writer::V2_10,
    Writer::V2_12,
    Writer::V2_14,
];

const ACTIONS: [Action; 10] = [
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
];

/// Numbers near the borders of the integer opcodes.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..4u64,
        250..260u64,
        65_530..65_540u64,
        (1 << 31) - 3..(1u64 << 31) + 3,
        any::<u64>().prop_map(|n| n >> 1)
    ]
}

type Row = (usize, u64, u64, usize, usize, u8);

/// A snapshot from numbers: which release, segments as block counts, events as rows of choices.
fn build(writer: Writer, segments: &[(u64, Vec<u8>)], traces: &[Vec<Row>]) -> Snapshot {
    let mut b = Builder::new(writer);
    let frames: Vec<FrameId> = (0..7u32)
        .map(|n| b.frame(&format!("module{}.py", n % 3), n * 100, &format!("f{}", n % 5)).unwrap())
        .collect();
    let mut stacks = vec![StackId::NONE];
    stacks.extend(
        [&frames[..1], &frames[2..6], &frames[..], &[frames[3]; 2]].map(|f| b.stack(f).unwrap()),
    );
    let streams = [b.stream(0), b.stream(0x7f12_3456_7890), b.stream(7)];
    let pools = [b.pool((0, 0)), b.pool((0, 3)), b.pool((5, 0))];
    let mut address = 0x7f00_0000_0000;
    for (n, (size, blocks)) in segments.iter().enumerate() {
        let old = writer == Writer::V2_0;
        let mut at = address;
        let rows: Vec<Block> = blocks
            .iter()
            .map(|k| {
                let (size, stack) = (Bytes::new(512 * (1 + size % 9)), stacks[usize::from(*k) % 5]);
                let state = [BlockState::Allocated, BlockState::PendingFree, BlockState::Free]
                    [usize::from(*k) % 3];
                let block = Block {
                    address: at,
                    size,
                    requested: Bytes::new(1 + u64::from(*k)),
                    state,
                    stack,
                };
                at += size.get();
                block
            })
            .collect();
        let segment = Segment {
            device: n as u32 % 2,
            address,
            total_size: Bytes::new(at - address),
            allocated_size: Bytes::new(*size),
            active_size: Bytes::new(size / 2),
            requested_size: (n % 3 != 0).then_some(Bytes::new(5)),
            stream: streams[n % 3],
            kind: [SegmentKind::Small, SegmentKind::Large][n % 2],
            pool: if old { PoolId(0) } else { pools[n % 3] },
            expandable: n % 2 == 1 && !old,
            stack: if old { StackId::NONE } else { stacks[n % 2] },
            blocks: 0..0,
        };
        b.segment(segment, &rows);
        address = at + (1 << 21);
    }
    let word = b.name("workspace_snapshot").unwrap();
    let metadata = b.name("{\"step\": 3}").unwrap();
    for (device, rows) in traces.iter().enumerate() {
        for &(action, address, size, stack, pool, rare) in rows {
            let mut extra = EventExtra::default();
            if ACTIONS[action] == Action::Other {
                extra.action = Some(word);
            }
            if rare == 1 && writer >= Writer::V2_8 {
                extra.compile_context = Some(metadata);
            }
            if rare == 2 && writer >= Writer::V2_10 {
                (extra.user_metadata, extra.forward_frames) =
                    (Some(metadata), vec![word, metadata]);
            }
            if rare == 3 && writer >= Writer::V2_14 {
                extra.internal_metadata = Some(metadata);
            }
            let event = TraceEvent {
                address,
                size,
                time_us: if writer >= Writer::V2_2 { size ^ address } else { 0 },
                stack: stacks[stack],
                extra: b.extra(extra),
                stream: streams[pool],
                pool: if writer >= Writer::V2_12 { pools[pool] } else { PoolId(0) },
                action: ACTIONS[action],
            };
            b.event(device, event);
        }
    }
    if writer >= Writer::V2_3 {
        let reuse = (writer >= Writer::V2_9)
            .then(|| ("graph_capture_record_stream_reuse".to_owned(), "false".to_owned()));
        b.settings(Settings {
            conf: "max_split_size_mb:128".to_owned(),
            max_split_size: Some(Bytes::mib(128)),
            garbage_collection_threshold: Some(0.75),
            expandable_segments: Some(true),
            roundup_power2_divisions: Some(std::array::from_fn(|n| n as u32)),
            other: reuse.into_iter().collect(),
        });
    }
    if writer >= Writer::V2_5 {
        let name = b.name("Optimizer.step#AdamW.step").unwrap();
        for stage in [Stage::Start, Stage::End] {
            b.annotation(Annotation { name, stage, device: stage as i32 - 1, time_us: 17 });
        }
    }
    b.finish()
}

/// A small snapshot with a bit of everything that a release writes.
pub(crate) fn sample(writer: Writer) -> Snapshot {
    let rows = |n: u64| -> Vec<Row> {
        (0..n)
            .map(|k| {
                (k as usize % 10, 512 * k, 70_000 * k, k as usize % 5, k as usize % 3, k as u8 % 4)
            })
            .collect()
    };
    build(writer, &[(1, vec![0, 1, 2]), (3, vec![4, 5])], &[rows(12), rows(2)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn what_is_written_reads_the_same(
        writer in 0..WRITERS.len(),
        segments in prop::collection::vec((number(), prop::collection::vec(any::<u8>(), 1..6)), 1..5),
        traces in prop::collection::vec(prop::collection::vec(
            (0..ACTIONS.len(), number(), number(), 0..5usize, 0..3usize, 0..6u8), 0..40), 0..3),
        python in any::<bool>(),
        share_frames in any::<bool>(),
        long in 0..4usize,
    ) {
        let mut traces = traces;
        // More events than a batch of CPython holds.
        if long == 0 && let Some(first) = traces.first_mut() && !first.is_empty() {
            *first = first.iter().copied().cycle().take(2001).collect();
        }
        let writer = WRITERS[writer];
        let snapshot = build(writer, &segments, &traces);
        let dialect = if python { Dialect::Python } else { Dialect::TorchScript };
        let options = WriteOptions { dialect, share_frames };
        let mut bytes = Vec::new();
        write(&snapshot, options, &mut bytes).unwrap();
        let again = read(&bytes[..]).unwrap();
        let mut expected = snapshot.clone();
        // Some releases are told by events or histories only.
        expected.writer = again.writer;
        prop_assert!(again.writer <= writer);
        prop_assert_eq!(content(&again), content(&expected));
        prop_assert_eq!(&again.unknown, &[]);
        // Written again, it is the same file.
        let mut twice = Vec::new();
        write(&Snapshot { writer, ..again }, options, &mut twice).unwrap();
        prop_assert_eq!(bytes, twice);
    }
}
