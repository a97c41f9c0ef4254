//! What a recording shows: who held the memory at the peak, when memory ran out and at the end; where reserved memory
//! was of no use; what grows with every step. The figures come first, the findings are sentences made from them.

mod category;
mod fragmentation;
mod leaks;
mod live_set;
mod lives;
mod rules;
mod sentences;
mod steps;

use plimsoll_timeline::Layout;
use plimsoll_units::Bytes;
use serde::Serialize;

pub use category::Rule;
pub use fragmentation::{Fragmentation, FreePart, Pinned, Unusable};
pub use leaks::Leak;
pub use live_set::{CategoryShare, Live, NamedShare, StackShare};
pub(crate) use live_set::{Sum, frames_in_words, sums};
pub(crate) use lives::NEVER;
pub use rules::Doing;
pub use steps::{Run, StepRule, Steps};

use crate::finding::Finding;
use crate::recording::{Recording, Remark};
use crate::replay::{CurvePoint, ExactReplay, Moment, Until, layout_at, measure};
use category::Categories;
use fragmentation::{Wanted, fragmentation};
use lives::Lives;
use rules::Rules;

/// What to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainOptions {
    /// The file, as commands name it.
    pub file: String,
    /// Modules, lines and stacks listed of each moment.
    pub listed: usize,
    /// Memory of the device in all, where it is known.
    pub device_total: Option<Bytes>,
    /// What the driver says is in use by everyone at the end (`nvidia-smi`), where it is known.
    pub device_used: Option<Bytes>,
}

impl Default for ExplainOptions {
    fn default() -> Self {
        ExplainOptions {
            file: "snapshot.pickle".to_owned(),
            listed: 20,
            device_total: None,
            device_used: None,
        }
    }
}

/// Bytes in use by the ways of counting them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InUse {
    /// What the program had asked for.
    pub requested: Bytes,
    /// The same in blocks: rounding and slack included.
    pub allocated: Bytes,
    /// Held from the driver.
    pub reserved: Bytes,
}

/// A moment and what was live at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MomentState {
    /// When; absent for the state before the first event.
    pub moment: Option<Moment>,
    /// Bytes in use.
    pub in_use: InUse,
    /// Who held them.
    pub live: Live,
    /// Where reserved memory was of no use.
    pub fragmentation: Fragmentation,
}

/// A request that failed while the recording was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailedRequest {
    /// The request, rounded.
    pub rounded: Bytes,
    /// What was asked of the driver in vain.
    pub segment: Bytes,
    /// What the driver still had.
    pub device_free: Bytes,
    /// What the driver had for this process: reserved and still free.
    pub capacity: Bytes,
    /// Whether the driver had room for the segment, so that a limit of the process refused it; the capacity is then
    /// the most that the process was granted.
    pub limited: bool,
    /// How many requests failed in all; this is the last of them.
    pub failures: u64,
    /// The state at that moment, after what could be given back was given back.
    pub state: MomentState,
}

/// Memory of the device that is not the allocator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outside {
    /// In use by everyone.
    pub used: Bytes,
    /// Reserved by the recorded allocator.
    pub reserved: Bytes,
    /// The rest: contexts, libraries, other allocators and processes.
    pub outside: Bytes,
    /// Whether the figures are those of the request that failed; otherwise of the end.
    pub at_failure: bool,
}

/// What one device of a snapshot shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Device index.
    pub device: u32,
    /// Timeline events.
    pub events: u32,
    /// The replay under the recorded settings.
    pub exact: ExactReplay,
    /// The moment at which most was allocated.
    pub peak: MomentState,
    /// The moment at which most was reserved, where it is another one.
    pub reserved_peak: Option<Moment>,
    /// The last request that failed.
    pub failed: Option<FailedRequest>,
    /// The end.
    pub end: MomentState,
    /// The curve.
    pub curve: Vec<CurvePoint>,
    /// What the program did, in stretches.
    pub runs: Vec<Run>,
    /// Its steps.
    pub steps: Steps,
    /// What grows with every step, largest first.
    pub leaks: Vec<Leak>,
    /// Memory outside the allocator, where a figure of the driver is known.
    pub outside: Option<Outside>,
    /// What was assumed, what is missing, what contradicts itself.
    pub remarks: Vec<Remark>,
    /// The findings, in order of weight.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Everything that is known of the tensors of a recording.
pub(crate) struct Sorted<'r, 's> {
    pub recording: &'r Recording<'s>,
    pub sizes: Vec<Bytes>,
    pub lives: Lives,
    pub categories: Categories,
    pub runs: Vec<Run>,
}

impl<'r, 's> Sorted<'r, 's> {
    pub fn new(recording: &'r Recording<'s>, sizes: Vec<Bytes>) -> Self {
        let lives = Lives::of(recording);
        let rules = Rules::new(recording.snapshot);
        let stack_rules = category::stack_rules(recording, &rules);
        let runs = steps::runs(recording, &stack_rules);
        let categories = category::categories(recording, &lives, &rules, stack_rules, &runs);
        Sorted { recording, sizes, lives, categories, runs }
    }

