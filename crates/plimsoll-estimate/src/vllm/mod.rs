//! GPU memory of vLLM, by release. The engine loads the weights, runs the largest step once to learn its peak, and
//! gives what remains of `gpu_memory_utilization x total` to the KV pool. So the question is rarely how much it
//! takes but how many tokens are left, and whether one request of `max_model_len` fits among them.
//!
//! `pool = utilization·total - (weights + profile peak + non-torch [+ graphs since 0.21])`.

mod facts;
mod fit;
mod pool;
mod profile;
mod settings;
mod weights;

use plimsoll_model::arch::StackRole;
use plimsoll_model::{Architecture, Inventory};
use plimsoll_timeline::Category;
use plimsoll_units::{Bytes, DType};

pub use facts::NEWEST;
pub(crate) use facts::Since;
pub use pool::{GroupKind, Pool};
pub(crate) use settings::{check_heads, main_layers, version_text};
pub(crate) use weights::{Storage, adapters, rotary_table};

use crate::kv::{CacheLayout, LayerCache, bytes_per_token, caches_of, layer_caches};
use crate::request::Vllm;
use crate::tensor_parallel::{RankWeights, StoredBytes, stage_range};
use crate::{Device, Diagnostic, Estimate, EstimateError, Figure, Interval, Peak, Severity, Term};

use facts::facts;
use pool::PoolInputs;
use profile::Profile;
use settings::Settings;

/// What vLLM takes of `device` for `model`, and what it can serve there.
///
/// `stored` are the tensors of the checkpoint by name, where its headers were read: they decide what quantized
/// modules weigh. Without them the quantization of the configuration does.
///
/// # Errors
/// Requests that the engine itself refuses: ranks that do not divide the heads, types that the device cannot
/// compute, values out of range.
pub fn estimate(
    model: &Architecture,
    inventory: &Inventory,
    stored: Option<&StoredBytes>,
    request: &Vllm,
    device: &Device,
) -> Result<Estimate, EstimateError> {
    let settings = settings::resolve(model, request, device)?;
    if main_layers(model) == 0 {
        return Err(EstimateError::UnsupportedModel {
            engine: "vLLM",
            family: model.family.clone(),
            reason: "it has no decoder layers that generate text".into(),
            cure: "estimate it as plain inference".into(),
        });
    }
    let storage =
        Storage::new(model, stored, settings.dtype, request.weights, settings.tensor, device);
    let ranks: Vec<Rank> = (0..settings.pipeline)
        .map(|stage| rank(&storage, inventory, request, &settings, device, stage))
        .collect();
    // The stage with the fewest blocks decides for all; without a cache, the fullest one.
    let scarcest = ranks.iter().min_by_key(|r| (r.blocks(), r.pool_bytes));
    let Some(rank) = scarcest else {
        return Err(EstimateError::UnsupportedModel {
            engine: "vLLM",
            family: model.family.clone(),
            reason: "no pipeline stage has layers".into(),
            cure: "lower the pipeline size".into(),
        });
    };
    let mut estimate = report(model, request, &settings, device, rank);
    if ranks.len() > 1 {
        for (stage, rank) in ranks.iter().enumerate() {
            let mut push = |key: &str, bytes| {
                estimate.figures.push((format!("stage.{stage}.{key}"), Figure::Bytes(bytes)));
            };
            push("weights", rank.loaded());
            push("profile_peak", rank.activations());
            push("kv_pool", rank.pool_size());
        }
    }
    Ok(estimate)
}

/// What a pool of `bytes` on every rank holds, where the pool is known: blocks, printed tokens, and requests of
/// the longest length at a time in thousandths. `None` where the model keeps nothing per token.
///
/// # Errors
/// As [`estimate`].
pub fn tokens_in_pool(
    model: &Architecture,
    request: &Vllm,
    device: &Device,
    bytes: Bytes,
) -> Result<Option<(u64, u64, u64)>, EstimateError> {
    let settings = settings::resolve(model, request, device)?;
    let pools = (0..settings.pipeline).filter_map(|stage| {
        let (caches, _) = stage_caches(model, request, &settings, stage);
        Pool::new(facts(), &caches, &pool_inputs(model, request, &settings))
    });
    let scarcest = pools.min_by_key(|pool| pool.blocks(bytes.get()));
    Ok(scarcest.map(|pool| {
        let blocks = pool.blocks(bytes.get());
        let length = settings.length;
        (blocks, pool.tokens(blocks, length), pool.concurrency_permille(blocks, length))
    }))
}

