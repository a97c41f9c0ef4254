//! Compiles a block into the allocations of one forward pass without a graph (`torch.no_grad`). Tensors live as long as
//! a variable of the program refers to them: a caller's argument outlives its last use inside the callee, and that is
//! what sets this pass apart from the shortest possible lives.

use plimsoll_model::Part;
use plimsoll_model::graph::{Block, Node, ValueId};
use plimsoll_model::ops::{Op, Rule, rule};
use plimsoll_timeline::Category;
use plimsoll_units::{Bindings, Bytes, DType, Dim, Shape};

/// A tensor that a layer keeps between passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    Keys,
    Values,
    CrossKeys,
    CrossValues,
    State,
}

/// One step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A storage comes into being.
    Alloc { slot: u32, bytes: Bytes, category: Category, label: u16 },
    /// It goes.
    Free { slot: u32 },
    /// The cache takes in what this pass computed.
    Update(Cached),
    /// The body of the model returns: its inputs and the stack's embedding go before logits come.
    BodyReturns,
}

/// What a pass leaves as its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    Slot(u32),
    /// The storage of an input, or nothing of its own.
    Input,
}

/// A compiled pass.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    pub steps: Vec<Step>,
    pub leaving: Leaving,
    pub slots: usize,
    /// Names that steps refer to, and the symbolic sizes behind them.
    pub labels: Vec<(&'static str, String)>,
}

/// Sizes of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of everything but logits.
    pub body: Bindings,
    /// Of logits: one position, or all.
    pub logits: Bindings,
    /// Keys that cached self-attention reads; `None` for a stack without a cache.
    pub keys: Option<u64>,
    /// Cross-attention reads cached keys instead of projecting the encoder's output again.
    pub cross_cached: bool,
}

/// Where the bytes of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// In a storage that this value brought into being.
    Own(u32),
    /// With the caller.
    Outside,
    /// In the cache.
    Cache,
}

/// Compiles `block`.
pub(super) fn compile(block: &Block, sizes: &Sizes) -> Pass {
    let block = &match sizes.keys {
        Some(keys) => with_keys(block, keys),
        None => block.clone(),
    };
    let rules: Vec<Rule> = block.nodes.iter().map(|n| rule(block, n)).collect();
    let cached = cached_nodes(block, sizes);
    let roots = roots(block, &rules, &cached);
    let deaths = deaths(block, &roots);
    let mut c = Compiler { block, sizes, steps: Vec::new(), labels: Vec::new(), slots: 0 };
    let mut slots: Vec<Option<u32>> = vec![None; block.values.len()];
    let body_ends = block.nodes.iter().position(|n| is_logits(block, n));
    for (index, node) in block.nodes.iter().enumerate() {
        if body_ends == Some(index) {
            c.steps.push(Step::BodyReturns);
        }
        match cached[index] {
            Some(Role::Update(what)) => c.steps.push(Step::Update(what)),
            Some(Role::Skipped) => {}
            None => c.node(node, &rules[index], &roots, &mut slots),
        }
        for (value, death) in deaths.iter().enumerate() {
            if *death == Some(index)
                && let Some(slot) = slots[value].take()
            {
                c.steps.push(Step::Free { slot });
            }
        }
    }
    if sizes.keys.is_some()
        && block.nodes.iter().any(|n| matches!(n.op, Op::Scan { .. } | Op::Conv1d))
    {
        c.steps.push(Step::Update(Cached::State));
    }
    let leaving = match block.outputs.first().map(|v| roots[v.0 as usize]) {
        Some(Root::Own(value)) => slots[value as usize].map_or(Leaving::Input, Leaving::Slot),
        _ => Leaving::Input,
    };
    Pass { steps: c.steps, leaving, slots: c.slots as usize, labels: c.labels }
}

struct Compiler<'a> {
    block: &'a Block,
    sizes: &'a Sizes,
    steps: Vec<Step>,
    labels: Vec<(&'static str, String)>,
    slots: u32,
}

