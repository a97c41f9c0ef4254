//! From a measured row of llama.cpp, a fork or ollama to the request that would reproduce it.
//!
//! Widths come from the row (`hparams`, as the log printed them), and where the row leaves them out from the
//! catalogue entry of the model that it names. What neither knows makes the row unusable, and the reason says so.

use plimsoll_catalog::models;
use plimsoll_estimate::llamacpp;
use plimsoll_estimate::request::{LlamaCpp, Offload, SplitMode};
use plimsoll_estimate::weights::{Mix, StoredTensor, gguf_tensors};
use plimsoll_estimate::{Device, Spread};
use plimsoll_model::arch::{
    Activation, Attention, Ffn, GatedDelta, LatentAttention, Layer, Mixer, Mlp, ModelKind, Moe,
    Norm, NormPlacement, Positions, QkNorm, Quantization, Span,
};
use plimsoll_model::{Architecture, hf, inventory};
use plimsoll_units::{Bytes, DType};
use serde_json::Value;

use super::rows_llamacpp_base as base;

/// What a row asks for.
pub type Request = (Architecture, Option<Vec<StoredTensor>>, LlamaCpp, Device);

/// A build of the time when logs print `flash_attn` as a number.
const FLAG_AS_NUMBER: u64 = 5000;

/// A build shortly before logs state `n_outputs_max`.
const BEFORE_SINGLE_OUTPUT: u64 = 8946;

/// Threads of the fork from this number on go on after June 2025, when host experts began to run on GPUs.
const FORK_THREAD: u64 = 430;

/// A build of the fork before that.
const FORK_OLD: u64 = 3700;

/// A build from which llama-server starts with four slots.
const SERVER_HAS_FOUR_SLOTS: u64 = 7000;

/// The request of one row.
///
/// # Errors
/// The reason why the row cannot be scored.
pub fn request(row: &Value) -> Result<Request, String> {
    let facts = Facts::new(row);
    let architecture = facts.architecture().or_else(|reason| facts.imported().ok_or(reason))?;
    let (request, device) = facts.settings(&architecture)?;
    let weights = mix(row)
        .and_then(|m| gguf_tensors(&architecture, &inventory::inventory(&architecture), &m).ok());
    Ok((architecture, weights, request, device))
}

/// A row and the catalogue entry of its model.
struct Facts<'a> {
    row: &'a Value,
    entry: Option<&'static models::ModelEntry>,
    config: Option<Value>,
    family: String,
}

fn number(v: &Value) -> Option<u64> {
    match v {
        Value::Number(n) => n.as_u64(),
        Value::String(s) => s.trim().parse().ok(),
        Value::Array(a) => a.first().and_then(number),
        _ => None,
    }
}

/// Spellings of a file or model name that the catalogue may know, longest first.
fn spellings(name: &str) -> Vec<String> {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let name = name.split([' ', '(']).next().unwrap_or(name);
    let name = name.strip_suffix(".gguf").unwrap_or(name).to_ascii_lowercase();
    let parts: Vec<&str> = name.split('-').collect();
    (1..=parts.len()).rev().map(|n| parts[..n].join("-")).collect()
}

/// The catalogue's entry for the model that the row names, or else for a model of the same family and depth.
fn catalogued(row: &Value, family: &str) -> Option<&'static models::ModelEntry> {
    let name = row["model"].as_str().unwrap_or("");
    let whole = name.split('(').next().unwrap_or(name).trim().replace(' ', "-");
    let mut names =
        spellings(&whole).into_iter().chain(spellings(name)).filter(|n| n.contains(['-', ':']));
    names.find_map(|n| models::find(&n).ok()).or_else(|| {
        let layers = number(&row["hparams"]["n_layer"])?;
        let stated = [
            ("n_embd", "hidden_size"),
            ("n_head", "num_attention_heads"),
            ("n_head_kv", "num_key_value_heads"),
            ("n_embd_head_k", "head_dim"),
        ];
        models::models().find(|e| {
            let Some(c) = text_part(e.config) else { return false };
            let same = stated.iter().all(|(ours, theirs)| {
                let (a, b) = (number(&row["hparams"][*ours]), number(&c[*theirs]));
                a.is_none() || a == b
            });
            llamacpp::gguf_family(c["model_type"].as_str().unwrap_or("")) == family
                && number(&c["num_hidden_layers"]) == Some(layers)
                && same
        })
    })
}

