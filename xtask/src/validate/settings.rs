//! The words of a row as settings: precision, optimizer, checkpointing, attention kernel, adapters. Each function reads
//! one field and what bears on it; none knows where a row comes from.

use plimsoll_estimate::request::{
    AdapterKind, AttentionKernel, Checkpointing, Lengths, Lora, LoraTargets, Loss, Method,
    OffloadPlan, Optimizer, OptimizerForm, Precision, Sharding, Stack, StepScope,
    WeightQuantization, ZeroStage,
};
use plimsoll_model::Architecture;
use plimsoll_model::arch::Positions;
use plimsoll_units::DType;
use serde_json::Value;

use super::framework::{self, Entry};
use super::row::{Row, after, number, whole, words};

/// Whether any of the words is in the text.
pub fn any(text: &str, list: &[&str]) -> bool {
    list.iter().any(|w| text.contains(w))
}

/// Whether a row trains through DeepSpeed.
pub fn deepspeed(row: &Row) -> bool {
    let sharding = row.get("sharding").and_then(Value::as_object);
    any(&row.lower("framework"), &["deepspeed"])
        || any(&row.lower("precision"), &["deepspeed"])
        || sharding.is_some_and(|s| s.keys().any(|k| k.to_ascii_lowercase().starts_with("zero")))
}

/// `precision`.
pub fn precision(row: &Row, full: bool, zero: bool) -> Result<Precision, String> {
    let text = row.lower("precision");
    if text.is_empty() {
        return Err("precision is not stated".into());
    }
    if text.contains("nvfp4") {
        return Err("NVFP4 training: activations packed to 4 bits are not modelled".into());
    }
    let half = if any(&text, &["bf16", "bfloat16"]) {
        Some(DType::Bf16)
    } else if any(&text, &["fp16", "float16", "16-mixed", "16-true"]) {
        Some(DType::F16)
    } else {
        None
    };
    let fp8 = any(&text, &["fp8", "float8"]);
    let sharded_master = any(&text, &["fp32 params", "fp32 sharded"]) && !text.contains("autocast");
    let amp = any(&text, &["amp", "autocast", "mixed"]);
    let full_weights = any(&text, &["fp32 params", "fp32 weights", "fp32 sharded"]);
    let base = match half {
        None if any(&text, &["fp32", "float32"]) => Precision::pure(DType::F32),
        None if fp8 => Precision::autocast(DType::Bf16),
        None => return Err(format!("precision is not understood: {text}")),
        Some(half) if any(&text, &["main params", "master weights", "fp32 main"]) => {
            Precision::master_weights(half, DType::F32)
        }
        Some(half) if sharded_master => Precision { compute: half, ..Precision::pure(DType::F32) },
        Some(half) if (zero || deepspeed(row)) && full && !full_weights => {
            Precision::master_weights(half, half)
        }
        Some(half)
            if text.contains("pure") || text.contains("weights + ") || text.contains("true,") =>
        {
            Precision { autocast: amp, ..Precision::pure(half) }
        }
        Some(half) if amp || full_weights => {
            if any(&text, &["bf16 weights", "fp16 weights", "bf16 model"]) {
                Precision { autocast: true, ..Precision::pure(half) }
            } else {
                Precision::autocast(half)
            }
        }
        Some(half) => Precision::pure(half),
    };
    Ok(Precision { fp8, ..base })
}

/// What a Trainer makes of a precision: 16-bit models run under autocast, and what QLoRA does not quantize is cast to
/// F32 unless the model is sharded or a plugin prepares it.
pub fn mixed(
    row: &Row,
    entry: Option<&Entry>,
    stated: Precision,
    method: &Method,
    layout: &Sharding,
) -> Precision {
    let half = stated.weights != DType::F32 && stated.master.is_none();
    // PEFT leaves GPTQ and AWQ models as they are.
    let quantized = matches!(method, Method::Lora(l) if l.base.is_some_and(|b| {
        matches!(b.dtype, DType::Nf4 | DType::Nf4Dq | DType::Int8Row)
    }));
    let sharded = layout.data > 1 && layout.zero >= ZeroStage::Three;
    let plugin = row.lower("framework_config").contains("accelerated");
    if half && quantized && !sharded && !plugin && entry.is_some_and(|e| e.widens_unquantized) {
        return Precision { fp8: stated.fp8, ..Precision::autocast(stated.compute) };
    }
    // DeepSpeed runs the 16-bit model itself, without autocast.
    let trainer = entry.is_some_and(|e| e.mixed) && !deepspeed(row);
    let autocast = stated.autocast || half && trainer;
    Precision { autocast, ..stated }
}

