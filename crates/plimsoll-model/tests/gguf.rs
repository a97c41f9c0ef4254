//! GGUF metadata as llama.cpp's converter writes it, laid beside the same model's configuration: caches, states, spans
//! and feed-forwards must agree layer by layer.

use plimsoll_catalog::models;
use plimsoll_formats::gguf::{Array, Metadata, Value};
use plimsoll_model::arch::{Architecture, Ffn, Layer};
use plimsoll_model::{gguf, hf};

fn list(items: impl IntoIterator<Item = u64>) -> Value {
    let items: Vec<Value> = items.into_iter().map(Value::Unsigned).collect();
    Value::Array(Array { len: items.len() as u64, items: Some(items) })
}

fn flags(items: impl IntoIterator<Item = bool>) -> Value {
    let items: Vec<Value> = items.into_iter().map(Value::Bool).collect();
    Value::Array(Array { len: items.len() as u64, items: Some(items) })
}

fn read(arch: &str, pairs: Vec<(&str, Value)>) -> Architecture {
    let own = pairs.into_iter().map(|(key, value)| (format!("{arch}.{key}"), value));
    let all = own.chain([("general.architecture".to_owned(), Value::Text(arch.to_owned()))]);
    let metadata: Metadata = all.collect();
    let imported = gguf::from_metadata(&metadata, &[]).unwrap();
    assert!(imported.diagnostics.is_empty(), "{arch}: {:?}", imported.diagnostics);
    imported.architecture
}

/// What an engine sees of a layer.
fn seen(layer: &Layer) -> String {
    let ffn = match &layer.ffn {
        Ffn::None => "none".to_owned(),
        Ffn::Dense(mlp) => format!("dense {} gated {}", mlp.width, mlp.gated),
        Ffn::Moe(moe) => {
            let shared = moe.shared.map_or(0, |s| s.width);
            format!("{} of {} x {} shared {shared}", moe.top_k, moe.experts, moe.expert.width)
        }
        _ => "?".to_owned(),
    };
    format!(
        "{:?} {:?} {:?} {ffn}",
        layer.kv_widths(),
        layer.kv_widths_expanded(),
        layer.recurrent_state()
    )
}

fn check(name: &str, arch: &str, pairs: Vec<(&str, u64)>, lists: Vec<(&str, Value)>) {
    let entry = models::find(name).unwrap();
    let theirs = hf::from_config(entry.config.as_bytes()).unwrap().architecture;
    let numbers = pairs.into_iter().map(|(key, n)| (key, Value::Unsigned(n)));
    let mine = read(arch, numbers.chain(lists).collect());
    let (theirs, mine) = (theirs.main_stack().unwrap(), mine.main_stack().unwrap());
    assert_eq!((mine.hidden, mine.layers.len()), (theirs.hidden, theirs.layers.len()), "{name}");
    for (index, (a, b)) in mine.layers.iter().zip(&theirs.layers).enumerate() {
        assert_eq!(seen(a), seen(b), "{name}, layer {index}");
    }
}

