//! The options of `plimsoll estimate`, group by group.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plimsoll_engine::choices::{Find, FinetuneMethod, RlRecipe, WeightType};
use plimsoll_engine::options::{
    AttentionKernel, Checkpointing, Lengths, LoraTargets, Loss, Optimizer, OptimizerForm,
    PipelineSchedule, Precision, Sparsity, SplitMode, Stack, StepScope, ZeroGrad, ZeroStage,
};
use plimsoll_engine::{Choice, Dtype, Fraction, Release, Size, parse_count};

use super::value::words;

/// Help headings, which also say what an option belongs to.
pub mod headings {
    /// Every workload.
    pub const MACHINE: &str = "Machine";
    /// Picks the workload.
    pub const WORKLOAD: &str = "Workload";
    /// Sizes that several workloads have.
    pub const SIZES: &str = "Sizes";
    /// Training.
    pub const TRAINING: &str = "Training";
    /// LoRA and QLoRA.
    pub const LORA: &str = "Adapters (--finetune lora, qlora)";
    /// Parallel layout.
    pub const SHARDING: &str = "Sharding and offload";
    /// Element types and ranks of everything that serves.
    pub const SERVING: &str = "Inference and engines";
    /// Plain PyTorch.
    pub const INFER: &str = "Plain inference (--infer)";
    /// llama.cpp.
    pub const LLAMA_CPP: &str = "llama.cpp (--engine llama.cpp)";
    /// vLLM.
    pub const VLLM: &str = "vLLM (--engine vllm)";
    /// SGLang.
    pub const SGLANG: &str = "SGLang (--engine sglang)";
    /// Results.
    pub const OUTPUT: &str = "Output";
}

/// `plimsoll estimate`.
#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// Catalogue name or alias, folder, config.json, .safetensors, .gguf, .pt or .bin file, or hf:org/name[@rev].
    pub model: Option<String>,
    /// Machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Workload.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Sizes.
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Training.
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Adapters.
    #[command(flatten)]
    pub lora: LoraArgs,
    /// Sharding.
    #[command(flatten)]
    pub sharding: ShardingArgs,
    /// Serving.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// Plain inference.
    #[command(flatten)]
    pub infer: InferArgs,
    /// llama.cpp.
    #[command(flatten)]
    pub llama_cpp: LlamaCppArgs,
    /// vLLM.
    #[command(flatten)]
    pub vllm: VllmArgs,
    /// SGLang.
    #[command(flatten)]
    pub sglang: SglangArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Machine.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::MACHINE)]
pub struct MachineArgs {
    /// GPU and count, a MIG slice, or a capacity: h100-80g, 'rtx-4090*2', a100-80g:3g.40gb, 23.6GiB.
    #[arg(long, short, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Bytes that are free, where other processes hold the rest: 19GiB.
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size))]
    pub free: Option<Size>,
    /// Another model on the same GPU: NAME[,batch=N][,seq=N][,generate=N][,dtype=T][,weights=W]; repeatable.
    #[arg(long, value_name = "MODEL")]
    pub with: Vec<String>,
    /// Inputs that are not text: image:3840x2160x3:f32, points:1000000x128, frame:7680x4320 rgba16f; repeatable.
    #[arg(long, value_name = "DATA")]
    pub data: Vec<String>,
}

