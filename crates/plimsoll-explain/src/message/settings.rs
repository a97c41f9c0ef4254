//! What a log tells of the run: the model, the engine with its options, the batch, the GPU. Options are read from
//! configuration lines and command lines of engines and trainers, in every spelling (`max_model_len=4096`,
//! `--max-model-len 4096`, `'max_model_len': 4096`).

use std::collections::BTreeMap;

use super::table::Framework;

/// What is known of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The engine or trainer, where one printed its configuration.
    pub framework: Option<Framework>,
    /// Its version.
    pub version: Option<String>,
    /// The model: a hub name or a path.
    pub model: Option<String>,
    /// Options and sizes.
    pub settings: BTreeMap<Setting, String>,
    /// Names of GPUs, as drivers print them.
    pub gpus: Vec<String>,
    /// Whether expandable segments are on.
    pub expandable: bool,
}

macro_rules! settings {
    ($($variant:ident $doc:literal;)+) => {
        /// An option or size of a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Setting {
            $(#[doc = $doc] $variant,)+
        }

        impl Setting {
            /// Its name in words.
            pub const fn name(self) -> &'static str {
                match self { $(Setting::$variant => $doc,)+ }
            }
        }
    };
}

settings! {
    TensorParallel "tensor-parallel ranks";
    PipelineParallel "pipeline stages";
    DataParallel "data-parallel ranks";
    MaxLen "longest sequence";
    Utilization "share of the GPU";
    MaxSeqs "sequences at a time";
    BatchedTokens "tokens per step";
    Dtype "element type";
    Quantization "quantization";
    KvDtype "type of the KV cache";
    Eager "no CUDA graphs";
    ChunkedPrefill "tokens per prefill chunk";
    GraphBatch "largest captured batch";
    DpAttention "data-parallel attention";
    CpuOffload "weights on the host";
    Context "context";
    Ubatch "physical batch";
    LogicalBatch "logical batch";
    Sequences "parallel sequences";
    GpuLayers "layers on the GPU";
    FlashAttention "flash attention";
    CacheK "type of K";
    CacheV "type of V";
    MicroBatch "batch per device";
    Accumulate "accumulated steps";
    SequenceLength "tokens per sequence";
    Checkpointing "activation checkpointing";
    Adapter "adapter";
    Zero "ZeRO stage";
    Trainable "trainable parameters";
}

use Framework::{DeepSpeed, LlamaCpp, Sglang, Transformers, Vllm};

