//! From the request's words to the estimator's types: what is absent takes the estimator's default, what
//! contradicts something else is refused with the cure.

use plimsoll_estimate::request::{
    Inference, LlamaCpp, Lora, LoraServing, Loss, Method, Offload, OffloadPlan, Precision,
    Reinforcement, Serving, Sglang, Stack, Strategy, Training, Version, Vllm, WeightQuantization,
    Workload, ZeroStage,
};
use plimsoll_units::{Bytes, DType};

use crate::Choice;
use crate::choices::{FinetuneMethod, RlRecipe, WeightType};
use crate::error::EngineError;
use crate::quantity::{Dtype, Release};
use crate::request::{
    InferRequest, LlamaCppRequest, SglangRequest, StrategyRequest, TrainRequest, VllmRequest,
    WorkloadRequest,
};

/// The largest count that any size may have; far beyond every run, small enough that products stay meaningful.
const MAX_COUNT: u64 = 1 << 40;

/// Converts the workload of a request; `devices` is the number of GPUs of the machine.
pub(crate) fn workload(
    request: &WorkloadRequest,
    strategy: &StrategyRequest,
    devices: u64,
) -> Result<Workload, EngineError> {
    Ok(match request {
        WorkloadRequest::Train(t) => Workload::Training(training(t)?),
        WorkloadRequest::Infer(i) => {
            serving_only(strategy, "plain inference")?;
            let tensor = positive("--tp", strategy.tp)?.unwrap_or(1);
            Workload::Inference(Inference { tensor, ..inference(i)? })
        }
        WorkloadRequest::LlamaCpp(l) => {
            serving_only(strategy, "llama.cpp")?;
            if strategy.tp.is_some() || strategy.pp.is_some() {
                let option = if strategy.tp.is_some() { "--tp" } else { "--pp" };
                return Err(EngineError::value(
                    option,
                    "llama.cpp spreads a model with --split-mode and --tensor-split, not by ranks",
                ));
            }
            Workload::Serving(Serving::LlamaCpp(llama_cpp(l)?))
        }
        WorkloadRequest::Vllm(v) => {
            serving_only(strategy, "vLLM")?;
            let (tensor, pipeline) = ranks(strategy, devices)?;
            let expert = strategy.ep.is_some_and(|n| n > 1);
            Workload::Serving(Serving::Vllm(Vllm { tensor, pipeline, expert, ..vllm(v)? }))
        }
        WorkloadRequest::Sglang(s) => {
            serving_only(strategy, "SGLang")?;
            let (tensor, pipeline) = ranks(strategy, devices)?;
            Workload::Serving(Serving::Sglang(Sglang { tensor, pipeline, ..sglang(s)? }))
        }
    })
}

/// GPUs that the degrees of a strategy ask for; 1 where none is given.
pub(crate) fn asked_ranks(s: &StrategyRequest) -> u64 {
    let degrees = [s.tp, s.pp, s.cp, s.dp];
    degrees.into_iter().flatten().fold(1u64, |n, d| n.saturating_mul(d.max(1))).clamp(1, 1 << 20)
}

/// Tensor ranks and pipeline stages of an engine: all GPUs are tensor ranks where nobody says otherwise.
fn ranks(strategy: &StrategyRequest, devices: u64) -> Result<(u64, u64), EngineError> {
    let pipeline = positive("--pp", strategy.pp)?.unwrap_or(1);
    let tensor = match positive("--tp", strategy.tp)? {
        Some(n) => n,
        None => (devices / pipeline).max(1),
    };
    let needed = tensor.saturating_mul(pipeline);
    if needed > devices {
        return Err(EngineError::value(
            "--tp",
            format!(
                "{tensor} x {pipeline} ranks need {needed} GPUs, the machine has {devices}; write --gpu NAME*{needed}"
            ),
        ));
    }
    Ok((tensor, pipeline))
}

