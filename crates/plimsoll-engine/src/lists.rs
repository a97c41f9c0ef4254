//! The catalogue as faces list it.

use plimsoll_catalog::{gpus, models};
use plimsoll_model::hf;
use plimsoll_units::Bytes;
use serde::Serialize;

/// One model of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelRow {
    /// The repository name.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// Parameters, tied tables once.
    pub parameters: u64,
    /// Parameters that one token passes.
    pub active: u64,
    /// `model_type`.
    pub family: String,
    /// The longest sequence that the model was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_positions: Option<u64>,
    /// Month of publication.
    pub date: &'static str,
}

/// Models whose name, alias or family contains `filter`, in the catalogue's order.
pub fn list_models(filter: &str) -> Vec<ModelRow> {
    let wanted = filter.trim().to_ascii_lowercase();
    let matches = |text: &str| text.to_ascii_lowercase().contains(&wanted);
    let mut rows = Vec::new();
    for entry in models::models() {
        let named = matches(entry.name) || entry.aliases.iter().any(|a| matches(a));
        let Ok(imported) = hf::from_config(entry.config.as_bytes()) else { continue };
        let architecture = imported.architecture;
        if named || matches(&architecture.family) {
            rows.push(ModelRow {
                name: entry.name,
                aliases: entry.aliases,
                parameters: entry.parameters,
                active: architecture.active_parameters(),
                family: architecture.family,
                max_positions: architecture.max_positions,
                date: entry.date,
            });
        }
    }
    rows
}

/// One GPU of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuRow {
    /// The id that `--gpu` reads.
    pub id: &'static str,
    /// The driver's name.
    pub name: &'static str,
    /// The total that the vendor's tool prints.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub printed: Bytes,
    /// What a framework can use.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub usable: Bytes,
    /// Whether `usable` was read on a device; else a rule over the printed total gives it.
    pub measured: bool,
    /// Memory bandwidth in GB/s.
    pub bandwidth_gbps: u64,
    /// Dense bf16 (else f16) peak in TFLOP/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_tflops: Option<u64>,
    /// What compiles for it.
    pub target: String,
    /// MIG slices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<&'static str>,
}

/// GPUs whose id, name or alias contains `filter`, in the catalogue's order.
pub fn list_gpus(filter: &str) -> Vec<GpuRow> {
    let wanted = filter.trim().to_ascii_lowercase();
    let matches = |text: &str| text.to_ascii_lowercase().contains(&wanted);
    gpus::gpus()
        .filter(|g| matches(&g.id) || matches(&g.name) || g.aliases.iter().any(|a| matches(a)))
        .map(|g| GpuRow {
            id: &g.id,
            name: &g.name,
            printed: g.printed,
            usable: g.usable.typical,
            measured: g.usable.basis != gpus::Basis::Derived,
            bandwidth_gbps: g.bandwidth_gbps,
            half_tflops: g.peak_gflops.bf16.or(g.peak_gflops.f16).map(|n| n / 1000),
            target: g.target.to_string(),
            slices: g.mig_profiles().iter().map(|p| p.name.as_str()).collect(),
        })
        .collect()
}
