//! Requests and frees: the search for a cached block, the split, the merge. What happens when no cached block
//! serves a request is in `expandable` and `release`, frees that wait for another stream are in `pending`.

use std::num::NonZeroU32;

use plimsoll_units::Bytes;

use super::arena::{Arena, Block, BlockId, State};
use super::config::{MAX_REQUEST, MIN_BLOCK, Rules, SMALL_LIMIT};
use super::driver::{Client, Device, Driver};
use super::expandable::Reservation;
use super::free_list::{FreeList, Position};
use super::pending::Pending;
use super::pools::{PrivatePool, pool_id, pool_index, pool_kind};
use super::sorted::Key;
use super::tally::Tally;
use super::{PyTorchConfig, Statistics, TieBreak};
use crate::{Allocator, OutOfMemory, PoolId, Usage};

/// Small requests (1 MiB and less, rounded) and larger ones never share a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Up to 1 MiB, in segments of 2 MiB.
    Small,
    /// More than 1 MiB.
    Large,
}

/// A live block. Not `Clone`: freeing takes it away, so no block is freed twice.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct BlockHandle(NonZeroU32);

impl BlockHandle {
    /// Stands for a request of no bytes, which torch answers with a null pointer.
    const NULL: BlockHandle = BlockHandle(NonZeroU32::MAX);

    pub(super) fn new(id: BlockId) -> Self {
        BlockHandle(NonZeroU32::new(id.0).unwrap_or(NonZeroU32::MAX))
    }

    pub(super) fn id(&self) -> BlockId {
        BlockId(self.0.get())
    }
}

/// What is free for one stream of a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub free: FreeList,
    /// Unmapped ranges of expandable segments, by address.
    pub unmapped: Vec<(u64, BlockId)>,
}

/// Free blocks of one kind, by stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// Searches so far: the clock of garbage collection.
    pub searches: u64,
    pub lanes: Vec<Lane>,
}

/// A request on its way through the allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub requested: u64,
    pub size: u64,
    pub pool: u32,
    pub stream: u16,
    /// Whether a capture is under way: nothing may be waited for, the cache stays.
    pub capturing: bool,
    /// Whether it is served by expandable segments.
    pub expandable: bool,
}

impl Request {
    pub fn client(&self) -> Client {
        Client { kind: pool_kind(self.pool), pool: pool_id(self.pool), stream: self.stream }
    }
}

/// PyTorch's CUDA caching allocator, one device.
///
/// ```
/// use plimsoll_timeline::{PyTorchAllocator, PyTorchConfig};
/// use plimsoll_units::Bytes;
/// let mut torch = PyTorchAllocator::new(PyTorchConfig::default());
/// let weight = torch.malloc(Bytes::new(1_048_577), 0)?;
/// assert_eq!(torch.statistics().all.allocated_bytes.current, Bytes::new(1_049_088));
/// assert_eq!(torch.statistics().all.reserved_bytes.current, Bytes::mib(20));
/// torch.free(weight);
/// torch.empty_cache();
/// assert!(torch.statistics().all.reserved_bytes.current.is_zero());
/// # Ok::<(), plimsoll_timeline::OutOfMemory>(())
/// ```
#[derive(Clone, Debug)]
pub struct PyTorchAllocator<D = Device> {
    pub(super) rules: Rules,
    pub(super) blocks: Arena,
    /// The two default pools, then two for each private pool.
    pub(super) pools: Vec<Pool>,
    pub(super) private: Vec<PrivatePool>,
    pub(super) reservations: Vec<Reservation>,
    pub(super) pending: Pending,
    pub(super) tally: Tally,
    pub(super) driver: D,
    /// Where the order of the next block begins, see [`Block::order`].
    next_order: u64,
}

impl PyTorchAllocator {
    /// An allocator that holds nothing yet, on a device of the configured capacity.
    pub fn new(config: PyTorchConfig) -> Self {
        let device = Device::new(config.capacity);
        PyTorchAllocator::with_driver(config, device)
    }
}

