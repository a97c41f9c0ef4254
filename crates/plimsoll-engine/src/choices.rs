//! The tables behind [`Choice`](crate::Choice): every word that an option accepts.

use plimsoll_estimate::request::{
    AttentionKernel, Checkpointing, Lengths, LoraTargets, Loss, Optimizer, OptimizerForm,
    PipelineSchedule, Precision, SparseIndex, Sparsity, SplitMode, Stack, StepScope, ZeroGrad,
    ZeroStage,
};
use plimsoll_units::DType;

use crate::choice::{OptionValue, Word};
use crate::quantity::Fraction;

macro_rules! words {
    ($type:ty, $what:literal, [$($name:literal $([$($alias:literal),*])? => $value:expr, $help:literal;)*] $(, $($rest:tt)*)?) => {
        impl OptionValue for $type {
            const WHAT: &'static str = $what;
            fn words() -> &'static [Word<Self>] {
                static WORDS: &[Word<$type>] = &[$(Word {
                    name: $name,
                    aliases: &[$($($alias),*)?],
                    help: $help,
                    value: $value,
                },)*];
                WORDS
            }
            $($($rest)*)?
        }
    };
}

/// How much of a model learns, as the command line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinetuneMethod {
    /// Every parameter.
    Full,
    /// Low-rank adapters beside frozen weights.
    Lora,
    /// The same with 4-bit frozen weights.
    Qlora,
}

words!(FinetuneMethod, "fine-tuning method", [
    "full" => FinetuneMethod::Full, "every parameter learns";
    "lora" => FinetuneMethod::Lora, "low-rank adapters beside frozen weights";
    "qlora" => FinetuneMethod::Qlora, "low-rank adapters beside frozen 4-bit weights (NF4 with double quantization)";
]);

/// What a search raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Find {
    /// Sequences per micro-batch.
    Batch,
    /// Tokens per sequence.
    Sequence,
    /// Context length.
    Context,
    /// Sequences served at the same time.
    Concurrency,
}

words!(Find, "search", [
    "batch" => Find::Batch, "the most sequences per micro-batch";
    "seq" ["sequence"] => Find::Sequence, "the longest sequence";
    "ctx" ["context"] => Find::Context, "the longest context";
    "concurrency" => Find::Concurrency, "the most sequences at the same time";
]);

/// Further models of a reinforcement-learning step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RlRecipe {
    /// Policy and frozen reference.
    Dpo,
    /// Policy, frozen reference and rollout engine.
    Grpo,
    /// Policy, reference, value model, reward model and rollout engine.
    Ppo,
}

words!(RlRecipe, "reinforcement-learning recipe", [
    "dpo" => RlRecipe::Dpo, "policy and a frozen reference model";
    "grpo" ["rloo"] => RlRecipe::Grpo, "policy, frozen reference and a rollout engine";
    "ppo" => RlRecipe::Ppo, "policy, reference, value and reward models and a rollout engine";
]);

/// Storage of frozen or served weights that are quantized on load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 4-bit NormalFloat with double quantization.
    Nf4Dq,
    /// 4-bit NormalFloat.
    Nf4,
    /// LLM.int8.
    Int8,
    /// FP8.
    Fp8,
    /// 4-bit integers in groups of 128.
    Int4,
    /// OCP MXFP4.
    Mxfp4,
    /// NVIDIA NVFP4.
    Nvfp4,
}

words!(WeightType, "weight quantization", [
    "nf4-dq" ["nf4_dq", "bnb-4bit"] => WeightType::Nf4Dq, "4-bit NormalFloat with double quantization (bitsandbytes)";
    "nf4" ["fp4"] => WeightType::Nf4, "4-bit NormalFloat, one f32 scale per 64 (bitsandbytes)";
    "int8" ["bnb-8bit", "llm.int8"] => WeightType::Int8, "LLM.int8 (bitsandbytes)";
    "fp8" => WeightType::Fp8, "8-bit floats";
    "int4" ["gptq", "awq", "w4a16"] => WeightType::Int4, "4-bit integers in groups of 128 (GPTQ, AWQ)";
    "mxfp4" => WeightType::Mxfp4, "OCP MXFP4, one scale per 32";
    "nvfp4" => WeightType::Nvfp4, "NVFP4, one scale per 16";
]);

