//! GPU memory of SGLang. The engine sets a static fraction of the device aside for weights and pools; what is left
//! serves prefill activations and CUDA graphs. The pool is measured against what was free before the weights came:
//!
//! `pool = free after weights - free before weights · (1 - mem_fraction_static)`.

mod facts;
mod pool;

use plimsoll_model::arch::StackRole;
use plimsoll_model::{Architecture, Inventory};
use plimsoll_timeline::Category;
use plimsoll_units::{Bytes, DType};

pub use pool::{Costs, Pools};

use crate::kv::{CacheLayout, LayerCache, bytes_per_token, layer_caches};
use crate::request::{Sglang, Version};
use crate::tensor_parallel::{RankWeights, Ranks, StoredBytes, stage_range, weights_of_stage};
use crate::vllm::{Storage, adapters, check_heads, main_layers, rotary_table, version_text};
use crate::{
    Assumption, Device, Diagnostic, Estimate, EstimateError, Figure, Interval, Peak, Severity, Term,
};

use facts::facts;

/// The request with every default filled in.
struct Settings {
    version: Version,
    fraction_permille: u64,
    fraction_source: &'static str,
    chunk: u64,
    graph_batch: u64,
    length: u64,
    dtype: DType,
    cache: DType,
    assumptions: Vec<Assumption>,
}

/// What SGLang takes of `device` for `model`, and what it can serve there.
///
/// # Errors
/// Requests that the engine itself refuses: ranks that do not divide the heads, fractions out of range.
pub fn estimate(
    model: &Architecture,
    inventory: &Inventory,
    stored: Option<&StoredBytes>,
    request: &Sglang,
    device: &Device,
) -> Result<Estimate, EstimateError> {
    let settings = resolve(model, request, device)?;
    let storage =
        Storage::new(model, stored, settings.dtype, request.weights, request.tensor, device);
    let rank = rank(&storage, inventory, request, &settings, device);
    Ok(report(model, request, &settings, device, &rank))
}

/// Tokens that token pools of `bytes` on every rank hold, where their size is known.
///
/// # Errors
/// As [`estimate`].
pub fn tokens_in_pool(
    model: &Architecture,
    request: &Sglang,
    device: &Device,
    bytes: Bytes,
) -> Result<u64, EstimateError> {
    let settings = resolve(model, request, device)?;
    let (costs, _) = stage_costs(model, request, &settings);
    Ok(Costs { state: 0, ..costs }.divide(bytes.get()).tokens)
}

fn resolve(
    model: &Architecture,
    request: &Sglang,
    device: &Device,
) -> Result<Settings, EstimateError> {
    if main_layers(model) == 0 {
        return Err(EstimateError::UnsupportedModel {
            engine: "SGLang",
            family: model.family.clone(),
            reason: "it has no decoder layers that generate text".into(),
            cure: "estimate it as plain inference".into(),
        });
    }
    for (field, value) in [("tp_size", request.tensor), ("pp_size", request.pipeline)] {
        if value == 0 || value > device.count.max(1) {
            return Err(EstimateError::Invalid {
                field,
                value: value.to_string(),
                accepted: format!("there are {} x {}", device.count.max(1), device.name),
                cure: "use 1 up to the number of devices".into(),
            });
        }
    }
    check_heads(model, request.tensor, "tp_size")?;
    let mut assumptions = Vec::new();
    let mut assume = |about: &str, value: String, reason: &str, option: &str| {
        assumptions.push(Assumption {
            about: about.into(),
            value,
            reason: reason.into(),
            option: option.into(),
        });
    };
    let version = request.version.unwrap_or(facts().newest.0);
    if request.version.is_none() {
        let text = version_text(version);
        assume(
            "SGLang release",
            text,
            "no release was named; this is the newest known",
            "--engine-version",
        );
    }
    let total_mib = device.usable.get() >> 20;
    let tier = facts().tiers.iter().find(|t| total_mib < t.below_mib);
    let (tier_chunk, tier_batch) = tier
        .map_or((4096, 160), |t| (t.chunk, if request.tensor < 4 { t.batch } else { t.batch_tp4 }));
    let chunk = request.chunked_prefill.unwrap_or(tier_chunk);
    let graph_batch = request.graph_batch.unwrap_or(tier_batch);
    if request.chunked_prefill.is_none() {
        assume(
            "chunked_prefill_size",
            chunk.to_string(),
            "default by device memory",
            "--chunked-prefill-size",
        );
    }
    if request.graph_batch.is_none() {
        assume(
            "cuda_graph_max_bs",
            graph_batch.to_string(),
            "default by device memory",
            "--cuda-graph-max-bs",
        );
    }
    let (fraction_permille, fraction_source) = match request.static_permille {
        Some(permille) if permille == 0 || permille >= 1000 => {
            return Err(EstimateError::Invalid {
                field: "mem_fraction_static",
                value: format!("{}.{:03}", permille / 1000, permille % 1000),
                accepted: "it must be between 0 and 1".into(),
                cure: "leave it out for the engine's own rule".into(),
            });
        }
        Some(permille) => (permille, "given"),
        None => default_fraction(model, request, version, total_mib, chunk, graph_batch),
    };
    if request.static_permille.is_none() {
        assume(
            "mem_fraction_static",
            format!("0.{fraction_permille:03}"),
            fraction_source,
            "--mem-fraction-static",
        );
    }
    let dtype = request.dtype.unwrap_or(match model.dtype {
        DType::F16 => DType::F16,
        _ => DType::Bf16,
    });
    let length = request.context.or(model.max_positions).unwrap_or(2048).max(1);
    let cache = request.cache.unwrap_or(dtype);
    Ok(Settings {
        version,
        fraction_permille,
        fraction_source,
        chunk,
        graph_batch,
        length,
        dtype,
        cache,
        assumptions,
    })
}

