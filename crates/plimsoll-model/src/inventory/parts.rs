//! What a tensor does, by its name: the spellings of transformers (current and published), of remote code, and of
//! GGUF. A name that matches nothing is [`Part::Other`].

use super::Part;

/// A name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classified<'a> {
    /// What stands before the layer index, such as `model.layers`; empty outside layers.
    pub prefix: &'a str,
    /// The layer.
    pub layer: Option<usize>,
    /// What it does.
    pub part: Part,
    /// Whether it is a bias.
    pub bias: bool,
    /// A buffer that only older versions stored (causal masks, inverse frequencies): no parameter at all.
    pub stale: bool,
    /// Part of a draft (multi-token prediction) block by its name.
    pub draft: bool,
}

/// Reads the part, the layer and the kind from `name`.
///
/// ```
/// use plimsoll_model::{Part, inventory::classify};
/// let c = classify("model.layers.3.self_attn.k_proj.bias");
/// assert_eq!((c.layer, c.part, c.bias), (Some(3), Part::Key, true));
/// assert_eq!(classify("blk.0.ffn_down_exps.weight").part, Part::ExpertDown);
/// ```
pub fn classify(name: &str) -> Classified<'_> {
    let (prefix, layer, tail) = split_layer(name);
    let (stem, bias) = stem(tail);
    let draft = prefix.starts_with("mtp") || tail.starts_with("nextn.") || name.contains(".mtp.");
    let stale = is_stale(tail);
    let part = if stale { Part::Other } else { part(stem, layer.is_some()) };
    Classified { prefix, layer, part, bias, stale, draft }
}

/// The first component that is a number is the layer, unless it follows an `experts` component.
fn split_layer(name: &str) -> (&str, Option<usize>, &str) {
    let mut start = 0;
    for component in name.split('.') {
        let end = start + component.len();
        let digits = !component.is_empty()
            && component.len() <= 6
            && component.bytes().all(|b| b.is_ascii_digit());
        if digits && start > 0 {
            let prefix = &name[..start - 1];
            let tail = name.get(end + 1..).unwrap_or("");
            // `albert_layer_groups.0.albert_layers.0` and the like: the inner number is the layer.
            if prefix.ends_with("groups") {
                start = end + 1;
                continue;
            }
            if let Ok(layer) = component.parse() {
                return (prefix, Some(layer), tail);
            }
        }
        start = end + 1;
    }
    ("", None, name)
}

/// The name without `.weight` and `.bias`, and whether it is a bias.
fn stem(tail: &str) -> (&str, bool) {
    if let Some(stem) = tail.strip_suffix(".weight") {
        return (stem, false);
    }
    for end in [".bias", "_bias"] {
        if let Some(stem) = tail.strip_suffix(end) {
            return (stem, true);
        }
    }
    (tail, false)
}

fn is_stale(tail: &str) -> bool {
    const ENDS: [&str; 5] = [
        "rotary_emb.inv_freq",
        "masked_bias",
        "position_ids",
        "rope.freqs",
        "rotary_pos_emb.inv_freq",
    ];
    // Causal masks of GPT-2, GPT-NeoX and relatives: a `bias` directly under the attention module.
    const MASKS: [&str; 3] = ["attn.bias", "attention.bias", "attn.attention.bias"];
    ENDS.iter().any(|end| tail.ends_with(end)) || MASKS.contains(&tail)
}

/// Whether `stem` is `end`, or ends in it at a dot.
fn ends(stem: &str, end: &str) -> bool {
    match stem.strip_suffix(end) {
        Some("") => true,
        Some(rest) => rest.ends_with('.'),
        None => false,
    }
}

