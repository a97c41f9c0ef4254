//! Typed access to the keys of one configuration object: ranges, aliases, defaults, and a note of what is missing.

use std::cell::RefCell;

use plimsoll_units::DType;
use serde_json::{Map, Value};

use super::defaults::SizeDefault;
use super::{Diagnostic, ImportError, kind};
use crate::arch::Activation;

/// What an import collects on the way.
#[derive(Default)]
pub(super) struct Notes {
    pub diagnostics: RefCell<Vec<Diagnostic>>,
    pub missing: RefCell<Vec<String>>,
}

/// One object of a configuration.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    map: &'a Map<String, Value>,
    path: &'static str,
    defaults: &'static [SizeDefault],
    notes: &'a Notes,
}

/// Names that transformers itself treats as the same attribute (`attribute_map`).
pub(super) const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model", "dim", "embed_dim"];
pub(super) const LAYERS: &[&str] =
    &["num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth"];
pub(super) const HEADS: &[&str] = &[
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "attention_heads",
];
pub(super) const VOCAB: &[&str] = &["vocab_size", "padded_vocab_size"];

impl<'a> Keys<'a> {
    pub fn top(map: &'a Map<String, Value>, notes: &'a Notes) -> Self {
        Keys { map, path: "", defaults: &[], notes }
    }

