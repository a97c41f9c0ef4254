//! The recorded requests under other settings or on another capacity: whether they fit, where they would fail, what
//! they would reserve.

use plimsoll_timeline::{Device, Driver, OutOfMemory, PyTorchAllocator, PyTorchConfig, Usage};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::moment::Moment;
use super::start::{self, StartState};
use super::walk::{Observer, Peaks, Step, usage, walk};
use crate::recording::{Recording, Remark};

/// What would have happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WhatIf {
    /// Whether every request is served, those included that failed in the recording.
    pub fits: bool,
    /// The first request that is not.
    pub failure: Option<Failure>,
    /// Highest values until the end, or until the failure.
    pub peaks: Peaks,
    /// Highest values with as much memory as is asked for; absent where the replay fits.
    pub peaks_without_limit: Option<Peaks>,
    /// Reserved before the first event.
    pub start_reserved: Bytes,
    /// How the blocks that were there before the first event were put in place.
    pub start: StartState,
    /// Times that the allocator gave its cache back to serve a request. Each one waits for the device.
    pub retries: u64,
    /// Segments made and pages mapped after the start: calls that take time.
    pub device_allocs: u64,
    /// Segments given back and pages unmapped.
    pub device_frees: u64,
    /// What was assumed.
    pub remarks: Vec<Remark>,
}

/// A request that finds no room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// When; absent where the blocks of the start state do not fit.
    pub moment: Option<Moment>,
    /// Whether the request failed in the recording as well.
    pub failed_in_recording: bool,
    /// What was asked for.
    pub requested: Bytes,
    /// What was asked of the driver in vain.
    pub segment: Bytes,
    /// Allocated at that moment.
    pub allocated: Bytes,
    /// Reserved at that moment, after all that could be given back was given back.
    pub reserved: Bytes,
    /// What the driver or the limit still had to give.
    pub free: Option<Bytes>,
    /// In words.
    pub text: String,
}

/// Replays a recording's requests under a configuration; its capacity and memory limit are what fits is judged by.
pub fn what_if(recording: &Recording<'_>, config: &PyTorchConfig) -> WhatIf {
    let mut outcome = run(recording, config, Manner::WHOLE).outcome;
    if outcome.failure.is_some() {
        let mut unlimited = config.clone();
        (unlimited.capacity, unlimited.memory_limit) = (None, None);
        let peaks = run(recording, &unlimited, Manner::WHOLE).outcome.peaks;
        outcome.peaks_without_limit = Some(peaks);
    }
    outcome.remarks = start::remarks(recording, &outcome.start);
    if !recording.remarks.is_empty() {
        outcome.remarks.push(Remark::incomplete(
            "the recording itself is incomplete or was read with assumptions (see its remarks)",
        ));
    }
    if recording.ooms.iter().any(|oom| oom.rounded.is_zero()) {
        outcome.remarks.push(Remark::incomplete("a failed request has no size and is passed over"));
    }
    outcome
}

/// How a replay is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// It ends at the first event that reserves more.
    pub most: Bytes,
    /// Whether the start state is remade even where it could be as recorded.
    pub remade: bool,
}

impl Manner {
    /// To the end, or to the first failure.
    pub const WHOLE: Manner = Manner { most: Bytes::MAX, remade: false };
}

/// One replay.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Without the remarks, and without the second replay that tells what would have been needed.
    pub outcome: WhatIf,
    /// Events replayed.
    pub walked: u64,
    /// Whether it ended because it reserved more than it should.
    pub left_early: bool,
}

/// Replays once.
pub(crate) fn run(recording: &Recording<'_>, config: &PyTorchConfig, manner: Manner) -> Run {
    let started = if manner.remade {
        start::remade(recording, config)
    } else {
        start::under(recording, config)
    };
    let (mut torch, blocks, state) = match started {
        Ok(started) => started,
        Err((state, error)) => {
            let failure = Failure::new(None, false, &error);
            let outcome = WhatIf::failed_at_start(state, failure);
            return Run { outcome, walked: recording.start_blocks.len() as u64, left_early: false };
        }
    };
    let start = usage(&torch);
    let mut observer = Outcome {
        recording,
        peaks: Peaks::starting_with(start),
        failure: None,
        most: manner.most,
        walked: recording.start_blocks.len() as u64,
    };
    let before = torch.statistics();
    let complete = walk(recording, &mut torch, blocks, &mut observer);
    let after = torch.statistics();
    let left_early = !complete && observer.failure.is_none();
    let outcome = WhatIf {
        fits: complete,
        failure: observer.failure,
        peaks: observer.peaks,
        peaks_without_limit: None,
        start_reserved: start.reserved,
        start: state,
        retries: after.num_alloc_retries - before.num_alloc_retries,
        device_allocs: after.num_device_alloc - before.num_device_alloc,
        device_frees: after.num_device_free - before.num_device_free,
        remarks: Vec::new(),
    };
    Run { outcome, walked: observer.walked, left_early }
}

impl WhatIf {
    fn failed_at_start(start: StartState, failure: Failure) -> Self {
        let usage = Usage {
            requested: Bytes::ZERO,
            allocated: failure.allocated,
            reserved: failure.reserved,
        };
        WhatIf {
            fits: false,
            peaks: Peaks::starting_with(usage),
            peaks_without_limit: None,
            start_reserved: failure.reserved,
            failure: Some(failure),
            start,
            retries: 0,
            device_allocs: 0,
            device_frees: 0,
            remarks: Vec::new(),
        }
    }
}

impl Failure {
    fn new(moment: Option<Moment>, failed_in_recording: bool, error: &OutOfMemory) -> Self {
        let when = match &moment {
            Some(moment) => moment.to_string(),
            None => "before the first event: the memory already in use does not fit".to_owned(),
        };
        let again = if failed_in_recording { "; it failed in the recording as well" } else { "" };
        Failure {
            failed_in_recording,
            requested: error.requested,
            segment: error.segment,
            allocated: error.allocated,
            reserved: error.reserved,
            free: error.free,
            text: format!("{when}: {error}{again}"),
            moment,
        }
    }
}

struct Outcome<'r, 's> {
    recording: &'r Recording<'s>,
    peaks: Peaks,
    failure: Option<Failure>,
    most: Bytes,
    walked: u64,
}

impl<D: Driver> Observer<D> for Outcome<'_, '_> {
    fn after(
        &mut self,
        torch: &mut PyTorchAllocator<D>,
        step: Step,
        result: Result<(), OutOfMemory>,
    ) -> bool {
        let event = match step {
            Step::Event(index, _) => Some(index),
            Step::Failed(_) => None,
        };
        self.walked += 1;
        self.peaks.note(event, usage(torch));
        let Err(error) = result else { return self.peaks.reserved <= self.most };
        let (moment, again) = match step {
            Step::Event(index, _) => (Moment::of_event(self.recording, index), false),
            Step::Failed(at) => (Moment::of_failed(self.recording, at), true),
        };
        self.failure = Some(Failure::new(Some(moment), again, &error));
        false
    }
}

/// The allocator of a what-if.
pub(super) type Torch = PyTorchAllocator<Device>;
