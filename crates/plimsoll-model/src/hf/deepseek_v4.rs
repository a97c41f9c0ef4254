//! DeepSeek-V4: one shared key-value head over a window, compressed entries beyond it, low-rank queries and outputs,
//! hyper-connections. Its parameters are exact; of its caches, only the window is modelled.

use super::ImportError;
use super::decoder::{Decoder, attention};
use super::encoder::extra;
use super::keys::{HIDDEN, Keys, LAYERS, VOCAB};
use super::mixture::experts;
use crate::arch::{Attention, Ffn, Mlp, Moe, Positions, Span};
use crate::inventory::{Naming, Part};

/// The decoder, if `family` is DeepSeek-V4.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Decoder>, ImportError> {
    if family != "deepseek_v4" {
        return Ok(None);
    }
    let hidden = keys.size(HIDDEN)?;
    let attention = attention(keys, hidden)?;
    let window = keys.size_or(&["sliding_window"], 128)?;
    let attention =
        Attention { span: Span::Sliding { window }, value_is_key: true, sinks: true, ..attention };
    let mut d = Decoder::base(keys, hidden, keys.size(LAYERS)?, keys.size(VOCAB)?, attention)?;
    d.naming = Naming::DeepSeekV4;
    d.positions = Positions::Rotary { dim: keys.size_or(&["qk_rope_head_dim"], 64)? };
    keys.assume("compress_ratios", "compressed cache entries beyond the window are not counted");
    let width = keys.size(&["moe_intermediate_size"])?;
    let common = keys.count_or(&["n_shared_experts"], 1)?;
    let moe = experts(keys, &d, width)?;
    let shared = (common > 0).then_some(Mlp { width: width.saturating_mul(common), ..d.mlp });
    // Layers that route by a hash of the token need no correction.
    let hashed = keys.count_or(&["num_hash_layers"], 3)?;
    d.ffns = (0..d.layers)
        .map(|i| Ffn::Moe(Moe { shared, correction_bias: i >= hashed, ..moe.clone() }))
        .collect();
    let ratios = keys.numbers("compress_ratios")?.unwrap_or_default();
    if !ratios.is_empty() && (ratios.len() as u64) < d.layers {
        let against = format!("the model has {} layers", d.layers);
        return Err(keys.contradiction(
            "compress_ratios",
            format!("a list of {}", ratios.len()),
            against,
        ));
    }
    let sizes = Sizes::read(keys, &d)?;
    for layer in 0..d.layers {
        let ratio = ratios.get(layer as usize).copied().unwrap_or(0);
        sizes.layer(&mut d, layer, ratio);
    }
    let streams = sizes.streams;
    for (name, shape) in [
        ("hc_fn", vec![streams, streams.saturating_mul(hidden)]),
        ("hc_base", vec![streams]),
        ("hc_scale", vec![1]),
    ] {
        d.extra.push(extra(format!("model.hc_head.{name}"), shape, Part::Other, false, None));
    }
    Ok(Some(d))
}

struct Sizes {
    hidden: u64,
    heads: u64,
    head_dim: u64,
    q_rank: u64,
    o_rank: u64,
    o_groups: u64,
    streams: u64,
    index_heads: u64,
    index_dim: u64,
}

impl Sizes {
    fn read(keys: &Keys<'_>, d: &Decoder) -> Result<Self, ImportError> {
        let sizes = Sizes {
            hidden: d.hidden,
            heads: d.attention.heads,
            head_dim: d.attention.head_dim,
            q_rank: keys.size(&["q_lora_rank"])?,
            o_rank: keys.size(&["o_lora_rank"])?,
            o_groups: keys.size_or(&["o_groups"], 8)?,
            streams: keys.size_or(&["hc_mult"], 4)?,
            index_heads: keys.size_or(&["index_n_heads"], 64)?,
            index_dim: keys.size_or(&["index_head_dim"], 128)?,
        };
        if !sizes.heads.is_multiple_of(sizes.o_groups) {
            let against = format!("it must divide `num_attention_heads`, which is {}", sizes.heads);
            return Err(keys.contradiction("o_groups", sizes.o_groups, against));
        }
        Ok(sizes)
    }

    fn layer(&self, d: &mut Decoder, layer: u64, ratio: u64) {
        let (hidden, dim) = (self.hidden, self.head_dim);
        let mut add = |name: &str, shape: Vec<u64>, part| {
            d.extra.push(extra(
                format!("model.layers.{layer}.{name}"),
                shape,
                part,
                false,
                Some(layer),
            ));
        };
        let all = self.heads.saturating_mul(dim);
        let grouped = self.o_groups.saturating_mul(self.o_rank);
        add("self_attn.q_a_proj.weight", vec![self.q_rank, hidden], Part::QueryDown);
        add("self_attn.q_a_norm.weight", vec![self.q_rank], Part::QueryDownNorm);
        add("self_attn.q_b_proj.weight", vec![all, self.q_rank], Part::QueryUp);
        add("self_attn.kv_norm.weight", vec![dim], Part::KeyNorm);
        add("self_attn.o_a_proj.weight", vec![grouped, all / self.o_groups], Part::Output);
        add("self_attn.o_b_proj.weight", vec![hidden, grouped], Part::Output);
        let mixes = self.streams.saturating_add(2).saturating_mul(self.streams);
        for side in ["attn_hc", "ffn_hc"] {
            add(
                &format!("{side}.fn"),
                vec![mixes, self.streams.saturating_mul(hidden)],
                Part::Other,
            );
            add(&format!("{side}.base"), vec![mixes], Part::Other);
            add(&format!("{side}.scale"), vec![3], Part::Other);
        }
        if ratio == 0 {
            return;
        }
        // Short ratios overlap their windows, which doubles the width, and have an indexer.
        let overlaps = ratio == 4;
        let mut compressor = |at: &str, width: u64| {
            let wide = if overlaps { width.saturating_mul(2) } else { width };
            add(&format!("{at}.position_bias"), vec![ratio, wide], Part::Indexer);
            add(&format!("{at}.kv_proj.weight"), vec![wide, hidden], Part::Indexer);
            add(&format!("{at}.gate_proj.weight"), vec![wide, hidden], Part::Indexer);
            add(&format!("{at}.kv_norm.weight"), vec![width], Part::Indexer);
        };
        compressor("self_attn.compressor", dim);
        if overlaps {
            let at = "self_attn.compressor.indexer";
            compressor(at, self.index_dim);
            let queries = self.index_heads.saturating_mul(self.index_dim);
            add(&format!("{at}.q_b_proj.weight"), vec![queries, self.q_rank], Part::Indexer);
            add(
                &format!("{at}.scorer.weights_proj.weight"),
                vec![self.index_heads, hidden],
                Part::Indexer,
            );
        }
    }
}
