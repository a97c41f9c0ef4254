//! From the request to the graph: which operators an implementation runs. The presets say what the named projects do
//! in their own code; each is a fact about that code, not a fit.

use plimsoll_model::arch::{ModelKind, NormKind};
use plimsoll_model::build::{
    Adapters, AttentionStyle, BuildOptions, FrozenBase, HeldLogits, LossStyle, NormStyle,
    RotaryStyle, SoftmaxStyle, Style, Trainable,
};
use plimsoll_model::graph::Hold;
use plimsoll_model::{Architecture, Part};
use plimsoll_units::DType;

use super::params::Shards;
use crate::EstimateError;
use crate::request::{
    AdapterKind, AttentionKernel, Checkpointing, Lora, LoraTargets, Loss, Method, Stack, Strategy,
    Training, WeightQuantization, ZeroStage,
};

/// How the graph of `model` is built for this request.
pub fn build_options(
    model: &Architecture,
    training: &Training,
    strategy: &Strategy,
) -> BuildOptions {
    let precision = &training.precision;
    let (adapters, base) = match &training.method {
        Method::Lora(lora) => {
            (Some(adapters(lora, training, strategy)), lora.base.map(|b| frozen_base(b, training)))
        }
        _ => (None, None),
    };
    let trainable = match &training.method {
        Method::Full => Trainable::All,
        Method::Lora(lora) => Trainable::Adapters { embeddings: lora.train_embeddings },
        Method::LastLayers { layers } => Trainable::Last(*layers),
    };
    let sharding = &strategy.sharding;
    let autocast = precision.autocast;
    let mixed_shards = Shards::of(sharding.zero).parameters && sharding.data > 1;
    BuildOptions {
        // Without autocast, layers see weights in the compute type (Megatron's copies), and so they do under FSDP, whose
        // mixed precision casts shards as it gathers them and casts inputs too.
        weights: if autocast && !mixed_shards { precision.weights } else { precision.compute },
        compute: precision.compute,
        autocast,
        fp8: precision.fp8,
        attention: attention(training),
        style: style(model, training),
        trainable,
        adapters,
        base,
        // Fabric's bitsandbytes plugin replaces every linear layer; Transformers leaves the head out.
        quantize_head: training.stack == Stack::LitGpt,
        dropout: training.dropout,
        loss: loss(model, training),
        widens_outputs: autocast
            && matches!(
                training.stack,
                Stack::Transformers | Stack::TransformersFused | Stack::TransformersLiger
            ),
        // Fabric returns outputs in torch's default type.
        wide_logits: training.stack == Stack::LitGpt,
        hold_logits: match training.stack {
            _ if training.loss == Loss::Returned => Some(Hold::Backward),
            Stack::Transformers if own_loss(model) => Some(Hold::Backward),
            Stack::TransformersFused if training.loss == Loss::Fused => Some(Hold::Backward),
            // LitGPT's pretraining takes the loss in a function that returns it; its fine-tuning has `logits = model(x)`
            // in the loop.
            Stack::LitGpt if whole_logits(training) => None,
            Stack::LitGpt => Some(Hold::Reassigned),
            Stack::Torchtune if whole_logits(training) => Some(Hold::Backward),
            // `logits = model(x)` in the loop.
            Stack::Plain | Stack::Torch => Some(Hold::Backward),
            // The output object of a Transformers model, dropped when the trainer returns the loss.
            Stack::Transformers
            | Stack::TransformersFused
            | Stack::TransformersLiger
            | Stack::Foundry => Some(Hold::Forward),
            _ => None,
        },
        held: match training.loss {
            Loss::Returned => HeldLogits::Widened,
            Loss::Shifted { in_model: true } if !own_loss(model) => HeldLogits::Widened,
            _ if training.stack == Stack::Torchtune => HeldLogits::Shifted,
            _ => HeldLogits::Made,
        },
        tensor: sharding.tensor.max(1),
        sequence_parallel: sharding.sequence,
        loss_parallel: sharding.loss_parallel || training.stack == Stack::Megatron,
        expert: sharding.expert.max(1),
        expert_tensor: training.stack == Stack::Megatron,
        imbalance_permille: sharding.expert_imbalance_permille,
    }
}

