//! Encoder-decoder models: T5, BART and relatives, Whisper.

use plimsoll_units::DType;

use super::ImportError;
use super::encoder::extra;
use super::keys::{HIDDEN, Keys, VOCAB};
use crate::arch::{
    Activation, Architecture, Attention, Embedding, Ffn, Head, Layer, Mixer, Mlp, ModelKind, Norm,
    NormPlacement, Patch, Positions, QkNorm, Span, Stack, StackRole,
};
use crate::inventory::{Naming, Part};

/// The architecture, if `family` is one of these.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    match family {
        "t5" | "mt5" | "umt5" => t5(keys, family).map(Some),
        "bart" | "mbart" | "pegasus" | "m2m_100" | "marian" | "blenderbot" => {
            bart(keys, family).map(Some)
        }
        "whisper" => whisper(keys).map(Some),
        _ => Ok(None),
    }
}

/// Plain multi-head attention over `heads` of `head_dim`.
pub(super) fn multi_head(heads: u64, head_dim: u64, bias: bool, dropout: bool) -> Attention {
    Attention {
        heads,
        kv_heads: heads,
        head_dim,
        value_dim: head_dim,
        span: Span::Full,
        qkv_bias: bias,
        key_bias: None,
        out_bias: bias,
        fused_qkv: false,
        qk_norm: QkNorm::None,
        sinks: false,
        gated: false,
        dropout,
        shares_kv: false,
        value_is_key: false,
    }
}

/// Channels per head; these families need them whole.
pub(super) fn head_dim(
    keys: &Keys<'_>,
    key: &'static str,
    heads: u64,
    hidden: u64,
) -> Result<u64, ImportError> {
    if hidden.is_multiple_of(heads) {
        return Ok(hidden / heads);
    }
    Err(keys.contradiction(key, heads, format!("it must divide the width, which is {hidden}")))
}

struct Block {
    hidden: u64,
    count: u64,
    attention: Attention,
    mlp: Mlp,
    norm: Norm,
    placement: NormPlacement,
    final_norm: Option<Norm>,
    dropout: bool,
}

impl Block {
    fn stack(self, role: StackRole, naming: Naming, root: &str, list: &str) -> Stack {
        let decodes = role == StackRole::Decoder;
        let layer = Layer {
            mixer: Mixer::Attention(self.attention.clone()),
            cross: decodes.then_some(self.attention),
            ffn: Ffn::Dense(self.mlp),
            norm: self.norm,
            norms: if decodes { 3 } else { 2 },
            placement: self.placement,
            parallel: false,
            dropout: self.dropout,
            naming: None,
        };
        Stack {
            role,
            prefix: format!("{root}{list}"),
            root: root.to_owned(),
            naming,
            hidden: self.hidden,
            layers: vec![layer; self.count as usize],
            final_norm: self.final_norm,
            patch: None,
            shared: false,
        }
    }
}

