//! The best-fit allocator with coalescing that TensorFlow and JAX share, and ONNX Runtime's arena, a relative of it,
//! as rules: rounding to 256 bytes, best fit, the split rule, regions that double, the retreat by a tenth when the
//! driver refuses, regions that are given back. It is not a heap: addresses are made up, or come from a recording.
//!
//! The 21 bins of the originals sort free chunks by powers of two from 256 bytes on, each bin by size and address, and
//! are searched upwards: that is one list sorted by size and address, which is what this is.
//!
//! Not here: JAX's collective buffers at the other end of the pool, timestamps of chunks that a stream may still use
//! (TensorFlow with several compute streams), chunks of another stream that ONNX Runtime takes after a wait.
//!
//! Read in openxla/xla `xla/tsl/framework/bfc_allocator.cc` and `xla/pjrt/gpu/allocator_config.cc` and in
//! microsoft/onnxruntime `core/framework/bfc_arena.cc`, 2026-11-30; the arena was checked against ONNX Runtime 1.32.0.

mod allocator;
mod chunks;
mod config;
mod regions;

pub use allocator::{Bfc, BfcBlock, BfcStatistics};
pub use config::{BfcConfig, Growth, Placement};
pub use regions::{ChunkView, RegionView};
