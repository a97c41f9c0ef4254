//! llama.cpp, its forks, and the runner inside ollama: weights, caches, compute buffers and context by device.
//!
//! Sizes of caches follow from the architecture and the settings. The compute buffer is what ggml's planner finds:
//! the graph that llama.cpp reserves is rebuilt operator by operator and planned the same way, so the result is the
//! number that llama.cpp prints as `compute buffer size`, not a fit.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Layer, Mixer, ModelKind};
use plimsoll_units::Bytes;

use crate::device::Device;
use crate::error::EstimateError;
use crate::request::{LlamaCpp, SplitMode};
use crate::term::Estimate;
use crate::weights::StoredTensor;

mod behaviour;
mod build;
mod gallocr;
mod graph;
mod kv;
mod layout;
mod report;
mod sched;
#[cfg(test)]
mod tests;
mod validate;

pub use validate::{LARGEST_UBATCH, MOST_SEQUENCES};

use behaviour::Behaviour;
use build::{Batch, Context};
use graph::{HOST, Place};
use kv::{CachePlan, short_conv_state};
use layout::Layout;
use sched::Settings;

/// Bytes of one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    weights: u64,
    kv: u64,
    state: u64,
    compute: u64,
}

/// All buffers.
struct Buffers {
    devices: Vec<Share>,
    host: Share,
    kv_full: u64,
    kv_sliding: u64,
    sliding_cells: u64,
    splits: usize,
    copies: u64,
    outputs: u64,
}

/// Estimates a llama.cpp process.
///
/// `weights` are the tensors of the file, named as in GGUF (see [`crate::weights`]); with none, weights are zero and
/// a diagnostic says so.
///
/// # Errors
/// If the request contradicts itself or the model: an empty or absurd context, a batch of zero, a quantized V cache
/// without flash attention, a pattern that is no regular expression, a model without a text stack.
pub fn estimate(
    model: &Architecture,
    weights: &[StoredTensor],
    request: &LlamaCpp,
    device: &Device,
) -> Result<Estimate, EstimateError> {
    let layers = validate::check(model, request, device)?;
    let behaviour = if request.ik {
        Behaviour::fork(request.build)
    } else {
        Behaviour::mainline(request.build)
    };
    let context = request.context.or(model.max_positions).unwrap_or(4096);
    let layout =
        Layout::new(layers.len(), device.count, request, weights, behaviour.output_layer_first)?;
    let mut cache = CachePlan::new(layers, request, context, &behaviour);
    if behaviour.encoder_without_cache
        && matches!(model.kind, ModelKind::Encoder | ModelKind::MaskedLm)
    {
        cache.layers.fill(kv::LayerCache::default());
    }
    for (il, layer) in layers.iter().enumerate() {
        if let Mixer::ShortConv { kernel, .. } = layer.mixer {
            cache.layers[il].state = short_conv_state(kernel, model.hidden, request.sequences);
        }
    }
    let buffers = buffers(model, layers, weights, request, device, &behaviour, &layout, &cache);
    Ok(report::report(
        model, layers, weights, request, device, &behaviour, &layout, &cache, &buffers,
    ))
}

