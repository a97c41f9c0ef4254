//! What `torch.cuda.memory_stats` reports, for all pools together.

use plimsoll_units::Bytes;

/// A quantity now and at its highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistic<T> {
    /// Now.
    pub current: T,
    /// The highest so far.
    pub peak: T,
}

impl Statistic<Bytes> {
    pub(super) fn grow(&mut self, bytes: u64) {
        self.current += Bytes::new(bytes);
        self.peak = self.peak.max(self.current);
    }

    pub(super) fn shrink(&mut self, bytes: u64) {
        self.current -= Bytes::new(bytes);
    }
}

impl Statistic<u64> {
    pub(super) fn grow(&mut self, n: u64) {
        self.current += n;
        self.peak = self.peak.max(self.current);
    }

    pub(super) fn shrink(&mut self, n: u64) {
        self.current = self.current.saturating_sub(n);
    }
}

/// Counters of the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// What the program asked for, of live blocks.
    pub requested: Statistic<Bytes>,
    /// Live blocks, rounding and slack included (`memory_allocated`).
    pub allocated: Statistic<Bytes>,
    /// Live blocks and freed ones that another stream may still use. Frees complete at once here, so this equals
    /// [`allocated`](Self::allocated).
    pub active: Statistic<Bytes>,
    /// What the driver has given (`memory_reserved`).
    pub reserved: Statistic<Bytes>,
    /// Free parts of segments that also hold live blocks; expandable segments are not counted, as in torch.
    pub inactive_split: Statistic<Bytes>,
    /// Live blocks.
    pub allocations: Statistic<u64>,
    /// Segments; expandable ones are not counted, as in torch.
    pub segments: Statistic<u64>,
    /// Segments made and pages mapped, by call.
    pub device_allocs: u64,
    /// Segments given back and pages unmapped, by call.
    pub device_frees: u64,
    /// Times that every cached segment was released to serve a request (`num_alloc_retries`).
    pub retries: u64,
    /// Requests that failed.
    pub ooms: u64,
}
