//! The caching allocator under its default settings on a device of some capacity, and nothing else: no further limits,
//! no pools, no frees that wait. It is what predicted timelines are replayed on, some hundreds of times where changes or
//! sizes are searched, so it is made for speed: blocks know their class of size, and a size that was asked for before is
//! found by one look. What it does not know it refuses; [`PyTorchAllocator`](super::PyTorchAllocator) is the law, and a
//! property test holds the two together event by event.

use std::num::NonZeroU32;

use plimsoll_units::Bytes;

use super::config::{LARGE_ROUNDING, MIN_BLOCK, PyTorchConfig, SMALL_LIMIT};
use crate::{Allocator, OutOfMemory, PoolId, Usage};

/// Larger requests, and more reserved bytes, are left to the full allocator.
const MOST: u64 = 1 << 50;
/// More sizes in one free list are left to the full allocator, whose lists do not slow down with them.
const MOST_CLASSES: usize = 4096;
/// Sizes that a free list remembers; a power of two.
const REMEMBERED: usize = 256;
/// No block.
const NONE: u32 = 0;

/// A contiguous part of a segment.
#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    size: u64,
    requested: u64,
    prev: u32,
    next: u32,
    /// Its size in the lane's classes.
    class: u32,
    lane: u16,
    free: bool,
}

const VACANT: Block = Block {
    address: 0,
    size: 0,
    requested: 0,
    prev: NONE,
    next: NONE,
    class: 0,
    lane: 0,
    free: false,
};

/// Free blocks of one size.
#[derive(Clone, Debug)]
struct Class {
    size: u64,
    /// Its place among the sizes of the lane.
    rank: u32,
    /// Address and block, highest first: the lowest is taken from the end, and mostly comes back to it.
    free: Vec<(u64, u32)>,
}

/// Free blocks of one kind and stream. Classes keep their number; `order` sorts them by size.
#[derive(Clone, Debug)]
struct Lane {
    classes: Vec<Class>,
    order: Vec<u32>,
    /// Which ranks have free blocks.
    occupied: Vec<u64>,
    remembered: [(u64, u32); REMEMBERED],
}

impl Lane {
    fn new() -> Self {
        Lane {
            classes: Vec::new(),
            order: Vec::new(),
            occupied: Vec::new(),
            remembered: [(0, 0); REMEMBERED],
        }
    }

    /// The class of a size, made on first use.
    #[inline]
    fn class(&mut self, size: u64) -> u32 {
        let hash = (size / MIN_BLOCK).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let slot = hash as usize % REMEMBERED;
        if self.remembered[slot].0 == size {
            return self.remembered[slot].1;
        }
        let class = self.find_class(size);
        self.remembered[slot] = (size, class);
        class
    }

    #[inline(never)]
    fn find_class(&mut self, size: u64) -> u32 {
        let rank = self.order.partition_point(|c| self.classes[*c as usize].size < size);
        match self.order.get(rank) {
            Some(c) if self.classes[*c as usize].size == size => *c,
            _ => self.make_class(rank, size),
        }
    }

    #[cold]
    fn make_class(&mut self, rank: usize, size: u64) -> u32 {
        let class = self.classes.len() as u32;
        self.classes.push(Class { size, rank: rank as u32, free: Vec::new() });
        self.order.insert(rank, class);
        self.occupied.resize(self.order.len().div_ceil(64), 0);
        for class in &self.order[rank + 1..] {
            self.classes[*class as usize].rank += 1;
        }
        // The bits from this rank on move up by one.
        let (word, below) = (rank / 64, (1 << (rank % 64)) - 1);
        let mut carried = self.occupied[word] >> 63;
        self.occupied[word] = (self.occupied[word] & below) | (self.occupied[word] & !below) << 1;
        for bits in &mut self.occupied[word + 1..] {
            (*bits, carried) = (*bits << 1 | carried, *bits >> 63);
        }
        class
    }

    #[inline]
    fn insert(&mut self, class: u32, address: u64, id: u32) {
        let class = &mut self.classes[class as usize];
        match class.free.last() {
            None => {
                self.occupied[class.rank as usize / 64] |= 1 << (class.rank % 64);
                class.free.push((address, id));
            }
            Some(lowest) if address < lowest.0 => class.free.push((address, id)),
            Some(_) => {
                let at = class.free.partition_point(|(a, _)| *a > address);
                class.free.insert(at, (address, id));
            }
        }
    }

    #[inline]
    fn remove(&mut self, class: u32, address: u64) {
        let entries = &self.classes[class as usize].free;
        let at = match entries.last() {
            Some(lowest) if lowest.0 == address => entries.len() - 1,
            _ => entries.partition_point(|(a, _)| *a > address),
        };
        self.take(class, at);
    }

