//! What a snapshot comes in: nothing, gzip, zstd, a web page; and what a file is that is none.

use std::io::{self, Read};

use super::input::Input;
use super::page::Page;
use crate::FormatError;
use crate::compressed::{self, Reader};
use crate::sniff::{self, FileKind};

/// The bytes of a pickle.
pub(super) enum Source<R> {
    File(Reader<R>),
    Page(Box<Page<Reader<R>>>),
}

impl<R: Read> Source<R> {
    /// How many compressed bytes were read; `None` where nothing is compressed.
    pub(super) fn compressed_bytes(&self) -> Option<u64> {
        match self {
            Source::File(reader) => reader.compressed_bytes(),
            Source::Page(page) => page.reader().compressed_bytes(),
        }
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::File(reader) => reader.read(buffer),
            Source::Page(page) => page.read(buffer),
        }
    }
}

/// The pickle in a file, from its first byte.
pub(super) fn open<R: Read>(reader: R) -> Result<Input<Source<R>>, FormatError> {
    let io = |e: io::Error| FormatError::Io {
        section: "memory snapshot",
        offset: 0,
        reason: e.to_string(),
    };
    let mut input = Input::new(compressed::open(reader).map_err(io)?);
    let first = input.peek(sniff::SNIFF_LEN)?;
    if sniff::file_kind(first) != Some(FileKind::Html) {
        recognise(first)?;
        return Ok(input.map(Source::File));
    }
    let first = first.to_vec();
    let (buffer, reader) = input.into_parts();
    let Some(page) = Page::find(buffer, reader).map_err(io)? else {
        recognise(&first)?;
        return Err(FormatError::Unsupported {
            section: "memory snapshot",
            found: "a web page".to_owned(),
            cure: "pass the .pickle itself",
        });
    };
    let mut input = Input::new(Source::Page(Box::new(page)));
    recognise(input.peek(sniff::SNIFF_LEN)?)?;
    Ok(input)
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
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            not("a compressed file inside a compressed file", "unpack it once")
        }
        [0xfd, b'7', b'z', b'X', ..] => not("an xz file", "unpack it with `xz -d` first"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => {
            not("a bzip2 file", "unpack it with `bzip2 -d` first")
        }
        [0x04, 0x22, 0x4d, 0x18, ..] => not("an lz4 file", "unpack it with `lz4 -d` first"),
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
                found: format!("a file that begins with {}", crate::error::shown_bytes(first)),
                cure: "pass the file that torch.cuda.memory._dump_snapshot() wrote",
            }),
        },
    }
}
