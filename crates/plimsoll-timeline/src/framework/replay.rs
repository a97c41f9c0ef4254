//! The choice on a device: its limit, what it takes from the start, and the replay.

use std::collections::VecDeque;

use plimsoll_units::Bytes;

use super::{AllocatorChoice, Jax, JaxAllocator, TensorFlow};
use crate::{
    Allocator, Backend, Bfc, BfcBlock, BfcConfig, Category, DriverPool, Event, Exact, Footprint,
    OutOfMemory, PhaseKind, PyTorchConfig, ReplayOptions, Timeline, Usage, replay_on, replay_with,
};

/// The memory of one device as a framework finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All that frameworks see.
    pub total: Bytes,
    /// What is free once the context is there.
    pub available: Bytes,
    /// Major number of the compute capability; TensorFlow leaves more to newer devices.
    pub compute_major: Option<u64>,
}

impl DeviceMemory {
    /// What TensorFlow leaves alone where nobody sets a limit, by memory and compute capability
    /// (`MinSystemMemory` in tensorflow's `gpu_device.cc`, read 2026-11-30).
    fn left_by_tensorflow(&self) -> Bytes {
        match self.compute_major {
            _ if self.available < Bytes::gib(2) => Bytes::mib(225),
            Some(..=6) => Bytes::mib(500),
            Some(7) => Bytes::mib(1050),
            Some(8) => Bytes::mib(1536),
            _ => Bytes::mib(1800),
        }
    }
}

/// What a replay on a framework's allocator shows.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FrameworkReplay {
    /// The footprint. Where memory ran out, that of an allocator without limits, with the failure.
    pub footprint: Footprint,
    /// The most that the framework asks the device for; `None` where nothing but the device limits it.
    pub limit: Option<Bytes>,
    /// What it takes with its first buffer, whatever it needs.
    pub preallocates: Option<Bytes>,
}

impl AllocatorChoice {
    /// The most that the framework asks a device for, and what it takes with its first buffer.
    pub fn policy(&self, memory: &DeviceMemory) -> (Option<Bytes>, Option<Bytes>) {
        match self {
            AllocatorChoice::PyTorch(s) => (s.config_for(memory.total).memory_limit, None),
            AllocatorChoice::TensorFlow(t) => {
                let limit = tensorflow_limit(t, memory);
                let all = !t.allow_growth && !t.malloc_async;
                (Some(limit), all.then_some(limit))
            }
            AllocatorChoice::Jax(j) => match j.allocator {
                JaxAllocator::Platform => (None, None),
                JaxAllocator::CudaAsync => (Some(j.fraction.of(memory.total)), None),
                JaxAllocator::Bfc => {
                    let start = j.fraction.of(memory.total);
                    let cap = j.cap.filter(|_| j.preallocate).map(|cap| cap.of(memory.total));
                    (Some(cap.unwrap_or(start)), j.preallocate.then_some(start))
                }
            },
            AllocatorChoice::OnnxRuntime(o) => (o.limit, None),
        }
    }

