//! The 90 % bounds of an estimate, from the residuals of measured cases. `cargo xtask fit-intervals` fits them by kind
//! of workload and counter and writes `data/intervals.json`; here they are only looked up and applied.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Ffn, Mixer, ModelKind};
use plimsoll_units::Bytes;
use serde::Deserialize;

use crate::request::{Method, Strategy, Training};
use crate::{Device, Interval, Peak};

/// Which of the three peaks is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// `torch.cuda.max_memory_allocated`.
    Allocated,
    /// `torch.cuda.max_memory_reserved`.
    Reserved,
    /// What the driver sees.
    Device,
}

impl Counter {
    /// The word in the keys of the fit.
    pub const fn name(self) -> &'static str {
        match self {
            Counter::Allocated => "allocated",
            Counter::Reserved => "reserved",
            Counter::Device => "device",
        }
    }
}

#[derive(Deserialize)]
struct File {
    groups: BTreeMap<String, Group>,
}

/// Measured over predicted, in thousandths, that 90 % of the cases stay within.
#[derive(Clone, Copy, Deserialize)]
struct Group {
    low_permille: u64,
    high_permille: u64,
}

/// Where no case was measured: wide, and without a claim.
const UNKNOWN: Group = Group { low_permille: 700, high_permille: 1300 };

fn file() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| {
        // A broken table would be caught by the test below; an empty one gives the wide bounds.
        serde_json::from_str(include_str!("../data/intervals.json"))
            .unwrap_or_else(|_| File { groups: BTreeMap::new() })
    })
}

/// The kind of workload that residuals are grouped by: what learns, whether the model is anything but a dense text
/// decoder, whether it is sharded.
pub fn workload(model: &Architecture, training: &Training, strategy: &Strategy) -> String {
    let method = match &training.method {
        Method::Lora(lora) if lora.base.is_some() => "qlora",
        Method::Lora(_) => "lora",
        _ => "full",
    };
    let plain = model.kind == ModelKind::CausalLm
        && model
            .layers()
            .all(|l| matches!(l.mixer, Mixer::Attention(_)) && !matches!(l.ffn, Ffn::Moe(_)));
    let s = &strategy.sharding;
    let sharded = [s.data, s.tensor, s.pipeline, s.context, s.expert].iter().any(|n| *n > 1);
    let kind = if plain { "" } else { "-other" };
    format!("{method}{kind}{}", if sharded { "-sharded" } else { "-single" })
}

/// The bounds of `value`, a peak as `counter` shows it.
pub fn bounds(workload: &str, counter: Counter, value: Bytes) -> Interval {
    let groups = &file().groups;
    let method = workload.split('-').next().unwrap_or(workload);
    let name = counter.name();
    let keys = [format!("{workload}:{name}"), format!("{method}:{name}"), format!("any:{name}")];
    let group = keys.iter().find_map(|k| groups.get(k)).copied().unwrap_or(UNKNOWN);
    Interval {
        low: value.scale(group.low_permille, 1000),
        high: value.scale(group.high_permille, 1000),
    }
}

/// The bounds of what the driver sees: those of the allocator's memory, and the spread of the context.
pub fn device_bounds(workload: &str, peak: &Peak, device: &Device) -> Interval {
    let own = bounds(workload, Counter::Reserved, peak.reserved);
    // The low end can never lie below what is certainly allocated less its own error.
    Interval { low: own.low + device.context.low, high: own.high + device.context.high }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_parses_and_brackets_the_estimate() {
        let parsed: File = serde_json::from_str(include_str!("../data/intervals.json")).unwrap();
        for (key, group) in &parsed.groups {
            assert!(group.low_permille <= group.high_permille, "{key}");
            assert!(key.contains(':'), "{key}");
        }
        let bounds = bounds("full-sharded", Counter::Allocated, Bytes::gib(10));
        assert!(bounds.low < bounds.high);
    }
}
