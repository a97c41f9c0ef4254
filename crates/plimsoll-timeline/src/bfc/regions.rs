//! Regions: how large a new one is, where it lies, when one is given back; and a view of them for checks.

use std::collections::VecDeque;

use plimsoll_units::Bytes;

use super::Bfc;
use super::chunks::{Chunk, ChunkId, NONE, State};
use super::config::{Growth, MAX_REQUEST, Placement, QUANTUM};

/// Where made-up addresses begin; there is room on both sides.
const FIRST_ADDRESS: u64 = 1 << 60;
/// Regions that lie apart begin at multiples of this and have at least as much between them.
const APART: u64 = 2 << 20;

/// A range that the driver gave, with those that merged into it.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub first: ChunkId,
    pub size: u64,
    /// The first one ever made.
    pub oldest: bool,
}

/// Addresses of regions to come.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    placement: Placement,
    pub recorded: VecDeque<u64>,
    /// Ends of what was given out.
    low: u64,
    high: u64,
}

impl Addresses {
    pub fn made_up(placement: Placement) -> Self {
        Addresses { placement, recorded: VecDeque::new(), low: FIRST_ADDRESS, high: FIRST_ADDRESS }
    }

    fn next(&mut self, size: u64) -> u64 {
        if let Some(address) = self.recorded.pop_front() {
            return address;
        }
        match self.placement {
            Placement::Before => {
                self.low = self.low.saturating_sub(size);
                self.low
            }
            Placement::Behind => {
                let address = self.high;
                self.high = address.saturating_add(size);
                address
            }
            Placement::Apart => {
                let address = self.high;
                self.high =
                    address.saturating_add(size).saturating_add(APART).next_multiple_of(APART);
                address
            }
        }
    }
}

/// A chunk of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkView {
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// What was asked for; zero for a free one.
    pub requested: Bytes,
    /// Whether it is in use.
    pub used: bool,
}

/// A region and its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionView {
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// Its chunks, in order of address, without gaps.
    pub chunks: Vec<ChunkView>,
}

impl Bfc {
    /// Every region, in order of address.
    pub fn regions(&self) -> Vec<RegionView> {
        let view = |region: &Region| {
            let chunks: Vec<ChunkView> = self
                .chunks_of(region)
                .map(|id| &self.chunks[id])
                .map(|c| ChunkView {
                    address: c.address,
                    size: Bytes::new(c.size),
                    requested: Bytes::new(if c.state == State::Used { c.requested } else { 0 }),
                    used: c.state == State::Used,
                })
                .collect();
            let address = self.chunks[region.first].address;
            RegionView { address, size: Bytes::new(region.size), chunks }
        };
        let mut regions: Vec<RegionView> = self.regions.iter().map(view).collect();
        regions.sort_unstable_by_key(|r| r.address);
        regions
    }

    fn chunks_of(&self, region: &Region) -> impl Iterator<Item = ChunkId> {
        let some = |id: ChunkId| (id != NONE).then_some(id);
        std::iter::successors(some(region.first), move |id| some(self.chunks[*id].next))
    }

    /// What the limit leaves for regions, in whole quanta.
    pub(super) fn available(&self) -> u64 {
        let limit = self.config.limit.unwrap_or(Bytes::MAX).get().min(MAX_REQUEST);
        let left = limit.saturating_sub(self.usage.reserved.get());
        left / QUANTUM * QUANTUM
    }

    /// What the driver has left.
    pub(super) fn driver_room(&self) -> u64 {
        let capacity = self.config.capacity.unwrap_or(Bytes::MAX);
        capacity.saturating_sub(self.usage.reserved).get()
    }

    pub(super) fn hold(&mut self, size: u64) {
        self.usage.reserved += Bytes::new(size);
        self.statistics.reserved_peak = self.statistics.reserved_peak.max(self.usage.reserved);
    }

    pub(super) fn let_go(&mut self, size: u64) {
        self.usage.reserved -= Bytes::new(size);
    }

    /// Makes a region for a rounded request; whether there is one now.
    pub(super) fn extend(&mut self, rounded: u64) -> bool {
        let available = self.available();
        // A region that merges with the first one needs to complete the free chunk there, no more.
        let needed = match self.config.placement {
            Placement::Before => rounded.saturating_sub(self.free_front()).max(QUANTUM),
            _ => rounded,
        };
        if needed > available {
            return false;
        }
        let (mut bytes, doubled) = match self.config.growth {
            // Where less is needed than the request, the limit may not leave all of it.
            Growth::Exact => (rounded.min(available), true),
            Growth::Doubling { .. } => {
                let before = self.next_region;
                while rounded > self.next_region {
                    self.next_region = self.next_region.saturating_mul(2);
                }
                (self.next_region.min(available), self.next_region != before)
            }
        };
        while bytes > self.driver_room() {
            match retreat(bytes) {
                less if less >= needed && less >= self.config.smallest_retreat.get() => {
                    bytes = less
                }
                _ => return false,
            }
        }
        if let Growth::Doubling { cap } = self.config.growth
            && !doubled
        {
            let cap = cap.map_or(u64::MAX, Bytes::get);
            let next = self.next_region;
            self.next_region = if next < cap / 2 { next.saturating_mul(2) } else { cap };
        }
        self.add_region(bytes)
    }

