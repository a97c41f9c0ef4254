//! Laws: no configuration, metadata or tensor table panics; what imports can be listed and asked. Each body is a fuzz
//! target too.

use plimsoll_formats::TensorInfo;
use plimsoll_formats::gguf::{Array, Metadata, Value as Gguf};
use plimsoll_model::inventory::{classify, inventory, inventory_from_tensors};
use plimsoll_model::{Architecture, gguf, hf};
use plimsoll_units::{Bytes, DType};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Asks everything that can be asked.
fn exercise(architecture: &Architecture) {
    let list = inventory(architecture);
    assert!(list.elements() >= list.parameters.iter().map(|p| p.elements()).max().unwrap_or(0));
    let _ = architecture.active_parameters();
    let _ = architecture.layer_counts();
    let _ = architecture.kv_elements_per_token();
    let _ = architecture.draft_stack(2);
    for layer in architecture.layers() {
        let _ = (layer.kv_widths(), layer.kv_widths_expanded(), layer.recurrent_state());
    }
    for row in &list.parameters {
        let _ = classify(&row.name);
    }
}

fn fuzz_config(bytes: &[u8]) {
    if let Ok(imported) = hf::from_config(bytes) {
        exercise(&imported.architecture);
    }
}

const FAMILIES: &[&str] = &[
    "llama",
    "mistral",
    "mixtral",
    "qwen",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "phi",
    "phi3",
    "phimoe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "gpt_oss",
    "glm",
    "glm4",
    "glm4_moe",
    "chatglm",
    "llama4_text",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "cohere",
    "cohere2",
    "falcon",
    "falcon_h1",
    "falcon_mamba",
    "opt",
    "bloom",
    "gpt2",
    "gpt_bigcode",
    "starcoder2",
    "gptj",
    "gpt_neo",
    "gpt_neox",
    "mpt",
    "stablelm",
    "baichuan",
    "internlm2",
    "minicpm3",
    "mamba",
    "mamba2",
    "jamba",
    "nemotron_h",
    "bamba",
    "lfm2",
    "lfm2_moe",
    "kimi_linear",
    "zamba2",
    "smollm3",
    "exaone4",
    "apertus",
    "ernie4_5_moe",
    "laguna",
    "minimax_m2",
    "persimmon",
    "bert",
    "roberta",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "modernbert",
    "t5",
    "umt5",
    "bart",
    "pegasus",
    "whisper",
    "vit",
    "deit",
    "clip",
    "siglip",
    "llava",
    "llava_next",
    "mistral3",
    "gemma3",
    "paligemma",
    "llama4",
    "gemma4",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "kimi_vl",
    "kimi_k25",
    "minicpmv",
    "wavlm",
    "unheard-of",
    "",
];

const KEYS: &[&str] = &[
    "hidden_size",
    "n_embd",
    "d_model",
    "dim",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "ffn_dim",
    "d_ff",
    "d_kv",
    "hidden_dim",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "sliding_window_pattern",
    "first_k_dense_replace",
    "moe_layer_freq",
    "decoder_sparse_step",
    "mlp_only_layers",
    "q_lora_rank",
    "o_lora_rank",
    "kv_lora_rank",
    "conv_L_cache",
    "mamba_n_heads",
    "mamba_d_head",
    "mamba_d_state",
    "state_size",
    "expand",
    "hybrid_override_pattern",
    "layers_block_type",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "patch_size",
    "image_size",
    "rope_scaling",
    "quantization_config",
    "torch_dtype",
    "tie_word_embeddings",
    "architectures",
    "full_attn_idxs",
    "attn_layer_period",
    "conv_dim",
    "conv_kernel",
    "compress_ratios",
    "hidden_size_per_layer_input",
    "num_kv_shared_layers",
    "max_position_embeddings",
    "hidden_act",
    "visual",
    "query_num",
    "pos_att_type",
    "relative_attention",
    "num_attention_heads_per_layer",
];

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (1u64..64).prop_map(|n| json!(n)),
        2 => prop_oneof![Just(json!(0)), Just(json!(-1)), Just(json!(1u64 << 40)), Just(json!(u64::MAX)), Just(json!(1e300)),
            Just(json!(0.25)), Just(json!(9_999))],
        1 => any::<bool>().prop_map(|b| json!(b)),
        1 => Just(Value::Null),
        1 => prop_oneof![Just("auto"), Just("full_attention"), Just("gelu"), Just("M-*E"), Just("\u{1F6A2}")].prop_map(|t| json!(t)),
        1 => vec(prop_oneof![(0u64..5).prop_map(|n| json!(n)),
            prop_oneof![Just("sliding_attention"), Just("linear_attention"), Just("mamba")].prop_map(|t| json!(t))], 0..5)
            .prop_map(Value::Array),
    ]
}

fn object() -> impl Strategy<Value = Value> {
    (vec((proptest::sample::select(KEYS), leaf()), 0..24), proptest::sample::select(FAMILIES))
        .prop_map(|(pairs, family)| {
            let mut map: serde_json::Map<String, Value> =
                pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            map.insert("model_type".to_owned(), json!(family));
            Value::Object(map)
        })
}

