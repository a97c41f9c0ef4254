//! What `torch.cuda.memory_stats` reports, under torch's names.

use plimsoll_units::Bytes;

/// A quantity now, at its highest, and the sum of its increases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistic<T> {
    /// Now.
    pub current: T,
    /// The highest so far, or since the last reset.
    pub peak: T,
    /// The sum of all increases.
    pub allocated: T,
}

impl Statistic<Bytes> {
    /// The sum of all decreases.
    pub fn freed(&self) -> Bytes {
        self.allocated - self.current
    }
}

impl Statistic<u64> {
    /// The sum of all decreases.
    pub fn freed(&self) -> u64 {
        self.allocated.saturating_sub(self.current)
    }
}

impl Statistic<i64> {
    pub(super) fn grow(&mut self) {
        self.current += 1;
        self.allocated += 1;
        self.peak = self.peak.max(self.current);
    }

    pub(super) fn shrink(&mut self) {
        self.current -= 1;
    }

    /// The sum of all decreases.
    pub fn freed(&self) -> i64 {
        self.allocated - self.current
    }
}

/// The statistics that torch keeps for all pools together, for the small ones and for the large ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Live blocks.
    pub allocation: Statistic<u64>,
    /// Live blocks, rounding and slack included (`memory_allocated`).
    pub allocated_bytes: Statistic<Bytes>,
    /// Live blocks and freed ones that another stream may still use.
    pub active: Statistic<u64>,
    /// Their bytes.
    pub active_bytes: Statistic<Bytes>,
    /// What the program asked for, of active blocks.
    pub requested_bytes: Statistic<Bytes>,
    /// Segments; expandable ones are not counted, as in torch.
    pub segment: Statistic<u64>,
    /// What the driver has given (`memory_reserved`).
    pub reserved_bytes: Statistic<Bytes>,
    /// Free parts of segments that also hold active blocks; expandable segments are not counted, as in torch.
    pub inactive_split: Statistic<u64>,
    /// Their bytes.
    pub inactive_split_bytes: Statistic<Bytes>,
}

/// Counters of the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// All pools.
    pub all: PoolStatistics,
    /// Pools of small requests, private ones included.
    pub small_pool: PoolStatistics,
    /// Pools of large requests, private ones included.
    pub large_pool: PoolStatistics,
    /// Live blocks of at least `max_split_size`. As in torch a block counts by the setting of the moment, so the
    /// number can fall below zero when that changes.
    pub oversize_allocations: Statistic<i64>,
    /// Segments of at least `max_split_size`, counted in the same way.
    pub oversize_segments: Statistic<i64>,
    /// Times that every cached segment was released to serve a request.
    pub num_alloc_retries: u64,
    /// Requests that failed.
    pub num_ooms: u64,
    /// Requests that `throw_on_cudamalloc_oom` refused without a try.
    pub num_oom_rejections: u64,
    /// Times that the allocator waited for every pending free.
    pub num_sync_all_streams: u64,
    /// Segments made and pages mapped, by call.
    pub num_device_alloc: u64,
    /// Segments given back and pages unmapped, by call.
    pub num_device_free: u64,
}
