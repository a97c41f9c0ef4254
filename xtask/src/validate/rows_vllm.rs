//! From a measured vLLM record to what the estimate needs. Only what the record says is used; what it does not say
//! is a reason to leave it out, never a guess.

use plimsoll_catalog::gpus::find_gpu;
use plimsoll_estimate::request::{Version, Vllm};
use plimsoll_estimate::{Device, Spread};
use plimsoll_model::{Architecture, Inventory};
use plimsoll_units::{Bytes, DType};
use serde_json::Value;

use super::names;

/// A record, ready to be estimated.
pub struct Case {
    /// Id of the record.
    pub id: String,
    /// The model.
    pub architecture: Architecture,
    /// Its parameters.
    pub inventory: Inventory,
    /// The settings.
    pub request: Vllm,
    /// The device.
    pub device: Device,
    /// Whether the record says how much memory the device has.
    pub device_known: bool,
    /// Whether the record gives the sequences of the profiling run, or the device that decides their default.
    pub limits_known: bool,
    /// What was measured.
    pub measured: Measured,
}

/// What the log printed, for one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// `Model loading took`.
    pub weights: Option<f64>,
    /// Peak of the profiling run, MiB.
    pub activation: Option<f64>,
    /// Growth outside the allocator, MiB.
    pub non_torch: Option<f64>,
    /// The KV pool, MiB.
    pub pool: Option<f64>,
    /// CUDA graphs, MiB.
    pub graphs: Option<f64>,
    /// Tokens in the pool.
    pub tokens: Option<u64>,
    /// The start or the run failed for lack of memory.
    pub failed: bool,
}

impl Measured {
    /// Reads `measured` of a record.
    pub fn read(row: &Value) -> Self {
        let measured = &row["measured"];
        let number = |key: &str| measured[key].as_f64();
        Measured {
            weights: number("weights_mib"),
            activation: number("activation_mib"),
            non_torch: number("non_torch_mib"),
            pool: number("kv_mib"),
            graphs: number("cuda_graph_mib"),
            tokens: measured["kv_tokens"].as_u64(),
            failed: measured["oom"].as_bool().unwrap_or(false),
        }
    }
}

/// Reads one record; the error says what it lacks.
pub fn case(row: &Value) -> Result<Case, String> {
    let id = row["id"].as_str().unwrap_or("?").to_owned();
    let name = row["model"].as_str().ok_or("the record names no model")?;
    let quant = row["quant"].as_str();
    let named = names::resolve(name, quant)?;
    let version = version_of(row).ok_or("the record names no release")?;
    let settings = &row["settings"];
    if settings["speculative"].as_str().is_some_and(|text| text.contains("'model'")) {
        return Err("the record does not say what its draft model holds".into());
    }
    let count = |key: &str| settings[key].as_u64();
    let parallel = |key: &str| row["parallel"][key].as_u64().unwrap_or(1).max(1);
    let cache = match settings["kv_cache_dtype"].as_str() {
        None | Some("auto") => None,
        Some(text) => Some(text.parse::<DType>().map_err(|e| e.to_string())?),
    };
    let dtype =
        row["dtype"].as_str().map(str::parse::<DType>).transpose().map_err(|e| e.to_string())?;
    let (tensor, pipeline) = (parallel("tp"), parallel("pp"));
    let request = Vllm {
        version: Some(version),
        utilization_permille: permille(&settings["gpu_memory_utilization"]),
        max_model_len: count("max_model_len"),
        max_num_seqs: count("max_num_seqs"),
        max_num_batched_tokens: count("max_num_batched_tokens"),
        dtype,
        cache,
        enforce_eager: flag(&settings["enforce_eager"]),
        tensor,
        pipeline,
        block_size: count("block_size"),
        speculative_tokens: speculative(&settings["speculative"]),
        ..Vllm::default()
    };
    let (device, device_known) = device_of(row, tensor * pipeline);
    Ok(Case {
        id,
        architecture: named.architecture,
        inventory: named.inventory,
        request,
        device,
        device_known,
        limits_known: device_known || count("max_num_seqs").is_some(),
        measured: Measured::read(row),
    })
}

