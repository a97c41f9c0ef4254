//! The zip layout: `NAME/data.pkl` beside one record per storage, `NAME/data/KEY`, all of them stored and not
//! compressed. The directory gives every record's size, so that no record is opened but the pickle.

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek, SeekFrom};

use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive};

use super::{Checkpoint, Layout, SECTION, tensors};
use crate::FormatError;
use crate::error::shown;
use crate::pickle::{self, Input};

/// Most entries in an archive.
pub const MAX_RECORDS: u64 = 1 << 21;

/// Most bytes of record names that are kept.
const MAX_NAMES: u64 = 128 << 20;

pub(super) fn read(reader: impl Read + Seek) -> Result<Checkpoint, FormatError> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_seekable(reader, &mut buffer).map_err(|e| broken(&e))?;
    let mut records: HashMap<String, u64> = HashMap::new();
    let mut pickles = Vec::new();
    let (mut count, mut kept) = (0u64, 0u64);
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(|e| broken(&e))? {
        count += 1;
        let path = entry.file_path();
        let path = path.as_ref();
        kept += path.len() as u64;
        for (what, value, limit) in [
            ("more records than", count, MAX_RECORDS),
            ("record names in total of", kept, MAX_NAMES),
        ] {
            if value > limit {
                return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
            }
        }
        let path = String::from_utf8_lossy(path);
        if path == "data.pkl" || path.ends_with("/data.pkl") {
            let stored = entry.compression_method() == CompressionMethod::STORE;
            let encrypted = entry.flags().is_encrypted();
            pickles.push((path.clone().into_owned(), stored, encrypted, entry.wayfinder()));
        }
        let size = entry.uncompressed_size_hint();
        if records.insert(path.clone().into_owned(), size).is_some() {
            return Err(FormatError::Duplicate { section: SECTION, name: shown(&path) });
        }
    }
    // The pickle nearest the top is the checkpoint's own.
    pickles.sort_by_key(|(path, ..)| (path.matches('/').count(), path.clone()));
    let Some((path, stored, encrypted, wayfinder)) = pickles.into_iter().next() else {
        return Err(FormatError::invalid(
            SECTION,
            "archive",
            "as number of records",
            count,
            "a zip archive with a data.pkl, as torch.save writes",
        ));
    };
    if encrypted || !stored {
        let how = if encrypted { "an encrypted" } else { "a compressed" };
        return Err(FormatError::Unsupported {
            section: SECTION,
            found: format!("{how} `{}`", shown(&path)),
            cure: "unpack the archive and save the checkpoint again with torch.save",
        });
    }
    let entry = archive.get_entry(wayfinder).map_err(|e| broken(&e))?;
    let (begin, end) = entry.compressed_data_range();
    let mut reader = archive.into_inner().into_inner();
    reader.seek(SeekFrom::Start(begin)).map_err(|e| FormatError::Io {
        section: SECTION,
        offset: begin,
        reason: e.to_string(),
    })?;
    let program = reader.take(end.saturating_sub(begin));
    let graph = pickle::load(&mut Input::new(BufReader::new(program), 0))?;

    let prefix = path.strip_suffix("data.pkl").unwrap_or_default();
    let mut found = tensors::find(&graph)?;
    for storage in &found.storages {
        let needed = storage.bytes.get();
        let record = format!("{prefix}data/{}", storage.key);
        let size = records.get(&record).copied();
        if size.is_none_or(|size| size < needed) {
            let found = size.map_or("no record".to_owned(), |size| format!("{size} bytes"));
            let accepted = format!("{needed} bytes, as the pickle says; fetch the file again");
            return Err(FormatError::invalid(SECTION, &record, "in the archive", found, accepted));
        }
    }
    found.diagnostics.sort_by_key(ToString::to_string);
    Ok(Checkpoint {
        layout: Layout::Zip,
        tensors: found.tensors,
        storages: found.storages,
        diagnostics: found.diagnostics,
    })
}

fn broken(e: &rawzip::Error) -> FormatError {
    FormatError::invalid(
        SECTION,
        "archive",
        "a damaged directory:",
        e,
        "a whole zip archive; the download may be incomplete, fetch the file again",
    )
}
