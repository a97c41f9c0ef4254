//! Which device runs each operator, what has to be copied between devices, and the size of each device's compute
//! buffer. Follows ggml's scheduler: operators go where their weights are, the rest to the neighbours' GPU; a run of
//! operators on one device is a split, and all that a split reads from elsewhere is copied in at its start.

use std::collections::BTreeMap;

use super::gallocr::Planner;
use super::graph::{Graph, HOST, Place, Role, TensorId};

/// What the scheduler may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// GPUs.
    pub(super) devices: usize,
    /// Copies of each split input (pipeline parallelism has 4).
    pub(super) copies: u64,
    /// Large products with host weights run on the first GPU.
    pub(super) offload_products: bool,
    /// Offset alignment of GPU buffers.
    pub(super) alignment: u64,
    /// Inputs of one split at most.
    pub(super) split_inputs: usize,
}

/// Compute buffers of one graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Buffers {
    /// By GPU.
    pub(super) devices: Vec<u64>,
    /// Host.
    pub(super) host: u64,
    /// Runs of operators on one device.
    pub(super) splits: usize,
}

struct Split {
    place: Place,
    nodes: Vec<TensorId>,
    inputs: Vec<TensorId>,
}

/// Sizes of the compute buffers of `graph`.
pub(super) fn plan(graph: &Graph, settings: Settings) -> Buffers {
    let places = assign(graph, settings);
    let (work, splits, copies) = split(graph, &places, settings);
    allocate(&work, &splits, &copies, &places, settings)
}

fn place_of_weight(graph: &Graph, id: TensorId) -> Option<Place> {
    match graph.get(id).role {
        Role::Weight(p) => Some(p),
        Role::Cache(_) | Role::Input | Role::Result => None,
    }
}

fn place_of_buffer(graph: &Graph, id: TensorId) -> Option<Place> {
    match graph.get(id).role {
        Role::Weight(p) | Role::Cache(p) => Some(p),
        Role::Input | Role::Result => None,
    }
}

fn assign(graph: &Graph, settings: Settings) -> Vec<Option<Place>> {
    let mut places: Vec<Option<Place>> = vec![None; graph.tensors.len()];
    for id in &graph.leaves {
        places[id.index()] = match graph.get(*id).role {
            Role::Weight(p) | Role::Cache(p) => Some(p),
            Role::Input => Some(HOST),
            Role::Result => None,
        };
    }
    for id in &graph.nodes {
        let t = graph.get(*id);
        places[id.index()] =
            t.pinned.or_else(|| t.window.and_then(|w| place_of_buffer(graph, w))).or_else(|| {
                let weight = t.sources.iter().find_map(|s| place_of_weight(graph, *s))?;
                let moved = weight == HOST
                    && t.offloadable
                    && settings.offload_products
                    && settings.devices > 0;
                Some(if moved { 0 } else { weight })
            });
    }
    let ops: Vec<usize> =
        graph.nodes.iter().filter(|id| !graph.get(**id).is_view_op).map(|id| id.index()).collect();
    spread(&mut places, ops.iter().copied(), true);
    spread(&mut places, ops.iter().rev().copied(), true);
    spread(&mut places, ops.iter().copied(), false);
    spread(&mut places, ops.iter().rev().copied(), false);
    for id in &graph.nodes {
        let t = graph.get(*id);
        if places[id.index()].is_none() {
            places[id.index()] = t.window.and_then(|w| places[w.index()]).or(Some(HOST));
        }
        for s in &t.sources {
            if places[s.index()].is_none() {
                places[s.index()] =
                    graph.get(*s).window.map_or(places[id.index()], |w| places[w.index()]);
            }
        }
    }
    places
}

/// Gives unassigned operators the place of the last assigned one; where `gpu_only`, the host stops the spread.
fn spread(places: &mut [Option<Place>], ops: impl Iterator<Item = usize>, gpu_only: bool) {
    let mut current = None;
    for op in ops {
        match places[op] {
            Some(HOST) if gpu_only => current = None,
            Some(p) => current = Some(p),
            None => places[op] = current,
        }
    }
}

type Copies = BTreeMap<(TensorId, Place), TensorId>;