/// The `general.architecture` of GGUF files for a `model_type` of Hugging Face; other names pass through.
pub fn gguf_family(name: &str) -> &str {
    match name {
        "gpt_oss" | "gptoss" => "gpt-oss",
        "qwen3_moe" => "qwen3moe",
        "qwen3_next" => "qwen3next",
        "qwen3_5" | "qwen3_5_text" => "qwen35",
        "qwen3_5_moe" | "qwen3_5_moe_text" => "qwen35moe",
        "qwen2_moe" => "qwen2moe",
        "qwen2_vl" | "qwen2_5_vl" => "qwen2vl",
        "qwen3_vl" => "qwen3vl",
        "qwen3_vl_moe" => "qwen3vlmoe",
        "deepseek_v2" | "deepseek_v3" => "deepseek2",
        "gemma3_text" => "gemma3",
        "gpt_neox" => "gptneox",
        "phi" | "phi-msft" => "phi2",
        "cohere" => "command-r",
        "falcon_h1" => "falcon-h1",
        "gemma4_text" => "gemma4",
        "lfm2_moe" => "lfm2moe",
        "granitemoehybrid" => "granitehybrid",
        other => other,
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one estimate; a struct would only rename them"
)]
fn buffers(
    model: &Architecture,
    layers: &[Layer],
    weights: &[StoredTensor],
    request: &LlamaCpp,
    device: &Device,
    behaviour: &Behaviour,
    layout: &Layout<'_>,
    cache: &CachePlan,
) -> Buffers {
    let mut shares = vec![Share::default(); layout.devices];
    let mut host = Share::default();
    let mut add = |place: Place, f: &dyn Fn(&mut Share)| match shares.get_mut(place) {
        Some(s) if place != HOST => f(s),
        _ => f(&mut host),
    };
    let tied = !weights.iter().any(|t| t.name == "output.weight");
    for t in weights {
        let bytes = t.bytes.get();
        let il = t.layer.and_then(|l| usize::try_from(l).ok());
        add(layout.placed(&t.name, il), &|s| s.weights = s.weights.saturating_add(bytes));
        if tied && t.name == "token_embd.weight" && layout.output() != HOST {
            // The table doubles as the output matrix: one copy to read rows on the host, one on the device.
            add(layout.output(), &|s| s.weights = s.weights.saturating_add(bytes));
        }
    }
    let (mut kv_full, mut kv_sliding) = (0u64, 0u64);
    for (il, c) in cache.layers.iter().enumerate() {
        let kv = c.k.saturating_add(c.v);
        *(if c.windowed { &mut kv_sliding } else { &mut kv_full }) += kv;
        add(layout.cache(il), &|s| {
            s.kv = s.kv.saturating_add(kv);
            s.state = s.state.saturating_add(c.state);
        });
    }
    let copies = copies(request, layout, device);
    let outputs = outputs(model, request, behaviour, cache);
    let plan = compute(model, layers, request, behaviour, layout, cache, copies, outputs);
    for (s, bytes) in shares.iter_mut().zip(&plan.devices) {
        s.compute = *bytes;
    }
    host.compute = plan.host;
    let sliding_cells = layers
        .iter()
        .find_map(|l| match &l.mixer {
            Mixer::Attention(a) if !matches!(a.span, plimsoll_model::arch::Span::Full) => {
                Some(cache.cells(a.span))
            }
            _ => None,
        })
        .unwrap_or(0);
    Buffers {
        devices: shares,
        host,
        kv_full,
        kv_sliding,
        sliding_cells,
        splits: plan.splits,
        copies,
        outputs,
    }
}

/// Pipeline parallelism keeps four copies of the inputs of each device's part.
fn copies(request: &LlamaCpp, layout: &Layout<'_>, device: &Device) -> u64 {
    let pipeline = device.count > 1
        && layout.devices > 1
        && request.split == SplitMode::Layer
        && request.offload_kv
        && layout.whole_model_on_devices();
    if pipeline { 4 } else { 1 }
}

fn outputs(
    _model: &Architecture,
    request: &LlamaCpp,
    behaviour: &Behaviour,
    cache: &CachePlan,
) -> u64 {
    let batch = request.ubatch.min(cache.context);
    let all = request.all_outputs.unwrap_or(!behaviour.single_output);
    if all { batch } else { request.sequences.clamp(1, batch) }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one estimate; a struct would only rename them"
)]
fn compute(
    model: &Architecture,
    layers: &[Layer],
    request: &LlamaCpp,
    behaviour: &Behaviour,
    layout: &Layout<'_>,
    cache: &CachePlan,
    copies: u64,
    outputs: u64,
) -> sched::Buffers {
    let batch = Batch {
        tokens: request.ubatch.min(cache.context).max(1),
        sequences: request.sequences.max(1),
        outputs,
    };
    let cx = Context {
        arch: model,
        layers,
        behaviour,
        layout,
        cache,
        batch,
        flash_attention: request.flash_attention,
        cache_k: request.cache_k,
        cache_v: request.cache_v,
        draft: request.draft,
        fork: request.ik,
        mla: request.mla.unwrap_or(0),
        attention_max_mib: request.attention_max_mib,
    };
    let graph = build::build(&cx);
    sched::plan(
        &graph,
        Settings {
            devices: layout.devices,
            copies,
            offload_products: batch.tokens >= 32,
            alignment: 128,
            split_inputs: 30,
        },
    )
}

fn bytes(n: u64) -> Bytes {
    Bytes::new(n)
}