impl<D: Driver> PyTorchAllocator<D> {
    /// An allocator that holds nothing yet and asks `driver` for memory; the configured capacity is the driver's
    /// affair.
    pub fn with_driver(config: PyTorchConfig, driver: D) -> Self {
        PyTorchAllocator {
            rules: Rules::new(config),
            blocks: Arena::new(),
            pools: vec![Pool::default(), Pool::default()],
            private: vec![PrivatePool::default()],
            reservations: Vec::new(),
            pending: Pending::default(),
            tally: Tally::default(),
            driver,
            next_order: 0,
        }
    }

    /// The settings.
    pub fn config(&self) -> &PyTorchConfig {
        &self.rules.config
    }

    /// Changes the settings for the requests to come, as `_set_allocator_settings` does. Blocks that exist stay as
    /// they are; the driver keeps its capacity.
    pub fn reconfigure(&mut self, config: PyTorchConfig) {
        self.rules = Rules::new(config);
    }

    /// What torch would report now. They are put together for the answer; [`usage`](Allocator::usage) is cheaper.
    pub fn statistics(&self) -> Statistics {
        self.tally.statistics()
    }

    /// Begins new peaks.
    pub fn reset_peaks(&mut self) {
        self.tally.reset_peaks();
    }

    /// The driver that is asked for memory.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The driver that is asked for memory.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Allocates `requested` bytes of the default pool on a stream; blocks of other streams are never reused. A
    /// request of no bytes succeeds and moves nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`] when neither a cached block nor the driver can serve the request, even after everything
    /// unused was given back; always for more than 32 PiB.
    pub fn malloc(&mut self, requested: Bytes, stream: u16) -> Result<BlockHandle, OutOfMemory> {
        self.malloc_in(PoolId::DEFAULT, requested, stream)
    }

    /// [`malloc`](Self::malloc) in a memory pool. A private pool that nobody announced comes into being with one
    /// user.
    ///
    /// # Errors
    /// As [`malloc`](Self::malloc).
    pub fn malloc_in(
        &mut self,
        pool: PoolId,
        requested: Bytes,
        stream: u16,
    ) -> Result<BlockHandle, OutOfMemory> {
        let requested = requested.get();
        if requested == 0 {
            return Ok(BlockHandle::NULL);
        }
        if requested > MAX_REQUEST {
            self.tally.num_ooms += 1;
            return Err(self.out_of_memory(requested, requested, requested));
        }
        let capturing = self.is_capturing(pool);
        if self.pending.has_work() {
            self.poll(capturing);
        }
        if !pool.is_default() {
            self.open_pool(pool);
        }
        let size = self.rules.round(requested);
        let kind = if size <= SMALL_LIMIT { PoolKind::Small } else { PoolKind::Large };
        let pool = pool_index(pool, kind);
        let expandable = self.rules.expandable;
        let request = Request { requested, size, pool, stream, capturing, expandable };
        match self.find_cached(&request) {
            Some(at) => Ok(self.hand_out_cached(at, &request)),
            None => self.grow(request),
        }
    }

    /// Frees a block. If other streams were recorded for it, the free completes later, as
    /// [`PyTorchConfig::pending_frees`] says. A handle belongs to the allocator that made it; one of another
    /// allocator is ignored unless it happens to name a live block.
    pub fn free(&mut self, block: BlockHandle) {
        let id = block.id();
        let Some(block) = self.blocks.get(id) else { return };
        match block.state {
            State::Used if block.shared => self.defer_free(id),
            State::Used => {
                let Block { size, requested, pool, .. } = *block;
                self.tally.free(pool_kind(pool), size, requested);
                self.count_oversize_free(size);
                self.merge_free(id);
            }
            State::Pending | State::Awaited => self.complete_pending(id),
            State::Free | State::Unmapped | State::Vacant => {}
        }
    }