fn split(
    graph: &Graph,
    places: &[Option<Place>],
    settings: Settings,
) -> (Graph, Vec<Split>, Copies) {
    let mut work = graph.clone();
    let mut splits: Vec<Split> = Vec::new();
    let mut copies = Copies::new();
    let host_fallback = |p: Option<Place>| p.unwrap_or(HOST);
    for id in &graph.nodes {
        let t = graph.get(*id);
        if t.is_view_op {
            // A window runs nowhere; it stays with the split that is open.
            match splits.last_mut() {
                Some(s) => s.nodes.push(*id),
                None => splits.push(Split {
                    place: host_fallback(places[id.index()]),
                    nodes: vec![*id],
                    inputs: Vec::new(),
                }),
            }
            continue;
        }
        let place = host_fallback(places[id.index()]);
        let foreign = |s: &TensorId| {
            let home =
                graph.get(*s).window.and_then(|w| place_of_buffer(graph, w)).or(places[s.index()]);
            host_fallback(home) != place
        };
        let fresh = match splits.last() {
            None => true,
            Some(open) if open.place != place => true,
            Some(open) => {
                !open.inputs.is_empty()
                    && t.sources.iter().any(|s| {
                        (place_of_weight(graph, *s).is_some() && foreign(s))
                            || (open.inputs.len() >= settings.split_inputs
                                && foreign(s)
                                && !copies.contains_key(&(*s, place)))
                    })
            }
        };
        if fresh {
            // Leading windows belong to the first real split.
            if splits.len() == 1 && splits[0].nodes.iter().all(|n| graph.get(*n).is_view_op) {
                splits[0].place = place;
            } else {
                splits.push(Split { place, nodes: Vec::new(), inputs: Vec::new() });
            }
        }
        let Some(open) = splits.last_mut() else { continue };
        for s in &t.sources {
            if !foreign(s) {
                continue;
            }
            let copy = *copies.entry((*s, place)).or_insert_with(|| {
                open.inputs.push(*s);
                let (dtype, shape) = (graph.get(*s).dtype, graph.get(*s).shape);
                work.op(dtype, shape, &[])
            });
            for source in &mut work.get_mut(*id).sources {
                if source == s {
                    *source = copy;
                }
            }
        }
        open.nodes.push(*id);
    }
    (work, splits, copies)
}

#[derive(Clone, Copy, Default)]
struct Slot {
    children: u64,
    views: u64,
    owned: bool,
    place: Place,
    offset: u64,
}

struct Walk<'a> {
    graph: &'a Graph,
    slots: Vec<Slot>,
    buffers: Vec<Planner>,
    copies: u64,
    is_copy: Vec<bool>,
}

impl Walk<'_> {
    fn buffer(&mut self, place: Place) -> Option<&mut Planner> {
        let last = self.buffers.len() - 1;
        self.buffers.get_mut(place.min(last))
    }

    fn size(&self, id: TensorId, place: Place) -> u64 {
        let t = self.graph.get(id);
        if place == HOST { t.bytes() } else { t.allocation() }
    }

    fn take(&mut self, id: TensorId, place: Place) {
        let t = self.graph.get(id);
        if self.slots[id.index()].owned
            || t.window.is_some()
            || matches!(t.role, Role::Weight(_) | Role::Cache(_))
        {
            return;
        }
        self.slots[id.index()].owned = true;
        if t.in_place {
            for parent in &t.sources {
                let p = self.graph.get(*parent);
                let slot = self.slots[parent.index()];
                // Windows are never owned, so a product of a reshaped tensor always gets new memory.
                if !slot.owned || p.output || p.dtype != t.dtype || p.shape != t.shape {
                    continue;
                }
                if slot.children == 1 && slot.views == 0 {
                    self.slots[id.index()].place = slot.place;
                    self.slots[id.index()].offset = slot.offset;
                    self.slots[parent.index()].owned = false;
                    return;
                }
            }
        }
        let size = self.size(id, place);
        let offset = self.buffer(place).map_or(0, |b| b.take(size));
        let slot = &mut self.slots[id.index()];
        slot.place = place;
        slot.offset = offset;
    }

    fn give(&mut self, id: TensorId) {
        if self.graph.get(id).output || (self.copies > 1 && self.is_copy[id.index()]) {
            return;
        }
        let slot = self.slots[id.index()];
        let size = self.size(id, slot.place);
        if let Some(b) = self.buffer(slot.place) {
            b.give(slot.offset, size);
        }
        self.slots[id.index()].owned = false;
    }

    fn release(&mut self, parent: TensorId) {
        let slot = &mut self.slots[parent.index()];
        slot.children = slot.children.saturating_sub(1);
        if slot.children > 0 || slot.views > 0 {
            return;
        }
        if let Some(of) = self.graph.get(parent).window {
            let root = &mut self.slots[of.index()];
            root.views = root.views.saturating_sub(1);
            if root.views == 0 && root.children == 0 && root.owned {
                self.give(of);
            }
        } else if slot.owned {
            self.give(parent);
        }
    }
}

