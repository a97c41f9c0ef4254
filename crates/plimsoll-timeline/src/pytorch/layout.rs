//! The blocks as they lie in their segments: what a memory snapshot of torch shows. An allocator gives its
//! [`Layout`] back, and can begin from one.

use std::collections::BTreeMap;

use plimsoll_units::Bytes;

use super::allocator::Request;
use super::arena::{BlockId, State};
use super::config::MIN_BLOCK;
use super::driver::{Client, Device, Driver, LAST_ADDRESS};
use super::expandable::Reservation;
use super::pools::{pool_id, pool_index, pool_kind};
use super::{BlockHandle, PoolKind, PyTorchAllocator, PyTorchConfig};
use crate::PoolId;

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockState {
    /// In use.
    Allocated,
    /// Freed, but another stream may still use it.
    PendingFree,
    /// Cached.
    Free,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutBlock {
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// What was asked for; zero for a free block.
    pub requested: Bytes,
    /// Whether it is in use.
    pub state: BlockState,
}

/// A range that the driver has given: a segment, or one contiguous mapped range of an expandable segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutSegment {
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// Whether it serves small or large requests.
    pub kind: PoolKind,
    /// The stream that it serves.
    pub stream: u16,
    /// The memory pool that it belongs to.
    pub pool: PoolId,
    /// Whether it is a part of an expandable segment.
    pub expandable: bool,
    /// Its blocks, in order of address, without gaps.
    pub blocks: Vec<LayoutBlock>,
}

/// The address range of an expandable segment. A snapshot does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutReservation {
    /// Its first byte; pages are counted from here.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// Whether it serves small or large requests.
    pub kind: PoolKind,
    /// The stream that it serves.
    pub stream: u16,
    /// The memory pool that it belongs to.
    pub pool: PoolId,
}

/// Everything that an allocator holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The segments, in order of address where an allocator made it.
    pub segments: Vec<LayoutSegment>,
    /// Address ranges of expandable segments, as far as they are known. Mapped ranges outside of them are put into
    /// ranges as long as torch makes them, which begin at the lowest mapped address.
    pub reservations: Vec<LayoutReservation>,
}

impl Layout {
    /// The blocks that are not free, segment by segment: those that an allocator made from this layout has handles
    /// for, in the same order.
    pub fn active_blocks(&self) -> impl Iterator<Item = (&LayoutSegment, &LayoutBlock)> {
        (self.segments.iter())
            .flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)))
            .filter(|(_, block)| block.state != BlockState::Free)
    }

    /// Bytes of all segments.
    pub fn reserved(&self) -> Bytes {
        self.segments.iter().map(|segment| segment.size).sum()
    }
}

/// A layout that no allocator can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A segment or block of an impossible size or address.
    #[error(
        "range of {size} at {address:#x} is not a positive multiple of 512 bytes below 2^57, as blocks of torch are"
    )]
    Range {
        /// First address.
        address: u64,
        /// Size.
        size: Bytes,
    },
    /// The blocks of a segment leave a gap, overlap or reach beyond it.
    #[error(
        "blocks of the segment at {segment:#x} do not tile it: {expected:#x} is expected, {found:#x} found"
    )]
    Tiling {
        /// The segment.
        segment: u64,
        /// Where the next block, or the end, is expected.
        expected: u64,
        /// Where it is.
        found: u64,
    },
    /// Two segments or reservations share addresses.
    #[error("ranges at {first:#x} and {second:#x} overlap")]
    Overlap {
        /// The lower one.
        first: u64,
        /// The higher one.
        second: u64,
    },
    /// More than 2^32 blocks.
    #[error("layout has more than 2^32 blocks")]
    TooManyBlocks,
}

