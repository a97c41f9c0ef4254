//! Recurrent decoders, and hybrids of recurrence and attention.

use serde_json::Value;

use super::ImportError;
use super::decoder::Decoder;
use super::families::biases_from;
use super::keys::{HIDDEN, Keys, LAYERS, VOCAB};
use super::mixture::{experts, qwen_sparse};
use crate::arch::{
    Activation, Architecture, Attention, Ffn, GatedDelta, Mamba1, Mamba2, Mixer, Mlp, Moe,
    Positions, QkNorm, Span,
};
use crate::inventory::Naming;

/// The architecture, if `family` is one of these.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    let built = match family {
        "mamba" | "falcon_mamba" => mamba(keys)?,
        "mamba2" => mamba2(keys)?,
        "jamba" => jamba(keys)?,
        "bamba" => bamba(keys)?,
        "granitemoehybrid" => granite(keys)?,
        "falcon_h1" => falcon_h1(keys)?,
        "nemotron_h" => nemotron_h(keys)?,
        "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => qwen3_next(keys, family)?,
        "lfm2" | "lfm2_moe" => lfm2(keys, family)?,
        _ => return Ok(None),
    };
    Ok(Some(built.finish()))
}

/// A size that may be written as `"auto"`.
fn or_auto(keys: &Keys<'_>, key: &'static str, auto: u64) -> Result<u64, ImportError> {
    if keys.text(key) == Some("auto") { Ok(auto) } else { keys.size_or(&[key], auto) }
}

/// An attention that no layer has; pure recurrent families carry no head counts.
fn no_attention() -> Attention {
    Attention {
        heads: 1,
        kv_heads: 1,
        head_dim: 1,
        value_dim: 1,
        span: Span::Full,
        qkv_bias: false,
        key_bias: None,
        out_bias: false,
        fused_qkv: false,
        qk_norm: QkNorm::None,
        sinks: false,
        gated: false,
        dropout: false,
        shares_kv: false,
        value_is_key: false,
    }
}

/// A decoder whose layers are one mixer behind one norm.
fn recurrent(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let hidden = keys.size(HIDDEN)?;
    let mut d = Decoder::base(keys, hidden, keys.size(LAYERS)?, keys.size(VOCAB)?, no_attention())?;
    d.naming = Naming::Mamba;
    "backbone.".clone_into(&mut d.root);
    d.positions = Positions::None;
    d.norms = 1;
    d.ffns = vec![Ffn::None; d.layers as usize];
    Ok(d)
}

fn mamba(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = recurrent(keys)?;
    let expanded = d.hidden.saturating_mul(keys.size_or(&["expand"], 2)?);
    let mixer = Mamba1 {
        inner: keys.size_or(&["intermediate_size"], expanded)?,
        state: keys.size_or(&["state_size"], 16)?,
        conv: keys.size_or(&["conv_kernel"], 4)?,
        dt_rank: or_auto(keys, "time_step_rank", d.hidden.div_ceil(16))?,
        conv_bias: keys.flag("use_conv_bias", true)?,
        bias: keys.flag("use_bias", false)?,
        inner_norms: false,
    };
    d.mixers = vec![Mixer::Mamba1(mixer); d.layers as usize];
    d.tied = keys.flag("tie_word_embeddings", true)?;
    Ok(d)
}

fn mamba2(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = recurrent(keys)?;
    let inner = d.hidden.saturating_mul(keys.size_or(&["expand"], 2)?);
    let head_dim = keys.size_or(&["head_dim"], 64)?;
    let heads = keys.size_or(&["num_heads"], inner / head_dim)?;
    check_heads(keys, "num_heads", heads, head_dim, inner)?;
    let mixer = Mamba2 {
        inner,
        state: keys.size_or(&["state_size"], 128)?,
        conv: keys.size_or(&["conv_kernel"], 4)?,
        heads,
        head_dim,
        groups: keys.size_or(&["n_groups"], 8)?,
        conv_bias: keys.flag("use_conv_bias", true)?,
        bias: keys.flag("use_bias", false)?,
        norm: true,
    };
    d.mixers = vec![Mixer::Mamba2(mixer); d.layers as usize];
    Ok(d)
}

fn check_heads(
    keys: &Keys<'_>,
    key: &str,
    heads: u64,
    head_dim: u64,
    inner: u64,
) -> Result<(), ImportError> {
    if heads.saturating_mul(head_dim) == inner {
        return Ok(());
    }
    let against = format!("{heads} heads of {head_dim} channels are not the inner width {inner}");
    Err(keys.contradiction(key, heads, against))
}

