//! What a user could change, by workload: the ladder of levels, the options to type and how much each changes the
//! run. Costs: 1 changes speed a little, 2 to 4 change speed, 5 to 7 change numerics or need more host, 8 and
//! above change what is trained, served or bought.

use plimsoll_estimate::request::{
    AttentionKernel, Checkpointing, LlamaCpp, Lora, Loss, Method, Optimizer, OptimizerForm,
    Precision, Serving, Sglang, Training, Vllm, WeightQuantization, Workload, ZeroStage,
};
use plimsoll_model::arch::ModelKind;
use plimsoll_units::DType;

use crate::job::Job;
use crate::machine;

/// A change with its levels, least change first.
pub(crate) struct Move {
    pub levels: Vec<Level>,
}

impl Move {
    /// The cost of the least level.
    pub fn least(&self) -> u32 {
        self.levels.first().map_or(u32::MAX / 4, |l| l.cost)
    }
}

/// One level of a change.
pub(crate) struct Level {
    pub label: String,
    pub options: String,
    pub cost: u32,
    /// Changes the job; `None` where it does not apply after another change.
    pub apply: Apply,
}

/// A step of a change.
pub(crate) type Apply = Box<dyn Fn(&mut Job) -> Option<()>>;

/// All changes that make sense for a job.
pub(crate) fn all(job: &Job) -> Vec<Move> {
    let mut moves = match &job.workload {
        Some(Workload::Training(t)) => training(job, t),
        Some(Workload::Inference(_)) => inference(job),
        Some(Workload::Serving(Serving::LlamaCpp(l))) => llama_cpp(job, l),
        Some(Workload::Serving(Serving::Vllm(v))) => vllm(v),
        Some(Workload::Serving(Serving::Sglang(s))) => sglang(s),
        _ => Vec::new(),
    };
    moves.push(bigger_machine(job));
    moves.push(more_machines(job));
    moves.retain(|m| !m.levels.is_empty());
    moves
}

fn level(
    cost: u32,
    label: impl Into<String>,
    options: impl Into<String>,
    apply: impl Fn(&mut Job) -> Option<()> + 'static,
) -> Level {
    Level { label: label.into(), options: options.into(), cost, apply: Box::new(apply) }
}

/// A level that changes the training step.
fn train(
    cost: u32,
    label: impl Into<String>,
    options: impl Into<String>,
    change: impl Fn(&mut Training) + 'static,
) -> Level {
    level(cost, label, options, move |job| match &mut job.workload {
        Some(Workload::Training(t)) => {
            change(t);
            Some(())
        }
        _ => None,
    })
}

/// `n / 2`, `n / 4`, ... down to 1 (or to `least`).
fn halvings(n: u64, least: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(n / 2), |n| Some(n / 2)).take_while(move |n| *n >= least.max(1))
}

fn training(job: &Job, t: &Training) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut one = |levels: Vec<Level>| moves.push(Move { levels });
    one(kernels(t));
    one(loss(job, t));
    one(optimizer_form(job, t));
    one(micro_batches(t));
    one(checkpointing(job));
    one(sharding(job));
    one(optimizers(t));
    one(offloading(job));
    one(precision(t));
    one(adapters(t));
    one(halvings(t.sequence, 128)
        .take(6)
        .enumerate()
        .map(|(i, seq)| {
            train(10 + i as u32, format!("sequence {seq}"), format!("--seq {seq}"), move |t| {
                t.sequence = seq;
            })
        })
        .collect());
    moves
}

fn kernels(t: &Training) -> Vec<Level> {
    let slow = matches!(t.attention, AttentionKernel::Eager | AttentionKernel::SdpaMath);
    if !slow {
        return Vec::new();
    }
    vec![
        train(1, "SDPA attention", "--attention sdpa", |t| t.attention = AttentionKernel::Sdpa),
        train(1, "flash attention", "--attention flash", |t| t.attention = AttentionKernel::Flash),
    ]
}

