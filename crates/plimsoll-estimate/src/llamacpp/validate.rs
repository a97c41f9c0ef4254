//! What llama.cpp would refuse, before any number is made up.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Attention, Ffn, Layer, Mamba2, Mixer, Mlp, ModelKind};
use plimsoll_units::DType;

use crate::device::Device;
use crate::error::EstimateError;
use crate::request::LlamaCpp;

/// Longest context that is taken seriously: 2^28 tokens.
const LONGEST: u64 = 1 << 28;
/// Most sequences at a time that are accepted.
pub const MOST_SEQUENCES: u64 = 4096;
/// Largest physical batch that is accepted, in tokens.
pub const LARGEST_UBATCH: u64 = 1 << 20;
/// Largest number of layers that a graph is built for.
const DEEPEST: usize = 1024;

fn invalid(field: &'static str, value: impl ToString, accepted: &str, cure: &str) -> EstimateError {
    EstimateError::Invalid {
        field,
        value: value.to_string(),
        accepted: accepted.to_owned(),
        cure: cure.to_owned(),
    }
}

fn range(
    field: &'static str,
    value: u64,
    low: u64,
    high: u64,
    cure: &str,
) -> Result<(), EstimateError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(invalid(field, value, &format!("it must lie between {low} and {high}"), cure))
}

/// Types that llama.cpp accepts for a cache.
const CACHE_TYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Iq4Nl,
    DType::Q5_0,
    DType::Q5_1,
];

/// Largest width of anything in a layer; products of three still fit 64 bits.
const WIDEST: u64 = 1 << 20;
/// Most experts that a token visits.
const MOST_CHOSEN: u64 = 256;
/// Largest vocabulary.
const LARGEST_VOCABULARY: u64 = 1 << 28;

/// The first width beyond what a graph is built for.
fn too_wide(model: &Architecture, layers: &[Layer]) -> Option<(&'static str, u64)> {
    let mlp = |m: &Mlp| vec![("the feed-forward width", m.width)];
    let attention = |a: &Attention| {
        vec![
            ("the number of heads", a.heads),
            ("the number of KV heads", a.kv_heads),
            ("the head size", a.head_dim),
            ("the value size", a.value_dim),
        ]
    };
    let mamba2 = |m: &Mamba2| {
        vec![
            ("the inner width", m.inner),
            ("the state size", m.state),
            ("the number of groups", m.groups),
            ("the convolution", m.conv),
        ]
    };
    let of_layer = |l: &Layer| {
        let mut widths = match &l.mixer {
            Mixer::Attention(a) => attention(a),
            Mixer::Latent(a) => vec![
                ("the number of heads", a.heads),
                ("the latent rank", a.kv_lora_rank),
                ("the query rank", a.q_lora_rank.unwrap_or(0)),
                ("the head size", a.nope_dim.max(a.rope_dim).max(a.value_dim)),
            ],
            Mixer::Mamba1(m) => vec![
                ("the inner width", m.inner),
                ("the state size", m.state.max(m.dt_rank)),
                ("the convolution", m.conv),
            ],
            Mixer::Mamba2(m) => mamba2(m),
            Mixer::GatedDelta(d) => vec![
                ("the number of heads", d.key_heads.max(d.value_heads)),
                ("the head size", d.key_dim.max(d.value_dim)),
                ("the convolution", d.conv),
            ],
            Mixer::ShortConv { kernel, .. } => vec![("the convolution", *kernel)],
            Mixer::Parallel(a, m) => [attention(a), mamba2(m)].concat(),
            _ => Vec::new(),
        };
        match &l.ffn {
            Ffn::Dense(m) => widths.extend(mlp(m)),
            Ffn::Moe(m) => {
                widths.extend(mlp(&m.expert));
                widths.extend(m.shared.iter().flat_map(mlp));
                widths.push(("the number of experts", m.experts));
            }
            _ => {}
        }
        widths
    };
    let own = [("the hidden size", model.hidden)];
    let vocabulary = model.embedding.as_ref().map_or(0, |e| e.vocab).max(model.head.outputs);
    if vocabulary > LARGEST_VOCABULARY {
        return Some(("the vocabulary", vocabulary));
    }
    // Each chosen expert is an operator of the graph.
    let chosen = layers.iter().find_map(|l| match &l.ffn {
        Ffn::Moe(m) if m.top_k > MOST_CHOSEN => Some(m.top_k),
        _ => None,
    });
    if let Some(n) = chosen {
        return Some(("the number of experts per token", n));
    }
    own.into_iter().chain(layers.iter().flat_map(of_layer)).find(|(_, w)| *w > WIDEST)
}

