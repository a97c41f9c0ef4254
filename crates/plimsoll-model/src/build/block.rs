//! Writing one block: a small assembler that appends operators, declares parameters with their shard, inserts the
//! casts of autocast and propagates `requires_grad`.

use plimsoll_units::{DType, Dim, Shape};

use super::local::local_shard;
use super::options::AdapterKind;
use super::{BuildError, Scope};
use crate::graph::{Block, BlockParam, Hold, Node, ParamId, Value, ValueId};
use crate::inventory::{Parameter, Part};
use crate::ops::{Dequantize, Linear, Magnitude, Op, Saves};

pub(crate) struct BlockBuilder<'a> {
    pub scope: &'a Scope<'a>,
    block: Block,
    /// Parameters of this layer (or of embedding and head).
    available: Vec<&'a Parameter>,
    /// Which of them an operator uses.
    used: Vec<bool>,
    layer: Option<usize>,
    trainable: bool,
    /// Marks new values as logits.
    pub logits: bool,
    /// Marks new nodes as attention core.
    pub core: bool,
}

impl<'a> BlockBuilder<'a> {
    /// A block of layer `layer` of the scope's stack, or of what lies outside layers.
    pub fn new(scope: &'a Scope<'a>, layer: Option<usize>, trainable: bool) -> Self {
        let stack = Some(scope.stack_index);
        let available: Vec<&Parameter> = scope
            .inventory
            .parameters
            .iter()
            .filter(|p| p.layer == layer && (p.stack == stack || p.stack.is_none()))
            .collect();
        BlockBuilder {
            scope,
            block: Block::default(),
            used: vec![false; available.len()],
            available,
            layer,
            trainable,
            logits: false,
            core: false,
        }
    }

    pub fn finish(mut self, outputs: Vec<ValueId>) -> Block {
        self.block.outputs = outputs;
        // Selective checkpointing keeps every second `mm` (torchtitan's policy), and attention; grouped products of
        // experts are another operator, which it does not name.
        let params = &self.block.params;
        let alone = |n: &Node| {
            matches!(n.op, Op::Linear(_))
                && n.params.first().is_none_or(|p| !params[p.0 as usize].expert)
        };
        let products = self.block.nodes.iter_mut().filter(|n| alone(n));
        for (index, node) in products.enumerate() {
            node.keep_in_selective = index % 2 == 0;
        }
        self.block
    }

    /// A value that enters from another stage.
    pub fn input(&mut self, shape: Shape, dtype: DType, requires_grad: bool) -> ValueId {
        self.block.inputs += 1;
        self.value(shape, dtype, requires_grad)
    }

    fn value(&mut self, shape: Shape, dtype: DType, requires_grad: bool) -> ValueId {
        self.block.values.push(Value { shape, dtype, requires_grad, is_logits: self.logits });
        ValueId(self.block.values.len() as u32 - 1)
    }

    pub fn get(&self, id: ValueId) -> &Value {
        &self.block.values[id.0 as usize]
    }

    pub fn shape(&self, id: ValueId) -> Shape {
        self.get(id).shape.clone()
    }

    pub fn dtype(&self, id: ValueId) -> DType {
        self.get(id).dtype
    }

    /// Appends an operator with one output of the given shape and type.
    pub fn op(
        &mut self,
        op: Op,
        label: &'static str,
        inputs: &[ValueId],
        shape: Shape,
        dtype: DType,
    ) -> ValueId {
        self.op_with(op, label, inputs, &[], shape, dtype)
    }

    /// The same with parameters.
    pub fn op_with(
        &mut self,
        op: Op,
        label: &'static str,
        inputs: &[ValueId],
        params: &[ParamId],
        shape: Shape,
        dtype: DType,
    ) -> ValueId {
        let requires_grad = dtype.is_float()
            && (inputs.iter().any(|v| self.get(*v).requires_grad)
                || params.iter().any(|p| self.block.params[p.0 as usize].trainable));
        let out = self.value(shape, dtype, requires_grad);
        let attention = matches!(op, Op::Attention(_));
        self.block.nodes.push(Node {
            op,
            label,
            inputs: inputs.to_vec(),
            outputs: vec![out],
            params: params.to_vec(),
            keep_in_selective: attention,
            attention_core: self.core || attention,
        });
        out
    }

