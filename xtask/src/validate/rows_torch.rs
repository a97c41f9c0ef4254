//! From a measured run of Transformers to an estimate of it. The driver's total is what such rows print.

use plimsoll_catalog::overheads::context_bytes;
use plimsoll_estimate::request::Inference;
use plimsoll_estimate::{Device, Estimate, Spread, inference};
use plimsoll_model::Architecture;
use plimsoll_model::arch::{ModelKind, Positions};
use plimsoll_units::DType;

use super::names;
use super::row::{Row, whole};
use super::training::machine;

/// An estimate, or the reason why there is none.
pub fn estimate(row: &Row) -> Result<Estimate, String> {
    let name = row.text("model").ok_or("the row names no model")?;
    let named = names::resolve(&name, row.text("quant").as_deref())?;
    let dtype = row.text("dtype").map(|d| d.parse::<DType>()).transpose();
    let setting = |key: &str| row.get("settings").and_then(|s| s.get(key)).and_then(whole);
    let defaults = Inference::default();
    let limit = decoder_positions(&named.architecture);
    let request = Inference {
        // Every beam has a cache of its own.
        batch: setting("batch_size").unwrap_or(1) * setting("beam_size").unwrap_or(1),
        prompt: setting("prompt").unwrap_or(defaults.prompt),
        // A transcription may take all positions that are left.
        generate: setting("generate").or(limit).unwrap_or(defaults.generate),
        dtype: dtype.map_err(|e| e.to_string())?,
        ..defaults
    };
    inference::estimate(&named.architecture, &named.inventory, &request, &device(row)?)
        .map_err(|e| e.to_string())
}

/// Positions of a speech decoder after its four tokens of start.
fn decoder_positions(model: &Architecture) -> Option<u64> {
    if model.kind != ModelKind::SpeechSeq2Seq {
        return None;
    }
    match model.embedding.as_ref()?.positions {
        Positions::Learned { rows } => Some(rows.saturating_sub(4)),
        _ => None,
    }
}

fn device(row: &Row) -> Result<Device, String> {
    let machine = machine(row)?;
    let span = context_bytes(&machine, "torch").map_err(|e| e.to_string())?;
    Ok(Device {
        name: machine.label(),
        usable: machine.usable,
        free: None,
        count: 1,
        compute_capability: machine.compute_capability(),
        unified: machine.is_unified(),
        context: Spread {
            low: span.low,
            typical: span.typical,
            high: span.high,
            source: span.source.to_owned(),
        },
    })
}
