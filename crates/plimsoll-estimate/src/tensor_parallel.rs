//! What one rank of a tensor-, expert- or pipeline-parallel group holds of each parameter. The rules are those
//! of Megatron-style layers as the serving engines implement them: columns or rows of matrices are split, norms,
//! routers and latent projections are whole on every rank, and key-value heads are repeated once there are more
//! ranks than heads. Bytes of a stored type are applied to the elements that a rank holds.

use std::collections::BTreeMap;

use plimsoll_model::arch::{Attention, Mixer, StackRole};
use plimsoll_model::{Architecture, Inventory, Parameter, Part};
use plimsoll_units::{Bytes, DType};

/// The group that shares a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Routed experts are spread over the tensor ranks whole, instead of each being split.
    pub expert: bool,
    /// Rows of the token table and head are padded to a multiple of this before they are split; 1 for none.
    pub vocab_multiple: u64,
}

impl Default for Ranks {
    fn default() -> Self {
        Ranks { tensor: 1, pipeline: 1, expert: false, vocab_multiple: 1 }
    }
}

/// How a parameter is divided among tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Every rank holds all of it.
    Whole,
    /// An equal share of rows or columns.
    Even,
    /// By key-value heads, repeated when there are fewer heads than ranks.
    KeyValueHeads,
    /// By rows of the (padded) vocabulary.
    Vocabulary,
    /// By routed experts, whole or split.
    Experts,
}

/// How `part` is cut. `bias` says whether it is the bias: a bias added after the sum over ranks is whole.
pub fn cut(part: Part, bias: bool) -> Cut {
    use Part::*;
    match part {
        TokenEmbedding | Head => Cut::Vocabulary,
        Key | Value | Qkv => Cut::KeyValueHeads,
        Query | QueryUp | KvUp | Sinks | CrossQuery | CrossKey | CrossValue => Cut::Even,
        Gate | Up | GateUp | SharedGate | SharedUp => Cut::Even,
        SsmIn | SsmIn2 | SsmConv | SsmX | SsmDt | SsmA | SsmD => Cut::Even,
        Output | CrossOutput | Down | SharedDown | SsmOut => {
            if bias {
                Cut::Whole
            } else {
                Cut::Even
            }
        }
        ExpertGate | ExpertUp | ExpertGateUp | ExpertDown => Cut::Experts,
        _ => Cut::Whole,
    }
}

/// Elements of `parameter` that the fullest tensor-parallel rank holds, saturating.
pub fn rank_elements(model: &Architecture, parameter: &Parameter, ranks: &Ranks) -> u64 {
    let all = parameter.elements();
    let tensor = ranks.tensor.max(1);
    if tensor == 1 && ranks.vocab_multiple <= 1 {
        return all;
    }
    match cut(parameter.part, parameter.bias) {
        Cut::Whole => all,
        Cut::Even => all.div_ceil(tensor),
        Cut::Vocabulary => {
            let rows = parameter.shape.first().copied().unwrap_or(1).max(1);
            let columns = all / rows;
            let multiple = ranks.vocab_multiple.max(1);
            let padded = rows.div_ceil(multiple).saturating_mul(multiple);
            padded.div_ceil(tensor).saturating_mul(columns)
        }
        Cut::KeyValueHeads => match attention_of(model, parameter) {
            Some(attention) => split_heads(attention, parameter.part, all, tensor),
            None => all.div_ceil(tensor),
        },
        Cut::Experts if ranks.expert => {
            // Unfused rows stand for `count` experts; fused ones have the experts outermost.
            let experts = if parameter.count > 1 {
                parameter.count
            } else {
                parameter.shape.first().copied().unwrap_or(1).max(1)
            };
            (all / experts).saturating_mul(experts.div_ceil(tensor))
        }
        Cut::Experts => all.div_ceil(tensor),
    }
}

fn split_heads(attention: &Attention, part: Part, all: u64, tensor: u64) -> u64 {
    let kv_heads = attention.kv_heads.max(1);
    let kv_share = kv_heads.div_ceil(tensor);
    if part != Part::Qkv {
        return (all / kv_heads).saturating_mul(kv_share);
    }
    let query = attention.heads.saturating_mul(attention.head_dim);
    let kv = kv_heads.saturating_mul(attention.head_dim.saturating_add(attention.value_dim));
    let rows = query.saturating_add(kv).max(1);
    let columns = all / rows;
    let share = query.div_ceil(tensor).saturating_add((kv / kv_heads).saturating_mul(kv_share));
    share.saturating_mul(columns)
}