/// Refuses what only training knows.
fn serving_only(s: &StrategyRequest, what: &str) -> Result<(), EngineError> {
    let given = [
        ("--checkpoint", s.checkpoint.is_some()),
        ("--dp", s.dp.is_some()),
        ("--zero", s.zero.is_some()),
        ("--shard-group", s.shard_group.is_some()),
        ("--sp", s.sp),
        ("--loss-parallel", s.loss_parallel),
        ("--cp", s.cp.is_some()),
        ("--schedule", s.schedule.is_some()),
        ("--stage", s.stage.is_some()),
        ("--no-reshard", s.keep_unsharded),
        ("--prefetch", s.prefetch.is_some()),
        ("--reduce-dtype", s.reduce_dtype.is_some()),
        ("--bucket-view", s.bucket_view),
        ("--offload", !s.offload.is_empty()),
    ];
    match given.iter().find(|(_, set)| *set) {
        Some((option, _)) => Err(EngineError::value(
            *option,
            format!("it belongs to training and means nothing for {what}"),
        )),
        None => Ok(()),
    }
}

fn training(t: &TrainRequest) -> Result<Training, EngineError> {
    let defaults = Training::default();
    let method = method(t)?;
    let adapters = matches!(method, Method::Lora(_));
    let precision = match &t.precision {
        Some(Choice(precision)) => *precision,
        // Frozen weights are loaded in their own 16-bit type; adapters compute under autocast.
        None if adapters => Precision { weights: DType::Bf16, ..Precision::autocast(DType::Bf16) },
        None => defaults.precision,
    };
    let reinforcement = t.rl.map(|Choice(recipe)| Reinforcement {
        reference: true,
        critic: recipe == RlRecipe::Ppo,
        reward: recipe == RlRecipe::Ppo,
        rollout_permille: t.rollout.map_or(0, |f| f.permille),
    });
    if t.rollout.is_some() && reinforcement.is_none() {
        return Err(EngineError::value("--rollout", "it needs --rl grpo or --rl ppo"));
    }
    let pick = |value: Option<u64>, option: &str, default: u64| {
        positive(option, value).map(|n| n.unwrap_or(default))
    };
    let stack = choice(&t.stack, defaults.stack);
    Ok(Training {
        method,
        precision,
        optimizer: choice(&t.optimizer, defaults.optimizer),
        optimizer_form: choice(&t.optimizer_form, defaults.optimizer_form),
        batch: pick(t.batch, "--batch", defaults.batch)?,
        sequence: pick(t.seq, "--seq", defaults.sequence)?,
        target_sequence: positive("--target-seq", t.target_seq)?,
        lengths: choice(&t.lengths, defaults.lengths),
        accumulation: pick(t.accumulate, "--accumulate", defaults.accumulation)?,
        attention: choice(&t.attention, defaults.attention),
        loss: loss(t)?,
        stack,
        zero_grad: choice(&t.zero_grad, defaults.zero_grad),
        scope: choice(&t.scope, defaults.scope),
        compile: t.compile,
        dropout: !t.no_dropout,
        ema: t.ema,
        sparsity: t.sparsity.map(|Choice(s)| s),
        // Their launchers say so.
        expandable_segments: matches!(stack, Stack::Torchtitan | Stack::Torchtune),
        reinforcement,
    })
}

fn loss(t: &TrainRequest) -> Result<Loss, EngineError> {
    let loss = choice(&t.loss, Training::default().loss);
    if let Loss::Chunked { tokens } = loss {
        positive("--chunk-loss", Some(tokens))?;
    }
    Ok(loss)
}