/// The engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// llama.cpp and its forks.
    #[value(name = "llama.cpp", alias = "llamacpp", alias = "llama-cpp")]
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// Workload.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::WORKLOAD)]
pub struct WorkloadArgs {
    /// Train every parameter.
    #[arg(long, conflicts_with_all = ["finetune", "infer", "engine"])]
    pub train: bool,
    /// Fine-tune.
    #[arg(long, value_name = "METHOD", value_parser = words::<FinetuneMethod>(), conflicts_with_all = ["infer", "engine"])]
    pub finetune: Option<Choice<FinetuneMethod>>,
    /// Prefill and decode in plain PyTorch (what a model that is no GGUF file does if nothing is said).
    #[arg(long, conflicts_with = "engine")]
    pub infer: bool,
    /// Serve with an engine.
    #[arg(long, value_name = "ENGINE", value_enum)]
    pub engine: Option<EngineName>,
    /// Release of the engine: 0.19.1, or a llama.cpp build b5050.
    #[arg(long, value_name = "RELEASE", value_parser = clap::value_parser!(Release), alias = "llama-build")]
    pub engine_version: Option<Release>,
    /// Whose allocator serves the tensors, with its settings: pytorch, pytorch:expandable_segments:True,
    /// cuda-malloc-async, tensorflow:allow_growth, jax:preallocate=false,fraction=0.9, onnxruntime:same-as-requested.
    #[arg(long, value_name = "NAME[:SETTINGS]")]
    pub allocator: Option<String>,
    /// Raise one size to the most that fits.
    #[arg(long, value_name = "SIZE", value_parser = words::<Find>())]
    pub find: Option<Choice<Find>>,
}

/// Sizes.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::SIZES)]
pub struct SizeArgs {
    /// Sequences per micro-batch and GPU; samples of --data; llama.cpp's logical batch.
    #[arg(long, short, value_name = "N", value_parser = parse_count)]
    pub batch: Option<u64>,
    /// Tokens per sequence (of the prompt, in inference); 32k means 32768.
    #[arg(long, short, value_name = "N", value_parser = parse_count)]
    pub seq: Option<u64>,
    /// Context of llama.cpp over all sequences; same as --max-model-len in vLLM and --context-length in SGLang.
    #[arg(long, short, value_name = "N", value_parser = parse_count, visible_alias = "ctx-size")]
    pub ctx: Option<u64>,
}

/// Training.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::TRAINING)]
pub struct TrainingArgs {
    /// Micro-batches per optimizer step.
    #[arg(long, value_name = "N", value_parser = parse_count, visible_alias = "gradient-accumulation-steps")]
    pub accumulate: Option<u64>,
    /// Tokens per sequence on the decoder side of an encoder-decoder.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub target_seq: Option<u64>,
    /// Element types of weights, compute and gradients.
    #[arg(long, value_name = "PRECISION", value_parser = words::<Precision>())]
    pub precision: Option<Choice<Precision>>,
    /// Optimizer.
    #[arg(long, value_name = "NAME", value_parser = words::<Optimizer>(), visible_alias = "optim")]
    pub optimizer: Option<Choice<Optimizer>>,
    /// Implementation of the optimizer.
    #[arg(long, value_name = "FORM", value_parser = words::<OptimizerForm>())]
    pub optimizer_form: Option<Choice<OptimizerForm>>,
    /// Activation checkpointing.
    #[arg(long, value_name = "HOW", value_parser = words::<Checkpointing>(), visible_alias = "gradient-checkpointing")]
    pub checkpoint: Option<Choice<Checkpointing>>,
    /// How logits become a loss.
    #[arg(long, value_name = "LOSS", value_parser = words::<Loss>())]
    pub loss: Option<Choice<Loss>>,
    /// The loss over chunks of so many tokens; the same as --loss chunked:N.
    #[arg(long, value_name = "TOKENS", value_parser = parse_count, conflicts_with = "loss")]
    pub chunk_loss: Option<u64>,
    /// Implementation of the layers.
    #[arg(long, value_name = "STACK", value_parser = words::<Stack>())]
    pub stack: Option<Choice<Stack>>,
    /// Whether batches are all as long as --seq, or padded to their own longest sample.
    #[arg(long, value_name = "RULE", value_parser = words::<Lengths>())]
    pub lengths: Option<Choice<Lengths>>,
    /// When gradients are dropped.
    #[arg(long, value_name = "WHEN", value_parser = words::<ZeroGrad>())]
    pub zero_grad: Option<Choice<ZeroGrad>>,
    /// Part of the loop that is measured.
    #[arg(long, value_name = "SCOPE", value_parser = words::<StepScope>())]
    pub scope: Option<Choice<StepScope>>,
    /// Compiled with torch.compile.
    #[arg(long)]
    pub compile: bool,
    /// Switch dropout off where the published configuration has it.
    #[arg(long)]
    pub no_dropout: bool,
    /// Keep a copy of the weights for averaging.
    #[arg(long)]
    pub ema: bool,
    /// Only the last N layers and the head learn.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub last_layers: Option<u64>,
    /// Reinforcement learning: count reference, value and reward models and the rollout engine too.
    #[arg(long, value_name = "RECIPE", value_parser = words::<RlRecipe>())]
    pub rl: Option<Choice<RlRecipe>>,
    /// Share of the GPU that the rollout engine holds while the trainer runs: 0.3.
    #[arg(long, value_name = "FRACTION", value_parser = clap::value_parser!(Fraction))]
    pub rollout: Option<Fraction>,
}

