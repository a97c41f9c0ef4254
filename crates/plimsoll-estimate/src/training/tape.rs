//! Compiles a block into tapes: the exact order of allocations and frees of its forward and backward pass under
//! given sizes. A tape is made once per distinct block and replayed for every layer that shares it.
//!
//! The compiler is an abstract interpreter of autograd: storages have reference counts (program variables, kept
//! tensors, gradients in flight), and a free is emitted when a count falls to zero.

use plimsoll_model::graph::{Block, Hold, Node, ValueId};
use plimsoll_model::ops::{Extra, Gradient, Op, Rule, rule};
use plimsoll_timeline::Category;
use plimsoll_units::{Bindings, Bytes};

/// A storage of one block instance.
pub(super) type Slot = u32;

/// One step of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A storage comes into being.
    Alloc {
        slot: Slot,
        bytes: Bytes,
        category: Category,
        label: u16,
    },
    /// It goes.
    Free {
        slot: Slot,
    },
    /// Its variable or node lives on after the pass.
    Outlive {
        slot: Slot,
    },
    /// The training loop assigns its variable anew: the graph that it held goes.
    Reassign,
    /// A boundary value gains or loses a reference.
    RetainInput(u8),
    ReleaseInput(u8),
    RetainOutput(u8),
    ReleaseOutput(u8),
    /// A weight copy in the cache of the autocast region.
    CacheCast {
        bytes: Bytes,
        label: u16,
    },
    /// The gradient of a parameter arrives; `computed` is what the kernel writes before any cast.
    Gradient {
        param: u16,
        computed: Bytes,
    },
}

/// What leaves a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// A storage of the block.
    Slot(Slot),
    /// The storage of an input.
    Input(u8),
    /// Nothing.
    None,
}

/// A forward or backward pass of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Tape {
    pub steps: Vec<Step>,
    /// Forward: one per output. Backward: one per input.
    pub leaving: Vec<Leaving>,
}

/// All passes of a block.
#[derive(Clone, Debug)]
pub(super) struct Tapes {
    /// Forward that keeps what backward needs.
    pub forward: Tape,
    /// Backward after `forward`. The gradient of output 0 arrives in `gradient_slot`.
    pub backward: Tape,
    /// Forward without a graph; with selective checkpointing it keeps some outputs in slots shared with `forward`.
    pub light: Tape,
    pub gradient_slot: Slot,
    pub slots: usize,
    /// Labels that steps refer to.
    pub labels: Vec<&'static str>,
}

/// What a block keeps between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Everything, or nothing but inputs where the caller runs `light` first.
    All,
    /// Selected outputs; `forward` then reuses them.
    Selective,
    /// Everything but the attention core, which runs again in backward.
    ExceptCore,
}

/// Compiles `block` under `bindings`.
pub(super) fn compile(block: &Block, bindings: &Bindings, keep: Keep) -> Tapes {
    let rules: Vec<Rule> = block.nodes.iter().map(|n| rule(block, n)).collect();
    let mut c = Compiler {
        block,
        bindings,
        rules: &rules,
        steps: Vec::new(),
        storages: Vec::new(),
        labels: Vec::new(),
        slots: 0,
        values: vec![None; block.values.len()],
        saved: vec![Vec::new(); block.nodes.len()],
        kept: vec![None; block.nodes.len()],
        uses: Vec::new(),
        regathered: regathered(block),
    };
    let light = c.light(keep);
    let forward = c.forward(keep);
    let (backward, gradient_slot) = c.backward(keep);
    let Compiler { labels, slots, .. } = c;
    Tapes { forward, backward, light, gradient_slot, slots: slots as usize, labels }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Slot(Slot),
    Input(u8),
    Output(u8),
}

#[derive(Clone, Debug)]
struct Storage {
    home: Home,
    refs: u32,
    bytes: Bytes,
    /// Lives beyond the pass that gives up its last reference.
    outlives: bool,
}

type StorageId = usize;

struct Compiler<'a> {
    block: &'a Block,
    bindings: &'a Bindings,
    rules: &'a [Rule],
    steps: Vec<Step>,
    storages: Vec<Storage>,
    labels: Vec<&'static str>,
    slots: Slot,
    values: Vec<Option<StorageId>>,
    /// References that each node's graph entry holds.
    saved: Vec<Vec<StorageId>>,
    /// Outputs kept by selective checkpointing, by node.
    kept: Vec<Option<Slot>>,
    /// Remaining forward uses of each value.
    uses: Vec<u32>,
    /// Gathered values that are gathered again in backward, and what they are gathered from.
    regathered: Vec<(ValueId, ValueId)>,
}

