//! From a measured SGLang record to what the estimate needs.

use plimsoll_estimate::Device;
use plimsoll_estimate::request::Sglang;
use plimsoll_model::{Architecture, Inventory};
use plimsoll_units::{Bytes, DType};
use serde_json::Value;

use super::names;
use super::rows_vllm::{Measured, device_of, permille, version_of};

/// A record, ready to be estimated.
pub struct Case {
    /// Id of the record.
    pub id: String,
    /// The model.
    pub architecture: Architecture,
    /// Its parameters.
    pub inventory: Inventory,
    /// The settings.
    pub request: Sglang,
    /// The device.
    pub device: Device,
    /// Whether the record says what was free before the weights came, and the static fraction or the device.
    pub identity_known: bool,
    /// What was measured.
    pub measured: Measured,
}

/// Reads one record; the error says what it lacks.
pub fn case(row: &Value) -> Result<Case, String> {
    let id = row["id"].as_str().unwrap_or("?").to_owned();
    let name = row["model"].as_str().ok_or("the record names no model")?;
    let named = names::resolve(name, row["quant"].as_str())?;
    let settings = &row["settings"];
    let parallel = |key: &str| row["parallel"][key].as_u64().unwrap_or(1).max(1);
    let dtype =
        row["dtype"].as_str().map(str::parse::<DType>).transpose().map_err(|e| e.to_string())?;
    let cache = match settings["kv_cache_dtype"].as_str() {
        None | Some("auto") => None,
        Some(text) => Some(text.parse::<DType>().map_err(|e| e.to_string())?),
    };
    let (tensor, pipeline) = (parallel("tp"), parallel("pp"));
    let (mut device, device_known) = device_of(row, tensor * pipeline);
    let before = row["measured"]["avail_before_load_mib"].as_f64();
    if let Some(mib) = before {
        let free = Bytes::mib(mib as u64);
        device.free = Some(free);
        if !device_known {
            device.usable = free;
        }
    }
    let static_permille = permille(&settings["mem_fraction_static"]);
    Ok(Case {
        id,
        architecture: named.architecture,
        inventory: named.inventory,
        request: Sglang {
            version: version_of(row),
            static_permille,
            context: settings["max_model_len"].as_u64(),
            chunked_prefill: settings["chunked_prefill_size"].as_u64(),
            dtype,
            cache,
            tensor,
            pipeline,
            ..Sglang::default()
        },
        device,
        identity_known: before.is_some() && (static_permille.is_some() || device_known),
        measured: Measured::read(row),
    })
}
