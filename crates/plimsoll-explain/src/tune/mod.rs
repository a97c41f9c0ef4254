//! The search for allocator settings under which a recording would have fitted, or would have reserved least.
//!
//! It replays every candidate of a fixed list, so the winner is the best of that list and the same in every run. Two
//! things make it shorter: a replay ends as soon as it can no longer win, and a long recording gets as many replays
//! as a budget of events allows, the likeliest candidates first.

mod space;

use plimsoll_timeline::{PyTorchConfig, PyTorchSettings, TorchRelease};
use plimsoll_units::Bytes;
use serde::Serialize;

use crate::recording::{Recording, Remark, counted, grouped};
use crate::replay::{Manner, StartState, WhatIf, run};

pub(crate) use space::release;

/// What to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TuneOptions {
    /// Bytes that the driver has for the allocator; `None` to reserve as little as possible.
    pub capacity: Option<Bytes>,
    /// Memory of the device in all. Garbage collection needs a fraction of it and is not tried without.
    pub device_total: Option<Bytes>,
    /// The release of torch that the settings are for; which settings exist depends on it. `None` for the newest.
    pub release: Option<TorchRelease>,
    /// Events that may be replayed, all candidates together. The default takes well below a minute.
    pub budget: u64,
    /// Candidates listed after the winner.
    pub listed: usize,
}

impl TuneOptions {
    /// Options for a recording: its own release, and the capacity as given.
    pub fn for_recording(recording: &Recording<'_>, capacity: Option<Bytes>) -> Self {
        TuneOptions {
            capacity,
            device_total: None,
            release: release(recording.snapshot.writer),
            budget: 100_000_000,
            listed: 5,
        }
    }
}

/// Settings and what they would have done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Candidate {
    /// The value of the environment variable; empty for torch's defaults.
    pub line: String,
    /// The whole line to set: `PYTORCH_ALLOC_CONF=expandable_segments:True`.
    pub environment: String,
    /// Whether every request is served.
    pub fits: bool,
    /// The most that is reserved at once; until the failure where it does not fit.
    pub reserved_peak: Bytes,
    /// The most that is allocated at once: rounding makes it more.
    pub allocated_peak: Bytes,
    /// Times that the cache is given back to serve a request; each waits for the device.
    pub retries: u64,
    /// Segments made and pages mapped.
    pub device_allocs: u64,
    /// Segments given back and pages unmapped.
    pub device_frees: u64,
    /// Where it fails, in words.
    pub failure: Option<String>,
    /// The settings.
    #[serde(skip)]
    pub config: PyTorchConfig,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Tuning {
    /// What was to fit.
    pub capacity: Option<Bytes>,
    /// The best settings; absent where none fits.
    pub winner: Option<Candidate>,
    /// The next best, or the ones that come closest where none fits.
    pub others: Vec<Candidate>,
    /// The recorded settings.
    pub recorded: Candidate,
    /// The most that the recorded settings reserve when the blocks from before the recording are put in place
    /// afresh, as they are for settings that lay memory out in another way: what is saved beyond this figure is due
    /// to the settings.
    pub recorded_remade: Option<Bytes>,
    /// Candidates replayed, the recorded settings included.
    pub replayed: u32,
    /// Of them, those that were left as soon as they reserved more than the recorded settings.
    pub left_early: u32,
    /// Candidates that the budget left out.
    pub left_out: u32,
    /// What the winner costs, what was assumed.
    pub remarks: Vec<Remark>,
}

