//! Vision towers: CLIP, SigLIP, Pixtral, Llama 4, Qwen-VL, MoonViT, Gemma 4, and ViT itself.

use super::ImportError;
use super::encoder::extra;
use super::keys::{HEADS, HIDDEN, Keys, LAYERS};
use super::seq2seq::{head_dim, multi_head};
use crate::arch::{
    Activation, Attention, Extra, Ffn, Layer, Mixer, Mlp, Norm, NormPlacement, Patch, QkNorm,
    Stack, StackRole,
};
use crate::inventory::{Naming, Part};

/// A tower with what belongs to no layer.
pub(super) struct Tower {
    pub stack: Stack,
    pub extra: Vec<Extra>,
}

impl Tower {
    pub fn hidden(&self) -> u64 {
        self.stack.hidden
    }

    fn add(&mut self, name: &str, shape: Vec<u64>, part: Part, bias: bool) {
        self.extra.push(extra(format!("{}{name}", self.stack.root), shape, part, bias, None));
    }

    /// Weight and, if `bias`, bias of a norm over `width`.
    fn add_norm(&mut self, name: &str, width: u64, bias: bool, part: Part) {
        self.add(&format!("{name}.weight"), vec![width], part, false);
        if bias {
            self.add(&format!("{name}.bias"), vec![width], part, true);
        }
    }

    fn add_linear(&mut self, name: &str, outputs: u64, inputs: u64, bias: bool, part: Part) {
        self.add(&format!("{name}.weight"), vec![outputs, inputs], part, false);
        if bias {
            self.add(&format!("{name}.bias"), vec![outputs], part, true);
        }
    }
}

/// What most towers share: layer norms, biases, an ungated feed-forward, square patches.
struct Plan {
    naming: Naming,
    hidden: u64,
    layers: u64,
    attention: Attention,
    mlp: Mlp,
    norm: Norm,
    final_norm: Option<Norm>,
    size: u64,
    channels: u64,
    image: u64,
    class: bool,
    patch_bias: bool,
}

impl Plan {
    fn read(keys: &Keys<'_>, naming: Naming, hidden: u64) -> Result<Self, ImportError> {
        let layers = keys.size(LAYERS)?;
        let heads = keys.size(HEADS)?;
        let dim = match keys.size_if(&["head_dim"])? {
            Some(dim) => dim,
            None => head_dim(keys, "num_attention_heads", heads, hidden)?,
        };
        let dropout = keys.positive(&["attention_dropout", "attention_probs_dropout_prob"], false);
        let size = keys.size_or(&["patch_size"], 14)?;
        let image = match keys.get("image_size") {
            // Some exporters write height and width.
            Some(serde_json::Value::Array(items)) => {
                items.first().and_then(serde_json::Value::as_u64).unwrap_or(224).clamp(1, 1 << 16)
            }
            _ => keys.size_or(&["image_size"], 224)?,
        };
        if size > image {
            return Err(keys.contradiction(
                "patch_size",
                size,
                format!("`image_size` is only {image}"),
            ));
        }
        Ok(Plan {
            naming,
            hidden,
            layers,
            attention: multi_head(heads, dim, true, dropout),
            mlp: Mlp {
                width: keys.size_or(&["intermediate_size"], hidden.saturating_mul(4))?,
                gated: false,
                bias: true,
                activation: keys.activation(Activation::Gelu),
                fused_gate: false,
            },
            norm: Norm::LAYER,
            final_norm: None,
            size,
            channels: keys.size_or(&["num_channels", "in_channels", "in_chans"], 3)?,
            image,
            class: false,
            patch_bias: false,
        })
    }

    fn grid(&self) -> u64 {
        let side = self.image / self.size;
        side.saturating_mul(side)
    }

    /// `position_rows` of a table that follows the naming; towers with other tables pass 0 and add their own.
    fn tower(self, root: &str, list: &str, position_rows: u64) -> Tower {
        let tokens = self.grid().saturating_add(u64::from(self.class));
        let layer = Layer {
            mixer: Mixer::Attention(self.attention),
            cross: None,
            ffn: Ffn::Dense(self.mlp),
            norm: self.norm,
            norms: 2,
            placement: NormPlacement::Pre,
            parallel: false,
            dropout: false,
            naming: None,
        };
        let stack = Stack {
            role: StackRole::Vision,
            prefix: format!("{root}{list}"),
            root: root.to_owned(),
            naming: self.naming,
            hidden: self.hidden,
            layers: vec![layer; self.layers as usize],
            final_norm: self.final_norm,
            patch: Some(Patch {
                channels: self.channels,
                size: self.size,
                input: self.image,
                tokens,
                extra_tokens: u64::from(self.class),
                position_rows,
                bias: self.patch_bias,
            }),
            shared: false,
        };
        Tower { stack, extra: Vec::new() }
    }
}

