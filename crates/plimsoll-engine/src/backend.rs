//! The one place that calls the estimators.

use plimsoll_estimate::request::{Serving, Strategy, Workload};
use plimsoll_estimate::training::Within;
use plimsoll_estimate::{
    Device, Estimate, EstimateError, inference, llamacpp, sglang, training, vllm,
};

use plimsoll_units::Bytes;

use crate::error::EngineError;
use crate::model::Model;

/// Dispatches by workload.
pub(crate) fn estimate(
    model: &Model,
    workload: &Workload,
    strategy: &Strategy,
    device: &Device,
) -> Result<Estimate, EngineError> {
    match estimate_within(model, workload, strategy, device, Bytes::MAX)? {
        Within::Estimate(estimate) => Ok(*estimate),
        Within::Exceeds { .. } => Err(EngineError::TooLarge),
    }
}

/// [`estimate`], given up where it is certain that the device needs more than `limit` bytes.
pub(crate) fn estimate_within(
    model: &Model,
    workload: &Workload,
    strategy: &Strategy,
    device: &Device,
    limit: Bytes,
) -> Result<Within, EngineError> {
    let (arch, inventory, stored) = (&model.architecture, &model.inventory, model.stored.as_ref());
    match workload {
        Workload::Training(t) if limit < Bytes::MAX => {
            return training::estimate_within(arch, inventory, t, strategy, device, limit)
                .map_err(refused);
        }
        Workload::Training(t) => training::estimate(arch, inventory, t, strategy, device),
        Workload::Inference(i) => inference::estimate(arch, inventory, i, device),
        Workload::Serving(Serving::LlamaCpp(l)) => {
            llamacpp::estimate(arch, &model.weights, l, device)
        }
        Workload::Serving(Serving::Vllm(v)) => vllm::estimate(arch, inventory, stored, v, device),
        Workload::Serving(Serving::Sglang(s)) => {
            sglang::estimate(arch, inventory, stored, s, device)
        }
        _ => {
            return Err(EngineError::Unsupported {
                what: "this workload".to_owned(),
                reason: "it has no estimator yet".to_owned(),
            });
        }
    }
    .map(|estimate| Within::Estimate(Box::new(estimate)))
    .map_err(refused)
}

/// An estimator's refusal in the facade's words.
fn refused(error: EstimateError) -> EngineError {
    match error {
        EstimateError::Invalid { field, value, accepted, cure } => {
            let noun = accepted.starts_with("a ") || accepted.starts_with("at ");
            let must = if noun { "it must be " } else { "" };
            let message = format!("it is {value}, but {must}{accepted}; {cure}");
            EngineError::Value { option: option(field), message }
        }
        EstimateError::UnsupportedModel { engine, family, reason, cure } => {
            EngineError::Unsupported {
                what: format!("{family} in {engine}"),
                reason: format!("{reason}; {cure}"),
            }
        }
        other => {
            EngineError::Unsupported { what: "this request".to_owned(), reason: other.to_string() }
        }
    }
}

/// A field of the estimator as the option that sets it.
fn option(field: &str) -> String {
    match field.trim_start_matches('-') {
        "context" => "--ctx".to_owned(),
        "sequences" => "--np".to_owned(),
        "cache_k" => "--cache-type-k".to_owned(),
        "cache_v" => "--cache-type-v".to_owned(),
        "offload.overrides" => "--override-tensor".to_owned(),
        "devices" => "--gpu".to_owned(),
        name => format!("--{}", name.replace('_', "-")),
    }
}
