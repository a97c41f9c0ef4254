//! Behaviour of vLLM by release, read from the data file beside its sources.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::request::Version;

/// The newest release that the facts were read from.
pub const NEWEST: Version = Version { major: 0, minor: 25, patch: 1 };

static FACTS: LazyLock<Facts> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../data/vllm.json"))
        .expect("the embedded facts parse; a test reads them")
});

/// All facts.
pub fn facts() -> &'static Facts {
    &FACTS
}

#[derive(Debug, Deserialize)]
pub struct Facts {
    pub v1_since: Since,
    pub utilization: Vec<Utilization>,
    pub limits: Vec<Limits>,
    pub sampler: Vec<Sampler>,
    pub moe_workspace_apart_since: Sourced,
    pub multiprocessors: Vec<Multiprocessors>,
    pub non_torch_mib: Vec<NonTorch>,
    pub graphs: Graphs,
    pub cache: Cache,
    pub mxfp4_padding: Padding,
    pub workspace_mib: Workspace,
    pub rotary_tables: Vec<RotaryTables>,
    pub encoders: Vec<Encoder>,
}

#[derive(Debug, Deserialize)]
pub struct RotaryTables {
    pub family: String,
    pub rows: u64,
}

/// A release, written `major.minor.patch`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Since(pub Version);

impl TryFrom<String> for Since {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut parts =
            text.split('.').map(|p| p.parse::<u64>().map_err(|e| format!("{text}: {e}")));
        let mut next = || parts.next().unwrap_or(Ok(0));
        Ok(Since(Version { major: next()?, minor: next()?, patch: next()? }))
    }
}

#[derive(Debug, Deserialize)]
pub struct Sourced {
    pub since: Since,
}

#[derive(Debug, Deserialize)]
pub struct Utilization {
    pub since: Since,
    pub permille: u64,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Limits {
    pub since: Since,
    pub min_total_gib: u64,
    pub names: Vec<String>,
    pub except: Vec<String>,
    pub sequences: u64,
    pub server_tokens: u64,
    pub offline_tokens: u64,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Sampler {
    pub since: Since,
    pub bytes_per_logit: u64,
    pub buffer_rows_per_sm: u64,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Multiprocessors {
    pub capability: (u64, u64),
    pub count: u64,
}

#[derive(Debug, Deserialize)]
pub struct NonTorch {
    pub since: Since,
    pub min_capability: (u64, u64),
    pub single: u64,
    pub tensor: u64,
    pub tensor_wide: u64,
    pub pipeline: u64,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Graphs {
    pub base_mib: u64,
    pub base_by_sizes_mib: u64,
    pub per_layer_mib_permille: u64,
    pub sizes: u64,
    pub sizes_below: u64,
    pub counted_since: Since,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Cache {
    pub block: u64,
    pub hybrid_since: Since,
    pub state_since: Since,
    pub group_growth_permille: Vec<GroupGrowth>,
    pub tokens_by_concurrency_since: Since,
    pub f32_state_families: Vec<String>,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct GroupGrowth {
    pub since: Since,
    pub permille: u64,
}

#[derive(Debug, Deserialize)]
pub struct Padding {
    pub intermediate: u64,
    pub hidden: u64,
    pub min_capability: (u64, u64),
}

#[derive(Debug, Deserialize)]
pub struct Workspace {
    pub before_hopper_kib: u64,
    pub hopper_kib: u64,
    pub source: String,
}

#[derive(Debug, Deserialize)]
pub struct Encoder {
    pub family: String,
    pub side: u64,
    pub tokens: u64,
}

/// The last entry that holds for `version`.
pub fn latest<T>(entries: &[T], version: Version, since: impl Fn(&T) -> Since) -> Option<&T> {
    entries.iter().rfind(|e| since(e).0 <= version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_facts_are_ordered_by_release() {
        let facts = facts();
        assert!(facts.utilization.is_sorted_by_key(|u| u.since.0));
        assert!(facts.limits.is_sorted_by_key(|l| l.since.0));
        assert!(facts.sampler.is_sorted_by_key(|s| s.since.0));
        assert!(facts.non_torch_mib.is_sorted_by_key(|n| n.since.0));
        let at = |minor| {
            let version = Version { major: 0, minor, patch: 0 };
            latest(&facts.utilization, version, |u| u.since).map(|u| u.permille)
        };
        assert_eq!((at(21), at(22)), (Some(900), Some(920)));
    }
}
