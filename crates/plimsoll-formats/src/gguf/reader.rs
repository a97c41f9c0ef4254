//! The walk over the bytes of a GGUF header.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::io::{Cursor, Read, Seek};

use plimsoll_units::Bytes;

use super::{Array, GgmlType, GgufFile, Metadata, SECTION, Value};
use crate::error::{shown, shown_bytes};
use crate::source::Source;
use crate::{Diagnostic, FormatError, TensorInfo, sniff};

/// Most metadata pairs.
pub const MAX_METADATA: u64 = 1 << 16;
/// Most tensors in one file.
pub const MAX_TENSORS: u64 = 1 << 20;
/// Longest text that is kept, in bytes. Chat templates have some tens of kilobytes.
pub const MAX_STRING: u64 = 4 << 20;
/// Most dimensions; ggml has four.
pub const MAX_RANK: u32 = 8;
/// Longest list that is kept. Lists by layer have at most some hundreds of elements.
pub const MAX_KEPT_ITEMS: u64 = 4096;

/// Most bytes of text that one header may keep.
const MAX_KEPT_TEXT: u64 = 64 << 20;
/// Longest key or tensor name.
const MAX_NAME: u64 = 65_535;
/// Deepest nesting of lists in lists; the format allows it and nothing uses it.
const MAX_DEPTH: u32 = 4;
/// Alignment where the file states none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Reads the header of a whole file.
///
/// # Errors
///
/// [`FormatError::WrongMagic`] for other files, [`FormatError::Unsupported`] for big-endian ones and for
/// versions above 3, [`FormatError::Truncated`] where the file ends before its tensors do, and the variant that
/// names the key or tensor for anything else that is wrong.
pub fn read(reader: impl Read + Seek) -> Result<GgufFile, FormatError> {
    parse(Source::new(reader, SECTION, None)?, true)
}

/// Reads the header from the first bytes of a file. `file_len` is the length of the whole file, where known:
/// the tensors must then end within it.
///
/// # Errors
///
/// As [`read`]; [`FormatError::Truncated`] with section `GGUF header` asks for a longer prefix.
pub fn read_prefix(prefix: &[u8], file_len: Option<u64>) -> Result<GgufFile, FormatError> {
    // Without a length nothing is known to be too much, so counts are bounded by their caps alone.
    let source = Source::new(Cursor::new(prefix), SECTION, Some(file_len.unwrap_or(u64::MAX)))?;
    parse(source, file_len.is_some())
}

struct Header<R> {
    source: Source<R>,
    /// Version 1 stores lengths in four bytes, later ones in eight.
    wide: bool,
    kept_text: u64,
}

fn parse<R: Read + Seek>(source: Source<R>, bounded: bool) -> Result<GgufFile, FormatError> {
    let mut header = Header { source, wide: true, kept_text: 0 };
    let version = header.version()?;
    header.wide = version >= 2;
    let tensor_count = header.count("a tensor count of", MAX_TENSORS, 24)?;
    let metadata_count = header.count("a metadata count of", MAX_METADATA, 13)?;

    let mut metadata = BTreeMap::new();
    for _ in 0..metadata_count {
        let key = header.name("GGUF metadata key")?;
        let value = header.value(&key)?;
        if metadata.contains_key(&key) {
            return Err(FormatError::Duplicate { section: "GGUF metadata", name: shown(&key) });
        }
        metadata.insert(key, value);
    }
    let metadata = Metadata(metadata);
    let alignment = alignment(&metadata)?;

    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensor_count {
        let entry = header.entry()?;
        if !names.insert(entry.name.clone()) {
            return Err(FormatError::Duplicate {
                section: "GGUF tensor",
                name: shown(&entry.name),
            });
        }
        entries.push(entry);
    }
    drop(names);
    let data_offset = header
        .source
        .position()
        .checked_next_multiple_of(alignment)
        .ok_or_else(|| too_far("data", u64::MAX))?;
    let file_len = bounded.then(|| header.source.position() + header.source.left_in_file());
    let mut file = GgufFile { version, metadata, alignment, data_offset, ..GgufFile::default() };
    place(entries, &mut file, file_len)?;
    Ok(file)
}