/// The tower of `vision_config` under `root`.
pub(super) fn build(keys: &Keys<'_>, kind: &str, root: &str) -> Result<Tower, ImportError> {
    match kind {
        "siglip_vision_model" | "siglip" => siglip(keys, root),
        "pixtral" => pixtral(keys, root),
        "llama4_vision_model" => llama4(keys, root),
        "qwen2_vl" | "qwen2_vl_vision" => qwen2(keys, root),
        "qwen2_5_vl" | "qwen2_5_vl_vision" => qwen25(keys, root),
        _ if kind.starts_with("qwen3_") => qwen3(keys, root),
        "gemma4_vision" => gemma4(keys, root),
        "moonvit" | "kimi_k25" => moonvit(keys, root),
        _ => clip(keys, root),
    }
}

pub(super) fn clip(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let mut plan = Plan::read(keys, Naming::Clip, keys.size(HIDDEN)?)?;
    plan.mlp.activation = keys.activation(Activation::QuickGelu);
    (plan.class, plan.final_norm) = (true, Some(Norm::LAYER));
    let rows = plan.grid().saturating_add(1);
    let hidden = plan.hidden;
    let mut tower = plan.tower(root, "encoder.layers", rows);
    // Upstream's own spelling.
    tower.add_norm("pre_layrnorm", hidden, true, Part::EmbeddingNorm);
    Ok(tower)
}

pub(super) fn siglip(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    siglip_of(keys, root, true)
}

/// SigLIP without its pooling head.
pub(super) fn siglip_bare(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    siglip_of(keys, root, false)
}

fn siglip_of(keys: &Keys<'_>, root: &str, pooled: bool) -> Result<Tower, ImportError> {
    let mut plan = Plan::read(keys, Naming::Clip, keys.size(HIDDEN)?)?;
    plan.mlp.activation = keys.activation(Activation::GeluTanh);
    (plan.patch_bias, plan.final_norm) = (true, Some(Norm::LAYER));
    let (rows, hidden, width) = (plan.grid(), plan.hidden, plan.mlp.width);
    let mut tower = plan.tower(root, "encoder.layers", rows);
    if pooled && keys.flag("vision_use_head", true)? {
        tower.add("head.probe", vec![1, 1, hidden], Part::ExtraToken, false);
        tower.add(
            "head.attention.in_proj_weight",
            vec![hidden.saturating_mul(3), hidden],
            Part::Projector,
            false,
        );
        tower.add(
            "head.attention.in_proj_bias",
            vec![hidden.saturating_mul(3)],
            Part::Projector,
            true,
        );
        tower.add_linear("head.attention.out_proj", hidden, hidden, true, Part::Projector);
        tower.add_norm("head.layernorm", hidden, true, Part::HeadNorm);
        tower.add_linear("head.mlp.fc1", width, hidden, true, Part::Projector);
        tower.add_linear("head.mlp.fc2", hidden, width, true, Part::Projector);
    }
    Ok(tower)
}

fn pixtral(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let mut plan = Plan::read(keys, Naming::Pixtral, keys.size(HIDDEN)?)?;
    (plan.attention.qkv_bias, plan.attention.out_bias, plan.mlp.bias) = (false, false, false);
    plan.mlp.gated = true;
    plan.norm = Norm::RMS;
    let hidden = plan.hidden;
    let mut tower = plan.tower(root, "transformer.layers", 0);
    tower.add_norm("ln_pre", hidden, false, Part::EmbeddingNorm);
    Ok(tower)
}

