//! One row of a file's tensor table, the same for every format.

use std::borrow::Cow;

use plimsoll_units::{Bytes, DType};

/// A named tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, as the file spells it.
    pub name: String,
    /// Sizes, outermost first, as torch prints them. (GGUF stores them innermost first; they are turned round.)
    pub shape: Vec<u64>,
    /// Element type, where it is one that [`DType`] has.
    pub dtype: Option<DType>,
    /// Element type as the format names it, such as `BF16`, `Q4_K` or `iq4_ks`.
    pub type_name: Cow<'static, str>,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Bytes that its values occupy.
    pub bytes: Bytes,
}

impl TensorInfo {
    /// Number of elements, saturating; 1 for a scalar.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, d| n.saturating_mul(*d))
    }
}