/// The engine's own fraction: fixed by ranks in old releases, by what activations and graphs need since.
fn default_fraction(
    model: &Architecture,
    request: &Sglang,
    version: Version,
    total_mib: u64,
    chunk: u64,
    graph_batch: u64,
) -> (u64, &'static str) {
    let fixed = &facts().fixed_fraction;
    if version < fixed.before.0 {
        let found = fixed.by_tensor.iter().find(|(ranks, _)| request.tensor >= *ranks);
        return (found.map_or(880, |(_, permille)| *permille), &fixed.source);
    }
    let rule = &facts().device_rule;
    let mut reserved = rule
        .base_mib
        .saturating_add(chunk.saturating_mul(rule.per_chunk_token_mib_permille) / 1000)
        .saturating_add(graph_batch.saturating_mul(rule.per_graph_batch_mib))
        .saturating_add(
            request
                .tensor
                .saturating_mul(request.pipeline)
                .saturating_mul(rule.per_eight_ranks_mib)
                / 8,
        );
    if request.dp_attention {
        let batch =
            graph_batch.saturating_mul(request.tensor).saturating_mul(rule.per_dp_graph_batch_mib);
        reserved = reserved.saturating_add(batch);
    }
    if request.speculative_tokens > 0 {
        reserved = reserved.saturating_add(rule.speculative_mib);
    }
    if total_mib > rule.large_device_mib {
        reserved = reserved.max(rule.large_reserve_mib);
    }
    let permille = total_mib.saturating_sub(reserved).saturating_mul(1000) / total_mib.max(1);
    let vision = model.stacks.iter().any(|s| s.role == StackRole::Vision);
    let permille = if vision { permille * rule.vision_permille / 1000 } else { permille };
    (permille.clamp(1, 999), &rule.source)
}

struct Rank {
    weights: RankWeights,
    rotary: Bytes,
    adapters: Bytes,
    growth: Bytes,
    draft: Bytes,
    before: Bytes,
    pool_bytes: i128,
    costs: Costs,
    pools: Pools,
    per_token: (u64, u64),
    activations: Bytes,
    graphs: Bytes,
}

impl Rank {
    fn loaded(&self) -> Bytes {
        self.weights.total + self.rotary + self.adapters
    }
}

