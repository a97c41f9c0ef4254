//! llama.cpp, its forks, and Ollama.

use super::super::figure::{Amount, Key, Reading};
use super::super::quantity::{self, Units};
use super::super::table::Framework::{LlamaCpp, Ollama};
use super::super::table::{Field, Kind, Pattern};

pub const GGML: &[Pattern] = &[
    Pattern::new("ggml-alloc", LlamaCpp, Kind::Oom, "alloc_buffer: allocating ")
        .fields(&[Field::size(Key::Requested, "allocating ", " on device")])
        .from(
            "2024 and later; CUDA, HIP and MUSA",
            "ggml-org/llama.cpp#20431, #26297; ikawrakow/ik_llama.cpp#749",
        ),
    Pattern::new("ggml-buffer", LlamaCpp, Kind::Echo, "failed to allocate ")
        .only(|line| line.contains(" buffer of size "))
        .fields(&[Field::size(Key::Requested, "buffer of size ", "")])
        .from("2023 and later", "ggml-org/llama.cpp#11476"),
    Pattern::new("ggml-compute", LlamaCpp, Kind::Echo, "failed to allocate compute buffers")
        .from("2024 and later", "ikawrakow/ik_llama.cpp#235"),
    Pattern::new("ggml-kv", LlamaCpp, Kind::Oom, "failed to allocate buffer for kv cache")
        .from("2024 and later", "recalled"),
    Pattern::new("ggml-load", LlamaCpp, Kind::Echo, "unable to allocate ")
        .only(|line| line.contains(" buffer"))
        .from("2024 and later", "ggml-org/llama.cpp#20431"),
    Pattern::new(
        "ggml-vulkan",
        LlamaCpp,
        Kind::Oom,
        "ggml_vulkan: Device memory allocation of size ",
    )
    .fields(&[Field::size(Key::Requested, "allocation of size ", "")])
    .from("2024 and later; Vulkan", "ggml-org/llama.cpp#12817; ikawrakow/ik_llama.cpp#1289"),
    Pattern::new("ggml-metal", LlamaCpp, Kind::Oom, "kIOGPUCommandBufferCallbackErrorOutOfMemory")
        .from("macOS; Metal's driver", "recalled"),
    Pattern::new("ggml-size", LlamaCpp, Kind::Usage, " buffer size = ")
        .special(buffer)
        .from("2023 and later", "ggml-org/llama.cpp#8035, #14043; ollama/ollama#9782"),
    Pattern::new("ggml-offloaded", LlamaCpp, Kind::Usage, "offloaded ")
        .only(|line| line.contains(" layers to GPU"))
        .fields(&[
            Field::count(Key::LayersOnGpu, "offloaded ", "/"),
            Field::count(Key::Layers, "/", " layers to GPU"),
        ])
        .from("2023 and later", "ggml-org/llama.cpp#8035; ollama/ollama#11090"),
    Pattern::new("ggml-fact-ctx", LlamaCpp, Kind::Fact, "n_ctx")
        .from("every", "ggml-org/llama.cpp#8035"),
    Pattern::new("ggml-fact-ubatch", LlamaCpp, Kind::Fact, "n_ubatch")
        .from("2024 and later", "ggml-org/llama.cpp#8035"),
    Pattern::new("ggml-fact-batch", LlamaCpp, Kind::Fact, "n_batch")
        .from("2023 and later", "ggml-org/llama.cpp#8035"),
    Pattern::new("ggml-fact-seqs", LlamaCpp, Kind::Fact, "n_seq_max")
        .from("2024 and later", "ollama/ollama#8447"),
    Pattern::new("ggml-fact-fa", LlamaCpp, Kind::Fact, "flash_attn")
        .from("2024 and later", "ggml-org/llama.cpp#8035"),
    Pattern::new("ggml-fact-type", LlamaCpp, Kind::Fact, "type_k = ")
        .from("2024 and later", "ollama/ollama#8447"),
    Pattern::new("ggml-fact-name", LlamaCpp, Kind::Fact, "general.name")
        .from("2023 and later", "recalled"),
    Pattern::new("ggml-fact-file", LlamaCpp, Kind::Fact, ".gguf")
        .from("2023 and later", "recalled"),
    Pattern::new("ggml-command", LlamaCpp, Kind::Fact, "llama-")
        .only(|line| ["llama-server", "llama-cli", "llama-bench"].iter().any(|t| line.contains(t)))
        .from("2024 and later: a command line", "ggml-org/llama.cpp#26297"),
    Pattern::new("ollama-host", Ollama, Kind::Host, "model requires more system memory (")
        .fields(&[
            Field::size(Key::SystemNeeded, "model requires more system memory (", ")"),
            Field::size(Key::SystemFree, "than is available (", ")"),
        ])
        .from("0.1.29 and later", "ollama/ollama#8667, #10181"),
    Pattern::new("ollama-plan", Ollama, Kind::Usage, "memory.required.full=")
        .fields(&[
            Field::count(Key::Layers, "layers.model=", ""),
            Field::count(Key::LayersOnGpu, "layers.offload=", ""),
            Field::size(Key::AvailableNow, "memory.available=\"[", ""),
            Field::size(Key::RequiredFull, "memory.required.full=\"", ""),
            Field::size(Key::RequiredPartial, "memory.required.partial=\"", ""),
            Field::size(Key::RequiredKv, "memory.required.kv=\"", ""),
            Field::size(Key::RequiredGraph, "memory.graph.full=\"", ""),
            Field::size(Key::Weights, "memory.weights.total=\"", ""),
        ])
        .from("0.1.33 to 0.11", "ollama/ollama#9181, #8430, #8447"),
    Pattern::new("ollama-part", Ollama, Kind::Usage, "size=\"")
        .only(|line| {
            ["\"model weights\"", "\"kv cache\"", "\"compute graph\""]
                .iter()
                .any(|t| line.contains(t))
        })
        .special(part)
        .from("0.11 and later: device= or buffer=", "ollama/ollama#11090, #13789"),
    Pattern::new("ollama-gpu", Ollama, Kind::Usage, "msg=\"inference compute\"")
        .fields(&[
            Field::size(Key::Capacity, " total=\"", ""),
            Field::size(Key::AvailableNow, " available=\"", ""),
        ])
        .from("0.1.33 and later", "ollama/ollama#10181"),
];

