//! The chunks of all regions: a slab of records that know their neighbours, and the free ones in order.

use std::collections::BTreeSet;

/// Index of a chunk.
pub(super) type ChunkId = u32;
/// No chunk.
pub(super) const NONE: ChunkId = u32::MAX;

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Used,
    /// Allocated past the regions, of exactly the size that was asked for.
    Reserved,
    /// No chunk at all: a record to be used again.
    Vacant,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub address: u64,
    pub size: u64,
    pub requested: u64,
    pub prev: ChunkId,
    pub next: ChunkId,
    /// The stream that used it, where that matters.
    pub stream: Option<u16>,
    pub state: State,
}

/// The chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunks {
    all: Vec<Chunk>,
    vacant: Vec<ChunkId>,
    /// Free ones by size, then address.
    free: BTreeSet<(u64, u64, ChunkId)>,
}

impl Chunks {
    /// `None` only when 2^32 - 1 chunks are there.
    pub fn insert(&mut self, chunk: Chunk) -> Option<ChunkId> {
        if let Some(id) = self.vacant.pop() {
            self[id] = chunk;
            return Some(id);
        }
        let id = u32::try_from(self.all.len()).ok().filter(|id| *id != NONE)?;
        self.all.push(chunk);
        Some(id)
    }

    pub fn remove(&mut self, id: ChunkId) {
        self[id].state = State::Vacant;
        self.vacant.push(id);
    }

    pub fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.all.get(id as usize)
    }

    /// The neighbour, if there is one and it is free.
    pub fn free_neighbour(&self, id: ChunkId) -> Option<ChunkId> {
        self.get(id).filter(|c| c.state == State::Free).map(|_| id)
    }

    /// Links two neighbours; either may be none.
    pub fn link(&mut self, left: ChunkId, right: ChunkId) {
        if left != NONE {
            self[left].next = right;
        }
        if right != NONE {
            self[right].prev = left;
        }
    }

    /// Lists a free chunk.
    pub fn list(&mut self, id: ChunkId) {
        let Chunk { size, address, .. } = self[id];
        self.free.insert((size, address, id));
    }

    /// Takes a chunk off the list.
    pub fn unlist(&mut self, id: ChunkId) {
        let Chunk { size, address, .. } = self[id];
        self.free.remove(&(size, address, id));
    }

    /// The smallest listed chunk of at least `size` bytes that `usable` accepts, at the lowest address among equals.
    pub fn best_fit(&self, size: u64, usable: impl Fn(&Chunk) -> bool) -> Option<ChunkId> {
        let fits = self.free.range((size, 0, 0)..);
        fits.map(|(.., id)| *id).find(|id| usable(&self[*id]))
    }
}

impl std::ops::Index<ChunkId> for Chunks {
    type Output = Chunk;
    fn index(&self, id: ChunkId) -> &Chunk {
        &self.all[id as usize]
    }
}

impl std::ops::IndexMut<ChunkId> for Chunks {
    fn index_mut(&mut self, id: ChunkId) -> &mut Chunk {
        &mut self.all[id as usize]
    }
}
