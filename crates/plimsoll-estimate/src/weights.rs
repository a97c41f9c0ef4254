//! The tensors of a weight file as an engine sees them: names, stored types and sizes.

use plimsoll_model::Part;
use plimsoll_units::{Bytes, DType};

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// Its name in the file.
    pub name: String,
    /// Bytes of its data, whole blocks, without the padding between tensors.
    pub bytes: Bytes,
    /// Stored type.
    pub dtype: DType,
    /// The layer that it belongs to, if any.
    pub layer: Option<u64>,
    /// What it does.
    pub part: Part,
}