/// Mamba-2 under the `mamba_` keys that hybrids share.
fn mamba2_of(keys: &Keys<'_>, hidden: u64, state: u64) -> Result<Mamba2, ImportError> {
    let expanded = hidden.saturating_mul(keys.size_or(&["mamba_expand"], 2)?);
    let inner = keys.size_or(&["mamba_d_ssm"], expanded)?;
    let heads = keys.size_or(&["mamba_n_heads"], 128)?;
    let head_dim = or_auto(keys, "mamba_d_head", inner / heads)?;
    check_heads(keys, "mamba_n_heads", heads, head_dim, inner)?;
    Ok(Mamba2 {
        inner,
        state: keys.size_or(&["mamba_d_state"], state)?,
        conv: keys.size_or(&["mamba_d_conv"], 4)?,
        heads,
        head_dim,
        groups: keys.size_or(&["mamba_n_groups"], 1)?,
        conv_bias: keys.flag("mamba_conv_bias", true)?,
        bias: keys.flag("mamba_proj_bias", false)?,
        norm: true,
    })
}

fn jamba(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::Jamba;
    d.positions = Positions::None;
    let mixer = Mamba1 {
        inner: d.hidden.saturating_mul(keys.size_or(&["mamba_expand"], 2)?),
        state: keys.size_or(&["mamba_d_state"], 16)?,
        conv: keys.size_or(&["mamba_d_conv"], 4)?,
        dt_rank: or_auto(keys, "mamba_dt_rank", d.hidden.div_ceil(16))?,
        conv_bias: keys.flag("mamba_conv_bias", true)?,
        bias: keys.flag("mamba_proj_bias", false)?,
        inner_norms: true,
    };
    let period = keys.size_or(&["attn_layer_period"], 8)?;
    let offset = keys.count_or(&["attn_layer_offset"], 4)?;
    d.mixers = (0..d.layers)
        .map(|i| {
            if i % period == offset {
                Mixer::Attention(d.attention.clone())
            } else {
                Mixer::Mamba1(mixer.clone())
            }
        })
        .collect();
    if keys.size_or(&["num_experts"], 16)? > 1 {
        d.moe = Some(experts(keys, &d, d.mlp.width)?);
        let period = keys.size_or(&["expert_layer_period"], 2)?;
        let offset = keys.count_or(&["expert_layer_offset"], 1)?;
        d.sparse = (0..d.layers).map(|i| i % period == offset).collect();
    }
    Ok(d)
}

fn bamba(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::Jamba;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.mlp.bias = keys.flag("mlp_bias", false)?;
    d.partial_rotary(keys, 0.5);
    let mixer = mamba2_of(keys, d.hidden, 256)?;
    let attending = keys.numbers("attn_layer_indices")?.unwrap_or_default();
    d.mixers = (0..d.layers)
        .map(|i| {
            if attending.contains(&i) {
                Mixer::Attention(d.attention.clone())
            } else {
                Mixer::Mamba2(mixer.clone())
            }
        })
        .collect();
    Ok(d)
}

/// Granite 4: Mamba-2 or attention, then routed experts and a shared one, or the shared one alone.
fn granite(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::Granite;
    biases_from(keys, &mut d, "attention_bias", false)?;
    if keys.text("position_embedding_type") != Some("rope") {
        d.positions = Positions::None;
    }
    let known = ["attention", "full_attention", "mamba", "linear_attention"];
    let kinds = match keys.kinds("layer_types", d.layers, &known)? {
        Some(kinds) => Some(kinds),
        None => keys.kinds("layers_block_type", d.layers, &known)?,
    };
    let recurrent = |kind: &str| matches!(kind, "mamba" | "linear_attention");
    if kinds.as_ref().is_none_or(|list| list.iter().any(|kind| recurrent(kind))) {
        let mixer = mamba2_of(keys, d.hidden, 256)?;
        d.mixers = (0..d.layers as usize)
            .map(|i| match kinds.as_ref().and_then(|list| list.get(i)) {
                Some(kind) if !recurrent(kind) => Mixer::Attention(d.attention.clone()),
                _ => Mixer::Mamba2(mixer.clone()),
            })
            .collect();
    }
    let wide = Mlp {
        width: keys.size_or(&["shared_intermediate_size"], 1024)?,
        fused_gate: true,
        ..d.mlp
    };
    if keys.count_or(&["num_local_experts"], 8)? > 0 {
        let moe = experts(keys, &d, d.mlp.width)?;
        d.moe = Some(Moe { shared: Some(wide), ..moe });
    } else {
        d.mlp = wide;
    }
    Ok(d)
}

