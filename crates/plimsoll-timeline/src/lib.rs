//! A [`Timeline`] is an ordered list of allocations and frees. Predicted, recorded and measured timelines are the
//! same type, so allocator models, peak attribution, plots and comparison are written once.
//!
//! Four kinds of bytes have four names, never mixed: *requested* (what the program asked for), *rounded* (what the
//! allocator counts as allocated), *reserved* (what it holds from the driver) and *device* (what the driver sees,
//! with context and libraries; added by the estimate, not here).

mod allocator;
mod bfc;
mod driver_pool;
mod footprint;
mod framework;
mod pytorch;
mod timeline;

pub use allocator::{Allocator, Exact, OutOfMemory, Usage};
pub use bfc::{Bfc, BfcBlock, BfcConfig, BfcStatistics, ChunkView, Growth, Placement, RegionView};
pub use driver_pool::DriverPool;
pub use footprint::{
    Failure, Footprint, LiveSet, OriginShare, ReplayOptions, SeriesPoint, replay, replay_from,
    replay_on, replay_with,
};
pub use framework::{
    AllocatorChoice, ChoiceError, DeviceMemory, FrameworkReplay, Jax, JaxAllocator, OnnxRuntime,
    Share, TensorFlow, fuzz_choice,
};
pub use pytorch::{Backend, PyTorchSettings, SettingError, TorchRelease, fuzz_settings};
pub use pytorch::{
    BlockHandle, BlockState, CaptureRule, Client, ConfigError, Device, Driver, DriverCall,
    DriverEvent, DriverLog, Layout, LayoutBlock, LayoutError, LayoutReservation, LayoutSegment,
    PendingFrees, PoolKind, PoolOptions, PoolStatistics, PyTorchAllocator, PyTorchConfig,
    RecordedDriver, RoundupDivisions, Statistic, Statistics, TieBreak,
};
pub use timeline::{
    Allocation, Category, Event, Origin, OriginId, Phase, PhaseKind, PoolId, TensorId, Timeline,
    TimelineBuilder,
};
