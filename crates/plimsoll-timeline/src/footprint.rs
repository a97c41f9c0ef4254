//! Replay of a timeline on an allocator, and what it shows: the peak, what was live at the peak and why, the curve
//! over the events, the state at the end, and the event at which memory ran out.
//!
//! Two passes. The first replays and notes the life of each tensor, the peak, and where each stretch of the curve is
//! highest and lowest; the second needs no allocator and attributes bytes, so attribution costs nothing while the peak is
//! still unknown. Nothing but the curve looks at the events again.

mod attribution;
mod series;

use std::sync::Arc;

use plimsoll_units::Bytes;

use crate::pytorch::PlainAllocator;
use crate::{
    Allocator, Category, Event, Exact, OutOfMemory, Phase, PhaseKind, PyTorchAllocator,
    PyTorchConfig, TensorId, Timeline, Usage,
};
use attribution::Life;
use series::Stretch;

/// How much a [`Footprint`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Points of the curve, at most (two, if one is asked for); a timeline of fewer events keeps them all. 0 for no
    /// curve.
    pub points: usize,
    /// Origins listed one by one; the rest is summed.
    pub origins: usize,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        ReplayOptions { points: 600, origins: 24 }
    }
}

/// What a replay shows. Bytes are *allocated* (rounded, slack included) unless the name says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Footprint {
    /// The most that was asked for at once; may fall on another event than the other peaks.
    pub requested_peak: Bytes,
    /// The most that was allocated at once.
    pub allocated_peak: Bytes,
    /// The most that was held from the driver at once.
    pub reserved_peak: Bytes,
    /// The first event after which [`allocated_peak`](Self::allocated_peak) holds; `None` without an allocation, or
    /// where most was allocated before the first event.
    pub peak_event: Option<u32>,
    /// The first event after which [`reserved_peak`](Self::reserved_peak) holds.
    pub reserved_peak_event: Option<u32>,
    /// The phase of the allocated peak.
    pub peak_phase: Option<Phase>,
    /// Requested, allocated and reserved bytes at the allocated peak.
    pub at_peak: Usage,
    /// What was live at the allocated peak.
    pub live: LiveSet,
    /// The curve, in order of events: every local extreme that a picture of that many points can show.
    pub series: Vec<SeriesPoint>,
    /// The state after the last event.
    pub end: Usage,
    /// What is live after the last event, by category.
    pub end_by_category: Vec<(Category, Bytes)>,
    /// Number of events.
    pub events: u32,
    /// The phases of the timeline.
    pub phases: Vec<Phase>,
    /// Times that the allocator gave back its cache to serve a request.
    pub retries: u64,
    /// Segments held at once, at most; zero with expandable segments.
    pub segments_peak: u64,
    /// Where memory ran out. The rest of the footprint is then that of the same timeline without a limit.
    pub failure: Option<Failure>,
}

/// What was live at one moment. Each way of sorting adds up to the same total.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LiveSet {
    /// By what it is for, in the order of [`Category::ALL`], without empty ones.
    pub by_category: Vec<(Category, Bytes)>,
    /// By the phase in which it came into being; `None` for before the first phase. In order of first appearance.
    pub by_phase: Vec<(Option<PhaseKind>, Bytes)>,
    /// By module, largest first; the empty name stands for no module.
    pub by_module: Vec<(Arc<str>, Bytes)>,
    /// By origin, largest first, as many as [`ReplayOptions::origins`].
    pub by_origin: Vec<OriginShare>,
    /// The sum of the origins that are not listed.
    pub other_origins: Bytes,
    /// Live tensors.
    pub tensors: u32,
}

/// What one origin holds. Origins of the same name and category are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginShare {
    /// The module; empty for none.
    pub module: Arc<str>,
    /// The operator or tensor within it.
    pub what: Arc<str>,
    /// What it is for.
    pub category: Category,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its live tensors.
    pub tensors: u32,
}

/// A point of the curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesPoint {
    /// The event; the point shows the state after it.
    pub event: u32,
    /// Allocated bytes, the sum of the categories.
    pub allocated: Bytes,
    /// The most that was reserved in the stretch of events that this point stands for.
    pub reserved: Bytes,
    /// Allocated bytes in the order of [`Category::ALL`].
    pub by_category: [Bytes; Category::ALL.len()],
}

