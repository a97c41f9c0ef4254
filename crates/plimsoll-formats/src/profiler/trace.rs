//! Chrome traces.

use std::collections::HashMap;
use std::fmt;
use std::io::BufRead;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::SECTION;
use super::loose::{Number, Text};
use crate::{FormatError, json};

/// An operator's name, by order of appearance: see [`MemoryTrace::op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// One `[memory]` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// Nanoseconds, on the trace's clock.
    pub time_ns: i64,
    /// Address.
    pub address: u64,
    /// Bytes of the block; negative for a free.
    pub bytes: i64,
    /// Allocated on this device afterwards.
    pub total_allocated: u64,
    /// Reserved on this device afterwards; 0 for the CPU.
    pub total_reserved: u64,
    /// Kind of device as torch numbers them: 0 CPU, 1 CUDA.
    pub device_type: i32,
    /// Device index; -1 for the CPU.
    pub device: i32,
    /// The innermost operator that ran in the same thread.
    pub op: Option<OpId>,
    /// An `[OutOfMemory]` event: [`bytes`](Self::bytes) is what could not be served.
    pub out_of_memory: bool,
}

/// The memory events of a trace, in order of time.
#[derive(Clone, Debug, Default)]
pub struct MemoryTrace {
    /// The events.
    pub events: Vec<MemoryEvent>,
    ops: Vec<String>,
    /// What the trace's clock counts from, in nanoseconds since 1970; 0 where the trace does not say.
    pub base_time_ns: u64,
    /// Names of the GPUs.
    pub device_names: Vec<String>,
    /// The file ends too early: the newest events may be missing.
    pub cut: bool,
    /// What the reader could live with, in sentences.
    pub remarks: Vec<String>,
}

impl MemoryTrace {
    /// Name of an operator; empty for an id of another trace.
    pub fn op(&self, id: OpId) -> &str {
        self.ops.get(id.0 as usize).map_or("", String::as_str)
    }
}

/// A running operator: thread, begin, end, name.
struct Span {
    thread: u32,
    begin: i64,
    end: i64,
    op: OpId,
}

#[derive(Default)]
struct Collector {
    trace: MemoryTrace,
    /// Thread of each memory event.
    threads: Vec<u32>,
    spans: Vec<Span>,
    op_ids: HashMap<String, OpId>,
    thread_ids: HashMap<(Text, Text), u32>,
    found_events: bool,
}

impl std::hash::Hash for Text {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

pub(super) fn read(reader: impl BufRead) -> Result<MemoryTrace, FormatError> {
    let mut collector = Collector::default();
    let mut json = serde_json::Deserializer::from_reader(reader);
    match Top(&mut collector).deserialize(&mut json) {
        Ok(()) if collector.found_events => {}
        Ok(()) => {
            return Err(FormatError::Json {
                section: SECTION,
                line: 1,
                column: 1,
                reason:
                    "an object with no `traceEvents`; a Chrome trace of torch.profiler has them"
                        .to_owned(),
            });
        }
        Err(e) if early_end(&e) && collector.found_events => {
            collector.trace.cut = true;
            let found = collector.trace.events.len();
            collector.trace.remarks.push(format!(
                "the trace is cut short at line {}: {found} memory events were read, the newest may be missing; \
                 the profiler writes the end when it stops",
                e.line(),
            ));
        }
        Err(e) => return Err(json::error(SECTION, &e)),
    }
    Ok(collector.finish())
}

/// Whether JSON stopped because the file does, be it compressed or not.
pub(super) fn early_end(e: &serde_json::Error) -> bool {
    e.is_eof() || e.io_error_kind() == Some(std::io::ErrorKind::UnexpectedEof)
}

impl Collector {
    fn op(&mut self, name: String) -> OpId {
        if let Some(id) = self.op_ids.get(&name) {
            return *id;
        }
        let id = OpId(self.trace.ops.len() as u32);
        self.trace.ops.push(name.clone());
        self.op_ids.insert(name, id);
        id
    }

    fn thread(&mut self, event: &mut RawEvent) -> u32 {
        let next = self.thread_ids.len() as u32;
        let key = (std::mem::take(&mut event.pid), std::mem::take(&mut event.tid));
        *self.thread_ids.entry(key).or_insert(next)
    }