/// Adapters.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::LORA)]
pub struct LoraArgs {
    /// Rank of the adapters.
    #[arg(long, value_name = "R", value_parser = parse_count)]
    pub rank: Option<u64>,
    /// Matrices that get adapters.
    #[arg(long, value_name = "TARGETS", value_parser = words::<LoraTargets>())]
    pub targets: Option<Choice<LoraTargets>>,
    /// Dropout before the adapters is active.
    #[arg(long)]
    pub lora_dropout: bool,
    /// Element type of the adapters.
    #[arg(long, value_name = "DTYPE", value_parser = clap::value_parser!(Dtype))]
    pub lora_dtype: Option<Dtype>,
    /// Weight-decomposed adapters.
    #[arg(long)]
    pub dora: bool,
    /// Token table and head learn in full as well.
    #[arg(long)]
    pub train_embeddings: bool,
}

/// Sharding.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::SHARDING)]
pub struct ShardingArgs {
    /// Data-parallel ranks; what the GPUs leave over if absent.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub dp: Option<u64>,
    /// Data parallel with replicated states (the default over several GPUs).
    #[arg(long, conflicts_with_all = ["zero", "fsdp"])]
    pub ddp: bool,
    /// DeepSpeed ZeRO stage, or another way to share states.
    #[arg(long, value_name = "STAGE", value_parser = words::<ZeroStage>(), conflicts_with = "fsdp")]
    pub zero: Option<Choice<ZeroStage>>,
    /// Fully sharded data parallel (FSDP2).
    #[arg(long)]
    pub fsdp: bool,
    /// Ranks over which states are shared, where it is not all (hybrid sharding).
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub shard_group: Option<u64>,
    /// Tensor-parallel ranks.
    #[arg(long, value_name = "N", value_parser = parse_count, visible_alias = "tensor-parallel-size")]
    pub tp: Option<u64>,
    /// Sequence parallelism beside tensor parallelism.
    #[arg(long)]
    pub sp: bool,
    /// The loss runs on vocabulary-sharded logits.
    #[arg(long)]
    pub loss_parallel: bool,
    /// Context-parallel ranks.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub cp: Option<u64>,
    /// Pipeline stages.
    #[arg(long, value_name = "N", value_parser = parse_count, visible_alias = "pipeline-parallel-size")]
    pub pp: Option<u64>,
    /// Order of micro-batches in the pipeline.
    #[arg(long, value_name = "SCHEDULE", value_parser = words::<PipelineSchedule>())]
    pub schedule: Option<Choice<PipelineSchedule>>,
    /// Report this pipeline stage, counted from 0, instead of the worst.
    #[arg(long, value_name = "N")]
    pub stage: Option<u64>,
    /// Expert-parallel ranks.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub ep: Option<u64>,
    /// Load of the busiest expert rank relative to the mean, in thousandths.
    #[arg(long, value_name = "PERMILLE")]
    pub ep_imbalance: Option<u64>,
    /// FSDP keeps unsharded parameters after forward (reshard_after_forward=False).
    #[arg(long)]
    pub no_reshard: bool,
    /// FSDP modules gathered ahead of the running one.
    #[arg(long, value_name = "N")]
    pub prefetch: Option<u64>,
    /// Element type on the reduce path.
    #[arg(long, value_name = "DTYPE", value_parser = clap::value_parser!(Dtype))]
    pub reduce_dtype: Option<Dtype>,
    /// DDP gradients are views of the buckets (gradient_as_bucket_view).
    #[arg(long)]
    pub bucket_view: bool,
    /// What lives on the host: optimizer, params, grads, activations; nvme to move on what ZeRO-3 puts there;
    /// comma-separated.
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub offload: Vec<String>,
}