    /// Element-wise, same shape and type.
    pub fn unary(&mut self, saves: Saves, label: &'static str, x: ValueId) -> ValueId {
        self.op(Op::Unary { saves }, label, &[x], self.shape(x), self.dtype(x))
    }

    pub fn view(&mut self, label: &'static str, x: ValueId, shape: Shape) -> ValueId {
        self.op(Op::View, label, &[x], shape, self.dtype(x))
    }

    pub fn copy(&mut self, label: &'static str, x: ValueId, shape: Shape) -> ValueId {
        self.op(Op::Copy, label, &[x], shape, self.dtype(x))
    }

    /// A copy in another type; the value itself where the type is already right.
    pub fn cast(&mut self, label: &'static str, x: ValueId, dtype: DType) -> ValueId {
        if self.dtype(x) == dtype {
            return x;
        }
        self.op(Op::Cast, label, &[x], self.shape(x), dtype)
    }

    /// The wider of two types, as torch promotes floats.
    pub fn promoted(&self, a: ValueId, b: ValueId) -> DType {
        let (a, b) = (self.dtype(a), self.dtype(b));
        if a == b || b.block_bytes() < a.block_bytes() { a } else { b }
    }

    pub fn add(&mut self, label: &'static str, a: ValueId, b: ValueId) -> ValueId {
        let dtype = self.promoted(a, b);
        self.op(Op::Add { in_place: false }, label, &[a, b], self.shape(a), dtype)
    }

    pub fn mul(&mut self, label: &'static str, a: ValueId, b: ValueId) -> ValueId {
        let dtype = self.promoted(a, b);
        self.op(Op::Mul, label, &[a, b], self.shape(a), dtype)
    }

    /// Dropout where the model has it and it is active.
    pub fn dropout(&mut self, label: &'static str, x: ValueId, present: bool) -> ValueId {
        if !(present && self.scope.options.dropout) {
            return x;
        }
        self.op(Op::Dropout, label, &[x], self.shape(x), self.dtype(x))
    }

    pub fn has(&self, part: Part, bias: bool) -> bool {
        self.available.iter().any(|p| p.part == part && p.bias == bias)
    }

    /// Keeps a value alive beyond its last use: a variable refers to it.
    pub fn hold(&mut self, value: ValueId, hold: Hold) {
        self.block.held.push((value, hold));
    }

