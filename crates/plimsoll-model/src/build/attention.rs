//! Token mixing by attention: separate or fused projections, latent attention, cross-attention; scores in memory or
//! one kernel.

use plimsoll_units::{DType, Dim, Shape};

use super::BuildError;
use super::block::{AdapterShape, BlockBuilder};
use super::options::{AdapterKind, AttentionStyle, RotaryStyle, SoftmaxStyle};
use crate::arch::{
    Attention, Embedding, LatentAttention, Layer, Mixer, Norm, Positions, QkNorm, Span, StackRole,
};
use crate::graph::ValueId;
use crate::inventory::Part;
use crate::ops::{AttentionKind, AttentionOp, Op, Saves};

/// Heads and widths of one attention as the kernel of one device sees them.
struct Core {
    heads: u64,
    kv_heads: u64,
    key_dim: u64,
    value_dim: u64,
    queries: Dim,
    keys: Dim,
    span: Span,
    causal: bool,
    dropout: bool,
}

impl Layer {
    /// Whether the layer mixes tokens at all.
    pub(crate) fn has_mixer(&self) -> bool {
        self.mixer != Mixer::None
    }
}

impl BlockBuilder<'_> {
    /// The mixer of a layer on its (normed) input.
    pub fn mixer(&mut self, layer: &Layer, x: ValueId) -> Result<ValueId, BuildError> {
        match &layer.mixer {
            Mixer::Attention(a) => self.self_attention(a, x),
            Mixer::Latent(a) => self.latent_attention(a, x),
            Mixer::Mamba1(m) => self.mamba1(m, x),
            Mixer::Mamba2(m) => self.mamba2(m, x),
            Mixer::GatedDelta(d) => self.gated_delta(d, x),
            Mixer::ShortConv { kernel, .. } => self.short_conv(*kernel, x),
            Mixer::Parallel(a, m) => {
                let attended = self.self_attention(a, x)?;
                let scanned = self.mamba2(m, x)?;
                Ok(self.add("mixers", attended, scanned))
            }
            Mixer::None => Ok(x),
        }
    }

    /// The input of column-parallel products: gathered along the sequence where sequence parallelism split it.
    pub fn gathered(&mut self, x: ValueId) -> ValueId {
        let scope = self.scope;
        if !(scope.options.sequence_parallel && scope.options.tensor > 1) {
            return x;
        }
        let width = self.shape(x).last();
        let shape = Shape::new([Dim::BATCH, scope.sequence.clone(), width]);
        let op = Op::AllGather { regather: scope.options.style.regather };
        self.op(op, "gather", &[x], shape, self.dtype(x))
    }

    /// The output of row-parallel products: summed over tensor ranks, scattered along the sequence where it is split.
    pub fn reduced(&mut self, x: ValueId) -> ValueId {
        let scope = self.scope;
        if scope.options.tensor <= 1 {
            return x;
        }
        if scope.options.sequence_parallel {
            let width = self.shape(x).last();
            let shape = Shape::new([Dim::BATCH, scope.local_sequence(), width]);
            return self.op(Op::ReduceScatter, "scatter", &[x], shape, self.dtype(x));
        }
        self.op(Op::AllReduce, "reduce", &[x], self.shape(x), self.dtype(x))
    }

    /// Attention of a sequence to itself, projections included.
    fn self_attention(&mut self, a: &Attention, x: ValueId) -> Result<ValueId, BuildError> {
        let x = self.gathered(x);
        let (q, k, v) = if self.joint_adapters() && !a.shares_kv && !a.value_is_key {
            self.jointly_adapted_qkv(a, x)?
        } else if a.fused_qkv {
            let qkv = self.linear(Part::Qkv, "qkv", x)?;
            self.split_qkv(a, qkv)
        } else {
            let q = self.linear(Part::Query, "q", x)?;
            if a.shares_kv {
                let k = self.copy("k", q, self.shape(q).with_last(a.kv_heads * a.head_dim));
                (q, k, k)
            } else {
                let k = self.linear(Part::Key, "k", x)?;
                // Keys before their norm serve as values where there is no value projection.
                let v = if a.value_is_key { k } else { self.linear(Part::Value, "v", x)? };
                (q, k, v)
            }
        };
        let joined = a.fused_qkv || self.joint_adapters();
        let (q, k, v) = if self.scope.options.style.fused_qkv && !joined {
            self.sliced_qkv(q, k, v)
        } else {
            (q, k, v)
        };
        let scope = self.scope;
        let core = Core {
            heads: a.heads.div_ceil(scope.options.tensor.max(1)),
            kv_heads: a.kv_heads.max(1).div_ceil(scope.options.tensor.max(1)),
            key_dim: a.head_dim,
            value_dim: a.value_dim,
            queries: scope.sequence.clone(),
            keys: scope.sequence.clone(),
            span: a.span,
            causal: scope.stack.role == StackRole::Decoder,
            dropout: a.dropout,
        };
        let gate = a.gated.then(|| self.view("q.gate", q, self.shape(q)));
        let (q, k) = self.normed_qk(a, q, k)?;
        let (q, k) = self.rotated(q, k, &core);
        let context = self.core(q, k, v, &core);
        let context = match gate {
            Some(gate) => {
                let shape = self.shape(context);
                let gate = self.op(
                    Op::Unary { saves: Saves::Output },
                    "attn.gate",
                    &[gate],
                    shape,
                    self.dtype(context),
                );
                self.mul("attn.gated", context, gate)
            }
            None => context,
        };
        let out = self.linear(Part::Output, "o", context)?;
        Ok(self.reduced(out))
    }

    /// Whether one pair of adapters stands beside one product for q, k and v.
    fn joint_adapters(&self) -> bool {
        let options = self.scope.options;
        let named = |part| {
            let adapters = options.adapters.as_ref();
            adapters.is_some_and(|a| a.kind == AdapterKind::LowRank && a.parts.contains(&part))
        };
        options.style.fused_qkv && [Part::Query, Part::Key, Part::Value].into_iter().any(named)
    }

    /// The product for q, k and v with its adapters, and its slices.
    fn jointly_adapted_qkv(
        &mut self,
        a: &Attention,
        x: ValueId,
    ) -> Result<(ValueId, ValueId, ValueId), BuildError> {
        let options = self.scope.options;
        let t = options.tensor.max(1);
        let (heads, kv) = (a.heads.div_ceil(t), a.kv_heads.max(1).div_ceil(t));
        let parts = [
            (Part::Query, "q", heads * a.head_dim),
            (Part::Key, "k", kv * a.head_dim),
            (Part::Value, "v", kv * a.value_dim),
        ];
        let joined = if a.fused_qkv {
            self.bare_linear(Part::Qkv, "qkv", x)?
        } else {
            let mut outputs = Vec::new();
            for (part, label, _) in parts {
                outputs.push(self.bare_linear(part, label, x)?);
            }
            let width = parts.iter().map(|(.., width)| width).sum::<u64>();
            let shape = self.shape(x).with_last(width);
            self.op(Op::Concat, "qkv", &outputs, shape, self.dtype(outputs[0]))
        };
        let (rank, named) = options.adapters.as_ref().map_or((0, &[][..]), |a| (a.rank, &a.parts));
        let adapted: Vec<u64> =
            parts.iter().filter(|(p, ..)| named.contains(p)).map(|(.., width)| *width).collect();
        let shape = AdapterShape {
            low: rank.saturating_mul(adapted.len() as u64),
            rank,
            high: adapted.iter().sum(),
            columns: self.shape(x).last().eval(&plimsoll_units::Bindings::tokens(1, 1)),
            count: 1,
            expert: false,
        };
        let qkv = self.adapted_as(Part::Qkv, x, joined, shape, None);
        Ok(self.split_qkv(a, qkv))
    }

    /// One product wrote q, k and v next to each other: each slice keeps all three alive. The separate products above
    /// stand for its parameters; joining them has the same result.
    fn sliced_qkv(&mut self, q: ValueId, k: ValueId, v: ValueId) -> (ValueId, ValueId, ValueId) {
        let shapes = [q, k, v].map(|x| self.shape(x));
        let dtype = self.dtype(q);
        let width = [q, k, v].iter().fold(Dim::Const(0), |sum, x| sum.plus(self.shape(*x).last()));
        let joined = self.op(Op::Concat, "qkv", &[q, k, v], shapes[0].with_last(width), dtype);
        let [q, k, v] = shapes.map(|shape| self.op(Op::View, "qkv.slice", &[joined], shape, dtype));
        (q, k, v)
    }

    fn split_qkv(&mut self, a: &Attention, qkv: ValueId) -> (ValueId, ValueId, ValueId) {
        let t = self.scope.options.tensor.max(1);
        let shape = self.shape(qkv);
        let (heads, kv) = (a.heads.div_ceil(t), a.kv_heads.max(1).div_ceil(t));
        let mut part = |label, width: u64| {
            let dtype = self.dtype(qkv);
            self.op(Op::View, label, &[qkv], shape.with_last(width), dtype)
        };
        (part("q", heads * a.head_dim), part("k", kv * a.head_dim), part("v", kv * a.value_dim))
    }

    fn normed_qk(
        &mut self,
        a: &Attention,
        q: ValueId,
        k: ValueId,
    ) -> Result<(ValueId, ValueId), BuildError> {
        if a.qk_norm == QkNorm::None || !self.has(Part::QueryNorm, false) {
            return Ok((q, k));
        }
        let kind = if a.qk_norm == QkNorm::PerHeadWeights { Norm::LAYER } else { Norm::RMS };
        let q = self.norm(kind, (Part::QueryNorm, "q.norm"), q)?;
        let k = if self.has(Part::KeyNorm, false) {
            self.norm(kind, (Part::KeyNorm, "k.norm"), k)?
        } else {
            k
        };
        Ok((q, k))
    }

    fn rotary_dim(&self) -> Option<u64> {
        match self.scope.architecture.embedding {
            Some(Embedding { positions: Positions::Rotary { dim }, .. }) => Some(dim),
            _ => None,
        }
    }

    fn rotated(&mut self, q: ValueId, k: ValueId, core: &Core) -> (ValueId, ValueId) {
        match self.rotary_dim() {
            None | Some(0) => (q, k),
            Some(dim) => {
                let partial = dim < core.key_dim;
                (self.rotary("q.rotary", q, partial), self.rotary("k.rotary", k, partial))
            }
        }
    }

    /// `x * cos + rotate_half(x) * sin`; the tables do not learn, so nothing of x is kept.
    fn rotary(&mut self, label: &'static str, x: ValueId, partial: bool) -> ValueId {
        let shape = self.shape(x);
        let dtype = self.dtype(x);
        match self.scope.options.style.rotary {
            RotaryStyle::Fused => {
                self.op(Op::Unary { saves: Saves::Nothing }, label, &[x], shape, dtype)
            }
            RotaryStyle::Complex => {
                let wide = self.cast("rotary.upcast", x, DType::F32);
                let turned = self.unary(Saves::Nothing, "rotary.mul", wide);
                if dtype == DType::F32 { turned } else { self.cast(label, turned, dtype) }
            }
            RotaryStyle::Composed => {
                let cosine = self.unary(Saves::Nothing, "rotary.cos", x);
                let half = self.unary(Saves::Nothing, "rotary.half", x);
                let sine = self.unary(Saves::Nothing, "rotary.sin", half);
                let turned = self.add(label, cosine, sine);
                if partial { self.copy("rotary.cat", turned, shape) } else { turned }
            }
        }
    }

    /// Scores, softmax and context; the result is `[b, s, heads * value_dim]`.
    fn core(&mut self, q: ValueId, k: ValueId, v: ValueId, core: &Core) -> ValueId {
        let options = self.scope.options;
        let (b, s, keys) = (Dim::BATCH, core.queries.clone(), core.keys.clone());
        let shape = |heads: u64, rows: &Dim, dim: u64| {
            Shape::new([b.clone(), heads.into(), rows.clone(), dim.into()])
        };
        let compute = if options.autocast { options.compute } else { self.dtype(v) };
        let q = self.view("q.heads", q, shape(core.heads, &s, core.key_dim));
        let mut k = self.view("k.heads", k, shape(core.kv_heads, &keys, core.key_dim));
        let mut v = self.view("v.heads", v, shape(core.kv_heads, &keys, core.value_dim));
        let eager = options.attention == AttentionStyle::Eager;
        let mut kv_heads = core.kv_heads;
        if (eager || options.style.repeat_kv) && core.kv_heads < core.heads {
            k = self.copy("k.repeat", k, shape(core.heads, &keys, core.key_dim));
            v = self.copy("v.repeat", v, shape(core.heads, &keys, core.value_dim));
            kv_heads = core.heads;
        }
        let q = self.cast("q.cast", q, compute);
        let k = self.cast("k.cast", k, compute);
        let v = self.cast("v.cast", v, compute);
        self.core = true;
        let context_shape = shape(core.heads, &s, core.value_dim);
        let context = if eager {
            self.eager_core(q, k, v, core, context_shape)
        } else {
            let kernel = match options.attention {
                AttentionStyle::Cudnn => AttentionKind::Cudnn,
                AttentionStyle::Efficient => AttentionKind::Efficient,
                _ => AttentionKind::Flash,
            };
            let seen = match core.span {
                Span::Full => keys.clone(),
                Span::Sliding { window } => keys.min(window),
                Span::Chunked { chunk } => keys.min(chunk),
            };
            let op = Op::Attention(AttentionOp {
                kernel,
                heads: core.heads,
                kv_heads,
                head_dim: core.key_dim,
                keys: seen,
                causal: core.causal,
            });
            self.op(op, "attention", &[q, k, v], context_shape, compute)
        };
        self.core = false;
        let context = self.prefixed(q, context, core.heads);
        let flat = Shape::new([b, s, (core.heads * core.value_dim).into()]);
        // One kernel writes as its queries lie, mostly [b, s, heads, d], so that the transpose back is a view; a batched
        // product does not.
        if eager || options.style.context_copy {
            self.copy("context", context, flat)
        } else {
            self.view("context", context, flat)
        }
    }

    fn eager_core(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        core: &Core,
        context_shape: Shape,
    ) -> ValueId {
        let options = self.scope.options;
        let compute = self.dtype(q);
        let square =
            Shape::new([Dim::BATCH, core.heads.into(), core.queries.clone(), core.keys.clone()]);
        let product = Op::MatMul { contracted: core.key_dim.into() };
        let scores = self.op(product, "scores", &[q, k], square.clone(), compute);
        let scaled = self.unary(Saves::Nothing, "scores.scale", scores);
        let masked = self.unary(Saves::Nothing, "scores.mask", scaled);
        let mut weights = match options.style.softmax {
            SoftmaxStyle::Composed => {
                let wide = if options.autocast { DType::F32 } else { compute };
                let shifted = self.unary(Saves::Nothing, "softmax.shift", masked);
                let shifted = self.cast("softmax.cast", shifted, wide);
                let exponential = self.unary(Saves::Output, "softmax.exp", shifted);
                let row = square.with_last(1);
                let sum = self.op(Op::ReduceLast, "softmax.sum", &[exponential], row, wide);
                self.op(Op::Div, "softmax.div", &[exponential, sum], square, wide)
            }
            SoftmaxStyle::Upcast => self.op(Op::Softmax, "softmax", &[masked], square, DType::F32),
            SoftmaxStyle::Native => {
                let wide = if options.autocast { DType::F32 } else { compute };
                self.op(Op::Softmax, "softmax", &[masked], square, wide)
            }
        };
        let composed_cast = options.style.softmax == SoftmaxStyle::Upcast;
        if composed_cast {
            weights = self.cast("softmax.cast", weights, compute);
        }
        let weights = self.dropout("attn.dropout", weights, core.dropout);
        let weights = self.cast("attn.cast", weights, compute);
        self.op(
            Op::MatMul { contracted: core.keys.clone() },
            "context",
            &[weights, v],
            context_shape,
            compute,
        )
    }

    /// Attention over another stack's output.
    pub fn cross_attention(
        &mut self,
        a: &Attention,
        x: ValueId,
        memory: ValueId,
    ) -> Result<ValueId, BuildError> {
        let q = self.linear(Part::CrossQuery, "cross.q", x)?;
        let k = self.linear(Part::CrossKey, "cross.k", memory)?;
        let v = self.linear(Part::CrossValue, "cross.v", memory)?;
        let scope = self.scope;
        let core = Core {
            heads: a.heads.div_ceil(scope.options.tensor.max(1)),
            kv_heads: a.kv_heads.max(1).div_ceil(scope.options.tensor.max(1)),
            key_dim: a.head_dim,
            value_dim: a.value_dim,
            queries: scope.sequence.clone(),
            keys: scope.memory.clone().unwrap_or_else(|| scope.sequence.clone()),
            span: Span::Full,
            causal: false,
            dropout: a.dropout,
        };
        let context = self.core(q, k, v, &core);
        let out = self.linear(Part::CrossOutput, "cross.o", context)?;
        Ok(self.reduced(out))
    }

    /// Latent attention as it trains: compressed, expanded to all heads, then ordinary attention.
    fn latent_attention(&mut self, a: &LatentAttention, x: ValueId) -> Result<ValueId, BuildError> {
        let x = self.gathered(x);
        let scope = self.scope;
        let heads = a.heads.div_ceil(scope.options.tensor.max(1));
        let key_dim = a.nope_dim + a.rope_dim;
        let q = if a.q_lora_rank.is_some() {
            let down = self.linear(Part::QueryDown, "q.down", x)?;
            let normed = self.norm(Norm::RMS, (Part::QueryDownNorm, "q.norm"), down)?;
            self.linear(Part::QueryUp, "q.up", normed)?
        } else {
            self.linear(Part::Query, "q", x)?
        };
        let down = self.linear(Part::KvDown, "kv.down", x)?;
        let compressed = self.view("kv.latent", down, self.shape(down).with_last(a.kv_lora_rank));
        let normed = self.norm(Norm::RMS, (Part::KvDownNorm, "kv.norm"), compressed)?;
        let kv = self.linear(Part::KvUp, "kv.up", normed)?;
        // Rotary parts are turned and joined with the others: full-size q and k are written anew.
        let wide = self.shape(x).with_last(heads * key_dim);
        let q = self.copy("q.join", q, wide.clone());
        let k = self.op(Op::Copy, "k.join", &[kv], wide.clone(), self.dtype(kv));
        let v = self.view("v", kv, wide.with_last(heads * a.value_dim));
        let core = Core {
            heads,
            kv_heads: heads,
            key_dim,
            value_dim: a.value_dim,
            queries: scope.sequence.clone(),
            keys: scope.sequence.clone(),
            span: Span::Full,
            causal: true,
            dropout: false,
        };
        let context = self.core(q, k, v, &core);
        let out = self.linear(Part::Output, "o", context)?;
        Ok(self.reduced(out))
    }
}
