//! From the footprint to the estimate: peaks, the tree of terms, the interval, assumptions and diagnostics.

use plimsoll_model::arch::Mixer;
use plimsoll_model::{Architecture, Graph};
use plimsoll_timeline::{Category, Event, Footprint, OriginShare, Timeline};
use plimsoll_units::{Bytes, DType};

use super::cache::LayerCache;
use super::pass::Pass;
use super::plan::Plan;
use super::run::CACHES;
use super::weights::WeightRow;
use crate::Device;
use crate::request::{AttentionKernel, Inference};
use crate::term::{Assumption, Diagnostic, Estimate, Figure, Interval, Peak, Severity, Term};

/// What a report is made of.
pub(super) struct Facts<'a> {
    pub model: &'a Architecture,
    pub request: &'a Inference,
    pub device: &'a Device,
    pub plan: &'a Plan,
    pub graph: &'a Graph,
    /// Passes over the prompt and, where there is one, over the last token.
    pub passes: (&'a [Pass], Option<&'a [Pass]>),
    pub weights: &'a [WeightRow],
    pub caches: &'a [LayerCache],
    /// Positions of the generating stack's first pass.
    pub prompt: u64,
}

/// Spreads in thousandths. Counts and types give weights and caches; what is left is the loader and rounding. The
/// order and life of activations follows the library's code, which changes with its releases. What the allocator
/// keeps beyond live tensors depends on sizes that were replayed, but on no other use of the process.
const EXACT: u64 = 10;
const ACTIVATIONS: u64 = 100;
const ALLOCATOR: u64 = 500;

pub(super) fn estimate(facts: &Facts<'_>, footprint: Footprint, timeline: Timeline) -> Estimate {
    let f = &footprint;
    let context = facts.device.context.typical;
    let peak = Peak {
        allocated: f.allocated_peak,
        reserved: f.reserved_peak,
        device: f.reserved_peak + context,
    };
    let mut categories = f.live.by_category.clone();
    if !context.is_zero() {
        categories.push((Category::Context, context));
    }
    let phase = f.peak_phase.map(|p| p.kind.label().to_owned());
    Estimate {
        peak,
        interval: interval(facts, f, peak),
        categories,
        terms: terms(facts, f),
        assumptions: assumptions(facts),
        diagnostics: diagnostics(facts),
        peak_phase: phase,
        peak_module: peak_module(f, &timeline),
        host: Bytes::ZERO,
        figures: figures(facts),
        timeline: Some(timeline),
    }
}

/// The module that ran last when the peak came: caches belong to none, what was allocated before them does.
fn peak_module(f: &Footprint, timeline: &Timeline) -> Option<String> {
    let before = timeline.events().get(..=f.peak_event? as usize)?;
    before.iter().rev().find_map(|event| {
        let Event::Alloc(id) = event else { return None };
        let origin = timeline.allocations().get(id.0 as usize)?.origin;
        let module = &timeline.origin(origin).module;
        (!module.is_empty()).then(|| module.to_string())
    })
}

/// The parts err independently of each other, so their spreads add up as squares.
fn interval(facts: &Facts<'_>, f: &Footprint, peak: Peak) -> Interval {
    let context = &facts.device.context;
    let slack = f.reserved_peak.saturating_sub(f.allocated_peak);
    let spread = |category: Category, bytes: Bytes| match category {
        Category::Parameters | Category::KvCache | Category::Inputs => bytes.scale(EXACT, 1000),
        _ => bytes.scale(ACTIVATIONS, 1000),
    };
    let mut common: Vec<Bytes> =
        f.live.by_category.iter().map(|(category, bytes)| spread(*category, *bytes)).collect();
    common.push(slack.scale(ALLOCATOR, 1000));
    let with = |context: Bytes| {
        let squares = common.iter().chain([&context]).fold(0u128, |sum, b| {
            let wide = u128::from(b.get());
            sum.saturating_add(wide.saturating_mul(wide))
        });
        Bytes::new(u64::try_from(squares.isqrt()).unwrap_or(u64::MAX))
    };
    Interval {
        low: peak.device.saturating_sub(with(context.typical.saturating_sub(context.low))),
        high: peak.device + with(context.high.saturating_sub(context.typical)),
    }
}

fn terms(facts: &Facts<'_>, f: &Footprint) -> Vec<Term> {
    let mut terms: Vec<Term> = f
        .live
        .by_category
        .iter()
        .map(|(category, bytes)| {
            let shares: Vec<&OriginShare> =
                f.live.by_origin.iter().filter(|o| o.category == *category).collect();
            let key = category.label().replace(' ', "_").to_lowercase();
            category_term(facts, *category, key, *bytes, &shares)
        })
        .collect();
    let slack = f.reserved_peak.saturating_sub(f.allocated_peak);
    terms.push(
        Term::new("allocator", "reserved but free", slack)
            .formula("reserved - allocated")
            .source("replay on PyTorch's caching allocator")
            .spread(500, 500),
    );
    let context = &facts.device.context;
    let mut term = Term::new("context", "context and libraries", context.typical)
        .source(context.source.clone());
    let permille = |b: Bytes| {
        let of = context.typical.get().max(1);
        u32::try_from(u128::from(b.get()) * 1000 / u128::from(of)).unwrap_or(u32::MAX)
    };
    if !context.typical.is_zero() {
        term = term.spread(
            permille(context.typical.saturating_sub(context.low)),
            permille(context.high.saturating_sub(context.typical)),
        );
    }
    terms.push(term);
    terms
}