fn pool_inputs(model: &Architecture, request: &Vllm, settings: &Settings) -> PoolInputs {
    PoolInputs {
        version: settings.version,
        block: request.block_size,
        conv_bytes: settings.dtype.bytes(1).get(),
        ssm_bytes: state_type(model, settings.dtype).bytes(1).get(),
        speculative: request.speculative_tokens,
        batched: settings.batched,
    }
}

/// One rank of one stage.
struct Rank {
    weights: RankWeights,
    rotary: Bytes,
    adapters: Bytes,
    draft: Bytes,
    offloaded: Bytes,
    profile: Profile,
    offload_buffer: Bytes,
    non_torch: Bytes,
    non_torch_source: &'static str,
    graphs: Bytes,
    graphs_counted: bool,
    budget: Bytes,
    pool_bytes: i128,
    pool: Option<Pool>,
    kv_per_token: (u64, u64),
}

impl Rank {
    fn loaded(&self) -> Bytes {
        let all = self.weights.total + self.rotary + self.adapters + self.draft;
        all.saturating_sub(self.offloaded)
    }

    fn pool_size(&self) -> Bytes {
        Bytes::new(u64::try_from(self.pool_bytes.max(0)).unwrap_or(u64::MAX))
    }

    fn blocks(&self) -> u64 {
        self.pool.as_ref().map_or(u64::MAX, |p| p.blocks(self.pool_size().get()))
    }

    fn activations(&self) -> Bytes {
        self.profile.peak + self.offload_buffer
    }
}

fn rank(
    storage: &Storage,
    inventory: &Inventory,
    request: &Vllm,
    settings: &Settings,
    device: &Device,
    stage: u64,
) -> Rank {
    let model = storage.model;
    let drafts = request.speculative_tokens > 0 && request.draft_weights.is_zero();
    let weights =
        weights::stage_weights(storage, inventory, settings, request.expert, stage, drafts);
    let rotary = rotary_table(model, settings.dtype);
    let adapters = adapters(model, inventory, &request.lora, settings.tensor, settings.dtype)
        .share(settings.pipeline);
    let last = stage + 1 == settings.pipeline;
    let draft = if last { request.draft_weights } else { Bytes::ZERO };
    let offloaded = request.cpu_offload.min(weights.total);
    let offload_buffer = if offloaded.is_zero() {
        Bytes::ZERO
    } else {
        weights::largest_layer(storage, inventory, settings)
    };
    let profile = profile::profile(model, settings, device, request.expert, last);
    let (non_torch, non_torch_source) = non_torch(settings, device);
    let graphs = if request.enforce_eager { Bytes::ZERO } else { graphs(model, settings) };
    let graphs_counted = settings.version >= facts().graphs.counted_since.0;
    let budget = utilization_budget(device.usable, settings.utilization_permille);
    let (caches, kv_per_token) = stage_caches(model, request, settings, stage);
    let pool = Pool::new(facts(), &caches, &pool_inputs(model, request, settings));
    let mut rank = Rank {
        weights,
        rotary,
        adapters,
        draft,
        offloaded,
        profile,
        offload_buffer,
        non_torch,
        non_torch_source,
        graphs,
        graphs_counted,
        budget,
        pool_bytes: 0,
        pool,
        kv_per_token,
    };
    let mut used = rank.loaded() + rank.activations() + rank.non_torch;
    if graphs_counted {
        used += rank.graphs;
    }
    rank.pool_bytes = i128::from(budget.get()) - i128::from(used.get());
    rank
}

/// `total x utilization`, rounded up as the engine does.
fn utilization_budget(total: Bytes, permille: u64) -> Bytes {
    let exact = u128::from(total.get()) * u128::from(permille);
    Bytes::new(u64::try_from(exact.div_ceil(1000)).unwrap_or(u64::MAX))
}

