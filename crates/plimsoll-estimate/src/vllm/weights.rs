//! Weight bytes of one rank as vLLM holds them: the stored type of each module, what stays in the compute type,
//! padding of packed experts, rotary tables, adapters, a draft model.

use std::collections::BTreeMap;

use plimsoll_model::arch::{Ffn, Positions};
use plimsoll_model::{Architecture, Inventory, Parameter, Part};
use plimsoll_units::{Bytes, DType};

use super::facts::facts;
use super::settings::Settings;
use crate::Device;
use crate::request::LoraServing;
use crate::tensor_parallel::{
    Cut, RankWeights, Ranks, StoredBytes, cut, rank_elements, weights_of_stage,
};

/// How weights are stored.
pub struct Storage<'a> {
    /// The model.
    pub model: &'a Architecture,
    /// Stored bytes by module, where a checkpoint's headers were read.
    pub stored: Option<&'a StoredBytes>,
    /// Type of activations and of everything that is not quantized.
    pub plain: DType,
    /// Online quantization of matrices.
    pub online: Option<DType>,
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Packed 4-bit experts are padded for the kernels of this device.
    pub pad_experts: bool,
}

impl<'a> Storage<'a> {
    /// For one request.
    pub fn new(
        model: &'a Architecture,
        stored: Option<&'a StoredBytes>,
        plain: DType,
        online: Option<DType>,
        tensor: u64,
        device: &Device,
    ) -> Self {
        let capability = device.compute_capability.unwrap_or((9, 0));
        let pad_experts = capability >= facts().mxfp4_padding.min_capability;
        Storage { model, stored, plain, online, tensor, pad_experts }
    }

    /// The type that `parameter` is stored in.
    pub fn dtype(&self, parameter: &Parameter) -> DType {
        use Part::*;
        let matrix = parameter.is_linear()
            && !matches!(parameter.part, Head | HeadDense | Projector | SharedScale | Indexer);
        let text = parameter.stack.and_then(|s| self.model.stacks.get(s)).is_none_or(|s| {
            use plimsoll_model::arch::StackRole::{Audio, Vision};
            !matches!(s.role, Vision | Audio)
        });
        if let Some(quantization) = &self.model.quantization {
            let expert =
                matches!(parameter.part, ExpertGate | ExpertUp | ExpertGateUp | ExpertDown);
            let covered = match &*quantization.method {
                "mxfp4" => expert,
                "gguf" => parameter.is_linear() || parameter.part == TokenEmbedding,
                _ => matrix && text && !skipped(&quantization.skip, &parameter.name),
            };
            return if covered && !parameter.bias { quantization.dtype } else { self.plain };
        }
        match self.online {
            Some(dtype) if matrix && text => dtype,
            _ => self.plain,
        }
    }

    /// Bytes of `elements` of `parameter` on a rank.
    pub fn bytes(&self, parameter: &Parameter, elements: u64) -> Bytes {
        let dtype = self.dtype(parameter);
        if dtype == self.plain {
            return dtype.bytes(elements);
        }
        if let Some(bytes) = self.stored.and_then(|s| s.module_of(parameter)) {
            if parameter.bias {
                // Counted with the weight of its module.
                return Bytes::ZERO;
            }
            return bytes.scale(elements, parameter.elements().max(1));
        }
        match self.padded_expert(parameter, dtype, elements) {
            Some(elements) => dtype.bytes(elements),
            None => dtype.bytes(elements),
        }
    }

    /// Elements after padding, for packed 4-bit experts.
    fn padded_expert(&self, parameter: &Parameter, dtype: DType, elements: u64) -> Option<u64> {
        use Part::{ExpertDown, ExpertGate, ExpertGateUp, ExpertUp};
        if dtype != DType::Mxfp4
            || !self.pad_experts
            || !matches!(parameter.part, ExpertGate | ExpertUp | ExpertGateUp | ExpertDown)
        {
            return None;
        }
        let stack = self.model.stacks.get(parameter.stack?)?;
        let Ffn::Moe(moe) = &stack.layers.get(parameter.layer?)?.ffn else { return None };
        let padding = &facts().mxfp4_padding;
        let width = moe.expert.width.div_ceil(self.tensor.max(1));
        let round = |n: u64, to: u64| n.div_ceil(to.max(1)).saturating_mul(to.max(1));
        let grow = |n: u64, from: u64, to: u64| {
            u64::try_from(u128::from(n) * u128::from(to) / u128::from(from.max(1)))
                .unwrap_or(u64::MAX)
        };
        let wide = grow(elements, width, round(width, padding.intermediate));
        Some(grow(wide, stack.hidden, round(stack.hidden, padding.hidden)))
    }
}

/// Whether a list of "not converted" modules names this one. Entries are names or parts of names; `*`, `.*` and a
/// leading `re:` are understood as wildcards.
fn skipped(list: &[String], name: &str) -> bool {
    list.iter().any(|pattern| {
        let pattern =
            pattern.trim_start_matches("re:").trim_end_matches('$').trim_start_matches('^');
        let pattern = pattern.replace(".*", "*").replace("\\.", ".");
        let mut rest = name;
        let mut pieces = pattern.split('*').filter(|p| !p.is_empty()).peekable();
        pieces.peek().is_some()
            && pieces.all(|piece| match rest.find(piece) {
                Some(at) => {
                    rest = &rest[at + piece.len()..];
                    true
                }
                None => false,
            })
    })
}