fn loss(job: &Job, t: &Training) -> Vec<Level> {
    let kind = job.model.as_ref().map(|m| m.architecture.kind);
    if !matches!(t.loss, Loss::CrossEntropy | Loss::Returned) || kind != Some(ModelKind::CausalLm) {
        return Vec::new();
    }
    vec![
        train(1, "loss in chunks of 1024 tokens", "--loss chunked:1024", |t| {
            t.loss = Loss::Chunked { tokens: 1024 };
        }),
        train(2, "fused linear cross-entropy", "--loss fused-linear", |t| {
            t.loss = Loss::FusedLinear;
        }),
    ]
}

fn optimizer_form(job: &Job, t: &Training) -> Vec<Level> {
    let mut levels = Vec::new();
    let adam = matches!(
        t.optimizer,
        Optimizer::Adam | Optimizer::AdamW | Optimizer::Sgd | Optimizer::Momentum
    );
    if adam && matches!(t.optimizer_form, OptimizerForm::Foreach | OptimizerForm::ForeachTwice) {
        levels.push(train(1, "fused optimizer", "--optimizer-form fused", |t| {
            t.optimizer_form = OptimizerForm::Fused;
        }));
    }
    let alone = job.machine.count == 1 && t.accumulation == 1;
    if adam && alone && t.optimizer_form != OptimizerForm::InBackward {
        levels.push(train(5, "optimizer inside backward", "--optimizer-form in-backward", |t| {
            t.optimizer_form = OptimizerForm::InBackward;
        }));
    }
    levels
}

fn micro_batches(t: &Training) -> Vec<Level> {
    let (batch, accumulation) = (t.batch, t.accumulation);
    halvings(batch, 1)
        .filter(|small| batch.is_multiple_of(*small))
        .enumerate()
        .map(|(i, small)| {
            let steps = accumulation.saturating_mul(batch / small);
            let options = format!("--batch {small} --accumulate {steps}");
            let label = format!("micro-batch {small} with {steps} accumulation steps");
            train(2 + (i as u32) / 2, label, options, move |t| {
                t.batch = small;
                t.accumulation = steps;
            })
        })
        .collect()
}

fn checkpointing(job: &Job) -> Vec<Level> {
    let set = |cost, label: &str, word: &str, to: Checkpointing| {
        level(cost, label, format!("--checkpoint {word}"), move |job| {
            job.strategy.checkpointing = to;
            Some(())
        })
    };
    match job.strategy.checkpointing {
        Checkpointing::Full => Vec::new(),
        Checkpointing::None | Checkpointing::AttentionCore => vec![
            set(2, "selective checkpointing", "selective", Checkpointing::Selective),
            set(3, "full checkpointing", "full", Checkpointing::Full),
        ],
        _ => vec![set(3, "full checkpointing", "full", Checkpointing::Full)],
    }
}

fn sharding(job: &Job) -> Vec<Level> {
    let layout = job.strategy.sharding;
    if layout.data < 2 {
        return Vec::new();
    }
    let set = |cost, label: &str, option: &str, to: ZeroStage| {
        level(cost, label, option, move |job| {
            job.strategy.sharding.zero = to;
            Some(())
        })
    };
    let one = || set(2, "ZeRO-1", "--zero 1", ZeroStage::One);
    let two = || set(3, "ZeRO-2", "--zero 2", ZeroStage::Two);
    let all = || set(4, "FSDP", "--fsdp", ZeroStage::Fsdp2);
    match layout.zero {
        ZeroStage::Ddp if layout.pipeline > 1 => vec![one()],
        ZeroStage::Ddp => vec![one(), two(), all()],
        ZeroStage::One | ZeroStage::DistributedOptimizer => vec![two(), all()],
        ZeroStage::Two => vec![all()],
        _ => Vec::new(),
    }
}