fn category_term(
    facts: &Facts<'_>,
    category: Category,
    key: String,
    bytes: Bytes,
    shares: &[&OriginShare],
) -> Term {
    let mut children: Vec<Term> = shares
        .iter()
        .map(|o| {
            let slug: String = o
                .what
                .chars()
                .map(|c| if c.is_alphanumeric() || c == '.' { c } else { '_' })
                .collect();
            let label = match o.module.is_empty() {
                true => o.what.to_string(),
                false => format!("{} in {}", o.what, o.module),
            };
            let term = Term::new(format!("{key}.{slug}"), label, o.bytes);
            match category {
                Category::Parameters => weight_term(facts, term, &o.what),
                Category::KvCache => cache_term(facts, term, &o.what),
                _ => shape_term(facts, term, o),
            }
        })
        .collect();
    let listed: Bytes = children.iter().map(|t| t.bytes).sum();
    let rest = bytes.saturating_sub(listed);
    if !rest.is_zero() {
        children.push(Term::new(format!("{key}.other"), "smaller tensors", rest));
    }
    let term = Term { bytes, children, ..Term::new(key, category.label(), bytes) };
    match category {
        Category::Parameters => term
            .formula("sum of elements x bytes of the stored type, in blocks of 512 B")
            .source("tensor list of the model")
            .spread(10, 10),
        Category::KvCache => term
            .formula(
                "layers x batch x tokens x bytes per token, and one tensor twice while it grows",
            )
            .source("Transformers DynamicCache: torch.cat per layer and step")
            .spread(10, 10),
        Category::Inputs => term.formula("2 x 8 B x batch x tokens").spread(10, 10),
        Category::Workspace => term.source("pytorch/pytorch#83461, #120925").spread(100, 100),
        _ => term.source("operator table, PyTorch derivatives.yaml").spread(100, 100),
    }
}

fn weight_term(facts: &Facts<'_>, term: Term, group: &str) -> Term {
    let rows = facts.weights.iter().filter(|r| r.group == group);
    let mut by_type: Vec<(DType, u64)> = Vec::new();
    for row in rows {
        match by_type.iter_mut().find(|(d, _)| *d == row.dtype) {
            Some((_, n)) => *n = n.saturating_add(row.elements),
            None => by_type.push((row.dtype, row.elements)),
        }
    }
    let term = term.formula("elements x bytes of the type");
    let term = by_type.iter().fold(term, |t, (dtype, n)| t.input(format!("{dtype} elements"), n));
    if facts.request.tensor > 1 { term.input("ranks", facts.request.tensor) } else { term }
}

fn cache_term(facts: &Facts<'_>, term: Term, kind: &str) -> Term {
    let request = facts.request;
    let per_token = |windowed: bool| {
        let layers = facts.caches.iter().filter(|c| c.window.is_some() == windowed && c.key > 0);
        layers.fold((0u64, 0u64), |(n, sum), c| {
            (n + 1, sum.saturating_add(c.key).saturating_add(c.value))
        })
    };
    let term = term.input("b", request.batch).input("cache type", facts.plan.cache);
    let tokens = facts.prompt.saturating_add(request.generate.saturating_sub(1));
    match CACHES.iter().position(|c| *c == kind) {
        Some(index @ (0 | 1)) => {
            let (layers, elements) = per_token(index == 1);
            let bytes = facts.plan.cache.bytes(elements);
            let term =
                term.input("layers", layers).input("bytes per token, all layers", bytes.exact());
            if index == 0 {
                term.formula("b x t x bytes per token").input("t at the end", tokens)
            } else {
                let window = facts.caches.iter().filter_map(|c| c.window).max().unwrap_or(0);
                term.formula("b x min(t, window) x bytes per token; t right after the prompt")
                    .input("window", window)
                    .input("t at the end", tokens)
            }
        }
        Some(2) => term
            .formula("b x encoder positions x 2 a_kv d B per layer")
            .input("encoder positions", facts.plan.memory(request)),
        _ => term.formula("b x (convolution + recurrent state) per layer"),
    }
}

