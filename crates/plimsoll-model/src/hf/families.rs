//! One rule per `model_type`: how the family differs from Llama. Defaults are those of its configuration class.

use serde_json::Value;

use super::decoder::{Decoder, periodic, spans_from_types};
use super::keys::{HEADS, HIDDEN, Keys, LAYERS};
use super::{
    ImportError, deepseek_v4, encoder, gemma, hybrid, kimi, legacy, mixture, multimodal, resampler,
    seq2seq, speech, zamba,
};
use crate::arch::{Activation, Architecture, Extra, Norm, NormPlacement, QkNorm, Span};
use crate::inventory::{Naming, Part};

/// Builds the architecture of `family` from `keys`.
pub(super) fn build(keys: &Keys<'_>, family: &str) -> Result<Architecture, ImportError> {
    if let Some(done) = multimodal::build(keys, family)? {
        return Ok(done);
    }
    if let Some(done) = resampler::build(keys, family)? {
        return Ok(done);
    }
    if let Some(done) = speech::build(keys, family)? {
        return Ok(done);
    }
    if let Some(done) = encoder::build(keys, family)? {
        return Ok(done);
    }
    if let Some(done) = seq2seq::build(keys, family)? {
        return Ok(done);
    }
    decoder(keys, family)
}

/// A text decoder, alone or as the language model of a multimodal one.
pub(super) fn decoder(keys: &Keys<'_>, family: &str) -> Result<Architecture, ImportError> {
    if let Some(done) = hybrid::build(keys, family)? {
        return Ok(done);
    }
    if let Some(done) = legacy::build(keys, family)? {
        return Ok(done.finish());
    }
    if let Some(done) = gemma::build(keys, family)? {
        return Ok(done.finish());
    }
    if let Some(done) = zamba::build(keys, family)? {
        return Ok(done);
    }
    if let Some(done) = kimi::build(keys, family)? {
        return Ok(done.finish());
    }
    if let Some(done) = deepseek_v4::build(keys, family)? {
        return Ok(done.finish());
    }
    if let Some(done) = mixture::build(keys, family)? {
        return Ok(done.finish());
    }
    dense(keys, family).map(Decoder::finish)
}

/// Norm without any parameter (first OLMo).
const BARE: Norm = Norm { weight: false, bias: false, ..Norm::LAYER };
/// Layer norm with a scale only (Command-R, MPT).
pub(super) const SCALE: Norm = Norm { bias: false, ..Norm::LAYER };

