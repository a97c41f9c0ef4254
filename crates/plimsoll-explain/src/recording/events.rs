//! The forward walk: trace events become the program's timeline, and what the allocator asked of the driver becomes
//! a list of its own. Allocations are matched with frees by address and life, since addresses are used again.

use plimsoll_formats::snapshot::{Action, Snapshot, StackId, TraceEvent};
use plimsoll_timeline::{
    Allocation, Category, DriverCall, DriverEvent, OriginId, PoolId, PyTorchConfig, TensorId,
    Timeline, TimelineBuilder,
};
use plimsoll_units::Bytes;

use super::address_map::AddressMap;
use super::pools::Pools;
use super::releases::{Reason, ReleaseGroup};
use super::remark::Oddities;
use super::rewind::Rewound;
use super::{RecordedCall, RecordedOom};
use crate::place;

/// What the walk makes.
#[derive(Default)]
pub(super) struct Walked {
    pub timeline: Timeline,
    /// Trace event of each timeline event.
    pub trace_index: Vec<u32>,
    /// Stack of each origin.
    pub stacks: Vec<StackId>,
    pub driver: Vec<RecordedCall>,
    pub ooms: Vec<RecordedOom>,
    /// Times that the cache was emptied outside a request.
    pub caches_emptied: u64,
    /// Times that the allocator gave memory back within a request.
    pub retries: u64,
}

/// Walks the events forward from the start state.
pub(super) fn walk(
    snapshot: &Snapshot,
    events: &[TraceEvent],
    start: &Rewound,
    event_pools: bool,
    config: &PyTorchConfig,
    oddities: &mut Oddities,
) -> Walked {
    // With a largest split, a request may give back segments of a pool that is in use.
    let oversize_released = config.max_split_size.is_some();
    let mut walk = Walk {
        snapshot,
        builder: TimelineBuilder::new(),
        origins: vec![None; snapshot.stacks.len().max(1)],
        live: AddressMap::default(),
        requested_last: None,
        requested_by: StackId::NONE,
        completes: oddities.completion_missing == 0
            || events.iter().any(|event| event.action == Action::FreeCompleted),
        pools: Pools::new(snapshot, start, event_pools),
        released: Vec::new(),
        frees_pools: false,
        defers: false,
        deferred: Vec::new(),
        out: Walked::default(),
    };
    walk.begin(start);
    let (mut group_end, mut empties_at) = (0, None);
    for (index, event) in (0u32..).zip(events) {
        if index >= group_end && walk.may_begin_group(event) {
            let group = ReleaseGroup::new(snapshot, &events[index as usize..]);
            group_end = index.saturating_add(group.length);
            empties_at = match group.reason {
                Reason::EmptiedCache => Some(index.saturating_add(group.last)),
                Reason::Request | Reason::Polling => None,
            };
            walk.out.retries += u64::from(group.reason == Reason::Request && group.releases);
            walk.defers = group.reason == Reason::Request;
            walk.frees_pools = group.reason == Reason::EmptiedCache || !oversize_released;
        }
        walk.step(index, event, oddities);
        if empties_at == Some(index) {
            walk.builder.empty_cache();
            walk.note(index);
            walk.out.caches_emptied += 1;
        }
    }
    walk.out.timeline = walk.builder.finish();
    walk.out
}

struct Walk<'s> {
    snapshot: &'s Snapshot,
    builder: TimelineBuilder,
    /// By stack.
    origins: Vec<Option<OriginId>>,
    /// Tensor at an address, and whether its free was requested.
    live: AddressMap<(TensorId, bool)>,
    /// The tensor of the last timeline event if that requests its free: a completion right after makes one event.
    requested_last: Option<TensorId>,
    /// The stack of that request.
    requested_by: StackId,
    /// Whether completions were recorded.
    completes: bool,
    pools: Pools<'s>,
    /// Private pools whose segments were given back.
    released: Vec<PoolId>,
    /// Whether a segment of a private pool that is given back shows that the pool has no user any more.
    frees_pools: bool,
    /// Whether completions belong to a request that found no room.
    defers: bool,
    /// Completed within a request: the allocator waits for every stream before it gives memory back, and looks at
    /// its free blocks no more after that. So they complete after the request, or it would find them.
    deferred: Vec<TensorId>,
    out: Walked,
}

