//! Expandable segments: one address reservation per stream and pool, mapped page by page as it is needed and
//! unmapped when the cache is emptied.

use super::PyTorchAllocator;
use super::allocator::Request;
use super::arena::{Block, BlockId, State};
use super::free_list::Key;

/// Address space of a reservation where the device's memory is not known: 4 TiB, more than any device has.
const UNKNOWN_DEVICE: u64 = 1 << 42;

impl PyTorchAllocator {
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
        let page = self.rules.page(self.pools[request.pool as usize].kind);
        let device = match self.rules.capacity {
            u64::MAX => UNKNOWN_DEVICE,
            capacity => capacity.min(1 << 52),
        };
        // Torch reserves 9/8 of the device; a larger request could never be mapped on a real one.
        let size = (device + device / 8).max(request.size).next_multiple_of(page);
        let address = self.take_addresses(size, page)?;
        let block = self.insert_block(address, size, State::Unmapped, request)?;
        self.lane(request.pool, request.stream).insert_unmapped(address, block);
        Some(block)
    }

    /// Maps whole pages from the start of an unmapped block, at least `bytes` or the whole block, and merges them
    /// with their free neighbours. `None`, with nothing changed, when the device has too few pages left.
    fn map(&mut self, id: BlockId, bytes: u64) -> Option<()> {
        let block = self.blocks[id];
        let page = self.rules.page(self.pools[block.pool as usize].kind);
        let mapped = bytes.min(block.size).next_multiple_of(page);
        let after = self.statistics.reserved.current.get().checked_add(mapped)?;
        if after > self.rules.capacity {
            return None;
        }
        let rest = if mapped < block.size {
            let address = block.address + mapped;
            let serial = self.next_serial();
            let rest = Block { address, size: block.size - mapped, serial, prev: id, ..block };
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
        self.statistics.reserved.grow(mapped);
        self.statistics.device_allocs += 1;
        Some(())
    }

    /// Gives back the whole pages inside a free block; what is left of it at both ends stays free.
    pub(super) fn unmap(&mut self, key: Key) {
        let id = key.id();
        let block = self.blocks[id];
        let page = self.rules.page(self.pools[block.pool as usize].kind);
        // Reservations are aligned to pages, so page boundaries are multiples.
        let start = block.address.next_multiple_of(page);
        let end = block.end() / page * page;
        if start >= end {
            return;
        }
        self.lane(block.pool, block.stream).free.remove(key);
        if start > block.address {
            let before = Block { size: start - block.address, next: id, ..block };
            let Some(before) = self.blocks.insert(before) else { return self.insert_free(id) };
            self.blocks[before].serial = self.next_serial();
            self.blocks.link(block.prev, before);
            self.blocks[id].prev = before;
            self.blocks[id].address = start;
            self.blocks[id].size = block.end() - start;
            self.insert_free(before);
        }
        if block.end() > end {
            let after = Block { address: end, size: block.end() - end, prev: id, ..block };
            let Some(after) = self.blocks.insert(after) else { return self.insert_free(id) };
            self.blocks[after].serial = self.next_serial();
            self.blocks.link(after, block.next);
            self.blocks[id].next = after;
            self.blocks[id].size = end - start;
            self.insert_free(after);
        }
        self.statistics.reserved.shrink(end - start);
        self.statistics.device_frees += 1;
        self.blocks[id].state = State::Unmapped;
        self.merge_neighbours(id, State::Unmapped);
        let Block { address, .. } = self.blocks[id];
        if self.blocks[id].is_split() {
            self.lane(block.pool, block.stream).insert_unmapped(address, id);
        } else {
            // Nothing of the reservation is mapped any more.
            self.blocks.remove(id);
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
            } else {
                self.blocks.link(id, other.next);
            }
            self.blocks[id].size += other.size;
            self.blocks.remove(neighbour);
        }
    }
}

impl super::allocator::Lane {
    fn insert_unmapped(&mut self, address: u64, id: BlockId) {
        let at = self.unmapped.partition_point(|(a, _)| *a < address);
        self.unmapped.insert(at, (address, id));
    }

    fn remove_unmapped(&mut self, address: u64) {
        if let Ok(at) = self.unmapped.binary_search_by_key(&address, |(a, _)| *a) {
            self.unmapped.remove(at);
        }
    }
}
