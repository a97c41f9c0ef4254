//! PyTorch's CUDA caching allocator as rules: rounding, two pools, best fit, split, merge, segments, expandable
//! segments and the chain of attempts before it gives up. For one stream the bytes it reserves are a function of
//! the sequence of requests, so a replay is exact. It is not a heap: no memory is touched, and the addresses are
//! made up (they grow, and are the same in every run).
//!
//! Frees complete at once; memory that another stream still uses (`record_stream`), private pools of CUDA graphs
//! and the parsing of `PYTORCH_CUDA_ALLOC_CONF` are not here.
//!
//! The rules were read in `c10/cuda/CUDACachingAllocator.cpp` (2.0 to 2.12) and checked against public traces.

mod allocator;
mod arena;
mod config;
mod expandable;
mod free_list;
mod layout;
mod release;
mod statistics;

pub use allocator::{BlockHandle, PoolKind, PyTorchAllocator};
pub use config::{ConfigError, PyTorchConfig, RoundupDivisions, TieBreak};
pub use layout::{BlockState, BlockView, SegmentView};
pub use statistics::{Statistic, Statistics};
