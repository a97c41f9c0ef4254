//! Decoders with routed experts, and latent attention (which came with them).

use super::ImportError;
use super::decoder::{Decoder, spans_from_types};
use super::encoder::extra;
use super::families::{biases_from, qwen_spans, slide_everywhere};
use super::keys::{HEADS, Keys};
use crate::arch::{
    Activation, Attention, LatentAttention, Mixer, Mlp, Moe, Norm, Positions, QkNorm, Span,
};
use crate::inventory::{Naming, Part};

/// The decoder, if `family` is a mixture.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Decoder>, ImportError> {
    let built = match family {
        "mixtral" | "minimax_m2" => mixtral(keys, family),
        "qwen2_moe" => qwen2_moe(keys),
        "qwen3_moe" | "qwen3_vl_moe_text" => qwen3_moe(keys),
        "olmoe" => olmoe(keys),
        "phimoe" => phimoe(keys),
        "granitemoe" | "granitemoeshared" => granite(keys),
        "gpt_oss" => gpt_oss(keys),
        "llama4_text" => llama4(keys),
        "glm4_moe" => glm4_moe(keys),
        "deepseek_v2" | "deepseek_v3" | "deepseek_v32" | "kimi_k2" | "glm4_moe_lite"
        | "glm_moe_dsa" => deepseek(keys, family),
        "minicpm3" => minicpm3(keys),
        "ernie4_5_moe" => ernie(keys),
        "dots1" => dots1(keys),
        "laguna" => laguna(keys),
        _ => return Ok(None),
    };
    built.map(Some)
}

const EXPERTS: &[&str] =
    &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];
const VISITED: &[&str] = &["num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"];

/// Experts of `width`, with the number that a token visits checked against the number there are.
pub(super) fn experts(keys: &Keys<'_>, d: &Decoder, width: u64) -> Result<Moe, ImportError> {
    experts_or(keys, d, width, None, None)
}

fn experts_or(
    keys: &Keys<'_>,
    d: &Decoder,
    width: u64,
    experts: Option<u64>,
    top_k: Option<u64>,
) -> Result<Moe, ImportError> {
    let count = match experts {
        Some(default) => keys.size_or(EXPERTS, default)?,
        None => keys.size(EXPERTS)?,
    };
    let top_k = match top_k {
        Some(default) => keys.size_or(VISITED, default)?,
        None => keys.size(VISITED)?,
    };
    experts_counted(keys, d, width, count, top_k)
}

/// The same for counts that were read elsewhere.
pub(super) fn experts_counted(
    keys: &Keys<'_>,
    d: &Decoder,
    width: u64,
    count: u64,
    top_k: u64,
) -> Result<Moe, ImportError> {
    if top_k > count {
        return Err(keys.contradiction(
            "num_experts_per_tok",
            top_k,
            format!("there are only {count} experts"),
        ));
    }
    Ok(Moe {
        experts: count,
        top_k,
        expert: Mlp { width, ..d.mlp },
        shared: None,
        shared_gate: false,
        router_bias: false,
        correction_bias: false,
    })
}

fn shared(d: &Decoder, width: u64) -> Option<Mlp> {
    (width > 0).then_some(Mlp { width, ..d.mlp })
}

/// Mixture layers by `mlp_layer_types` where written, else by `rule`.
fn sparse_layers(
    keys: &Keys<'_>,
    d: &Decoder,
    rule: impl Fn(u64) -> bool,
) -> Result<Vec<bool>, ImportError> {
    if let Some(kinds) = keys.kinds("mlp_layer_types", d.layers, &["sparse", "moe", "dense"])? {
        return Ok(kinds.iter().map(|kind| *kind == "sparse" || *kind == "moe").collect());
    }
    let layers: Vec<bool> = (0..d.layers).map(rule).collect();
    // Empty means all: keeps equal layers cheap.
    Ok(if layers.iter().all(|sparse| *sparse) { Vec::new() } else { layers })
}

fn mixtral(keys: &Keys<'_>, family: &str) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.moe = Some(experts(keys, &d, d.mlp.width)?);
    if family == "minimax_m2" {
        d.attention.qk_norm = QkNorm::Full;
        d.naming = Naming::MinimaxM2;
        if let Some(moe) = &mut d.moe {
            moe.correction_bias = keys.flag("use_routing_bias", true)?;
        }
        let rotated = keys.size_or(&["rotary_dim"], d.attention.head_dim / 2)?;
        d.positions = Positions::Rotary { dim: rotated };
    }
    let window = keys.size_if(&["sliding_window"])?;
    slide_everywhere(keys, &mut d, window)?;
    Ok(d)
}

