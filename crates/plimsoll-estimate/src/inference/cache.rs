//! What the cache of plain PyTorch holds: a tensor of keys and one of values per layer, expanded to heads where a model
//! compresses them, grown by `torch.cat` with every token; and recurrent states.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Attention, Layer, Mixer, StackRole};
use plimsoll_units::{Bytes, DType};

use super::pass::Cached;

/// The cache of one layer on one tensor-parallel rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerCache {
    /// Elements of keys and of values per token.
    pub key: u64,
    pub value: u64,
    /// Only the last so many tokens are kept.
    pub window: Option<u64>,
    /// Elements of cross-attention's keys and of its values per position of the encoder.
    pub cross_key: u64,
    pub cross_value: u64,
    /// Elements of the convolution's state and of the recurrent one, per sequence.
    pub conv: u64,
    pub state: u64,
    /// The recurrent state stays in F32 (gated delta rule).
    pub wide_state: bool,
}

/// The caches of the generating stack, first layer to last; empty where nothing is generated.
pub(super) fn layers(model: &Architecture, tensor: u64) -> Vec<LayerCache> {
    let stack = model.stacks.iter().rfind(|s| s.role != StackRole::Draft);
    match stack {
        Some(s) if s.role == StackRole::Decoder => {
            s.layers.iter().map(|l| layer(l, tensor.max(1))).collect()
        }
        _ => Vec::new(),
    }
}

fn layer(layer: &Layer, tensor: u64) -> LayerCache {
    let mut cache = LayerCache::default();
    let heads = |all: u64| all.max(1).div_ceil(tensor);
    match &layer.mixer {
        Mixer::Attention(a) => attention(&mut cache, a, tensor),
        Mixer::Parallel(a, _) => attention(&mut cache, a, tensor),
        Mixer::Latent(a) => {
            let heads = heads(a.heads);
            cache.key = heads.saturating_mul(a.nope_dim.saturating_add(a.rope_dim));
            cache.value = heads.saturating_mul(a.value_dim);
        }
        _ => {}
    }
    if let Some(state) = layer.recurrent_state() {
        cache.conv = state.conv_with_newest().div_ceil(tensor);
        cache.state = state.ssm.div_ceil(tensor);
        cache.wide_state = matches!(layer.mixer, Mixer::GatedDelta(_));
    }
    if let Some(cross) = &layer.cross {
        let heads = heads(cross.kv_heads);
        cache.cross_key = heads.saturating_mul(cross.head_dim);
        cache.cross_value = heads.saturating_mul(cross.value_dim);
    }
    cache
}

fn attention(cache: &mut LayerCache, a: &Attention, tensor: u64) {
    let widths = a.kv_widths();
    cache.window = widths.window;
    if a.shares_kv {
        return;
    }
    let heads = a.kv_heads.max(1).div_ceil(tensor);
    cache.key = heads.saturating_mul(a.head_dim);
    cache.value = heads.saturating_mul(a.value_dim);
}

impl LayerCache {
    /// Bytes of one cached tensor for `batch` sequences of `tokens`, beside `memory` encoder positions.
    pub fn bytes(&self, what: Cached, counts: &Counts, dtype: DType, compute: DType) -> Bytes {
        let of = |elements: u64, cells: u64| {
            dtype.bytes(elements.saturating_mul(counts.batch).saturating_mul(cells))
        };
        match what {
            Cached::Keys => of(self.key, self.cells(counts.tokens)),
            Cached::Values => of(self.value, self.cells(counts.tokens)),
            Cached::CrossKeys => of(self.cross_key, counts.memory),
            Cached::CrossValues => of(self.cross_value, counts.memory),
            Cached::State => {
                let state = if self.wide_state { DType::F32 } else { compute };
                compute.bytes(self.conv.saturating_mul(counts.batch))
                    + state.bytes(self.state.saturating_mul(counts.batch))
            }
        }
    }

    /// Positions that are kept of `tokens`. Right after the prompt a window is still a view of all of it.
    pub fn cells(&self, tokens: Kept) -> u64 {
        match (tokens, self.window) {
            (Kept::Grown(n), Some(window)) => n.min(window.max(1)),
            (Kept::Prompt(n) | Kept::Grown(n), _) => n,
        }
    }
}

/// Positions in a cache, and how they got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// In one pass over the prompt.
    Prompt(u64),
    /// Token by token since.
    Grown(u64),
}

/// What a cache holds entries of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Sequences.
    pub batch: u64,
    /// Tokens per sequence.
    pub tokens: Kept,
    /// Encoder positions per sequence.
    pub memory: u64,
}
