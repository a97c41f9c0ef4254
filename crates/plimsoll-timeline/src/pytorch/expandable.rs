//! Expandable segments: one address reservation per stream and pool, mapped page by page as it is needed and
//! unmapped when the cache is emptied.

use plimsoll_units::Bytes;

use super::allocator::{Lane, Request};
use super::arena::{Block, BlockId, State};
use super::driver::{Client, Driver};
use super::free_list::{FreeList, Position};
use super::pools::{pool_id, pool_kind};
use super::sorted::Key;
use super::{PoolKind, PyTorchAllocator};

/// Address space of a reservation where the device's memory is not known: 4 TiB, more than any device has.
const UNKNOWN_DEVICE: u64 = 1 << 42;

/// An address range of an expandable segment. Its pages are counted from its beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    pub address: u64,
    pub size: u64,
    pub page: u64,
}

impl Reservation {
    /// Whole pages of `at..end`; empty if there is none.
    fn inner(&self, at: u64, end: u64) -> (u64, u64) {
        let first = self.address + (at - self.address).next_multiple_of(self.page);
        let last = self.address + (end - self.address) / self.page * self.page;
        (first, last)
    }
}

impl<D: Driver> PyTorchAllocator<D> {
    /// The candidate of a best fit, where expandable and other segments may lie side by side. A request that may
    /// use expandable segments compares what blocks could grow to; another one passes over them.
    pub(super) fn prefer_expandable(
        &self,
        list: &FreeList,
        first: Position,
        wanted: bool,
    ) -> Option<Position> {
        let block = |at| &self.blocks[list.at(at).id()];
        let mut at = first;
        if !block(at).expandable {
            return Some(at);
        }
        if !wanted {
            while block(at).expandable {
                at = list.next(at)?;
            }
            return Some(at);
        }
        let reach = |at| {
            let block: &Block = block(at);
            let next = &self.blocks[block.next];
            block.size + if next.state == State::Unmapped { next.size } else { 0 }
        };
        while block(at).expandable
            && let Some(next) = list.next(at)
            && reach(next) < reach(at)
        {
            at = next;
        }
        Some(at)
    }

    /// A free block of at least the request's size, taken out of its list: grown from the first run of free and
    /// unmapped ranges that is long enough.
    pub(super) fn expand(&mut self, request: &Request) -> Option<BlockId> {
        let mut run = self.find_run(request)?;
        if self.blocks[run].state == State::Unmapped {
            self.map(run, request.size)?;
        }
        while self.blocks[run].size < request.size {
            let next = self.blocks[run].next;
            let missing = request.size - self.blocks[run].size;
            self.map(next, missing)?;
            run = next;
        }
        let key = self.key_of(run);
        self.lane(request.pool, request.stream).free.remove(key);
        Some(run)
    }

    /// The lowest unmapped range, or the free block just before it, from which free and unmapped neighbours reach
    /// far enough; else a new reservation.
    fn find_run(&mut self, request: &Request) -> Option<BlockId> {
        let available = |block: &Block| matches!(block.state, State::Free | State::Unmapped);
        self.lane(request.pool, request.stream);
        let lane = &self.pools[request.pool as usize].lanes[request.stream as usize];
        for &(_, unmapped) in &lane.unmapped {
            let prev = self.blocks[unmapped].prev;
            let start = if available(&self.blocks[prev]) { prev } else { unmapped };
            let (mut at, mut bytes) = (start, 0);
            while bytes < request.size && available(&self.blocks[at]) {
                bytes += self.blocks[at].size;
                at = self.blocks[at].next;
            }
            if bytes >= request.size {
                return Some(start);
            }
        }
        self.reserve(request)
    }

    /// A new reservation, nothing mapped.
    fn reserve(&mut self, request: &Request) -> Option<BlockId> {
        let client = request.client();
        let page = self.rules.page(client.kind);
        // A request beyond the whole device could never be mapped on a real one.
        let size = self.reservation_size(client.kind).max(request.size).next_multiple_of(page);
        let address = self.driver.reserve(client, Bytes::new(size), Bytes::new(page))?;
        let block = self.insert_block(address, size, State::Unmapped, request)?;
        self.lane(request.pool, request.stream).insert_unmapped(address, block);
        self.add_reservation(Reservation { address, size, page });
        Some(block)
    }

    /// Torch reserves 9/8 of the device, in whole pages.
    pub(super) fn reservation_size(&self, kind: PoolKind) -> u64 {
        let device = self.driver.total_bytes().map_or(UNKNOWN_DEVICE, |b| b.get().min(1 << 52));
        (device + device / 8).next_multiple_of(self.rules.page(kind))
    }

    pub(super) fn add_reservation(&mut self, reservation: Reservation) {
        let at = self.reservations.partition_point(|r| r.address < reservation.address);
        self.reservations.insert(at, reservation);
    }

    /// The reservation that an address of an expandable block lies in.
    pub(super) fn reservation_at(&self, address: u64) -> Option<Reservation> {
        let after = self.reservations.partition_point(|r| r.address <= address);
        after.checked_sub(1).map(|at| self.reservations[at])
    }