fn llama4(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let mut plan = Plan::read(keys, Naming::Llama4Vision, keys.size(HIDDEN)?)?;
    (plan.class, plan.final_norm) = (true, Some(Norm::LAYER));
    let (rows, hidden, width) = (plan.grid().saturating_add(1), plan.hidden, plan.mlp.width);
    let pixels = plan.channels.saturating_mul(plan.size).saturating_mul(plan.size);
    let mut tower = plan.tower(root, "model.layers", 0);
    tower.add("positional_embedding_vlm", vec![rows, hidden], Part::PositionEmbedding, false);
    tower.add_linear("patch_embedding.linear", hidden, pixels, false, Part::Patch);
    tower.add_norm("layernorm_pre", hidden, true, Part::EmbeddingNorm);
    let inner = keys.size_or(&["projector_input_dim"], 4096)?;
    let outer = keys.size_or(&["projector_output_dim"], 4096)?;
    tower.add_linear("vision_adapter.mlp.fc1", inner, width, false, Part::Projector);
    tower.add_linear("vision_adapter.mlp.fc2", outer, outer, false, Part::Projector);
    Ok(tower)
}

/// Patches over two frames, as the Qwen towers have them.
fn qwen_patch(tower: &mut Tower, keys: &Keys<'_>, bias: bool) -> Result<u64, ImportError> {
    let hidden = tower.hidden();
    let (channels, size) = tower.stack.patch.as_ref().map_or((3, 14), |p| (p.channels, p.size));
    let frames = keys.size_or(&["temporal_patch_size"], 2)?;
    tower.add(
        "patch_embed.proj.weight",
        vec![hidden, channels, frames, size, size],
        Part::Patch,
        false,
    );
    if bias {
        tower.add("patch_embed.proj.bias", vec![hidden], Part::Patch, true);
    }
    let merge = keys.size_or(&["spatial_merge_size"], 2)?;
    Ok(hidden.saturating_mul(merge.saturating_mul(merge)))
}

fn qwen2(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let hidden = keys.size_or(&["embed_dim"], 1280)?;
    let mut plan = Plan::read(keys, Naming::QwenVision, hidden)?;
    plan.attention.fused_qkv = true;
    plan.mlp.activation = keys.activation(Activation::QuickGelu);
    plan.mlp.width = hidden.saturating_mul(keys.size_or(&["mlp_ratio"], 4)?);
    let out = keys.size_or(&["hidden_size"], 3584)?;
    let mut tower = plan.tower(root, "blocks", 0);
    let merged = qwen_patch(&mut tower, keys, false)?;
    tower.add_norm("merger.ln_q", hidden, true, Part::Projector);
    tower.add_linear("merger.mlp.0", merged, merged, true, Part::Projector);
    tower.add_linear("merger.mlp.2", out, merged, true, Part::Projector);
    Ok(tower)
}

fn qwen25(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let hidden = keys.size_or(&["hidden_size"], 3584)?;
    let mut plan = Plan::read(keys, Naming::QwenVision25, hidden)?;
    plan.attention.fused_qkv = true;
    plan.mlp.gated = true;
    plan.mlp.width = keys.size_or(&["intermediate_size"], 3420)?;
    plan.norm = Norm::RMS;
    let out = keys.size_or(&["out_hidden_size"], 3584)?;
    let mut tower = plan.tower(root, "blocks", 0);
    let merged = qwen_patch(&mut tower, keys, false)?;
    tower.add_norm("merger.ln_q", hidden, false, Part::Projector);
    tower.add_linear("merger.mlp.0", merged, merged, true, Part::Projector);
    tower.add_linear("merger.mlp.2", out, merged, true, Part::Projector);
    Ok(tower)
}

fn qwen3(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let hidden = keys.size_or(&["hidden_size"], 1152)?;
    let mut plan = Plan::read(keys, Naming::Qwen3Vision, hidden)?;
    plan.attention.fused_qkv = true;
    plan.mlp.activation = keys.activation(Activation::GeluTanh);
    plan.mlp.width = keys.size_or(&["intermediate_size"], 4304)?;
    let out = keys.size_or(&["out_hidden_size"], 3584)?;
    let rows = keys.size_or(&["num_position_embeddings"], 2304)?;
    let mut tower = plan.tower(root, "blocks", 0);
    let merged = qwen_patch(&mut tower, keys, true)?;
    tower.add("pos_embed.weight", vec![rows, hidden], Part::PositionEmbedding, false);
    let taps = keys.numbers("deepstack_visual_indexes")?.unwrap_or_default();
    if taps.len() > 1024 {
        let text = format!("a list of {}", taps.len());
        return Err(keys.contradiction(
            "deepstack_visual_indexes",
            text,
            "the tower has fewer layers".into(),
        ));
    }
    let deep = (0..taps.len()).map(|i| (format!("deepstack_merger_list.{i}"), merged));
    for (name, normed) in [("merger".to_owned(), hidden)].into_iter().chain(deep) {
        tower.add_norm(&format!("{name}.norm"), normed, true, Part::Projector);
        tower.add_linear(&format!("{name}.linear_fc1"), merged, merged, true, Part::Projector);
        tower.add_linear(&format!("{name}.linear_fc2"), out, merged, true, Part::Projector);
    }
    Ok(tower)
}

