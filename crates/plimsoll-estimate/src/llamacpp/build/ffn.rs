//! Feed-forward networks: dense, and mixtures of experts.

use plimsoll_model::arch::{Activation, Ffn, Mlp, Moe};
use plimsoll_units::DType;

use super::Builder;
use crate::llamacpp::graph::TensorId;

/// Names of the three matrices of a feed-forward.
struct Names {
    up: &'static str,
    gate: &'static str,
    down: &'static str,
}

const DENSE: Names = Names { up: "ffn_up", gate: "ffn_gate", down: "ffn_down" };
const SHARED: Names = Names { up: "ffn_up_shexp", gate: "ffn_gate_shexp", down: "ffn_down_shexp" };

impl Builder<'_> {
    pub(super) fn ffn(&mut self, il: usize, ffn: &Ffn, x: TensorId) -> TensorId {
        match ffn {
            Ffn::Dense(m) => self.dense(il, m, &DENSE, x),
            Ffn::Moe(m) => self.mixture(il, m, x),
            _ => x,
        }
    }

    fn dense(&mut self, il: usize, m: &Mlp, names: &Names, x: TensorId) -> TensorId {
        let b = self.cx.behaviour;
        let hidden = self.cx.arch.hidden;
        let act = if m.gated && m.fused_gate {
            let both = self.linear(il, names.up, 2 * m.width, x);
            let mut shape = self.g.get(both).shape;
            shape[0] = m.width;
            if b.glu {
                self.g.op(DType::F32, shape, &[both])
            } else {
                let halves = [self.g.view(both, shape), self.g.view(both, shape)];
                let gate = self.g.op(DType::F32, shape, &[halves[0]]);
                let gate = self.g.in_place(&[gate]);
                let up = self.g.op(DType::F32, shape, &[halves[1]]);
                self.g.in_place(&[gate, up])
            }
        } else if m.gated && b.fused_up_gate && !m.bias {
            let (up, gate) = (
                self.weight_of(il, names.up, m.width, x),
                self.weight_of(il, names.gate, m.width, x),
            );
            let mut shape = self.g.get(x).shape;
            shape[0] = m.width;
            self.g.op(DType::F32, shape, &[up, gate, x])
        } else {
            let mut up = self.linear(il, names.up, m.width, x);
            if m.bias {
                up = self.bias(il, names.up, up);
            }
            if m.gated {
                let mut gate = self.linear(il, names.gate, m.width, x);
                if m.bias {
                    gate = self.bias(il, names.gate, gate);
                }
                self.gated(gate, up)
            } else {
                self.activation(m.activation, up)
            }
        };
        let down = self.linear(il, names.down, hidden, act);
        if m.bias { self.bias(il, names.down, down) } else { down }
    }

    fn weight_of(&mut self, il: usize, name: &str, out: u64, x: TensorId) -> TensorId {
        let inner = self.g.get(x).shape[0];
        self.weight(il, name, [inner, out, 1, 1])
    }

    fn activation(&mut self, activation: Activation, x: TensorId) -> TensorId {
        let y = self.g.in_place(&[x]);
        if activation == Activation::Relu2 { self.g.in_place(&[y]) } else { y }
    }

    fn gated(&mut self, gate: TensorId, up: TensorId) -> TensorId {
        if self.cx.behaviour.glu || self.cx.behaviour.fused_mul_unary {
            self.g.like(&[gate, up])
        } else {
            let gate = self.g.in_place(&[gate]);
            self.g.in_place(&[gate, up])
        }
    }

    fn mixture(&mut self, il: usize, m: &Moe, x: TensorId) -> TensorId {
        let routed = self.routed(il, m, x);
        let Some(shared) = &m.shared else { return routed };
        let mut s = self.dense(il, shared, &SHARED, x);
        if m.shared_gate {
            let gate = self.linear(il, "ffn_gate_inp_shexp", 1, x);
            let gate = self.g.in_place(&[gate]);
            s = self.g.in_place(&[s, gate]);
        }
        self.g.in_place(&[routed, s])
    }

    fn router(&mut self, il: usize, m: &Moe, x: TensorId) -> (TensorId, TensorId) {
        let family = crate::llamacpp::gguf_family(&self.cx.arch.family);
        let rows = self.g.get(x).shape[1];
        let mut logits = self.linear(il, "ffn_gate_inp", m.experts, x);
        let oai = family == "gpt-oss";
        if m.router_bias && oai {
            logits = self.bias(il, "ffn_gate_inp", logits);
        }
        let probs = if oai { logits } else { self.g.in_place(&[logits]) };
        let chosen = if m.correction_bias { self.bias(il, "exp_probs_b", probs) } else { probs };
        let order = self.g.op(DType::I32, [m.experts, rows, 1, 1], &[chosen]);
        let ids = self.g.view(order, [m.top_k, rows, 1, 1]);
        let table = self.g.view(probs, [1, m.experts, rows, 1]);
        let mut weights = self.g.op(DType::F32, [1, m.top_k, rows, 1], &[table, ids]);
        if oai {
            let flat = self.g.view(weights, [m.top_k, rows, 1, 1]);
            let soft = self.g.in_place(&[flat]);
            weights = self.g.view(soft, [1, m.top_k, rows, 1]);
        } else {
            let flat = self.g.view(weights, [m.top_k, rows, 1, 1]);
            let sum = self.g.op(DType::F32, [1, rows, 1, 1], &[flat]);
            let norm = self.g.in_place(&[flat, sum]);
            weights = self.g.view(norm, [1, m.top_k, rows, 1]);
        }
        (ids, weights)
    }

    fn routed(&mut self, il: usize, m: &Moe, x: TensorId) -> TensorId {
        let b = self.cx.behaviour;
        let hidden = self.cx.arch.hidden;
        let rows = self.g.get(x).shape[1];
        // The fork moves experts only where a batch keeps all of them busy.
        let busy = rows.saturating_mul(m.top_k) >= m.experts.saturating_mul(32);
        let offloaded = b.offloaded_experts && (busy || !self.cx.fork);
        let (ids, weights) = self.router(il, m, x);
        if b.early_expert_weights {
            self.g.expand(weights);
        }
        let wide = self.g.view(x, [hidden, 1, rows, 1]);
        let width = m.expert.width;
        let up_w = self.weight(il, "ffn_up_exps", [hidden, width, m.experts, 1]);
        let gate_w = self.weight(il, "ffn_gate_exps", [hidden, width, m.experts, 1]);
        let down_w = self.weight(il, "ffn_down_exps", [width, hidden, m.experts, 1]);
        let act = if b.fused_expert_up_gate && m.expert.gated && !m.expert.bias {
            let id = self.g.op(DType::F32, [width, m.top_k, rows, 1], &[up_w, gate_w, wide, ids]);
            self.g.get_mut(id).offloadable = offloaded;
            id
        } else {
            let mut up = self.g.matmul_id(up_w, wide, ids);
            if m.expert.bias {
                up = self.expert_bias(il, "ffn_up_exps", width, m.experts, up, ids);
            }
            if m.expert.gated {
                let mut gate = self.g.matmul_id(gate_w, wide, ids);
                if m.expert.bias {
                    gate = self.expert_bias(il, "ffn_gate_exps", width, m.experts, gate, ids);
                }
                self.gated(gate, up)
            } else {
                self.activation(m.expert.activation, up)
            }
        };
        let mut out = self.g.matmul_id(down_w, act, ids);
        self.g.get_mut(out).offloadable = offloaded;
        if m.expert.bias {
            out = self.expert_bias(il, "ffn_down_exps", hidden, m.experts, out, ids);
        }
        out = self.g.in_place(&[out, weights]);
        self.sum_experts(m.top_k, out, rows)
    }

    fn expert_bias(
        &mut self,
        il: usize,
        name: &str,
        width: u64,
        experts: u64,
        x: TensorId,
        ids: TensorId,
    ) -> TensorId {
        let w = self.weight(il, name, [width, experts, 1, 1]);
        self.g.in_place(&[x, w, ids])
    }

    fn sum_experts(&mut self, top_k: u64, experts: TensorId, rows: u64) -> TensorId {
        let hidden = self.cx.arch.hidden;
        let b = self.cx.behaviour;
        if b.fused_expert_sum {
            return self.g.op(DType::F32, [hidden, rows, 1, 1], &[experts]);
        }
        if b.ordered_expert_sum {
            self.g.expand(experts);
        }
        let views: Vec<TensorId> = (0..top_k.clamp(1, 256))
            .map(|_| {
                let v = self.g.view(experts, [hidden, rows, 1, 1]);
                if b.ordered_expert_sum {
                    self.g.expand(v);
                }
                v
            })
            .collect();
        let mut sum = views[0];
        for v in &views[1..] {
            sum = self.g.in_place(&[sum, *v]);
            if b.ordered_expert_sum {
                self.g.expand(sum);
            }
        }
        if views.len() == 1 { self.g.op(DType::F32, [hidden, rows, 1, 1], &[sum]) } else { sum }
    }
}
