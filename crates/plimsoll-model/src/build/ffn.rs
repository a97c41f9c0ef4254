//! Channel mixing: dense feed-forward networks and mixtures of experts.

use plimsoll_units::{DType, Dim, Shape};

use super::BuildError;
use super::block::{AdapterShape, BlockBuilder};
use super::options::AdapterKind;
use crate::arch::{Activation, Ffn, Layer, Mlp, Moe};
use crate::graph::ValueId;
use crate::inventory::Part;
use crate::ops::{Op, Saves};

/// The parts that the matrices of one network go by.
#[derive(Clone, Copy)]
struct Parts {
    gate: Part,
    up: Part,
    fused: Part,
    down: Part,
}

const DENSE: Parts =
    Parts { gate: Part::Gate, up: Part::Up, fused: Part::GateUp, down: Part::Down };
const EXPERT: Parts = Parts {
    gate: Part::ExpertGate,
    up: Part::ExpertUp,
    fused: Part::ExpertGateUp,
    down: Part::ExpertDown,
};
const SHARED: Parts = Parts {
    gate: Part::SharedGate,
    up: Part::SharedUp,
    // Gate and up of a shared expert in one matrix go by the name of its up projection (Granite 4).
    fused: Part::SharedUp,
    down: Part::SharedDown,
};

impl Layer {
    /// Whether the layer mixes channels.
    pub(crate) fn has_ffn(&self) -> bool {
        self.ffn != Ffn::None
    }
}

