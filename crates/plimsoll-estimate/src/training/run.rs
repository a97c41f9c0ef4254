//! Runs the training step of one rank: load, forward, loss, backward, optimizer step, in the order that PyTorch does
//! it, and writes the timeline. Tapes say what a stage allocates; this file says when stages run and what happens to
//! parameters, gradients and shards around them.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_model::Graph;
use plimsoll_model::graph::{BoundaryId, StageKind};
use plimsoll_timeline::{Category, OriginId, PhaseKind, TensorId, Timeline, TimelineBuilder};
use plimsoll_units::{Bindings, Bytes};

use super::groups::Groups;
use super::host::Host;
use super::params::{RankParam, Shards, kept_elements, rank_params, shard_ranks, step_scratch};
use super::tape::{Leaving, Step, Tape, Tapes};
use super::zero::Engine;
use crate::request::{Checkpointing, OptimizerForm, StepScope, Strategy, Training, ZeroGrad};

/// FSDP gathers and reduces on streams of its own, whose blocks the caching allocator keeps apart.
pub(super) const GATHER_STREAM: u16 = 1;
pub(super) const REDUCE_STREAM: u16 = 2;

/// Module name of parameters beside the model's own.
pub(super) const FURTHER: &str = "further";

/// Everything that a run needs to know.
pub(super) struct Run<'a> {
    pub graph: &'a Graph,
    /// Tapes by block at full length.
    pub tapes: &'a [Tapes],
    pub bindings: Bindings,
    /// Shorter batches that run before, in order: their sizes and tapes.
    pub shorter: &'a [(Bindings, Vec<Tapes>)],
    pub training: &'a Training,
    pub strategy: &'a Strategy,
    /// Stages of this rank, in chunks of the pipeline schedule.
    pub chunks: Vec<Vec<usize>>,
    /// Micro-batches of each chunk that are in flight when the first backward begins.
    pub in_flight: u64,
    /// Micro-batches in a step.
    pub micro_batches: u64,
    /// Library workspaces that the framework's allocator holds.
    pub workspace: Bytes,
    /// What a rollout engine holds on the device while the trainer runs.
    pub rollout: Bytes,
}

/// A timeline and what is on the host.
pub(super) struct Ran {
    pub timeline: Timeline,
    pub host: Host,
}

#[derive(Clone, Copy)]
struct Boundary {
    tensor: Option<TensorId>,
    refs: u32,
    bytes: Bytes,
}

/// One micro-batch in flight.
struct Micro {
    /// State of each boundary value, through aliases.
    states: Vec<Boundary>,
    alias: Vec<Option<usize>>,
    gradients: Vec<Option<TensorId>>,
    /// Live storages of each stage.
    slots: Vec<Vec<Option<TensorId>>>,
    inputs: Vec<TensorId>,
    /// Checkpoints on the host.
    offloaded: Bytes,
}

pub(super) struct Simulation<'a> {
    pub run: &'a Run<'a>,
    /// Sizes and tapes of the step that runs.
    pub bindings: Bindings,
    pub tapes: &'a [Tapes],
    pub t: TimelineBuilder,
    pub rows: Vec<RankParam<'a>>,
    /// The rows of each stage, which lie side by side.
    pub rows_of: Vec<Range<usize>>,
    /// Row of each stage's parameter.
    pub row_of: Vec<Vec<Option<usize>>>,
    pub gradients: Vec<Option<TensorId>>,
    pub states: Vec<TensorId>,
    /// Origin of the first label of each stage's tapes; the others follow it.
    pub origins: Vec<OriginId>,
    /// Bytes of each stage's parameters in the compute type, as gathered.
    pub gather_bytes: Vec<Bytes>,
    /// Consumers of each boundary among the stages that run.
    pub consumers: Vec<u32>,
    /// Gathered parameters of each stage.
    pub gathered: Vec<Vec<TensorId>>,
    /// Full gradients of the running stage, before they are reduced.
    pub unreduced: Vec<(usize, TensorId)>,
    /// Unsharded gradients that a pipeline adds up.
    pub unsharded: Vec<Option<TensorId>>,
    /// Reduction buffer of the stage before, still in flight.
    pub reducing: Vec<TensorId>,
    pub autocast_cache: Vec<TensorId>,
    /// What a finished graph still holds: variables of the loop and attributes of nodes.
    pub outliving: Vec<TensorId>,
    pub misc: Misc,
    pub shards: Shards,
    /// What DeepSpeed's engine holds, where it runs the step.
    pub engine: Engine,
    /// What FSDP2 has in flight.
    pub groups: Groups,
    pub host: Host,
    /// Rows whose gradient lies on the host.
    pub host_gradients: Vec<bool>,
}

