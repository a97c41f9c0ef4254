//! `export_memory_timeline`, deprecated since torch 2.10 and still about: raw events, or bytes by category.

use std::io::BufRead;

use serde::Deserialize;

use super::{Profile, SECTION};
use crate::{FormatError, json};

/// What happens to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimelineAction {
    /// It was there when profiling began.
    Preexisting,
    /// It is made.
    Create,
    /// Its content changes, and with it its category.
    IncrementVersion,
    /// It is freed.
    Destroy,
}

/// What the profiler takes a tensor for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimelineCategory {
    /// Parameter.
    Parameter,
    /// Optimizer state.
    OptimizerState,
    /// Input.
    Input,
    /// Temporary.
    Temporary,
    /// Activation.
    Activation,
    /// Gradient.
    Gradient,
    /// Detail of autograd.
    AutogradDetail,
    /// None of these.
    Unknown,
}

impl TimelineCategory {
    /// Every category, in the order of the files.
    pub const ALL: [TimelineCategory; 8] = [
        TimelineCategory::Parameter,
        TimelineCategory::OptimizerState,
        TimelineCategory::Input,
        TimelineCategory::Temporary,
        TimelineCategory::Activation,
        TimelineCategory::Gradient,
        TimelineCategory::AutogradDetail,
        TimelineCategory::Unknown,
    ];
}

/// One event of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineEvent {
    /// Nanoseconds; absent before profiling began.
    pub time_ns: Option<u64>,
    /// What.
    pub action: TimelineAction,
    /// Bytes of the storage, negative where it is freed.
    pub bytes: i64,
    /// Category.
    pub category: TimelineCategory,
}

/// Live bytes by category over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineCurve {
    /// Microseconds.
    pub times_us: Vec<i64>,
    /// Bytes from each time on, in the order of [`TimelineCategory::ALL`].
    pub bytes: Vec<[i64; 8]>,
}

/// An element of the outer array: a row, or one of the two parts of a curve.
#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Numbers(Vec<i64>),
    Rows(Vec<Vec<i64>>),
}

pub(super) fn read(reader: impl BufRead) -> Result<Profile, FormatError> {
    let parts: Vec<Part> = serde_json::from_reader(reader).map_err(|e| json::error(SECTION, &e))?;
    let wrong = |reason: String| FormatError::Json { section: SECTION, line: 1, column: 1, reason };
    if let [Part::Numbers(times), Part::Rows(rows)] = &parts[..] {
        if times.len() != rows.len() {
            return Err(wrong(format!(
                "{} times and {} rows of bytes; there is one row for each",
                times.len(),
                rows.len()
            )));
        }
        // The first column is zero: the ground that the plot stacks on.
        let row = |row: &Vec<i64>| row.get(1..).and_then(|r| <[i64; 8]>::try_from(r).ok());
        let bytes: Option<Vec<[i64; 8]>> = rows.iter().map(row).collect();
        let bytes = bytes.ok_or_else(|| wrong("a row of bytes without nine columns".to_owned()))?;
        return Ok(Profile::Curve(TimelineCurve { times_us: times.clone(), bytes }));
    }
    let mut events = Vec::with_capacity(parts.len());
    for (n, part) in parts.iter().enumerate() {
        let event = match part {
            Part::Numbers(numbers) => event(numbers),
            Part::Rows(_) => None,
        };
        events.push(event.ok_or_else(|| {
            wrong(format!("event {n} is not [time in ns, action 1 to 4, bytes, category 0 to 7]"))
        })?);
    }
    Ok(Profile::Events(events))
}

fn event(numbers: &[i64]) -> Option<TimelineEvent> {
    let [time, action, bytes, category] = numbers else { return None };
    let action = match action {
        1 => TimelineAction::Preexisting,
        2 => TimelineAction::Create,
        3 => TimelineAction::IncrementVersion,
        4 => TimelineAction::Destroy,
        _ => return None,
    };
    let category =
        usize::try_from(*category).ok().and_then(|n| TimelineCategory::ALL.get(n).copied());
    Some(TimelineEvent {
        time_ns: u64::try_from(*time).ok(),
        action,
        bytes: *bytes,
        category: category?,
    })
}
