//! From the model names of measured records to catalogue entries: organisations that republish, and suffixes that
//! name a quantization, are taken off; the quantization is reported beside the model.

use plimsoll_catalog::models;
use plimsoll_model::arch::Quantization;
use plimsoll_model::{Architecture, Inventory, hf};
use plimsoll_units::DType;

/// A model that a record names.
pub struct Named {
    /// Its shape, quantized as the name says.
    pub architecture: Architecture,
    /// Its parameters.
    pub inventory: Inventory,
}

/// Endings that name a quantization and the type of its matrices.
const ENDINGS: &[(&str, Option<DType>)] = &[
    ("-fp8-dynamic", Some(DType::F8E4M3)),
    ("-fp8", Some(DType::F8E4M3)),
    ("-quantized.w8a8", Some(DType::I8)),
    ("-quantized.w8a16", Some(DType::Int8G128)),
    ("-quantized.w4a16", Some(DType::Int4G128)),
    ("-w8a8", Some(DType::I8)),
    ("-w4a16", Some(DType::Int4G128)),
    ("-awq-int4", Some(DType::Int4G32)),
    ("-gptq-int4", Some(DType::Int4G128)),
    ("-gptq-int8", Some(DType::Int8G128)),
    ("-awq", Some(DType::Int4G128)),
    ("-gptq", Some(DType::Int4G128)),
    ("-int4", Some(DType::Int4G128)),
    ("-nvfp4", Some(DType::Nvfp4)),
    ("-fp4", Some(DType::Nvfp4)),
    ("-mxfp4", Some(DType::Mxfp4)),
    ("-bnb-4bit", Some(DType::Nf4)),
    ("-unsloth", None),
    ("-q8_0.gguf", Some(DType::Q8_0)),
    ("-q4_k_m.gguf", Some(DType::Q4K)),
    ("-qat", None),
];

/// Finds `name`; `quant` is the record's own word for the quantization, where the name has none.
pub fn resolve(name: &str, quant: Option<&str>) -> Result<Named, String> {
    let lower = name.trim().to_ascii_lowercase();
    // Remarks after the name: `(no MTP)`, `+ MTP`, `class, bf16`.
    let lower = [" (", " + ", " class"]
        .iter()
        .fold(&*lower, |text, mark| text.split_once(mark).map_or(text, |(name, _)| name));
    let (stem, from_name) = strip(lower);
    let bare = stem.rsplit('/').next().unwrap_or(stem);
    // Republished Llama models carry Meta's name once more.
    let spellings = [stem, bare, bare.trim_start_matches("meta-")];
    let entry = spellings
        .iter()
        .find_map(|s| models::find(s).ok())
        .ok_or_else(|| format!("model `{name}` is not in the catalogue (looked for `{bare}`)"))?;
    let imported =
        hf::from_config(entry.config.as_bytes()).map_err(|e| format!("{}: {e}", entry.name))?;
    let mut architecture = imported.architecture;
    let inventory = plimsoll_model::inventory::inventory(&architecture);
    if let Some(dtype) = from_name.or_else(|| quant.and_then(of_word)) {
        let published = architecture.quantization.as_ref().map(|q| q.dtype);
        if published != Some(dtype) {
            architecture.quantization = Some(Quantization {
                method: if dtype == DType::Q8_0 || dtype == DType::Q4K {
                    "gguf".into()
                } else {
                    "compressed-tensors".into()
                },
                dtype,
                skip: vec!["lm_head".into()],
            });
        }
    }
    Ok(Named { architecture, inventory })
}

fn strip(name: &str) -> (&str, Option<DType>) {
    let (mut stem, mut dtype) = (name, None);
    while let Some((rest, found)) =
        ENDINGS.iter().find_map(|(ending, dtype)| Some((stem.strip_suffix(ending)?, *dtype)))
    {
        stem = rest;
        dtype = dtype.or(found);
    }
    (stem, dtype)
}

/// The type that a record's `quant` field names; `None` where it only names a container.
fn of_word(word: &str) -> Option<DType> {
    let word = word.to_ascii_lowercase();
    [
        ("w8a8", DType::I8),
        ("w4a16", DType::Int4G128),
        ("gptq", DType::Int4G128),
        ("awq", DType::Int4G128),
        ("int4", DType::Int4G128),
        ("nvfp4", DType::Nvfp4),
        ("mxfp4", DType::Mxfp4),
        ("bitsandbytes", DType::Nf4),
        ("q8_0", DType::Q8_0),
        ("fp8", DType::F8E4M3),
    ]
    .into_iter()
    .find(|(part, _)| word.contains(part))
    .map(|(_, dtype)| dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantization_suffixes_come_off() {
        for (name, stem, dtype) in [
            ("org/a-7b-fp8-dynamic", "org/a-7b", Some(DType::F8E4M3)),
            ("org/a-7b-quantized.w4a16", "org/a-7b", Some(DType::Int4G128)),
            ("org/a-7b-qat-awq-int4", "org/a-7b", Some(DType::Int4G32)),
            ("org/a-7b", "org/a-7b", None),
        ] {
            assert_eq!(strip(name), (stem, dtype), "{name}");
        }
    }
}
