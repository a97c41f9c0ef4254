//! Parameters of one rank and what hangs on them: shards, gradients, optimizer states, step temporaries.

use plimsoll_model::Graph;
use plimsoll_model::graph::BlockParam;
use plimsoll_units::{Bytes, DType};

use crate::request::{
    Optimizer, OptimizerForm, Precision, Sharding, StepScope, Strategy, Training, ZeroStage,
};

/// One parameter row of the stages that a rank runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankParam<'a> {
    /// Stage and index within its block.
    pub stage: usize,
    pub index: usize,
    pub block: &'a BlockParam,
}

/// The rows that a rank owns: tied tables and shared layers once.
pub(super) fn rank_params<'a>(graph: &'a Graph, stages: &[usize]) -> Vec<RankParam<'a>> {
    let mut rows = Vec::new();
    let has_table = |part| {
        stages.iter().any(|s| {
            graph.block(&graph.stages[*s]).params.iter().any(|p| p.part == part && !p.tied)
        })
    };
    for &stage in stages {
        let s = &graph.stages[stage];
        if s.shares.is_some() {
            continue;
        }
        for (index, block) in graph.block(s).params.iter().enumerate() {
            // A tied table whose owner runs on another rank is held here as well.
            if !block.tied || !has_table(block.part) {
                rows.push(RankParam { stage, index, block });
            }
        }
    }
    rows
}

/// Ranks that share what `zero` shards for a parameter.
pub(super) fn shard_ranks(sharding: &Sharding, expert: bool) -> u64 {
    let group = match sharding.shard_group {
        0 => sharding.data.saturating_mul(sharding.context),
        n => n,
    };
    // Routed experts are replicated only across expert-data-parallel ranks.
    if expert { (group / sharding.expert.max(1)).max(1) } else { group.max(1) }
}

/// What of the model is sharded at which stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shards {
    pub parameters: bool,
    pub gradients: bool,
    pub states: bool,
}

impl Shards {
    pub fn of(zero: ZeroStage) -> Shards {
        let level = match zero {
            ZeroStage::Ddp => 0,
            ZeroStage::One | ZeroStage::DistributedOptimizer => 1,
            ZeroStage::Two => 2,
            ZeroStage::Three | ZeroStage::Fsdp1 | ZeroStage::Fsdp2 => 3,
        };
        Shards { parameters: level >= 3, gradients: level >= 2, states: level >= 1 }
    }
}

/// Elements of a row that one rank keeps where `sharded`.
pub(super) fn kept_elements(p: &BlockParam, sharding: &Sharding, sharded: bool) -> u64 {
    if sharded { p.elements.div_ceil(shard_ranks(sharding, p.expert)) } else { p.elements }
}

/// Type in which a parameter is kept between steps: the graph sees the compute type, the optimizer the stored one.
pub(super) fn storage_dtype(p: &BlockParam, precision: &Precision) -> DType {
    if p.adapter || !p.dtype.is_plain() { p.dtype } else { precision.weights }
}

/// Type of a gradient in `.grad`.
pub(super) fn gradient_dtype(p: &BlockParam, precision: &Precision) -> DType {
    if p.adapter { p.dtype } else { precision.gradients }
}

/// Persistent bytes that the optimizer keeps for `elements` of a parameter.
///
/// Sources: torch.optim (two moments of the parameter's type), bitsandbytes (blocks of 256 with an F32 maximum per
/// block and moment; tensors under 4,096 elements stay in F32), torchao (blocks of 128 in 4-bit states), the
/// Adafactor and Lion papers, Muon (momentum on matrices).
pub(super) fn state_bytes(training: &Training, p: &BlockParam, elements: u64) -> Bytes {
    let precision = &training.precision;
    let states = if p.adapter { p.dtype } else { precision.states };
    let full = states.bytes(elements);
    let vector = p.matrix.0 <= 1;
    let share = |n: u64| {
        let whole = p.elements.max(1);
        Bytes::new(n).scale(elements, whole)
    };
    let master = match precision.master {
        Some(dtype) if !p.adapter => dtype.bytes(elements),
        _ => Bytes::ZERO,
    };
    let small = p.tensor_elements < 4096;
    let moments = match training.optimizer {
        Optimizer::None | Optimizer::Sgd => Bytes::ZERO,
        Optimizer::Momentum | Optimizer::Lion => full,
        Optimizer::Adam | Optimizer::AdamW | Optimizer::PagedAdamW => full * 2,
        Optimizer::AdamW8bit | Optimizer::PagedAdamW8bit if small => DType::F32.bytes(elements) * 2,
        Optimizer::AdamW8bit | Optimizer::PagedAdamW8bit => {
            (Bytes::new(elements) + Bytes::new(elements.div_ceil(256) * 4)) * 2
        }
        Optimizer::AdamW4bit if small => full * 2,
        Optimizer::AdamW4bit => {
            (Bytes::new(elements.div_ceil(2)) + Bytes::new(elements.div_ceil(128) * 4)) * 2
        }
        Optimizer::Adafactor if vector => DType::F32.bytes(elements),
        Optimizer::Adafactor => {
            let (rows, columns) = p.matrix;
            share((rows + columns).saturating_mul(p.count).saturating_mul(4))
        }
        Optimizer::Muon if vector || !is_hidden_matrix(p) => full * 2,
        Optimizer::Muon => full,
        Optimizer::GaLore { .. } if vector || !is_hidden_matrix(p) => full * 2,
        Optimizer::GaLore { rank } => {
            // Moments in the projected space, and the projection itself.
            let (rows, columns) = p.matrix;
            let (short, long) = (rows.min(columns), rows.max(columns));
            let rank = rank.min(short);
            states.bytes(2 * rank * long + rank * short)
        }
    };
    moments + master
}