    #[inline]
    fn take(&mut self, class: u32, at: usize) -> u32 {
        let class = &mut self.classes[class as usize];
        let (_, id) = class.free.remove(at);
        if class.free.is_empty() {
            self.occupied[class.rank as usize / 64] &= !(1 << (class.rank % 64));
        }
        id
    }

    /// Takes the lowest block of the smallest size that has any, from the given class on.
    #[inline]
    fn take_first(&mut self, class: u32) -> Option<u32> {
        let entries = self.classes[class as usize].free.len();
        if entries > 0 {
            return Some(self.take(class, entries - 1));
        }
        let rank = self.classes[class as usize].rank as usize;
        let (word, above) = (rank / 64, u64::MAX << (rank % 64));
        let mut words = self.occupied[word..].iter().copied().enumerate();
        let (first, bits) = words.next()?;
        let (at, bits) = match bits & above {
            0 => words.find(|(_, bits)| *bits != 0)?,
            bits => (first, bits),
        };
        let class = self.order[(word + at) * 64 + bits.trailing_zeros() as usize];
        let entries = self.classes[class as usize].free.len();
        Some(self.take(class, entries - 1))
    }
}

/// The allocator.
#[derive(Clone, Debug)]
pub(crate) struct PlainAllocator {
    /// The first is no block and never free.
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    /// Small and large requests of each stream.
    lanes: Vec<Lane>,
    usage: Usage,
    /// What the device has; `None` for as much as is asked for.
    capacity: Option<Bytes>,
    /// Where the next segment begins. Addresses grow, and none is used twice.
    next_address: u64,
    segments: u64,
    segments_peak: u64,
    retries: u64,
    /// Something happened that only the full allocator knows.
    beyond: bool,
}

impl PlainAllocator {
    /// An allocator that holds nothing yet, on a device with that much to give.
    pub fn new(capacity: Option<Bytes>) -> Self {
        PlainAllocator {
            blocks: vec![VACANT],
            vacant: Vec::new(),
            lanes: Vec::new(),
            usage: Usage::default(),
            capacity,
            next_address: 0,
            segments: 0,
            segments_peak: 0,
            retries: 0,
            beyond: false,
        }
    }

    /// Whether it knows these settings.
    pub fn knows(config: &PyTorchConfig) -> bool {
        PyTorchConfig { capacity: None, ..config.clone() } == PyTorchConfig::default()
    }

    /// Segments held at once, at most, and times that cached ones were given back to serve a request; `None` after
    /// something that it does not know, and then its errors say nothing either.
    pub fn counters(&self) -> Option<(u64, u64)> {
        (!self.beyond).then_some((self.segments_peak, self.retries))
    }

    /// A request that it does not know how to serve.
    #[cold]
    fn refuse(&mut self, requested: Bytes) -> OutOfMemory {
        self.beyond = true;
        self.out_of_memory(requested, requested, requested)
    }

    /// A request that found no room.
    #[cold]
    fn no_room(&self, requested: Bytes, size: u64) -> OutOfMemory {
        let rounded = Bytes::new(size);
        let segment = PyTorchConfig::default().segment_size(rounded);
        self.out_of_memory(requested, rounded, segment)
    }

    fn out_of_memory(&self, requested: Bytes, rounded: Bytes, segment: Bytes) -> OutOfMemory {
        let Usage { allocated, reserved, .. } = self.usage;
        let free = self.capacity.map(|capacity| capacity.saturating_sub(reserved));
        OutOfMemory { requested, rounded, segment, allocated, reserved, free }
    }

