//! Blocks in one growing array, linked to their neighbours in address order. Index 0 is a sentinel that is never
//! free, so that "no neighbour" needs no branch of its own.

/// A block of the arena; [`BlockId::NONE`] is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockId(pub u32);

impl BlockId {
    pub const NONE: BlockId = BlockId(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Used,
    /// Freed by the program; another stream may still use it.
    Pending,
    Free,
    /// Address range of an expandable segment without memory behind it.
    Unmapped,
    /// A slot of the arena without a block, and the sentinel.
    Vacant,
    /// A slot without a block whose handle is still out: the free completed before its holder said so.
    Awaited,
}

/// A contiguous part of a segment; one line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Block {
    pub address: u64,
    pub size: u64,
    /// What the program asked for; stale once the block is free, as in torch.
    pub requested: u64,
    /// Place among free blocks of the same size. By [`TieBreak`](super::TieBreak) it is the address, the position
    /// in an address space in which segments follow each other as they were made (both in units of 512 bytes, so
    /// they move when the block's beginning moves), or the number of the block object.
    pub order: u64,
    /// Searches of the pool when the block became free, for garbage collection.
    pub free_since: u64,
    pub prev: BlockId,
    pub next: BlockId,
    /// Index of the pool, see [`pool_index`](super::pools::pool_index).
    pub pool: u32,
    pub stream: u16,
    pub state: State,
    pub expandable: bool,
    /// Whether other streams were recorded (`record_stream`).
    pub shared: bool,
}

impl Block {
    pub fn is_split(&self) -> bool {
        !(self.prev.is_none() && self.next.is_none())
    }

    pub fn end(&self) -> u64 {
        self.address + self.size
    }
}

const VACANT: Block = Block {
    address: 0,
    size: 0,
    requested: 0,
    order: 0,
    free_since: 0,
    prev: BlockId::NONE,
    next: BlockId::NONE,
    pool: 0,
    stream: 0,
    state: State::Vacant,
    expandable: false,
    shared: false,
};

/// The blocks.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    blocks: Vec<Block>,
    vacant: Vec<BlockId>,
}

impl Arena {
    pub fn new() -> Self {
        Arena { blocks: vec![VACANT], vacant: Vec::new() }
    }

    /// `None` only when 2^32 - 2 blocks are live.
    pub fn insert(&mut self, block: Block) -> Option<BlockId> {
        if let Some(id) = self.vacant.pop() {
            self[id] = block;
            return Some(id);
        }
        let id = u32::try_from(self.blocks.len()).ok().filter(|id| *id != u32::MAX)?;
        self.blocks.push(block);
        Some(BlockId(id))
    }

    pub fn remove(&mut self, id: BlockId) {
        self[id].state = State::Vacant;
        self.vacant.push(id);
    }

    /// Takes the block out of its slot; the slot stays taken until [`remove`](Self::remove).
    pub fn await_handle(&mut self, id: BlockId) {
        self[id] = Block { state: State::Awaited, ..VACANT };
    }

    pub fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.0 as usize)
    }

    /// How many blocks it has room for without growing.
    #[cfg(test)]
    pub fn slots(&self) -> usize {
        self.blocks.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        (0..)
            .map(BlockId)
            .zip(&self.blocks)
            .filter(|(_, block)| !matches!(block.state, State::Vacant | State::Awaited))
    }

    /// Links `left` and `right` as neighbours; either may be none.
    pub fn link(&mut self, left: BlockId, right: BlockId) {
        if !left.is_none() {
            self[left].next = right;
        }
        if !right.is_none() {
            self[right].prev = left;
        }
    }
}

impl std::ops::Index<BlockId> for Arena {
    type Output = Block;
    fn index(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Arena {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }
}
