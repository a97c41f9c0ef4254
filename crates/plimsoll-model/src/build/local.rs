//! What one device holds of a parameter under tensor and expert parallelism.

use plimsoll_units::DType;

use super::Scope;
use crate::arch::{Attention, Mixer};
use crate::graph::BlockParam;
use crate::inventory::{Parameter, Part};

/// The share of `parameter` on one device. Column-parallel parts lose rows, row-parallel parts lose columns, norms,
/// routers and latent down-projections are whole; K and V keep at least one head; routed experts are split over
/// expert ranks.
pub(crate) fn local_shard(parameter: &Parameter, scope: &Scope<'_>, dtype: DType) -> BlockParam {
    use Part::*;
    let t = scope.options.tensor.max(1);
    let (mut rows, mut columns) = match parameter.shape.as_slice() {
        [] => (1, 1),
        [n] => (1, *n),
        [n, rest @ ..] => (*n, rest.iter().fold(1u64, |a, b| a.saturating_mul(*b))),
    };
    // GPT-2's Conv1D keeps its weights as [in, out].
    if scope.architecture.family == "gpt2" && parameter.is_linear() && parameter.part != Head {
        std::mem::swap(&mut rows, &mut columns);
    }
    // Fused expert tensors are [experts, rows, columns]: the experts move into the count.
    let mut count = parameter.count.max(1);
    let is_expert = matches!(parameter.part, ExpertGate | ExpertUp | ExpertGateUp | ExpertDown);
    if let (true, [experts, rest @ ..]) = (is_expert, parameter.shape.as_slice())
        && parameter.count <= 1
    {
        count = *experts;
        (rows, columns) = match rest {
            [] => (1, 1),
            [n] => (1, *n),
            [n, m @ ..] => (*n, m.iter().product()),
        };
    }
    let split = |n: u64| n.div_ceil(t);
    match parameter.part {
        Query | QueryUp | KvUp | CrossQuery | Gate | Up | GateUp | SharedGate | SharedUp
        | SsmIn | SsmIn2 | TokenEmbedding | Head => {
            if parameter.shape.len() > 1 {
                rows = split(rows);
            } else {
                columns = split(columns);
            }
        }
        Key | Value | CrossKey | CrossValue => {
            let kv = attention_of(scope, parameter).map_or(t, |a| a.kv_heads.max(1));
            let part = |n: u64| (n / kv).saturating_mul(kv.div_ceil(t));
            if parameter.shape.len() > 1 {
                rows = part(rows);
            } else {
                columns = part(columns);
            }
        }
        Qkv => {
            let whole = if parameter.shape.len() > 1 { rows } else { columns };
            let local = match attention_of(scope, parameter) {
                Some(a) => {
                    let heads = a.heads.div_ceil(t).saturating_mul(a.head_dim);
                    let kv = a.kv_heads.max(1).div_ceil(t).saturating_mul(a.head_dim + a.value_dim);
                    if t == 1 { whole } else { heads + kv }
                }
                None => split(whole),
            };
            if parameter.shape.len() > 1 {
                rows = local;
            } else {
                columns = local;
            }
        }
        Output | Down | CrossOutput | SharedDown | SsmOut if parameter.shape.len() > 1 => {
            columns = split(columns);
        }
        ExpertGate | ExpertUp | ExpertGateUp | ExpertDown => {
            count = count.div_ceil(scope.options.expert.max(1));
            // Without expert parallelism tensor ranks split every expert.
            if scope.options.expert <= 1 || scope.options.expert_tensor {
                match parameter.part {
                    ExpertDown if !parameter.bias => columns = split(columns),
                    ExpertDown => {}
                    _ => rows = split(rows),
                }
            }
        }
        SsmConv | SsmD | SsmA | SsmDt => rows = if t > 1 { split(rows) } else { rows },
        _ => {}
    }
    let one = rows.saturating_mul(columns);
    let elements = one.saturating_mul(count);
    BlockParam {
        part: parameter.part,
        bias: parameter.bias,
        elements,
        tensor_elements: one,
        count,
        matrix: (rows, columns),
        bytes: dtype.bytes(elements),
        dtype,
        trainable: true,
        adapter: false,
        expert: is_expert,
        tied: false,
    }
}

fn attention_of<'a>(scope: &'a Scope<'_>, parameter: &Parameter) -> Option<&'a Attention> {
    let layer = scope.stack.layers.get(parameter.layer?)?;
    match parameter.part {
        Part::CrossKey | Part::CrossValue | Part::CrossQuery => layer.cross.as_ref(),
        _ => match &layer.mixer {
            Mixer::Attention(a) => Some(a),
            Mixer::Parallel(a, _) => Some(a),
            _ => None,
        },
    }
}