pub(super) struct Misc {
    pub weights: OriginId,
    pub gradients: OriginId,
    pub states: OriginId,
    pub scratch: OriginId,
    pub buckets: OriginId,
    pub gather: OriginId,
    pub reduce: OriginId,
    pub inputs: OriginId,
    pub library: OriginId,
    pub boundary: OriginId,
    pub casts: OriginId,
}

/// Simulates a rank.
pub(super) fn simulate(run: &Run<'_>) -> Ran {
    let mut s = Simulation::new(run);
    s.load();
    let mut step = 0;
    for (bindings, tapes) in run.shorter {
        (s.bindings, s.tapes) = (*bindings, tapes);
        s.step(step);
        step += 1;
    }
    (s.bindings, s.tapes) = (run.bindings, run.tapes);
    s.step(step);
    // Optimizer states come into being at the end of the first step, among what its activations left behind: the
    // second step is the steady one.
    if run.training.scope == StepScope::SteadyStep {
        s.step(step + 1);
    }
    s.host.pin(run, &s.rows, s.shards);
    Ran { timeline: s.t.finish(), host: s.host }
}

impl<'a> Simulation<'a> {
    fn new(run: &'a Run<'a>) -> Self {
        let stages: Vec<usize> = run.chunks.iter().flatten().copied().collect();
        let rows = rank_params(run.graph, &stages);
        let mut row_of: Vec<Vec<Option<usize>>> =
            run.graph.stages.iter().map(|s| vec![None; run.graph.block(s).params.len()]).collect();
        for (row, p) in rows.iter().enumerate() {
            row_of[p.stage][p.index] = Some(row);
        }
        for &stage in &stages {
            let s = &run.graph.stages[stage];
            for (index, p) in run.graph.block(s).params.iter().enumerate() {
                if row_of[stage][index].is_some() {
                    continue;
                }
                row_of[stage][index] = match s.shares {
                    Some(owner) => row_of[owner as usize].get(index).copied().flatten(),
                    None => {
                        rows.iter().position(|r| r.block.part == p.part && r.block.bias == p.bias)
                    }
                };
            }
        }
        let mut t = TimelineBuilder::new();
        let misc = Misc {
            weights: t.origin("", "parameters"),
            gradients: t.origin("", "gradients"),
            states: t.origin("optimizer", "states"),
            scratch: t.origin("optimizer", "temporaries"),
            buckets: t.origin("", "gradient buckets"),
            gather: t.origin("", "gathered parameters"),
            reduce: t.origin("", "gradient reduction"),
            inputs: t.origin("", "input batch"),
            library: t.origin("", "cuBLAS workspace"),
            boundary: t.origin("", "stage input"),
            casts: t.origin("", "autocast cache"),
        };
        let labels: Vec<Vec<Arc<str>>> =
            run.tapes.iter().map(|t| t.labels.iter().map(|l| Arc::from(*l)).collect()).collect();
        let origins =
            run.graph.stages.iter().map(|s| t.origins(&s.name, &labels[s.block.0 as usize]));
        let origins = origins.collect();
        let mut gather_bytes = vec![Bytes::ZERO; run.graph.stages.len()];
        for row in &rows {
            gather_bytes[row.stage] += row.block.dtype.bytes(row.block.elements);
        }
        t.reserve(events(run, &stages));
        Simulation {
            run,
            bindings: run.bindings,
            tapes: run.tapes,
            gradients: vec![None; rows.len()],
            unsharded: vec![None; rows.len()],
            states: Vec::new(),
            row_of,
            origins,
            gather_bytes,
            consumers: Vec::new(),
            gathered: vec![Vec::new(); run.graph.stages.len()],
            unreduced: Vec::new(),
            reducing: Vec::new(),
            autocast_cache: Vec::new(),
            outliving: Vec::new(),
            misc,
            shards: Shards::of(run.strategy.sharding.zero),
            engine: Engine::default(),
            groups: Groups::new(run.graph.stages.len()),
            host: Host::default(),
            host_gradients: vec![false; rows.len()],
            rows_of: rows_of_stages(&rows, run.graph.stages.len()),
            rows,
            t,
        }
    }