fn part(stem: &str, in_layer: bool) -> Part {
    // Gemma 4's towers wrap every matrix once more; StableLM keeps one norm module per head.
    let stem = stem.strip_suffix(".linear").unwrap_or(stem);
    let stem = stem.rsplit_once(".norms.").map_or(stem, |(list, _)| list);
    let find = |table: &[(&str, Part)]| {
        table.iter().find(|(end, _)| ends(stem, end)).map(|(_, part)| *part)
    };
    let has = |text: &str| stem.contains(text);
    if has("visual_projection")
        || has("multi_modal_projector")
        || has("mm_projector")
        || has("merger")
    {
        return Part::Projector;
    }
    if !in_layer {
        return find(GLOBAL).unwrap_or(Part::Other);
    }
    if has("shared_expert") || has("shared_mlp") {
        return if ends(stem, "shared_expert_gate") {
            Part::SharedScale
        } else {
            expert(stem, true)
        };
    }
    if has("experts.") || stem == "experts" {
        return expert(stem, false);
    }
    if has("indexer") || has("compressor") {
        return Part::Indexer;
    }
    if has("encoder_attn.") || has("EncDecAttention.") || has("cross_attn.") {
        return match find(ATTENTION) {
            Some(Part::Query) => Part::CrossQuery,
            Some(Part::Key) => Part::CrossKey,
            Some(Part::Value) => Part::CrossValue,
            Some(Part::Output) => Part::CrossOutput,
            other => other.unwrap_or(Part::Other),
        };
    }
    if ["mamba.", "mixer.", "linear_attn.", "conv.", "ssm_", "shortconv."].iter().any(|at| has(at))
        && let Some(found) = find(RECURRENT)
    {
        return found;
    }
    find(ATTENTION).or_else(|| find(FEED_FORWARD)).or_else(|| find(NORMS)).unwrap_or(Part::Other)
}

/// The matrix of an expert by its last component.
fn expert(stem: &str, shared: bool) -> Part {
    let last = stem.rsplit('.').next().unwrap_or("");
    let last =
        last.strip_suffix("_blocks").or_else(|| last.strip_suffix("_scales")).unwrap_or(last);
    match (last, shared) {
        ("gate_proj" | "w1", false) => Part::ExpertGate,
        ("up_proj" | "w3", false) => Part::ExpertUp,
        ("gate_up_proj" | "input_linear", false) => Part::ExpertGateUp,
        ("down_proj" | "w2" | "output_linear", false) => Part::ExpertDown,
        ("gate_proj", true) => Part::SharedGate,
        ("up_proj" | "gate_up_proj" | "input_linear", true) => Part::SharedUp,
        ("down_proj" | "output_linear", true) => Part::SharedDown,
        _ => Part::Other,
    }
}