/// Caches of the layers of a stage, drafting layers included on the last one.
fn stage_caches(
    model: &Architecture,
    request: &Vllm,
    settings: &Settings,
    stage: u64,
) -> (Vec<LayerCache>, (u64, u64)) {
    // FlashMLA's packed fp8 layout belongs to sparse attention.
    let sparse = model.layers().any(|l| {
        matches!(&l.mixer, plimsoll_model::arch::Mixer::Latent(latent) if latent.indexer.is_some())
    });
    let layout =
        CacheLayout { tensor: settings.tensor, dtype: settings.cache, packed_latent: sparse };
    let mut layers = layer_caches(model, &layout);
    let (first, end) = stage_range(layers.len() as u64, settings.pipeline, stage);
    let (first, end) = (first as usize, (end as usize).min(layers.len()));
    let template =
        layers.iter().flatten().find(|c| matches!(c, LayerCache::Tokens { .. })).copied();
    layers = layers.get(first..end).map(<[_]>::to_vec).unwrap_or_default();
    let last = stage + 1 == settings.pipeline;
    if request.speculative_tokens > 0 && request.draft_weights.is_zero() && last {
        let drafts = model.stacks.iter().filter(|s| s.role == StackRole::Draft);
        let draft_layers: Vec<_> =
            drafts.flat_map(|s| &s.layers).map(|l| caches_of(l, model, &layout)).collect();
        if draft_layers.is_empty() {
            // Multi-token prediction adds one layer of the model's own attention.
            layers.extend(template.map(|cache| vec![cache]));
        } else {
            layers.extend(draft_layers);
        }
    }
    let per_token = bytes_per_token(&layers);
    (layers.into_iter().flatten().collect(), per_token)
}

/// Type of recurrent states.
fn state_type(model: &Architecture, dtype: DType) -> DType {
    let wide = facts().cache.f32_state_families.contains(&model.family);
    if wide { DType::F32 } else { dtype }
}

/// Growth of device memory that the framework's allocator does not own.
fn non_torch(settings: &Settings, device: &Device) -> (Bytes, &'static str) {
    let capability = device.compute_capability.unwrap_or((9, 0));
    let entry = facts()
        .non_torch_mib
        .iter()
        .rfind(|n| n.since.0 <= settings.version && n.min_capability <= capability);
    let Some(entry) = entry else { return (Bytes::ZERO, "") };
    let mib = match (settings.tensor, settings.pipeline) {
        (1, 1) => entry.single,
        (1, _) => entry.pipeline,
        (2 | 3, _) => entry.tensor,
        _ => entry.tensor_wide,
    };
    (Bytes::mib(mib), &entry.source)
}

/// Memory pools of the CUDA graphs.
fn graphs(model: &Architecture, settings: &Settings) -> Bytes {
    let graphs = &facts().graphs;
    let layers = main_layers(model).div_ceil(settings.pipeline.max(1));
    // Sizes 1, 2, 4 and every multiple of 8 (of 16 above 256) up to twice the sequences.
    let largest = settings.sequences.saturating_mul(2).min(graphs.sizes_below);
    let sizes = 3 + largest.min(256) / 8 + largest.saturating_sub(256) / 16;
    let per_layer = layers.saturating_mul(graphs.per_layer_mib_permille) / 1000;
    let by_sizes = Bytes::mib(graphs.base_by_sizes_mib.saturating_add(per_layer));
    Bytes::mib(graphs.base_mib) + by_sizes.scale(sizes.min(graphs.sizes), graphs.sizes)
}

fn weight_terms(rank: &Rank, settings: &Settings) -> Term {
    let w = &rank.weights;
    let mut children: Vec<Term> = [
        ("weights.embeddings", "token table and head", w.embeddings),
        ("weights.mixers", "attention and other mixers", w.mixers),
        ("weights.feed_forward", "feed-forward", w.feed_forward),
        ("weights.experts", "routed experts", w.experts),
        ("weights.towers", "vision and audio towers", w.towers),
        ("weights.draft", "drafting layers", w.draft + rank.draft),
        ("weights.other", "norms, routers and the rest", w.other),
        ("weights.rotary", "rotary table", rank.rotary),
        ("weights.adapters", "adapter slots", rank.adapters),
    ]
    .into_iter()
    .filter(|(_, _, bytes)| !bytes.is_zero())
    .map(|(key, label, bytes)| Term::new(key, label, bytes))
    .collect();
    if !rank.offloaded.is_zero() {
        // Offloading moves layers from the first on; what is left is shown as one number.
        children = vec![Term::new("weights.device", "weights left on the device", rank.loaded())];
    }
    Term::sum("weights", "weights of one rank", children)
        .formula("sum of stored bytes; matrices /tp, norms and routers whole")
        .input("tp", settings.tensor)
        .input("pp", settings.pipeline)
        .input("dtype", settings.dtype)
        .source("parameter inventory")
        .spread(10, 10)
}

