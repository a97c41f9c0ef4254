//! The common decoder: starts as Llama, family rules change what differs, [`Decoder::finish`] assembles it.

use plimsoll_units::DType;

use super::ImportError;
use super::keys::{HEADS, HIDDEN, Keys, LAYERS, VOCAB};
use crate::arch::{
    Activation, Architecture, Attention, Embedding, Extra, Ffn, Head, Layer, Mixer, Mlp, ModelKind,
    Moe, Norm, NormPlacement, Positions, QkNorm, Span, Stack, StackRole,
};
use crate::inventory::Naming;

/// A decoder under construction.
pub(super) struct Decoder {
    pub kind: ModelKind,
    pub naming: Naming,
    /// `model.` and the like.
    pub root: String,
    /// Where the stack stands under the root; empty or ending in a dot.
    pub within: &'static str,
    /// Name of the layer list under the root.
    pub list: &'static str,
    pub head_root: String,
    pub hidden: u64,
    pub layers: u64,
    pub vocab: u64,
    pub embedding_width: u64,
    pub projection: Option<bool>,
    pub embedding_norm: Option<Norm>,
    pub positions: Positions,
    pub attention: Attention,
    /// Span of each layer; empty for full attention everywhere.
    pub spans: Vec<Span>,
    /// Mixer of each layer; empty for `attention` everywhere.
    pub mixers: Vec<Mixer>,
    pub mlp: Mlp,
    /// Feed-forward width of each layer where they differ.
    pub widths: Vec<u64>,
    pub moe: Option<Moe>,
    /// Which layers are mixtures; empty for all, if there is a mixture.
    pub sparse: Vec<bool>,
    /// Feed-forward of each layer, where nothing above says it.
    pub ffns: Vec<Ffn>,
    pub norm: Norm,
    pub norms: u64,
    pub placement: NormPlacement,
    pub parallel: bool,
    pub dropout: bool,
    pub final_norm: Option<Norm>,
    pub tied: bool,
    pub head_bias: bool,
    pub max_positions: Option<u64>,
    pub extra: Vec<Extra>,
}

impl Decoder {
    /// Llama's rules over the keys: RMS pre-norm, gated SiLU, no biases, full attention, untied head.
    pub fn llama(keys: &Keys<'_>) -> Result<Self, ImportError> {
        let hidden = keys.size(HIDDEN)?;
        let attention = attention(keys, hidden)?;
        Self::base(keys, hidden, keys.size(LAYERS)?, keys.size(VOCAB)?, attention)
    }

    /// The same rules for sizes that were read elsewhere.
    pub fn base(
        keys: &Keys<'_>,
        hidden: u64,
        layers: u64,
        vocab: u64,
        attention: Attention,
    ) -> Result<Self, ImportError> {
        let mlp = Mlp {
            width: 0,
            gated: true,
            bias: false,
            activation: keys.activation(Activation::Silu),
            fused_gate: false,
        };
        let rotary = attention.head_dim;
        Ok(Decoder {
            kind: ModelKind::CausalLm,
            naming: Naming::Llama,
            root: "model.".to_owned(),
            within: "",
            list: "layers",
            head_root: String::new(),
            hidden,
            layers,
            vocab,
            embedding_width: hidden,
            projection: None,
            embedding_norm: None,
            positions: Positions::Rotary { dim: rotary },
            attention,
            spans: Vec::new(),
            mixers: Vec::new(),
            mlp,
            widths: Vec::new(),
            moe: None,
            sparse: Vec::new(),
            ffns: Vec::new(),
            norm: Norm::RMS,
            norms: 2,
            placement: NormPlacement::Pre,
            parallel: false,
            dropout: false,
            final_norm: Some(Norm::RMS),
            tied: keys.flag("tie_word_embeddings", false)?,
            head_bias: false,
            max_positions: keys.max_positions()?,
            extra: Vec::new(),
        })
    }

    /// Reads the feed-forward width, which every family but the pure recurrent ones has.
    pub fn with_width(mut self, keys: &Keys<'_>) -> Result<Self, ImportError> {
        self.mlp.width =
            keys.size(&["intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"])?;
        Ok(self)
    }

    /// Rotates only a part of each head.
    pub fn partial_rotary(&mut self, keys: &Keys<'_>, default: f64) {
        let inner = keys.nested("rope_parameters", &[]);
        let stated = keys
            .fraction(&["partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent"])
            .or_else(|| inner.and_then(|k| k.fraction(&["partial_rotary_factor"])))
            .unwrap_or(default)
            .min(1.0);
        // Both factors are exact in f64 for any head of up to 2^26 channels.
        let dim = (self.attention.head_dim as f64 * stated) as u64;
        self.positions = Positions::Rotary { dim };
    }

    pub fn layer_norm(&mut self, norm: Norm) {
        self.norm = norm;
        self.final_norm = Some(norm);
    }

