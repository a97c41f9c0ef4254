//! Whole runs of the program: exit code, stdout and stderr, held against the snapshots in `tests/runs/`.
//! `PLIMSOLL_BLESS=1 cargo test -p plimsoll-cli` writes them anew.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Runs the program in the folder of the test data, without the user's environment.
fn run(arguments: &[&str]) -> Output {
    run_with(arguments, "/nonexistent")
}

fn run_with(arguments: &[&str], home: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments)
        .current_dir(folder().join("data"))
        .env_clear()
        .env("HF_HUB_OFFLINE", "1")
        .env("HOME", home)
        .output()
        .unwrap()
}

fn text(arguments: &[&str], output: &Output) -> String {
    let mut text = format!("$ plimsoll {}\n", arguments.join(" "));
    let code = output.status.code();
    let _ = writeln!(text, "exit {}", code.map_or("by signal".to_owned(), |c| c.to_string()));
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let words = String::from_utf8_lossy(bytes);
        if !words.is_empty() {
            let _ = writeln!(text, "--- {name}\n{}", words.trim_end());
        }
    }
    text
}

/// Holds a run against its snapshot.
fn check(name: &str, arguments: &[&str]) {
    let got = text(arguments, &run(arguments));
    let path = folder().join("runs").join(format!("{name}.txt"));
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &got).unwrap();
        return;
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(got == wanted, "{name} differs from {}:\n{got}", path.display());
}

#[test]
fn errors_name_the_value_and_the_cure() {
    for (name, line) in [
        ("no-arguments", ""),
        ("no-model", "estimate --gpu h100-80g"),
        ("no-gpu", "estimate llama-3.1-8b --train"),
        ("unknown-model", "estimate lama-3.1-8b --gpu h100-80g"),
        ("unknown-gpu", "estimate llama-3.1-8b --train --gpu h100-81g"),
        ("unknown-option", "estimate llama-3.1-8b --trian --gpu h100-80g"),
        ("unknown-optimizer", "estimate llama-3.1-8b --train --optimizer adamv --gpu h100-80g"),
        ("missing-file", "estimate ./nothing.gguf --gpu h100-80g"),
        ("not-a-model", "estimate not-a-model.bin --gpu h100-80g"),
        ("truncated-gguf", "estimate truncated.gguf --gpu h100-80g"),
        ("bad-config", "estimate bad-config.json --train --gpu h100-80g"),
        ("contradictory-config", "estimate no-heads.json --train --gpu h100-80g"),
        ("foreign-option", "estimate llama-3.1-8b --train --ngl 3 --gpu h100-80g"),
        ("option-without-workload", "estimate llama-3.1-8b --optimizer adamw --gpu h100-80g"),
        ("rank-without-lora", "estimate llama-3.1-8b --train --rank 8 --gpu h100-80g"),
        (
            "zero-chunk-loss",
            "estimate llama-3.1-8b --train --batch 1 --seq 512 --chunk-loss 0 --gpu h100-80g",
        ),
        (
            "zero-shard-group",
            "estimate llama-3.1-8b --train --fsdp --shard-group 0 --gpu h100-80g*2",
        ),
        ("experts-of-a-dense-model", "estimate llama-3.1-8b --train --ep 2 --gpu h100-80g*2"),
        ("mla-without-ik", "estimate llama-3.1-8b --engine llama.cpp --mla 2 --gpu h100-80g"),
        ("mla-mode", "estimate llama-3.1-8b --engine llama.cpp --ik --mla 4 --gpu h100-80g"),
        ("too-many-sequences", "estimate llama-3.1-8b --engine llama.cpp --np 5000 --gpu h100-80g"),
        ("no-tensors", "estimate no-tensors.safetensors --gpu h100-80g"),
        ("device-as-file", "estimate /dev/null --gpu h100-80g"),
        ("speech-in-llama-cpp", "estimate wavlm-base --engine llama.cpp --gpu h100-80g"),
        ("unmodelled-layers", "estimate deepseek-ai/DeepSeek-V4-Flash --infer --gpu h100-80g"),
        ("zero-batch", "estimate llama-3.1-8b --train --batch 0 --gpu h100-80g"),
        (
            "absurd-batch",
            "estimate llama-3.1-8b --train --batch 99999999999999999999 --gpu h100-80g",
        ),
        (
            "huge-batch",
            "estimate llama-3.1-8b --train --batch 900000000000 --seq 900000000000 --gpu h100-80g",
        ),
        ("tp-does-not-divide", "estimate llama-3.1-8b --train --tp 3 --gpu h100-80g*3"),
        (
            "dtype-that-the-gpu-lacks",
            "estimate llama-3.1-8b --train --precision fp8 --gpu rtx-3090",
        ),
        ("more-ranks-than-gpus", "estimate llama-3.1-8b --train --tp 4 --gpu h100-80g*2"),
        ("impossible-free", "estimate llama-3.1-8b --train --gpu h100-80g --free 90GiB"),
        (
            "last-layers-beyond-the-model",
            "estimate llama-3.1-8b --train --last-layers 33 --gpu h100-80g",
        ),
        ("bad-size", "estimate llama-3.1-8b --train --gpu h100-80g --free 19gallons"),
        ("bad-find", "estimate llama-3.1-8b --train --gpu h100-80g --find concurrency"),
        ("bad-data", "estimate --data image:0x10x3:f32 --gpu 24GiB"),
        ("bad-with", "estimate llama-3.1-8b --train --gpu h100-80g --with bert-base-uncased,batch"),
        ("offline", "estimate hf:org/name --gpu h100-80g"),
        ("bad-hub-name", "estimate hf:../../x --gpu h100-80g"),
        ("no-such-filter", "models zzzzzz"),
        ("unknown-allocator", "estimate llama-3.1-8b --infer --gpu h100-80g --allocator mxnet"),
        (
            "allocator-setting",
            "estimate llama-3.1-8b --infer --gpu h100-80g --allocator pytorch:max_split_size_mb:8",
        ),
        (
            "allocator-of-an-engine",
            "estimate llama-3.1-8b --engine vllm --gpu h100-80g --allocator jax",
        ),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        check(name, &arguments);
    }
}

