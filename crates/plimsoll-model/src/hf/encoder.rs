//! Bidirectional text encoders: BERT and its relatives, post-norm with biases, and ModernBERT.

use super::ImportError;
use super::decoder::{Decoder, attention, spans_from_types};
use super::keys::{HIDDEN, Keys, LAYERS, VOCAB};
use crate::arch::{
    Activation, Architecture, Extra, Head, HeadTransform, ModelKind, Norm, NormPlacement,
    Positions, Span, StackRole,
};
use crate::inventory::{Naming, Part};

/// The architecture, if `family` is an encoder.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Option<Architecture>, ImportError> {
    let (naming, root) = match family {
        "bert" => (Naming::Bert, "bert."),
        "roberta" | "xlm-roberta" | "camembert" | "xlm-roberta-xl" => (Naming::Roberta, "roberta."),
        "mpnet" => (Naming::Mpnet, "mpnet."),
        "electra" => (Naming::Electra, "electra."),
        "albert" => (Naming::Albert, "albert."),
        "distilbert" => (Naming::DistilBert, "distilbert."),
        "deberta" => (Naming::Deberta, "deberta."),
        "deberta-v2" => (Naming::DebertaV2, "deberta."),
        "modernbert" => return modernbert(keys).map(Some),
        _ => return Ok(None),
    };
    bert_like(keys, family, naming, root).map(Some)
}

/// What the class adds on top of the encoder.
enum Top {
    Masked,
    Pooled,
    Bare,
    Classifier,
    Discriminator,
}

fn top(keys: &Keys<'_>, family: &str) -> Top {
    let class =
        keys.get("architectures").and_then(|a| a.get(0)).and_then(serde_json::Value::as_str);
    let class = class.unwrap_or("");
    if class.ends_with("ForMaskedLM") || (class.ends_with("ForPreTraining") && family == "bert") {
        Top::Masked
    } else if class.ends_with("ForPreTraining") && family == "electra" {
        Top::Discriminator
    } else if class.contains("ForSequenceClassification") {
        Top::Classifier
    } else if matches!(
        family,
        "bert" | "roberta" | "xlm-roberta" | "camembert" | "albert" | "mpnet"
    ) {
        // The plain model keeps its pooler.
        Top::Pooled
    } else {
        Top::Bare
    }
}

fn bert_like(
    keys: &Keys<'_>,
    family: &str,
    naming: Naming,
    root: &str,
) -> Result<Architecture, ImportError> {
    let hidden = keys.size(HIDDEN)?;
    let mut d = Decoder::base(
        keys,
        hidden,
        keys.size(LAYERS)?,
        keys.size(VOCAB)?,
        attention(keys, hidden)?,
    )?;
    let top = top(keys, family);
    d.naming = naming;
    d.root = if matches!(top, Top::Pooled | Top::Bare) { String::new() } else { root.to_owned() };
    d.list = match family {
        "distilbert" => "transformer.layer",
        "albert" => "encoder.albert_layer_groups.0.albert_layers",
        _ => "encoder.layer",
    };
    d.placement = NormPlacement::Post;
    d.norm = Norm::LAYER;
    d.final_norm = None;
    d.mlp.width = keys.size(&["intermediate_size", "hidden_dim"])?;
    d.mlp.gated = false;
    d.mlp.bias = true;
    d.mlp.activation = keys.activation(Activation::Gelu);
    (d.attention.qkv_bias, d.attention.out_bias) = (true, true);
    d.attention.dropout =
        keys.positive(&["attention_probs_dropout_prob", "attention_dropout"], family != "albert");
    d.dropout = keys.positive(&["hidden_dropout_prob", "dropout"], family != "albert");
    d.embedding_width = keys.size_or(&["embedding_size"], hidden)?;
    d.projection = (d.embedding_width != hidden || family == "albert").then_some(true);
    let rows = keys.size_or(&["max_position_embeddings"], 512)?;
    d.positions = Positions::Learned { rows };
    d.tied = keys.flag("tie_word_embeddings", true)?;
    d.embedding_norm = Some(Norm::LAYER);
    if family.starts_with("deberta") {
        deberta(keys, family, &mut d, rows)?;
    }
    if family == "mpnet" {
        let buckets = keys.size_or(&["relative_attention_num_buckets"], 32)?;
        let (name, heads) =
            (format!("{}encoder.relative_attention_bias.weight", d.root), d.attention.heads);
        d.extra.push(extra(name, vec![buckets, heads], Part::PositionEmbedding, false, None));
    }
    let default_types = match family {
        "distilbert" | "mpnet" | "deberta" | "deberta-v2" => 0,
        _ => 2,
    };
    let types = keys.count_or(&["type_vocab_size"], default_types)?;
    let shared = family == "albert";
    let extra_top = top_parameters(keys, &d, &top)?;
    d.extra.extend(extra_top);
    let mut architecture = d.finish();
    for stack in &mut architecture.stacks {
        (stack.role, stack.shared) = (StackRole::Encoder, shared);
    }
    if let Some(embedding) = &mut architecture.embedding {
        embedding.token_types =
            (types > 0 && family != "distilbert" && family != "mpnet").then_some(types);
    }
    set_head(&mut architecture, &top, keys)?;
    // Positions of RoBERTa start after the padding index; two rows are never reached.
    let offset = if naming == Naming::Roberta || naming == Naming::Mpnet { 2 } else { 0 };
    architecture.max_positions = Some(rows.saturating_sub(offset));
    Ok(architecture)
}

