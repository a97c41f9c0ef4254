//! What a job is, in words: the summary lines of reports, the facade's own assumptions and warnings.

use plimsoll_estimate::Estimate;
use plimsoll_estimate::request::{
    Inference, LlamaCpp, Method, Serving, Sglang, Training, Vllm, Workload, ZeroStage,
};
use plimsoll_units::DType;

use crate::Choice;
use crate::choices::Find;
use crate::job::Job;
use crate::request::{Request, WorkloadRequest};
use crate::response::{Assumption, Diagnostic};

/// One line: `full training, adamw (foreach), bf16-mixed, batch 4 x 4096 tokens`.
pub(crate) fn workload(job: &Job) -> String {
    match &job.workload {
        Some(Workload::Training(t)) => training(t),
        Some(Workload::Inference(i)) => inference(i),
        Some(Workload::Serving(Serving::LlamaCpp(l))) => llama_cpp(l),
        Some(Workload::Serving(Serving::Vllm(v))) => vllm(v),
        Some(Workload::Serving(Serving::Sglang(s))) => sglang(s),
        Some(_) => "serving".to_owned(),
        None if job.extra.iter().any(|e| e.bare) => "weights on the device".to_owned(),
        None => "data on the device".to_owned(),
    }
}

fn training(t: &Training) -> String {
    let method = match &t.method {
        Method::Full => "full training".to_owned(),
        Method::Lora(l) => match l.base {
            Some(base) => format!("QLoRA rank {} on {}", l.rank, base.dtype),
            None => format!("LoRA rank {}", l.rank),
        },
        Method::LastLayers { layers } => format!("training of the last {layers} layers"),
        _ => "training".to_owned(),
    };
    let mut text = format!(
        "{method}, {} ({}), {}, batch {} x {} tokens",
        Choice(t.optimizer),
        Choice(t.optimizer_form),
        precision(t),
        t.batch,
        t.sequence
    );
    if t.accumulation > 1 {
        text.push_str(&format!(" x {} accumulation steps", t.accumulation));
    }
    text.push_str(&format!(", {} attention", Choice(t.attention)));
    if let Some(sparsity) = t.sparsity {
        text.push_str(&format!(", pruned to {}", Choice(sparsity)));
    }
    text
}

fn precision(t: &Training) -> String {
    let word = Choice(t.precision).text();
    if word.is_empty() {
        format!("{} weights, products in {}", t.precision.weights, t.precision.compute)
    } else {
        word.into_owned()
    }
}

fn inference(i: &Inference) -> String {
    let mut weights = i.weights.map_or(String::new(), |w| format!(", {w} weights"));
    if let Some(sparsity) = i.sparsity {
        weights.push_str(&format!(", sparse {}", Choice(sparsity)));
    }
    format!(
        "inference in plain PyTorch, batch {} x ({} prompt + {} generated tokens){weights}, {} attention",
        i.batch,
        i.prompt,
        i.generate,
        Choice(i.attention)
    )
}

fn llama_cpp(l: &LlamaCpp) -> String {
    let name = if l.ik { "ik_llama.cpp" } else { "llama.cpp" };
    let build = l.build.map_or(String::new(), |b| format!(" b{b}"));
    let context =
        l.context.map_or("the model's own context".to_owned(), |c| format!("context {c}"));
    let cache = if l.cache_k == l.cache_v {
        format!("{} cache", l.cache_k)
    } else {
        format!("{}/{} cache", l.cache_k, l.cache_v)
    };
    format!("{name}{build}, {context}, {cache}, physical batch {}", l.ubatch)
}

fn vllm(v: &Vllm) -> String {
    let version =
        v.version.map_or(String::new(), |v| format!(" {}.{}.{}", v.major, v.minor, v.patch));
    let length = v.max_model_len.map_or(String::new(), |n| format!(", at most {n} tokens"));
    let cache = v.cache.map_or(String::new(), |c| format!(", {c} cache"));
    let ranks = ranks(v.tensor, v.pipeline);
    format!("vLLM{version}{length}{cache}{ranks}")
}

