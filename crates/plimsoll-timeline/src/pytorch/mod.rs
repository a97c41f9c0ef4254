//! PyTorch's CUDA caching allocator as rules: rounding, two pools, best fit, split, merge, segments, expandable
//! segments and the chain of attempts before it gives up. For one stream the bytes it reserves are a function of
//! the sequence of requests, so a replay is exact. It is not a heap: no memory is touched, and the addresses are
//! made up (they grow, and are the same in every run).
//!
//! Frees that wait for another stream complete as a recording says or as a policy assumes; segments come from a
//! made-up device or from the addresses of a recording; an allocator can begin from the layout of a snapshot.
//!
//! The rules were read in `c10/cuda/CUDACachingAllocator.cpp` (2.0 to 2.12) and checked against public traces.

mod allocator;
mod arena;
mod conf_keys;
mod conf_text;
mod config;
mod driver;
mod expandable;
mod free_list;
mod layout;
mod pending;
mod plain;
mod pools;
mod release;
mod sorted;
mod statistics;
mod tally;

pub use allocator::{BlockHandle, PoolKind, PyTorchAllocator};
pub use conf_text::{Backend, PyTorchSettings, SettingError, TorchRelease, fuzz_settings};
pub use config::{ConfigError, PyTorchConfig, RoundupDivisions, TieBreak};
pub use driver::{Client, Device, Driver, DriverCall, DriverEvent, DriverLog, RecordedDriver};
pub use layout::{BlockState, Layout, LayoutBlock, LayoutError, LayoutReservation, LayoutSegment};
pub use pending::PendingFrees;
pub(crate) use plain::PlainAllocator;
pub use pools::{CaptureRule, PoolOptions};
pub use statistics::{PoolStatistics, Statistic, Statistics};