#[test]
fn dense_models() {
    check(
        "meta-llama/Llama-3.1-8B",
        "llama",
        vec![
            ("block_count", 32),
            ("embedding_length", 4096),
            ("feed_forward_length", 14336),
            ("attention.head_count", 32),
            ("attention.head_count_kv", 8),
            ("vocab_size", 128_256),
            ("rope.dimension_count", 128),
            ("context_length", 131_072),
        ],
        vec![],
    );
    check(
        "Qwen/Qwen3-32B",
        "qwen3",
        vec![
            ("block_count", 64),
            ("embedding_length", 5120),
            ("feed_forward_length", 25600),
            ("attention.head_count", 64),
            ("attention.head_count_kv", 8),
            ("attention.key_length", 128),
            ("attention.value_length", 128),
            ("vocab_size", 151_936),
        ],
        vec![],
    );
    check(
        "google/gemma-2-9b",
        "gemma2",
        vec![
            ("block_count", 42),
            ("embedding_length", 3584),
            ("feed_forward_length", 14336),
            ("attention.head_count", 16),
            ("attention.head_count_kv", 8),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
            ("attention.sliding_window", 4096),
            ("vocab_size", 256_000),
        ],
        vec![],
    );
    check(
        "google/gemma-3-27b-it",
        "gemma3",
        vec![
            ("block_count", 62),
            ("embedding_length", 5376),
            ("feed_forward_length", 21504),
            ("attention.head_count", 32),
            ("attention.head_count_kv", 16),
            ("attention.key_length", 128),
            ("attention.value_length", 128),
            ("attention.sliding_window", 1024),
            ("vocab_size", 262_208),
        ],
        vec![],
    );
    // Layers of two widths: the file has lists.
    let full = |i: u64| (i + 1).is_multiple_of(6);
    check(
        "google/gemma-4-31B-it",
        "gemma4",
        vec![
            ("block_count", 60),
            ("embedding_length", 5376),
            ("feed_forward_length", 21504),
            ("attention.head_count", 32),
            ("attention.key_length", 512),
            ("attention.value_length", 512),
            ("attention.key_length_swa", 256),
            ("attention.value_length_swa", 256),
            ("attention.sliding_window", 1024),
            ("vocab_size", 262_144),
        ],
        vec![
            ("attention.head_count_kv", list((0..60).map(|i| if full(i) { 4 } else { 16 }))),
            ("attention.sliding_window_pattern", flags((0..60).map(|i| !full(i)))),
        ],
    );
}

#[test]
fn mixtures() {
    check(
        "mistralai/Mixtral-8x7B-v0.1",
        "llama",
        vec![
            ("block_count", 32),
            ("embedding_length", 4096),
            ("feed_forward_length", 14336),
            ("attention.head_count", 32),
            ("attention.head_count_kv", 8),
            ("vocab_size", 32000),
            ("expert_count", 8),
            ("expert_used_count", 2),
        ],
        vec![],
    );
    check(
        "openai/gpt-oss-20b",
        "gpt-oss",
        vec![
            ("block_count", 24),
            ("embedding_length", 2880),
            ("feed_forward_length", 2880),
            ("attention.head_count", 64),
            ("attention.head_count_kv", 8),
            ("attention.key_length", 64),
            ("attention.value_length", 64),
            ("attention.sliding_window", 128),
            ("vocab_size", 201_088),
            ("expert_count", 32),
            ("expert_used_count", 4),
            ("expert_feed_forward_length", 2880),
        ],
        vec![],
    );
    // Newer files state the lengths of the compressed form, and those of the heads with `_mla`.
    check(
        "deepseek-ai/DeepSeek-V3",
        "deepseek2",
        vec![
            ("block_count", 61),
            ("embedding_length", 7168),
            ("feed_forward_length", 18432),
            ("attention.head_count", 128),
            ("attention.head_count_kv", 1),
            ("attention.q_lora_rank", 1536),
            ("attention.kv_lora_rank", 512),
            ("attention.key_length", 576),
            ("attention.value_length", 512),
            ("attention.key_length_mla", 192),
            ("attention.value_length_mla", 128),
            ("rope.dimension_count", 64),
            ("leading_dense_block_count", 3),
            ("expert_count", 256),
            ("expert_used_count", 8),
            ("expert_feed_forward_length", 2048),
            ("expert_shared_count", 1),
            ("vocab_size", 129_280),
        ],
        vec![],
    );
    // The converter writes the draft layer as one more block.
    check(
        "zai-org/GLM-4.5-Air",
        "glm4moe",
        vec![
            ("block_count", 47),
            ("nextn_predict_layers", 1),
            ("embedding_length", 4096),
            ("feed_forward_length", 10944),
            ("attention.head_count", 96),
            ("attention.head_count_kv", 8),
            ("attention.key_length", 128),
            ("attention.value_length", 128),
            ("leading_dense_block_count", 1),
            ("expert_count", 128),
            ("expert_used_count", 8),
            ("expert_feed_forward_length", 1408),
            ("expert_shared_count", 1),
            ("vocab_size", 151_552),
        ],
        vec![],
    );
}