/// Key, who uses it, what it sets. Dashes are read as underscores.
const KEYS: &[(&str, &[Framework], Setting)] = &[
    ("tensor_parallel_size", &[Vllm, Sglang], Setting::TensorParallel),
    ("tp_size", &[Sglang], Setting::TensorParallel),
    ("tp", &[Vllm, Sglang], Setting::TensorParallel),
    ("pipeline_parallel_size", &[Vllm, Sglang], Setting::PipelineParallel),
    ("pp_size", &[Sglang], Setting::PipelineParallel),
    ("data_parallel_size", &[Vllm], Setting::DataParallel),
    ("dp_size", &[Sglang], Setting::DataParallel),
    ("max_model_len", &[Vllm], Setting::MaxLen),
    ("max_seq_len", &[Vllm], Setting::MaxLen),
    ("gpu_memory_utilization", &[Vllm], Setting::Utilization),
    ("max_num_seqs", &[Vllm], Setting::MaxSeqs),
    ("max_num_batched_tokens", &[Vllm], Setting::BatchedTokens),
    ("dtype", &[Vllm, Sglang], Setting::Dtype),
    ("quantization", &[Vllm, Sglang], Setting::Quantization),
    ("kv_cache_dtype", &[Vllm, Sglang], Setting::KvDtype),
    ("enforce_eager", &[Vllm], Setting::Eager),
    ("disable_cuda_graph", &[Sglang], Setting::Eager),
    ("cpu_offload_gb", &[Vllm, Sglang], Setting::CpuOffload),
    ("context_length", &[Sglang], Setting::MaxLen),
    ("mem_fraction_static", &[Sglang], Setting::Utilization),
    ("chunked_prefill_size", &[Sglang], Setting::ChunkedPrefill),
    ("cuda_graph_max_bs", &[Sglang], Setting::GraphBatch),
    ("enable_dp_attention", &[Sglang], Setting::DpAttention),
    ("n_ctx", &[LlamaCpp], Setting::Context),
    ("n_ubatch", &[LlamaCpp], Setting::Ubatch),
    ("n_batch", &[LlamaCpp], Setting::LogicalBatch),
    ("n_seq_max", &[LlamaCpp], Setting::Sequences),
    ("flash_attn", &[LlamaCpp], Setting::FlashAttention),
    ("type_k", &[LlamaCpp], Setting::CacheK),
    ("type_v", &[LlamaCpp], Setting::CacheV),
    ("ngl", &[LlamaCpp], Setting::GpuLayers),
    ("n_gpu_layers", &[LlamaCpp], Setting::GpuLayers),
    ("c", &[LlamaCpp], Setting::Context),
    ("ctx_size", &[LlamaCpp], Setting::Context),
    ("ub", &[LlamaCpp], Setting::Ubatch),
    ("np", &[LlamaCpp], Setting::Sequences),
    ("parallel", &[LlamaCpp], Setting::Sequences),
    ("cache_type_k", &[LlamaCpp], Setting::CacheK),
    ("cache_type_v", &[LlamaCpp], Setting::CacheV),
    ("ctk", &[LlamaCpp], Setting::CacheK),
    ("ctv", &[LlamaCpp], Setting::CacheV),
    ("per_device_train_batch_size", &[Transformers, DeepSpeed], Setting::MicroBatch),
    ("train_micro_batch_size_per_gpu", &[Transformers, DeepSpeed], Setting::MicroBatch),
    ("micro_batch_size", &[Transformers, DeepSpeed], Setting::MicroBatch),
    ("gradient_accumulation_steps", &[Transformers, DeepSpeed], Setting::Accumulate),
    ("max_seq_length", &[Transformers, DeepSpeed], Setting::SequenceLength),
    ("max_length", &[Transformers, DeepSpeed], Setting::SequenceLength),
    ("sequence_len", &[Transformers, DeepSpeed], Setting::SequenceLength),
    ("cutoff_len", &[Transformers, DeepSpeed], Setting::SequenceLength),
    ("gradient_checkpointing", &[Transformers, DeepSpeed], Setting::Checkpointing),
    ("finetuning_type", &[Transformers, DeepSpeed], Setting::Adapter),
    ("adapter", &[Transformers, DeepSpeed], Setting::Adapter),
    ("use_peft", &[Transformers, DeepSpeed], Setting::Adapter),
    ("zero_stage", &[Transformers, DeepSpeed], Setting::Zero),
];

/// Keys that name the model.
const MODEL_KEYS: &[(&str, &[Framework])] = &[
    ("model", &[Vllm]),
    ("model_tag", &[Vllm]),
    ("model_path", &[Sglang]),
    ("model_name_or_path", &[Transformers, DeepSpeed]),
    ("base_model", &[Transformers, DeepSpeed]),
];

/// Sentences of trainers: what stands before the number.
const LABELS: &[(&str, Setting)] = &[
    ("Instantaneous batch size per device = ", Setting::MicroBatch),
    ("Gradient Accumulation steps = ", Setting::Accumulate),
    ("Number of trainable parameters = ", Setting::Trainable),
    ("trainable params: ", Setting::Trainable),
];

/// Values longer than this are no settings.
const MAX_VALUE: usize = 200;
/// GPU names that are kept.
const MAX_GPUS: usize = 16;

impl Run {
    /// Takes what a line of `framework` says.
    pub(super) fn read(&mut self, framework: Framework, line: &str) {
        let engine = matches!(framework, Vllm | Sglang | LlamaCpp | Framework::Ollama);
        let trainer = matches!(framework, Transformers | DeepSpeed);
        // An engine's line tells more than a trainer's option, which many programs share.
        if engine || (trainer && self.framework.is_none()) {
            self.framework = Some(framework);
        }
        for (label, setting) in LABELS {
            if let Some((_, rest)) = line.split_once(label) {
                let number: String = rest
                    .chars()
                    .take_while(|c| c.is_ascii_digit() || *c == ',')
                    .filter(|c| *c != ',')
                    .collect();
                self.set(*setting, &number);
            }
        }
        self.positional(framework, line);
        pairs(line, |key, value, dashed| self.pair(framework, key, value, dashed));
    }