const GLOBAL: &[(&str, Part)] = &[
    ("head.norm", Part::HeadNorm),
    ("token_type_embeddings", Part::TypeEmbedding),
    ("token_types", Part::TypeEmbedding),
    ("embed_tokens", Part::TokenEmbedding),
    ("embed_tokens_per_layer", Part::TokenEmbedding),
    ("word_embeddings", Part::TokenEmbedding),
    ("tok_embeddings", Part::TokenEmbedding),
    ("token_embedding", Part::TokenEmbedding),
    ("token_embd", Part::TokenEmbedding),
    ("per_layer_token_embd", Part::TokenEmbedding),
    ("embed_in", Part::TokenEmbedding),
    ("wte", Part::TokenEmbedding),
    ("shared", Part::TokenEmbedding),
    ("embeddings", Part::TokenEmbedding),
    ("wpe", Part::PositionEmbedding),
    ("embed_positions", Part::PositionEmbedding),
    ("position_embeddings", Part::PositionEmbedding),
    ("position_embedding", Part::PositionEmbedding),
    ("position_embd", Part::PositionEmbedding),
    ("rel_embeddings", Part::PositionEmbedding),
    ("pos_embed", Part::PositionEmbedding),
    ("word_embeddings_layernorm", Part::EmbeddingNorm),
    ("token_embd_norm", Part::EmbeddingNorm),
    ("layernorm_embedding", Part::EmbeddingNorm),
    ("embeddings.LayerNorm", Part::EmbeddingNorm),
    ("embeddings.norm", Part::EmbeddingNorm),
    ("pre_layrnorm", Part::EmbeddingNorm),
    ("ln_pre", Part::EmbeddingNorm),
    ("project_in", Part::EmbeddingProjection),
    ("project_out", Part::EmbeddingProjection),
    ("embeddings_project", Part::EmbeddingProjection),
    ("embedding_hidden_mapping_in", Part::EmbeddingProjection),
    ("patch_embedding", Part::Patch),
    ("patch_embed.proj", Part::Patch),
    ("patch_embeddings.projection", Part::Patch),
    ("patch_conv", Part::Patch),
    ("conv1", Part::Patch),
    ("conv2", Part::Patch2),
    ("cls_token", Part::ExtraToken),
    ("class_embedding", Part::ExtraToken),
    ("distillation_token", Part::ExtraToken),
    ("lm_head", Part::Head),
    ("embed_out", Part::Head),
    ("output_layer", Part::Head),
    ("proj_out", Part::Head),
    ("output", Part::Head),
    ("classifier", Part::Head),
    ("predictions", Part::Head),
    ("predictions.decoder", Part::Head),
    ("transform.dense", Part::HeadDense),
    ("transform.LayerNorm", Part::HeadNorm),
    ("lm_head.dense", Part::HeadDense),
    ("lm_head.layer_norm", Part::HeadNorm),
    ("pooler.dense", Part::HeadDense),
    ("vocab_transform", Part::HeadDense),
    ("predictions.dense", Part::HeadDense),
    ("predictions.LayerNorm", Part::HeadNorm),
    ("generator_predictions.dense", Part::HeadDense),
    ("generator_predictions.LayerNorm", Part::HeadNorm),
    ("discriminator_predictions.dense", Part::HeadDense),
    ("dense_prediction", Part::Head),
    ("generator_lm_head", Part::Head),
    ("head.dense", Part::HeadDense),
    ("decoder", Part::Head),
    ("cls_classifier", Part::Head),
    ("distillation_classifier", Part::Head),
    ("vocab_layer_norm", Part::HeadNorm),
    ("vocab_projector", Part::Head),
    ("output_norm", Part::FinalNorm),
    ("final_layernorm", Part::FinalNorm),
    ("final_layer_norm", Part::FinalNorm),
    ("layer_norm", Part::FinalNorm),
    ("post_layernorm", Part::FinalNorm),
    ("layernorm_post", Part::FinalNorm),
    ("final_norm", Part::FinalNorm),
    ("layernorm", Part::FinalNorm),
    ("ln_f", Part::FinalNorm),
    ("norm_f", Part::FinalNorm),
    ("embedding_norm", Part::FinalNorm),
    ("norm", Part::FinalNorm),
];

const ATTENTION: &[(&str, Part)] = &[
    ("q_a_proj", Part::QueryDown),
    ("attn_q_a", Part::QueryDown),
    ("q_a_layernorm", Part::QueryDownNorm),
    ("attn_q_a_norm", Part::QueryDownNorm),
    ("q_b_proj", Part::QueryUp),
    ("attn_q_b", Part::QueryUp),
    ("kv_a_proj_with_mqa", Part::KvDown),
    ("attn_kv_a_mqa", Part::KvDown),
    ("kv_a_layernorm", Part::KvDownNorm),
    ("attn_kv_a_norm", Part::KvDownNorm),
    ("kv_b_proj", Part::KvUp),
    ("attn_kv_b", Part::KvUp),
    ("attn_k_b", Part::KvUp),
    ("attn_v_b", Part::KvUp),
    ("qkv_proj", Part::Qkv),
    ("query_key_value", Part::Qkv),
    ("c_attn", Part::Qkv),
    ("Wqkv", Part::Qkv),
    ("W_pack", Part::Qkv),
    ("wqkv", Part::Qkv),
    ("attn.qkv", Part::Qkv),
    ("attn_qkv", Part::Qkv),
    ("self.in_proj", Part::Qkv),
    ("attn.in_proj", Part::Qkv),
    ("q_norm", Part::QueryNorm),
    ("q_layernorm", Part::QueryNorm),
    ("query_layernorm", Part::QueryNorm),
    ("attn_q_norm", Part::QueryNorm),
    ("k_norm", Part::KeyNorm),
    ("k_layernorm", Part::KeyNorm),
    ("key_layernorm", Part::KeyNorm),
    ("attn_k_norm", Part::KeyNorm),
    ("self_attn.sinks", Part::Sinks),
    ("attn_sinks", Part::Sinks),
    ("q_proj", Part::Query),
    ("query", Part::Query),
    ("query_proj", Part::Query),
    ("q_lin", Part::Query),
    ("SelfAttention.q", Part::Query),
    ("EncDecAttention.q", Part::Query),
    ("attn.q", Part::Query),
    ("attn_q", Part::Query),
    ("k_proj", Part::Key),
    ("key", Part::Key),
    ("key_proj", Part::Key),
    ("k_lin", Part::Key),
    ("SelfAttention.k", Part::Key),
    ("EncDecAttention.k", Part::Key),
    ("attn.k", Part::Key),
    ("attn_k", Part::Key),
    ("self_attn.kv_proj", Part::Key),
    ("v_proj", Part::Value),
    ("value", Part::Value),
    ("value_proj", Part::Value),
    ("v_lin", Part::Value),
    ("SelfAttention.v", Part::Value),
    ("EncDecAttention.v", Part::Value),
    ("attn.v", Part::Value),
    ("attn_v", Part::Value),
    ("o_proj", Part::Output),
    ("out_lin", Part::Output),
    ("SelfAttention.o", Part::Output),
    ("EncDecAttention.o", Part::Output),
    ("attn.o", Part::Output),
    ("attn.proj", Part::Output),
    ("attn.c_proj", Part::Output),
    ("attn.out_proj", Part::Output),
    ("self_attn.out_proj", Part::Output),
    ("encoder_attn.out_proj", Part::Output),
    ("attention.out_proj", Part::Output),
    ("attention.wo", Part::Output),
    ("attn.Wo", Part::Output),
    ("attention.dense", Part::Output),
    ("self_attention.dense", Part::Output),
    ("self_attn.dense", Part::Output),
    ("attention.output.dense", Part::Output),
    ("attn_output", Part::Output),
    ("attn_out", Part::Output),
];