#[test]
fn recurrent_models_and_hybrids() {
    check(
        "state-spaces/mamba-130m-hf",
        "mamba",
        vec![
            ("block_count", 24),
            ("embedding_length", 768),
            ("feed_forward_length", 0),
            ("attention.head_count", 0),
            ("ssm.inner_size", 1536),
            ("ssm.state_size", 16),
            ("ssm.conv_kernel", 4),
            ("ssm.time_step_rank", 48),
            ("vocab_size", 50280),
        ],
        vec![],
    );
    check(
        "ai21labs/Jamba-v0.1",
        "jamba",
        vec![
            ("block_count", 32),
            ("embedding_length", 4096),
            ("feed_forward_length", 14336),
            ("attention.head_count", 32),
            ("ssm.inner_size", 8192),
            ("ssm.state_size", 16),
            ("ssm.conv_kernel", 4),
            ("ssm.time_step_rank", 256),
            ("vocab_size", 65536),
            ("expert_count", 16),
            ("expert_used_count", 2),
            ("interleave_moe_layer_step", 2),
        ],
        vec![("attention.head_count_kv", list((0..32).map(|i| if i % 8 == 4 { 8 } else { 0 })))],
    );
    check(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "qwen3next",
        vec![
            ("block_count", 48),
            ("embedding_length", 2048),
            ("feed_forward_length", 5120),
            ("attention.head_count", 16),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 128),
            ("ssm.group_count", 16),
            ("ssm.time_step_rank", 32),
            ("ssm.inner_size", 4096),
            ("expert_count", 512),
            ("expert_used_count", 10),
            ("expert_feed_forward_length", 512),
            ("expert_shared_feed_forward_length", 512),
            ("vocab_size", 151_936),
        ],
        vec![],
    );
    check(
        "nvidia/Nemotron-H-8B-Base-8K",
        "nemotron_h",
        vec![
            ("block_count", 52),
            ("embedding_length", 4096),
            ("attention.head_count", 32),
            ("attention.key_length", 128),
            ("attention.value_length", 128),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 128),
            ("ssm.group_count", 8),
            ("ssm.time_step_rank", 128),
            ("ssm.inner_size", 8192),
            ("vocab_size", 131_072),
        ],
        {
            let pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
            let of = |kind: char, n: u64| {
                list(pattern.chars().map(move |c| if c == kind { n } else { 0 }))
            };
            vec![("attention.head_count_kv", of('*', 8)), ("feed_forward_length", of('-', 21504))]
        },
    );
    check(
        "tiiuae/Falcon-H1-0.5B-Base",
        "falcon-h1",
        vec![
            ("block_count", 36),
            ("embedding_length", 1024),
            ("feed_forward_length", 2048),
            ("attention.head_count", 8),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 64),
            ("attention.value_length", 64),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 128),
            ("ssm.group_count", 1),
            ("ssm.time_step_rank", 24),
            ("ssm.inner_size", 1536),
            ("vocab_size", 32784),
        ],
        vec![],
    );
}

#[test]
fn missing_and_contradictory_keys_are_named() {
    let error = |pairs: &[(&str, Value)]| {
        let metadata: Metadata = pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        gguf::from_metadata(&metadata, &[]).unwrap_err().to_string()
    };
    let arch = || ("general.architecture", Value::Text("llama".to_owned()));
    assert!(error(&[]).contains("`general.architecture`"));
    let all = error(&[arch()]);
    for key in ["llama.embedding_length", "llama.block_count", "llama.attention.head_count"] {
        assert!(all.contains(key), "{all}");
    }
    let kv = error(&[
        arch(),
        ("llama.embedding_length", Value::Unsigned(64)),
        ("llama.block_count", Value::Unsigned(2)),
        ("llama.feed_forward_length", Value::Unsigned(64)),
        ("llama.vocab_size", Value::Unsigned(64)),
        ("llama.attention.head_count", Value::Unsigned(4)),
        ("llama.attention.head_count_kv", list([4, 3])),
    ]);
    assert!(kv.contains("`llama.attention.head_count_kv` is 3"), "{kv}");
    let width = ("llama.embedding_length", Value::Unsigned(64));
    let layers = error(&[arch(), width, ("llama.block_count", Value::Unsigned(1 << 30))]);
    assert!(layers.contains("accepted: a whole number from 1 to 10000"), "{layers}");
}