/// `general.alignment`, which must be a power of two.
fn alignment(metadata: &Metadata) -> Result<u64, FormatError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(value) => match value.as_u64() {
            Some(n) if n.is_power_of_two() && n <= 1 << 20 => Ok(n),
            _ => {
                let found = format!("{value:?}");
                let accepted = "a power of two up to 1048576";
                Err(FormatError::invalid("GGUF metadata", KEY, "the value", found, accepted))
            }
        },
    }
}

/// One row of the tensor table as stored.
struct Entry {
    name: String,
    /// Outermost first.
    shape: Vec<u64>,
    type_id: u32,
    /// From the start of the data.
    offset: u64,
}

impl<R: Read + Seek> Header<R> {
    fn version(&mut self) -> Result<u32, FormatError> {
        let magic = match self.source.array::<4>(SECTION) {
            Ok(magic) => magic,
            Err(FormatError::Truncated { available: 0, .. }) => {
                return Err(FormatError::WrongMagic {
                    format: "GGUF",
                    found: shown_bytes(&[]),
                    hint: sniff::hint(&[]).to_owned(),
                });
            }
            Err(e) => return Err(e),
        };
        if magic != *b"GGUF" {
            return Err(FormatError::WrongMagic {
                format: "GGUF",
                found: shown_bytes(&magic),
                hint: sniff::hint(&magic).to_owned(),
            });
        }
        let version = u32::from_le_bytes(self.source.array(SECTION)?);
        if version != 0 && version & 0xffff == 0 {
            return Err(FormatError::Unsupported {
                section: SECTION,
                found: format!("big-endian byte order (version {})", version.swap_bytes()),
                cure: "convert the file with gguf_convert_endian.py from llama.cpp, to little",
            });
        }
        if !(1..=3).contains(&version) {
            return Err(FormatError::invalid(SECTION, "file", "version", version, "1, 2 or 3"));
        }
        Ok(version)
    }

    fn u32(&mut self, section: &'static str) -> Result<u32, FormatError> {
        self.source.array(section).map(u32::from_le_bytes)
    }

    fn u64(&mut self, section: &'static str) -> Result<u64, FormatError> {
        self.source.array(section).map(u64::from_le_bytes)
    }

    /// A length in the width of this version.
    fn length(&mut self, section: &'static str) -> Result<u64, FormatError> {
        if self.wide { self.u64(section) } else { self.u32(section).map(u64::from) }
    }

    /// A count of things that take at least `smallest` bytes each.
    fn count(&mut self, what: &'static str, cap: u64, smallest: u64) -> Result<u64, FormatError> {
        let value = self.length(SECTION)?;
        let limit = cap.min(self.source.left_in_file() / smallest);
        if value > limit {
            return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
        }
        Ok(value)
    }

    /// A key or tensor name.
    fn name(&mut self, section: &'static str) -> Result<String, FormatError> {
        let value = self.length(section)?;
        if value > MAX_NAME {
            let (what, limit) = ("a length of", MAX_NAME);
            return Err(FormatError::TooLarge { section, what, value, limit });
        }
        self.keep(section, value)
    }

    fn keep(&mut self, section: &'static str, length: u64) -> Result<String, FormatError> {
        self.kept_text = self.kept_text.saturating_add(length);
        if self.kept_text > MAX_KEPT_TEXT {
            let (what, value, limit) = ("text in total of", self.kept_text, MAX_KEPT_TEXT);
            return Err(FormatError::TooLarge { section, what, value, limit });
        }
        let offset = self.source.position();
        let bytes = self.source.bytes(section, length)?;
        String::from_utf8(bytes).map_err(|e| FormatError::NotUtf8 {
            section,
            offset: offset + e.utf8_error().valid_up_to() as u64,
        })
    }

    fn value(&mut self, key: &str) -> Result<Value, FormatError> {
        let kind = self.kind(key)?;
        match kind {
            Kind::Array => self.array(key),
            kind => self.scalar(kind, key),
        }
    }

    fn kind(&mut self, key: &str) -> Result<Kind, FormatError> {
        const SECTION: &str = "GGUF metadata";
        let id = self.u32(SECTION)?;
        Kind::by_id(id)
            .ok_or_else(|| FormatError::invalid(SECTION, key, "the value type", id, "0 to 12"))
    }

