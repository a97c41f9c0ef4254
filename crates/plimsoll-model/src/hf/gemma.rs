//! Gemma 3n and 4: wide full-attention layers, shared caches, per-layer inputs.

use super::ImportError;
use super::decoder::{Decoder, periodic, spans_from_types};
use super::encoder::extra;
use super::families::biases_from;
use super::keys::Keys;
use super::mixture::experts_counted;
use crate::arch::{Activation, Attention, Mixer, Mlp, Moe, NormPlacement, Positions, QkNorm, Span};
use crate::inventory::{Naming, Part};

/// The decoder of `gemma3n_text` or `gemma4_text`.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Decoder>, ImportError> {
    let (period, newer) = match family {
        "gemma3n_text" | "gemma3n" => (5, false),
        "gemma4_text" => (6, true),
        _ => return Ok(None),
    };
    let mut d = Decoder::llama(keys)?;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.mlp.activation = Activation::GeluTanh;
    d.tied = keys.flag("tie_word_embeddings", true)?;
    (d.norms, d.placement) = (4, NormPlacement::Sandwich);
    let head_dim = keys.size_or(&["head_dim"], 256)?;
    (d.attention.head_dim, d.attention.value_dim) = (head_dim, head_dim);
    d.attention.qk_norm = QkNorm::PerHead;
    d.positions = Positions::Rotary { dim: head_dim };
    let window = keys.size_or(&["sliding_window"], 512)?;
    let mut spans = match spans_from_types(keys, d.layers, Some(window))? {
        Some(spans) => spans,
        None => periodic(d.layers, period, window),
    };
    if newer && let Some(last) = spans.last_mut() {
        // The class forces the last layer to see everything.
        *last = Span::Full;
    }
    let shared = keys.count_or(&["num_kv_shared_layers"], if newer { 0 } else { 15 })?;
    let first_shared = d.layers.saturating_sub(shared);
    let full = full_attention(keys, &d.attention, newer)?;
    d.mixers = (0u64..)
        .zip(&spans)
        .map(|(index, span)| {
            let own = if *span == Span::Full { &full } else { &d.attention };
            Mixer::Attention(Attention {
                span: *span,
                shares_kv: index >= first_shared,
                ..own.clone()
            })
        })
        .collect();
    widths(keys, &mut d, newer, first_shared)?;
    per_layer_inputs(keys, &mut d)?;
    if newer {
        mixture(keys, &mut d)?;
    } else {
        alternating_updates(keys, &mut d)?;
    }
    Ok(Some(d))
}

/// Full layers of Gemma 4 have wider heads, and fewer of them where keys serve as values.
fn full_attention(
    keys: &Keys<'_>,
    sliding: &Attention,
    newer: bool,
) -> Result<Attention, ImportError> {
    let mut full = sliding.clone();
    if !newer {
        return Ok(full);
    }
    let dim = keys.size_or(&["global_head_dim"], 512)?;
    (full.head_dim, full.value_dim) = (dim, dim);
    if keys.flag("attention_k_eq_v", false)? {
        full.value_is_key = true;
        full.kv_heads = keys.size_or(&["num_global_key_value_heads"], full.kv_heads)?;
        if !full.heads.is_multiple_of(full.kv_heads) {
            let against = format!("it must divide `num_attention_heads`, which is {}", full.heads);
            return Err(keys.contradiction("num_global_key_value_heads", full.kv_heads, against));
        }
    }
    Ok(full)
}

fn widths(
    keys: &Keys<'_>,
    d: &mut Decoder,
    newer: bool,
    first_shared: u64,
) -> Result<(), ImportError> {
    match keys.per_layer("intermediate_size", d.layers)? {
        Some(list) => {
            d.mlp.width = list.first().copied().unwrap_or(1);
            if list.iter().any(|w| *w != d.mlp.width) {
                d.widths = list;
            }
        }
        None => d.mlp.width = keys.size(&["intermediate_size"])?,
    }
    if newer && keys.flag("use_double_wide_mlp", false)? {
        let narrow = d.mlp.width;
        let width = |i| if i >= first_shared { narrow.saturating_mul(2) } else { narrow };
        d.widths = (0..d.layers).map(width).collect();
    }
    Ok(())
}