/// `decoder_sparse_step` and `mlp_only_layers`, as Qwen's modeling code combines them.
pub(super) fn qwen_sparse(keys: &Keys<'_>, d: &Decoder) -> Result<Vec<bool>, ImportError> {
    let step = keys.size_or(&["decoder_sparse_step"], 1)?;
    let dense = keys.numbers("mlp_only_layers")?.unwrap_or_default();
    sparse_layers(keys, d, |i| !dense.contains(&i) && (i + 1).is_multiple_of(step))
}

fn qwen2_moe(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.attention.qkv_bias = keys.flag("qkv_bias", true)?;
    let width = keys.size(&["moe_intermediate_size"])?;
    let wide = keys.size_or(&["shared_expert_intermediate_size"], 5632)?;
    let moe = experts_or(keys, &d, width, Some(60), Some(4))?;
    d.moe = Some(Moe { shared: shared(&d, wide), shared_gate: true, ..moe });
    d.sparse = qwen_sparse(keys, &d)?;
    d.spans = qwen_spans(keys, d.layers)?;
    Ok(d)
}

fn qwen3_moe(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.attention.qk_norm = QkNorm::PerHead;
    let width = keys.size_or(&["moe_intermediate_size"], 768)?;
    d.moe = Some(experts_or(keys, &d, width, Some(128), Some(8))?);
    d.sparse = qwen_sparse(keys, &d)?;
    d.spans = qwen_spans(keys, d.layers)?;
    Ok(d)
}

fn olmoe(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.attention.qk_norm = QkNorm::Full;
    d.moe = Some(experts_or(keys, &d, d.mlp.width, Some(64), Some(8))?);
    Ok(d)
}

fn phimoe(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::PhiMoe;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.layer_norm(Norm::LAYER);
    d.head_bias = keys.flag("lm_head_bias", false)?;
    d.moe = Some(experts_or(keys, &d, d.mlp.width, Some(16), Some(2))?);
    let window = keys.size_if(&["sliding_window"])?;
    slide_everywhere(keys, &mut d, window)?;
    Ok(d)
}

fn granite(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::Granite;
    biases_from(keys, &mut d, "attention_bias", false)?;
    let wide = keys.count_or(&["shared_intermediate_size"], 0)?;
    let moe = experts_or(keys, &d, d.mlp.width, Some(8), Some(2))?;
    let shared = shared(&d, wide).map(|mlp| Mlp { fused_gate: true, ..mlp });
    d.moe = Some(Moe { shared, ..moe });
    Ok(d)
}

fn gpt_oss(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::GptOss;
    biases_from(keys, &mut d, "attention_bias", true)?;
    let head_dim = keys.size_or(&["head_dim"], 64)?;
    (d.attention.head_dim, d.attention.value_dim) = (head_dim, head_dim);
    d.positions = Positions::Rotary { dim: head_dim };
    d.attention.sinks = true;
    d.mlp.bias = true;
    let moe = experts_or(keys, &d, d.mlp.width, Some(128), Some(4))?;
    d.moe = Some(Moe { router_bias: true, ..moe });
    let window = keys.size_or(&["sliding_window"], 128)?;
    d.spans = match spans_from_types(keys, d.layers, Some(window))? {
        Some(spans) => spans,
        None => super::decoder::periodic(d.layers, 2, window),
    };
    Ok(d)
}

