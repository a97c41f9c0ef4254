//! Kimi Linear: Kimi delta attention, with latent attention every few layers.

use super::ImportError;
use super::decoder::Decoder;
use super::keys::Keys;
use super::mixture::{deepseek_experts, latent};
use crate::arch::{GatedDelta, Mixer, Positions};
use crate::inventory::Naming;

/// The decoder, if `family` is Kimi Linear.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Decoder>, ImportError> {
    if family != "kimi_linear" {
        return Ok(None);
    }
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::KimiLinear;
    let full = latent(keys, None)?;
    d.positions = Positions::Rotary { dim: full.rope_dim };
    // The published file nests the sizes, transformers' own class flattens them.
    let nested = keys.nested("linear_attn_config", &[]);
    let heads = match nested {
        Some(inner) => inner.size_or(&["num_heads"], 32)?,
        None => keys.size_or(&["linear_num_heads"], 32)?,
    };
    let dim = match nested {
        Some(inner) => inner.size_or(&["head_dim"], 128)?,
        None => keys.size_or(&["linear_head_dim"], 128)?,
    };
    let conv = match nested {
        Some(inner) => inner.size_or(&["short_conv_kernel_size"], 4)?,
        None => keys.size_or(&["linear_conv_kernel_dim"], 4)?,
    };
    let delta =
        GatedDelta { key_heads: heads, value_heads: heads, key_dim: dim, value_dim: dim, conv };
    let kinds = keys.kinds("layer_types", d.layers, &["full_attention", "linear_attention"])?;
    let listed = nested.map(|inner| inner.numbers("full_attn_layers")).transpose()?.flatten();
    d.mixers = (0..d.layers)
        .map(|i| {
            let attends = match (&kinds, &listed) {
                (Some(kinds), _) => {
                    kinds.get(i as usize).is_some_and(|kind| *kind == "full_attention")
                }
                // The published lists count from one.
                (None, Some(list)) => list.contains(&(i + 1)),
                (None, None) => (i + 1).is_multiple_of(4),
            };
            if attends { Mixer::Latent(full.clone()) } else { Mixer::GatedDelta(delta.clone()) }
        })
        .collect();
    deepseek_experts(keys, &mut d, 1, Some(8), true)?;
    Ok(Some(d))
}
