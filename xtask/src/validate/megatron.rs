//! The arguments of a Megatron run as a configuration object and what the object cannot say.

use plimsoll_model::arch::{ModelKind, Norm, NormKind, Positions};
use plimsoll_model::inventory;
use serde_json::{Map, Value, json};

use super::model::{Model, import};
use super::row::{Row, flag, number, whole, words};

/// Typed access to the arguments.
pub struct Args<'a>(pub &'a Map<String, Value>);

impl Args<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        let under = key.replace('-', "_");
        [key, under.as_str(), &format!("--{key}")]
            .into_iter()
            .find_map(|k| self.0.get(k))
            .filter(|v| !v.is_null())
    }

    /// A whole number.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(whole)
    }

    /// A flag; absent is false.
    pub fn on(&self, key: &str) -> bool {
        self.get(key).and_then(flag).unwrap_or(false)
    }

    /// Lower-case text; absent is empty.
    pub fn text(&self, key: &str) -> String {
        self.get(key).and_then(words).unwrap_or_default().to_ascii_lowercase()
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key).and_then(number)
    }
}

/// Sizes of the vocabularies behind Megatron's tokenizer names: GPT-2 BPE, BERT's two, Llama 2, Nemotron's
/// SentencePiece model (256,000).
const VOCABULARIES: [(&str, u64); 6] = [
    ("gpt2bpe", 50257),
    ("bertwordpiecelowercase", 30522),
    ("bertwordpiececase", 28996),
    ("llama2", 32000),
    ("gptsentencepiece", 256_000),
    ("tiktoken", 131_072),
];

/// Layers of the T5 sizes (t5-small to t5-11b) by width; Megatron's T5 recipes leave them to the model provider.
const T5_LAYERS: [(u64, u64); 4] = [(512, 6), (768, 12), (1024, 24), (4096, 24)];

/// The model that the arguments describe.
pub fn model(row: &Row, args: &Map<String, Value>) -> Result<Model, String> {
    let a = Args(args);
    let name = row.text("model").unwrap_or_else(|| "Megatron model".into());
    let lower = name.to_ascii_lowercase();
    if a.whole("img-h").is_some() || a.whole("patch-dim").is_some() {
        return Err("Megatron vision-language model: no builder for its tower yet".into());
    }
    if a.get("hybrid-layer-pattern").is_some()
        || a.get("hybrid-override-pattern").is_some()
        || a.number("hybrid-attention-ratio").is_some()
        || a.text("spec").contains("mamba")
        || a.text("spec").contains("hybrid")
    {
        return Err("Megatron hybrid Mamba pattern: no importer yet".into());
    }
    if let Some(encoder) = a.whole("encoder-seq-length") {
        return t5(name, &a, encoder);
    }
    if lower.contains("bert") {
        return bert(name, &a);
    }
    decoder(name, &a)
}

/// Rows of the token table: the vocabulary padded to a multiple of `make-vocab-size-divisible-by` (128) times the
/// tensor-parallel degree.
fn vocab(a: &Args<'_>, default: &str) -> u64 {
    let tokenizer = a.text("tokenizer-type");
    let tokenizer = if tokenizer.is_empty() { default.to_owned() } else { tokenizer };
    let known = VOCABULARIES.iter().find(|(n, _)| tokenizer.contains(n)).map(|(_, v)| *v);
    let size =
        a.whole("vocab-size").or(known).unwrap_or(50257) + a.whole("vocab-extra-ids").unwrap_or(0);
    let multiple = a.whole("make-vocab-size-divisible-by").unwrap_or(128)
        * a.whole("tensor-model-parallel-size").unwrap_or(1);
    size.div_ceil(multiple.max(1)) * multiple.max(1)
}

fn need(a: &Args<'_>, key: &str) -> Result<u64, String> {
    a.whole(key).ok_or_else(|| format!("the arguments lack {key}"))
}

fn bert(name: String, a: &Args<'_>) -> Result<Model, String> {
    let hidden = need(a, "hidden-size")?;
    let config = json!({
        "model_type": "bert",
        "architectures": ["BertForPreTraining"],
        "hidden_size": hidden,
        "intermediate_size": a.whole("ffn-hidden-size").unwrap_or(4 * hidden),
        "num_hidden_layers": need(a, "num-layers")?,
        "num_attention_heads": need(a, "num-attention-heads")?,
        "vocab_size": vocab(a, "bertwordpiecelowercase"),
        "max_position_embeddings": need(a, "max-position-embeddings")?,
        "hidden_dropout_prob": a.number("hidden-dropout").unwrap_or(0.1),
        "attention_probs_dropout_prob": a.number("attention-dropout").unwrap_or(0.1),
        "torch_dtype": "bfloat16",
    });
    import(name, config.as_object().cloned().unwrap_or_default())
}