fn rank(
    storage: &Storage,
    inventory: &Inventory,
    request: &Sglang,
    settings: &Settings,
    device: &Device,
) -> Rank {
    let model = storage.model;
    // With data-parallel attention the mixers are whole on every rank; experts stay split.
    let ranks = Ranks {
        tensor: request.tensor,
        pipeline: request.pipeline,
        expert: false,
        vocab_multiple: 64,
    };
    let weights = (0..request.pipeline)
        .map(|stage| {
            weights_of_stage(model, inventory, &ranks, stage, false, |p, n| storage.bytes(p, n))
        })
        .max_by_key(|w| w.total)
        .unwrap_or_default();
    let rotary = rotary_table(model, settings.dtype);
    let adapters = adapters(model, inventory, &request.lora, request.tensor, settings.dtype);
    let growth = Bytes::mib(facts().load_growth.mib);
    // A draft model is loaded before the pool is measured; its own pool comes out of what is left.
    let loaded = weights.total + rotary + adapters + growth + request.draft_weights;
    let before = device.free.unwrap_or(device.usable.saturating_sub(device.context.typical));
    let rest = before.scale(1000 - settings.fraction_permille, 1000);
    let pool_bytes = i128::from(before.get()) - i128::from(loaded.get()) - i128::from(rest.get());
    let (costs, per_token) = stage_costs(model, request, settings);
    let pools = costs.divide(u64::try_from(pool_bytes.max(0)).unwrap_or(u64::MAX));
    let rule = &facts().device_rule;
    let chunk_mib = settings.chunk.saturating_mul(rule.per_chunk_token_mib_permille) / 1000;
    let graphs = &facts().graphs;
    let graphs = Bytes::mib(
        graphs.base_mib.saturating_add(settings.graph_batch.saturating_mul(graphs.per_batch_mib)),
    );
    Rank {
        weights,
        rotary,
        adapters,
        growth,
        draft: request.draft_weights,
        before,
        pool_bytes,
        costs,
        pools,
        per_token,
        activations: Bytes::mib(chunk_mib),
        graphs: if settings.graph_batch == 0 { Bytes::ZERO } else { graphs },
    }
}

/// What a token and a sequence cost on a rank of the fullest stage; the second value is the bytes per token in
/// layers that keep all positions, and in all layers.
fn stage_costs(model: &Architecture, request: &Sglang, settings: &Settings) -> (Costs, (u64, u64)) {
    let layout = CacheLayout {
        tensor: if request.dp_attention { 1 } else { request.tensor },
        dtype: settings.cache,
        packed_latent: true,
    };
    let layers = layer_caches(model, &layout);
    let stage = (0..request.pipeline)
        .map(|stage| stage_range(layers.len() as u64, request.pipeline, stage))
        .max_by_key(|(first, end)| end - first)
        .unwrap_or((0, layers.len() as u64));
    let held = layers.get(stage.0 as usize..stage.1 as usize).unwrap_or(&layers);
    let per_token = bytes_per_token(held);
    let caches: Vec<LayerCache> = held.iter().flatten().copied().collect();
    let costs = Costs::new(&caches, settings.dtype.bytes(1).get(), request.speculative_tokens);
    (costs, per_token)
}

fn report(
    model: &Architecture,
    request: &Sglang,
    settings: &Settings,
    device: &Device,
    rank: &Rank,
) -> Estimate {
    let kv = Bytes::new(rank.pools.token_bytes);
    let states = Bytes::new(rank.pools.state_bytes);
    let mut terms = vec![
        Term::new("weights", "weights of one rank", rank.loaded())
            .formula("sum of stored bytes; matrices /tp, norms and routers whole")
            .input("tp", request.tensor)
            .source("parameter inventory")
            .spread(10, 10),
        Term::new("load_growth", "library memory that grows while loading", rank.growth)
            .source(&*facts().load_growth.source)
            .spread(500, 500),
        Term::new("draft", "draft model", rank.draft),
        Term::new("kv", "token pools", kv)
            .formula("(tokens + 1)·bytes per token")
            .input("tokens", rank.pools.tokens)
            .input("full", rank.costs.full)
            .input("sliding", rank.costs.window),
        Term::new("states", "recurrent states", states)
            .formula("(states + 1)·bytes per sequence")
            .input("states", rank.pools.states)
            .input("bytes per sequence", rank.costs.state),
        Term::new("activations", "prefill of one chunk", rank.activations)
            .formula("1.5 MiB·chunked_prefill_size")
            .input("chunked_prefill_size", settings.chunk)
            .source(&*facts().device_rule.source)
            .spread(800, 300),
        Term::new("cuda_graphs", "CUDA graphs", rank.graphs)
            .source(&*facts().graphs.source)
            .spread(700, 1500),
        Term::new("context", "context at start-up", device.context.typical)
            .source(device.context.source.clone()),
    ];
    terms.retain(|t| !t.bytes.is_zero());
    let peak: Bytes = terms.iter().map(|t| t.bytes).sum();
    let (mut low, mut high) = (Bytes::ZERO, Bytes::ZERO);
    for term in &terms {
        let (below, above) = term.spread_permille.unwrap_or((0, 0));
        low += term.bytes.scale(u64::from(below), 1000);
        high += term.bytes.scale(u64::from(above), 1000);
    }
    let allocated = rank.loaded() + rank.draft + kv + states + rank.activations;
    let categories = vec![
        (Category::Parameters, rank.loaded() + rank.draft),
        (Category::KvCache, kv + states),
        (Category::Activations, rank.activations),
        (Category::EngineBuffers, rank.graphs),
        (Category::Context, device.context.typical + rank.growth),
    ];
    Estimate {
        peak: Peak { allocated, reserved: allocated + rank.graphs, device: peak },
        interval: Interval { low: peak.saturating_sub(low), high: peak + high },
        categories: categories.into_iter().filter(|(_, b)| !b.is_zero()).collect(),
        terms,
        assumptions: settings.assumptions.clone(),
        diagnostics: judge(model, settings, rank),
        peak_phase: Some("prefill".into()),
        peak_module: None,
        host: Bytes::ZERO,
        figures: figures(settings, rank),
        timeline: None,
    }
}

