//! The index of a sharded checkpoint: `model.safetensors.index.json` or `pytorch_model.bin.index.json`. It maps
//! each tensor to the file that holds it, and may state the total size.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_units::Bytes;
use serde_json::Value;

use crate::error::shown;
use crate::{Diagnostic, FormatError, json};

/// Longest index that is accepted. The largest published ones (hundreds of thousands of expert tensors) have
/// a few tens of MB.
pub const MAX_INDEX_LEN: u64 = 256 << 20;

const SECTION: &str = "weight index";

/// Which file holds which tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardIndex {
    /// Bytes of all tensors, as the index states them. It is what the writer counted: readers must not take
    /// it for the truth where headers are at hand.
    pub total_size: Option<Bytes>,
    /// File by tensor name.
    pub weight_map: BTreeMap<String, String>,
    /// What was noticed.
    pub diagnostics: Vec<Diagnostic>,
}

impl ShardIndex {
    /// The files, each once, sorted by name.
    pub fn files(&self) -> Vec<&str> {
        let files: BTreeSet<&str> = self.weight_map.values().map(String::as_str).collect();
        files.into_iter().collect()
    }
}

/// Reads an index.
///
/// # Errors
///
/// [`FormatError`] with line and column where the text is not JSON; naming the tensor where a file name leaves
/// the folder, as in `../x` or `/x`.
///
/// ```
/// let text = r#"{"metadata": {"total_size": 8}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}"#;
/// let index = plimsoll_formats::index::parse(text.as_bytes())?;
/// assert_eq!(index.files(), ["model-00001-of-00001.safetensors"]);
/// # Ok::<(), plimsoll_formats::FormatError>(())
/// ```
pub fn parse(bytes: &[u8]) -> Result<ShardIndex, FormatError> {
    let mut root = json::object(SECTION, bytes, MAX_INDEX_LEN)?;
    let mut index = ShardIndex::default();
    let expected = |name, found: &Value, accepted| {
        Err(FormatError::invalid(SECTION, name, "as value", json::kind(found), accepted))
    };
    match root.remove("metadata") {
        None | Some(Value::Null) => {}
        Some(Value::Object(metadata)) => match metadata.get("total_size") {
            None | Some(Value::Null) => {}
            Some(value) => match whole_number(value) {
                Some(n) => index.total_size = Some(Bytes::new(n)),
                None => index
                    .diagnostics
                    .push(Diagnostic::TotalSize { found: shown(&value.to_string()) }),
            },
        },
        Some(other) => return expected("metadata", &other, "an object"),
    }
    match root.remove("weight_map") {
        Some(Value::Object(map)) => {
            for (tensor, file) in map {
                let Value::String(file) = file else {
                    return expected(&tensor, &file, "the name of a file");
                };
                check_file_name(&tensor, &file)?;
                index.weight_map.insert(tensor, file);
            }
        }
        Some(other) => return expected("weight_map", &other, "an object of file names by tensor"),
        None => {
            return expected("weight_map", &Value::Null, "an object of file names by tensor");
        }
    }
    Ok(index)
}

/// Whether a name stays in its folder on every system: it will be opened, and sent to servers.
///
/// ```
/// use plimsoll_formats::index::is_plain_path;
/// assert!(is_plain_path("sub/model-00001-of-00002.safetensors"));
/// assert!(!is_plain_path("../model.safetensors") && !is_plain_path("/x") && !is_plain_path("c:x"));
/// ```
pub fn is_plain_path(file: &str) -> bool {
    !file.is_empty()
        && file.len() <= 512
        && !file.contains(['\\', ':', '\0', '%', '?', '#'])
        && !file.chars().any(char::is_control)
        && file.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn check_file_name(tensor: &str, file: &str) -> Result<(), FormatError> {
    if is_plain_path(file) {
        return Ok(());
    }
    let accepted =
        "a relative path of at most 512 characters without `..`, `\\`, `:`, `%`, `?` or `#`";
    Err(FormatError::invalid(SECTION, tensor, "as file", format!("`{file}`"), accepted))
}

/// Counts written as `123`, `123.0` or `"123"`: all three occur in published files.
fn whole_number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(n) => n.as_u64().or_else(|| {
            let float = n.as_f64()?;
            // Above 2^53 a double no longer tells neighbouring integers apart.
            let exact = float >= 0.0 && float <= (1u64 << 53) as f64 && float.fract() == 0.0;
            exact.then_some(float as u64)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_files_and_total() {
        for (total, bytes) in [
            ("16", Some(16)),
            ("16.0", Some(16)),
            ("\"16\"", Some(16)),
            ("1.5", None),
            ("-1", None),
            ("null", None),
        ] {
            let text = format!(
                r#"{{"metadata":{{"total_size":{total}}},"weight_map":{{"b":"m-2.safetensors","a":"m-1.safetensors","c":"m-2.safetensors"}}}}"#
            );
            let index = parse(text.as_bytes()).unwrap();
            assert_eq!(index.total_size, bytes.map(Bytes::new), "{total}");
            assert_eq!(index.files(), ["m-1.safetensors", "m-2.safetensors"]);
            assert_eq!(index.diagnostics.len(), usize::from(bytes.is_none() && total != "null"));
        }
    }

    #[test]
    fn refuses_names_that_leave_the_folder() {
        for file in
            ["../x", "/etc/passwd", "a/../b", "a//b", "c:x", "a\\\\b", "", "x?y", "./x", "%2e%2e/x"]
        {
            let text = format!(r#"{{"weight_map":{{"w":"{file}"}}}}"#);
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("relative path"), "{file}: {error}");
        }
        for text in [
            r#"{}"#,
            r#"{"weight_map":[]}"#,
            r#"{"weight_map":{"a":1}}"#,
            r#"{"metadata":1,"weight_map":{}}"#,
        ] {
            assert!(parse(text.as_bytes()).unwrap_err().to_string().contains("accepted"), "{text}");
        }
    }
}
