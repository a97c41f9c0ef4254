//! The request with every default filled in, and the checks that vLLM makes before it loads anything.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Mixer, StackRole};
use plimsoll_units::{Bytes, DType};

use super::facts::{NEWEST, facts, latest};
use crate::request::{Version, Vllm};
use crate::{Assumption, Device, EstimateError};

/// All settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Release.
    pub version: Version,
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Pipeline stages.
    pub pipeline: u64,
    /// `gpu_memory_utilization` in thousandths.
    pub utilization_permille: u64,
    /// `max_model_len`.
    pub length: u64,
    /// `max_num_seqs`.
    pub sequences: u64,
    /// `max_num_batched_tokens`.
    pub batched: u64,
    /// Type of weights and activations.
    pub dtype: DType,
    /// Type of keys and values.
    pub cache: DType,
    /// What was taken for granted.
    pub assumptions: Vec<Assumption>,
}

/// Fills in defaults by release and device.
pub fn resolve(
    model: &Architecture,
    request: &Vllm,
    device: &Device,
) -> Result<Settings, EstimateError> {
    let mut assumptions = Vec::new();
    let version = request.version.unwrap_or_else(|| {
        assumptions.push(assumption(
            "vLLM release",
            version_text(NEWEST),
            "no release was named; this is the newest known",
            "--engine-version",
        ));
        NEWEST
    });
    let (tensor, pipeline) = check_parallel(model, request, device)?;
    let dtype = check_dtype(model, request, device, &mut assumptions)?;
    let cache = check_cache(request, device, dtype)?;
    let utilization_permille = match request.utilization_permille {
        Some(permille) if permille == 0 || permille > 1000 => {
            return Err(EstimateError::Invalid {
                field: "gpu_memory_utilization",
                value: format!("{}.{:03}", permille / 1000, permille % 1000),
                accepted: "it must be above 0 and at most 1".into(),
                cure: "use 0.9, or what is left beside other processes".into(),
            });
        }
        Some(permille) => permille,
        None => latest(&facts().utilization, version, |u| u.since).map_or(900, |u| u.permille),
    };
    let length = match request.max_model_len.or(model.max_positions) {
        Some(0) => return Err(zero("max_model_len")),
        Some(length) => length,
        None => {
            assumptions.push(assumption(
                "longest request",
                "2048 tokens".into(),
                "neither the request nor the model names a length",
                "--context",
            ));
            2048
        }
    };
    let v1 = version >= facts().v1_since.0;
    let (sequences, batched) = limits(request, device, version, v1, length, &mut assumptions)?;
    Ok(Settings {
        version,
        tensor,
        pipeline,
        utilization_permille,
        length,
        sequences,
        batched,
        dtype,
        cache,
        assumptions,
    })
}

fn zero(field: &'static str) -> EstimateError {
    EstimateError::Invalid {
        field,
        value: "0".into(),
        accepted: "it must be at least 1".into(),
        cure: "leave it out for the default".into(),
    }
}

fn assumption(about: &str, value: String, reason: &str, option: &str) -> Assumption {
    Assumption { about: about.into(), value, reason: reason.into(), option: option.into() }
}

/// `0.19.0`.
pub fn version_text(version: Version) -> String {
    format!("{}.{}.{}", version.major, version.minor, version.patch)
}

