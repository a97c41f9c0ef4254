//! vLLM and SGLang. Both divide by 2^30 whatever unit they print.

use super::super::figure::{Amount, Key, Reading};
use super::super::quantity::{self, Printed, Units};
use super::super::table::Framework::{Sglang, Vllm};
use super::super::table::{Field, Kind, More, Pattern};

pub const SERVING: &[Pattern] = &[
    Pattern::new("vllm-no-blocks", Vllm, Kind::Refused, "No available memory for the cache blocks")
        .only(|line| !line.contains("raise "))
        .from("0.1 and later", "vllm-project/vllm#2248, #10439; wtdcode/vllm-backport#15"),
    Pattern::new(
        "vllm-too-long",
        Vllm,
        Kind::Refused,
        "is larger than the maximum number of tokens",
    )
    .fields(&[
        Field::count(Key::MaxLen, "max seq len (", ")"),
        Field::count(Key::KvTokens, "stored in KV cache (", ")"),
    ])
    .from("0.2.7 to 0.8", "vllm-project/vllm#2418, #10517"),
    Pattern::new(
        "vllm-too-long-bytes",
        Vllm,
        Kind::Refused,
        "To serve at least one request with the model",
    )
    .fields(&[
        Field::count(Key::MaxLen, "max seq len (", ")"),
        Field::size(Key::KvNeeded, "", " KV cache is needed"),
        Field::size(Key::KvCache, "available KV cache memory (", ")"),
        Field::count(Key::MaxLenFits, "estimated maximum model length is ", ""),
    ])
    .from("0.8 and later (engine V1)", "vllm-project/vllm#34076"),
    Pattern::new(
        "vllm-free",
        Vllm,
        Kind::Refused,
        "on startup is less than desired GPU memory utilization",
    )
    .fields(&[
        Field::size(Key::Capacity, "/", ")"),
        Field::share(Key::Utilization, "utilization (", ","),
        Field::size(Key::Budget, ", ", ")"),
    ])
    .special(free_of)
    .from(
        "0.9 and later; the device's name from 0.11",
        "vllm-project/vllm#20305, #50135; pytorch/pytorch#175666; ovg-project/kvcached#29",
    ),
    Pattern::new("vllm-profiling", Vllm, Kind::Refused, "Error in memory profiling")
        .fields(&[
            Field::size(Key::AvailableNow, "Initial free memory ", ""),
            Field::size(Key::Free, "urrent free memory ", ""),
        ])
        .from(
            "0.3 and later: another process freed memory during the trial run",
            "vllm-project/vllm#56830",
        ),
    Pattern::new(
        "vllm-sampler",
        Vllm,
        Kind::Oom,
        "CUDA out of memory occurred when warming up sampler",
    )
    .from("0.8 and later (engine V1)", "vllm-project/vllm#14452, #17939"),
    Pattern::new("vllm-split", Vllm, Kind::Usage, "model weights take ")
        .fields(&[
            Field::size(Key::Weights, "model weights take ", ""),
            Field::size(Key::NonTorch, "non_torch_memory takes ", ""),
            Field::size(Key::Activations, "PyTorch activation peak memory takes ", ""),
            Field::size(Key::KvCache, "reserved for KV Cache is ", ""),
        ])
        .from("0.6.5 to 0.9 (engine V0)", "vllm-project/vllm#10511, #11550, #14447"),
    Pattern::new("vllm-split-0.6.4", Vllm, Kind::Usage, "Memory profiling results: ")
        .fields(&[
            Field::size(Key::Capacity, "total_gpu_memory=", ""),
            Field::size(Key::PeakMemory, "peak_torch_memory=", ""),
            Field::size(Key::NonTorch, "non_torch_memory=", ""),
            Field::size(Key::KvCache, "kv_cache_size=", ""),
            Field::share(Key::Utilization, "gpu_memory_utilization=", ""),
        ])
        .from("0.6.4", "vllm-project/vllm#10517"),
    Pattern::new(
        "vllm-budget",
        Vllm,
        Kind::Usage,
        "the current vLLM instance can use total_gpu_memory (",
    )
    .fields(&[
        Field::size(Key::Capacity, "total_gpu_memory (", ")"),
        Field::share(Key::Utilization, "gpu_memory_utilization (", ")"),
        Field::size(Key::Budget, ") = ", ""),
    ])
    .from("0.6.5 to 0.9 (engine V0)", "vllm-project/vllm#14447"),
    Pattern::new("vllm-weights", Vllm, Kind::Usage, "Loading model weights took ")
        .fields(&[Field::size(Key::Weights, "Loading model weights took ", "")])
        .from("0.3 to 0.8; prints GB for GiB", "vllm-project/vllm#11550, #12569"),
    Pattern::new("vllm-weights-v1", Vllm, Kind::Usage, "Model loading took ")
        .fields(&[Field::size(Key::Weights, "Model loading took ", "")])
        .from("0.8 and later (engine V1)", "vllm-project/vllm#17122, #14574"),
    Pattern::new("vllm-kv-bytes", Vllm, Kind::Usage, "Available KV cache memory: ")
        .fields(&[Field::size(Key::KvCache, "Available KV cache memory: ", "")])
        .from("0.9 and later (engine V1)", "vllm-project/vllm#21348"),
    Pattern::new("vllm-kv-tokens", Vllm, Kind::Usage, "GPU KV cache size: ")
        .fields(&[Field::count(Key::KvTokens, "GPU KV cache size: ", " tokens")])
        .from("0.8 and later (engine V1)", "vllm-project/vllm#17122, #21348"),
    Pattern::new("vllm-blocks", Vllm, Kind::Usage, "GPU blocks: ")
        .fields(&[Field::count(Key::KvBlocks, "GPU blocks: ", "")])
        .from("0.1 to 0.8", "vllm-project/vllm#2031, #12569; netease-youdao/QAnything#302"),
    Pattern::new("vllm-concurrency", Vllm, Kind::Usage, "Maximum concurrency for ")
        .fields(&[
            Field::count(Key::MaxLen, "Maximum concurrency for ", " tokens per request"),
            Field::share(Key::Concurrency, "tokens per request: ", ""),
        ])
        .from("0.6.2 and later", "vllm-project/vllm#10517, #12569, #17122"),
    Pattern::new("vllm-graphs", Vllm, Kind::Usage, "Graph capturing finished in ")
        .fields(&[Field::size(Key::GraphMemory, ", took ", "")])
        .from("0.6 and later", "recalled"),
    Pattern::new("vllm-config", Vllm, Kind::Fact, "LLM engine ").from(
        "0.1 and later: the configuration",
        "vllm-project/vllm#16141, #17366; netease-youdao/QAnything#302",
    ),
    Pattern::new("vllm-arguments", Vllm, Kind::Fact, "non-default args: ")
        .from("0.9 and later", "vllm-project/vllm#39734"),
    Pattern::new("vllm-namespace", Vllm, Kind::Fact, "args: Namespace(")
        .from("0.3 and later", "recalled"),
    Pattern::new("vllm-serve", Vllm, Kind::Fact, "vllm serve ")
        .from("0.6 and later: a command line", "vllm-project/vllm#34076"),
    Pattern::new("vllm-module", Vllm, Kind::Fact, "vllm.entrypoints.openai.api_server ")
        .from("0.1 and later: a command line", "QwenLM/Qwen3#12"),
    Pattern::new("vllm-version", Vllm, Kind::Fact, "vLLM API server version ")
        .from("0.3 and later", "recalled"),
    Pattern::new(
        "sglang-static",
        Sglang,
        Kind::Refused,
        "Not enough memory. Please try to increase --mem-fraction-static",
    )
    .only(|line| !line.contains("raise "))
    .from("0.1 and later", "sgl-project/sglang#322, #4330"),
    Pattern::new("sglang-capture", Sglang, Kind::Perhaps, "Capture cuda graph failed")
        .from("0.4 and later", "sgl-project/sglang#4489, #5285"),
    Pattern::new("sglang-capture-upper", Sglang, Kind::Perhaps, "Capture CUDA graph failed")
        .from("0.3", "sgl-project/sglang#4205"),
    Pattern::new("sglang-prefill", Sglang, Kind::Oom, "Prefill out of memory. ")
        .fields(POOL)
        .more(More::Until { lines: 3, ends: &["Available"] })
        .from(
            "0.2 and later: the token pool, not the device",
            "sgl-project/sglang python/sglang/srt/mem_cache (public copies)",
        ),
    Pattern::new("sglang-decode", Sglang, Kind::Oom, "Decode out of memory. ")
        .fields(POOL)
        .more(More::Until { lines: 3, ends: &["Available"] })
        .from("0.2 and later: the token pool, not the device", "recalled"),
    Pattern::new("sglang-unbalanced", Sglang, Kind::Refused, "The memory capacity is unbalanced")
        .from("0.2 and later", "recalled"),
    Pattern::new("sglang-loaded", Sglang, Kind::Usage, "Load weight end")
        .fields(&[
            Field::size(Key::AvailableNow, "avail mem=", ""),
            Field::size(Key::Weights, "mem usage=", ""),
        ])
        .from("0.1 and later; prints GB for GiB", "sgl-project/sglang#7691, #18263"),
    Pattern::new("sglang-kv", Sglang, Kind::Usage, "KV Cache is allocated. ")
        .fields(&[Field::count(Key::KvTokens, "#tokens: ", "")])
        .special(key_and_value)
        .from(
            "0.4 and later; prints GB for GiB",
            "sgl-project/sglang#11716, #18263; vllm-project/vllm#21348",
        ),
    Pattern::new("sglang-pool", Sglang, Kind::Usage, "Memory pool end")
        .fields(&[Field::size(Key::AvailableNow, "avail mem=", "")])
        .from("0.1 and later", "sgl-project/sglang#11716"),
    Pattern::new("sglang-graphs", Sglang, Kind::Usage, "Capture cuda graph end")
        .fields(&[
            Field::size(Key::GraphMemory, "mem usage=", ""),
            Field::size(Key::AvailableNow, "avail mem=", ""),
        ])
        .from("0.4 and later", "sgl-project/sglang#11830"),
    Pattern::new("sglang-tokens", Sglang, Kind::Usage, "max_total_num_tokens=")
        .fields(&[
            Field::count(Key::KvTokens, "max_total_num_tokens=", ""),
            Field::count(Key::MaxLen, "context_len=", ""),
        ])
        .from("0.2 and later", "sgl-project/sglang#6027; recalled"),
    Pattern::new("sglang-profiled", Sglang, Kind::Usage, "is larger than the profiled value ")
        .from("0.3 and later", "sgl-project/sglang#7691"),
    Pattern::new("sglang-arguments", Sglang, Kind::Fact, "server_args=ServerArgs(")
        .from("0.2 and later", "sgl-project/sglang#1522, #4895"),
    Pattern::new("sglang-module", Sglang, Kind::Fact, "sglang.launch_server ")
        .from("0.1 and later: a command line", "sgl-project/sglang#322, #4895"),
];