fn gemma4(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let mut plan = Plan::read(keys, Naming::Gemma4Vision, keys.size(HIDDEN)?)?;
    (plan.attention.qkv_bias, plan.attention.out_bias, plan.mlp.bias) = (false, false, false);
    plan.attention.qk_norm = QkNorm::PerHead;
    plan.mlp.gated = true;
    plan.mlp.activation = Activation::GeluTanh;
    plan.norm = Norm::RMS;
    let hidden = plan.hidden;
    let pixels = plan.channels.saturating_mul(plan.size).saturating_mul(plan.size);
    let rows = keys.size_or(&["position_embedding_size"], 10240)?;
    let mut tower = plan.tower(root, "encoder.layers", 0);
    for layer in &mut tower.stack.layers {
        (layer.norms, layer.placement) = (4, NormPlacement::Sandwich);
    }
    let name = "patch_embedder.position_embedding_table";
    tower.add(name, vec![2, rows, hidden], Part::PositionEmbedding, false);
    tower.add_linear("patch_embedder.input_proj", hidden, pixels, false, Part::Patch);
    Ok(tower)
}

fn moonvit(keys: &Keys<'_>, root: &str) -> Result<Tower, ImportError> {
    let hidden = keys.size(&["vt_hidden_size", "hidden_size"])?;
    let layers = keys.size(&["vt_num_hidden_layers", "num_hidden_layers"])?;
    let heads = keys.size(&["vt_num_attention_heads", "num_attention_heads"])?;
    let width = keys.size(&["vt_intermediate_size", "intermediate_size"])?;
    let (size, height, breadth) = (
        keys.size_or(&["patch_size"], 14)?,
        keys.size_or(&["init_pos_emb_height"], 64)?,
        keys.size_or(&["init_pos_emb_width"], 64)?,
    );
    let dim = head_dim(keys, "num_attention_heads", heads, hidden)?;
    let plan = Plan {
        naming: Naming::MoonVit,
        hidden,
        layers,
        attention: multi_head(heads, dim, true, false),
        mlp: Mlp {
            width,
            gated: false,
            bias: true,
            activation: Activation::GeluTanh,
            fused_gate: false,
        },
        norm: Norm::LAYER,
        final_norm: Some(Norm::LAYER),
        size,
        channels: 3,
        image: size.saturating_mul(height),
        class: false,
        patch_bias: true,
    };
    let mut tower = plan.tower(root, "layers", 0);
    tower.add("patch_embed.proj.weight", vec![hidden, 3, size, size], Part::Patch, false);
    tower.add("patch_embed.proj.bias", vec![hidden], Part::Patch, true);
    let table = vec![height, breadth, hidden];
    tower.add("patch_embed.pos_emb.position_embeddings", table, Part::PositionEmbedding, false);
    Ok(tower)
}

/// ViT and DeiT; `distilled` has a second learned token.
pub(super) fn vit(keys: &Keys<'_>, root: &str, distilled: bool) -> Result<Tower, ImportError> {
    let mut plan = Plan::read(keys, Naming::Vit, keys.size(HIDDEN)?)?;
    (plan.class, plan.final_norm) = (true, Some(Norm::LAYER));
    plan.patch_bias = true;
    plan.attention.qkv_bias = keys.flag("qkv_bias", true)?;
    let extra_tokens = 1 + u64::from(distilled);
    let (rows, hidden) = (plan.grid().saturating_add(extra_tokens), plan.hidden);
    let mut tower = plan.tower(root, "layers", rows);
    if distilled {
        tower.add("embeddings.distillation_token", vec![1, 1, hidden], Part::ExtraToken, false);
        if let Some(patch) = &mut tower.stack.patch {
            (patch.tokens, patch.extra_tokens) = (rows, extra_tokens);
        }
    }
    Ok(tower)
}
