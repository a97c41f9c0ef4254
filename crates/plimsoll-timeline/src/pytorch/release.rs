//! When no cached block serves a request: collect unused segments, ask the driver, give back what is unused and
//! ask again, fail. And the giving back itself.

use plimsoll_units::Bytes;

use super::allocator::Request;
use super::arena::{BlockId, State};
use super::config::MIN_BLOCK;
use super::driver::{Client, Driver};
use super::free_list::Position;
use super::pools::{pool_id, pool_index, pool_kind};
use super::sorted::Key;
use super::{BlockHandle, PoolKind, PyTorchAllocator};
use crate::{OutOfMemory, PoolId};

/// The large default pool, the only one that garbage collection looks at.
const LARGE_POOL: usize = pool_index(PoolId::DEFAULT, PoolKind::Large) as usize;

/// Why the driver gave nothing.
enum Refusal {
    /// A limit or the device; giving something back may help.
    Full,
    /// `throw_on_cudamalloc_oom`: nothing is tried.
    Rejected,
}

impl<D: Driver> PyTorchAllocator<D> {
    /// Serves a request that no cached block serves.
    #[cold]
    pub(super) fn grow(&mut self, request: Request) -> Result<BlockHandle, OutOfMemory> {
        self.collect_garbage();
        let refusal = match self.ask_driver(&request) {
            Ok(block) => return Ok(self.hand_out_new(block, &request)),
            Err(refusal) => refusal,
        };
        if matches!(refusal, Refusal::Full) {
            if let Some((at, request)) = self.find_in_overflow_pools(request) {
                return Ok(self.hand_out_cached(at, &request));
            }
            if let Some(block) = self.give_back_and_retry(&request) {
                return Ok(self.hand_out_new(block, &request));
            }
        }
        let segment = self.rules.segment_size(request.size);
        Err(self.out_of_memory(request.requested, request.size, segment))
    }

    /// The attempts between a refusal and the error, which this counts.
    fn give_back_and_retry(&mut self, request: &Request) -> Option<BlockId> {
        if self.release_oversize(request) {
            match self.ask_driver(request) {
                Ok(block) => return Some(block),
                Err(Refusal::Full) => {}
                Err(Refusal::Rejected) => return None,
            }
        }
        // Neither may anything be waited for during a capture, nor given back.
        if !request.capturing {
            self.release_cached(false);
            self.tally.num_alloc_retries += 1;
            match self.ask_driver(request) {
                Ok(block) => return Some(block),
                Err(Refusal::Full) => {}
                Err(Refusal::Rejected) => return None,
            }
        }
        self.tally.num_ooms += 1;
        None
    }

    /// The error of a request that failed just now.
    pub(super) fn out_of_memory(&self, requested: u64, rounded: u64, segment: u64) -> OutOfMemory {
        let reserved = Bytes::new(self.tally.reserved());
        let allowed = (self.rules.limit < u64::MAX)
            .then(|| Bytes::new(self.rules.limit).saturating_sub(reserved));
        OutOfMemory {
            requested: Bytes::new(requested),
            rounded: Bytes::new(rounded),
            segment: Bytes::new(segment),
            allocated: Bytes::new(self.tally.allocated()),
            reserved,
            free: allowed.into_iter().chain(self.driver.free_bytes()).min(),
        }
    }

    fn ask_driver(&mut self, request: &Request) -> Result<BlockId, Refusal> {
        let segment = self.rules.segment_size(request.size);
        let reserved = self.tally.reserved();
        let after = reserved.checked_add(segment).ok_or(Refusal::Full)?;
        if after > self.rules.limit {
            return Err(Refusal::Full);
        }
        if after > self.rules.reject_above {
            self.tally.num_oom_rejections += 1;
            return Err(Refusal::Rejected);
        }
        let block = if request.expandable {
            self.expand(request)
        } else {
            self.add_segment(request, segment)
        };
        block.ok_or(Refusal::Full)
    }

    fn add_segment(&mut self, request: &Request, segment: u64) -> Option<BlockId> {
        let client = request.client();
        let address = self.driver.alloc_segment(client, Bytes::new(segment))?;
        let Some(block) = self.insert_block(address, segment, State::Free, request) else {
            self.driver.free_segment(client, address, Bytes::new(segment));
            return None;
        };
        self.count_segment(client.kind, segment);
        self.tally.num_device_alloc += 1;
        Some(block)
    }

    /// A segment comes into being.
    pub(super) fn count_segment(&mut self, kind: PoolKind, size: u64) {
        self.tally.add_segment(kind, size);
        if size >= self.rules.max_split {
            self.tally.oversize_segments.grow();
        }
    }

    /// A block of a private pool that may help out, for a request of the default pool.
    fn find_in_overflow_pools(&mut self, request: Request) -> Option<(Position, Request)> {
        if !pool_id(request.pool).is_default() {
            return None;
        }
        for pool in 1..self.private.len() {
            if self.private[pool].exists && self.private[pool].options.use_on_oom {
                let pool = pool_index(PoolId(pool as u16), pool_kind(request.pool));
                let request = Request { pool, expandable: false, ..request };
                if let Some(at) = self.find_cached(&request) {
                    return Some((at, request));
                }
            }
        }
        None
    }