fn falcon_h1(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::Jamba;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.mlp.bias = keys.flag("mlp_bias", false)?;
    let mut mixer = mamba2_of(keys, d.hidden, 256)?;
    mixer.norm = keys.flag("mamba_rms_norm", false)?;
    let both = Mixer::Parallel(Box::new(d.attention.clone()), Box::new(mixer));
    d.mixers = vec![both; d.layers as usize];
    Ok(d)
}

/// One mixer, feed-forward or mixture per layer, as `hybrid_override_pattern` (`M*-E`) or `layers_block_type` says.
fn nemotron_h(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let hidden = keys.size(HIDDEN)?;
    let kinds: Vec<char> =
        match (keys.text("hybrid_override_pattern"), keys.get("layers_block_type")) {
            (Some(pattern), _) => pattern.chars().take(10_000).collect(),
            (None, Some(Value::Array(items))) => items
                .iter()
                .take(10_000)
                .map(|kind| match kind.as_str() {
                    Some("mamba" | "linear_attention") => 'M',
                    Some("attention" | "full_attention") => '*',
                    Some("moe") => 'E',
                    _ => '-',
                })
                .collect(),
            _ => {
                let pattern = Value::Null;
                let accepted = "a string of `M`, `*`, `-` and `E`, one letter per layer";
                return Err(keys.bad("hybrid_override_pattern", &pattern, accepted));
            }
        };
    let layers = keys.size_or(LAYERS, kinds.len() as u64)?;
    if layers != kinds.len() as u64 {
        let against = format!("`hybrid_override_pattern` names {} layers", kinds.len());
        return Err(keys.contradiction("num_hidden_layers", layers, against));
    }
    let mut attention = super::decoder::attention(keys, hidden)?;
    attention.head_dim = keys.size_or(&["head_dim", "attention_head_dim"], 128)?;
    attention.value_dim = attention.head_dim;
    let mut d = Decoder::base(keys, hidden, layers, keys.size(VOCAB)?, attention)?;
    d.naming = Naming::NemotronH;
    d.positions = Positions::None;
    biases_from(keys, &mut d, "attention_bias", false)?;
    d.norms = 1;
    d.mlp = Mlp {
        width: keys.size_or(&["intermediate_size"], 21504)?,
        gated: false,
        bias: keys.flag("mlp_bias", false)?,
        activation: keys.activation(Activation::Relu2),
        fused_gate: false,
    };
    let (heads, head_dim) =
        (keys.size_or(&["mamba_num_heads"], 128)?, keys.size_or(&["mamba_head_dim"], 64)?);
    let mixer = Mamba2 {
        inner: heads.saturating_mul(head_dim),
        state: keys.size_or(&["ssm_state_size"], 128)?,
        conv: keys.size_or(&["conv_kernel"], 4)?,
        heads,
        head_dim,
        groups: keys.size_or(&["n_groups"], 8)?,
        conv_bias: keys.flag("use_conv_bias", true)?,
        bias: keys.flag("mamba_proj_bias", false)?,
        norm: true,
    };
    let moe = if kinds.contains(&'E') {
        let moe = experts(keys, &d, keys.size(&["moe_intermediate_size"])?)?;
        let wide = keys.size_or(&["moe_shared_expert_intermediate_size"], moe.expert.width)?;
        let shared = keys.count_or(&["n_shared_experts"], 1)? > 0;
        Some(Moe {
            shared: shared.then_some(Mlp { width: wide, ..d.mlp }),
            correction_bias: true,
            ..moe
        })
    } else {
        None
    };
    d.mixers = kinds
        .iter()
        .map(|kind| match kind {
            'M' => Mixer::Mamba2(mixer.clone()),
            '*' => Mixer::Attention(d.attention.clone()),
            _ => Mixer::None,
        })
        .collect();
    d.ffns = kinds
        .iter()
        .map(|kind| match (kind, &moe) {
            ('E', Some(moe)) => Ffn::Moe(moe.clone()),
            ('M' | '*', _) => Ffn::None,
            _ => Ffn::Dense(d.mlp),
        })
        .collect();
    Ok(d)
}

