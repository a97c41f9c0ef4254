//! Explaining what a run left behind: why it ran out, what held the memory, what to change. The response is one
//! schema for every input; what only one kind of input has stands in a part of its own.

mod command;
mod log;
mod response;
mod snapshot;

pub use command::Modelled;
pub use log::{LogExplainer, MessageRow, explained_messages};
pub use response::{
    DevicePart, Explanation, ExplanationKind, FailurePlace, FailureSummary, Finding, LogReport,
    Meaning, SettingRow, SourceSummary, UsageSummary,
};

pub use plimsoll_explain::Table as ExportTable;
pub use snapshot::{
    DIFF_SCHEMA, DeviceReport, DiffResponse, ExportFormat, REPLAY_SCHEMA, ReplayOptions,
    ReplayResponse, SnapshotExplainer, SnapshotOptions, SnapshotReport, diff_snapshots,
    export_snapshot, replay_snapshot,
};

use std::io::{self, Read};

use plimsoll_formats::compressed::{self, Compression};
use plimsoll_formats::sniff::{self, FileKind};

/// The schema that [`Explanation`] follows.
pub const EXPLAIN_SCHEMA: &str = "plimsoll.explain/1";

/// Bytes at the start of an input that [`explain_input`] wants to see.
pub const EXPLAIN_SNIFF: usize = sniff::SNIFF_LEN;

/// What an input to be explained is, judged by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExplainInput {
    /// Text: a log.
    Log,
    /// A pickle: a memory snapshot.
    Snapshot,
    /// Compressed with gzip or zstd; look again at what is inside.
    Compressed,
    /// Something else; the words say what it is.
    Foreign(&'static str),
}

/// What an input is, from its first [`EXPLAIN_SNIFF`] bytes (or all, where it is shorter).
pub fn explain_input(first: &[u8]) -> ExplainInput {
    if Compression::of(first).is_some() {
        return ExplainInput::Compressed;
    }
    match sniff::file_kind(first) {
        Some(FileKind::Pickle) => ExplainInput::Snapshot,
        Some(FileKind::Gguf) => ExplainInput::Foreign("a GGUF model"),
        Some(FileKind::Safetensors) => ExplainInput::Foreign("a safetensors model"),
        Some(FileKind::Zip) => ExplainInput::Foreign("a zip archive, as torch checkpoints are"),
        Some(FileKind::GgmlLegacy) => ExplainInput::Foreign("a ggml model"),
        Some(FileKind::Empty) => ExplainInput::Foreign("empty"),
        // Pickles of protocol 0 and 1: the reader of snapshots says what to do about them.
        _ if old_pickle(first) => ExplainInput::Snapshot,
        // Logs may hold anything, also JSON lines and web pages of CI systems; only bytes that no text has rule
        // a log out.
        _ if first.contains(&0) => ExplainInput::Foreign("binary data"),
        _ => ExplainInput::Log,
    }
}

/// Whether this is how Python begins to pickle a dictionary or list in protocol 0 or 1.
fn old_pickle(first: &[u8]) -> bool {
    matches!(first, [b'(', b'd' | b'l', b'p', b'0', b'\n', ..] | [b'}' | b']', b'q', 0, ..])
}

/// An input to be explained: unpacked where it is compressed, its kind known, nothing of it lost.
pub struct ExplainSource<R> {
    kind: ExplainInput,
    first: io::Cursor<Vec<u8>>,
    rest: compressed::Reader<R>,
}

impl<R: Read> ExplainSource<R> {
    /// Looks at the first bytes.
    ///
    /// # Errors
    ///
    /// Those of `reader`.
    pub fn open(reader: R) -> io::Result<ExplainSource<R>> {
        let mut rest = compressed::open(reader)?;
        let mut first = Vec::new();
        rest.by_ref().take(EXPLAIN_SNIFF as u64).read_to_end(&mut first)?;
        let kind = explain_input(&first);
        Ok(ExplainSource { kind, first: io::Cursor::new(first), rest })
    }

    /// What it is.
    pub fn kind(&self) -> ExplainInput {
        self.kind
    }
}

impl<R: Read> Read for ExplainSource<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.first.read(buffer)? {
            0 => self.rest.read(buffer),
            n => Ok(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_told_apart_by_content() {
        for (first, expected) in [
            (&b"Traceback (most recent call last):\n"[..], ExplainInput::Log),
            (b"\x1b[31mKilled", ExplainInput::Log),
            (b"\xff\xfe caf\xe9", ExplainInput::Log),
            (b"{\"level\": \"error\"}", ExplainInput::Log),
            (b"", ExplainInput::Foreign("empty")),
            (b"(dp0\nVsegments\n", ExplainInput::Snapshot),
            (b"}q\0(X\x08\0\0\0segments", ExplainInput::Snapshot),
            (b"(deprecated) warning", ExplainInput::Log),
            (b"\x80\x04\x95", ExplainInput::Snapshot),
            (b"\x1f\x8b\x08\x00", ExplainInput::Compressed),
            (b"\x28\xb5\x2f\xfd", ExplainInput::Compressed),
            (b"GGUF\x03\0\0\0", ExplainInput::Foreign("a GGUF model")),
            (b"\x7fELF\x02\x01\0\0", ExplainInput::Foreign("binary data")),
        ] {
            assert_eq!(explain_input(first), expected);
        }
    }
}