impl PyTorchAllocator {
    /// An allocator that begins with what a layout shows, on a device of the configured capacity, and the handles
    /// of [`Layout::active_blocks`]. Neighbouring free blocks are merged. Statistics begin as if the blocks had
    /// just been made; every private pool has one user.
    ///
    /// # Errors
    /// [`LayoutError`] for a layout that no allocator can have.
    ///
    /// ```
    /// use plimsoll_timeline::{PyTorchAllocator, PyTorchConfig};
    /// use plimsoll_units::Bytes;
    /// let mut torch = PyTorchAllocator::new(PyTorchConfig::default());
    /// let _weight = torch.malloc(Bytes::mib(3), 0).unwrap();
    /// let layout = torch.layout();
    /// let (copy, blocks) = PyTorchAllocator::from_layout(PyTorchConfig::default(), &layout)?;
    /// assert_eq!(copy.layout(), layout);
    /// assert_eq!(copy.address(&blocks[0]), layout.segments[0].address);
    /// # Ok::<(), plimsoll_timeline::LayoutError>(())
    /// ```
    pub fn from_layout(
        config: PyTorchConfig,
        layout: &Layout,
    ) -> Result<(Self, Vec<BlockHandle>), LayoutError> {
        let device = Device::new(config.capacity);
        PyTorchAllocator::from_layout_on(config, layout, device)
    }
}

impl<D: Driver> PyTorchAllocator<D> {
    /// [`from_layout`](PyTorchAllocator::from_layout) with a driver.
    ///
    /// # Errors
    /// [`LayoutError`] for a layout that no allocator can have.
    pub fn from_layout_on(
        config: PyTorchConfig,
        layout: &Layout,
        driver: D,
    ) -> Result<(Self, Vec<BlockHandle>), LayoutError> {
        check(layout)?;
        let mut allocator = PyTorchAllocator::with_driver(config, driver);
        let ranges = allocator.place_reservations(layout)?;
        let mut handles = Vec::new();
        let mut ends: Vec<Option<(BlockId, BlockId)>> = Vec::with_capacity(layout.segments.len());
        for segment in &layout.segments {
            ends.push(allocator.adopt(segment, &mut handles)?);
        }
        for range in &ranges {
            allocator.link_range(layout, range, &ends)?;
        }
        allocator.list_adopted();
        Ok((allocator, handles))
    }

    /// What the allocator holds, segments in order of address.
    pub fn layout(&self) -> Layout {
        let mut layout = Layout::default();
        let heads = self.blocks.iter().filter(|(_, block)| block.prev.is_none());
        for (head, first) in heads {
            if first.expandable
                && let Some(reservation) = self.reservation_at(first.address)
            {
                layout.reservations.push(LayoutReservation {
                    address: reservation.address,
                    size: Bytes::new(reservation.size),
                    kind: pool_kind(first.pool),
                    stream: first.stream,
                    pool: pool_id(first.pool),
                });
            }
            self.show_segments(head, &mut layout.segments);
        }
        layout.segments.sort_unstable_by_key(|s| s.address);
        layout.reservations.sort_unstable_by_key(|r| r.address);
        layout
    }

    /// The segments of a chain of blocks: one, or one for each mapped range.
    fn show_segments(&self, head: BlockId, segments: &mut Vec<LayoutSegment>) {
        let mut open: Option<LayoutSegment> = None;
        let mut at = head;
        while !at.is_none() {
            let block = &self.blocks[at];
            at = block.next;
            let state = match block.state {
                State::Used => BlockState::Allocated,
                State::Pending => BlockState::PendingFree,
                State::Free => BlockState::Free,
                State::Unmapped | State::Vacant | State::Awaited => {
                    segments.extend(open.take());
                    continue;
                }
            };
            let segment = open.get_or_insert_with(|| LayoutSegment {
                address: block.address,
                size: Bytes::ZERO,
                kind: pool_kind(block.pool),
                stream: block.stream,
                pool: pool_id(block.pool),
                expandable: block.expandable,
                blocks: Vec::new(),
            });
            let size = Bytes::new(block.size);
            segment.size += size;
            segment.blocks.push(LayoutBlock {
                address: block.address,
                size,
                requested: match state {
                    BlockState::Free => Bytes::ZERO,
                    BlockState::Allocated | BlockState::PendingFree => Bytes::new(block.requested),
                },
                state,
            });
        }
        segments.extend(open);
    }