fn attention_of<'a>(model: &'a Architecture, parameter: &Parameter) -> Option<&'a Attention> {
    let layer = model.stacks.get(parameter.stack?)?.layers.get(parameter.layer?)?;
    match &layer.mixer {
        Mixer::Attention(attention) => Some(attention),
        Mixer::Parallel(attention, _) => Some(attention),
        _ => None,
    }
}

/// Layers of the pipeline stages, first to last, as vLLM and SGLang divide them: equal shares, the remainder
/// on the stages before the last (which also holds the head), from the back.
pub fn stage_layers(layers: u64, stages: u64) -> Vec<u64> {
    let stages = stages.clamp(1, 1 << 16);
    let share = layers / stages;
    let rest = layers % stages;
    (0..stages)
        .map(|stage| {
            // The last stage takes one only when all the others already have; the rest is below the count.
            let from_back = stages - 1 - stage;
            share + u64::from(from_back >= 1 && from_back <= rest)
        })
        .collect()
}

/// Bytes of one rank, by what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankWeights {
    /// Everything that the fullest rank of the fullest stage holds.
    pub total: Bytes,
    /// Token tables and head.
    pub embeddings: Bytes,
    /// Attention and other mixers.
    pub mixers: Bytes,
    /// Dense feed-forward networks and shared experts.
    pub feed_forward: Bytes,
    /// Routed experts.
    pub experts: Bytes,
    /// Vision and audio towers with their projectors.
    pub towers: Bytes,
    /// Layers that draft further tokens.
    pub draft: Bytes,
    /// Norms, routers and everything else.
    pub other: Bytes,
}

impl RankWeights {
    fn slot(&mut self, model: &Architecture, parameter: &Parameter) -> &mut Bytes {
        use Part::*;
        match parameter.stack.and_then(|s| model.stacks.get(s)).map(|s| s.role) {
            Some(StackRole::Vision | StackRole::Audio) => return &mut self.towers,
            Some(StackRole::Draft) => return &mut self.draft,
            _ => {}
        }
        match parameter.part {
            TokenEmbedding | PositionEmbedding | TypeEmbedding | EmbeddingProjection | Head => {
                &mut self.embeddings
            }
            ExpertGate | ExpertUp | ExpertGateUp | ExpertDown => &mut self.experts,
            Gate | Up | GateUp | Down | SharedGate | SharedUp | SharedDown => {
                &mut self.feed_forward
            }
            Query | Key | Value | Qkv | Output | QueryDown | QueryUp | KvDown | KvUp
            | CrossQuery | CrossKey | CrossValue | CrossOutput | SsmIn | SsmIn2 | SsmConv
            | SsmX | SsmOut => &mut self.mixers,
            Projector => &mut self.towers,
            _ => &mut self.other,
        }
    }
}

/// What one rank holds: of `stage` if the model is cut into pipeline stages, by `bytes(parameter, elements)`.
/// `draft` says whether draft layers are loaded.
pub fn weights_of_stage(
    model: &Architecture,
    inventory: &Inventory,
    ranks: &Ranks,
    stage: u64,
    draft: bool,
    mut bytes: impl FnMut(&Parameter, u64) -> Bytes,
) -> RankWeights {
    let main = model.stacks.iter().rposition(|s| s.role == StackRole::Decoder).unwrap_or(0);
    let layers = model.stacks.get(main).map_or(0, |s| s.layers.len() as u64);
    let (first, end) = stage_range(layers, ranks.pipeline, stage);
    let last_stage = ranks.pipeline.saturating_sub(1);
    let mut weights = RankWeights::default();
    for parameter in &inventory.parameters {
        let role = parameter.stack.and_then(|s| model.stacks.get(s)).map(|s| s.role);
        if role == Some(StackRole::Draft) && !draft {
            continue;
        }
        let here = match (parameter.stack, parameter.layer) {
            (Some(stack), Some(layer)) if stack == main => {
                (first..end).contains(&u64::try_from(layer).unwrap_or(u64::MAX))
            }
            _ => match parameter.part {
                Part::FinalNorm | Part::Head | Part::HeadDense | Part::HeadNorm => {
                    stage == last_stage
                }
                // A tied table serves as the head of the last stage as well.
                Part::TokenEmbedding => stage == 0 || (model.head.tied && stage == last_stage),
                _ if role == Some(StackRole::Draft) => stage == last_stage,
                _ => stage == 0,
            },
        };
        if here {
            let held = bytes(parameter, rank_elements(model, parameter, ranks));
            *weights.slot(model, parameter) += held;
            weights.total += held;
        }
    }
    weights
}