/// `optimizer` and how it is implemented.
pub fn optimizer(row: &Row, entry: Option<&Entry>) -> Result<(Optimizer, OptimizerForm), String> {
    let mut text = row.lower("optimizer");
    if text.is_empty() && row.whole("n_gpus") == Some(1) {
        entry.map_or("", |e| e.optimizer.as_str()).to_ascii_lowercase().clone_into(&mut text);
    }
    let default = entry.map_or(OptimizerForm::Foreach, |e| e.form(row));
    if text.starts_with("none") {
        return Ok((Optimizer::None, OptimizerForm::Loop));
    }
    if any(&text, &["badam", "block"]) {
        return Err(format!("optimizer without a model: {text}"));
    }
    let quantized = any(&row.lower("precision"), &["nf4", "int4", "int8", "gptq"]);
    let conditional = text.contains("when quantized");
    // A task such as `full-ft (GaLore)` names the optimizer too.
    let task = row.lower("task");
    let galore =
        any(&format!("{text} {task}"), &["galore"]).then(|| after(&text, "rank").unwrap_or(128));
    let kind = if let Some(rank) = galore {
        Optimizer::GaLore { rank }
    } else if any(&text, &["paged"]) && any(&text, &["8bit", "8-bit"]) {
        Optimizer::PagedAdamW8bit
    } else if any(&text, &["paged"]) && (quantized || !conditional) {
        Optimizer::PagedAdamW
    } else if any(&text, &["8bit", "8-bit"]) {
        Optimizer::AdamW8bit
    } else if any(&text, &["4bit", "4-bit"]) {
        Optimizer::AdamW4bit
    } else if text.contains("adafactor") {
        Optimizer::Adafactor
    } else if text.contains("lion") {
        Optimizer::Lion
    } else if text.contains("muon") {
        Optimizer::Muon
    } else if text.contains("momentum") {
        Optimizer::Momentum
    } else if text.contains("sgd") {
        Optimizer::Sgd
    } else if text.contains("adamw") || text.is_empty() {
        Optimizer::AdamW
    } else if text.contains("adam") {
        Optimizer::Adam
    } else {
        return Err(format!("optimizer is not understood: {text}"));
    };
    let form = if any(&text, &["into backward", "in backward", "in_bwd", "per-layer"]) {
        OptimizerForm::InBackward
    } else if any(&text, &["foreach=false", "per-parameter", "adamw (hf)", "for-loop"]) {
        OptimizerForm::Loop
    } else if text.contains("fused") {
        OptimizerForm::Fused
    } else if text.contains("foreach") {
        OptimizerForm::Foreach
    } else if any(&text, &["bitsandbytes", "bnb", "8bit", "4bit", "paged"])
        && (!conditional || quantized)
    {
        // One kernel a parameter, in place.
        OptimizerForm::Fused
    } else if deepspeed(row) {
        OptimizerForm::Fused
    } else if any(&text, &["adafactor", "muon", "galore"]) {
        OptimizerForm::Loop
    } else {
        default
    };
    Ok((kind, form))
}

/// `activation_checkpointing`.
pub fn checkpointing(row: &Row, entry: Option<&Entry>) -> Result<Checkpointing, String> {
    let mut text = row.lower("activation_checkpointing");
    if text.is_empty() {
        entry.map_or("", |e| e.checkpointing.as_str()).clone_into(&mut text);
    }
    let text = text.split(';').next().unwrap_or("").trim().to_owned();
    let blocks = after(&text, "every");
    Ok(match text.as_str() {
        "" | "none" | "false" | "no" => Checkpointing::None,
        _ if blocks.is_some_and(|k| k > 1) => Checkpointing::Groups { k: blocks.unwrap_or(1) },
        _ if text.starts_with("selective") && text.contains('[') => {
            let modules = text.split(['[', ']']).nth(1).unwrap_or("");
            if modules.trim() == "core_attn" {
                Checkpointing::AttentionCore
            } else if modules.contains("mlp") {
                Checkpointing::Selective
            } else {
                return Err(format!("recomputation of {modules} is not modelled"));
            }
        }
        "selective" if row.get("megatron_args").is_some() => Checkpointing::AttentionCore,
        // `selective (every 2nd layer)`, `selective, option 2`: whole layers, every k-th.
        _ if text.starts_with("selective") && any(&text, &["layer", "option"]) => {
            let k = after(&text, "option").or_else(|| after(&text, "every"));
            Checkpointing::EveryK { k: k.filter(|k| *k > 0).unwrap_or(2) }
        }
        _ if text.starts_with("selective") => Checkpointing::Selective,
        _ if text.starts_with("full") || text == "true" || text.contains("checkpoint") => {
            Checkpointing::Full
        }
        _ => return Err(format!("checkpointing is not understood: {text}")),
    })
}

