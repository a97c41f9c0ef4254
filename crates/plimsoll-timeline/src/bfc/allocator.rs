//! Requests and frees: the search, the split, the merge.

use plimsoll_units::Bytes;

use super::chunks::{Chunk, ChunkId, Chunks, NONE, State};
use super::config::{BfcConfig, MAX_REQUEST, QUANTUM};
use super::regions::{Addresses, Region};
use crate::{Allocator, OutOfMemory, Usage};

/// A live chunk. Not `Clone`: freeing takes it away, so no chunk is freed twice.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct BfcBlock(ChunkId);

/// Counters of the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfcStatistics {
    /// Live chunks, rounding and slack included (`bytes_in_use`).
    pub in_use: Bytes,
    /// The most of it (`peak_bytes_in_use`): what the program needs.
    pub in_use_peak: Bytes,
    /// The most that the regions and reservations held (`peak_pool_bytes`).
    pub reserved_peak: Bytes,
    /// Regions, after merging none.
    pub regions: u64,
    /// Regions that were given back.
    pub regions_released: u64,
    /// Requests that failed.
    pub failures: u64,
}

/// The allocator of TensorFlow and JAX, and ONNX Runtime's arena; see [`BfcConfig`] for what makes it which.
///
/// ```
/// use plimsoll_timeline::{Allocator, Bfc, BfcConfig};
/// use plimsoll_units::Bytes;
/// let mut pool = Bfc::new(BfcConfig::jax(Bytes::gib(18), true));
/// let block = pool.allocate(Bytes::new(1_000), 0)?;
/// assert_eq!(pool.usage().allocated, Bytes::new(1_024));
/// assert_eq!(pool.usage().reserved, Bytes::gib(18));
/// pool.release(block);
/// # Ok::<(), plimsoll_timeline::OutOfMemory>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bfc {
    pub(super) config: BfcConfig,
    pub(super) chunks: Chunks,
    pub(super) regions: Vec<Region>,
    pub(super) addresses: Addresses,
    /// Size of the next region, as far as it depends on earlier ones.
    pub(super) next_region: u64,
    pub(super) usage: Usage,
    pub(super) statistics: BfcStatistics,
}

impl Bfc {
    /// An allocator that holds nothing yet.
    pub fn new(config: BfcConfig) -> Self {
        let limit = config.limit.unwrap_or(Bytes::MAX);
        let first = config.first_region.min(limit).get().min(MAX_REQUEST);
        Bfc {
            next_region: first.max(1).next_multiple_of(QUANTUM),
            addresses: Addresses::made_up(config.placement),
            config,
            chunks: Chunks::default(),
            regions: Vec::new(),
            usage: Usage::default(),
            statistics: BfcStatistics::default(),
        }
    }

    /// The same with regions at addresses that were recorded, in the order in which they were made. Made-up ones
    /// follow when they are used up.
    #[must_use]
    pub fn with_region_addresses(mut self, addresses: impl IntoIterator<Item = u64>) -> Self {
        self.addresses.recorded.extend(addresses);
        self
    }

    /// The settings.
    pub fn config(&self) -> &BfcConfig {
        &self.config
    }

    /// The counters.
    pub fn statistics(&self) -> &BfcStatistics {
        &self.statistics
    }

    /// Address of a block; 0 for a request of no bytes and for what was reserved.
    pub fn address(&self, block: &BfcBlock) -> u64 {
        self.chunks.get(block.0).map_or(0, |c| c.address)
    }

    /// Allocates past the regions, exactly what is asked for, as ONNX Runtime does for initialisers. Counted within
    /// the limit.
    ///
    /// # Errors
    /// [`OutOfMemory`] where limit or driver do not have it.
    pub fn reserve(&mut self, requested: Bytes) -> Result<BfcBlock, OutOfMemory> {
        let size = requested.get();
        if size == 0 {
            return Ok(BfcBlock(NONE));
        }
        let room = self.available().min(self.driver_room()).min(MAX_REQUEST);
        let chunk = Chunk {
            address: 0,
            size,
            requested: size,
            prev: NONE,
            next: NONE,
            stream: None,
            state: State::Reserved,
        };
        match (size <= room).then(|| self.chunks.insert(chunk)).flatten() {
            Some(id) => {
                self.hold(size);
                self.count(size, size);
                Ok(BfcBlock(id))
            }
            None => Err(self.out_of_memory(size, size)),
        }
    }

    fn find(&self, rounded: u64, stream: u16) -> Option<ChunkId> {
        let by_stream = self.config.by_stream;
        self.chunks.best_fit(rounded, |c| !by_stream || c.stream.is_none_or(|s| s == stream))
    }

