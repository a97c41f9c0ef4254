//! Private pools: those of CUDA graphs and `MemPool`. Each has small and large blocks of its own; its segments go
//! back to the driver only when the pool has no user any more and the cache is emptied.

use super::driver::Driver;
use super::{PoolKind, PyTorchAllocator};
use crate::PoolId;
use crate::pytorch::allocator::Pool;

/// How a private pool behaves (`torch.cuda.MemPool(use_on_oom=..., no_split=...)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Requests of the default pool may take its free blocks before the allocator gives up (torch 2.8 and later).
    pub use_on_oom: bool,
    /// Its blocks are never split (torch 2.10 and later).
    pub no_split: bool,
}

/// What keeps the allocator from waiting for streams and from giving the cache back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureRule {
    /// Whatever routes requests to a private pool, `use_mem_pool` too: torch up to 2.12.
    #[default]
    AnyRouting,
    /// Only the capture of a CUDA graph: torch from 2.13 on.
    GraphCapture,
}

/// What is known of a private pool; entry 0 stands for the default pool and is never used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PrivatePool {
    /// Graphs, captures and `MemPool` objects that use it.
    pub users: u32,
    /// Whether it ever had one.
    pub exists: bool,
    /// Routings to it under way.
    pub routes: u32,
    pub options: PoolOptions,
}

/// Where the free blocks of a pool are.
pub(super) const fn pool_index(pool: PoolId, kind: PoolKind) -> u32 {
    pool.0 as u32 * 2 + kind as u32
}

/// Small or large, by [`pool_index`].
pub(super) const fn pool_kind(index: u32) -> PoolKind {
    if index & 1 == 0 { PoolKind::Small } else { PoolKind::Large }
}

/// The pool of an index.
pub(super) const fn pool_id(index: u32) -> PoolId {
    PoolId((index >> 1) as u16)
}

impl<D: Driver> PyTorchAllocator<D> {
    /// Requests begin to be routed to a private pool: for a graph capture or by `use_mem_pool`. The pool gets one
    /// more user. By [`CaptureRule::AnyRouting`] this counts as a capture.
    pub fn begin_pool(&mut self, pool: PoolId) {
        if pool.is_default() {
            return;
        }
        let existed = self.private.get(pool.0 as usize).is_some_and(|p| p.users > 0);
        self.open_pool(pool);
        let private = &mut self.private[pool.0 as usize];
        private.users += u32::from(existed);
        private.routes += 1;
        self.pending.routes += 1;
    }

    /// Routing to a private pool ends; the pool keeps its user.
    pub fn end_pool(&mut self, pool: PoolId) {
        if let Some(private) = self.private.get_mut(pool.0 as usize)
            && private.routes > 0
        {
            private.routes -= 1;
            self.pending.routes -= 1;
        }
    }

    /// One user of a private pool is gone: a graph was reset, a `MemPool` deleted, a `use_mem_pool` left.
    pub fn release_pool(&mut self, pool: PoolId) {
        if let Some(private) = self.private.get_mut(pool.0 as usize) {
            private.users = private.users.saturating_sub(1);
        }
    }

    /// Sets how a private pool behaves.
    pub fn set_pool_options(&mut self, pool: PoolId, options: PoolOptions) {
        if !pool.is_default() {
            self.make_room(pool);
            self.private[pool.0 as usize].options = options;
        }
    }

    /// Gives back what a private pool without users has cached (`torch.cuda.empty_cache` inside of it, or
    /// `MemPool` deletion); nothing for a pool with users.
    pub fn empty_pool_cache(&mut self, pool: PoolId) {
        if pool.is_default() {
            self.empty_cache();
        } else if self.is_freeable(pool) {
            self.synchronize(Some(pool));
            self.release_pool_blocks(pool);
        }
    }

    /// The capture of a CUDA graph begins: until it ends, no pending free completes and the cache of the default
    /// pools is not given back.
    pub fn begin_capture(&mut self) {
        self.pending.captures += 1;
    }

    /// The capture of a CUDA graph ends.
    pub fn end_capture(&mut self) {
        self.pending.captures = self.pending.captures.saturating_sub(1);
    }

    /// Whether a request in a pool meets a capture.
    #[inline]
    pub(super) fn is_capturing(&self, pool: PoolId) -> bool {
        self.pending.captures > 0
            || self.rules.routing_is_capture && (self.pending.routes > 0 || !pool.is_default())
    }

    pub(super) fn is_freeable(&self, pool: PoolId) -> bool {
        self.private.get(pool.0 as usize).is_some_and(|p| p.exists && p.users == 0)
    }

    pub(super) fn is_no_split(&self, index: u32) -> bool {
        self.private.get(pool_id(index).0 as usize).is_some_and(|p| p.options.no_split)
    }

    /// Makes a private pool with one user if it has none.
    pub(super) fn open_pool(&mut self, pool: PoolId) {
        self.make_room(pool);
        let private = &mut self.private[pool.0 as usize];
        if !private.exists {
            private.exists = true;
            private.users = 1;
        }
    }

    fn make_room(&mut self, pool: PoolId) {
        let needed = pool.0 as usize + 1;
        if self.private.len() < needed {
            self.private.resize(needed, PrivatePool::default());
            self.pools.resize_with(2 * needed, Pool::default);
        }
    }
}
