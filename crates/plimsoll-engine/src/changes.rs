//! "Does not fit" comes with what would fit: the nearest single changes and pairs of changes, each estimated
//! again, those that change the run least first. A change is a ladder of levels (a smaller and a smaller
//! micro-batch); the first level that fits is offered.

use plimsoll_estimate::request::{Strategy, Training, Workload};
use plimsoll_estimate::training::Within;
use plimsoll_units::Bytes;

use crate::job::Job;
use crate::moves::{self, Level, Move};
use crate::response::Change;
use crate::verdict::Verdict;

/// Most estimates that the search for changes makes.
const BUDGET: usize = 240;
/// Changes that a report lists.
const LISTED: usize = 8;

/// Estimates that the search may still make, and what it learned from those that it made.
#[derive(Default)]
struct Budget {
    left: usize,
    /// Training runs and what they certainly allocate, on whatever machine.
    bounds: Vec<(Training, Strategy, Bytes)>,
}

impl Budget {
    /// Whether an earlier estimate of the same run rules this one out.
    fn rules_out(&self, job: &Job) -> bool {
        let Some(Workload::Training(training)) = &job.workload else { return false };
        let known = self.bounds.iter().find(|(t, s, _)| t == training && *s == job.strategy);
        known.is_some_and(|(_, _, bytes)| job.exceeds(*bytes))
    }

    /// Rollout engines take a share of the machine, so that such runs differ between machines.
    fn learn(&mut self, job: &Job, at_least: Bytes) {
        if let Some(Workload::Training(training)) = &job.workload
            && training.reinforcement.is_none()
        {
            self.bounds.push((training.clone(), job.strategy.clone(), at_least));
        }
    }
}

/// A job that fits, on the way to becoming a [`Change`].
struct Candidate {
    label: String,
    options: String,
    cost: u32,
    device: Bytes,
    capacity: Bytes,
    certain: bool,
}

/// The nearest changes under which a job that does not fit would, least change first.
pub(crate) fn nearest(job: &Job) -> Vec<Change> {
    let moves = moves::all(job);
    let mut budget = Budget { left: BUDGET, ..Budget::default() };
    let mut found: Vec<Candidate> = Vec::new();
    let mut unsolved: Vec<&Move> = Vec::new();
    for one in &moves {
        match first_fit(job, one, &mut budget) {
            Some(candidate) => found.push(candidate),
            None => unsolved.push(one),
        }
    }
    // Pairs of what does not suffice alone; cheap pairs first.
    if found.len() < LISTED {
        let mut pairs: Vec<(&Move, &Move)> = Vec::new();
        for (i, a) in unsolved.iter().enumerate() {
            pairs.extend(unsolved[i + 1..].iter().map(|b| (*a, *b)));
        }
        pairs.sort_by_key(|(a, b)| a.least() + b.least());
        for (a, b) in pairs {
            if budget.left == 0 || found.len() >= 2 * LISTED {
                break;
            }
            found.extend(first_pair(job, a, b, &mut budget));
        }
    }
    found.sort_by(|a, b| (a.cost, a.device, &a.options).cmp(&(b.cost, b.device, &b.options)));
    found.truncate(LISTED);
    found
        .into_iter()
        .map(|c| Change {
            label: c.label,
            options: c.options,
            cost: c.cost,
            device: c.device,
            capacity: c.capacity,
            certain: c.certain,
        })
        .collect()
}

/// The least level of one move that fits.
fn first_fit(job: &Job, one: &Move, budget: &mut Budget) -> Option<Candidate> {
    one.levels.iter().find_map(|level| attempt(job, &[level], budget))
}

/// The least pair of levels that fits: the strongest pair decides whether to look at all.
fn first_pair(job: &Job, a: &Move, b: &Move, budget: &mut Budget) -> Option<Candidate> {
    let strongest = attempt(job, &[a.levels.last()?, b.levels.last()?], budget)?;
    let mut orders: Vec<(&Level, &Level)> =
        a.levels.iter().flat_map(|x| b.levels.iter().map(move |y| (x, y))).collect();
    orders.sort_by_key(|(x, y)| x.cost + y.cost);
    orders.pop();
    let weaker = orders.into_iter().take(6).find_map(|(x, y)| attempt(job, &[x, y], budget));
    Some(weaker.unwrap_or(strongest))
}

fn attempt(job: &Job, levels: &[&Level], budget: &mut Budget) -> Option<Candidate> {
    budget.left = budget.left.checked_sub(1)?;
    let mut changed = job.clone();
    for level in levels {
        (level.apply)(&mut changed)?;
    }
    if budget.rules_out(&changed) {
        return None;
    }
    let estimate = match changed.estimate_if_it_may_fit().ok()? {
        Within::Estimate(estimate) => estimate,
        Within::Exceeds { at_least } => {
            budget.learn(&changed, at_least);
            return None;
        }
    };
    let judgement = changed.judge(&estimate);
    let verdict = judgement.verdict;
    verdict.fits().then(|| Candidate {
        label: levels.iter().map(|l| l.label.as_str()).collect::<Vec<_>>().join(" and "),
        options: levels.iter().map(|l| l.options.as_str()).collect::<Vec<_>>().join(" "),
        cost: levels.iter().map(|l| l.cost).sum(),
        device: estimate.peak.device,
        capacity: changed.capacity(),
        certain: verdict == Verdict::Fits,
    })
}