fn method(t: &TrainRequest) -> Result<Method, EngineError> {
    let wanted = t.method.map_or(FinetuneMethod::Full, |Choice(m)| m);
    if wanted == FinetuneMethod::Full {
        let adapter_only = [
            ("--rank", t.rank.is_some()),
            ("--targets", t.targets.is_some()),
            ("--lora-dropout", t.lora_dropout),
            ("--lora-dtype", t.lora_dtype.is_some()),
            ("--dora", t.dora),
            ("--train-embeddings", t.train_embeddings),
            ("--weights", t.weights.is_some()),
        ];
        if let Some((option, _)) = adapter_only.iter().find(|(_, set)| *set) {
            return Err(EngineError::value(
                *option,
                "it needs --finetune lora or --finetune qlora",
            ));
        }
        return Ok(match positive("--last-layers", t.last_layers)? {
            Some(layers) => Method::LastLayers { layers },
            None => Method::Full,
        });
    }
    if t.last_layers.is_some() {
        return Err(EngineError::value("--last-layers", "it needs --finetune full"));
    }
    let defaults = Lora::default();
    let stored = t.weights.map(|Choice(w)| w);
    let base = match (wanted, stored) {
        (FinetuneMethod::Qlora, None) => Some(WeightType::Nf4Dq),
        (_, stored) => stored,
    };
    Ok(Method::Lora(Lora {
        kind: defaults.kind,
        rank: positive("--rank", t.rank)?.unwrap_or(defaults.rank),
        targets: choice(&t.targets, defaults.targets),
        dropout: t.lora_dropout,
        dtype: t.lora_dtype.map_or(defaults.dtype, |Dtype(d)| d),
        base: base.map(|w| WeightQuantization::of(w.dtype())),
        train_embeddings: t.train_embeddings,
        dora: t.dora,
    }))
}

/// Plain inference without its ranks.
pub(crate) fn inference(i: &InferRequest) -> Result<Inference, EngineError> {
    let defaults = Inference::default();
    Ok(Inference {
        batch: positive("--batch", i.batch)?.unwrap_or(defaults.batch),
        prompt: positive("--seq", i.seq)?.unwrap_or(defaults.prompt),
        generate: bounded("--generate", i.generate)?.unwrap_or(defaults.generate),
        dtype: i.dtype.map(|Dtype(d)| d),
        weights: i.weights.map(|Choice(w)| w.dtype()),
        sparsity: i.sparsity.map(|Choice(s)| s),
        cache: i.cache.map(|Dtype(d)| d),
        attention: choice(&i.attention, defaults.attention),
        all_logits: i.all_logits,
        tensor: 1,
    })
}

fn llama_cpp(l: &LlamaCppRequest) -> Result<LlamaCpp, EngineError> {
    let defaults = LlamaCpp::default();
    let build = match l.version {
        None => None,
        Some(Release::Build(n)) => Some(n),
        Some(version) => {
            return Err(EngineError::value(
                "--engine-version",
                format!("`{version}` is not a llama.cpp build; write b5050"),
            ));
        }
    };
    let cache = |one: Option<Dtype>, default| one.or(l.cache).map_or(default, |Dtype(d)| d);
    let overrides =
        l.override_tensor.iter().map(|rule| override_rule(rule)).collect::<Result<_, _>>()?;
    Ok(LlamaCpp {
        build,
        ik: l.ik,
        context: positive("--ctx", l.ctx)?,
        batch: positive("--batch", l.batch)?.unwrap_or(defaults.batch),
        ubatch: positive("--ubatch", l.ubatch)?.unwrap_or(defaults.ubatch),
        sequences: positive("--np", l.sequences)?.unwrap_or(defaults.sequences),
        unified: l.kv_unified,
        flash_attention: l.flash_attention.unwrap_or(defaults.flash_attention),
        cache_k: cache(l.cache_k, defaults.cache_k),
        cache_v: cache(l.cache_v, defaults.cache_v),
        offload_kv: !l.no_kv_offload,
        all_outputs: l.all_outputs,
        swa_full: l.swa_full,
        mla: mla(l)?,
        attention_max_mib: defaults.attention_max_mib,
        draft: bounded("--draft", l.draft)?.unwrap_or(defaults.draft),
        offload: Offload {
            gpu_layers: bounded("--ngl", l.gpu_layers)?,
            cpu_moe_layers: bounded("--n-cpu-moe", l.n_cpu_moe)?.unwrap_or(0),
            overrides,
        },
        split: choice(&l.split, defaults.split),
        tensor_split: l.tensor_split.clone(),
        mmproj: l.mmproj.map_or(Bytes::ZERO, |s| s.0),
    })
}

