//! Decoders from before Llama: layer norms, biases, ungated feed-forwards, names of their own.

use super::ImportError;
use super::decoder::Decoder;
use super::families::SCALE;
use super::keys::Keys;
use crate::arch::{Activation, Extra, Norm, NormPlacement, Positions, QkNorm, Span};
use crate::inventory::{Naming, Part};

/// The decoder, if `family` is one of these.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Decoder>, ImportError> {
    let built = match family {
        "gpt2" => gpt2(keys, Naming::Gpt2),
        "gpt_bigcode" => bigcode(keys),
        "gptj" => gptj(keys),
        "gpt_neo" => gpt_neo(keys),
        "gpt_neox" => gpt_neox(keys),
        "persimmon" => persimmon(keys),
        "falcon" | "RefinedWebModel" | "RefinedWeb" => falcon(keys),
        "bloom" => bloom(keys),
        "opt" => opt(keys),
        "mpt" => mpt(keys),
        _ => return Ok(None),
    };
    built.map(Some)
}

/// What they share: layer norms, biases everywhere, an ungated feed-forward four times as wide where not written.
fn base(
    keys: &Keys<'_>,
    naming: Naming,
    prefix: &str,
    list: &'static str,
) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?;
    d.naming = naming;
    prefix.clone_into(&mut d.root);
    d.list = list;
    d.layer_norm(Norm::LAYER);
    d.mlp.gated = false;
    d.mlp.bias = true;
    let wide = d.hidden.saturating_mul(4);
    d.mlp.width =
        keys.size_or(&["n_inner", "intermediate_size", "ffn_hidden_size", "ffn_dim"], wide)?;
    (d.attention.qkv_bias, d.attention.out_bias) = (true, true);
    Ok(d)
}

fn gpt2(keys: &Keys<'_>, naming: Naming) -> Result<Decoder, ImportError> {
    let mut d = base(keys, naming, "transformer.", "h")?;
    d.attention.fused_qkv = true;
    d.attention.dropout = keys.positive(&["attn_pdrop"], true);
    d.dropout = keys.positive(&["resid_pdrop"], true);
    d.mlp.activation = keys.activation(Activation::GeluComposed);
    let rows = keys.size_or(&["n_positions", "max_position_embeddings"], 1024)?;
    d.positions = Positions::Learned { rows };
    d.max_positions = Some(rows);
    d.tied = keys.flag("tie_word_embeddings", true)?;
    Ok(d)
}

fn bigcode(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = gpt2(keys, Naming::GptBigCode)?;
    d.mlp.activation = keys.activation(Activation::GeluTanh);
    if keys.flag("multi_query", true)? {
        d.attention.kv_heads = 1;
    }
    Ok(d)
}

fn gptj(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::GptJ, "transformer.", "h")?;
    (d.attention.qkv_bias, d.attention.out_bias) = (false, false);
    (d.norms, d.parallel, d.head_bias) = (1, true, true);
    d.mlp.activation = keys.activation(Activation::GeluComposed);
    d.positions = Positions::Rotary { dim: keys.size_or(&["rotary_dim"], 64)? };
    d.max_positions = keys.size_if(&["n_positions"])?.or(Some(2048));
    Ok(d)
}

fn gpt_neo(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::GptNeo, "transformer.", "h")?;
    d.attention.qkv_bias = false;
    d.mlp.activation = keys.activation(Activation::GeluComposed);
    let rows = keys.size_or(&["max_position_embeddings"], 2048)?;
    d.positions = Positions::Learned { rows };
    d.tied = keys.flag("tie_word_embeddings", true)?;
    let window = keys.size_or(&["window_size"], 256)?;
    if let Some(kinds) = keys.kinds("attention_layers", d.layers, &["global", "local"])? {
        let span = |kind: &str| if kind == "local" { Span::Sliding { window } } else { Span::Full };
        d.spans = kinds.into_iter().map(span).collect();
    } else {
        d.spans = (0..d.layers)
            .map(|i| if i % 2 == 1 { Span::Sliding { window } } else { Span::Full })
            .collect();
    }
    Ok(d)
}

fn gpt_neox(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::GptNeoX, "gpt_neox.", "layers")?;
    d.attention.fused_qkv = true;
    let bias = keys.flag("attention_bias", true)?;
    (d.attention.qkv_bias, d.attention.out_bias) = (bias, bias);
    d.parallel = keys.flag("use_parallel_residual", true)?;
    d.dropout = keys.positive(&["hidden_dropout"], false);
    d.mlp.activation = keys.activation(Activation::Gelu);
    d.partial_rotary(keys, 0.25);
    Ok(d)
}

