//! The tensors of a weight file as an engine sees them: names, stored types and sizes.
//!
//! A GGUF file lists them exactly; without one, [`gguf_tensors`] makes the list that llama.cpp's quantizer would
//! write for a model and a mix such as `Q4_K_M`.

use plimsoll_model::arch::StackRole;
use plimsoll_model::{Architecture, Inventory, Parameter, Part};
use plimsoll_units::{Bytes, DType};

use crate::error::EstimateError;

mod mix;

pub use mix::Mix;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// Its name in the file.
    pub name: String,
    /// Bytes of its data, whole blocks, without the padding between tensors.
    pub bytes: Bytes,
    /// Stored type.
    pub dtype: DType,
    /// The layer that it belongs to, if any.
    pub layer: Option<u64>,
    /// What it does.
    pub part: Part,
}

/// The tensors that llama.cpp's quantizer writes for the language part of a model under `mix`, in the order of
/// `inventory`. Vision and audio towers are in a projector file of their own and left out.
///
/// # Errors
/// If `mix` names no mix of llama.cpp.
///
/// ```
/// use plimsoll_estimate::weights::gguf_tensors;
/// use plimsoll_model::{hf, inventory};
/// let config = br#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
///     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
///     "tie_word_embeddings": false}"#;
/// let model = hf::from_config(config).unwrap().architecture;
/// let tensors = gguf_tensors(&model, &inventory::inventory(&model), "Q4_0").unwrap();
/// let total: u64 = tensors.iter().map(|t| t.bytes.get()).sum();
/// assert_eq!(total, 4_653_375_488);
/// ```
pub fn gguf_tensors(
    model: &Architecture,
    inventory: &Inventory,
    mix: &str,
) -> Result<Vec<StoredTensor>, EstimateError> {
    let mix: Mix = mix.parse()?;
    let mut chooser = mix.chooser(model);
    let skipped = |p: &Parameter| {
        let role = p.stack.and_then(|s| model.stacks.get(s)).map(|s| s.role);
        matches!(role, Some(StackRole::Vision | StackRole::Audio | StackRole::Draft))
            || matches!(p.part, Part::Patch | Part::Patch2 | Part::ExtraToken | Part::Projector)
    };
    let kept = inventory.parameters.iter().filter(|p| !skipped(p));
    let mut out = Vec::new();
    for p in kept {
        if p.part == Part::ExpertGateUp {
            // Files keep the two matrices apart.
            let half = Parameter { count: p.count, shape: halved(&p.shape), ..p.clone() };
            for part in [Part::ExpertGate, Part::ExpertUp] {
                out.push(stored(&Parameter { part, ..half.clone() }, &mut chooser));
            }
        } else {
            out.push(stored(p, &mut chooser));
        }
    }
    Ok(out)
}

/// The shape of one half of a fused matrix: experts by twice the width by the hidden size.
fn halved(shape: &[u64]) -> Vec<u64> {
    let mut half = shape.to_vec();
    if let Some(n) = half.get_mut(1) {
        *n /= 2;
    }
    half
}

fn stored(p: &Parameter, chooser: &mut mix::Chooser) -> StoredTensor {
    let layer = p.layer.map(|l| l as u64);
    let name = gguf_name(p.part, p.bias, layer);
    let row = p.shape.last().copied().unwrap_or(1).max(1);
    let rows = p.elements() / row;
    let dtype = if p.bias || p.shape.len() < 2 || !quantizable(p.part) {
        // Vectors, norms, routers and convolutions stay in 32 bits.
        DType::F32
    } else {
        chooser.choose(p.part, layer.unwrap_or(0), row)
    };
    let bytes = Bytes::new(dtype.bytes(row).get().saturating_mul(rows));
    StoredTensor { name, bytes, dtype, layer, part: p.part }
}

fn quantizable(part: Part) -> bool {
    !matches!(
        part,
        Part::Router
            | Part::SharedScale
            | Part::SsmConv
            | Part::SsmA
            | Part::SsmD
            | Part::SsmNorm
            | Part::PositionEmbedding
            | Part::TypeEmbedding
            | Part::QueryNorm
            | Part::KeyNorm
            | Part::Sinks
            | Part::Other
    )
}

