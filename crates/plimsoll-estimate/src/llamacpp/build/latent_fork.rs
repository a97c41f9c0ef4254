//! Multi-head latent attention of ik_llama.cpp (`-mla 1..3`, `-amb`). Prompts of 128 tokens and more unpack the
//! latent cache into full heads, a part of the heads at a time; since the parts of the result are joined at the very
//! end, all parts are alive together. Read from the fork's graph of June 2025.

use plimsoll_model::arch::{LatentAttention, Span};
use plimsoll_units::DType;

use super::Builder;
use crate::llamacpp::graph::TensorId;

/// Batches from this size on unpack the cache.
const PROMPT: u64 = 128;

impl Builder<'_> {
    pub(super) fn fork_latent(
        &mut self,
        il: usize,
        a: &LatentAttention,
        q_nope: TensorId,
        q_pe: TensorId,
        latent: TensorId,
        k_pe: TensorId,
    ) -> TensorId {
        let (tokens, wide) = (self.cx.batch.tokens, a.kv_lora_rank + a.rope_dim);
        let cells = self.cx.cache.cells(Span::Full);
        let place = self.cx.layout.cache(il);
        if self.cx.mla == 1 && !self.cx.flash_attention {
            let turned = self.g.view(latent, [tokens, a.kv_lora_rank, 1, 1]);
            let store = self.g.cache(self.cx.cache_v, [cells, a.kv_lora_rank, 1, 1], place);
            self.store(store, turned, None);
        }
        let k_pe = self.g.view(k_pe, [a.rope_dim, tokens, 1, 1]);
        let joined = self.g.op(DType::F32, [wide, tokens, 1, 1], &[k_pe, latent]);
        let cache = self.g.cache(self.cx.cache_k, [wide, cells, 1, 1], place);
        self.store(cache, joined, None);
        let out = if self.cx.mla > 1 && self.cx.flash_attention && tokens >= PROMPT {
            self.fork_unpacked(il, a, q_nope, q_pe, cache)
        } else {
            self.fork_absorbed(il, a, q_nope, q_pe, cache)
        };
        self.g.expand(out);
        let hidden = self.cx.arch.hidden;
        self.linear(il, "attn_output", hidden, out)
    }

    /// Heads that are unpacked at a time, so that one product stays under `-amb`.
    fn heads_at_a_time(&self, a: &LatentAttention, cells: u64) -> u64 {
        let width = a.heads.saturating_mul(a.nope_dim.saturating_add(a.value_dim));
        let mut mib = width.saturating_mul(cells).saturating_mul(4) >> 20;
        let mut heads = a.heads;
        let limit = self.cx.attention_max_mib;
        while limit > 0 && mib > limit && heads.is_multiple_of(2) && heads > 0 {
            heads /= 2;
            mib /= 2;
        }
        heads.max(1)
    }

    fn fork_unpacked(
        &mut self,
        il: usize,
        a: &LatentAttention,
        q_nope: TensorId,
        q_pe: TensorId,
        cache: TensorId,
    ) -> TensorId {
        let (tokens, head) = (self.cx.batch.tokens, a.nope_dim + a.rope_dim);
        let cells = self.cx.cache.cells(Span::Full);
        let nope = self.g.view(cache, [a.kv_lora_rank, cells, 1, 1]);
        let heads = self.heads_at_a_time(a, cells);
        let rope = self.g.view(cache, [a.rope_dim, cells, 1, 1]);
        let rope = if self.cx.cache_k == DType::F16 {
            rope
        } else {
            self.g.op(DType::F16, [a.rope_dim, cells, 1, 1], &[rope])
        };
        let rope = self.g.op(DType::F16, [a.rope_dim, cells, heads, 1], &[rope]);
        let q = self.g.op(DType::F32, [head, a.heads, tokens, 1], &[q_pe, q_nope]);
        let q = self.g.view(q, [head, tokens, a.heads, 1]);
        self.g.expand(q);
        let mask = self.mask(0, cells);
        let up = self.weight(
            il,
            "attn_kv_b",
            [a.kv_lora_rank, a.heads * (a.nope_dim + a.value_dim), 1, 1],
        );
        let mut joined: Option<TensorId> = None;
        for part in 1..=(a.heads / heads).clamp(1, 1024) {
            let width = heads * (a.nope_dim + a.value_dim);
            let rows = self.g.view(up, [a.kv_lora_rank, width, 1, 1]);
            let full = self.g.op(DType::F32, [width, cells, 1, 1], &[rows, nope]);
            let v = self.g.view(full, [a.value_dim, cells, heads, 1]);
            let k = self.g.view(full, [a.nope_dim, cells, heads, 1]);
            let v = self.g.op(DType::F16, [a.value_dim, cells, heads, 1], &[v]);
            let k = self.g.op(DType::F16, [a.nope_dim, cells, heads, 1], &[k]);
            self.g.expand(k);
            self.g.expand(v);
            let k = self.g.op(DType::F16, [head, cells, heads, 1], &[rope, k]);
            self.g.expand(k);
            let q_part = self.g.view(q, [head, tokens, heads, 1]);
            let out = self.g.op(DType::F32, [a.value_dim, heads, tokens, 1], &[q_part, k, v, mask]);
            let out = self.g.view(out, [a.value_dim * heads, tokens, 1, 1]);
            joined = Some(match joined {
                None => out,
                Some(before) => {
                    let shape = [a.value_dim * heads * part, tokens, 1, 1];
                    self.g.op(DType::F32, shape, &[before, out])
                }
            });
        }
        joined.unwrap_or(q)
    }

    fn fork_absorbed(
        &mut self,
        il: usize,
        a: &LatentAttention,
        q_nope: TensorId,
        q_pe: TensorId,
        cache: TensorId,
    ) -> TensorId {
        let (tokens, wide) = (self.cx.batch.tokens, a.kv_lora_rank + a.rope_dim);
        let cells = self.cx.cache.cells(Span::Full);
        let down = self.weight(il, "attn_k_b", [a.nope_dim, a.kv_lora_rank, a.heads, 1]);
        let up = self.weight(il, "attn_v_b", [a.kv_lora_rank, a.value_dim, a.heads, 1]);
        let per_head = self.g.view(q_nope, [a.nope_dim, tokens, a.heads, 1]);
        let absorbed = self.g.matmul(down, per_head);
        let q_pe = self.g.view(q_pe, [a.rope_dim, tokens, a.heads, 1]);
        let q = self.g.op(DType::F32, [wide, tokens, a.heads, 1], &[q_pe, absorbed]);
        let k = self.g.view(cache, [wide, cells, 1, 1]);
        let latent = self.g.view(cache, [a.kv_lora_rank, cells, 1, 1]);
        let mask = self.mask(0, cells);
        let out = if self.cx.flash_attention && self.cx.mla != 2 {
            let out =
                self.g.op(DType::F32, [a.kv_lora_rank, a.heads, tokens, 1], &[q, k, latent, mask]);
            self.g.view(out, [a.kv_lora_rank, tokens, a.heads, 1])
        } else {
            let v = if self.cx.mla > 1 {
                self.g.op(self.cx.cache_k, [cells, a.kv_lora_rank, 1, 1], &[latent])
            } else {
                latent
            };
            self.fork_scores(a, q, k, v, mask)
        };
        let full = self.g.matmul(up, out);
        let turned = self.g.view(full, [a.value_dim, a.heads, tokens, 1]);
        let merged = self.g.op(DType::F32, [a.value_dim, a.heads, tokens, 1], &[turned]);
        self.g.view(merged, [a.value_dim * a.heads, tokens, 1, 1])
    }

    /// Scores of all heads at once, or of a few heads at a time where all would exceed `-amb`.
    fn fork_scores(
        &mut self,
        a: &LatentAttention,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        mask: TensorId,
    ) -> TensorId {
        let tokens = self.cx.batch.tokens;
        let cells = self.cx.cache.cells(Span::Full);
        let limit = self.cx.attention_max_mib;
        let all = cells.saturating_mul(tokens).saturating_mul(a.heads).saturating_mul(4) >> 20;
        let steps = if limit == 0 || limit >= all { 1 } else { all.div_ceil(limit).min(a.heads) };
        let per_step = a.heads.div_ceil(steps.max(1));
        let mut joined: Option<TensorId> = None;
        let mut done = 0;
        while done < a.heads {
            let heads = per_step.min(a.heads - done);
            done += heads;
            let shape = self.g.get(q).shape;
            let q_part = if steps == 1 { q } else { self.g.view(q, [shape[0], tokens, heads, 1]) };
            let scores = self.g.op(DType::F32, [cells, tokens, heads, 1], &[k, q_part]);
            let scores = self.g.in_place(&[scores, mask]);
            let out = self.g.op(DType::F32, [a.kv_lora_rank, tokens, heads, 1], &[v, scores]);
            let next = match joined {
                None => out,
                Some(before) => {
                    self.g.op(DType::F32, [a.kv_lora_rank, tokens, done, 1], &[before, out])
                }
            };
            if steps > 1 {
                self.g.expand(next);
            }
            joined = Some(next);
        }
        joined.unwrap_or(q)
    }
}
