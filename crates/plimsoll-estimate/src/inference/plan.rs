//! From the request to sizes and types: what runs over how many positions, in which types, with which kernels.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Embedding, Mixer, ModelKind, NormKind, Positions, Stack, StackRole};
use plimsoll_model::build::{
    AttentionStyle, BuildOptions, FrozenBase, LossStyle, SoftmaxStyle, Style, Trainable,
};
use plimsoll_units::{Bindings, DType, Symbol};

use crate::request::{AttentionKernel, Inference};
use crate::{Device, EstimateError};

/// Start token, language, task and time stamps of Whisper.
const SPEECH_PROMPT: u64 = 4;

/// How a request is run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub options: BuildOptions,
    /// Activations and unquantized weights.
    pub compute: DType,
    /// Weights quantized on load.
    pub online: Option<DType>,
    pub cache: DType,
    /// Elements of one rotary table per position.
    pub rotary: u64,
    /// A mask is made for written-out attention.
    pub mask: bool,
    /// SDPA has no fused kernel for this and computes scores in memory.
    pub math: bool,
    kind: ModelKind,
    /// The symbol of the generating stack's positions.
    symbol: Symbol,
    /// The generating stack attends to an earlier one: of so many positions, where they are fixed.
    memory: Option<Option<u64>>,
}

/// Sizes of the passes over the prompt, or of one decoded token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub body: Bindings,
    pub logits: Bindings,
    pub keys: u64,
    pub decoding: bool,
}

impl Plan {
    pub fn new(model: &Architecture, request: &Inference, device: &Device) -> Plan {
        let published = computed_in(model.dtype).unwrap_or(DType::Bf16);
        let compute = request.dtype.map_or(published, |d| computed_in(d).unwrap_or(published));
        // A storage type given as the type of the weights means weights stored in it.
        let stored = request.dtype.filter(|d| computed_in(*d).is_none());
        let online = request.weights.filter(|d| *d != compute).or(stored);
        let base = model.quantization.as_ref().map(|q| q.dtype).or(online);
        let grouped = main(model).is_some_and(grouped);
        let (attention, math) = attention(request, compute, grouped, device);
        let rms = model
            .main_stack()
            .is_some_and(|s| s.layers.first().is_some_and(|l| l.norm.kind == NormKind::Rms));
        let softmax = if rms { SoftmaxStyle::Upcast } else { SoftmaxStyle::Native };
        let running: Vec<&Stack> =
            model.stacks.iter().filter(|s| s.role != StackRole::Draft).collect();
        let cross = main(model).is_some_and(|s| s.layers.iter().any(|l| l.cross.is_some()));
        let symbol =
            if cross && model.stacks.len() > 1 { Symbol::Context } else { Symbol::Sequence };
        let before = running.len().checked_sub(2).and_then(|i| running.get(i));
        let memory = before.filter(|_| cross).map(|s| s.patch.as_ref().map(|p| p.tokens.max(1)));
        let rotary = match model.embedding {
            Some(Embedding { positions: Positions::Rotary { dim }, .. }) => dim,
            _ => 0,
        };
        Plan {
            options: BuildOptions {
                weights: compute,
                compute,
                attention,
                style: Style { softmax, ..Style::default() },
                trainable: Trainable::Nothing,
                // bitsandbytes writes a 16-bit copy of a 4-bit matrix for more than one row of input; other methods
                // multiply what is stored.
                base: base.map(|dtype| FrozenBase {
                    dtype,
                    dequantizes: matches!(dtype, DType::Nf4 | DType::Nf4Dq),
                    written_as: None,
                    keeps_inputs: false,
                }),
                loss: LossStyle::Nothing,
                tensor: request.tensor.max(1),
                ..BuildOptions::default()
            },
            compute,
            online,
            cache: request.cache.unwrap_or(compute),
            rotary,
            mask: attention == AttentionStyle::Eager && !math,
            math,
            kind: model.kind,
            symbol,
            memory,
        }
    }

    /// Positions that the generating stack sees in its first pass.
    pub fn prompt(&self, request: &Inference) -> u64 {
        match (self.kind, self.symbol) {
            (ModelKind::SpeechSeq2Seq, Symbol::Context) => SPEECH_PROMPT,
            (ModelKind::EncoderDecoderLm, Symbol::Context) => 1,
            _ => request.prompt,
        }
    }

    /// Positions that cross-attention attends to; 0 for none.
    pub fn memory(&self, request: &Inference) -> u64 {
        self.memory.map_or(0, |fixed| fixed.unwrap_or(request.prompt))
    }