    fn scalar(&mut self, kind: Kind, key: &str) -> Result<Value, FormatError> {
        const SECTION: &str = "GGUF metadata value";
        let source = &mut self.source;
        Ok(match kind {
            Kind::U8 => Value::Unsigned(source.array::<1>(SECTION)?[0].into()),
            Kind::I8 => Value::Signed(i8::from_le_bytes(source.array(SECTION)?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(source.array(SECTION)?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(source.array(SECTION)?).into()),
            Kind::U32 => Value::Unsigned(u32::from_le_bytes(source.array(SECTION)?).into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(source.array(SECTION)?).into()),
            Kind::U64 => Value::Unsigned(u64::from_le_bytes(source.array(SECTION)?)),
            Kind::I64 => Value::Signed(i64::from_le_bytes(source.array(SECTION)?)),
            Kind::F32 => Value::Float(f32::from_le_bytes(source.array(SECTION)?).into()),
            Kind::F64 => Value::Float(f64::from_le_bytes(source.array(SECTION)?)),
            Kind::Bool => match source.array::<1>(SECTION)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                n => return Err(FormatError::invalid(SECTION, key, "the flag", n, "0 or 1")),
            },
            Kind::Text | Kind::Array => {
                let value = self.length(SECTION)?;
                if value > MAX_STRING {
                    let (what, limit) = ("a text of length", MAX_STRING);
                    return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
                }
                Value::Text(self.keep(SECTION, value)?)
            }
        })
    }

    /// A list: kept where it is short, else skipped element by element.
    fn array(&mut self, key: &str) -> Result<Value, FormatError> {
        let (kind, len) = self.array_head(key)?;
        if kind == Kind::Array {
            self.skip_lists(key, len, 1)?;
            return Ok(Value::Array(Array { len, items: None }));
        }
        if len > MAX_KEPT_ITEMS {
            self.skip_items(kind, len)?;
            return Ok(Value::Array(Array { len, items: None }));
        }
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(self.scalar(kind, key)?);
        }
        Ok(Value::Array(Array { len, items: Some(items) }))
    }

    fn array_head(&mut self, key: &str) -> Result<(Kind, u64), FormatError> {
        const SECTION: &str = "GGUF metadata list";
        let kind = self.kind(key)?;
        let value = self.length(SECTION)?;
        let smallest = match kind {
            Kind::Text if self.wide => 8,
            Kind::Text => 4,
            Kind::Array => 8,
            kind => kind.size(),
        };
        let limit = self.source.left_in_file() / smallest;
        if value > limit {
            let what = "a number of elements of";
            return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
        }
        Ok((kind, value))
    }

    fn skip_items(&mut self, kind: Kind, len: u64) -> Result<(), FormatError> {
        const SECTION: &str = "GGUF metadata list";
        if kind != Kind::Text {
            return self.source.skip(SECTION, len.saturating_mul(kind.size()));
        }
        for _ in 0..len {
            let length = self.length(SECTION)?;
            self.source.skip(SECTION, length)?;
        }
        Ok(())
    }

    /// Skips lists in a list; the depth is bounded, so the recursion is.
    fn skip_lists(&mut self, key: &str, len: u64, depth: u32) -> Result<(), FormatError> {
        if depth >= MAX_DEPTH {
            let accepted = format!("at most {MAX_DEPTH}");
            let section = "GGUF metadata list";
            return Err(FormatError::invalid(section, key, "a depth of", depth + 1, accepted));
        }
        for _ in 0..len {
            let (kind, len) = self.array_head(key)?;
            match kind {
                Kind::Array => self.skip_lists(key, len, depth + 1)?,
                kind => self.skip_items(kind, len)?,
            }
        }
        Ok(())
    }

    fn entry(&mut self) -> Result<Entry, FormatError> {
        const SECTION: &str = "GGUF tensor table";
        let name = self.name("GGUF tensor name")?;
        let rank = self.u32(SECTION)?;
        if rank > MAX_RANK {
            let accepted = format!("at most {MAX_RANK}");
            return Err(FormatError::invalid(SECTION, &name, "a rank of", rank, accepted));
        }
        let mut shape = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            shape.push(self.length(SECTION)?);
        }
        shape.reverse();
        if shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).is_none() {
            let found = format!("{shape:?}");
            let accepted = "a product below 2^64";
            return Err(FormatError::invalid(SECTION, &name, "shape", found, accepted));
        }
        let type_id = self.u32(SECTION)?;
        let offset = self.u64(SECTION)?;
        Ok(Entry { name, shape, type_id, offset })
    }
}