fn t5(name: String, a: &Args<'_>, encoder: u64) -> Result<Model, String> {
    let hidden = need(a, "hidden-size")?;
    let layers = a
        .whole("encoder-num-layers")
        .or(a.whole("num-layers"))
        .or(T5_LAYERS.iter().find(|(h, _)| *h == hidden).map(|(_, l)| *l))
        .ok_or("the arguments lack the number of layers")?;
    let heads = need(a, "num-attention-heads")?;
    let config = json!({
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": hidden,
        "d_kv": a.whole("kv-channels").unwrap_or(hidden / heads.max(1)),
        "d_ff": a.whole("ffn-hidden-size").unwrap_or(4 * hidden),
        "num_layers": layers,
        "num_decoder_layers": a.whole("decoder-num-layers").unwrap_or(layers),
        "num_heads": heads,
        "vocab_size": vocab(a, "bertwordpiecelowercase"),
        "feed_forward_proj": "gelu",
        "dropout_rate": a.number("hidden-dropout").unwrap_or(0.1),
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
    });
    let mut model = import(name, config.as_object().cloned().unwrap_or_default())?;
    let decoder = a.whole("decoder-seq-length").unwrap_or(encoder);
    model.lengths = Some((encoder, decoder));
    Ok(model)
}

fn decoder(name: String, a: &Args<'_>) -> Result<Model, String> {
    let hidden = need(a, "hidden-size")?;
    let heads = need(a, "num-attention-heads")?;
    let layers = need(a, "num-layers")?;
    let gated = a.on("swiglu");
    // Megatron's own default: four times the width, two thirds of that rounded to 64 where the part is gated.
    let default = if gated { hidden * 8 / 3 / 64 * 64 } else { 4 * hidden };
    let ffn = a.whole("ffn-hidden-size").unwrap_or(default);
    let groups = if a.on("group-query-attention") {
        a.whole("num-query-groups").unwrap_or(1)
    } else {
        heads
    };
    let dim = a.whole("kv-channels").unwrap_or(hidden / heads.max(1));
    let mut config = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": dim,
        "vocab_size": vocab(a, "gpt2bpe"),
        "max_position_embeddings": a.whole("max-position-embeddings").unwrap_or(4096),
        "hidden_act": if gated { "silu" } else { "gelu" },
        "tie_word_embeddings": !a.on("untie-embeddings-and-output-weights"),
        "torch_dtype": "bfloat16",
    });
    let latent = a.on("multi-latent-attention");
    let experts = a.whole("num-experts").filter(|n| *n > 0);
    if let Some(object) = config.as_object_mut() {
        if latent {
            latent_keys(object, a, hidden, ffn, layers)?;
        } else if let Some(experts) = experts {
            routed_keys(object, a, experts, ffn, layers);
        }
    }
    let mut model = import(name, config.as_object().cloned().unwrap_or_default())?;
    flags(&mut model, a, gated);
    model.inventory = inventory::inventory(&model.architecture);
    Ok(model)
}

/// DeepSeek's keys: latent attention, experts after the first dense layers.
fn latent_keys(
    object: &mut Map<String, Value>,
    a: &Args<'_>,
    hidden: u64,
    ffn: u64,
    layers: u64,
) -> Result<(), String> {
    let experts = a.whole("num-experts").unwrap_or(0);
    let dense = if experts == 0 { layers } else { dense_layers(&a.text("moe-layer-freq")) };
    let shared = a.whole("moe-shared-expert-intermediate-size").unwrap_or(0);
    let width = a.whole("moe-ffn-hidden-size").unwrap_or(ffn);
    let values = json!({
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "q_lora_rank": a.whole("q-lora-rank"),
        "kv_lora_rank": a.whole("kv-lora-rank").unwrap_or(512),
        "qk_nope_head_dim": a.whole("qk-head-dim").unwrap_or(128),
        "qk_rope_head_dim": a.whole("qk-pos-emb-head-dim").unwrap_or(64),
        "v_head_dim": a.whole("v-head-dim").unwrap_or(128),
        "n_routed_experts": experts.max(1),
        "num_experts_per_tok": a.whole("moe-router-topk").unwrap_or(2).min(experts.max(1)),
        "moe_intermediate_size": width,
        "n_shared_experts": shared.div_ceil(width.max(1)),
        "first_k_dense_replace": dense,
        "num_nextn_predict_layers": a.whole("mtp-num-layers").unwrap_or(0),
        "hidden_size": hidden,
    });
    object.remove("head_dim");
    for (key, value) in values.as_object().into_iter().flatten() {
        if !value.is_null() {
            object.insert(key.clone(), value.clone());
        }
    }
    Ok(())
}