fn persimmon(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::Persimmon, "model.", "layers")?;
    d.attention.fused_qkv = true;
    d.mlp.activation = keys.activation(Activation::Relu2);
    if keys.flag("qk_layernorm", true)? {
        d.attention.qk_norm = QkNorm::PerHeadLayer;
    }
    d.partial_rotary(keys, 0.5);
    Ok(d)
}

fn falcon(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::Falcon, "transformer.", "h")?;
    d.attention.fused_qkv = true;
    let bias = keys.flag("bias", false)?;
    (d.attention.qkv_bias, d.attention.out_bias, d.mlp.bias) = (bias, bias, bias);
    let new = keys.flag("new_decoder_architecture", false)?;
    if new {
        let kv = keys.size_or(&["num_kv_heads", "n_head_kv"], d.attention.heads)?;
        d.attention.kv_heads = kv;
    } else {
        d.attention.kv_heads = if keys.flag("multi_query", true)? { 1 } else { d.attention.heads };
    }
    d.parallel = new || keys.flag("parallel_attn", true)?;
    let separate = keys.count_or(&["num_ln_in_parallel_attn"], if new { 2 } else { 1 })?;
    d.norms = if !d.parallel || separate == 2 { 2 } else { 1 };
    if new && separate == 2 {
        d.naming = Naming::FalconNew;
    }
    d.mlp.activation = keys.activation(Activation::Gelu);
    d.dropout = keys.positive(&["hidden_dropout"], false);
    if keys.flag("alibi", false)? {
        d.positions = Positions::Alibi;
    }
    d.max_positions = d.max_positions.or(Some(2048));
    d.tied = keys.flag("tie_word_embeddings", true)?;
    Ok(d)
}

fn bloom(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::Falcon, "transformer.", "h")?;
    d.attention.fused_qkv = true;
    d.embedding_norm = Some(Norm::LAYER);
    d.positions = Positions::Alibi;
    d.mlp.activation = Activation::GeluComposed;
    // The key `n_inner` of BLOOM's configurations is not read by its modeling code.
    d.mlp.width = d.hidden.saturating_mul(4);
    d.dropout = keys.positive(&["hidden_dropout"], false);
    d.tied = keys.flag("tie_word_embeddings", true)?;
    Ok(d)
}

fn opt(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::Opt, "model.decoder.", "layers")?;
    let bias = keys.flag("enable_bias", true)?;
    (d.attention.qkv_bias, d.attention.out_bias, d.mlp.bias) = (bias, bias, bias);
    d.mlp.activation = keys.activation(Activation::Relu);
    d.dropout = keys.positive(&["dropout"], true);
    let rows = keys.size_or(&["max_position_embeddings"], 2048)?;
    // Two rows more: the modeling code offsets positions by two.
    d.positions = Positions::Learned { rows: rows.saturating_add(2) };
    d.max_positions = Some(rows);
    d.tied = keys.flag("tie_word_embeddings", true)?;
    if !keys.flag("do_layer_norm_before", true)? {
        d.placement = NormPlacement::Post;
        d.final_norm = None;
    } else if keys.flag("_remove_final_layer_norm", false)? {
        d.final_norm = None;
    }
    d.embedding_width = keys.size_or(&["word_embed_proj_dim"], d.hidden)?;
    if d.embedding_width != d.hidden {
        d.projection = Some(false);
        d.extra.push(Extra {
            name: "model.decoder.project_out.weight".to_owned(),
            shape: vec![d.embedding_width, d.hidden],
            part: Part::EmbeddingProjection,
            bias: false,
            stack: None,
            layer: None,
        });
    }
    Ok(d)
}

fn mpt(keys: &Keys<'_>) -> Result<Decoder, ImportError> {
    let mut d = base(keys, Naming::Mpt, "transformer.", "blocks")?;
    d.attention.fused_qkv = true;
    d.layer_norm(SCALE);
    if !keys.flag("no_bias", true)? {
        d.layer_norm(Norm::LAYER);
    }
    let bias = d.norm.bias;
    (d.attention.qkv_bias, d.attention.out_bias, d.mlp.bias) = (bias, bias, bias);
    d.mlp.activation = Activation::Gelu;
    d.mlp.width = d.hidden.saturating_mul(keys.size_or(&["expansion_ratio"], 4)?);
    d.positions = Positions::Alibi;
    d.tied = keys.flag("tie_word_embeddings", true)?;
    if let Some(attention) = keys.nested("attn_config", &[]) {
        if let Some(kv) = attention.size_if(&["kv_n_heads"])? {
            d.attention.kv_heads = kv.min(d.attention.heads);
        }
        if !attention.flag("alibi", true)? && keys.flag("learned_pos_emb", true)? {
            d.positions = Positions::Learned { rows: keys.size_or(&["max_seq_len"], 2048)? };
        }
        if attention.flag("qk_ln", false)? {
            d.attention.qk_norm = QkNorm::Full;
        }
    }
    Ok(d)
}