    /// Size of the free chunk with which a region before the first one merges. A new region is of no stream and merges
    /// with no chunk that is kept for one.
    fn free_front(&self) -> u64 {
        let first = self.regions.first().and_then(|r| self.chunks.get(r.first));
        first.filter(|c| c.state == State::Free && c.stream.is_none()).map_or(0, |c| c.size)
    }

    fn add_region(&mut self, size: u64) -> bool {
        let address = self.addresses.next(size);
        let chunk = Chunk {
            address,
            size,
            requested: 0,
            prev: NONE,
            next: NONE,
            stream: None,
            state: State::Free,
        };
        let Some(id) = self.chunks.insert(chunk) else { return false };
        self.hold(size);
        self.statistics.regions += 1;
        let merges = self.config.placement != Placement::Apart;
        match self.regions.first_mut().filter(|_| merges) {
            Some(region) => {
                region.size += size;
                match self.config.placement {
                    Placement::Before => {
                        let old = std::mem::replace(&mut region.first, id);
                        self.chunks.link(id, old);
                    }
                    _ => {
                        let mut last = region.first;
                        while self.chunks[last].next != NONE {
                            last = self.chunks[last].next;
                        }
                        self.chunks.link(last, id);
                    }
                }
            }
            None => {
                let oldest = self.statistics.regions == 1;
                self.regions.push(Region { first: id, size, oldest });
            }
        }
        self.coalesce(id);
        true
    }

    /// Gives back every region without a live chunk, where the limit would then have room for the request; whether it
    /// did.
    pub(super) fn collect_regions(&mut self, rounded: u64) -> bool {
        if !self.config.collects_regions {
            return false;
        }
        let unused: u64 = self.regions.iter().filter(|r| self.is_unused(r)).map(|r| r.size).sum();
        let limit = self.config.limit.unwrap_or(Bytes::MAX);
        let room = limit.saturating_sub(self.usage.reserved).get().saturating_add(unused);
        if unused == 0 || rounded > room {
            return false;
        }
        self.release_regions(|_| true);
        true
    }

    /// The program asks for unused regions to be given back.
    pub(super) fn shrink(&mut self) {
        if !self.config.shrinks {
            return;
        }
        let keeps_first = self.config.keeps_first_region;
        self.release_regions(|region| !(keeps_first && region.oldest));
        if let Some(size) = self.config.regrowth {
            self.next_region = size.get().clamp(1, MAX_REQUEST);
        }
    }

    fn is_unused(&self, region: &Region) -> bool {
        self.chunks_of(region).all(|id| self.chunks[id].state == State::Free)
    }

    fn release_regions(&mut self, wanted: impl Fn(&Region) -> bool) {
        let regions = std::mem::take(&mut self.regions);
        for region in regions {
            if !wanted(&region) || !self.is_unused(&region) {
                self.regions.push(region);
                continue;
            }
            let chunks: Vec<ChunkId> = self.chunks_of(&region).collect();
            for id in chunks {
                self.chunks.unlist(id);
                self.chunks.remove(id);
            }
            self.let_go(region.size);
            self.statistics.regions_released += 1;
        }
    }

    /// A stream is done with (ONNX Runtime at the end of a run): its chunks are for every stream again, and free
    /// neighbours merge.
    pub fn release_stream(&mut self, stream: u16) {
        let regions = self.regions.clone();
        for region in &regions {
            let ids: Vec<ChunkId> = self.chunks_of(region).collect();
            for id in ids {
                let used_by = &mut self.chunks[id].stream;
                *used_by = used_by.filter(|s| *s != stream);
            }
        }
        for region in &regions {
            let mut at = region.first;
            while at != NONE {
                let chunk = self.chunks[at];
                let next = self.chunks.get(chunk.next).copied();
                let joins = |n: &Chunk| n.state == State::Free && n.stream == chunk.stream;
                if chunk.state == State::Free && next.as_ref().is_some_and(joins) {
                    self.chunks.unlist(at);
                    self.chunks.unlist(chunk.next);
                    self.chunks[at].size += next.map_or(0, |n| n.size);
                    self.chunks.remove(chunk.next);
                    self.chunks.link(at, next.map_or(NONE, |n| n.next));
                    self.chunks.list(at);
                } else {
                    at = chunk.next;
                }
            }
        }
    }
}

/// Nine tenths, as the originals compute it: the size times a 32-bit 0.9, truncated, rounded up to a quantum; at least
/// one quantum less.
fn retreat(bytes: u64) -> u64 {
    let less = (bytes as f32 * 0.9f32) as u64;
    less.next_multiple_of(QUANTUM).min(bytes.saturating_sub(QUANTUM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retreats_as_a_32_bit_float_does() {
        for (bytes, less) in [
            (256, 0),
            (512, 256),
            (2560, 2304),
            (1 << 20, 943_872),
            (1 << 30, 966_367_744),
            (80 << 30, 77_309_411_328),
        ] {
            assert_eq!(retreat(bytes), less, "{bytes}");
        }
        for shift in 9..55 {
            assert!(retreat(1 << shift) < 1 << shift);
        }
    }
}