fn t5(keys: &Keys<'_>, family: &str) -> Result<Architecture, ImportError> {
    let hidden = keys.size(HIDDEN)?;
    let vocab = keys.size(VOCAB)?;
    let layers = keys.size(&["num_layers", "num_hidden_layers"])?;
    let decoder_layers = keys.size_or(&["num_decoder_layers"], layers)?;
    let heads = keys.size(&["num_heads", "num_attention_heads"])?;
    // The inner width is heads times `d_kv`, whatever the hidden width.
    let dim = keys.size_or(&["d_kv"], 64)?;
    let default = if family == "t5" { "relu" } else { "gated-gelu" };
    let projection = keys.text("feed_forward_proj").unwrap_or(default);
    let (gated, activation) = match projection.strip_prefix("gated-") {
        // Upstream reads `gated-gelu` as the tanh form written out.
        Some("gelu") => (true, Activation::GeluComposed),
        Some("silu" | "swish") => (true, Activation::Silu),
        Some(_) => (true, Activation::Relu),
        None if projection == "gelu" => (false, Activation::Gelu),
        None if projection == "gelu_new" => (false, Activation::GeluComposed),
        None => (false, Activation::Relu),
    };
    let dropout = keys.positive(&["dropout_rate"], true);
    let block = |count| -> Result<Block, ImportError> {
        Ok(Block {
            hidden,
            count,
            attention: multi_head(heads, dim, false, dropout),
            mlp: Mlp {
                width: keys.size(&["d_ff"])?,
                gated,
                bias: false,
                activation,
                fused_gate: false,
            },
            norm: Norm::RMS,
            placement: NormPlacement::Pre,
            final_norm: Some(Norm::RMS),
            dropout,
        })
    };
    let encoder = block(layers)?.stack(StackRole::Encoder, Naming::T5Encoder, "encoder.", "block");
    let decoder =
        block(decoder_layers)?.stack(StackRole::Decoder, Naming::T5Decoder, "decoder.", "block");
    let buckets = keys.size_or(&["relative_attention_num_buckets"], 32)?;
    let mut biases = Vec::new();
    for (index, stack) in [&encoder, &decoder].into_iter().enumerate() {
        // UMT5 has a table in every layer, the others share the first layer's.
        let tables = if family == "umt5" { stack.layers.len() } else { 1 };
        for layer in 0..tables {
            let name = format!(
                "{}.{layer}.layer.0.SelfAttention.relative_attention_bias.weight",
                stack.prefix
            );
            let mut bias = extra(
                name,
                vec![buckets, heads],
                Part::PositionEmbedding,
                false,
                Some(layer as u64),
            );
            bias.stack = Some(index);
            biases.push(bias);
        }
    }
    let class =
        keys.get("architectures").and_then(|a| a.get(0)).and_then(serde_json::Value::as_str);
    let encoder_only = class.is_some_and(|c| c.ends_with("EncoderModel"));
    let headless = class.is_some_and(|c| c == "T5Model" || c == "MT5Model" || c == "UMT5Model");
    let mut architecture = assemble(keys, hidden, vocab, Positions::RelativeBuckets { buckets })?;
    architecture.naming = Naming::T5Encoder;
    architecture.stacks = vec![encoder, decoder];
    architecture.extra = biases;
    architecture.max_positions = None;
    if encoder_only {
        architecture.stacks.truncate(1);
        architecture.extra.retain(|bias| bias.stack == Some(0));
        architecture.kind = ModelKind::Encoder;
    }
    if encoder_only || headless {
        architecture.head.outputs = 0;
    }
    Ok(architecture)
}

/// What the encoder-decoders share around their stacks.
fn assemble(
    keys: &Keys<'_>,
    hidden: u64,
    vocab: u64,
    positions: Positions,
) -> Result<Architecture, ImportError> {
    let tied = keys.flag("tie_word_embeddings", true)?;
    Ok(Architecture {
        family: String::new(),
        class: String::new(),
        kind: ModelKind::EncoderDecoderLm,
        hidden,
        embedding: Some(Embedding {
            vocab,
            width: hidden,
            projection: None,
            positions,
            token_types: None,
            norm: None,
            tables: 1,
            per_stack: false,
        }),
        stacks: Vec::new(),
        head: Head { outputs: vocab, tied, bias: false, transform: None },
        dtype: DType::F32,
        quantization: None,
        max_positions: keys.max_positions()?,
        naming: Naming::Bart,
        root: String::new(),
        head_root: String::new(),
        extra: Vec::new(),
    })
}