/// Where memory ran out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The event that could not happen.
    pub event: u32,
    /// Its phase.
    pub phase: Option<Phase>,
    /// The tensor that found no room.
    pub tensor: TensorId,
    /// The state of the allocator.
    pub error: OutOfMemory,
}

/// Replays a timeline on PyTorch's allocator.
///
/// ```
/// use plimsoll_timeline::{Category, PhaseKind, PyTorchConfig, TimelineBuilder, replay};
/// use plimsoll_units::Bytes;
/// let mut timeline = TimelineBuilder::new();
/// let weights = timeline.origin("head", "weight");
/// timeline.phase(PhaseKind::Load, 0);
/// timeline.alloc(Bytes::mib(30), Category::Parameters, weights);
/// let footprint = replay(&timeline.finish(), &PyTorchConfig::default());
/// assert_eq!(footprint.allocated_peak, Bytes::mib(30));
/// assert_eq!(footprint.live.by_category, [(Category::Parameters, Bytes::mib(30))]);
/// ```
pub fn replay(timeline: &Timeline, config: &PyTorchConfig) -> Footprint {
    replay_with(timeline, config, &ReplayOptions::default())
}

/// [`replay`] with a say in how much is kept.
pub fn replay_with(
    timeline: &Timeline,
    config: &PyTorchConfig,
    options: &ReplayOptions,
) -> Footprint {
    if PlainAllocator::knows(config)
        && let Some(footprint) = replay_plain(timeline, config, options)
    {
        return footprint;
    }
    let mut torch = PyTorchAllocator::new(config.clone());
    let failure = match replay_on(timeline, &mut torch, options) {
        Ok(footprint) => return with_counters(footprint, &torch, None),
        Err(failure) => failure,
    };
    let config = PyTorchConfig { capacity: None, memory_limit: None, ..config.clone() };
    torch = PyTorchAllocator::new(config);
    if let Ok(footprint) = replay_on(timeline, &mut torch, options) {
        return with_counters(footprint, &torch, Some(failure));
    }
    // Sizes beyond every address space; sums still show by how much.
    let footprint = replay_on(timeline, &mut Exact::default(), options).unwrap_or_default();
    Footprint { failure: Some(failure), ..footprint }
}

/// On the lean allocator; `None` where it does not know all of the timeline.
fn replay_plain(
    timeline: &Timeline,
    config: &PyTorchConfig,
    options: &ReplayOptions,
) -> Option<Footprint> {
    let on = |capacity| {
        let mut plain = PlainAllocator::new(capacity);
        let replayed = replay_on(timeline, &mut plain, options);
        let (segments_peak, retries) = plain.counters()?;
        Some(replayed.map(|footprint| Footprint { segments_peak, retries, ..footprint }))
    };
    match on(config.capacity)? {
        Ok(footprint) => Some(footprint),
        Err(failure) => {
            let footprint = on(None)?.ok()?;
            Some(Footprint { failure: Some(failure), ..footprint })
        }
    }
}

fn with_counters(
    footprint: Footprint,
    torch: &PyTorchAllocator,
    failure: Option<Failure>,
) -> Footprint {
    let statistics = torch.statistics();
    Footprint {
        retries: statistics.num_alloc_retries,
        segments_peak: statistics.all.segment.peak,
        failure,
        ..footprint
    }
}

/// Replays a timeline on any allocator. Tensors that were there before the first event are allocated first.
///
/// # Errors
/// The event at which the allocator ran out of memory; nothing is known of what would have come after it.
pub fn replay_on<A: Allocator>(
    timeline: &Timeline,
    allocator: &mut A,
    options: &ReplayOptions,
) -> Result<Footprint, Failure> {
    let mut existing = Vec::with_capacity(timeline.existing() as usize);
    for (i, tensor) in (0..timeline.existing()).zip(timeline.allocations()) {
        let block = allocator.allocate_in(tensor.pool, tensor.requested, tensor.stream);
        existing.push(block.map_err(|error| Failure {
            event: 0,
            phase: None,
            tensor: TensorId(i),
            error,
        })?);
    }
    replay_from(timeline, allocator, existing, options)
}