fn optimizers(t: &Training) -> Vec<Level> {
    if !matches!(t.optimizer, Optimizer::Adam | Optimizer::AdamW | Optimizer::PagedAdamW) {
        return Vec::new();
    }
    vec![
        train(5, "8-bit AdamW", "--optimizer adamw8bit", |t| t.optimizer = Optimizer::AdamW8bit),
        train(7, "Adafactor", "--optimizer adafactor", |t| t.optimizer = Optimizer::Adafactor),
    ]
}

fn offloading(job: &Job) -> Vec<Level> {
    let plan = job.strategy.offload;
    let mut levels = Vec::new();
    if !plan.optimizer {
        levels.push(level(6, "optimizer on the host", "--offload optimizer", |job| {
            job.strategy.offload.optimizer = true;
            Some(())
        }));
    }
    if !plan.parameters {
        levels.push(level(
            7,
            "optimizer and parameters on the host",
            "--offload optimizer,params",
            |job| {
                job.strategy.offload.optimizer = true;
                job.strategy.offload.parameters = true;
                Some(())
            },
        ));
    }
    levels
}

fn precision(t: &Training) -> Vec<Level> {
    let p = t.precision;
    if p.weights != DType::F32 || matches!(t.method, Method::Lora(_)) {
        return Vec::new();
    }
    vec![train(6, "everything in bf16", "--precision bf16", |t| {
        t.precision = Precision::pure(DType::Bf16);
    })]
}

fn adapters(t: &Training) -> Vec<Level> {
    let frozen = |base: Option<DType>| {
        move |t: &mut Training| {
            t.method = Method::Lora(Lora {
                base: base.map(WeightQuantization::of),
                ..match &t.method {
                    Method::Lora(lora) => lora.clone(),
                    _ => Lora::default(),
                }
            });
            t.precision = Precision { weights: DType::Bf16, ..Precision::autocast(DType::Bf16) };
        }
    };
    let qlora = || train(9, "QLoRA", "--finetune qlora", frozen(Some(DType::Nf4Dq)));
    match &t.method {
        Method::Lora(Lora { base: None, .. }) => vec![qlora()],
        Method::Lora(_) => Vec::new(),
        _ => vec![train(8, "LoRA", "--finetune lora", frozen(None)), qlora()],
    }
}

fn inference(job: &Job) -> Vec<Move> {
    let Some(Workload::Inference(now)) = job.workload.clone() else { return Vec::new() };
    let set = |cost,
               label: String,
               options: String,
               change: Box<dyn Fn(&mut plimsoll_estimate::request::Inference)>| {
        level(cost, label, options, move |job| match &mut job.workload {
            Some(Workload::Inference(i)) => {
                change(i);
                Some(())
            }
            _ => None,
        })
    };
    let mut moves = Vec::new();
    if now.attention == AttentionKernel::Eager {
        let sdpa = Box::new(|i: &mut plimsoll_estimate::request::Inference| {
            i.attention = AttentionKernel::Sdpa
        });
        moves.push(vec![set(1, "SDPA attention".into(), "--attention sdpa".into(), sdpa)]);
    }
    if now.weights.is_none() {
        moves.push(
            [(5, "int8", DType::Int8Row), (6, "nf4", DType::Nf4)]
                .into_iter()
                .map(|(cost, word, dtype)| {
                    let label = format!("{word} weights");
                    let change = Box::new(move |i: &mut plimsoll_estimate::request::Inference| {
                        i.weights = Some(dtype)
                    });
                    set(cost, label, format!("--weights {word}"), change)
                })
                .collect(),
        );
    }
    let batches = halvings(now.batch, 1).map(|n| {
        let change = Box::new(move |i: &mut plimsoll_estimate::request::Inference| i.batch = n);
        set(3, format!("batch {n}"), format!("--batch {n}"), change)
    });
    moves.push(batches.collect());
    let prompts = halvings(now.prompt, 128).take(6).map(|n| {
        let change = Box::new(move |i: &mut plimsoll_estimate::request::Inference| i.prompt = n);
        set(8, format!("prompt of {n} tokens"), format!("--seq {n}"), change)
    });
    moves.push(prompts.collect());
    let devices = job.machine.count;
    let ranks = std::iter::successors(Some(now.tensor * 2), |n| Some(n * 2))
        .take_while(|n| *n <= devices)
        .map(|n| {
            let change =
                Box::new(move |i: &mut plimsoll_estimate::request::Inference| i.tensor = n);
            set(2, format!("{n} tensor-parallel ranks"), format!("--tp {n}"), change)
        });
    moves.push(ranks.collect());
    moves.into_iter().map(|levels| Move { levels }).collect()
}