    /// The live set right after an event, or before the first one.
    pub fn live(&self, event: Option<u32>, listed: usize) -> Live {
        let Sorted { recording, sizes, lives, categories, .. } = self;
        live_set::live_after(recording, sizes, lives, categories, event, listed)
    }

    fn at(&self, until: Until, wanted: Option<Wanted>, options: &ExplainOptions) -> MomentState {
        let layout = layout_at(self.recording, until).unwrap_or_default();
        self.with_layout(&layout, until, wanted, options)
    }

    fn with_layout(
        &self,
        layout: &Layout,
        until: Until,
        wanted: Option<Wanted>,
        options: &ExplainOptions,
    ) -> MomentState {
        let recording = self.recording;
        let (event, moment) = match until {
            Until::Start => (None, None),
            Until::Event(at) => (Some(at), Some(Moment::of_event(recording, at))),
            Until::Failed(at) => {
                let event = recording.ooms.get(at).and_then(|oom| oom.event.checked_sub(1));
                (event, Some(Moment::of_failed(recording, at)))
            }
        };
        let fragmentation = fragmentation(recording, &self.lives, layout, event, wanted);
        let in_use = InUse {
            requested: fragmentation.requested,
            allocated: fragmentation.allocated,
            reserved: fragmentation.reserved,
        };
        MomentState { moment, in_use, live: self.live(event, options.listed), fragmentation }
    }
}

/// Explains a recording.
pub fn explain(recording: &Recording<'_>, options: &ExplainOptions) -> Explanation {
    let measured = measure(recording);
    let sorted = Sorted::new(recording, measured.sizes);
    let peaks = measured.exact.peaks;
    let peak = peaks.allocated_event.map_or(Until::Start, Until::Event);
    let peak = sorted.at(peak, None, options);
    let reserved_peak = (peaks.reserved_event.filter(|at| Some(*at) != peaks.allocated_event))
        .map(|at| Moment::of_event(recording, at));
    let failed = failed_request(&sorted, peaks.reserved, options);
    let last = (recording.timeline.events().len() as u32).checked_sub(1);
    let last = last.map_or(Until::Start, Until::Event);
    let end = sorted.with_layout(&measured.end, last, None, options);
    let steps = steps::steps(recording, &sorted.runs);
    let leaks = leaks::leaks(recording, &sorted.sizes, &sorted.categories, &steps);
    let mut remarks = recording.remarks.clone();
    if !measured.exact.exact {
        remarks.push(Remark::inconsistent(
            "a replay under the recorded settings departs from the recording, so sizes and fragmentation are near the truth, not it",
        ));
    }
    let mut explanation = Explanation {
        device: recording.device,
        events: recording.timeline.events().len() as u32,
        outside: outside(&failed, &end, options),
        exact: measured.exact,
        peak,
        reserved_peak,
        failed,
        end,
        curve: measured.curve,
        runs: sorted.runs,
        steps,
        leaks,
        remarks,
        findings: Vec::new(),
    };
    explanation.findings = sentences::findings(recording, &explanation, options);
    explanation
}

fn failed_request(
    sorted: &Sorted<'_, '_>,
    granted: Bytes,
    options: &ExplainOptions,
) -> Option<FailedRequest> {
    let recording = sorted.recording;
    let last = recording.ooms.len().checked_sub(1)?;
    let oom = recording.ooms[last];
    let wanted = Wanted { rounded: oom.rounded, stream: oom.stream, pool: oom.pool };
    let state = sorted.at(Until::Failed(last), Some(wanted), options);
    let segment = recording.config.segment_size(oom.rounded);
    let limited = !segment.is_zero() && oom.device_free >= segment;
    Some(FailedRequest {
        rounded: oom.rounded,
        segment,
        device_free: oom.device_free,
        capacity: match limited {
            true => granted.max(state.in_use.reserved),
            false => state.in_use.reserved + oom.device_free,
        },
        limited,
        failures: recording.ooms.len() as u64,
        state,
    })
}

/// What the driver's figures leave for others: at the failure, whose event holds what was free, or else at the end.
fn outside(
    failed: &Option<FailedRequest>,
    end: &MomentState,
    options: &ExplainOptions,
) -> Option<Outside> {
    let (used, reserved, at_failure) = match (failed, options.device_total, options.device_used) {
        (Some(failed), Some(total), _) => {
            let used = total.saturating_sub(failed.device_free);
            (used, failed.state.in_use.reserved, true)
        }
        (_, _, Some(used)) => (used, end.in_use.reserved, false),
        _ => return None,
    };
    Some(Outside { used, reserved, outside: used.saturating_sub(reserved), at_failure })
}
