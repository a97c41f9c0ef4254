//! FSDP2's parameter groups: what `fully_shard` allocates on which stream around a layer and around the root module,
//! which holds all that is no layer.
//!
//! Source: PyTorch, `torch/distributed/fsdp/_fully_shard/` (`_fsdp_param_group.py`, `_fsdp_collectives.py`): an
//! all-gather writes one buffer on the copy-in stream, and its copies per parameter are made on the current stream; the
//! buffer goes after the next group's copies in forward, at once in backward. A reduce-scatter reads one buffer on the
//! current stream, which goes when the next group reduces, and writes the sharded gradients on its own stream.

use plimsoll_model::graph::StageKind;
use plimsoll_timeline::{Category, TensorId};
use plimsoll_units::Bytes;

use super::run::{GATHER_STREAM, REDUCE_STREAM, Simulation};
use crate::request::ZeroStage;

/// What is in flight between groups.
pub(super) struct Groups {
    /// All-gathers that were issued ahead, by the first stage of their group.
    issued: Vec<Option<TensorId>>,
    /// The buffer of the last all-gather of forward.
    held: Option<TensorId>,
    /// Full gradients of the root, which reduces them when backward is over.
    root: Vec<(usize, TensorId)>,
}

impl Groups {
    pub(super) fn new(stages: usize) -> Groups {
        Groups { issued: vec![None; stages], held: None, root: Vec::new() }
    }
}

impl Simulation<'_> {
    /// Whether parameters are sharded one by one.
    pub(super) fn per_parameter(&self) -> bool {
        self.fsdp() && self.run.strategy.sharding.zero == ZeroStage::Fsdp2
    }

    fn is_root(&self, stage: usize) -> bool {
        self.run.graph.stages[stage].kind != StageKind::Layer
    }

    /// Stages that are gathered together.
    fn group_of(&self, stage: usize) -> Vec<usize> {
        if !self.is_root(stage) {
            return vec![stage];
        }
        let all = self.run.chunks.iter().flatten().copied();
        all.filter(|s| self.is_root(*s)).collect()
    }

    /// Stages of a group come in the order of their rows.
    fn group_rows(&self, group: &[usize]) -> impl Iterator<Item = usize> {
        group.iter().flat_map(|stage| self.rows_of[*stage].clone())
    }

    fn is_gathered(&self, group: &[usize]) -> bool {
        group.iter().any(|s| !self.gathered[*s].is_empty())
    }

    /// The buffer of a group's all-gather.
    fn issue(&mut self, group: &[usize]) -> TensorId {
        let first = group[0];
        if let Some(id) = self.groups.issued[first].take() {
            return id;
        }
        let total = self.group_rows(group).map(|row| self.gathered_bytes(row)).sum();
        self.t.alloc_on(GATHER_STREAM, total, Category::Communication, self.misc.gather)
    }

    pub(super) fn gather_group(&mut self, stage: usize, backward: bool) {
        let group = self.group_of(stage);
        if !self.is_gathered(&group) {
            let buffer = self.issue(&group);
            if !backward {
                self.release_held();
            }
            for &member in &group {
                for row in self.rows_of[member].clone() {
                    let bytes = self.gathered_bytes(row);
                    let id = self.t.alloc(bytes, Category::Communication, self.misc.gather);
                    self.gathered[member].push(id);
                }
            }
            match backward {
                true => self.t.free(buffer),
                false => self.groups.held = Some(buffer),
            }
        }
        // The root's forward ends before the loss.
        if !backward && self.run.graph.stages[stage].kind == StageKind::Head {
            self.release_held();
        }
    }

    fn release_held(&mut self) {
        if let Some(id) = self.groups.held.take() {
            self.t.free(id);
        }
    }

    /// Backward issues the next group's all-gather while the current one runs.
    pub(super) fn issue_ahead(&mut self, next: &[usize]) {
        let Some(&stage) = next.first() else { return };
        let group = self.group_of(stage);
        if self.is_gathered(&group) || self.groups.issued[group[0]].is_some() {
            return;
        }
        let buffer = self.issue(&group);
        self.groups.issued[group[0]] = Some(buffer);
    }

    /// After the backward pass of a stage: a layer is resharded and its gradients reduced, the root's wait.
    pub(super) fn end_group(&mut self, stage: usize) {
        let full = std::mem::take(&mut self.unreduced);
        if self.is_root(stage) {
            self.groups.root.extend(full);
            return;
        }
        if !self.run.strategy.sharding.keep_unsharded {
            self.reshard(stage);
        }
        self.reduce_group(full);
    }

    /// The root's turn, when backward is over.
    pub(super) fn end_root(&mut self) {
        if !self.per_parameter() {
            return;
        }
        self.release_held();
        let stages: Vec<usize> = self.run.chunks.iter().flatten().copied().collect();
        for stage in stages {
            if self.is_root(stage) && !self.run.strategy.sharding.keep_unsharded {
                self.reshard(stage);
            }
        }
        let full = std::mem::take(&mut self.groups.root);
        self.reduce_group(full);
        self.free_reducing();
    }

    pub(super) fn reduce_group(&mut self, full: Vec<(usize, TensorId)>) {
        if full.is_empty() {
            return;
        }
        self.free_reducing();
        let width = self.reduce_width();
        let elements = full.iter().map(|(row, _)| self.rows[*row].block.elements);
        let buffer = Bytes::new(elements.fold(0, u64::saturating_add)) * width;
        let id = self.t.alloc(buffer, Category::Communication, self.misc.reduce);
        self.reducing.push(id);
        for (_, id) in &full {
            self.t.free(*id);
        }
        for (row, _) in full {
            if !self.rows[row].block.trainable || self.run.strategy.offload.gradients {
                self.ensure_gradient(row);
                continue;
            }
            let bytes = self.gradient_bytes(row);
            let id =
                self.t.alloc_on(REDUCE_STREAM, bytes, Category::Gradients, self.misc.gradients);
            match self.gradients[row] {
                // Added to what earlier micro-batches left.
                Some(_) => self.t.free(id),
                None => self.gradients[row] = Some(id),
            }
        }
    }
}