/// The symbolic sizes of an activation, from the passes of its stage.
fn shape_term(facts: &Facts<'_>, term: Term, origin: &OriginShare) -> Term {
    let stage = facts.graph.stages.iter().find(|s| *s.name == *origin.module);
    let shape = stage.and_then(|s| {
        let block = s.block.0 as usize;
        let passes = [facts.passes.1, Some(facts.passes.0)];
        passes.into_iter().flatten().find_map(|p| {
            let labels = &p.get(block)?.labels;
            labels.iter().find(|(l, _)| *l == &*origin.what).map(|(_, shape)| shape.clone())
        })
    });
    match shape {
        Some(shape) => term.formula(shape).input("b", facts.request.batch).input("s", facts.prompt),
        None => term,
    }
}

fn figures(facts: &Facts<'_>) -> Vec<(String, Figure)> {
    let dtype = facts.plan.cache;
    let per_token = facts.caches.iter().fold(0u64, |sum, c| {
        sum.saturating_add(dtype.bytes(c.key).get()).saturating_add(dtype.bytes(c.value).get())
    });
    let weights: Bytes = facts.weights.iter().map(|w| w.bytes).sum();
    let mut figures = vec![("weights".to_owned(), Figure::Bytes(weights))];
    if !facts.caches.is_empty() {
        let tokens = facts.prompt.saturating_add(facts.request.generate.saturating_sub(1));
        figures.push(("kv_bytes_per_token".to_owned(), Figure::Bytes(Bytes::new(per_token))));
        figures.push(("cached_tokens_per_sequence".to_owned(), Figure::Count(tokens)));
    }
    figures
}

fn assumptions(facts: &Facts<'_>) -> Vec<Assumption> {
    let (request, plan) = (facts.request, facts.plan);
    let assume = |about: &str, value: String, reason: &str, option: &str| Assumption {
        about: about.to_owned(),
        value,
        reason: reason.to_owned(),
        option: option.to_owned(),
    };
    let allocator = plimsoll_timeline::AllocatorChoice::default();
    let mut list = vec![crate::framework::assumption(&allocator)];
    if request.dtype.is_none() {
        list.push(assume(
            "type",
            plan.compute.to_string(),
            "the configuration's own (`dtype=\"auto\"`)",
            "--dtype",
        ));
    }
    if !facts.caches.is_empty() {
        list.push(assume(
            "cache",
            format!("DynamicCache in {}", plan.cache),
            "the default of `generate`; a StaticCache holds prompt + new tokens from the start and grows no more",
            "--kv-dtype",
        ));
        list.push(assume(
            "logits",
            if request.all_logits {
                "of every prompt position, and an F32 copy"
            } else {
                "of the last position"
            }
            .to_owned(),
            "Transformers before 4.46 and scoring compute all of them, `generate` since then one",
            "--all-logits",
        ));
        list.push(assume(
            "padding",
            "none".to_owned(),
            "prompts of equal length need no mask, so K and V are not copied per query head",
            "",
        ));
    }
    if facts.model.layers().any(|l| matches!(l.mixer, Mixer::Latent(_))) {
        list.push(assume(
            "latent cache",
            "expanded to all heads".to_owned(),
            "Transformers caches K and V, not the latent that serving engines keep",
            "",
        ));
    }
    if plan.math && request.attention == AttentionKernel::Sdpa {
        list.push(assume(
            "attention",
            "scores in memory".to_owned(),
            "no fused SDPA kernel takes grouped keys in this type on this device",
            "--attention",
        ));
    }
    let towers = facts.model.stacks.iter().filter(|s| s.patch.is_some());
    for stack in towers {
        let tokens = stack.patch.as_ref().map_or(0, |p| p.tokens);
        list.push(assume(
            "inputs of the tower",
            format!("one of {tokens} positions per sequence"),
            "the default size of the model; its tokens count as part of the prompt",
            "",
        ));
    }
    list
}

fn diagnostics(facts: &Facts<'_>) -> Vec<Diagnostic> {
    let (model, request) = (facts.model, facts.request);
    let mut list = Vec::new();
    let tokens = facts.prompt.saturating_add(request.generate);
    if let Some(limit) = model.max_positions
        && tokens > limit
        && !facts.caches.is_empty()
    {
        list.push(Diagnostic {
            severity: Severity::Warning,
            code: "sequence-beyond-limit".to_owned(),
            message: format!(
                "{} + {} tokens are beyond the {limit} positions that the model was made for",
                facts.prompt, request.generate
            ),
            cure: format!("keep prompt and new tokens within {limit}"),
        });
    }
    if facts.caches.is_empty() && request.generate > 0 {
        list.push(Diagnostic {
            severity: Severity::Note,
            code: "does-not-generate".to_owned(),
            message: format!("{} does not generate; one forward pass is estimated", model.family),
            cure: String::new(),
        });
    }
    if model.quantization.is_some() && facts.plan.online.is_some() {
        list.push(Diagnostic {
            severity: Severity::Note,
            code: "already-quantized".to_owned(),
            message: "the published weights are quantized already; they are kept as they are"
                .to_owned(),
            cure: String::new(),
        });
    }
    list
}