impl Walk<'_> {
    /// The tensors that are there before the first event; those that wait for a stream are freed by the first ones.
    fn begin(&mut self, start: &Rewound) {
        for block in &start.blocks {
            let Some(segment) = start.segments.get(block.segment as usize) else { continue };
            let origin = self.origin(block.stack);
            let id = self.builder.existing(Allocation {
                requested: block.requested,
                category: Category::Unknown,
                origin,
                stream: segment.stream.0,
                pool: PoolId(segment.pool.0),
            });
            self.live.insert(block.address, (id, block.pending));
        }
        for (id, block) in (0u32..).zip(&start.blocks).filter(|(_, block)| block.pending) {
            debug_assert!(self.live.contains_key(&block.address));
            self.builder.free_requested(TensorId(id));
            self.note(0);
            self.requested_last = Some(TensorId(id));
        }
    }

    fn step(&mut self, index: u32, event: &TraceEvent, oddities: &mut Oddities) {
        match event.action {
            Action::Alloc => self.alloc(index, event, oddities),
            Action::FreeRequested => self.free_requested(index, event),
            Action::FreeCompleted => self.free_completed(index, event, oddities),
            Action::SegmentAlloc => self.driver(index, event, DriverCall::SegmentAlloc),
            Action::SegmentFree => self.driver(index, event, DriverCall::SegmentFree),
            Action::SegmentMap => self.driver(index, event, DriverCall::SegmentMap),
            Action::SegmentUnmap => self.driver(index, event, DriverCall::SegmentUnmap),
            Action::OutOfMemory => {
                self.out.ooms.push(RecordedOom {
                    event: u32::try_from(self.out.trace_index.len()).unwrap_or(u32::MAX),
                    trace_index: index,
                    rounded: Bytes::new(event.size),
                    device_free: Bytes::new(event.address),
                    stream: event.stream.0,
                    pool: PoolId(event.pool.0),
                    stack: event.stack,
                });
                self.complete_deferred(index);
            }
            Action::Snapshot => {}
            Action::Other => oddities.unknown_actions += u64::from(!self.is_annotation(event)),
        }
    }

    fn alloc(&mut self, index: u32, event: &TraceEvent, oddities: &mut Oddities) {
        if event.size == 0 {
            oddities.empty += 1;
            return;
        }
        let origin = self.origin(event.stack);
        let pool = PoolId(self.pools.of_block(event).0);
        if let Some((old, _)) = self.live.remove(&event.address) {
            self.builder.free_completed(old);
            if self.requested_last != Some(old) {
                self.note(index);
            }
        }
        let id = self.builder.push(Allocation {
            requested: Bytes::new(event.size),
            category: Category::Unknown,
            origin,
            stream: event.stream.0,
            pool,
        });
        self.note(index);
        self.live.insert(event.address, (id, false));
        self.complete_deferred(index);
    }

    fn complete_deferred(&mut self, index: u32) {
        self.defers = false;
        for id in std::mem::take(&mut self.deferred) {
            self.builder.free_completed_apart(id);
            self.note(index);
        }
    }

    /// Whether a group of releases may begin here: with a segment event, or with a completion that stands alone.
    fn may_begin_group(&self, event: &TraceEvent) -> bool {
        match event.action {
            Action::SegmentFree | Action::SegmentUnmap => true,
            Action::FreeCompleted => {
                let completes = self.live.get(&event.address);
                completes.is_some_and(|(id, _)| !self.completes_at_once(*id, event))
            }
            _ => false,
        }
    }

    /// Whether a completion belongs to the request for it that came just before: by one call, so with one stack.
    fn completes_at_once(&self, id: TensorId, event: &TraceEvent) -> bool {
        let one_stack = self.requested_by == event.stack
            || self.requested_by.is_none()
            || event.stack.is_none();
        self.requested_last == Some(id) && one_stack
    }

    fn free_requested(&mut self, index: u32, event: &TraceEvent) {
        let live = self.live.get_mut(&event.address).filter(|(_, pending)| !*pending);
        let Some((id, pending)) = live else { return };
        let id = *id;
        if self.completes {
            *pending = true;
            self.builder.free_requested(id);
            self.note(index);
            self.requested_last = Some(id);
            self.requested_by = event.stack;
        } else {
            self.live.remove(&event.address);
            self.builder.free(id);
            self.note(index);
        }
    }

    fn free_completed(&mut self, index: u32, event: &TraceEvent, oddities: &mut Oddities) {
        let Some((id, pending)) = self.live.remove(&event.address) else { return };
        oddities.request_missing += u64::from(!pending);
        if self.defers && pending && !self.completes_at_once(id, event) {
            self.deferred.push(id);
            return;
        }
        self.builder.free_completed(id);
        // The builder made one event of the request and this; the request is noted already.
        if self.requested_last != Some(id) {
            self.note(index);
        }
        self.requested_last = None;
    }

    fn driver(&mut self, index: u32, event: &TraceEvent, call: DriverCall) {
        let pool = self.pools.segment_event(index, event, call);
        let gives_back = matches!(call, DriverCall::SegmentFree | DriverCall::SegmentUnmap);
        let pool = PoolId(pool.0);
        // Segments of a private pool are given back only after its last user is gone.
        if gives_back && self.frees_pools && !pool.is_default() && !self.released.contains(&pool) {
            self.released.push(pool);
            self.builder.release_pool(pool);
            self.note(index);
        }
        let (address, size) = (event.address, Bytes::new(event.size));
        let event = DriverEvent { call, address, size };
        self.out.driver.push(RecordedCall { trace_index: index, event });
    }

    /// Notes the trace event of the timeline event that was just made.
    fn note(&mut self, index: u32) {
        self.out.trace_index.push(index);
        self.requested_last = None;
    }

    /// The origin of a stack, made on first use.
    fn origin(&mut self, stack: StackId) -> OriginId {
        let stack = if (stack.0 as usize) < self.origins.len() { stack } else { StackId::NONE };
        if let Some(origin) = self.origins[stack.0 as usize] {
            return origin;
        }
        let place = place::of_stack(self.snapshot, stack);
        let origin = self.builder.origin(&place.module, &place.what);
        self.origins[stack.0 as usize] = Some(origin);
        self.out.stacks.push(stack);
        origin
    }

    fn is_annotation(&self, event: &TraceEvent) -> bool {
        let extra = self.snapshot.extras.get(event.extra.0 as usize);
        let action = extra.and_then(|extra| extra.action);
        action.is_some_and(|name| self.snapshot.names.get(name) == "annotate")
    }
}