pub(super) fn is_hidden_matrix(p: &BlockParam) -> bool {
    use plimsoll_model::Part::*;
    p.matrix.0 > 1 && !matches!(p.part, TokenEmbedding | PositionEmbedding | TypeEmbedding | Head)
}

/// What a rank certainly holds at once: parameters and optimizer states at the end of a step. A lower bound of its peak
/// that needs no simulation.
pub(super) fn floor(
    graph: &Graph,
    stages: &[usize],
    training: &Training,
    strategy: &Strategy,
) -> Bytes {
    let shards = Shards::of(strategy.sharding.zero);
    let offload = &strategy.offload;
    let steps = matches!(training.scope, StepScope::SteadyStep | StepScope::FirstStep);
    let held = |p: &BlockParam| {
        let mut held = Bytes::ZERO;
        if !offload.parameters {
            let kept = kept_elements(p, &strategy.sharding, shards.parameters);
            held += storage_dtype(p, &training.precision).bytes(kept);
        }
        if steps && p.trainable && !offload.optimizer {
            let kept = kept_elements(p, &strategy.sharding, shards.states);
            held += state_bytes(training, p, kept);
        }
        // Rows are allocated in equal pieces, rounded down.
        held.saturating_sub(Bytes::new(3 * p.count.max(1)))
    };
    rank_params(graph, stages).iter().map(|p| held(p.block)).sum()
}

/// Temporaries of one optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepScratch {
    /// Alive together over all parameters.
    pub all: Bytes,
    /// Alive for one parameter at a time.
    pub one: Bytes,
}

/// What the step needs besides states. `foreach` AdamW takes the square root of every second moment at once; the
/// loop form holds two tensors of the parameter at hand (root and quotient).
pub(super) fn step_scratch(training: &Training, params: &[(&BlockParam, u64)]) -> StepScratch {
    let dtype = |p: &BlockParam| {
        if p.adapter {
            p.dtype
        } else {
            training.precision.master.unwrap_or(training.precision.states)
        }
    };
    let all: Bytes = params.iter().map(|(p, n)| dtype(p).bytes(*n)).sum();
    let one = |factor: u64| {
        let largest = params.iter().map(|(p, n)| dtype(p).bytes((*n).min(p.tensor_elements))).max();
        largest.unwrap_or_default() * factor
    };
    match (training.optimizer, training.optimizer_form) {
        (Optimizer::None | Optimizer::Sgd, _) => StepScratch::default(),
        (_, OptimizerForm::Fused) => StepScratch::default(),
        (Optimizer::Adam | Optimizer::AdamW, OptimizerForm::Foreach) => {
            StepScratch { all, one: Bytes::ZERO }
        }
        // `denom = _foreach_add(sqrt, eps)` was not in place.
        (Optimizer::Adam | Optimizer::AdamW, OptimizerForm::ForeachTwice) => {
            StepScratch { all: all * 2, one: Bytes::ZERO }
        }
        (Optimizer::Adam | Optimizer::AdamW, _) => StepScratch { all: Bytes::ZERO, one: one(2) },
        (Optimizer::Momentum, OptimizerForm::Foreach | OptimizerForm::ForeachTwice) => {
            StepScratch::default()
        }
        (Optimizer::Momentum, _) => StepScratch { all: Bytes::ZERO, one: one(1) },
        (Optimizer::AdamW8bit | Optimizer::PagedAdamW8bit | Optimizer::PagedAdamW, _) => {
            StepScratch::default()
        }
        (Optimizer::Adafactor, _) => StepScratch { all: Bytes::ZERO, one: one(3) },
        (Optimizer::Muon, _) => StepScratch { all: Bytes::ZERO, one: one(4) },
        _ => StepScratch { all: Bytes::ZERO, one: one(2) },
    }
}
