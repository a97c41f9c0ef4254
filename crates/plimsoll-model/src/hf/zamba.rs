//! Zamba 2: Mamba-2 layers, some of which first run a transformer block whose parameters they share.

use serde_json::Value;

use super::ImportError;
use super::decoder::Decoder;
use super::encoder::extra;
use super::keys::{HEADS, Keys};
use super::seq2seq::{head_dim, multi_head};
use crate::arch::{Architecture, Attention, Ffn, Mamba2, Mixer, Positions};
use crate::inventory::{Naming, Part};

/// The architecture, if `family` is Zamba 2.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    if family != "zamba2" {
        return Ok(None);
    }
    let mut d = Decoder::llama(keys)?;
    d.naming = Naming::Zamba2;
    d.tied = keys.flag("tie_word_embeddings", true)?;
    d.norms = 1;
    d.ffns = vec![Ffn::None; d.layers as usize];
    let hybrid: Vec<u64> = match (
        keys.numbers("hybrid_layer_ids")?,
        keys.kinds("layers_block_type", d.layers, &["mamba", "hybrid"])?,
    ) {
        (Some(list), _) => list,
        (None, Some(kinds)) => {
            (0u64..).zip(kinds).filter(|(_, kind)| *kind == "hybrid").map(|(i, _)| i).collect()
        }
        (None, None) => {
            return Err(keys.bad("hybrid_layer_ids", &Value::Null, "a list of layers"));
        }
    };
    let inner = d.hidden.saturating_mul(keys.size_or(&["mamba_expand"], 2)?);
    let heads = keys.size_or(&["n_mamba_heads"], 8)?;
    let mixer = Mamba2 {
        inner,
        state: keys.size_or(&["mamba_d_state"], 64)?,
        conv: keys.size_or(&["mamba_d_conv"], 4)?,
        heads,
        head_dim: (inner / heads).max(1),
        groups: keys.size_or(&["mamba_ngroups"], 1)?,
        conv_bias: keys.flag("use_conv_bias", true)?,
        bias: keys.flag("add_bias_linear", false)?,
        norm: true,
    };
    // The shared block sees the stream beside the embeddings: twice the width.
    let wide = d.hidden.saturating_mul(2);
    let query_heads = keys.size(HEADS)?;
    let dim = keys.size_or(
        &["attention_head_dim"],
        head_dim(keys, "num_attention_heads", query_heads, wide)?,
    )?;
    let kv_heads = keys.size_or(&["num_key_value_heads"], query_heads)?;
    let attention = Attention { kv_heads, ..multi_head(query_heads, dim, false, false) };
    d.positions =
        if keys.flag("use_mem_rope", false)? { Positions::Rotary { dim } } else { Positions::None };
    d.mixers = (0..d.layers)
        .map(|i| {
            if hybrid.contains(&i) {
                Mixer::Parallel(Box::new(attention.clone()), Box::new(mixer.clone()))
            } else {
                Mixer::Mamba2(mixer.clone())
            }
        })
        .collect();
    keys.assume(
        "hybrid_layer_ids",
        "shared blocks count once among parameters; their feed-forward has no layer",
    );
    shared_blocks(keys, &mut d, &hybrid, &attention)?;
    let mut a = d.finish();
    for stack in &mut a.stacks {
        for layer in &hybrid {
            if let Some(layer) = stack.layers.get_mut(*layer as usize) {
                layer.naming = Some(Naming::Zamba2Hybrid);
            }
        }
    }
    Ok(Some(a))
}

/// The shared blocks stand under the first hybrid layers; each later user has adapters in the block that it uses.
fn shared_blocks(
    keys: &Keys<'_>,
    d: &mut Decoder,
    hybrid: &[u64],
    attention: &Attention,
) -> Result<(), ImportError> {
    let hidden = d.hidden;
    let all = attention.heads.saturating_mul(attention.head_dim);
    let key = attention.kv_heads.saturating_mul(attention.head_dim);
    let wide = hidden.saturating_mul(2);
    let width = keys.size_or(&["intermediate_size"], hidden.saturating_mul(4))?;
    let rank = keys.size_or(&["adapter_rank"], 128)?;
    let blocks = keys.size_or(&["num_mem_blocks"], 1)?;
    let adapts_attention = keys.flag("use_shared_attention_adapter", false)?;
    let mut add = |layer: u64, name: &str, shape: Vec<u64>, part| {
        let name = format!("model.layers.{layer}.{name}");
        d.extra.push(extra(name, shape, part, false, Some(layer)));
    };
    for (use_index, layer) in (0u64..).zip(hybrid) {
        add(*layer, "linear.weight", vec![hidden, hidden], Part::Other);
        if use_index >= blocks {
            continue;
        }
        for (name, shape, part) in [
            ("self_attn.q_proj", vec![all, wide], Part::Query),
            ("self_attn.k_proj", vec![key, wide], Part::Key),
            ("self_attn.v_proj", vec![key, wide], Part::Value),
            ("self_attn.o_proj", vec![hidden, all], Part::Output),
            ("feed_forward.gate_up_proj", vec![width.saturating_mul(2), hidden], Part::GateUp),
            ("feed_forward.down_proj", vec![hidden, width], Part::Down),
            ("input_layernorm", vec![wide], Part::Norm3),
            ("pre_ff_layernorm", vec![hidden], Part::Norm4),
        ] {
            add(*layer, &format!("shared_transformer.{name}.weight"), shape, part);
        }
        let users = (0..hybrid.len() as u64).filter(|user| user % blocks == use_index);
        for user in users {
            let mut pair = |list: &str, outputs: u64, inputs: u64| {
                let at = format!("shared_transformer.{list}.{user}");
                add(*layer, &format!("{at}.0.weight"), vec![rank, inputs], Part::Other);
                add(*layer, &format!("{at}.1.weight"), vec![outputs, rank], Part::Other);
            };
            pair("feed_forward.gate_up_proj_adapter_list", width.saturating_mul(2), hidden);
            if adapts_attention {
                for (part, width) in [("q", all), ("k", key), ("v", key)] {
                    pair(&format!("self_attn.linear_{part}_adapter_list"), width, wide);
                }
            }
        }
    }
    Ok(())
}