const FEED_FORWARD: &[(&str, Part)] = &[
    ("gate.e_score_correction", Part::Router),
    ("e_score_correction", Part::Router),
    ("expert", Part::Router),
    ("exp_probs_b", Part::Router),
    ("ffn_gate_inp", Part::Router),
    ("ffn_gate_inp_shexp", Part::SharedScale),
    ("mlp.gate", Part::Router),
    ("block_sparse_moe.gate", Part::Router),
    ("feed_forward.gate", Part::Router),
    ("mixer.gate", Part::Router),
    ("router", Part::Router),
    ("router.layer", Part::Router),
    ("router.proj", Part::Router),
    ("ffn_gate_up_exps", Part::ExpertGateUp),
    ("ffn_gate_exps", Part::ExpertGate),
    ("ffn_up_exps", Part::ExpertUp),
    ("ffn_down_exps", Part::ExpertDown),
    ("ffn_gate_shexp", Part::SharedGate),
    ("ffn_up_shexp", Part::SharedUp),
    ("ffn_down_shexp", Part::SharedDown),
    ("gate_up_proj", Part::GateUp),
    ("mlp.Wi", Part::GateUp),
    ("gate_proj", Part::Gate),
    ("wi_0", Part::Gate),
    ("feed_forward.w1", Part::Gate),
    ("mlp.w2", Part::Gate),
    ("ffn_gate", Part::Gate),
    ("up_proj", Part::Up),
    ("wi_1", Part::Up),
    ("wi", Part::Up),
    ("feed_forward.w3", Part::Up),
    ("mlp.w1", Part::Up),
    ("fc1", Part::Up),
    ("fc_in", Part::Up),
    ("linear_fc1", Part::Up),
    ("c_fc", Part::Up),
    ("lin1", Part::Up),
    ("dense_h_to_4h", Part::Up),
    ("intermediate.dense", Part::Up),
    ("intermediate_dense", Part::Up),
    ("ffn", Part::Up),
    ("ffn_up", Part::Up),
    ("down_proj", Part::Down),
    ("feed_forward.w2", Part::Down),
    ("fc2", Part::Down),
    ("fc_out", Part::Down),
    ("linear_fc2", Part::Down),
    ("mlp.c_proj", Part::Down),
    ("lin2", Part::Down),
    ("wo", Part::Down),
    ("mlp.Wo", Part::Down),
    ("dense_4h_to_h", Part::Down),
    ("output.dense", Part::Down),
    ("output_dense", Part::Down),
    ("ffn_output", Part::Down),
    ("ffn_down", Part::Down),
];

