//! The promised surface of an explanation, apart from the explaining crate's own types.

use plimsoll_explain::message;
use plimsoll_explain::{self as explain, Value};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::{Modelled, SnapshotReport};
use crate::response::{Figure, FigureValue};

/// Why a run ran out of memory, or what it used.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// Version of this schema: `plimsoll.explain/1`.
    pub schema: &'static str,
    /// Version of Plimsoll.
    pub version: &'static str,
    /// What was explained.
    pub kind: ExplanationKind,
    /// The files, in the order given.
    pub sources: Vec<SourceSummary>,
    /// The answer in one line.
    pub headline: String,
    /// What was found, causes first.
    pub findings: Vec<Finding>,
    /// Where a log was explained, what it said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogReport>,
    /// Where snapshots were explained, what they show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotReport>,
    /// The command that models the run before the next attempt; absent where there is nothing to model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_with: Option<Modelled>,
}

/// What was explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ExplanationKind {
    /// Logs and messages.
    Log,
    /// Memory snapshots.
    Snapshot,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceSummary {
    /// Its name; `-` for standard input.
    pub name: String,
    /// Its bytes, unpacked.
    pub bytes: u64,
    /// Its lines; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
}

/// One thing worth knowing.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// Stable key: `fragmentation`.
    pub code: &'static str,
    /// `cause`, `contribution`, `doubt` or `note`.
    pub weight: &'static str,
    /// A few words.
    pub title: String,
    /// Sentences with the numbers in them.
    pub sentence: String,
    /// The numbers by name.
    pub figures: Vec<Figure>,
    /// What to change, the first thing to try first.
    pub actions: Vec<String>,
    /// A command that checks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl From<explain::Finding> for Finding {
    fn from(finding: explain::Finding) -> Self {
        let figures = finding.figures.into_iter();
        Finding {
            code: finding.code,
            weight: finding.weight.word(),
            title: finding.title,
            sentence: finding.sentence,
            figures: figures.map(|f| Figure { name: f.name, value: f.value.into() }).collect(),
            actions: finding.actions,
            command: finding.command,
        }
    }
}

impl From<Value> for FigureValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bytes(bytes) => FigureValue::Bytes(bytes),
            Value::Count(count) => FigureValue::Count(count),
            Value::Permille(share) => FigureValue::Ratio(share as f64 / 1000.0),
            Value::Text(text) => FigureValue::Text(text),
        }
    }
}

/// What a log said.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogReport {
    /// Frameworks whose messages were recognised.
    pub frameworks: Vec<&'static str>,
    /// Different messages that memory ran out.
    pub failures: u64,
    /// How often such messages were printed.
    pub printed: u64,
    /// The device's total, where the log tells it.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
    /// Who held the device, as parts of its total, what is free last; empty where the log does not tell.
    pub division: Vec<DevicePart>,
    /// The failure that the findings are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main: Option<FailureSummary>,
    /// The first failure, where it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<FailureSummary>,
    /// The failure with the largest request, where it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst: Option<FailureSummary>,
    /// Failures by process and device.
    pub places: Vec<FailurePlace>,
    /// Usage lines shortly before the first failure.
    pub before: Vec<UsageSummary>,
    /// The last usage line of each kind.
    pub usage: Vec<UsageSummary>,
    /// The model, as the log names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// GPUs that the log names.
    pub gpus: Vec<String>,
    /// Options and sizes of the run.
    pub settings: Vec<SettingRow>,
    /// Lines that were too long to be read whole.
    pub cut_lines: u64,
}

/// A part of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DevicePart {
    /// Who holds it.
    pub name: &'static str,
    /// Its bytes.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub bytes: Bytes,
}

/// One message that memory ran out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailureSummary {
    /// Key of the message in the table: `torch-oom`.
    pub message: &'static str,
    /// Who printed it.
    pub framework: &'static str,
    /// The file.
    pub source: String,
    /// The line, from 1.
    pub line: u64,
    /// The process, where a prefix names it: `rank 3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The device, where the message names it: `GPU 0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Where the program was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// How often it was printed.
    pub printed: u64,
    /// The message, shortened.
    pub text: String,
    /// Its figures, with what each means.
    pub figures: Vec<Meaning>,
}

/// A figure and what it means.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Meaning {
    /// Its name.
    pub name: String,
    /// The value.
    #[serde(flatten)]
    pub value: FigureValue,
    /// Half a step of the printed value's last digit, in bytes; absent where it is exact or no size.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounded: Option<Bytes>,
    /// What it means, and what it does not.
    pub meaning: &'static str,
}

impl From<&message::figure::Reading> for Meaning {
    fn from(reading: &message::figure::Reading) -> Self {
        use message::figure::Amount;
        let (value, rounded) = match &reading.value {
            Amount::Size(size) => {
                (FigureValue::Bytes(size.bytes), Some(size.slack).filter(|s| !s.is_zero()))
            }
            Amount::Count(count) => (FigureValue::Count(*count), None),
            Amount::Permille(share) => (FigureValue::Ratio(*share as f64 / 1000.0), None),
            Amount::Text(text) => (FigureValue::Text(text.clone()), None),
        };
        let name = match &reading.of {
            Some(of) => format!("{} {of}", reading.key.name()),
            None => reading.key.name().to_owned(),
        };
        Meaning { name, value, rounded, meaning: reading.key.meaning() }
    }
}

/// Where failures happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailurePlace {
    /// The file.
    pub source: String,
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Different messages from there.
    pub failures: u64,
}

/// A line that says how much was used.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageSummary {
    /// Key of the message in the table: `vllm-split`.
    pub message: &'static str,
    /// The file.
    pub source: String,
    /// The line, from 1.
    pub line: u64,
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Its figures.
    pub figures: Vec<Figure>,
}

/// An option or size of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettingRow {
    /// Its name in words.
    pub name: &'static str,
    /// Its value as printed.
    pub value: String,
}
