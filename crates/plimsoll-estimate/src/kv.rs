//! What one layer keeps per token and per sequence on one tensor-parallel rank: the facts of the model. Paging,
//! grouping and padding belong to the engines.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Attention, GatedDelta, Layer, Mamba2, Mixer, Span, StackRole};
use plimsoll_units::DType;

/// Which positions of a sequence a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kept {
    /// All of them.
    Full,
    /// The last so many.
    Window(u64),
    /// Those of the current chunk.
    Chunk(u64),
}

/// The memory of one layer on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerCache {
    /// Keys and values, or a compressed latent, per token.
    Tokens {
        /// Positions that are kept.
        kept: Kept,
        /// Bytes per kept token.
        bytes: u64,
    },
    /// A recurrent state per sequence.
    State {
        /// Elements of the convolution state.
        conv: u64,
        /// Further elements of the convolution state per speculative token.
        conv_step: u64,
        /// Elements of the recurrent state.
        ssm: u64,
    },
}

/// Types of cache entries and how a rank shares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Type of keys and values.
    pub dtype: DType,
    /// Latent caches in fp8 have the fixed layout of FlashMLA, 656 bytes for 512 + 64 channels.
    pub packed_latent: bool,
}

/// Caches of the text layers of `model` on one rank, first to last. Layers that keep nothing (feed-forward only,
/// or reading an earlier layer's cache) have none; a layer with attention and a state side by side has two.
pub fn layer_caches(model: &Architecture, layout: &CacheLayout) -> Vec<Vec<LayerCache>> {
    let layers =
        model.stacks.iter().rev().find(|s| s.role == StackRole::Decoder).map(|s| &s.layers);
    layers.into_iter().flatten().map(|layer| caches_of(layer, model, layout)).collect()
}

/// Caches of one layer.
pub fn caches_of(layer: &Layer, model: &Architecture, layout: &CacheLayout) -> Vec<LayerCache> {
    match &layer.mixer {
        Mixer::Attention(attention) => attention_cache(attention, layout).into_iter().collect(),
        Mixer::Latent(latent) => {
            let width = latent.kv_lora_rank.saturating_add(latent.rope_dim);
            let packed = layout.packed_latent && layout.dtype.bytes(1).get() == 1;
            let bytes = if packed && latent.kv_lora_rank == 512 && latent.rope_dim == 64 {
                656
            } else {
                layout.dtype.bytes(width).get()
            };
            // The sparse indexer keeps an fp8 key of its own with one f32 scale per 128 channels.
            let indexer =
                latent.indexer.map_or(0, |(_, dim)| dim.saturating_add(dim.div_ceil(128) * 4));
            vec![LayerCache::Tokens { kept: Kept::Full, bytes: bytes.saturating_add(indexer) }]
        }
        Mixer::Mamba1(mamba) => {
            let inner = mamba.inner.div_ceil(layout.tensor.max(1));
            vec![LayerCache::State {
                conv: inner.saturating_mul(mamba.conv.saturating_sub(1)),
                conv_step: inner,
                ssm: inner.saturating_mul(mamba.state),
            }]
        }
        Mixer::Mamba2(mamba) => vec![mamba2_state(mamba, layout)],
        Mixer::GatedDelta(delta) => vec![delta_state(delta, layout)],
        Mixer::ShortConv { kernel, .. } => {
            let channels = model.hidden.div_ceil(layout.tensor.max(1));
            vec![LayerCache::State {
                conv: channels.saturating_mul(kernel.saturating_sub(1)),
                conv_step: channels,
                ssm: 0,
            }]
        }
        Mixer::Parallel(attention, mamba) => {
            let mut caches: Vec<_> = attention_cache(attention, layout).into_iter().collect();
            caches.push(mamba2_state(mamba, layout));
            caches
        }
        _ => Vec::new(),
    }
}

fn attention_cache(attention: &Attention, layout: &CacheLayout) -> Option<LayerCache> {
    if attention.shares_kv {
        return None;
    }
    let kept = match attention.span {
        Span::Sliding { window } => Kept::Window(window),
        Span::Chunked { chunk } => Kept::Chunk(chunk),
        _ => Kept::Full,
    };
    let heads = attention.kv_heads.div_ceil(layout.tensor.max(1)).max(1);
    let width = attention.head_dim.saturating_add(attention.value_dim);
    Some(LayerCache::Tokens { kept, bytes: layout.dtype.bytes(heads.saturating_mul(width)).get() })
}

fn mamba2_state(mamba: &Mamba2, layout: &CacheLayout) -> LayerCache {
    let tensor = layout.tensor.max(1);
    // Groups are repeated until every rank has one.
    let groups = if mamba.groups.is_multiple_of(tensor) { mamba.groups } else { tensor };
    let channels = mamba.inner.saturating_add(groups.saturating_mul(mamba.state).saturating_mul(2));
    let channels = channels.div_ceil(tensor);
    LayerCache::State {
        conv: channels.saturating_mul(mamba.conv.saturating_sub(1)),
        conv_step: channels,
        ssm: mamba
            .heads
            .div_ceil(tensor)
            .saturating_mul(mamba.head_dim)
            .saturating_mul(mamba.state),
    }
}

fn delta_state(delta: &GatedDelta, layout: &CacheLayout) -> LayerCache {
    let tensor = layout.tensor.max(1);
    let keys = delta.key_heads.saturating_mul(delta.key_dim).saturating_mul(2);
    let values = delta.value_heads.saturating_mul(delta.value_dim);
    let channels = keys.saturating_add(values).div_ceil(tensor);
    LayerCache::State {
        conv: channels.saturating_mul(delta.conv.saturating_sub(1)),
        conv_step: channels,
        ssm: delta
            .value_heads
            .div_ceil(tensor)
            .saturating_mul(delta.key_dim)
            .saturating_mul(delta.value_dim),
    }
}

/// Bytes that one more token costs in layers that keep all positions, and in all layers before any window is full.
pub fn bytes_per_token(caches: &[Vec<LayerCache>]) -> (u64, u64) {
    let mut full = 0u64;
    let mut all = 0u64;
    for cache in caches.iter().flatten() {
        if let LayerCache::Tokens { kept, bytes } = cache {
            all = all.saturating_add(*bytes);
            if *kept == Kept::Full {
                full = full.saturating_add(*bytes);
            }
        }
    }
    (full, all)
}
