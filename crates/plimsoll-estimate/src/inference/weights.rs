//! The weights as one rank loads them: stored types, shares of tensor parallelism, and what they are.

use plimsoll_model::arch::StackRole;
use plimsoll_model::{Architecture, Inventory, Parameter, Part};
use plimsoll_units::{Bytes, DType};

use crate::request::Sparsity;
use crate::tensor_parallel::{Ranks, rank_elements};
use crate::vllm::Storage;

/// One parameter (or the equal experts of a layer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WeightRow {
    /// What it belongs to, for reports.
    pub group: &'static str,
    /// Tensors.
    pub count: u64,
    /// Elements of all of them on this rank.
    pub elements: u64,
    /// Stored type.
    pub dtype: DType,
    /// Bytes of all of them.
    pub bytes: Bytes,
}

/// The rows of one rank, draft layers left out.
pub(super) fn rows(
    model: &Architecture,
    inventory: &Inventory,
    storage: &Storage<'_>,
    tensor: u64,
    sparsity: Option<Sparsity>,
) -> Vec<WeightRow> {
    let ranks = Ranks { tensor, ..Ranks::default() };
    let runs = |p: &&Parameter| role(model, p) != Some(StackRole::Draft);
    inventory
        .parameters
        .iter()
        .filter(runs)
        .map(|p| {
            let elements = rank_elements(model, p, &ranks);
            let dtype = storage.dtype(p);
            let bytes = match sparsity {
                Some(sparsity) if sparse(model, p) && sparsity.suits(dtype) => {
                    let columns = p.shape.last().copied().unwrap_or(1).max(1);
                    sparsity.bytes(dtype, elements, elements / columns)
                }
                _ => storage.bytes(p, elements),
            };
            WeightRow { group: group(model, p), count: p.count, elements, dtype, bytes }
        })
        .collect()
}

/// Matrices of the text layers; tables, heads and routers stay dense.
fn sparse(model: &Architecture, p: &Parameter) -> bool {
    use Part::*;
    let text = !matches!(role(model, p), Some(StackRole::Vision | StackRole::Audio));
    let dense = matches!(p.part, Head | HeadDense | Projector | SharedScale | Indexer | Router);
    text && p.is_linear() && !p.bias && !dense
}

fn role(model: &Architecture, p: &Parameter) -> Option<StackRole> {
    p.stack.and_then(|s| model.stacks.get(s)).map(|s| s.role)
}

fn group(model: &Architecture, p: &Parameter) -> &'static str {
    use Part::*;
    if matches!(role(model, p), Some(StackRole::Vision | StackRole::Audio)) || p.part == Projector {
        return "towers and projector";
    }
    match p.part {
        TokenEmbedding | PositionEmbedding | TypeEmbedding | EmbeddingProjection => "embeddings",
        Head | HeadDense | HeadNorm => "head",
        ExpertGate | ExpertUp | ExpertGateUp | ExpertDown => "routed experts",
        Gate | Up | GateUp | Down | SharedGate | SharedUp | SharedDown | SharedScale => {
            "feed-forward"
        }
        Query | Key | Value | Qkv | Output | QueryDown | QueryUp | KvDown | KvUp | Indexer
        | CrossQuery | CrossKey | CrossValue | CrossOutput => "attention",
        SsmIn | SsmIn2 | SsmConv | SsmX | SsmDt | SsmA | SsmD | SsmNorm | SsmOut => "recurrence",
        _ => "norms and routers",
    }
}
