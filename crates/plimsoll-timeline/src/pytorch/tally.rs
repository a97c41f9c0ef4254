//! The counters behind [`Statistics`]: kept per kind of pool with as little work per event as possible, put together
//! when somebody asks. The sums over both kinds are not kept, only their peaks; active blocks are the allocated ones
//! and those whose free waits, of which there mostly are none.

use plimsoll_units::Bytes;

use super::PoolKind;
use super::statistics::{PoolStatistics, Statistic, Statistics};

/// A quantity of one kind of pool.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    current: u64,
    peak: u64,
    /// The sum of increases.
    total: u64,
}

impl Counter {
    #[inline]
    fn grow(&mut self, n: u64) {
        self.current += n;
        self.total = self.total.wrapping_add(n);
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    fn shrink(&mut self, n: u64) {
        debug_assert!(n <= self.current, "more went than came");
        self.current = self.current.wrapping_sub(n);
    }
}

/// The quantities, by index into the arrays of a [`Tally`].
const ALLOCATIONS: usize = 0;
const ALLOCATED: usize = 1;
const REQUESTED: usize = 2;
const SEGMENTS: usize = 3;
const RESERVED: usize = 4;
const SPLITS: usize = 5;
const SPLIT_BYTES: usize = 6;
const QUANTITIES: usize = 7;

/// Blocks and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    blocks: u64,
    bytes: u64,
}

impl Amount {
    fn max(self, other: Amount) -> Amount {
        Amount { blocks: self.blocks.max(other.blocks), bytes: self.bytes.max(other.bytes) }
    }

    fn plus(self, other: Amount) -> Amount {
        Amount { blocks: self.blocks + other.blocks, bytes: self.bytes + other.bytes }
    }
}

/// All counters.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Of the small pools and of the large ones.
    kinds: [[Counter; QUANTITIES]; 2],
    /// Peaks of the sums of both.
    peaks: [u64; QUANTITIES],
    /// Frees that wait.
    pending: [Amount; 2],
    /// Peaks of active blocks that were reached while a free was waiting: small, large, all.
    active_peaks: [Amount; 3],
    pub oversize_allocations: Statistic<i64>,
    pub oversize_segments: Statistic<i64>,
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
    pub num_oom_rejections: u64,
    pub num_sync_all_streams: u64,
    pub num_device_alloc: u64,
    pub num_device_free: u64,
}

impl Tally {
    /// Requested bytes of active blocks.
    pub fn requested(&self) -> u64 {
        self.sum(REQUESTED)
    }

    pub fn allocated(&self) -> u64 {
        self.sum(ALLOCATED)
    }

    pub fn reserved(&self) -> u64 {
        self.sum(RESERVED)
    }

    #[inline]
    fn sum(&self, quantity: usize) -> u64 {
        self.kinds[0][quantity].current + self.kinds[1][quantity].current
    }

    #[inline]
    fn grow(&mut self, kind: PoolKind, quantity: usize, n: u64) {
        self.kinds[kind as usize][quantity].grow(n);
        self.peaks[quantity] = self.peaks[quantity].max(self.sum(quantity));
    }

    #[inline]
    fn shrink(&mut self, kind: PoolKind, quantity: usize, n: u64) {
        self.kinds[kind as usize][quantity].shrink(n);
    }

    /// A block is handed out.
    #[inline]
    pub fn allocate(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.grow(kind, ALLOCATIONS, 1);
        self.grow(kind, ALLOCATED, size);
        self.grow(kind, REQUESTED, requested);
        if self.pending[0].blocks + self.pending[1].blocks > 0 {
            self.note_active();
        }
    }

    /// The program lets a block go and nobody else uses it.
    #[inline]
    pub fn free(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.shrink(kind, ALLOCATIONS, 1);
        self.shrink(kind, ALLOCATED, size);
        self.shrink(kind, REQUESTED, requested);
    }

    /// The program lets a block go that another stream may still use.
    pub fn request_free(&mut self, kind: PoolKind, size: u64) {
        // The peak so far may be one of allocated blocks alone.
        self.note_active();
        self.shrink(kind, ALLOCATIONS, 1);
        self.shrink(kind, ALLOCATED, size);
        let pending = &mut self.pending[kind as usize];
        *pending = pending.plus(Amount { blocks: 1, bytes: size });
    }

    /// A free that waited is complete.
    pub fn complete_free(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.shrink(kind, REQUESTED, requested);
        let pending = &mut self.pending[kind as usize];
        pending.blocks -= 1;
        pending.bytes -= size;
    }

