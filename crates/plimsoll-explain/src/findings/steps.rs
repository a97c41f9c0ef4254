//! Phases and steps of a program that repeats itself: from scopes that it recorded, from what its stacks do, or from
//! requests that come back at even distances.

use plimsoll_formats::snapshot::Stage;
use plimsoll_timeline::Event;
use serde::Serialize;

use super::rules::{Doing, STACK_RULES};
use crate::recording::Recording;

/// A stretch of events that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// What: [`Doing::Forward`], [`Doing::Backward`], [`Doing::Optimizer`] or [`Doing::Load`].
    pub doing: Doing,
    /// Its first timeline event.
    pub first: u32,
    /// The event after its last one.
    pub end: u32,
}

/// How steps were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepRule {
    /// Each `ProfilerStep#` scope begins one.
    ProfilerSteps,
    /// Each `Optimizer.step#` scope ends one.
    OptimizerScopes,
    /// Each stretch of allocations by the optimizer ends one.
    OptimizerStacks,
    /// Each forward pass after a backward pass begins one.
    BackwardStacks,
    /// A request that comes back at even distances begins one.
    Repetition,
}

impl StepRule {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            StepRule::ProfilerSteps => "ProfilerStep scopes",
            StepRule::OptimizerScopes => "Optimizer.step scopes",
            StepRule::OptimizerStacks => "allocations by the optimizer",
            StepRule::BackwardStacks => "forward passes after backward passes",
            StepRule::Repetition => "requests that come back at even distances",
        }
    }
}

/// The steps of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Steps {
    /// How they were found; absent where the recording shows no repetition.
    pub rule: Option<StepRule>,
    /// The timeline events between which they lie: step `i` from `bounds[i]` to before `bounds[i + 1]`. What comes
    /// before the first bound and after the last one belongs to steps that were recorded in part.
    pub bounds: Vec<u32>,
}