    fn pair(&mut self, framework: Framework, key: &str, value: &str, dashed: bool) {
        let family = if framework == Framework::Ollama { LlamaCpp } else { framework };
        // Options of one or two letters only count as such: "c = 3" may be anything.
        if key.len() <= 3 && !dashed {
            return;
        }
        if let Some((_, _, setting)) =
            KEYS.iter().find(|(name, who, _)| *name == key && who.contains(&family))
        {
            // Engines print the resolved value after the one that was asked for.
            self.set(*setting, value);
        }
        if MODEL_KEYS.iter().any(|(name, who)| *name == key && who.contains(&family)) {
            self.set_model(value);
        }
        if key == "load_in_4bit" && matches!(value, "True" | "true") {
            self.set(Setting::Adapter, "qlora");
        }
    }

    fn set(&mut self, setting: Setting, value: &str) {
        let value = value.trim_start_matches("torch.");
        let absent = matches!(value, "" | "None" | "null" | "auto" | "False" | "false" | "-1");
        if !absent && value.len() <= MAX_VALUE {
            self.settings.insert(setting, value.to_owned());
        }
    }

    fn set_model(&mut self, value: &str) {
        let fits =
            !value.is_empty() && value.len() <= MAX_VALUE && !matches!(value, "None" | "null");
        if fits && self.model.is_none() {
            self.model = Some(value.to_owned());
        }
    }

    /// What stands in a line without a key: the model of a command, a GGUF file, a folder of the hub's cache, a
    /// version.
    fn positional(&mut self, framework: Framework, line: &str) {
        if let Some((_, rest)) = line.split_once("vllm serve ")
            && let Some(word) = rest.split_whitespace().next()
            && !word.starts_with('-')
        {
            self.set_model(word.trim_matches(['\'', '"', '\\']));
        }
        if let Some((head, _)) = line.split_once(".gguf")
            && matches!(framework, LlamaCpp | Framework::Ollama)
        {
            let start = head.rfind([' ', '\'', '"', '=']).map_or(0, |n| n + 1);
            let file = head.get(start..).unwrap_or_default();
            self.set_model(&format!("{file}.gguf"));
        }
        if let Some((_, rest)) = line.split_once("models--")
            && let Some(folder) = rest.split(['/', '\\', ' ', '"', '\'']).next()
            && let Some((owner, name)) = folder.split_once("--")
        {
            self.set_model(&format!("{owner}/{name}"));
        }
        for before in ["LLM engine (v", "API server version "] {
            if let Some((_, rest)) = line.split_once(before) {
                let end = rest.find([')', ' ', ',']).unwrap_or(rest.len());
                let version = rest.get(..end).unwrap_or_default().trim_start_matches('v');
                if self.version.is_none() && version.starts_with(|c: char| c.is_ascii_digit()) {
                    self.version = Some(version.chars().take(40).collect());
                }
            }
        }
    }

    pub(super) fn gpu(&mut self, name: &str) {
        if self.gpus.len() < MAX_GPUS && !self.gpus.iter().any(|g| g == name) {
            self.gpus.push(name.to_owned());
        }
    }

    /// A setting as a number.
    pub fn number(&self, setting: Setting) -> Option<u64> {
        self.settings.get(&setting)?.parse().ok()
    }
}

/// Every `key=value`, `key: value` and `--key value` of a line. Dashes of keys become underscores.
fn pairs(line: &str, mut each: impl FnMut(&str, &str, bool)) {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut rest = line;
    while let Some(start) = rest.find(word) {
        let from = rest.get(start..).unwrap_or_default();
        let end = from.find(|c| !word(c)).unwrap_or(from.len());
        let (name, after) = from.split_at(end);
        rest = after;
        let dashed = name.starts_with('-');
        let key = name.trim_start_matches('-').replace('-', "_");
        if key.is_empty() || key.len() > 40 {
            continue;
        }
        let Some(value) = value_after(after, dashed) else { continue };
        each(&key, value, dashed);
    }
}