/// `0.7.x`, `0.14.0rc1`, `0.9.x V0`; failing that, a `v0.11.0` in the notes.
pub fn version_of(row: &Value) -> Option<Version> {
    let text = row["version"].as_str();
    text.and_then(version).or_else(|| {
        let notes = row["notes"].as_str()?;
        notes.split_whitespace().find_map(|word| version(word.strip_prefix('v')?))
    })
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    let digits = |part: &str| part.bytes().take_while(u8::is_ascii_digit).count();
    let patch = parts.next().map_or(0, |p| p[..digits(p)].parse().unwrap_or(0));
    Some(Version { major, minor, patch })
}

fn flag(value: &Value) -> bool {
    value
        .as_bool()
        .unwrap_or_else(|| value.as_str().is_some_and(|s| s.eq_ignore_ascii_case("true")))
}

/// A fraction of the record in thousandths.
pub fn permille(value: &Value) -> Option<u64> {
    let fraction = value.as_f64()?;
    (fraction > 0.0 && fraction <= 1.0).then(|| (fraction * 1000.0).round() as u64)
}

/// The number of tokens in a printed speculative configuration.
fn speculative(value: &Value) -> u64 {
    let Some(text) = value.as_str() else { return 0 };
    let Some((_, rest)) = text.split_once("num_speculative_tokens") else { return 0 };
    let digits: String =
        rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// The device of a record and whether its total memory is known.
pub fn device_of(row: &Value, count: u64) -> (Device, bool) {
    let name = row["gpu"].as_str().unwrap_or("unknown device");
    let gpu = [name, name.split(" (").next().unwrap_or(name)].iter().find_map(|n| find_gpu(n).ok());
    let printed = row["gpu_mem_gib"].as_f64();
    let known = printed.is_some();
    let usable = match (printed, gpu) {
        (Some(gib), _) => Bytes::mib((gib * 1024.0).round() as u64),
        (None, Some(gpu)) => gpu.usable.typical,
        (None, None) => Bytes::gib(80),
    };
    let compute_capability = match gpu.and_then(|g| g.target.compute_capability()) {
        Some((major, minor)) => Some((u64::from(major), u64::from(minor))),
        // No Hopper or later data-centre card has less than 79 GiB.
        None if known && usable < Bytes::gib(79) => Some((8, 6)),
        None => None,
    };
    let device = Device {
        name: name.to_owned(),
        usable,
        free: free_at_start(row),
        count,
        compute_capability,
        unified: name.contains("unified"),
        context: Spread::default(),
    };
    (device, known)
}

/// What was free on the fullest device when the workers started: the field is of the first rank, the engine's
/// refusal `(60.85/79.19 GiB) on startup` names another.
fn free_at_start(row: &Value) -> Option<Bytes> {
    let field = row["measured"]["free_at_start_mib"].as_f64().map(|mib| Bytes::mib(mib as u64));
    let lines = row["raw"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let printed = lines.filter(|line| line.contains("Free memory on device")).filter_map(|line| {
        let (_, rest) = line.split_once('(')?;
        let gib: f64 = rest.split_once('/')?.0.trim().parse().ok()?;
        Some(Bytes::mib((gib * 1024.0) as u64))
    });
    printed.chain(field).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn releases_are_read_as_records_write_them() {
        for (text, expected) in [
            ("0.19.0", Some((0, 19, 0))),
            ("0.7.x", Some((0, 7, 0))),
            ("0.14.0rc1", Some((0, 14, 0))),
            ("0.9.x V0 (Unsloth)", Some((0, 9, 0))),
            ("0.10.x/0.11", Some((0, 10, 0))),
            ("0.2x", None),
        ] {
            let found =
                version_of(&json!({ "version": text })).map(|v| (v.major, v.minor, v.patch));
            assert_eq!(found, expected, "{text}");
        }
        let noted = version_of(&json!({ "version": null, "notes": "recipe is v0.11.0; more" }));
        assert_eq!(noted.map(|v| v.minor), Some(11));
    }

    #[test]
    fn speculative_tokens_are_read_from_the_printed_configuration() {
        let text = "{'method': 'mtp', 'num_speculative_tokens': 3}}";
        assert_eq!(speculative(&json!(text)), 3);
    }
}