    /// Free parts of segments that are in use come into being; only bytes where a part grows.
    #[inline]
    pub fn grow_split(&mut self, kind: PoolKind, blocks: u64, bytes: u64) {
        self.grow(kind, SPLITS, blocks);
        self.grow(kind, SPLIT_BYTES, bytes);
    }

    #[inline]
    pub fn shrink_split(&mut self, kind: PoolKind, blocks: u64, bytes: u64) {
        self.shrink(kind, SPLITS, blocks);
        self.shrink(kind, SPLIT_BYTES, bytes);
    }

    pub fn add_segment(&mut self, kind: PoolKind, size: u64) {
        self.grow(kind, SEGMENTS, 1);
        self.grow(kind, RESERVED, size);
    }

    pub fn remove_segment(&mut self, kind: PoolKind, size: u64) {
        self.shrink(kind, SEGMENTS, 1);
        self.shrink(kind, RESERVED, size);
    }

    pub fn map(&mut self, kind: PoolKind, bytes: u64) {
        self.grow(kind, RESERVED, bytes);
    }

    pub fn unmap(&mut self, kind: PoolKind, bytes: u64) {
        self.shrink(kind, RESERVED, bytes);
    }

    fn active(&self, kind: usize) -> Amount {
        let [blocks, bytes] = [ALLOCATIONS, ALLOCATED].map(|q| self.kinds[kind][q].current);
        self.pending[kind].plus(Amount { blocks, bytes })
    }

    #[cold]
    fn note_active(&mut self) {
        let (small, large) = (self.active(0), self.active(1));
        for (peak, now) in self.active_peaks.iter_mut().zip([small, large, small.plus(large)]) {
            *peak = peak.max(now);
        }
    }

    pub fn reset_peaks(&mut self) {
        for quantity in 0..QUANTITIES {
            self.peaks[quantity] = self.sum(quantity);
        }
        for counter in self.kinds.iter_mut().flatten() {
            counter.peak = counter.current;
        }
        self.active_peaks = Default::default();
        self.note_active();
        self.oversize_allocations.peak = self.oversize_allocations.current;
        self.oversize_segments.peak = self.oversize_segments.current;
    }

    /// What torch would report now.
    pub fn statistics(&self) -> Statistics {
        let [small, large] = self.kinds;
        let all = std::array::from_fn(|q| Counter {
            current: small[q].current + large[q].current,
            peak: self.peaks[q],
            total: small[q].total.wrapping_add(large[q].total),
        });
        let [pending_small, pending_large] = self.pending;
        let [peak_small, peak_large, peak_all] = self.active_peaks;
        Statistics {
            all: pool(&all, pending_small.plus(pending_large), peak_all),
            small_pool: pool(&small, pending_small, peak_small),
            large_pool: pool(&large, pending_large, peak_large),
            oversize_allocations: self.oversize_allocations,
            oversize_segments: self.oversize_segments,
            num_alloc_retries: self.num_alloc_retries,
            num_ooms: self.num_ooms,
            num_oom_rejections: self.num_oom_rejections,
            num_sync_all_streams: self.num_sync_all_streams,
            num_device_alloc: self.num_device_alloc,
            num_device_free: self.num_device_free,
        }
    }
}

fn pool(counters: &[Counter; QUANTITIES], pending: Amount, peak: Amount) -> PoolStatistics {
    let number = |quantity: usize| {
        let Counter { current, peak, total } = counters[quantity];
        Statistic { current, peak, allocated: total }
    };
    let bytes = |quantity: usize| in_bytes(number(quantity));
    let active = |quantity: usize, pending: u64, peak: u64| {
        let allocated = number(quantity);
        let (current, peak) = (allocated.current + pending, allocated.peak.max(peak));
        Statistic { current, peak, ..allocated }
    };
    PoolStatistics {
        allocation: number(ALLOCATIONS),
        allocated_bytes: bytes(ALLOCATED),
        active: active(ALLOCATIONS, pending.blocks, peak.blocks),
        active_bytes: in_bytes(active(ALLOCATED, pending.bytes, peak.bytes)),
        requested_bytes: bytes(REQUESTED),
        segment: number(SEGMENTS),
        reserved_bytes: bytes(RESERVED),
        inactive_split: number(SPLITS),
        inactive_split_bytes: bytes(SPLIT_BYTES),
    }
}

fn in_bytes(number: Statistic<u64>) -> Statistic<Bytes> {
    let Statistic { current, peak, allocated } = number;
    Statistic {
        current: Bytes::new(current),
        peak: Bytes::new(peak),
        allocated: Bytes::new(allocated),
    }
}