/// Replays a timeline on an allocator that holds the tensors of before the first event already: their blocks, by
/// [`TensorId`], as [`PyTorchAllocator::from_layout`] gives them.
///
/// # Errors
/// The event at which the allocator ran out of memory; nothing is known of what would have come after it.
pub fn replay_from<A: Allocator>(
    timeline: &Timeline,
    allocator: &mut A,
    existing: Vec<A::Block>,
    options: &ReplayOptions,
) -> Result<Footprint, Failure> {
    let events = timeline.events();
    let stretch_events = series::events_per_stretch(events.len(), options.points);
    let mut stretches = Vec::with_capacity(events.len().div_ceil(stretch_events));
    let mut blocks: Vec<Option<A::Block>> = Vec::new();
    blocks.resize_with(timeline.allocations().len(), || None);
    let mut lives = vec![Life::NONE; timeline.allocations().len()];
    for (i, block) in existing.into_iter().enumerate().take(timeline.existing() as usize) {
        lives[i] = Life::before(allocator.allocated_size(&block));
        blocks[i] = Some(block);
    }
    let before = allocator.usage();
    let mut footprint = Footprint {
        requested_peak: before.requested,
        allocated_peak: before.allocated,
        reserved_peak: before.reserved,
        at_peak: before,
        ..Footprint::default()
    };

    let mut event = 0u32;
    for part in events.chunks(stretch_events) {
        let mut stretch = Stretch::new(event);
        for happens in part {
            match *happens {
                Event::Alloc(id) => {
                    let tensor = timeline.allocations()[id.0 as usize];
                    let block = allocator
                        .allocate_in(tensor.pool, tensor.requested, tensor.stream)
                        .map_err(|error| {
                            let phase = timeline.phase_at(event as usize);
                            Failure { event, phase, tensor: id, error }
                        })?;
                    lives[id.0 as usize] = Life::born(allocator.allocated_size(&block), event);
                    blocks[id.0 as usize] = Some(block);
                }
                Event::Free(id) => {
                    lives[id.0 as usize].end(event);
                    if let Some(block) = blocks[id.0 as usize].take() {
                        allocator.release(block);
                    }
                }
                Event::FreeRequested(id) => {
                    lives[id.0 as usize].end(event);
                    if let Some(block) = &blocks[id.0 as usize] {
                        allocator.request_free(block);
                    }
                }
                Event::FreeCompleted(id) => {
                    if let Some(block) = blocks[id.0 as usize].take() {
                        allocator.complete_free(block);
                    }
                }
                Event::RecordStream(id, stream) => {
                    if let Some(block) = &blocks[id.0 as usize] {
                        allocator.record_stream(block, stream);
                    }
                }
                Event::EmptyCache => allocator.empty_cache(),
                Event::BeginPool(pool) => allocator.begin_pool(pool),
                Event::EndPool(pool) => allocator.end_pool(pool),
                Event::BeginCapture => allocator.begin_capture(),
                Event::EndCapture => allocator.end_capture(),
                Event::ReleasePool(pool) => allocator.release_pool(pool),
            }
            if let Event::Alloc(_) = happens {
                // Nothing else raises any of the three.
                let usage = allocator.usage();
                footprint.requested_peak = footprint.requested_peak.max(usage.requested);
                if usage.allocated > footprint.allocated_peak {
                    footprint.allocated_peak = usage.allocated;
                    footprint.peak_event = Some(event);
                    footprint.at_peak = usage;
                }
                if usage.reserved > footprint.reserved_peak {
                    footprint.reserved_peak = usage.reserved;
                    footprint.reserved_peak_event = Some(event);
                }
            }
            if options.points > 0 {
                stretch.note(event, allocator.usage());
            }
            event += 1;
        }
        stretches.push(stretch);
    }

    footprint.end = allocator.usage();
    footprint.events = event;
    footprint.phases = timeline.phases().to_vec();
    let peak = footprint.peak_event;
    footprint.peak_phase = peak.and_then(|event| timeline.phase_at(event as usize));
    if peak.is_some() || timeline.existing() > 0 {
        footprint.live = attribution::live_after(timeline, &lives, peak, options.origins);
    }
    if options.points > 0 {
        footprint.series = series::curve(timeline, &lives, &stretches);
    }
    let mut end = [Bytes::ZERO; Category::ALL.len()];
    for (tensor, life) in timeline.allocations().iter().zip(&lives).filter(|(_, l)| l.lasts()) {
        end[tensor.category as usize] += life.size;
    }
    footprint.end_by_category = by_category(&end);
    Ok(footprint)
}

/// The categories that hold anything.
fn by_category(bytes: &[Bytes; Category::ALL.len()]) -> Vec<(Category, Bytes)> {
    Category::ALL.into_iter().zip(*bytes).filter(|(_, bytes)| !bytes.is_zero()).collect()
}