/// The layers of the text stack, if model and request can run.
pub(super) fn check<'a>(
    model: &'a Architecture,
    request: &LlamaCpp,
    device: &Device,
) -> Result<&'a [Layer], EstimateError> {
    let unsupported = |reason: &str, cure: &str| EstimateError::UnsupportedModel {
        engine: "llama.cpp",
        family: model.family.clone(),
        reason: reason.to_owned(),
        cure: cure.to_owned(),
    };
    let stack = model
        .main_stack()
        .filter(|_| !matches!(model.kind, ModelKind::Contrastive | ModelKind::SpeechSeq2Seq))
        .filter(|_| model.embedding.is_some())
        .ok_or_else(|| {
            unsupported(
                "it has no text stack that llama.cpp runs",
                "choose a language or embedding model",
            )
        })?;
    if matches!(super::gguf_family(&model.family), "deepseek4" | "deepseek_v4") {
        return Err(unsupported(
            "its compressed caches are not modelled yet",
            "estimate it for vLLM or SGLang, or read the buffer sizes of a short run",
        ));
    }
    if stack.layers.is_empty() || stack.layers.len() > DEEPEST {
        return Err(unsupported(
            &format!(
                "it has {} layers, and graphs are built for 1 to {DEEPEST}",
                stack.layers.len()
            ),
            "check the configuration",
        ));
    }
    if let Some((what, width)) = too_wide(model, &stack.layers) {
        return Err(unsupported(
            &format!("{what} is {width}, more than any graph is built for"),
            "check the configuration",
        ));
    }
    if let Some(context) = request.context {
        range("context", context, 1, LONGEST, "set the context size in tokens, such as 8192")?;
    }
    range("ubatch", request.ubatch, 1, LARGEST_UBATCH, "the default is 512")?;
    range("batch", request.batch, 1, 1 << 24, "the default is 2048")?;
    range("sequences", request.sequences, 1, MOST_SEQUENCES, "the default is 1")?;
    range("draft", request.draft, 0, 1024, "the default is 0")?;
    range("devices", device.count, 1, 64, "name at least one device")?;
    for (field, dtype) in [("cache_k", request.cache_k), ("cache_v", request.cache_v)] {
        if !CACHE_TYPES.contains(&dtype) {
            let names: Vec<&str> = CACHE_TYPES.iter().map(|d| d.name()).collect();
            return Err(invalid(
                field,
                dtype,
                &format!("llama.cpp stores a cache as one of {}", names.join(", ")),
                "use q8_0 to halve the cache",
            ));
        }
    }
    if !request.flash_attention && !request.cache_v.is_plain() && request.mla.is_none_or(|m| m == 0)
    {
        return Err(invalid(
            "cache_v",
            request.cache_v,
            "llama.cpp quantizes V only with flash attention",
            "turn flash attention on, or keep V as f16",
        ));
    }
    if request.tensor_split.len() as u64 > device.count {
        return Err(invalid(
            "tensor_split",
            request.tensor_split.len(),
            &format!("there are {} devices", device.count),
            "give one share per device",
        ));
    }
    Ok(&stack.layers)
}