    /// Completes the free of a block that waited: nobody uses it any more.
    pub(super) fn complete(&mut self, id: BlockId) {
        let Block { size, requested, pool, .. } = self.blocks[id];
        self.tally.complete_free(pool_kind(pool), size, requested);
        self.merge_free(id);
    }

    /// Puts a block among the free ones, merged with free neighbours.
    fn merge_free(&mut self, id: BlockId) {
        let Block { size, prev, next, stream, pool, expandable, .. } = self.blocks[id];
        let Block { mut address, mut order, .. } = self.blocks[id];
        let mut merged = size;
        let mut subsumed = [None, None];
        if self.blocks[prev].state == State::Free {
            let left = self.blocks[prev];
            subsumed[0] = Some(self.key_of(prev));
            (address, merged) = (left.address, merged + left.size);
            order = if self.rules.order_is_position { left.order } else { order };
            self.blocks.link(left.prev, id);
            self.blocks.remove(prev);
        }
        if self.blocks[next].state == State::Free {
            let right = self.blocks[next];
            subsumed[1] = Some(self.key_of(next));
            merged += right.size;
            self.blocks.link(id, right.next);
            self.blocks.remove(next);
        }

        let searches = self.pools[pool as usize].searches;
        let block = &mut self.blocks[id];
        (block.address, block.size, block.order) = (address, merged, order);
        (block.state, block.free_since) = (State::Free, searches);
        let split = block.is_split();
        let key = self.key_of(id);
        let list = &mut self.lane(pool, stream).free;
        let neighbours = match subsumed {
            [None, None] => {
                list.insert(key);
                0
            }
            [Some(old), None] | [None, Some(old)] => {
                list.replace(old, key);
                1
            }
            [Some(left), Some(right)] => {
                list.remove(left);
                list.replace(right, key);
                2
            }
        };
        if !expandable && (split || neighbours > 0) {
            // Only the net change counts, as in torch.
            let kind = pool_kind(pool);
            match (split, neighbours) {
                (true, 0) => self.tally.grow_split(kind, 1, size),
                (true, _) => {
                    self.tally.shrink_split(kind, neighbours - 1, 0);
                    self.tally.grow_split(kind, 0, size);
                }
                (false, _) => self.tally.shrink_split(kind, neighbours, merged - size),
            }
        }
    }

    /// Gives every segment without an active block, and every whole unused page of expandable segments, back to
    /// the driver. During a capture the default pools keep theirs; private pools keep theirs as long as they have a
    /// user.
    pub fn empty_cache(&mut self) {
        let capturing = self.is_capturing(PoolId::DEFAULT);
        self.release_cached(capturing);
    }

    /// Address of a block; 0 for a request of no bytes.
    pub fn address(&self, block: &BlockHandle) -> u64 {
        self.blocks.get(block.id()).map_or(0, |b| b.address)
    }

    /// Bytes that a block counts as allocated: its request, rounded, and the slack of a block that was not split.
    pub fn block_size(&self, block: &BlockHandle) -> Bytes {
        Bytes::new(self.blocks.get(block.id()).map_or(0, |b| b.size))
    }

    /// Best fit: the first free block of the stream that is large enough. Only that one candidate is considered;
    /// where it is refused the search has failed, as in torch.
    pub(super) fn find_cached(&mut self, request: &Request) -> Option<Position> {
        if self.rules.collect_above.is_some() {
            self.pools[request.pool as usize].searches += 1;
        }
        let list = &self.pools[request.pool as usize].lanes.get(request.stream as usize)?.free;
        let mut at = list.first_at_least(request.size)?;
        if !self.reservations.is_empty() {
            at = self.prefer_expandable(list, at, request.expandable)?;
        }
        let size = list.at(at).size();
        let oversize = request.size >= self.rules.max_split;
        let refused = if oversize {
            size >= request.size.saturating_add(self.rules.max_non_split_rounding)
        } else {
            size >= self.rules.max_split
        };
        (!refused).then_some(at)
    }