/// `attention_impl`, for a model on a device of that compute capability.
pub fn attention(
    row: &Row,
    entry: Option<&Entry>,
    architecture: &Architecture,
    capability: Option<(u64, u64)>,
) -> AttentionKernel {
    let mut text = row.lower("attention_impl");
    if text.is_empty() {
        entry.map_or("", |e| e.attention.as_str()).clone_into(&mut text);
    }
    let alibi = architecture.embedding.as_ref().is_some_and(|e| e.positions == Positions::Alibi);
    let doubtful = any(&text, &["may not support", "requested"]);
    let old = capability.is_some_and(|c| c < (8, 0));
    if any(&text, &["naive", "eager", "unfused", "local", "torch attention", "materialised"])
        && !text.contains("sdpa")
    {
        AttentionKernel::Eager
    } else if doubtful {
        if alibi { AttentionKernel::Eager } else { AttentionKernel::Sdpa }
    } else if text.contains("flex") {
        AttentionKernel::Flex
    } else if text.contains("sdpa") || text.is_empty() || text.contains("nn.") {
        match () {
            () if text.contains("efficient") || old => AttentionKernel::SdpaEfficient,
            () if text.contains("math") => AttentionKernel::SdpaMath,
            () if text.contains("flash") => AttentionKernel::Flash,
            () => AttentionKernel::Sdpa,
        }
    } else if any(&text, &["flash", "fused", "te default"]) {
        AttentionKernel::Flash
    } else {
        AttentionKernel::Sdpa
    }
}

/// What is computed between logits and loss, where the row or its framework says.
pub fn loss(row: &Row, entry: Option<&Entry>, stack: Stack, tokens: u64) -> Loss {
    let mut text = row.lower("loss_impl");
    if text.is_empty() {
        entry.map_or("", |e| e.loss.as_str()).clone_into(&mut text);
    }
    let month = |pick: fn(&Entry) -> &Option<String>| entry.and_then(|e| pick(e).as_deref());
    let compiled = compile(row) && framework::since(row, month(|e| &e.compiled_loss_from));
    let until = month(|e| &e.returned_until);
    let returned = until.is_some() && !framework::since(row, until);
    let config = row.lower("framework_config");
    if any(&text, &["fused linear", "liger", "cut cross"]) || config.contains("liger") {
        Loss::FusedLinear
    } else if text.contains("vocabulary-parallel") {
        Loss::VocabularyParallel
    } else if text.contains("chunked") {
        // torchtune and torchtitan split into eight.
        Loss::Chunked { tokens: tokens.div_ceil(8) }
    } else if any(&config, &["foak", "fast-kernels"]) || text.contains("fused") || compiled {
        Loss::Fused
    } else if stack == Stack::Torchtune && any(&row.lower("version"), &["0.1", "0.2", "pre-0.1"]) {
        // The chunked loss came with 0.3, of September 2024.
        Loss::Chunked { tokens }
    } else if stack == Stack::LitGpt {
        // Fine-tuning scripts chunk head and loss by 128 tokens, pretraining does neither.
        let whole = row.lower("task").contains("pretrain");
        Loss::Chunked { tokens: if whole { tokens } else { 128 } }
    } else if returned {
        Loss::Returned
    } else if stack == Stack::Transformers {
        match transformers_minor(row) {
            ..=45 => Loss::Shifted { in_model: true },
            46..=48 => Loss::Shifted { in_model: false },
            _ => Loss::CrossEntropy,
        }
    } else {
        Loss::CrossEntropy
    }
}

/// The 4.x release of Transformers that a row states, or that was current in its year.
fn transformers_minor(row: &Row) -> u64 {
    after(&row.lower("version"), "transformers 4.").unwrap_or(match framework::year(row) {
        Some(..=2024) => 45,
        _ => 57,
    })
}