fn llama_cpp(job: &Job, now: &LlamaCpp) -> Vec<Move> {
    let set = |cost, label: String, options: String, change: Box<dyn Fn(&mut LlamaCpp)>| {
        level(cost, label, options, move |job| match &mut job.workload {
            Some(Workload::Serving(Serving::LlamaCpp(l))) => {
                change(l);
                Some(())
            }
            _ => None,
        })
    };
    let mut moves = Vec::new();
    if !now.flash_attention {
        moves.push(vec![set(
            1,
            "flash attention".into(),
            "--flash-attn on".into(),
            Box::new(|l| l.flash_attention = true),
        )]);
    }
    if now.cache_k == DType::F16 && now.cache_v == DType::F16 {
        let caches = [(3, "q8_0", DType::Q8_0), (5, "q4_0", DType::Q4_0)];
        moves.push(
            caches
                .into_iter()
                .map(|(cost, word, dtype)| {
                    let change = Box::new(move |l: &mut LlamaCpp| {
                        (l.cache_k, l.cache_v, l.flash_attention) = (dtype, dtype, true);
                    });
                    set(cost, format!("{word} KV cache"), format!("--cache-type {word}"), change)
                })
                .collect(),
        );
    }
    let batches = halvings(now.ubatch, 64).map(|n| {
        let change = Box::new(move |l: &mut LlamaCpp| l.ubatch = n);
        set(2, format!("physical batch {n}"), format!("--ubatch {n}"), change)
    });
    moves.push(batches.collect());
    let limit = job.model.as_ref().and_then(|m| m.architecture.max_positions);
    let context = now.context.or(limit).unwrap_or(0);
    let contexts = halvings(context, 512).take(10).map(|n| {
        let change = Box::new(move |l: &mut LlamaCpp| l.context = Some(n));
        set(6, format!("context {n}"), format!("--ctx {n}"), change)
    });
    moves.push(contexts.collect());
    moves.push(on_the_host(job, now, &set));
    moves.into_iter().map(|levels| Move { levels }).collect()
}

type SetLlama<'a> = dyn Fn(u32, String, String, Box<dyn Fn(&mut LlamaCpp)>) -> Level + 'a;

/// Routed experts, or whole layers, on the host: an eighth of the layers at a time.
fn on_the_host(job: &Job, now: &LlamaCpp, set: &SetLlama<'_>) -> Vec<Level> {
    let Some(model) = &job.model else { return Vec::new() };
    let layers = model.architecture.layers().count() as u64;
    let mixture = model
        .architecture
        .layers()
        .any(|layer| matches!(layer.ffn, plimsoll_model::arch::Ffn::Moe(_)));
    (1..=8u64)
        .map(|eighths| (layers * eighths).div_ceil(8))
        .filter(|n| *n > 0)
        .filter_map(|n| {
            if mixture {
                (n > now.offload.cpu_moe_layers).then(|| {
                    let change = Box::new(move |l: &mut LlamaCpp| l.offload.cpu_moe_layers = n);
                    set(
                        5,
                        format!("experts of {n} layers on the host"),
                        format!("--n-cpu-moe {n}"),
                        change,
                    )
                })
            } else {
                let kept = layers - n;
                (now.offload.gpu_layers.is_none_or(|have| kept < have)).then(|| {
                    let change =
                        Box::new(move |l: &mut LlamaCpp| l.offload.gpu_layers = Some(kept));
                    set(
                        7,
                        format!("{n} of {layers} layers on the host"),
                        format!("--ngl {kept}"),
                        change,
                    )
                })
            }
        })
        .collect()
}

