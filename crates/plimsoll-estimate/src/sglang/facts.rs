//! Behaviour of SGLang by release, read from the data file beside its sources.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::vllm::Since;

static FACTS: LazyLock<Facts> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../data/sglang.json"))
        .expect("the embedded facts parse; a test reads them")
});

/// All facts.
pub fn facts() -> &'static Facts {
    &FACTS
}

#[derive(Debug, Deserialize)]
pub struct Facts {
    pub newest: Since,
    pub fixed_fraction: FixedFraction,
    pub device_rule: DeviceRule,
    pub tiers: Vec<Tier>,
    pub load_growth: LoadGrowth,
    pub mamba_full_memory_ratio_permille: u64,
    pub swa_full_tokens_ratio_permille: u64,
    pub state_element_bytes: u64,
    pub graphs: Graphs,
}

#[derive(Debug, Deserialize)]
pub struct FixedFraction {
    pub before: Since,
    pub by_tensor: Vec<(u64, u64)>,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct DeviceRule {
    pub base_mib: u64,
    pub per_chunk_token_mib_permille: u64,
    pub per_graph_batch_mib: u64,
    pub per_eight_ranks_mib: u64,
    pub per_dp_graph_batch_mib: u64,
    pub large_device_mib: u64,
    pub large_reserve_mib: u64,
    pub speculative_mib: u64,
    pub vision_permille: u64,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Tier {
    pub below_mib: u64,
    pub chunk: u64,
    pub batch: u64,
    pub batch_tp4: u64,
}

#[derive(Debug, Deserialize)]
pub struct LoadGrowth {
    pub mib: u64,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Graphs {
    pub base_mib: u64,
    pub per_batch_mib: u64,
    pub source: String,
}

#[cfg(test)]
mod tests {
    #[test]
    fn tiers_cover_every_device_in_order() {
        let tiers = &super::facts().tiers;
        assert!(tiers.is_sorted_by_key(|t| t.below_mib));
        assert!(tiers.last().is_some_and(|t| t.below_mib > 1 << 30));
    }
}