    /// The object under `key`; sizes that upstream leaves out of nested objects come from `defaults`.
    pub fn nested(&self, key: &'static str, defaults: &'static [SizeDefault]) -> Option<Keys<'a>> {
        match self.map.get(key) {
            Some(Value::Object(map)) => Some(Keys { map, path: key, defaults, notes: self.notes }),
            _ => None,
        }
    }

    /// The same keys with the defaults of a configuration class.
    pub fn with_defaults(self, defaults: &'static [SizeDefault]) -> Self {
        Keys { defaults, ..self }
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is written, be it as null.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub fn assume(&self, key: &str, message: impl Into<String>) {
        let entry = Diagnostic { key: self.name(key), message: message.into() };
        self.notes.diagnostics.borrow_mut().push(entry);
    }

    pub fn bad(&self, key: &str, value: &Value, accepted: impl Into<String>) -> ImportError {
        let mut text = value.to_string();
        if text.len() > 80 {
            text = format!("{} of {} bytes", kind(value), text.len());
        }
        ImportError::Value {
            key: self.name(key),
            value: text,
            accepted: accepted.into(),
            cure: "correct it, or give the original config.json",
        }
    }

    pub fn contradiction(&self, key: &str, value: impl ToString, against: String) -> ImportError {
        ImportError::Contradiction {
            key: self.name(key),
            value: value.to_string(),
            against,
            cure: "correct one of the two",
        }
    }

    fn limit(key: &str) -> u64 {
        if LAYERS.contains(&key) || key.contains("layers") {
            10_000
        } else if key.contains("position") || key.contains("window") || key.contains("length") {
            1 << 40
        } else if key.contains("vocab") {
            1 << 30
        } else {
            1 << 26
        }
    }

    fn whole(&self, key: &str, value: &Value, least: u64) -> Result<u64, ImportError> {
        let most = Self::limit(key);
        let number = value.as_u64().or_else(|| {
            // `11008.0` is how some exporters write 11008.
            value
                .as_f64()
                .filter(|f| f.fract() == 0.0 && *f >= 0.0 && *f < 9.0e15)
                .map(|f| f as u64)
        });
        match number {
            Some(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(self.bad(key, value, format!("a whole number from {least} to {most}"))),
        }
    }

    fn find(&self, keys: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        keys.iter().find_map(|key| self.get(key).map(|v| (*key, v)))
    }

    fn default_of(&self, keys: &[&'static str]) -> Option<u64> {
        keys.iter().find_map(|key| self.defaults.iter().find(|d| d.0 == *key).map(|d| d.1))
    }

    /// A size of at least 1. A missing one is noted, and 1 stands in until the import is over.
    pub fn size(&self, keys: &[&'static str]) -> Result<u64, ImportError> {
        if let Some(n) = self.size_if(keys)? {
            return Ok(n);
        }
        if let Some(n) = self.default_of(keys) {
            return Ok(n);
        }
        if let Some(first) = keys.first() {
            let mut missing = self.notes.missing.borrow_mut();
            let name = self.name(first);
            if !missing.contains(&name) {
                missing.push(name);
            }
        }
        Ok(1)
    }

    /// A size of at least 1, if written (null counts as not written).
    pub fn size_if(&self, keys: &[&'static str]) -> Result<Option<u64>, ImportError> {
        self.find(keys).map(|(key, value)| self.whole(key, value, 1)).transpose()
    }

    /// A size with the default of the configuration class.
    pub fn size_or(&self, keys: &[&'static str], default: u64) -> Result<u64, ImportError> {
        Ok(self.size_if(keys)?.or_else(|| self.default_of(keys)).unwrap_or(default))
    }

    /// A count that may be zero.
    pub fn count_or(&self, keys: &[&'static str], default: u64) -> Result<u64, ImportError> {
        match self.find(keys) {
            Some((key, value)) => self.whole(key, value, 0),
            None => Ok(self.default_of(keys).unwrap_or(default)),
        }
    }

    /// A list of sizes, or one size for all of `layers`.
    pub fn per_layer(
        &self,
        key: &'static str,
        layers: u64,
    ) -> Result<Option<Vec<u64>>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => {
                if items.len() as u64 != layers {
                    return Err(self.contradiction(
                        key,
                        format!("a list of {}", items.len()),
                        format!("the model has {layers} layers"),
                    ));
                }
                items.iter().map(|v| self.whole(key, v, 0)).collect::<Result<_, _>>().map(Some)
            }
            Some(value) => Ok(Some(vec![self.whole(key, value, 1)?; layers as usize])),
        }
    }

    /// A list of words, one per layer; those that the family's reader does not know are noted.
    pub fn kinds(
        &self,
        key: &'static str,
        layers: u64,
        known: &[&str],
    ) -> Result<Option<Vec<&'a str>>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(items) = value else {
            return Err(self.bad(key, value, format!("a list of {layers} strings")));
        };
        if items.len() as u64 != layers {
            return Err(self.contradiction(
                key,
                format!("a list of {}", items.len()),
                format!("the model has {layers} layers"),
            ));
        }
        let words = items
            .iter()
            .map(|v| v.as_str().ok_or_else(|| self.bad(key, v, "a string per layer")))
            .collect::<Result<Vec<&str>, _>>()?;
        let mut noted: Vec<&str> = Vec::new();
        for (layer, word) in words.iter().enumerate().filter(|(_, word)| !known.contains(word)) {
            if noted.len() < 8 && !noted.contains(word) {
                noted.push(word);
                let word: String = word.chars().take(40).collect();
                let known = known.join("`, `");
                self.assume(
                    key,
                    format!(
                        "`{word}` (layer {layer}) is not known of this family and taken as its usual kind; known: `{known}`"
                    ),
                );
            }
        }
        Ok(Some(words))
    }

    /// A list of whole numbers of any length.
    pub fn numbers(&self, key: &'static str) -> Result<Option<Vec<u64>>, ImportError> {
        match self.get(key) {
            Some(Value::Array(items)) => {
                items.iter().map(|v| self.whole(key, v, 0)).collect::<Result<_, _>>().map(Some)
            }
            Some(other) => Err(self.bad(key, other, "a list of whole numbers")),
            None => Ok(None),
        }
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ImportError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(Value::Number(n)) if n.as_u64() == Some(0) => Ok(false),
            Some(Value::Number(n)) if n.as_u64() == Some(1) => Ok(true),
            Some(other) => Err(self.bad(key, other, "true or false")),
        }
    }

    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }

    /// A stated fraction.
    pub fn fraction(&self, keys: &[&'static str]) -> Option<f64> {
        self.find(keys).and_then(|(_, v)| v.as_f64()).filter(|f| f.is_finite() && *f >= 0.0)
    }

    /// Whether a probability is above zero.
    pub fn positive(&self, keys: &[&'static str], default: bool) -> bool {
        self.fraction(keys).map_or(default, |p| p > 0.0)
    }

    pub fn activation(&self, default: Activation) -> Activation {
        const KEYS: &[&str] = &[
            "hidden_act",
            "hidden_activation",
            "activation_function",
            "mlp_hidden_act",
            "activation",
            "hidden_act_fn",
        ];
        let Some((key, value)) = self.find(KEYS) else { return default };
        match value.as_str().unwrap_or("") {
            "silu" | "swish" => Activation::Silu,
            "gelu" | "gelu_python" => Activation::Gelu,
            "gelu_pytorch_tanh" => Activation::GeluTanh,
            "gelu_new" | "gelu_fast" | "gelu_accurate" => Activation::GeluComposed,
            "quick_gelu" => Activation::QuickGelu,
            "relu" => Activation::Relu,
            "relu2" | "squared_relu" => Activation::Relu2,
            "tanh" => Activation::Tanh,
            other => {
                self.assume(
                    key,
                    format!("activation {other:?} is not known; counted as {default:?}"),
                );
                default
            }
        }
    }

    /// `torch_dtype`, or `dtype` as newer versions write it; F32 where neither is there.
    pub fn dtype(&self) -> DType {
        let found = self.text("torch_dtype").or_else(|| self.text("dtype"));
        let nested = || {
            ["text_config", "llm_config", "language_config"].iter().find_map(|key| {
                let inner = self.get(key)?;
                inner.get("torch_dtype").or_else(|| inner.get("dtype"))?.as_str()
            })
        };
        match found.filter(|t| *t != "auto").or_else(nested) {
            None => DType::F32,
            Some(text) => text.parse().unwrap_or_else(|_| {
                self.assume(
                    "torch_dtype",
                    format!("{text:?} is not an element type; counted as f32"),
                );
                DType::F32
            }),
        }
    }

    /// The longest sequence, with rope scaling where the stated number is the one before scaling.
    pub fn max_positions(&self) -> Result<Option<u64>, ImportError> {
        const KEYS: &[&str] = &[
            "max_position_embeddings",
            "n_positions",
            "max_seq_len",
            "seq_length",
            "model_max_length",
            "max_sequence_length",
            "n_ctx",
        ];
        let Some(stated) = self.size_if(KEYS)? else { return Ok(self.default_of(KEYS)) };
        let Some(Value::Object(rope)) =
            self.get("rope_scaling").or_else(|| self.get("rope_parameters"))
        else {
            return Ok(Some(stated));
        };
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str);
        let factor =
            rope.get("factor").and_then(Value::as_f64).filter(|f| (1.0..=4096.0).contains(f));
        let original = rope.get("original_max_position_embeddings").and_then(Value::as_u64);
        // A factor is a stated number with few digits; thousandths keep it exact.
        let scaled =
            |base: u64, factor: f64| base.saturating_mul((factor * 1000.0).round() as u64) / 1000;
        Ok(Some(match (kind, factor) {
            (Some("yarn" | "deepseek_yarn"), Some(factor)) => {
                scaled(original.unwrap_or(stated), factor).max(stated)
            }
            (Some("linear" | "dynamic"), Some(factor)) => scaled(stated, factor),
            _ => stated,
        }))
    }
}
