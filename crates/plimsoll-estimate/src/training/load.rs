//! What is there before the first step, and the optimizer's states that the first step makes: parameters and their
//! shards, originals and masks, the models of reinforcement learning, gradient buffers and buckets.

use plimsoll_timeline::{Category, PhaseKind};
use plimsoll_units::Bytes;

use super::params::{gradient_dtype, is_hidden_matrix, kept_elements, state_bytes, storage_dtype};
use super::run::{FURTHER, Simulation};
use crate::request::{Method, Stack, StepScope, ZeroGrad, ZeroStage};

impl Simulation<'_> {
    pub(super) fn load(&mut self) {
        let run = self.run;
        let offload = run.strategy.offload;
        self.t.phase(PhaseKind::Load, 0);
        for row in 0..self.rows.len() {
            let p = self.rows[row];
            let kept = kept_elements(p.block, &run.strategy.sharding, self.shards.parameters);
            let bytes = storage_dtype(p.block, &run.training.precision).bytes(kept);
            if offload.parameters {
                self.host.parameters += bytes;
                continue;
            }
            let copies = if self.shards.parameters { 1 } else { p.block.count.max(1) };
            for _ in 0..copies {
                self.t.alloc(bytes / copies, Category::Parameters, self.misc.weights);
            }
            if run.training.ema && p.block.trainable {
                let bytes = plimsoll_units::DType::F32.bytes(kept);
                self.t.alloc(bytes, Category::Parameters, self.misc.weights);
            }
        }
        self.load_originals();
        self.load_masks();
        self.load_reinforcement();
        if !run.workspace.is_zero() {
            self.t.alloc(run.workspace, Category::Workspace, self.misc.library);
        }
        self.load_buckets();
        if self.deepspeed() && run.training.scope != StepScope::Forward {
            self.start_engine();
        } else if run.training.scope == StepScope::ForwardBackward {
            self.make_states();
        }
        if run.training.zero_grad == ZeroGrad::Keep && run.training.scope != StepScope::Forward {
            for row in 0..self.rows.len() {
                self.ensure_gradient(row);
            }
        }
        if self.megatron_buffer() {
            for row in 0..self.rows.len() {
                self.ensure_gradient(row);
            }
        }
    }

    /// PEFT trains a copy of each module that it is to save (`modules_to_save`) and keeps the original beside it.
    fn load_originals(&mut self) {
        let Method::Lora(_) = self.run.training.method else { return };
        let precision = &self.run.training.precision;
        let copied = self.rows.iter().map(|p| p.block).filter(|p| p.trainable && !p.adapter);
        let bytes: Bytes = copied
            .map(|p| {
                let kept = kept_elements(p, &self.run.strategy.sharding, self.shards.parameters);
                storage_dtype(p, precision).bytes(kept)
            })
            .sum();
        let origin = self.t.origin(FURTHER, "originals of trained modules");
        self.t.alloc(bytes, Category::Parameters, origin);
    }

    /// What holds pruned weights at zero.
    fn load_masks(&mut self) {
        let run = self.run;
        let Some(sparsity) = run.training.sparsity else { return };
        let pruned =
            self.rows.iter().map(|p| p.block).filter(|p| p.trainable && is_hidden_matrix(p));
        let bytes: Bytes = pruned
            .map(|p| {
                let kept = kept_elements(p, &run.strategy.sharding, self.shards.parameters);
                sparsity.training_bytes(storage_dtype(p, &run.training.precision), kept)
            })
            .sum();
        let origin = self.t.origin(FURTHER, "pruning masks");
        self.t.alloc(bytes, Category::Parameters, origin);
    }

    /// The further models of a reinforcement-learning step, of the policy's size: frozen ones in the compute type, a
    /// value model with gradients and states, and what the rollout engine keeps.
    fn load_reinforcement(&mut self) {
        let run = self.run;
        let Some(extra) = run.training.reinforcement else { return };
        let sharding = &run.strategy.sharding;
        let precision = &run.training.precision;
        let (mut frozen, mut value) = (Bytes::ZERO, Bytes::ZERO);
        for p in self.rows.iter().map(|p| p.block).filter(|p| !p.adapter) {
            let kept = kept_elements(p, sharding, self.shards.parameters);
            let dtype = if p.dtype.is_plain() { precision.compute } else { p.dtype };
            frozen += dtype.bytes(kept);
            value += storage_dtype(p, precision).bytes(kept);
            if p.trainable {
                let gradients = kept_elements(p, sharding, self.shards.gradients);
                value += gradient_dtype(p, precision).bytes(gradients);
                let states = kept_elements(p, sharding, self.shards.states);
                value += state_bytes(run.training, p, states);
            }
        }
        for (what, present, bytes) in [
            ("reference model", extra.reference, frozen),
            ("reward model", extra.reward, frozen),
            ("value model with gradients and states", extra.critic, value),
        ] {
            if present {
                let origin = self.t.origin(FURTHER, what);
                self.t.alloc(bytes, Category::Parameters, origin);
            }
        }
        let origin = self.t.origin(FURTHER, "rollout engine");
        self.t.alloc(run.rollout, Category::EngineBuffers, origin);
    }

    /// Megatron keeps one contiguous gradient buffer for the life of the job.
    pub(super) fn megatron_buffer(&self) -> bool {
        self.run.training.stack == Stack::Megatron && self.run.training.scope != StepScope::Forward
    }

    /// DDP reduces in buckets that hold one more copy of all gradients, unless gradients are views of them.
    fn load_buckets(&mut self) {
        let run = self.run;
        let sharding = &run.strategy.sharding;
        let forward = run.training.scope == StepScope::Forward;
        if sharding.data <= 1 || self.megatron_buffer() || self.deepspeed() || forward {
            return;
        }
        let precision = &run.training.precision;
        let total: Bytes = self
            .rows
            .iter()
            .filter(|p| p.block.trainable)
            .map(|p| gradient_dtype(p.block, precision).bytes(p.block.elements))
            .sum();
        let bytes = match sharding.zero {
            ZeroStage::Ddp | ZeroStage::One if !sharding.bucket_view => total,
            _ => Bytes::ZERO,
        };
        self.t.alloc(bytes, Category::Communication, self.misc.buckets);
    }

    pub(super) fn make_states(&mut self) {
        let run = self.run;
        for row in 0..self.rows.len() {
            let p = self.rows[row].block;
            if !p.trainable {
                continue;
            }
            let kept = kept_elements(p, &run.strategy.sharding, self.shards.states);
            let bytes = state_bytes(run.training, p, kept);
            if run.strategy.offload.optimizer {
                self.host.states += bytes;
                continue;
            }
            // Two moments are two tensors; unfused experts have their own.
            let pieces = if self.shards.states { 2 } else { 2 * p.count.max(1) };
            for _ in 0..pieces {
                let id = self.t.alloc(bytes / pieces, Category::OptimizerStates, self.misc.states);
                self.states.push(id);
            }
        }
    }

    pub(super) fn gradient_bytes(&self, row: usize) -> Bytes {
        let p = self.rows[row].block;
        let sharded = self.shards.gradients;
        let kept = kept_elements(p, &self.run.strategy.sharding, sharded);
        gradient_dtype(p, &self.run.training.precision).bytes(kept)
    }

    pub(super) fn ensure_gradient(&mut self, row: usize) {
        let elsewhere = self.partitions_gradients();
        if self.gradients[row].is_some() || !self.rows[row].block.trainable || elsewhere {
            return;
        }
        let bytes = self.gradient_bytes(row);
        if self.run.strategy.offload.gradients {
            if !std::mem::replace(&mut self.host_gradients[row], true) {
                self.host.gradients += bytes;
            }
            return;
        }
        let id = self.t.alloc(bytes, Category::Gradients, self.misc.gradients);
        self.gradients[row] = Some(id);
    }
}
