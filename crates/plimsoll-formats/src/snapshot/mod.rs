//! PyTorch CUDA memory snapshots as tables: what `torch.cuda.memory._dump_snapshot` and its relatives write.
//!
//! Text, frames and stacks are interned by content, because a recording names the same few hundred places millions
//! of times. Events are rows of fixed size. What the file does not say is absent, never guessed; what it says and
//! this reader does not know is kept by name.

#[cfg(any(test, feature = "synthesize"))]
mod build;
mod finish;
mod input;
mod intern;
mod lists;
mod machine;
mod memo;
mod page;
#[cfg(test)]
pub(crate) mod round_trip;
mod rows;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod words;
#[cfg(any(test, feature = "synthesize"))]
mod write;

use std::io::Read;

use crate::FormatError;

#[cfg(any(test, feature = "synthesize"))]
pub use build::Builder;
pub use table::{
    Action, Annotation, Block, BlockState, EventExtra, ExtraId, Frame, FrameId, FxNode, NameId,
    Names, PoolId, Segment, SegmentKind, Settings, Snapshot, Stack, StackId, Stacks, Stage,
    StreamId, Trace, TraceEvent, UnknownKey, Writer,
};
#[cfg(any(test, feature = "synthesize"))]
pub use write::{Dialect, WriteOptions, write};

/// Reads a snapshot: a pickle of protocol 2 to 5, as it is, packed with gzip or zstd, or in a page that
/// `torch.cuda._memory_viz` wrote. The reader is taken from its first byte; it is buffered here.
///
/// Memory is about 40 bytes an event and 4 bytes a memo entry, whatever the text's size. A file that ends too early
/// is read as far as it goes: see [`Snapshot::cut_at`].
///
/// # Errors
///
/// [`FormatError::NotSnapshot`] where the bytes are something else, with what to do about it;
/// [`FormatError::NotPlain`] where the pickle asks for more than dictionaries, lists, text and numbers;
/// [`FormatError::Pickle`] where it is damaged; [`FormatError::TooLarge`] where a compressed file holds more than a
/// recording can; [`FormatError::Truncated`] where it ends before anything is said.
pub fn read(reader: impl Read) -> Result<Snapshot, FormatError> {
    let mut machine = machine::Machine::new(source::open(reader)?);
    match machine.run() {
        Ok(top) => {
            // What follows cannot change what was read.
            let trailing = machine.input.more().unwrap_or(true);
            finish::finish(machine.tables, top, None, trailing)
        }
        Err(FormatError::Truncated { section, offset, end, available }) => {
            let top = machine.salvage()?;
            let read = finish::finish(machine.tables, top, Some(available), false).ok();
            let useful = |s: &Snapshot| {
                !s.segments.is_empty() || s.traces.iter().any(|t| !t.events.is_empty())
            };
            let nothing = FormatError::Truncated { section, offset, end, available };
            read.filter(useful).ok_or(nothing)
        }
        Err(e) => Err(e),
    }
}