/// The fork's attention mode; llama.cpp itself has none.
fn mla(l: &LlamaCppRequest) -> Result<Option<u64>, EngineError> {
    match l.mla {
        Some(n) if n > 3 => {
            Err(EngineError::value("--mla", format!("it is {n}; modes are 0 to 3")))
        }
        Some(_) if !l.ik => Err(EngineError::value("--mla", "only ik_llama.cpp has it; add --ik")),
        mode => Ok(mode),
    }
}

/// `PATTERN=CPU` keeps tensors on the host, `PATTERN=CUDA0` (or any other buffer) on the device.
fn override_rule(rule: &str) -> Result<(String, bool), EngineError> {
    match rule.rsplit_once('=') {
        Some((pattern, place)) if !pattern.is_empty() && !place.is_empty() => {
            Ok((pattern.to_owned(), place.to_ascii_uppercase().starts_with("CPU")))
        }
        _ => Err(EngineError::value(
            "-ot",
            format!(
                "`{rule}` is not PATTERN=BUFFER; write `exps=CPU` or `blk\\.[0-9]\\.ffn_.*=CPU`"
            ),
        )),
    }
}

fn vllm(v: &VllmRequest) -> Result<Vllm, EngineError> {
    let defaults = Vllm::default();
    Ok(Vllm {
        version: engine_version(v.version)?,
        utilization_permille: v.gpu_memory_utilization.map(|f| f.permille),
        max_model_len: positive("--max-model-len", v.max_model_len)?,
        max_num_seqs: positive("--max-num-seqs", v.max_num_seqs)?,
        max_num_batched_tokens: positive("--max-num-batched-tokens", v.max_num_batched_tokens)?,
        server: !v.offline,
        dtype: v.dtype.map(|Dtype(d)| d),
        weights: v.weights.map(|Choice(w)| w.dtype()),
        cache: v.cache.map(|Dtype(d)| d),
        enforce_eager: v.enforce_eager,
        block_size: positive("--block-size", v.block_size)?,
        cpu_offload: v.cpu_offload.map_or(Bytes::ZERO, |s| s.0),
        lora: lora_serving(v.lora_count, v.lora_rank)?,
        speculative_tokens: bounded("--speculative-tokens", v.speculative_tokens)?.unwrap_or(0),
        draft_weights: v.draft_weights.map_or(Bytes::ZERO, |s| s.0),
        prompt_logprobs: v.prompt_logprobs,
        ..defaults
    })
}

fn sglang(s: &SglangRequest) -> Result<Sglang, EngineError> {
    let defaults = Sglang::default();
    Ok(Sglang {
        version: engine_version(s.version)?,
        static_permille: s.mem_fraction_static.map(|f| f.permille),
        context: positive("--context-length", s.context)?,
        chunked_prefill: positive("--chunked-prefill-size", s.chunked_prefill)?,
        graph_batch: positive("--cuda-graph-max-bs", s.graph_batch)?,
        dtype: s.dtype.map(|Dtype(d)| d),
        weights: s.weights.map(|Choice(w)| w.dtype()),
        cache: s.cache.map(|Dtype(d)| d),
        dp_attention: s.dp_attention,
        speculative_tokens: bounded("--speculative-tokens", s.speculative_tokens)?.unwrap_or(0),
        draft_weights: s.draft_weights.map_or(Bytes::ZERO, |s| s.0),
        lora: lora_serving(s.lora_count, s.lora_rank)?,
        ..defaults
    })
}

fn engine_version(release: Option<Release>) -> Result<Option<Version>, EngineError> {
    match release {
        None => Ok(None),
        Some(Release::Version(v)) => Ok(Some(v)),
        Some(build) => Err(EngineError::value(
            "--engine-version",
            format!("`{build}` is a llama.cpp build; write a release such as 0.19.1"),
        )),
    }
}

fn lora_serving(count: Option<u64>, rank: Option<u64>) -> Result<LoraServing, EngineError> {
    let (count, rank) = (positive("--lora-count", count)?, positive("--lora-rank", rank)?);
    Ok(match (count, rank) {
        (None, None) => LoraServing::default(),
        (count, rank) => LoraServing { count: count.unwrap_or(1), rank: rank.unwrap_or(16) },
    })
}