fn report(
    model: &Architecture,
    request: &Vllm,
    settings: &Settings,
    device: &Device,
    rank: &Rank,
) -> Estimate {
    let verdict = fit::judge(settings, device, rank);
    let logprobs = if request.prompt_logprobs {
        Bytes::new(settings.batched.saturating_mul(model.head.outputs).saturating_mul(6))
    } else {
        Bytes::ZERO
    };
    // Where one request does not fit, what it would need is shown, so that the total says by how much.
    let needed = rank.pool.as_ref().map_or(0, |p| p.request_bytes(settings.length));
    let cache = rank.pool_size().max(Bytes::new(needed));
    let mut terms = vec![
        weight_terms(rank, settings),
        Term::new("kv", "KV cache pool", cache)
            .formula("utilization·total - weights - profile - non-torch - graphs (since 0.21)")
            .input("utilization", format!("{}/1000", settings.utilization_permille))
            .input("budget", rank.budget)
            .source(&*facts().cache.source),
        profile_term(rank),
        Term::new("non_torch", "library memory outside the allocator", rank.non_torch)
            .source(rank.non_torch_source)
            .spread(500, 500),
        Term::new("cuda_graphs", "CUDA graphs", rank.graphs)
            .formula("base + sizes/51·(base + layers·per_layer)")
            .source(&*facts().graphs.source)
            .spread(500, 1000),
        Term::new("context", "context at start-up", device.context.typical)
            .source(device.context.source.clone()),
    ];
    if !logprobs.is_zero() {
        terms.push(
            Term::new("prompt_logprobs", "log-probabilities of the prompt", logprobs)
                .formula("tokens·vocab·6")
                .source("vllm#5907, vllm#52054: not in the profile"),
        );
    }
    terms.retain(|t| !t.bytes.is_zero());
    let device_peak: Bytes = terms.iter().map(|t| t.bytes).sum();
    let allocated = rank.loaded() + cache + rank.activations() + logprobs;
    let categories = vec![
        (Category::Parameters, rank.loaded()),
        (Category::KvCache, cache),
        (Category::Activations, rank.activations()),
        (Category::LogitsAndLoss, logprobs),
        (Category::EngineBuffers, rank.graphs),
        (Category::Context, rank.non_torch + device.context.typical),
    ];
    let mut diagnostics = verdict;
    diagnostics.extend(doubts(model, request, settings, rank, device));
    Estimate {
        peak: Peak { allocated, reserved: allocated + rank.graphs, device: device_peak },
        interval: interval(&terms, device_peak),
        categories: categories.into_iter().filter(|(_, b)| !b.is_zero()).collect(),
        terms,
        assumptions: settings.assumptions.clone(),
        diagnostics,
        peak_phase: Some(rank.profile.phase.into()),
        peak_module: None,
        host: rank.offloaded,
        figures: figures(settings, rank),
        timeline: None,
    }
}

fn profile_term(rank: &Rank) -> Term {
    let mut parts = rank.profile.parts.clone();
    if !rank.offload_buffer.is_zero() {
        parts.push(
            Term::new("profile.offload", "one layer fetched from the host", rank.offload_buffer)
                .source("records with cpu_offload_gb 1 and 2"),
        );
    }
    Term::sum("profile", "peak of the profiling run", parts)
        .formula("max(forward, sampling) + what both keep")
        .input("other phase", rank.profile.below)
        .spread(50, 50)
}