/// Types of metadata values, by their number in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn by_id(id: u32) -> Option<Kind> {
        use Kind::*;
        const KINDS: [Kind; 13] =
            [U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64];
        KINDS.get(usize::try_from(id).ok()?).copied()
    }

    /// Bytes of one scalar.
    fn size(self) -> u64 {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Text | Kind::Array => 8,
        }
    }
}

/// Gives each entry its size and its place in the file, in the order of the table.
fn place(
    entries: Vec<Entry>,
    file: &mut GgufFile,
    file_len: Option<u64>,
) -> Result<(), FormatError> {
    let data_len = file_len.map(|n| n.saturating_sub(file.data_offset));
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|i| entries.get(*i).map(|e| e.offset));
    // What lies between a tensor's start and the next one's.
    let mut room: Vec<Option<u64>> = vec![None; entries.len()];
    let mut behind: Vec<Option<usize>> = vec![None; entries.len()];
    for pair in order.windows(2) {
        if let [a, b] = *pair {
            room[a] = Some(entries[b].offset - entries[a].offset);
            behind[a] = Some(b);
        }
    }
    for (i, entry) in entries.iter().enumerate() {
        if !entry.offset.is_multiple_of(file.alignment) {
            let accepted = format!("a multiple of the alignment, {}", file.alignment);
            let section = "GGUF tensor table";
            let found = entry.offset;
            return Err(FormatError::invalid(section, &entry.name, "offset", found, accepted));
        }
        let offset = file
            .data_offset
            .checked_add(entry.offset)
            .ok_or_else(|| too_far(&entry.name, entry.offset))?;
        let last_room = data_len.map(|n| n.saturating_sub(entry.offset));
        let size = size(entry, room[i].or(last_room), &mut file.diagnostics)?;
        let end = entry.offset.saturating_add(size);
        if let Some(next) = behind[i]
            && end > entries[next].offset
        {
            return Err(FormatError::Overlap {
                section: "GGUF tensor table",
                first: shown(&entry.name),
                end: file.data_offset.saturating_add(end),
                second: shown(&entries[next].name),
                begin: file.data_offset.saturating_add(entries[next].offset),
            });
        }
        if let (Some(room), Some(padded)) = (room[i], size.checked_next_multiple_of(file.alignment))
            && room > padded
        {
            let tensor = shown(&entry.name);
            file.diagnostics.push(Diagnostic::Unused { tensor, bytes: room - padded });
        }
        if let Some(available) = data_len
            && end > available
        {
            return Err(FormatError::Truncated {
                section: "GGUF data",
                offset,
                end: file.data_offset.saturating_add(end),
                available: file.data_offset.saturating_add(available),
            });
        }
        let known = GgmlType::by_id(entry.type_id);
        file.tensors.push(TensorInfo {
            name: entry.name.clone(),
            shape: entry.shape.clone(),
            dtype: known.and_then(|t| t.dtype),
            type_name: known.map_or_else(
                || Cow::Owned(format!("type {}", entry.type_id)),
                |t| Cow::Borrowed(t.name),
            ),
            offset,
            bytes: Bytes::new(size),
        });
    }
    Ok(())
}

/// Bytes of a tensor: by its type, or where the type is unknown by the room it has.
fn size(
    entry: &Entry,
    room: Option<u64>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Result<u64, FormatError> {
    let Some(known) = GgmlType::by_id(entry.type_id) else {
        let (tensor, found) = (shown(&entry.name), format!("number {}", entry.type_id));
        diagnostics.push(match room {
            Some(_) => Diagnostic::UnknownElementType { tensor, found },
            None => Diagnostic::UnknownSize { tensor, found },
        });
        return Ok(room.unwrap_or(0));
    };
    let row = entry.shape.last().copied().unwrap_or(1);
    let rows = entry.shape.iter().rev().skip(1).try_fold(1u64, |n, d| n.checked_mul(*d));
    rows.and_then(|rows| known.bytes(row, rows)).map(Bytes::get).ok_or_else(|| {
        let accepted = format!(
            "rows of a multiple of {} elements and less than 2^64 bytes, for type {}",
            known.block_elements, known.name
        );
        let found = format!("{:?}", entry.shape);
        FormatError::invalid("GGUF tensor table", &entry.name, "shape", found, accepted)
    })
}

fn too_far(name: &str, found: u64) -> FormatError {
    FormatError::invalid("GGUF tensor table", name, "offset", found, "an end below 2^64")
}