fn limits(
    request: &Vllm,
    device: &Device,
    version: Version,
    v1: bool,
    length: u64,
    assumptions: &mut Vec<Assumption>,
) -> Result<(u64, u64), EstimateError> {
    let name = device.name.to_ascii_lowercase();
    let holds = |l: &&super::facts::Limits| {
        l.since.0 <= version
            && device.usable >= Bytes::gib(l.min_total_gib)
            && (l.names.is_empty() || l.names.iter().any(|n| name.contains(&**n)))
            && !l.except.iter().any(|n| name.contains(&**n))
    };
    let found = facts().limits.iter().rfind(holds);
    let (sequences, server, offline, source) = match found {
        Some(l) => (l.sequences, l.server_tokens, l.offline_tokens, &*l.source),
        None => (256, 2048, 8192, "vllm/engine/arg_utils.py"),
    };
    let default_batched = match (v1, request.server) {
        // Before V1, chunked prefill came on by itself beyond 32k tokens.
        (false, _) if length > 32_768 => server,
        (false, _) => length.max(server),
        (true, true) => server,
        (true, false) => offline,
    };
    let mut batched = match request.max_num_batched_tokens {
        Some(0) => return Err(zero("max_num_batched_tokens")),
        Some(tokens) => tokens,
        None => default_batched,
    };
    let sequences = match request.max_num_seqs {
        Some(0) => return Err(zero("max_num_seqs")),
        Some(sequences) => sequences,
        None => sequences.min(batched),
    };
    if request.max_num_batched_tokens.is_none() {
        // A step never holds more than all sequences at full length, nor fewer tokens than sequences.
        batched = batched.min(sequences.saturating_mul(length)).max(sequences);
    }
    for (given, about, value, option) in [
        (request.max_num_seqs, "max_num_seqs", sequences, "--max-num-seqs"),
        (
            request.max_num_batched_tokens,
            "max_num_batched_tokens",
            batched,
            "--max-num-batched-tokens",
        ),
    ] {
        if given.is_none() {
            let reason =
                format!("default of vLLM {} on {} ({source})", version_text(version), device.name);
            assumptions.push(assumption(about, value.to_string(), &reason, option));
        }
    }
    Ok((sequences, batched))
}

/// Tensor ranks must divide the query heads, and either divide or be divided by the key-value heads.
fn check_parallel(
    model: &Architecture,
    request: &Vllm,
    device: &Device,
) -> Result<(u64, u64), EstimateError> {
    for (field, value) in
        [("tensor_parallel_size", request.tensor), ("pipeline_parallel_size", request.pipeline)]
    {
        if value == 0 {
            return Err(zero(field));
        }
    }
    check_heads(model, request.tensor, "tensor_parallel_size")?;
    let ranks = request.tensor.saturating_mul(request.pipeline);
    if ranks > device.count.max(1) {
        return Err(EstimateError::Invalid {
            field: "tensor_parallel_size x pipeline_parallel_size",
            value: ranks.to_string(),
            accepted: format!("there are {} x {}", device.count.max(1), device.name),
            cure: "lower them or name more devices".into(),
        });
    }
    let layers = main_layers(model);
    if request.pipeline > layers.max(1) {
        return Err(EstimateError::Invalid {
            field: "pipeline_parallel_size",
            value: request.pipeline.to_string(),
            accepted: format!("the model has {layers} layers"),
            cure: "use at most one stage per layer".into(),
        });
    }
    Ok((request.tensor, request.pipeline))
}

/// Layers of the stack that generates.
pub fn main_layers(model: &Architecture) -> u64 {
    let stack = model.stacks.iter().rev().find(|s| s.role == StackRole::Decoder);
    stack.map_or(0, |s| s.layers.len() as u64)
}