/// Base names of tensors in GGUF files.
const NAMES: [(Part, &str); 47] = [
    (Part::TokenEmbedding, "token_embd"),
    (Part::PositionEmbedding, "position_embd"),
    (Part::TypeEmbedding, "token_types"),
    (Part::EmbeddingNorm, "token_embd_norm"),
    (Part::FinalNorm, "output_norm"),
    (Part::Head, "output"),
    (Part::Norm1, "attn_norm"),
    (Part::Norm2, "ffn_norm"),
    (Part::Norm3, "post_attention_norm"),
    (Part::Norm4, "post_ffw_norm"),
    (Part::Query, "attn_q"),
    (Part::Key, "attn_k"),
    (Part::Value, "attn_v"),
    (Part::Qkv, "attn_qkv"),
    (Part::Output, "attn_output"),
    (Part::QueryNorm, "attn_q_norm"),
    (Part::KeyNorm, "attn_k_norm"),
    (Part::Sinks, "attn_sinks"),
    (Part::QueryDown, "attn_q_a"),
    (Part::QueryDownNorm, "attn_q_a_norm"),
    (Part::QueryUp, "attn_q_b"),
    (Part::KvDown, "attn_kv_a_mqa"),
    (Part::KvDownNorm, "attn_kv_a_norm"),
    (Part::KvUp, "attn_kv_b"),
    (Part::Indexer, "indexer"),
    (Part::SsmIn, "ssm_in"),
    (Part::SsmIn2, "ssm_ba"),
    (Part::SsmConv, "ssm_conv1d"),
    (Part::SsmX, "ssm_x"),
    (Part::SsmDt, "ssm_dt"),
    (Part::SsmA, "ssm_a"),
    (Part::SsmD, "ssm_d"),
    (Part::SsmNorm, "ssm_norm"),
    (Part::SsmOut, "ssm_out"),
    (Part::Gate, "ffn_gate"),
    (Part::Up, "ffn_up"),
    (Part::GateUp, "ffn_up"),
    (Part::Down, "ffn_down"),
    (Part::Router, "ffn_gate_inp"),
    (Part::ExpertGate, "ffn_gate_exps"),
    (Part::ExpertUp, "ffn_up_exps"),
    (Part::ExpertGateUp, "ffn_gate_up_exps"),
    (Part::ExpertDown, "ffn_down_exps"),
    (Part::SharedGate, "ffn_gate_shexp"),
    (Part::SharedUp, "ffn_up_shexp"),
    (Part::SharedDown, "ffn_down_shexp"),
    (Part::SharedScale, "ffn_gate_inp_shexp"),
];

/// The name in a GGUF file.
fn gguf_name(part: Part, bias: bool, layer: Option<u64>) -> String {
    let base = NAMES.iter().find(|(p, _)| *p == part).map_or("other", |(_, n)| *n);
    let suffix = if bias { "bias" } else { "weight" };
    match layer {
        Some(l) => format!("blk.{l}.{base}.{suffix}"),
        None => format!("{base}.{suffix}"),
    }
}

impl StoredTensor {
    /// A tensor as a GGUF header lists it: `blk.3.attn_q.weight` belongs to layer 3 and is a query projection; a name
    /// that is not known plays [`Part::Other`].
    ///
    /// ```
    /// use plimsoll_estimate::weights::StoredTensor;
    /// use plimsoll_model::Part;
    /// use plimsoll_units::{Bytes, DType};
    /// let t = StoredTensor::from_gguf("blk.3.attn_q.weight", DType::Q4K, Bytes::mib(9));
    /// assert_eq!((t.layer, t.part), (Some(3), Part::Query));
    /// ```
    pub fn from_gguf(name: &str, dtype: DType, bytes: Bytes) -> Self {
        let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let layer = in_layer.and_then(|(n, _)| n.parse().ok());
        let rest = in_layer.map_or(name, |(_, rest)| rest);
        let base =
            rest.strip_suffix(".weight").or_else(|| rest.strip_suffix(".bias")).unwrap_or(rest);
        let part = NAMES.iter().find(|(_, n)| *n == base).map_or(Part::Other, |(p, _)| *p);
        StoredTensor { name: name.to_owned(), bytes, dtype, layer, part }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{hf, inventory};

    use super::*;

    fn total(config: &str, mix: &str) -> u64 {
        let model = hf::from_config(config.as_bytes()).unwrap().architecture;
        let tensors = gguf_tensors(&model, &inventory::inventory(&model), mix).unwrap();
        tensors.iter().map(|t| t.bytes.get()).sum()
    }

    const LLAMA_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": false}"#;

    /// Sizes of the published files of Llama-3.1-8B, less their headers of about 7.8 MB.
    #[test]
    fn mixes_have_the_sizes_of_published_files() {
        for (mix, published) in [
            ("Q8_0", 8_540_771_328),
            ("Q6_K", 6_596_006_912),
            ("Q5_K_M", 5_732_987_904),
            ("Q5_K_S", 5_599_294_464),
            ("Q4_K_M", 4_920_734_720),
            ("Q4_K_S", 4_692_669_440),
            ("Q3_K_L", 4_321_957_888),
            ("Q3_K_M", 4_018_918_400),
            ("Q3_K_S", 3_664_500_736),
            ("Q2_K", 3_179_131_904),
            ("IQ4_XS", 4_447_663_104),
            ("BF16", 16_068_894_976),
        ] {
            let ours = total(LLAMA_8B, mix);
            let off = ours.abs_diff(published);
            assert!(off < published / 200, "{mix}: {ours} and {published}");
        }
    }

    #[test]
    fn an_unknown_mix_is_an_error_that_lists_the_known_ones() {
        let model = hf::from_config(LLAMA_8B.as_bytes()).unwrap().architecture;
        let error = gguf_tensors(&model, &Inventory::default(), "Q4_Z").unwrap_err();
        assert!(error.to_string().contains("Q4_K_M"), "{error}");
    }
}
