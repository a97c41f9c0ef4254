//! The layout of torch before 1.6: a magic number, a protocol number, a record of the writing system, the object
//! itself, and the list of storage keys, each a pickle; then the storages in that order, each behind its number
//! of elements.

use std::io::{BufReader, Read, Seek, SeekFrom};

use super::{Checkpoint, Layout, SECTION, tensors};
use crate::FormatError;
use crate::pickle::{self, Input, Node, Pickle};

/// The number every such file begins with, little-endian.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The only protocol number there ever was.
const PROTOCOL: i64 = 1001;

pub(super) fn read(mut reader: impl Read + Seek) -> Result<Checkpoint, FormatError> {
    let io =
        |e: std::io::Error| FormatError::Io { section: SECTION, offset: 0, reason: e.to_string() };
    let file_len = reader.seek(SeekFrom::End(0)).map_err(io)?;
    reader.seek(SeekFrom::Start(0)).map_err(io)?;
    let mut input = Input::new(BufReader::new(reader), 0);

    let magic = pickle::load(&mut input)?;
    if !matches!(magic.get(magic.root), Node::Big(bytes) if **bytes == MAGIC) {
        return Err(FormatError::WrongMagic {
            format: "torch checkpoint",
            found: "a pickle without torch's number".to_owned(),
            hint: "it was not written by torch.save; save the state_dict with torch.save"
                .to_owned(),
        });
    }
    let protocol = pickle::load(&mut input)?;
    if !matches!(protocol.get(protocol.root), Node::Int(PROTOCOL)) {
        let found = format!("protocol {:?}", protocol.get(protocol.root));
        return Err(FormatError::invalid(SECTION, "file", "as version", found, PROTOCOL));
    }
    let system = pickle::load(&mut input)?;
    if big_endian(&system) {
        return Err(FormatError::Unsupported {
            section: SECTION,
            found: "big-endian byte order".to_owned(),
            cure: "load it and save it again on a little-endian machine",
        });
    }
    let graph = pickle::load(&mut input)?;
    let keys = pickle::load(&mut input)?;
    let mut found = tensors::find(&graph)?;

    let listed = keys.elements(keys.root).map_or(0, <[_]>::len) as u64;
    let each = found.storages.iter().map(|s| s.bytes.get().saturating_add(8));
    let needed = each.fold(input.position(), u64::saturating_add);
    if listed < found.storages.len() as u64 {
        let accepted = format!("{}, as many as the tensors use", found.storages.len());
        let field = "as length";
        return Err(FormatError::invalid(SECTION, "list of storages", field, listed, accepted));
    }
    if needed > file_len {
        return Err(FormatError::Truncated {
            section: "torch checkpoint, storages",
            offset: input.position(),
            end: needed,
            available: file_len,
        });
    }
    found.diagnostics.sort_by_key(ToString::to_string);
    Ok(Checkpoint {
        layout: Layout::Legacy,
        tensors: found.tensors,
        storages: found.storages,
        diagnostics: found.diagnostics,
    })
}

/// Whether the record of the writing system says that it was not little-endian.
fn big_endian(system: &Pickle) -> bool {
    let Node::Dict(pairs) = system.get(system.root) else { return false };
    pairs.iter().any(|(key, value)| {
        system.text(*key) == Some("little_endian")
            && matches!(system.get(*value), Node::Bool(false))
    })
}