fn labels(keys: &Keys<'_>) -> Result<u64, ImportError> {
    let named = keys.get("id2label").and_then(serde_json::Value::as_object).map(|m| m.len() as u64);
    keys.size_or(&["num_labels"], named.filter(|n| *n > 0).unwrap_or(2))
}

fn set_head(a: &mut Architecture, top: &Top, keys: &Keys<'_>) -> Result<(), ImportError> {
    match top {
        Top::Masked => {
            a.kind = ModelKind::MaskedLm;
            a.head.bias = true;
            a.head.transform = Some(HeadTransform::MaskedLm);
        }
        Top::Pooled | Top::Bare | Top::Discriminator => {
            a.kind = ModelKind::Encoder;
            let transform = matches!(top, Top::Pooled).then_some(HeadTransform::Pooler);
            a.head = Head { outputs: 0, tied: false, bias: false, transform };
        }
        Top::Classifier => {
            a.kind = ModelKind::Encoder;
            let transform = Some(HeadTransform::Pooler);
            a.head = Head { outputs: labels(keys)?, tied: false, bias: true, transform };
        }
    }
    Ok(())
}

fn top_parameters(keys: &Keys<'_>, d: &Decoder, top: &Top) -> Result<Vec<Extra>, ImportError> {
    let hidden = d.hidden;
    Ok(match top {
        Top::Discriminator => {
            let at = |name: &str, shape: Vec<u64>, part, bias| {
                extra(format!("discriminator_predictions.{name}"), shape, part, bias, None)
            };
            vec![
                at("dense.weight", vec![hidden, hidden], Part::HeadDense, false),
                at("dense.bias", vec![hidden], Part::HeadDense, true),
                at("dense_prediction.weight", vec![1, hidden], Part::Head, false),
                at("dense_prediction.bias", vec![1], Part::Head, true),
            ]
        }
        Top::Masked if keys_class_is(keys, "ForPreTraining") => vec![
            extra(
                "bert.pooler.dense.weight".into(),
                vec![hidden, hidden],
                Part::HeadDense,
                false,
                None,
            ),
            extra("bert.pooler.dense.bias".into(), vec![hidden], Part::HeadDense, true, None),
            extra("cls.seq_relationship.weight".into(), vec![2, hidden], Part::Head, false, None),
            extra("cls.seq_relationship.bias".into(), vec![2], Part::Head, true, None),
        ],
        _ => Vec::new(),
    })
}

fn keys_class_is(keys: &Keys<'_>, end: &str) -> bool {
    let class =
        keys.get("architectures").and_then(|a| a.get(0)).and_then(serde_json::Value::as_str);
    class.is_some_and(|c| c.ends_with(end))
}

pub(super) fn extra(
    name: String,
    shape: Vec<u64>,
    part: Part,
    bias: bool,
    layer: Option<u64>,
) -> Extra {
    Extra { name, shape, part, bias, stack: layer.map(|_| 0), layer: layer.map(|l| l as usize) }
}