/// One side of BART and Whisper.
fn side(
    keys: &Keys<'_>,
    hidden: u64,
    names: [&'static str; 3],
    default: Activation,
) -> Result<Block, ImportError> {
    let [layers, heads, width] = names;
    let count = keys.size(&[layers])?;
    let heads_found = keys.size(&[heads])?;
    let dim = head_dim(keys, heads, heads_found, hidden)?;
    let mlp = Mlp {
        width: keys.size(&[width])?,
        gated: false,
        bias: true,
        activation: keys.activation(default),
        fused_gate: false,
    };
    Ok(Block {
        hidden,
        count,
        attention: multi_head(heads_found, dim, true, keys.positive(&["attention_dropout"], false)),
        mlp,
        norm: Norm::LAYER,
        placement: NormPlacement::Pre,
        final_norm: Some(Norm::LAYER),
        dropout: keys.positive(&["dropout"], false),
    })
}

const ENCODER: [&str; 3] = ["encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"];
const DECODER: [&str; 3] = ["decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"];

fn bart(keys: &Keys<'_>, family: &str) -> Result<Architecture, ImportError> {
    let hidden = keys.size(HIDDEN)?;
    let vocab = keys.size(VOCAB)?;
    let class =
        keys.get("architectures").and_then(|a| a.get(0)).and_then(serde_json::Value::as_str);
    let bare = class
        .is_some_and(|c| c.ends_with("Model") && !c.contains("LMHead") && !c.starts_with("Marian"));
    let root = if bare { "" } else { "model." };
    let stated = keys.size_or(&["max_position_embeddings"], 1024)?;
    let positions = match family {
        // Two rows more: the modeling code offsets positions by two.
        "bart" | "mbart" => Positions::Learned { rows: stated.saturating_add(2) },
        "blenderbot" => Positions::Learned { rows: stated },
        "pegasus" | "marian" => Positions::Sinusoidal { rows: stated, is_parameter: true },
        _ => Positions::Sinusoidal { rows: stated, is_parameter: false },
    };
    let post = matches!(family, "bart" | "marian");
    let (encoder_root, decoder_root) = (format!("{root}encoder."), format!("{root}decoder."));
    let mut stacks = Vec::new();
    for (names, role, at) in
        [(ENCODER, StackRole::Encoder, &encoder_root), (DECODER, StackRole::Decoder, &decoder_root)]
    {
        let mut block = side(keys, hidden, names, Activation::Gelu)?;
        if post {
            block.placement = NormPlacement::Post;
            block.final_norm = None;
        }
        stacks.push(block.stack(role, Naming::Bart, at, "layers"));
    }
    let mut architecture = assemble(keys, hidden, vocab, positions)?;
    architecture.stacks = stacks;
    root.clone_into(&mut architecture.root);
    architecture.max_positions = Some(stated);
    if let Some(embedding) = &mut architecture.embedding {
        embedding.per_stack = true;
        embedding.norm = matches!(family, "bart" | "mbart").then_some(Norm::LAYER);
    }
    if bare {
        architecture.head.outputs = 0;
        architecture.kind = ModelKind::Encoder;
    }
    Ok(architecture)
}

fn whisper(keys: &Keys<'_>) -> Result<Architecture, ImportError> {
    let hidden = keys.size(HIDDEN)?;
    let vocab = keys.size(VOCAB)?;
    let frames = keys.size_or(&["max_source_positions"], 1500)?;
    let rows = keys.size_or(&["max_target_positions"], 448)?;
    let mut stacks = Vec::new();
    for (names, role, at) in [
        (ENCODER, StackRole::Encoder, "model.encoder."),
        (DECODER, StackRole::Decoder, "model.decoder."),
    ] {
        let mut block = side(keys, hidden, names, Activation::Gelu)?;
        block.attention.key_bias = Some(false);
        stacks.push(block.stack(role, Naming::Whisper, at, "layers"));
    }
    if let Some(encoder) = stacks.first_mut() {
        encoder.role = StackRole::Audio;
        encoder.patch = Some(Patch {
            channels: keys.size_or(&["num_mel_bins"], 80)?,
            size: 3,
            // The second convolution halves the frames.
            input: frames.saturating_mul(2),
            tokens: frames,
            extra_tokens: 0,
            position_rows: frames,
            bias: true,
        });
    }
    let mut architecture = assemble(keys, hidden, vocab, Positions::Learned { rows })?;
    architecture.kind = ModelKind::SpeechSeq2Seq;
    architecture.stacks = stacks;
    architecture.naming = Naming::Whisper;
    "model.decoder.".clone_into(&mut architecture.root);
    architecture.max_positions = Some(rows);
    Ok(architecture)
}
