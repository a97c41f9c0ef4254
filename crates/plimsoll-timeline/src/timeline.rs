//! The timeline itself and the builder that keeps it well formed: every free names a live tensor, every phase
//! covers the events up to the next one.

use std::sync::Arc;

use plimsoll_units::Bytes;
use serde::Serialize;

/// An allocation of the timeline, by order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

/// An interned origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginId(pub u32);

/// A memory pool of PyTorch's allocator, by order of appearance: one of a CUDA graph or a `MemPool`. Blocks never
/// leave the pool that they were made in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u16);

impl PoolId {
    /// The pool of everything that was not routed elsewhere.
    pub const DEFAULT: PoolId = PoolId(0);

    /// Whether this is the default pool.
    pub const fn is_default(self) -> bool {
        self.0 == 0
    }
}

/// What memory is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Category {
    /// Weights.
    Parameters,
    /// Gradients of weights.
    Gradients,
    /// Moments, master copies, factored statistics.
    OptimizerStates,
    /// Tensors of the forward pass and their gradients.
    Activations,
    /// Logits, log-probabilities and what the loss keeps.
    LogitsAndLoss,
    /// Scratch of kernels, casts and dequantized weights.
    Workspace,
    /// Buckets, gathered shards, send and receive buffers.
    Communication,
    /// Keys, values and recurrent state.
    KvCache,
    /// Buffers of a serving engine (compute graph, CUDA graphs, sampler).
    EngineBuffers,
    /// Input batches.
    Inputs,
    /// Driver context, loaded kernels and library memory outside the framework's allocator.
    Context,
    /// Not known (measured timelines only).
    Unknown,
}

impl Category {
    /// Every category, in the order that reports list them.
    pub const ALL: [Category; 12] = [
        Category::Parameters,
        Category::Gradients,
        Category::OptimizerStates,
        Category::Activations,
        Category::LogitsAndLoss,
        Category::Workspace,
        Category::Communication,
        Category::KvCache,
        Category::EngineBuffers,
        Category::Inputs,
        Category::Context,
        Category::Unknown,
    ];

    /// The words that reports print.
    pub const fn label(self) -> &'static str {
        match self {
            Category::Parameters => "parameters",
            Category::Gradients => "gradients",
            Category::OptimizerStates => "optimizer states",
            Category::Activations => "activations",
            Category::LogitsAndLoss => "logits and loss",
            Category::Workspace => "workspace",
            Category::Communication => "communication",
            Category::KvCache => "KV cache",
            Category::EngineBuffers => "engine buffers",
            Category::Inputs => "inputs",
            Category::Context => "context",
            Category::Unknown => "unknown",
        }
    }
}

/// What a program is doing when an event happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PhaseKind {
    /// Weights and persistent state come into being.
    Load,
    /// Forward pass.
    Forward,
    /// Loss and its gradient.
    Loss,
    /// Backward pass, recomputation included.
    Backward,
    /// Gradient reduction after backward.
    Communication,
    /// Optimizer step.
    OptimizerStep,
    /// Prompt processing.
    Prefill,
    /// Token by token.
    Decode,
    /// A serving engine's start: profile run, graph capture, warm-up.
    Startup,
}

impl PhaseKind {
    /// The words that reports print.
    pub const fn label(self) -> &'static str {
        match self {
            PhaseKind::Load => "load",
            PhaseKind::Forward => "forward",
            PhaseKind::Loss => "loss",
            PhaseKind::Backward => "backward",
            PhaseKind::Communication => "communication",
            PhaseKind::OptimizerStep => "optimizer step",
            PhaseKind::Prefill => "prefill",
            PhaseKind::Decode => "decode",
            PhaseKind::Startup => "start-up",
        }
    }
}

/// A phase and the event with which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Which.
    pub kind: PhaseKind,
    /// Training step it belongs to, counted from 0.
    pub step: u32,
    /// Index of its first event.
    pub first_event: u32,
}

/// Where an allocation comes from: an operator of a layer, a parameter, a stack of source lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The module or block, such as `layers.31` or `head`; empty for none.
    pub module: Arc<str>,
    /// The operator or tensor within it, such as `mlp.act`.
    pub what: Arc<str>,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Requested bytes.
    pub requested: Bytes,
    /// What it is for.
    pub category: Category,
    /// Where it comes from.
    pub origin: OriginId,
    /// CUDA stream it was allocated on; 0 is the default stream.
    pub stream: u16,
    /// Memory pool it was allocated in.
    pub pool: PoolId,
}