fn llama4(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::Llama4;
    biases_from(keys, &mut d, "attention_bias", false)?;
    let head_dim = keys.size_or(&["head_dim"], 128)?;
    (d.attention.head_dim, d.attention.value_dim) = (head_dim, head_dim);
    let narrow = d.mlp.width;
    d.mlp.width = keys.size_or(&["intermediate_size_mlp"], 16384)?;
    let moe = experts_or(keys, &d, narrow, Some(16), Some(1))?;
    d.moe = Some(Moe { shared: shared(&d, narrow), ..moe });
    let step = keys.size_or(&["interleave_moe_layer_step"], 1)?;
    let listed = keys.numbers("moe_layers")?;
    d.sparse = sparse_layers(keys, &d, |i| match &listed {
        Some(list) => list.contains(&i),
        None => (i + 1).is_multiple_of(step),
    })?;
    // Layers without rotation see everything; the others see their chunk.
    let chunk = if keys.has("attention_chunk_size") {
        keys.size_if(&["attention_chunk_size"])?
    } else {
        Some(8192)
    };
    d.spans = match (spans_from_types(keys, d.layers, None)?, chunk) {
        (Some(spans), _) => spans,
        (None, None) => Vec::new(),
        (None, Some(chunk)) => {
            let period = keys.size_or(&["no_rope_layer_interval"], 4)?;
            let rotated = keys.numbers("no_rope_layers")?.filter(|list| !list.is_empty());
            let full = |i: u64| match &rotated {
                Some(list) => list.get(i as usize).is_some_and(|rotates| *rotates == 0),
                None => (i + 1).is_multiple_of(period),
            };
            (0..d.layers)
                .map(|i| if full(i) { Span::Full } else { Span::Chunked { chunk } })
                .collect()
        }
    };
    Ok(d)
}

/// DeepSeek's rule: dense up to `first_k_dense_replace`, then every `moe_layer_freq`-th layer a mixture.
pub(super) fn deepseek_experts(
    keys: &Keys<'_>,
    d: &mut Decoder,
    first: u64,
    top_k: Option<u64>,
    correction_bias: bool,
) -> Result<(), ImportError> {
    let width = keys.size(&["moe_intermediate_size"])?;
    let first = keys.count_or(&["first_k_dense_replace"], first)?;
    let every = keys.size_or(&["moe_layer_freq"], 1)?;
    let extra = keys.count_or(&["n_shared_experts", "num_shared_experts"], 1)?;
    let moe = experts_or(keys, d, width, None, top_k)?;
    d.moe = Some(Moe { shared: shared(d, width.saturating_mul(extra)), correction_bias, ..moe });
    d.sparse = sparse_layers(keys, d, |i| i >= first && i.is_multiple_of(every))?;
    Ok(())
}

fn glm4_moe(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::DeepSeek;
    d.attention.qkv_bias = keys.flag("attention_bias", false)?;
    if keys.flag("use_qk_norm", false)? {
        d.attention.qk_norm = QkNorm::PerHead;
    }
    d.partial_rotary(keys, 0.5);
    deepseek_experts(keys, &mut d, 1, Some(8), true)?;
    Ok(d)
}

fn dots1(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::DeepSeek;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.attention.qk_norm = QkNorm::PerHead;
    deepseek_experts(keys, &mut d, 0, None, true)?;
    Ok(d)
}

/// Laguna: heads per layer, a gate per head, shared and routed experts.
fn laguna(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::DeepSeek;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.attention.qk_norm = QkNorm::PerHead;
    let wide = keys.count_or(&["shared_expert_intermediate_size"], 0)?;
    let moe = experts(keys, &d, keys.size(&["moe_intermediate_size"])?)?;
    d.moe = Some(Moe { shared: shared(&d, wide), correction_bias: true, ..moe });
    d.sparse = qwen_sparse(keys, &d)?;
    let spans = spans_from_types(keys, d.layers, None)?;
    let heads = match keys.per_layer("num_attention_heads_per_layer", d.layers)? {
        Some(list) => list,
        None => vec![d.attention.heads; d.layers as usize],
    };
    if let Some(odd) = heads.iter().find(|h| **h == 0 || !h.is_multiple_of(d.attention.kv_heads)) {
        let against =
            format!("`num_key_value_heads`, which is {}, does not divide it", d.attention.kv_heads);
        return Err(keys.contradiction("num_attention_heads_per_layer", odd, against));
    }
    let gated = keys.text("gating") == Some("per-head");
    for (layer, heads) in (0u64..).zip(&heads).filter(|_| gated) {
        let name = format!("model.layers.{layer}.self_attn.g_proj.weight");
        d.extra.push(extra(name, vec![*heads, d.hidden], Part::Query, false, Some(layer)));
    }
    d.mixers = heads
        .iter()
        .enumerate()
        .map(|(i, heads)| {
            let span = spans.as_ref().and_then(|s| s.get(i)).copied().unwrap_or(Span::Full);
            Mixer::Attention(Attention { heads: *heads, span, ..d.attention.clone() })
        })
        .collect();
    Ok(d)
}