/// The quantization mix that the row or the file name states. Files with tensor types of their own (`UD-`) and types
/// of the fork have none.
fn mix(row: &Value) -> Option<String> {
    let file = row["model"].as_str().unwrap_or("").to_ascii_uppercase();
    if ["UD-", "SPECIAL", "OPTIMIZED"].iter().any(|m| file.contains(m)) {
        return None;
    }
    if let Some(quant) = row["quant"].as_str() {
        let known =
            quant.replace(" - Medium", "_M").replace(" - Small", "_S").replace(" - Large", "_L");
        let known = if known == "Q2_K_M" { "Q2_K" } else { &known };
        if known.parse::<Mix>().is_ok() {
            return Some(known.to_owned());
        }
    }
    if row["engine"].as_str().is_some_and(|e| e.starts_with("ik_")) {
        return nearest_mix(row["quant"].as_str()?);
    }
    let stem = file.split([' ', '(']).next()?.strip_suffix(".GGUF")?;
    let tail = stem.rsplit(['-', '.']).next()?;
    tail.parse::<Mix>().is_ok().then(|| tail.to_owned())
}

/// A mix of about the same bits per weight, for types that only the fork has: `IQ3_K - 3.4325 bpw`.
fn nearest_mix(quant: &str) -> Option<String> {
    let (_, bits) = quant.strip_suffix(" bpw")?.rsplit_once(' ')?;
    let bits: f64 = bits.parse().ok()?;
    let known = [
        (1.56, "IQ1_S"),
        (2.31, "IQ2_XS"),
        (3.06, "IQ3_XXS"),
        (3.44, "IQ3_S"),
        (4.25, "IQ4_XS"),
        (4.5, "Q4_K_S"),
        (5.5, "Q5_K_S"),
        (6.56, "Q6_K"),
        (8.5, "Q8_0"),
    ];
    let near = known.iter().min_by(|a, b| (a.0 - bits).abs().total_cmp(&(b.0 - bits).abs()))?;
    Some(near.1.to_owned())
}

/// The part of a configuration that describes the language model.
fn text_part(config: &str) -> Option<Value> {
    let config: Value = serde_json::from_str(config).ok()?;
    Some(match config.get("text_config") {
        Some(text) => text.clone(),
        None => config,
    })
}

/// Families that the widths of a log do not describe: recurrent layers, several widths, encoders and decoders.
const UNDESCRIBED: [&str; 26] = [
    "",
    "mamba",
    "mamba2",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "arwkv7",
    "jamba",
    "falcon-h1",
    "lfm2",
    "lfm2moe",
    "granitehybrid",
    "nemotron_h",
    "nemotron_h_moe",
    "plamo2",
    "plamo3",
    "kimi-linear",
    "deepseek4",
    "minimax-m3",
    "gemma4",
    "gemma3n",
    "t5",
    "t5encoder",
    "deci",
    "openelm",
    "bitnet",
];

/// Families with layer norms.
const LAYER_NORM: [&str; 14] = [
    "gptneox",
    "phi2",
    "bert",
    "nomic-bert",
    "gpt2",
    "starcoder",
    "starcoder2",
    "falcon",
    "mpt",
    "bloom",
    "stablelm",
    "gptj",
    "codeshell",
    "nemotron",
];

/// Families whose feed-forward has two matrices.
const UNGATED: [&str; 12] = [
    "gptneox",
    "phi2",
    "bert",
    "gpt2",
    "starcoder",
    "starcoder2",
    "falcon",
    "mpt",
    "bloom",
    "gptj",
    "codeshell",
    "nemotron",
];

impl<'a> Facts<'a> {
    fn new(row: &'a Value) -> Self {
        let stated = row["arch"].as_str().unwrap_or("").split(' ').next().unwrap_or("").to_owned();
        let entry = catalogued(row, &stated);
        let config = entry.and_then(|e| text_part(e.config));
        let family = if stated.is_empty() {
            let known = config.as_ref().and_then(|c| c["model_type"].as_str()).unwrap_or("");
            llamacpp::gguf_family(known).to_owned()
        } else {
            stated
        };
        Facts { row, entry, config, family }
    }

    /// The catalogue's model as it is, for families that rows do not describe.
    fn imported(&self) -> Option<Architecture> {
        let mut a = hf::from_config(self.entry?.config.as_bytes()).ok()?.architecture;
        a.family.clone_from(&self.family);
        Some(a)
    }

