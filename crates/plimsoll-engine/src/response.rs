//! The response: the promised surface, apart from the engine's own types. Field order is fixed, maps are ordered
//! lists, bytes are integers, so that the same request gives the same JSON, byte for byte.

use plimsoll_estimate as est;
use plimsoll_timeline::{AllocatorChoice, Category, DeviceMemory, Timeline};
use plimsoll_units::Bytes;
use serde::Serialize;

use crate::verdict::Verdict;

/// The answer to a [`Request`](crate::Request).
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Response {
    /// Version of this schema: `plimsoll.estimate/1`.
    pub schema: &'static str,
    /// Version of Plimsoll.
    pub version: &'static str,
    /// Whether the estimate is within the capacity.
    pub fits: bool,
    /// The same with the interval taken into account.
    pub verdict: Verdict,
    /// Why it does not fit, in words; absent where it fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes that one device offers.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub capacity: Bytes,
    /// Capacity less `peak.device`; negative where it does not fit.
    pub margin: i64,
    /// The peaks of one device (of the worst rank).
    pub peak: Peak,
    /// Bounds of `peak.device`: nine of ten measured runs lie within.
    pub interval: Interval,
    /// Phase of the peak, such as `backward`.
    pub peak_phase: Option<String>,
    /// Module at the peak, such as `layers.31`.
    pub peak_module: Option<String>,
    /// Live bytes by category at the peak; they sum to `peak.device`.
    pub categories: Vec<CategoryBytes>,
    /// Host memory.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub host: Bytes,
    /// What the request was understood as.
    pub request: Summary,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSummary>,
    /// The machine.
    pub machine: MachineSummary,
    /// The allocator that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator: Option<AllocatorSummary>,
    /// Results besides the peaks: KV tokens, blocks, concurrency, buffers.
    pub figures: Vec<Figure>,
    /// The tree of terms; the roots sum to `peak.device`.
    pub terms: Vec<Term>,
    /// What was taken for granted.
    pub assumptions: Vec<Assumption>,
    /// What is doubtful, unsupported or wrong in the request or the model.
    pub diagnostics: Vec<Diagnostic>,
    /// The result of `find`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// The nearest changes that would fit, least change first; empty where it fits.
    pub changes: Vec<Change>,
    /// The predicted timeline, for plots; not part of the JSON.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
    /// What the timeline was replayed on, for plots; not part of the JSON.
    #[serde(skip)]
    pub replayed_on: Option<(AllocatorChoice, DeviceMemory)>,
}

/// The allocator that serves the tensors. What it holds is in `peak.reserved`, what the program needs of it in the
/// figure `allocator_in_use_peak`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AllocatorSummary {
    /// `PyTorch`, `TensorFlow`, `JAX` or `ONNX Runtime`.
    pub framework: &'static str,
    /// The canonical text of the choice, which `--allocator` reads.
    pub choice: String,
    /// In words, with the settings that decide about memory.
    pub description: String,
}

/// The peaks of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Peak {
    /// `torch.cuda.max_memory_allocated`; for other engines the sum of their buffers.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub allocated: Bytes,
    /// `torch.cuda.max_memory_reserved`.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub reserved: Bytes,
    /// What the driver sees.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub device: Bytes,
}

impl From<est::Peak> for Peak {
    fn from(peak: est::Peak) -> Self {
        Peak { allocated: peak.allocated, reserved: peak.reserved, device: peak.device }
    }
}

/// A 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interval {
    /// Lower bound.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub low: Bytes,
    /// Upper bound.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub high: Bytes,
}

impl From<est::Interval> for Interval {
    fn from(interval: est::Interval) -> Self {
        Interval { low: interval.low, high: interval.high }
    }
}

/// Bytes of one category at the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CategoryBytes {
    /// Stable key, such as `optimizer_states`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub category: Category,
    /// Words for people.
    pub label: &'static str,
    /// Bytes.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub bytes: Bytes,
}

/// What the request was understood as.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// One line: `full training, adamw, bf16-mixed, batch 4 x 4096`.
    pub workload: String,
    /// One line: `fsdp2 over 8, full checkpointing`; empty for a plain run on one device.
    pub strategy: String,
}

/// The model that was estimated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelSummary {
    /// Its name, or the file it was read from.
    pub name: String,
    /// Where the facts come from: `catalogue`, `config`, `safetensors`, `gguf`, `checkpoint`.
    pub source: &'static str,
    /// `model_type`, or GGUF's architecture.
    pub family: String,
    /// Parameters, tied tables once.
    pub parameters: u64,
    /// Parameters that one token passes; fewer than `parameters` in a mixture of experts.
    pub active: u64,
    /// Layers.
    pub layers: u64,
    /// Type of the published weights.
    pub dtype: String,
    /// The longest sequence that the model was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_positions: Option<u64>,
}