impl Steps {
    /// Whole steps.
    pub fn count(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

/// The stretches of a recording, by what its stacks do. `rule_of_tensor` gives the stack rule of each allocation.
pub(crate) fn runs(recording: &Recording<'_>, rules: &[Option<usize>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let events = recording.timeline.events();
    for (index, event) in (0u32..).zip(events) {
        let Event::Alloc(id) = *event else { continue };
        let origin = recording.timeline.allocations()[id.0 as usize].origin;
        let rule = rules.get(origin.0 as usize).copied().flatten();
        let Some(doing) = rule.and_then(|rule| phase(STACK_RULES[rule].doing)) else { continue };
        match runs.last_mut() {
            Some(run) if run.doing == doing => run.end = index + 1,
            _ => {
                if let Some(last) = runs.last_mut() {
                    last.end = index;
                }
                runs.push(Run { doing, first: index, end: index + 1 });
            }
        }
    }
    if let Some(last) = runs.last_mut() {
        last.end = events.len() as u32;
    }
    runs
}

/// The phase that an allocation marks; scratch, collectives and caches happen in every phase.
const fn phase(doing: Doing) -> Option<Doing> {
    match doing {
        Doing::Optimizer => Some(Doing::Optimizer),
        Doing::AccumulateGradient | Doing::Recompute | Doing::Backward => Some(Doing::Backward),
        Doing::Load => Some(Doing::Load),
        Doing::Loss | Doing::Forward => Some(Doing::Forward),
        Doing::KvCache
        | Doing::Communication
        | Doing::ZeroGrad
        | Doing::Workspace
        | Doing::Inputs => None,
    }
}

/// The steps: the first rule that finds at least two bounds.
pub(crate) fn steps(recording: &Recording<'_>, runs: &[Run]) -> Steps {
    let scopes = |prefix, stage| at_scopes(recording, prefix, stage);
    let ends = |runs: &[Run]| -> Vec<u32> {
        let optimizer = runs.iter().filter(|run| run.doing == Doing::Optimizer);
        optimizer.map(|run| run.end).collect()
    };
    let forwards = |runs: &[Run]| -> Vec<u32> {
        let pairs = runs.windows(2);
        let turns = pairs.filter(|p| (p[0].doing, p[1].doing) == (Doing::Backward, Doing::Forward));
        turns.map(|pair| pair[1].first).collect()
    };
    let found = [
        (StepRule::ProfilerSteps, scopes("ProfilerStep#", Stage::Start)),
        (StepRule::OptimizerScopes, scopes("Optimizer.step#", Stage::End)),
        (StepRule::OptimizerStacks, ends(runs)),
        (StepRule::BackwardStacks, forwards(runs)),
    ];
    for (rule, mut bounds) in found {
        bounds.dedup();
        if bounds.len() >= 2 {
            return Steps { rule: Some(rule), bounds };
        }
    }
    match repetition(recording) {
        Some(bounds) => Steps { rule: Some(StepRule::Repetition), bounds },
        None => Steps::default(),
    }
}

/// The first timeline event at or after each scope of a name.
fn at_scopes(recording: &Recording<'_>, prefix: &str, stage: Stage) -> Vec<u32> {
    let names = &recording.snapshot.names;
    let mut times: Vec<u64> = (recording.snapshot.annotations.iter())
        .filter(|a| a.stage == stage && names.get(a.name).starts_with(prefix))
        .filter(|a| a.device < 0 || u32::try_from(a.device) == Ok(recording.device))
        .map(|a| a.time_us)
        .collect();
    times.sort_unstable();
    let events = recording.events();
    let time = |index: &u32| events.get(*index as usize).map_or(0, |event| event.time_us);
    let at = |t: u64| recording.trace_index.partition_point(|index| time(index) < t) as u32;
    let mut bounds: Vec<u32> = times.into_iter().map(at).collect();
    bounds.dedup();
    bounds
}

/// Requests that must come back for a repetition.
const LEAST_REPEATS: usize = 3;

/// Kinds of requests that may be rarer than the steps, in percent: those of a warm-up.
const RARE_PERCENT: usize = 10;

/// Where requests come back at even distances.
///
/// In a program that repeats itself, nearly every kind of request (one stack, one size) is made at least once a step,
/// so the rarest kinds tell the number of steps; kinds that only the layers of one pass repeat are outnumbered by
/// those that the pass makes once. The first of the rarest kinds marks the steps, if at least four in five distances
/// are within a tenth of the middle one.
fn repetition(recording: &Recording<'_>) -> Option<Vec<u32>> {
    let allocations = recording.timeline.allocations();
    let existing = recording.timeline.existing() as usize;
    let key = |i: u32| {
        let tensor = &allocations[i as usize];
        (tensor.origin.0, tensor.requested.get())
    };
    let mut order: Vec<u32> = (existing as u32..allocations.len() as u32).collect();
    order.sort_unstable_by_key(|i| (key(*i), *i));
    // How often each kind is requested, and where first.
    let kinds = order.chunk_by(|a, b| key(*a) == key(*b));
    let mut kinds: Vec<(usize, u32)> = kinds.map(|kind| (kind.len(), kind[0])).collect();
    kinds.sort_unstable();
    let (times, _) = *kinds.get(kinds.len() * RARE_PERCENT / 100)?;
    if times < LEAST_REPEATS {
        return None;
    }
    let (_, first) = *kinds.iter().find(|(n, _)| *n == times)?;
    let marker = key(first);
    let mut bounds = Vec::new();
    for (index, event) in (0u32..).zip(recording.timeline.events()) {
        if let Event::Alloc(id) = *event
            && key(id.0) == marker
        {
            bounds.push(index);
        }
    }
    let mut distances: Vec<u32> = bounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
    distances.sort_unstable();
    let middle = *distances.get(distances.len() / 2)?;
    let even = distances.iter().filter(|d| d.abs_diff(middle) <= middle / 10).count();
    (even * 5 >= distances.len() * 4 && middle > 1).then_some(bounds)
}
