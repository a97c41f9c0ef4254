//! Requests and frees: the search for a cached block, the split, the merge. What happens when no cached block
//! serves a request is in `expandable` and `release`.

use std::num::NonZeroU32;

use plimsoll_units::Bytes;

use super::arena::{Arena, Block, BlockId, State};
use super::config::{LARGE_ROUNDING, MAX_REQUEST, MIN_BLOCK, Rules, SMALL_LIMIT};
use super::free_list::{FreeList, Key, Position};
use super::{PyTorchConfig, Statistics};
use crate::{Allocator, OutOfMemory, Usage};

/// Where made-up addresses begin: where drivers begin, more or less.
const FIRST_ADDRESS: u64 = 0x7000_0000_0000;
/// Where they end; a [`Key`] holds no more.
const LAST_ADDRESS: u64 = 1 << 57;

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

    fn id(&self) -> BlockId {
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

/// Free blocks of one kind, by stream. The two default pools come first.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub kind: PoolKind,
    /// Searches so far: the clock of garbage collection.
    pub searches: u64,
    pub lanes: Vec<Lane>,
}

/// A request on its way through the allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub requested: u64,
    pub size: u64,
    pub pool: u16,
    pub stream: u16,
}

/// PyTorch's CUDA caching allocator, one device.
///
/// ```
/// use plimsoll_timeline::{PyTorchAllocator, PyTorchConfig};
/// use plimsoll_units::Bytes;
/// let mut torch = PyTorchAllocator::new(PyTorchConfig::default());
/// let weight = torch.malloc(Bytes::new(1_048_577), 0)?;
/// assert_eq!(torch.statistics().allocated.current, Bytes::new(1_049_088));
/// assert_eq!(torch.statistics().reserved.current, Bytes::mib(20));
/// torch.free(weight);
/// torch.empty_cache();
/// assert!(torch.statistics().reserved.current.is_zero());
/// # Ok::<(), plimsoll_timeline::OutOfMemory>(())
/// ```
#[derive(Clone, Debug)]
pub struct PyTorchAllocator {
    pub(super) rules: Rules,
    pub(super) blocks: Arena,
    pub(super) pools: Vec<Pool>,
    pub(super) statistics: Statistics,
    next_address: u64,
    serial: u64,
}

impl PyTorchAllocator {
    /// An allocator that holds nothing yet.
    pub fn new(config: PyTorchConfig) -> Self {
        let pool = |kind| Pool { kind, searches: 0, lanes: vec![Lane::default()] };
        PyTorchAllocator {
            rules: Rules::new(config),
            blocks: Arena::new(),
            pools: vec![pool(PoolKind::Small), pool(PoolKind::Large)],
            statistics: Statistics::default(),
            next_address: FIRST_ADDRESS,
            serial: 0,
        }
    }

    /// The settings.
    pub fn config(&self) -> &PyTorchConfig {
        &self.rules.config
    }

    /// The counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Allocates `requested` bytes on a stream; blocks of other streams are never reused. A request of no bytes
    /// succeeds and moves nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`] when neither a cached block nor the driver can serve the request, even after everything
    /// unused was given back; always for more than 32 PiB.
    pub fn malloc(&mut self, requested: Bytes, stream: u16) -> Result<BlockHandle, OutOfMemory> {
        let requested = requested.get();
        if requested == 0 {
            return Ok(BlockHandle::NULL);
        }
        if requested > MAX_REQUEST {
            self.statistics.ooms += 1;
            return Err(self.out_of_memory(requested, requested, requested));
        }
        let size = self.rules.round(requested);
        let pool = if size <= SMALL_LIMIT { 0 } else { 1 };
        let request = Request { requested, size, pool, stream };
        match self.find_cached(&request) {
            Some(at) => Ok(self.hand_out_cached(at, &request)),
            None => {
                let block = self.grow(&request)?;
                Ok(self.hand_out_new(block, &request))
            }
        }
    }