/// A complete small configuration for most families, then damaged.
fn damaged() -> impl Strategy<Value = Value> {
    let sound = json!({
        "hidden_size": 64, "d_model": 64, "dim": 64, "num_hidden_layers": 4, "n_layers": 4, "num_attention_heads": 4,
        "n_heads": 4, "num_heads": 4, "vocab_size": 99, "intermediate_size": 96, "hidden_dim": 96, "d_ff": 96, "ffn_dim": 96,
        "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "q_lora_rank": 16, "o_lora_rank": 16,
        "hybrid_override_pattern": "M-*E", "mamba_n_heads": 4, "mamba_d_head": "auto",
    });
    (object(), object(), object()).prop_map(move |(damage, text, vision)| {
        let mut map = sound.as_object().cloned().unwrap_or_default();
        let mut nested = map.clone();
        for (inner, key) in [(text, "text_config"), (vision, "vision_config")] {
            nested.extend(inner.as_object().cloned().unwrap_or_default().into_iter().take(3));
            map.insert(key.to_owned(), Value::Object(nested.clone()));
        }
        let entries = damage.as_object().cloned().unwrap_or_default().into_iter();
        let (family, others): (Vec<_>, Vec<_>) = entries.partition(|(key, _)| key == "model_type");
        map.extend(others.into_iter().take(3));
        map.extend(family);
        Value::Object(map)
    })
}

fn metadata() -> impl Strategy<Value = Vec<(String, Gguf)>> {
    const NAMES: &[&str] = &[
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_mla",
        "attention.kv_lora_rank",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.dimension_count",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "leading_dense_block_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.conv_kernel",
        "ssm.time_step_rank",
        "ssm.group_count",
        "nextn_predict_layers",
        "vocab_size",
        "context_length",
        "full_attention_interval",
        "attention.shared_kv_layers",
    ];
    const ARCHS: &[&str] = &[
        "llama",
        "gemma3",
        "gemma4",
        "deepseek2",
        "mamba",
        "mamba2",
        "jamba",
        "nemotron_h",
        "granitehybrid",
        "falcon-h1",
        "lfm2",
        "qwen35",
        "gpt-oss",
        "bert",
        "gpt2",
        "glm4moe",
        "unheard-of",
    ];
    let number =
        prop_oneof![4 => 1u64..9, 1 => Just(0), 1 => Just(u64::MAX), 1 => Just(1u64 << 39)];
    let value = prop_oneof![
        5 => number.prop_map(Gguf::Unsigned),
        1 => Just(Gguf::Signed(-3)),
        1 => Just(Gguf::Text("x".to_owned())),
        1 => vec((0u64..4).prop_map(Gguf::Unsigned), 0..5)
            .prop_map(|items| Gguf::Array(Array { len: items.len() as u64, items: Some(items) })),
        1 => Just(Gguf::Array(Array { len: 1 << 40, items: None })),
    ];
    (proptest::sample::select(ARCHS), vec((proptest::sample::select(NAMES), value), 0..30))
        .prop_map(|(arch, pairs)| {
            let own = pairs.into_iter().map(|(name, value)| (format!("{arch}.{name}"), value));
            own.chain([("general.architecture".to_owned(), Gguf::Text(arch.to_owned()))]).collect()
        })
}

fn tensors() -> impl Strategy<Value = Vec<TensorInfo>> {
    const PIECES: &[&str] = &[
        "model",
        "layers",
        "blk",
        "0",
        "1",
        "999999999999",
        "self_attn",
        "q_proj",
        "mlp",
        "experts",
        "7",
        "gate_proj",
        "qweight",
        "qzeros",
        "scales",
        "weight",
        "bias",
        "weight_packed",
        "weight_scale",
        "gate_up_proj_blocks",
        "gate_up_proj_scales",
        "",
        "attn_q",
        "ffn_down_exps",
        "encoder",
        "vision",
        "norms",
        "\u{e9}",
        "mtp",
    ];
    let name = vec(proptest::sample::select(PIECES), 0..7).prop_map(|pieces| pieces.join("."));
    let size = prop_oneof![4 => 0u64..9, 1 => Just(u64::MAX)];
    let dtype = prop_oneof![
        Just(None),
        Just(Some(DType::U8)),
        Just(Some(DType::I32)),
        Just(Some(DType::Bf16))
    ];
    vec((name, vec(size, 0..4), dtype, any::<u64>()), 0..40).prop_map(|rows| {
        rows.into_iter()
            .map(|(name, shape, dtype, bytes)| TensorInfo {
                name,
                shape,
                dtype,
                type_name: "?".into(),
                offset: 0,
                bytes: Bytes::new(bytes),
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_object_panics(value in object()) {
        fuzz_config(value.to_string().as_bytes());
    }

    #[test]
    fn no_damaged_configuration_panics(value in damaged()) {
        fuzz_config(value.to_string().as_bytes());
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200)) {
        fuzz_config(&bytes);
    }

    #[test]
    fn no_metadata_panics(pairs in metadata(), tensors in tensors()) {
        let metadata: Metadata = pairs.into_iter().collect();
        for table in [&[][..], &tensors[..]] {
            if let Ok(imported) = gguf::from_metadata(&metadata, table) {
                exercise(&imported.architecture);
            }
        }
    }

    #[test]
    fn no_tensor_table_panics_and_no_byte_is_lost(tensors in tensors()) {
        let stored = inventory_from_tensors(&tensors, None);
        let all: Bytes = tensors.iter().map(|t| t.bytes).sum();
        prop_assert_eq!(stored.bytes() + stored.stale, all);
        let _ = (stored.elements(), stored.inventory().elements());
    }
}
