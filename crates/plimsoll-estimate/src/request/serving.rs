//! Inference: plain PyTorch, and the engines llama.cpp, vLLM and SGLang.

use plimsoll_units::{Bytes, DType};

use super::{AttentionKernel, Sparsity};

/// Prefill and decode in plain PyTorch.
#[derive(Clone, Debug, PartialEq)]
pub struct Inference {
    /// Sequences at a time.
    pub batch: u64,
    /// Prompt tokens per sequence.
    pub prompt: u64,
    /// Tokens generated per sequence.
    pub generate: u64,
    /// Type of weights; the published one if absent.
    pub dtype: Option<DType>,
    /// Weight quantization on load.
    pub weights: Option<DType>,
    /// Zeros among the weights of linear layers.
    pub sparsity: Option<Sparsity>,
    /// Type of the cache; the compute type if absent.
    pub cache: Option<DType>,
    /// Attention kernel.
    pub attention: AttentionKernel,
    /// Logits of every prompt position are computed (old `generate`, scoring) instead of the last.
    pub all_logits: bool,
    /// Tensor-parallel ranks.
    pub tensor: u64,
}

impl Default for Inference {
    fn default() -> Self {
        Inference {
            batch: 1,
            prompt: 2048,
            generate: 256,
            dtype: None,
            weights: None,
            sparsity: None,
            cache: None,
            attention: AttentionKernel::Sdpa,
            all_logits: false,
            tensor: 1,
        }
    }
}

/// A serving engine with its settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Serving {
    /// llama.cpp and forks.
    LlamaCpp(LlamaCpp),
    /// vLLM.
    Vllm(Vllm),
    /// SGLang.
    Sglang(Sglang),
}

/// An engine's release, compared by parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Major.
    pub major: u64,
    /// Minor.
    pub minor: u64,
    /// Patch.
    pub patch: u64,
}

/// Type of a KV cache.
pub type CacheType = DType;

/// How llama.cpp spreads layers over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitMode {
    /// One device.
    None,
    /// Whole layers.
    Layer,
    /// Rows of each matrix.
    Row,
}

/// Which weights stay on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offload {
    /// Layers on the device (`-ngl`), the output layer counting as one; `None` for all.
    pub gpu_layers: Option<u64>,
    /// Layers whose routed experts stay on the host (`--n-cpu-moe`), counted from the first.
    pub cpu_moe_layers: u64,
    /// Tensor-name patterns and whether they go to the host (`-ot`), first match wins.
    pub overrides: Vec<(String, bool)>,
}

/// llama.cpp.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaCpp {
    /// Build number (`b5050`); the newest known behaviour if absent.
    pub build: Option<u64>,
    /// The ik_llama.cpp fork.
    pub ik: bool,
    /// Context in tokens, over all sequences; the model's own if absent.
    pub context: Option<u64>,
    /// Logical batch.
    pub batch: u64,
    /// Physical batch.
    pub ubatch: u64,
    /// Parallel sequences.
    pub sequences: u64,
    /// One cache for all sequences.
    pub unified: bool,
    /// Flash attention.
    pub flash_attention: bool,
    /// Type of K.
    pub cache_k: CacheType,
    /// Type of V.
    pub cache_v: CacheType,
    /// KV cache on the device.
    pub offload_kv: bool,
    /// The server reserves logits for the whole batch.
    pub all_outputs: Option<bool>,
    /// Sliding-window layers keep the full cache (`--swa-full`).
    pub swa_full: bool,
    /// MLA mode of ik_llama.cpp (0 to 3); mainline decides by file.
    pub mla: Option<u64>,
    /// Largest attention product of ik_llama.cpp in MiB (`-amb`); 0 for no limit.
    pub attention_max_mib: u64,
    /// Draft tokens of speculative decoding (recurrent states multiply).
    pub draft: u64,
    /// Weight placement.
    pub offload: Offload,
    /// Device split.
    pub split: SplitMode,
    /// Share of each device, relative; empty for equal.
    pub tensor_split: Vec<u64>,
    /// Vision projector (`--mmproj`) on the device, by its own file size.
    pub mmproj: Bytes,
}

