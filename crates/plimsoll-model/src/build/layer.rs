//! Residual layers: norms, branches and sums in the order that the family has them.

use plimsoll_units::{DType, Dim, Shape};

use super::block::BlockBuilder;
use super::options::{AdapterKind, NormStyle};
use super::{BuildError, Scope};
use crate::arch::{Layer, Norm, NormKind, NormPlacement};
use crate::graph::{Block, ValueId};
use crate::inventory::Part;
use crate::ops::{Op, Saves};

impl Scope<'_> {
    /// Type of the residual stream.
    pub(crate) fn stream(&self) -> DType {
        if self.options.weights.is_plain() { self.options.weights } else { self.options.compute }
    }

    /// `[b, s, h]`, split along the sequence where sequence parallelism is on.
    pub(crate) fn hidden_shape(&self) -> Shape {
        Shape::new([Dim::BATCH, self.local_sequence(), self.stack.hidden.into()])
    }

    /// Positions of the norm regions on one device.
    pub(crate) fn local_sequence(&self) -> Dim {
        if self.options.sequence_parallel && self.options.tensor > 1 {
            self.sequence.div_ceil(self.options.tensor)
        } else {
            self.sequence.clone()
        }
    }

    /// Whether a gradient reaches the input of a layer: everything but the first trainable part of a frozen model.
    pub(crate) fn input_needs_grad(&self, number: usize) -> bool {
        use super::options::Trainable::*;
        match self.options.trainable {
            // Nothing learns before the first learned tokens.
            Adapters { embeddings: false }
                if self
                    .options
                    .adapters
                    .as_ref()
                    .is_some_and(|a| a.kind == AdapterKind::Prefix) =>
            {
                number > 0 && self.prefixes(number - 1)
            }
            All | Adapters { .. } => true,
            Last(n) => (number as u64).saturating_add(n) > self.stack.layers.len() as u64,
            Nothing => false,
        }
    }

    /// The block of one residual layer.
    pub(crate) fn layer_block(&self, layer: &Layer, number: usize) -> Result<Block, BuildError> {
        let trainable = self.options.trainable.layer(number, self.stack.layers.len());
        let mut b = BlockBuilder::new(self, Some(number), trainable);
        let grad = self.input_needs_grad(number);
        let x = b.input(self.hidden_shape(), self.stream(), grad);
        let memory = match (&layer.cross, &self.memory) {
            (Some(_), Some(positions)) => {
                let shape = Shape::new([Dim::BATCH, positions.clone(), self.stack.hidden.into()]);
                Some(b.input(shape, self.stream(), grad))
            }
            _ => None,
        };
        let out = match layer.placement {
            NormPlacement::Pre if layer.parallel => parallel_layer(&mut b, layer, x)?,
            NormPlacement::Pre => pre_norm_layer(&mut b, layer, x, memory)?,
            NormPlacement::Post => post_norm_layer(&mut b, layer, x, memory)?,
            NormPlacement::BranchOutput => branch_norm_layer(&mut b, layer, x, false)?,
            NormPlacement::Sandwich => branch_norm_layer(&mut b, layer, x, true)?,
        };
        b.declare_rest(|_| true);
        Ok(b.finish(vec![out]))
    }
}

const NORMS: [(Part, &str); 4] = [
    (Part::Norm1, "norm1"),
    (Part::Norm2, "norm2"),
    (Part::Norm3, "norm3"),
    (Part::Norm4, "norm4"),
];

fn pre_norm_layer(
    b: &mut BlockBuilder<'_>,
    layer: &Layer,
    x: ValueId,
    memory: Option<ValueId>,
) -> Result<ValueId, BuildError> {
    let mut x = x;
    let mut next = 0;
    if layer.has_mixer() {
        let normed = b.norm(layer.norm, NORMS[next], x)?;
        next += 1;
        let mixed = b.mixer(layer, normed)?;
        let mixed = b.dropout("mixer.dropout", mixed, layer.dropout);
        x = b.add("residual", x, mixed);
    }
    if let (Some(cross), Some(memory)) = (&layer.cross, memory) {
        let normed = b.norm(layer.norm, NORMS[next], x)?;
        next += 1;
        let attended = b.cross_attention(cross, normed, memory)?;
        let attended = b.dropout("cross.dropout", attended, layer.dropout);
        x = b.add("residual", x, attended);
    }
    if layer.has_ffn() {
        let normed = b.norm(layer.norm, NORMS[next], x)?;
        let out = b.ffn(layer, normed)?;
        let out = b.dropout("ffn.dropout", out, layer.dropout);
        x = b.add("residual", x, out);
    }
    Ok(x)
}

