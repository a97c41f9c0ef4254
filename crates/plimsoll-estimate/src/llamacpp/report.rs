//! The estimate as a tree of terms, figures, assumptions and diagnostics.

use plimsoll_model::Architecture;
use plimsoll_model::arch::Layer;
use plimsoll_timeline::Category;
use plimsoll_units::Bytes;

use super::behaviour::Behaviour;
use super::kv::CachePlan;
use super::layout::Layout;
use super::{Buffers, Share, bytes};
use crate::device::Device;
use crate::request::LlamaCpp;
use crate::term::{Assumption, Diagnostic, Estimate, Figure, Interval, Peak, Severity, Term};
use crate::weights::StoredTensor;

fn used(s: &Share) -> u64 {
    s.weights.saturating_add(s.kv).saturating_add(s.state).saturating_add(s.compute)
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one estimate; a struct would only rename them"
)]
pub(super) fn report(
    model: &Architecture,
    layers: &[Layer],
    weights: &[StoredTensor],
    request: &LlamaCpp,
    device: &Device,
    behaviour: &Behaviour,
    layout: &Layout<'_>,
    cache: &CachePlan,
    buffers: &Buffers,
) -> Estimate {
    let worst = (0..buffers.devices.len())
        .max_by_key(|i| (used(&buffers.devices[*i]), usize::MAX - i))
        .unwrap_or(0);
    let share = buffers.devices.get(worst).copied().unwrap_or_default();
    let mmproj = if worst == 0 { request.mmproj } else { Bytes::ZERO };
    let allocated = bytes(used(&share)) + mmproj;
    let total = allocated + device.context.typical;
    let terms = terms(model, request, device, cache, buffers, &share, mmproj);
    let spread = |n: u64, permille: u64| Bytes::new(n).scale(permille, 1000);
    let loose = uncertain(model, request);
    let low = allocated.saturating_sub(spread(share.compute, loose)) + device.context.low;
    let high =
        allocated + spread(share.compute, loose) + device.context.high.max(device.context.typical);
    Estimate {
        peak: Peak { allocated, reserved: allocated, device: total },
        interval: Interval { low: low.min(total), high },
        categories: vec![
            (Category::Parameters, bytes(share.weights) + mmproj),
            (Category::KvCache, bytes(share.kv.saturating_add(share.state))),
            (Category::EngineBuffers, bytes(share.compute)),
            (Category::Context, device.context.typical),
        ],
        terms,
        assumptions: assumptions(model, request, device, behaviour),
        diagnostics: diagnostics(model, layers, weights, request, layout, cache, buffers),
        peak_phase: Some("prefill".to_owned()),
        peak_module: None,
        host: bytes(used(&buffers.host)),
        figures: figures(buffers, cache),
        timeline: None,
    }
}

/// Spread of the compute buffer in thousandths: the graph of these families is approximated.
fn uncertain(model: &Architecture, request: &LlamaCpp) -> u64 {
    let family = super::gguf_family(&model.family);
    match family {
        _ if request.ik => 50,
        "llama" | "qwen2" | "qwen3" | "qwen3moe" | "mistral" | "gemma" | "gemma2" | "gemma3"
        | "gpt-oss" | "granite" | "deepseek2" | "qwen35" | "phi2" | "phi3" | "gptneox" => 20,
        _ => 80,
    }
}

fn terms(
    model: &Architecture,
    request: &LlamaCpp,
    device: &Device,
    cache: &CachePlan,
    buffers: &Buffers,
    share: &Share,
    mmproj: Bytes,
) -> Vec<Term> {
    let spread = u32::try_from(uncertain(model, request)).unwrap_or(0);
    let mut out = vec![
        Term::new("weights", "weights", bytes(share.weights))
            .formula("Σ bytes of the tensors on the device")
            .source("tensor list of the file"),
        Term::new("kv", "KV cache", bytes(share.kv))
            .formula("Σ layers · cells · (row(K) + row(V))")
            .input("cells", cache.context)
            .input("K", request.cache_k)
            .input("V", request.cache_v)
            .source("llama.cpp src/llama-kv-cache.cpp"),
    ];
    if share.state > 0 {
        out.push(
            Term::new("rs", "recurrent states", bytes(share.state))
                .formula("Σ layers · sequences · (1 + draft) · (convolution + state) · 4 B")
                .input("sequences", request.sequences)
                .input("draft", request.draft)
                .source("llama.cpp src/llama-memory-recurrent.cpp"),
        );
    }
    out.push(
        Term::new("compute", "compute buffer", bytes(share.compute))
            .formula("high-water mark of ggml's planner over the graph of one micro-batch")
            .input("ubatch", request.ubatch)
            .input("outputs", buffers.outputs)
            .input("cells", cache.context)
            .source("llama.cpp src/llama-graph.cpp, ggml/src/ggml-alloc.c")
            .spread(spread, spread),
    );
    if !mmproj.is_zero() {
        out.push(
            Term::new("mmproj", "vision projector", mmproj)
                .formula("size of the projector file")
                .spread(0, 400),
        );
    }
    out.push(
        Term::new("context", "CUDA context and libraries", device.context.typical)
            .source(device.context.source.clone()),
    );
    out
}

