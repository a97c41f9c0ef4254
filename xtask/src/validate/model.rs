//! Which model a row is about: a name that the catalogue knows, a shape written out in words, or the arguments of a
//! Megatron run. All three become a configuration object and go through the one importer.

use plimsoll_catalog::models;
use plimsoll_model::arch::{Embedding, Mixer, Positions};
use plimsoll_model::{Architecture, Inventory, hf, inventory};
use serde_json::{Map, Value, json};

use super::megatron;
use super::row::{Row, after, before};

/// A model and its parameters.
pub struct Model {
    /// The name it was found under.
    pub name: String,
    /// Its shape.
    pub architecture: Architecture,
    /// Its parameters.
    pub inventory: Inventory,
    /// Sequence lengths of an encoder and its decoder, where the arguments state them.
    pub lengths: Option<(u64, u64)>,
}

/// The model of a row; the error is the reason why there is none.
pub fn resolve(row: &Row) -> Result<Model, String> {
    if let Some(args) = row.get("megatron_args").and_then(Value::as_object) {
        return megatron::model(row, args);
    }
    let text = row.text("model").ok_or("the row names no model")?;
    let lower = text.to_ascii_lowercase();
    if lower.contains(" + ") {
        return Err(format!("two models in one program: {text}"));
    }
    let layers = row.whole("num_layers").or_else(|| after(&lower, "truncated to"));
    let (name, mut config, positions) = if let Some(config) = torch_shape(&lower) {
        (text.clone(), config, Some(Positions::None))
    } else if let Some(config) = shape(&lower) {
        (text.clone(), config, None)
    } else {
        let entry = catalogued(&text).ok_or_else(|| format!("unknown model: {text}"))?;
        let mut config: Map<String, Value> =
            serde_json::from_str(entry.config).map_err(|e| e.to_string())?;
        // A model made from scratch has as many learned positions as it is trained on.
        if let (Some(Value::Bool(true)), Some(rows)) =
            (config.get("learned_pos_emb"), row.whole("seq_len"))
        {
            config.insert("max_seq_len".into(), json!(rows));
        }
        (entry.name.to_owned(), config, None)
    };
    if let Some(layers) = layers {
        truncate(&mut config, layers);
    }
    // Encoders are fine-tuned with a small head (classes, answer spans), not with the token head of pretraining.
    let tuned = row.lower("task").starts_with("encoder-ft");
    if tuned || lower.contains("classification") {
        config.insert("architectures".into(), json!([classifier(&config)]));
    }
    let mut model = import(name, config)?;
    if let (Some(positions), Some(embedding)) = (positions, model.architecture.embedding.as_mut()) {
        *embedding = Embedding { positions, ..embedding.clone() };
        model.inventory = inventory::inventory(&model.architecture);
    }
    Ok(model)
}

/// Imports a configuration object.
pub fn import(name: String, config: Map<String, Value>) -> Result<Model, String> {
    let imported = hf::from_value(&Value::Object(config)).map_err(|e| format!("{name}: {e}"))?;
    let architecture = imported.architecture;
    let inventory = inventory::inventory(&architecture);
    Ok(Model { name, architecture, inventory, lengths: None })
}

fn truncate(config: &mut Map<String, Value>, layers: u64) {
    for key in ["num_hidden_layers", "n_layer", "n_layers", "num_layers"] {
        if config.contains_key(key) {
            config.insert(key.into(), json!(layers));
        }
    }
    config.remove("layer_types");
}

fn classifier(config: &Map<String, Value>) -> String {
    let class = config
        .get("architectures")
        .and_then(|a| a.get(0))
        .and_then(Value::as_str)
        .unwrap_or("BertForMaskedLM");
    let stem = class.split("For").next().unwrap_or(class).trim_end_matches("Model");
    format!("{stem}ForSequenceClassification")
}