    pub(super) fn fsdp(&self) -> bool {
        self.shards.parameters && shard_ranks(&self.run.strategy.sharding, false) > 1
    }

    fn step(&mut self, step: u32) {
        let run = self.run;
        let accumulate = run.micro_batches.max(1);
        if run.chunks.len() == 1 && run.in_flight <= 1 {
            // A third micro-batch repeats the second.
            for micro in 0..accumulate.min(2) {
                self.micro_batch(step, micro == 0);
            }
        } else {
            self.pipeline(step);
        }
        if run.training.scope == StepScope::Forward {
            return;
        }
        self.free_reducing();
        self.reduce_unsharded();
        if matches!(run.training.scope, StepScope::SteadyStep | StepScope::FirstStep) {
            self.optimizer_step(step);
        }
        if run.training.zero_grad == ZeroGrad::AfterStep {
            self.drop_gradients();
        }
    }

    pub(super) fn drop_gradients(&mut self) {
        if self.megatron_buffer() {
            return;
        }
        for gradient in &mut self.gradients {
            if let Some(id) = gradient.take() {
                self.t.free(id);
            }
        }
    }

    fn micro_batch(&mut self, step: u32, first: bool) {
        let mut micro = self.begin_micro();
        self.t.phase(PhaseKind::Forward, step);
        let stages = self.run.chunks[0].clone();
        self.forward(&mut micro, &stages, step);
        self.end_autocast();
        if self.run.training.scope == StepScope::Forward {
            return;
        }
        if first && self.run.training.zero_grad == ZeroGrad::BeforeBackward {
            self.drop_gradients();
        }
        self.t.phase(PhaseKind::Backward, step);
        self.begin_backward();
        self.backward(&mut micro, &stages);
        self.end_backward();
        self.end_micro(micro);
    }

    /// All forwards that the schedule puts before the first backward, then backward and forward in turn once, then the
    /// remaining backwards: later turns repeat the first.
    fn pipeline(&mut self, step: u32) {
        let mut waiting: Vec<(usize, Micro)> = Vec::new();
        self.t.phase(PhaseKind::Forward, step);
        let total = self.run.in_flight.max(1);
        let chunks = self.run.chunks.len();
        // Interleaved warm-up sends a group of as many micro-batches as there are stages through each chunk in turn.
        let group = self.run.strategy.sharding.pipeline.max(1);
        for unit in 0..total {
            let chunk = (unit / group) as usize % chunks;
            let mut micro = self.begin_micro();
            let stages = self.run.chunks[chunk].clone();
            self.forward(&mut micro, &stages, step);
            waiting.push((chunk, micro));
        }
        self.end_autocast();
        if self.run.training.scope == StepScope::Forward {
            return;
        }
        self.t.phase(PhaseKind::Backward, step);
        let extra = u64::from(self.run.micro_batches.saturating_mul(chunks as u64) > total);
        let mut extra = extra;
        while let Some((chunk, mut micro)) = pop_backward(&mut waiting) {
            let stages = self.run.chunks[chunk].clone();
            self.begin_backward();
            self.backward(&mut micro, &stages);
            self.end_backward();
            self.end_micro(micro);
            if extra > 0 {
                extra -= 1;
                let mut micro = self.begin_micro();
                self.forward(&mut micro, &stages, step);
                waiting.insert(0, (chunk, micro));
            }
        }
    }