/// Whether batches are as long as the stated length, or padded to their own longest sample.
pub fn lengths(row: &Row, entry: Option<&Entry>) -> Lengths {
    let notes = row.lower("notes");
    let said = any(&notes, &["padded to their own", "dataset tokens mean", "variable length"]);
    let varied = said || entry.is_some_and(|e| e.pads_to_longest) && !notes.contains("padded to");
    let empties = entry.is_some_and(|e| e.empties_cache);
    if varied && !empties && !row.get("packed").and_then(super::row::flag).unwrap_or(false) {
        Lengths::Varied
    } else {
        Lengths::Fixed
    }
}

/// Which part of the loop was measured.
pub fn scope(row: &Row, entry: Option<&Entry>) -> StepScope {
    let task = row.lower("task");
    let notes = row.lower("notes");
    let notes: String = notes.split_whitespace().collect::<Vec<_>>().join(" ");
    if task.contains("forward with") || task == "forward" {
        StepScope::Forward
    } else if any(&task, &["forward+backward", "fwd+bwd", "forward + backward"])
        || any(&notes, &["forward+backward only", "forward + backward only", "excluded"])
            && notes.contains("optimizer")
        || row.get("rank").is_some() && task.contains("profiling")
    {
        StepScope::ForwardBackward
    } else if any(&notes, &["first step only", "includes the first optimizer step"])
        || entry.is_some_and(|e| e.longest_first)
    {
        StepScope::FirstStep
    } else {
        StepScope::SteadyStep
    }
}

/// `offload`.
pub fn offload(row: &Row, zero: bool) -> Result<OffloadPlan, String> {
    let text = row.lower("offload");
    let mut plan = OffloadPlan::default();
    if text.is_empty() || text.starts_with("none") || text == "false" {
        return Ok(plan);
    }
    if text.contains("fine-grained") {
        return Err("fine-grained activation offload: which tensors stay is not modelled".into());
    }
    plan.activations = text.contains("activation");
    plan.nvme = text.contains("nvme");
    let cpu = any(&text, &["cpu", "optimizer", "true"]) && !plan.activations;
    plan.optimizer = cpu;
    plan.gradients = cpu && (zero || text.contains("grad"));
    plan.parameters = cpu && !text.contains("optimizer");
    Ok(plan)
}

/// `lora` and `task`: which parameters learn. `quantized` is what `precision` says of the frozen matrices.
pub fn method(
    row: &Row,
    entry: Option<&Entry>,
    model: &Architecture,
) -> Result<(Method, Option<String>), String> {
    let task = row.lower("task");
    let Some(lora) = row.get("lora").and_then(Value::as_object) else {
        if any(&task, &["lora", "peft", "adapter"]) {
            return Err("adapter settings (rank, targets) are not stated".into());
        }
        if any(&task, &["partial", "lisa", "block coordinate"]) {
            return Err(format!("which parameters learn is not stated: {task}"));
        }
        return Ok((Method::Full, None));
    };
    let field = |key: &str| lora.get(key).filter(|v| !v.is_null());
    let text = |key: &str| field(key).and_then(words).unwrap_or_default().to_ascii_lowercase();
    let targets_text = text("targets");
    let kind = if text("type").is_empty() { text("adapter") } else { text("type") };
    let trainable = field("trainable_params")
        .and_then(whole)
        .or_else(|| field("trainable_params_M").and_then(number).map(|m| (m * 1e6) as u64));
    let targets = targets(&targets_text);
    let family = match kind.as_str() {
        "adapter" => AdapterKind::Prefix,
        "adapterv2" | "adapter_v2" => AdapterKind::ScaleShift,
        _ => AdapterKind::LowRank,
    };
    let stated =
        field("r").and_then(whole).filter(|r| *r > 0).or_else(|| after(&targets_text, "r"));
    let plain = kind.is_empty() || kind == "lora";
    let rank = match (stated, trainable) {
        (Some(rank), _) if plain => rank,
        (_, Some(trainable)) => equivalent_rank(model, &targets, trainable),
        (Some(rank), None) => rank,
        (None, None) => return Err("the rank of the adapters is not stated".into()),
    };
    let note = (!plain && family == AdapterKind::LowRank)
        .then(|| format!("{kind} taken as low-rank adapters of rank {rank}"));
    let modules = text("modules_to_save");
    let whole_text = lora.values().filter_map(words).collect::<String>().to_ascii_lowercase();
    let exact = trainable.zip(stated).filter(|_| plain);
    let dora = whole_text.contains("dora")
        || field("use_dora").and_then(super::row::flag).unwrap_or(false)
        || exact.is_some_and(|(n, r)| magnitudes(model, &targets, r, n));
    let dtype = if row.lower("precision").contains("adapters autocast to fp32") {
        DType::F32
    } else {
        entry.map_or(DType::F32, Entry::adapter)
    };
    Ok((
        Method::Lora(Lora {
            kind: family,
            rank,
            targets,
            dropout: field("dropout")
                .and_then(number)
                .map_or(entry.is_some_and(|e| e.adapter_dropout), |d| d > 0.0),
            dtype,
            base: base(row, &text("quantize")),
            train_embeddings: any(&modules, &["wte", "embed", "lm_head"]),
            dora,
        }),
        note,
    ))
}

