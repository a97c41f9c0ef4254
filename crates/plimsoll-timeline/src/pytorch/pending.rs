//! Frees that wait for another stream (`record_stream`). When the other stream is done is a matter of timing: a
//! recording says it (`request_free`, then `free`), a prediction assumes it ([`PendingFrees`]).

use std::collections::{HashMap, VecDeque};

use super::PyTorchAllocator;
use super::allocator::BlockHandle;
use super::arena::{BlockId, State};
use super::driver::Driver;
use super::pools::pool_id;
use crate::PoolId;

/// When a free that waits for another stream completes, where nothing was recorded. The allocator looks at the
/// start of every request, so no free completes earlier than at the next one, [`Immediate`](Self::Immediate) apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PendingFrees {
    /// At once, as if no other stream had been recorded.
    Immediate,
    /// At the next request: the other stream is done by then.
    #[default]
    NextRequest,
    /// That many requests later; `After(1)` is the next request.
    After(u32),
    /// Only when the allocator waits for every stream: before it gives up, and when the cache is emptied.
    Synchronize,
}

/// A free that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    block: BlockId,
    /// Value of the clock from which on it completes.
    due: u64,
}

/// The frees that wait, and the streams that blocks are used on.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// Routings to private pools under way, all pools together.
    pub routes: u32,
    /// Captures under way.
    pub captures: u32,
    /// Requests so far, counted while something waits.
    clock: u64,
    /// Streams recorded per block, other than its own, and whether that was during a capture.
    streams: HashMap<u32, Vec<(u16, bool)>>,
    /// In the order of their frees.
    waiting: VecDeque<Waiting>,
    /// Freed during a capture: they begin to wait after it.
    deferred: Vec<BlockId>,
    /// Freed by [`PyTorchAllocator::request_free`].
    requested: Vec<BlockId>,
}

impl Pending {
    /// Whether a request has anything to look at.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.deferred.is_empty()
    }
}

impl<D: Driver> PyTorchAllocator<D> {
    /// Another stream uses the block; a use on its own stream is ignored, as in torch.
    pub fn record_stream(&mut self, block: &BlockHandle, stream: u16) {
        let id = block.id();
        let Some(block) = self.blocks.get(id) else { return };
        if block.state != State::Used || block.stream == stream {
            return;
        }
        self.blocks[id].shared = true;
        let capturing = self.is_capturing(PoolId::DEFAULT);
        let streams = self.pending.streams.entry(id.0).or_default();
        match streams.iter_mut().find(|(known, _)| *known == stream) {
            Some((_, captured)) => *captured |= capturing,
            None => streams.push((stream, capturing)),
        }
    }

    /// The program lets a block go that another stream may still use: it is not allocated any more, but neither
    /// free nor mergeable until [`free`](Self::free) takes the handle, or the allocator waits for every stream.
    pub fn request_free(&mut self, block: &BlockHandle) {
        let id = block.id();
        if self.blocks.get(id).is_none_or(|block| block.state != State::Used) {
            return;
        }
        self.count_free_request(id);
        self.forget_streams(id);
        self.blocks[id].state = State::Pending;
        self.push_requested(id);
    }

    /// Notes a requested free; a pending block keeps its place in the list where free ones keep their age.
    pub(super) fn push_requested(&mut self, id: BlockId) {
        self.blocks[id].free_since = self.pending.requested.len() as u64;
        self.pending.requested.push(id);
    }

    /// Every stream is done with what it was given so far (`torch.cuda.synchronize`): the frees that wait complete
    /// at the next request.
    pub fn finish_streams(&mut self) {
        for waiting in &mut self.pending.waiting {
            waiting.due = 0;
        }
    }

    /// Completes a free that was requested.
    pub(super) fn complete_pending(&mut self, id: BlockId) {
        if self.blocks[id].state == State::Awaited {
            self.blocks.remove(id);
            return;
        }
        let at = self.blocks[id].free_since as usize;
        if self.pending.requested.get(at) == Some(&id) {
            self.pending.requested.swap_remove(at);
            if let Some(moved) = self.pending.requested.get(at) {
                self.blocks[*moved].free_since = at as u64;
            }
            self.complete(id);
        }
    }

    /// The free of a block that other streams use.
    #[cold]
    pub(super) fn defer_free(&mut self, id: BlockId) {
        self.count_free_request(id);
        if self.is_capturing(PoolId::DEFAULT) {
            self.blocks[id].state = State::Pending;
            self.pending.deferred.push(id);
            return;
        }
        self.forget_streams(id);
        self.wait_for_streams(id);
    }

    /// Lets a block wait as the settings say.
    fn wait_for_streams(&mut self, id: BlockId) {
        let due = match self.rules.config.pending_frees {
            PendingFrees::Immediate => return self.complete(id),
            PendingFrees::NextRequest => 0,
            PendingFrees::After(events) => self.pending.clock.saturating_add(events.into()),
            PendingFrees::Synchronize => u64::MAX,
        };
        self.blocks[id].state = State::Pending;
        self.pending.waiting.push_back(Waiting { block: id, due });
    }

    fn forget_streams(&mut self, id: BlockId) {
        if std::mem::take(&mut self.blocks[id].shared) {
            self.pending.streams.remove(&id.0);
        }
    }

    /// What a request does first: completes the frees whose streams are done.
    #[cold]
    pub(super) fn poll(&mut self, capturing: bool) {
        self.pending.clock += 1;
        if capturing {
            return;
        }
        self.begin_deferred();
        while let Some(first) = self.pending.waiting.front().copied() {
            if first.due > self.pending.clock {
                break;
            }
            self.pending.waiting.pop_front();
            self.complete(first.block);
        }
    }

    /// After a capture: frees made during it wait for the streams recorded before it; those recorded during it are
    /// done by construction.
    fn begin_deferred(&mut self) {
        for id in std::mem::take(&mut self.pending.deferred) {
            let streams = self.pending.streams.remove(&id.0).unwrap_or_default();
            self.blocks[id].shared = false;
            if streams.iter().any(|(_, captured)| !captured) {
                self.wait_for_streams(id);
            } else {
                self.complete(id);
            }
        }
    }

    /// Waits for every stream, or for those that one private pool's blocks are used on: every pending free
    /// completes.
    pub(super) fn synchronize(&mut self, only: Option<PoolId>) {
        self.tally.num_sync_all_streams += 1;
        self.begin_deferred();
        let concerns = |allocator: &Self, id: BlockId| {
            only.is_none_or(|pool| pool_id(allocator.blocks[id].pool) == pool)
        };
        for waiting in std::mem::take(&mut self.pending.waiting) {
            if concerns(self, waiting.block) {
                self.complete(waiting.block);
            } else {
                self.pending.waiting.push_back(waiting);
            }
        }
        for id in std::mem::take(&mut self.pending.requested) {
            if !concerns(self, id) {
                self.push_requested(id);
            } else if let Some(moved) = self.move_block(id) {
                // The handle is still out: its number must not name another block before it comes back.
                self.complete(moved);
            }
        }
    }

    /// Gives a block a new number and keeps the old one taken.
    fn move_block(&mut self, id: BlockId) -> Option<BlockId> {
        let block = self.blocks[id];
        let moved = self.blocks.insert(block)?;
        self.blocks.link(block.prev, moved);
        self.blocks.link(moved, block.next);
        self.blocks.await_handle(id);
        Some(moved)
    }
}