    /// Makes the blocks of one segment, linked and counted, in no list; its first and last one.
    fn adopt(
        &mut self,
        segment: &LayoutSegment,
        handles: &mut Vec<BlockHandle>,
    ) -> Result<Option<(BlockId, BlockId)>, LayoutError> {
        let request =
            segment_request(segment.pool, segment.kind, segment.stream, segment.expandable);
        if !segment.pool.is_default() {
            self.open_pool(segment.pool);
        }
        let mut ends: Option<(BlockId, BlockId)> = None;
        for shown in &segment.blocks {
            let size = shown.size.get();
            let state = match shown.state {
                BlockState::Allocated => State::Used,
                BlockState::PendingFree => State::Pending,
                BlockState::Free => State::Free,
            };
            if let Some((_, last)) = ends
                && state == State::Free
                && self.blocks[last].state == State::Free
            {
                self.blocks[last].size += size;
                continue;
            }
            let id = (self.insert_block(shown.address, size, state, &request))
                .ok_or(LayoutError::TooManyBlocks)?;
            if state != State::Free {
                let requested = shown.requested.get().min(size);
                self.blocks[id].requested = requested;
                self.count_active(segment.kind, size, requested);
                handles.push(BlockHandle::new(id));
            }
            if state == State::Pending {
                self.count_free_request(id);
                self.push_requested(id);
            }
            if let Some((_, last)) = ends {
                self.blocks.link(last, id);
            }
            ends = Some((ends.map_or(id, |(first, _)| first), id));
        }
        let size = segment.size.get();
        if segment.expandable {
            self.tally.map(segment.kind, size);
        } else {
            self.count_segment(segment.kind, size);
        }
        self.tally.num_device_alloc += 1;
        self.driver.adopt(request.client(), segment.address, segment.size);
        Ok(ends)
    }

    /// The reservations of the layout and those that have to be made up, with the segments of each.
    fn place_reservations(&mut self, layout: &Layout) -> Result<Vec<Range>, LayoutError> {
        let mut segments: Vec<usize> = (0..layout.segments.len()).collect();
        segments.sort_unstable_by_key(|i| layout.segments[*i].address);
        let range = |reservation: LayoutReservation| Range { reservation, segments: Vec::new() };
        let mut ranges: BTreeMap<u64, Range> =
            layout.reservations.iter().map(|r| (r.address, range(*r))).collect();
        // Where the next thing begins, for the end of a range that is made up.
        let mut starts: Vec<u64> = ranges.keys().copied().collect();
        starts.extend(layout.segments.iter().filter(|s| !s.expandable).map(|s| s.address));
        starts.sort_unstable();
        for i in segments {
            let segment = &layout.segments[i];
            if !segment.expandable {
                continue;
            }
            let end = segment.address + segment.size.get();
            if let Some((_, below)) = ranges.range_mut(..=segment.address).next_back() {
                if below.holds(segment, end) {
                    below.segments.push(i);
                    continue;
                }
                // A range that was made up must not reach into this one.
                let r = &mut below.reservation;
                r.size = r.size.min(Bytes::new(segment.address - r.address));
            }
            let page = self.rules.page(segment.kind);
            let next = starts.partition_point(|start| *start < end);
            let most = starts.get(next).copied().unwrap_or(LAST_ADDRESS) - segment.address;
            let size = self.reservation_size(segment.kind).min(most) / page * page;
            let size = Bytes::new(size).max(segment.size);
            let LayoutSegment { address, kind, stream, pool, .. } = *segment;
            let reservation = LayoutReservation { address, size, kind, stream, pool };
            ranges.insert(address, Range { reservation, segments: vec![i] });
        }
        for Range { reservation, .. } in ranges.values() {
            let page = self.rules.page(reservation.kind);
            let LayoutReservation { address, kind, stream, pool, .. } = *reservation;
            let size = reservation.size.get();
            self.add_reservation(Reservation { address, size, page });
            // Addresses that the driver makes up must lie beyond the whole range, mapped or not.
            self.driver.adopt(Client { kind, pool, stream }, address + size, Bytes::ZERO);
        }
        Ok(ranges.into_values().collect())
    }

    /// Joins the mapped ranges of a reservation with the unmapped ones between them.
    fn link_range(
        &mut self,
        layout: &Layout,
        range: &Range,
        ends: &[Option<(BlockId, BlockId)>],
    ) -> Result<(), LayoutError> {
        let LayoutReservation { address, size, kind, stream, pool } = range.reservation;
        let request = segment_request(pool, kind, stream, true);
        if !pool.is_default() {
            self.open_pool(pool);
        }
        let (mut at, mut last) = (address, BlockId::NONE);
        let end = address + size.get();
        let mapped = range.segments.iter().filter_map(|i| {
            let segment = &layout.segments[*i];
            ends[*i].map(|ends| (segment.address, segment.address + segment.size.get(), ends))
        });
        for (from, to, (first, final_block)) in mapped {
            last = self.unmapped(at, from, last, &request)?;
            self.blocks.link(last, first);
            (at, last) = (to, final_block);
        }
        self.unmapped(at, end, last, &request)?;
        Ok(())
    }

