//! From a Hugging Face `config.json` to an [`Architecture`]. Every width is read; where upstream leaves a key out, the
//! value is the default of the family's own configuration class. What is assumed beyond that is said in a
//! [`Diagnostic`].

mod decoder;
mod deepseek_v4;
mod defaults;
mod encoder;
mod families;
mod gemma;
mod hybrid;
mod keys;
mod kimi;
mod legacy;
mod mixture;
mod multimodal;
mod quantization;
mod resampler;
mod seq2seq;
mod speech;
mod tower;
mod zamba;

use plimsoll_formats::hf_config::read_json_object;
use serde_json::{Map, Value};

use crate::arch::{Architecture, Ffn, Mixer};
use keys::{Keys, Notes};

/// A configuration, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The model.
    pub architecture: Architecture,
    /// What had to be assumed, in the order of discovery.
    pub diagnostics: Vec<Diagnostic>,
    /// Draft (multi-token prediction) layers that the checkpoint holds beyond `architecture`; plain classes do not
    /// load them. See [`Architecture::draft_stack`].
    pub draft_layers: u64,
}

/// An assumption made while importing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The key that it is about, such as `text_config.sliding_window`.
    pub key: String,
    /// What was assumed, and why; a lowercase fragment.
    pub message: String,
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Not a JSON object, or too long to be a configuration.
    #[error(transparent)]
    Format(#[from] plimsoll_formats::FormatError),
    /// JSON, but no object.
    #[error("the top level is {found}, not an object; give the model's own config.json")]
    NotAnObject {
        /// The kind of value found.
        found: &'static str,
    },
    /// Keys without which no parameter can be counted.
    #[error(
        "`model_type` {family:?} needs {}, which the configuration lacks; add them, or give the original config.json",
        list(keys)
    )]
    Missing {
        /// The family whose rules were applied.
        family: String,
        /// All keys that are missing.
        keys: Vec<String>,
    },
    /// A value of the wrong kind or out of range.
    #[error("`{key}` is {value}; accepted: {accepted}; {cure}")]
    Value {
        /// The key with its path.
        key: String,
        /// The value, shortened.
        value: String,
        /// What is accepted.
        accepted: String,
        /// What to do.
        cure: &'static str,
    },
    /// Two values that cannot both be right.
    #[error("`{key}` is {value}, but {against}; {cure}")]
    Contradiction {
        /// The key with its path.
        key: String,
        /// The value.
        value: String,
        /// What it contradicts.
        against: String,
        /// What to do.
        cure: &'static str,
    },
}

fn list(keys: &[String]) -> String {
    keys.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ")
}

/// The largest tensor that is believed, in elements; published ones stay below 2^34.
const LARGEST: u64 = 1 << 40;

/// Reads a `config.json`.
///
/// # Errors
///
/// [`ImportError`] names the key, its value, what is accepted and the cure.
pub fn from_config(bytes: &[u8]) -> Result<Imported, ImportError> {
    from_map(&read_json_object("config.json", bytes)?)
}

/// As [`from_config`], from a value that is already parsed.
///
/// # Errors
///
/// As [`from_config`].
pub fn from_value(value: &Value) -> Result<Imported, ImportError> {
    let Value::Object(map) = value else {
        return Err(ImportError::NotAnObject { found: kind(value) });
    };
    from_map(map)
}

fn from_map(map: &Map<String, Value>) -> Result<Imported, ImportError> {
    let notes = Notes::default();
    let keys = Keys::top(map, &notes);
    let family = family_of(map);
    let built = families::build(&keys, family).and_then(|mut architecture| {
        architecture.family = family.to_owned();
        if let Some(class) = map.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str)
        {
            architecture.class = class.to_owned();
        }
        architecture.dtype = keys.dtype();
        architecture.quantization = quantization::read(&keys)?;
        check_sizes(&architecture)?;
        Ok(architecture)
    });
    let missing = notes.missing.take();
    if !missing.is_empty() {
        return Err(ImportError::Missing { family: family.to_owned(), keys: missing });
    }
    let architecture = built?;
    let draft_layers = draft_layers(&keys)?;
    Ok(Imported { architecture, diagnostics: notes.diagnostics.take(), draft_layers })
}

/// `num_nextn_predict_layers` and the like, at the top or in the text configuration.
fn draft_layers(keys: &Keys<'_>) -> Result<u64, ImportError> {
    const KEYS: &[&str] = &["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"];
    let stated = keys.count_or(KEYS, 0)?;
    match keys.nested("text_config", &[]) {
        Some(text) if stated == 0 => text.count_or(KEYS, 0),
        _ => Ok(stated),
    }
}

/// The `model_type`; old configurations without one are recognised by their class.
fn family_of(map: &Map<String, Value>) -> &str {
    if let Some(family) = map.get("model_type").and_then(Value::as_str) {
        return family;
    }
    let class =
        map.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str).unwrap_or("");
    const CLASSES: [(&str, &str); 12] = [
        ("Roberta", "roberta"),
        ("XLMRoberta", "xlm-roberta"),
        ("DistilBert", "distilbert"),
        ("Albert", "albert"),
        ("Electra", "electra"),
        ("Bert", "bert"),
        ("GPT2", "gpt2"),
        ("T5", "t5"),
        ("Bart", "bart"),
        ("Llama", "llama"),
        ("LLaMA", "llama"),
        ("Mistral", "mistral"),
    ];
    CLASSES.iter().find(|(start, _)| class.starts_with(start)).map_or("", |(_, family)| family)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a flag",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Rejects models whose single tensors pass all belief: each key may be in range and the product absurd.
fn check_sizes(architecture: &Architecture) -> Result<(), ImportError> {
    let too_large = |key: &str, a: u64, b: u64| ImportError::Value {
        key: key.to_owned(),
        value: format!("{a} (a matrix of {a} x {b})"),
        accepted: format!("matrices of at most {LARGEST} elements"),
        cure: "correct the sizes",
    };
    let check = |key: &str, a: u64, b: u64| {
        if a.saturating_mul(b) > LARGEST { Err(too_large(key, a, b)) } else { Ok(()) }
    };
    if let Some(embedding) = &architecture.embedding {
        check("vocab_size", embedding.vocab, embedding.width)?;
    }
    for stack in &architecture.stacks {
        let hidden = stack.hidden;
        check("hidden_size", hidden, hidden)?;
        for layer in &stack.layers {
            match &layer.ffn {
                Ffn::Dense(mlp) => check("intermediate_size", mlp.width, hidden)?,
                Ffn::Moe(moe) => {
                    let shared = moe.shared.map_or(0, |s| s.width);
                    check("moe_intermediate_size", moe.expert.width.max(shared), hidden)?;
                    check("num_experts", moe.experts, moe.expert.width.saturating_mul(hidden))?;
                }
                Ffn::None => {}
            }
            if let Mixer::Attention(a) = &layer.mixer {
                check("num_attention_heads", a.heads, a.head_dim.saturating_mul(hidden))?;
            }
        }
    }
    Ok(())
}