fn figures(settings: &Settings, rank: &Rank) -> Vec<(String, Figure)> {
    let pool = Bytes::new(u64::try_from(rank.pool_bytes.max(0)).unwrap_or(u64::MAX));
    let mut figures = vec![
        ("version".to_owned(), Figure::Text(version_text(settings.version))),
        ("mem_fraction_static_permille".to_owned(), Figure::Count(settings.fraction_permille)),
        ("mem_fraction_source".to_owned(), Figure::Text(settings.fraction_source.to_owned())),
        ("context_length".to_owned(), Figure::Count(settings.length)),
        ("free_before_load".to_owned(), Figure::Bytes(rank.before)),
        ("weights".to_owned(), Figure::Bytes(rank.loaded() + rank.growth)),
        ("kv_pool".to_owned(), Figure::Bytes(pool)),
        ("kv_bytes_per_token".to_owned(), Figure::Bytes(Bytes::new(rank.per_token.1))),
        ("kv_tokens".to_owned(), Figure::Count(rank.pools.tokens)),
    ];
    if rank.pools.window_tokens > 0 {
        figures.push(("window_tokens".to_owned(), Figure::Count(rank.pools.window_tokens)));
    }
    if rank.pools.states > 0 {
        figures.push(("states".to_owned(), Figure::Count(rank.pools.states)));
    }
    let permille = u128::from(rank.pools.tokens) * 1000 / u128::from(settings.length.max(1));
    let concurrency = u64::try_from(permille).unwrap_or(u64::MAX);
    figures.push(("max_concurrency".to_owned(), Figure::Ratio(concurrency as f64 / 1000.0)));
    figures
}

fn judge(model: &Architecture, settings: &Settings, rank: &Rank) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if rank.pool_bytes <= 0 || rank.pools.tokens == 0 {
        let missing = Bytes::new(u64::try_from(-rank.pool_bytes.min(0)).unwrap_or(u64::MAX));
        let least = rank.loaded().get().saturating_mul(1000) / rank.before.get().max(1) + 1;
        found.push(Diagnostic {
            severity: Severity::Warning,
            code: "kv-below-one-request".into(),
            message: format!(
                "not enough memory: weights of {} exceed the static share 0.{:03} of {} by {missing}",
                rank.loaded(),
                settings.fraction_permille,
                rank.before
            ),
            cure: if least < 950 {
                format!("raise --mem-fraction-static above 0.{least:03}, or use more ranks")
            } else {
                "use more ranks or quantized weights".into()
            },
        });
    } else if rank.pools.tokens < settings.length {
        found.push(Diagnostic {
            severity: Severity::Warning,
            code: "kv-below-one-request".into(),
            message: format!(
                "the pool holds {} tokens, fewer than the context length of {}",
                rank.pools.tokens, settings.length
            ),
            cure: format!(
                "lower --context-length to {}, or raise --mem-fraction-static",
                rank.pools.tokens
            ),
        });
    }
    let static_end = rank.before.scale(settings.fraction_permille, 1000);
    let left = rank.before.saturating_sub(static_end);
    if rank.activations + rank.graphs + rank.draft > left {
        found.push(Diagnostic {
            severity: Severity::Warning,
            code: "little-left-for-activations".into(),
            message: format!(
                "{left} stay outside the static share; prefill, CUDA graphs and a draft model may take {}",
                rank.activations + rank.graphs + rank.draft
            ),
            cure: "lower --mem-fraction-static or --chunked-prefill-size".into(),
        });
    }
    if let Some(limit) = model.max_positions.filter(|limit| settings.length > *limit) {
        found.push(Diagnostic {
            severity: Severity::Warning,
            code: "sequence-beyond-limit".into(),
            message: format!(
                "context length {} is beyond the model's {limit} positions",
                settings.length
            ),
            cure: "lower --context-length".into(),
        });
    }
    found
}

#[cfg(test)]
mod tests;
