//! The tensors that llama.cpp would load: those of a GGUF file, or those that a conversion of another model into one
//! element type would write.

use plimsoll_estimate::weights::{StoredTensor, gguf_tensors};
use plimsoll_formats::TensorInfo;
use plimsoll_model::inventory::classify;
use plimsoll_units::DType;

use crate::error::EngineError;
use crate::model::Model;

/// The tensors of a file, by what their names say; `fallback` stands for types that are not known.
pub(crate) fn of_file(tensors: &[TensorInfo], fallback: DType) -> Vec<StoredTensor> {
    tensors
        .iter()
        .map(|tensor| {
            let found = classify(&tensor.name);
            StoredTensor {
                name: tensor.name.clone(),
                bytes: tensor.bytes,
                dtype: tensor.dtype.unwrap_or(fallback),
                layer: found.layer.map(|n| n as u64),
                part: found.part,
            }
        })
        .collect()
}

/// Fills the tensors of a model that is no GGUF file, as llama.cpp's quantizer writes them for a mix such as
/// `Q4_K_M`; the published element type if absent.
pub(crate) fn for_llama_cpp(model: &mut Model, mix: Option<&str>) -> Result<(), EngineError> {
    if model.source == "gguf" {
        return match mix {
            Some(_) => {
                Err(EngineError::value("--quant", "the GGUF file says how its weights are stored"))
            }
            None => Ok(()),
        };
    }
    let published = match model.architecture.dtype {
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        _ => "F16",
    };
    let mix = mix.unwrap_or(published);
    let tensors = gguf_tensors(&model.architecture, &model.inventory, mix);
    model.weights = tensors.map_err(|error| EngineError::value("--quant", error))?;
    Ok(())
}