/// The value after a key, where a separator follows it.
fn value_after(after: &str, dashed: bool) -> Option<&str> {
    let closed = after.strip_prefix(['\'', '"']).unwrap_or(after);
    let trimmed = closed.trim_start_matches(' ');
    let spaced = trimmed.len() < closed.len();
    let value = match trimmed.strip_prefix(['=', ':']) {
        Some(value) => value.trim_start_matches(' '),
        // A flag at the end, or before the next option.
        None if dashed && (trimmed.is_empty() || trimmed.starts_with("--")) => return Some("True"),
        None if dashed && spaced => trimmed,
        None => return None,
    };
    match value.chars().next()? {
        quote @ ('\'' | '"') => value.get(1..)?.split(quote).next(),
        _ => {
            let end =
                value.find([',', ' ', ')', '}', ']', '\'', '"', ';', '`']).unwrap_or(value.len());
            value.get(..end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(framework: Framework, line: &str, model: Option<&str>, expected: &[(Setting, &str)]) {
        let mut run = Run::default();
        run.read(framework, line);
        assert_eq!(run.model.as_deref(), model, "{line}");
        let got: Vec<(Setting, &str)> =
            run.settings.iter().map(|(k, v)| (*k, v.as_str())).collect();
        assert_eq!(got, expected, "{line}");
    }

    #[test]
    fn options_are_read_in_every_spelling() {
        use Setting::*;
        check(
            Vllm,
            "INFO 04-29 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: model='Qwen/Qwen3-8B', tokenizer='Qwen/Qwen3-8B', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2, quantization=None, enforce_eager=False, kv_cache_dtype=auto, ",
            Some("Qwen/Qwen3-8B"),
            &[(TensorParallel, "2"), (MaxLen, "4096"), (Dtype, "bfloat16")],
        );
        check(
            Vllm,
            "non-default args: {'model_tag': 'google/gemma-3-27b-it', 'max_model_len': 32768, 'gpu_memory_utilization': 0.95, 'enforce_eager': True}",
            Some("google/gemma-3-27b-it"),
            &[(MaxLen, "32768"), (Utilization, "0.95"), (Eager, "True")],
        );
        check(
            Vllm,
            "$ vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --enforce-eager --tensor-parallel-size=4",
            Some("meta-llama/Llama-3.1-8B"),
            &[(TensorParallel, "4"), (MaxLen, "8192"), (Eager, "True")],
        );
        check(
            Sglang,
            "[x] server_args=ServerArgs(model_path='Qwen/Qwen2.5-0.5B', dtype='auto', context_length=None, mem_fraction_static=0.88, chunked_prefill_size=8192, tp_size=1, disable_cuda_graph=False)",
            Some("Qwen/Qwen2.5-0.5B"),
            &[(TensorParallel, "1"), (Utilization, "0.88"), (ChunkedPrefill, "8192")],
        );
        check(LlamaCpp, "llama_context: n_ctx         = 2048", None, &[(Context, "2048")]);
        check(LlamaCpp, "llama_context: n_ctx_per_seq = 2048", None, &[]);
        check(
            LlamaCpp,
            "`llama-server -m C:\\models\\MiniMax-M3-IQ4_XS.gguf -c 50000 -ngl 99 -ub 2048 --cache-type-k q8_0`",
            Some("C:\\models\\MiniMax-M3-IQ4_XS.gguf"),
            &[(Context, "50000"), (Ubatch, "2048"), (GpuLayers, "99"), (CacheK, "q8_0")],
        );
        check(
            Transformers,
            "  Instantaneous batch size per device = 8",
            None,
            &[(MicroBatch, "8")],
        );
        check(
            Transformers,
            "Number of trainable parameters = 1,235,814,400",
            None,
            &[(Trainable, "1235814400")],
        );
        check(
            Transformers,
            "loading file /home/user/.cache/huggingface/hub/models--meta-llama--Llama-3.2-1B/snapshots/4e2/config.json",
            Some("meta-llama/Llama-3.2-1B"),
            &[],
        );
        check(
            Transformers,
            "python sft.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --gradient_checkpointing --max_seq_length 1024",
            Some("gpt2"),
            &[(MicroBatch, "4"), (SequenceLength, "1024"), (Checkpointing, "True")],
        );
    }
}