    /// Hands out a block of the free list.
    pub(super) fn hand_out_cached(&mut self, at: Position, request: &Request) -> BlockHandle {
        let (pool, lane) = (request.pool as usize, request.stream as usize);
        let id = self.pools[pool].lanes[lane].free.at(at).id();
        let front = self.take_front(id, request);
        if front == id {
            self.pools[pool].lanes[lane].free.remove_at(at);
        } else {
            let remainder = self.key_of(id);
            self.pools[pool].lanes[lane].free.replace_at(at, remainder);
        }
        self.count_allocation(front, request)
    }

    /// Hands out a block that is in no free list.
    pub(super) fn hand_out_new(&mut self, id: BlockId, request: &Request) -> BlockHandle {
        let front = self.take_front(id, request);
        if front != id {
            self.insert_free(id);
        }
        self.count_allocation(front, request)
    }

    /// Marks the front of a free block as used and returns it. The caller moves the free list's entry: the
    /// remainder of a split keeps the block's number.
    fn take_front(&mut self, id: BlockId, request: &Request) -> BlockId {
        let block = self.blocks[id];
        let remaining = block.size - request.size;
        let kind = pool_kind(request.pool);
        let was_split = block.is_split();
        if self.should_split(request, remaining) {
            let front = Block {
                size: request.size,
                requested: request.requested,
                order: self.order_of_part(block.order, 0),
                next: id,
                state: State::Used,
                ..block
            };
            if let Some(front) = self.blocks.insert(front) {
                self.blocks.link(block.prev, front);
                let rest = &mut self.blocks[id];
                rest.prev = front;
                rest.address += request.size;
                rest.size = remaining;
                rest.order += self.rules.moves_order(request.size);
                if !block.expandable {
                    if was_split {
                        self.tally.shrink_split(kind, 0, request.size);
                    } else {
                        self.tally.grow_split(kind, 1, remaining);
                    }
                }
                return front;
            }
        }
        if was_split && !block.expandable {
            self.tally.shrink_split(kind, 1, block.size);
        }
        let block = &mut self.blocks[id];
        (block.state, block.requested) = (State::Used, request.requested);
        id
    }

    fn should_split(&self, request: &Request, remaining: u64) -> bool {
        if request.pool > 1 && self.is_no_split(request.pool) {
            return false;
        }
        if pool_kind(request.pool) == PoolKind::Small || request.expandable {
            remaining >= MIN_BLOCK
        } else {
            remaining > SMALL_LIMIT && request.size < self.rules.max_split
        }
    }

    fn count_allocation(&mut self, id: BlockId, request: &Request) -> BlockHandle {
        let size = self.blocks[id].size;
        self.count_active(pool_kind(request.pool), size, request.requested);
        BlockHandle::new(id)
    }

    /// A block becomes allocated and active.
    pub(super) fn count_active(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.tally.allocate(kind, size, requested);
        if size >= self.rules.max_split {
            self.tally.oversize_allocations.grow();
        }
    }

    /// The program lets a block go; it stays active until [`complete`](Self::complete).
    pub(super) fn count_free_request(&mut self, id: BlockId) {
        let Block { size, pool, .. } = self.blocks[id];
        self.tally.request_free(pool_kind(pool), size);
        self.count_oversize_free(size);
    }

    fn count_oversize_free(&mut self, size: u64) {
        if size >= self.rules.max_split {
            self.tally.oversize_allocations.shrink();
        }
    }

    /// A block without neighbours, in no list.
    pub(super) fn insert_block(
        &mut self,
        address: u64,
        size: u64,
        state: State,
        request: &Request,
    ) -> Option<BlockId> {
        let order = self.order_of_segment(address, size);
        self.blocks.insert(Block {
            address,
            size,
            requested: 0,
            order,
            free_since: self.pools[request.pool as usize].searches,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            stream: request.stream,
            pool: request.pool,
            state,
            expandable: request.expandable,
            shared: false,
        })
    }

