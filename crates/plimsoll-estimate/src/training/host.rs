//! What a training step keeps off the device: on the host, in pinned buffers, on NVMe.

use plimsoll_units::{Bytes, DType};

use super::params::{RankParam, Shards, kept_elements, storage_dtype};
use super::run::Run;

/// DeepSpeed's buffers for parameters on their way to and from NVMe: five of 1e8 elements
/// (`offload_param.buffer_count`, `buffer_size`).
const PARAMETER_BUFFERS: (u64, u64) = (5, 100_000_000);
/// Elements of parameters that stay on the host all the same (`offload_param.max_in_cpu`).
const PARAMETERS_IN_CPU: u64 = 1_000_000_000;
/// Buffers for optimizer states, F32, each as large as a group of parameters that is stepped at once
/// (`offload_optimizer.buffer_count`): master weight, gradient and two moments.
const STATE_BUFFERS: u64 = 4;
/// Elements of such a group at most (`sub_group_size`).
const SUB_GROUP: u64 = 1_000_000_000;

/// Bytes of one rank off the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    pub parameters: Bytes,
    pub gradients: Bytes,
    pub states: Bytes,
    /// Checkpoints now, and at most.
    pub activations: Bytes,
    pub activations_peak: Bytes,
    /// Page-locked buffers between host and NVMe.
    pub pinned: Bytes,
    /// What of the parameters, states and gradients is on NVMe; not counted among the others.
    pub nvme: Bytes,
}

impl Host {
    /// Host memory at its highest.
    pub fn total(&self) -> Bytes {
        self.parameters + self.gradients + self.states + self.activations_peak + self.pinned
    }

    /// Moves to NVMe what DeepSpeed's ZeRO-Infinity would, leaving its pinned buffers behind.
    ///
    /// Source: deepspeed/runtime/zero/offload_config.py (defaults), stage3.py (which parameters stay in CPU memory),
    /// swap_tensor (one pool of pinned buffers each for parameters and states).
    pub(super) fn pin(&mut self, run: &Run<'_>, rows: &[RankParam<'_>], shards: Shards) {
        let offload = &run.strategy.offload;
        if !offload.nvme {
            return;
        }
        let sharding = &run.strategy.sharding;
        let elements = |sharded: bool, trainable: bool| -> u64 {
            let rows = rows.iter().filter(|p| !trainable || p.block.trainable);
            rows.fold(0, |sum, p| sum.saturating_add(kept_elements(p.block, sharding, sharded)))
        };
        if offload.parameters {
            let all = elements(shards.parameters, false);
            let staying = self.parameters.scale(all.min(PARAMETERS_IN_CPU), all.max(1));
            self.nvme += self.parameters - staying;
            self.parameters = staying;
            let (count, size) = PARAMETER_BUFFERS;
            let dtype = rows.first().map_or(run.training.precision.weights, |p| {
                storage_dtype(p.block, &run.training.precision)
            });
            self.pinned += dtype.bytes(count * size);
        }
        if offload.optimizer {
            self.nvme += std::mem::take(&mut self.states) + std::mem::take(&mut self.gradients);
            let group = elements(shards.states, true).min(SUB_GROUP);
            self.pinned += DType::F32.bytes(group) * STATE_BUFFERS;
        }
    }
}