/// Searches the settings.
pub fn tune(recording: &Recording<'_>, options: &TuneOptions) -> Tuning {
    let mut search = Search::new(recording, options.capacity, options);
    let mut settings = PyTorchSettings::default();
    settings.config = recording.config.clone();
    let recorded = search.replay(&settings, true);
    let as_recorded = !matches!(search.start, Some(StartState::Remade { .. }));
    let mut left_out = search.replay_all(&space::candidates(&recording.config, options));
    let mut ranked = search.ranked();
    let winner = if ranked.first().is_some_and(|candidate| candidate.fits) {
        Some(ranked.remove(0))
    } else {
        // Nothing fits: what reserves least comes closest.
        let budget = options.budget.saturating_sub(search.spent).max(1);
        let rest = TuneOptions { capacity: None, budget, ..options.clone() };
        let mut closest = Search::new(recording, None, &rest);
        closest.replay(&settings, true);
        left_out = closest.replay_all(&space::candidates(&recording.config, &rest));
        search.replayed += closest.replayed;
        search.left_early += closest.left_early;
        ranked = closest.ranked();
        for candidate in &mut ranked {
            candidate.misses(options.capacity.unwrap_or_default());
        }
        None
    };
    let worth = |candidate: &Candidate| candidate.fits || winner.is_none();
    ranked.retain(|candidate| worth(candidate) && candidate.line != recorded.line);
    ranked.truncate(options.listed);
    let recorded_remade = (as_recorded && !recording.start_blocks.is_empty())
        .then(|| run(recording, &recording.config, Manner { most: Bytes::MAX, remade: true }))
        .map(|run| run.outcome.peaks.reserved);
    let remarks = remarks(&winner, &recorded, recorded_remade, left_out, options);
    Tuning {
        capacity: options.capacity,
        winner,
        others: ranked,
        recorded,
        recorded_remade,
        replayed: search.replayed,
        left_early: search.left_early,
        left_out,
        remarks,
    }
}

/// The name of the environment variable in a release.
pub(crate) fn variable(release: Option<TorchRelease>) -> &'static str {
    match release {
        Some(release) if release < (2, 10) => "PYTORCH_CUDA_ALLOC_CONF",
        _ => "PYTORCH_ALLOC_CONF",
    }
}

/// Order of preference: what fits, what need not give its cache back, what reserves least, what changes least, and
/// then the text.
fn preference(candidate: &Candidate) -> (bool, u64, Bytes, usize, &str) {
    let changes = candidate.line.matches(':').count();
    (!candidate.fits, candidate.retries, candidate.reserved_peak, changes, &candidate.line)
}

struct Search<'r, 's> {
    recording: &'r Recording<'s>,
    options: &'r TuneOptions,
    capacity: Option<Bytes>,
    /// How the last replay began.
    start: Option<StartState>,
    /// Events replayed.
    spent: u64,
    found: Vec<Candidate>,
    replayed: u32,
    left_early: u32,
}

impl<'r, 's> Search<'r, 's> {
    fn new(
        recording: &'r Recording<'s>,
        capacity: Option<Bytes>,
        options: &'r TuneOptions,
    ) -> Self {
        Search {
            recording,
            options,
            capacity,
            start: None,
            spent: 0,
            found: Vec::new(),
            replayed: 0,
            left_early: 0,
        }
    }

    /// Replays the candidates until the budget is spent; how many were left out.
    fn replay_all(&mut self, candidates: &[PyTorchSettings]) -> u32 {
        for (done, settings) in (0u32..).zip(candidates) {
            if self.spent >= self.options.budget {
                return u32::try_from(candidates.len()).unwrap_or(u32::MAX) - done;
            }
            self.replay(settings, false);
        }
        0
    }

    /// Replays a candidate; unless it is to be replayed as a whole, only as long as it can be listed.
    fn replay(&mut self, settings: &PyTorchSettings, whole: bool) -> Candidate {
        let mut config = settings.config.clone();
        config.capacity = self.capacity;
        let most = if whole { Bytes::MAX } else { self.most() };
        let run = run(self.recording, &config, Manner { most, remade: false });
        self.spent += run.walked.max(1);
        self.replayed += 1;
        self.left_early += u32::from(run.left_early);
        self.start = Some(run.outcome.start);
        let candidate = Candidate::new(settings, self.options.release, config, &run.outcome);
        if !run.left_early {
            self.found.push(candidate.clone());
        }
        candidate
    }

    /// What a candidate may reserve and still be listed: no more than the recorded settings, where they fit.
    fn most(&self) -> Bytes {
        match self.found.first() {
            Some(recorded) if recorded.fits && recorded.retries == 0 => recorded.reserved_peak,
            _ => Bytes::MAX,
        }
    }

    /// The candidates by preference, without those that only add settings to a better one.
    fn ranked(&mut self) -> Vec<Candidate> {
        let mut ranked = std::mem::take(&mut self.found);
        ranked.sort_by(|a, b| preference(a).cmp(&preference(b)));
        let mut listed: Vec<Candidate> = Vec::new();
        for candidate in ranked {
            if !listed.iter().any(|better| candidate.adds_nothing_to(better)) {
                listed.push(candidate);
            }
        }
        listed
    }
}

