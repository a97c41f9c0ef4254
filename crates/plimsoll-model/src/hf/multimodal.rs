//! Models of images: classifiers, contrastive pairs, and a tower before a language model.

use plimsoll_units::DType;
use serde_json::Value;

use super::encoder::extra;
use super::keys::{HEADS, HIDDEN, Keys, LAYERS, VOCAB};
use super::seq2seq::{head_dim, multi_head};
use super::tower::{self, Tower};
use super::{ImportError, defaults, families};
use crate::arch::{
    Activation, Architecture, Embedding, Extra, Ffn, Head, HeadTransform, Layer, Mixer, Mlp,
    ModelKind, Norm, NormPlacement, Positions, Stack, StackRole,
};
use crate::inventory::{Naming, Part};

/// The architecture, if `family` takes images.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    match family {
        "vit" | "deit" => classifier(keys, family).map(Some),
        "clip" | "siglip" => contrastive(keys, family).map(Some),
        "llava" | "llava_next" | "mistral3" | "gemma3" | "paligemma" | "llama4" | "gemma4"
        | "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe"
        | "kimi_k25" | "kimi_vl" => language(keys, family),
        _ if HIDDEN.iter().all(|key| keys.get(key).is_none()) => inner(keys, family),
        _ => Ok(None),
    }
}

/// The language model inside an unknown multimodal configuration, where it has one; the rest is said to be left out.
fn inner(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    for key in ["text_config", "llm_config", "language_config"] {
        let Some(kind) = keys.get(key).and_then(|c| c.get("model_type")).and_then(Value::as_str)
        else {
            continue;
        };
        let Some(text) = keys.nested(key, defaults::of(kind)) else { continue };
        keys.assume(
            "model_type",
            format!("{family:?} is not known; only its `{key}` is read, so towers and projectors are not counted"),
        );
        return families::decoder(&text, kind).map(Some);
    }
    Ok(None)
}

/// An architecture with nothing in it yet.
fn blank(kind: ModelKind, hidden: u64, naming: Naming) -> Architecture {
    Architecture {
        family: String::new(),
        class: String::new(),
        kind,
        hidden,
        embedding: None,
        stacks: Vec::new(),
        head: Head { outputs: 0, tied: false, bias: false, transform: None },
        dtype: DType::F32,
        quantization: None,
        max_positions: None,
        naming,
        root: String::new(),
        head_root: String::new(),
        extra: Vec::new(),
    }
}

fn classifier(keys: &Keys<'_>, family: &str) -> Result<Architecture, ImportError> {
    let class =
        keys.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str).unwrap_or("");
    let classifies = class.contains("ForImageClassification");
    let taught = class.ends_with("WithTeacher");
    let distilled = family == "deit";
    let root = match (classifies, family) {
        (true, "deit") => "deit.",
        (true, _) => "vit.",
        (false, _) => "",
    };
    let Tower { stack, extra: more } = tower::vit(keys, root, distilled)?;
    let hidden = stack.hidden;
    let mut a =
        blank(ModelKind::ImageClassifier, hidden, if taught { Naming::Deit } else { Naming::Vit });
    root.clone_into(&mut a.root);
    a.extra = more;
    a.stacks = vec![stack];
    if classifies {
        let named = keys.get("id2label").and_then(Value::as_object).map(|m| m.len() as u64);
        let labels = keys.size_or(&["num_labels"], named.filter(|n| *n > 0).unwrap_or(2))?;
        a.head = Head { outputs: labels, tied: false, bias: true, transform: None };
        if taught {
            let at = |end: &str, shape, bias| {
                extra(format!("distillation_classifier.{end}"), shape, Part::Head, bias, None)
            };
            a.extra.extend([
                at("weight", vec![labels, hidden], false),
                at("bias", vec![labels], true),
            ]);
        }
    } else {
        a.kind = ModelKind::Encoder;
        a.head.transform = Some(HeadTransform::Pooler);
    }
    Ok(a)
}

