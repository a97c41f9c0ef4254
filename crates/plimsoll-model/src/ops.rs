//! The operator table. For each operator: what autograd keeps, what kernels need besides, how gradients arrive,
//! and how much is computed. The timeline of a training step and every summary of it derive from this table;
//! there is no second formula.
//!
//! Rules follow PyTorch's `derivatives.yaml` (what each formula names is what is saved) and, for attention, the
//! allocations of the flash-attention 2 and memory-efficient kernels.

use plimsoll_units::{Bindings, Bytes, DType, Dim, Shape};

use crate::graph::{Block, BlockParam, Node, Value};

/// What is computed. Shapes of outputs are fixed when the graph is built.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// Reshape, transpose, slice, expand: no memory of its own. The gradient of a part is written into one tensor
    /// of the whole.
    View,
    /// A copy (`contiguous`, expand-and-reshape of K and V heads).
    Copy,
    /// A copy in another element type.
    Cast,
    /// `x W^T + b`.
    Linear(Linear),
    /// Batched product of two tensors; `contracted` is the inner size.
    MatMul {
        /// The summed dimension.
        contracted: Dim,
    },
    /// Sum of two tensors; the gradient passes through. `in_place` writes into the first.
    Add {
        /// Writes into the first input.
        in_place: bool,
    },
    /// Product of two tensors, each kept for the other's gradient.
    Mul,
    /// Product with a vector of DoRA's magnitudes over the norms of the adapted weight's rows: keeps its input, which the
    /// magnitude's gradient needs.
    Magnitude(Magnitude),
    /// Quotient of two tensors; the divisor's gradient takes three temporaries of the output's size.
    Div,
    /// Element-wise function.
    Unary {
        /// What its derivative needs.
        saves: Saves,
    },
    /// Reduction over the last axis (mean, sum, negative log likelihood); nothing large is kept.
    ReduceLast,
    /// Softmax or log-softmax; keeps its output.
    Softmax,
    /// Layer norm in one kernel: keeps input, mean and reciprocal deviation.
    LayerNorm,
    /// RMS norm in one kernel: keeps input and reciprocal root mean square.
    RmsNorm,
    /// Dropout: keeps a mask of one byte per element.
    Dropout,
    /// Attention in one kernel.
    Attention(AttentionOp),
    /// Row lookup in a table.
    Embedding,
    /// Concatenation; gradients are slices of one tensor.
    Concat,
    /// Gate and up combined in one kernel: keeps both, not the product's parts.
    SwiGlu,
    /// Cross-entropy in one kernel: the gradient is written over what is kept. With `upcast` that is an F32 copy which
    /// becomes the probabilities (Megatron), else the logits themselves.
    FusedCrossEntropy {
        /// On an F32 copy.
        upcast: bool,
    },
    /// Cross-entropy on logits whose vocabulary is sharded over tensor ranks, composed of operators (PyTorch's
    /// `loss_parallel`).
    ShardedCrossEntropy,
    /// Log-softmax and negative log likelihood over pieces of the logits: what a piece needs on top exists once at a time.
    ChunkedCrossEntropy {
        /// Tokens per piece.
        chunk: Dim,
        /// Upcast per piece.
        upcast: bool,
        /// Compiled: the logits are kept instead of the log-probabilities.
        recomputes: bool,
    },
    /// Projection and loss chunk by chunk, gradients computed in forward.
    FusedLinearCrossEntropy {
        /// Tokens per chunk.
        chunk: Dim,
    },
    /// Columns written into a larger tensor of zeros (`index_copy_`); keeps what it writes, whose sizes its derivative
    /// asks for.
    IndexCopy,
    /// Token dispatch of a mixture: `index_select` into expert order, or the way back.
    Dispatch,
    /// Collective that makes a larger tensor (all-gather); its gradient is the smaller one.
    AllGather {
        /// The gathered tensor is dropped after use and gathered again in backward (Megatron).
        regather: bool,
    },
    /// Collective that makes a smaller tensor (reduce-scatter).
    ReduceScatter,
    /// All-reduce in place, forward or backward.
    AllReduce,
    /// A fused recurrence (selective scan, delta rule): keeps its inputs and `states` chunk states.
    Scan {
        /// Elements of kept states.
        states: Dim,
    },
    /// Depth-wise causal convolution: keeps its input.
    Conv1d,
    /// Patch convolution (stride = kernel): a linear map of patches; keeps its input.
    PatchConv {
        /// Inputs per output element.
        fan_in: u64,
    },
}