fn qwen3_next(keys: &Keys<'_>, family: &str) -> Result<Decoder, ImportError> {
    let mixture = family != "qwen3_5_text";
    let mut d = Decoder::llama(keys)?;
    d.mlp.width = if mixture {
        keys.size_or(&["intermediate_size"], 5632)?
    } else {
        keys.size(&["intermediate_size"])?
    };
    if family != "qwen3_next" {
        d.naming = Naming::Qwen35;
    }
    biases_from(keys, &mut d, "attention_bias", false)?;
    let head_dim = keys.size_or(&["head_dim"], 256)?;
    (d.attention.head_dim, d.attention.value_dim) = (head_dim, head_dim);
    d.attention.gated = keys.flag("attn_output_gate", true)?;
    d.attention.qk_norm = QkNorm::PerHead;
    d.partial_rotary(keys, 0.25);
    let delta = GatedDelta {
        key_heads: keys.size_or(&["linear_num_key_heads"], 16)?,
        value_heads: keys.size_or(&["linear_num_value_heads"], 32)?,
        key_dim: keys.size_or(&["linear_key_head_dim"], 128)?,
        value_dim: keys.size_or(&["linear_value_head_dim"], 128)?,
        conv: keys.size_or(&["linear_conv_kernel_dim"], 4)?,
    };
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        let against =
            format!("it must divide `linear_num_value_heads`, which is {}", delta.value_heads);
        return Err(keys.contradiction("linear_num_key_heads", delta.key_heads, against));
    }
    let every = keys.size_or(&["full_attention_interval"], 4)?;
    let kinds = keys.kinds("layer_types", d.layers, &["full_attention", "linear_attention"])?;
    d.mixers = (0..d.layers)
        .map(|i| {
            let full = match &kinds {
                Some(list) => list.get(i as usize).is_some_and(|kind| *kind == "full_attention"),
                None => (i + 1).is_multiple_of(every),
            };
            if full {
                Mixer::Attention(d.attention.clone())
            } else {
                Mixer::GatedDelta(delta.clone())
            }
        })
        .collect();
    if mixture {
        let moe = experts(keys, &d, keys.size_or(&["moe_intermediate_size"], 512)?)?;
        let wide = keys.size_or(&["shared_expert_intermediate_size"], 512)?;
        let shared = Some(Mlp { width: wide, ..d.mlp });
        d.moe = Some(Moe { shared, shared_gate: true, ..moe });
        d.sparse = qwen_sparse(keys, &d)?;
    }
    Ok(d)
}

fn lfm2(keys: &Keys<'_>, family: &str) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?;
    d.naming = Naming::Lfm2;
    d.tied = keys.flag("tie_word_embeddings", keys.flag("tie_embedding", true)?)?;
    d.attention.qk_norm = QkNorm::PerHead;
    d.mlp.width = keys.size(&["block_ff_dim", "intermediate_size"])?;
    if family == "lfm2" && keys.flag("block_auto_adjust_ff_dim", true)? {
        // As the modeling code: two thirds, scaled, rounded up to a multiple.
        let factor = keys.fraction(&["block_ffn_dim_multiplier"]).unwrap_or(1.0).min(64.0);
        let width = d.mlp.width.saturating_mul(2) / 3;
        let multiple = keys.size_or(&["block_multiple_of"], 256)?;
        d.mlp.width = ((width as f64 * factor) as u64).div_ceil(multiple).saturating_mul(multiple);
    }
    let bias = keys.flag("conv_bias", false)?;
    let conv =
        Mixer::ShortConv { channels: d.hidden, kernel: keys.size_or(&["conv_L_cache"], 3)?, bias };
    let kinds = keys.kinds("layer_types", d.layers, &["full_attention", "conv"])?;
    let listed = keys.numbers("full_attn_idxs")?;
    d.mixers = (0..d.layers)
        .map(|i| {
            let attends = match (&kinds, &listed) {
                (Some(kinds), _) => {
                    kinds.get(i as usize).is_some_and(|kind| *kind == "full_attention")
                }
                (None, Some(list)) => list.contains(&i),
                (None, None) => true,
            };
            if attends { Mixer::Attention(d.attention.clone()) } else { conv.clone() }
        })
        .collect();
    if family == "lfm2_moe" {
        let moe = experts(keys, &d, keys.size(&["moe_intermediate_size"])?)?;
        d.moe = Some(Moe { correction_bias: keys.flag("use_expert_bias", true)?, ..moe });
        let dense = keys.count_or(&["num_dense_layers"], 2)?;
        d.sparse = (0..d.layers).map(|i| i >= dense).collect();
    }
    Ok(d)
}
