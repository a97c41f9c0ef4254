//! The timeline itself and the builder that keeps it well formed: every free names a live tensor, every phase
//! covers the events up to the next one.

use plimsoll_units::Bytes;
use serde::Serialize;

/// An allocation of the timeline, by order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

/// An interned origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginId(pub u32);

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
    pub module: Box<str>,
    /// The operator or tensor within it, such as `mlp.act`.
    pub what: Box<str>,
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
}

/// One step of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The tensor comes into being.
    Alloc(TensorId),
    /// The tensor is freed.
    Free(TensorId),
    /// Every cached free block goes back to the driver (`torch.cuda.empty_cache`).
    EmptyCache,
}

/// An ordered list of allocations and frees, with what each was for.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    pub(crate) allocations: Vec<Allocation>,
    pub(crate) events: Vec<Event>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) origins: Vec<Origin>,
}

impl Timeline {
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

/// Builds a [`Timeline`]. Sizes of zero make no event, as in torch.
#[derive(Debug, Default)]
pub struct TimelineBuilder {
    timeline: Timeline,
    live: Vec<bool>,
}

impl TimelineBuilder {
    /// An empty timeline.
    pub fn new() -> Self {
        Self::default()
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
        let id = TensorId(self.timeline.allocations.len() as u32);
        self.timeline.allocations.push(Allocation { requested, category, origin, stream });
        self.live.push(true);
        if !requested.is_zero() {
            self.timeline.events.push(Event::Alloc(id));
        }
        id
    }

    /// Frees a tensor; a second free of the same tensor is ignored.
    pub fn free(&mut self, id: TensorId) {
        let Some(live) = self.live.get_mut(id.0 as usize) else { return };
        if std::mem::replace(live, false)
            && !self.timeline.allocations[id.0 as usize].requested.is_zero()
        {
            self.timeline.events.push(Event::Free(id));
        }
    }

    /// Gives cached blocks back to the driver.
    pub fn empty_cache(&mut self) {
        self.timeline.events.push(Event::EmptyCache);
    }

    /// The finished timeline.
    pub fn finish(self) -> Timeline {
        self.timeline
    }
}
