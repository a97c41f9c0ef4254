//! What a reader noticed and could live with. A diagnostic never changes the meaning of a number silently: it
//! says which tensor is concerned and what was assumed.

/// A remark on a file that was read all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Diagnostic {
    /// An element type this version does not know; sizes come from the offsets in the file.
    #[error(
        "tensor `{tensor}` has the unknown element type {found}; its size is taken from the offsets in the file"
    )]
    UnknownElementType {
        /// The tensor.
        tensor: String,
        /// The type as the file names it.
        found: String,
    },

    /// An unknown element type with nothing behind the tensor to measure it by.
    #[error(
        "tensor `{tensor}` has the unknown element type {found} and is the last of a file of unknown length; \
         it counts as 0 bytes"
    )]
    UnknownSize {
        /// The tensor.
        tensor: String,
        /// The type as the file names it.
        found: String,
    },

    /// Bytes of a file that no tensor claims.
    #[error("{bytes} bytes behind tensor `{tensor}` belong to no tensor")]
    Unused {
        /// The tensor in front of the gap.
        tensor: String,
        /// Size of the gap.
        bytes: u64,
    },

    /// A class or function in a pickle that is not on the list of known ones. It was kept as a name only.
    #[error("`{name}` is not a known class; it was not run, and its state was read as plain data")]
    UnknownGlobal {
        /// Module and name.
        name: String,
    },

    /// A tensor without stored values.
    #[error("tensor `{tensor}` is on the meta device: it has a shape but no values in the file")]
    MetaTensor {
        /// The tensor.
        tensor: String,
    },

    /// A total that an index states and that is not a count of bytes.
    #[error(
        "the index states total_size {found}, which is not a whole number of bytes; it is ignored"
    )]
    TotalSize {
        /// The value.
        found: String,
    },
}
