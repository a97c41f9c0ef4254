//! Training as PyTorch and the frameworks on it run it.

use plimsoll_units::DType;

use super::Sparsity;

/// A training or fine-tuning step.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// Which parameters learn.
    pub method: Method,
    /// Element types of weights, compute and gradients.
    pub precision: Precision,
    /// What updates the weights.
    pub optimizer: Optimizer,
    /// How the optimizer is implemented.
    pub optimizer_form: OptimizerForm,
    /// Sequences per micro-batch and data-parallel rank.
    pub batch: u64,
    /// Tokens per sequence (per packed row).
    pub sequence: u64,
    /// Tokens per sequence of the second stack (decoder side of an encoder-decoder); equals `sequence` if absent.
    pub target_sequence: Option<u64>,
    /// Whether all batches are as long as `sequence`.
    pub lengths: Lengths,
    /// Micro-batches per optimizer step.
    pub accumulation: u64,
    /// Attention kernel.
    pub attention: AttentionKernel,
    /// How logits become a loss.
    pub loss: Loss,
    /// Which implementation of the layers runs.
    pub stack: Stack,
    /// When gradients are dropped.
    pub zero_grad: ZeroGrad,
    /// Which part of the loop is measured.
    pub scope: StepScope,
    /// Compiled with `torch.compile`: element-wise chains fuse and keep only their inputs.
    pub compile: bool,
    /// Dropout is active where the published configuration has it.
    pub dropout: bool,
    /// A copy of the weights kept for averaging, in F32.
    pub ema: bool,
    /// PyTorch's allocator grows expandable segments (`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`).
    pub expandable_segments: bool,
    /// Weights are trained towards zeros that masks keep.
    pub sparsity: Option<Sparsity>,
    /// Extra models of a reinforcement-learning step.
    pub reinforcement: Option<Reinforcement>,
}

impl Default for Training {
    /// Full fine-tuning as a Hugging Face Trainer does it with `bf16=True` on F32 weights, AdamW foreach.
    fn default() -> Self {
        Training {
            method: Method::Full,
            precision: Precision::autocast(DType::Bf16),
            optimizer: Optimizer::AdamW,
            optimizer_form: OptimizerForm::Foreach,
            batch: 1,
            sequence: 2048,
            target_sequence: None,
            lengths: Lengths::Fixed,
            accumulation: 1,
            attention: AttentionKernel::Sdpa,
            loss: Loss::CrossEntropy,
            stack: Stack::Transformers,
            zero_grad: ZeroGrad::AfterStep,
            scope: StepScope::SteadyStep,
            compile: false,
            dropout: true,
            ema: false,
            sparsity: None,
            expandable_segments: false,
            reinforcement: None,
        }
    }
}

/// How long batches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All as long as stated (packed or padded to the maximum).
    Fixed,
    /// Padded to their own longest sample: the allocator's cache holds what shorter batches left behind.
    Varied,
}

/// Which parameters learn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Method {
    /// All.
    Full,
    /// Low-rank adapters beside frozen weights; with `base` the frozen matrices are quantized (QLoRA).
    Lora(Lora),
    /// Only the last `layers` layers and the head.
    LastLayers {
        /// Trainable layers, counted from the end.
        layers: u64,
    },
}

/// Low-rank adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Which family of adapters.
    pub kind: AdapterKind,
    /// Rank.
    pub rank: u64,
    /// Which matrices get adapters.
    pub targets: LoraTargets,
    /// Dropout before the A matrix is active (a masked copy of the input is kept).
    pub dropout: bool,
    /// Type of the adapter weights.
    pub dtype: DType,
    /// Storage of the frozen matrices; `None` keeps the precision's own.
    pub base: Option<WeightQuantization>,
    /// Token table and head learn in full as well.
    pub train_embeddings: bool,
    /// Weight-decomposed adapters (DoRA): a magnitude vector and an extra weight-sized temporary.
    pub dora: bool,
}

