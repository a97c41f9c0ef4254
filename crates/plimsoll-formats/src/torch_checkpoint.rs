//! Tensors of a torch checkpoint (`.pt`, `.pth`, `.bin`), found without running it. The zip layout of torch 1.6
//! and later and the older bare-pickle layout are read; TorchScript archives too, as far as their `data.pkl`
//! goes.
//!
//! A checkpoint is a pickle, which is a program. Here a symbolic machine follows it and calls nothing: known
//! rebuild functions of torch become tensors, anything else stays an opaque node whose plain state is still
//! searched, so that a whole `torch.save(model)` gives its parameters by name. Storages that several tensors
//! share are counted once.

mod archive;
mod classes;
mod legacy;
mod tensors;

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};

use plimsoll_units::{Bytes, DType};

use crate::error::shown_bytes;
use crate::sniff::{self, FileKind};
use crate::{Diagnostic, FormatError, TensorInfo};

pub use archive::MAX_RECORDS;
pub use tensors::{MAX_DEPTH, MAX_NAME, MAX_RANK, MAX_TENSORS};

const SECTION: &str = "torch checkpoint";

/// How a checkpoint is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// A zip archive: a pickle and one record per storage. torch 1.6 and later.
    Zip,
    /// Five pickles in a row, then the storages. torch before 1.6.
    Legacy,
}

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// How it is laid out.
    pub layout: Layout,
    /// The tensors in the order of the pickle, one row for each name; tied tensors have several names.
    pub tensors: Vec<CheckpointTensor>,
    /// What the tensors view.
    pub storages: Vec<Storage>,
    /// What was noticed, foreign classes above all.
    pub diagnostics: Vec<Diagnostic>,
}

impl Checkpoint {
    /// Bytes of all storages, each once: what loading the file takes.
    pub fn storage_bytes(&self) -> Bytes {
        self.storages.iter().map(|s| s.bytes).sum()
    }

    /// The tensors as rows of a table, each under its first name: a tied tensor (the same view of the same
    /// storage) appears once. Offsets are those within the storage.
    pub fn tensor_infos(&self) -> Vec<TensorInfo> {
        let mut seen: HashSet<(StorageId, Bytes, &[u64], &str)> = HashSet::new();
        let mut rows = Vec::new();
        for t in &self.tensors {
            let view = t.storage.map(|id| (id, t.storage_offset, &*t.shape, &*t.type_name));
            if view.is_some_and(|view| !seen.insert(view)) {
                continue;
            }
            rows.push(TensorInfo {
                name: t.name.clone(),
                shape: t.shape.clone(),
                dtype: t.dtype,
                type_name: t.type_name.clone(),
                offset: t.storage_offset.get(),
                bytes: t.bytes,
            });
        }
        rows
    }

    /// The storage that a tensor views.
    pub fn storage(&self, id: StorageId) -> Option<&Storage> {
        self.storages.get(id.0)
    }
}

/// A place in [`Checkpoint::storages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(usize);

/// A run of bytes that tensors view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The key that the pickle gives it.
    pub key: String,
    /// The device it was saved from, such as `cuda:0`.
    pub location: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A tensor under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointTensor {
    /// The path through dictionaries, lists and modules, joined by dots: `model.layers.0.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Element type, where it is one that [`DType`] has.
    pub dtype: Option<DType>,
    /// torch's name for it, such as `bfloat16`.
    pub type_name: Cow<'static, str>,
    /// Bytes of its elements, as if it were contiguous.
    pub bytes: Bytes,
    /// What it views; `None` for a tensor on the meta device, which has no values.
    pub storage: Option<StorageId>,
    /// Where in its storage it begins, in bytes.
    pub storage_offset: Bytes,
    /// Whether it was saved as a parameter (with its class), not as a plain tensor.
    pub is_parameter: bool,
}

impl CheckpointTensor {
    /// Number of elements, saturating; 1 for a scalar.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, d| n.saturating_mul(*d))
    }
}

/// Reads a checkpoint. Only the directory and the pickles are read, never the values.
///
/// # Errors
///
/// [`FormatError::WrongMagic`] for other files, [`FormatError::Pickle`] where the pickle is damaged,
/// [`FormatError::Unsupported`] for compressed or encrypted archives and for the tar files of before 2017,
/// [`FormatError::Invalid`] where tensors, storages and records contradict each other.
pub fn read(mut reader: impl Read + Seek) -> Result<Checkpoint, FormatError> {
    let io =
        |e: std::io::Error| FormatError::Io { section: SECTION, offset: 0, reason: e.to_string() };
    let mut first = Vec::new();
    reader.seek(SeekFrom::Start(0)).map_err(io)?;
    (&mut reader).take(sniff::SNIFF_LEN as u64).read_to_end(&mut first).map_err(io)?;
    reader.seek(SeekFrom::Start(0)).map_err(io)?;
    match sniff::file_kind(&first) {
        Some(FileKind::Zip) => archive::read(reader),
        Some(FileKind::Pickle) => legacy::read(reader),
        _ => Err(FormatError::WrongMagic {
            format: "torch checkpoint",
            found: shown_bytes(&first),
            hint: sniff::hint(&first).to_owned(),
        }),
    }
}

/// The search for tensors by itself, for fuzzing without an archive around the pickle.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_find(graph: &crate::pickle::Pickle) -> Result<usize, FormatError> {
    tensors::find(graph).map(|found| found.tensors.len())
}