/// What an element-wise derivative needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// Nothing (negation, scaling by a constant).
    Nothing,
    /// Its input (GELU, SiLU, square).
    Input,
    /// Its output (ReLU, tanh, sigmoid, rsqrt).
    Output,
}

/// A linear map.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// The weight is copied to this type at every use (autocast); the copy is kept for backward.
    pub weight_cast: Option<DType>,
    /// The weight is dequantized at every use.
    pub dequantize: Option<Dequantize>,
    /// Input and weight are cast to FP8 for the product.
    pub fp8: bool,
}

/// What a product with DoRA's magnitudes needs besides (PEFT's `DoraLinearLayer`).
#[derive(Clone, Debug, PartialEq)]
pub struct Magnitude {
    /// Elements alive beside it: of the identity matrix, the update `B A` and what the norm is taken of.
    pub beside: u64,
    /// Elements of a copy of the weight that the product before it keeps for the input's gradient.
    pub kept: u64,
    /// Their type.
    pub dtype: DType,
}

/// How a weight in blocks becomes a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dequantize {
    /// Type of the product.
    pub into: DType,
    /// Type that the blocks were made from, in which the kernel writes them; the copy in the type of the product
    /// stands beside it.
    pub from: DType,
    /// The input is an attribute of the node: it lives as long as the graph.
    pub keeps_input: bool,
}

/// Fused attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOp {
    /// Which kernel.
    pub kernel: AttentionKind,
    /// Query heads on this device.
    pub heads: u64,
    /// Key heads on this device as the kernel sees them.
    pub kv_heads: u64,
    /// Channels per head.
    pub head_dim: u64,
    /// Keys that a query sees.
    pub keys: Dim,
    /// Causal: half of the scores are computed.
    pub causal: bool,
}

/// Kernels of fused attention by what they allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKind {
    /// flash-attention 2: log-sum-exp kept; backward has an F32 accumulator of dQ, and per-query-head dK, dV.
    Flash,
    /// Memory-efficient (xFormers): log-sum-exp kept.
    Efficient,
    /// cuDNN fused (Transformer Engine): log-sum-exp kept, no F32 accumulator visible to torch.
    Cudnn,
}

/// How the gradient of an input comes into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// A new tensor of the input's size.
    New,
    /// The very tensor that arrived for the output.
    Passed,
    /// A view into one tensor made for all inputs together.
    Shared,
    /// Written over a kept tensor (in-place kernels).
    InPlace,
}

/// A tensor that the operator makes besides its outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Extra {
    /// Elements' sizes.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// A cast copy of a weight: without a graph it lives to the end of the autocast region, in its cache.
    pub weight_cast: bool,
}

/// What the table says of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// Inputs kept for backward, as bits.
    pub saves_inputs: u32,
    /// The kept inputs are attributes of the node and live as long as the graph, not to the node's backward pass.
    pub inputs_outlive: bool,
    /// The output is kept.
    pub saves_output: bool,
    /// Further tensors kept.
    pub saved: Vec<Extra>,
    /// Scratch of the forward kernel, alive beside its output.
    pub forward_scratch: Vec<Extra>,
    /// Scratch of the backward kernel, alive beside the gradients it makes.
    pub backward_scratch: Vec<Extra>,
    /// The output has no memory of its own: it is (a view of) input 0.
    pub output_aliases_input: bool,
    /// How gradients of inputs arrive; the default is a new tensor each.
    pub gradient: Option<Gradient>,
    /// What was kept goes before the gradient comes (piece by piece).
    pub releases_first: bool,
    /// Parameter gradients are made in forward (fused loss).
    pub gradients_in_forward: bool,
}

impl Rule {
    fn saves(inputs: u32) -> Rule {
        Rule { saves_inputs: inputs, ..Rule::default() }
    }
}

fn extra(shape: Shape, dtype: DType) -> Extra {
    Extra { shape, dtype, weight_cast: false }
}

/// Elements of everything but the last axis.
fn rows(value: &Value) -> Shape {
    value.shape.with_last(1)
}