/// Attention and feed-forward side by side, on one norm or on one each.
fn parallel_layer(
    b: &mut BlockBuilder<'_>,
    layer: &Layer,
    x: ValueId,
) -> Result<ValueId, BuildError> {
    let normed = b.norm(layer.norm, NORMS[0], x)?;
    let second = if b.has(Part::Norm2, false) { b.norm(layer.norm, NORMS[1], x)? } else { normed };
    let mixed = b.mixer(layer, normed)?;
    let mixed = b.dropout("mixer.dropout", mixed, layer.dropout);
    let out = b.ffn(layer, second)?;
    let out = b.dropout("ffn.dropout", out, layer.dropout);
    let sum = b.add("branches", mixed, out);
    Ok(b.add("residual", sum, x))
}

fn post_norm_layer(
    b: &mut BlockBuilder<'_>,
    layer: &Layer,
    x: ValueId,
    memory: Option<ValueId>,
) -> Result<ValueId, BuildError> {
    let mixed = b.mixer(layer, x)?;
    let mixed = b.dropout("mixer.dropout", mixed, layer.dropout);
    let sum = b.add("residual", x, mixed);
    let mut next = 1;
    let mut x = b.norm(layer.norm, NORMS[0], sum)?;
    if let (Some(cross), Some(memory)) = (&layer.cross, memory) {
        let attended = b.cross_attention(cross, x, memory)?;
        let attended = b.dropout("cross.dropout", attended, layer.dropout);
        let sum = b.add("residual", x, attended);
        x = b.norm(layer.norm, NORMS[next], sum)?;
        next += 1;
    }
    let out = b.ffn(layer, x)?;
    let out = b.dropout("ffn.dropout", out, layer.dropout);
    let sum = b.add("residual", x, out);
    b.norm(layer.norm, NORMS[next], sum)
}

/// Norms on the outputs of the branches, with `sandwich` also before them.
fn branch_norm_layer(
    b: &mut BlockBuilder<'_>,
    layer: &Layer,
    x: ValueId,
    sandwich: bool,
) -> Result<ValueId, BuildError> {
    let mut next = 0;
    let mut norm = |b: &mut BlockBuilder<'_>, x| {
        let named = NORMS[next.min(3)];
        next += 1;
        b.norm(layer.norm, named, x)
    };
    let input = if sandwich { norm(b, x)? } else { x };
    let mixed = b.mixer(layer, input)?;
    let mixed = norm(b, mixed)?;
    let x = b.add("residual", x, mixed);
    let input = if sandwich { norm(b, x)? } else { x };
    let out = b.ffn(layer, input)?;
    let out = norm(b, out)?;
    Ok(b.add("residual", x, out))
}

impl BlockBuilder<'_> {
    /// A norm over the last axis, in the style of the implementation.
    pub fn norm(
        &mut self,
        norm: Norm,
        (part, label): (Part, &'static str),
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        let mut params = Vec::new();
        if norm.weight && self.has(part, false) {
            params.push(self.param(part, false)?);
        }
        if norm.bias && self.has(part, true) {
            params.push(self.param(part, true)?);
        }
        Ok(self.norm_with(norm, label, x, &params))
    }

    /// The same on parameters that are already declared, or none.
    pub fn norm_with(
        &mut self,
        norm: Norm,
        label: &'static str,
        x: ValueId,
        params: &[crate::graph::ParamId],
    ) -> ValueId {
        let shape = self.shape(x);
        let dtype = self.dtype(x);
        let autocast = self.scope.options.autocast;
        match (norm.kind, self.scope.options.style.norm) {
            (NormKind::Layer, _) => {
                // Autocast runs layer norm in F32.
                let wide = if autocast { DType::F32 } else { dtype };
                let x = self.cast("norm.cast", x, wide);
                self.op_with(Op::LayerNorm, label, &[x], params, shape, wide)
            }
            (NormKind::Rms, NormStyle::Fused) => {
                self.op_with(Op::RmsNorm, label, &[x], params, shape, dtype)
            }
            (NormKind::Rms, NormStyle::Composed) => {
                let wide = self.cast("norm.upcast", x, DType::F32);
                let square = self.unary(Saves::Input, "norm.square", wide);
                let row = shape.with_last(1);
                let mean = self.op(Op::ReduceLast, "norm.mean", &[square], row, DType::F32);
                let scale = self.unary(Saves::Output, "norm.rsqrt", mean);
                let normed =
                    self.op(Op::Mul, "norm.scale", &[wide, scale], shape.clone(), DType::F32);
                let narrow = self.cast("norm.downcast", normed, dtype);
                if params.is_empty() {
                    return narrow;
                }
                self.op_with(Op::Mul, label, &[narrow], params, shape, dtype)
            }
        }
    }
}
