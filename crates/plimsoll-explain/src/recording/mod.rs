//! One device of a memory snapshot as a recording: the program's requests as a [`Timeline`], the state that they
//! start from, what the driver was asked for, where memory ran out, and under which settings. What the file does
//! not say is assumed and listed; a recording that lacks something is still used.

mod address_map;
mod events;
mod gaps;
mod pools;
mod ranges;
mod releases;
mod remark;
mod rewind;
mod settings;

use plimsoll_formats::snapshot::{Action, Snapshot, StackId, TraceEvent};
use plimsoll_timeline::{DriverCall, DriverEvent, OriginId, PoolId, PyTorchConfig, Timeline};
use plimsoll_units::Bytes;

pub(crate) use remark::counted;
pub use remark::{Remark, RemarkKind, grouped};
pub use rewind::{StartBlock, StartSegment};

use remark::Oddities;

/// A call of the driver that the trace shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// Its trace event.
    pub trace_index: u32,
    /// The call.
    pub event: DriverEvent,
}

/// A request that failed while the recording was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedOom {
    /// It failed before this timeline event.
    pub event: u32,
    /// Its trace event.
    pub trace_index: u32,
    /// The request, rounded.
    pub rounded: Bytes,
    /// What the driver still had.
    pub device_free: Bytes,
    /// Stream.
    pub stream: u16,
    /// Memory pool.
    pub pool: PoolId,
    /// Stack of the request.
    pub stack: StackId,
}

/// Why a snapshot gives no recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The device has neither segments nor events.
    #[error(
        "the snapshot holds nothing of device {device}; it has {}",
        devices_in_words(.found)
    )]
    NoSuchDevice {
        /// The device asked for.
        device: u32,
        /// The devices that the file has something of.
        found: Vec<u32>,
    },
}

fn devices_in_words(found: &[u32]) -> String {
    match found {
        [] => "no device at all: recording was off, or nothing was allocated".to_owned(),
        [one] => format!("device {one}"),
        many => {
            let names: Vec<String> = many.iter().map(u32::to_string).collect();
            format!("devices {}", names.join(", "))
        }
    }
}

/// One device of a snapshot. It borrows the snapshot for names, stacks and times.
#[derive(Clone, Debug)]
pub struct Recording<'s> {
    /// The file.
    pub snapshot: &'s Snapshot,
    /// Device index.
    pub device: u32,
    /// What the program asked for. Its existing tensors are [`start_blocks`](Self::start_blocks), in their order.
    pub timeline: Timeline,
    /// Trace event of each timeline event; a free that completes at once stands for its two events.
    pub trace_index: Vec<u32>,
    /// Stack of each origin of the timeline.
    pub stacks: Vec<StackId>,
    /// Segments held before the first event, by address.
    pub start_segments: Vec<StartSegment>,
    /// Blocks in use before the first event, by address.
    pub start_blocks: Vec<StartBlock>,
    /// What the driver was asked for.
    pub driver: Vec<RecordedCall>,
    /// Requests that failed.
    pub ooms: Vec<RecordedOom>,
    /// The allocator's settings.
    pub config: PyTorchConfig,
    /// What was assumed, what is missing, what contradicts itself.
    pub remarks: Vec<Remark>,
    /// Times that the program emptied the cache.
    pub caches_emptied: u64,
    /// Times that the allocator gave memory back within a request.
    pub retries: u64,
}

