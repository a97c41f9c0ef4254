//! Pure readers of model files. Bytes, or `Read + Seek`, come in; names, shapes, element types and sizes come
//! out. Only headers are read, never weights, and no code in a file is ever run.
//!
//! Every file is taken as hostile: lengths are checked against the file before anything is allocated, sums and
//! products are checked, nesting is bounded, and each refusal is a [`FormatError`] that names the place, the
//! value and what is accepted. What is merely unknown (a new element type, a foreign class) does not stop a
//! read: it comes back as a [`Diagnostic`].
//!
//! | module | reads |
//! |---|---|
//! | [`safetensors`] | the header of a safetensors file, from a prefix of it |
//! | [`index`] | `model.safetensors.index.json`, `pytorch_model.bin.index.json` |
//! | [`gguf`] | metadata and tensor table of GGUF files, split files included |
//! | [`torch_checkpoint`] | `.pt`, `.pth`, `.bin`: tensors found by a symbolic pickle machine |
//! | [`snapshot`] | memory snapshots of PyTorch |
//! | [`profiler`] | memory events of torch.profiler's traces, and its memory timelines |
//! | [`memory_stats`] | the JSON of `torch.cuda.memory_stats()` |
//! | [`compressed`] | gzip and zstd, unpacked while they are read |
//! | [`hf_config`] | JSON objects strictly, and which files of a model folder matter |
//! | [`sniff`] | what a file is, from its first bytes |

pub mod compressed;
mod diagnostic;
mod error;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod gguf;
pub mod hf_config;
pub mod index;
mod json;
pub mod memory_stats;
mod pickle;
pub mod profiler;
pub mod safetensors;
pub mod snapshot;
pub mod sniff;
mod source;
mod tensor;
pub mod torch_checkpoint;

pub use diagnostic::Diagnostic;
pub use error::FormatError;
pub use tensor::TensorInfo;