/// The table: what `node` of `block` allocates and keeps.
pub fn rule(block: &Block, node: &Node) -> Rule {
    let value = |i: usize| -> &Value { &block.values[node.inputs[i].0 as usize] };
    let learns = node.params.iter().any(|p| block.params[p.0 as usize].trainable);
    let needs =
        |i: usize| node.inputs.get(i).is_some_and(|v| block.values[v.0 as usize].requires_grad);
    match &node.op {
        Op::View => {
            Rule { output_aliases_input: true, gradient: Some(Gradient::Passed), ..Rule::default() }
        }
        Op::Copy | Op::Cast | Op::ReduceLast | Op::ReduceScatter => Rule::default(),
        Op::Linear(linear) => linear_rule(block, node, linear, learns, needs(0)),
        Op::MatMul { .. } => Rule::saves(u32::from(needs(1)) | u32::from(needs(0)) << 1),
        Op::Add { in_place } => Rule {
            output_aliases_input: *in_place,
            gradient: Some(Gradient::Passed),
            ..Rule::default()
        },
        // The gradient of one factor is made of the other.
        Op::Mul => Rule::saves(
            u32::from(needs(1) || (node.inputs.len() == 1 && learns)) | u32::from(needs(0)) << 1,
        ),
        Op::Magnitude(m) => {
            let matrix = |elements: u64| extra(Shape::from([elements]), m.dtype);
            let some = |elements: u64| (elements > 0).then(|| matrix(elements));
            Rule {
                saved: some(m.kept).into_iter().collect(),
                forward_scratch: some(m.beside).into_iter().collect(),
                // Gradient times input, before it is summed into a vector.
                backward_scratch: vec![extra(value(0).shape.clone(), value(0).dtype)],
                ..Rule::saves(u32::from(learns))
            }
        }
        // grad_b = -grad * ((a / b) / b)
        Op::Div => {
            let full = || extra(value(0).shape.clone(), value(0).dtype);
            let backward_scratch = if needs(1) { vec![full(), full(), full()] } else { Vec::new() };
            Rule { backward_scratch, ..Rule::saves(u32::from(needs(1)) | 0b10) }
        }
        Op::Unary { saves } => Rule {
            saves_inputs: u32::from(*saves == Saves::Input),
            saves_output: *saves == Saves::Output,
            ..Rule::default()
        },
        Op::Softmax => Rule { saves_output: true, ..Rule::default() },
        Op::LayerNorm => Rule {
            saves_inputs: 1,
            saved: vec![extra(rows(value(0)), DType::F32), extra(rows(value(0)), DType::F32)],
            ..Rule::default()
        },
        Op::RmsNorm => Rule {
            saves_inputs: 1,
            saved: vec![extra(rows(value(0)), DType::F32)],
            ..Rule::default()
        },
        Op::Dropout => {
            Rule { saved: vec![extra(value(0).shape.clone(), DType::Bool)], ..Rule::default() }
        }
        Op::Attention(attention) => attention_rule(attention, value(0), value(1)),
        Op::Embedding => Rule::saves(1),
        Op::Concat => Rule { gradient: Some(Gradient::Passed), ..Rule::default() },
        Op::SwiGlu => Rule::saves(if node.inputs.len() == 1 { 1 } else { 3 }),
        Op::FusedCrossEntropy { upcast: true } => {
            Rule { saved: vec![extra(value(0).shape.clone(), DType::F32)], ..Rule::default() }
        }
        Op::FusedCrossEntropy { upcast: false } => Rule {
            saves_inputs: 1,
            saved: vec![extra(rows(value(0)), DType::F32)],
            gradient: Some(Gradient::InPlace),
            ..Rule::default()
        },
        // torch/distributed/tensor/parallel/loss.py: forward holds the shifted logits and their exponentials before the
        // log-probabilities; backward the one-hot gradient and its sum with the probabilities, `(g + exp(x)) * grad`.
        Op::ShardedCrossEntropy => {
            let full = || extra(value(0).shape.clone(), DType::F32);
            Rule {
                saved: vec![full()],
                forward_scratch: vec![full()],
                backward_scratch: vec![full(), full()],
                ..Rule::default()
            }
        }
        Op::ChunkedCrossEntropy { chunk, recomputes: true, .. } => {
            // Inductor fuses the upcast into its reductions: F32 copies of a piece never exist, its gradient does.
            let piece = Shape::new([chunk.clone(), value(0).shape.last()]);
            Rule {
                saves_inputs: 1,
                backward_scratch: vec![extra(piece, value(0).dtype)],
                releases_first: true,
                ..Rule::default()
            }
        }
        Op::ChunkedCrossEntropy { chunk, upcast, .. } => {
            let logits = value(0);
            let wide = if *upcast { DType::F32 } else { logits.dtype };
            let piece = extra(Shape::new([chunk.clone(), logits.shape.last()]), wide);
            Rule {
                saved: vec![extra(logits.shape.clone(), wide)],
                forward_scratch: vec![piece.clone()],
                backward_scratch: vec![piece],
                releases_first: true,
                ..Rule::default()
            }
        }
        Op::FusedLinearCrossEntropy { chunk } => {
            let vocab = node
                .params
                .first()
                .map_or(Dim::Const(1), |p| Dim::Const(block.params[p.0 as usize].matrix.0));
            let logits = Shape::new([chunk.clone(), vocab]);
            Rule {
                saved: vec![extra(value(0).shape.clone(), value(0).dtype)],
                forward_scratch: vec![
                    extra(logits.clone(), value(0).dtype),
                    extra(logits.clone(), DType::F32),
                    extra(logits, DType::F32),
                ],
                gradient: Some(Gradient::InPlace),
                gradients_in_forward: true,
                ..Rule::default()
            }
        }
        Op::IndexCopy => Rule::saves(1),
        Op::Dispatch => Rule::saves(0),
        Op::AllGather { .. } => Rule::default(),
        Op::AllReduce => {
            Rule { output_aliases_input: true, gradient: Some(Gradient::Passed), ..Rule::default() }
        }
        Op::Scan { states } => Rule {
            saves_inputs: (1 << node.inputs.len()) - 1,
            saved: vec![extra(Shape::new([states.clone()]), DType::F32)],
            ..Rule::default()
        },
        Op::Conv1d | Op::PatchConv { .. } => Rule::saves(u32::from(learns)),
    }
}

