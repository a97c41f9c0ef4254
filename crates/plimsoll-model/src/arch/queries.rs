//! What engines ask an [`Architecture`]: cache widths, recurrent states, layer counts, active parameters. Counts of
//! elements only; element types and paging belong to the engines.

use super::{
    Architecture, Attention, Ffn, GatedDelta, Layer, Mamba1, Mamba2, Mixer, Span, Stack, StackRole,
};
use crate::inventory::{Part, inventory};

/// Cache elements that one token adds in one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvWidths {
    /// Elements of the keys (or of the latent with its rotary key).
    pub key: u64,
    /// Elements of the values; 0 where the values are inside the latent.
    pub value: u64,
    /// The last so many tokens are kept; `None` for all.
    pub window: Option<u64>,
}

impl KvWidths {
    /// Keys and values together.
    pub fn total(self) -> u64 {
        self.key.saturating_add(self.value)
    }
}

/// State that one sequence keeps in one recurrent layer, whatever its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecurrentState {
    /// Channels of the convolution.
    pub conv_channels: u64,
    /// Its kernel length. transformers keeps all taps, llama.cpp and vLLM one less.
    pub conv_kernel: u64,
    /// Elements of the state matrix.
    pub ssm: u64,
}

impl RecurrentState {
    /// Elements of the convolution state without the newest tap (llama.cpp, vLLM).
    pub fn conv(self) -> u64 {
        self.conv_channels.saturating_mul(self.conv_kernel.saturating_sub(1))
    }

    /// Elements of the convolution state with all taps (transformers).
    pub fn conv_with_newest(self) -> u64 {
        self.conv_channels.saturating_mul(self.conv_kernel)
    }
}

/// How many layers of each kind run in a forward pass of the main stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    /// Layers that keep keys and values of every token.
    pub full: u64,
    /// Layers that keep a window of them.
    pub sliding: u64,
    /// Layers that keep a chunk of them.
    pub chunked: u64,
    /// Layers with a recurrent state (a layer with attention and a state side by side counts here and above).
    pub recurrent: u64,
    /// Layers with neither.
    pub neither: u64,
    /// Layers with routed experts.
    pub mixture: u64,
}

impl Attention {
    /// Cache widths of one token: `kv_heads * head_dim` and `kv_heads * value_dim`; zero where the layer reads an
    /// earlier layer's cache.
    pub fn kv_widths(&self) -> KvWidths {
        let window = match self.span {
            Span::Full => None,
            Span::Sliding { window } => Some(window),
            Span::Chunked { chunk } => Some(chunk),
        };
        if self.shares_kv {
            return KvWidths { window, ..KvWidths::default() };
        }
        KvWidths {
            key: self.kv_heads.saturating_mul(self.head_dim),
            value: self.kv_heads.saturating_mul(self.value_dim),
            window,
        }
    }
}

impl Mamba1 {
    /// `inner` convolution channels, `inner * state` state elements (Mamba, arXiv 2312.00752, algorithm 2).
    pub fn state_elements(&self) -> RecurrentState {
        RecurrentState {
            conv_channels: self.inner,
            conv_kernel: self.conv,
            ssm: self.inner.saturating_mul(self.state),
        }
    }
}

impl Mamba2 {
    /// Channels under the convolution: the inner width and B and C of every group.
    pub fn conv_channels(&self) -> u64 {
        self.inner.saturating_add(self.groups.saturating_mul(self.state).saturating_mul(2))
    }

    /// `heads * head_dim * state` state elements (Mamba-2, arXiv 2405.21060, section 7).
    pub fn state_elements(&self) -> RecurrentState {
        RecurrentState {
            conv_channels: self.conv_channels(),
            conv_kernel: self.conv,
            ssm: self.heads.saturating_mul(self.head_dim).saturating_mul(self.state),
        }
    }
}

impl GatedDelta {
    /// Channels under the convolution: queries, keys and values.
    pub fn conv_channels(&self) -> u64 {
        let key = self.key_heads.saturating_mul(self.key_dim);
        key.saturating_mul(2).saturating_add(self.value_heads.saturating_mul(self.value_dim))
    }

    /// One `key_dim x value_dim` matrix per value head (Gated DeltaNet, arXiv 2412.06464).
    pub fn state_elements(&self) -> RecurrentState {
        RecurrentState {
            conv_channels: self.conv_channels(),
            conv_kernel: self.conv,
            ssm: self.value_heads.saturating_mul(self.key_dim).saturating_mul(self.value_dim),
        }
    }
}