impl WeightType {
    /// The element type that weights are stored in.
    pub const fn dtype(self) -> DType {
        match self {
            WeightType::Nf4Dq => DType::Nf4Dq,
            WeightType::Nf4 => DType::Nf4,
            WeightType::Int8 => DType::Int8Row,
            WeightType::Fp8 => DType::F8E4M3,
            WeightType::Int4 => DType::Int4G128,
            WeightType::Mxfp4 => DType::Mxfp4,
            WeightType::Nvfp4 => DType::Nvfp4,
        }
    }
}

words!(Sparsity, "sparsity", [
    "2:4" ["2_4", "semi-structured"] => Sparsity::TwoFour, "two of four weights are zero; values and 2-bit places (cuSPARSELt)";
],
    const FORMS: &'static [(&'static str, &'static str)] =
        &[("topk:ZEROS:INDEX", "this share of each matrix is zero; INDEX is bitmap, csr16, csr32 or csr64")];
    fn read_form(text: &str) -> Option<Self> {
        let (zeros, index) = text.strip_prefix("topk:")?.split_once(':')?;
        let zeros: Fraction = zeros.parse().ok()?;
        let index = INDEXES.iter().find(|(name, _)| *name == index)?.1;
        Some(Sparsity::TopK { zeros_permille: zeros.permille, index })
    }
    fn write_form(&self) -> String {
        match self {
            Sparsity::TopK { zeros_permille, index } => {
                let zeros = Fraction { permille: *zeros_permille };
                let name = INDEXES.iter().find(|(_, i)| i == index).map_or("bitmap", |(n, _)| *n);
                format!("topk:{zeros}:{name}")
            }
            Sparsity::TwoFour => String::new(),
        }
    }
);

/// How the places of values are stored.
const INDEXES: [(&str, SparseIndex); 4] = [
    ("bitmap", SparseIndex::Bitmap),
    ("csr16", SparseIndex::Csr16),
    ("csr32", SparseIndex::Csr32),
    ("csr64", SparseIndex::Csr64),
];

words!(Precision, "precision", [
    "bf16-mixed" ["bf16-amp"] => Precision::autocast(DType::Bf16), "f32 weights, products in bf16 under autocast (Trainer's bf16=True)";
    "fp16-mixed" ["fp16-amp", "16-mixed"] => Precision::autocast(DType::F16), "f32 weights, products in fp16 under autocast (Trainer's fp16=True)";
    "bf16" ["bf16-true", "bfloat16"] => Precision::pure(DType::Bf16), "everything in bf16";
    "fp16" ["fp16-true", "f16", "float16"] => Precision::pure(DType::F16), "everything in fp16";
    "fp32" ["f32", "32-true", "float32"] => Precision::pure(DType::F32), "everything in f32";
    "bf16-master" ["bf16-deepspeed"] => Precision::master_weights(DType::Bf16, DType::Bf16), "bf16 weights and gradients, f32 master copy and moments (DeepSpeed)";
    "bf16-master-f32-grads" ["bf16-megatron"] => Precision::master_weights(DType::Bf16, DType::F32), "bf16 weights, f32 gradients, master copy and moments (Megatron)";
    "fp16-master" ["fp16-deepspeed"] => Precision::master_weights(DType::F16, DType::F16), "fp16 weights and gradients, f32 master copy and moments (DeepSpeed)";
    "fp8-mixed" ["fp8"] => Precision { fp8: true, ..Precision::autocast(DType::Bf16) }, "f32 weights, matrix products in fp8, the rest in bf16 autocast";
    "fp8-master" => Precision { fp8: true, ..Precision::master_weights(DType::Bf16, DType::F32) }, "bf16 weights, f32 gradients, master copy and moments, products in fp8";
    "fp8-bf16" => Precision { fp8: true, ..Precision::pure(DType::Bf16) }, "bf16 weights, products in fp8";
]);