/// What contradicts the model.
pub(super) fn validate(
    model: &Architecture,
    training: &Training,
    strategy: &Strategy,
) -> Result<(), EstimateError> {
    let invalid = |field, value: String, accepted: &str, cure: &str| {
        Err(EstimateError::Invalid {
            field,
            value,
            accepted: accepted.to_owned(),
            cure: cure.to_owned(),
        })
    };
    if training.batch == 0 {
        return invalid(
            "batch",
            "0".into(),
            "a micro-batch has at least 1 sequence",
            "use --batch 1",
        );
    }
    if training.sequence == 0 {
        return invalid("seq", "0".into(), "a sequence has at least 1 token", "use --seq 2048");
    }
    if let Method::Lora(lora) = &training.method
        && lora.rank == 0
        && lora.kind == AdapterKind::LowRank
    {
        return invalid("rank", "0".into(), "a rank of at least 1", "use --rank 16");
    }
    let s = &strategy.sharding;
    let layers = model.layers().count() as u64;
    if let Method::LastLayers { layers: last } = &training.method
        && *last > layers
    {
        return invalid(
            "last-layers",
            last.to_string(),
            &format!("at most the {layers} layers of the model"),
            "leave it out to train every layer and the embeddings",
        );
    }
    if s.pipeline > layers.max(1) {
        return invalid(
            "pp",
            s.pipeline.to_string(),
            &format!("at most one stage per layer ({layers})"),
            "use fewer pipeline stages",
        );
    }
    offload_is_possible(strategy)?;
    if let (Some(_), Method::Lora(_)) = (training.sparsity, &training.method) {
        return invalid(
            "sparsity",
            "given with adapters".into(),
            "for weights that learn",
            "use --train, or --infer for pruned weights that are served",
        );
    }
    for (field, value) in
        [("tp", s.tensor), ("pp", s.pipeline), ("dp", s.data), ("cp", s.context), ("ep", s.expert)]
    {
        if value == 0 {
            return invalid(
                field,
                "0".into(),
                "a degree of at least 1",
                "leave the option out or use 1",
            );
        }
    }
    tensor_divides(model, s.tensor)
}

/// NVMe takes what ZeRO-3 offloads, and only checkpoints are offloaded of the activations.
fn offload_is_possible(strategy: &Strategy) -> Result<(), EstimateError> {
    let invalid = |value: &str, accepted: &str, cure: &str| {
        Err(EstimateError::Invalid {
            field: "offload",
            value: value.to_owned(),
            accepted: accepted.to_owned(),
            cure: cure.to_owned(),
        })
    };
    let offload = &strategy.offload;
    if offload.nvme && !(offload.optimizer || offload.parameters) {
        return invalid("nvme", "optimizer or params with it", "use --offload optimizer,nvme");
    }
    if offload.nvme && strategy.sharding.zero != ZeroStage::Three {
        return invalid("nvme", "DeepSpeed's ZeRO-3 with it", "add --zero 3");
    }
    let checkpoints =
        !matches!(strategy.checkpointing, Checkpointing::None | Checkpointing::AttentionCore);
    if offload.activations && !checkpoints {
        return invalid("activations", "checkpointing with it", "add --checkpoint full");
    }
    Ok(())
}

/// Heads must divide among tensor ranks; the error names the nearest degrees that do.
fn tensor_divides(model: &Architecture, tensor: u64) -> Result<(), EstimateError> {
    use plimsoll_model::arch::Mixer;
    let heads = model.layers().find_map(|l| match &l.mixer {
        Mixer::Attention(a) => Some(a.heads),
        Mixer::Parallel(a, _) => Some(a.heads),
        Mixer::Latent(a) => Some(a.heads),
        _ => None,
    });
    let Some(heads) = heads.filter(|h| tensor > 1 && h % tensor != 0) else { return Ok(()) };
    let below = (1..tensor).rev().find(|t| heads % t == 0).unwrap_or(1);
    let above = (tensor + 1..=heads).find(|t| heads % t == 0);
    let nearest = above.map_or(below.to_string(), |a| format!("{below} or {a}"));
    Err(EstimateError::Invalid {
        field: "tp",
        value: tensor.to_string(),
        accepted: format!("a divisor of the {heads} attention heads"),
        cure: format!("use --tp {nearest}"),
    })
}

fn attention(training: &Training) -> AttentionStyle {
    match training.attention {
        AttentionKernel::Eager | AttentionKernel::SdpaMath => AttentionStyle::Eager,
        AttentionKernel::SdpaEfficient => AttentionStyle::Efficient,
        _ if training.stack == Stack::Megatron => AttentionStyle::Cudnn,
        // The flash kernel needs 16-bit inputs; SDPA falls back to the memory-efficient one.
        AttentionKernel::Sdpa if training.precision.compute == DType::F32 => {
            AttentionStyle::Efficient
        }
        AttentionKernel::Sdpa | AttentionKernel::Flash | AttentionKernel::Flex => {
            AttentionStyle::Flash
        }
    }
}