    fn begin_micro(&mut self) -> Micro {
        let run = self.run;
        let boundaries = run.graph.boundaries as usize;
        let mut micro = Micro {
            states: Vec::new(),
            alias: vec![None; boundaries],
            gradients: vec![None; boundaries],
            slots: vec![Vec::new(); run.graph.stages.len()],
            inputs: Vec::new(),
            offloaded: Bytes::ZERO,
        };
        let tokens = self
            .bindings
            .get(plimsoll_units::Symbol::Batch)
            .saturating_mul(self.bindings.get(plimsoll_units::Symbol::Sequence));
        // Token ids, labels and a mask, 64-bit each.
        for _ in 0..3 {
            let id = self.t.alloc(Bytes::new(8) * tokens, Category::Inputs, self.misc.inputs);
            micro.inputs.push(id);
        }
        micro
    }

    fn end_micro(&mut self, micro: Micro) {
        self.host.activations -= micro.offloaded;
        let slots = micro.slots.into_iter().flatten().flatten();
        let states = micro.states.into_iter().filter_map(|s| s.tensor);
        let gradients = micro.gradients.into_iter().flatten();
        for id in slots.chain(states).chain(gradients).chain(micro.inputs) {
            self.t.free(id);
        }
    }

    fn end_autocast(&mut self) {
        for id in std::mem::take(&mut self.autocast_cache) {
            self.t.free(id);
        }
    }

    /// Counts the consumers of each boundary among the stages that run next.
    fn count_consumers(&mut self, stages: &[usize]) {
        self.consumers.clear();
        self.consumers.resize(self.run.graph.boundaries as usize, 0);
        for input in stages.iter().flat_map(|s| &self.run.graph.stages[*s].inputs) {
            self.consumers[input.0 as usize] += 1;
        }
    }

    /// How many layers share one checkpoint at this stage; 0 for none.
    fn group(&self, stage: usize) -> u64 {
        let s = &self.run.graph.stages[stage];
        let (StageKind::Layer, Some(layer)) = (s.kind, s.layer) else { return 0 };
        match self.run.strategy.checkpointing {
            Checkpointing::None | Checkpointing::AttentionCore => 0,
            Checkpointing::Full | Checkpointing::Selective => 1,
            Checkpointing::EveryK { k } => u64::from(u64::from(layer) % k.max(1) == 0),
            Checkpointing::Groups { k } => k.max(1),
        }
    }

    /// Splits the stages of a chunk into units: single stages without checkpointing, and checkpointed groups.
    fn units(&self, stages: &[usize]) -> Vec<(Vec<usize>, bool)> {
        let mut units: Vec<(Vec<usize>, bool)> = Vec::new();
        for &stage in stages {
            match self.group(stage) {
                0 => units.push((vec![stage], false)),
                k => match units.last_mut() {
                    Some((group, true)) if (group.len() as u64) < k => group.push(stage),
                    _ => units.push((vec![stage], true)),
                },
            }
        }
        units
    }

    fn forward(&mut self, micro: &mut Micro, stages: &[usize], step: u32) {
        let units = self.units(stages);
        self.count_consumers(stages);
        self.receive(micro, stages);
        for (index, (unit, checkpointed)) in units.iter().enumerate() {
            let next = units.get(index + 1).map(|(u, _)| u.as_slice()).unwrap_or_default();
            if unit.iter().any(|s| self.run.graph.stages[*s].kind == StageKind::Head) {
                self.t.phase(PhaseKind::Loss, step);
            }
            if *checkpointed {
                self.retain_checkpoint(micro, unit);
            }
            for &stage in unit {
                self.gather(stage, false);
                self.prefetch(next, false);
                self.forward_stage(micro, stage, *checkpointed);
                self.reshard_after_forward(stage);
            }
        }
    }