fn figures(buffers: &Buffers, cache: &CachePlan) -> Vec<(String, Figure)> {
    let sum = |f: fn(&Share) -> u64| {
        Figure::Bytes(bytes(buffers.devices.iter().fold(0u64, |n, s| n.saturating_add(f(s)))))
    };
    let mut out = vec![
        ("weights".to_owned(), sum(|s| s.weights)),
        ("kv".to_owned(), sum(|s| s.kv)),
        ("rs".to_owned(), sum(|s| s.state)),
        ("compute".to_owned(), sum(|s| s.compute)),
        ("host_weights".to_owned(), Figure::Bytes(bytes(buffers.host.weights))),
        ("host_kv".to_owned(), Figure::Bytes(bytes(buffers.host.kv))),
        ("host_rs".to_owned(), Figure::Bytes(bytes(buffers.host.state))),
        ("host_compute".to_owned(), Figure::Bytes(bytes(buffers.host.compute))),
        ("kv_full".to_owned(), Figure::Bytes(bytes(buffers.kv_full))),
        ("kv_sliding".to_owned(), Figure::Bytes(bytes(buffers.kv_sliding))),
        ("context_tokens".to_owned(), Figure::Count(cache.context)),
        ("graph_splits".to_owned(), Figure::Count(buffers.splits as u64)),
        ("input_copies".to_owned(), Figure::Count(buffers.copies)),
    ];
    if buffers.sliding_cells > 0 {
        out.push(("sliding_cells".to_owned(), Figure::Count(buffers.sliding_cells)));
    }
    if buffers.devices.len() > 1 {
        for (i, s) in buffers.devices.iter().enumerate() {
            for (name, value) in
                [("weights", s.weights), ("kv", s.kv), ("rs", s.state), ("compute", s.compute)]
            {
                out.push((format!("device{i}.{name}"), Figure::Bytes(bytes(value))));
            }
        }
    }
    out
}

fn assumptions(
    model: &Architecture,
    request: &LlamaCpp,
    device: &Device,
    behaviour: &Behaviour,
) -> Vec<Assumption> {
    let mut out = Vec::new();
    let mut add = |about: &str, value: String, reason: &str, option: &str| {
        out.push(Assumption {
            about: about.to_owned(),
            value,
            reason: reason.to_owned(),
            option: option.to_owned(),
        });
    };
    if request.build.is_none() && !request.ik {
        add("llama.cpp build", "newest known".to_owned(), "no build was given", "--llama-build");
    }
    if request.context.is_none() {
        add(
            "context",
            model.max_positions.map_or_else(|| "4096".to_owned(), |n| n.to_string()),
            "llama.cpp takes the model's own where none is given",
            "--context",
        );
    }
    if request.all_outputs.is_none() {
        let value = if behaviour.single_output {
            "one row per sequence"
        } else {
            "every token of the micro-batch"
        };
        add("logits", value.to_owned(), "what this build's server reserves", "--all-outputs");
    }
    if device.count > 1 && request.tensor_split.is_empty() {
        add(
            "device split",
            "equal".to_owned(),
            "llama.cpp splits by free memory, which is equal on equal idle devices",
            "--tensor-split",
        );
    }
    out
}

fn diagnostics(
    model: &Architecture,
    layers: &[Layer],
    weights: &[StoredTensor],
    request: &LlamaCpp,
    layout: &Layout<'_>,
    cache: &CachePlan,
    buffers: &Buffers,
) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    let mut add = |severity, code: &str, message: String, cure: &str| {
        out.push(Diagnostic { severity, code: code.to_owned(), message, cure: cure.to_owned() });
    };
    if weights.is_empty() {
        add(
            Severity::Warning,
            "weights-unknown",
            "no tensor list was given, so weights count as zero".to_owned(),
            "name the GGUF file or its quantization mix",
        );
    }
    if uncertain(model, request) > 20 {
        add(
            Severity::Note,
            "graph-approximated",
            format!(
                "the compute graph of `{}` follows the general pattern, not its own builder",
                model.family
            ),
            "compare with the `compute buffer size` line of a short run",
        );
    }
    if let (Some(context), Some(longest)) = (request.context, model.max_positions)
        && context / request.sequences.max(1) > longest
    {
        add(
            Severity::Warning,
            "context-beyond-model",
            format!("context of {context} tokens; the model was made for {longest}"),
            "lower the context, or extend the rotary embedding",
        );
    }
    if let Some(n) = request.offload.gpu_layers
        && n > layers.len() as u64 + 1
    {
        add(
            Severity::Note,
            "all-layers",
            format!(
                "{n} layers on the device asked for; the model has {} and the output layer",
                layers.len()
            ),
            "",
        );
    }
    if cache.context > request.context.unwrap_or(cache.context) {
        add(
            Severity::Note,
            "context-padded",
            format!("llama.cpp rounds the context up to {} cells", cache.context),
            "",
        );
    }
    if !request.mmproj.is_zero() {
        add(
            Severity::Note,
            "projector-compute",
            "the projector counts by its file size; its own compute buffer comes on top".to_owned(),
            "keep about half the projector's size free, or run it on the host with --no-mmproj-offload",
        );
    }
    if buffers.copies > 1 {
        add(
            Severity::Note,
            "pipeline-copies",
            format!(
                "pipeline parallelism over {} devices keeps {} copies of the inputs",
                layout.devices, buffers.copies
            ),
            "build with GGML_SCHED_MAX_COPIES=1 to save them",
        );
    }
    out
}