    fn event(&mut self, mut event: RawEvent) {
        let out_of_memory = event.name.0 == "[OutOfMemory]";
        let time_ns = event.ts.nanoseconds();
        if out_of_memory || event.name.0 == "[memory]" {
            let thread = self.thread(&mut event);
            let args = event.args;
            let index = |n: Number| n.integer().and_then(|n| i32::try_from(n).ok());
            self.threads.push(thread);
            self.trace.events.push(MemoryEvent {
                time_ns,
                address: args.address.count(),
                bytes: args.bytes.integer().unwrap_or(0),
                total_allocated: args.total_allocated.count(),
                total_reserved: args.total_reserved.count(),
                device_type: index(args.device_type).unwrap_or(0),
                device: index(args.device_id).unwrap_or(-1),
                op: None,
                out_of_memory,
            });
        } else if event.cat.0 == "cpu_op" || event.cat.0 == "Operator" {
            let thread = self.thread(&mut event);
            let op = self.op(event.name.0);
            let end = time_ns.saturating_add(event.dur.nanoseconds());
            self.spans.push(Span { thread, begin: time_ns, end, op });
        }
    }

    /// Puts the events in order and finds the operator of each.
    fn finish(mut self) -> MemoryTrace {
        // Of two that begin together the longer one is the outer one.
        self.spans.sort_by_key(|s| (s.thread, s.begin, std::cmp::Reverse(s.end)));
        let mut order: Vec<usize> = (0..self.trace.events.len()).collect();
        order.sort_by_key(|n| (self.threads[*n], self.trace.events[*n].time_ns));
        let mut spans = self.spans.iter().peekable();
        let mut running: Vec<&Span> = Vec::new();
        for n in order {
            let (thread, time) = (self.threads[n], self.trace.events[n].time_ns);
            while let Some(span) = spans.next_if(|s| (s.thread, s.begin) <= (thread, time)) {
                while running.last().is_some_and(|s| s.thread != span.thread || s.end <= span.begin)
                {
                    running.pop();
                }
                running.push(span);
            }
            while running.last().is_some_and(|s| s.thread != thread || s.end < time) {
                running.pop();
            }
            self.trace.events[n].op = running.last().map(|s| s.op);
        }
        self.trace.events.sort_by_key(|e| e.time_ns);
        if self.trace.events.is_empty() {
            self.trace.remarks.push(
                "the trace has no [memory] events; profile with profile_memory=True to record them"
                    .to_owned(),
            );
        }
        self.trace
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEvent {
    name: Text,
    cat: Text,
    pid: Text,
    tid: Text,
    ts: Number,
    dur: Number,
    args: Arguments,
}

#[derive(Default)]
struct Arguments {
    bytes: Number,
    address: Number,
    total_allocated: Number,
    total_reserved: Number,
    device_type: Number,
    device_id: Number,
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Arguments;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the arguments of an event")
            }
            fn visit_unit<E>(self) -> Result<Arguments, E> {
                Ok(Arguments::default())
            }
            fn visit_str<E>(self, _: &str) -> Result<Arguments, E> {
                Ok(Arguments::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Arguments, A::Error> {
                let mut arguments = Arguments::default();
                while let Some(key) = map.next_key::<Text>()? {
                    let slot = match key.0.as_str() {
                        "Bytes" => &mut arguments.bytes,
                        "Addr" => &mut arguments.address,
                        "Total Allocated" => &mut arguments.total_allocated,
                        "Total Reserved" => &mut arguments.total_reserved,
                        "Device Type" => &mut arguments.device_type,
                        "Device Id" => &mut arguments.device_id,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *slot = map.next_value()?;
                }
                Ok(arguments)
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// The whole trace.
struct Top<'a>(&'a mut Collector);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Chrome trace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Device {
            name: Text,
        }
        while let Some(key) = map.next_key::<Text>()? {
            match key.0.as_str() {
                "traceEvents" => {
                    self.0.found_events = true;
                    map.next_value_seed(Events(self.0))?;
                }
                "baseTimeNanoseconds" => {
                    self.0.trace.base_time_ns = map.next_value::<Number>()?.count();
                }
                "deviceProperties" => {
                    let devices: Vec<Device> = map.next_value()?;
                    self.0.trace.device_names = devices.into_iter().map(|d| d.name.0).collect();
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// The list of events: each is looked at and let go.
struct Events<'a>(&'a mut Collector);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the array traceEvents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<RawEvent>()? {
            self.0.event(event);
        }
        Ok(())
    }
}