pub use plimsoll_model::build::AdapterKind;

impl Default for Lora {
    fn default() -> Self {
        Lora {
            kind: AdapterKind::LowRank,
            rank: 16,
            targets: LoraTargets::AllLinear,
            dropout: false,
            dtype: DType::F32,
            base: None,
            train_embeddings: false,
            dora: false,
        }
    }
}

/// Which matrices get adapters. Fused matrices count as what they contain.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LoraTargets {
    /// Query and value (PEFT's default for most families).
    QueryValue,
    /// Query, key, value.
    QueryKeyValue,
    /// All four attention matrices.
    Attention,
    /// All linear layers except the head.
    AllLinear,
    /// By the last part of the published module name: `q_proj`, `c_attn`, `dense_h_to_4h`...
    Names(Vec<String>),
}

/// Storage of frozen matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightQuantization {
    /// Block type.
    pub dtype: DType,
    /// Whether the kernel writes a dequantized copy of a matrix before it multiplies (bitsandbytes in training does).
    pub dequantizes: bool,
    /// The product keeps its input as an attribute of its node, where it lives as long as the graph rather than to its
    /// own backward pass: bitsandbytes' `MatMul4Bit` until version 0.43.1 (`ctx.tensors = (A, B)`).
    pub keeps_inputs: bool,
}

impl WeightQuantization {
    /// As current libraries store and multiply blocks of `dtype`: dequantized before the product, input not kept.
    pub fn of(dtype: DType) -> WeightQuantization {
        WeightQuantization { dtype, dequantizes: true, keeps_inputs: false }
    }
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Weights as `parameters()` shows them.
    pub weights: DType,
    /// Matrix products.
    pub compute: DType,
    /// Gradients in `.grad`.
    pub gradients: DType,
    /// A master copy of the weights in the optimizer, if any.
    pub master: Option<DType>,
    /// Moments of the optimizer, before its own quantization.
    pub states: DType,
    /// `torch.autocast` casts weights at every use and caches the copies for the forward pass.
    pub autocast: bool,
    /// Matrix products in FP8 with dynamically scaled copies of inputs and weights.
    pub fp8: bool,
}

impl Precision {
    /// Everything in one type.
    pub const fn pure(dtype: DType) -> Self {
        Precision {
            weights: dtype,
            compute: dtype,
            gradients: dtype,
            master: None,
            states: dtype,
            autocast: false,
            fp8: false,
        }
    }

    /// F32 weights, products in `compute` under autocast.
    pub const fn autocast(compute: DType) -> Self {
        Precision { compute, autocast: true, ..Precision::pure(DType::F32) }
    }

    /// 16-bit weights and F32 master copies, moments and gradients (Megatron, DeepSpeed).
    pub const fn master_weights(dtype: DType, gradients: DType) -> Self {
        Precision {
            weights: dtype,
            compute: dtype,
            gradients,
            master: Some(DType::F32),
            states: DType::F32,
            autocast: false,
            fp8: false,
        }
    }
}

/// What updates the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Optimizer {
    /// No update (forward and backward only).
    None,
    /// Plain gradient descent.
    Sgd,
    /// With momentum.
    Momentum,
    /// Adam.
    Adam,
    /// AdamW; memory as Adam.
    AdamW,
    /// bitsandbytes 8-bit Adam(W), blocks of 256.
    AdamW8bit,
    /// torchao or lpmm 4-bit AdamW.
    AdamW4bit,
    /// Paged 8-bit: states may move to the host.
    PagedAdamW8bit,
    /// Paged 32-bit.
    PagedAdamW,
    /// Factored second moment, no first.
    Adafactor,
    /// One moment.
    Lion,
    /// Momentum on matrices, AdamW on the rest.
    Muon,
    /// Low-rank gradient projection with Adam states of the given rank.
    GaLore {
        /// Rank.
        rank: u64,
    },
}

