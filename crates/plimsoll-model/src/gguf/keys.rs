//! Typed access to the `{arch}.*` keys of GGUF metadata, with ranges and a note of what is missing.

use std::cell::RefCell;

use plimsoll_formats::gguf::{Metadata, Value};

use crate::hf::{Diagnostic, ImportError};

/// The keys of one architecture.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
    missing: RefCell<Vec<String>>,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

/// Layers that are believed; the largest published model has 126.
const MOST_LAYERS: u64 = 10_000;
/// Any other size that is believed.
const MOST: u64 = 1 << 40;

impl<'a> Keys<'a> {
    pub fn new(metadata: &'a Metadata, arch: &'a str) -> Self {
        Keys { metadata, arch, missing: RefCell::default(), diagnostics: RefCell::default() }
    }

    pub fn finish(self) -> (Vec<String>, Vec<Diagnostic>) {
        (self.missing.into_inner(), self.diagnostics.into_inner())
    }

    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    pub fn assume(&self, key: &str, message: String) {
        self.diagnostics.borrow_mut().push(Diagnostic { key: key.to_owned(), message });
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.metadata.get(&self.name(key))
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn bad(&self, key: &str, value: &Value, accepted: String) -> ImportError {
        let shown = match value {
            Value::Array(array) => format!("a list of {}", array.len),
            Value::Text(text) => format!("a string of {} bytes", text.len()),
            other => format!("{other:?}"),
        };
        let cure = "convert the model again with current tools";
        ImportError::Value { key: self.name(key), value: shown, accepted, cure }
    }

    fn whole(&self, key: &str, value: &Value, least: u64, most: u64) -> Result<u64, ImportError> {
        match value.as_u64() {
            Some(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(self.bad(key, value, format!("a whole number from {least} to {most}"))),
        }
    }

    /// A size of at least 1, if there and not a list (a list of one counts).
    pub fn size_if(&self, key: &str) -> Result<Option<u64>, ImportError> {
        match self.get(key) {
            None | Some(Value::Array(_)) => Ok(None),
            // Zero is how converters write "does not apply".
            Some(value) if value.as_u64() == Some(0) => Ok(None),
            Some(value) => self.whole(key, value, 1, MOST).map(Some),
        }
    }

    pub fn size_or(&self, key: &str, default: u64) -> Result<u64, ImportError> {
        Ok(self.size_if(key)?.unwrap_or(default))
    }

    pub fn count_or(&self, key: &str, default: u64) -> Result<u64, ImportError> {
        match self.get(key) {
            None | Some(Value::Array(_)) => Ok(default),
            Some(value) => self.whole(key, value, 0, MOST),
        }
    }

    /// A size that must be there; 1 stands in for a missing one until the import is over.
    pub fn size(&self, key: &str) -> Result<u64, ImportError> {
        if let Some(n) = self.size_if(key)? {
            return Ok(n);
        }
        if let Some(value) = self.get(key) {
            return Err(self.bad(key, value, format!("a whole number from 1 to {MOST}")));
        }
        let mut missing = self.missing.borrow_mut();
        let name = self.name(key);
        if !missing.contains(&name) {
            missing.push(name);
        }
        Ok(1)
    }

    /// A number of layers.
    pub fn layers(&self, key: &str) -> Result<usize, ImportError> {
        let layers = self.size(key)?;
        if layers > MOST_LAYERS {
            let value = Value::Unsigned(layers);
            return Err(self.bad(key, &value, format!("a whole number from 1 to {MOST_LAYERS}")));
        }
        Ok(layers as usize)
    }

    /// One count per layer, from a list or from one number; zero is a count.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u64>>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Array(array)) => {
                let items = array.items.as_deref().unwrap_or(&[]);
                if items.len() != layers {
                    return Err(ImportError::Contradiction {
                        key: self.name(key),
                        value: format!("a list of {}", array.len),
                        against: format!("the model has {layers} layers"),
                        cure: "convert the model again with current tools",
                    });
                }
                items
                    .iter()
                    .map(|item| {
                        item.as_u64()
                            .filter(|n| *n <= MOST)
                            .ok_or_else(|| self.bad(key, value, "whole numbers".to_owned()))
                    })
                    .collect::<Result<_, _>>()
                    .map(Some)
            }
            Some(value) => Ok(Some(vec![self.whole(key, value, 0, MOST)?; layers])),
        }
    }

    /// The number, or the first of a list that is not zero.
    pub fn first(&self, key: &str) -> Result<Option<u64>, ImportError> {
        match self.get(key) {
            Some(Value::Array(array)) => {
                let items = array.items.as_deref().unwrap_or(&[]);
                Ok(items.iter().filter_map(Value::as_u64).find(|n| *n > 0))
            }
            _ => self.size_if(key),
        }
    }

    pub fn flags(&self, key: &str) -> Option<Vec<bool>> {
        match self.get(key)? {
            Value::Array(_) => self.metadata.bool_list(&self.name(key)),
            _ => None,
        }
    }

    /// Words of the tokenizer.
    pub fn tokens(&self) -> Option<u64> {
        self.metadata.array_len("tokenizer.ggml.tokens").filter(|n| (1..=MOST).contains(n))
    }

    /// Rows of the segment table.
    pub fn token_types(&self) -> Option<u64> {
        self.metadata.u64("tokenizer.ggml.token_type_count").filter(|n| (1..=1 << 20).contains(n))
    }
}