    /// Hands out a listed chunk: its front, where it is worth splitting.
    fn take(&mut self, id: ChunkId, requested: u64, rounded: u64, stream: u16) -> BfcBlock {
        self.chunks.unlist(id);
        let chunk = self.chunks[id];
        let rest = chunk.size - rounded;
        let splits =
            chunk.size >= rounded.saturating_mul(2) || rest >= self.config.max_dead_bytes.get();
        if splits && rest > 0 {
            // The rest keeps the stream that the whole chunk had, which may be none.
            let address = chunk.address + rounded;
            let tail = Chunk { address, size: rest, requested: 0, prev: id, ..chunk };
            if let Some(tail) = self.chunks.insert(tail) {
                self.chunks.link(tail, chunk.next);
                self.chunks.link(id, tail);
                self.chunks[id].size = rounded;
                self.chunks.list(tail);
            }
        }
        let chunk = &mut self.chunks[id];
        (chunk.state, chunk.requested) = (State::Used, requested);
        if self.config.by_stream {
            chunk.stream = Some(stream);
        }
        let size = chunk.size;
        self.count(size, requested);
        BfcBlock(id)
    }

    fn count(&mut self, size: u64, requested: u64) {
        self.usage.allocated += Bytes::new(size);
        self.usage.requested += Bytes::new(requested);
        let s = &mut self.statistics;
        s.in_use = self.usage.allocated;
        s.in_use_peak = s.in_use_peak.max(s.in_use);
    }

    /// Merges a free chunk that is not listed with its free neighbours and lists what comes of it.
    pub(super) fn coalesce(&mut self, mut id: ChunkId) {
        let by_stream = self.config.by_stream;
        let next = self.chunks.free_neighbour(self.chunks[id].next);
        if let Some(next) =
            next.filter(|n| !by_stream || self.chunks[*n].stream == self.chunks[id].stream)
        {
            self.merge(id, next, next);
        }
        let prev = self.chunks.free_neighbour(self.chunks[id].prev);
        if let Some(prev) =
            prev.filter(|p| !by_stream || self.chunks[*p].stream == self.chunks[id].stream)
        {
            self.merge(prev, id, prev);
            id = prev;
        }
        self.chunks.list(id);
    }

    /// Adds `right` to `left`; `listed` is the one of them that is on the list.
    fn merge(&mut self, left: ChunkId, right: ChunkId, listed: ChunkId) {
        self.chunks.unlist(listed);
        let Chunk { size, next, .. } = self.chunks[right];
        self.chunks[left].size += size;
        self.chunks.link(left, next);
        self.chunks.remove(right);
    }

    pub(super) fn out_of_memory(&mut self, requested: u64, rounded: u64) -> OutOfMemory {
        self.statistics.failures += 1;
        let bounded = self.config.limit.is_some() || self.config.capacity.is_some();
        OutOfMemory {
            requested: Bytes::new(requested),
            rounded: Bytes::new(rounded),
            segment: Bytes::new(rounded),
            allocated: self.usage.allocated,
            reserved: self.usage.reserved,
            free: bounded.then(|| Bytes::new(self.available().min(self.driver_room()))),
        }
    }
}

impl Allocator for Bfc {
    type Block = BfcBlock;

    fn allocate(&mut self, requested: Bytes, stream: u16) -> Result<BfcBlock, OutOfMemory> {
        let requested = requested.get();
        if requested == 0 {
            return Ok(BfcBlock(NONE));
        }
        if requested > MAX_REQUEST {
            return Err(self.out_of_memory(requested, requested));
        }
        let rounded = requested.next_multiple_of(QUANTUM);
        let mut found = self.find(rounded, stream);
        if found.is_none() && self.extend(rounded) {
            found = self.find(rounded, stream);
        }
        if found.is_none() && self.collect_regions(rounded) && self.extend(rounded) {
            found = self.find(rounded, stream);
        }
        match found {
            Some(id) => Ok(self.take(id, requested, rounded, stream)),
            None => Err(self.out_of_memory(requested, rounded)),
        }
    }

    /// A block of another allocator is ignored unless it happens to name a live chunk.
    fn release(&mut self, block: BfcBlock) {
        let Some(&Chunk { size, requested, state, .. }) = self.chunks.get(block.0) else { return };
        match state {
            State::Used | State::Reserved => {}
            State::Free | State::Vacant => return,
        }
        self.usage.allocated -= Bytes::new(size);
        self.usage.requested -= Bytes::new(requested);
        self.statistics.in_use = self.usage.allocated;
        if state == State::Reserved {
            self.chunks.remove(block.0);
            self.let_go(size);
            return;
        }
        self.chunks[block.0].state = State::Free;
        self.coalesce(block.0);
    }

    /// Gives back regions without a live chunk, where the framework has such a call (ONNX Runtime's arena shrinkage).
    fn empty_cache(&mut self) {
        self.shrink();
    }

    fn allocated_size(&self, block: &BfcBlock) -> Bytes {
        Bytes::new(self.chunks.get(block.0).map_or(0, |c| c.size))
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}