    /// The input of a later pipeline stage arrives from its neighbour.
    fn receive(&mut self, micro: &mut Micro, stages: &[usize]) {
        let Some(&first) = stages.first() else { return };
        for boundary in self.run.graph.stages[first].inputs.clone() {
            if micro.alias[boundary.0 as usize].is_none() {
                let block = self.run.graph.block(&self.run.graph.stages[first]);
                let value = &block.values[0];
                let bytes = value.shape.bytes(value.dtype, &self.bindings);
                let refs = self.consumers[boundary.0 as usize];
                let tensor = self.t.alloc(bytes, Category::Activations, self.misc.boundary);
                micro.alias[boundary.0 as usize] = Some(micro.states.len());
                micro.states.push(Boundary { tensor: Some(tensor), refs, bytes });
            }
        }
    }

    /// A checkpoint keeps the inputs of its unit, on the device or (offloaded) on the host.
    fn retain_checkpoint(&mut self, micro: &mut Micro, unit: &[usize]) {
        let Some(&first) = unit.first() else { return };
        for boundary in &self.run.graph.stages[first].inputs {
            let Some(state) = micro.alias[boundary.0 as usize] else { continue };
            if self.run.strategy.offload.activations {
                micro.offloaded += micro.states[state].bytes;
                self.host.activations += micro.states[state].bytes;
                self.host.activations_peak = self.host.activations_peak.max(self.host.activations);
            } else {
                micro.states[state].refs += 1;
            }
        }
    }

    fn forward_stage(&mut self, micro: &mut Micro, stage: usize, light: bool) {
        let s = &self.run.graph.stages[stage];
        let tapes = &self.tapes[s.block.0 as usize];
        if micro.slots[stage].is_empty() {
            micro.slots[stage] = vec![None; tapes.slots];
        }
        let tape = if light { &tapes.light } else { &tapes.forward };
        // Outputs exist as boundaries before the tape refers to them.
        for (output, leaving) in s.outputs.iter().zip(&tape.leaving) {
            let refs = self.consumers[output.0 as usize];
            match leaving {
                Leaving::Input(i) => {
                    let input = s.inputs[*i as usize];
                    let state = micro.alias[input.0 as usize];
                    micro.alias[output.0 as usize] = state;
                    if let Some(state) = state {
                        micro.states[state].refs += refs;
                    }
                }
                _ => {
                    micro.alias[output.0 as usize] = Some(micro.states.len());
                    micro.states.push(Boundary { tensor: None, refs, bytes: Bytes::ZERO });
                }
            }
        }
        self.play(micro, stage, tape);
        for (index, (output, leaving)) in s.outputs.iter().zip(&tape.leaving).enumerate() {
            if let (Leaving::Slot(slot), Some(state)) = (leaving, micro.alias[output.0 as usize]) {
                let tensor = micro.slots[stage][*slot as usize].take();
                micro.states[state].tensor = tensor;
                micro.states[state].bytes = self.output_bytes(stage, index);
                if micro.states[state].refs == 0
                    && self.run.graph.stages[stage].kind != StageKind::Head
                    && let Some(id) = micro.states[state].tensor.take()
                {
                    self.t.free(id);
                }
            }
        }
    }

    fn output_bytes(&self, stage: usize, index: usize) -> Bytes {
        let block = self.run.graph.block(&self.run.graph.stages[stage]);
        block.outputs.get(index).map_or(Bytes::ZERO, |v| {
            let v = &block.values[v.0 as usize];
            v.shape.bytes(v.dtype, &self.bindings)
        })
    }

