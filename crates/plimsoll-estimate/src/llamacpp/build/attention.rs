//! Softmax attention: projections, norms, rotation of cached values, the store into the cache and the product.

use plimsoll_model::arch::{Attention, ModelKind, Norm, NormKind, QkNorm, Span};
use plimsoll_units::DType;

use super::Builder;
use crate::llamacpp::graph::TensorId;

impl Builder<'_> {
    pub(super) fn attention(&mut self, il: usize, a: &Attention, x: TensorId) -> TensorId {
        let tokens = self.cx.batch.tokens;
        let (q_width, k_width, v_width) =
            (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.value_dim);
        let (mut q, mut k, mut v, gate) = if a.gated {
            let full = self.linear(il, "attn_q", 2 * q_width, x);
            let q = self.g.view(full, [a.head_dim, a.heads, tokens, 1]);
            let k = self.linear(il, "attn_k", k_width, x);
            let v = self.linear(il, "attn_v", v_width, x);
            let gate = self.g.view(full, [a.head_dim, a.heads, tokens, 1]);
            let gate = self.g.op(DType::F32, [q_width, tokens, 1, 1], &[gate]);
            (q, Some(k), Some(v), Some(gate))
        } else if a.fused_qkv {
            let mut all = self.linear(il, "attn_qkv", q_width + k_width + v_width, x);
            if a.qkv_bias {
                all = self.bias(il, "attn_qkv", all);
            }
            let q = self.part_of(all, a.head_dim, a.heads);
            let k = self.part_of(all, a.head_dim, a.kv_heads);
            let v = self.part_of(all, a.value_dim, a.kv_heads);
            (q, Some(k), Some(v), None)
        } else {
            let q = self.projection(il, "attn_q", q_width, a.qkv_bias, x);
            let (k, v) = if a.shares_kv {
                (None, None)
            } else {
                let k = self.projection(il, "attn_k", k_width, a.key_bias.unwrap_or(a.qkv_bias), x);
                let v = self.projection(il, "attn_v", v_width, a.qkv_bias, x);
                (Some(k), Some(v))
            };
            (q, k, v, None)
        };
        if a.qk_norm == QkNorm::Full {
            q = self.norm(il, "attn_q_norm", Norm::RMS, q);
            k = k.map(|k| self.norm(il, "attn_k_norm", Norm::RMS, k));
        }
        q = self.heads(q, a.head_dim, a.heads);
        k = k.map(|k| self.heads(k, a.head_dim, a.kv_heads));
        v = v.map(|v| self.heads(v, a.value_dim, a.kv_heads));
        let per_head = match a.qk_norm {
            QkNorm::PerHead => Some(Norm::RMS),
            QkNorm::PerHeadWeights => {
                Some(Norm { kind: NormKind::Layer, weight: true, bias: false })
            }
            QkNorm::PerHeadLayer => Some(Norm::LAYER),
            _ => None,
        };
        if let Some(norm) = per_head {
            q = self.norm(il, "attn_q_norm", norm, q);
            k = k.map(|k| self.norm(il, "attn_k_norm", norm, k));
        }
        if self.has_rotary() {
            let pos = self.positions();
            q = self.g.in_place(&[q, pos]);
            k = k.map(|k| self.g.in_place(&[k, pos]));
        }
        let out = match (k, v) {
            (Some(k), Some(v)) if self.bidirectional() => self.attend_to_batch(a, q, k, v),
            _ => self.attend(il, a, q, k, v),
        };
        let out = match gate {
            Some(gate) => {
                let gate = self.g.in_place(&[gate]);
                self.g.in_place(&[out, gate])
            }
            None => out,
        };
        let hidden = self.cx.arch.hidden;
        let y = self.linear(il, "attn_output", hidden, out);
        if a.out_bias { self.bias(il, "attn_output", y) } else { y }
    }

    /// Heads of a fused projection: a window, or a copy in older builds.
    fn part_of(&mut self, all: TensorId, dim: u64, heads: u64) -> TensorId {
        let tokens = self.cx.batch.tokens;
        let window = self.g.view(all, [dim, heads, tokens, 1]);
        if self.cx.behaviour.fused_qkv_views {
            return window;
        }
        let copy = self.g.op(DType::F32, [dim * heads, tokens, 1, 1], &[window]);
        self.g.view(copy, [dim, heads, tokens, 1])
    }

    fn projection(
        &mut self,
        il: usize,
        name: &str,
        width: u64,
        bias: bool,
        x: TensorId,
    ) -> TensorId {
        let y = self.linear(il, name, width, x);
        if bias { self.bias(il, name, y) } else { y }
    }

    /// A tensor as `[dim, heads, tokens]`; windows stay as they are.
    fn heads(&mut self, x: TensorId, dim: u64, heads: u64) -> TensorId {
        let shape = self.g.get(x).shape;
        if shape[0] == dim && shape[1] == heads {
            return x;
        }
        self.g.view(x, [dim, heads, self.cx.batch.tokens, 1])
    }

    fn bidirectional(&self) -> bool {
        matches!(self.cx.arch.kind, ModelKind::Encoder | ModelKind::MaskedLm)
    }

    /// Attention within the batch, for encoders: no cache is read.
    fn attend_to_batch(
        &mut self,
        a: &Attention,
        q: TensorId,
        k: TensorId,
        v: TensorId,
    ) -> TensorId {
        let tokens = self.cx.batch.tokens;
        let newer = self.cx.behaviour.encoder_without_cache;
        if newer {
            self.expand_qkv(q, Some(k), Some(v));
        }
        let q = self.g.view(q, [a.head_dim, tokens, a.heads, 1]);
        let flash = newer && self.cx.flash_attention;
        let mask = self.mask(0, tokens);
        let out = if flash {
            let k = self.g.op(DType::F16, [a.head_dim, tokens, a.kv_heads, 1], &[k]);
            let v = self.g.op(DType::F16, [a.value_dim, tokens, a.kv_heads, 1], &[v]);
            let out = self.g.op(DType::F32, [a.value_dim, a.heads, tokens, 1], &[q, k, v, mask]);
            self.g.view(out, [a.value_dim * a.heads, tokens, 1, 1])
        } else {
            let k = self.g.view(k, [a.head_dim, tokens, a.kv_heads, 1]);
            let k = if newer { k } else { self.g.like(&[k]) };
            let scores = self.g.op(DType::F32, [tokens, tokens, a.heads, 1], &[k, q]);
            let scores = self.g.in_place(&[scores, mask]);
            let v = self.g.view(v, [tokens, a.value_dim, a.kv_heads, 1]);
            let v = self.g.like(&[v]);
            let out = self.g.op(DType::F32, [a.value_dim, tokens, a.heads, 1], &[v, scores]);
            let merged = self.g.view(out, [a.value_dim, a.heads, tokens, 1]);
            self.g.op(DType::F32, [a.value_dim * a.heads, tokens, 1, 1], &[merged])
        };
        self.g.expand(out);
        out
    }

    /// Stores K and V of the batch and attends to the cache; returns `[heads * value_dim, tokens]`.
    fn attend(
        &mut self,
        il: usize,
        a: &Attention,
        mut q: TensorId,
        k: Option<TensorId>,
        v: Option<TensorId>,
    ) -> TensorId {
        let sliding = usize::from(!matches!(a.span, Span::Full));
        let (mut k, mut v) = (k, v);
        let rot_k = self.rotation(0, self.cx.cache_k, a.head_dim);
        let rot_v = self.rotation(1, self.cx.cache_v, a.value_dim);
        if let Some(r) = rot_k {
            q = self.rotate(q, r);
            k = k.map(|k| self.rotate(k, r));
        }
        if let Some(r) = rot_v {
            v = v.map(|v| self.rotate(v, r));
        }
        self.expand_qkv(q, k, v);
        let cells = self.cx.cache.cells(a.span);
        let place = self.cx.layout.cache(il);
        let k_cache = self.g.cache(self.cx.cache_k, [a.kv_heads * a.head_dim, cells, 1, 1], place);
        let v_cache = self.g.cache(self.cx.cache_v, [a.kv_heads * a.value_dim, cells, 1, 1], place);
        if let Some(k) = k {
            let flat = self.g.view(k, [a.kv_heads * a.head_dim, self.cx.batch.tokens, 1, 1]);
            let index = self.store_index(false, sliding, 1);
            self.store(k_cache, flat, index);
        }
        if let Some(v) = v {
            let width = a.kv_heads * a.value_dim;
            let flat = self.g.view(v, [width, self.cx.batch.tokens, 1, 1]);
            // Without flash attention V is stored transposed, element by element.
            let each = if self.cx.flash_attention { 1 } else { width };
            let index = self.store_index(true, sliding, each);
            self.store(v_cache, flat, index);
        }
        let attention = Product {
            heads: a.heads,
            value_dim: a.value_dim,
            cells,
            kv_elements: cells.saturating_mul(a.kv_heads.saturating_mul(a.head_dim)),
            v_elements: cells.saturating_mul(a.kv_heads.saturating_mul(a.value_dim)),
            sinks: a.sinks,
            soft_cap: matches!(crate::llamacpp::gguf_family(&self.cx.arch.family), "gemma2"),
        };
        let mask = self.mask(sliding, cells);
        let mut out = self.product(il, &attention, q, k_cache, v_cache, mask);
        if let Some(r) = rot_v {
            out = self.rotate(out, r);
        }
        out
    }

    /// The order in which the store's inputs are computed.
    pub(super) fn expand_qkv(&mut self, q: TensorId, k: Option<TensorId>, v: Option<TensorId>) {
        self.g.expand(q);
        let rest = if self.cx.behaviour.value_before_key { [v, k] } else { [k, v] };
        for t in rest.into_iter().flatten() {
            self.g.expand(t);
        }
    }

    fn rotation(&mut self, which: usize, dtype: DType, dim: u64) -> Option<TensorId> {
        if !self.cx.behaviour.rotated_cache || dtype.is_plain() || !dim.is_multiple_of(64) {
            return None;
        }
        let side = if which == 0 { 1u64 << dim.trailing_zeros() } else { 64 };
        Some(
            *self.rotations[which]
                .get_or_insert_with(|| self.g.input(DType::F32, [side, side, 1, 1])),
        )
    }

    fn rotate(&mut self, x: TensorId, rotation: TensorId) -> TensorId {
        let side = self.g.get(rotation).shape[0];
        let (shape, elements) = (self.g.get(x).shape, self.g.get(x).elements());
        let flat = self.g.view(x, [side, elements / side.max(1), 1, 1]);
        let y = self.g.op(DType::F32, [side, elements / side.max(1), 1, 1], &[rotation, flat]);
        self.g.view(y, shape)
    }

    pub(super) fn store_index(
        &mut self,
        value: bool,
        sliding: usize,
        each: u64,
    ) -> Option<TensorId> {
        if !self.cx.behaviour.indexed_store {
            return None;
        }
        let n = self.cx.batch.tokens.saturating_mul(each);
        let slot = if value { &mut self.v_index[sliding] } else { &mut self.k_index[sliding] };
        Some(*slot.get_or_insert_with(|| self.g.input(DType::I64, [n, 1, 1, 1])))
    }

    pub(super) fn store(&mut self, cache: TensorId, x: TensorId, index: Option<TensorId>) {
        let sources: Vec<TensorId> = std::iter::once(x).chain(index).collect();
        let stored = self.g.write_into(cache, &sources);
        self.g.expand(stored);
    }

    /// The mask of full (0) or sliding (1) layers, in the type that the product reads.
    pub(super) fn mask(&mut self, sliding: usize, cells: u64) -> TensorId {
        if let Some(m) = self.masks[sliding] {
            return m;
        }
        let b = self.cx.behaviour;
        let streams = self.cx.cache.streams.max(1);
        let rows = (self.cx.batch.tokens / streams).max(1).next_multiple_of(b.mask_rows.max(1));
        let shape = [cells, rows, 1, streams];
        let half = self.cx.flash_attention;
        let m = if half && b.half_mask_input {
            self.g.input(DType::F16, shape)
        } else {
            let m = self.g.input(DType::F32, shape);
            if half { self.g.op(DType::F16, shape, &[m]) } else { m }
        };
        self.masks[sliding] = Some(m);
        m
    }

    pub(super) fn product(
        &mut self,
        il: usize,
        p: &Product,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        mask: TensorId,
    ) -> TensorId {
        let tokens = self.cx.batch.tokens;
        let q_shape = self.g.get(q).shape;
        let q = self.g.view(q, [q_shape[0], tokens, p.heads, 1]);
        let k_view = self.g.view(k, [q_shape[0], p.cells, 1, 1]);
        let v_view = self.g.view(v, [p.value_dim, p.cells, 1, 1]);
        let mut sources = vec![q, k_view, v_view, mask];
        if p.sinks {
            sources.push(self.weight(il, "attn_sinks", [p.heads, 1, 1, 1]));
        }
        let out = if self.cx.flash_attention {
            let out = self.g.op(DType::F32, [p.value_dim, p.heads, tokens, 1], &sources);
            let scratch = self.dequantized(p, k, v);
            self.g.get_mut(out).scratch = scratch;
            self.g.view(out, [p.value_dim * p.heads, tokens, 1, 1])
        } else {
            let mut scores = self.g.op(DType::F32, [p.cells, tokens, p.heads, 1], &[k_view, q]);
            if p.soft_cap {
                for _ in 0..3 {
                    scores = self.g.in_place(&[scores]);
                }
            }
            let mut soft = vec![scores];
            soft.extend(&sources[3..]);
            let scores = self.g.in_place(&soft);
            let out = self.g.op(DType::F32, [p.value_dim, tokens, p.heads, 1], &[v_view, scores]);
            let merged = self.g.view(out, [p.value_dim, p.heads, tokens, 1]);
            self.g.op(DType::F32, [p.value_dim * p.heads, tokens, 1, 1], &[merged])
        };
        self.g.expand(out);
        out
    }

    /// Half-precision copies of a quantized cache that the CUDA kernel keeps behind its result.
    fn dequantized(&self, p: &Product, k: TensorId, v: TensorId) -> u64 {
        if !self.cx.behaviour.attention_scratch {
            return 0;
        }
        let copy = |id: TensorId, elements: u64| {
            if self.g.get(id).dtype == DType::F16 {
                0
            } else {
                DType::F16.bytes(elements).get().next_multiple_of(128)
            }
        };
        let k_copy = copy(k, p.kv_elements);
        if p.v_elements == 0 { k_copy } else { k_copy.saturating_add(copy(v, p.v_elements)) }
    }
}

/// Sizes of one attention product.
pub(super) struct Product {
    pub(super) heads: u64,
    pub(super) value_dim: u64,
    pub(super) cells: u64,
    /// Elements of K in the cache.
    pub(super) kv_elements: u64,
    /// Elements of V in the cache; 0 where V is part of K.
    pub(super) v_elements: u64,
    pub(super) sinks: bool,
    pub(super) soft_cap: bool,
}
