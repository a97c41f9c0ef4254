//! What happens to parameters and gradients around the stages: gathering of shards, arrival, accumulation and reduction
//! of gradients.

use plimsoll_timeline::{Category, TensorId};
use plimsoll_units::Bytes;

use super::params::step_scratch;
use super::run::{GATHER_STREAM, REDUCE_STREAM, Simulation};
use crate::request::{OptimizerForm, ZeroStage};
use plimsoll_model::graph::StageKind;

impl Simulation<'_> {
    pub(super) fn gradient(&mut self, stage: usize, param: usize, computed: Bytes) {
        let Some(row) = self.row_of[stage][param] else { return };
        if self.fsdp() {
            let id = self.t.alloc(computed, Category::Gradients, self.misc.gradients);
            if self.accumulates_unsharded() {
                self.accumulate_unsharded(row, id);
            } else {
                self.unreduced.push((row, id));
            }
            return;
        }
        if self.partitions_gradients() {
            self.partition_gradient(computed, self.rows[row].block.elements);
            return;
        }
        let in_backward = self.run.training.optimizer_form == OptimizerForm::InBackward;
        let final_bytes = self.gradient_bytes(row);
        match self.gradients[row] {
            // The first gradient of the right size is taken as it is.
            None if computed == final_bytes && !self.run.strategy.offload.gradients => {
                self.ensure_gradient(row);
            }
            None => {
                let id = self.t.alloc(computed, Category::Gradients, self.misc.gradients);
                // A cast (autocast), a shard (ZeRO-2) or a copy on the host takes over from what was computed.
                self.ensure_gradient(row);
                self.t.free(id);
            }
            Some(_) => {
                let id = self.t.alloc(computed, Category::Gradients, self.misc.gradients);
                self.t.free(id);
            }
        }
        if in_backward && let Some(id) = self.gradients[row].take() {
            let p = self.rows[row].block;
            let scratch = step_scratch(self.run.training, &[(p, p.elements)]);
            let temporary = self.t.alloc(scratch.one, Category::OptimizerStates, self.misc.scratch);
            self.t.free(temporary);
            self.t.free(id);
        }
    }

    /// FSDP2 under a pipeline reduces gradients after the last micro-batch only: until then they add up unsharded, in
    /// the type of the reduction.
    fn accumulates_unsharded(&self) -> bool {
        let sharding = &self.run.strategy.sharding;
        sharding.pipeline > 1 && self.run.micro_batches > 1 && sharding.zero == ZeroStage::Fsdp2
    }

    fn accumulate_unsharded(&mut self, row: usize, computed: TensorId) {
        if self.unsharded[row].is_none() {
            let bytes = Bytes::new(self.rows[row].block.elements) * self.reduce_width();
            let id = self.t.alloc(bytes, Category::Gradients, self.misc.gradients);
            self.unsharded[row] = Some(id);
        }
        self.t.free(computed);
    }

    /// Reduces what a pipeline added up, group by group.
    pub(super) fn reduce_unsharded(&mut self) {
        for stage in (0..self.run.graph.stages.len()).rev() {
            let rows = self.rows_of[stage].clone();
            let full: Vec<_> =
                rows.filter_map(|row| Some((row, self.unsharded[row].take()?))).collect();
            self.reduce_group(full);
        }
        self.free_reducing();
    }

    /// Bytes of an element on the reduction path.
    pub(super) fn reduce_width(&self) -> u64 {
        let compute = self.run.training.precision.compute.block_bytes();
        self.run.strategy.sharding.reduce_bytes.unwrap_or(compute)
    }

    /// Bytes of a row's full parameter in the compute type, as gathered.
    pub(super) fn gathered_bytes(&self, row: usize) -> Bytes {
        let p = self.rows[row].block;
        p.dtype.bytes(p.elements)
    }

    pub(super) fn gather(&mut self, stage: usize, backward: bool) {
        if self.per_parameter() {
            return self.gather_group(stage, backward);
        }
        let offloaded = self.run.strategy.offload.parameters;
        if !(self.fsdp() || offloaded) || !self.gathered[stage].is_empty() {
            return;
        }
        // FSDP1 and ZeRO-3 gather one flat buffer.
        let total = self.gather_bytes[stage];
        if total.is_zero() {
            return;
        }
        let id = self.t.alloc_on(GATHER_STREAM, total, Category::Communication, self.misc.gather);
        self.gathered[stage].push(id);
    }

    pub(super) fn prefetch(&mut self, next: &[usize], backward: bool) {
        if self.run.strategy.sharding.prefetch == 0 || !self.fsdp() {
            return;
        }
        if self.per_parameter() {
            if backward {
                self.issue_ahead(next);
            }
            return;
        }
        if let Some(&stage) = next.first() {
            self.gather(stage, backward);
        }
    }

    pub(super) fn reshard_after_forward(&mut self, stage: usize) {
        // The root (embeddings and head) stays whole through the step.
        let root = self.run.graph.stages[stage].kind != StageKind::Layer;
        if self.run.strategy.sharding.keep_unsharded
            || (root && !self.run.strategy.offload.parameters)
        {
            return;
        }
        self.reshard(stage);
    }

    pub(super) fn reshard(&mut self, stage: usize) {
        for id in std::mem::take(&mut self.gathered[stage]) {
            self.t.free(id);
        }
    }

    /// FSDP: the full gradients of the stage are copied into a reduction buffer, reduced and kept as shards. The buffer
    /// lives until the next stage's reduction.
    pub(super) fn reduce_gradients(&mut self) {
        if self.unreduced.is_empty() {
            return;
        }
        self.free_reducing();
        let width = self.reduce_width();
        let mut buffer = Bytes::ZERO;
        for (row, _) in &self.unreduced {
            let p = self.rows[*row].block;
            buffer += Bytes::new(p.elements) * width;
        }
        let id = self.t.alloc_on(REDUCE_STREAM, buffer, Category::Communication, self.misc.reduce);
        self.reducing.push(id);
        for (row, full) in std::mem::take(&mut self.unreduced) {
            self.t.free(full);
            if self.gradients[row].is_none() {
                self.ensure_gradient(row);
            } else {
                let temporary = self.t.alloc(
                    self.gradient_bytes(row),
                    Category::Gradients,
                    self.misc.gradients,
                );
                self.t.free(temporary);
            }
        }
    }

    pub(super) fn free_reducing(&mut self) {
        for id in std::mem::take(&mut self.reducing) {
            self.t.free(id);
        }
    }
}
