//! Multi-head latent attention (DeepSeek): absorbed into one wide K head, or unpacked to full heads.

use plimsoll_model::arch::{LatentAttention, Norm, Span};
use plimsoll_units::DType;

use super::Builder;
use super::attention::Product;
use crate::llamacpp::graph::TensorId;

impl Builder<'_> {
    pub(super) fn latent(&mut self, il: usize, a: &LatentAttention, x: TensorId) -> TensorId {
        let tokens = self.cx.batch.tokens;
        let head = a.nope_dim + a.rope_dim;
        let q = match a.q_lora_rank {
            Some(rank) => {
                let down = self.linear(il, "attn_q_a", rank, x);
                let down = self.norm(il, "attn_q_a_norm", Norm::RMS, down);
                self.linear(il, "attn_q_b", a.heads * head, down)
            }
            None => self.linear(il, "attn_q", a.heads * head, x),
        };
        let q_nope = self.g.view(q, [a.nope_dim, a.heads, tokens, 1]);
        let q_pe = self.g.view(q, [a.rope_dim, a.heads, tokens, 1]);
        let kv = self.linear(il, "attn_kv_a_mqa", a.kv_lora_rank + a.rope_dim, x);
        let latent = self.g.view(kv, [a.kv_lora_rank, tokens, 1, 1]);
        let k_pe = self.g.view(kv, [a.rope_dim, 1, tokens, 1]);
        let pos = self.positions();
        let q_pe = self.g.in_place(&[q_pe, pos]);
        let k_pe = self.g.in_place(&[k_pe, pos]);
        let latent = self.norm(il, "attn_kv_a_norm", Norm::RMS, latent);
        if self.cx.fork && self.cx.cache.absorbed {
            self.fork_latent(il, a, q_nope, q_pe, latent, k_pe)
        } else if self.cx.cache.absorbed {
            self.absorbed(il, a, q_nope, q_pe, latent, k_pe)
        } else {
            self.unpacked(il, a, q_nope, q_pe, latent, k_pe)
        }
    }

    fn absorbed(
        &mut self,
        il: usize,
        a: &LatentAttention,
        q_nope: TensorId,
        q_pe: TensorId,
        latent: TensorId,
        k_pe: TensorId,
    ) -> TensorId {
        let (tokens, wide) = (self.cx.batch.tokens, a.kv_lora_rank + a.rope_dim);
        let per_head = self.g.view(q_nope, [a.nope_dim, tokens, a.heads, 1]);
        let w = self.weight(il, "attn_k_b", [a.nope_dim, a.kv_lora_rank, a.heads, 1]);
        let absorbed = self.g.matmul(w, per_head);
        let absorbed = self.g.view(absorbed, [a.kv_lora_rank, a.heads, tokens, 1]);
        let q = self.g.op(DType::F32, [wide, a.heads, tokens, 1], &[absorbed, q_pe]);
        let v = self.g.view(latent, [a.kv_lora_rank, 1, tokens, 1]);
        let k = self.g.op(DType::F32, [wide, 1, tokens, 1], &[v, k_pe]);
        self.expand_qkv(q, Some(k), Some(v));
        let cells = self.cx.cache.cells(Span::Full);
        let place = self.cx.layout.cache(il);
        let cache = self.g.cache(self.cx.cache_k, [wide, cells, 1, 1], place);
        let flat = self.g.view(k, [wide, tokens, 1, 1]);
        let index = self.store_index(false, 0, 1);
        self.store(cache, flat, index);
        let product = Product {
            heads: a.heads,
            value_dim: a.kv_lora_rank,
            cells,
            kv_elements: cells.saturating_mul(wide),
            v_elements: 0,
            sinks: false,
            soft_cap: false,
        };
        let mask = self.mask(0, cells);
        let out = self.latent_product(il, a, &product, q, cache, mask);
        let hidden = self.cx.arch.hidden;
        self.linear(il, "attn_output", hidden, out)
    }

    /// The product over the latent cache and its expansion to full value heads.
    fn latent_product(
        &mut self,
        il: usize,
        a: &LatentAttention,
        p: &Product,
        q: TensorId,
        cache: TensorId,
        mask: TensorId,
    ) -> TensorId {
        let tokens = self.cx.batch.tokens;
        let up = self.weight(il, "attn_v_b", [a.kv_lora_rank, a.value_dim, a.heads, 1]);
        let q_wide = self.g.get(q).shape[0];
        let q = self.g.view(q, [q_wide, tokens, a.heads, 1]);
        let k = self.g.view(cache, [q_wide, p.cells, 1, 1]);
        let v = self.g.view(cache, [a.kv_lora_rank, p.cells, 1, 1]);
        let heads_last = if self.cx.flash_attention {
            let out = self.g.op(DType::F32, [p.value_dim, a.heads, tokens, 1], &[q, k, v, mask]);
            let quantized = self.cx.cache_k != DType::F16 && self.cx.behaviour.attention_scratch;
            self.g.get_mut(out).scratch = if quantized {
                DType::F16.bytes(p.kv_elements).get().next_multiple_of(128)
            } else {
                0
            };
            self.g.view(out, [p.value_dim, tokens, a.heads, 1])
        } else {
            let scores = self.g.op(DType::F32, [p.cells, tokens, a.heads, 1], &[k, q]);
            let scores = self.g.in_place(&[scores, mask]);
            let turned = self.g.op(self.cx.cache_k, [p.cells, a.kv_lora_rank, 1, 1], &[v]);
            self.g.op(DType::F32, [p.value_dim, tokens, a.heads, 1], &[turned, scores])
        };
        let full = self.g.matmul(up, heads_last);
        let turned = self.g.view(full, [a.value_dim, a.heads, tokens, 1]);
        let merged = self.g.op(DType::F32, [a.value_dim, a.heads, tokens, 1], &[turned]);
        let out = self.g.view(merged, [a.value_dim * a.heads, tokens, 1, 1]);
        self.g.expand(out);
        out
    }

    fn unpacked(
        &mut self,
        il: usize,
        a: &LatentAttention,
        q_nope: TensorId,
        q_pe: TensorId,
        latent: TensorId,
        k_pe: TensorId,
    ) -> TensorId {
        let (tokens, head) = (self.cx.batch.tokens, a.nope_dim + a.rope_dim);
        let kv = self.linear(il, "attn_kv_b", a.heads * (a.nope_dim + a.value_dim), latent);
        let k_nope = self.g.view(kv, [a.nope_dim, a.heads, tokens, 1]);
        let v = self.g.view(kv, [a.value_dim, a.heads, tokens, 1]);
        let v = self.g.op(DType::F32, [a.value_dim, a.heads, tokens, 1], &[v]);
        let q = self.g.op(DType::F32, [head, a.heads, tokens, 1], &[q_nope, q_pe]);
        let spread = self.g.op(DType::F32, [a.rope_dim, a.heads, tokens, 1], &[k_pe, q_pe]);
        let k = self.g.op(DType::F32, [head, a.heads, tokens, 1], &[k_nope, spread]);
        self.expand_qkv(q, Some(k), Some(v));
        let cells = self.cx.cache.cells(Span::Full);
        let place = self.cx.layout.cache(il);
        let k_cache = self.g.cache(self.cx.cache_k, [a.heads * head, cells, 1, 1], place);
        let v_cache = self.g.cache(self.cx.cache_v, [a.heads * a.value_dim, cells, 1, 1], place);
        let index = self.store_index(false, 0, 1);
        self.store(k_cache, k, index);
        let each = if self.cx.flash_attention { 1 } else { a.heads * a.value_dim };
        let index = self.store_index(true, 0, each);
        self.store(v_cache, v, index);
        let product = Product {
            heads: a.heads,
            value_dim: a.value_dim,
            cells,
            kv_elements: cells.saturating_mul(a.heads * head),
            v_elements: cells.saturating_mul(a.heads * a.value_dim),
            sinks: false,
            soft_cap: false,
        };
        let mask = self.mask(0, cells);
        let out = self.product(il, &product, q, k_cache, v_cache, mask);
        let hidden = self.cx.arch.hidden;
        self.linear(il, "attn_output", hidden, out)
    }
}