    /// Frees a block. A handle belongs to the allocator that made it; one of another allocator is ignored unless
    /// it happens to name a live block.
    pub fn free(&mut self, block: BlockHandle) {
        let id = block.id();
        let Some(&Block { size, requested, prev, next, stream, pool, state, expandable, .. }) =
            self.blocks.get(id)
        else {
            return;
        };
        if state != State::Used {
            return;
        }
        self.count_free(size, requested);

        let (mut address, mut merged) = (self.blocks[id].address, size);
        let mut subsumed = [None, None];
        if self.blocks[prev].state == State::Free {
            let left = self.blocks[prev];
            subsumed[0] = Some(self.key_of(prev));
            (address, merged) = (left.address, merged + left.size);
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
        (block.address, block.size) = (address, merged);
        (block.state, block.free_since) = (State::Free, searches);
        let split = block.is_split();
        let key = self.key_of(id);
        let list = &mut self.lane(pool, stream).free;
        match subsumed {
            [None, None] => list.insert(key),
            [Some(old), None] | [None, Some(old)] => list.replace(old, key),
            [Some(left), Some(right)] => {
                list.remove(left);
                list.replace(right, key);
            }
        }
        if !expandable {
            self.statistics.inactive_split.shrink(merged - size);
            if split {
                self.statistics.inactive_split.grow(merged);
            }
        }
    }

    /// Gives every segment without a live block, and every whole unused page of expandable segments, back to the
    /// driver.
    pub fn empty_cache(&mut self) {
        self.release_cached();
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
    fn find_cached(&mut self, request: &Request) -> Option<Position> {
        let pool = &mut self.pools[request.pool as usize];
        if self.rules.collect_above.is_some() {
            pool.searches += 1;
        }
        let list = &pool.lanes.get(request.stream as usize)?.free;
        let mut at = list.first_at_least(request.size)?;
        if self.rules.expandable {
            let reach = |at| {
                let block = &self.blocks[list.at(at).id()];
                let next = &self.blocks[block.next];
                block.size + if next.state == State::Unmapped { next.size } else { 0 }
            };
            while let Some(next) = list.next(at)
                && reach(next) < reach(at)
            {
                at = next;
            }
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
    fn hand_out_cached(&mut self, at: Position, request: &Request) -> BlockHandle {
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
    fn hand_out_new(&mut self, id: BlockId, request: &Request) -> BlockHandle {
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
        let kind = self.pools[request.pool as usize].kind;
        let was_split = block.is_split();
        if self.rules.should_split(kind, request.size, remaining) {
            let front = Block {
                size: request.size,
                requested: request.requested,
                serial: self.next_serial(),
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
                if !block.expandable {
                    if was_split {
                        self.statistics.inactive_split.shrink(request.size);
                    } else {
                        self.statistics.inactive_split.grow(remaining);
                    }
                }
                return front;
            }
        }
        if was_split && !block.expandable {
            self.statistics.inactive_split.shrink(block.size);
        }
        let block = &mut self.blocks[id];
        (block.state, block.requested) = (State::Used, request.requested);
        id
    }

    fn count_allocation(&mut self, id: BlockId, request: &Request) -> BlockHandle {
        let size = self.blocks[id].size;
        self.statistics.requested.grow(request.requested);
        self.statistics.allocated.grow(size);
        self.statistics.active.grow(size);
        self.statistics.allocations.grow(1);
        BlockHandle(NonZeroU32::new(id.0).unwrap_or(NonZeroU32::MAX))
    }

    fn count_free(&mut self, size: u64, requested: u64) {
        self.statistics.requested.shrink(requested);
        self.statistics.allocated.shrink(size);
        self.statistics.active.shrink(size);
        self.statistics.allocations.shrink(1);
    }

    /// An address range of its own, never used before.
    pub(super) fn take_addresses(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let address = self.next_address.checked_next_multiple_of(alignment)?;
        let end = address.checked_add(size).filter(|end| *end <= LAST_ADDRESS)?;
        self.next_address = end.next_multiple_of(LARGE_ROUNDING);
        Some(address)
    }

    /// A block without neighbours, in no list.
    pub(super) fn insert_block(
        &mut self,
        address: u64,
        size: u64,
        state: State,
        request: &Request,
    ) -> Option<BlockId> {
        let serial = self.next_serial();
        self.blocks.insert(Block {
            address,
            size,
            requested: 0,
            serial,
            free_since: self.pools[request.pool as usize].searches,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            stream: request.stream,
            pool: request.pool,
            state,
            expandable: self.rules.expandable,
        })
    }

    /// Puts a free block into its list.
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let (key, block) = (self.key_of(id), self.blocks[id]);
        self.lane(block.pool, block.stream).free.insert(key);
    }

    /// The lane of a stream, made on first use.
    pub(super) fn lane(&mut self, pool: u16, stream: u16) -> &mut Lane {
        let lanes = &mut self.pools[pool as usize].lanes;
        let stream = stream as usize;
        if lanes.len() <= stream {
            lanes.resize_with(stream + 1, Lane::default);
        }
        &mut lanes[stream]
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn key_of(&self, id: BlockId) -> Key {
        let block = &self.blocks[id];
        let tie = if self.rules.oldest_first { block.serial } else { block.address / MIN_BLOCK };
        Key::new(block.size, tie, id)
    }
}

impl Allocator for PyTorchAllocator {
    type Block = BlockHandle;

    fn allocate(&mut self, requested: Bytes, stream: u16) -> Result<BlockHandle, OutOfMemory> {
        self.malloc(requested, stream)
    }

    fn release(&mut self, block: BlockHandle) {
        self.free(block);
    }

    fn empty_cache(&mut self) {
        self.release_cached();
    }

    fn allocated_size(&self, block: &BlockHandle) -> Bytes {
        self.block_size(block)
    }

    fn usage(&self) -> Usage {
        let Statistics { requested, allocated, reserved, .. } = &self.statistics;
        Usage {
            requested: requested.current,
            allocated: allocated.current,
            reserved: reserved.current,
        }
    }
}
