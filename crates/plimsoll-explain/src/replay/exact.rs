//! Replay under the recorded settings, laid beside the recording: the address of every allocation, every call of the
//! driver with its size, every final block. Where they differ, where and why.

use plimsoll_formats::snapshot;
use plimsoll_timeline::{
    BlockHandle, BlockState, DriverCall, DriverEvent, Event, Layout, LayoutBlock, LayoutSegment,
    OutOfMemory, PyTorchAllocator, TensorId,
};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::curve::{Curve, CurvePoint};
use super::script::Script;
use super::start::as_recorded;
use super::walk::{Observer, Peaks, Step, usage, walk};
use crate::recording::Recording;

/// Departures listed one by one.
const LISTED: usize = 20;

/// A replay under the recorded settings and how far it agrees with the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExactReplay {
    /// Whether nothing departs.
    pub exact: bool,
    /// The first departures; those after the first mostly follow from it.
    pub departures: Vec<Departure>,
    /// All of them.
    pub departures_in_all: u64,
    /// What was compared.
    pub compared: Compared,
    /// Highest values of the replay.
    pub peaks: Peaks,
    /// The most that the recording's own segment events held.
    pub recorded_reserved_peak: Bytes,
    /// Reserved at the end of the replay.
    pub reserved_at_end: Bytes,
    /// Allocated at the end of the replay.
    pub allocated_at_end: Bytes,
    /// Times that the allocator gave back its cache to serve a request.
    pub retries: u64,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// Addresses of allocations.
    pub allocations: u64,
    /// Segments made and pages mapped.
    pub given: u64,
    /// Segments and pages given back.
    pub given_back: u64,
    /// Final segments.
    pub segments: u64,
    /// Final blocks.
    pub blocks: u64,
}

/// What departed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DepartureKind {
    /// The state before the first event is none that the allocator can have.
    StartState,
    /// The address of an allocation.
    Address,
    /// What the driver was asked for during a request.
    Driver,
    /// A request that was served in one and failed in the other.
    OutOfMemory,
    /// A segment of the final state.
    FinalSegment,
    /// A block of the final state.
    FinalBlock,
}

/// A place where the replay departs from the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Departure {
    /// What departed.
    pub kind: DepartureKind,
    /// Timeline event; absent for the final state and for requests that failed.
    pub event: Option<u32>,
    /// Trace event; absent for the final state.
    pub trace_index: Option<u32>,
    /// What the recording shows.
    pub expected: String,
    /// What the replay did.
    pub got: String,
    /// Why, as far as the recording tells.
    pub why: String,
}

/// Replays a recording under its own settings.
pub fn replay_exact(recording: &Recording<'_>) -> ExactReplay {
    measure(recording).exact
}

/// A replay under the recorded settings, and what it shows of every block and moment.
pub(crate) struct Measured {
    pub exact: ExactReplay,
    /// Size of each tensor's block, rounding and slack included; zero where it got none.
    pub sizes: Vec<Bytes>,
    pub curve: Vec<CurvePoint>,
    /// What the allocator holds after the last event.
    pub end: Layout,
}

