//! From the footprint of the worst rank to the estimate: peaks, categories, terms, assumptions.

use plimsoll_model::Architecture;
use plimsoll_timeline::{AllocatorChoice, Category, PyTorchSettings};
use plimsoll_units::Bytes;

use super::{RankRun, explain};
use crate::request::{AttentionKernel, Loss, Optimizer, OptimizerForm, Stack, Strategy, Training};
use crate::term::{Assumption, Estimate, Figure, Peak};
use crate::{Device, interval};

pub(super) fn estimate(
    model: &Architecture,
    training: &Training,
    strategy: &Strategy,
    device: &Device,
    worst: RankRun,
) -> Estimate {
    let f = &worst.footprint;
    let context = device.context.typical;
    let peak = Peak {
        allocated: f.allocated_peak,
        reserved: f.reserved_peak,
        device: f.reserved_peak + context,
    };
    let mut categories: Vec<(Category, Bytes)> = f.live.by_category.clone();
    if !context.is_zero() {
        categories.push((Category::Context, context));
    }
    let terms = explain::terms(&worst, training, strategy, device);
    let workload = interval::workload(model, training, strategy);
    let interval = interval::device_bounds(&workload, &peak, device);
    let mut figures = Vec::new();
    if strategy.sharding.pipeline > 1 {
        figures.push(("pipeline_rank".to_owned(), Figure::Count(worst.rank)));
    }
    for (name, bytes) in [
        ("host_parameters", worst.host.parameters),
        ("host_gradients", worst.host.gradients),
        ("host_optimizer_states", worst.host.states),
        ("host_activations", worst.host.activations_peak),
        ("host_pinned_buffers", worst.host.pinned),
        ("nvme", worst.host.nvme),
    ] {
        if !bytes.is_zero() {
            figures.push((name.to_owned(), Figure::Bytes(bytes)));
        }
    }
    Estimate {
        peak,
        interval,
        categories,
        terms,
        assumptions: assumptions(training, device),
        diagnostics: Vec::new(),
        peak_phase: f.peak_phase.map(|p| p.kind.label().to_owned()),
        peak_module: explain::peak_module(&worst),
        host: worst.host.total(),
        figures,
        timeline: Some(worst.timeline),
    }
}

/// What the estimate takes for granted, whether the user chose it or not; a face leaves out what was said.
fn assumptions(training: &Training, device: &Device) -> Vec<Assumption> {
    let assume = |about: &str, value: String, reason: &str, option: &str| Assumption {
        about: about.to_owned(),
        value,
        reason: reason.to_owned(),
        option: option.to_owned(),
    };
    let mut list = vec![
        assume(
            "implementation",
            stack(training.stack).into(),
            "what autograd keeps depends on it",
            "--stack",
        ),
        assume(
            "attention",
            attention(training.attention).into(),
            "decides whether scores are kept",
            "--attention",
        ),
        assume(
            "loss",
            loss(training.loss),
            "decides how many copies of the logits exist",
            "--loss",
        ),
        allocator(training),
    ];
    if training.optimizer != Optimizer::None {
        list.push(assume(
            "optimizer form",
            form(training.optimizer_form).into(),
            "decides the temporaries of the step",
            "--optimizer-form",
        ));
    }
    if !device.context.typical.is_zero() {
        list.push(assume(
            "context memory",
            device.context.typical.to_string(),
            "memory outside the allocator depends on driver and loaded kernels",
            "",
        ));
    }
    list
}

/// PyTorch's allocator with the settings that the stack's launcher asks for.
fn allocator(training: &Training) -> Assumption {
    let mut settings = PyTorchSettings::default();
    settings.config.expandable_segments = training.expandable_segments;
    crate::framework::assumption(&AllocatorChoice::PyTorch(Box::new(settings)))
}

fn stack(stack: Stack) -> &'static str {
    match stack {
        Stack::Transformers => "Hugging Face Transformers modules",
        Stack::TransformersFused => "Transformers with fused norms and rotary",
        Stack::TransformersLiger => "Transformers with Liger kernels",
        Stack::Torchtitan => "torchtitan",
        Stack::Torchtune => "torchtune",
        Stack::LitGpt => "LitGPT",
        Stack::Megatron => "Megatron Core with Transformer Engine",
        Stack::Plain => "plain PyTorch modules",
        Stack::Torch => "torch.nn transformer modules",
        Stack::Foundry => "LLM Foundry",
    }
}

fn attention(kernel: AttentionKernel) -> &'static str {
    match kernel {
        AttentionKernel::Eager => "eager: scores in memory",
        AttentionKernel::Sdpa => "scaled_dot_product_attention, flash where types allow",
        AttentionKernel::SdpaEfficient => "scaled_dot_product_attention, memory-efficient",
        AttentionKernel::SdpaMath => "scaled_dot_product_attention, math",
        AttentionKernel::Flash => "flash-attn",
        AttentionKernel::Flex => "FlexAttention",
    }
}

fn loss(loss: Loss) -> String {
    match loss {
        Loss::CrossEntropy => "cross-entropy as the implementation writes it".to_owned(),
        Loss::VocabularyParallel => "vocabulary-parallel loss in place on an F32 copy".to_owned(),
        Loss::Returned => "cross-entropy on F32 logits that the loop keeps".to_owned(),
        Loss::Chunked { tokens } => format!("cross-entropy in chunks of {tokens} tokens"),
        Loss::FusedLinear => "fused linear cross-entropy, no logits".to_owned(),
        Loss::Fused => "fused cross-entropy, gradient in place".to_owned(),
        Loss::Shifted { .. } => "on a shifted copy of F32 logits".to_owned(),
        Loss::Classification => "a class per sequence".to_owned(),
    }
}

fn form(form: OptimizerForm) -> &'static str {
    match form {
        OptimizerForm::Loop => "one parameter at a time",
        OptimizerForm::Foreach => "foreach: a temporary as large as one moment of all parameters",
        OptimizerForm::ForeachTwice => {
            "foreach before PyTorch 2.1: two temporaries as large as one moment of all parameters"
        }
        OptimizerForm::Fused => "fused: no temporaries",
        OptimizerForm::InBackward => "inside backward: no full set of gradients",
    }
}
