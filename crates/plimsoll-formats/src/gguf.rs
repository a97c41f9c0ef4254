//! The header of a GGUF file: metadata and tensor table, versions 1 to 3, little-endian. Weights are not read.
//! Lists in the metadata that are long (a tokenizer's words and scores) are skipped and counted.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. The reader works over any
//! `Read + Seek`, and over the first bytes of a file, as a range request gives them: where those are too few it
//! answers [`FormatError::Truncated`], and the caller asks for more.

mod reader;
mod split;
mod types;
mod value;

pub use reader::{
    MAX_KEPT_ITEMS, MAX_METADATA, MAX_RANK, MAX_STRING, MAX_TENSORS, read, read_prefix,
};
pub use split::{MAX_PARTS, SplitName};
pub use types::GgmlType;
pub use value::{Array, Metadata, Value};

use std::collections::HashSet;

use plimsoll_units::Bytes;

use crate::error::shown;
use crate::{Diagnostic, FormatError, TensorInfo};

const SECTION: &str = "GGUF header";

/// What the header of one file, or of all parts of a split one, says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufFile {
    /// Format version: 1, 2 or 3.
    pub version: u32,
    /// Typed metadata.
    pub metadata: Metadata,
    /// Tensors in the order of the table. Shapes are outermost first; offsets count from the start of the file.
    pub tensors: Vec<TensorInfo>,
    /// Tensors begin at multiples of this.
    pub alignment: u64,
    /// Where the tensors begin: the bytes that a range request must fetch.
    pub data_offset: u64,
    /// What was noticed.
    pub diagnostics: Vec<Diagnostic>,
}

impl GgufFile {
    /// `general.architecture`, such as `llama` or `qwen3moe`.
    pub fn arch(&self) -> Option<&str> {
        self.metadata.text("general.architecture")
    }

    /// The full key of a hyperparameter: `block_count` becomes `llama.block_count`.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch().unwrap_or("general"))
    }

    /// A hyperparameter that is a count, by its name without the architecture.
    pub fn u64(&self, name: &str) -> Option<u64> {
        self.metadata.u64(&self.key(name))
    }

    /// A hyperparameter that is a count per layer, or one count for all; see [`Metadata::per_layer`].
    pub fn per_layer(&self, name: &str, layers: usize) -> Option<Vec<u64>> {
        self.metadata.per_layer(&self.key(name), layers)
    }

    /// How many parts the file was split into; 1 where it was not.
    pub fn split_count(&self) -> u64 {
        self.metadata.u64("split.count").unwrap_or(1).max(1)
    }

    /// This part's number, from 0.
    pub fn split_number(&self) -> u64 {
        self.metadata.u64("split.no").unwrap_or(0)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> Bytes {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Elements of all tensors, saturating.
    pub fn elements(&self) -> u64 {
        self.tensors.iter().fold(0, |n, t| n.saturating_add(t.elements()))
    }
}

/// Joins the parts of a split file, given in order, into one table. Metadata comes from the first part; offsets
/// stay those of each part's own file.
///
/// # Errors
///
/// [`FormatError::Invalid`] where a part is missing, out of order or of another model (by `split.count`,
/// `split.no` and `split.tensors.count`), [`FormatError::Duplicate`] where two parts hold the same tensor.
pub fn join(parts: Vec<GgufFile>) -> Result<GgufFile, FormatError> {
    const SPLIT: &str = "GGUF split file";
    let count = parts.len() as u64;
    let mut joined: Option<GgufFile> = None;
    for (n, part) in (0u64..).zip(parts) {
        let name = format!("part {}", n + 1);
        if part.split_count() != count {
            let accepted = format!("{count}, the number of files given");
            let found = part.split_count();
            return Err(FormatError::invalid(SPLIT, &name, "split.count", found, accepted));
        }
        if part.split_number() != n {
            let accepted = format!("{n}; give the files in order");
            let found = part.split_number();
            return Err(FormatError::invalid(SPLIT, &name, "split.no", found, accepted));
        }
        match &mut joined {
            None => joined = Some(part),
            Some(all) => {
                all.tensors.extend(part.tensors);
                all.diagnostics.extend(part.diagnostics);
            }
        }
    }
    let Some(joined) = joined else {
        return Err(FormatError::invalid(
            SPLIT,
            "the model",
            "as number of files",
            0,
            "at least 1",
        ));
    };
    let mut names = HashSet::with_capacity(joined.tensors.len());
    if let Some(twice) = joined.tensors.iter().find(|t| !names.insert(t.name.as_str())) {
        return Err(FormatError::Duplicate { section: SPLIT, name: shown(&twice.name) });
    }
    let found = joined.tensors.len() as u64;
    match joined.metadata.u64("split.tensors.count") {
        Some(expected) if expected != found => Err(FormatError::invalid(
            SPLIT,
            "the model",
            "as number of tensors",
            found,
            format!("{expected}, as split.tensors.count says"),
        )),
        _ => Ok(joined),
    }
}