/// A step of the plan: an operator, or the copy of a split input.
enum Step {
    Run(TensorId, Place),
    /// Keeps the source alive until it has been copied.
    Depend(TensorId),
    Copy(TensorId, Place),
}

/// The order of the plan: each split's copies first, then its operators.
fn steps(work: &Graph, splits: &[Split], copies: &Copies, places: &[Option<Place>]) -> Vec<Step> {
    let mut steps = Vec::new();
    for s in splits {
        for input in &s.inputs {
            steps.push(Step::Depend(*input));
            if let Some(copy) = copies.get(&(*input, s.place)) {
                steps.push(Step::Copy(*copy, s.place));
            }
        }
        for node in &s.nodes {
            let view = work.get(*node).is_view_op;
            let place = if view { places[node.index()].unwrap_or(HOST) } else { s.place };
            steps.push(Step::Run(*node, place));
        }
    }
    steps
}

impl Walk<'_> {
    /// Input copies of pipeline parallelism live from start to end, on both sides of the copy.
    fn take_pipeline_copies(&mut self, copies: &Copies) {
        for ((_, place), copy) in copies {
            self.take(*copy, *place);
            self.take_siblings(*copy, *place);
        }
    }

    /// The further copies, which nothing of this graph touches.
    fn take_siblings(&mut self, id: TensorId, place: Place) {
        let size = self.size(id, place);
        for _ in 1..self.copies {
            if let Some(b) = self.buffer(place) {
                b.take(size);
            }
        }
    }

    fn take_leaves(&mut self, copies: &Copies) {
        let graph = self.graph;
        for leaf in &graph.leaves {
            self.take(*leaf, HOST);
            let read_elsewhere = || copies.keys().any(|(source, _)| source == leaf);
            if self.copies > 1 && graph.get(*leaf).role == Role::Input && read_elsewhere() {
                // The host fills the next copy while the devices read this one.
                self.take_siblings(*leaf, HOST);
            }
        }
    }

    fn count(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Run(id, _) => {
                    let t = self.graph.get(*id);
                    if let Some(of) = t.window {
                        self.slots[of.index()].views += 1;
                    }
                    for s in &t.sources {
                        self.slots[s.index()].children += 1;
                    }
                }
                Step::Depend(input) => self.slots[input.index()].children += 1,
                Step::Copy(..) => {}
            }
        }
    }

    fn run(&mut self, steps: &[Step]) {
        let graph = self.graph;
        for step in steps {
            match step {
                Step::Run(id, place) => {
                    self.take(*id, *place);
                    for s in &graph.get(*id).sources {
                        self.release(*s);
                    }
                }
                Step::Depend(input) => self.release(*input),
                Step::Copy(copy, place) => self.take(*copy, *place),
            }
        }
    }
}

fn allocate(
    work: &Graph,
    splits: &[Split],
    copies: &Copies,
    places: &[Option<Place>],
    settings: Settings,
) -> Buffers {
    let steps = steps(work, splits, copies, places);
    let mut is_copy = vec![false; work.tensors.len()];
    for copy in copies.values() {
        is_copy[copy.index()] = true;
    }
    let mut walk = Walk {
        graph: work,
        slots: vec![Slot::default(); work.tensors.len()],
        buffers: (0..=settings.devices).map(|_| Planner::new(settings.alignment)).collect(),
        copies: settings.copies,
        is_copy,
    };
    if settings.copies > 1 {
        walk.take_pipeline_copies(copies);
    }
    walk.take_leaves(copies);
    walk.count(&steps);
    walk.run(&steps);
    let mut devices: Vec<u64> = walk.buffers.iter().map(Planner::high_water).collect();
    let host = devices.pop().unwrap_or(0);
    Buffers { devices, host, splits: splits.len() }
}
