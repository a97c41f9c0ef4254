//! Mixers with a recurrent state, as their fused training kernels run them.

use plimsoll_units::{Dim, Shape};

use super::BuildError;
use super::block::BlockBuilder;
use crate::arch::{GatedDelta, Mamba1, Mamba2, Norm};
use crate::graph::ValueId;
use crate::inventory::Part;
use crate::ops::{Op, Saves};

/// Positions per chunk of the chunked scans (mamba-ssm and flash-linear-attention use 256 and 64).
const CHUNK: u64 = 256;

impl BlockBuilder<'_> {
    fn local(&self, n: u64) -> u64 {
        n.div_ceil(self.scope.options.tensor.max(1))
    }

    /// States kept at chunk borders, in elements.
    fn chunk_states(&self, per_position: u64) -> Dim {
        Dim::BATCH.times(self.scope.sequence.div_ceil(CHUNK)).times(per_position)
    }

    pub fn mamba1(&mut self, m: &Mamba1, x: ValueId) -> Result<ValueId, BuildError> {
        let inner = self.local(m.inner);
        let both = self.linear(Part::SsmIn, "ssm.in", x)?;
        let shape = self.shape(both).with_last(inner);
        let dtype = self.dtype(both);
        let u = self.op(Op::View, "ssm.x", &[both], shape.clone(), dtype);
        let z = self.op(Op::View, "ssm.z", &[both], shape.clone(), dtype);
        let u = self.conv(u, shape.clone())?;
        let projected = self.linear(Part::SsmX, "ssm.bc", u)?;
        let step = self.view("ssm.dt", projected, self.shape(projected).with_last(m.dt_rank));
        let step = self.linear(Part::SsmDt, "ssm.dt", step)?;
        let states = self.chunk_states(inner.saturating_mul(m.state));
        let y = self.op(Op::Scan { states }, "ssm.scan", &[u, step, projected, z], shape, dtype);
        let out = self.linear(Part::SsmOut, "ssm.out", y)?;
        Ok(self.reduced(out))
    }

    pub fn mamba2(&mut self, m: &Mamba2, x: ValueId) -> Result<ValueId, BuildError> {
        let inner = self.local(m.inner);
        let projected = self.linear(Part::SsmIn, "ssm.in", x)?;
        let dtype = self.dtype(projected);
        let conv_width = inner + 2 * m.groups * m.state;
        let shape = self.shape(projected).with_last(inner);
        let xbc = self.view("ssm.xbc", projected, shape.with_last(conv_width));
        let z = self.view("ssm.z", projected, shape.clone());
        let xbc = self.conv(xbc, shape.with_last(conv_width))?;
        let states = self.chunk_states(inner.saturating_mul(m.state));
        let y = self.op(Op::Scan { states }, "ssm.scan", &[xbc, z], shape, dtype);
        let y = if m.norm { self.norm(Norm::RMS, (Part::SsmNorm, "ssm.norm"), y)? } else { y };
        let out = self.linear(Part::SsmOut, "ssm.out", y)?;
        Ok(self.reduced(out))
    }

    pub fn gated_delta(&mut self, d: &GatedDelta, x: ValueId) -> Result<ValueId, BuildError> {
        let (keys, values) =
            (self.local(d.key_heads) * d.key_dim, self.local(d.value_heads) * d.value_dim);
        let qkvz = self.linear(Part::SsmIn, "delta.in", x)?;
        let gates = self.linear(Part::SsmIn2, "delta.gates", x)?;
        let dtype = self.dtype(qkvz);
        let mixed_shape = self.shape(qkvz).with_last(2 * keys + values);
        let value_shape = self.shape(qkvz).with_last(values);
        let mixed = self.copy("delta.cat", qkvz, mixed_shape.clone());
        let z = self.view("delta.z", qkvz, value_shape.clone());
        let mixed = self.conv(mixed, mixed_shape)?;
        let states = self.chunk_states(self.local(d.value_heads) * d.key_dim * d.value_dim);
        let y = self.op(Op::Scan { states }, "delta.scan", &[mixed, gates], value_shape, dtype);
        let y = self.norm(Norm::RMS, (Part::SsmNorm, "delta.norm"), y)?;
        let gate = self.unary(Saves::Input, "delta.act", z);
        let y = self.mul("delta.gated", y, gate);
        let out = self.linear(Part::SsmOut, "delta.out", y)?;
        Ok(self.reduced(out))
    }

    pub fn short_conv(&mut self, _kernel: u64, x: ValueId) -> Result<ValueId, BuildError> {
        let projected = self.linear(Part::SsmIn, "conv.in", x)?;
        let shape = self.shape(x);
        let dtype = self.dtype(projected);
        let b = self.op(Op::View, "conv.b", &[projected], shape.clone(), dtype);
        let c = self.op(Op::View, "conv.c", &[projected], shape.clone(), dtype);
        let u = self.op(Op::View, "conv.x", &[projected], shape.clone(), dtype);
        let gated = self.mul("conv.gate", b, u);
        let mixed = self.conv(gated, shape)?;
        let y = self.mul("conv.out_gate", c, mixed);
        let out = self.linear(Part::SsmOut, "conv.out", y)?;
        Ok(self.reduced(out))
    }

    /// Depth-wise causal convolution and SiLU.
    fn conv(&mut self, x: ValueId, shape: Shape) -> Result<ValueId, BuildError> {
        let mut params = vec![self.param(Part::SsmConv, false)?];
        if self.has(Part::SsmConv, true) {
            params.push(self.param(Part::SsmConv, true)?);
        }
        let dtype = self.dtype(x);
        let y = self.op_with(Op::Conv1d, "ssm.conv", &[x], &params, shape, dtype);
        Ok(self.unary(Saves::Input, "ssm.act", y))
    }
}