/// Inference and engines.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::SERVING)]
pub struct ServingArgs {
    /// Element type of weights and compute; the published one if absent.
    #[arg(long, value_name = "DTYPE", value_parser = clap::value_parser!(Dtype))]
    pub dtype: Option<Dtype>,
    /// Quantize weights on load.
    #[arg(long, value_name = "TYPE", value_parser = words::<WeightType>(), visible_alias = "quantization")]
    pub weights: Option<Choice<WeightType>>,
    /// Zeros among the weights of linear layers, in plain inference and while training: 2:4, topk:0.9:bitmap.
    #[arg(long, value_name = "PATTERN", value_parser = words::<Sparsity>())]
    pub sparsity: Option<Choice<Sparsity>>,
    /// Element type of the KV cache: q8_0, fp8.
    #[arg(long, value_name = "DTYPE", value_parser = clap::value_parser!(Dtype), visible_aliases = ["kv-cache-dtype", "kv-dtype"])]
    pub cache_type: Option<Dtype>,
    /// Attention kernel of training and plain inference.
    #[arg(long, value_name = "KERNEL", value_parser = words::<AttentionKernel>())]
    pub attention: Option<Choice<AttentionKernel>>,
    /// LoRA adapters on the GPU at a time.
    #[arg(long, value_name = "N", value_parser = parse_count, visible_alias = "max-loras")]
    pub lora_count: Option<u64>,
    /// Largest rank of an adapter.
    #[arg(long, value_name = "R", value_parser = parse_count, visible_alias = "max-lora-rank")]
    pub lora_rank: Option<u64>,
    /// Speculative tokens (MTP, EAGLE).
    #[arg(long, value_name = "N")]
    pub speculative_tokens: Option<u64>,
    /// Weight bytes of a separate draft model: 2.4GiB.
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size))]
    pub draft_weights: Option<Size>,
}

/// Plain inference.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::INFER)]
pub struct InferArgs {
    /// Generated tokens per sequence.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub generate: Option<u64>,
    /// Logits of every prompt position are computed.
    #[arg(long)]
    pub all_logits: bool,
}

/// llama.cpp.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::LLAMA_CPP)]
pub struct LlamaCppArgs {
    /// The ik_llama.cpp fork.
    #[arg(long)]
    pub ik: bool,
    /// How the weights are stored where the model is no GGUF file: Q4_K_M, Q8_0, F16.
    #[arg(long, value_name = "MIX")]
    pub quant: Option<String>,
    /// Layers on the GPU, the output layer counting as one (-ngl).
    #[arg(long, value_name = "N", visible_aliases = ["n-gpu-layers", "gpu-layers"])]
    pub ngl: Option<u64>,
    /// Layers whose routed experts stay on the host (-ncmoe).
    #[arg(long, value_name = "N")]
    pub n_cpu_moe: Option<u64>,
    /// Tensor placement PATTERN=BUFFER, such as exps=CPU (-ot); repeatable.
    #[arg(long, value_name = "RULE", value_delimiter = ',')]
    pub override_tensor: Vec<String>,
    /// Physical batch (-ub).
    #[arg(long, value_name = "N", value_parser = parse_count, visible_alias = "ubatch-size")]
    pub ubatch: Option<u64>,
    /// Parallel sequences (-np).
    #[arg(long, value_name = "N", value_parser = parse_count, visible_alias = "parallel")]
    pub np: Option<u64>,
    /// One cache for all sequences.
    #[arg(long)]
    pub kv_unified: bool,
    /// Flash attention (-fa); on if absent.
    #[arg(long, value_name = "ON|OFF", value_parser = on_off, num_args = 0..=1, default_missing_value = "on")]
    pub flash_attn: Option<bool>,
    /// Element type of K (-ctk).
    #[arg(long, value_name = "DTYPE", value_parser = clap::value_parser!(Dtype))]
    pub cache_type_k: Option<Dtype>,
    /// Element type of V (-ctv).
    #[arg(long, value_name = "DTYPE", value_parser = clap::value_parser!(Dtype))]
    pub cache_type_v: Option<Dtype>,
    /// The KV cache stays on the host.
    #[arg(long, visible_alias = "no-kv-offload")]
    pub nkvo: bool,
    /// The server reserves logits for the whole batch (embeddings, scoring).
    #[arg(long)]
    pub all_outputs: bool,
    /// Sliding-window layers keep the full cache.
    #[arg(long)]
    pub swa_full: bool,
    /// MLA mode of ik_llama.cpp, 0 to 3.
    #[arg(long, value_name = "MODE")]
    pub mla: Option<u64>,
    /// Draft tokens of speculative decoding.
    #[arg(long, value_name = "N")]
    pub draft: Option<u64>,
    /// How layers are spread over GPUs.
    #[arg(long, value_name = "MODE", value_parser = words::<SplitMode>())]
    pub split_mode: Option<Choice<SplitMode>>,
    /// Share of each GPU: 3,1 (-ts).
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    pub tensor_split: Vec<u64>,
    /// Bytes of a vision projector on the GPU: 800MiB.
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size))]
    pub mmproj: Option<Size>,
}