/// One step of a timeline, eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The tensor comes into being.
    Alloc(TensorId),
    /// The tensor is freed. If [`RecordStream`](Event::RecordStream) named another stream before, the allocator
    /// decides when the free completes; otherwise it completes at once.
    Free(TensorId),
    /// The program lets the tensor go, but another stream may still use its memory (measured timelines).
    FreeRequested(TensorId),
    /// No stream uses the memory any more; it follows [`FreeRequested`](Event::FreeRequested).
    FreeCompleted(TensorId),
    /// Another stream uses the tensor (`Tensor.record_stream`): its free has to wait for that stream.
    RecordStream(TensorId, u16),
    /// Every cached free block goes back to the driver (`torch.cuda.empty_cache`).
    EmptyCache,
    /// Requests begin to be routed to a private pool: for a graph capture or by `use_mem_pool`.
    BeginPool(PoolId),
    /// Routing to a private pool ends.
    EndPool(PoolId),
    /// The capture of a CUDA graph begins; the routing to its pool began before.
    BeginCapture,
    /// The capture of a CUDA graph ends.
    EndCapture,
    /// One user of a private pool is gone: a graph was reset, a `MemPool` deleted. The last one makes the pool's
    /// cached segments releasable.
    ReleasePool(PoolId),
}

/// An ordered list of allocations and frees, with what each was for.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    pub(crate) allocations: Vec<Allocation>,
    pub(crate) events: Vec<Event>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) origins: Vec<Origin>,
    pub(crate) existing: u32,
}

impl Timeline {
    /// How many allocations were live before the first event. They come first: their [`TensorId`]s are
    /// `0..existing()`, and no event makes them.
    pub fn existing(&self) -> u32 {
        self.existing
    }

    /// The allocations, by [`TensorId`].
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }

    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The phases, in order of their first event.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// The origin of an id made by this timeline's builder.
    pub fn origin(&self, id: OriginId) -> &Origin {
        &self.origins[id.0 as usize]
    }

    /// The phase that an event belongs to; `None` before the first phase.
    pub fn phase_at(&self, event: usize) -> Option<Phase> {
        let after = self.phases.partition_point(|p| p.first_event as usize <= event);
        after.checked_sub(1).map(|i| self.phases[i])
    }
}

/// What a builder knows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Live,
    /// Freed, and not yet completed.
    Pending,
    /// Freed, or of no bytes.
    Gone,
}

/// Builds a [`Timeline`]. Sizes of zero make no event, as in torch.
#[derive(Debug, Default)]
pub struct TimelineBuilder {
    timeline: Timeline,
    life: Vec<Life>,
}

impl TimelineBuilder {
    /// An empty timeline.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for events to come, half of them allocations.
    pub fn reserve(&mut self, events: usize) {
        self.timeline.events.reserve(events);
        self.timeline.allocations.reserve(events / 2);
        self.life.reserve(events / 2);
    }

    /// Begins a phase with the next event.
    pub fn phase(&mut self, kind: PhaseKind, step: u32) {
        let first_event = self.timeline.events.len() as u32;
        self.timeline.phases.push(Phase { kind, step, first_event });
    }

    /// Registers an origin. Callers keep the id; nothing is deduplicated here.
    pub fn origin(&mut self, module: &str, what: &str) -> OriginId {
        let id = OriginId(self.timeline.origins.len() as u32);
        self.timeline.origins.push(Origin { module: module.into(), what: what.into() });
        id
    }

    /// Registers one origin for each name within a module, with consecutive ids, and returns the first.
    pub fn origins(&mut self, module: &str, whats: &[Arc<str>]) -> OriginId {
        let id = OriginId(self.timeline.origins.len() as u32);
        let module: Arc<str> = module.into();
        let origin = |what: &Arc<str>| Origin { module: module.clone(), what: what.clone() };
        self.timeline.origins.extend(whats.iter().map(origin));
        id
    }

    /// A tensor that is live before the first event, such as a block that was there when a recording began. All
    /// of them come before the first allocation; one that comes later is taken as an allocation.
    pub fn existing(&mut self, allocation: Allocation) -> TensorId {
        if self.timeline.existing as usize != self.timeline.allocations.len() {
            return self.push(allocation);
        }
        let id = TensorId(self.timeline.existing);
        self.timeline.existing += 1;
        self.timeline.allocations.push(allocation);
        self.life.push(Life::Live);
        id
    }

    /// Allocates on the default stream.
    pub fn alloc(&mut self, requested: Bytes, category: Category, origin: OriginId) -> TensorId {
        self.alloc_on(0, requested, category, origin)
    }

    /// Allocates on a stream: the caching allocator never reuses a block on another one.
    pub fn alloc_on(
        &mut self,
        stream: u16,
        requested: Bytes,
        category: Category,
        origin: OriginId,
    ) -> TensorId {
        let pool = PoolId::DEFAULT;
        self.push(Allocation { requested, category, origin, stream, pool })
    }