fn linear_rule(
    block: &Block,
    node: &Node,
    linear: &Linear,
    learns: bool,
    input_grad: bool,
) -> Rule {
    let input = &block.values[node.inputs[0].0 as usize];
    let weight: Option<&BlockParam> = node.params.first().map(|p| &block.params[p.0 as usize]);
    let weight_as =
        |dtype: DType| extra(Shape::from([weight.map_or(0, |w| w.tensor_elements)]), dtype);
    let packed = linear.dequantize.zip(weight.filter(|w| is_packed(w.dtype)));
    // bitsandbytes' 4-bit product kept its input although the weight does not learn (MatMul4Bit until 0.43.1).
    let attribute =
        input_grad && packed.is_none() && linear.dequantize.is_some_and(|d| d.keeps_input);
    let mut rule = Rule::saves(u32::from(learns || attribute));
    rule.inputs_outlive = attribute;
    if let Some(dtype) = linear.weight_cast {
        // The cast weight is what the product keeps for the input's gradient.
        let shape = Shape::from([weight.map_or(0, |w| w.elements)]);
        rule.saved.push(Extra { shape, dtype, weight_cast: true });
    }
    if let Some((Dequantize { into, .. }, weight)) = packed {
        // GPTQ layers that train (AutoGPTQ, qlinear_cuda_old.py) unpack with torch operators, 32-bit words first, and
        // multiply with `matmul`, which keeps the unpacked matrix for the input's gradient.
        let matrix = weight_as(into);
        let codes = extra(Shape::from([weight.tensor_elements.saturating_mul(3)]), DType::U8);
        rule.forward_scratch.push(codes);
        match input_grad {
            true => rule.saved.push(matrix),
            false => rule.forward_scratch.push(matrix),
        }
    } else if let Some(Dequantize { into, from, .. }) = linear.dequantize {
        let copies = if from == into { vec![into] } else { vec![from, into] };
        rule.forward_scratch.extend(copies.iter().map(|dtype| weight_as(*dtype)));
        if input_grad {
            rule.backward_scratch.extend(copies.iter().map(|dtype| weight_as(*dtype)));
        }
    }
    if linear.fp8 {
        rule.forward_scratch.push(extra(input.shape.clone(), DType::F8E4M3));
        rule.forward_scratch.push(weight_as(DType::F8E4M3));
        rule.backward_scratch.push(extra(input.shape.clone(), DType::F8E4M3));
        rule.backward_scratch.push(weight_as(DType::F8E4M3));
    }
    rule
}

