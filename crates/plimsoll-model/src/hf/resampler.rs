//! Language models of remote code that read images through a resampler: Qwen-VL and MiniCPM-V 2.5.

use super::encoder::extra;
use super::keys::Keys;
use super::seq2seq::{head_dim, multi_head};
use super::tower::{self, Tower};
use super::{ImportError, defaults, families};
use crate::arch::{
    Activation, Architecture, Ffn, Layer, Mixer, Mlp, ModelKind, Norm, NormPlacement, Patch, Stack,
    StackRole,
};
use crate::inventory::{Naming, Part};

/// The architecture, if `family` is one of these.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    match family {
        "qwen" if keys.get("visual").is_some() => qwen_vl(keys).map(Some),
        "minicpmv" => minicpm_v(keys).map(Some),
        _ => Ok(None),
    }
}

/// Puts a tower before the language model.
fn join(mut a: Architecture, image: Tower) -> Architecture {
    a.kind = ModelKind::VisionLanguage;
    for extra in &mut a.extra {
        extra.stack = extra.stack.map(|s| s + 1);
    }
    a.extra.extend(image.extra);
    a.stacks.insert(0, image.stack);
    a
}

/// Cross-attention of `queries` learned queries over the tower's output, then a projection.
fn resampler(tower: &mut Tower, root: &str, queries: u64, width: u64, seen: u64, positions: bool) {
    let mut add = |name: &str, shape: Vec<u64>, bias| {
        tower.extra.push(extra(format!("{root}{name}"), shape, Part::Projector, bias, None));
    };
    add("query", vec![queries, width], false);
    if positions {
        add("pos_embed", vec![queries, width], false);
    }
    add("kv_proj.weight", vec![width, seen], false);
    add("attn.in_proj_weight", vec![width.saturating_mul(3), width], false);
    add("attn.in_proj_bias", vec![width.saturating_mul(3)], true);
    add("attn.out_proj.weight", vec![width, width], false);
    add("attn.out_proj.bias", vec![width], true);
    for norm in ["ln_q", "ln_kv"] {
        add(&format!("{norm}.weight"), vec![width], false);
        add(&format!("{norm}.bias"), vec![width], true);
    }
}

/// Qwen-VL: OpenCLIP's bigG tower under `transformer.visual`.
fn qwen_vl(keys: &Keys<'_>) -> Result<Architecture, ImportError> {
    let a = families::decoder(keys, "qwen")?;
    let Some(visual) = keys.nested("visual", &[]) else { return Ok(a) };
    let width = visual.size(&["width"])?;
    let layers = visual.size(&["layers"])?;
    let heads = visual.size(&["heads"])?;
    let size = visual.size(&["patch_size"])?;
    let image = visual.size_or(&["image_size"], 448)?;
    let out = visual.size_or(&["output_dim"], a.hidden)?;
    let queries = visual.size_or(&["n_queries"], 256)?;
    // A stated ratio that stands for a whole width (4.9231 x 1664 = 8192): truncated, as the modeling code does.
    let ratio = visual.fraction(&["mlp_ratio"]).unwrap_or(4.0).min(64.0);
    let inner = (width as f64 * ratio) as u64;
    let dim = head_dim(&visual, "heads", heads, width)?;
    let root = "transformer.visual.";
    let side = image / size.min(image);
    let layer = Layer {
        mixer: Mixer::Attention(crate::arch::Attention {
            fused_qkv: true,
            ..multi_head(heads, dim, true, false)
        }),
        cross: None,
        ffn: Ffn::Dense(Mlp {
            width: inner.max(1),
            gated: false,
            bias: true,
            activation: Activation::Gelu,
            fused_gate: false,
        }),
        norm: Norm::LAYER,
        norms: 2,
        placement: NormPlacement::Pre,
        parallel: false,
        dropout: false,
        naming: None,
    };
    let stack = Stack {
        role: StackRole::Vision,
        prefix: format!("{root}transformer.resblocks"),
        root: root.to_owned(),
        naming: Naming::OpenClip,
        hidden: width,
        layers: vec![layer; layers as usize],
        final_norm: None,
        patch: Some(Patch {
            channels: 3,
            size,
            input: image,
            tokens: side.saturating_mul(side),
            extra_tokens: 0,
            position_rows: 0,
            bias: false,
        }),
        shared: false,
    };
    let mut tower = Tower { stack, extra: Vec::new() };
    // Positions of the original 224-pixel grid, interpolated at run time.
    for (name, shape, part, bias) in [
        ("conv1.weight", vec![width, 3, size, size], Part::Patch, false),
        ("positional_embedding", vec![256, width], Part::PositionEmbedding, false),
        ("ln_pre.weight", vec![width], Part::EmbeddingNorm, false),
        ("ln_pre.bias", vec![width], Part::EmbeddingNorm, true),
        ("ln_post.weight", vec![out], Part::Projector, false),
        ("ln_post.bias", vec![out], Part::Projector, true),
        ("proj", vec![out, out], Part::Projector, false),
    ] {
        tower.extra.push(extra(format!("{root}{name}"), shape, part, bias, None));
    }
    resampler(&mut tower, &format!("{root}attn_pool."), queries, out, width, true);
    Ok(join(a, tower))
}

/// MiniCPM-V 2.5: SigLIP under `vpm`, the language model under `llm`.
fn minicpm_v(keys: &Keys<'_>) -> Result<Architecture, ImportError> {
    let mut a = families::decoder(keys, "llama")?;
    let under = |name: &str| format!("llm.{name}");
    a.root = under(&a.root);
    a.head_root = under(&a.head_root);
    for stack in &mut a.stacks {
        stack.prefix = under(&stack.prefix);
        stack.root = under(&stack.root);
    }
    let Some(vision) = keys.nested("vision_config", defaults::of("siglip_vision_model")) else {
        return Ok(a);
    };
    let mut tower = tower::siglip_bare(&vision, "vpm.")?;
    let (seen, width) = (tower.hidden(), a.hidden);
    let queries = keys.size_or(&["query_num"], 96)?;
    for (name, shape, bias) in [
        ("ln_post.weight", vec![width], false),
        ("ln_post.bias", vec![width], true),
        ("proj", vec![width, width], false),
    ] {
        tower.extra.push(extra(format!("resampler.{name}"), shape, Part::Projector, bias, None));
    }
    resampler(&mut tower, "resampler.", queries, width, seen, false);
    Ok(join(a, tower))
}
