//! High arguments: what was typed, resolved into the engine's request. Options that mean nothing for the workload
//! are refused here, by the group they stand in; values are the engine's to judge.

use clap::CommandFactory;
use plimsoll_engine::choices::FinetuneMethod;
use plimsoll_engine::options::{Loss, ZeroStage};
use plimsoll_engine::{
    Choice, InferRequest, LlamaCppRequest, ModelSource, Request, SglangRequest, StrategyRequest,
    TrainRequest, VllmRequest, WithRequest, WorkloadRequest, parse_count,
};

use crate::args::{Cli, EngineName, EstimateArgs, headings};
use crate::exit::CliError;
use crate::input;

/// What is done with the model, as far as options are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Train,
    Infer,
    LlamaCpp,
    Vllm,
    Sglang,
    /// Data without a model.
    Data,
}

impl Kind {
    const fn words(self) -> &'static str {
        match self {
            Kind::Train => "training",
            Kind::Infer => "plain inference",
            Kind::LlamaCpp => "llama.cpp",
            Kind::Vllm => "vLLM",
            Kind::Sglang => "SGLang",
            Kind::Data => "data without a model",
        }
    }
}

/// Builds the request; reads the model's files.
pub fn request(args: &EstimateArgs, given: &[String]) -> Result<Request, CliError> {
    if args.model.is_none() && args.machine.data.is_empty() {
        return Err(plimsoll_engine::EngineError::NoModel.into());
    }
    if args.machine.gpu.is_none() && !args.output.all_gpus {
        return Err(plimsoll_engine::EngineError::NoMachine.into());
    }
    // Cheap checks come before anything is read or fetched.
    let asked = asked_kind(args);
    if let Some(kind) = asked {
        applicable(kind, given)?;
    }
    let model = args.model.as_deref().map(input::model).transpose()?;
    let kind = asked.unwrap_or_else(|| default_kind(model.as_ref()));
    if asked.is_none() {
        applicable(kind, given)?;
    }
    let workload = match kind {
        Kind::Train => Some(WorkloadRequest::Train(Box::new(train(args)))),
        Kind::Infer if !args.workload.infer && !touches_infer(given) => None,
        Kind::Infer => Some(WorkloadRequest::Infer(infer(args))),
        Kind::LlamaCpp => Some(WorkloadRequest::LlamaCpp(Box::new(llama_cpp(args)))),
        Kind::Vllm => Some(WorkloadRequest::Vllm(Box::new(vllm(args)))),
        Kind::Sglang => Some(WorkloadRequest::Sglang(Box::new(sglang(args)))),
        Kind::Data => None,
    };
    Ok(Request {
        model,
        workload,
        strategy: strategy(args),
        machine: args.machine.gpu.clone(),
        free: args.machine.free,
        allocator: args.workload.allocator.clone(),
        with: args.machine.with.iter().map(|text| with(text)).collect::<Result<_, _>>()?,
        data: args.machine.data.clone(),
        data_batch: if args.machine.data.is_empty() { None } else { args.sizes.batch },
        find: args.workload.find,
        changes: !args.output.no_changes && !args.output.all_gpus && args.output.explain.is_none(),
        ..Request::default()
    })
}

fn asked_kind(args: &EstimateArgs) -> Option<Kind> {
    if args.model.is_none() {
        return Some(Kind::Data);
    }
    if args.workload.train || args.workload.finetune.is_some() {
        return Some(Kind::Train);
    }
    match args.workload.engine {
        Some(EngineName::LlamaCpp) => Some(Kind::LlamaCpp),
        Some(EngineName::Vllm) => Some(Kind::Vllm),
        Some(EngineName::Sglang) => Some(Kind::Sglang),
        None => args.workload.infer.then_some(Kind::Infer),
    }
}

fn default_kind(model: Option<&ModelSource>) -> Kind {
    match model {
        Some(ModelSource::Read(input)) if input.is_gguf() => Kind::LlamaCpp,
        _ => Kind::Infer,
    }
}

/// Whether an option says more about plain inference than its defaults.
fn touches_infer(given: &[String]) -> bool {
    const OPTIONS: [&str; 9] = [
        "batch",
        "seq",
        "generate",
        "all_logits",
        "dtype",
        "weights",
        "sparsity",
        "cache_type",
        "attention",
    ];
    given.iter().any(|id| OPTIONS.contains(&id.as_str()))
}