/// Integer codes in 32-bit words with scales by group.
fn is_packed(dtype: DType) -> bool {
    matches!(dtype, DType::Int4G128 | DType::Int8G128)
}

/// flash-attention 2 backward allocates an F32 accumulator of dQ (rows padded to 128), the row sums of dO·O, and,
/// where keys have fewer heads than queries, dK and dV per query head before they are summed.
fn attention_rule(attention: &AttentionOp, q: &Value, k: &Value) -> Rule {
    let per_row = q.shape.with_last(1);
    let mut rule = Rule {
        saves_inputs: 0b111,
        saves_output: true,
        saved: vec![extra(per_row.clone(), DType::F32)],
        ..Rule::default()
    };
    if attention.kernel == AttentionKind::Flash {
        rule.backward_scratch.push(extra(q.shape.clone(), DType::F32));
        rule.backward_scratch.push(extra(per_row.clone(), DType::F32));
        if attention.kv_heads < attention.heads {
            let expanded = k.shape.with_last(Dim::Const(attention.heads * attention.head_dim));
            let expanded = match k.shape.dims() {
                [b, _, s, d] => {
                    Shape::new([b.clone(), attention.heads.into(), s.clone(), d.clone()])
                }
                _ => expanded,
            };
            rule.backward_scratch.push(extra(expanded.clone(), k.dtype));
            rule.backward_scratch.push(extra(expanded, k.dtype));
        }
    } else if attention.kernel == AttentionKind::Efficient {
        rule.backward_scratch.push(extra(per_row, DType::F32));
    }
    rule
}

/// Work of one forward application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations (a multiply-add counts two).
    pub flops: u64,
    /// Bytes read and written, each tensor once.
    pub bytes: Bytes,
}

/// FLOPs and bytes moved by a node in forward. Backward is twice the FLOPs for products with both gradients.
pub fn work(block: &Block, node: &Node, bindings: &Bindings) -> Work {
    let values = node.inputs.iter().chain(&node.outputs).map(|v| &block.values[v.0 as usize]);
    let moved: Bytes = values.map(|v| v.shape.bytes(v.dtype, bindings)).sum();
    let weights: Bytes = node.params.iter().map(|p| block.params[p.0 as usize].bytes).sum();
    let out =
        node.outputs.first().map_or(0, |v| block.values[v.0 as usize].shape.elements(bindings));
    let input =
        node.inputs.first().map_or(0, |v| block.values[v.0 as usize].shape.elements(bindings));
    let flops = match &node.op {
        Op::View | Op::AllGather { .. } | Op::AllReduce | Op::ReduceScatter => {
            return Work::default();
        }
        Op::Linear(_) => {
            let weight =
                node.params.first().map_or(0, |p| block.params[p.0 as usize].tensor_elements);
            let columns =
                node.params.first().map_or(1, |p| block.params[p.0 as usize].matrix.1.max(1));
            let tokens = input / columns;
            2u64.saturating_mul(tokens).saturating_mul(weight)
        }
        Op::MatMul { contracted } => {
            2u64.saturating_mul(out).saturating_mul(contracted.eval(bindings))
        }
        Op::Attention(a) => {
            let full = 4u64.saturating_mul(input).saturating_mul(a.keys.eval(bindings));
            if a.causal { full / 2 } else { full }
        }
        Op::FusedLinearCrossEntropy { .. } => {
            let w = node.params.first().map_or((1, 1), |p| block.params[p.0 as usize].matrix);
            6u64.saturating_mul(input).saturating_mul(w.0)
        }
        Op::PatchConv { fan_in } => 2u64.saturating_mul(out).saturating_mul(*fan_in),
        Op::Scan { states } => 6u64.saturating_mul(states.eval(bindings)),
        _ => out.max(input),
    };
    Work { flops, bytes: moved + weights }
}
