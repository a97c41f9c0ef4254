//! What an estimate consists of. Every number can explain itself: a [`Term`] has a formula, the inputs that were
//! put in, a source, and children that sum to it where it is a sum.

use plimsoll_timeline::{Category, Timeline};
use plimsoll_units::Bytes;
use serde::Serialize;

/// The answer to "how much".
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The three peaks of one device (the worst rank).
    pub peak: Peak,
    /// Bounds of `peak.device` (90 %).
    pub interval: Interval,
    /// Live bytes by category at the moment of the peak; sums to `peak.device`. Reserved-but-free memory of the
    /// allocator stands in its own term.
    pub categories: Vec<(Category, Bytes)>,
    /// The tree of terms; the roots sum to `peak.device`.
    pub terms: Vec<Term>,
    /// What was assumed because nobody said.
    pub assumptions: Vec<Assumption>,
    /// What is doubtful, unsupported or wrong in the request.
    pub diagnostics: Vec<Diagnostic>,
    /// The phase of the peak, such as `backward`, and the module in it, such as `layers.31`.
    pub peak_phase: Option<String>,
    /// The module at the peak.
    pub peak_module: Option<String>,
    /// Host memory (offloaded tensors, pinned buffers, weights kept on the CPU).
    pub host: Bytes,
    /// Facts of a serving engine: KV tokens, blocks, maximum concurrency, buffers by name. Ordered.
    pub figures: Vec<(String, Figure)>,
    /// The predicted timeline, where the workload has one.
    pub timeline: Option<Timeline>,
}

/// A named result besides the peaks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Figure {
    /// Bytes.
    Bytes(Bytes),
    /// A count (tokens, blocks, sequences).
    Count(u64),
    /// A ratio (maximum concurrency).
    Ratio(f64),
    /// Words.
    Text(String),
}

/// The peaks of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// `torch.cuda.max_memory_allocated`; for other engines the sum of their buffers.
    pub allocated: Bytes,
    /// `torch.cuda.max_memory_reserved`; equals `allocated` where there is no caching allocator.
    pub reserved: Bytes,
    /// What the driver sees: reserved, context, libraries.
    pub device: Bytes,
}

/// A 90 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Lower bound.
    pub low: Bytes,
    /// Upper bound.
    pub high: Bytes,
}

/// One number and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    /// Stable key, lower case with dots: `activations`, `activations.mlp.act`.
    pub key: String,
    /// Words for people.
    pub label: String,
    /// The value.
    pub bytes: Bytes,
    /// The formula in symbols, such as `2·b·s·h per layer`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub formula: String,
    /// The values put in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<TermInput>,
    /// Where formula or value come from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Relative spread of the term (90 %), in thousandths, where it is not exact: -low, +high.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread_permille: Option<(u32, u32)>,
    /// Parts that sum to the value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Term>,
}

/// A symbol of a formula and its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TermInput {
    /// The symbol.
    pub symbol: String,
    /// Its value, as text (numbers keep their unit).
    pub value: String,
}

impl Term {
    /// A leaf.
    pub fn new(key: impl Into<String>, label: impl Into<String>, bytes: Bytes) -> Self {
        Term {
            key: key.into(),
            label: label.into(),
            bytes,
            formula: String::new(),
            inputs: Vec::new(),
            source: String::new(),
            spread_permille: None,
            children: Vec::new(),
        }
    }

    /// A sum of its children.
    pub fn sum(key: impl Into<String>, label: impl Into<String>, children: Vec<Term>) -> Self {
        let bytes = children.iter().map(|t| t.bytes).sum();
        Term { children, ..Term::new(key, label, bytes) }
    }

    /// The same with a formula.
    #[must_use]
    pub fn formula(mut self, formula: impl Into<String>) -> Self {
        self.formula = formula.into();
        self
    }

    /// The same with one more input.
    #[must_use]
    pub fn input(mut self, symbol: impl Into<String>, value: impl ToString) -> Self {
        self.inputs.push(TermInput { symbol: symbol.into(), value: value.to_string() });
        self
    }

    /// The same with a source.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// The same with a relative 90 % spread in thousandths.
    #[must_use]
    pub fn spread(mut self, low_permille: u32, high_permille: u32) -> Self {
        self.spread_permille = Some((low_permille, high_permille));
        self
    }
}

/// Something taken for granted, and how to say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// What the assumption is about: `attention`, `optimizer`, `context memory`.
    pub about: String,
    /// What was assumed.
    pub value: String,
    /// Why this value.
    pub reason: String,
    /// The option that sets it, such as `--attention`; empty where there is none.
    pub option: String,
}

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Note,
    /// The number may be off.
    Warning,
}

/// A finding about the request or the model. Not an error: the estimate still stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad.
    pub severity: Severity,
    /// Stable key: `sequence-beyond-limit`.
    pub code: String,
    /// What is wrong or doubtful, where, with values.
    pub message: String,
    /// What to do about it; empty for nothing.
    pub cure: String,
}