words!(Optimizer, "optimizer", [
    "adamw" ["adamw_torch"] => Optimizer::AdamW, "AdamW, two moments per parameter";
    "adam" => Optimizer::Adam, "Adam, two moments per parameter";
    "adamw8bit" ["adamw_8bit", "adam8bit", "adamw_bnb_8bit"] => Optimizer::AdamW8bit, "AdamW with 8-bit moments in blocks of 256 (bitsandbytes)";
    "adamw4bit" ["adamw_4bit"] => Optimizer::AdamW4bit, "AdamW with 4-bit moments (torchao)";
    "paged-adamw8bit" ["paged_adamw_8bit"] => Optimizer::PagedAdamW8bit, "8-bit AdamW whose states may move to the host";
    "paged-adamw" ["paged_adamw_32bit"] => Optimizer::PagedAdamW, "32-bit AdamW whose states may move to the host";
    "adafactor" => Optimizer::Adafactor, "factored second moment, no first moment";
    "lion" => Optimizer::Lion, "one moment per parameter";
    "muon" => Optimizer::Muon, "momentum on matrices, AdamW on the rest";
    "sgd" => Optimizer::Sgd, "plain gradient descent, no states";
    "momentum" ["sgd-momentum", "sgdm"] => Optimizer::Momentum, "gradient descent with momentum, one state per parameter";
    "none" => Optimizer::None, "forward and backward only";
],
    const FORMS: &'static [(&'static str, &'static str)] = &[("galore:RANK", "AdamW on gradients projected to this rank")];
    fn read_form(text: &str) -> Option<Self> {
        Some(Optimizer::GaLore { rank: positive(text.strip_prefix("galore:")?)? })
    }
    fn write_form(&self) -> String {
        match self {
            Optimizer::GaLore { rank } => format!("galore:{rank}"),
            _ => String::new(),
        }
    }
);

words!(OptimizerForm, "optimizer form", [
    "foreach" => OptimizerForm::Foreach, "a temporary as large as all parameters (PyTorch's default on GPUs)";
    "foreach-twice" ["foreach-2.0"] => OptimizerForm::ForeachTwice, "two such temporaries, as PyTorch had it before 2.1";
    "loop" ["for-loop"] => OptimizerForm::Loop, "one parameter at a time";
    "fused" => OptimizerForm::Fused, "one kernel, no temporaries";
    "in-backward" ["in_backward"] => OptimizerForm::InBackward, "the update runs inside backward; no full set of gradients exists";
]);

words!(AttentionKernel, "attention kernel", [
    "sdpa" => AttentionKernel::Sdpa, "scaled_dot_product_attention, flash where it can";
    "flash" ["flash_attention_2", "flash-attn", "fa2", "fa3"] => AttentionKernel::Flash, "flash-attn 2 or 3";
    "eager" => AttentionKernel::Eager, "scores written out in memory";
    "flex" ["flex_attention"] => AttentionKernel::Flex, "FlexAttention, compiled";
    "sdpa-efficient" ["efficient"] => AttentionKernel::SdpaEfficient, "SDPA's memory-efficient kernel";
    "sdpa-math" ["math"] => AttentionKernel::SdpaMath, "SDPA's math fallback";
]);

words!(Checkpointing, "checkpointing", [
    "none" ["off"] => Checkpointing::None, "every saved tensor is kept";
    "full" ["on"] => Checkpointing::Full, "every layer keeps only its input";
    "selective" ["op"] => Checkpointing::Selective, "products and attention outputs are kept, the rest is recomputed";
    "attention" ["attention-core"] => Checkpointing::AttentionCore, "only the attention core is recomputed";
],
    const FORMS: &'static [(&'static str, &'static str)] = &[
        ("every:K", "every K-th layer is checkpointed"),
        ("groups:K", "groups of K layers keep one input per group"),
    ];
    fn read_form(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("every", k) => Some(Checkpointing::EveryK { k: positive(k)? }),
            ("groups", k) => Some(Checkpointing::Groups { k: positive(k)? }),
            _ => None,
        }
    }
    fn write_form(&self) -> String {
        match self {
            Checkpointing::EveryK { k } => format!("every:{k}"),
            Checkpointing::Groups { k } => format!("groups:{k}"),
            _ => String::new(),
        }
    }
);

