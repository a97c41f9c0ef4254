//! DeepSpeed's ZeRO engine around the stages: the flat F32 partition and its states, made when the engine starts, the
//! buckets of backward, the gradients of the partition, and the copies of the optimizer step.
//!
//! Source: DeepSpeed 0.12, `runtime/zero/stage_1_and_2.py` and `stage3.py`; the bucket of the configurations in the
//! Transformers and DeepSpeed guides (2e8 elements, twice with `overlap_comm`); sub-groups of 1e9 elements.

use plimsoll_timeline::{Category, TensorId};
use plimsoll_units::{Bytes, DType};

use super::params::{kept_elements, state_bytes, step_scratch};
use super::run::{REDUCE_STREAM, Simulation};
use crate::request::{OptimizerForm, Stack, Strategy, Training, ZeroStage};

/// Elements of a reduction bucket of stage 2.
const BUCKET: u64 = 200_000_000;
/// Elements that stage 3 updates at once.
const SUB_GROUP: u64 = 1_000_000_000;

/// What the engine holds between steps.
#[derive(Default)]
pub(super) struct Engine {
    /// Gradients of the partition: those that micro-batches added up, or stage 3's buffer.
    averaged: Option<TensorId>,
    /// Those of the running micro-batch (stage 2).
    arriving: Option<TensorId>,
    /// Buckets of the running backward pass.
    buckets: Vec<TensorId>,
    /// Elements whose gradients have arrived in the running backward pass.
    arrived: u64,
}

/// Whether DeepSpeed's engine runs the step. In loops written by hand stage 1 is PyTorch's `ZeroRedundancyOptimizer`.
pub(super) fn runs(training: &Training, strategy: &Strategy) -> bool {
    let zero = strategy.sharding.zero;
    matches!(zero, ZeroStage::One | ZeroStage::Two | ZeroStage::Three)
        && training.stack != Stack::Plain
}

