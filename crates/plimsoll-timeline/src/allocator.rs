//! What every allocator model does, so that replay and footprint are written once; and the simplest model.

use plimsoll_units::Bytes;

use crate::PoolId;

/// A request that no attempt could serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "out of memory: {requested} were requested ({segment} from the driver), {allocated} are allocated, {reserved} reserved{}",
    .free.map_or(String::new(), |free| format!(", {free} free"))
)]
pub struct OutOfMemory {
    /// What was asked for.
    pub requested: Bytes,
    /// The request after rounding.
    pub rounded: Bytes,
    /// What was asked of the driver in vain; the size that torch's own message names.
    pub segment: Bytes,
    /// Allocated when it failed, after everything that could be given back was given back.
    pub allocated: Bytes,
    /// Reserved when it failed.
    pub reserved: Bytes,
    /// What the driver, or the limit if that is tighter, still had to give; `None` without either.
    pub free: Option<Bytes>,
}

/// Bytes in use, by the three ways of counting them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What the program asked for, of live tensors.
    pub requested: Bytes,
    /// What the allocator counts as allocated.
    pub allocated: Bytes,
    /// What it holds from the driver.
    pub reserved: Bytes,
}

/// A model of an allocator: bytes and rules, no memory.
pub trait Allocator {
    /// A live block. Freeing consumes it.
    type Block;

    /// Allocates on a stream.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the device cannot serve the request.
    fn allocate(&mut self, requested: Bytes, stream: u16) -> Result<Self::Block, OutOfMemory>;

    /// Allocates in a memory pool. Allocators without pools take it from the one that they have.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the device cannot serve the request.
    fn allocate_in(
        &mut self,
        _pool: PoolId,
        requested: Bytes,
        stream: u16,
    ) -> Result<Self::Block, OutOfMemory> {
        self.allocate(requested, stream)
    }

    /// Frees a block of this allocator.
    fn release(&mut self, block: Self::Block);

    /// The program lets a block go that another stream may still use; [`complete_free`](Self::complete_free)
    /// follows. Allocators that do not know such frees keep the block until then.
    fn request_free(&mut self, _block: &Self::Block) {}

    /// No stream uses the block any more.
    fn complete_free(&mut self, block: Self::Block) {
        self.release(block);
    }

    /// Another stream uses the block.
    fn record_stream(&mut self, _block: &Self::Block, _stream: u16) {}

    /// Requests begin to be routed to a private pool.
    fn begin_pool(&mut self, _pool: PoolId) {}

    /// Routing to a private pool ends.
    fn end_pool(&mut self, _pool: PoolId) {}

    /// The capture of a CUDA graph begins.
    fn begin_capture(&mut self) {}

    /// The capture of a CUDA graph ends.
    fn end_capture(&mut self) {}

    /// One user of a private pool is gone.
    fn release_pool(&mut self, _pool: PoolId) {}

    /// Gives cached memory back to the driver.
    fn empty_cache(&mut self);

    /// What the block counts as allocated.
    fn allocated_size(&self, block: &Self::Block) -> Bytes;

    /// Bytes in use now.
    fn usage(&self) -> Usage;
}

/// Sums requests, each rounded up to 512 bytes; no segments, no fragmentation, never out of memory. A lower bound
/// for every caching allocator with that quantum, at the price of two additions per event.
///
/// ```
/// use plimsoll_timeline::{Allocator, Exact};
/// use plimsoll_units::Bytes;
/// let mut exact = Exact::default();
/// let block = exact.allocate(Bytes::new(700), 0)?;
/// assert_eq!(exact.usage().allocated, Bytes::new(1024));
/// exact.release(block);
/// assert!(exact.usage().requested.is_zero());
/// # Ok::<(), plimsoll_timeline::OutOfMemory>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Exact {
    usage: Usage,
}

impl Exact {
    const QUANTUM: Bytes = Bytes::new(512);
}

impl Allocator for Exact {
    /// The requested bytes.
    type Block = Bytes;

    fn allocate(&mut self, requested: Bytes, _stream: u16) -> Result<Bytes, OutOfMemory> {
        self.usage.requested += requested;
        self.usage.allocated += requested.round_up(Self::QUANTUM);
        self.usage.reserved = self.usage.allocated;
        Ok(requested)
    }

    fn release(&mut self, requested: Bytes) {
        self.usage.requested -= requested;
        self.usage.allocated -= requested.round_up(Self::QUANTUM);
        self.usage.reserved = self.usage.allocated;
    }

    fn empty_cache(&mut self) {}

    fn allocated_size(&self, requested: &Bytes) -> Bytes {
        requested.round_up(Self::QUANTUM)
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}