/// vLLM.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::VLLM)]
pub struct VllmArgs {
    /// Longest sequence, prompt and answer.
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "ctx")]
    pub max_model_len: Option<u64>,
    /// Most sequences at a time.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub max_num_seqs: Option<u64>,
    /// Most tokens per step.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub max_num_batched_tokens: Option<u64>,
    /// Share of the GPU that vLLM takes.
    #[arg(long, value_name = "FRACTION", value_parser = clap::value_parser!(Fraction))]
    pub gpu_memory_utilization: Option<Fraction>,
    /// No CUDA graphs.
    #[arg(long)]
    pub enforce_eager: bool,
    /// The offline LLM() class, not the server.
    #[arg(long)]
    pub offline: bool,
    /// Tokens per block of the KV cache.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub block_size: Option<u64>,
    /// Weights kept on the host: 8GiB.
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size))]
    pub cpu_offload: Option<Size>,
    /// Log-probabilities of the prompt are asked for.
    #[arg(long)]
    pub prompt_logprobs: bool,
}

/// SGLang.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::SGLANG)]
pub struct SglangArgs {
    /// Longest sequence.
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "ctx")]
    pub context_length: Option<u64>,
    /// Share of the GPU for weights and KV cache.
    #[arg(long, value_name = "FRACTION", value_parser = clap::value_parser!(Fraction))]
    pub mem_fraction_static: Option<Fraction>,
    /// Tokens per prefill chunk.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub chunked_prefill_size: Option<u64>,
    /// Largest batch captured in CUDA graphs.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub cuda_graph_max_bs: Option<u64>,
    /// Data-parallel attention.
    #[arg(long)]
    pub dp_attention: bool,
}

/// Output.
#[derive(Debug, Args)]
#[command(next_help_heading = headings::OUTPUT)]
pub struct OutputArgs {
    /// Print JSON (schema plimsoll.estimate/1).
    #[arg(long)]
    pub json: bool,
    /// Print the tree of terms under a key, such as activations; `all` for every term.
    #[arg(long, value_name = "TERM", conflicts_with = "json")]
    pub explain: Option<String>,
    /// Draw memory over one step with the load line into an .svg or .png file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Try every GPU of the catalogue.
    #[arg(long, conflicts_with_all = ["explain", "plot", "find"])]
    pub all_gpus: bool,
    /// Do not look for changes that would fit.
    #[arg(long)]
    pub no_changes: bool,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "1" | "true" | "yes" | "auto" => Ok(true),
        "off" | "0" | "false" | "no" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}