/// The machine that the estimate is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineSummary {
    /// The catalogue's id, or the capacity: a text that `--gpu` reads.
    pub id: String,
    /// The same for people: `h100-80g*8`, `a device of 24.00 GiB`.
    pub label: String,
    /// The driver's name of the GPU.
    pub name: String,
    /// Devices.
    pub count: u64,
    /// Bytes that frameworks see in total, per device.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub usable: Bytes,
    /// Bytes that were said to be free, where they were.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<Bytes>,
}

/// A named result besides the peaks; one of the values is present.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// The value.
    #[serde(flatten)]
    pub value: FigureValue,
}

/// The value of a figure, named by its unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FigureValue {
    /// Bytes.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    Bytes(Bytes),
    /// A count of tokens, blocks or sequences.
    Count(u64),
    /// A ratio.
    Ratio(f64),
    /// Words.
    Text(String),
}

impl From<est::Figure> for FigureValue {
    fn from(figure: est::Figure) -> Self {
        match figure {
            est::Figure::Bytes(b) => FigureValue::Bytes(b),
            est::Figure::Count(n) => FigureValue::Count(n),
            est::Figure::Ratio(r) => FigureValue::Ratio(r),
            est::Figure::Text(t) => FigureValue::Text(t),
        }
    }
}

/// One number and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Term {
    /// Stable key: `activations.mlp`.
    pub key: String,
    /// Words for people.
    pub label: String,
    /// The value.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub bytes: Bytes,
    /// The formula in symbols.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub formula: String,
    /// The values put in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<TermInput>,
    /// Where formula or value come from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Relative 90 % spread in thousandths, below and above, where the term is not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread_permille: Option<(u32, u32)>,
    /// Parts that sum to the value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Term>,
}

/// A symbol of a formula and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TermInput {
    /// The symbol.
    pub symbol: String,
    /// Its value, as text.
    pub value: String,
}

impl From<est::Term> for Term {
    fn from(term: est::Term) -> Self {
        let inputs = term.inputs.into_iter();
        Term {
            key: term.key,
            label: term.label,
            bytes: term.bytes,
            formula: term.formula,
            inputs: inputs.map(|i| TermInput { symbol: i.symbol, value: i.value }).collect(),
            source: term.source,
            spread_permille: term.spread_permille,
            children: term.children.into_iter().map(Term::from).collect(),
        }
    }
}

/// Something taken for granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Assumption {
    /// What it is about.
    pub about: String,
    /// What was assumed.
    pub value: String,
    /// Why this value.
    pub reason: String,
    /// The option that sets it; empty where there is none.
    pub option: String,
}

impl From<est::Assumption> for Assumption {
    fn from(a: est::Assumption) -> Self {
        Assumption { about: a.about, value: a.value, reason: a.reason, option: a.option }
    }
}

/// A finding about the request or the model; the estimate still stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnostic {
    /// `note` or `warning`.
    pub severity: &'static str,
    /// Stable key: `sequence-beyond-limit`.
    pub code: String,
    /// What is wrong or doubtful, with values.
    pub message: String,
    /// What to do about it; empty for nothing.
    pub cure: String,
}

impl From<est::Diagnostic> for Diagnostic {
    fn from(d: est::Diagnostic) -> Self {
        let severity = match d.severity {
            est::Severity::Note => "note",
            est::Severity::Warning => "warning",
        };
        Diagnostic { severity, code: d.code, message: d.message, cure: d.cure }
    }
}

impl Diagnostic {
    /// A warning.
    pub(crate) fn warning(
        code: &str,
        message: impl Into<String>,
        cure: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic {
            severity: "warning",
            code: code.to_owned(),
            message: message.into(),
            cure: cure.into(),
        }
    }

    /// A note.
    pub(crate) fn note(code: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: "note",
            code: code.to_owned(),
            message: message.into(),
            cure: String::new(),
        }
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Search {
    /// What was raised: `batch`.
    pub find: String,
    /// The option that sets it: `--batch`.
    pub option: String,
    /// The largest value such that it and every smaller value tried fits; absent where not even the smallest does.
    pub value: Option<u64>,
    /// The next value, which does not fit.
    pub next: u64,
    /// Bytes that the next value needs on the device; absent where something else rules it out.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u64>"))]
    pub next_device: Option<Bytes>,
    /// Why the next value does not fit.
    pub why: String,
    /// Estimates that were made.
    pub evaluated: u64,
}

/// A change under which the request would fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// In words: `full checkpointing`.
    pub label: String,
    /// The options to type: `--checkpoint full`.
    pub options: String,
    /// How much it changes the run; the list is sorted by it.
    pub cost: u32,
    /// Bytes on the device after the change.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub device: Bytes,
    /// Bytes that one device then offers.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub capacity: Bytes,
    /// Whether the whole interval is then below the capacity.
    pub certain: bool,
}
