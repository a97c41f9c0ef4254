//! Caches: how many cells each kind of layer keeps, and the bytes of K, V and recurrent states by layer.

use plimsoll_model::arch::{Layer, Mixer, Span};
use plimsoll_units::DType;

use super::behaviour::Behaviour;
use crate::request::LlamaCpp;

/// The caches of one model under one request.
#[derive(Clone, Debug, Default)]
pub(super) struct CachePlan {
    /// Context over all sequences, padded as the build does.
    pub(super) context: u64,
    /// Caches that are kept apart per sequence; 1 where all share one.
    pub(super) streams: u64,
    /// Latent attention stores the compressed K only.
    pub(super) absorbed: bool,
    /// Window layers keep a short cache.
    sliding: bool,
    sequences: u64,
    unified: bool,
    batch: u64,
    pad: u64,
    /// By layer.
    pub(super) layers: Vec<LayerCache>,
}

/// Bytes of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerCache {
    pub(super) k: u64,
    pub(super) v: u64,
    pub(super) state: u64,
    /// The layer keeps a window.
    pub(super) windowed: bool,
}

impl CachePlan {
    pub(super) fn new(layers: &[Layer], request: &LlamaCpp, context: u64, b: &Behaviour) -> Self {
        let sequences = request.sequences.max(1);
        let quantum = if b.context_pad_256 || request.flash_attention { 256 } else { 32 };
        let quantum = if request.ik { 1 } else { quantum };
        let mut plan = CachePlan {
            context: context.div_ceil(quantum).saturating_mul(quantum),
            streams: if request.unified || request.ik || !b.indexed_store { 1 } else { sequences },
            absorbed: if request.ik {
                request.mla.unwrap_or(0) > 0
            } else {
                request.mla != Some(0)
            },
            sliding: b.sliding_cache && !request.swa_full,
            sequences,
            unified: request.unified || !b.indexed_store,
            batch: if b.sliding_by_ubatch { request.ubatch } else { request.batch },
            pad: 256,
            layers: Vec::new(),
        };
        if plan.streams > 1 {
            let per = (context / sequences).div_ceil(quantum).saturating_mul(quantum);
            plan.context = per.saturating_mul(sequences);
        }
        plan.layers = layers.iter().map(|l| plan.layer(l, request, b)).collect();
        plan
    }

    /// Cells that one stream keeps for attention over `span`.
    pub(super) fn cells(&self, span: Span) -> u64 {
        let all = self.context / self.streams.max(1);
        let window = match span {
            Span::Sliding { window } => window,
            Span::Chunked { chunk } => chunk,
            _ => return all,
        };
        if !self.sliding {
            return all;
        }
        let sharing = if self.unified || self.streams == 1 { self.sequences } else { 1 };
        let need = window.saturating_mul(sharing).saturating_add(self.batch);
        all.min(need.div_ceil(self.pad).saturating_mul(self.pad))
    }

    fn layer(&self, layer: &Layer, request: &LlamaCpp, b: &Behaviour) -> LayerCache {
        let mut c = LayerCache::default();
        self.add(&layer.mixer, request, b, &mut c);
        c
    }

    fn add(&self, mixer: &Mixer, request: &LlamaCpp, b: &Behaviour, c: &mut LayerCache) {
        let row =
            |dtype: DType, width: u64, cells: u64| dtype.bytes(width).get().saturating_mul(cells);
        let all = self.context;
        match mixer {
            Mixer::Attention(a) if !a.shares_kv => {
                let cells = self.cells(a.span).saturating_mul(self.streams);
                c.windowed = !matches!(a.span, Span::Full) && self.sliding;
                c.k = row(request.cache_k, a.kv_heads.saturating_mul(a.head_dim), cells);
                c.v = row(request.cache_v, a.kv_heads.saturating_mul(a.value_dim), cells);
            }
            Mixer::Latent(a) if self.absorbed => {
                c.k = row(request.cache_k, a.kv_lora_rank.saturating_add(a.rope_dim), all);
                // The fork's modes 1 (and 2 without flash attention) keep V transposed as well.
                let fork_copy = request.ik && (request.mla == Some(1) && !request.flash_attention);
                if fork_copy || (!request.ik && !b.latent_value_in_key) {
                    c.v = row(request.cache_v, a.kv_lora_rank, all);
                }
            }
            Mixer::Latent(a) => {
                c.k = row(
                    request.cache_k,
                    a.heads.saturating_mul(a.nope_dim.saturating_add(a.rope_dim)),
                    all,
                );
                c.v = row(request.cache_v, a.heads.saturating_mul(a.value_dim), all);
            }
            Mixer::Parallel(a, m) => {
                self.add(&Mixer::Attention((**a).clone()), request, b, c);
                self.add(&Mixer::Mamba2((**m).clone()), request, b, c);
            }
            _ => {
                let elements = state_elements(mixer);
                let copies = self.sequences.saturating_mul(request.draft.saturating_add(1));
                c.state = DType::F32.bytes(elements).get().saturating_mul(copies);
            }
        }
    }
}

/// 32-bit values that one sequence keeps in a recurrent layer: the tail of the convolution and the state.
fn state_elements(mixer: &Mixer) -> u64 {
    let conv = |kernel: u64, channels: u64| kernel.saturating_sub(1).saturating_mul(channels);
    match mixer {
        Mixer::Mamba1(m) => conv(m.conv, m.inner).saturating_add(m.state.saturating_mul(m.inner)),
        Mixer::Mamba2(m) => {
            let channels =
                m.inner.saturating_add(m.groups.saturating_mul(m.state).saturating_mul(2));
            conv(m.conv, channels).saturating_add(m.state.saturating_mul(m.inner))
        }
        Mixer::GatedDelta(d) => {
            let (key, value) =
                (d.key_heads.saturating_mul(d.key_dim), d.value_heads.saturating_mul(d.value_dim));
            conv(d.conv, key.saturating_mul(2).saturating_add(value))
                .saturating_add(value.saturating_mul(d.key_dim))
        }
        _ => 0,
    }
}

/// State of a short convolution, which needs the width of the stream.
pub(super) fn short_conv_state(kernel: u64, hidden: u64, sequences: u64) -> u64 {
    DType::F32
        .bytes(kernel.saturating_sub(1).saturating_mul(hidden))
        .get()
        .saturating_mul(sequences.max(1))
}