/// Mixtral's keys, or Qwen's where there is a shared expert.
fn routed_keys(
    object: &mut Map<String, Value>,
    a: &Args<'_>,
    experts: u64,
    ffn: u64,
    _layers: u64,
) {
    let width = a.whole("moe-ffn-hidden-size").unwrap_or(ffn);
    object.insert("num_experts_per_tok".into(), json!(a.whole("moe-router-topk").unwrap_or(2)));
    if let Some(shared) = a.whole("moe-shared-expert-intermediate-size").filter(|s| *s > 0) {
        object.insert("model_type".into(), json!("qwen2_moe"));
        object.insert("num_experts".into(), json!(experts));
        object.insert("moe_intermediate_size".into(), json!(width));
        object.insert("shared_expert_intermediate_size".into(), json!(shared));
    } else {
        object.insert("model_type".into(), json!("mixtral"));
        object.insert("num_local_experts".into(), json!(experts));
        object.insert("intermediate_size".into(), json!(width));
    }
}

/// Dense layers at the start of a pattern such as `([0]*3+[1]*12)`.
fn dense_layers(pattern: &str) -> u64 {
    let pattern = pattern.replace(' ', "");
    let Some((_, rest)) = pattern.split_once("[0]*") else { return 0 };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// What a configuration of the Llama kind cannot say: norms, biases, ungated parts, positions, dropout.
fn flags(model: &mut Model, a: &Args<'_>, gated: bool) {
    use plimsoll_model::arch::{Ffn, Mixer, QkNorm};
    let architecture = &mut model.architecture;
    architecture.kind = ModelKind::CausalLm;
    let rms = a.text("normalization").contains("rms");
    let norm = if rms { Norm::RMS } else { Norm::LAYER };
    let bias = !a.on("disable-bias-linear");
    let qkv = bias || a.on("add-qkv-bias");
    let dropout = a.number("hidden-dropout").unwrap_or(0.1) > 0.0;
    let attention_dropout = a.number("attention-dropout").unwrap_or(0.1) > 0.0;
    for stack in &mut architecture.stacks {
        if let Some(last) = &mut stack.final_norm {
            *last = norm;
        }
        for layer in &mut stack.layers {
            layer.norm = norm;
            layer.dropout = dropout;
            match &mut layer.ffn {
                Ffn::Dense(mlp) => (mlp.gated, mlp.bias) = (gated, bias),
                Ffn::Moe(moe) => {
                    (moe.expert.gated, moe.expert.bias) = (gated, bias);
                    if let Some(shared) = &mut moe.shared {
                        (shared.gated, shared.bias) = (gated, bias);
                    }
                    moe.shared_gate = a.on("moe-shared-expert-gate");
                }
                _ => {}
            }
            if let Mixer::Attention(attention) = &mut layer.mixer {
                attention.fused_qkv = true;
                (attention.qkv_bias, attention.key_bias) = (qkv, None);
                attention.out_bias = bias;
                attention.dropout = attention_dropout;
                if a.on("qk-layernorm") {
                    attention.qk_norm = if norm.kind == NormKind::Rms {
                        QkNorm::PerHead
                    } else {
                        QkNorm::PerHeadLayer
                    };
                }
            }
        }
    }
    if let Some(embedding) = &mut architecture.embedding {
        let kind = a.text("position-embedding-type");
        if kind.is_empty() || kind.contains("learned") {
            let rows = a.whole("max-position-embeddings").unwrap_or(1024);
            embedding.positions = Positions::Learned { rows };
        } else if kind == "none" {
            embedding.positions = Positions::None;
        }
    }
}
