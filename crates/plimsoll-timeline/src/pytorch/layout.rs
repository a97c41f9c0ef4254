//! The blocks as they lie in their segments: what a memory snapshot of torch shows, and what the checks of the
//! allocator's laws look at.

use plimsoll_units::Bytes;

use super::arena::State;
use super::{PoolKind, PyTorchAllocator};

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockState {
    /// In use.
    Allocated,
    /// Cached.
    Free,
}

/// A block of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockView {
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
pub struct SegmentView {
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// The pool that it serves.
    pub pool: PoolKind,
    /// The stream that it serves.
    pub stream: u16,
    /// Whether it is a part of an expandable segment.
    pub expandable: bool,
    /// Its blocks, in order of address, without gaps.
    pub blocks: Vec<BlockView>,
}

impl PyTorchAllocator {
    /// Every segment, in order of address.
    pub fn segments(&self) -> Vec<SegmentView> {
        let mut segments = Vec::new();
        let heads = self.blocks.iter().filter(|(_, block)| block.prev.is_none());
        for (head, _) in heads {
            let mut open: Option<SegmentView> = None;
            let mut at = head;
            while !at.is_none() {
                let block = &self.blocks[at];
                at = block.next;
                let state = match block.state {
                    State::Used => BlockState::Allocated,
                    State::Free => BlockState::Free,
                    State::Unmapped | State::Vacant => {
                        segments.extend(open.take());
                        continue;
                    }
                };
                let segment = open.get_or_insert_with(|| SegmentView {
                    address: block.address,
                    size: Bytes::ZERO,
                    pool: self.pools[block.pool as usize].kind,
                    stream: block.stream,
                    expandable: block.expandable,
                    blocks: Vec::new(),
                });
                let size = Bytes::new(block.size);
                segment.size += size;
                segment.blocks.push(BlockView {
                    address: block.address,
                    size,
                    requested: match state {
                        BlockState::Allocated => Bytes::new(block.requested),
                        BlockState::Free => Bytes::ZERO,
                    },
                    state,
                });
            }
            segments.extend(open);
        }
        segments.sort_unstable_by_key(|s| s.address);
        segments
    }
}