    /// Allocates with every circumstance named.
    pub fn push(&mut self, allocation: Allocation) -> TensorId {
        let id = TensorId(self.timeline.allocations.len() as u32);
        self.timeline.allocations.push(allocation);
        let empty = allocation.requested.is_zero();
        self.life.push(if empty { Life::Gone } else { Life::Live });
        if !empty {
            self.timeline.events.push(Event::Alloc(id));
        }
        id
    }

    /// Frees a tensor; a second free of the same tensor is ignored.
    pub fn free(&mut self, id: TensorId) {
        self.end(id, &[Life::Live], Life::Gone, Event::Free(id));
    }

    /// Frees a tensor whose memory another stream may still use.
    pub fn free_requested(&mut self, id: TensorId) {
        self.end(id, &[Life::Live], Life::Pending, Event::FreeRequested(id));
    }

    /// The memory of a freed tensor is no longer used by any stream. Right after the free was requested, the two
    /// become one [`Event::Free`]; without a request the tensor is freed here.
    pub fn free_completed(&mut self, id: TensorId) {
        if self.timeline.events.last() == Some(&Event::FreeRequested(id)) {
            self.timeline.events.pop();
            self.end(id, &[Life::Pending], Life::Gone, Event::Free(id));
        } else {
            self.free_completed_apart(id);
        }
    }

    /// [`free_completed`](Self::free_completed) that stays an event of its own: something happened in between that
    /// makes no event, such as a request that failed.
    pub fn free_completed_apart(&mut self, id: TensorId) {
        if self.life.get(id.0 as usize) == Some(&Life::Live) {
            self.free(id);
        } else {
            self.end(id, &[Life::Pending], Life::Gone, Event::FreeCompleted(id));
        }
    }

    /// Another stream uses the tensor (`Tensor.record_stream`).
    pub fn record_stream(&mut self, id: TensorId, stream: u16) {
        self.end(id, &[Life::Live], Life::Live, Event::RecordStream(id, stream));
    }

    /// Gives cached blocks back to the driver.
    pub fn empty_cache(&mut self) {
        self.timeline.events.push(Event::EmptyCache);
    }

    /// A capture of a CUDA graph begins.
    pub fn begin_capture(&mut self) {
        self.timeline.events.push(Event::BeginCapture);
    }

    /// A capture of a CUDA graph ends.
    pub fn end_capture(&mut self) {
        self.timeline.events.push(Event::EndCapture);
    }

    /// Requests begin to be routed to a private pool.
    pub fn begin_pool(&mut self, pool: PoolId) {
        self.timeline.events.push(Event::BeginPool(pool));
    }

    /// Routing to a private pool ends.
    pub fn end_pool(&mut self, pool: PoolId) {
        self.timeline.events.push(Event::EndPool(pool));
    }

    /// One user of a private pool is gone.
    pub fn release_pool(&mut self, pool: PoolId) {
        self.timeline.events.push(Event::ReleasePool(pool));
    }

    /// The finished timeline.
    pub fn finish(self) -> Timeline {
        self.timeline
    }

    /// Writes an event of a tensor that is in one of the states `from`.
    fn end(&mut self, id: TensorId, from: &[Life], to: Life, event: Event) {
        if let Some(life) = self.life.get_mut(id.0 as usize)
            && from.contains(life)
        {
            *life = to;
            self.timeline.events.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_allocations_stay_small() {
        assert_eq!(size_of::<Event>(), 8);
        assert!(size_of::<Allocation>() <= 24);
    }

    #[test]
    fn frees_that_complete_later_are_kept_in_order() {
        let mut t = TimelineBuilder::new();
        let origin = t.origin("", "x");
        let old = Allocation {
            requested: Bytes::mib(1),
            category: Category::Unknown,
            origin,
            stream: 0,
            pool: PoolId::DEFAULT,
        };
        let before = t.existing(old);
        let [a, b, c] = [(); 3].map(|()| t.alloc(Bytes::mib(2), Category::Unknown, origin));
        t.free_requested(a);
        t.free_completed(a);
        t.free_requested(b);
        t.free_completed(c);
        t.free_completed(b);
        t.free_completed(b);
        t.free(before);
        let timeline = t.finish();
        assert_eq!(timeline.existing(), 1);
        assert_eq!(
            timeline.events()[3..],
            [
                Event::Free(a),
                Event::FreeRequested(b),
                Event::Free(c),
                Event::FreeCompleted(b),
                Event::Free(before),
            ]
        );
    }
}