    /// The pass over the prompt.
    pub fn prefill(&self, request: &Inference) -> Stage {
        let prompt = self.prompt(request);
        let body = Bindings::tokens(request.batch, request.prompt).with(self.symbol, prompt);
        let generates = matches!(
            self.kind,
            ModelKind::CausalLm
                | ModelKind::VisionLanguage
                | ModelKind::EncoderDecoderLm
                | ModelKind::SpeechSeq2Seq
        );
        let last = generates && !request.all_logits;
        let logits = if last { body.with(self.symbol, 1) } else { body };
        Stage { body, logits, keys: prompt, decoding: false }
    }

    /// The pass over one token, with `keys` positions in the cache after it.
    pub fn decode(&self, request: &Inference, keys: u64) -> Stage {
        let body = Bindings::tokens(request.batch, request.prompt).with(self.symbol, 1);
        Stage { body, logits: body, keys, decoding: true }
    }
}

/// The type itself where products are computed in it.
fn computed_in(dtype: DType) -> Option<DType> {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16 | DType::F64).then_some(dtype)
}

/// The stack that runs last.
fn main(model: &Architecture) -> Option<&Stack> {
    model.stacks.iter().rfind(|s| s.role != StackRole::Draft)
}

/// Queries have more heads than keys.
fn grouped(stack: &Stack) -> bool {
    stack.layers.iter().any(|l| match &l.mixer {
        Mixer::Attention(a) => a.kv_heads < a.heads,
        Mixer::Parallel(a, _) => a.kv_heads < a.heads,
        _ => false,
    })
}

/// The kernel, and whether SDPA falls back to scores in memory. Its flash kernel needs 16 bits and compute capability
/// 8.0; its memory-efficient kernel needs as many key as query heads, and Transformers leaves the copies to SDPA where
/// there is no mask.
fn attention(
    request: &Inference,
    compute: DType,
    grouped: bool,
    device: &Device,
) -> (AttentionStyle, bool) {
    let flash = matches!(compute, DType::F16 | DType::Bf16)
        && device.compute_capability.is_none_or(|(major, _)| major >= 8);
    match request.attention {
        AttentionKernel::Eager => (AttentionStyle::Eager, false),
        AttentionKernel::SdpaMath => (AttentionStyle::Eager, true),
        AttentionKernel::SdpaEfficient => (AttentionStyle::Efficient, false),
        AttentionKernel::Sdpa if flash => (AttentionStyle::Flash, false),
        AttentionKernel::Sdpa if grouped => (AttentionStyle::Eager, true),
        AttentionKernel::Sdpa => (AttentionStyle::Efficient, false),
        AttentionKernel::Flash | AttentionKernel::Flex => (AttentionStyle::Flash, false),
    }
}

/// What contradicts the model or makes no sense.
pub(super) fn validate(model: &Architecture, request: &Inference) -> Result<(), EstimateError> {
    for (field, value, accepted, cure) in [
        ("batch", request.batch, "a batch has at least 1 sequence", "use --batch 1"),
        ("seq", request.prompt, "a prompt has at least 1 token", "use --seq 2048"),
        ("tp", request.tensor, "there is at least 1 tensor-parallel rank", "use --tp 1"),
    ] {
        if value == 0 {
            return Err(EstimateError::Invalid {
                field,
                value: "0".to_owned(),
                accepted: accepted.to_owned(),
                cure: cure.to_owned(),
            });
        }
    }
    let stored = model.quantization.as_ref().map(|q| q.dtype).or(request.weights);
    if let (Some(sparsity), Some(stored)) = (request.sparsity, stored)
        && !sparsity.suits(stored)
    {
        return Err(EstimateError::Invalid {
            field: "sparsity",
            value: format!("given with weights in {stored}"),
            accepted: "for 16-bit and 32-bit weights (2:4 for fp8 and int8 too)".to_owned(),
            cure: "leave out --sparsity or --weights".to_owned(),
        });
    }
    let heads = main(model).and_then(|s| {
        s.layers.iter().find_map(|l| match &l.mixer {
            Mixer::Attention(a) => Some(a.heads),
            Mixer::Parallel(a, _) => Some(a.heads),
            Mixer::Latent(a) => Some(a.heads),
            _ => None,
        })
    });
    let tensor = request.tensor;
    let Some(heads) = heads.filter(|h| !h.is_multiple_of(tensor)) else { return Ok(()) };
    let nearest = (1..=tensor.min(heads)).rev().find(|t| heads.is_multiple_of(*t)).unwrap_or(1);
    Err(EstimateError::Invalid {
        field: "tp",
        value: tensor.to_string(),
        accepted: format!("it must divide the {heads} attention heads"),
        cure: format!("use --tp {nearest}"),
    })
}