/// `load_tensors: CUDA0 model buffer size = 48928.09 MiB`: the words before tell the device and what it holds.
fn buffer(text: &str, readings: &mut Vec<Reading>) {
    let Some((head, tail)) = text.split_once(" buffer size = ") else { return };
    let Some((size, _)) = quantity::size(tail.trim_start(), Units::Binary) else { return };
    let mut words = head.rsplit(' ');
    let (last, before) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let kinds = ["model", "KV", "compute", "output", "RS"];
    // Old versions print weights without the word: "CUDA0 buffer size".
    let (kind, device) = if kinds.contains(&last) { (last, before) } else { ("model", last) };
    if !device.is_empty() && device.len() <= 24 {
        let of = Some(format!("{kind} on {device}"));
        readings.push(Reading { key: Key::Buffer, value: Amount::Size(size), of });
    }
}

/// `msg="kv cache" device=CUDA0 size="800.0 MiB"`
fn part(text: &str, readings: &mut Vec<Reading>) {
    let value = |name: &str| {
        let rest = text.split_once(name)?.1;
        rest.split([' ', '"']).next().filter(|v| v.len() <= 24)
    };
    let kinds =
        [("\"model weights\"", "model"), ("\"kv cache\"", "KV"), ("\"compute graph\"", "compute")];
    let kind = kinds.iter().find(|(words, _)| text.contains(words)).map_or("model", |(_, k)| k);
    let device = value(" device=").or_else(|| value(" buffer=")).or_else(|| value(" buffer_type="));
    let size = text.split_once("size=\"").and_then(|(_, t)| quantity::size(t, Units::Binary));
    if let (Some(device), Some((size, _))) = (device, size) {
        let of = Some(format!("{kind} on {device}"));
        readings.push(Reading { key: Key::Buffer, value: Amount::Size(size), of });
    }
}