/// The catalogue entry that `text` names: as written, without what stands in brackets, by a name inside the brackets,
/// without the organisation, and without trailing parts that do not say a size.
pub fn catalogued(text: &str) -> Option<&'static models::ModelEntry> {
    let outside = text.split('(').next().unwrap_or(text).trim();
    let inside = text.split('(').nth(1).and_then(|t| t.split(')').next()).unwrap_or("");
    let mut candidates = vec![text.to_owned(), outside.to_owned()];
    candidates.extend(inside.split([' ', ',']).map(str::to_owned));
    let words: Vec<&str> = outside.split_whitespace().collect();
    for count in (1..=words.len()).rev() {
        candidates.push(words[..count].join("-"));
        candidates.push(words[..count].join("-").replace('_', "-"));
    }
    candidates.extend(words.iter().skip(1).map(|w| w.replace('_', "-")));
    let candidates: Vec<String> =
        candidates.into_iter().filter(|c| c.len() > 2 && c.contains(char::is_alphabetic)).collect();
    candidates.iter().find_map(|c| found(c)).or_else(|| candidates.iter().find_map(|c| shorter(c)))
}

fn found(name: &str) -> Option<&'static models::ModelEntry> {
    let tail = name.rsplit('/').next().unwrap_or(name);
    [name, tail, name.trim_end_matches("-like"), tail.trim_end_matches("-like")]
        .into_iter()
        .find_map(|n| models::find(n).ok())
}

/// The name without its last parts, as long as what is left still says a size (`7b`, `1.1B`).
fn shorter(name: &str) -> Option<&'static models::ModelEntry> {
    let tail = name.rsplit('/').next().unwrap_or(name);
    let parts: Vec<&str> = tail.split('-').collect();
    let sized = |part: &&str| {
        let part = part.to_ascii_lowercase();
        part.strip_suffix(['b', 'm']).is_some_and(|n| n.replace('_', ".").parse::<f64>().is_ok())
    };
    let first = parts.iter().position(sized)?;
    (first + 1..parts.len()).rev().find_map(|n| found(&parts[..n].join("-")))
}

/// A decoder of the Llama kind written out in words: width, feed-forward width, layers, heads, vocabulary.
fn shape(text: &str) -> Option<Map<String, Value>> {
    let (_, inner) = text.split_once('(')?;
    let first = |keys: &[&str]| keys.iter().find_map(|k| after(inner, k));
    let hidden = first(&["d_model", "d", "h", "hidden"])?;
    let ffn = first(&["d_ff", "ffn", "ff"])?;
    let heads = before(inner, "heads").or_else(|| first(&["heads"]))?;
    let layers = before(inner, "layers")
        .or_else(|| first(&["layers"]))
        .or_else(|| after(text, "truncated to"))?;
    let vocab = first(&["vocab"])?;
    let config = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": before(inner, "kv heads").unwrap_or(heads),
        "vocab_size": vocab,
        "hidden_act": "silu",
        "tie_word_embeddings": inner.contains("tied") && !inner.contains("untied"),
        "torch_dtype": "float32",
    });
    config.as_object().cloned()
}

/// PyTorch's own `nn.Transformer` (encoder and decoder of equal depth) as its word-language example spells it: `ninp` is
/// the width, `nhid` the feed-forward width. WikiText-2 has 33,278 words.
fn torch_shape(text: &str) -> Option<Map<String, Value>> {
    let (hidden, ffn) = (after(text, "ninp")?, after(text, "nhid")?);
    let layers = after(text, "nlayers")?;
    let heads = after(text, "nhead")?;
    let vocab = after(text, "vocab").or_else(|| text.contains("wikitext2").then_some(33_278))?;
    let config = json!({
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration"],
        "d_model": hidden,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_ffn_dim": ffn,
        "decoder_ffn_dim": ffn,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": 5000,
        "activation_function": "relu",
        "tie_word_embeddings": false,
        "torch_dtype": "float32",
    });
    config.as_object().cloned()
}

/// `dense`, `moe`, `hybrid`, `encoder`, `encoder-decoder`, `vision`...: what the errors are grouped by.
pub fn kind(architecture: &Architecture) -> &'static str {
    use plimsoll_model::arch::{Ffn, ModelKind};
    match architecture.kind {
        ModelKind::MaskedLm | ModelKind::Encoder => return "encoder",
        ModelKind::EncoderDecoderLm => return "encoder-decoder",
        ModelKind::SpeechSeq2Seq => return "speech",
        ModelKind::ImageClassifier | ModelKind::Contrastive => return "vision",
        ModelKind::VisionLanguage => return "vision-language",
        _ => {}
    }
    let recurrent = architecture
        .layers()
        .any(|l| !matches!(l.mixer, Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None));
    let routed = architecture.layers().any(|l| matches!(l.ffn, Ffn::Moe(_)));
    if recurrent {
        "hybrid"
    } else if routed {
        "moe"
    } else {
        "dense"
    }
}
