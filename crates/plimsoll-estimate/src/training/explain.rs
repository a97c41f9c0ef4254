//! The tree of terms behind a training peak: what of each category was live, by operator and by part of the model,
//! with the formula that gives one layer's share.

use plimsoll_model::Graph;
use plimsoll_model::graph::{Block, BlockParam};
use plimsoll_model::ops::rule;
use plimsoll_timeline::{Category, LiveSet};
use plimsoll_units::{Bindings, Bytes, Symbol};

use super::RankRun;
use super::params::{Shards, kept_elements, storage_dtype};
use super::run::FURTHER;
use crate::Device;
use crate::request::{Optimizer, OptimizerForm, Strategy, Training};
use crate::term::Term;

/// Sources of the formulas.
const AUTOGRAD: &str = "operator table after PyTorch's derivatives.yaml; shapes of the graph";
const ALLOCATOR: &str = "replay of the timeline on PyTorch's caching allocator, default settings";

/// One term per category, the allocator's slack, and the context.
pub(super) fn terms(
    worst: &RankRun,
    training: &Training,
    strategy: &Strategy,
    device: &Device,
) -> Vec<Term> {
    let f = &worst.footprint;
    let mut terms: Vec<Term> = f
        .live
        .by_category
        .iter()
        .map(|(category, bytes)| match category {
            Category::Parameters => parameters(worst, training, strategy, *bytes),
            Category::Gradients => gradients(training, strategy, *bytes),
            Category::OptimizerStates => optimizer(training, &f.live, *bytes),
            other => live(worst, *other, *bytes),
        })
        .collect();
    let slack = f.reserved_peak.saturating_sub(f.allocated_peak);
    terms.push(
        Term::new("allocator", "reserved but free", slack)
            .formula("reserved peak - allocated peak")
            .input("reserved peak", f.reserved_peak)
            .input("allocated peak", f.allocated_peak)
            .source(ALLOCATOR),
    );
    terms.push(
        Term::new("context", "context and libraries", device.context.typical)
            .formula("CUDA context, loaded kernels and communicators outside the allocator")
            .input("low", device.context.low)
            .input("high", device.context.high)
            .source(device.context.source.clone()),
    );
    terms
}

fn key(category: Category) -> String {
    category.label().replace(' ', "_")
}