fn dense(keys: &Keys<'_>, family: &str) -> Result<Decoder, ImportError> {
    let mut d = Decoder::llama(keys)?.with_width(keys)?;
    match family {
        "llama" | "granite" | "smollm3" | "minicpm" | "internlm" | "internlm3" | "yi"
        | "xverse" | "helium" | "aquila" | "skywork" | "orion" | "decilm" | "exaone" => {
            llama_like(keys, family, &mut d)?
        }
        "mistral" | "ministral" | "mistral_nemo" | "ministral3" => {
            // The class default slides over 4096 tokens; later models write null.
            let absent = if keys.has("sliding_window") { None } else { Some(4096) };
            let window =
                keys.size_if(&["sliding_window"])?.or(absent.filter(|_| family == "mistral"));
            slide_everywhere(keys, &mut d, window)?;
        }
        "qwen2" | "qwen2_vl_text" | "qwen2_5_vl_text" => {
            d.attention.qkv_bias = true;
            d.spans = qwen_spans(keys, d.layers)?;
        }
        "qwen3" | "qwen3_vl_text" => {
            biases_from(keys, &mut d, "attention_bias", false)?;
            d.attention.qk_norm = QkNorm::PerHead;
            d.spans = qwen_spans(keys, d.layers)?;
        }
        "gemma" | "gemma2" | "gemma3_text" | "gemma3" => gemma_dense(keys, family, &mut d)?,
        "phi3" | "phi4" => {
            d.attention.fused_qkv = true;
            d.mlp.fused_gate = true;
            d.partial_rotary(keys, 1.0);
            let window = keys.size_if(&["sliding_window"])?;
            slide_everywhere(keys, &mut d, window)?;
        }
        "phi" => phi(keys, &mut d)?,
        "stablelm" | "stablelm_epoch" => stablelm(keys, &mut d)?,
        "starcoder2" => {
            d.naming = Naming::Starcoder2;
            d.layer_norm(Norm::LAYER);
            biases_from(keys, &mut d, "use_bias", true)?;
            d.mlp.bias = d.attention.qkv_bias;
            d.mlp.gated = false;
            d.mlp.activation = keys.activation(Activation::GeluTanh);
            d.tied = keys.flag("tie_word_embeddings", true)?;
            let window = keys.size_if(&["sliding_window"])?;
            slide_everywhere(keys, &mut d, window)?;
        }
        "olmo" => {
            biases_from(keys, &mut d, "attention_bias", false)?;
            d.layer_norm(BARE);
        }
        "olmo2" | "olmo3" => {
            biases_from(keys, &mut d, "attention_bias", false)?;
            d.naming = Naming::Olmo2;
            d.placement = NormPlacement::BranchOutput;
            d.attention.qk_norm = QkNorm::Full;
            if family == "olmo3" {
                patterned(keys, &mut d, 4, Some(4096))?;
            }
        }
        "exaone4" => {
            d.naming = Naming::Olmo2;
            d.placement = NormPlacement::BranchOutput;
            d.attention.qk_norm = QkNorm::PerHead;
            if keys.get("sliding_window").is_some() {
                patterned(keys, &mut d, 4, None)?;
            }
        }
        "cohere" | "cohere2" => cohere(keys, family, &mut d)?,
        "glm" | "glm4" => {
            d.attention.qkv_bias = keys.flag("attention_bias", true)?;
            d.attention.head_dim = keys.size_or(&["head_dim"], 128)?;
            d.attention.value_dim = d.attention.head_dim;
            d.mlp.fused_gate = true;
            d.partial_rotary(keys, 0.5);
            if family == "glm4" {
                d.naming = Naming::Glm4;
                (d.norms, d.placement) = (4, NormPlacement::Sandwich);
            }
        }
        "seed_oss" => {
            d.attention.qkv_bias = keys.flag("attention_bias", true)?;
            d.attention.out_bias = keys.flag("attention_out_bias", false)?;
            d.mlp.bias = keys.flag("mlp_bias", false)?;
        }
        "apertus" => apertus(keys, &mut d)?,
        "arcee" | "nemotron" => ungated(keys, family, &mut d)?,
        "ernie4_5" => {
            biases_from(keys, &mut d, "use_bias", false)?;
            d.mlp.bias = d.attention.qkv_bias;
            d.tied = keys.flag("tie_word_embeddings", true)?;
        }
        "qwen" => qwen1(keys, &mut d)?,
        "baichuan" => {
            d.naming = Naming::Baichuan;
            d.attention.fused_qkv = true;
            if d.hidden > 4096 {
                // The 13B models use linear biases, the 7B models rotate (their modeling code).
                d.positions = crate::arch::Positions::Alibi;
            }
        }
        "internlm2" => {
            d.naming = Naming::Internlm2;
            biases_from(keys, &mut d, "bias", true)?;
            d.attention.fused_qkv = true;
        }
        "chatglm" => chatglm(keys, &mut d)?,
        _ => unknown(keys, family, &mut d)?,
    }
    Ok(d)
}

/// q, k, v and output projections share one flag.
pub(super) fn biases_from(
    keys: &Keys<'_>,
    d: &mut Decoder,
    key: &str,
    default: bool,
) -> Result<(), ImportError> {
    let bias = keys.flag(key, default)?;
    (d.attention.qkv_bias, d.attention.out_bias) = (bias, bias);
    Ok(())
}

fn llama_like(keys: &Keys<'_>, family: &str, d: &mut Decoder) -> Result<(), ImportError> {
    let (attention, mlp) = if family.starts_with("internlm") {
        (keys.flag("qkv_bias", keys.flag("bias", family == "internlm")?)?, false)
    } else {
        (keys.flag("attention_bias", false)?, keys.flag("mlp_bias", false)?)
    };
    (d.attention.qkv_bias, d.attention.out_bias, d.mlp.bias) = (attention, attention, mlp);
    match family {
        "smollm3" => {
            d.tied = keys.flag("tie_word_embeddings", true)?;
            if let Some(spans) = spans_from_types(keys, d.layers, None)? {
                d.spans = spans;
            }
        }
        "minicpm" => d.tied = keys.flag("tie_word_embeddings", true)?,
        "internlm3" => d.attention.out_bias = keys.flag("bias", false)?,
        "exaone" | "decilm" | "orion" | "skywork" => {
            keys.assume("model_type", format!("{family:?} is read by the rules of llama"));
        }
        _ => {}
    }
    Ok(())
}