const RECURRENT: &[(&str, Part)] = &[
    ("in_proj", Part::SsmIn),
    ("in_proj_qkvz", Part::SsmIn),
    ("in_proj_qkv", Part::SsmIn),
    ("in_proj_z", Part::SsmIn),
    ("in_proj_ba", Part::SsmIn2),
    ("in_proj_b", Part::SsmIn2),
    ("in_proj_a", Part::SsmIn2),
    ("ssm_in", Part::SsmIn),
    ("ssm_ba", Part::SsmIn2),
    ("ssm_beta_alpha", Part::SsmIn2),
    ("ssm_alpha", Part::SsmIn2),
    ("ssm_beta", Part::SsmIn2),
    ("conv1d", Part::SsmConv),
    ("conv.conv", Part::SsmConv),
    ("ssm_conv1d", Part::SsmConv),
    ("shortconv.conv", Part::SsmConv),
    ("shortconv.in_proj", Part::SsmIn),
    ("shortconv.out_proj", Part::SsmOut),
    ("x_proj", Part::SsmX),
    ("ssm_x", Part::SsmX),
    ("dt_proj", Part::SsmDt),
    ("dt", Part::SsmDt),
    ("ssm_dt", Part::SsmDt),
    ("A_log", Part::SsmA),
    ("ssm_a", Part::SsmA),
    ("D", Part::SsmD),
    ("ssm_d", Part::SsmD),
    ("dt_layernorm", Part::SsmNorm),
    ("b_layernorm", Part::SsmNorm),
    ("c_layernorm", Part::SsmNorm),
    ("norm", Part::SsmNorm),
    ("ssm_norm", Part::SsmNorm),
    ("ssm_dt_norm", Part::SsmNorm),
    ("out_proj", Part::SsmOut),
    ("ssm_out", Part::SsmOut),
];

const NORMS: &[(&str, Part)] = &[
    ("input_layernorm", Part::Norm1),
    ("ln_1", Part::Norm1),
    ("ln_attn", Part::Norm1),
    ("norm1", Part::Norm1),
    ("norm_1", Part::Norm1),
    ("layer_norm1", Part::Norm1),
    ("layernorm_before", Part::Norm1),
    ("attention_norm", Part::Norm1),
    ("attention_layernorm", Part::Norm1),
    ("attn_norm", Part::Norm1),
    ("operator_norm", Part::Norm1),
    ("self_attn_layer_norm", Part::Norm1),
    ("sa_layer_norm", Part::Norm1),
    ("attention.output.LayerNorm", Part::Norm1),
    ("attention.LayerNorm", Part::Norm1),
    ("attn_output_norm", Part::Norm1),
    ("layer.0.layer_norm", Part::Norm1),
    ("post_attention_layernorm", Part::Norm2),
    ("pre_ff_layernorm", Part::Norm2),
    ("ln_2", Part::Norm2),
    ("ln_mlp", Part::Norm2),
    ("norm2", Part::Norm2),
    ("norm_2", Part::Norm2),
    ("layer_norm2", Part::Norm2),
    ("layernorm_after", Part::Norm2),
    ("ffn_norm", Part::Norm2),
    ("feedforward_layernorm", Part::Norm2),
    ("mlp_norm", Part::Norm2),
    ("final_layer_norm", Part::Norm2),
    ("output_layer_norm", Part::Norm2),
    ("output.LayerNorm", Part::Norm2),
    ("full_layer_layer_norm", Part::Norm2),
    ("layer_output_norm", Part::Norm2),
    ("encoder_attn_layer_norm", Part::Norm3),
    ("pre_feedforward_layernorm", Part::Norm3),
    ("post_self_attn_layernorm", Part::Norm3),
    ("post_attention_norm", Part::Norm3),
    ("attn_post_norm", Part::Norm3),
    ("post_feedforward_layernorm", Part::Norm4),
    ("post_mlp_layernorm", Part::Norm4),
    ("post_ffw_norm", Part::Norm4),
    ("layer_norm", Part::Norm2),
    ("norm", Part::Norm1),
];
