//! Encoders over raw audio: wav2vec 2, HuBERT, WavLM (the plain models).

use plimsoll_units::DType;

use super::ImportError;
use super::encoder::extra;
use super::keys::{HEADS, HIDDEN, Keys, LAYERS};
use super::seq2seq::{head_dim, multi_head};
use crate::arch::{
    Activation, Architecture, Ffn, Head, Layer, Mixer, Mlp, ModelKind, Norm, NormPlacement, Patch,
    Stack, StackRole,
};
use crate::inventory::{Naming, Part};

/// Most layers of the convolutional front that are believed.
const MOST_CONVOLUTIONS: usize = 256;

/// The architecture, if `family` is one of these.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    if !matches!(family, "wavlm" | "wav2vec2" | "hubert") {
        return Ok(None);
    }
    let hidden = keys.size(HIDDEN)?;
    let layers = keys.size(LAYERS)?;
    let heads = keys.size(HEADS)?;
    let dim = head_dim(keys, "num_attention_heads", heads, hidden)?;
    let stable = keys.flag("do_stable_layer_norm", false)?;
    let layer = Layer {
        mixer: Mixer::Attention(multi_head(
            heads,
            dim,
            true,
            keys.positive(&["attention_dropout"], true),
        )),
        cross: None,
        ffn: Ffn::Dense(Mlp {
            width: keys.size(&["intermediate_size"])?,
            gated: false,
            bias: true,
            activation: keys.activation(Activation::Gelu),
            fused_gate: false,
        }),
        norm: Norm::LAYER,
        norms: 2,
        placement: if stable { NormPlacement::Pre } else { NormPlacement::Post },
        parallel: false,
        dropout: keys.positive(&["hidden_dropout"], true),
        naming: None,
    };
    let stack = Stack {
        role: StackRole::Audio,
        prefix: "encoder.layers".to_owned(),
        root: "encoder.".to_owned(),
        naming: Naming::WavLm,
        hidden,
        layers: vec![layer; layers as usize],
        final_norm: Some(Norm::LAYER),
        patch: None,
        shared: false,
    };
    let mut a = Architecture {
        family: String::new(),
        class: String::new(),
        kind: ModelKind::Encoder,
        hidden,
        embedding: None,
        stacks: vec![stack],
        head: Head { outputs: 0, tied: false, bias: false, transform: None },
        dtype: DType::F32,
        quantization: None,
        max_positions: None,
        naming: Naming::WavLm,
        root: String::new(),
        head_root: String::new(),
        extra: Vec::new(),
    };
    front(keys, &mut a, hidden)?;
    positions(keys, &mut a, hidden)?;
    if family == "wavlm" {
        gated_positions(keys, &mut a, heads, dim)?;
    }
    Ok(Some(a))
}

/// The convolutional front and the projection behind it.
fn front(keys: &Keys<'_>, a: &mut Architecture, hidden: u64) -> Result<(), ImportError> {
    let widths = keys.numbers("conv_dim")?.unwrap_or_else(|| vec![512; 7]);
    let kernels = keys.numbers("conv_kernel")?.unwrap_or_else(|| vec![10, 3, 3, 3, 3, 2, 2]);
    if widths.len() != kernels.len() || widths.len() > MOST_CONVOLUTIONS {
        let against =
            format!("`conv_kernel` has {} entries (at most {MOST_CONVOLUTIONS})", kernels.len());
        return Err(keys.contradiction("conv_dim", format!("a list of {}", widths.len()), against));
    }
    let bias = keys.flag("conv_bias", false)?;
    let every = keys.text("feat_extract_norm") == Some("layer");
    let mut add = |name: String, shape: Vec<u64>, part, bias| {
        a.extra.push(extra(name, shape, part, bias, None))
    };
    let mut inputs = 1;
    for (index, (width, kernel)) in widths.iter().zip(&kernels).enumerate() {
        let at = format!("feature_extractor.conv_layers.{index}");
        add(format!("{at}.conv.weight"), vec![*width, inputs, *kernel], Part::Patch, false);
        if bias {
            add(format!("{at}.conv.bias"), vec![*width], Part::Patch, true);
        }
        if every || index == 0 {
            add(format!("{at}.layer_norm.weight"), vec![*width], Part::EmbeddingNorm, false);
            add(format!("{at}.layer_norm.bias"), vec![*width], Part::EmbeddingNorm, true);
        }
        inputs = *width;
    }
    add("feature_projection.layer_norm.weight".into(), vec![inputs], Part::EmbeddingNorm, false);
    add("feature_projection.layer_norm.bias".into(), vec![inputs], Part::EmbeddingNorm, true);
    let projection = Part::EmbeddingProjection;
    add("feature_projection.projection.weight".into(), vec![hidden, inputs], projection, false);
    add("feature_projection.projection.bias".into(), vec![hidden], projection, true);
    if keys.positive(&["mask_time_prob"], true) {
        add("masked_spec_embed".into(), vec![hidden], Part::ExtraToken, false);
    }
    if let Some(stack) = a.stacks.first_mut() {
        // One second of 16 kHz audio makes about 50 frames; the front is spelt out above.
        stack.patch = Some(Patch {
            channels: 1,
            size: kernels.first().copied().unwrap_or(10),
            input: 16_000,
            tokens: 49,
            extra_tokens: 0,
            position_rows: 0,
            bias,
        });
    }
    Ok(())
}

/// A grouped convolution with weight norm gives positions.
fn positions(keys: &Keys<'_>, a: &mut Architecture, hidden: u64) -> Result<(), ImportError> {
    let kernel = keys.size_or(&["num_conv_pos_embeddings"], 128)?;
    let groups = keys.size_or(&["num_conv_pos_embedding_groups"], 16)?;
    let at = "encoder.pos_conv_embed.conv";
    for (name, shape, bias) in [
        (format!("{at}.bias"), vec![hidden], true),
        (format!("{at}.parametrizations.weight.original0"), vec![1, 1, kernel], false),
        (
            format!("{at}.parametrizations.weight.original1"),
            vec![hidden, hidden / groups, kernel],
            false,
        ),
    ] {
        a.extra.push(extra(name, shape, Part::PositionEmbedding, bias, None));
    }
    Ok(())
}

/// WavLM's gated relative positions.
fn gated_positions(
    keys: &Keys<'_>,
    a: &mut Architecture,
    heads: u64,
    dim: u64,
) -> Result<(), ImportError> {
    let buckets = keys.size_or(&["num_buckets"], 320)?;
    let layers = a.stacks.first().map_or(0, |s| s.layers.len()) as u64;
    for layer in 0..layers {
        let at = format!("encoder.layers.{layer}.attention.");
        for (name, shape, bias) in [
            ("gru_rel_pos_const", vec![1, heads, 1, 1], false),
            ("gru_rel_pos_linear.weight", vec![8, dim], false),
            ("gru_rel_pos_linear.bias", vec![8], true),
        ] {
            a.extra.push(extra(
                format!("{at}{name}"),
                shape,
                Part::PositionEmbedding,
                bias,
                Some(layer),
            ));
        }
    }
    let name = "encoder.layers.0.attention.rel_attn_embed.weight".to_owned();
    a.extra.push(extra(name, vec![buckets, heads], Part::PositionEmbedding, false, Some(0)));
    Ok(())
}