/// One window for all layers, unless `layer_types` says otherwise.
pub(super) fn slide_everywhere(
    keys: &Keys<'_>,
    d: &mut Decoder,
    window: Option<u64>,
) -> Result<(), ImportError> {
    if let Some(spans) = spans_from_types(keys, d.layers, window)? {
        d.spans = spans;
    } else if let Some(window) = window {
        d.attention.span = Span::Sliding { window };
    }
    Ok(())
}

/// `layer_types`, else every `sliding_window_pattern`-th layer full.
fn patterned(
    keys: &Keys<'_>,
    d: &mut Decoder,
    period: u64,
    window: Option<u64>,
) -> Result<(), ImportError> {
    if let Some(spans) = spans_from_types(keys, d.layers, window)? {
        d.spans = spans;
        return Ok(());
    }
    let period = match keys.get("sliding_window_pattern") {
        // Exaone writes its pattern as letters, one period long.
        Some(Value::String(letters)) => letters.len() as u64,
        _ => keys.size_or(&["sliding_window_pattern", "_sliding_window_pattern"], period)?,
    };
    if let Some(window) = keys.size_if(&["sliding_window"])?.or(window) {
        d.spans = periodic(d.layers, period, window);
    }
    Ok(())
}

/// Qwen slides only with `use_sliding_window`, from layer `max_window_layers` on.
pub(super) fn qwen_spans(keys: &Keys<'_>, layers: u64) -> Result<Vec<Span>, ImportError> {
    if !keys.flag("use_sliding_window", false)? {
        return Ok(Vec::new());
    }
    if let Some(spans) = spans_from_types(keys, layers, None)? {
        return Ok(spans);
    }
    let Some(window) = keys.size_if(&["sliding_window"])? else { return Ok(Vec::new()) };
    let first = keys.count_or(&["max_window_layers"], 28)?;
    Ok((0..layers)
        .map(|i| if i >= first { Span::Sliding { window } } else { Span::Full })
        .collect())
}

fn gemma_dense(keys: &Keys<'_>, family: &str, d: &mut Decoder) -> Result<(), ImportError> {
    biases_from(keys, d, "attention_bias", false)?;
    d.attention.head_dim = keys.size_or(&["head_dim"], 256)?;
    d.attention.value_dim = d.attention.head_dim;
    d.positions = crate::arch::Positions::Rotary { dim: d.attention.head_dim };
    // Even where the configuration says `gelu`, the modeling code has always taken the tanh form.
    d.mlp.activation = Activation::GeluTanh;
    d.tied = keys.flag("tie_word_embeddings", true)?;
    if family == "gemma" {
        return Ok(());
    }
    (d.norms, d.placement) = (4, NormPlacement::Sandwich);
    if family == "gemma2" {
        return patterned(keys, d, 2, Some(4096));
    }
    d.attention.qk_norm = QkNorm::PerHead;
    patterned(keys, d, 6, Some(4096))
}

fn phi(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    d.naming = Naming::Phi;
    d.layer_norm(Norm::LAYER);
    (d.norms, d.parallel) = (1, true);
    (d.attention.qkv_bias, d.attention.out_bias, d.mlp.bias, d.head_bias) =
        (true, true, true, true);
    d.mlp.gated = false;
    d.mlp.activation = keys.activation(Activation::GeluComposed);
    d.dropout = keys.positive(&["resid_pdrop"], false);
    if keys.flag("qk_layernorm", false)? {
        d.attention.qk_norm = QkNorm::PerHeadLayer;
    }
    d.partial_rotary(keys, 0.5);
    Ok(())
}

fn stablelm(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    d.layer_norm(Norm::LAYER);
    d.attention.qkv_bias = keys.flag("use_qkv_bias", false)?;
    if keys.flag("use_parallel_residual", false)? {
        (d.norms, d.parallel) = (1, true);
    }
    if keys.flag("qk_layernorm", false)? {
        d.naming = Naming::StableLm;
        d.attention.qk_norm = QkNorm::PerHeadWeights;
    }
    d.partial_rotary(keys, 0.25);
    Ok(())
}

fn cohere(keys: &Keys<'_>, family: &str, d: &mut Decoder) -> Result<(), ImportError> {
    biases_from(keys, d, "attention_bias", false)?;
    d.layer_norm(SCALE);
    (d.norms, d.parallel) = (1, true);
    d.tied = keys.flag("tie_word_embeddings", true)?;
    if keys.flag("use_qk_norm", false)? {
        d.attention.qk_norm = QkNorm::PerHeadWeights;
    }
    if family == "cohere2" { patterned(keys, d, 4, Some(4096)) } else { Ok(()) }
}