/// Weights of `stage`.
pub fn stage_weights(
    storage: &Storage,
    inventory: &Inventory,
    settings: &Settings,
    expert: bool,
    stage: u64,
    draft: bool,
) -> RankWeights {
    let ranks =
        Ranks { tensor: settings.tensor, pipeline: settings.pipeline, expert, vocab_multiple: 64 };
    let mut tensors: BTreeMap<(Option<usize>, Option<usize>, Part), Bytes> = BTreeMap::new();
    let mut weights =
        weights_of_stage(storage.model, inventory, &ranks, stage, draft, |parameter, elements| {
            let bytes = storage.bytes(parameter, elements);
            if !parameter.bias {
                let key = (parameter.stack, parameter.layer, merged(parameter.part));
                *tensors.entry(key).or_insert(Bytes::ZERO) += bytes;
            }
            bytes
        });
    let tails: Bytes = tensors.values().map(|bytes| block_tail(*bytes)).sum();
    weights.other += tails;
    weights.total += tails;
    weights
}

/// The engine merges these matrices into one tensor.
fn merged(part: Part) -> Part {
    use Part::*;
    match part {
        Query | Key | Value => Qkv,
        Gate | Up => GateUp,
        ExpertGate | ExpertUp => ExpertGateUp,
        SharedGate | SharedUp => SharedGate,
        other => other,
    }
}

/// What PyTorch's allocator counts beyond a tensor of its own segment: segments of 10 MiB and more are whole
/// multiples of 2 MiB, and a rest of at most 1 MiB is not split off.
fn block_tail(bytes: Bytes) -> Bytes {
    if bytes < Bytes::mib(10) {
        return Bytes::ZERO;
    }
    let tail = bytes.round_up(Bytes::mib(2)).saturating_sub(bytes);
    if tail <= Bytes::mib(1) { tail } else { Bytes::ZERO }
}

/// The rotary table: cosines and sines of every position, whole on every rank.
pub fn rotary_table(model: &Architecture, dtype: DType) -> Bytes {
    let dim = match model.embedding.as_ref().map(|e| e.positions) {
        Some(Positions::Rotary { dim }) => dim,
        _ => return Bytes::ZERO,
    };
    // Linear scaling keeps a row for every scaled position; local layers may have a table of their own.
    let known = facts().rotary_tables.iter().find(|t| t.family == model.family);
    let rows = known.map_or(1, |t| t.rows).saturating_mul(model.max_positions.unwrap_or(0));
    dtype.bytes(rows.saturating_mul(dim))
}

/// Stacked adapters: for each slot and matrix, `rank x in` and `out x rank`, the split side by the ranks.
pub fn adapters(
    model: &Architecture,
    inventory: &Inventory,
    lora: &LoraServing,
    tensor: u64,
    dtype: DType,
) -> Bytes {
    if lora.count == 0 || lora.rank == 0 {
        return Bytes::ZERO;
    }
    // The kernels take these ranks only.
    let rank = [8, 16, 32, 64, 128, 256, 320, 512].into_iter().find(|r| *r >= lora.rank);
    let rank = rank.unwrap_or(lora.rank);
    let per_slot = inventory.parameters.iter().filter(|p| p.is_linear() && p.part != Part::Head);
    let elements = per_slot.fold(0u64, |sum, parameter| {
        let (Some(&rows), Some(&columns)) = (parameter.shape.first(), parameter.shape.last())
        else {
            return sum;
        };
        let text = parameter.stack.and_then(|s| model.stacks.get(s)).is_some_and(|s| {
            use plimsoll_model::arch::StackRole::Decoder;
            s.role == Decoder
        });
        if !text || matches!(cut(parameter.part, false), Cut::Whole | Cut::Experts) {
            return sum;
        }
        let ranks = Ranks { tensor, ..Ranks::default() };
        let share = rank_elements(model, parameter, &ranks);
        let by_rows =
            !matches!(parameter.part, Part::Output | Part::Down | Part::SsmOut | Part::SharedDown);
        let (outputs, inputs) =
            if by_rows { (share / columns.max(1), columns) } else { (rows, share / rows.max(1)) };
        sum.saturating_add(outputs.saturating_add(inputs).saturating_mul(rank))
    });
    dtype.bytes(elements.saturating_mul(lora.count))
}

/// Bytes of the largest layer of the main stack on a rank: what a host-offloaded layer needs while it runs.
pub fn largest_layer(storage: &Storage, inventory: &Inventory, settings: &Settings) -> Bytes {
    let ranks = Ranks { tensor: settings.tensor, ..Ranks::default() };
    let mut by_layer = BTreeMap::new();
    for parameter in &inventory.parameters {
        if let (Some(stack), Some(layer)) = (parameter.stack, parameter.layer) {
            let elements = rank_elements(storage.model, parameter, &ranks);
            *by_layer.entry((stack, layer)).or_insert(Bytes::ZERO) +=
                storage.bytes(parameter, elements);
        }
    }
    by_layer.into_values().max().unwrap_or(Bytes::ZERO)
}

#[cfg(test)]
mod tests {
    use super::skipped;

    #[test]
    fn skip_lists_are_names_globs_or_simple_expressions() {
        for (pattern, name, expected) in [
            ("lm_head", "lm_head.weight", true),
            ("re:.*lm_head", "lm_head.weight", true),
            ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj.weight", true),
            ("re:vision_tower.*", "vision_tower.layers.0.mlp.fc1.weight", true),
            ("re:.*mlp\\.gate$", "model.layers.0.mlp.gate_proj.weight", true),
            ("lm_head", "model.layers.0.mlp.up_proj.weight", false),
            ("", "model.norm.weight", false),
        ] {
            assert_eq!(skipped(&[pattern.to_owned()], name), expected, "{pattern} {name}");
        }
    }
}