#[test]
fn reports_are_one_screen() {
    for (name, line) in [
        ("data", "estimate --data image:3840x2160x3:f32 --batch 8 --gpu 24GiB"),
        ("data-does-not-fit", "estimate --data tokens:100000x1024:f16 --batch 200 --gpu 24GiB"),
        ("models", "models mixtral"),
        ("gpus", "gpus 4090"),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        check(name, &arguments);
    }
}

/// Runs of `explain` over the logs in `tests/data/logs`, by the snapshot's name.
const EXPLAINED: [(&str, &str); 11] = [
    ("explain-train", "explain logs/train.log"),
    ("explain-ranks", "explain logs/ranks.log"),
    ("explain-shared-gpu", "explain logs/shared-gpu.log"),
    ("explain-vllm", "explain logs/vllm.log"),
    ("explain-sglang", "explain logs/sglang.log"),
    ("explain-llama", "explain logs/llama.log"),
    ("explain-jax", "explain logs/jax.log"),
    ("explain-host", "explain logs/host.log"),
    ("explain-usage", "explain logs/usage.log"),
    ("explain-kernel", "explain logs/kernel.log"),
    ("explain-several-files", "explain logs/ranks.log logs/llama.log"),
];

#[test]
fn explanations_name_cause_and_cure() {
    for (name, line) in EXPLAINED {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        check(name, &arguments);
    }
    for (name, line) in [
        ("explain-json", "explain logs/shared-gpu.log --json"),
        ("explain-nothing", "explain logs/nothing.log"),
        ("explain-missing", "explain logs/absent.log"),
        ("explain-folder", "explain logs"),
        ("explain-no-file", "explain"),
        ("explain-snapshot", "explain logs/snapshot.pickle"),
        ("explain-model", "explain truncated.gguf"),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        check(name, &arguments);
    }
}