fn contrastive(keys: &Keys<'_>, family: &str) -> Result<Architecture, ImportError> {
    let clip = family == "clip";
    let (text_class, vision_class) = if clip {
        ("clip_text_model", "clip_vision_model")
    } else {
        ("siglip_text_model", "siglip_vision_model")
    };
    let empty = keys.with_defaults(&[]);
    let text = keys.nested("text_config", defaults::of(text_class)).unwrap_or(empty);
    let vision = keys.nested("vision_config", defaults::of(vision_class)).unwrap_or(empty);
    let image = tower::build(&vision, vision_class, "vision_model.")?;
    let stack = text_stack(&text, clip)?;
    let (hidden, image_hidden) = (stack.hidden, image.hidden());
    let mut a = blank(ModelKind::Contrastive, hidden, Naming::ClipText);
    let rows = text.size_or(&["max_position_embeddings"], 77)?;
    a.embedding = Some(Embedding {
        vocab: text.size(VOCAB)?,
        width: hidden,
        projection: None,
        positions: Positions::Learned { rows },
        token_types: None,
        norm: None,
        tables: 1,
        per_stack: false,
    });
    a.max_positions = Some(rows);
    "text_model.".clone_into(&mut a.root);
    a.stacks = vec![image.stack, stack];
    a.extra = image.extra;
    let mut add = |name: &str, shape: Vec<u64>, part, bias| {
        a.extra.push(extra(name.to_owned(), shape, part, bias, None));
    };
    if clip {
        let shared = keys.size_or(&["projection_dim"], 512)?;
        add("logit_scale", Vec::new(), Part::Other, false);
        add("visual_projection.weight", vec![shared, image_hidden], Part::Projector, false);
        add("text_projection.weight", vec![shared, hidden], Part::Projector, false);
    } else {
        add("logit_scale", vec![1], Part::Other, false);
        add("logit_bias", vec![1], Part::Other, true);
        let out = text.size_or(&["projection_size"], hidden)?;
        add("text_model.head.weight", vec![out, hidden], Part::Projector, false);
        add("text_model.head.bias", vec![out], Part::Projector, true);
    }
    Ok(a)
}

fn text_stack(keys: &Keys<'_>, clip: bool) -> Result<Stack, ImportError> {
    let hidden = keys.size(HIDDEN)?;
    let heads = keys.size(HEADS)?;
    let dim = head_dim(keys, "num_attention_heads", heads, hidden)?;
    let default = if clip { Activation::QuickGelu } else { Activation::GeluTanh };
    let layer = Layer {
        mixer: Mixer::Attention(multi_head(
            heads,
            dim,
            true,
            keys.positive(&["attention_dropout"], false),
        )),
        cross: None,
        ffn: Ffn::Dense(Mlp {
            width: keys.size(&["intermediate_size"])?,
            gated: false,
            bias: true,
            activation: keys.activation(default),
            fused_gate: false,
        }),
        norm: Norm::LAYER,
        norms: 2,
        placement: NormPlacement::Pre,
        parallel: false,
        dropout: false,
        naming: None,
    };
    Ok(Stack {
        role: StackRole::Encoder,
        prefix: "text_model.encoder.layers".to_owned(),
        root: "text_model.".to_owned(),
        naming: Naming::ClipText,
        hidden,
        layers: vec![layer; keys.size(LAYERS)? as usize],
        final_norm: Some(Norm::LAYER),
        patch: None,
        shared: false,
    })
}

/// Where the parts of a family stand in its checkpoints.
struct Roots {
    vision: &'static str,
    text: &'static str,
    head: &'static str,
}

fn language(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    let stated =
        |key: &'static str| keys.get(key).and_then(|c| c.get("model_type")).and_then(Value::as_str);
    let vision_type = stated("vision_config").unwrap_or(match family {
        "llava" | "llava_next" => "clip_vision_model",
        "mistral3" => "pixtral",
        "gemma3" | "paligemma" => "siglip_vision_model",
        "llama4" => "llama4_vision_model",
        "gemma4" => "gemma4_vision",
        "kimi_vl" => "moonvit",
        other => other,
    });
    let text_type = stated("text_config").unwrap_or(match family {
        "qwen2_vl" | "qwen2_5_vl" => "qwen2",
        "qwen3_vl" => "qwen3_vl_text",
        "qwen3_vl_moe" => "qwen3_vl_moe_text",
        "qwen3_5" => "qwen3_5_text",
        "qwen3_5_moe" => "qwen3_5_moe_text",
        "llama4" => "llama4_text",
        "gemma3" => "gemma3_text",
        "gemma4" => "gemma4_text",
        "paligemma" => "gemma",
        "mistral3" => "mistral",
        _ => "llama",
    });
    let roots = match family {
        "llama4" => Roots {
            vision: "vision_model.",
            text: "language_model.model.",
            head: "language_model.",
        },
        "kimi_vl" => Roots {
            vision: "vision_tower.",
            text: "language_model.model.",
            head: "language_model.",
        },
        "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => {
            Roots { vision: "model.visual.", text: "model.language_model.", head: "" }
        }
        _ => Roots { vision: "model.vision_tower.", text: "model.language_model.", head: "" },
    };
    // Older Qwen-VL files keep the language model's keys at the top.
    let text_keys = keys.nested("text_config", defaults::of(text_type)).unwrap_or(*keys);
    let mut a = families::decoder(&text_keys, text_type)?;
    if let Some(tied) = keys.get("tie_word_embeddings").and_then(Value::as_bool) {
        a.head.tied = tied;
    }
    nest(&mut a, &roots);
    let Some(vision) = keys.nested("vision_config", defaults::of(vision_type)) else {
        return Ok(Some(a));
    };
    a.kind = ModelKind::VisionLanguage;
    let image = tower::build(&vision, vision_type, roots.vision)?;
    let projector = projector(keys, family, &a, &image, &vision)?;
    for extra in &mut a.extra {
        extra.stack = extra.stack.map(|s| s + 1);
    }
    a.extra.extend(image.extra);
    a.extra.extend(projector);
    a.stacks.insert(0, image.stack);
    Ok(Some(a))
}

