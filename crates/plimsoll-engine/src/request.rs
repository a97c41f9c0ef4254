//! The request: the one schema that command line, HTTP and Python share. Every field is optional except what
//! cannot be guessed; what is absent takes the framework's own default, and the response says so.

use plimsoll_estimate::request::{
    AttentionKernel, Checkpointing, Lengths, LoraTargets, Loss, Optimizer, OptimizerForm,
    PipelineSchedule, Precision, Sparsity, SplitMode, Stack, StepScope, ZeroGrad, ZeroStage,
};
use serde::{Deserialize, Serialize};

use crate::choices::{Find, FinetuneMethod, RlRecipe, WeightType};
use crate::model::ModelSource;
use crate::quantity::{Dtype, Fraction, Release, Size};
use crate::{Choice, REQUEST_SCHEMA};

/// What is asked.
///
/// ```
/// use plimsoll_engine::Request;
/// let request: Request = serde_json::from_str(
///     r#"{"model": "meta-llama/Llama-3.1-8B", "workload": {"train": {"batch": 4, "seq": 4096}}, "machine": "a100-80g"}"#,
/// )?;
/// assert_eq!(request.machine.as_deref(), Some("a100-80g"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Version of this schema.
    #[serde(default = "request_schema")]
    pub schema: String,
    /// The model; absent only where `data` alone is asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSource>,
    /// What is done with it; plain inference, or llama.cpp for a GGUF file, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadRequest>,
    /// How memory is spent or saved.
    #[serde(default)]
    pub strategy: StrategyRequest,
    /// GPU and count, or a capacity: `h100-80g*8`, `rtx-4090`, `23.6GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Bytes that are free, where other processes hold the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<Size>,
    /// Whose allocator serves the tensors of training or plain inference, with its settings: `pytorch` (if absent),
    /// `pytorch:expandable_segments:True`, `cuda-malloc-async`, `tensorflow:allow_growth`,
    /// `jax:preallocate=false,fraction=0.9`, `onnxruntime:same-as-requested`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator: Option<String>,
    /// Further models resident on the same device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<WithRequest>,
    /// Inputs that are not text: `image:3840x2160x3:f32`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<String>,
    /// Samples of `data` on the device at a time; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_batch: Option<u64>,
    /// Raise one size to the most that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub find: Option<Choice<Find>>,
    /// Look for changes that would fit where the request does not.
    #[serde(default = "yes")]
    pub changes: bool,
}

fn request_schema() -> String {
    REQUEST_SCHEMA.to_owned()
}

fn yes() -> bool {
    true
}

impl Default for Request {
    fn default() -> Self {
        Request {
            schema: request_schema(),
            model: None,
            workload: None,
            strategy: StrategyRequest::default(),
            machine: None,
            free: None,
            allocator: None,
            with: Vec::new(),
            data: Vec::new(),
            data_batch: None,
            find: None,
            changes: true,
        }
    }
}

/// A further model on the same device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WithRequest {
    /// The model.
    pub model: ModelSource,
    /// How it runs; its defaults if absent.
    #[serde(default)]
    pub infer: InferRequest,
}

/// What is done with the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WorkloadRequest {
    /// Training or fine-tuning.
    #[serde(rename = "train")]
    Train(Box<TrainRequest>),
    /// Prefill and decode in plain PyTorch.
    #[serde(rename = "infer")]
    Infer(InferRequest),
    /// llama.cpp.
    #[serde(rename = "llama.cpp")]
    LlamaCpp(Box<LlamaCppRequest>),
    /// vLLM.
    #[serde(rename = "vllm")]
    Vllm(Box<VllmRequest>),
    /// SGLang.
    #[serde(rename = "sglang")]
    Sglang(Box<SglangRequest>),
}

macro_rules! options {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $field:ident : $type:ty,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $(
                $(#[$inner])*
                #[serde(skip_serializing_if = "is_default")]
                pub $field: $type,
            )*
        }
    };
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