    fn layer(&self, index: usize) -> Layer {
        let mixer = match self.mixers.get(index) {
            Some(mixer) => mixer.clone(),
            None => Mixer::Attention(Attention {
                span: self.spans.get(index).copied().unwrap_or(self.attention.span),
                ..self.attention.clone()
            }),
        };
        let ffn = match (self.ffns.get(index), &self.moe) {
            (Some(ffn), _) => ffn.clone(),
            (None, Some(moe))
                if self.sparse.get(index).copied().unwrap_or(self.sparse.is_empty()) =>
            {
                Ffn::Moe(moe.clone())
            }
            _ => Ffn::Dense(Mlp {
                width: self.widths.get(index).copied().unwrap_or(self.mlp.width),
                ..self.mlp
            }),
        };
        Layer {
            mixer,
            cross: None,
            ffn,
            norm: self.norm,
            norms: self.norms,
            placement: self.placement,
            parallel: self.parallel,
            dropout: self.dropout,
            naming: None,
        }
    }

    /// The architecture. Families with odd layers patch the result.
    pub fn finish(self) -> Architecture {
        let mut layers = Vec::with_capacity(self.layers as usize);
        let uniform = self.spans.is_empty()
            && self.mixers.is_empty()
            && self.ffns.is_empty()
            && self.sparse.is_empty()
            && self.widths.is_empty();
        if uniform {
            layers.resize(self.layers as usize, self.layer(0));
        } else {
            layers.extend((0..self.layers as usize).map(|index| self.layer(index)));
        }
        let stack = Stack {
            role: StackRole::Decoder,
            prefix: format!("{}{}{}", self.root, self.within, self.list),
            root: format!("{}{}", self.root, self.within),
            naming: self.naming,
            hidden: self.hidden,
            layers,
            final_norm: self.final_norm,
            patch: None,
            shared: false,
        };
        Architecture {
            family: String::new(),
            class: String::new(),
            kind: self.kind,
            hidden: self.hidden,
            embedding: Some(Embedding {
                vocab: self.vocab,
                width: self.embedding_width,
                projection: self.projection,
                positions: self.positions,
                token_types: None,
                norm: self.embedding_norm,
                tables: 1,
                per_stack: false,
            }),
            stacks: vec![stack],
            head: Head {
                outputs: self.vocab,
                tied: self.tied,
                bias: self.head_bias,
                transform: None,
            },
            dtype: DType::F32,
            quantization: None,
            max_positions: self.max_positions,
            naming: self.naming,
            root: self.root,
            head_root: self.head_root,
            extra: self.extra,
        }
    }
}

/// Heads and widths of softmax attention: `head_dim` where written, else hidden over heads; `num_key_value_heads`
/// where written, else as many as query heads.
pub(super) fn attention(keys: &Keys<'_>, hidden: u64) -> Result<Attention, ImportError> {
    let heads = keys.size(HEADS)?;
    let kv_heads = keys.size_or(&["num_key_value_heads", "num_kv_heads", "n_head_kv"], heads)?;
    let head_dim = match keys.size_if(&["head_dim"])? {
        Some(dim) => dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None if heads > hidden => {
            return Err(keys.contradiction(
                "num_attention_heads",
                heads,
                format!("`hidden_size` is only {hidden} and no `head_dim` is given"),
            ));
        }
        None => {
            // transformers divides and drops the rest (GLM-4.5's class default does so); say it.
            keys.assume("head_dim", format!("{hidden} / {heads} heads is not whole; rounded down"));
            hidden / heads
        }
    };
    if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
        return Err(keys.contradiction(
            "num_key_value_heads",
            kv_heads,
            format!("it must divide `num_attention_heads`, which is {heads}"),
        ));
    }
    Ok(Attention {
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        span: Span::Full,
        qkv_bias: false,
        key_bias: None,
        out_bias: false,
        fused_qkv: false,
        qk_norm: QkNorm::None,
        sinks: false,
        gated: false,
        dropout: keys
            .positive(&["attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"], false),
        shares_kv: false,
        value_is_key: false,
    })
}

/// Spans from `layer_types`, where written. `sliding_window` must be there if a layer slides.
pub(super) fn spans_from_types(
    keys: &Keys<'_>,
    layers: u64,
    default_window: Option<u64>,
) -> Result<Option<Vec<Span>>, ImportError> {
    let known = ["full_attention", "sliding_attention", "chunked_attention"];
    let Some(kinds) = keys.kinds("layer_types", layers, &known)? else { return Ok(None) };
    let window = keys.size_if(&["sliding_window"])?.or(default_window);
    let chunk = keys.size_if(&["attention_chunk_size"])?;
    kinds
        .into_iter()
        .map(|kind| match (kind, window, chunk) {
            ("sliding_attention", Some(window), _) => Ok(Span::Sliding { window }),
            ("sliding_attention", None, _) => Err(keys.contradiction(
                "layer_types",
                "\"sliding_attention\" in some layer",
                "`sliding_window` is not given".to_owned(),
            )),
            ("chunked_attention", _, Some(chunk)) => Ok(Span::Chunked { chunk }),
            _ => Ok(Span::Full),
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

/// Every `period`-th layer is full, the others slide.
pub(super) fn periodic(layers: u64, period: u64, window: u64) -> Vec<Span> {
    let period = period.max(1);
    (1..=layers)
        .map(|i| if i.is_multiple_of(period) { Span::Full } else { Span::Sliding { window } })
        .collect()
}