/// Type of the frozen matrices.
fn base(row: &Row, quantize: &str) -> Option<WeightQuantization> {
    let precision = row.lower("precision");
    let model = row.lower("model");
    let task = row.lower("task");
    let text = format!("{precision} {quantize}");
    let dtype = if any(&text, &["nf4-dq", "double"]) {
        DType::Nf4Dq
    } else if text.contains("nf4") {
        DType::Nf4
    } else if any(&text, &["int8"]) {
        if text.contains("gptq") { DType::Int8G128 } else { DType::Int8Row }
    } else if any(&text, &["gptq", "awq"]) || any(&model, &["gptq", "awq", "-int4"]) {
        DType::Int4G128
    } else if any(&text, &["int4", "4bit", "4-bit"]) {
        DType::Nf4
    } else if task.starts_with("q") {
        // QLoRA without more: NF4 with double quantization, as in the paper and as torchtune stores it.
        DType::Nf4Dq
    } else {
        return None;
    };
    Some(WeightQuantization {
        keeps_inputs: keeps_inputs(row, dtype),
        ..WeightQuantization::of(dtype)
    })
}

/// Whether bitsandbytes kept the inputs of 4-bit products: until 0.43.1, of June 2024. Without its version the release
/// of torch tells the time; LitGPT asked for 0.42.0 all through 2024.
fn keeps_inputs(row: &Row, dtype: DType) -> bool {
    let version = row.lower("version");
    if !matches!(dtype, DType::Nf4 | DType::Nf4Dq) || row.lower("framework").contains("torchtune") {
        return false;
    }
    if let Some((minor, patch)) = version.split_once("bitsandbytes 0.").and_then(|(_, v)| {
        let mut parts = v.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse::<u64>().ok());
        Some((parts.next()??, parts.next().flatten().unwrap_or(0)))
    }) {
        return (minor, patch) < (43, 2);
    }
    match after(&version, "torch 2.") {
        Some(minor) => minor < 4,
        None => framework::year(row).is_none_or(|year| year <= 2024),
    }
}