/// The workloads that an option belongs to; empty for all of them.
fn owners(id: &str, heading: Option<&str>) -> &'static [Kind] {
    use Kind::*;
    match id {
        "batch" => return &[Train, Infer, LlamaCpp, Data],
        "seq" | "attention" | "allocator" | "sparsity" => return &[Train, Infer],
        "ctx" => return &[LlamaCpp, Vllm, Sglang],
        "engine_version" => return &[LlamaCpp, Vllm, Sglang],
        "dtype" => return &[Infer, Vllm, Sglang],
        "weights" => return &[Train, Infer, Vllm, Sglang],
        "cache_type" => return &[Infer, LlamaCpp, Vllm, Sglang],
        "lora_count" | "lora_rank" | "speculative_tokens" | "draft_weights" => {
            return &[Vllm, Sglang];
        }
        "find" => return &[Train, Infer, LlamaCpp, Vllm, Sglang],
        _ => {}
    }
    match heading {
        Some(headings::TRAINING | headings::LORA) => &[Train],
        Some(headings::SHARDING) => &[Train, Infer, LlamaCpp, Vllm, Sglang],
        Some(headings::INFER) => &[Infer],
        Some(headings::LLAMA_CPP) => &[LlamaCpp],
        Some(headings::VLLM) => &[Vllm],
        Some(headings::SGLANG) => &[Sglang],
        _ => &[],
    }
}

/// Refuses options that the workload would ignore.
fn applicable(kind: Kind, given: &[String]) -> Result<(), CliError> {
    let command = Cli::command();
    let Some(estimate) = command.find_subcommand("estimate") else { return Ok(()) };
    for arg in estimate.get_arguments() {
        let id = arg.get_id().as_str();
        if !given.iter().any(|g| g == id) {
            continue;
        }
        let owners = owners(id, arg.get_help_heading());
        if owners.is_empty() || owners.contains(&kind) {
            continue;
        }
        let option = arg.get_long().unwrap_or(id);
        let belongs = owners.iter().map(|k| k.words()).collect::<Vec<_>>().join(", ");
        let hint = match owners {
            [Kind::Train] => "add --train or --finetune full|lora|qlora, or leave it out",
            [Kind::LlamaCpp] => "add --engine llama.cpp, or leave it out",
            [Kind::Vllm] => "add --engine vllm, or leave it out",
            [Kind::Sglang] => "add --engine sglang, or leave it out",
            [Kind::Infer] => "add --infer, or leave it out",
            _ => "leave it out, or choose another workload",
        };
        return Err(CliError::usage(
            format!("--{option} belongs to {belongs}; it means nothing for {}", kind.words()),
            hint,
        ));
    }
    Ok(())
}

/// `NAME,batch=N,seq=N,generate=N,dtype=T,weights=W`.
fn with(text: &str) -> Result<WithRequest, CliError> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let mut infer = InferRequest::default();
    for part in parts {
        let wrong = |why: String| CliError::Usage {
            message: format!("--with {text}: {why}"),
            hint: Some("write NAME,batch=N,seq=N,generate=N,dtype=T,weights=W".to_owned()),
        };
        let Some((key, value)) = part.split_once('=') else {
            return Err(wrong(format!("`{part}` is not KEY=VALUE")));
        };
        match key.trim() {
            "batch" => infer.batch = Some(parse_count(value).map_err(wrong)?),
            "seq" | "ctx" => infer.seq = Some(parse_count(value).map_err(wrong)?),
            "generate" => infer.generate = Some(parse_count(value).map_err(wrong)?),
            "dtype" => infer.dtype = Some(value.parse().map_err(|e| wrong(format!("{e}")))?),
            "weights" => infer.weights = Some(value.parse().map_err(|e| wrong(format!("{e}")))?),
            "cache" => infer.cache = Some(value.parse().map_err(|e| wrong(format!("{e}")))?),
            other => return Err(wrong(format!("`{other}` is not known"))),
        }
    }
    Ok(WithRequest { model: input::model(name)?, infer })
}

fn train(args: &EstimateArgs) -> TrainRequest {
    let (t, l) = (&args.training, &args.lora);
    TrainRequest {
        method: args.workload.finetune.or(Some(Choice(FinetuneMethod::Full))),
        last_layers: t.last_layers,
        rank: l.rank,
        targets: l.targets.clone(),
        lora_dropout: l.lora_dropout,
        lora_dtype: l.lora_dtype,
        dora: l.dora,
        train_embeddings: l.train_embeddings,
        sparsity: args.serving.sparsity,
        weights: args.serving.weights,
        batch: args.sizes.batch,
        seq: args.sizes.seq,
        target_seq: t.target_seq,
        accumulate: t.accumulate,
        precision: t.precision,
        optimizer: t.optimizer,
        optimizer_form: t.optimizer_form,
        attention: args.serving.attention,
        loss: t.chunk_loss.map(|tokens| Choice(Loss::Chunked { tokens })).or(t.loss),
        stack: t.stack,
        zero_grad: t.zero_grad,
        lengths: t.lengths,
        scope: t.scope,
        compile: t.compile,
        no_dropout: t.no_dropout,
        ema: t.ema,
        rl: t.rl,
        rollout: t.rollout,
    }
}