/// Converts the strategy of a training run; `devices` is the number of GPUs of the machine.
pub(crate) fn strategy(s: &StrategyRequest, devices: u64) -> Result<Strategy, EngineError> {
    let defaults = Strategy::default();
    let mut sharding = defaults.sharding;
    sharding.tensor = positive("--tp", s.tp)?.unwrap_or(1);
    sharding.context = positive("--cp", s.cp)?.unwrap_or(1);
    sharding.pipeline = positive("--pp", s.pp)?.unwrap_or(1);
    sharding.expert = positive("--ep", s.ep)?.unwrap_or(1);
    let model_ranks =
        sharding.tensor.saturating_mul(sharding.context).saturating_mul(sharding.pipeline);
    sharding.data = match positive("--dp", s.dp)? {
        Some(n) => n,
        None => (devices / model_ranks).max(1),
    };
    let needed = model_ranks.saturating_mul(sharding.data);
    if needed > devices {
        return Err(EngineError::value(
            if s.dp.is_some() { "--dp" } else { "--tp" },
            format!(
                "{} data x {} tensor x {} context x {} pipeline ranks need {needed} GPUs, the machine has {devices}; write --gpu NAME*{needed}",
                sharding.data, sharding.tensor, sharding.context, sharding.pipeline
            ),
        ));
    }
    sharding.zero = choice(&s.zero, ZeroStage::Ddp);
    sharding.shard_group = positive("--shard-group", s.shard_group)?.unwrap_or(0);
    sharding.sequence = s.sp;
    sharding.loss_parallel = s.loss_parallel;
    sharding.schedule = choice(&s.schedule, sharding.schedule);
    sharding.stage = s.stage;
    if let Some(stage) = s.stage
        && stage >= sharding.pipeline
    {
        return Err(EngineError::value(
            "--stage",
            format!(
                "stage {stage} does not exist; stages count from 0 to {}",
                sharding.pipeline - 1
            ),
        ));
    }
    if let Some(permille) = s.ep_imbalance_permille {
        sharding.expert_imbalance_permille = permille;
    }
    sharding.keep_unsharded = s.keep_unsharded;
    sharding.prefetch = bounded("--prefetch", s.prefetch)?.unwrap_or(sharding.prefetch);
    sharding.reduce_bytes = s.reduce_dtype.map(|Dtype(d)| d.bytes(1).get());
    sharding.bucket_view = s.bucket_view;
    Ok(Strategy {
        checkpointing: choice(&s.checkpoint, defaults.checkpointing),
        sharding,
        offload: offload(&s.offload)?,
    })
}

fn offload(parts: &[String]) -> Result<OffloadPlan, EngineError> {
    let mut plan = OffloadPlan::default();
    for part in parts {
        match part.trim().to_ascii_lowercase().as_str() {
            "optimizer" => plan.optimizer = true,
            "params" | "parameters" => plan.parameters = true,
            "grads" | "gradients" => plan.gradients = true,
            "activations" => plan.activations = true,
            "nvme" => plan.nvme = true,
            _ => {
                return Err(EngineError::value(
                    "--offload",
                    format!(
                        "`{part}` is not known; accepted: optimizer, params, grads, activations, nvme"
                    ),
                ));
            }
        }
    }
    Ok(plan)
}

fn choice<T: Clone>(given: &Option<Choice<T>>, default: T) -> T {
    given.as_ref().map_or(default, |Choice(value)| value.clone())
}

/// A count of at least 1.
pub(crate) fn positive(option: &str, value: Option<u64>) -> Result<Option<u64>, EngineError> {
    match value {
        Some(0) => Err(EngineError::value(option, "it is 0; it must be at least 1")),
        value => bounded(option, value),
    }
}

/// A count that may be 0.
pub(crate) fn bounded(option: &str, value: Option<u64>) -> Result<Option<u64>, EngineError> {
    match value {
        Some(n) if n > MAX_COUNT => Err(EngineError::value(
            option,
            format!("{n} is too large; at most {MAX_COUNT} is accepted"),
        )),
        value => Ok(value),
    }
}