/// Whether `tensor` ranks can share the heads; the error names the nearest counts that can.
pub fn check_heads(
    model: &Architecture,
    tensor: u64,
    field: &'static str,
) -> Result<(), EstimateError> {
    let mut heads: Vec<(u64, u64)> = Vec::new();
    for stack in model.stacks.iter().filter(|s| s.role == StackRole::Decoder) {
        for layer in &stack.layers {
            let pair = match &layer.mixer {
                Mixer::Attention(a) => (a.heads, a.kv_heads),
                Mixer::Parallel(a, _) => (a.heads, a.kv_heads),
                Mixer::Latent(l) => (l.heads, 1),
                Mixer::GatedDelta(d) => (d.key_heads, d.value_heads),
                Mixer::Mamba2(m) => (m.heads, 1),
                _ => continue,
            };
            if !heads.contains(&pair) {
                heads.push(pair);
            }
        }
    }
    let divides = |ranks: u64| {
        heads.iter().all(|&(query, kv)| {
            let kv = kv.max(1);
            query.is_multiple_of(ranks) && (kv.is_multiple_of(ranks) || ranks.is_multiple_of(kv))
        })
    };
    if divides(tensor) {
        return Ok(());
    }
    let most = heads.iter().map(|(query, _)| *query).max().unwrap_or(1);
    let below =
        (1..tensor.min(most.saturating_add(1))).rev().find(|&ranks| divides(ranks)).unwrap_or(1);
    let above = (tensor..=most).find(|&ranks| divides(ranks));
    let nearest = match above {
        Some(above) => format!("{below} or {above}"),
        None => below.to_string(),
    };
    let list: Vec<String> = heads.iter().map(|(q, kv)| format!("{q} and {kv}")).collect();
    Err(EstimateError::Invalid {
        field,
        value: tensor.to_string(),
        accepted: format!(
            "it must divide the query heads and fit the key-value heads ({})",
            list.join("; ")
        ),
        cure: format!("use {nearest}"),
    })
}

fn check_dtype(
    model: &Architecture,
    request: &Vllm,
    device: &Device,
    assumptions: &mut Vec<Assumption>,
) -> Result<DType, EstimateError> {
    let old = device.compute_capability.is_some_and(|c| c < (8, 0));
    let capability = device.compute_capability.unwrap_or((0, 0));
    match request.dtype {
        Some(DType::Bf16) if old => Err(EstimateError::Invalid {
            field: "dtype",
            value: "bfloat16".into(),
            accepted: format!(
                "bfloat16 needs compute capability 8.0, and {} has {}.{}",
                device.name, capability.0, capability.1
            ),
            cure: "use --dtype half".into(),
        }),
        Some(dtype @ (DType::Bf16 | DType::F16 | DType::F32)) => Ok(dtype),
        Some(other) => Err(EstimateError::Invalid {
            field: "dtype",
            value: other.to_string(),
            accepted: "vLLM computes in bf16, f16 or f32".into(),
            cure: "leave it out, or ask for online quantization instead".into(),
        }),
        None => {
            let published = match model.dtype {
                DType::F16 => DType::F16,
                _ => DType::Bf16,
            };
            let dtype = if old { DType::F16 } else { published };
            if dtype != model.dtype {
                assumptions.push(assumption(
                    "type of weights",
                    dtype.to_string(),
                    "`--dtype auto` never computes in f32, nor in bf16 before compute capability 8.0",
                    "--dtype",
                ));
            }
            Ok(dtype)
        }
    }
}

fn check_cache(request: &Vllm, device: &Device, dtype: DType) -> Result<DType, EstimateError> {
    let Some(cache) = request.cache else { return Ok(dtype) };
    let one_byte = matches!(cache, DType::F8E4M3 | DType::F8E5M2 | DType::I8 | DType::U8);
    if !one_byte && !matches!(cache, DType::F16 | DType::Bf16 | DType::F32) {
        return Err(EstimateError::Invalid {
            field: "kv_cache_dtype",
            value: cache.to_string(),
            accepted: "vLLM stores keys and values in f16, bf16, fp8 or int8".into(),
            cure: "use fp8".into(),
        });
    }
    if matches!(cache, DType::F8E4M3 | DType::F8E5M2)
        && device.compute_capability.is_some_and(|c| c < (8, 9))
    {
        let (major, minor) = device.compute_capability.unwrap_or((0, 0));
        return Err(EstimateError::Invalid {
            field: "kv_cache_dtype",
            value: cache.to_string(),
            accepted: format!(
                "fp8 keys and values need compute capability 8.9, and {} has {major}.{minor}",
                device.name
            ),
            cure: "leave it at auto and lower --max-model-len instead".into(),
        });
    }
    Ok(cache)
}