words!(Stack, "stack", [
    "transformers" ["hf"] => Stack::Transformers, "Hugging Face Transformers modules in eager mode";
    "fused" ["liger", "unsloth", "transformers-fused"] => Stack::TransformersFused, "Transformers with fused norms, rotary and SwiGLU (Liger, unsloth)";
    "torchtitan" => Stack::Torchtitan, "torchtitan";
    "torchtune" => Stack::Torchtune, "torchtune";
    "litgpt" => Stack::LitGpt, "LitGPT";
    "megatron" => Stack::Megatron, "Megatron Core with Transformer Engine";
    "plain" => Stack::Plain, "plain PyTorch with composed norms and activations";
    "torch" => Stack::Torch, "PyTorch's own nn.Transformer modules";
    "foundry" => Stack::Foundry, "MosaicML LLM Foundry";
]);

words!(Loss, "loss", [
    "cross-entropy" ["ce"] => Loss::CrossEntropy, "cross_entropy as the stack writes it (Transformers upcasts logits to f32)";
    "returned" => Loss::Returned, "cross_entropy on f32 logits that the model returns and the loop keeps";
    "fused-linear" ["liger", "cce"] => Loss::FusedLinear, "fused linear and cross-entropy: no logits";
    "vocabulary-parallel" ["megatron"] => Loss::VocabularyParallel, "Megatron's loss, in place on an f32 copy of the logits";
    "fused" => Loss::Fused, "fused cross-entropy on existing logits";
    "classification" => Loss::Classification, "one class per sequence";
],
    const FORMS: &'static [(&'static str, &'static str)] = &[("chunked:TOKENS", "over chunks of so many tokens")];
    fn read_form(text: &str) -> Option<Self> {
        Some(Loss::Chunked { tokens: positive(text.strip_prefix("chunked:")?)? })
    }
    fn write_form(&self) -> String {
        match self {
            Loss::Chunked { tokens } => format!("chunked:{tokens}"),
            _ => String::new(),
        }
    }
);

words!(Lengths, "length rule", [
    "fixed" => Lengths::Fixed, "all batches as long as --seq (packed or padded to it)";
    "varied" => Lengths::Varied, "padded to their own longest sample, --seq at most";
]);

words!(ZeroGrad, "zero_grad position", [
    "after-step" => ZeroGrad::AfterStep, "zero_grad(set_to_none=True) after the step";
    "before-backward" => ZeroGrad::BeforeBackward, "old gradients live through forward";
    "keep" => ZeroGrad::Keep, "gradients stay allocated and are filled with zeros";
]);

words!(StepScope, "step scope", [
    "steady" ["steady-step"] => StepScope::SteadyStep, "the second and later steps";
    "first" ["first-step"] => StepScope::FirstStep, "the first step only";
    "forward-backward" => StepScope::ForwardBackward, "forward and backward, optimizer states resident";
    "forward" => StepScope::Forward, "forward with its graph, nothing else";
]);

words!(LoraTargets, "adapter targets", [
    "all-linear" ["all"] => LoraTargets::AllLinear, "all linear layers except the head";
    "attention" ["qkvo"] => LoraTargets::Attention, "the four attention matrices";
    "qv" ["query-value"] => LoraTargets::QueryValue, "query and value";
    "qkv" => LoraTargets::QueryKeyValue, "query, key and value";
],
    const FORMS: &'static [(&'static str, &'static str)] = &[("NAME,NAME", "by module name, such as q_proj,v_proj")];
    fn read_form(text: &str) -> Option<Self> {
        let names: Vec<String> =
            text.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect();
        let legal = |n: &String| n.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b));
        let module = |n: &String| n.contains('_') || n.len() > 5;
        (!names.is_empty() && names.iter().all(legal) && names.iter().any(module))
            .then_some(LoraTargets::Names(names))
    }
    fn write_form(&self) -> String {
        match self {
            LoraTargets::Names(names) => names.join(","),
            _ => String::new(),
        }
    }
);

words!(ZeroStage, "data-parallel sharding", [
    "ddp" ["0", "zero-0"] => ZeroStage::Ddp, "nothing is shared; gradients are reduced in buckets";
    "1" ["zero-1"] => ZeroStage::One, "optimizer states are shared (ZeRO-1)";
    "2" ["zero-2"] => ZeroStage::Two, "optimizer states and gradients are shared (ZeRO-2)";
    "3" ["zero-3"] => ZeroStage::Three, "everything is shared (DeepSpeed ZeRO-3)";
    "fsdp1" => ZeroStage::Fsdp1, "everything is shared, flat parameters per layer (FSDP1)";
    "fsdp2" ["fsdp"] => ZeroStage::Fsdp2, "everything is shared, parameter by parameter (FSDP2)";
    "distributed-optimizer" => ZeroStage::DistributedOptimizer, "Megatron's distributed optimizer";
]);