/// Disentangled attention: a shared relative table, and in the first version a fused projection with biases of its
/// own for queries and values.
fn deberta(keys: &Keys<'_>, family: &str, d: &mut Decoder, rows: u64) -> Result<(), ImportError> {
    let root = d.root.clone();
    let hidden = d.hidden;
    if !keys.flag("position_biased_input", true)? {
        d.positions = Positions::None;
    }
    let relative = keys.flag("relative_attention", false)?;
    let kinds = match keys.get("pos_att_type") {
        Some(serde_json::Value::Array(items)) => {
            items.iter().filter_map(serde_json::Value::as_str).collect::<Vec<_>>().join("|")
        }
        Some(serde_json::Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    let stated =
        keys.get("max_relative_positions").and_then(serde_json::Value::as_i64).unwrap_or(-1);
    let span = if stated < 1 { rows } else { (stated as u64).min(1 << 26) };
    if relative {
        let buckets =
            keys.get("position_buckets").and_then(serde_json::Value::as_i64).unwrap_or(-1);
        let table = match (family, buckets) {
            ("deberta-v2", 1..) => (buckets as u64).min(1 << 26).saturating_mul(2),
            _ => span.saturating_mul(2),
        };
        let name = format!("{root}encoder.rel_embeddings.weight");
        d.extra.push(extra(name, vec![table, hidden], Part::PositionEmbedding, false, None));
        d.positions = if d.positions == Positions::None {
            Positions::Disentangled { rows: table }
        } else {
            d.positions
        };
        if keys.text("norm_rel_ebd").is_some_and(|t| t.contains("layer_norm")) {
            for (end, bias) in [("weight", false), ("bias", true)] {
                let name = format!("{root}encoder.LayerNorm.{end}");
                d.extra.push(extra(name, vec![hidden], Part::EmbeddingNorm, bias, None));
            }
        }
    }
    let kernel = keys.count_or(&["conv_kernel_size"], 0)?;
    if kernel > 0 {
        let groups = keys.size_or(&["conv_groups"], 1)?;
        for (end, shape, bias) in [
            ("conv.weight", vec![hidden, hidden / groups, kernel], false),
            ("conv.bias", vec![hidden], true),
            ("LayerNorm.weight", vec![hidden], false),
            ("LayerNorm.bias", vec![hidden], true),
        ] {
            d.extra.push(extra(
                format!("{root}encoder.conv.{end}"),
                shape,
                Part::Other,
                bias,
                None,
            ));
        }
    }
    let first = family == "deberta";
    if first {
        d.attention.fused_qkv = true;
        d.attention.qkv_bias = false;
    }
    let shares = !first && keys.flag("share_att_key", false)?;
    for layer in 0..d.layers {
        let at = format!("{root}encoder.layer.{layer}.attention.self.");
        let mut add = |end: &str, shape: Vec<u64>, part, bias| {
            d.extra.push(extra(format!("{at}{end}"), shape, part, bias, Some(layer)));
        };
        if first {
            add("q_bias", vec![hidden], Part::Query, true);
            add("v_bias", vec![hidden], Part::Value, true);
        }
        if !relative || shares {
            continue;
        }
        let (key, query) =
            if first { ("pos_proj", "pos_q_proj") } else { ("pos_key_proj", "pos_query_proj") };
        if kinds.contains("c2p") {
            add(&format!("{key}.weight"), vec![hidden, hidden], Part::Key, false);
            if !first {
                add(&format!("{key}.bias"), vec![hidden], Part::Key, true);
            }
        }
        if kinds.contains("p2c") {
            add(&format!("{query}.weight"), vec![hidden, hidden], Part::Query, false);
            add(&format!("{query}.bias"), vec![hidden], Part::Query, true);
        }
    }
    Ok(())
}

fn modernbert(keys: &Keys<'_>) -> Result<Architecture, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    d.naming = Naming::ModernBert;
    let masked = keys_class_is(keys, "ForMaskedLM");
    d.root = if masked { "model.".to_owned() } else { String::new() };
    let norm = Norm { bias: keys.flag("norm_bias", false)?, ..Norm::LAYER };
    d.layer_norm(norm);
    d.embedding_norm = Some(norm);
    let bias = keys.flag("attention_bias", false)?;
    (d.attention.qkv_bias, d.attention.out_bias, d.attention.fused_qkv) = (bias, bias, true);
    d.mlp.bias = keys.flag("mlp_bias", false)?;
    d.mlp.fused_gate = true;
    d.mlp.activation = keys.activation(Activation::Gelu);
    d.tied = keys.flag("tie_word_embeddings", true)?;
    let window = keys.size_or(&["local_attention"], 128)?;
    let every = keys.size_or(&["global_attn_every_n_layers"], 3)?;
    d.spans = match spans_from_types(keys, d.layers, Some(window))? {
        Some(spans) => spans,
        None => (0..d.layers)
            .map(|i| if i.is_multiple_of(every) { Span::Full } else { Span::Sliding { window } })
            .collect(),
    };
    let mut architecture = d.finish();
    for stack in &mut architecture.stacks {
        stack.role = StackRole::Encoder;
        // The embedding's norm serves as the first layer's.
        if let Some(first) = stack.layers.first_mut() {
            first.norms = 1;
        }
    }
    if masked {
        architecture.kind = ModelKind::MaskedLm;
        architecture.head.bias = keys.flag("decoder_bias", true)?;
        architecture.head.transform = Some(HeadTransform::MaskedLm);
    } else {
        architecture.kind = ModelKind::Encoder;
        architecture.head = Head { outputs: 0, tied: false, bias: false, transform: None };
    }
    Ok(architecture)
}
