//! One scored row: what was measured, what was predicted, or why nothing could be.

use super::row::Row;

/// Which file a row belongs to, by its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A measured training run.
    Training,
    /// A run that fitted or did not.
    Bound,
    /// An inference engine's log.
    Inference,
}

/// A row and its score.
#[derive(Clone, Debug)]
pub struct Case {
    /// The row's id.
    pub id: String,
    /// Which kind of row.
    pub kind: Kind,
    /// The collection it comes from.
    pub source: String,
    /// The task, or the engine.
    pub task: String,
    /// `high`, `medium`, `low`.
    pub confidence: String,
    /// `dense`, `moe`...; empty where the model is not known.
    pub model_kind: String,
    /// What its interval is looked up by.
    pub workload: String,
    /// The settings in short.
    pub settings: String,
    /// What had to be assumed.
    pub notes: Vec<String>,
    /// Predicted beside measured; empty for bounds and rows that are not modelled.
    pub predictions: Vec<Prediction>,
    /// For bounds: the verdict.
    pub verdict: Option<Verdict>,
    /// Why the row is not modelled.
    pub reason: Option<String>,
    /// Whether a text transformer runs, as far as the row says (also where it is not modelled).
    pub transformer: bool,
}

/// A fit predicted and seen.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Whether the run is predicted to fit.
    pub predicted: bool,
    /// Whether it did.
    pub seen: bool,
    /// Predicted bytes and the capacity.
    pub bytes: (f64, f64),
}

/// One number beside its measurement.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The row's metric; second readings start with `also-`.
    pub metric: String,
    /// Which of our numbers it is compared with: `allocated`, `reserved`, `device`, or an engine's term.
    pub counter: &'static str,
    /// The row's own figure, not a second reading.
    pub main: bool,
    /// Predicted, in bytes or tokens.
    pub predicted: f64,
    /// Measured, in the same unit.
    pub measured: f64,
    /// 90 % bounds of the prediction.
    pub interval: Option<(f64, f64)>,
    /// The bar that the figure counts for, and whether it is within it.
    pub bar: Option<(&'static str, bool)>,
    /// The prediction by category.
    pub parts: Vec<(String, f64)>,
    /// Phase of the peak.
    pub phase: String,
    /// The other counters, in short.
    pub others: String,
}

impl Prediction {
    /// Relative error.
    pub fn error(&self) -> f64 {
        (self.predicted - self.measured) / self.measured
    }

    /// Whether the measurement lies within the bounds.
    pub fn covered(&self) -> Option<bool> {
        self.interval.map(|(low, high)| (low..=high).contains(&self.measured))
    }
}

impl Case {
    /// The part of a case that the row itself states.
    pub fn of(row: &Row, kind: Kind) -> Case {
        let task = row.text("task").or_else(|| row.text("engine")).unwrap_or_default();
        let lower = task.to_ascii_lowercase();
        let other = ["diffusion", "gan", "cnn", "vit", "asr", "speech"];
        Case {
            id: row.text("id").unwrap_or_else(|| "?".into()),
            kind,
            source: row.text("source_key").unwrap_or_else(|| repository(row)),
            transformer: !other.iter().any(|w| lower.contains(w)),
            task,
            confidence: row.text("confidence").unwrap_or_default(),
            model_kind: String::new(),
            workload: String::new(),
            settings: String::new(),
            notes: Vec::new(),
            predictions: Vec::new(),
            verdict: None,
            reason: None,
        }
    }
}

/// The repository before the colon, without its owner.
fn repository(row: &Row) -> String {
    let source = row.text("source").unwrap_or_default();
    let head = source.split([':', '#', ' ']).next().unwrap_or("");
    head.rsplit('/').next().unwrap_or("").to_owned()
}