fn infer(args: &EstimateArgs) -> InferRequest {
    InferRequest {
        batch: args.sizes.batch,
        seq: args.sizes.seq,
        generate: args.infer.generate,
        dtype: args.serving.dtype,
        sparsity: args.serving.sparsity,
        weights: args.serving.weights,
        cache: args.serving.cache_type,
        attention: args.serving.attention,
        all_logits: args.infer.all_logits,
    }
}

fn llama_cpp(args: &EstimateArgs) -> LlamaCppRequest {
    let l = &args.llama_cpp;
    LlamaCppRequest {
        version: args.workload.engine_version,
        ik: l.ik,
        quant: l.quant.clone(),
        ctx: args.sizes.ctx,
        batch: args.sizes.batch,
        ubatch: l.ubatch,
        sequences: l.np,
        kv_unified: l.kv_unified,
        flash_attention: l.flash_attn,
        cache: args.serving.cache_type,
        cache_k: l.cache_type_k,
        cache_v: l.cache_type_v,
        no_kv_offload: l.nkvo,
        all_outputs: l.all_outputs.then_some(true),
        swa_full: l.swa_full,
        mla: l.mla,
        draft: l.draft,
        gpu_layers: l.ngl,
        n_cpu_moe: l.n_cpu_moe,
        override_tensor: l.override_tensor.clone(),
        split: l.split_mode,
        tensor_split: l.tensor_split.clone(),
        mmproj: l.mmproj,
    }
}

fn vllm(args: &EstimateArgs) -> VllmRequest {
    let (v, s) = (&args.vllm, &args.serving);
    VllmRequest {
        version: args.workload.engine_version,
        gpu_memory_utilization: v.gpu_memory_utilization,
        max_model_len: v.max_model_len.or(args.sizes.ctx),
        max_num_seqs: v.max_num_seqs,
        max_num_batched_tokens: v.max_num_batched_tokens,
        offline: v.offline,
        dtype: s.dtype,
        weights: s.weights,
        cache: s.cache_type,
        enforce_eager: v.enforce_eager,
        block_size: v.block_size,
        cpu_offload: v.cpu_offload,
        lora_count: s.lora_count,
        lora_rank: s.lora_rank,
        speculative_tokens: s.speculative_tokens,
        draft_weights: s.draft_weights,
        prompt_logprobs: v.prompt_logprobs,
    }
}

fn sglang(args: &EstimateArgs) -> SglangRequest {
    let (g, s) = (&args.sglang, &args.serving);
    SglangRequest {
        version: args.workload.engine_version,
        mem_fraction_static: g.mem_fraction_static,
        context: g.context_length.or(args.sizes.ctx),
        chunked_prefill: g.chunked_prefill_size,
        graph_batch: g.cuda_graph_max_bs,
        dtype: s.dtype,
        weights: s.weights,
        cache: s.cache_type,
        dp_attention: g.dp_attention,
        lora_count: s.lora_count,
        lora_rank: s.lora_rank,
        speculative_tokens: s.speculative_tokens,
        draft_weights: s.draft_weights,
    }
}

fn strategy(args: &EstimateArgs) -> StrategyRequest {
    let s = &args.sharding;
    let named = if s.fsdp {
        Some(Choice(ZeroStage::Fsdp2))
    } else if s.ddp {
        Some(Choice(ZeroStage::Ddp))
    } else {
        None
    };
    StrategyRequest {
        checkpoint: args.training.checkpoint,
        dp: s.dp,
        zero: s.zero.or(named),
        shard_group: s.shard_group,
        tp: s.tp,
        sp: s.sp,
        loss_parallel: s.loss_parallel,
        cp: s.cp,
        pp: s.pp,
        schedule: s.schedule,
        stage: s.stage,
        ep: s.ep,
        ep_imbalance_permille: s.ep_imbalance,
        keep_unsharded: s.no_reshard,
        prefetch: s.prefetch,
        reduce_dtype: s.reduce_dtype,
        bucket_view: s.bucket_view,
        offload: s.offload.clone(),
    }
}