options! {
    /// A training or fine-tuning step.
    TrainRequest {
        /// Which parameters learn; `full` if absent.
        method: Option<Choice<FinetuneMethod>>,
        /// Only the last so many layers and the head learn.
        last_layers: Option<u64>,
        /// Rank of the adapters.
        rank: Option<u64>,
        /// Matrices that get adapters.
        targets: Option<Choice<LoraTargets>>,
        /// Dropout before the adapters is active.
        lora_dropout: bool,
        /// Element type of the adapters.
        lora_dtype: Option<Dtype>,
        /// Weight-decomposed adapters (DoRA).
        dora: bool,
        /// Token table and head learn in full beside the adapters.
        train_embeddings: bool,
        /// Storage of the frozen weights.
        weights: Option<Choice<WeightType>>,
        /// Sequences per micro-batch and data-parallel rank.
        batch: Option<u64>,
        /// Tokens per sequence.
        seq: Option<u64>,
        /// Tokens per sequence on the decoder side.
        target_seq: Option<u64>,
        /// Micro-batches per optimizer step.
        accumulate: Option<u64>,
        /// Element types.
        precision: Option<Choice<Precision>>,
        /// Optimizer.
        optimizer: Option<Choice<Optimizer>>,
        /// Implementation of the optimizer.
        optimizer_form: Option<Choice<OptimizerForm>>,
        /// Attention kernel.
        attention: Option<Choice<AttentionKernel>>,
        /// Loss.
        loss: Option<Choice<Loss>>,
        /// Implementation of the layers.
        stack: Option<Choice<Stack>>,
        /// When gradients are dropped.
        zero_grad: Option<Choice<ZeroGrad>>,
        /// Whether all batches are as long as `seq`.
        lengths: Option<Choice<Lengths>>,
        /// Part of the loop that is measured.
        scope: Option<Choice<StepScope>>,
        /// Compiled with `torch.compile`.
        compile: bool,
        /// Dropout is off, although the published configuration has it.
        no_dropout: bool,
        /// A copy of the weights is kept for averaging.
        ema: bool,
        /// Weights are pruned while they are trained.
        sparsity: Option<Choice<Sparsity>>,
        /// Further models of a reinforcement-learning step.
        rl: Option<Choice<RlRecipe>>,
        /// Share of device memory that the rollout engine holds while the trainer runs.
        rollout: Option<Fraction>,
    }
}

options! {
    /// Prefill and decode in plain PyTorch.
    InferRequest {
        /// Sequences at a time.
        batch: Option<u64>,
        /// Prompt tokens per sequence.
        seq: Option<u64>,
        /// Generated tokens per sequence.
        generate: Option<u64>,
        /// Element type of weights and compute.
        dtype: Option<Dtype>,
        /// Weight quantization on load.
        weights: Option<Choice<WeightType>>,
        /// Zeros among the weights of linear layers.
        sparsity: Option<Choice<Sparsity>>,
        /// Element type of the cache.
        cache: Option<Dtype>,
        /// Attention kernel.
        attention: Option<Choice<AttentionKernel>>,
        /// Logits of every prompt position.
        all_logits: bool,
    }
}

options! {
    /// llama.cpp and its forks.
    LlamaCppRequest {
        /// Build, such as `b5050`.
        version: Option<Release>,
        /// The ik_llama.cpp fork.
        ik: bool,
        /// How the weights are stored where the model is no GGUF file: `Q4_K_M`, `F16`.
        quant: Option<String>,
        /// Context in tokens, over all sequences.
        ctx: Option<u64>,
        /// Logical batch.
        batch: Option<u64>,
        /// Physical batch.
        ubatch: Option<u64>,
        /// Parallel sequences.
        sequences: Option<u64>,
        /// One cache for all sequences.
        kv_unified: bool,
        /// Flash attention; on if absent.
        flash_attention: Option<bool>,
        /// Element type of K and V.
        cache: Option<Dtype>,
        /// Element type of K.
        cache_k: Option<Dtype>,
        /// Element type of V.
        cache_v: Option<Dtype>,
        /// The KV cache stays on the host.
        no_kv_offload: bool,
        /// The server reserves logits for the whole batch (embeddings, scoring).
        all_outputs: Option<bool>,
        /// Sliding-window layers keep the full cache.
        swa_full: bool,
        /// MLA mode of ik_llama.cpp.
        mla: Option<u64>,
        /// Draft tokens of speculative decoding.
        draft: Option<u64>,
        /// Layers on the device, the output layer counting as one.
        gpu_layers: Option<u64>,
        /// Layers whose routed experts stay on the host.
        n_cpu_moe: Option<u64>,
        /// Tensor placement as `-ot` writes it: `exps=CPU`.
        override_tensor: Vec<String>,
        /// How layers are spread over devices.
        split: Option<Choice<SplitMode>>,
        /// Share of each device.
        tensor_split: Vec<u64>,
        /// Bytes of a vision projector on the device.
        mmproj: Option<Size>,
    }
}