/// The layers `[first, end)` of a stage.
pub fn stage_range(layers: u64, stages: u64, stage: u64) -> (u64, u64) {
    let mut first = 0;
    for (index, count) in stage_layers(layers, stages).into_iter().enumerate() {
        if index as u64 == stage {
            return (first, first + count);
        }
        first += count;
    }
    (first, first)
}

/// Weight bytes of the fullest rank where every matrix is stored as `linear` and the rest as `plain`.
pub fn weights_per_rank(
    model: &Architecture,
    inventory: &Inventory,
    ranks: &Ranks,
    plain: DType,
    linear: DType,
) -> RankWeights {
    (0..ranks.pipeline.clamp(1, 1 << 16))
        .map(|stage| {
            weights_of_stage(model, inventory, ranks, stage, false, |parameter, elements| {
                let dtype = if parameter.is_linear() && parameter.part != Part::Head {
                    linear
                } else {
                    plain
                };
                dtype.bytes(elements)
            })
        })
        .max_by_key(|w| w.total)
        .unwrap_or_default()
}

/// Stored bytes by module: the tensors of a checkpoint, summed over the names that share a module
/// (`weight`, `weight_scale`, `qweight`, `qzeros`). Expert indices are folded into `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBytes(BTreeMap<String, Bytes>);

impl StoredBytes {
    /// Sums `(tensor name, bytes)` by module.
    pub fn new<'a>(tensors: impl IntoIterator<Item = (&'a str, Bytes)>) -> Self {
        let mut modules = BTreeMap::new();
        for (name, bytes) in tensors {
            let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
            *modules.entry(fold_experts(module)).or_insert(Bytes::ZERO) += bytes;
        }
        StoredBytes(modules)
    }

    /// Bytes of the module that `parameter` belongs to, if the checkpoint names it alike.
    pub fn module_of(&self, parameter: &Parameter) -> Option<Bytes> {
        let module = parameter.name.rsplit_once('.').map_or(&*parameter.name, |(m, _)| m);
        self.0.get(&fold_experts(module)).copied()
    }
}

fn fold_experts(module: &str) -> String {
    let mut folded = String::with_capacity(module.len());
    let mut after_experts = false;
    for component in module.split('.') {
        if !folded.is_empty() {
            folded.push('.');
        }
        let index = after_experts && component.bytes().all(|b| b.is_ascii_digit());
        folded.push_str(if index { "*" } else { component });
        after_experts = component == "experts";
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_share_layers_and_spare_the_last() {
        for (layers, stages, expected) in [
            (32, 1, vec![32]),
            (32, 4, vec![8, 8, 8, 8]),
            (30, 4, vec![7, 8, 8, 7]),
            (61, 2, vec![31, 30]),
            (5, 4, vec![1, 1, 2, 1]),
        ] {
            assert_eq!(stage_layers(layers, stages), expected, "{layers}/{stages}");
            assert_eq!(stage_layers(layers, stages).iter().sum::<u64>(), layers);
        }
    }

    #[test]
    fn stored_modules_fold_experts_and_companions() {
        let stored = StoredBytes::new([
            ("model.layers.0.mlp.experts.0.up_proj.qweight", Bytes::new(10)),
            ("model.layers.0.mlp.experts.0.up_proj.scales", Bytes::new(1)),
            ("model.layers.0.mlp.experts.7.up_proj.qweight", Bytes::new(10)),
        ]);
        assert_eq!(stored.0.get("model.layers.0.mlp.experts.*.up_proj"), Some(&Bytes::new(21)));
    }

    #[test]
    fn parts_are_cut_as_the_engines_cut_them() {
        for (part, bias, expected) in [
            (Part::Norm1, false, Cut::Whole),
            (Part::Router, false, Cut::Whole),
            (Part::KvDown, false, Cut::Whole),
            (Part::QueryDown, false, Cut::Whole),
            (Part::Query, true, Cut::Even),
            (Part::Output, true, Cut::Whole),
            (Part::Down, false, Cut::Even),
            (Part::Key, false, Cut::KeyValueHeads),
            (Part::Head, false, Cut::Vocabulary),
            (Part::ExpertDown, false, Cut::Experts),
        ] {
            assert_eq!(cut(part, bias), expected, "{part:?}");
        }
    }
}
