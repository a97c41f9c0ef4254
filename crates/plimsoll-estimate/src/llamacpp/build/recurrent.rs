//! Recurrent mixers: gated delta rule, Mamba, short convolution. States live in their own buffer; a layer reads
//! them as rows, runs, and writes the new ones back.

use plimsoll_model::arch::{GatedDelta, Mamba1, Mamba2, Norm};
use plimsoll_units::DType;

use super::Builder;
use crate::llamacpp::graph::TensorId;

impl Builder<'_> {
    fn state_rows(&mut self, il: usize, elements: u64) -> TensorId {
        let sequences = self.cx.batch.sequences;
        let n = sequences;
        let index = *self.state_index.get_or_insert_with(|| self.g.input(DType::I32, [n, 1, 1, 1]));
        let place = self.cx.layout.cache(il);
        let cache = self.g.cache(DType::F32, [elements, sequences, 1, 1], place);
        let rows = self.g.view(cache, [elements, sequences, 1, 1]);
        let zero = self.g.write_into(cache, &[rows]);
        self.g.expand(zero);
        let main = self.g.view(index, [sequences, 1, 1, 1]);
        let state = self.g.op(DType::F32, [elements, sequences, 1, 1], &[rows, main]);
        self.g.expand(state);
        state
    }

    fn store_state(&mut self, il: usize, x: TensorId) {
        let shape = self.g.get(x).shape;
        let place = self.cx.layout.cache(il);
        let cache = self.g.cache(DType::F32, shape, place);
        let stored = self.g.write_into(cache, &[x]);
        self.g.expand(stored);
    }

    /// Past samples and the batch side by side; the tail is stored for the next batch.
    fn conv_input(&mut self, il: usize, x: TensorId, kernel: u64, channels: u64) -> TensorId {
        let (sequences, per) = self.per_sequence();
        let tail = kernel.saturating_sub(1);
        let state = self.state_rows(il, tail * channels);
        let state = self.g.view(state, [tail, channels, sequences, 1]);
        let turned = self.g.view(x, [per, channels, sequences, 1]);
        let input = self.g.op(DType::F32, [tail + per, channels, sequences, 1], &[state, turned]);
        for _ in 0..=self.cx.draft {
            let last = self.g.view(input, [tail, channels, sequences, 1]);
            self.store_state(il, last);
        }
        input
    }

    fn per_sequence(&self) -> (u64, u64) {
        let sequences = self.cx.batch.sequences.max(1);
        (sequences, (self.cx.batch.tokens / sequences).max(1))
    }

    pub(super) fn gated_delta(&mut self, il: usize, d: &GatedDelta, x: TensorId) -> TensorId {
        let (sequences, per) = self.per_sequence();
        let (key, value) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let channels = 2 * key + value;
        let mixed = self.linear(il, "attn_qkv", channels, x);
        let mixed = self.g.view(mixed, [channels, per, sequences, 1]);
        let z = self.linear(il, "attn_gate", value, x);
        let beta = self.linear(il, "ssm_beta", d.value_heads, x);
        let beta = self.g.view(beta, [1, d.value_heads, per, sequences]);
        let beta = self.g.in_place(&[beta]);
        let alpha = self.linear(il, "ssm_alpha", d.value_heads, x);
        let alpha = self.g.view(alpha, [d.value_heads, per, sequences, 1]);
        let alpha = self.bias(il, "ssm_dt", alpha);
        let alpha = self.g.in_place(&[alpha]);
        let gate = self.bias(il, "ssm_a", alpha);
        let gate = self.g.view(gate, [1, d.value_heads, per, sequences]);
        let input = self.conv_input(il, mixed, d.conv, channels);
        let state = self.state_rows(il, d.value_heads * d.key_dim * d.value_dim);
        let state = self.g.view(state, [d.value_dim, d.key_dim, d.value_heads, sequences]);
        let kernel = self.weight(il, "ssm_conv1d", [d.conv, channels, 1, 1]);
        let conv = self.g.op(DType::F32, [channels, per, sequences, 1], &[input, kernel]);
        let conv = self.g.in_place(&[conv]);
        let q = self.g.view(conv, [d.key_dim, d.key_heads, per, sequences]);
        let k = self.g.view(conv, [d.key_dim, d.key_heads, per, sequences]);
        let v = self.g.view(conv, [d.value_dim, d.value_heads, per, sequences]);
        let q = self.g.op(DType::F32, [d.key_dim, d.key_heads, per, sequences], &[q]);
        let k = self.g.op(DType::F32, [d.key_dim, d.key_heads, per, sequences], &[k]);
        let out = self.delta_rule(il, d, [q, k, v, gate, beta, state]);
        let normed = self.norm(il, "ssm_norm", Norm::RMS, out);
        let z = self.g.view(z, [d.value_dim, d.value_heads, per, sequences]);
        let z = self.g.in_place(&[z]);
        let y = self.g.in_place(&[normed, z]);
        let y = self.g.view(y, [value, per, sequences, 1]);
        let y = self.linear(il, "ssm_out", self.cx.arch.hidden, y);
        self.g.view(y, [self.cx.arch.hidden, self.cx.batch.tokens, 1, 1])
    }

    /// The fused operator: outputs of all tokens and the states to keep in one tensor.
    fn delta_rule(&mut self, il: usize, d: &GatedDelta, sources: [TensorId; 6]) -> TensorId {
        let (sequences, per) = self.per_sequence();
        let value = d.value_heads * d.value_dim;
        let kept = self.cx.draft + 1;
        let rows = per * sequences + d.key_dim * sequences * kept;
        let all = self.g.op(DType::F32, [value, rows, 1, 1], &sources);
        let out = self.g.view(all, [d.value_dim, d.value_heads, per, sequences]);
        let state = self.g.view(all, [d.value_dim * d.key_dim * d.value_heads, sequences, kept, 1]);
        self.store_state(il, state);
        out
    }

    pub(super) fn mamba1(&mut self, il: usize, m: &Mamba1, x: TensorId) -> TensorId {
        let (sequences, per) = self.per_sequence();
        let x = self.g.view(x, [self.cx.arch.hidden, per, sequences, 1]);
        let xz = self.linear(il, "ssm_in", 2 * m.inner, x);
        let branch = self.g.view(xz, [m.inner, per, sequences, 1]);
        let z = self.g.view(xz, [m.inner, per, sequences, 1]);
        let input = self.conv_input(il, branch, m.conv, m.inner);
        let kernel = self.weight(il, "ssm_conv1d", [m.conv, m.inner, 1, 1]);
        let mut y = self.g.op(DType::F32, [m.inner, per, sequences, 1], &[input, kernel]);
        if m.conv_bias {
            y = self.bias(il, "ssm_conv1d", y);
        }
        let y = self.g.in_place(&[y]);
        let dbc = self.linear(il, "ssm_x", m.dt_rank + 2 * m.state, y);
        let mut dt = self.g.view(dbc, [m.dt_rank, per, sequences, 1]);
        let b = self.g.view(dbc, [m.state, 1, per, sequences]);
        let c = self.g.view(dbc, [m.state, 1, per, sequences]);
        if m.inner_norms {
            dt = self.norm(il, "ssm_dt_norm", Norm::RMS, dt);
        }
        let dt = self.linear(il, "ssm_dt", m.inner, dt);
        let dt = self.bias(il, "ssm_dt", dt);
        let state = self.state_rows(il, m.state * m.inner);
        let a = self.weight(il, "ssm_a", [m.state, m.inner, 1, 1]);
        let elements = m.inner * per * sequences + m.state * m.inner * sequences;
        let scan = self.g.op(DType::F32, [elements, 1, 1, 1], &[state, y, dt, a, b, c]);
        let kept = self.g.view(scan, [m.state * m.inner, sequences, 1, 1]);
        self.store_state(il, kept);
        let out = self.g.view(scan, [m.inner, per, sequences, 1]);
        let d = self.weight(il, "ssm_d", [m.inner, 1, 1, 1]);
        let skip = self.g.in_place(&[y, d]);
        let out = self.g.in_place(&[out, skip]);
        let out = self.gate_by(z, out, [m.inner, per, sequences, 1]);
        let out = self.linear(il, "ssm_out", self.cx.arch.hidden, out);
        self.g.view(out, [self.cx.arch.hidden, self.cx.batch.tokens, 1, 1])
    }

    fn gate_by(&mut self, z: TensorId, y: TensorId, shape: [u64; 4]) -> TensorId {
        if self.cx.behaviour.glu {
            self.g.op(DType::F32, shape, &[z, y])
        } else {
            let z = self.g.op(DType::F32, shape, &[z]);
            let z = self.g.in_place(&[z]);
            self.g.in_place(&[y, z])
        }
    }

    pub(super) fn mamba2(&mut self, il: usize, m: &Mamba2, x: TensorId) -> TensorId {
        let (sequences, per) = self.per_sequence();
        let x = self.g.view(x, [self.cx.arch.hidden, per, sequences, 1]);
        let channels = m.inner + 2 * m.groups * m.state;
        let projected = self.linear(il, "ssm_in", m.inner + channels + m.heads, x);
        let z = self.g.view(projected, [m.head_dim, m.heads, per, sequences]);
        let mixed = self.g.view(projected, [channels, per, sequences, 1]);
        let dt = self.g.view(projected, [m.heads, per, sequences, 1]);
        let input = self.conv_input(il, mixed, m.conv, channels);
        let kernel = self.weight(il, "ssm_conv1d", [m.conv, channels, 1, 1]);
        let mut conv = self.g.op(DType::F32, [channels, per, sequences, 1], &[input, kernel]);
        if m.conv_bias {
            conv = self.bias(il, "ssm_conv1d", conv);
        }
        let conv = self.g.in_place(&[conv]);
        let inner = self.g.view(conv, [m.head_dim, m.heads, per, sequences]);
        let b = self.g.view(conv, [m.state, m.groups, per, sequences]);
        let c = self.g.view(conv, [m.state, m.groups, per, sequences]);
        let dt = self.bias(il, "ssm_dt", dt);
        let state = self.state_rows(il, m.state * m.inner);
        let a = self.weight(il, "ssm_a", [1, m.heads, 1, 1]);
        let elements = m.inner * per * sequences + m.state * m.inner * sequences;
        let scan = self.g.op(DType::F32, [elements, 1, 1, 1], &[state, inner, dt, a, b, c]);
        let kept = self.g.view(scan, [m.state * m.inner, sequences, 1, 1]);
        self.store_state(il, kept);
        let shape = [m.head_dim, m.heads, per, sequences];
        let out = self.g.view(scan, shape);
        let d = self.weight(il, "ssm_d", [1, m.heads, 1, 1]);
        let skip = self.g.like(&[inner, d]);
        let out = self.g.in_place(&[out, skip]);
        let mut out = self.gate_by(z, out, shape);
        if m.norm {
            out = self.g.view(out, [m.inner / m.groups.max(1), m.groups, per, sequences]);
            out = self.norm(il, "ssm_norm", Norm::RMS, out);
        }
        let out = self.g.view(out, [m.inner, per, sequences, 1]);
        let out = self.linear(il, "ssm_out", self.cx.arch.hidden, out);
        self.g.view(out, [self.cx.arch.hidden, self.cx.batch.tokens, 1, 1])
    }

    pub(super) fn short_conv(&mut self, il: usize, kernel: u64, x: TensorId) -> TensorId {
        let hidden = self.cx.arch.hidden;
        let (sequences, per) = self.per_sequence();
        let bcx = self.linear(il, "shortconv.in_proj", 3 * hidden, x);
        let shape = [hidden, per, sequences, 1];
        let [b, c, v] = [(); 3].map(|()| self.g.view(bcx, shape));
        let gated = self.g.like(&[b, v]);
        let gated = self.g.view(gated, [per, hidden, sequences, 1]);
        let input = self.conv_input(il, gated, kernel, hidden);
        let w = self.weight(il, "shortconv.conv", [kernel, hidden, 1, 1]);
        let conv = self.g.op(DType::F32, shape, &[input, w]);
        let y = self.g.in_place(&[c, conv]);
        let y = self.g.view(y, [hidden, self.cx.batch.tokens, 1, 1]);
        self.linear(il, "shortconv.out_proj", hidden, y)
    }
}