const POOL: &[Field] = &[
    Field::count(Key::TokensWanted, "Try to allocate ", " tokens"),
    Field::count(Key::TokensFree, "Available full tokens: ", ""),
    Field::count(Key::TokensFree, "Available tokens: ", ""),
];

/// `(59.32/79.15 GiB)`: the first number has the unit of the second.
fn free_of(text: &str, readings: &mut Vec<Reading>) {
    let Some((free, rest)) = text.split_once("Free memory on device").and_then(|(_, tail)| {
        let inside = tail.split_once('(')?.1;
        inside.split_once('/')
    }) else {
        return;
    };
    let unit = rest.split_once(' ').map_or("", |(_, t)| t).split(')').next().unwrap_or_default();
    if let Some((size, _)) = quantity::size(&format!("{free} {unit}"), Units::Binary) {
        readings.push(Reading { key: Key::Free, value: Amount::Size(size), of: None });
    }
}

/// `K size: 8.23 GB, V size: 8.23 GB`; latent attention prints one `KV size`.
fn key_and_value(text: &str, readings: &mut Vec<Reading>) {
    let parts = ["K size: ", "V size: "].iter().filter_map(|name| {
        let (_, tail) = text.split_once(name)?;
        quantity::size(tail, Units::Binary).map(|(size, _)| size)
    });
    let one = text.contains("KV size: ");
    let sum = parts.take(if one { 1 } else { 2 }).fold(None::<Printed>, |sum, part| {
        let sum = sum.unwrap_or_default();
        Some(Printed { bytes: sum.bytes + part.bytes, slack: sum.slack + part.slack })
    });
    if let Some(sum) = sum {
        readings.push(Reading { key: Key::KvCache, value: Amount::Size(sum), of: None });
    }
}
