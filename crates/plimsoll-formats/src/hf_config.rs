//! Configuration files of a Hugging Face style model folder, read strictly, and the choice of which files of
//! such a folder matter. What the keys mean is not decided here.

mod folder;

pub use folder::{Folder, GgufSet, Weights, choose_files, gguf_sets, needed_shards};

use serde_json::{Map, Value};

use crate::{FormatError, json};

/// Longest configuration that is accepted. Published ones have a few kilobytes; label maps can add some MB.
pub const MAX_CONFIG_LEN: u64 = 16 << 20;

/// Reads a file that holds one JSON object. A repeated key is an error, since the two values may contradict
/// each other; `NaN` and `Infinity`, which Python writes, are read as null. `section` names the file in
/// messages.
///
/// # Errors
///
/// [`FormatError::Json`] with line and column, [`FormatError::TooLarge`] beyond [`MAX_CONFIG_LEN`],
/// [`FormatError::NotUtf8`].
///
/// ```
/// use plimsoll_formats::hf_config::read_json_object;
/// let config = read_json_object("config.json", br#"{"hidden_size": 4096}"#)?;
/// assert_eq!(config["hidden_size"], 4096);
/// let error = read_json_object("config.json", b"{\n  \"a\": 1,\n  \"a\": 2\n}").unwrap_err();
/// assert_eq!(error.to_string(),
///     "config.json, line 3, column 5: the key `a` appears twice in one object; remove one");
/// # Ok::<(), plimsoll_formats::FormatError>(())
/// ```
pub fn read_json_object(
    section: &'static str,
    bytes: &[u8],
) -> Result<Map<String, Value>, FormatError> {
    json::object(section, bytes, MAX_CONFIG_LEN)
}