    fn play(&mut self, micro: &mut Micro, stage: usize, tape: &Tape) {
        let s = &self.run.graph.stages[stage];
        for &step in &tape.steps {
            match step {
                Step::Alloc { slot, bytes, category, label } => {
                    let origin = OriginId(self.origins[stage].0 + u32::from(label));
                    micro.slots[stage][slot as usize] = Some(self.t.alloc(bytes, category, origin));
                }
                Step::Free { slot } => {
                    if let Some(id) = micro.slots[stage][slot as usize].take() {
                        self.t.free(id);
                    }
                }
                Step::Outlive { slot } => {
                    self.outliving.extend(micro.slots[stage][slot as usize].take());
                }
                Step::Reassign => self.free_outliving(0),
                Step::RetainInput(i) => self.refer(micro, s.inputs.get(i as usize), true),
                Step::ReleaseInput(i) => self.refer(micro, s.inputs.get(i as usize), false),
                Step::RetainOutput(i) => self.refer(micro, s.outputs.get(i as usize), true),
                Step::ReleaseOutput(i) => self.refer(micro, s.outputs.get(i as usize), false),
                Step::CacheCast { bytes, .. } => {
                    let id = self.t.alloc(bytes, Category::Workspace, self.misc.casts);
                    // Autocast caches copies of leaves; what FSDP gathers is none, so its copy goes with the product.
                    if self.fsdp() {
                        self.t.free(id);
                    } else {
                        self.autocast_cache.push(id);
                    }
                }
                Step::Gradient { param, computed } => {
                    self.gradient(stage, param as usize, computed)
                }
            }
        }
    }

    fn refer(&mut self, micro: &mut Micro, boundary: Option<&BoundaryId>, more: bool) {
        let Some(state) = boundary.and_then(|b| micro.alias[b.0 as usize]) else { return };
        let state = &mut micro.states[state];
        if more {
            state.refs += 1;
            return;
        }
        state.refs = state.refs.saturating_sub(1);
        if state.refs == 0
            && let Some(id) = state.tensor.take()
        {
            self.t.free(id);
        }
    }

    fn backward(&mut self, micro: &mut Micro, stages: &[usize]) {
        let units = self.units(stages);
        // The gradient of what leaves the chunk: of the loss (a scalar), or from the next pipeline stage.
        if let Some(last) = stages.last().map(|s| &self.run.graph.stages[*s])
            && let Some(output) = last.outputs.first()
        {
            let block = self.run.graph.block(last);
            let bytes = block.outputs.first().map_or(Bytes::ZERO, |v| {
                let v = &block.values[v.0 as usize];
                v.shape.bytes(v.dtype, &self.bindings)
            });
            let id = self.t.alloc(bytes, Category::Activations, self.misc.boundary);
            micro.gradients[output.0 as usize] = Some(id);
        }
        for (index, (unit, checkpointed)) in units.iter().enumerate().rev() {
            let before = index
                .checked_sub(1)
                .and_then(|i| units.get(i))
                .map(|(u, _)| u.clone())
                .unwrap_or_default();
            for &stage in unit {
                self.gather(stage, true);
            }
            self.prefetch(&before, true);
            let before = self.outliving.len();
            if *checkpointed {
                self.recompute(micro, unit);
            }
            for &stage in unit.iter().rev() {
                self.backward_stage(micro, stage);
                if self.per_parameter() {
                    self.end_group(stage);
                } else {
                    self.reduce_gradients();
                    self.reshard(stage);
                }
            }
            // The graph of a recomputed unit goes with it.
            if *checkpointed {
                self.free_outliving(before);
            }
        }
        if !self.graph_outlives() {
            self.free_outliving(0);
        }
        self.end_root();
    }

    /// Brings the offloaded inputs of a unit back.
    fn fetch_checkpoint(&mut self, micro: &mut Micro, unit: &[usize]) {
        let Some(&first) = unit.first() else { return };
        for boundary in &self.run.graph.stages[first].inputs {
            let Some(state) = micro.alias[boundary.0 as usize] else { continue };
            let state = &mut micro.states[state];
            state.refs += 1;
            if state.tensor.is_none() {
                let (category, origin) = (Category::Activations, self.misc.boundary);
                state.tensor = Some(self.t.alloc(state.bytes, category, origin));
            }
        }
    }

    fn recompute(&mut self, micro: &mut Micro, unit: &[usize]) {
        if self.run.strategy.offload.activations {
            self.fetch_checkpoint(micro, unit);
        }
        self.count_consumers(unit);
        for (position, &stage) in unit.iter().enumerate() {
            // The checkpoint's own references are those that the first stage gives back.
            if position > 0 {
                let inputs = &self.run.graph.stages[stage].inputs;
                for boundary in inputs.iter().skip(1) {
                    self.refer(micro, Some(boundary), true);
                }
            }
            self.forward_stage(micro, stage, false);
        }
        // Backward re-enters autocast around the recomputed region only.
        self.end_autocast();
    }