    /// The first unused parameter of a part, or the first at all.
    fn find(&mut self, part: Part, bias: bool) -> Result<&'a Parameter, BuildError> {
        let fits = |p: &Parameter| p.part == part && p.bias == bias;
        let unused = (0..self.used.len()).find(|i| !self.used[*i] && fits(self.available[*i]));
        let index =
            unused.or_else(|| self.available.iter().position(|p| fits(p))).ok_or_else(|| {
                BuildError::MissingParameter {
                    layer: self.layer.map_or("the model".to_owned(), |n| format!("layer {n}")),
                    part: format!("{part:?}{}", if bias { " (bias)" } else { "" }),
                }
            })?;
        self.used[index] = true;
        Ok(self.available[index])
    }

    /// Declares a parameter of the block by its part.
    pub fn param(&mut self, part: Part, bias: bool) -> Result<ParamId, BuildError> {
        let parameter = self.find(part, bias)?;
        let options = self.scope.options;
        // The second LLaMA-Adapter trains norms.
        let norms = options.adapters.as_ref().is_some_and(|a| a.kind == AdapterKind::ScaleShift);
        let trainable = self.trainable && !parameter.frozen || norms && is_norm(part);
        let kept = is_head(part) && !(options.quantize_head && part == Part::Head);
        let quantized = options.base.filter(|_| parameter.is_linear() && !trainable && !kept);
        let dtype = quantized.map_or(options.weights, |base| base.dtype);
        Ok(self.declare(parameter, dtype, trainable))
    }

    /// Declares every parameter that no operator used and that `belongs` to the block, so that none is forgotten.
    pub fn declare_rest(&mut self, belongs: impl Fn(&Parameter) -> bool) {
        for index in 0..self.used.len() {
            let parameter = self.available[index];
            if !self.used[index] && belongs(parameter) {
                self.used[index] = true;
                let trainable = self.trainable && !parameter.frozen;
                self.declare(parameter, self.scope.options.weights, trainable);
            }
        }
    }

    fn declare(&mut self, parameter: &Parameter, dtype: DType, trainable: bool) -> ParamId {
        let mut param = local_shard(parameter, self.scope, dtype);
        param.trainable = trainable;
        self.block.params.push(param);
        ParamId(self.block.params.len() as u32 - 1)
    }

    /// Marks the last declared parameter as owned by another stage.
    pub fn mark_tied(&mut self, param: ParamId) {
        self.block.params[param.0 as usize].tied = true;
    }

    pub fn block_param(&self, id: ParamId) -> &BlockParam {
        &self.block.params[id.0 as usize]
    }

    /// `x W^T + b` with the casts, quantization, adapters and bias that the options ask for. The output's last
    /// dimension is the local number of rows of the weight.
    pub fn linear(
        &mut self,
        part: Part,
        label: &'static str,
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        let mut params = vec![self.param(part, false)?];
        if self.has(part, true) {
            params.push(self.param(part, true)?);
        }
        self.linear_with(part, label, x, &params)
    }

    /// [`BlockBuilder::linear`] on parameters that are already declared.
    pub fn linear_with(
        &mut self,
        part: Part,
        label: &'static str,
        x: ValueId,
        params: &[ParamId],
    ) -> Result<ValueId, BuildError> {
        let out = self.product(part, label, x, params);
        let weight = self.block_param(params[0]).clone();
        match &self.scope.options.adapters {
            Some(a) if a.kind == AdapterKind::ScaleShift => Ok(self.shifted(part, out, &weight)),
            Some(a) if a.kind == AdapterKind::LowRank && a.parts.contains(&part) => {
                Ok(self.adapted(part, x, out, params[0]))
            }
            _ => Ok(out),
        }
    }

    /// `scale * (out + shift)`.
    fn shifted(&mut self, part: Part, out: ValueId, weight: &BlockParam) -> ValueId {
        let [shift, scale] = [0, 1]
            .map(|_| self.adapter_param(part, (1, weight.matrix.0), weight.count, weight.expert));
        let (shape, dtype) = (self.shape(out), self.dtype(out));
        let add = Op::Add { in_place: false };
        let out = self.op_with(add, "adapter.shift", &[out], &[shift], shape.clone(), dtype);
        self.op_with(Op::Mul, "adapter.scale", &[out], &[scale], shape, dtype)
    }

    /// What attention to learned tokens adds to the context: it keeps its output, which the gate multiplies.
    pub fn prefixed(&mut self, q: ValueId, context: ValueId, heads: u64) -> ValueId {
        if !self.layer.is_some_and(|n| self.scope.prefixes(n)) {
            return context;
        }
        let width = self.shape(context).last().eval(&plimsoll_units::Bindings::tokens(1, 1));
        let tokens = self.adapter_param(Part::Query, (PREFIX_TOKENS, heads * width), 1, false);
        let gate = self.adapter_param(Part::Query, (1, heads), 1, false);
        let (shape, dtype) = (self.shape(context), self.dtype(context));
        let attend = Op::Unary { saves: Saves::Output };
        let learned =
            self.op_with(attend, "prefix.attention", &[q], &[tokens], shape.clone(), dtype);
        let gated = self.op_with(Op::Mul, "prefix.gate", &[learned], &[gate], shape, dtype);
        self.add("prefix.add", context, gated)
    }

    /// The linear map alone, without adapters.
    pub fn bare_linear(
        &mut self,
        part: Part,
        label: &'static str,
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        let mut params = vec![self.param(part, false)?];
        if self.has(part, true) {
            params.push(self.param(part, true)?);
        }
        Ok(self.product(part, label, x, &params))
    }

    fn product(
        &mut self,
        part: Part,
        label: &'static str,
        x: ValueId,
        params: &[ParamId],
    ) -> ValueId {
        let options = self.scope.options;
        let weight = self.block_param(params[0]).clone();
        let rows = weight.matrix.0;
        let compute = if options.autocast { options.compute } else { self.dtype(x) };
        let input = self.cast("cast", x, compute);
        let weight_cast = (options.autocast && weight.dtype.is_plain() && weight.dtype != compute)
            .then_some(compute);
        let dequantize = options
            .base
            .filter(|base| base.dequantizes && base.dtype == weight.dtype && !base.dtype.is_plain())
            .map(|base| Dequantize {
                into: compute,
                from: base.written_as.unwrap_or(compute),
                keeps_input: base.keeps_inputs,
            });
        let op = Op::Linear(Linear {
            weight_cast,
            dequantize,
            fp8: options.fp8 && weight.count == 1 && !is_head(part),
        });
        let shape = self.shape(x).with_last(rows);
        self.op_with(op, label, &[input], params, shape, compute)
    }

    /// `out + B(A(dropout(x))) * scale`.
    fn adapted(&mut self, part: Part, x: ValueId, out: ValueId, frozen: ParamId) -> ValueId {
        let rank = self.scope.options.adapters.as_ref().map_or(0, |a| a.rank);
        let weight = self.block_param(frozen);
        let (rows, columns) = weight.matrix;
        let shape = AdapterShape {
            low: rank,
            rank,
            high: rows,
            columns,
            count: weight.count,
            expert: weight.expert,
        };
        self.adapted_as(part, x, out, shape, Some(frozen))
    }

    /// Adapters of `shape` on an output; a smaller B is written into zeros. Without one `frozen` weight beside them they
    /// are not decomposed.
    pub fn adapted_as(
        &mut self,
        part: Part,
        x: ValueId,
        out: ValueId,
        shape: AdapterShape,
        frozen: Option<ParamId>,
    ) -> ValueId {
        let options = self.scope.options;
        let Some(adapters) = &options.adapters else { return out };
        let AdapterShape { low, rank, high, columns, count, expert } = shape;
        let a = self.adapter_param(part, (low, columns), count, expert);
        let b = self.adapter_param(part, (high, rank), count, expert);
        let (low_dim, high_dim) = (Dim::Const(low), Dim::Const(high));
        let product = if options.autocast { options.compute } else { adapters.dtype };
        let mut input = x;
        if adapters.casts_input && !options.autocast {
            input = self.cast("lora.cast", input, adapters.dtype);
        }
        if adapters.dropout {
            input = self.op(
                Op::Dropout,
                "lora.dropout",
                &[input],
                self.shape(input),
                self.dtype(input),
            );
        }
        let input = self.cast("lora.cast", input, product);
        let cast = (options.autocast && adapters.dtype != product).then_some(product);
        let linear = || Op::Linear(Linear { weight_cast: cast, dequantize: None, fp8: false });
        let low_shape = self.shape(x).with_last(low_dim);
        let low = self.op_with(linear(), "lora.A", &[input], &[a], low_shape, product);
        let high_shape = self.shape(x).with_last(high_dim);
        let mut high = self.op_with(linear(), "lora.B", &[low], &[b], high_shape.clone(), product);
        if high_shape.last() != self.shape(out).last() {
            high = self.op(Op::IndexCopy, "lora.pad", &[high], self.shape(out), product);
        }
        let dtype = self.dtype(out);
        let update = match frozen.filter(|_| adapters.dora) {
            Some(frozen) => {
                let dropped = adapters.dropout.then_some(input);
                self.decomposed(part, out, high, dropped, frozen)
            }
            None => self.unary(Saves::Nothing, "lora.scale", high),
        };
        let sum = self.add("lora.add", out, update);
        // PEFT returns the base layer's type.
        self.cast("lora.back", sum, dtype)
    }

    /// `(m - 1) * base + m * lora * scale`, m being the magnitudes over the norms of the rows of `W + B A`, which PEFT
    /// takes anew in every forward: `B A` by sending an identity matrix through the adapter, the norm of a sum with the
    /// (dequantized) weight. None of that is kept, since the norm is detached. `base` is what the layer gave, or,
    /// where the adapter's input went through dropout, one more product with the weight, whose copy is then kept.
    fn decomposed(
        &mut self,
        part: Part,
        out: ValueId,
        lora: ValueId,
        dropped: Option<ValueId>,
        frozen: ParamId,
    ) -> ValueId {
        let weight = &self.block_param(frozen).clone();
        let (rows, columns) = weight.matrix;
        let dtype = self.dtype(lora);
        let matrix = rows.saturating_mul(columns);
        let copied = if weight.dtype == dtype { 0 } else { matrix };
        let identity = columns.saturating_mul(columns);
        let held = identity.saturating_add(matrix).saturating_add(copied);
        let summed = held.saturating_add(matrix.saturating_mul(2));
        let magnitude = self.adapter_param(part, (1, rows), weight.count, weight.expert);
        let base = match dropped {
            Some(input) => {
                let product = Linear { weight_cast: None, dequantize: None, fp8: false };
                let shape = self.shape(out);
                self.op_with(Op::Linear(product), "dora.product", &[input], &[frozen], shape, dtype)
            }
            None if self.has(part, true) => self.unary(Saves::Nothing, "dora.unbias", out),
            None => out,
        };
        let kept = if dropped.is_some() { copied } else { 0 };
        let mut scale = |label, x: ValueId, beside, kept| {
            let op = Op::Magnitude(Magnitude { beside, kept, dtype });
            let (shape, dtype) = (self.shape(x), self.dtype(x));
            self.op_with(op, label, &[x], &[magnitude], shape, dtype)
        };
        let base = scale("dora.base", base, summed - kept, kept);
        let lora = scale("dora.lora", lora, held - kept, 0);
        let lora = self.unary(Saves::Nothing, "lora.scale", lora);
        self.add("dora.sum", base, lora)
    }

    fn adapter_param(
        &mut self,
        part: Part,
        matrix: (u64, u64),
        count: u64,
        expert: bool,
    ) -> ParamId {
        let options = self.scope.options;
        let dtype = options.adapters.as_ref().map_or(DType::F32, |a| a.dtype);
        let one = matrix.0.saturating_mul(matrix.1);
        let elements = one.saturating_mul(count.max(1));
        self.block.params.push(BlockParam {
            part,
            bias: false,
            elements,
            tensor_elements: one,
            count: count.max(1),
            matrix,
            bytes: dtype.bytes(elements),
            dtype,
            trainable: true,
            adapter: true,
            expert,
            tied: false,
        });
        ParamId(self.block.params.len() as u32 - 1)
    }
}

/// Sizes of one pair of adapters: A is `low x columns`, B `high x rank`. Joint adapters have a larger `low` than `rank`:
/// one A for several outputs, of which each sees its own part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterShape {
    pub low: u64,
    pub rank: u64,
    pub high: u64,
    pub columns: u64,
    /// Matrices in the row.
    pub count: u64,
    /// Of routed experts.
    pub expert: bool,
}

/// Learned tokens of a LLaMA-Adapter layer (LitGPT's `adapter_prompt_length`).
const PREFIX_TOKENS: u64 = 10;

fn is_norm(part: Part) -> bool {
    matches!(part, Part::Norm1 | Part::Norm2 | Part::FinalNorm)
}

fn is_head(part: Part) -> bool {
    matches!(part, Part::Head | Part::HeadDense | Part::TokenEmbedding)
}
