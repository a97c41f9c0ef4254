//! What `torch.profiler` says of memory: the `[memory]` events of a Chrome trace (`profile_memory=True`), and the
//! two JSON forms of `export_memory_timeline`. Files are read in one pass, gzip and zstd are unpacked; of a trace
//! only memory events and operators are kept.
//!
//! Bytes of these events are those of blocks, rounded; a free is told when the program lets go, not when the block
//! can be used again.

mod loose;
mod timeline;
mod trace;

use std::io::{BufRead, BufReader, Read};

use crate::{FormatError, compressed};

pub use timeline::{TimelineAction, TimelineCategory, TimelineCurve, TimelineEvent};
pub use trace::{MemoryEvent, MemoryTrace, OpId};

const SECTION: &str = "profiler file";

/// What a file of `torch.profiler` holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Profile {
    /// A Chrome trace.
    Trace(MemoryTrace),
    /// `export_memory_timeline("*.raw.json.gz")`: each event of a tensor.
    Events(Vec<TimelineEvent>),
    /// `export_memory_timeline("*.json")`: bytes by category over time.
    Curve(TimelineCurve),
}

/// Reads a Chrome trace or a memory timeline, plain or compressed.
///
/// # Errors
///
/// [`FormatError::Json`] with line and column where it is not the JSON that belongs there. A Chrome trace that ends
/// too early is read as far as it goes, with a remark.
pub fn read(reader: impl Read) -> Result<Profile, FormatError> {
    let io =
        |e: std::io::Error| FormatError::Io { section: SECTION, offset: 0, reason: e.to_string() };
    let mut reader = BufReader::with_capacity(1 << 16, compressed::open(reader).map_err(io)?);
    let first = loop {
        let bytes = reader.fill_buf().map_err(io)?;
        let Some(first) = bytes.first().copied() else { break None };
        if !first.is_ascii_whitespace() {
            break Some(first);
        }
        reader.consume(1);
    };
    match first {
        Some(b'{') => trace::read(reader).map(Profile::Trace),
        Some(b'[') => timeline::read(reader),
        _ => Err(FormatError::Json {
            section: SECTION,
            line: 1,
            column: 1,
            reason: "a Chrome trace of torch.profiler (an object with `traceEvents`) or a memory timeline (an \
                     array) is accepted; export one with prof.export_chrome_trace(\"trace.json.gz\")"
                .to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> MemoryTrace {
        match read(text.as_bytes()).unwrap() {
            Profile::Trace(trace) => trace,
            other => panic!("{other:?}"),
        }
    }

    const TRACE: &str = r#" {
  "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU", "totalGlobalMem": 85}],
  "baseTimeNanoseconds": 1000, "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 10.5, "dur": 100,
   "args": {"External id": 1, "Input Dims": [[1, 2], []], "Device Id": "none"}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": 20, "dur": 10, "args": {}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 22, "dur": 900},
  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 45.25,
   "args": {"Total Reserved": 2097152, "Total Allocated": 512, "Bytes": -1024, "Device Id": 0,
            "Device Type": 1, "Addr": 140000000000000, "Ev Idx": 4}},
  {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 25.125,
   "args": {"Total Reserved": 2097152, "Total Allocated": 1536, "Bytes": 1536, "Device Id": 0,
            "Device Type": 1, "Addr": 140000000000000}},
  {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 30,
   "args": {"Total Reserved": 0, "Total Allocated": 64, "Bytes": 64, "Device Id": -1, "Device Type": 0}},
  {"ph": "i", "name": "[OutOfMemory]", "pid": 1, "tid": 1, "ts": 200, "args": {"Bytes": 99, "Device Type": 1}},
  {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 300}
 ], "traceName": "t.json" }"#;

    #[test]
    fn reads_memory_events_with_their_operators() {
        let t = trace(TRACE);
        assert_eq!((t.events.len(), t.base_time_ns, t.cut), (4, 1000, false));
        let op = |n: usize| t.events[n].op.map(|op| t.op(op));
        // In order of time, and of the innermost operator that was running in the same thread.
        let [alloc, cpu, free, oom] = t.events[..] else { panic!() };
        assert_eq!((alloc.time_ns, alloc.bytes, op(0)), (25_125, 1536, Some("aten::addmm")));
        assert_eq!((free.time_ns, free.bytes, op(2)), (45_250, -1024, Some("aten::linear")));
        assert_eq!((free.total_allocated, free.total_reserved), (512, 2 << 20));
        assert_eq!((cpu.device_type, cpu.device, op(1)), (0, -1, None));
        assert_eq!((alloc.address, free.address), (140_000_000_000_000, 140_000_000_000_000));
        assert!(oom.out_of_memory && !alloc.out_of_memory && oom.op.is_none());
        assert_eq!(t.device_names, ["GPU"]);
    }

    #[test]
    fn reads_a_cut_trace_as_far_as_it_goes() {
        let mut counts = Vec::new();
        let begin = TRACE.find("traceEvents\": [").unwrap() + 14;
        for end in begin..TRACE.trim_end().len() {
            let t = trace(&TRACE[..end]);
            assert!(t.cut);
            counts.push(t.events.len());
        }
        counts.dedup();
        assert_eq!(counts, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn reads_both_timelines() {
        let raw = "[[-1, 1, 32768, 0], [1796058132855235884, 2, 8192, 2], [1796058133080380044, 4, -512, 7]]";
        let Profile::Events(events) = read(raw.as_bytes()).unwrap() else { panic!() };
        assert_eq!(events.len(), 3);
        assert_eq!((events[0].time_ns, events[0].action), (None, TimelineAction::Preexisting));
        assert_eq!((events[1].time_ns, events[1].bytes), (Some(1_796_058_132_855_235_884), 8192));
        assert_eq!(events[1].category, TimelineCategory::Input);
        assert_eq!(
            (events[2].action, events[2].category),
            (TimelineAction::Destroy, TimelineCategory::Unknown)
        );

        let curve = "[[10, 20], [[0, 5, 0, 0, 0, 0, 0, 0, 0], [0, 5, 0, 7, 0, 0, 0, 0, 1]]]";
        let Profile::Curve(curve) = read(curve.as_bytes()).unwrap() else { panic!() };
        assert_eq!(curve.times_us, [10, 20]);
        assert_eq!(curve.bytes[1], [5, 0, 7, 0, 0, 0, 0, 1]);

        let Profile::Events(none) = read(&b"[]"[..]).unwrap() else { panic!() };
        assert!(none.is_empty());
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, message) in [
            ("", "a Chrome trace of torch.profiler"),
            ("hello", "a Chrome trace of torch.profiler"),
            ("{\"a\": 1}", "no `traceEvents`"),
            ("{\"traceEvents\": 3}", "traceEvents"),
            ("[[1, 2], [[0]]]", "line 1, column"),
            ("[{\"name\": \"x\"}]", "line 1, column"),
            ("[1, 2]", "line 1, column"),
            ("{\"traceEvents\": [}", "line 1, column"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
