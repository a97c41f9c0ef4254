//! `quantization_config` to [`Quantization`]: what published weights are stored as, and what stays as it was.

use plimsoll_units::DType;
use serde_json::Value;

use super::ImportError;
use super::keys::Keys;
use crate::arch::Quantization;

/// Reads `quantization_config` (or `compression_config`, as older exports name it).
pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Quantization>, ImportError> {
    // Multimodal models may quantize the language model alone, and say so inside its configuration.
    let inner = ["text_config", "llm_config"].iter().find_map(|key| keys.nested(key, &[]));
    let config = ["quantization_config", "compression_config"]
        .iter()
        .find_map(|key| keys.nested(key, &[]).or_else(|| inner.and_then(|k| k.nested(key, &[]))));
    let Some(config) = config else { return Ok(None) };
    let bits = config.size_or(&["bits", "w_bit", "nbits"], 4)?;
    let group = match config.get("group_size").or_else(|| config.get("q_group_size")) {
        Some(v) if v.as_i64() == Some(-1) => None,
        Some(v) => v.as_u64(),
        None => Some(128),
    };
    let stated = config.text("quant_method").unwrap_or("").to_ascii_lowercase();
    let method = match stated.as_str() {
        "" if config.flag("load_in_4bit", false)? || config.flag("load_in_8bit", false)? => {
            "bitsandbytes"
        }
        "" => {
            config.assume("quant_method", "not given; weights are counted unquantized");
            return Ok(None);
        }
        other => other,
    };
    let dtype = match method {
        "gptq" | "awq" | "gptqmodel" | "auto-round" | "intel/auto-round" | "marlin" | "hqq" => {
            Some(integer(bits, group))
        }
        "fp8" | "fbgemm_fp8" | "ptpc_fp8" => Some(DType::F8E4M3),
        "mxfp4" => Some(DType::Mxfp4),
        "bitsandbytes" => Some(bitsandbytes(&config)?),
        "compressed-tensors" => compressed(&config),
        "modelopt" => Some(match config.text("quant_algo") {
            Some("NVFP4" | "W4A16_NVFP4") => DType::Nvfp4,
            _ => DType::F8E4M3,
        }),
        "quark" | "torchao" | "eetq" | "quanto" => Some(DType::I8),
        _ => None,
    };
    let Some(dtype) = dtype else {
        config.assume(
            "quant_method",
            format!("{method:?} is not known; weights are counted unquantized"),
        );
        return Ok(None);
    };
    let mut skip = Vec::new();
    for key in [
        "modules_to_not_convert",
        "ignore",
        "llm_int8_skip_modules",
        "ignored_layers",
        "exclude_modules",
    ] {
        if let Some(Value::Array(items)) = config.get(key) {
            skip.extend(items.iter().filter_map(Value::as_str).map(str::to_owned));
        }
    }
    if skip.is_empty()
        && matches!(method, "gptq" | "awq" | "fp8" | "fbgemm_fp8" | "bitsandbytes" | "gptqmodel")
    {
        // These integrations leave the output embeddings alone when nothing is listed.
        skip.push("lm_head".to_owned());
    }
    Ok(Some(Quantization { method: method.to_owned(), dtype, skip }))
}

/// Integer weights with a scale (and zero point) per group.
fn integer(bits: u64, group: Option<u64>) -> DType {
    match (bits, group) {
        (8.., Some(_)) => DType::Int8G128,
        (8.., None) => DType::I8,
        (_, Some(..=32)) => DType::Int4G32,
        // Scales of whole columns vanish beside groups of 128; the nearest type that is not smaller.
        _ => DType::Int4G128,
    }
}

fn bitsandbytes(config: &Keys<'_>) -> Result<DType, ImportError> {
    if !config.flag("load_in_4bit", false)? && !config.flag("_load_in_4bit", false)? {
        return Ok(DType::Int8Row);
    }
    Ok(if config.flag("bnb_4bit_use_double_quant", false)? { DType::Nf4Dq } else { DType::Nf4 })
}

/// The weights entry of the first group.
fn compressed(config: &Keys<'_>) -> Option<DType> {
    let groups = config.get("config_groups")?.as_object()?;
    let weights = groups.values().find_map(|g| g.get("weights").filter(|w| w.is_object()))?;
    let bits = weights.get("num_bits").and_then(Value::as_u64).unwrap_or(8);
    let group = weights.get("group_size").and_then(Value::as_u64);
    let float = weights.get("type").and_then(Value::as_str) == Some("float");
    Some(match (float, bits) {
        (true, 4)
            if config.text("format").is_some_and(|f| f.contains("nvfp4")) || group == Some(16) =>
        {
            DType::Nvfp4
        }
        (true, 4) => DType::Mxfp4,
        (true, _) => DType::F8E4M3,
        (false, 8) if group.is_none() => DType::I8,
        (false, bits) => integer(bits, group),
    })
}