fn vllm(now: &Vllm) -> Vec<Move> {
    let set = |cost, label: String, options: String, change: Box<dyn Fn(&mut Vllm)>| {
        level(cost, label, options, move |job| match &mut job.workload {
            Some(Workload::Serving(Serving::Vllm(v))) => {
                change(v);
                Some(())
            }
            _ => None,
        })
    };
    let mut moves = Vec::new();
    if !now.enforce_eager {
        moves.push(vec![set(
            3,
            "no CUDA graphs".into(),
            "--enforce-eager".into(),
            Box::new(|v| v.enforce_eager = true),
        )]);
    }
    if now.utilization_permille.is_none_or(|u| u < 950) {
        moves.push(vec![set(
            2,
            "95 % of the memory".into(),
            "--gpu-memory-utilization 0.95".into(),
            Box::new(|v| v.utilization_permille = Some(950)),
        )]);
    }
    if now.utilization_permille.is_none_or(|u| u > 850) {
        moves.push(vec![set(
            3,
            "85 % of the memory".into(),
            "--gpu-memory-utilization 0.85".into(),
            Box::new(|v| v.utilization_permille = Some(850)),
        )]);
    }
    if now.cache.is_none() {
        moves.push(vec![set(
            4,
            "fp8 KV cache".into(),
            "--kv-cache-dtype fp8".into(),
            Box::new(|v| v.cache = Some(DType::F8E4M3)),
        )]);
    }
    if now.weights.is_none() {
        moves.push(vec![set(
            6,
            "fp8 weights".into(),
            "--weights fp8".into(),
            Box::new(|v| v.weights = Some(DType::F8E4M3)),
        )]);
    }
    let lengths = [131_072u64, 65_536, 32_768, 16_384, 8_192, 4_096, 2_048];
    let shorter =
        lengths.into_iter().filter(|n| now.max_model_len.is_none_or(|now| *n < now)).map(|n| {
            let change = Box::new(move |v: &mut Vllm| v.max_model_len = Some(n));
            set(
                5,
                format!("sequences of at most {n} tokens"),
                format!("--max-model-len {n}"),
                change,
            )
        });
    moves.push(shorter.collect());
    let seqs = [128u64, 64, 32, 16, 8];
    let fewer = seqs.into_iter().filter(|n| now.max_num_seqs.is_none_or(|now| *n < now)).map(|n| {
        let change = Box::new(move |v: &mut Vllm| v.max_num_seqs = Some(n));
        set(3, format!("at most {n} sequences at a time"), format!("--max-num-seqs {n}"), change)
    });
    moves.push(fewer.collect());
    let tokens = [4_096u64, 2_048, 1_024];
    let smaller = tokens
        .into_iter()
        .filter(|n| now.max_num_batched_tokens.is_none_or(|now| *n < now))
        .map(|n| {
            let change = Box::new(move |v: &mut Vllm| v.max_num_batched_tokens = Some(n));
            set(3, format!("{n} tokens per step"), format!("--max-num-batched-tokens {n}"), change)
        });
    moves.push(smaller.collect());
    moves.into_iter().map(|levels| Move { levels }).collect()
}