words!(PipelineSchedule, "pipeline schedule", [
    "1f1b" => PipelineSchedule::OneFOneB, "one forward, one backward";
    "device-map" ["naive"] => PipelineSchedule::DeviceMap, "one micro-batch through layers dealt by size (device_map=\"auto\")";
    "gpipe" => PipelineSchedule::GPipe, "all forwards, then all backwards";
],
    const FORMS: &'static [(&'static str, &'static str)] = &[("interleaved:CHUNKS", "so many model chunks per rank")];
    fn read_form(text: &str) -> Option<Self> {
        Some(PipelineSchedule::Interleaved { chunks: positive(text.strip_prefix("interleaved:")?)? })
    }
    fn write_form(&self) -> String {
        match self {
            PipelineSchedule::Interleaved { chunks } => format!("interleaved:{chunks}"),
            _ => String::new(),
        }
    }
);

words!(SplitMode, "split mode", [
    "layer" => SplitMode::Layer, "whole layers go to each device";
    "row" => SplitMode::Row, "rows of each matrix go to each device";
    "none" => SplitMode::None, "one device only";
]);

fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choice;

    fn every_word_reads_back<T: OptionValue + std::fmt::Debug>() {
        for (i, word) in T::words().iter().enumerate() {
            assert_eq!(word.name.parse::<Choice<T>>().unwrap().0, word.value, "{}", word.name);
            assert_eq!(Choice(word.value.clone()).text(), word.name);
            for alias in word.aliases {
                assert_eq!(alias.parse::<Choice<T>>().unwrap().0, word.value, "{alias}");
            }
            assert!(T::words()[..i].iter().all(|w| w.name != word.name));
        }
        let error = "no such word!".parse::<Choice<T>>().unwrap_err().to_string();
        assert!(error.contains(T::words()[0].name), "{error}");
    }

    #[test]
    fn tables_are_consistent() {
        every_word_reads_back::<FinetuneMethod>();
        every_word_reads_back::<Find>();
        every_word_reads_back::<RlRecipe>();
        every_word_reads_back::<WeightType>();
        every_word_reads_back::<Precision>();
        every_word_reads_back::<Sparsity>();
        every_word_reads_back::<Optimizer>();
        every_word_reads_back::<OptimizerForm>();
        every_word_reads_back::<AttentionKernel>();
        every_word_reads_back::<Checkpointing>();
        every_word_reads_back::<Stack>();
        every_word_reads_back::<Loss>();
        every_word_reads_back::<Lengths>();
        every_word_reads_back::<ZeroGrad>();
        every_word_reads_back::<StepScope>();
        every_word_reads_back::<LoraTargets>();
        every_word_reads_back::<ZeroStage>();
        every_word_reads_back::<PipelineSchedule>();
        every_word_reads_back::<SplitMode>();
    }

    #[test]
    fn forms_carry_numbers() {
        for text in ["topk:0.9:bitmap", "topk:0.5:csr16", "topk:0.75:csr64"] {
            assert_eq!(text.parse::<Choice<Sparsity>>().unwrap().text(), text);
        }
        for text in ["topk:0.9", "topk:1.5:bitmap", "topk:0.9:tree", "1:4"] {
            assert!(text.parse::<Choice<Sparsity>>().is_err(), "{text}");
        }
        for (text, value) in [
            ("every:4", Checkpointing::EveryK { k: 4 }),
            ("groups:2", Checkpointing::Groups { k: 2 }),
        ] {
            let choice = text.parse::<Choice<Checkpointing>>().unwrap();
            assert_eq!(choice.0, value);
            assert_eq!(choice.text(), text);
        }
        for bad in ["every:0", "every:", "every:-1", "every", "groups:x"] {
            assert!(bad.parse::<Choice<Checkpointing>>().is_err(), "{bad}");
        }
        let targets = "q_proj, v_proj".parse::<Choice<LoraTargets>>().unwrap();
        assert_eq!(targets.text(), "q_proj,v_proj");
        assert!("alll".parse::<Choice<LoraTargets>>().is_err());
    }
}