fn sglang(s: &Sglang) -> String {
    let version =
        s.version.map_or(String::new(), |v| format!(" {}.{}.{}", v.major, v.minor, v.patch));
    let cache = s.cache.map_or(String::new(), |c| format!(", {c} cache"));
    format!("SGLang{version}{cache}{}", ranks(s.tensor, s.pipeline))
}

fn ranks(tensor: u64, pipeline: u64) -> String {
    match (tensor, pipeline) {
        (1, 1) => String::new(),
        (t, 1) => format!(", tensor parallel {t}"),
        (1, p) => format!(", {p} pipeline stages"),
        (t, p) => format!(", tensor parallel {t}, {p} pipeline stages"),
    }
}

/// One line: `fsdp2 over 8, full checkpointing`; empty for a plain run on one device.
pub(crate) fn strategy(job: &Job) -> String {
    if !matches!(job.workload, Some(Workload::Training(_))) {
        return String::new();
    }
    let s = &job.strategy;
    let layout = &s.sharding;
    let mut parts = Vec::new();
    let checkpointing = Choice(s.checkpointing).text();
    if checkpointing != "none" {
        parts.push(format!("{checkpointing} checkpointing"));
    }
    if layout.data > 1 {
        let stage = match layout.zero {
            ZeroStage::Ddp => "DDP".to_owned(),
            ZeroStage::One => "ZeRO-1".to_owned(),
            ZeroStage::Two => "ZeRO-2".to_owned(),
            ZeroStage::Three => "ZeRO-3".to_owned(),
            ZeroStage::Fsdp1 => "FSDP1".to_owned(),
            ZeroStage::Fsdp2 => "FSDP2".to_owned(),
            ZeroStage::DistributedOptimizer => "distributed optimizer".to_owned(),
        };
        parts.push(format!("{stage} over {}", layout.data));
    }
    for (name, n) in [
        ("tensor parallel", layout.tensor),
        ("context parallel", layout.context),
        ("pipeline stages", layout.pipeline),
        ("expert parallel", layout.expert),
    ] {
        if n > 1 {
            parts.push(format!("{name} {n}"));
        }
    }
    let o = &s.offload;
    let host: Vec<&str> = [
        ("optimizer", o.optimizer),
        ("parameters", o.parameters),
        ("gradients", o.gradients),
        ("activations", o.activations),
    ]
    .into_iter()
    .filter_map(|(name, on)| on.then_some(name))
    .collect();
    if !host.is_empty() {
        parts.push(format!("{} on the {}", host.join(", "), if o.nvme { "NVMe" } else { "host" }));
    }
    parts.join(", ")
}

/// What the facade itself took for granted.
pub(crate) fn assumptions(job: &Job, request: &Request) -> Vec<Assumption> {
    let mut list: Vec<Assumption> = Vec::new();
    let assume = |about: &str, value: String, reason: &str, option: &str| Assumption {
        about: about.to_owned(),
        value,
        reason: reason.to_owned(),
        option: option.to_owned(),
    };
    if request.workload.is_none() && job.model.is_some() {
        let (value, reason) = match &job.workload {
            Some(Workload::Serving(_)) => ("llama.cpp", "the model is a GGUF file"),
            _ => ("inference in plain PyTorch", "nothing else was asked"),
        };
        list.push(assume(
            "workload",
            value.to_owned(),
            reason,
            "--train, --finetune, --infer, --engine",
        ));
    }
    if let (Some(model), Some(Workload::Serving(Serving::LlamaCpp(_)))) =
        (&job.model, &job.workload)
        && model.source != "gguf"
        && let Some(main) = model.weights.iter().max_by_key(|t| t.bytes)
    {
        let reason = "the model is no GGUF file";
        list.push(assume("weights", format!("mostly {}", main.dtype), reason, "--quant"));
    }
    let searched = request.find.map(|Choice(find)| match find {
        Find::Batch | Find::Concurrency => "--batch",
        Find::Sequence | Find::Context => "--seq",
    });
    let lengths = lengths(job, request.workload.as_ref());
    for (about, value, option) in lengths.into_iter().filter(|(.., o)| searched != Some(*o)) {
        list.push(assume(about, value, "nothing else was said", option));
    }
    for text in &job.machine.assumptions {
        list.push(assume("GPU", text.clone(), "", "--gpu"));
    }
    if let (Some(Workload::Training(_)), layout) = (&job.workload, &job.strategy.sharding)
        && request.strategy.dp.is_none()
        && layout.data > 1
    {
        let reason = "what the other parallel degrees leave of the GPUs";
        list.push(assume("data-parallel ranks", layout.data.to_string(), reason, "--dp"));
    }
    list
}

