//! The driver's stream-ordered pool, as PyTorch (`backend:cudaMallocAsync`), TensorFlow and JAX
//! (`TF_GPU_ALLOCATOR=cuda_malloc_async`) use it: no cache of the framework's own, a release threshold that never
//! releases, memory that stays with the pool until the cache is emptied.
//!
//! How the driver lays blocks out is not published. It maps pages where it needs them, so that holes cost little; here
//! they cost nothing, and the pool is the most that was in use at once, in pages of 32 MiB as drivers have been seen to
//! grow it. A lower bound, not measured by us.

use plimsoll_units::Bytes;

use crate::{Allocator, OutOfMemory, Usage};

/// What the pool rounds a block up to.
const QUANTUM: Bytes = Bytes::new(512);
/// What the pool grows by.
const PAGE: Bytes = Bytes::mib(32);

/// The driver's pool.
///
/// ```
/// use plimsoll_timeline::{Allocator, DriverPool};
/// use plimsoll_units::Bytes;
/// let mut pool = DriverPool::default();
/// let block = pool.allocate(Bytes::mib(40), 0)?;
/// pool.release(block);
/// assert_eq!(pool.usage().reserved, Bytes::mib(64));
/// pool.empty_cache();
/// assert!(pool.usage().reserved.is_zero());
/// # Ok::<(), plimsoll_timeline::OutOfMemory>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DriverPool {
    /// The most that may be requested at once: PyTorch counts requests, not what the pool holds.
    pub limit: Option<Bytes>,
    /// Bytes that the device has to give.
    pub capacity: Option<Bytes>,
    usage: Usage,
}

impl DriverPool {
    /// A pool with limits.
    pub fn new(limit: Option<Bytes>, capacity: Option<Bytes>) -> Self {
        DriverPool { limit, capacity, usage: Usage::default() }
    }
}

impl Allocator for DriverPool {
    /// The requested bytes.
    type Block = Bytes;

    fn allocate(&mut self, requested: Bytes, _stream: u16) -> Result<Bytes, OutOfMemory> {
        let rounded = requested.round_up(QUANTUM);
        let Usage { requested: asked, allocated, reserved } = self.usage;
        let limit = self.limit.unwrap_or(Bytes::MAX);
        let capacity = self.capacity.unwrap_or(Bytes::MAX);
        let used = allocated + rounded;
        if asked + requested > limit || used > capacity || used.is_saturated() {
            let free = limit.saturating_sub(asked).min(capacity.saturating_sub(allocated));
            let bounded = self.limit.is_some() || self.capacity.is_some();
            let (segment, free) = (rounded, bounded.then_some(free));
            return Err(OutOfMemory { requested, rounded, segment, allocated, reserved, free });
        }
        self.usage.requested += requested;
        self.usage.allocated = used;
        self.usage.reserved = reserved.max(used.round_up(PAGE).min(capacity));
        Ok(requested)
    }

    fn release(&mut self, requested: Bytes) {
        self.usage.requested -= requested;
        self.usage.allocated -= requested.round_up(QUANTUM);
    }

    fn empty_cache(&mut self) {
        let held = self.usage.allocated.round_up(PAGE);
        self.usage.reserved = self.usage.reserved.min(held);
    }

    fn allocated_size(&self, requested: &Bytes) -> Bytes {
        requested.round_up(QUANTUM)
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_most_that_was_in_use() {
        let mut pool = DriverPool::new(None, Some(Bytes::mib(200)));
        let blocks = [100, 50, 30].map(|n| pool.allocate(Bytes::mib(n), 0).unwrap());
        assert_eq!(pool.usage().reserved, Bytes::mib(192));
        blocks.into_iter().for_each(|b| pool.release(b));
        // Any block fits into what is free, wherever the holes are.
        let block = pool.allocate(Bytes::mib(190), 0).unwrap();
        assert_eq!(pool.usage().reserved, Bytes::mib(192));
        let error = pool.allocate(Bytes::mib(11), 0).unwrap_err();
        assert_eq!(error.free, Some(Bytes::mib(10)));
        pool.empty_cache();
        assert_eq!(pool.usage().reserved, Bytes::mib(192));
        pool.release(block);
        pool.empty_cache();
        assert_eq!(pool.usage(), Usage::default());
    }

    #[test]
    fn a_limit_counts_requests() {
        let mut pool = DriverPool::new(Some(Bytes::new(1000)), None);
        pool.allocate(Bytes::new(999), 0).unwrap();
        pool.allocate(Bytes::new(1), 0).unwrap();
        assert!(pool.allocate(Bytes::new(1), 0).is_err());
        assert_eq!(pool.usage().allocated, Bytes::new(1536));
    }
}