    fn backward_stage(&mut self, micro: &mut Micro, stage: usize) {
        let s = &self.run.graph.stages[stage];
        let tapes = &self.tapes[s.block.0 as usize];
        let arrived = s.outputs.first().and_then(|b| micro.gradients[b.0 as usize].take());
        micro.slots[stage][tapes.gradient_slot as usize] = arrived;
        self.play(micro, stage, &tapes.backward);
        for (input, leaving) in s.inputs.iter().zip(&tapes.backward.leaving) {
            let Leaving::Slot(slot) = leaving else { continue };
            let Some(id) = micro.slots[stage][*slot as usize].take() else { continue };
            match micro.gradients[input.0 as usize] {
                Some(_) => self.t.free(id),
                None => micro.gradients[input.0 as usize] = Some(id),
            }
        }
        // Whatever the stage still holds (unused branches) goes with its graph.
        for slot in std::mem::take(&mut micro.slots[stage]).into_iter().flatten() {
            self.t.free(slot);
        }
    }

    fn optimizer_step(&mut self, step: u32) {
        let run = self.run;
        self.t.phase(PhaseKind::OptimizerStep, step);
        if self.deepspeed() {
            self.engine_step();
            return;
        }
        if step == 0 {
            self.make_states();
        }
        if run.strategy.offload.optimizer
            || run.training.optimizer_form == OptimizerForm::InBackward
        {
            return;
        }
        let sharding = &run.strategy.sharding;
        let params: Vec<_> = self
            .rows
            .iter()
            .filter(|p| p.block.trainable)
            .map(|p| (p.block, kept_elements(p.block, sharding, self.shards.states)))
            .collect();
        let scratch = step_scratch(run.training, &params);
        let mut temporaries = Vec::new();
        if !scratch.all.is_zero() {
            // One tensor per parameter; in few pieces, since only their sum matters here.
            let states = |p: &plimsoll_model::graph::BlockParam| {
                if p.adapter { p.dtype } else { run.training.precision.states }
            };
            let sets = match run.training.optimizer_form {
                OptimizerForm::ForeachTwice => 2,
                _ => 1,
            };
            for (p, n) in (0..sets).flat_map(|_| &params) {
                let bytes = states(p).bytes(*n);
                temporaries.push(self.t.alloc(bytes, Category::OptimizerStates, self.misc.scratch));
            }
        }
        temporaries.push(self.t.alloc(scratch.one, Category::OptimizerStates, self.misc.scratch));
        for id in temporaries {
            self.t.free(id);
        }
    }
}

/// The rows of each stage: [`rank_params`] goes stage by stage.
fn rows_of_stages(rows: &[RankParam<'_>], stages: usize) -> Vec<Range<usize>> {
    let mut of = vec![0..0; stages];
    let mut first = 0;
    for part in rows.chunk_by(|a, b| a.stage == b.stage) {
        of[part[0].stage] = first..first + part.len();
        first += part.len();
    }
    of
}

/// About how many events a run writes.
fn events(run: &Run<'_>, stages: &[usize]) -> usize {
    let tapes = stages.iter().map(|s| &run.tapes[run.graph.stages[*s].block.0 as usize]);
    let steps = |t: &Tape| t.steps.len();
    let once: usize = tapes.map(|t| steps(&t.light) + steps(&t.forward) + steps(&t.backward)).sum();
    let micro_batches = run.micro_batches.clamp(1, 2) as usize;
    once.saturating_mul((run.shorter.len() + 2) * micro_batches).min(1 << 20)
}

/// The micro-batch whose backward runs next: the oldest of the last chunk that waits.
fn pop_backward(waiting: &mut Vec<(usize, Micro)>) -> Option<(usize, Micro)> {
    let chunk = waiting.iter().map(|(c, _)| *c).max()?;
    let at = waiting.iter().position(|(c, _)| *c == chunk)?;
    Some(waiting.remove(at))
}