    /// Puts a free block into its list.
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let (key, block) = (self.key_of(id), self.blocks[id]);
        self.lane(block.pool, block.stream).free.insert(key);
    }

    /// The lane of a stream, made on first use.
    pub(super) fn lane(&mut self, pool: u32, stream: u16) -> &mut Lane {
        let lanes = &mut self.pools[pool as usize].lanes;
        let stream = stream as usize;
        if lanes.len() <= stream {
            lanes.resize_with(stream + 1, Lane::default);
        }
        &mut lanes[stream]
    }

    /// The order of a block without neighbours, see [`Block::order`].
    fn order_of_segment(&mut self, address: u64, size: u64) -> u64 {
        match self.rules.config.tie_break {
            TieBreak::LowestAddress => address / MIN_BLOCK,
            TieBreak::OldestSegment => {
                let order = self.next_order;
                self.next_order += size / MIN_BLOCK;
                order
            }
            TieBreak::OldestBlock => self.next_block_order(),
        }
    }

    /// The order of a block object that is made of a part of another one, `offset` bytes into it.
    pub(super) fn order_of_part(&mut self, whole: u64, offset: u64) -> u64 {
        if self.rules.order_is_position {
            whole + offset / MIN_BLOCK
        } else {
            self.next_block_order()
        }
    }

    fn next_block_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    pub(super) fn key_of(&self, id: BlockId) -> Key {
        let block = &self.blocks[id];
        Key::new(block.size, block.order, id)
    }
}

impl<D: Driver> Allocator for PyTorchAllocator<D> {
    type Block = BlockHandle;

    fn allocate(&mut self, requested: Bytes, stream: u16) -> Result<BlockHandle, OutOfMemory> {
        self.malloc(requested, stream)
    }

    fn allocate_in(
        &mut self,
        pool: PoolId,
        requested: Bytes,
        stream: u16,
    ) -> Result<BlockHandle, OutOfMemory> {
        self.malloc_in(pool, requested, stream)
    }

    fn release(&mut self, block: BlockHandle) {
        self.free(block);
    }

    fn request_free(&mut self, block: &BlockHandle) {
        PyTorchAllocator::request_free(self, block);
    }

    fn complete_free(&mut self, block: BlockHandle) {
        self.free(block);
    }

    fn record_stream(&mut self, block: &BlockHandle, stream: u16) {
        PyTorchAllocator::record_stream(self, block, stream);
    }

    fn begin_pool(&mut self, pool: PoolId) {
        PyTorchAllocator::begin_pool(self, pool);
    }

    fn end_pool(&mut self, pool: PoolId) {
        PyTorchAllocator::end_pool(self, pool);
    }

    fn begin_capture(&mut self) {
        PyTorchAllocator::begin_capture(self);
    }

    fn end_capture(&mut self) {
        PyTorchAllocator::end_capture(self);
    }

    fn release_pool(&mut self, pool: PoolId) {
        PyTorchAllocator::release_pool(self, pool);
    }

    fn empty_cache(&mut self) {
        PyTorchAllocator::empty_cache(self);
    }

    fn allocated_size(&self, block: &BlockHandle) -> Bytes {
        self.block_size(block)
    }

    fn usage(&self) -> Usage {
        Usage {
            requested: Bytes::new(self.tally.requested()),
            allocated: Bytes::new(self.tally.allocated()),
            reserved: Bytes::new(self.tally.reserved()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_live_blocks_and_not_the_trace() {
        let mut torch = PyTorchAllocator::new(PyTorchConfig::default());
        let mut live = std::collections::VecDeque::new();
        for i in 0..200_000u64 {
            let bytes = Bytes::new(1 + i * i % 3_000_017);
            live.push_back(torch.malloc(bytes, (i % 3) as u16).unwrap());
            if live.len() > 100 {
                torch.free(live.pop_front().unwrap());
            }
        }
        assert!(torch.blocks.slots() < 1000, "{} slots", torch.blocks.slots());
    }
}
