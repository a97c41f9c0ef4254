//! When no cached block serves a request: collect unused segments, ask the driver, give back what is unused and
//! ask again, fail. And the giving back itself.

use plimsoll_units::Bytes;

use super::PyTorchAllocator;
use super::allocator::Request;
use super::arena::{BlockId, State};
use super::config::{LARGE_ROUNDING, MIN_BLOCK};
use super::free_list::Key;
use crate::OutOfMemory;

/// The large default pool, the only one that garbage collection looks at.
const LARGE_POOL: usize = 1;

impl PyTorchAllocator {
    /// A free block, in no list, of at least the request's size: from a new segment or from mapped pages.
    #[cold]
    pub(super) fn grow(&mut self, request: &Request) -> Result<BlockId, OutOfMemory> {
        self.collect_garbage();
        if let Some(block) = self.ask_driver(request) {
            return Ok(block);
        }
        if self.release_oversize(request)
            && let Some(block) = self.ask_driver(request)
        {
            return Ok(block);
        }
        self.release_cached();
        self.statistics.retries += 1;
        if let Some(block) = self.ask_driver(request) {
            return Ok(block);
        }
        self.statistics.ooms += 1;
        let segment = self.rules.segment_size(request.size);
        Err(self.out_of_memory(request.requested, request.size, segment))
    }

    /// The error of a request that failed just now.
    pub(super) fn out_of_memory(&self, requested: u64, rounded: u64, segment: u64) -> OutOfMemory {
        let reserved = self.statistics.reserved.current;
        let most = self.rules.limit.min(self.rules.capacity);
        OutOfMemory {
            requested: Bytes::new(requested),
            rounded: Bytes::new(rounded),
            segment: Bytes::new(segment),
            allocated: self.statistics.allocated.current,
            reserved,
            free: (most < u64::MAX).then(|| Bytes::new(most).saturating_sub(reserved)),
        }
    }

    fn ask_driver(&mut self, request: &Request) -> Option<BlockId> {
        let segment = self.rules.segment_size(request.size);
        let after = self.statistics.reserved.current.get().checked_add(segment)?;
        if after > self.rules.limit {
            return None;
        }
        if self.rules.expandable {
            return self.expand(request);
        }
        if after > self.rules.capacity {
            return None;
        }
        let address = self.take_addresses(segment, LARGE_ROUNDING)?;
        let block = self.insert_block(address, segment, State::Free, request)?;
        self.statistics.reserved.grow(segment);
        self.statistics.segments.grow(1);
        self.statistics.device_allocs += 1;
        Some(block)
    }

    /// Gives back unused segments of the large pool that have not been used for longer than the average, until
    /// enough is free or nothing more can be freed. A pass is not cut short.
    fn collect_garbage(&mut self) {
        let Some(threshold) = self.rules.collect_above else { return };
        let Some(target) = self.statistics.reserved.current.get().checked_sub(threshold) else {
            return;
        };
        let pool = &self.pools[LARGE_POOL];
        let mut candidates: Vec<(u64, Key)> = (pool.lanes.iter())
            .flat_map(|lane| lane.free.iter())
            .map(|key| (key, &self.blocks[key.id()]))
            .filter(|(_, block)| !block.is_split() && !block.expandable)
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
                let old = u128::from(*age) * count >= total;
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
        if self.rules.max_split == u64::MAX || self.rules.expandable {
            return false;
        }
        let oversize = self.rules.max_split;
        let wanted = request.size.max(oversize);
        let list = &self.lane(request.pool, request.stream).free;
        if let Some(at) = list.first_at_least(wanted.next_multiple_of(MIN_BLOCK)) {
            let key = list.at(at);
            return self.release_if_unsplit(key) > 0;
        }
        let largest_first: Vec<Key> =
            list.iter().rev().take_while(|key| key.size() >= oversize).collect();
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

    /// Gives back every segment that is one free block, and whole free pages of expandable segments.
    pub(super) fn release_cached(&mut self) {
        for pool in 0..self.pools.len() {
            for lane in 0..self.pools[pool].lanes.len() {
                let unused: Vec<Key> = (self.pools[pool].lanes[lane].free.iter())
                    .filter(|key| {
                        let block = &self.blocks[key.id()];
                        block.expandable || !block.is_split()
                    })
                    .collect();
                for key in unused {
                    if self.blocks[key.id()].expandable {
                        self.unmap(key);
                    } else {
                        self.release_segment(key);
                    }
                }
            }
        }
    }

    /// Gives a segment that is one free block back to the driver.
    fn release_segment(&mut self, key: Key) {
        let block = self.blocks[key.id()];
        self.lane(block.pool, block.stream).free.remove(key);
        self.blocks.remove(key.id());
        self.statistics.reserved.shrink(block.size);
        self.statistics.segments.shrink(1);
        self.statistics.device_frees += 1;
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
            assert_eq!((torch.statistics().retries, torch.statistics().ooms), (1, 1));
        }
    }
}
