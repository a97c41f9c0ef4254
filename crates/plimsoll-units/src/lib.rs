//! Quantities that the rest of Plimsoll is written in: [`Bytes`], element types ([`DType`]), and
//! symbolic sizes ([`Dim`], [`Shape`]). Integers only; nothing here knows about models or GPUs.

mod bytes;
mod dim;
mod dtype;

pub use bytes::{Bytes, ParseBytesError};
pub use dim::{Bindings, Dim, Shape, Symbol};
pub use dtype::{DType, ParseDTypeError};