    /// A width: the row's own value, or the configuration's under one of `keys`.
    fn width(&self, name: &str, keys: &[&str]) -> Option<u64> {
        let own = number(&self.row["hparams"][name]);
        own.or_else(|| {
            let c = self.config.as_ref()?;
            keys.iter().find_map(|k| number(&c[*k]))
        })
    }

    fn need(&self, name: &str, keys: &[&str]) -> Result<u64, String> {
        self.width(name, keys).ok_or_else(|| {
            format!("neither the row nor the catalogue gives {name} of {}", self.row["model"])
        })
    }

    fn setting(&self, name: &str) -> Option<u64> {
        number(&self.row["settings"][name])
    }

    fn is(&self, families: &[&str]) -> bool {
        families.contains(&self.family.as_str())
    }
}

impl Facts<'_> {
    fn architecture(&self) -> Result<Architecture, String> {
        if UNDESCRIBED.contains(&self.family.as_str()) {
            return Err(format!("rows do not describe the layers of `{}`", self.family));
        }
        let layers = self.need("n_layer", &["num_hidden_layers", "n_layer", "n_layers"])?;
        let hidden = self.width("n_embd", &["hidden_size", "d_model", "n_embd"]);
        let hidden = hidden.or_else(|| self.width("n_embd_k_gqa", &[])).unwrap_or(1);
        let vocab = self.width("n_vocab", &["vocab_size"]).unwrap_or(1);
        let mut list = Vec::new();
        for il in 0..layers.min(4096) {
            list.push(self.layer(il, layers)?);
        }
        let mut a = base::llama(hidden, vocab, list)?;
        a.family.clone_from(&self.family);
        if (self.is(&LAYER_NORM) || self.is(&["command-r", "cohere2"]))
            && let Some(s) = a.stacks.first_mut()
        {
            s.final_norm = Some(Norm::LAYER);
        }
        if self.is(&["bert"]) {
            a.kind = ModelKind::Encoder;
            if let Some(s) = a.stacks.first_mut() {
                s.final_norm = None;
            }
            if let Some(e) = &mut a.embedding {
                e.positions = Positions::Learned { rows: 512 };
                (e.token_types, e.norm) = (Some(2), Some(Norm::LAYER));
            }
        }
        if self.is(&["gpt-oss"]) {
            // Published so, whatever the rest of a file is.
            a.quantization = Some(Quantization {
                method: "mxfp4".to_owned(),
                dtype: DType::Mxfp4,
                skip: Vec::new(),
            });
        }
        a.max_positions = None;
        Ok(a)
    }

    fn layer(&self, il: u64, layers: u64) -> Result<Layer, String> {
        let mut l = base::layer(self.mixer(il, layers)?, self.ffn(il)?)?;
        if self.is(&["gemma2", "gemma3", "gemma4", "glm4"]) {
            l.placement = NormPlacement::Sandwich;
            l.norms = 4;
        }
        if self.is(&LAYER_NORM) {
            l.norm = Norm::LAYER;
        }
        if self.is(&["falcon"]) {
            (l.parallel, l.norms) = (true, 1);
        }
        if self.is(&["gptneox"]) {
            (l.parallel, l.norm, l.norms) = (true, Norm::LAYER, 2);
        }
        if self.is(&["phi2"]) {
            (l.parallel, l.norm, l.norms) = (true, Norm::LAYER, 1);
        }
        if self.is(&["command-r", "cohere2"]) {
            (l.parallel, l.norm, l.norms) = (true, Norm { bias: false, ..Norm::LAYER }, 1);
        }
        if self.is(&["bert"]) {
            (l.placement, l.norm) = (NormPlacement::Post, Norm::LAYER);
        }
        Ok(l)
    }

    fn mixer(&self, il: u64, layers: u64) -> Result<Mixer, String> {
        if self.is(&["deepseek2"]) {
            return self.latent();
        }
        let attention_layers = self.width("n_layer_attn", &[]);
        if self.is(&["qwen35", "qwen35moe", "qwen3next"]) {
            let interval =
                self.width("full_attention_interval", &["full_attention_interval"]).unwrap_or(4);
            let recurrent = match attention_layers {
                Some(n) => !(il + 1).is_multiple_of((layers / n.max(1)).max(1)),
                None => !(il + 1).is_multiple_of(interval.max(1)),
            };
            if recurrent {
                return self.gated_delta();
            }
        }
        self.attention(il, layers).map(Mixer::Attention)
    }

    fn gated_delta(&self) -> Result<Mixer, String> {
        let c = |name: &str| self.need(name, &[name]);
        Ok(Mixer::GatedDelta(GatedDelta {
            key_heads: c("linear_num_key_heads")?,
            value_heads: c("linear_num_value_heads")?,
            key_dim: c("linear_key_head_dim")?,
            value_dim: c("linear_value_head_dim")?,
            conv: c("linear_conv_kernel_dim")?,
        }))
    }

    fn latent(&self) -> Result<Mixer, String> {
        let rope = self.need("n_rot", &["qk_rope_head_dim"])?;
        let rank = self.need("n_lora_kv", &["kv_lora_rank"])?;
        let head = self
            .width("n_embd_head_k_mla", &[])
            .or_else(|| self.width("n_embd_head_k", &[]).filter(|k| *k != rank + rope));
        let nope =
            head.map(|h| h.saturating_sub(rope)).or_else(|| self.width("", &["qk_nope_head_dim"]));
        let value = self
            .width("n_embd_head_v_mla", &[])
            .or_else(|| self.width("n_embd_head_v", &["v_head_dim"]).filter(|v| *v != rank));
        Ok(Mixer::Latent(LatentAttention {
            heads: self.need("n_head", &["num_attention_heads"])?,
            q_lora_rank: self.width("n_lora_q", &["q_lora_rank"]).filter(|r| *r > 0),
            kv_lora_rank: rank,
            nope_dim: nope.unwrap_or(128),
            rope_dim: rope,
            value_dim: value.unwrap_or(128),
            bias: false,
            indexer: None,
        }))
    }

    fn attention(&self, il: u64, layers: u64) -> Result<Attention, String> {
        let k_gqa = self.width("n_embd_k_gqa", &[]).filter(|k| *k > 0);
        let v_gqa = self.width("n_embd_v_gqa", &[]).filter(|v| *v > 0);
        let heads = self.width("n_head", &["num_attention_heads", "n_head"]);
        let hidden = self.width("n_embd", &["hidden_size"]);
        let mut kv_heads = self.width("n_head_kv", &["num_key_value_heads"]).or(heads);
        let per_head = match (k_gqa, kv_heads) {
            (Some(k), Some(n)) if n > 0 && k.is_multiple_of(n) => Some(k / n),
            _ => None,
        };
        let dim = self.width("n_embd_head_k", &["head_dim"]).or(per_head).or_else(|| {
            let (h, n) = (hidden?, heads?);
            h.checked_div(n)
        });
        let dim = dim.ok_or("neither the row nor the catalogue gives the head size")?;
        if let Some(k) = k_gqa {
            kv_heads = Some((k / dim.max(1)).max(1));
        }
        let kv_heads = kv_heads.ok_or("neither the row nor the catalogue gives the KV heads")?;
        let heads = heads.or_else(|| hidden.map(|h| h / dim.max(1))).unwrap_or(kv_heads);
        let value_dim = v_gqa.map_or(dim, |v| v / kv_heads.max(1));
        let mut a = base::attention(heads, kv_heads, dim, value_dim)?;
        a.span = self.span(il, layers);
        a.gated = self.is(&["qwen35", "qwen35moe", "qwen3next"]);
        if self.is(&[
            "qwen3",
            "qwen3moe",
            "qwen3vl",
            "qwen3vlmoe",
            "hunyuan-moe",
            "glm4moe",
            "gemma3",
            "gemma4",
            "qwen35",
            "qwen35moe",
            "qwen3next",
        ]) {
            a.qk_norm = QkNorm::PerHead;
        }
        let biased =
            ["gpt-oss", "phi2", "gptneox", "bert", "gpt2", "starcoder", "starcoder2", "bloom"];
        a.qkv_bias = self.is(&biased) || self.is(&["qwen2", "qwen2moe", "qwen2vl"]);
        a.out_bias = self.is(&biased);
        a.sinks = self.is(&["gpt-oss"]);
        a.fused_qkv =
            self.is(&["gptneox", "phi3", "gpt2", "starcoder", "falcon", "mpt", "bloom", "dbrx"]);
        Ok(a)
    }

    /// Sliding and full layers alternate by family: gpt-oss and Gemma 2 every other, Gemma 3 five to one.
    fn span(&self, il: u64, layers: u64) -> Span {
        let Some(window) = self.width("n_swa", &["sliding_window"]).filter(|w| *w > 0) else {
            return Span::Full;
        };
        let full = self.width("n_layer_full", &[]);
        let pattern = match full {
            Some(n) if n > 0 => layers / n,
            _ if self.is(&["gpt-oss", "gemma2"]) => 2,
            _ if self.is(&["cohere2", "llama4", "exaone4", "olmo2", "olmo3", "smallthinker"]) => 4,
            _ => self.width("n_swa_pattern", &[]).unwrap_or(6),
        };
        let sliding = [
            "gpt-oss",
            "gemma2",
            "gemma3",
            "cohere2",
            "llama4",
            "exaone4",
            "olmo3",
            "smallthinker",
        ];
        if !self.is(&sliding) || pattern < 2 {
            return Span::Full;
        }
        if (il + 1).is_multiple_of(pattern) { Span::Full } else { Span::Sliding { window } }
    }

    fn ffn(&self, il: u64) -> Result<Ffn, String> {
        let experts = self
            .width("n_expert", &["num_local_experts", "num_experts", "n_routed_experts"])
            .unwrap_or(0);
        let dense_lead = self.width("n_layer_dense_lead", &["first_k_dense_replace"]).unwrap_or(0);
        let gelu = self.is(&["gemma", "gemma2", "gemma3", "gemma4", "phi2", "gptneox", "bert"]);
        let activation = if gelu { Activation::GeluTanh } else { Activation::Silu };
        let gated = !self.is(&UNGATED);
        let bias = !gated && !self.is(&["falcon", "mpt"]);
        let mlp = |width| Mlp {
            width,
            gated,
            bias,
            activation,
            fused_gate: self.is(&["glm4", "phi3", "chatglm"]),
        };
        if experts == 0 || il < dense_lead {
            let width = self.width("n_ff", &["intermediate_size", "ffn_dim", "n_inner"]);
            let width = width
                .or_else(|| (!gated).then(|| self.width("n_embd", &[]).map(|h| 4 * h)).flatten());
            return Ok(width.map_or(Ffn::None, |w| Ffn::Dense(mlp(w))));
        }
        let width = self.need("n_ff_exp", &["moe_intermediate_size", "intermediate_size"])?;
        let shared = self.width("n_expert_shared", &["n_shared_experts"]).filter(|n| *n > 0);
        let oai = self.is(&["gpt-oss"]);
        Ok(Ffn::Moe(Moe {
            experts,
            top_k: self.need("n_expert_used", &["num_experts_per_tok"])?,
            expert: Mlp { bias: oai, ..mlp(width) },
            shared: shared.map(|n| mlp(n * width)),
            shared_gate: self.is(&["qwen2moe", "qwen3next", "qwen35moe"]),
            router_bias: oai,
            correction_bias: self.width("n_lora_q", &["q_lora_rank"]).is_some_and(|r| r > 0),
        }))
    }

    fn cache_type(&self, name: &str) -> Result<DType, String> {
        match self.row["settings"][name].as_str() {
            None => Ok(DType::F16),
            Some(t) => t.parse().map_err(|e| format!("{e}")),
        }
    }

    fn settings(&self, model: &Architecture) -> Result<(LlamaCpp, Device), String> {
        let engine = self.row["engine"].as_str().unwrap_or("");
        let s = &self.row["settings"];
        let mut r = LlamaCpp { ik: engine.starts_with("ik_"), ..LlamaCpp::default() };
        r.context = Some(self.setting("n_ctx").ok_or("the row gives no n_ctx")?);
        r.batch = self.setting("n_batch").unwrap_or(2048);
        r.ubatch = self.setting("n_ubatch").unwrap_or(512);
        r.sequences = self.sequences();
        r.unified = true;
        r.flash_attention = match &s["flash_attn"] {
            Value::String(t) => !matches!(t.as_str(), "0" | "off" | "disabled" | "false"),
            Value::Bool(b) => *b,
            Value::Number(n) => n.as_u64() != Some(0),
            // Logs of builds that decide by themselves; the CUDA backend decides yes.
            _ => !engine.starts_with("ollama") && self.build().is_none_or(|b| b > 6300),
        };
        r.cache_k = self.cache_type("cache_type_k")?;
        r.cache_v = self.cache_type("cache_type_v")?;
        r.mla = self.setting("mla_attn");
        r.attention_max_mib = self.setting("attn_max_b").unwrap_or(0);
        r.build = self.build();
        r.all_outputs = self.setting("n_outputs_max").map(|n| n > 1);
        r.offload = Offload {
            gpu_layers: self.gpu_layers(),
            cpu_moe_layers: self.host_experts(model),
            overrides: self.overrides(),
        };
        let printed = self.row["per_device"].as_object().map_or(0, |d| d.len() as u64);
        let named = self.row["n_gpus"].as_u64().unwrap_or(1).max(1);
        let count = if printed > 1 { printed } else { named };
        let split = self.row["parallel"]["split_mode"].as_str().unwrap_or("none");
        r.split = if split == "layer" && count > 1 { SplitMode::Layer } else { SplitMode::None };
        let device = Device {
            name: self.row["gpu"].as_str().unwrap_or("unknown").to_owned(),
            usable: Bytes::gib(self.row["gpu_mem_gib"].as_f64().map_or(80, |g| g as u64)),
            free: None,
            count,
            compute_capability: None,
            unified: false,
            context: Spread::default(),
        };
        Ok((r, device))
    }

    /// Sequences: as stated; one per row of logits; else the server's default, which is four slots since late 2025,
    /// where the log is one of a server (those print whether flash attention was enabled).
    fn sequences(&self) -> u64 {
        let decided = matches!(
            self.row["settings"]["flash_attn"].as_str(),
            Some("enabled" | "auto->enabled")
        );
        let server = decided && self.build().is_none_or(|b| b >= SERVER_HAS_FOUR_SLOTS);
        let stated = self.setting("n_seq_max").or(self.setting("n_outputs_max"));
        stated.unwrap_or(if server { 4 } else { 1 })
    }

    /// `-ot` rules: `pattern=BUFFER`, several with commas between, in quotes or not.
    fn overrides(&self) -> Vec<(String, bool)> {
        let Some(rules) = self.row["settings"]["override_tensor"].as_array() else {
            return Vec::new();
        };
        let texts = rules.iter().filter_map(Value::as_str);
        let parts = texts.flat_map(|t| {
            t.trim_matches(['"', '\'']).split(',').map(str::to_owned).collect::<Vec<_>>()
        });
        let pairs = parts.filter_map(|p| {
            let (pattern, buffer) = p.rsplit_once('=')?;
            Some((pattern.trim_matches(['"', '\'']).to_owned(), buffer.starts_with("CPU")))
        });
        pairs.collect()
    }

    /// Layers whose experts are on the host although the row states no rule: a whole model on the GPUs is cut into a
    /// few parts, not into more parts than it has layers.
    fn host_experts(&self, model: &Architecture) -> u64 {
        let layers = model.main_stack().map_or(0, |s| s.layers.len() as u64);
        let splits = self.row["settings"]["graph_splits"].as_str().and_then(|t| {
            let digits: String = t.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().ok()
        });
        let stated = !self.row["settings"]["override_tensor"].is_null();
        let whole = self.gpu_layers().is_none_or(|n| n > layers);
        if !stated && whole && splits.is_some_and(|n| n > layers) { layers } else { 0 }
    }

    /// `49/49`, `99` or nothing.
    fn gpu_layers(&self) -> Option<u64> {
        let v = &self.row["settings"]["n_gpu_layers"];
        v.as_u64().or_else(|| v.as_str()?.split('/').next()?.trim().parse().ok())
    }

    /// The build number, as logs print it (`b5050`, `5269-1d36b367`). Where the row has none, the log's own form tells
    /// the era: `flash_attn = 0` was printed up to August 2025, `n_outputs_max` since the builds that know it.
    fn build(&self) -> Option<u64> {
        let stated = self.row["version"].as_str().and_then(|text| {
            let digits: String =
                text.trim_start_matches('b').chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok().filter(|b| *b > 100)
        });
        let named = || {
            let engine = self.row["engine"].as_str()?;
            let (_, rest) = engine.split_once(" b")?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        };
        let fork = self.row["engine"].as_str().is_some_and(|e| e.starts_with("ik_"));
        if fork {
            // Numbers above the fork's own count come from mainline's; the thread's number dates the log then.
            let thread =
                self.row["source"].as_str().and_then(|s| s.rsplit_once('#')?.1.parse::<u64>().ok());
            let old = thread.is_some_and(|n| n < FORK_THREAD);
            return stated.filter(|b| *b < 5000).or(old.then_some(FORK_OLD));
        }
        let era = || {
            if matches!(self.row["settings"]["flash_attn"].as_str(), Some("0" | "1")) {
                return Some(FLAG_AS_NUMBER);
            }
            if self.setting("n_outputs_max").is_none() {
                return Some(BEFORE_SINGLE_OUTPUT);
            }
            None
        };
        stated.or_else(named).or_else(era)
    }
}
