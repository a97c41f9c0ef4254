//! What is asked: a workload (what is done with the model) and a strategy (how memory is spent or saved). Plain
//! data with defaults that equal the frameworks' own; parsing of texts lives with the face that reads them.

mod serving;
mod sparsity;
mod strategy;
mod training;

pub use serving::{
    CacheType, Inference, LlamaCpp, LoraServing, Offload, Serving, Sglang, SplitMode, Version, Vllm,
};
pub use sparsity::{SparseIndex, Sparsity};
pub use strategy::{Checkpointing, OffloadPlan, PipelineSchedule, Sharding, Strategy, ZeroStage};
pub use training::{
    AdapterKind, AttentionKernel, Lengths, Lora, LoraTargets, Loss, Method, Optimizer,
    OptimizerForm, Precision, Reinforcement, Stack, StepScope, Training, WeightQuantization,
    ZeroGrad,
};

/// What is done with the model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Workload {
    /// Forward, backward and optimizer steps.
    Training(Training),
    /// Prefill and decode in plain PyTorch.
    Inference(Inference),
    /// A serving engine.
    Serving(Serving),
}
