//! Both ends of a stack: embeddings before the first layer; final norm, projection and loss after the last.

use plimsoll_units::{DType, Dim, Shape};

use super::block::BlockBuilder;
use super::options::{HeldLogits, LossStyle};
use super::{BuildError, Scope};
use crate::arch::{HeadTransform, Norm, StackRole};
use crate::graph::{Block, Hold, ParamId, ValueId};
use crate::inventory::{Parameter, Part};
use crate::ops::{Op, Saves};

impl Scope<'_> {
    /// Tokens, pixels or frames to the residual stream.
    pub(crate) fn embedding_block(&self) -> Result<Block, BuildError> {
        let mut b = BlockBuilder::new(self, None, self.options.trainable.embeddings());
        let x = match (&self.stack.patch, &self.architecture.embedding) {
            (Some(patch), _) => {
                let pixels = Shape::new([
                    Dim::BATCH,
                    patch.channels.into(),
                    patch.input.into(),
                    if self.stack.role == StackRole::Audio { 1.into() } else { patch.input.into() },
                ]);
                let pixels = b.input(pixels, self.stream(), false);
                let mut params = Vec::new();
                if b.has(Part::Patch, false) {
                    params.push(b.param(Part::Patch, false)?);
                }
                let fan_in = patch.channels.saturating_mul(patch.size).saturating_mul(patch.size);
                b.op_with(
                    Op::PatchConv { fan_in },
                    "patches",
                    &[pixels],
                    &params,
                    self.hidden_shape(),
                    self.stream(),
                )
            }
            (None, embedding) => {
                let width = embedding.as_ref().map_or(self.stack.hidden, |e| e.width);
                let ids =
                    b.input(Shape::new([Dim::BATCH, self.sequence.clone()]), DType::I64, false);
                let mut params = Vec::new();
                // A second stack of an encoder-decoder shares the table of the first.
                if b.has(Part::TokenEmbedding, false) {
                    let table = b.param(Part::TokenEmbedding, false)?;
                    if self.shares_tables() {
                        b.mark_tied(table);
                    }
                    params.push(table);
                }
                let shape = Shape::new([Dim::BATCH, self.local_sequence(), width.into()]);
                let tokens =
                    b.op_with(Op::Embedding, "tokens", &[ids], &params, shape, self.stream());
                let mut x = self.positions(&mut b, ids, tokens)?;
                if b.has(Part::EmbeddingProjection, false) {
                    x = b.linear(Part::EmbeddingProjection, "project", x)?;
                }
                x
            }
        };
        let mut x = x;
        if self.stack_index == self.first_text_stack()
            && let Some(norm) = self.architecture.embedding.as_ref().and_then(|e| e.norm)
        {
            x = b.norm(norm, (Part::EmbeddingNorm, "embed.norm"), x)?;
        }
        let has_dropout = self.stack.layers.first().is_some_and(|l| l.dropout);
        let x = b.dropout("embed.dropout", x, has_dropout);
        let x = b.cast("stream", x, self.stream());
        b.declare_rest(|p| !is_head_side(p.part) && self.owns(p));
        Ok(b.finish(vec![x]))
    }

    fn positions(
        &self,
        b: &mut BlockBuilder<'_>,
        ids: ValueId,
        tokens: ValueId,
    ) -> Result<ValueId, BuildError> {
        let mut x = tokens;
        let shape = b.shape(tokens);
        for (part, label) in
            [(Part::PositionEmbedding, "positions"), (Part::TypeEmbedding, "types")]
        {
            if b.has(part, false) && !self.shares_tables() {
                let table = b.param(part, false)?;
                let rows =
                    b.op_with(Op::Embedding, label, &[ids], &[table], shape.clone(), self.stream());
                x = b.add(label, x, rows);
            }
        }
        Ok(x)
    }

    fn first_text_stack(&self) -> usize {
        self.architecture
            .stacks
            .iter()
            .position(|s| matches!(s.role, StackRole::Encoder | StackRole::Decoder))
            .unwrap_or(0)
    }

    /// A later text stack that reuses the token table.
    fn shares_tables(&self) -> bool {
        let text = matches!(self.stack.role, StackRole::Encoder | StackRole::Decoder);
        let tables = self.architecture.embedding.as_ref().map_or(1, |e| e.tables);
        text && self.stack_index > self.first_text_stack() && tables <= 1
    }

    /// Final norm, and on the last stack projection and loss.
    pub(crate) fn head_block(&self) -> Result<Block, BuildError> {
        let mut b = BlockBuilder::new(self, None, self.options.trainable.head());
        let x = b.input(self.hidden_shape(), self.stream(), self.input_needs_grad(usize::MAX >> 1));
        let mut x = match self.stack.final_norm {
            Some(norm) => b.norm(norm, (Part::FinalNorm, "final.norm"), x)?,
            None => x,
        };
        if !self.is_last || self.architecture.head.outputs == 0 {
            b.declare_rest(|p| is_head_side(p.part) && self.owns(p));
            return Ok(b.finish(vec![x]));
        }
        if let Some(transform) = self.architecture.head.transform {
            x = self.head_transform(&mut b, transform, x)?;
        }
        let x = b.gathered(x);
        let tied = self.architecture.head.tied;
        let part = if tied { Part::TokenEmbedding } else { Part::Head };
        let mut params = vec![b.param(part, false)?];
        if tied {
            b.mark_tied(params[0]);
        }
        if b.has(Part::Head, true) {
            params.push(b.param(Part::Head, true)?);
        }
        b.logits = true;
        let out = self.loss(&mut b, x, part, &params)?;
        b.declare_rest(|p| is_head_side(p.part) && self.owns(p));
        Ok(b.finish(vec![out]))
    }

    fn head_transform(
        &self,
        b: &mut BlockBuilder<'_>,
        transform: HeadTransform,
        x: ValueId,
    ) -> Result<ValueId, BuildError> {
        if !b.has(Part::HeadDense, false) {
            return Ok(x);
        }
        let dense = b.linear(Part::HeadDense, "head.dense", x)?;
        match transform {
            HeadTransform::Pooler => Ok(b.unary(Saves::Output, "head.tanh", dense)),
            HeadTransform::MaskedLm => {
                let act = b.unary(Saves::Input, "head.act", dense);
                b.norm(Norm::LAYER, (Part::HeadNorm, "head.norm"), act)
            }
        }
    }

    fn loss(
        &self,
        b: &mut BlockBuilder<'_>,
        x: ValueId,
        part: Part,
        params: &[ParamId],
    ) -> Result<ValueId, BuildError> {
        let scalar = Shape::from([1]);
        match self.options.loss {
            LossStyle::FusedLinear { chunk } => {
                let rows = Dim::BATCH.times(self.sequence.clone());
                let chunk = match chunk {
                    // Liger halves the rows until a chunk of logits is about as large as the hidden states.
                    0 => {
                        let (vocab, hidden) = b.block_param(params[0]).matrix;
                        let parts = vocab.div_ceil(hidden.max(1)).next_power_of_two();
                        rows.div_ceil(parts)
                    }
                    n => rows.min(n),
                };
                Ok(b.op_with(
                    Op::FusedLinearCrossEntropy { chunk },
                    "fused_loss",
                    &[x],
                    params,
                    scalar,
                    DType::F32,
                ))
            }
            style => {
                let mut logits = b.linear_with(part, "logits", x, params)?;
                if self.options.tensor > 1 && !self.options.loss_parallel {
                    let outputs = self.architecture.head.outputs;
                    let shape = b.shape(logits).with_last(outputs);
                    let dtype = b.dtype(logits);
                    logits = b.op(
                        Op::AllGather { regather: false },
                        "logits.gather",
                        &[logits],
                        shape,
                        dtype,
                    );
                }
                if self.options.wide_logits {
                    logits = b.cast("logits.returned", logits, DType::F32);
                }
                self.hold(b, logits, HeldLogits::Made);
                if let LossStyle::Chunked { tokens, upcast, recomputes, shifted_copy } = style {
                    if shifted_copy {
                        logits = b.copy("logits.shift", logits, b.shape(logits));
                    }
                    let chunk = Dim::BATCH.times(self.sequence.clone()).min(tokens);
                    let op = Op::ChunkedCrossEntropy { chunk, upcast, recomputes };
                    return Ok(b.op(op, "cross_entropy", &[logits], scalar, DType::F32));
                }
                let (upcast, shifted_copy) = match style {
                    LossStyle::CrossEntropy { upcast, shifted_copy } => (upcast, shifted_copy),
                    LossStyle::Fused | LossStyle::FusedUpcast | LossStyle::InPlaceUpcast => {
                        let x = match style {
                            LossStyle::FusedUpcast => b.cast("logits.upcast", logits, DType::F32),
                            _ => logits,
                        };
                        let op =
                            Op::FusedCrossEntropy { upcast: style == LossStyle::InPlaceUpcast };
                        return Ok(b.op(op, "cross_entropy", &[x], scalar, DType::F32));
                    }
                    LossStyle::Nothing
                    | LossStyle::Chunked { .. }
                    | LossStyle::FusedLinear { .. } => return Ok(logits),
                };
                // Autocast runs the loss in F32.
                let wide =
                    if upcast || self.options.autocast { DType::F32 } else { b.dtype(logits) };
                let mut x = logits;
                if upcast {
                    x = b.cast("logits.upcast", x, wide);
                    self.hold(b, x, HeldLogits::Widened);
                }
                if shifted_copy {
                    // The loss function's own variable keeps its F32 copy.
                    if upcast && self.options.held == HeldLogits::Made {
                        b.hold(x, Hold::Forward);
                    }
                    x = b.copy("logits.shift", x, b.shape(x));
                    self.hold(b, x, HeldLogits::Shifted);
                }
                let x = b.cast("logits.upcast", x, wide);
                if self.options.tensor > 1 && self.options.loss_parallel {
                    let op = Op::ShardedCrossEntropy;
                    return Ok(b.op(op, "cross_entropy", &[x], scalar, DType::F32));
                }
                let shape = b.shape(x);
                let log = b.op(Op::Softmax, "log_softmax", &[x], shape, wide);
                // Accelerate returns outputs in F32 under mixed precision: copies of what is not.
                let narrow = self.options.held == HeldLogits::Made && b.dtype(logits) != DType::F32;
                if self.options.widens_outputs && narrow {
                    let wide_logits = b.cast("logits.returned", logits, DType::F32);
                    b.hold(wide_logits, self.options.hold_logits.unwrap_or(Hold::Forward));
                }
                Ok(b.op(Op::ReduceLast, "nll_loss", &[log], scalar, wide))
            }
        }
    }

    /// Holds a form of the logits if it is the one that the program keeps in a variable.
    fn hold(&self, b: &mut BlockBuilder<'_>, value: ValueId, form: HeldLogits) {
        if let Some(hold) = self.options.hold_logits.filter(|_| self.options.held == form) {
            b.hold(value, hold);
        }
    }

    /// Whether the stack owns a parameter outside layers: its own, or one of the whole model, which belongs to the
    /// first text stack (embeddings) or to the last stack (head).
    fn owns(&self, p: &Parameter) -> bool {
        match p.stack {
            Some(stack) => stack == self.stack_index,
            None if is_head_side(p.part) => self.is_last,
            None if matches!(p.part, Part::Patch | Part::Patch2 | Part::ExtraToken) => {
                let towers = self.architecture.stacks.iter().any(|s| s.patch.is_some());
                self.stack.patch.is_some() || !towers
            }
            None => self.stack_index == self.first_text_stack(),
        }
    }
}

/// Parts that stand after the last layer.
fn is_head_side(part: Part) -> bool {
    matches!(part, Part::FinalNorm | Part::HeadDense | Part::HeadNorm | Part::Head)
}