/// Relative spreads of the terms, added as if they erred together. The pool fills what the others leave, so it
/// takes up their error instead of adding to it.
fn interval(terms: &[Term], peak: Bytes) -> Interval {
    let outside = ["non_torch", "cuda_graphs", "context", "prompt_logprobs"];
    let (mut low, mut high) = (Bytes::ZERO, Bytes::ZERO);
    for term in terms.iter().filter(|t| outside.contains(&&*t.key)) {
        let (below, above) = term.spread_permille.unwrap_or((100, 100));
        low += term.bytes.scale(u64::from(below), 1000);
        high += term.bytes.scale(u64::from(above), 1000);
    }
    Interval { low: peak.saturating_sub(low), high: peak + high }
}

fn figures(settings: &Settings, rank: &Rank) -> Vec<(String, Figure)> {
    let mut figures: Vec<(String, Figure)> = Vec::new();
    let mut push = |key: &str, figure: Figure| figures.push((key.to_owned(), figure));
    push("version", Figure::Text(version_text(settings.version)));
    push("max_model_len", Figure::Count(settings.length));
    push("max_num_seqs", Figure::Count(settings.sequences));
    push("max_num_batched_tokens", Figure::Count(settings.batched));
    push("utilization_permille", Figure::Count(settings.utilization_permille));
    push("budget", Figure::Bytes(rank.budget));
    push("weights", Figure::Bytes(rank.loaded()));
    push("profile_peak", Figure::Bytes(rank.activations()));
    push("non_torch", Figure::Bytes(rank.non_torch));
    push("cuda_graphs", Figure::Bytes(rank.graphs));
    push("kv_pool", Figure::Bytes(rank.pool_size()));
    push("kv_bytes_per_token", Figure::Bytes(Bytes::new(rank.kv_per_token.1)));
    if let Some(pool) = &rank.pool {
        let blocks = rank.blocks();
        push("kv_blocks", Figure::Count(blocks));
        push("block_tokens", Figure::Count(pool.block_tokens()));
        push("kv_groups", Figure::Count(pool.groups.len() as u64));
        push("kv_tokens", Figure::Count(pool.tokens(blocks, settings.length)));
        let permille = pool.concurrency_permille(blocks, settings.length);
        push("max_concurrency", Figure::Ratio(permille as f64 / 1000.0));
        let longest = pool.longest(rank.pool_size().get(), settings.length);
        push("longest_request", Figure::Count(longest));
    }
    figures
}

fn doubts(
    model: &Architecture,
    request: &Vllm,
    settings: &Settings,
    rank: &Rank,
    device: &Device,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut push = |severity, code: &str, message: String, cure: &str| {
        found.push(Diagnostic { severity, code: code.into(), message, cure: cure.into() });
    };
    let outside = device.usable.saturating_sub(rank.budget).saturating_sub(device.context.typical);
    if !rank.graphs_counted && rank.graphs > outside {
        push(
            Severity::Warning,
            "graphs-not-counted",
            format!(
                "before 0.21 the pool does not leave room for CUDA graphs: they take about {} and {outside} stay outside the budget",
                rank.graphs
            ),
            "lower --gpu-memory-utilization, or use --enforce-eager",
        );
    }
    if let Some(limit) = model.max_positions.filter(|limit| settings.length > *limit) {
        push(
            Severity::Warning,
            "sequence-beyond-limit",
            format!("max_model_len {} is beyond the model's {limit} positions", settings.length),
            "lower --max-model-len, or set rope scaling",
        );
    }
    if request.speculative_tokens > 0 {
        let sequences = settings.sequences;
        let draft_logits = sequences
            .saturating_mul(request.speculative_tokens.saturating_add(2))
            .saturating_mul(model.head.outputs)
            .saturating_mul(4);
        push(
            Severity::Note,
            "speculative-sampler",
            format!(
                "at {sequences} sequences the rejection sampler takes up to {} that the profile does not cover",
                Bytes::new(draft_logits)
            ),
            "lower --max-num-seqs if the device runs full",
        );
    }
    if model.layers().any(|layer| layer.cross.is_some()) {
        push(
            Severity::Warning,
            "cross-attention-not-counted",
            "keys and values of the encoder's output take blocks of the pool that are not counted"
                .into(),
            "plan with a fifth fewer requests at a time",
        );
    }
    if device.unified {
        push(
            Severity::Warning,
            "unified-memory",
            "CPU and GPU share this memory: other processes and kernel compilation take from the same budget".into(),
            "leave 10 % or more free with --gpu-memory-utilization",
        );
    }
    found
}

#[cfg(test)]
mod tests;