/// The devices that a snapshot has something of.
pub fn devices(snapshot: &Snapshot) -> Vec<u32> {
    let with_events = (0u32..).zip(&snapshot.traces).filter(|(_, t)| !t.events.is_empty());
    let mut devices: Vec<u32> = with_events.map(|(device, _)| device).collect();
    devices.extend(snapshot.segments.iter().map(|segment| segment.device));
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// The recording of a device.
///
/// # Errors
/// [`RecordingError::NoSuchDevice`] where the snapshot has nothing of it.
pub fn recording(snapshot: &Snapshot, device: u32) -> Result<Recording<'_>, RecordingError> {
    let found = devices(snapshot);
    if !found.contains(&device) {
        return Err(RecordingError::NoSuchDevice { device, found });
    }
    let trace = snapshot.traces.get(device as usize);
    let events = trace.map_or(&[][..], |trace| &trace.events);
    let mut oddities = Oddities::default();
    let (config, mut remarks) = settings::recorded_config(snapshot, device, events);
    let start = rewind::rewind(snapshot, device, events, &config, &mut oddities);
    let event_pools = trace.is_some_and(|trace| trace.has_pools);
    let walked = events::walk(snapshot, events, &start, event_pools, &config, &mut oddities);
    if snapshot.cut_at.is_some() {
        remarks.push(Remark::inconsistent(
            "the file ends too early: its segments show a later moment than its last event, so blocks may be missing or too many",
        ));
    }
    remarks.extend(shape_remarks(events, &start.blocks));
    remarks.extend(oddities.remarks());
    Ok(Recording {
        snapshot,
        device,
        timeline: walked.timeline,
        trace_index: walked.trace_index,
        stacks: walked.stacks,
        start_segments: start.segments,
        start_blocks: start.blocks,
        driver: walked.driver,
        ooms: walked.ooms,
        config,
        remarks,
        caches_emptied: walked.caches_emptied,
        retries: walked.retries,
    })
}

/// What the recording covers, in sentences.
fn shape_remarks(events: &[TraceEvent], start: &[StartBlock]) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let count = |action| events.iter().filter(|event| event.action == action).count();
    let (allocs, frees) = (count(Action::Alloc), count(Action::FreeCompleted));
    if allocs + frees + count(Action::FreeRequested) == 0 {
        remarks.push(Remark::incomplete(
            "the file shows one moment and no history: record with torch.cuda.memory._record_memory_history(max_entries=...) before the part of interest to see how it came about",
        ));
        return remarks;
    }
    let total: Bytes = start.iter().map(|block| block.requested).sum();
    let unknown: Bytes =
        (start.iter().filter(|block| block.stack.is_none())).map(|block| block.requested).sum();
    if !unknown.is_zero() {
        remarks.push(Remark::incomplete(format!(
            "{} ({total}) were allocated before the recording begins; of {unknown} nobody knows where",
            counted(start.len() as u64, "block"),
        )));
    }
    if allocs == 0 {
        remarks.push(Remark::incomplete(
            "no allocation was recorded, only frees: skip_actions or a short ring buffer",
        ));
    }
    if events.iter().all(|event| event.time_us == 0) {
        remarks.push(Remark::incomplete("events have no times (torch 2.1 and older)"));
    }
    remarks
}

impl Recording<'_> {
    /// The trace of the device.
    pub fn events(&self) -> &[TraceEvent] {
        self.snapshot.traces.get(self.device as usize).map_or(&[], |trace| &trace.events)
    }

    /// Microseconds since 1970 of a timeline event; `None` where times were not recorded.
    pub fn time_of(&self, event: u32) -> Option<u64> {
        let index = *self.trace_index.get(event as usize)?;
        let time = self.events().get(index as usize)?.time_us;
        (time > 0).then_some(time)
    }

    /// Reserved right after a trace event, or before the first one: from segment events alone.
    pub(crate) fn reserved_after(&self, trace_index: Option<u32>) -> Bytes {
        let start = self.start_segments.iter().map(|segment| segment.size).sum();
        let made = self.driver.iter().take_while(|call| Some(call.trace_index) <= trace_index);
        made.fold(start, |reserved: Bytes, call| match call.event.call {
            DriverCall::SegmentAlloc | DriverCall::SegmentMap => reserved + call.event.size,
            _ => reserved.saturating_sub(call.event.size),
        })
    }

    /// The stack of an origin.
    pub fn stack_of(&self, origin: OriginId) -> StackId {
        self.stacks.get(origin.0 as usize).copied().unwrap_or(StackId::NONE)
    }
}