/// Weights by group of parts, as this rank keeps them.
fn parameters(worst: &RankRun, training: &Training, strategy: &Strategy, total: Bytes) -> Term {
    let sharded = Shards::of(strategy.sharding.zero).parameters;
    let mut groups: Vec<(&'static str, u64, Bytes)> = Vec::new();
    for &stage in &worst.stages {
        let stage = &worst.graph.stages[stage];
        if stage.shares.is_some() {
            continue;
        }
        for p in worst.graph.block(stage).params.iter().filter(|p| !p.tied) {
            let kept = kept_elements(p, &strategy.sharding, sharded);
            let bytes = storage_dtype(p, &training.precision).bytes(kept);
            let group = group(p);
            match groups.iter_mut().find(|(g, ..)| *g == group) {
                Some((_, elements, sum)) => {
                    *elements = elements.saturating_add(kept);
                    *sum += bytes;
                }
                None => groups.push((group, kept, bytes)),
            }
        }
    }
    let mut children: Vec<Term> = groups
        .into_iter()
        .map(|(group, elements, bytes)| {
            Term::new(format!("parameters.{}", group.replace(' ', "_")), group, bytes)
                .formula("elements x bytes per element")
                .input("elements", elements)
        })
        .collect();
    let further = worst
        .footprint
        .live
        .by_origin
        .iter()
        .filter(|o| &*o.module == FURTHER && o.category == Category::Parameters);
    children.extend(further.map(|o| {
        Term::new(format!("parameters.{}", o.what.replace(' ', "_")), &*o.what, o.bytes)
            .formula("parameters beside the model's own")
    }));
    let sum: Bytes = children.iter().map(|t| t.bytes).sum();
    if total > sum {
        children.push(
            Term::new("parameters.rounding", "averaged copies and rounding to 512 B", total - sum)
                .source("PyTorch's caching allocator rounds every tensor to 512 B"),
        );
    } else if total < sum {
        // Offloaded or not yet gathered: the parts above do not apply.
        children.clear();
    }
    let ranks = if sharded { strategy.sharding.data } else { 1 };
    Term { children, ..Term::new("parameters", "parameters", total) }
        .formula(if sharded { "P · bytes / ranks" } else { "P · bytes" })
        .input(
            "bytes",
            format!(
                "{} ({})",
                training.precision.weights.block_bytes(),
                training.precision.weights
            ),
        )
        .input("ranks", ranks)
        .source("parameter inventory of the model")
}

fn group(p: &BlockParam) -> &'static str {
    use plimsoll_model::Part::*;
    if p.adapter {
        return "adapters";
    }
    match p.part {
        TokenEmbedding | PositionEmbedding | TypeEmbedding | EmbeddingProjection | Patch
        | Patch2 | ExtraToken => "embeddings",
        Head | HeadDense => "output projection",
        ExpertGate | ExpertUp | ExpertGateUp | ExpertDown => "routed experts",
        Gate | Up | GateUp | Down | SharedGate | SharedUp | SharedDown | SharedScale => {
            "feed-forward"
        }
        Router => "routers",
        Norm1 | Norm2 | Norm3 | Norm4 | FinalNorm | EmbeddingNorm | HeadNorm | QueryNorm
        | KeyNorm | QueryDownNorm | KvDownNorm => "norms",
        SsmIn | SsmIn2 | SsmConv | SsmX | SsmDt | SsmA | SsmD | SsmNorm | SsmOut => {
            "recurrent mixers"
        }
        Query | Key | Value | Qkv | Output | QueryDown | QueryUp | KvDown | KvUp | CrossQuery
        | CrossKey | CrossValue | CrossOutput | Sinks | Indexer => "attention",
        _ => "other",
    }
}

fn gradients(training: &Training, strategy: &Strategy, total: Bytes) -> Term {
    let sharded = Shards::of(strategy.sharding.zero).gradients;
    let dtype = training.precision.gradients;
    Term::new(key(Category::Gradients), "gradients", total)
        .formula(if sharded {
            "trainable parameters reached by backward · bytes / ranks, and the full gradients of one layer"
        } else {
            "trainable parameters reached by backward · bytes"
        })
        .input("bytes", format!("{} ({dtype})", dtype.block_bytes()))
        .source("PyTorch's AccumulateGrad keeps the first gradient and adds later ones in place")
}

fn optimizer(training: &Training, live: &LiveSet, total: Bytes) -> Term {
    let what = match training.optimizer {
        Optimizer::Adam | Optimizer::AdamW => "two moments per trainable parameter",
        Optimizer::AdamW8bit | Optimizer::PagedAdamW8bit => {
            "two 8-bit moments with an F32 maximum per 256 (tensors under 4,096 elements stay in F32)"
        }
        Optimizer::AdamW4bit => "two 4-bit moments with a scale per 128",
        Optimizer::PagedAdamW => "two moments per trainable parameter in pageable memory",
        Optimizer::Momentum | Optimizer::Lion => "one moment per trainable parameter",
        Optimizer::Muon => "one moment per matrix, two per other parameter",
        Optimizer::Adafactor => "row and column sums per matrix",
        Optimizer::GaLore { .. } => "two moments in the projected space, and the projection",
        Optimizer::None | Optimizer::Sgd => "none",
    };
    let temporary: Bytes = live
        .by_origin
        .iter()
        .filter(|o| o.category == Category::OptimizerStates && &*o.what == "temporaries")
        .map(|o| o.bytes)
        .sum();
    let master = training.precision.master.map_or("", |_| ", and a master copy of the weights");
    let states = Term::new("optimizer_states.states", "states", total - temporary)
        .formula(format!("{what}{master}"))
        .source("torch.optim, bitsandbytes and torchao; ZeRO paper for master weights");
    let mut children = vec![states];
    if !temporary.is_zero() {
        let form = match training.optimizer_form {
            OptimizerForm::Foreach => "foreach: the square roots of all second moments at once",
            OptimizerForm::ForeachTwice => {
                "foreach: the square roots of all second moments at once, and a copy with epsilon added"
            }
            _ => "temporaries of the largest parameter",
        };
        children.push(
            Term::new("optimizer_states.temporaries", "temporaries of the step", temporary)
                .formula(form)
                .source("torch/optim/adam.py"),
        );
    }
    Term { children, ..Term::new(key(Category::OptimizerStates), "optimizer states", total) }
        .formula(what)
}