fn sglang(now: &Sglang) -> Vec<Move> {
    let set = |cost, label: String, options: String, change: Box<dyn Fn(&mut Sglang)>| {
        level(cost, label, options, move |job| match &mut job.workload {
            Some(Workload::Serving(Serving::Sglang(s))) => {
                change(s);
                Some(())
            }
            _ => None,
        })
    };
    let mut moves = Vec::new();
    if now.cache.is_none() {
        moves.push(vec![set(
            4,
            "fp8 KV cache".into(),
            "--kv-cache-dtype fp8".into(),
            Box::new(|s| s.cache = Some(DType::F8E5M2)),
        )]);
    }
    if now.weights.is_none() {
        moves.push(vec![set(
            6,
            "fp8 weights".into(),
            "--weights fp8".into(),
            Box::new(|s| s.weights = Some(DType::F8E4M3)),
        )]);
    }
    let fractions = [900u64, 850, 800]
        .into_iter()
        .filter(|n| now.static_permille.is_none_or(|now| *n != now))
        .map(|n| {
            let change = Box::new(move |s: &mut Sglang| s.static_permille = Some(n));
            set(
                3,
                format!("{} % of the memory for weights and cache", n / 10),
                format!("--mem-fraction-static {}", crate::quantity::Fraction { permille: n }),
                change,
            )
        });
    moves.push(fractions.collect());
    let chunks = [4_096u64, 2_048]
        .into_iter()
        .filter(|n| now.chunked_prefill.is_none_or(|now| *n < now))
        .map(|n| {
            let change = Box::new(move |s: &mut Sglang| s.chunked_prefill = Some(n));
            set(
                3,
                format!("prefill in chunks of {n} tokens"),
                format!("--chunked-prefill-size {n}"),
                change,
            )
        });
    moves.push(chunks.collect());
    moves.into_iter().map(|levels| Move { levels }).collect()
}

/// The next bigger GPUs of the catalogue.
fn bigger_machine(job: &Job) -> Move {
    if job.machine.free.is_some() || job.machine.slice.is_some() {
        return Move { levels: Vec::new() };
    }
    let count = job.machine.count;
    let levels = machine::bigger(&job.machine).into_iter().map(|id| {
        let text = if count == 1 { id.clone() } else { format!("{id}*{count}") };
        let quoted = if count == 1 { text.clone() } else { format!("'{text}'") };
        let label = if count == 1 { format!("one {id}") } else { format!("{count} {id}") };
        level(9, label, format!("--gpu {quoted}"), move |job| {
            job.machine = machine::machine(&text, None).ok()?;
            Some(())
        })
    });
    Move { levels: levels.collect() }
}

/// Two, four or eight of the same GPU.
fn more_machines(job: &Job) -> Move {
    let single =
        job.machine.count == 1 && job.machine.slice.is_none() && job.machine.free.is_none();
    if !single {
        return Move { levels: Vec::new() };
    }
    let label_of = job.machine.label();
    let counts = [2u64, 4, 8];
    let levels = counts.into_iter().filter_map(|n| {
        let text = format!("{label_of}*{n}");
        let (options, label) = match &job.workload {
            Some(Workload::Training(_)) => {
                (format!("--gpu '{text}' --fsdp"), format!("FSDP over {n} GPUs"))
            }
            Some(Workload::Serving(Serving::LlamaCpp(_))) => {
                (format!("--gpu '{text}'"), format!("{n} GPUs"))
            }
            Some(_) => (format!("--gpu '{text}' --tp {n}"), format!("{n} tensor-parallel GPUs")),
            None => return None,
        };
        Some(level(9, label, options, move |job| {
            job.machine = machine::machine(&text, None).ok()?;
            match &mut job.workload {
                Some(Workload::Training(_)) => {
                    job.strategy.sharding.data = n;
                    job.strategy.sharding.zero = ZeroStage::Fsdp2;
                }
                Some(Workload::Inference(i)) => i.tensor = n,
                Some(Workload::Serving(Serving::Vllm(v))) => v.tensor = n,
                Some(Workload::Serving(Serving::Sglang(s))) => s.tensor = n,
                _ => {}
            }
            Some(())
        }))
    });
    Move { levels: levels.collect() }
}