#[test]
fn snapshots_are_explained_replayed_and_compared() {
    for (name, line) in [
        ("snapshot-explain", "explain ../../../../docs/examples/oom.pickle.gz --top 5"),
        ("snapshot-ranks", "explain snapshots/before.pickle.gz snapshots/after.pickle.gz --top 3"),
        ("snapshot-cut", "explain snapshots/cut.pickle --top 3"),
        ("snapshot-no-device", "explain snapshots/before.pickle.gz --device 3"),
        ("snapshot-mixed", "explain snapshots/before.pickle.gz logs/train.log"),
        ("snapshot-replay", "replay snapshots/before.pickle.gz"),
        (
            "snapshot-what-if",
            "replay snapshots/before.pickle.gz --set expandable_segments=true --capacity 24GiB",
        ),
        ("snapshot-too-small", "replay snapshots/before.pickle.gz --capacity 3GiB"),
        ("snapshot-tune", "replay snapshots/before.pickle.gz --tune"),
        ("snapshot-bad-setting", "replay snapshots/before.pickle.gz --set expandable_segment=true"),
        ("snapshot-bad-value", "replay snapshots/before.pickle.gz --set max_split_size_mb=3"),
        ("snapshot-diff", "diff snapshots/before.pickle.gz snapshots/after.pickle.gz --top 4"),
        ("snapshot-not-one", "replay logs/train.log"),
        ("snapshot-no-parent", "export snapshots/before.pickle.gz --to html -o absent/x.html"),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        check(name, &arguments);
    }
}

#[test]
fn json_of_snapshots_names_its_schema_and_says_whether_it_is_exact() {
    for (line, schema) in [
        ("explain snapshots/before.pickle.gz --json", "plimsoll.explain/1"),
        ("replay snapshots/before.pickle.gz --tune --json", "plimsoll.replay/1"),
        ("diff snapshots/before.pickle.gz snapshots/after.pickle.gz --json", "plimsoll.diff/1"),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = run(&arguments);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["schema"], schema);
        if schema == "plimsoll.replay/1" {
            assert_eq!(json["exact"], true);
            assert_eq!(json["departures"].as_array().map(Vec::len), Some(0));
            assert!(json["peak"]["reserved"].as_u64() >= json["peak"]["allocated"].as_u64());
        }
    }
}

#[test]
fn exports_are_written_whole() {
    let folder = std::env::temp_dir().join(format!("plimsoll-exports-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (to, begin) in [
        ("html", "<!DOCTYPE html>"),
        ("perfetto", "{\"displayTimeUnit\""),
        ("flamegraph.svg", "<svg"),
        ("csv", "rank,device,block"),
        ("jsonl", "{\"rank\":7"),
    ] {
        let path = folder.join(to);
        let path = path.to_str().unwrap();
        let line = ["export", "snapshots/before.pickle.gz", "--to", to, "--rank", "7", "-o", path];
        let output = run(&line);
        assert_eq!(output.status.code(), Some(0), "{}", text(&line, &output));
        let written = fs::read_to_string(path).unwrap();
        assert!(written.starts_with(begin), "{to}: {}", &written[..40]);
        let line = ["export", "snapshots/before.pickle.gz", "--to", to, "--rank", "7", "-o", "-"];
        assert_eq!(String::from_utf8_lossy(&run(&line).stdout), written, "{to}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn compressed_logs_and_standard_input_read_the_same() {
    let plain = run(&["explain", "logs/ranks.log", "--json"]);
    let packed = run(&["explain", "logs/ranks.log.gz", "--json"]);
    let text = |o: &Output| String::from_utf8(o.stdout.clone()).unwrap();
    assert_eq!(text(&plain), text(&packed).replace("ranks.log.gz", "ranks.log"));
    let input = fs::File::open(folder().join("data/logs/ranks.log")).unwrap();
    let piped = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["explain", "-", "--json"])
        .env_clear()
        .stdin(input)
        .output()
        .unwrap();
    assert_eq!(text(&plain).replace("logs/ranks.log", "-"), text(&piped));
}

/// What an explanation tells to type is typed: the estimate takes it.
#[test]
fn commands_of_explanations_are_understood() {
    let mut typed = 0;
    for (name, line) in EXPLAINED {
        let mut arguments: Vec<&str> = line.split_whitespace().collect();
        arguments.push("--json");
        let output = run(&arguments);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["schema"], "plimsoll.explain/1", "{name}");
        let Some(command) = json["model_with"]["command"].as_str() else { continue };
        let words: Vec<String> = command.split_whitespace().map(|w| w.replace('\'', "")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).skip(1).collect();
        // Words in capitals and files of others cannot be run.
        if words.iter().any(|w| *w == "MODEL" || w.starts_with("GPU") || w.ends_with(".gguf")) {
            continue;
        }
        typed += 1;
        let code = run(&words).status.code();
        assert!(matches!(code, Some(0 | 1)), "{}", text(&words, &run(&words)));
    }
    assert!(typed >= 2, "only {typed} commands were complete");
}

#[test]
fn an_empty_term_is_refused_with_a_list() {
    check(
        "explain-no-term",
        &["estimate", "gpt2", "--train", "--gpu", "h100-80g", "--explain", ""],
    );
}

#[test]
fn the_verdict_is_the_exit_code() {
    for (line, code) in [
        ("estimate gpt2 --train --gpu h100-80g", 0),
        ("estimate llama-3.1-405b --train --gpu h100-80g --no-changes", 1),
        ("estimate gpt2 --train --gpu h100-80g --json", 0),
        ("estimate gpt2 --train --gpu h100-80g --explain all", 0),
        ("estimate gpt2 --train --gpu h100-80g --explain nothing", 2),
        ("--version", 0),
        ("estimate --help", 0),
        ("explain --help", 0),
        ("explain logs/train.log", 0),
        ("explain logs/usage.log --json", 0),
        ("explain logs/nothing.log", 8),
        ("explain logs/absent.log", 3),
        ("completions bash", 0),
        ("completions tcsh", 2),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(code), "{}", text(&arguments, &output));
    }
}