impl Simulation<'_> {
    pub(super) fn deepspeed(&self) -> bool {
        runs(self.run.training, self.run.strategy)
    }

    /// Stages 2 and 3 copy gradients into buffers of the partition and drop them.
    pub(super) fn partitions_gradients(&self) -> bool {
        self.deepspeed() && self.run.strategy.sharding.zero != ZeroStage::One
    }

    /// Elements of the partition, in the groups that are updated at once.
    fn groups(&self) -> Vec<u64> {
        let sharding = &self.run.strategy.sharding;
        let trainable = self.rows.iter().filter(|p| p.block.trainable);
        let kept = trainable.map(|p| kept_elements(p.block, sharding, true));
        if sharding.zero != ZeroStage::Three {
            return vec![kept.fold(0, u64::saturating_add)];
        }
        let mut groups = Vec::new();
        let mut open = 0u64;
        for elements in kept {
            open = open.saturating_add(elements);
            if open >= SUB_GROUP {
                groups.push(std::mem::take(&mut open));
            }
        }
        groups.push(open);
        groups
    }

    /// Type in which parameters run and gradients arrive.
    fn half(&self) -> DType {
        self.run.training.precision.weights
    }

    /// The engine's start: the F32 partition through a copy in the parameters' type, states made by a step on zeros, and
    /// stage 3's gradient buffer.
    pub(super) fn start_engine(&mut self) {
        let run = self.run;
        let groups = self.groups();
        let half = self.half();
        let moments = self.moments();
        if run.strategy.offload.optimizer {
            let all: Bytes = groups.iter().map(|n| DType::F32.bytes(*n)).sum();
            // Master weights and gradients are F32 on the host.
            self.host.states += all + moments;
            self.host.gradients += all;
            return;
        }
        for &n in &groups {
            let copy = self.t.alloc(half.bytes(n), Category::Parameters, self.misc.scratch);
            let master =
                self.t.alloc(DType::F32.bytes(n), Category::OptimizerStates, self.misc.states);
            self.states.push(master);
            self.t.free(copy);
        }
        let largest = groups.iter().copied().max().unwrap_or(0);
        let zeros =
            self.t.alloc(DType::F32.bytes(largest), Category::OptimizerStates, self.misc.scratch);
        let total = groups.iter().copied().fold(0, u64::saturating_add).max(1);
        for &n in &groups {
            for _ in 0..2 {
                let bytes = moments.scale(n, total) / 2;
                let id = self.t.alloc(bytes, Category::OptimizerStates, self.misc.states);
                self.states.push(id);
            }
        }
        self.t.free(zeros);
        let bytes = half.bytes(total);
        if run.strategy.offload.gradients {
            self.host.gradients += bytes;
        } else if run.strategy.sharding.zero == ZeroStage::Three {
            let id = self.t.alloc(bytes, Category::Gradients, self.misc.gradients);
            self.engine.averaged = Some(id);
        }
    }

    /// The optimizer's own states of the partition.
    fn moments(&self) -> Bytes {
        let run = self.run;
        let trainable = self.rows.iter().filter(|p| p.block.trainable);
        trainable
            .map(|p| {
                let kept = kept_elements(p.block, &run.strategy.sharding, true);
                let master = run.training.precision.master.filter(|_| !p.block.adapter);
                let states = state_bytes(run.training, p.block, kept);
                let own = states.saturating_sub(master.map_or(Bytes::ZERO, |d| d.bytes(kept)));
                // Adapters are 16-bit too and have their states in F32.
                match p.block.adapter {
                    true => own.scale(4, p.block.dtype.block_bytes().max(1)),
                    false => own,
                }
            })
            .sum()
    }

    /// Stage 2 copies gradients through buckets made anew for each backward pass.
    pub(super) fn begin_backward(&mut self) {
        self.engine.arrived = 0;
        if !self.deepspeed() || self.run.strategy.sharding.zero != ZeroStage::Two {
            return;
        }
        for _ in 0..2 {
            let bytes = self.half().bytes(BUCKET);
            let id = self.t.alloc(bytes, Category::Communication, self.misc.buckets);
            self.engine.buckets.push(id);
        }
    }

    /// A gradient goes into a bucket; a full bucket is reduced and copied into the partition's gradients.
    pub(super) fn partition_gradient(&mut self, computed: Bytes, elements: u64) {
        let id = self.t.alloc(computed, Category::Gradients, self.misc.gradients);
        self.t.free(id);
        self.engine.arrived = self.engine.arrived.saturating_add(elements);
        if self.engine.arrived > BUCKET {
            self.receive_partition();
        }
    }

    /// The partition's gradients of this micro-batch, made on the stream of the reduction.
    fn receive_partition(&mut self) {
        let run = self.run;
        let stage_two = run.strategy.sharding.zero == ZeroStage::Two;
        if !stage_two || run.strategy.offload.gradients || self.engine.arriving.is_some() {
            return;
        }
        let elements = self.groups().iter().copied().fold(0, u64::saturating_add);
        let id = self.t.alloc_on(
            REDUCE_STREAM,
            self.half().bytes(elements),
            Category::Gradients,
            self.misc.gradients,
        );
        self.engine.arriving = Some(id);
    }

    /// The first micro-batch's gradients are kept, later ones are added to them.
    pub(super) fn end_backward(&mut self) {
        if !self.deepspeed() {
            return;
        }
        self.receive_partition();
        if let Some(id) = self.engine.arriving.take() {
            match self.engine.averaged {
                Some(_) => self.t.free(id),
                None => self.engine.averaged = Some(id),
            }
        }
        for id in std::mem::take(&mut self.engine.buckets) {
            self.t.free(id);
        }
    }

    /// The step, group by group: gradients flattened, widened to F32, applied.
    pub(super) fn engine_step(&mut self) {
        let run = self.run;
        if run.strategy.offload.optimizer {
            return;
        }
        let half = self.half();
        for n in self.groups() {
            let flat = self.t.alloc(half.bytes(n), Category::Gradients, self.misc.gradients);
            // What is F32 already is taken as it is.
            let wide = match half {
                DType::F32 => flat,
                _ => {
                    let bytes = DType::F32.bytes(n);
                    let wide = self.t.alloc(bytes, Category::Gradients, self.misc.gradients);
                    self.t.free(flat);
                    wide
                }
            };
            if run.strategy.sharding.zero != ZeroStage::Three {
                self.engine.averaged.take().into_iter().for_each(|id| self.t.free(id));
                self.drop_gradients();
            }
            if run.training.optimizer_form == OptimizerForm::Foreach {
                // One flat parameter, one root of its second moment.
                let params: Vec<_> = self.rows.iter().map(|p| (p.block, n)).take(1).collect();
                let scratch = step_scratch(run.training, &params);
                let bytes = if scratch.all.is_zero() { Bytes::ZERO } else { DType::F32.bytes(n) };
                let id = self.t.alloc(bytes, Category::OptimizerStates, self.misc.scratch);
                self.t.free(id);
            }
            self.t.free(wide);
        }
    }
}