impl Candidate {
    fn new(
        settings: &PyTorchSettings,
        release: Option<TorchRelease>,
        config: PyTorchConfig,
        outcome: &WhatIf,
    ) -> Self {
        let line = settings.line().unwrap_or_default();
        Candidate {
            environment: format!("{}={line}", variable(release)),
            line,
            fits: outcome.fits,
            reserved_peak: outcome.peaks.reserved,
            allocated_peak: outcome.peaks.allocated,
            retries: outcome.retries,
            device_allocs: outcome.device_allocs,
            device_frees: outcome.device_frees,
            failure: outcome.failure.as_ref().map(|failure| failure.text.clone()),
            config,
        }
    }

    /// Whether it does no more than a better candidate, with more settings or with the same ones at other values.
    fn adds_nothing_to(&self, better: &Candidate) -> bool {
        let parts = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<String>>();
        let keys = |line: &str| {
            line.split(',')
                .map(|part| part.split(':').next().unwrap_or("").to_owned())
                .collect::<Vec<String>>()
        };
        let (ours, theirs) = (parts(&self.line), parts(&better.line));
        let more = better.line.is_empty() || theirs.iter().all(|part| ours.contains(part));
        let outcome = |c: &Candidate| (c.fits, c.retries, c.reserved_peak);
        more || (keys(&self.line) == keys(&better.line) && outcome(self) == outcome(better))
    }

    /// Says by how much a candidate that was replayed without a limit misses a capacity.
    fn misses(&mut self, capacity: Bytes) {
        if let Some(missing) = self.reserved_peak.checked_sub(capacity) {
            self.fits = false;
            self.failure = Some(format!(
                "without a limit it would reserve {}, {missing} more than the capacity",
                self.reserved_peak
            ));
        } else {
            // It needs no more than the capacity at its peak, and would still fail: segments do not come in
            // every size.
            self.fits = false;
        }
    }
}

/// What the winner costs and what was assumed, in sentences.
fn remarks(
    winner: &Option<Candidate>,
    recorded: &Candidate,
    remade: Option<Bytes>,
    left_out: u32,
    options: &TuneOptions,
) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if let Some(winner) = winner {
        remarks.extend(costs(winner, recorded, options));
        if let Some(remade) = remade.filter(|_| winner.config != recorded.config) {
            remarks.push(Remark::assumed(format!(
                "the blocks from before the recording are put in place afresh for other settings; the recorded settings would reserve {remade} at most if they began so too, so what is below that is due to the settings"
            )));
        }
    }
    if left_out > 0 {
        remarks.push(Remark::incomplete(format!(
            "{} not tried: the recording is long and the budget of {} replayed events is spent",
            if left_out == 1 {
                "1 candidate was".to_owned()
            } else {
                format!("{left_out} candidates were")
            },
            grouped(options.budget),
        )));
    }
    let needed = match (options.capacity, options.device_total) {
        (Some(_), Some(_)) => "",
        (Some(_), None) => "the memory of the device (--total)",
        (None, Some(_)) => "the capacity (--capacity)",
        (None, None) => "the capacity and the memory of the device (--capacity and --total)",
    };
    if !needed.is_empty() {
        remarks.push(Remark::incomplete(format!(
            "garbage_collection_threshold was not tried: it is a share of a memory limit, and for that {needed} must be given"
        )));
    }
    remarks
}

fn costs(winner: &Candidate, recorded: &Candidate, options: &TuneOptions) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if winner.retries > 0 {
        remarks.push(Remark::assumed(format!(
            "the cache is given back {} to serve a request; each time waits for the device",
            counted(winner.retries, "time"),
        )));
    }
    let calls = |candidate: &Candidate| candidate.device_allocs + candidate.device_frees;
    if calls(winner) > calls(recorded) {
        remarks.push(Remark::assumed(format!(
            "the driver is called {} times for memory instead of {}",
            grouped(calls(winner)),
            grouped(calls(recorded)),
        )));
    }
    if winner.allocated_peak > recorded.allocated_peak {
        remarks.push(Remark::assumed(format!(
            "rounding makes the allocated peak {} instead of {}",
            winner.allocated_peak, recorded.allocated_peak,
        )));
    }
    if winner.config.garbage_collection_threshold.is_some()
        && options.release.is_some_and(|release| release < (2, 10))
    {
        remarks.push(Remark::assumed(
            "per_process_memory_fraction came with torch 2.10: call torch.cuda.set_per_process_memory_fraction instead",
        ));
    }
    remarks
}