options! {
    /// vLLM.
    VllmRequest {
        /// Release.
        version: Option<Release>,
        /// `gpu_memory_utilization`.
        gpu_memory_utilization: Option<Fraction>,
        /// `max_model_len`.
        max_model_len: Option<u64>,
        /// `max_num_seqs`.
        max_num_seqs: Option<u64>,
        /// `max_num_batched_tokens`.
        max_num_batched_tokens: Option<u64>,
        /// The offline `LLM()` class, not the server.
        offline: bool,
        /// Element type of weights and activations.
        dtype: Option<Dtype>,
        /// Online weight quantization.
        weights: Option<Choice<WeightType>>,
        /// Element type of the cache.
        cache: Option<Dtype>,
        /// No CUDA graphs.
        enforce_eager: bool,
        /// Tokens per block.
        block_size: Option<u64>,
        /// Weights kept on the host.
        cpu_offload: Option<Size>,
        /// Adapters on the device at a time.
        lora_count: Option<u64>,
        /// Largest rank of an adapter.
        lora_rank: Option<u64>,
        /// Speculative tokens.
        speculative_tokens: Option<u64>,
        /// Weight bytes of a separate draft model.
        draft_weights: Option<Size>,
        /// Log-probabilities of the prompt are asked for.
        prompt_logprobs: bool,
    }
}

options! {
    /// SGLang.
    SglangRequest {
        /// Release.
        version: Option<Release>,
        /// `mem_fraction_static`.
        mem_fraction_static: Option<Fraction>,
        /// Context length.
        context: Option<u64>,
        /// `chunked_prefill_size`.
        chunked_prefill: Option<u64>,
        /// Largest batch captured in CUDA graphs.
        graph_batch: Option<u64>,
        /// Element type of weights and activations.
        dtype: Option<Dtype>,
        /// Online weight quantization.
        weights: Option<Choice<WeightType>>,
        /// Element type of the cache.
        cache: Option<Dtype>,
        /// Data-parallel attention.
        dp_attention: bool,
        /// Adapters on the device at a time.
        lora_count: Option<u64>,
        /// Largest rank of an adapter.
        lora_rank: Option<u64>,
        /// Speculative tokens.
        speculative_tokens: Option<u64>,
        /// Weight bytes of a separate draft model.
        draft_weights: Option<Size>,
    }
}

options! {
    /// How memory is spent or saved.
    StrategyRequest {
        /// Activation checkpointing.
        checkpoint: Option<Choice<Checkpointing>>,
        /// Data-parallel ranks; what the GPUs leave over if absent.
        dp: Option<u64>,
        /// What data-parallel ranks share.
        zero: Option<Choice<ZeroStage>>,
        /// Ranks over which states are shared, where it is not all.
        shard_group: Option<u64>,
        /// Tensor-parallel ranks.
        tp: Option<u64>,
        /// Sequence parallelism beside tensor parallelism.
        sp: bool,
        /// The loss runs on vocabulary-sharded logits.
        loss_parallel: bool,
        /// Context-parallel ranks.
        cp: Option<u64>,
        /// Pipeline stages.
        pp: Option<u64>,
        /// Order of micro-batches.
        schedule: Option<Choice<PipelineSchedule>>,
        /// Report this pipeline stage only, counted from 0.
        stage: Option<u64>,
        /// Expert-parallel ranks.
        ep: Option<u64>,
        /// Load of the busiest expert rank relative to the mean, in thousandths.
        ep_imbalance_permille: Option<u64>,
        /// FSDP keeps unsharded parameters after forward.
        keep_unsharded: bool,
        /// FSDP modules gathered ahead of the running one.
        prefetch: Option<u64>,
        /// Element type on the reduce path.
        reduce_dtype: Option<Dtype>,
        /// Gradients are views of DDP's buckets.
        bucket_view: bool,
        /// What lives on the host: `optimizer`, `params`, `grads`, `activations`, `nvme`.
        offload: Vec<String>,
    }
}
