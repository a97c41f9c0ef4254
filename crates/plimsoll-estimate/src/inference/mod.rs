//! Inference in plain PyTorch, as `generate` of Transformers runs it: weights, one pass over the prompt, then a pass per
//! token over a cache that grows by `torch.cat`. Models that do not generate run one forward pass.

mod cache;
mod pass;
mod plan;
mod report;
mod run;
#[cfg(test)]
mod tests;
mod weights;

use plimsoll_model::graph::StageKind;
use plimsoll_model::{Architecture, Graph, Inventory, build};
use plimsoll_timeline::{PyTorchConfig, ReplayOptions, replay_with};

use crate::request::Inference;
use crate::vllm::Storage;
use crate::{Device, Estimate, EstimateError};
use pass::Pass;
use plan::Plan;

/// Estimates the device memory of prefill and decode.
///
/// ```
/// use plimsoll_estimate::request::Inference;
/// use plimsoll_estimate::{Device, Spread, inference};
/// use plimsoll_model::{hf, inventory};
/// use plimsoll_units::Bytes;
/// let config = br#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
///     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
///     "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
/// let model = hf::from_config(config).unwrap().architecture;
/// let device = Device {
///     name: "24 GiB".into(),
///     usable: Bytes::gib(24),
///     free: None,
///     count: 1,
///     compute_capability: Some((8, 9)),
///     unified: false,
///     context: Spread::default(),
/// };
/// let request = Inference { prompt: 1024, generate: 128, ..Inference::default() };
/// let list = inventory::inventory(&model);
/// let estimate = inference::estimate(&model, &list, &request, &device).unwrap();
/// let gib = estimate.peak.allocated.get() >> 30;
/// assert_eq!(gib, 15);
/// ```
///
/// # Errors
/// [`EstimateError`] where the request contradicts the model or itself.
pub fn estimate(
    model: &Architecture,
    inventory: &Inventory,
    request: &Inference,
    device: &Device,
) -> Result<Estimate, EstimateError> {
    plan::validate(model, request)?;
    let plan = Plan::new(model, request, device);
    let graph =
        build(model, inventory, &plan.options).map_err(|e| EstimateError::UnsupportedModel {
            engine: "PyTorch inference",
            family: model.family.clone(),
            cure: e.cure().to_owned(),
            reason: e.to_string(),
        })?;
    let storage = Storage {
        model,
        stored: None,
        plain: plan.compute,
        online: plan.online,
        tensor: request.tensor,
        pad_experts: false,
    };
    let weights = weights::rows(model, inventory, &storage, request.tensor, request.sparsity);
    let caches = cache::layers(model, request.tensor);
    let prompt = plan.prompt(request);
    let prefill = passes(&graph, &caches, &plan.prefill(request));
    let steps = request.generate.saturating_sub(1);
    let decode = (steps > 0 && !caches.is_empty()).then(|| {
        let at = |token: u64| {
            passes(&graph, &caches, &plan.decode(request, prompt.saturating_add(token)))
        };
        (at(1), at(steps))
    });
    let main = graph.stages.iter().rposition(|s| s.kind == StageKind::Embedding);
    let towers = graph.stages.iter().filter(|s| s.kind == StageKind::Embedding);
    let features = towers.filter_map(|s| graph.block(s).values.first());
    let features = features.filter(|v| v.dtype.is_float());
    let run = run::Run {
        graph: &graph,
        weights: &weights,
        caches: &caches,
        main: main.unwrap_or(0),
        batch: request.batch,
        prompt,
        ids: request.prompt,
        features: features.map(|v| v.shape.bytes(v.dtype, &plan.prefill(request).body)).sum(),
        memory: plan.memory(request),
        generate: request.generate,
        logit_rows: if request.all_logits { prompt } else { 1 },
        outputs: model.head.outputs,
        compute: plan.compute,
        cache: plan.cache,
        prefill: &prefill,
        decode: decode.as_ref().map(|(a, b)| (a.as_slice(), b.as_slice())),
        rotary: plan.rotary,
        mask: plan.mask,
        workspace: device.cublas_workspace(),
    };
    let timeline = run::simulate(&run);
    let options = ReplayOptions { origins: 4096, ..ReplayOptions::default() };
    let footprint = replay_with(&timeline, &PyTorchConfig::default(), &options);
    let facts = report::Facts {
        model,
        request,
        device,
        plan: &plan,
        graph: &graph,
        passes: (&prefill, decode.as_ref().map(|(_, last)| last.as_slice())),
        weights: &weights,
        caches: &caches,
        prompt,
    };
    Ok(report::estimate(&facts, footprint, timeline))
}

/// The passes of all blocks. A layer that keeps a window reads no more keys than that when it decodes.
fn passes(graph: &Graph, caches: &[cache::LayerCache], sizes: &plan::Stage) -> Vec<Pass> {
    let main = graph.stages.iter().rposition(|s| s.kind == StageKind::Embedding);
    let layer_of = |block: usize| {
        let of_main = graph.stages.iter().skip(main.unwrap_or(0));
        let mut stages = of_main.filter(|s| s.block.0 as usize == block);
        stages.find_map(|s| s.layer).and_then(|l| caches.get(l as usize))
    };
    let compile = |(index, block)| {
        let cache = layer_of(index);
        let keys = cache.map(|c| match (sizes.decoding, c.window) {
            (true, Some(window)) => sizes.keys.min(window.max(1)),
            _ => sizes.keys,
        });
        let sizes = pass::Sizes {
            body: sizes.body,
            logits: sizes.logits,
            keys,
            cross_cached: sizes.decoding,
        };
        pass::compile(block, &sizes)
    };
    graph.blocks.iter().enumerate().map(compile).collect()
}