/// Moves a language model under the roots of the whole.
fn nest(a: &mut Architecture, roots: &Roots) {
    let rename = |name: &str| match name.strip_prefix("model.") {
        Some(rest) => format!("{}{rest}", roots.text),
        None => name.to_owned(),
    };
    a.root = rename(&a.root);
    a.head_root = format!("{}{}", roots.head, a.head_root);
    for stack in &mut a.stacks {
        stack.prefix = rename(&stack.prefix);
        stack.root = rename(&stack.root);
    }
    for extra in &mut a.extra {
        extra.name = rename(&extra.name);
    }
}

fn projector(
    keys: &Keys<'_>,
    family: &str,
    a: &Architecture,
    image: &Tower,
    vision: &Keys<'_>,
) -> Result<Vec<Extra>, ImportError> {
    let (text, seen) = (a.hidden, image.hidden());
    let mut list = Vec::new();
    let mut add = |name: &str, shape: Vec<u64>, bias| {
        list.push(extra(name.to_owned(), shape, Part::Projector, bias, None));
    };
    match family {
        "llava" | "llava_next" => {
            let layers =
                keys.get("vision_feature_layer").and_then(Value::as_array).map_or(1, Vec::len);
            let bias = keys.flag("multimodal_projector_bias", true)?;
            let inputs = seen.saturating_mul(layers as u64);
            for (name, width) in [("linear_1", inputs), ("linear_2", text)] {
                add(
                    &format!("model.multi_modal_projector.{name}.weight"),
                    vec![text, width],
                    false,
                );
                if bias {
                    add(&format!("model.multi_modal_projector.{name}.bias"), vec![text], true);
                }
            }
            if family == "llava_next" {
                add("model.image_newline", vec![text], false);
            }
        }
        "mistral3" => {
            let merge = keys.size_or(&["spatial_merge_size"], 2)?;
            let merged = seen.saturating_mul(merge.saturating_mul(merge));
            add("model.multi_modal_projector.norm.weight", vec![seen], false);
            add(
                "model.multi_modal_projector.patch_merger.merging_layer.weight",
                vec![seen, merged],
                false,
            );
            let bias = keys.flag("multimodal_projector_bias", false)?;
            for (name, width) in [("linear_1", seen), ("linear_2", text)] {
                add(
                    &format!("model.multi_modal_projector.{name}.weight"),
                    vec![text, width],
                    false,
                );
                if bias {
                    add(&format!("model.multi_modal_projector.{name}.bias"), vec![text], true);
                }
            }
        }
        "gemma3" => {
            add("model.multi_modal_projector.mm_input_projection_weight", vec![seen, text], false);
            add("model.multi_modal_projector.mm_soft_emb_norm.weight", vec![seen], false);
        }
        "paligemma" => {
            let out =
                keys.size_or(&["projection_dim"], vision.size_or(&["projection_dim"], text)?)?;
            add("model.multi_modal_projector.linear.weight", vec![out, seen], false);
            add("model.multi_modal_projector.linear.bias", vec![out], true);
        }
        "llama4" => {
            let inputs = vision.size_or(&["vision_output_dim"], 7680)?;
            add("multi_modal_projector.linear_1.weight", vec![text, inputs], false);
        }
        "gemma4" => add("model.embed_vision.embedding_projection.weight", vec![text, seen], false),
        "kimi_k25" | "kimi_vl" => {
            let merged = seen.saturating_mul(4);
            let (root, names) = if family == "kimi_vl" {
                ("multi_modal_projector", ["pre_norm", "linear_1", "linear_2"])
            } else {
                ("model.mm_projector", ["pre_norm", "in_proj", "out_proj"])
            };
            let [norm, first, second] = names;
            for (name, shape) in
                [(norm, vec![seen]), (first, vec![merged, merged]), (second, vec![text, merged])]
            {
                let outputs = shape.first().copied().unwrap_or(0);
                add(&format!("{root}.{name}.weight"), shape, false);
                add(&format!("{root}.{name}.bias"), vec![outputs], true);
            }
        }
        _ => {}
    }
    Ok(list)
}