/// [`replay_exact`] with what the findings need.
pub(crate) fn measure(recording: &Recording<'_>) -> Measured {
    let script = Script::new(&recording.driver);
    let started = as_recorded(recording, recording.config.clone(), script);
    let mut sizes = vec![Bytes::ZERO; recording.timeline.allocations().len()];
    for (size, block) in sizes.iter_mut().zip(&recording.start_blocks) {
        *size = block.size;
    }
    let mut observer = Exactness {
        recording,
        peaks: Peaks::default(),
        compared: Compared::default(),
        departures: Vec::new(),
        count: 0,
        sizes,
        curve: Curve::new(recording.timeline.events().len()),
    };
    let (mut torch, blocks) = match started {
        Ok(started) => started,
        Err(error) => {
            let expected = "blocks that lie in segments as torch's do".to_owned();
            observer.depart(DepartureKind::StartState, None, expected, error.to_string());
            let script = Script::new(&[]);
            (PyTorchAllocator::with_driver(recording.config.clone(), script), Vec::new())
        }
    };
    observer.peaks = Peaks::starting_with(usage(&torch));
    walk(recording, &mut torch, blocks, &mut observer);
    let end_layout = torch.layout();
    observer.compare_end(&end_layout.segments);
    let end = usage(&torch);
    let exact = ExactReplay {
        exact: observer.count == 0,
        departures: observer.departures,
        departures_in_all: observer.count,
        compared: observer.compared,
        peaks: observer.peaks,
        recorded_reserved_peak: recorded_reserved_peak(recording),
        reserved_at_end: end.reserved,
        allocated_at_end: end.allocated,
        retries: torch.statistics().num_alloc_retries,
    };
    let curve = observer.curve.finish(recording);
    Measured { exact, sizes: observer.sizes, curve, end: end_layout }
}

/// What the allocator holds right after a timeline event, or just before a request that failed; `None` where the
/// start state is none that it can have.
pub(crate) fn layout_at(recording: &Recording<'_>, until: Until) -> Option<Layout> {
    let script = Script::new(&recording.driver);
    let (mut torch, blocks) = as_recorded(recording, recording.config.clone(), script).ok()?;
    let mut observer = Stop { recording, until, layout: None };
    if until != Until::Start {
        walk(recording, &mut torch, blocks, &mut observer);
    }
    Some(observer.layout.unwrap_or_else(|| torch.layout()))
}

/// Where a replay stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Before the first event.
    Start,
    /// After a timeline event.
    Event(u32),
    /// When a request has failed, by index: what could be given back was given back.
    Failed(usize),
}

struct Stop<'r, 's> {
    recording: &'r Recording<'s>,
    until: Until,
    layout: Option<Layout>,
}

impl<'r> Observer<Script<'r>> for Stop<'r, '_> {
    fn before(&mut self, torch: &mut PyTorchAllocator<Script<'r>>, step: Step) {
        torch.driver_mut().begin_step(self.recording, step);
    }

    fn after(
        &mut self,
        torch: &mut PyTorchAllocator<Script<'r>>,
        step: Step,
        _result: Result<(), OutOfMemory>,
    ) -> bool {
        let here = match (step, self.until) {
            (Step::Event(index, _), Until::Event(at)) => index == at,
            (Step::Failed(index), Until::Failed(at)) => index == at,
            _ => false,
        };
        if here {
            self.layout = Some(torch.layout());
        }
        !here
    }
}

/// The most that was reserved, from the segments of the start state and the segment events alone.
fn recorded_reserved_peak(recording: &Recording<'_>) -> Bytes {
    let mut reserved: Bytes = recording.start_segments.iter().map(|segment| segment.size).sum();
    let mut peak = reserved;
    for call in &recording.driver {
        reserved = match call.event.call {
            DriverCall::SegmentAlloc | DriverCall::SegmentMap => reserved + call.event.size,
            _ => reserved.saturating_sub(call.event.size),
        };
        peak = peak.max(reserved);
    }
    peak
}

struct Exactness<'r, 's> {
    recording: &'r Recording<'s>,
    peaks: Peaks,
    compared: Compared,
    departures: Vec<Departure>,
    count: u64,
    sizes: Vec<Bytes>,
    curve: Curve,
}

impl<'r> Observer<Script<'r>> for Exactness<'r, '_> {
    fn before(&mut self, torch: &mut PyTorchAllocator<Script<'r>>, step: Step) {
        torch.driver_mut().begin_step(self.recording, step);
    }

    fn allocated(
        &mut self,
        torch: &PyTorchAllocator<Script<'r>>,
        event: u32,
        id: TensorId,
        block: &BlockHandle,
    ) {
        if let Some(size) = self.sizes.get_mut(id.0 as usize) {
            *size = torch.block_size(block);
        }
        let index = Step::Event(event, Event::EmptyCache).trace_index(self.recording);
        let recorded = self.recording.events().get(index as usize).map_or(0, |e| e.address);
        let address = torch.address(block);
        self.compared.allocations += 1;
        if address != recorded {
            let step = Step::Event(event, Event::EmptyCache);
            self.depart(DepartureKind::Address, Some(step), hex(recorded), hex(address));
        }
    }