/// How the optimizer is implemented; decides its temporaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptimizerForm {
    /// One parameter at a time: temporaries of the largest.
    Loop,
    /// `foreach`: a temporary as large as all parameters.
    Foreach,
    /// `foreach` as PyTorch had it before 2.1: two such temporaries.
    ForeachTwice,
    /// One kernel, no temporaries.
    Fused,
    /// The update runs inside backward, gradient by gradient; no full gradient set exists.
    InBackward,
}

/// Attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttentionKernel {
    /// Scores in memory, written out in the model's own code.
    Eager,
    /// `scaled_dot_product_attention`, flash where it can, efficient otherwise.
    Sdpa,
    /// SDPA's memory-efficient kernel.
    SdpaEfficient,
    /// SDPA's math fallback.
    SdpaMath,
    /// flash-attn 2 or 3.
    Flash,
    /// FlexAttention, compiled.
    Flex,
}

/// How logits become a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// `cross_entropy` as the stack writes it (Transformers upcasts the logits to F32).
    CrossEntropy,
    /// `cross_entropy` on F32 logits that the model returns and the loop keeps through backward (Meta's Llama code).
    Returned,
    /// As Transformers before 4.49 wrote it: on a contiguous copy of the F32 logits without their last position.
    Shifted {
        /// The model itself widened its logits (before 4.46), not the loss: it returned F32.
        in_model: bool,
    },
    /// Over chunks of so many tokens, head inside the chunk or not as the stack does.
    Chunked {
        /// Tokens per chunk.
        tokens: u64,
    },
    /// Fused linear and cross-entropy (Liger, Cut Cross-Entropy): no logits.
    FusedLinear,
    /// Megatron's vocabulary-parallel loss: an F32 copy of the logits becomes probabilities and gradient in place.
    VocabularyParallel,
    /// Fused cross-entropy on existing logits, gradient in place (unsloth, fms foak, Apex).
    Fused,
    /// A class per sequence (classification heads): negligible.
    Classification,
}

/// Which implementation of the layers runs. They differ in what autograd keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stack {
    /// Hugging Face Transformers modules in eager mode.
    Transformers,
    /// Transformers with fused norms and rotary, SwiGLU written out (fms-acceleration's "foak" kernels).
    TransformersFused,
    /// Transformers with Liger's kernels: norms, rotary and SwiGLU.
    TransformersLiger,
    /// torchtitan.
    Torchtitan,
    /// torchtune.
    Torchtune,
    /// LitGPT.
    LitGpt,
    /// Megatron Core with Transformer Engine.
    Megatron,
    /// Plain PyTorch with composed norms, SwiGLU, rotary and softmax (courses, papers).
    Plain,
    /// PyTorch's own `nn.Transformer*` and `nn.MultiheadAttention`.
    Torch,
    /// MosaicML LLM Foundry / Composer.
    Foundry,
}

/// When gradients are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroGrad {
    /// `zero_grad(set_to_none=True)` after the step: forward starts without gradients.
    AfterStep,
    /// Before backward: the old gradients live through forward.
    BeforeBackward,
    /// Gradients stay allocated and are filled with zeros.
    Keep,
}

/// Which part of the loop is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepScope {
    /// The second and later steps: optimizer states exist from the start.
    SteadyStep,
    /// The first step only: states appear at its end.
    FirstStep,
    /// Forward and backward, optimizer states resident.
    ForwardBackward,
    /// Forward with its graph, nothing else.
    Forward,
}

/// Further models of a reinforcement-learning step on the same device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reinforcement {
    /// A frozen reference policy is resident.
    pub reference: bool,
    /// A value model of the same size trains as well (PPO).
    pub critic: bool,
    /// A reward model of the same size is resident.
    pub reward: bool,
    /// Fraction of device memory, in thousandths, that a rollout engine holds while the trainer runs; 0 where it sleeps.
    pub rollout_permille: u64,
}