/// The targets that a text or a list names.
fn targets(text: &str) -> LoraTargets {
    if any(text, &["all linear", "all-linear", "all (all"]) || text == "all" {
        return LoraTargets::AllLinear;
    }
    if any(text, &["fused qkv", "default"]) && !text.contains("query,value") {
        return LoraTargets::QueryKeyValue;
    }
    if text.contains("attention projections") {
        return LoraTargets::Attention;
    }
    if text.is_empty() {
        return LoraTargets::QueryValue;
    }
    let text = text.split("(default").next().unwrap_or(text);
    let names = text
        .split([',', ' ', '+', '(', ')', '[', ']'])
        .map(|n| n.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.'))
        .filter(|n| !n.is_empty())
        .map(str::to_owned)
        .collect();
    LoraTargets::Names(names)
}

/// Matrices that the targets name, as (rows, columns).
fn matrices(model: &Architecture, targets: &LoraTargets) -> Vec<(u64, u64)> {
    use plimsoll_model::{Part, inventory};
    let named: Vec<Part> = match targets {
        LoraTargets::QueryValue => vec![Part::Query, Part::Value, Part::Qkv],
        LoraTargets::QueryKeyValue => vec![Part::Query, Part::Key, Part::Value, Part::Qkv],
        LoraTargets::Names(names) => names
            .iter()
            .flat_map(|n| match n.rsplit('.').next().unwrap_or(n) {
                "q_proj" | "query" | "q" => vec![Part::Query],
                "k_proj" | "key" | "k" => vec![Part::Key],
                "v_proj" | "value" | "v" => vec![Part::Value],
                "c_attn" => vec![Part::Qkv, Part::Query, Part::Key, Part::Value],
                "o_proj" | "projection" | "output_proj" => vec![Part::Output],
                "gate_proj" | "w2" => vec![Part::Gate],
                "up_proj" | "w1" => vec![Part::Up],
                "down_proj" => vec![Part::Down],
                "mlp" => vec![Part::Gate, Part::Up, Part::Down],
                _ => Vec::new(),
            })
            .collect(),
        _ => vec![
            Part::Query,
            Part::Key,
            Part::Value,
            Part::Qkv,
            Part::Output,
            Part::Gate,
            Part::Up,
            Part::Down,
            Part::GateUp,
        ],
    };
    let all = inventory::inventory(model);
    let chosen = all.parameters.iter().filter(|p| !p.bias && named.contains(&p.part));
    chosen.filter(|p| p.shape.len() == 2).map(|p| (p.shape[0], p.shape[1])).collect()
}

/// The rank at which adapters on the targets have about so many parameters.
fn equivalent_rank(model: &Architecture, targets: &LoraTargets, trainable: u64) -> u64 {
    let per_rank: u64 = matrices(model, targets).iter().map(|(r, c)| r + c).sum();
    if per_rank == 0 { 8 } else { ((trainable as f64 / per_rank as f64).round() as u64).max(1) }
}

/// Whether the trainable parameters are exactly adapters and one magnitude per output channel (DoRA).
fn magnitudes(model: &Architecture, targets: &LoraTargets, rank: u64, trainable: u64) -> bool {
    let shapes = matrices(model, targets);
    let adapters: u64 = shapes.iter().map(|(r, c)| (r + c) * rank).sum();
    let outputs: u64 = shapes.iter().map(|(r, _)| *r).sum();
    outputs > 0 && trainable == adapters + outputs
}

/// Whether the model runs compiled.
pub fn compile(row: &Row) -> bool {
    let text = row.lower("compile");
    !(text.is_empty()
        || text.starts_with("false")
        || text.starts_with("none")
        || text.contains("aot_eager")
        // Not Inductor: what Thunder's traces fuse and save differs from executor to executor.
        || text.contains("thunder"))
}

/// Which implementation of the layers runs.
pub fn stack(row: &Row, entry: Option<&Entry>) -> Stack {
    let attention = row.lower("attention_impl");
    if any(&attention, &["nn.transformer", "nn.multihead"]) {
        return Stack::Torch;
    }
    let stack = entry.map_or(Stack::Transformers, Entry::stack);
    let config = row.lower("framework_config");
    match stack {
        Stack::Transformers if any(&config, &["foak", "fast-kernels"]) => Stack::TransformersFused,
        Stack::Transformers if any(&config, &["liger", "unsloth"]) => Stack::TransformersLiger,
        stack => stack,
    }
}

/// The micro-batch: stated, or a share of the pipeline's local batch, or the framework's default.
pub fn micro_batch(row: &Row, stages: u64, entry: Option<&Entry>) -> Result<(u64, u64), String> {
    let accumulation = row.whole("grad_accum").unwrap_or(1).max(1);
    if let Some(local) = row.whole("local_batch")
        && stages > 1
    {
        // torchtitan until early 2025 cuts the local batch into as many micro-batches as there are stages; later into
        // single sequences (`pipeline_parallel_microbatch_size`).
        let pieces = if framework::year(row).is_some_and(|y| y >= 2025) { local } else { stages };
        let micro = (local / pieces.max(1)).max(1);
        return Ok((micro, local / micro));
    }
    // A pretraining script that accumulates up to its global batch.
    let accumulation = match (entry.and_then(|e| e.pretrain_batch), row.whole("micro_batch")) {
        (Some(global), Some(micro))
            if row.whole("grad_accum").is_none() && row.lower("task").contains("pretrain") =>
        {
            let ranks = row.whole("n_gpus").unwrap_or(1).max(1);
            (global / micro.max(1) / ranks).max(1)
        }
        _ => accumulation,
    };
    if let Some(batch) = row.whole("micro_batch").or(row.whole("local_batch")) {
        if stages > 1
            && let Some(global) =
                row.get("megatron_args").and_then(|a| a.get("global-batch-size")).and_then(whole)
        {
            let data = super::sharding::data_ranks(row).unwrap_or(1);
            return Ok((batch, (global / batch.max(1) / data.max(1)).max(1)));
        }
        return Ok((batch, accumulation));
    }
    match entry.and_then(|e| e.batch) {
        Some(batch) => Ok((batch, accumulation)),
        None => Err("micro-batch is not stated".into()),
    }
}