#[test]
fn json_is_deterministic_and_complete() {
    let line = "estimate gpt2 --train --gpu rtx-3090 --batch 8 --seq 1024 --json";
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let (a, b) = (run(&arguments), run(&arguments));
    assert_eq!(a.stdout, b.stdout);
    let value: serde_json::Value = serde_json::from_slice(&a.stdout).unwrap();
    assert_eq!(value["schema"], "plimsoll.estimate/1");
    for pointer in [
        "/fits",
        "/capacity",
        "/peak/allocated",
        "/peak/reserved",
        "/peak/device",
        "/interval/low",
        "/interval/high",
        "/terms",
        "/assumptions",
        "/diagnostics",
        "/margin",
        "/categories",
    ] {
        assert!(value.pointer(pointer).is_some_and(|v| !v.is_null()), "{pointer}");
    }
    for pointer in ["/capacity", "/peak/allocated", "/peak/reserved", "/peak/device"] {
        assert!(value.pointer(pointer).unwrap().is_u64(), "{pointer}");
    }
    let sum = |list: &str| -> u64 {
        value[list].as_array().unwrap().iter().map(|t| t["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("terms"), value["peak"]["device"].as_u64().unwrap());
}

#[test]
fn colour_only_where_it_is_asked_for() {
    let plain = run(&["estimate", "gpt2", "--train", "--gpu", "h100-80g"]);
    assert!(!plain.stdout.contains(&0x1b));
    let colour = run(&["estimate", "gpt2", "--train", "--gpu", "h100-80g", "--color", "always"]);
    assert!(colour.stdout.contains(&0x1b));
}

/// Whatever bytes a model file holds, the program ends with a documented code.
#[test]
fn damaged_files_never_panic() {
    let dir = std::env::temp_dir().join(format!("plimsoll-runs-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let bodies: [(&str, &[u8]); 8] = [
        ("empty.gguf", b""),
        ("magic.gguf", b"GGUF"),
        (
            "huge.gguf",
            b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ),
        ("header.safetensors", b"\xff\0\0\0\0\0\0\0{"),
        ("config.json", b"{\"model_type\": \"llama\", \"hidden_size\": 18446744073709551615}"),
        ("array.json", b"[1, 2]"),
        ("zip.pt", b"PK\x03\x04"),
        ("pickle.bin", b"\x80\x02."),
    ];
    for (name, body) in bodies {
        let path = dir.join(name);
        fs::write(&path, body).unwrap();
        let path = path.to_str().unwrap();
        for workload in [&["--train"][..], &["--engine", "vllm"], &["--infer"]] {
            let mut arguments = vec!["estimate", path, "--gpu", "h100-80g"];
            arguments.extend(workload);
            let output = run(&arguments);
            let code = output.status.code();
            assert!(matches!(code, Some(0..=6)), "{}", text(&arguments, &output));
            assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{name}");
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// A two-layer Llama: name and shape of each tensor.
fn tiny_tensors() -> Vec<(String, Vec<u64>)> {
    let mut list = vec![
        ("model.embed_tokens.weight".to_owned(), vec![128, 64]),
        ("model.norm.weight".to_owned(), vec![64]),
        ("lm_head.weight".to_owned(), vec![128, 64]),
    ];
    for layer in 0..2 {
        for (part, shape) in [
            ("input_layernorm", vec![64]),
            ("post_attention_layernorm", vec![64]),
            ("self_attn.q_proj", vec![64, 64]),
            ("self_attn.k_proj", vec![32, 64]),
            ("self_attn.v_proj", vec![32, 64]),
            ("self_attn.o_proj", vec![64, 64]),
            ("mlp.gate_proj", vec![128, 64]),
            ("mlp.up_proj", vec![128, 64]),
            ("mlp.down_proj", vec![64, 128]),
        ] {
            list.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    list
}

const TINY_CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 128, "max_position_embeddings": 2048, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;

/// A safetensors file of zeros.
fn safetensors() -> Vec<u8> {
    let (mut rows, mut end) = (Vec::new(), 0u64);
    for (name, shape) in tiny_tensors() {
        let begin = end;
        end += 2 * shape.iter().product::<u64>();
        rows.push(format!(
            r#""{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let header = format!("{{{}}}", rows.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end as usize, 0);
    file
}

/// A GGUF file of zeros, F16.
fn gguf() -> Vec<u8> {
    fn text(file: &mut Vec<u8>, text: &str) {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    }
    let names = |name: &str| {
        name.replace("model.embed_tokens", "token_embd")
            .replace("model.norm", "output_norm")
            .replace("lm_head", "output")
            .replace("model.layers", "blk")
            .replace("input_layernorm", "attn_norm")
            .replace("post_attention_layernorm", "ffn_norm")
            .replace("self_attn.o_proj", "attn_output")
            .replace("self_attn.", "attn_")
            .replace("mlp.", "ffn_")
            .replace("_proj", "")
    };
    let counts = [
        ("llama.block_count", 2u32),
        ("llama.embedding_length", 64),
        ("llama.feed_forward_length", 128),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("llama.context_length", 2048),
        ("llama.vocab_size", 128),
    ];
    let tensors = tiny_tensors();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((counts.len() as u64 + 1).to_le_bytes());
    text(&mut file, "general.architecture");
    file.extend(8u32.to_le_bytes());
    text(&mut file, "llama");
    for (key, n) in counts {
        text(&mut file, key);
        file.extend(4u32.to_le_bytes());
        file.extend(n.to_le_bytes());
    }
    let mut offset = 0u64;
    for (name, shape) in &tensors {
        text(&mut file, &names(name));
        file.extend((shape.len() as u32).to_le_bytes());
        for n in shape.iter().rev() {
            file.extend(n.to_le_bytes());
        }
        file.extend(1u32.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (2 * shape.iter().product::<u64>()).next_multiple_of(32);
    }
    file.resize(file.len().next_multiple_of(32) + offset as usize, 0);
    file
}

/// A folder, its configuration, its weights and a GGUF file all describe the same model.
#[test]
fn files_are_read_whatever_they_are() {
    let dir = std::env::temp_dir().join(format!("plimsoll-files-{}", std::process::id()));
    let model = dir.join("tiny");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("config.json"), TINY_CONFIG).unwrap();
    fs::write(model.join("model.safetensors"), safetensors()).unwrap();
    fs::write(dir.join("tiny.gguf"), gguf()).unwrap();
    fs::write(dir.join("bare.safetensors"), safetensors()).unwrap();
    let elements: u64 = tiny_tensors().iter().map(|(_, s)| s.iter().product::<u64>()).sum();
    for (path, workload, source) in [
        ("tiny", &["--train"][..], "safetensors"),
        ("tiny/config.json", &["--train"], "config"),
        ("tiny/model.safetensors", &["--engine", "vllm"], "safetensors"),
        ("tiny.gguf", &[], "gguf"),
        (
            "tiny.gguf",
            &["--engine", "llama.cpp", "-ngl", "1", "-ctk", "q8_0", "-ctv", "q8_0"],
            "gguf",
        ),
    ] {
        let path = dir.join(path);
        let mut arguments = vec!["estimate", path.to_str().unwrap(), "--gpu", "24GiB", "--json"];
        arguments.extend(workload);
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&arguments, &output));
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["model"]["parameters"], elements, "{arguments:?}");
        assert_eq!(value["model"]["source"], source, "{arguments:?}");
        let warned = value["diagnostics"].as_array().unwrap().iter();
        assert!(!warned.into_iter().any(|d| d["code"] == "tensors-differ"), "{arguments:?}");
    }
    // Without a configuration only the weights are counted, and training is refused with the cure.
    let bare = dir.join("bare.safetensors");
    let bare = bare.to_str().unwrap();
    let output = run(&["estimate", bare, "--gpu", "24GiB", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["peak"]["allocated"], 2 * elements);
    assert_eq!(value["diagnostics"][0]["code"], "weights-only");
    let output = run(&["estimate", bare, "--train", "--gpu", "24GiB"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("config.json"));
    fs::remove_dir_all(&dir).unwrap();
}

/// A model of the hub is read from the cache of the Hugging Face libraries, offline too.
#[test]
fn hub_models_come_from_the_cache() {
    let home = std::env::temp_dir().join(format!("plimsoll-hub-{}", std::process::id()));
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let repo = home.join(".cache/huggingface/hub/models--org--tiny");
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::create_dir_all(repo.join("snapshots").join(commit)).unwrap();
    fs::write(repo.join("refs/main"), commit).unwrap();
    fs::write(repo.join("snapshots").join(commit).join("config.json"), TINY_CONFIG).unwrap();
    let arguments = ["estimate", "hf:org/tiny", "--train", "--gpu", "24GiB", "--json"];
    let output = run_with(&arguments, home.to_str().unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", text(&arguments, &output));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["model"]["name"], "hf:org/tiny");
    fs::remove_dir_all(&home).unwrap();
}

/// An assumption, a warning or a change that names an option must name one that exists.
#[test]
fn options_in_reports_exist() {
    let help = String::from_utf8(run(&["estimate", "--help"]).stdout).unwrap();
    for line in [
        "estimate llama-3.1-8b --train --gpu rtx-3090 --seq 8192 --json",
        "estimate llama-3.1-8b --finetune lora --gpu rtx-3090*2 --json",
        "estimate llama-3.1-8b --gpu rtx-3060 --json",
        "estimate mixtral-8x7b --engine vllm --gpu h100-80g --json",
        "estimate mixtral-8x7b --engine sglang --gpu h100-80g --json",
        "estimate mixtral-8x7b --engine llama.cpp --gpu rtx-3090 --quant Q4_K_M --json",
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = run(&arguments);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
        let mut texts: Vec<String> = Vec::new();
        for (rows, field) in [
            (list("assumptions"), "option"),
            (list("changes"), "options"),
            (list("diagnostics"), "cure"),
        ] {
            texts.extend(rows.iter().filter_map(|r| r[field].as_str().map(str::to_owned)));
        }
        for word in texts.iter().flat_map(|t| t.split([' ', ',', ';', '(', ')'])) {
            if word.starts_with("--") {
                assert!(
                    help.contains(word) || word == "--llama-build",
                    "{word} of `{line}` does not exist"
                );
            }
        }
    }
}