impl Compiler<'_> {
    fn node(&mut self, node: &Node, rule: &Rule, roots: &[Root], slots: &mut [Option<u32>]) {
        let logits = is_logits(self.block, node);
        let bindings = if logits { self.sizes.logits } else { self.sizes.body };
        let mut scratch = Vec::new();
        // Kernels write their statistics whether or not a graph keeps them. Copies of weights for backward do not exist.
        let kept = rule.saved.iter().filter(|e| !e.weight_cast);
        for extra in kept.chain(&rule.forward_scratch) {
            let bytes = extra.shape.bytes(extra.dtype, &bindings);
            let label = self.label(node.label, &extra.shape, extra.dtype);
            scratch.push(self.alloc(bytes, Category::Workspace, label));
        }
        // Only half precision has a softmax kernel that reads 16 bits and writes 32; bfloat16 is copied first.
        if let (Op::Softmax, Some(x), Some(y)) =
            (&node.op, node.inputs.first(), node.outputs.first())
        {
            let (x, y) = (&self.block.values[x.0 as usize], &self.block.values[y.0 as usize]);
            if x.dtype == DType::Bf16 && y.dtype == DType::F32 {
                let label = self.label("softmax.upcast", &y.shape, y.dtype);
                scratch.push(self.alloc(
                    y.shape.bytes(y.dtype, &bindings),
                    Category::Activations,
                    label,
                ));
            }
        }
        for output in &node.outputs {
            if roots[output.0 as usize] != Root::Own(output.0) {
                continue;
            }
            let value = &self.block.values[output.0 as usize];
            let category = match node.op {
                Op::AllGather { .. } => Category::Communication,
                _ if value.is_logits => Category::LogitsAndLoss,
                _ => Category::Activations,
            };
            let label = self.label(node.label, &value.shape, value.dtype);
            let bytes = value.shape.bytes(value.dtype, &bindings);
            slots[output.0 as usize] = Some(self.alloc(bytes, category, label));
        }
        self.steps.extend(scratch.into_iter().map(|slot| Step::Free { slot }));
    }

    fn alloc(&mut self, bytes: Bytes, category: Category, label: u16) -> u32 {
        let slot = self.slots;
        self.slots += 1;
        self.steps.push(Step::Alloc { slot, bytes, category, label });
        slot
    }

    fn label(&mut self, what: &'static str, shape: &Shape, dtype: DType) -> u16 {
        let sizes = format!("{shape} {dtype}");
        let found = self.labels.iter().position(|(l, s)| *l == what && *s == sizes);
        let at = found.unwrap_or_else(|| {
            self.labels.push((what, sizes));
            self.labels.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}

fn is_logits(block: &Block, node: &Node) -> bool {
    node.outputs.iter().any(|v| block.values[v.0 as usize].is_logits)
}

/// What a node is to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Its result is appended, and what follows reads the cache.
    Update(Cached),
    /// It does not run: the cache has its result.
    Skipped,
}

/// Where a block appends to its caches: attention views its keys and values by heads right before the core.
fn cached_nodes(block: &Block, sizes: &Sizes) -> Vec<Option<Role>> {
    if sizes.keys.is_none() {
        return vec![None; block.nodes.len()];
    }
    let role = |node: &Node| match (node.label, cross_of(block, node)) {
        ("cross.k" | "cross.v", _) if sizes.cross_cached => Some(Role::Skipped),
        ("k.heads", false) => Some(Role::Update(Cached::Keys)),
        ("v.heads", false) => Some(Role::Update(Cached::Values)),
        ("k.heads" | "v.heads", true) if sizes.cross_cached => Some(Role::Skipped),
        ("k.heads", true) => Some(Role::Update(Cached::CrossKeys)),
        ("v.heads", true) => Some(Role::Update(Cached::CrossValues)),
        _ => None,
    };
    block.nodes.iter().map(role).collect()
}

/// Whether a view of heads belongs to cross-attention: what it views was projected by its matrices.
fn cross_of(block: &Block, node: &Node) -> bool {
    let input = node.inputs.first();
    let maker = input.and_then(|v| block.nodes.iter().find(|n| n.outputs.contains(v)));
    maker.is_some_and(|n| matches!(n.label, "cross.k" | "cross.v"))
}

fn roots(block: &Block, rules: &[Rule], cached: &[Option<Role>]) -> Vec<Root> {
    let mut roots = vec![Root::Outside; block.values.len()];
    for ((node, rule), role) in block.nodes.iter().zip(rules).zip(cached) {
        let first = node.inputs.first().map(|v| roots[v.0 as usize]);
        for output in &node.outputs {
            roots[output.0 as usize] = match (role, first) {
                (Some(_), _) => Root::Cache,
                (None, Some(root)) if rule.output_aliases_input => root,
                _ => Root::Own(output.0),
            };
        }
    }
    roots
}

/// The node after which each storage goes, by the value that brought it into being; `None` for what leaves or was
/// never here.
fn deaths(block: &Block, roots: &[Root]) -> Vec<Option<usize>> {
    let mut deaths: Vec<Option<usize>> = vec![None; block.values.len()];
    let mut extend = |value: ValueId, until: usize| {
        if let Root::Own(owner) = roots[value.0 as usize] {
            let death = &mut deaths[owner as usize];
            *death = Some(death.map_or(until, |d| d.max(until)));
        }
    };
    for (index, node) in block.nodes.iter().enumerate() {
        node.inputs.iter().chain(&node.outputs).for_each(|v| extend(*v, index));
    }
    for (start, end) in calls(block) {
        let inside = block.nodes.get(start..=end).unwrap_or_default();
        let made = |v: &ValueId| inside.iter().any(|n| n.outputs.contains(v));
        for value in inside.iter().flat_map(|n| &n.inputs).filter(|v| !made(v)) {
            extend(*value, end);
        }
        for node in inside {
            // Locals of the attention function, of the module that called it, and of the experts.
            if matches!(node.label, "q.heads" | "k.repeat" | "v.repeat" | "dispatch") {
                node.inputs.iter().chain(&node.outputs).for_each(|v| extend(*v, end));
            }
            // Written-out attention returns its weights; the layer's variable holds them to its end.
            if node.label == "context" && node.inputs.len() == 2 {
                extend(node.inputs[0], block.nodes.len().saturating_sub(1));
            }
        }
    }
    for output in &block.outputs {
        if let Root::Own(owner) = roots[output.0 as usize] {
            deaths[owner as usize] = None;
        }
    }
    deaths
}

/// First and last node of each module that a layer calls: its mixer, its cross-attention, its feed-forward part. Their
/// arguments stay alive until they return.
fn calls(block: &Block) -> Vec<(usize, usize)> {
    use Part::*;
    let module = |part: Part| match part {
        Query | Key | Value | Qkv | Output | QueryDown | QueryUp | KvDown | KvUp | SsmIn
        | SsmIn2 | SsmConv | SsmX | SsmDt | SsmOut => Some(0),
        CrossQuery | CrossKey | CrossValue | CrossOutput => Some(1),
        Gate | Up | GateUp | Down | Router | ExpertGate | ExpertUp | ExpertGateUp | ExpertDown
        | SharedGate | SharedUp | SharedDown | SharedScale => Some(2),
        _ => None,
    };
    let mut found: [Option<(usize, usize)>; 3] = [None; 3];
    for (index, node) in block.nodes.iter().enumerate() {
        let of_param = node.params.first().and_then(|p| module(block.params[p.0 as usize].part));
        let of_label = match node.label {
            "combine" | "shared.add" => Some(2),
            _ => None,
        };
        if let Some(m) = of_param.or(of_label) {
            let range = found[m].get_or_insert((index, index));
            range.1 = index;
        }
    }
    found.into_iter().flatten().collect()
}

/// The block with self-attention reading `keys` cached positions instead of those of this pass.
fn with_keys(block: &Block, keys: u64) -> Block {
    let mut block = block.clone();
    let mut cross = false;
    for node in &block.nodes {
        cross |= node.label == "cross.q";
        if cross {
            continue;
        }
        let expanded = matches!(node.label, "k.repeat" | "v.repeat" | "k.cast" | "v.cast");
        for output in &node.outputs {
            let value = &mut block.values[output.0 as usize];
            let [batch, heads, rows, last] = value.shape.dims() else { continue };
            if expanded {
                value.shape =
                    Shape::new([batch.clone(), heads.clone(), Dim::Const(keys), last.clone()]);
            } else if node.attention_core && rows == last {
                value.shape =
                    Shape::new([batch.clone(), heads.clone(), rows.clone(), Dim::Const(keys)]);
            }
        }
    }
    block
}