impl BlockBuilder<'_> {
    /// The feed-forward part of a layer on its (normed) input.
    pub fn ffn(&mut self, layer: &Layer, x: ValueId) -> Result<ValueId, BuildError> {
        match &layer.ffn {
            Ffn::None => Ok(x),
            Ffn::Dense(mlp) => {
                let x = self.gathered(x);
                let out = self.mlp(mlp, DENSE, x)?;
                Ok(self.reduced(out))
            }
            Ffn::Moe(moe) => self.moe(moe, x),
        }
    }

    fn mlp(&mut self, mlp: &Mlp, parts: Parts, x: ValueId) -> Result<ValueId, BuildError> {
        let hidden = if !mlp.gated {
            let up = self.linear(parts.up, "mlp.up", x)?;
            self.activation(mlp.activation, up)
        } else if !self.has(parts.gate, false) && self.has(parts.fused, false) {
            let splits = self.scope.options.style.splits_gate_up
                && self
                    .scope
                    .options
                    .adapters
                    .as_ref()
                    .is_none_or(|a| a.kind == AdapterKind::LowRank);
            let both = if splits {
                self.bare_linear(parts.fused, "mlp.gate_up", x)?
            } else {
                self.linear(parts.fused, "mlp.gate_up", x)?
            };
            let half = Dim::Const(
                self.shape(both).last().eval(&plimsoll_units::Bindings::tokens(1, 1)) / 2,
            );
            let shape = self.shape(both).with_last(half);
            if self.scope.options.style.fused_swiglu {
                self.op(Op::SwiGlu, "mlp.glu", &[both], shape, self.dtype(both))
            } else {
                let dtype = self.dtype(both);
                let mut gate = self.op(Op::View, "mlp.gate", &[both], shape.clone(), dtype);
                let mut up = self.op(Op::View, "mlp.up", &[both], shape, dtype);
                if splits {
                    (gate, up) =
                        (self.half_adapted(parts, x, gate), self.half_adapted(parts, x, up));
                }
                let act = self.activation(mlp.activation, gate);
                self.mul("mlp.product", act, up)
            }
        } else {
            let gate = self.linear(parts.gate, "mlp.gate", x)?;
            if self.scope.options.style.fused_swiglu {
                let up = self.linear(parts.up, "mlp.up", x)?;
                let shape = self.shape(gate);
                self.op(Op::SwiGlu, "mlp.glu", &[gate, up], shape, self.dtype(gate))
            } else {
                let act = self.activation(mlp.activation, gate);
                let up = self.linear(parts.up, "mlp.up", x)?;
                self.mul("mlp.product", act, up)
            }
        };
        self.linear(parts.down, "mlp.down", hidden)
    }

    /// Adapters on one half of a matrix that the published model has in one piece.
    fn half_adapted(&mut self, parts: Parts, x: ValueId, half: ValueId) -> ValueId {
        let Some(rank) = self
            .scope
            .options
            .adapters
            .as_ref()
            .filter(|a| a.kind == AdapterKind::LowRank && a.parts.contains(&parts.fused))
            .map(|a| a.rank)
        else {
            return half;
        };
        let width = |b: &Self, v| b.shape(v).last().eval(&plimsoll_units::Bindings::tokens(1, 1));
        let shape = AdapterShape {
            low: rank,
            rank,
            high: width(self, half),
            columns: width(self, x),
            count: 1,
            expert: false,
        };
        self.adapted_as(parts.fused, x, half, shape, None)
    }

    fn activation(&mut self, activation: Activation, x: ValueId) -> ValueId {
        match activation {
            Activation::Silu if self.scope.options.style.composed_silu => {
                let gate = self.unary(Saves::Output, "mlp.sigmoid", x);
                self.mul("mlp.act", x, gate)
            }
            Activation::Silu | Activation::Gelu | Activation::GeluTanh => {
                self.unary(Saves::Input, "mlp.act", x)
            }
            Activation::Relu | Activation::Tanh => self.unary(Saves::Output, "mlp.act", x),
            Activation::Relu2 => {
                let relu = self.unary(Saves::Output, "mlp.relu", x);
                self.unary(Saves::Input, "mlp.act", relu)
            }
            Activation::QuickGelu => {
                let scaled = self.unary(Saves::Nothing, "mlp.scale", x);
                let gate = self.unary(Saves::Output, "mlp.sigmoid", scaled);
                self.mul("mlp.act", x, gate)
            }
            // 0.5 * x * (1 + tanh(c * (x + 0.044715 * x^3))): x, x/2, tanh and 1 + tanh are kept.
            Activation::GeluComposed => {
                if self.scope.options.style.fused_bias {
                    return self.unary(Saves::Input, "mlp.act", x);
                }
                let half = self.unary(Saves::Nothing, "mlp.half", x);
                let cube = self.unary(Saves::Input, "mlp.cube", x);
                let cube = self.unary(Saves::Nothing, "mlp.cube", cube);
                let inner = self.add("mlp.inner", x, cube);
                let inner = self.unary(Saves::Nothing, "mlp.inner", inner);
                let tanh = self.unary(Saves::Output, "mlp.tanh", inner);
                let one = self.unary(Saves::Nothing, "mlp.one", tanh);
                self.mul("mlp.act", half, one)
            }
        }
    }

    /// Routed experts: router, dispatch of every token to its `top_k` experts, the experts as one grouped network
    /// over all dispatched rows, weighting, and the sum back.
    fn moe(&mut self, moe: &Moe, x: ValueId) -> Result<ValueId, BuildError> {
        let options = self.scope.options;
        let dtype = self.dtype(x);
        let x = self.gathered(x);
        let shape = self.shape(x);
        let router = self.linear(Part::Router, "router", x)?;
        let wide = self.shape(router);
        let probabilities =
            self.op(Op::Softmax, "router.softmax", &[router], wide.clone(), DType::F32);
        let chosen = self.op(
            Op::Copy,
            "router.top",
            &[probabilities],
            wide.with_last(moe.top_k),
            DType::F32,
        );
        let [batch, sequence, hidden] = match shape.dims() {
            [b, s, h] => [b.clone(), s.clone(), h.clone()],
            _ => [Dim::BATCH, Dim::SEQUENCE, self.scope.stack.hidden.into()],
        };
        // Rows that arrive on the busiest expert rank; balanced ranks get top_k rows per own token.
        let rows = batch
            .times(sequence)
            .times(moe.top_k.saturating_mul(options.imbalance_permille.max(1)))
            .div_ceil(1000);
        let expert_shape = Shape::new([rows.clone(), hidden]);
        let dispatched = self.op(Op::Dispatch, "dispatch", &[x], expert_shape.clone(), dtype);
        let dispatched = if options.expert > 1 {
            self.op(Op::Copy, "all_to_all", &[dispatched], expert_shape.clone(), dtype)
        } else {
            dispatched
        };
        let out = self.mlp(&moe.expert, EXPERT, dispatched)?;
        let weights = self.view("combine.weights", chosen, Shape::new([rows, 1.into()]));
        let out_dtype = self.dtype(out);
        let weights = self.cast("combine.cast", weights, out_dtype);
        let weighted = self.op(Op::Mul, "combine.scale", &[out, weights], expert_shape, out_dtype);
        let mut combined = self.op(Op::Dispatch, "combine", &[weighted], shape, out_dtype);
        if let Some(shared) = &moe.shared {
            let mut own = self.mlp(shared, SHARED, x)?;
            if self.has(Part::SharedScale, false) {
                let gate = self.linear(Part::SharedScale, "shared.gate", x)?;
                let gate = self.unary(Saves::Output, "shared.sigmoid", gate);
                let shape = self.shape(own);
                let dtype = self.dtype(own);
                own = self.op(Op::Mul, "shared.scale", &[own, gate], shape, dtype);
            }
            combined = self.add("shared.add", combined, own);
        }
        Ok(self.reduced(combined))
    }
}