fn style(model: &Architecture, training: &Training) -> Style {
    let rms = model
        .main_stack()
        .is_some_and(|s| s.layers.first().is_some_and(|l| l.norm.kind == NormKind::Rms));
    let softmax = match training.stack {
        Stack::Plain => SoftmaxStyle::Composed,
        _ if rms => SoftmaxStyle::Upcast,
        _ => SoftmaxStyle::Native,
    };
    let plain = Style { softmax, ..Style::default() };
    let fused = Style {
        norm: NormStyle::Fused,
        rotary: RotaryStyle::Fused,
        fused_swiglu: true,
        softmax,
        ..Style::default()
    };
    // Transformers copies K and V to all query heads before SDPA; flash-attn takes them as they are.
    let repeats = training.attention != AttentionKernel::Flash;
    let style = match training.stack {
        Stack::Transformers => Style { repeat_kv: repeats, ..plain },
        Stack::TransformersFused => Style { repeat_kv: repeats, fused_swiglu: false, ..fused },
        Stack::TransformersLiger => Style { repeat_kv: repeats, ..fused },
        Stack::Torchtitan | Stack::Torchtune => {
            Style { rotary: RotaryStyle::Complex, repeat_kv: true, fused_bias: true, ..plain }
        }
        Stack::LitGpt => Style {
            repeat_kv: true,
            fused_qkv: true,
            fused_bias: true,
            splits_gate_up: true,
            context_copy: true,
            ..plain
        },
        Stack::Megatron => Style { fused_bias: true, regather: true, ..fused },
        Stack::Foundry => Style { fused_bias: true, ..plain },
        Stack::Plain => Style { composed_silu: true, ..plain },
        Stack::Torch => plain,
    };
    // Inductor fuses norms, rotary and the gated product, and recomputes them from their inputs.
    if training.compile { Style { repeat_kv: style.repeat_kv, ..fused } } else { style }
}

fn loss(model: &Architecture, training: &Training) -> LossStyle {
    let text = !matches!(
        model.kind,
        ModelKind::ImageClassifier | ModelKind::Contrastive | ModelKind::Encoder
    );
    let tokens = training.batch.saturating_mul(training.sequence);
    // LitGPT's full fine-tuning shifts whole logits by a slice, which a batch makes a copy; its adapter scripts project
    // and shift piece by piece.
    let shifted_copy = training.stack == Stack::LitGpt
        && training.method == Method::Full
        && training.batch > 1
        && !whole_logits(training);
    let chunked = |tokens, upcast| LossStyle::Chunked {
        tokens,
        upcast,
        recomputes: training.compile,
        shifted_copy,
    };
    match training.loss {
        Loss::CrossEntropy | Loss::Shifted { .. }
            if training.stack == Stack::Transformers && own_loss(model) =>
        {
            LossStyle::CrossEntropy { upcast: false, shifted_copy: true }
        }
        _ if !text => LossStyle::CrossEntropy { upcast: false, shifted_copy: false },
        // The slice of one sequence is contiguous.
        Loss::Shifted { .. } => {
            LossStyle::CrossEntropy { upcast: true, shifted_copy: training.batch > 1 }
        }
        Loss::Classification => LossStyle::CrossEntropy { upcast: false, shifted_copy: false },
        Loss::Fused if training.stack == Stack::TransformersFused => LossStyle::FusedUpcast,
        Loss::Fused => LossStyle::Fused,
        Loss::FusedLinear => LossStyle::FusedLinear { chunk: 0 },
        Loss::VocabularyParallel => LossStyle::InPlaceUpcast,
        Loss::Returned => LossStyle::CrossEntropy { upcast: true, shifted_copy: false },
        // torchtune before its chunked loss (0.3): F32 logits, shifted by hand in the loop.
        Loss::Chunked { .. } if training.stack == Stack::Torchtune && whole_logits(training) => {
            LossStyle::CrossEntropy { upcast: true, shifted_copy: true }
        }
        Loss::Chunked { tokens } => chunked(tokens, training.stack != Stack::LitGpt),
        Loss::CrossEntropy => match training.stack {
            Stack::Megatron => LossStyle::InPlaceUpcast,
            Stack::LitGpt => chunked(128, false),
            // torchtune's default loss splits the tokens into 8 pieces.
            Stack::Torchtune => chunked(tokens.div_ceil(8), true),
            Stack::Plain | Stack::Torch | Stack::Foundry => {
                LossStyle::CrossEntropy { upcast: false, shifted_copy: false }
            }
            _ => LossStyle::CrossEntropy { upcast: true, shifted_copy: false },
        },
    }
}