    /// Gives back unused segments of the large pool that have not been used for longer than the average, until
    /// enough is free or nothing more can be freed. A pass is not cut short.
    fn collect_garbage(&mut self) {
        let Some(threshold) = self.rules.collect_above else { return };
        let reserved = self.tally.reserved();
        let Some(target) = reserved.checked_sub(threshold) else {
            return;
        };
        let pool = &self.pools[LARGE_POOL];
        // Blocks of expandable segments count for the average, and are not given back.
        let mut candidates: Vec<(u64, Key)> = (pool.lanes.iter())
            .flat_map(|lane| lane.free.iter())
            .map(|key| (key, &self.blocks[key.id()]))
            .filter(|(_, block)| !block.is_split())
            .map(|(key, block)| (pool.searches - block.free_since, key))
            .collect();
        let mut freed = 0;
        while freed < target && !candidates.is_empty() {
            // Torch compares with total / count as doubles and keeps both running while the pass goes on, but the
            // threshold of a pass is fixed before it.
            let total: u128 = candidates.iter().map(|(age, _)| u128::from(*age)).sum();
            let count = candidates.len() as u128;
            let before = candidates.len();
            candidates.retain(|(age, key)| {
                let old = u128::from(*age) * count >= total && !self.blocks[key.id()].expandable;
                if old {
                    freed += key.size();
                    self.release_segment(*key);
                }
                !old
            });
            if candidates.len() == before {
                break;
            }
        }
    }

    /// With `max_split_size`: gives back one cached block of the request's stream that makes room alone, or else
    /// the largest oversize blocks until they do together. Whether enough was given back.
    fn release_oversize(&mut self, request: &Request) -> bool {
        if self.rules.max_split == u64::MAX {
            return false;
        }
        let oversize = self.rules.max_split;
        let wanted = request.size.max(oversize);
        let blocks = &self.blocks;
        let list = &self.pools[request.pool as usize].lanes.get(request.stream as usize);
        let Some(list) = list.map(|lane| &lane.free) else { return false };
        let one = list.first_at_least(wanted.next_multiple_of(MIN_BLOCK)).map(|at| list.at(at));
        if let Some(key) = one.filter(|key| !blocks[key.id()].expandable) {
            return self.release_if_unsplit(key) > 0;
        }
        // Torch walks down from the block that it found too large or expandable.
        let largest_first: Vec<Key> = (list.iter().rev())
            .skip_while(|key| one.is_some_and(|one| *key >= one))
            .take_while(|key| key.size() >= oversize)
            .filter(|key| !blocks[key.id()].expandable)
            .collect();
        let mut released = 0;
        for key in largest_first {
            if released >= wanted {
                break;
            }
            released += self.release_if_unsplit(key);
        }
        released >= wanted
    }

    fn release_if_unsplit(&mut self, key: Key) -> u64 {
        if self.blocks[key.id()].is_split() {
            return 0;
        }
        self.release_segment(key);
        key.size()
    }

    /// Gives back every segment that is one free block, and whole free pages of expandable segments: of the
    /// default pools unless a capture is under way, and of private pools that have no user.
    pub(super) fn release_cached(&mut self, capturing: bool) {
        if !capturing {
            self.synchronize(None);
            self.release_blocks(pool_index(PoolId::DEFAULT, PoolKind::Large));
            self.release_blocks(pool_index(PoolId::DEFAULT, PoolKind::Small));
        }
        for pool in 1..self.private.len() {
            let pool = PoolId(pool as u16);
            if self.is_freeable(pool) {
                self.release_pool_blocks(pool);
            }
        }
    }

    pub(super) fn release_pool_blocks(&mut self, pool: PoolId) {
        self.release_blocks(pool_index(pool, PoolKind::Small));
        self.release_blocks(pool_index(pool, PoolKind::Large));
    }

    /// Segments go first, in the order of the free lists; then pages.
    fn release_blocks(&mut self, pool: u32) {
        let mut segments = Vec::new();
        let mut pages = Vec::new();
        for lane in &self.pools[pool as usize].lanes {
            for key in lane.free.iter() {
                let block = &self.blocks[key.id()];
                if block.expandable {
                    pages.push(key);
                } else if !block.is_split() {
                    segments.push(key);
                }
            }
        }
        for key in segments {
            self.release_segment(key);
        }
        for key in pages {
            self.unmap(key);
        }
    }

    /// Gives a segment that is one free block back to the driver.
    fn release_segment(&mut self, key: Key) {
        let block = self.blocks[key.id()];
        self.lane(block.pool, block.stream).free.remove(key);
        self.blocks.remove(key.id());
        let kind = pool_kind(block.pool);
        self.tally.remove_segment(kind, block.size);
        if block.size >= self.rules.max_split {
            self.tally.oversize_segments.shrink();
        }
        self.tally.num_device_free += 1;
        let client = Client { kind, pool: pool_id(block.pool), stream: block.stream };
        self.driver.free_segment(client, block.address, Bytes::new(block.size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PyTorchConfig;
    use crate::pytorch::config::SMALL_LIMIT;

    #[test]
    fn an_error_of_twenty_mib_means_any_request_between_one_and_ten() {
        for requested in [SMALL_LIMIT + 1, 5 << 20, (10 << 20) - 512] {
            let config =
                PyTorchConfig { capacity: Some(Bytes::mib(19)), ..PyTorchConfig::default() };
            let mut torch = PyTorchAllocator::new(config);
            let error = torch.malloc(Bytes::new(requested), 0).unwrap_err();
            assert_eq!(error.segment, Bytes::mib(20));
            assert_eq!(error.free, Some(Bytes::mib(19)));
            let statistics = torch.statistics();
            assert_eq!((statistics.num_alloc_retries, statistics.num_ooms), (1, 1));
        }
    }
}
