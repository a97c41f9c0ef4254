//! PyTorch CUDA memory snapshots as tables: what `torch.cuda.memory._dump_snapshot` and its relatives write.
//!
//! Text, frames and stacks are interned by content, because a recording names the same few hundred places millions
//! of times. Events are rows of fixed size. What the file does not say is absent, never guessed; what it says and
//! this reader does not know is kept by name.

mod finish;
mod input;
mod intern;
mod lists;
mod machine;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod words;

use std::io::Read;

use crate::FormatError;
use crate::sniff::{self, FileKind};

pub use table::{
    Action, Annotation, Block, BlockState, EventExtra, ExtraId, Frame, FrameId, FxNode, NameId,
    Names, PoolId, Segment, SegmentKind, Settings, Snapshot, Stack, StackId, Stacks, Stage,
    StreamId, Trace, TraceEvent, UnknownKey, Writer,
};

/// Reads a snapshot: a pickle of protocol 2 to 5. The reader is taken from its first byte to the end of the
/// pickle; it is buffered here.
///
/// Memory is about 40 bytes an event and 8 bytes a memo entry, whatever the text's size. A file that ends too early
/// is read as far as it goes: see [`Snapshot::cut_at`].
///
/// # Errors
///
/// [`FormatError::NotSnapshot`] where the bytes are something else, with what to do about it;
/// [`FormatError::NotPlain`] where the pickle asks for more than dictionaries, lists, text and numbers;
/// [`FormatError::Pickle`] where it is damaged; [`FormatError::Truncated`] where it ends before anything is said.
pub fn read(reader: impl Read) -> Result<Snapshot, FormatError> {
    let mut machine = machine::Machine::new(reader);
    recognise(machine.input.peek(sniff::SNIFF_LEN)?)?;
    let (top, cut_at) = match machine.run() {
        Ok(top) => (top, None),
        Err(FormatError::Truncated { section, offset, end, available }) => {
            let top = machine.salvage()?;
            let read = finish::finish(machine.tables, top, Some(available), false);
            let useful = |s: &Snapshot| {
                !s.segments.is_empty() || s.traces.iter().any(|t| !t.events.is_empty())
            };
            return read.ok().filter(useful).ok_or(FormatError::Truncated {
                section,
                offset,
                end,
                available,
            });
        }
        Err(e) => return Err(e),
    };
    // What follows cannot change what was read.
    let trailing = machine.input.more().unwrap_or(true);
    finish::finish(machine.tables, top, cut_at, trailing)
}

/// Refuses what is no pickle of protocol 2 to 5, and says what it is.
fn recognise(first: &[u8]) -> Result<(), FormatError> {
    let not = |found: &str, cure| Err(FormatError::NotSnapshot { found: found.to_owned(), cure });
    match first {
        // The first integer of a checkpoint from before torch 1.6.
        [0x80, _, 0x8a, 0x0a, 0x6c, 0xfc, ..] => not(
            "a torch checkpoint of before version 1.6",
            "pass the file that torch.cuda.memory._dump_snapshot() wrote",
        ),
        [0x80, 2..=5, ..] => Ok(()),
        [0x80, version, ..] => not(
            &format!("a pickle of protocol {version}"),
            "protocols 2 to 5 are read; dump it again with pickle.dump(snapshot, file, protocol=4)",
        ),
        [b'(', b'd' | b'l', ..] | [b'}' | b']', b'q' | b'(' | b'.' | b'r', ..] => not(
            "a pickle of protocol 0 or 1",
            "protocols 2 to 5 are read; dump it again with pickle.dump(snapshot, file, protocol=4)",
        ),
        _ => match sniff::file_kind(first) {
            Some(FileKind::Zip) => not(
                "a zip archive, as torch.save writes",
                "if a snapshot was saved with torch.save, take the pickle out with `unzip -p FILE '*/data.pkl' > \
                 snapshot.pickle`; otherwise dump one with torch.cuda.memory._dump_snapshot()",
            ),
            Some(FileKind::Json) => not("JSON", "pass the .pickle that the JSON was made from"),
            Some(FileKind::Html) => not(
                "a web page without a snapshot in it",
                "pass the .pickle itself, or the page that torch.cuda._memory_viz wrote",
            ),
            Some(FileKind::Empty) => {
                not("an empty file", "the dump may have failed or the disk was full; dump it again")
            }
            Some(FileKind::GitLfsPointer) => {
                not("a Git LFS pointer", "run `git lfs pull` in its folder")
            }
            Some(FileKind::Gguf | FileKind::GgmlLegacy | FileKind::Safetensors) => not(
                "a file of model weights",
                "pass the file that torch.cuda.memory._dump_snapshot() wrote",
            ),
            _ => Err(FormatError::NotSnapshot {
                found: format!("not a pickle: it begins with {}", crate::error::shown_bytes(first)),
                cure: "pass the file that torch.cuda.memory._dump_snapshot() wrote",
            }),
        },
    }
}