fn apertus(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    biases_from(keys, d, "attention_bias", false)?;
    d.naming = Naming::Apertus;
    d.attention.qk_norm = QkNorm::PerHead;
    d.mlp.gated = false;
    for layer in 0..d.layers {
        for scalar in ["alpha_p", "alpha_n"] {
            d.extra.push(Extra {
                name: format!("model.layers.{layer}.mlp.act_fn.{scalar}"),
                shape: vec![1],
                part: Part::Other,
                bias: false,
                stack: Some(0),
                layer: Some(layer as usize),
            });
        }
    }
    Ok(())
}

fn ungated(keys: &Keys<'_>, family: &str, d: &mut Decoder) -> Result<(), ImportError> {
    biases_from(keys, d, "attention_bias", false)?;
    d.mlp.bias = keys.flag("mlp_bias", false)?;
    d.mlp.gated = false;
    d.mlp.activation = keys.activation(Activation::Relu2);
    if family == "nemotron" {
        d.layer_norm(Norm::LAYER);
        d.partial_rotary(keys, 0.5);
    }
    Ok(())
}

/// Qwen 1 (remote code): `intermediate_size` counts both halves of the gated feed-forward.
fn qwen1(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    d.naming = Naming::Qwen1;
    "transformer.".clone_into(&mut d.root);
    d.list = "h";
    let head_dim = keys.size_or(&["kv_channels"], d.attention.head_dim)?;
    (d.attention.head_dim, d.attention.value_dim) = (head_dim, head_dim);
    d.attention.fused_qkv = true;
    d.attention.qkv_bias = true;
    let bias = !keys.flag("no_bias", true)?;
    (d.attention.out_bias, d.mlp.bias) = (bias, bias);
    d.mlp.width /= 2;
    Ok(())
}

/// ChatGLM 2 and 3 and GLM-4 9B (remote code).
fn chatglm(keys: &Keys<'_>, d: &mut Decoder) -> Result<(), ImportError> {
    d.naming = Naming::ChatGlm;
    "transformer.".clone_into(&mut d.root);
    d.within = "encoder.";
    "transformer.".clone_into(&mut d.head_root);
    let head_dim = keys.size_or(&["kv_channels"], d.attention.head_dim)?;
    (d.attention.head_dim, d.attention.value_dim) = (head_dim, head_dim);
    if keys.flag("multi_query_attention", false)? {
        d.attention.kv_heads = keys.size(&["multi_query_group_num"])?;
        if !d.attention.heads.is_multiple_of(d.attention.kv_heads) {
            return Err(keys.contradiction(
                "multi_query_group_num",
                d.attention.kv_heads,
                format!("it must divide `num_attention_heads`, which is {}", d.attention.heads),
            ));
        }
    }
    let bias = keys.flag("add_bias_linear", false)?;
    (d.attention.out_bias, d.mlp.bias) = (bias, bias);
    d.attention.qkv_bias = keys.flag("add_qkv_bias", false)? || bias;
    (d.attention.fused_qkv, d.mlp.fused_gate) = (true, true);
    d.positions = crate::arch::Positions::Rotary { dim: head_dim / 2 };
    if !keys.flag("rmsnorm", true)? {
        d.layer_norm(Norm::LAYER);
    }
    Ok(())
}

/// A family without rules: Llama's are assumed, and said, if its keys are there.
fn unknown(keys: &Keys<'_>, family: &str, d: &mut Decoder) -> Result<(), ImportError> {
    let stated = |list: &[&'static str]| list.iter().any(|key| keys.get(key).is_some());
    if stated(HIDDEN) && stated(HEADS) && stated(LAYERS) {
        let named = if family.is_empty() {
            "no `model_type` is given".to_owned()
        } else {
            format!("{family:?} is not known")
        };
        keys.assume(
            "model_type",
            format!("{named}; read by the rules of llama, so counts may be off"),
        );
    }
    biases_from(keys, d, "attention_bias", false)?;
    d.mlp.bias = keys.flag("mlp_bias", false)?;
    if keys.flag("qk_norm", false)? || keys.flag("use_qk_norm", false)? {
        d.attention.qk_norm = QkNorm::PerHead;
    }
    if !keys.has("tie_word_embeddings") {
        keys.assume("tie_word_embeddings", "not given; the head is counted as a matrix of its own");
    }
    if let Some(spans) = spans_from_types(keys, d.layers, None)? {
        d.spans = spans;
    }
    Ok(())
}