fn ernie(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::DeepSeek;
    biases_from(keys, &mut d, "use_bias", false)?;
    d.tied = keys.flag("tie_word_embeddings", true)?;
    let width = keys.size_or(&["moe_intermediate_size"], 1536)?;
    let first = keys.count_or(&["moe_layer_start_index"], 1)?;
    let every = keys.size_or(&["moe_layer_interval"], 1)?;
    let last = match keys.get("moe_layer_end_index").and_then(serde_json::Value::as_i64) {
        Some(n) if n >= 0 => n as u64,
        _ => d.layers.saturating_sub(1),
    };
    let common = keys.count_or(&["moe_num_shared_experts"], 2)?;
    let moe = experts_or(keys, &d, width, Some(64), Some(6))?;
    d.moe = Some(Moe { shared: shared(&d, width.saturating_mul(common)), ..moe });
    d.sparse =
        sparse_layers(keys, &d, |i| (i + 1).is_multiple_of(every) && i >= first && i <= last)?;
    let experts = d.moe.as_ref().map_or(0, |m| m.experts);
    let sparse = |i: u64| d.sparse.get(i as usize).copied().unwrap_or(true);
    d.extra = (0..d.layers)
        .filter(|i| sparse(*i))
        .map(|i| {
            let name = format!("model.layers.{i}.mlp.gate.moe_statics.e_score_correction_bias");
            extra(name, vec![1, experts], Part::Router, true, Some(i))
        })
        .collect();
    Ok(d)
}

/// Latent attention's sizes; `None` for the query rank means an uncompressed query.
pub(super) fn latent(keys: &Keys<'_>, q_rank: Option<u64>) -> Result<LatentAttention, ImportError> {
    let heads = keys.size(HEADS)?;
    let q_lora_rank =
        if keys.has("q_lora_rank") { keys.size_if(&["q_lora_rank"])? } else { q_rank };
    Ok(LatentAttention {
        heads,
        q_lora_rank,
        kv_lora_rank: keys.size_or(&["kv_lora_rank"], 512)?,
        nope_dim: keys.size_or(&["qk_nope_head_dim"], 128)?,
        rope_dim: keys.size_or(&["qk_rope_head_dim"], 64)?,
        value_dim: keys.size_or(&["v_head_dim"], 128)?,
        bias: keys.flag("attention_bias", false)?,
        indexer: None,
    })
}

fn deepseek(keys: &Keys<'_>, family: &str) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::DeepSeek;
    let rank = if family == "glm4_moe_lite" { 768 } else { 1536 };
    let mut mixer = latent(keys, Some(rank))?;
    if family == "glm4_moe_lite" {
        mixer.nope_dim = keys.size_or(&["qk_nope_head_dim"], 192)?;
        mixer.value_dim = keys.size_or(&["v_head_dim"], 256)?;
    }
    if keys.get("index_n_heads").is_some() || matches!(family, "deepseek_v32" | "glm_moe_dsa") {
        mixer.indexer =
            Some((keys.size_or(&["index_n_heads"], 64)?, keys.size_or(&["index_head_dim"], 128)?));
    }
    d.positions = Positions::Rotary { dim: mixer.rope_dim };
    // What softmax attention would be is of no use here; keep the widths of the heads.
    d.attention =
        Attention { head_dim: mixer.nope_dim.saturating_add(mixer.rope_dim), ..d.attention };
    d.mixers = vec![Mixer::Latent(mixer); d.layers as usize];
    let (first, top_k) = match family {
        "deepseek_v2" => (0, None),
        "glm4_moe_lite" => (1, Some(4)),
        _ => (3, Some(8)),
    };
    deepseek_experts(keys, &mut d, first, top_k, family != "deepseek_v2")?;
    Ok(d)
}

/// MiniCPM 3 (remote code): latent attention in a dense model.
fn minicpm3(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    let mixer = latent(keys, Some(768))?;
    d.mlp.activation = keys.activation(Activation::Silu);
    d.tied = keys.flag("tie_word_embeddings", true)?;
    d.positions = Positions::Rotary { dim: mixer.rope_dim };
    d.mixers = vec![Mixer::Latent(mixer); d.layers as usize];
    Ok(d)
}