fn regathered(block: &Block) -> Vec<(ValueId, ValueId)> {
    let gathers = block.nodes.iter().filter(|n| matches!(n.op, Op::AllGather { regather: true }));
    gathers.filter_map(|n| Some((*n.outputs.first()?, *n.inputs.first()?))).collect()
}

impl Compiler<'_> {
    fn label(&mut self, label: &'static str) -> u16 {
        let found = self.labels.iter().position(|l| *l == label);
        found.unwrap_or_else(|| {
            self.labels.push(label);
            self.labels.len() - 1
        }) as u16
    }

    fn bytes(&self, value: ValueId) -> Bytes {
        let v = &self.block.values[value.0 as usize];
        v.shape.bytes(v.dtype, self.bindings)
    }

    fn category(&self, value: ValueId) -> Category {
        if self.block.values[value.0 as usize].is_logits {
            Category::LogitsAndLoss
        } else {
            Category::Activations
        }
    }

    fn alloc(&mut self, bytes: Bytes, category: Category, label: &'static str) -> StorageId {
        let slot = self.slots;
        self.slots += 1;
        let label = self.label(label);
        self.steps.push(Step::Alloc { slot, bytes, category, label });
        self.storages.push(Storage { home: Home::Slot(slot), refs: 1, bytes, outlives: false });
        self.storages.len() - 1
    }

    fn alloc_extra(&mut self, extra: &Extra, category: Category, label: &'static str) -> StorageId {
        let bytes = extra.shape.bytes(extra.dtype, self.bindings);
        self.alloc(bytes, category, label)
    }

    fn retain(&mut self, id: StorageId) {
        let storage = &mut self.storages[id];
        storage.refs += 1;
        match storage.home {
            Home::Input(i) => self.steps.push(Step::RetainInput(i)),
            Home::Output(i) => self.steps.push(Step::RetainOutput(i)),
            Home::Slot(_) => {}
        }
    }

    fn release(&mut self, id: StorageId) {
        let storage = &mut self.storages[id];
        storage.refs = storage.refs.saturating_sub(1);
        match storage.home {
            Home::Input(i) => self.steps.push(Step::ReleaseInput(i)),
            Home::Output(i) => self.steps.push(Step::ReleaseOutput(i)),
            Home::Slot(slot) if storage.refs == 0 && storage.outlives => {
                self.steps.push(Step::Outlive { slot });
            }
            Home::Slot(slot) if storage.refs == 0 => self.steps.push(Step::Free { slot }),
            Home::Slot(_) => {}
        }
    }

    /// Inputs arrive with one reference each, which the pass gives back after their last use.
    fn enter(&mut self) {
        self.values.fill(None);
        self.uses = vec![0; self.block.values.len()];
        for node in &self.block.nodes {
            for input in &node.inputs {
                self.uses[input.0 as usize] += 1;
            }
        }
        let held = self.block.held.iter().map(|(v, _)| v);
        for value in self.block.outputs.iter().chain(held) {
            self.uses[value.0 as usize] += 1;
        }
        // What is gathered again in backward keeps its source as long as itself.
        for (gathered, source) in &self.regathered {
            self.uses[source.0 as usize] += self.uses[gathered.0 as usize];
        }
        for i in 0..self.block.inputs {
            let home = Home::Input(i as u8);
            self.storages.push(Storage { home, refs: 1, bytes: Bytes::ZERO, outlives: false });
            self.values[i as usize] = Some(self.storages.len() - 1);
            if self.uses[i as usize] == 0 {
                self.release(self.storages.len() - 1);
            }
        }
    }

    /// Outputs leave with one reference that now belongs to the boundary.
    fn leave(&mut self) -> Tape {
        let mut leaving = Vec::new();
        for (index, output) in self.block.outputs.clone().into_iter().enumerate() {
            let Some(id) = self.values[output.0 as usize] else {
                leaving.push(Leaving::None);
                continue;
            };
            match self.storages[id].home {
                Home::Slot(slot) => {
                    leaving.push(Leaving::Slot(slot));
                    self.storages[id].home = Home::Output(index as u8);
                    // References of kept tensors live on beside the boundary's own.
                    for _ in 1..self.storages[id].refs {
                        self.steps.push(Step::RetainOutput(index as u8));
                    }
                    self.storages[id].refs -= 1;
                }
                Home::Input(i) => leaving.push(Leaving::Input(i)),
                Home::Output(_) => leaving.push(Leaving::None),
            }
        }
        Tape { steps: std::mem::take(&mut self.steps), leaving }
    }

    fn light(&mut self, keep: Keep) -> Tape {
        self.enter();
        for index in 0..self.block.nodes.len() {
            let kept = keep == Keep::Selective && self.block.nodes[index].keep_in_selective;
            self.apply(index, false, kept);
        }
        for (value, _) in &self.block.held {
            self.used(*value, true);
        }
        self.leave()
    }

    fn forward(&mut self, keep: Keep) -> Tape {
        self.enter();
        for index in 0..self.block.nodes.len() {
            let core = keep == Keep::ExceptCore && self.block.nodes[index].attention_core;
            if core {
                self.keep_core_inputs(index);
            }
            self.apply(index, !core, false);
            let reassigned = |v: &ValueId| self.block.held.contains(&(*v, Hold::Reassigned));
            if self.block.nodes[index].outputs.iter().any(reassigned) {
                self.steps.push(Step::Reassign);
            }
        }
        for (value, hold) in &self.block.held {
            match hold {
                Hold::Forward => self.used(*value, true),
                // The variable's reference is given back at the very end of backward.
                Hold::Backward | Hold::Reassigned => {
                    if let Some(id) = self.values[value.0 as usize].take() {
                        self.storages[id].outlives |= *hold == Hold::Reassigned;
                        self.saved.push(vec![id]);
                    }
                }
            }
        }
        self.leave()
    }

    /// The core runs again in backward: its inputs from outside are kept instead of its intermediates.
    fn keep_core_inputs(&mut self, index: usize) {
        let node = &self.block.nodes[index];
        for input in node.inputs.clone() {
            let made_in_core =
                self.block.nodes.iter().any(|n| n.attention_core && n.outputs.contains(&input));
            if let (false, Some(id)) = (made_in_core, self.values[input.0 as usize]) {
                self.retain(id);
                self.saved[index].push(id);
            }
        }
    }

    /// Runs one node forward. With `graph` it keeps what the table says; with `kept` its output outlives the pass in
    /// a slot that the graph pass takes over.
    fn apply(&mut self, index: usize, graph: bool, kept: bool) {
        let node = &self.block.nodes[index];
        let rules = self.rules;
        let rule = &rules[index];
        let graph = graph && self.needs_graph(node);
        let scratch_category = scratch_category(node);
        let mut scratch = Vec::new();
        let recycled = if graph { self.kept[index].take() } else { None };
        for extra in &rule.saved {
            if extra.weight_cast && !graph {
                let label = self.label("autocast weight");
                let bytes = extra.shape.bytes(extra.dtype, self.bindings);
                self.steps.push(Step::CacheCast { bytes, label });
                continue;
            }
            let category = self.saved_category(node, extra);
            let label = if extra.weight_cast { "autocast weight" } else { node.label };
            let id = self.alloc_extra(extra, category, label);
            if graph { self.saved[index].push(id) } else { scratch.push(id) }
        }
        if recycled.is_none() {
            for extra in &rule.forward_scratch {
                scratch.push(self.alloc_extra(extra, scratch_category, node.label));
            }
        }
        for output in &node.outputs {
            let id = match (rule.output_aliases_input, recycled) {
                (true, _) => {
                    let id = node.inputs.first().and_then(|v| self.values[v.0 as usize]);
                    match id {
                        Some(id) => {
                            self.retain(id);
                            id
                        }
                        None => continue,
                    }
                }
                (false, Some(slot)) => {
                    let bytes = self.bytes(*output);
                    self.storages.push(Storage {
                        home: Home::Slot(slot),
                        refs: 1,
                        bytes,
                        outlives: false,
                    });
                    self.storages.len() - 1
                }
                (false, None) => {
                    let category = match node.op {
                        Op::AllGather { .. } => Category::Communication,
                        _ => self.category(*output),
                    };
                    self.alloc(self.bytes(*output), category, node.label)
                }
            };
            self.values[output.0 as usize] = Some(id);
            if graph && rule.saves_output {
                self.retain(id);
                self.saved[index].push(id);
            }
            if kept && let Home::Slot(slot) = self.storages[id].home {
                self.storages[id].refs += 1;
                self.kept[index] = Some(slot);
            }
        }
        if graph {
            for (bit, input) in node.inputs.iter().enumerate() {
                let source = self.source(*input).unwrap_or(*input);
                if rule.saves_inputs >> bit & 1 == 1
                    && let Some(id) = self.values[source.0 as usize]
                {
                    self.retain(id);
                    self.saved[index].push(id);
                    self.storages[id].outlives |= rule.inputs_outlive;
                }
            }
        }
        for id in scratch {
            self.release(id);
        }
        if graph && rule.gradients_in_forward {
            self.parameter_gradients(node);
        }
        for input in &node.inputs {
            self.used(*input, true);
            if let Some(source) = self.source(*input) {
                self.used(source, true);
            }
        }
        for output in &node.outputs {
            self.used(*output, false);
        }
    }

    fn source(&self, gathered: ValueId) -> Option<ValueId> {
        self.regathered.iter().find(|(g, _)| *g == gathered).map(|(_, s)| *s)
    }

    /// A variable goes after its last use; an output that nobody uses goes at once.
    fn used(&mut self, value: ValueId, as_input: bool) {
        let index = value.0 as usize;
        if as_input {
            self.uses[index] = self.uses[index].saturating_sub(1);
        }
        if self.uses[index] == 0
            && let Some(id) = self.values[index].take()
        {
            self.release(id);
        }
    }

    fn needs_graph(&self, node: &Node) -> bool {
        node.outputs.iter().any(|v| self.block.values[v.0 as usize].requires_grad)
    }

    fn saved_category(&self, node: &Node, extra: &Extra) -> Category {
        if extra.weight_cast {
            Category::Workspace
        } else {
            node.outputs.first().map_or(Category::Activations, |v| self.category(*v))
        }
    }

    fn parameter_gradients(&mut self, node: &Node) {
        for param in &node.params {
            let p = &self.block.params[param.0 as usize];
            if p.trainable {
                let cast = match &node.op {
                    Op::Linear(l) => l.weight_cast,
                    _ => None,
                };
                let computed = cast.map_or(p.bytes, |dtype| dtype.bytes(p.elements));
                self.steps.push(Step::Gradient { param: param.0 as u16, computed });
            }
        }
    }

    fn backward(&mut self, keep: Keep) -> (Tape, Slot) {
        let mut gradients: Vec<Option<StorageId>> = vec![None; self.block.values.len()];
        let gradient_slot = self.slots;
        self.slots += 1;
        self.storages.push(Storage {
            home: Home::Slot(gradient_slot),
            refs: 1,
            bytes: Bytes::ZERO,
            outlives: false,
        });
        if let Some(output) = self.block.outputs.first() {
            let bytes = self.bytes(*output);
            if let Some(storage) = self.storages.last_mut() {
                storage.bytes = bytes;
            }
            gradients[output.0 as usize] = Some(self.storages.len() - 1);
        }
        let mut core_runs = keep == Keep::ExceptCore;
        for index in (0..self.block.nodes.len()).rev() {
            if core_runs && self.block.nodes[index].attention_core {
                core_runs = false;
                self.rerun_core();
            }
            self.differentiate(index, &mut gradients);
        }
        let mut leaving = Vec::new();
        for gradient in gradients.iter().take(self.block.inputs as usize) {
            leaving.push(match gradient.map(|id| self.storages[id].home) {
                Some(Home::Slot(slot)) => Leaving::Slot(slot),
                _ => Leaving::None,
            });
        }
        for held in self.saved.split_off(self.block.nodes.len()) {
            for id in held {
                self.release(id);
            }
        }
        (Tape { steps: std::mem::take(&mut self.steps), leaving }, gradient_slot)
    }

    /// Runs the attention core once more, keeping what its backward needs, and gives its kept inputs back.
    fn rerun_core(&mut self) {
        let core: Vec<usize> =
            (0..self.block.nodes.len()).filter(|i| self.block.nodes[*i].attention_core).collect();
        let mut inputs: Vec<StorageId> = Vec::new();
        for &index in &core {
            let kept = std::mem::take(&mut self.saved[index]);
            let node = &self.block.nodes[index];
            let outside = node
                .inputs
                .iter()
                .filter(|v| !core.iter().any(|i| self.block.nodes[*i].outputs.contains(v)));
            for (value, id) in outside.zip(&kept) {
                self.values[value.0 as usize] = Some(*id);
            }
            inputs.extend(kept);
        }
        // Only uses inside the core count now; its last outputs go at once (their consumers ran in forward).
        self.uses.fill(0);
        for &index in &core {
            for input in &self.block.nodes[index].inputs {
                self.uses[input.0 as usize] += 1;
            }
        }
        for id in &inputs {
            self.retain(*id);
        }
        for &index in &core {
            self.apply(index, true, false);
        }
        for id in inputs {
            self.release(id);
        }
    }

    fn differentiate(&mut self, index: usize, gradients: &mut [Option<StorageId>]) {
        let node = &self.block.nodes[index];
        let rules = self.rules;
        let rule = &rules[index];
        let arrived: Vec<StorageId> =
            node.outputs.iter().filter_map(|v| gradients[v.0 as usize].take()).collect();
        let saved = std::mem::take(&mut self.saved[index]);
        if arrived.is_empty() || !self.needs_graph(node) {
            for id in saved.into_iter().chain(arrived) {
                self.release(id);
            }
            return;
        }
        let mut saved = Some(saved);
        if rule.releases_first {
            for id in saved.take().unwrap_or_default() {
                self.release(id);
            }
        }
        let scratch_category = scratch_category(node);
        let mut scratch = Vec::new();
        for extra in &rule.backward_scratch {
            scratch.push(self.alloc_extra(extra, scratch_category, node.label));
        }
        for (bit, input) in node.inputs.iter().enumerate() {
            if rule.saves_inputs >> bit & 1 == 1 && self.source(*input).is_some() {
                scratch.push(self.alloc(self.bytes(*input), Category::Communication, "gather"));
            }
        }
        let mut made: Vec<(ValueId, StorageId)> = Vec::new();
        for input in &node.inputs {
            if !self.block.values[input.0 as usize].requires_grad {
                continue;
            }
            if let Some(id) =
                self.input_gradient(node, rule, *input, &arrived, saved.as_deref(), gradients)
            {
                made.push((*input, id));
            }
        }
        if !rule.gradients_in_forward {
            self.parameter_gradients(node);
        }
        for id in scratch.into_iter().chain(saved.unwrap_or_default()).chain(arrived) {
            self.release(id);
        }
        for (input, id) in made {
            self.accumulate(input, id, gradients);
        }
    }

    /// The gradient of one input: the arrived one, a new tensor, a slice written into one that exists, or a kept
    /// tensor overwritten.
    fn input_gradient(
        &mut self,
        node: &Node,
        rule: &Rule,
        input: ValueId,
        arrived: &[StorageId],
        saved: Option<&[StorageId]>,
        gradients: &[Option<StorageId>],
    ) -> Option<StorageId> {
        let bytes = self.bytes(input);
        let output = node.outputs.first().copied();
        let out_bytes = output.map_or(Bytes::ZERO, |v| self.bytes(v));
        match rule.gradient {
            Some(Gradient::Passed) if bytes <= out_bytes && self.same_type(input, output) => {
                let id = *arrived.first()?;
                self.retain(id);
                Some(id)
            }
            // A part of a larger tensor: written into the gradient that exists, or into a new one.
            Some(Gradient::Passed) if matches!(node.op, Op::View) => {
                if gradients[input.0 as usize].is_some() {
                    return None;
                }
                Some(self.alloc(bytes, self.category(input), node.label))
            }
            Some(Gradient::InPlace) => {
                let same_size = |id: &&StorageId| self.storages[**id].bytes == bytes;
                let id = saved.and_then(|s| s.iter().find(same_size)).copied();
                match id {
                    Some(id) => {
                        self.retain(id);
                        Some(id)
                    }
                    None => Some(self.alloc(bytes, self.category(input), node.label)),
                }
            }
            _ => Some(self.alloc(bytes, self.category(input), node.label)),
        }
    }

    fn same_type(&self, a: ValueId, b: Option<ValueId>) -> bool {
        b.is_some_and(|b| {
            self.block.values[a.0 as usize].dtype == self.block.values[b.0 as usize].dtype
        })
    }

    /// Adds a contribution: in place where the existing gradient (or the new one) belongs to nobody else.
    fn accumulate(&mut self, input: ValueId, id: StorageId, gradients: &mut [Option<StorageId>]) {
        let entry = &mut gradients[input.0 as usize];
        let Some(existing) = *entry else {
            *entry = Some(id);
            return;
        };
        let owned = |c: &Self, id: StorageId| {
            c.storages[id].refs == 1 && matches!(c.storages[id].home, Home::Slot(_))
        };
        if owned(self, existing) {
            self.release(id);
        } else if owned(self, id) {
            *entry = Some(id);
            self.release(existing);
        } else {
            let sum = self.alloc(self.bytes(input), self.category(input), "gradient sum");
            *entry = Some(sum);
            self.release(existing);
            self.release(id);
        }
    }
}

fn scratch_category(node: &Node) -> Category {
    match node.op {
        Op::FusedCrossEntropy { .. }
        | Op::ShardedCrossEntropy
        | Op::ChunkedCrossEntropy { .. }
        | Op::FusedLinearCrossEntropy { .. } => Category::LogitsAndLoss,
        _ => Category::Workspace,
    }
}
