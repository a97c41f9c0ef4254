//! Training in PyTorch terms: the graph of the model as the chosen implementation runs it, one step simulated on the
//! worst rank, the footprint of its timeline, and the terms behind it.

mod explain;
mod groups;
mod held;
mod host;
mod load;
mod options;
mod params;
mod pipeline;
mod report;
mod run;
mod shards;
mod tape;
mod zero;

use plimsoll_model::{Architecture, Graph, Inventory, build};
use plimsoll_timeline::{Event, Footprint, PyTorchConfig, ReplayOptions, Timeline, replay_with};
use plimsoll_units::{Bindings, Bytes, Symbol};

use crate::request::{Checkpointing, Lengths, Stack, Strategy, Training};
use crate::{Device, Estimate, EstimateError};

pub use options::build_options;

/// Terms need every origin; the curve is drawn from the timeline when somebody asks for it.
const REPLAY: ReplayOptions = ReplayOptions { points: 0, origins: usize::MAX };

/// The simulated step of one rank.
pub(crate) struct RankRun {
    /// Pipeline rank, from 0.
    pub rank: u64,
    pub graph: Graph,
    /// Stages that the rank runs.
    pub stages: Vec<usize>,
    pub bindings: Bindings,
    pub timeline: Timeline,
    pub footprint: Footprint,
    pub host: host::Host,
}

/// Estimates the device memory of a training step.
///
/// # Errors
/// [`EstimateError`] where the request contradicts the model or itself.
pub fn estimate(
    model: &Architecture,
    inventory: &Inventory,
    training: &Training,
    strategy: &Strategy,
    device: &Device,
) -> Result<Estimate, EstimateError> {
    match estimate_within(model, inventory, training, strategy, device, Bytes::MAX)? {
        Within::Estimate(estimate) => Ok(*estimate),
        Within::Exceeds { .. } => Err(EstimateError::Invalid {
            field: "pipeline",
            value: strategy.sharding.pipeline.to_string(),
            accepted: "at least one stage".to_owned(),
            cure: "use --pp 1".to_owned(),
        }),
    }
}

/// An estimate, or why it was not finished.
#[derive(Clone, Debug)]
pub enum Within {
    /// The estimate; it may still exceed the limit.
    Estimate(Box<Estimate>),
    /// It would exceed the limit.
    Exceeds {
        /// What the program certainly allocates, library workspaces left out.
        at_least: Bytes,
    },
}

/// [`estimate`], given up as soon as it is certain that the device needs more than `limit` bytes. A search over many
/// changes asks no more of most of them.
///
/// # Errors
/// As [`estimate`].
pub fn estimate_within(
    model: &Architecture,
    inventory: &Inventory,
    training: &Training,
    strategy: &Strategy,
    device: &Device,
    limit: Bytes,
) -> Result<Within, EstimateError> {
    options::validate(model, training, strategy)?;
    // LitGPT never ties the output projection to the token table: it holds a copy.
    if training.stack == Stack::LitGpt && model.head.tied {
        let mut untied = model.clone();
        untied.head.tied = false;
        let inventory = plimsoll_model::inventory::inventory(&untied);
        let worst = worst_rank(&untied, &inventory, training, strategy, device, limit)?;
        return Ok(finish(model, training, strategy, device, worst));
    }
    let worst = worst_rank(model, inventory, training, strategy, device, limit)?;
    Ok(finish(model, training, strategy, device, worst))
}

fn finish(
    model: &Architecture,
    training: &Training,
    strategy: &Strategy,
    device: &Device,
    worst: Result<RankRun, Bytes>,
) -> Within {
    match worst {
        Ok(worst) => {
            Within::Estimate(Box::new(report::estimate(model, training, strategy, device, worst)))
        }
        Err(at_least) => Within::Exceeds { at_least },
    }
}