    /// An unmapped block for a gap, linked to what lies before it; `before` itself where there is no gap.
    fn unmapped(
        &mut self,
        from: u64,
        to: u64,
        before: BlockId,
        request: &Request,
    ) -> Result<BlockId, LayoutError> {
        if from >= to {
            return Ok(before);
        }
        let id = (self.insert_block(from, to - from, State::Unmapped, request))
            .ok_or(LayoutError::TooManyBlocks)?;
        self.blocks.link(before, id);
        self.lane(request.pool, request.stream).insert_unmapped(from, id);
        Ok(id)
    }

    /// Puts adopted free blocks into their lists and counts those of split segments.
    fn list_adopted(&mut self) {
        let free: Vec<BlockId> = (self.blocks.iter())
            .filter(|(_, block)| block.state == State::Free)
            .map(|(id, _)| id)
            .collect();
        for id in free {
            self.insert_free(id);
            let block = self.blocks[id];
            if block.is_split() && !block.expandable {
                self.tally.grow_split(pool_kind(block.pool), 1, block.size);
            }
        }
    }
}

/// A reservation and the segments of the layout that lie in it, by address.
struct Range {
    reservation: LayoutReservation,
    segments: Vec<usize>,
}

impl Range {
    fn holds(&self, segment: &LayoutSegment, end: u64) -> bool {
        let r = &self.reservation;
        (r.kind, r.stream, r.pool) == (segment.kind, segment.stream, segment.pool)
            && r.address <= segment.address
            && end <= r.address + r.size.get()
    }
}

fn segment_request(pool: PoolId, kind: PoolKind, stream: u16, expandable: bool) -> Request {
    let pool = pool_index(pool, kind);
    Request { requested: 0, size: 0, pool, stream, capturing: false, expandable }
}

/// Sizes, tiling, overlap.
fn check(layout: &Layout) -> Result<(), LayoutError> {
    let mut ranges = Vec::with_capacity(layout.segments.len());
    for segment in &layout.segments {
        ranges.push((segment.address, range_end(segment.address, segment.size)?));
        let mut at = segment.address;
        for block in &segment.blocks {
            if block.address != at {
                let (segment, found) = (segment.address, block.address);
                return Err(LayoutError::Tiling { segment, expected: at, found });
            }
            at = range_end(block.address, block.size)?;
        }
        let end = segment.address + segment.size.get();
        if at != end {
            let segment = segment.address;
            return Err(LayoutError::Tiling { segment, expected: end, found: at });
        }
    }
    no_overlap(&mut ranges)?;
    let mut reserved = Vec::with_capacity(layout.reservations.len());
    for reservation in &layout.reservations {
        reserved.push((reservation.address, range_end(reservation.address, reservation.size)?));
    }
    no_overlap(&mut reserved)?;
    for segment in &layout.segments {
        let end = segment.address + segment.size.get();
        let after = reserved.partition_point(|(start, _)| *start < end);
        if let Some((start, stop)) = after.checked_sub(1).map(|i| reserved[i])
            && stop > segment.address
        {
            let matching = layout.reservations.iter().find(|r| r.address == start);
            let home = matching.is_some_and(|r| {
                let range = Range { reservation: *r, segments: Vec::new() };
                segment.expandable && range.holds(segment, end)
            });
            if !home {
                let (a, b) = (start.min(segment.address), start.max(segment.address));
                return Err(LayoutError::Overlap { first: a, second: b });
            }
        }
    }
    Ok(())
}

fn range_end(address: u64, size: Bytes) -> Result<u64, LayoutError> {
    let whole = |n: u64| n.is_multiple_of(MIN_BLOCK);
    (address.checked_add(size.get()))
        .filter(|end| {
            *end <= LAST_ADDRESS && whole(address) && whole(size.get()) && !size.is_zero()
        })
        .ok_or(LayoutError::Range { address, size })
}

fn no_overlap(ranges: &mut [(u64, u64)]) -> Result<(), LayoutError> {
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(LayoutError::Overlap { first: pair[0].0, second: pair[1].0 }),
        None => Ok(()),
    }
}