    fn after(
        &mut self,
        torch: &mut PyTorchAllocator<Script<'r>>,
        step: Step,
        result: Result<(), OutOfMemory>,
    ) -> bool {
        let event = match step {
            Step::Event(index, _) => Some(index),
            Step::Failed(_) => None,
        };
        let usage = usage(torch);
        self.peaks.note(event, usage);
        if let Some(event) = event {
            self.curve.note(event, usage);
        }
        let departs = match (step, result) {
            (Step::Failed(_), Ok(())) => {
                Some(("out of memory".to_owned(), "the request was served".to_owned()))
            }
            (Step::Event(..), Err(error)) => {
                Some(("the request was served".to_owned(), error.to_string()))
            }
            _ => None,
        };
        if let Some((expected, got)) = departs {
            self.depart(DepartureKind::OutOfMemory, Some(step), expected, got);
        }
        if matches!(step, Step::Event(_, Event::Alloc(_) | Event::EmptyCache) | Step::Failed(_)) {
            self.compare_driver(torch, step);
        }
        true
    }
}

impl<'r> Exactness<'r, '_> {
    fn compare_driver(&mut self, torch: &PyTorchAllocator<Script<'r>>, step: Step) {
        let (recorded, asked) = torch.driver().compare();
        if recorded.is_empty() && asked.is_empty() {
            return;
        }
        let gives =
            |e: &DriverEvent| matches!(e.call, DriverCall::SegmentAlloc | DriverCall::SegmentMap);
        let given = recorded.iter().filter(|call| gives(&call.event)).count() as u64;
        self.compared.given += given;
        self.compared.given_back += recorded.len() as u64 - given;
        // What is given back during one request is a set: its order depends on nothing that matters.
        let order = |event: &DriverEvent| (!gives(event), event.call as u8, event.address);
        let mut recorded: Vec<DriverEvent> = recorded.iter().map(|call| call.event).collect();
        let mut asked = asked.to_vec();
        recorded.sort_by_key(order);
        asked.sort_by_key(order);
        if recorded != asked {
            let (expected, got) = (calls(&recorded), calls(&asked));
            self.depart(DepartureKind::Driver, Some(step), expected, got);
        }
    }

    fn compare_end(&mut self, segments: &[LayoutSegment]) {
        let recorded: Vec<&snapshot::Segment> = (self.recording.snapshot.segments.iter())
            .filter(|segment| segment.device == self.recording.device)
            .collect();
        self.compared.segments = recorded.len() as u64;
        let mut at = 0;
        for segment in recorded {
            while segments.get(at).is_some_and(|s| s.address < segment.address) {
                let got = extent(segments[at].address, segments[at].size);
                self.depart(DepartureKind::FinalSegment, None, "nothing".to_owned(), got);
                at += 1;
            }
            let expected = extent(segment.address, segment.total_size);
            match segments.get(at).filter(|s| s.address == segment.address) {
                Some(found) => {
                    at += 1;
                    if found.size != segment.total_size {
                        let got = extent(found.address, found.size);
                        self.depart(DepartureKind::FinalSegment, None, expected, got);
                    }
                    self.compare_blocks(segment, found);
                }
                None => {
                    let got = "nothing".to_owned();
                    self.depart(DepartureKind::FinalSegment, None, expected, got);
                }
            }
        }
        for segment in segments.iter().skip(at) {
            let got = extent(segment.address, segment.size);
            self.depart(DepartureKind::FinalSegment, None, "nothing".to_owned(), got);
        }
    }

    fn compare_blocks(&mut self, segment: &snapshot::Segment, found: &LayoutSegment) {
        let range = segment.blocks.start as usize..segment.blocks.end as usize;
        let recorded = self.recording.snapshot.blocks.get(range).unwrap_or_default();
        self.compared.blocks += recorded.len() as u64;
        let same = |block: &snapshot::Block, found: &LayoutBlock| {
            let state = match block.state {
                snapshot::BlockState::Allocated => found.state == BlockState::Allocated,
                snapshot::BlockState::Free => found.state == BlockState::Free,
                snapshot::BlockState::PendingFree => {
                    !matches!(found.state, BlockState::Allocated | BlockState::Free)
                }
            };
            let requested =
                block.state == snapshot::BlockState::Free || block.requested == found.requested;
            (block.address, block.size) == (found.address, found.size) && state && requested
        };
        let different = (recorded.iter().zip(&found.blocks)).position(|(a, b)| !same(a, b));
        let shorter = recorded.len().min(found.blocks.len());
        let unequal = recorded.len() != found.blocks.len();
        if let Some(at) = different.or_else(|| unequal.then_some(shorter)) {
            let expected = recorded.get(at).map_or("no further block".to_owned(), |block| {
                format!("{} {:?}", extent(block.address, block.size), block.state)
            });
            let got = found.blocks.get(at).map_or("no further block".to_owned(), |block| {
                format!("{} {:?}", extent(block.address, block.size), block.state)
            });
            self.depart(DepartureKind::FinalBlock, None, expected, got);
        }
    }

    fn depart(&mut self, kind: DepartureKind, step: Option<Step>, expected: String, got: String) {
        self.count += 1;
        if self.departures.len() >= LISTED {
            return;
        }
        let why = if self.departures.is_empty() {
            self.why(kind)
        } else {
            "follows from an earlier departure, most likely".to_owned()
        };
        let event = match step {
            Some(Step::Event(index, _)) => Some(index),
            _ => None,
        };
        let trace_index = step.map(|step| step.trace_index(self.recording));
        self.departures.push(Departure { kind, event, trace_index, expected, got, why });
    }

    /// What the recording lacks that could explain a first departure.
    fn why(&self, kind: DepartureKind) -> String {
        let recording = self.recording;
        let config = &recording.config;
        let text = if config.tie_break != plimsoll_timeline::TieBreak::LowestAddress {
            "from torch 2.12 on, free blocks of one size are taken by age, and the file does not hold the age of blocks that existed before the recording"
        } else if config.garbage_collection_threshold.is_some() && config.memory_limit.is_none() {
            "garbage_collection_threshold is set, and the memory limit that it works with is not in the file"
        } else if recording.snapshot.streams.len() > 1 {
            "when a block becomes free for other streams is a matter of timing that the events tell only in part"
        } else if kind == DepartureKind::Driver && config.max_split_size.is_some() {
            "max_split_size is set, and max_non_split_rounding_mb, which is not in the file, may not be torch's default"
        } else if !recording.remarks.is_empty() {
            "the recording is incomplete, or a setting was changed while the program ran (see the remarks)"
        } else {
            "nothing in the recording explains it: the allocator's rules of this version may differ"
        };
        text.to_owned()
    }
}

fn hex(address: u64) -> String {
    format!("{address:#x}")
}

fn extent(address: u64, size: Bytes) -> String {
    format!("{} at {address:#x}", size.exact())
}

fn calls(events: &[DriverEvent]) -> String {
    match events {
        [] => "no call of the driver".to_owned(),
        events => {
            let name = |call| match call {
                DriverCall::SegmentAlloc => "segment_alloc",
                DriverCall::SegmentFree => "segment_free",
                DriverCall::SegmentMap => "segment_map",
                DriverCall::SegmentUnmap => "segment_unmap",
                DriverCall::Refused => "refused",
            };
            let words: Vec<String> = (events.iter().take(4))
                .map(|event| format!("{} {}", name(event.call), extent(event.address, event.size)))
                .collect();
            let more = events.len().saturating_sub(words.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{}{more}", words.join(", "))
        }
    }
}