/// Sizes that nobody gave.
fn lengths(
    job: &Job,
    asked: Option<&WorkloadRequest>,
) -> Vec<(&'static str, String, &'static str)> {
    let (batch, seq, generate) = match asked {
        Some(WorkloadRequest::Train(t)) => (t.batch, t.seq, Some(0)),
        Some(WorkloadRequest::Infer(i)) => (i.batch, i.seq, i.generate),
        _ => (None, None, None),
    };
    let mut list = Vec::new();
    let (own_batch, own_seq, own_generate) = match &job.workload {
        Some(Workload::Training(t)) => (t.batch, t.sequence, 0),
        Some(Workload::Inference(i)) => (i.batch, i.prompt, i.generate),
        _ => return list,
    };
    if batch.is_none() {
        list.push(("batch", own_batch.to_string(), "--batch"));
    }
    if seq.is_none() {
        list.push(("sequence", format!("{own_seq} tokens"), "--seq"));
    }
    if generate.is_none() {
        list.push(("generated", format!("{own_generate} tokens"), "--generate"));
    }
    list
}

/// The facade's own warnings: sizes beyond what the model was made for, precisions that the GPU lacks.
pub(crate) fn warnings(job: &Job, estimate: &Estimate) -> Vec<Diagnostic> {
    let mut list = Vec::new();
    for extra in job.extra.iter().filter(|e| e.bare) {
        list.push(Diagnostic::warning(
            "weights-only",
            format!("{} has no config.json beside it: only its weights are counted", extra.label),
            "put the model's config.json into the same folder",
        ));
    }
    let known = |code: &str| estimate.diagnostics.iter().any(|d| d.code == code);
    let limit = job.model.as_ref().and_then(|m| m.architecture.max_positions);
    if let (Some(limit), Some((option, n))) = (limit, sequence(job.workload.as_ref()))
        && n > limit
    {
        list.push(Diagnostic::warning(
            BEYOND_LIMIT,
            format!("{n} tokens are more than the {limit} that the model was made for"),
            format!("lower {option} to {limit}, or extend the model's positions"),
        ));
    }
    if let Some(dtype) = computes_in(job)
        && let Err(lacks) = job.machine.check_dtype(dtype)
        && !known(LACKS_DTYPE)
    {
        list.push(Diagnostic::warning(LACKS_DTYPE, lacks.to_string(), ""));
    }
    list
}

const BEYOND_LIMIT: &str = "sequence-beyond-limit";
const LACKS_DTYPE: &str = "dtype-not-supported";

/// The longest sequence of a workload and the option that sets it.
fn sequence(workload: Option<&Workload>) -> Option<(&'static str, u64)> {
    match workload? {
        Workload::Training(t) => Some(("--seq", t.sequence)),
        Workload::Inference(i) => Some(("--seq", i.prompt.saturating_add(i.generate))),
        Workload::Serving(Serving::LlamaCpp(l)) => {
            let each = if l.unified { l.context? } else { l.context? / l.sequences.max(1) };
            Some(("--ctx", each))
        }
        Workload::Serving(Serving::Vllm(v)) => Some(("--max-model-len", v.max_model_len?)),
        Workload::Serving(Serving::Sglang(s)) => Some(("--context-length", s.context?)),
        _ => None,
    }
}

/// The type that matrix units must multiply in.
fn computes_in(job: &Job) -> Option<DType> {
    match job.workload.as_ref()? {
        Workload::Training(t) => Some(t.precision.compute),
        Workload::Inference(i) => Some(i.dtype.unwrap_or(job.model.as_ref()?.architecture.dtype)),
        Workload::Serving(Serving::Vllm(v)) => {
            Some(v.dtype.unwrap_or(job.model.as_ref()?.architecture.dtype))
        }
        Workload::Serving(Serving::Sglang(s)) => {
            Some(s.dtype.unwrap_or(job.model.as_ref()?.architecture.dtype))
        }
        _ => None,
    }
}