impl Layer {
    /// Cache widths of one token in this layer, as serving engines keep them; latent attention keeps the compressed
    /// form (DeepSeek-V2, arXiv 2405.04434, section 2.1). `None` where the layer keeps nothing per token.
    pub fn kv_widths(&self) -> Option<KvWidths> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention.kv_widths()),
            Mixer::Parallel(attention, _) => Some(attention.kv_widths()),
            Mixer::Latent(latent) => Some(KvWidths {
                key: latent.kv_lora_rank.saturating_add(latent.rope_dim),
                value: 0,
                window: None,
            }),
            _ => None,
        }
    }

    /// As [`Layer::kv_widths`], but latent attention expanded to heads, as plain transformers caches it.
    pub fn kv_widths_expanded(&self) -> Option<KvWidths> {
        match &self.mixer {
            Mixer::Latent(latent) => Some(KvWidths {
                key: latent.heads.saturating_mul(latent.nope_dim.saturating_add(latent.rope_dim)),
                value: latent.heads.saturating_mul(latent.value_dim),
                window: None,
            }),
            _ => self.kv_widths(),
        }
    }

    /// State of one sequence in this layer; `None` for layers without recurrence.
    pub fn recurrent_state(&self) -> Option<RecurrentState> {
        match &self.mixer {
            Mixer::Mamba1(mamba) => Some(mamba.state_elements()),
            Mixer::Mamba2(mamba) => Some(mamba.state_elements()),
            Mixer::Parallel(_, mamba) => Some(mamba.state_elements()),
            Mixer::GatedDelta(delta) => Some(delta.state_elements()),
            Mixer::ShortConv { channels, kernel, .. } => {
                Some(RecurrentState { conv_channels: *channels, conv_kernel: *kernel, ssm: 0 })
            }
            _ => None,
        }
    }
}

impl Architecture {
    /// Kinds of layer in the main stack.
    pub fn layer_counts(&self) -> LayerCounts {
        let mut counts = LayerCounts::default();
        for layer in self.main_stack().iter().flat_map(|s| &s.layers) {
            let attention = match &layer.mixer {
                Mixer::Attention(attention) => Some(attention.span),
                Mixer::Parallel(attention, _) => Some(attention.span),
                Mixer::Latent(_) => Some(Span::Full),
                _ => None,
            };
            match attention {
                Some(Span::Full) => counts.full += 1,
                Some(Span::Sliding { .. }) => counts.sliding += 1,
                Some(Span::Chunked { .. }) => counts.chunked += 1,
                None => {}
            }
            let recurrent = layer.recurrent_state().is_some();
            counts.recurrent += u64::from(recurrent);
            counts.neither += u64::from(!recurrent && attention.is_none());
            counts.mixture += u64::from(matches!(layer.ffn, Ffn::Moe(_)));
        }
        counts
    }

    /// Cache elements that one token adds over all layers of the generating stack, windows ignored.
    pub fn kv_elements_per_token(&self) -> u64 {
        let layers =
            self.stacks.iter().filter(|s| s.role == StackRole::Decoder).flat_map(|s| &s.layers);
        layers
            .filter_map(Layer::kv_widths)
            .fold(0, |sum, widths| sum.saturating_add(widths.total()))
    }

    /// A stack of `count` draft layers: copies of the last layer, as multi-token prediction has them. What stands
    /// around them (two norms and a `2 hidden -> hidden` projection per layer) is not in it.
    pub fn draft_stack(&self, count: u64) -> Option<Stack> {
        let main = self.main_stack()?;
        let last = main.layers.last()?;
        let layers = vec![last.clone(); usize::try_from(count.min(1024)).unwrap_or(0)];
        Some(Stack {
            role: StackRole::Draft,
            layers,
            final_norm: None,
            patch: None,
            ..main.clone()
        })
    }

    /// Parameters that take part in one token's forward pass: all but the routed experts that it does not visit.
    /// Embedding and head count, as in the figures that publishers give.
    pub fn active_parameters(&self) -> u64 {
        let list = inventory(self);
        list.parameters.iter().fold(0u64, |sum, row| {
            let elements = row.elements();
            let routed = matches!(
                row.part,
                Part::ExpertGate | Part::ExpertUp | Part::ExpertGateUp | Part::ExpertDown
            );
            let moe = match (routed, row.stack, row.layer) {
                (true, Some(stack), Some(layer)) => {
                    self.stacks.get(stack).and_then(|s| s.layers.get(layer)).map(|l| &l.ffn)
                }
                _ => None,
            };
            let active = match moe {
                Some(Ffn::Moe(moe)) if moe.experts > 0 => {
                    let share =
                        u128::from(elements) * u128::from(moe.top_k) / u128::from(moe.experts);
                    u64::try_from(share).unwrap_or(u64::MAX)
                }
                _ => elements,
            };
            sum.saturating_add(active)
        })
    }
}