/// A category by operator: all layers of one operator are one child.
fn live(worst: &RankRun, category: Category, total: Bytes) -> Term {
    let mut rows: Vec<(&str, Bytes, u64)> = Vec::new();
    for origin in worst.footprint.live.by_origin.iter().filter(|o| o.category == category) {
        match rows.iter_mut().find(|(what, ..)| *what == &*origin.what) {
            Some((_, bytes, tensors)) => {
                *bytes += origin.bytes;
                *tensors += u64::from(origin.tensors);
            }
            None => rows.push((&origin.what, origin.bytes, u64::from(origin.tensors))),
        }
    }
    rows.sort_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes));
    let mut children: Vec<Term> = rows
        .into_iter()
        .map(|(what, bytes, tensors)| {
            let mut term =
                Term::new(format!("{}.{}", key(category), what.replace(' ', "_")), what, bytes)
                    .input("tensors", tensors)
                    .source(AUTOGRAD);
            if let Some(shape) = shape_of(&worst.graph, what) {
                term = term.formula(format!("tensors · {shape}"));
            }
            term
        })
        .collect();
    let sum: Bytes = children.iter().map(|t| t.bytes).sum();
    if total > sum && !children.is_empty() {
        children.push(Term::new(format!("{}.rest", key(category)), "smaller parts", total - sum));
    }
    let mut term =
        Term { children, ..Term::new(key(category), category.label(), total) }.source(AUTOGRAD);
    for (symbol, name) in
        [(Symbol::Batch, "b (micro-batch)"), (Symbol::Sequence, "s (tokens per sequence and rank)")]
    {
        term = term.input(name, worst.bindings.get(symbol));
    }
    term
}

/// The size of what an operator label allocates, in symbols: its output, or what it keeps besides.
fn shape_of(graph: &Graph, label: &str) -> Option<String> {
    let node_of = |block: &Block| -> Option<String> {
        let node = block.nodes.iter().find(|n| n.label == label)?;
        let output = &block.values[node.outputs.first()?.0 as usize];
        let rule = rule(block, node);
        if rule.output_aliases_input || output.shape.elements(&Bindings::tokens(1, 1)) <= 1 {
            let kept = rule.saved.first()?;
            return Some(format!("{} {}", kept.shape, kept.dtype));
        }
        Some(format!("{} {}", output.shape, output.dtype))
    };
    graph.blocks.iter().find_map(node_of)
}

/// The module that the peak falls into: the last one that allocated before it.
pub(super) fn peak_module(worst: &RankRun) -> Option<String> {
    let event = worst.footprint.peak_event? as usize;
    let events = worst.timeline.events();
    events[..=event.min(events.len().checked_sub(1)?)].iter().rev().take(64).find_map(|e| {
        let plimsoll_timeline::Event::Alloc(id) = e else { return None };
        let allocation = worst.timeline.allocations()[id.0 as usize];
        let module = &worst.timeline.origin(allocation.origin).module;
        (!module.is_empty()).then(|| module.to_string())
    })
}
