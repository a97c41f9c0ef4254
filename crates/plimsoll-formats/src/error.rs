//! The one error type of this crate. A message names the part of the file, the value found there, what is
//! accepted, and where it is not plain, the cure. Names from files are escaped and shortened before they enter
//! a message, so that a hostile file cannot write to a terminal through an error.

/// Why a file could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The input ends before a part that its header announces.
    #[error(
        "{section} is cut short: bytes {offset} to {end} are needed, the input ends at {available}; \
         the download may be incomplete, fetch the file again"
    )]
    Truncated {
        /// Part of the file.
        section: &'static str,
        /// Where the missing part begins.
        offset: u64,
        /// Where it would end.
        end: u64,
        /// Where the input ends.
        available: u64,
    },

    /// A length or count above what this reader accepts.
    #[error(
        "{section} has {what} {value}, at most {limit} is accepted; the file is damaged or not what its name says"
    )]
    TooLarge {
        /// Part of the file.
        section: &'static str,
        /// What was counted.
        what: &'static str,
        /// The count.
        value: u64,
        /// The most that is accepted.
        limit: u64,
    },

    /// The reader underneath failed.
    #[error("cannot read {section} at offset {offset}: {reason}")]
    Io {
        /// Part of the file.
        section: &'static str,
        /// Where in the file.
        offset: u64,
        /// The system's message.
        reason: String,
    },

    /// The first bytes are not those of the format.
    #[error("this is not a {format} file: it begins with {found}; {hint}")]
    WrongMagic {
        /// The expected format.
        format: &'static str,
        /// The first bytes, printable.
        found: String,
        /// What it is, or what to check.
        hint: String,
    },

    /// A feature of the format that is not read.
    #[error("{section}: {found} is not supported; {cure}")]
    Unsupported {
        /// Part of the file.
        section: &'static str,
        /// What was found.
        found: String,
        /// What to do about it.
        cure: &'static str,
    },

    /// Text that is not JSON, or not the JSON that belongs there.
    #[error("{section}, line {line}, column {column}: {reason}")]
    Json {
        /// The file, or the part of it.
        section: &'static str,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// What is wrong.
        reason: String,
    },

    /// Bytes that are not UTF-8 where text belongs.
    #[error("{section} is not UTF-8 at byte {offset}; the file is damaged")]
    NotUtf8 {
        /// Part of the file.
        section: &'static str,
        /// Offset in the file.
        offset: u64,
    },

    /// A name that must be unique and is not.
    #[error("{section}: `{name}` appears twice; each name may appear once")]
    Duplicate {
        /// Part of the file.
        section: &'static str,
        /// The name.
        name: String,
    },

    /// A field with a value outside what is accepted.
    #[error("{section}: `{name}` has {field} {found}; accepted: {accepted}")]
    Invalid {
        /// Part of the file.
        section: &'static str,
        /// The tensor, key or file concerned.
        name: String,
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What is accepted there.
        accepted: String,
    },

    /// Two tensors that claim the same bytes.
    #[error(
        "{section}: `{second}` begins at byte {begin}, before `{first}` ends at byte {end}; tensors may not overlap"
    )]
    Overlap {
        /// Part of the file.
        section: &'static str,
        /// The tensor in front.
        first: String,
        /// Where it ends.
        end: u64,
        /// The tensor behind.
        second: String,
        /// Where it begins.
        begin: u64,
    },

    /// A pickle program that does what no checkpoint needs.
    #[error("pickle, opcode {opcode:#04x} at byte {offset}: {reason}")]
    Pickle {
        /// The opcode.
        opcode: u8,
        /// Its offset in the pickle.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },

    /// A file that is no memory snapshot.
    #[error("this is not a memory snapshot but {found}; {cure}")]
    NotSnapshot {
        /// What it is.
        found: String,
        /// What to do about it.
        cure: &'static str,
    },

    /// A pickle that asks for more than plain data.
    #[error(
        "not a plain snapshot: pickle opcode {opcode} at byte {offset} {found}; a snapshot holds dictionaries, lists, \
         text and numbers only, and nothing in this file was run"
    )]
    NotPlain {
        /// Name of the opcode.
        opcode: &'static str,
        /// Its offset in the pickle.
        offset: u64,
        /// What it asks for, or why it is refused.
        found: String,
    },
}

/// Longest excerpt of a name from a file that enters a message.
const SHOWN: usize = 120;

/// A name from a file, safe to print: escaped, and shortened in the middle of nothing.
pub(crate) fn shown(name: &str) -> String {
    let mut text = String::new();
    for (n, c) in name.chars().enumerate() {
        if n == SHOWN {
            text.push('…');
            break;
        }
        text.extend(c.escape_debug());
    }
    text
}

/// The first bytes of a file, printable.
pub(crate) fn shown_bytes(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing: it is empty".to_owned();
    }
    format!("`{}`", bytes[..bytes.len().min(12)].escape_ascii())
}

impl FormatError {
    pub(crate) fn invalid(
        section: &'static str,
        name: &str,
        field: &'static str,
        found: impl ToString,
        accepted: impl ToString,
    ) -> Self {
        let (found, accepted) = (shown(&found.to_string()), accepted.to_string());
        FormatError::Invalid { section, name: shown(name), field, found, accepted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_shortened() {
        assert_eq!(shown("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), SHOWN + 1);
        assert_eq!(shown_bytes(b"\x00GGML"), "`\\x00GGML`");
    }
}