/// Simulates the pipeline ranks that can be worst and returns the one with the largest peak. Where some rank certainly
/// needs more than `limit`, what it needs without library workspaces: the worst one allocates no less, and reserves no
/// less than it allocates.
fn worst_rank(
    model: &Architecture,
    inventory: &Inventory,
    training: &Training,
    strategy: &Strategy,
    device: &Device,
    limit: Bytes,
) -> Result<Result<RankRun, Bytes>, EstimateError> {
    let options = build_options(model, training, strategy);
    let graph = build(model, inventory, &options).map_err(|e| EstimateError::UnsupportedModel {
        engine: "PyTorch training",
        family: model.family.clone(),
        reason: e.to_string(),
        cure: e.cure().to_owned(),
    })?;
    // What the allocator may hold at most.
    let limit = if limit == Bytes::MAX { limit } else { limit - device.context.typical };
    let places: Vec<(u64, pipeline::Place)> = pipeline::candidates(strategy)
        .into_iter()
        .map(|rank| (rank, pipeline::place(&graph, training, strategy, rank)))
        .collect();
    if limit < Bytes::MAX {
        let floor = |place: &pipeline::Place| {
            params::floor(&graph, &place.chunks.concat(), training, strategy)
        };
        let floor = places.iter().map(|(_, place)| floor(place)).max().unwrap_or_default();
        if floor > limit {
            return Ok(Err(floor));
        }
    }
    let context = strategy.sharding.context.max(1);
    let sequence = training.sequence.div_ceil(context);
    let target = training.target_sequence.unwrap_or(training.sequence).div_ceil(context);
    let bindings = Bindings::tokens(training.batch, sequence).with(Symbol::Context, target);
    let keep = match strategy.checkpointing {
        Checkpointing::Selective => tape::Keep::Selective,
        Checkpointing::AttentionCore => tape::Keep::ExceptCore,
        _ => tape::Keep::All,
    };
    let tapes: Vec<tape::Tapes> =
        graph.blocks.iter().map(|b| tape::compile(b, &bindings, keep)).collect();
    let shorter: Vec<(Bindings, Vec<tape::Tapes>)> = shorter_lengths(training.lengths)
        .iter()
        .map(|sixths| {
            let part = |n: u64| (n * sixths).div_ceil(6);
            let bindings = Bindings::tokens(training.batch, part(sequence))
                .with(Symbol::Context, part(target));
            (bindings, graph.blocks.iter().map(|b| tape::compile(b, &bindings, keep)).collect())
        })
        .collect();
    let mut worst: Option<RankRun> = None;
    for (rank, place) in places {
        let run = run::Run {
            graph: &graph,
            tapes: &tapes,
            bindings,
            shorter: &shorter,
            training,
            strategy,
            chunks: place.chunks,
            in_flight: place.in_flight,
            micro_batches: place.micro_batches,
            workspace: library_workspace(training, device),
            rollout: training
                .reinforcement
                .map_or(Bytes::ZERO, |r| device.usable.scale(r.rollout_permille, 1000)),
        };
        let ran = run::simulate(&run);
        if limit < Bytes::MAX {
            let requested = requested_peak(&ran.timeline);
            if requested > limit {
                return Ok(Err(requested - run.workspace));
            }
        }
        let footprint = replay_with(&ran.timeline, &allocator(training, device), &REPLAY);
        let better =
            worst.as_ref().is_none_or(|w| footprint.allocated_peak > w.footprint.allocated_peak);
        if better {
            worst = Some(RankRun {
                rank,
                graph: Graph::default(),
                stages: run.chunks.iter().flatten().copied().collect(),
                bindings,
                timeline: ran.timeline,
                footprint,
                host: ran.host,
            });
        }
    }
    Ok(worst.map(|worst| RankRun { graph, ..worst }).ok_or(Bytes::ZERO))
}

/// The most that is asked for at once.
fn requested_peak(timeline: &Timeline) -> Bytes {
    let (mut now, mut peak) = (Bytes::ZERO, Bytes::ZERO);
    for event in timeline.events() {
        match *event {
            Event::Alloc(id) => {
                now += timeline.allocations()[id.0 as usize].requested;
                peak = peak.max(now);
            }
            Event::Free(id) => now -= timeline.allocations()[id.0 as usize].requested,
            _ => {}
        }
    }
    peak
}

/// Lengths of the batches before the longest, in sixths: a short history that leaves the allocator's cache as split up
/// as a long one does.
fn shorter_lengths(lengths: Lengths) -> &'static [u64] {
    match lengths {
        Lengths::Fixed => &[],
        Lengths::Varied => &[2, 5, 3, 4, 1, 5],
    }
}

/// Settings of the caching allocator. What the device has beside the context is its capacity: where cached blocks are in
/// the way, PyTorch gives them back and tries again before it gives up.
fn allocator(training: &Training, device: &Device) -> PyTorchConfig {
    let mut config = PyTorchConfig::default();
    config.capacity = Some(device.capacity().saturating_sub(device.context.typical));
    config.expandable_segments = training.expandable_segments;
    config
}

/// Workspaces of libraries that the framework's allocator holds: cuBLAS's, or with Transformer Engine about 80 MiB.
fn library_workspace(training: &Training, device: &Device) -> Bytes {
    match training.stack {
        Stack::Megatron => Bytes::mib(80),
        _ => device.cublas_workspace(),
    }
}

#[cfg(test)]
mod frameworks;
#[cfg(test)]
mod tests;