impl Default for LlamaCpp {
    fn default() -> Self {
        LlamaCpp {
            build: None,
            ik: false,
            context: None,
            batch: 2048,
            ubatch: 512,
            sequences: 1,
            unified: false,
            flash_attention: true,
            cache_k: DType::F16,
            cache_v: DType::F16,
            offload_kv: true,
            all_outputs: None,
            swa_full: false,
            mla: None,
            attention_max_mib: 0,
            draft: 0,
            offload: Offload::default(),
            split: SplitMode::Layer,
            tensor_split: Vec::new(),
            mmproj: Bytes::ZERO,
        }
    }
}

/// LoRA adapters held by an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoraServing {
    /// Adapters on the device at a time; 0 for none.
    pub count: u64,
    /// Largest rank.
    pub rank: u64,
}

/// vLLM.
#[derive(Clone, Debug, PartialEq)]
pub struct Vllm {
    /// Release; the newest known if absent.
    pub version: Option<Version>,
    /// `gpu_memory_utilization` in thousandths; the release's default if absent.
    pub utilization_permille: Option<u64>,
    /// `max_model_len`; the model's own if absent.
    pub max_model_len: Option<u64>,
    /// `max_num_seqs`; by device and release if absent.
    pub max_num_seqs: Option<u64>,
    /// `max_num_batched_tokens`; by device and release if absent.
    pub max_num_batched_tokens: Option<u64>,
    /// Started as a server (else offline `LLM()`), which changes default limits.
    pub server: bool,
    /// Type of weights and activations; the published one if absent.
    pub dtype: Option<DType>,
    /// Online weight quantization, such as fp8.
    pub weights: Option<DType>,
    /// Type of the cache; `None` for auto.
    pub cache: Option<CacheType>,
    /// No CUDA graphs.
    pub enforce_eager: bool,
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Data-parallel ranks (attention) with expert parallelism.
    pub expert: bool,
    /// Tokens per block; by release and model if absent.
    pub block_size: Option<u64>,
    /// Bytes of weights kept on the host (`cpu_offload_gb`).
    pub cpu_offload: Bytes,
    /// Adapters.
    pub lora: LoraServing,
    /// Speculative tokens (MTP, EAGLE); 0 for none.
    pub speculative_tokens: u64,
    /// Weight bytes of a separate draft model, already divided by its ranks.
    pub draft_weights: Bytes,
    /// Log-probabilities of the prompt are asked for.
    pub prompt_logprobs: bool,
}

impl Default for Vllm {
    fn default() -> Self {
        Vllm {
            version: None,
            utilization_permille: None,
            max_model_len: None,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            server: true,
            dtype: None,
            weights: None,
            cache: None,
            enforce_eager: false,
            tensor: 1,
            pipeline: 1,
            expert: false,
            block_size: None,
            cpu_offload: Bytes::ZERO,
            lora: LoraServing::default(),
            speculative_tokens: 0,
            draft_weights: Bytes::ZERO,
            prompt_logprobs: false,
        }
    }
}

/// SGLang.
#[derive(Clone, Debug, PartialEq)]
pub struct Sglang {
    /// Release; the newest known if absent.
    pub version: Option<Version>,
    /// `mem_fraction_static` in thousandths; the engine's own rule if absent.
    pub static_permille: Option<u64>,
    /// Context length; the model's own if absent.
    pub context: Option<u64>,
    /// `chunked_prefill_size`; by device if absent.
    pub chunked_prefill: Option<u64>,
    /// Largest batch captured in CUDA graphs; by device if absent.
    pub graph_batch: Option<u64>,
    /// Type of weights and activations; the published one if absent.
    pub dtype: Option<DType>,
    /// Online weight quantization.
    pub weights: Option<DType>,
    /// Type of the cache; `None` for auto.
    pub cache: Option<CacheType>,
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Data-parallel attention.
    pub dp_attention: bool,
    /// Speculative tokens; 0 for none.
    pub speculative_tokens: u64,
    /// Weight bytes of a separate draft model.
    pub draft_weights: Bytes,
    /// Adapters.
    pub lora: LoraServing,
}

impl Default for Sglang {
    fn default() -> Self {
        Sglang {
            version: None,
            static_permille: None,
            context: None,
            chunked_prefill: None,
            graph_batch: None,
            dtype: None,
            weights: None,
            cache: None,
            tensor: 1,
            pipeline: 1,
            dp_attention: false,
            speculative_tokens: 0,
            draft_weights: Bytes::ZERO,
            lora: LoraServing::default(),
        }
    }
}