/// A second table with an input for every layer, and its projections.
fn per_layer_inputs(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    let narrow = keys.count_or(&["hidden_size_per_layer_input"], 256)?;
    if narrow == 0 {
        return Ok(());
    }
    let vocab = keys.size_or(&["vocab_size_per_layer_input"], 262_144)?;
    let all = d.layers.saturating_mul(narrow);
    let hidden = d.hidden;
    let mut add = |name: String, shape: Vec<u64>, part, layer| {
        d.extra.push(extra(name, shape, part, false, layer));
    };
    add("model.embed_tokens_per_layer.weight".into(), vec![vocab, all], Part::TokenEmbedding, None);
    add(
        "model.per_layer_model_projection.weight".into(),
        vec![all, hidden],
        Part::EmbeddingProjection,
        None,
    );
    add("model.per_layer_projection_norm.weight".into(), vec![narrow], Part::EmbeddingNorm, None);
    for layer in 0..d.layers {
        for (name, shape, part) in [
            ("per_layer_input_gate", vec![narrow, hidden], Part::EmbeddingProjection),
            ("per_layer_projection", vec![hidden, narrow], Part::EmbeddingProjection),
            ("post_per_layer_input_norm", vec![hidden], Part::Norm4),
        ] {
            add(format!("model.layers.{layer}.{name}.weight"), shape, part, Some(layer));
        }
    }
    Ok(())
}

/// Gemma 4's mixture runs beside the dense feed-forward, with norms of its own.
fn mixture(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    if !keys.flag("enable_moe_block", false)? {
        return Ok(());
    }
    d.naming = Naming::Gemma4;
    let width = keys.size(&["moe_intermediate_size"])?;
    let moe = experts_counted(
        keys,
        d,
        width,
        keys.size(&["num_experts"])?,
        keys.size(&["top_k_experts"])?,
    )?;
    let count = moe.experts;
    d.moe = Some(Moe { shared: Some(Mlp { ..d.mlp }), ..moe });
    for layer in 0..d.layers {
        for (name, width, part) in [
            ("router.scale", d.hidden, Part::Router),
            ("router.per_expert_scale", count, Part::Router),
            ("post_feedforward_layernorm_1.weight", d.hidden, Part::Norm4),
            ("post_feedforward_layernorm_2.weight", d.hidden, Part::Norm4),
            ("pre_feedforward_layernorm_2.weight", d.hidden, Part::Norm3),
        ] {
            let name = format!("model.layers.{layer}.{name}");
            d.extra.push(extra(name, vec![width], part, false, Some(layer)));
        }
    }
    Ok(())
}

/// Gemma 3n's alternating updates (AltUp) and low-rank residuals (LAuReL).
fn alternating_updates(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    let inputs = keys.size_or(&["altup_num_inputs"], 4)?;
    if inputs > 1024 {
        let against = "more than 1024 streams are not believed".to_owned();
        return Err(keys.contradiction("altup_num_inputs", inputs, against));
    }
    let rank = keys.size_or(&["laurel_rank"], 64)?;
    let hidden = d.hidden;
    for list in ["altup_projections", "altup_unembed_projections"] {
        for index in 0..inputs.saturating_sub(1) {
            let name = format!("model.{list}.{index}.weight");
            d.extra.push(extra(name, vec![hidden, hidden], Part::Other, false, None));
        }
    }
    for layer in 0..d.layers {
        for (name, shape) in [
            ("altup.correct_output_scale", vec![hidden]),
            ("altup.correction_coefs.weight", vec![inputs, inputs]),
            ("altup.prediction_coefs.weight", vec![inputs.saturating_mul(inputs), inputs]),
            ("altup.modality_router.weight", vec![inputs, hidden]),
            ("altup.router_norm.weight", vec![hidden]),
            ("laurel.linear_left.weight", vec![rank, hidden]),
            ("laurel.linear_right.weight", vec![hidden, rank]),
            ("laurel.post_laurel_norm.weight", vec![hidden]),
        ] {
            let name = format!("model.layers.{layer}.{name}");
            d.extra.push(extra(name, shape, Part::Other, false, Some(layer)));
        }
    }
    Ok(())
}