    /// Replays a timeline on the allocator of this choice, on a device.
    ///
    /// ```
    /// use plimsoll_timeline::{AllocatorChoice, Category, DeviceMemory, ReplayOptions, TimelineBuilder};
    /// use plimsoll_units::Bytes;
    /// let mut timeline = TimelineBuilder::new();
    /// let weights = timeline.origin("head", "weight");
    /// timeline.alloc(Bytes::gib(1), Category::Parameters, weights);
    /// let timeline = timeline.finish();
    /// let memory = DeviceMemory { total: Bytes::gib(24), available: Bytes::gib(23), compute_major: Some(8) };
    /// let jax: AllocatorChoice = "jax".parse()?;
    /// let replay = jax.replay(&timeline, &memory, &ReplayOptions::default());
    /// assert_eq!(replay.footprint.allocated_peak, Bytes::gib(1));
    /// assert_eq!(replay.footprint.reserved_peak, Bytes::gib(18));
    /// # Ok::<(), plimsoll_timeline::ChoiceError>(())
    /// ```
    pub fn replay(
        &self,
        timeline: &Timeline,
        memory: &DeviceMemory,
        options: &ReplayOptions,
    ) -> FrameworkReplay {
        let (limit, preallocates) = self.policy(memory);
        let capacity = Some(memory.available);
        let pool =
            || bounded(timeline, options, DriverPool::new(limit, capacity), DriverPool::default());
        let bfc = |config: BfcConfig| {
            let free = BfcConfig {
                limit: None,
                capacity: None,
                first_region: Bytes::mib(2),
                ..config.clone()
            };
            bounded(timeline, options, Bfc::new(BfcConfig { capacity, ..config }), Bfc::new(free))
        };
        let footprint = match self {
            AllocatorChoice::PyTorch(s) if s.backend == Backend::CudaMallocAsync => pool(),
            AllocatorChoice::PyTorch(s) => {
                let config = PyTorchConfig { capacity, ..s.config_for(memory.total) };
                replay_with(timeline, &config, options)
            }
            AllocatorChoice::TensorFlow(t) if t.malloc_async => pool(),
            AllocatorChoice::TensorFlow(t) => {
                let config = BfcConfig::tensorflow(limit.unwrap_or(memory.total), t.allow_growth);
                bfc(BfcConfig { collects_regions: t.garbage_collection, ..config })
            }
            AllocatorChoice::Jax(j) => match j.allocator {
                JaxAllocator::Platform => {
                    bounded(timeline, options, Exact::default(), Exact::default())
                }
                JaxAllocator::CudaAsync => pool(),
                JaxAllocator::Bfc => bfc(jax_config(j, memory)),
            },
            AllocatorChoice::OnnxRuntime(o) => {
                let config = o.config();
                let free = BfcConfig { limit: None, capacity: None, ..config.clone() };
                let arena = |config| Initialisers::new(Bfc::new(config), timeline);
                let bounds = BfcConfig { capacity, ..config };
                bounded(timeline, options, arena(bounds), arena(free))
            }
        };
        FrameworkReplay { footprint, limit, preallocates }
    }
}

fn tensorflow_limit(t: &TensorFlow, memory: &DeviceMemory) -> Bytes {
    match (t.memory_limit, t.fraction) {
        (Some(limit), _) => limit,
        (None, Some(share)) => share.of(memory.total),
        (None, None) => memory.available.saturating_sub(memory.left_by_tensorflow()),
    }
}

fn jax_config(j: &Jax, memory: &DeviceMemory) -> BfcConfig {
    let start = j.fraction.of(memory.total);
    match j.cap.filter(|_| j.preallocate) {
        Some(cap) => BfcConfig::jax_growing(start, cap.of(memory.total)),
        None => BfcConfig::jax(start, j.preallocate),
    }
}

/// Replays within bounds, and without them where they were too tight.
fn bounded<A: Allocator>(
    timeline: &Timeline,
    options: &ReplayOptions,
    mut within: A,
    mut without: A,
) -> Footprint {
    let failure = match replay_on(timeline, &mut within, options) {
        Ok(footprint) => return footprint,
        Err(failure) => failure,
    };
    let footprint = replay_on(timeline, &mut without, options)
        // Sizes beyond every address space; sums still show by how much.
        .or_else(|_| replay_on(timeline, &mut Exact::default(), options));
    Footprint { failure: Some(failure), ..footprint.unwrap_or_default() }
}

/// ONNX Runtime's arena with the weights set aside, as a session does when it loads a model.
struct Initialisers {
    arena: Bfc,
    /// For each allocation to come, whether it is a weight that is loaded.
    weights: VecDeque<bool>,
}

impl Initialisers {
    fn new(arena: Bfc, timeline: &Timeline) -> Self {
        let allocations = timeline.allocations();
        let is_weight = |tensor: usize| allocations[tensor].category == Category::Parameters;
        let mut weights: VecDeque<bool> =
            (0..timeline.existing() as usize).map(is_weight).collect();
        for (i, event) in timeline.events().iter().enumerate() {
            if let Event::Alloc(id) = event {
                let loads = timeline.phase_at(i).is_none_or(|p| p.kind == PhaseKind::Load);
                weights.push_back(loads && is_weight(id.0 as usize));
            }
        }
        Initialisers { arena, weights }
    }
}

impl Allocator for Initialisers {
    type Block = BfcBlock;

    fn allocate(&mut self, requested: Bytes, stream: u16) -> Result<BfcBlock, OutOfMemory> {
        match self.weights.pop_front() {
            Some(true) => self.arena.reserve(requested),
            _ => self.arena.allocate(requested, stream),
        }
    }

    fn release(&mut self, block: BfcBlock) {
        self.arena.release(block);
    }

    fn empty_cache(&mut self) {
        self.arena.empty_cache();
    }

    fn allocated_size(&self, block: &BfcBlock) -> Bytes {
        self.arena.allocated_size(block)
    }

    fn usage(&self) -> Usage {
        self.arena.usage()
    }
}