/// Whether a framework that can take the loss in pieces takes it over all logits at once: LitGPT's pretraining scripts,
/// early torchtune.
fn whole_logits(training: &Training) -> bool {
    matches!(training.loss, Loss::Chunked { tokens }
        if tokens >= training.batch.saturating_mul(training.sequence))
}

/// How frozen matrices are stored. Fabric's bitsandbytes plugin makes blocks of F16 copies of the weights, and so the
/// kernel dequantizes to F16.
fn frozen_base(base: WeightQuantization, training: &Training) -> FrozenBase {
    let fabric = training.stack == Stack::LitGpt && matches!(base.dtype, DType::Nf4 | DType::Nf4Dq);
    FrozenBase {
        dtype: base.dtype,
        dequantizes: base.dequantizes,
        written_as: fabric.then_some(DType::F16),
        keeps_inputs: base.keeps_inputs,
    }
}

/// Families whose own forward writes the loss on a shifted copy of the logits without an F32 copy: remote code and
/// `gpt_bigcode`.
fn own_loss(model: &Architecture) -> bool {
    matches!(
        model.family.as_str(),
        "gpt_bigcode" | "qwen" | "chatglm" | "baichuan" | "internlm" | "minicpm" | "mpt"
    )
}

fn adapters(lora: &Lora, training: &Training, strategy: &Strategy) -> Adapters {
    let stack = training.stack;
    // DeepSpeed casts the whole module to the type it trains in.
    let dtype = match super::zero::runs(training, strategy) {
        true => training.precision.weights,
        false => lora.dtype,
    };
    Adapters {
        kind: lora.kind,
        rank: lora.rank,
        parts: lora_parts(&lora.targets),
        dtype,
        dropout: lora.dropout,
        casts_input: matches!(
            stack,
            Stack::Transformers | Stack::TransformersFused | Stack::TransformersLiger
        ),
        dora: lora.dora,
    }
}

/// The parts that targets name; a fused matrix counts as what it contains.
fn lora_parts(targets: &LoraTargets) -> Vec<Part> {
    use Part::*;
    let attention = [Query, Key, Value, Qkv, QueryDown, QueryUp, KvDown, KvUp];
    match targets {
        LoraTargets::QueryValue => vec![Query, Value, Qkv],
        LoraTargets::QueryKeyValue => vec![Query, Key, Value, Qkv],
        LoraTargets::Attention => attention.into_iter().chain([Output]).collect(),
        LoraTargets::AllLinear => attention
            .into_iter()
            .chain([
                Output,
                Gate,
                Up,
                GateUp,
                Down,
                SharedGate,
                SharedUp,
                SharedDown,
                CrossQuery,
                CrossKey,
                CrossValue,
                CrossOutput,
                SsmIn,
                SsmIn2,
                SsmOut,
                SsmX,
                ExpertGate,
                ExpertUp,
                ExpertGateUp,
                ExpertDown,
            ])
            .collect(),
        LoraTargets::Names(names) => names.iter().flat_map(|n| parts_of_name(n)).collect(),
    }
}

/// Parts by the usual last component of a module's name.
fn parts_of_name(name: &str) -> Vec<Part> {
    use Part::*;
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    match last.as_str() {
        // LitGPT names what one fused matrix holds.
        "query" => vec![Query, Qkv],
        "key" => vec![Key, Qkv],
        "value" => vec![Value, Qkv],
        "lm_head" | "head" => vec![Head],
        "q_proj" | "q" | "wq" | "q_lin" => vec![Query],
        "k_proj" | "k" | "wk" | "k_lin" => vec![Key],
        "v_proj" | "v" | "wv" | "v_lin" => vec![Value],
        "c_attn" | "query_key_value" | "qkv_proj" | "wqkv" | "w_pack" | "qkv" | "attn" => {
            vec![Qkv, Query, Key, Value]
        }
        // `c_proj` is the output of attention and, in GPT-2 and Qwen, of the feed-forward part too.
        "c_proj" => vec![Output, Down],
        "o_proj" | "dense" | "out_proj" | "output_proj" | "o" | "wo" | "out_lin" | "projection"
        | "proj" => {
            vec![Output]
        }
        "gate_proj" | "gate" | "fc_1" | "w2" => vec![Gate],
        "up_proj" | "up" | "fc_2" | "w1" | "c_fc" | "fc1" | "dense_h_to_4h" | "fc" | "wi"
        | "wi_1" => {
            vec![Up]
        }
        "gate_up_proj" => vec![GateUp],
        "down_proj" | "down" | "w3" | "dense_4h_to_h" | "fc2" => vec![Down],
        "mlp" => vec![Gate, Up, GateUp, Down],
        "in_proj" => vec![SsmIn],
        "x_proj" => vec![SsmX],
        _ => Vec::new(),
    }
}
