//! Where tensors live: layers over devices, tensors that stay on the host, patterns that say otherwise.

use std::collections::BTreeMap;

use plimsoll_units::DType;
use regex_lite::Regex;

use super::graph::{HOST, Place};
use crate::error::EstimateError;
use crate::request::{LlamaCpp, SplitMode};
use crate::weights::StoredTensor;

/// The placement of a model's tensors.
pub(super) struct Layout<'a> {
    layers: Vec<Place>,
    output: Place,
    cache_on_host: bool,
    patterns: Vec<(Regex, bool)>,
    cpu_moe_layers: u64,
    types: BTreeMap<&'a str, DType>,
    /// GPUs that hold anything.
    pub(super) devices: usize,
}

impl<'a> Layout<'a> {
    /// The placement for `layers` layers on `devices` GPUs.
    ///
    /// # Errors
    /// If an override pattern is not a regular expression.
    pub(super) fn new(
        layers: usize,
        devices: u64,
        request: &LlamaCpp,
        weights: &'a [StoredTensor],
        output_first: bool,
    ) -> Result<Self, EstimateError> {
        let mut patterns = Vec::new();
        for (pattern, host) in &request.offload.overrides {
            let compiled = Regex::new(pattern).map_err(|e| EstimateError::Invalid {
                field: "offload.overrides",
                value: pattern.clone(),
                accepted: format!("it must be a regular expression over tensor names ({e})"),
                cure: "write it as for llama.cpp's -ot, such as `blk\\.[0-9]+\\.ffn_.*_exps`"
                    .to_owned(),
            })?;
            patterns.push((compiled, *host));
        }
        let count = match request.split {
            SplitMode::None => 1,
            SplitMode::Layer | SplitMode::Row => devices.max(1),
        };
        let shares: Vec<u64> = if request.tensor_split.iter().any(|s| *s > 0) {
            request.tensor_split.iter().copied().take(usize::try_from(count).unwrap_or(1)).collect()
        } else {
            vec![1; usize::try_from(count.min(1024)).unwrap_or(1)]
        };
        let total = layers as u64 + 1;
        let on_gpu = request.offload.gpu_layers.unwrap_or(total).min(total);
        let start =
            if output_first { total - on_gpu } else { (layers as u64).saturating_sub(on_gpu) };
        let place = |il: u64| {
            let index = il.checked_sub(start).filter(|i| *i < on_gpu);
            index.map_or(HOST, |i| device_of(i, on_gpu, &shares))
        };
        // The output layer is numbered after the others; older builds offload it only with all of them.
        let output = place(layers as u64);
        Ok(Layout {
            layers: (0..layers as u64).map(place).collect(),
            output,
            cache_on_host: !request.offload_kv,
            patterns,
            cpu_moe_layers: request.offload.cpu_moe_layers,
            types: weights.iter().map(|t| (t.name.as_str(), t.dtype)).collect(),
            devices: shares.len(),
        })
    }

    fn overridden(&self, name: &str, il: Option<usize>) -> Option<bool> {
        let expert = name.contains("_exps.");
        if expert && il.is_some_and(|il| (il as u64) < self.cpu_moe_layers) {
            return Some(true);
        }
        self.patterns.iter().find(|(p, _)| p.is_match(name)).map(|(_, host)| *host)
    }

    /// Place and type of a tensor of layer `il`, by its GGUF name without `blk.N.` and `.weight`.
    pub(super) fn tensor(&self, il: usize, name: &str) -> (Place, DType) {
        let full = format!("blk.{il}.{name}.weight");
        let dtype = self.types.get(full.as_str()).copied().unwrap_or(DType::F16);
        (self.placed(&full, Some(il)), dtype)
    }

    /// Place of any tensor of the file.
    pub(super) fn placed(&self, full: &str, il: Option<usize>) -> Place {
        let home = match il {
            // Layers behind the last one draft further tokens; they go where the output goes.
            Some(il) => self.layers.get(il).copied().unwrap_or(self.output),
            None if full.starts_with("output") => self.output,
            None => HOST,
        };
        match self.overridden(full, il) {
            Some(true) => HOST,
            // Patterns that name a GPU keep what is there already, or bring it to the first.
            Some(false) if home == HOST => 0,
            _ => home,
        }
    }

    pub(super) fn cache(&self, il: usize) -> Place {
        if self.cache_on_host { HOST } else { self.layers.get(il).copied().unwrap_or(HOST) }
    }

    pub(super) fn output(&self) -> Place {
        self.placed("output.weight", None)
    }

    pub(super) fn output_norm(&self) -> Place {
        self.output
    }

    pub(super) fn output_dtype(&self) -> DType {
        let own = self.types.get("output.weight");
        own.or_else(|| self.types.get("token_embd.weight")).copied().unwrap_or(DType::F16)
    }

    /// Whether every layer and the output are on GPUs and nothing was sent elsewhere by name.
    pub(super) fn whole_model_on_devices(&self) -> bool {
        self.output != HOST
            && self.layers.iter().all(|p| *p != HOST)
            && self.patterns.is_empty()
            && self.cpu_moe_layers == 0
    }
}

/// The device whose cumulative share first exceeds `index / count`.
fn device_of(index: u64, count: u64, shares: &[u64]) -> Place {
    let total: u128 = shares.iter().map(|s| u128::from(*s)).sum();
    let mut sum = 0u128;
    for (device, share) in shares.iter().enumerate() {
        sum += u128::from(*share);
        if u128::from(index) * total < sum * u128::from(count) {
            return device;
        }
    }
    shares.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Offload;

    fn layout(layers: usize, devices: u64, request: &LlamaCpp) -> Vec<Place> {
        let l = Layout::new(layers, devices, request, &[], false).unwrap();
        l.layers.iter().copied().chain([l.output]).collect()
    }

    #[test]
    fn layers_go_to_devices_from_the_end() {
        let some = |n| LlamaCpp {
            offload: Offload { gpu_layers: Some(n), ..Offload::default() },
            ..LlamaCpp::default()
        };
        assert_eq!(layout(3, 1, &LlamaCpp::default()), [0, 0, 0, 0]);
        assert_eq!(layout(3, 1, &some(2)), [HOST, 0, 0, HOST]);
        assert_eq!(layout(3, 1, &some(0)), [HOST; 4]);
        assert_eq!(layout(3, 1, &some(99)), [0, 0, 0, 0]);
        assert_eq!(layout(3, 2, &LlamaCpp::default()), [0, 0, 1, 1]);
        let newer = Layout::new(3, 1, &some(2), &[], true).unwrap();
        assert_eq!((newer.layers, newer.output), (vec![HOST, HOST, 0], 0));
        let split = LlamaCpp { tensor_split: vec![3, 1], ..LlamaCpp::default() };
        assert_eq!(layout(3, 2, &split), [0, 0, 0, 1]);
    }
}