    fn insert_block(&mut self, block: Block) -> u32 {
        match self.vacant.pop() {
            Some(id) => {
                self.blocks[id as usize] = block;
                id
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    /// A free block, in no list, over a new segment.
    #[cold]
    fn grow(&mut self, size: u64, lane: u16) -> Option<u32> {
        let segment = PyTorchConfig::default().segment_size(Bytes::new(size)).get();
        if !self.has_room(segment) {
            self.give_back();
            self.retries += 1;
            if !self.has_room(segment) {
                return None;
            }
        }
        let (address, next_address) = (self.next_address, self.next_address + segment);
        if next_address > MOST || !segment.is_multiple_of(LARGE_ROUNDING) {
            self.beyond = true;
            return None;
        }
        self.next_address = next_address;
        self.usage.reserved += Bytes::new(segment);
        self.segments += 1;
        self.segments_peak = self.segments_peak.max(self.segments);
        let class = self.lanes[lane as usize].class(segment);
        Some(self.insert_block(Block { address, size: segment, class, lane, ..VACANT }))
    }

    /// Whether the device has room for a segment.
    fn has_room(&self, segment: u64) -> bool {
        let after = self.usage.reserved + Bytes::new(segment);
        self.capacity.is_none_or(|capacity| after <= capacity)
    }

    /// Gives back every segment that is one free block.
    fn give_back(&mut self) {
        for lane in &mut self.lanes {
            for class in &mut lane.classes {
                let blocks = &mut self.blocks;
                class.free.retain(|&(_, id)| {
                    let Block { prev, next, size, .. } = blocks[id as usize];
                    let whole = prev == NONE && next == NONE;
                    if whole {
                        blocks[id as usize] = VACANT;
                        self.vacant.push(id);
                        self.usage.reserved -= Bytes::new(size);
                        self.segments -= 1;
                    }
                    !whole
                });
                if class.free.is_empty() {
                    lane.occupied[class.rank as usize / 64] &= !(1 << (class.rank % 64));
                }
            }
        }
    }

    /// Cuts the front off a block that is in no list; the rest keeps the block's number and becomes free.
    fn split(&mut self, id: u32, size: u64, class: u32) -> u32 {
        let block = self.blocks[id as usize];
        let front = self.insert_block(Block { size, class, next: id, free: false, ..block });
        if block.prev != NONE {
            self.blocks[block.prev as usize].next = front;
        }
        let lane = &mut self.lanes[block.lane as usize];
        let rest = &mut self.blocks[id as usize];
        rest.prev = front;
        rest.address += size;
        rest.size -= size;
        rest.class = lane.class(rest.size);
        rest.free = true;
        lane.insert(rest.class, rest.address, id);
        front
    }
}

impl Allocator for PlainAllocator {
    /// `u32::MAX` for a request of no bytes.
    type Block = NonZeroU32;

    #[inline]
    fn allocate(&mut self, requested: Bytes, stream: u16) -> Result<NonZeroU32, OutOfMemory> {
        if requested.is_zero() {
            return Ok(NonZeroU32::MAX);
        }
        if requested.get() > MOST || stream > u16::MAX / 2 - 1 {
            return Err(self.refuse(requested));
        }
        let size = requested.get().next_multiple_of(MIN_BLOCK);
        let small = size <= SMALL_LIMIT;
        let lane = 2 * stream + u16::from(!small);
        if self.lanes.len() <= lane as usize {
            self.lanes.resize_with(lane as usize + 1, Lane::new);
        }
        let list = &mut self.lanes[lane as usize];
        let class = list.class(size);
        let found = list.take_first(class);
        let crowded = list.classes.len() > MOST_CLASSES;
        let mut id = match found.or_else(|| self.grow(size, lane)) {
            Some(id) if !crowded && id < u32::MAX - 1 => id,
            None if !crowded => return Err(self.no_room(requested, size)),
            _ => return Err(self.refuse(requested)),
        };
        let remaining = self.blocks[id as usize].size - size;
        if if small { remaining >= MIN_BLOCK } else { remaining > SMALL_LIMIT } {
            id = self.split(id, size, class);
        }
        let block = &mut self.blocks[id as usize];
        (block.free, block.requested) = (false, requested.get());
        self.usage.requested += requested;
        self.usage.allocated += Bytes::new(block.size);
        NonZeroU32::new(id).ok_or_else(|| self.refuse(requested))
    }

    fn allocate_in(
        &mut self,
        pool: PoolId,
        requested: Bytes,
        stream: u16,
    ) -> Result<NonZeroU32, OutOfMemory> {
        self.beyond |= !pool.is_default();
        self.allocate(requested, stream)
    }

    #[inline]
    fn release(&mut self, block: NonZeroU32) {
        let id = block.get();
        let Some(&freed) = self.blocks.get(id as usize) else { return };
        let Block { mut address, mut size, requested, prev, next, mut class, lane, .. } = freed;
        self.usage.requested -= Bytes::new(requested);
        self.usage.allocated -= Bytes::new(size);
        let (left, right) = (self.blocks[prev as usize], self.blocks[next as usize]);
        if left.free || right.free {
            let list = &mut self.lanes[lane as usize];
            if left.free {
                list.remove(left.class, left.address);
                (address, size) = (left.address, size + left.size);
                self.blocks[id as usize].prev = left.prev;
                if left.prev != NONE {
                    self.blocks[left.prev as usize].next = id;
                }
                self.blocks[prev as usize] = VACANT;
                self.vacant.push(prev);
            }
            if right.free {
                list.remove(right.class, right.address);
                size += right.size;
                self.blocks[id as usize].next = right.next;
                if right.next != NONE {
                    self.blocks[right.next as usize].prev = id;
                }
                self.blocks[next as usize] = VACANT;
                self.vacant.push(next);
            }
            class = list.class(size);
        }
        let block = &mut self.blocks[id as usize];
        (block.address, block.size, block.class, block.free) = (address, size, class, true);
        self.lanes[lane as usize].insert(class, address, id);
    }

    fn request_free(&mut self, _: &NonZeroU32) {
        self.beyond = true;
    }

    fn complete_free(&mut self, block: NonZeroU32) {
        self.beyond = true;
        self.release(block);
    }

    fn record_stream(&mut self, _: &NonZeroU32, _: u16) {
        self.beyond = true;
    }

    fn begin_pool(&mut self, _: PoolId) {
        self.beyond = true;
    }

    fn end_pool(&mut self, _: PoolId) {
        self.beyond = true;
    }

    fn release_pool(&mut self, _: PoolId) {
        self.beyond = true;
    }

    fn begin_capture(&mut self) {
        self.beyond = true;
    }

    fn end_capture(&mut self) {
        self.beyond = true;
    }

    fn empty_cache(&mut self) {
        self.beyond = true;
    }

    #[inline]
    fn allocated_size(&self, block: &NonZeroU32) -> Bytes {
        Bytes::new(self.blocks.get(block.get() as usize).map_or(0, |b| b.size))
    }

    #[inline]
    fn usage(&self) -> Usage {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::PyTorchAllocator;

    /// Sizes around the limits of pools, splits and segments, and those of a training step.
    fn size() -> impl Strategy<Value = u64> {
        const MIB: u64 = 1 << 20;
        prop_oneof![
            4 => prop::sample::select(vec![
                0, 1, 512, 513, 4096, 600 << 10, MIB - 512, MIB, MIB + 1, 2 * MIB, 3 * MIB, 9 * MIB, 10 * MIB - 512,
                10 * MIB, 13 * MIB, 19 * MIB, 20 * MIB, 64 * MIB, 65 * MIB, 256 * MIB,
            ]),
            1 => 1..40 * MIB,
            1 => 1..2 * MIB,
        ]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Alloc(u64, u16),
        /// The n-th live block, the youngest, or the oldest.
        Free(usize),
        FreeLast,
        FreeFirst,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (size(), 0..3u16).prop_map(|(size, stream)| Step::Alloc(size, stream)),
            2 => any::<usize>().prop_map(Step::Free),
            1 => Just(Step::FreeLast),
            1 => Just(Step::FreeFirst),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn equals_the_full_allocator(
            steps in prop::collection::vec(step(), 1..2500),
            capacity in prop::option::of((0..2000u64).prop_map(Bytes::mib)),
        ) {
            let config = PyTorchConfig { capacity, ..PyTorchConfig::default() };
            let mut plain = PlainAllocator::new(capacity);
            let mut torch = PyTorchAllocator::new(config);
            let mut live = Vec::new();
            for step in steps {
                let at = match step {
                    Step::Alloc(size, stream) => {
                        let a = plain.allocate(Bytes::new(size), stream);
                        match (a, torch.malloc(Bytes::new(size), stream)) {
                            (Ok(a), Ok(b)) => {
                                prop_assert_eq!(plain.allocated_size(&a), torch.block_size(&b));
                                live.push((a, b));
                            }
                            (a, b) => prop_assert_eq!(a.err(), b.err()),
                        }
                        None
                    }
                    Step::Free(n) => Some(n),
                    Step::FreeLast => Some(live.len().saturating_sub(1)),
                    Step::FreeFirst => Some(0),
                };
                if let Some(at) = at.filter(|_| !live.is_empty()) {
                    let (a, b) = live.remove(at % live.len());
                    plain.release(a);
                    torch.free(b);
                }
                prop_assert_eq!(plain.usage(), torch.usage());
            }
            let statistics = torch.statistics();
            let counters = (statistics.all.segment.peak, statistics.num_alloc_retries);
            prop_assert_eq!(plain.counters(), Some(counters));
        }
    }

    #[test]
    fn what_it_does_not_know_is_refused() {
        for (size, stream) in [(MOST + 1, 0), (1, u16::MAX)] {
            let mut plain = PlainAllocator::new(None);
            assert_eq!(plain.counters(), Some((0, 0)));
            assert!(plain.allocate(Bytes::new(size), stream).is_err());
            assert_eq!(plain.counters(), None);
        }
        let mut plain = PlainAllocator::new(None);
        plain.empty_cache();
        assert_eq!(plain.counters(), None);
        let mut crowded = PlainAllocator::new(None);
        let more = (1..2 * MOST_CLASSES as u64)
            .map(|n| crowded.allocate(Bytes::mib(20) + Bytes::new(n * MIN_BLOCK), 0));
        assert!(more.last().is_some_and(|last| last.is_err()));
        assert_eq!(crowded.counters(), None);
    }
}