    /// Maps whole pages from the start of an unmapped block, at least `bytes` or the whole block, and merges them
    /// with their free neighbours. `None`, with nothing changed, when the device has too few pages left.
    fn map(&mut self, id: BlockId, bytes: u64) -> Option<()> {
        let block = self.blocks[id];
        let page = self.reservation_at(block.address)?.page;
        let mapped = bytes.next_multiple_of(page).min(block.size);
        let kind = pool_kind(block.pool);
        let client = Client { kind, pool: pool_id(block.pool), stream: block.stream };
        if !self.driver.map(client, block.address, Bytes::new(mapped)) {
            return None;
        }
        let rest = if mapped < block.size {
            let address = block.address + mapped;
            let order = self.order_of_part(block.order, mapped);
            let rest = Block { address, size: block.size - mapped, order, prev: id, ..block };
            let rest = self.blocks.insert(rest)?;
            self.blocks.link(rest, block.next);
            Some((address, rest))
        } else {
            None
        };
        let lane = self.lane(block.pool, block.stream);
        lane.remove_unmapped(block.address);
        if let Some((address, rest)) = rest {
            lane.insert_unmapped(address, rest);
        }
        let searches = self.pools[block.pool as usize].searches;
        let front = &mut self.blocks[id];
        (front.size, front.state, front.free_since) = (mapped, State::Free, searches);
        if let Some((_, rest)) = rest {
            front.next = rest;
        }
        self.merge_neighbours(id, State::Free);
        self.insert_free(id);
        self.tally.map(kind, mapped);
        self.tally.num_device_alloc += 1;
        Some(())
    }

    /// Gives back the whole pages inside a free block; what is left of it at both ends stays free.
    pub(super) fn unmap(&mut self, key: Key) {
        let id = key.id();
        let block = self.blocks[id];
        let Some(reservation) = self.reservation_at(block.address) else { return };
        let (start, end) = reservation.inner(block.address, block.end());
        if start >= end {
            return;
        }
        self.lane(block.pool, block.stream).free.remove(key);
        if start > block.address {
            let before = Block { size: start - block.address, next: id, ..block };
            let Some(before) = self.blocks.insert(before) else { return self.insert_free(id) };
            self.blocks[before].order = self.order_of_part(block.order, 0);
            self.blocks.link(block.prev, before);
            self.blocks[id].prev = before;
            self.blocks[id].address = start;
            self.blocks[id].order += self.rules.moves_order(start - block.address);
            self.blocks[id].size = block.end() - start;
            self.insert_free(before);
        }
        if block.end() > end {
            let after = Block { address: end, size: block.end() - end, prev: id, ..block };
            let Some(after) = self.blocks.insert(after) else { return self.insert_free(id) };
            self.blocks[after].order = self.order_of_part(block.order, end - block.address);
            self.blocks.link(after, block.next);
            self.blocks[id].next = after;
            self.blocks[id].size = end - start;
            self.insert_free(after);
        }
        let kind = pool_kind(block.pool);
        self.tally.unmap(kind, end - start);
        self.tally.num_device_free += 1;
        let client = Client { kind, pool: pool_id(block.pool), stream: block.stream };
        self.driver.unmap(client, start, Bytes::new(end - start));
        self.blocks[id].state = State::Unmapped;
        self.merge_neighbours(id, State::Unmapped);
        let address = self.blocks[id].address;
        if self.blocks[id].is_split() {
            self.lane(block.pool, block.stream).insert_unmapped(address, id);
        } else {
            // Nothing of the reservation is mapped any more.
            self.blocks.remove(id);
            self.reservations.retain(|r| r.address != reservation.address);
            let Reservation { address, size, .. } = reservation;
            self.driver.release(client, address, Bytes::new(size));
        }
    }

    /// Takes over the neighbours that are in the same state, with their entries in the lane's lists.
    fn merge_neighbours(&mut self, id: BlockId, state: State) {
        for left in [true, false] {
            let block = self.blocks[id];
            let neighbour = if left { block.prev } else { block.next };
            let other = self.blocks[neighbour];
            if other.state != state {
                continue;
            }
            let key = self.key_of(neighbour);
            let lane = self.lane(block.pool, block.stream);
            match state {
                State::Free => lane.free.remove(key),
                _ => lane.remove_unmapped(other.address),
            }
            if left {
                self.blocks.link(other.prev, id);
                self.blocks[id].address = other.address;
                if self.rules.order_is_position {
                    self.blocks[id].order = other.order;
                }
            } else {
                self.blocks.link(id, other.next);
            }
            self.blocks[id].size += other.size;
            self.blocks.remove(neighbour);
        }
    }
}

impl Lane {
    pub(super) fn insert_unmapped(&mut self, address: u64, id: BlockId) {
        let at = self.unmapped.partition_point(|(a, _)| *a < address);
        self.unmapped.insert(at, (address, id));
    }

    fn remove_unmapped(&mut self, address: u64) {
        if let Ok(at) = self.unmapped.binary_search_by_key(&address, |(a, _)| *a) {
            self.unmapped.remove(at);
        }
    }
}
