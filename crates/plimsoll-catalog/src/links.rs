//! How GPUs reach each other: printed and measured bandwidth. Facts in `data/links.json`.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// One kind of link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Link {
    /// The id that [`crate::gpus::Gpu::link`] holds.
    pub id: String,
    /// The link's name.
    pub name: String,
    /// Printed GB/s in one direction; zero where there is no link.
    pub gbps: u64,
    /// Measured all-reduce bus bandwidth in GB/s, lowest and highest fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_gbps_measured: Option<(u64, u64)>,
    /// Where the figures are from.
    pub source: String,
}

impl Link {
    /// GB/s that a ring all-reduce moves: the middle of what was measured, else the printed figure.
    pub fn bus_gbps(&self) -> u64 {
        self.bus_gbps_measured.map_or(self.gbps, |(low, high)| low.midpoint(high))
    }
}

#[derive(Deserialize)]
struct LinkFile {
    links: Vec<Link>,
}

/// Every kind of link, in the order of the data file.
pub fn links() -> std::slice::Iter<'static, Link> {
    static LINKS: OnceLock<Vec<Link>> = OnceLock::new();
    LINKS
        .get_or_init(|| {
            let file: LinkFile =
                crate::embedded::parse(include_str!("../data/links.json"), "links.json");
            file.links
        })
        .iter()
}

/// The link of an id, such as `nvlink4` or `pcie4-x16`.
///
/// ```
/// use plimsoll_catalog::links::find_link;
/// let link = find_link("nvlink3").unwrap();
/// assert_eq!((link.gbps, link.bus_gbps()), (300, 160));
/// ```
pub fn find_link(id: &str) -> Option<&'static Link> {
    links().find(|link| link.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_has_a_link_and_measured_never_exceeds_printed() {
        for gpu in crate::gpus::gpus() {
            assert!(find_link(&gpu.link).is_some(), "{}: {}", gpu.id, gpu.link);
        }
        for link in links() {
            assert!(link.bus_gbps() <= link.gbps, "{}", link.id);
            assert_eq!(links().filter(|other| other.id == link.id).count(), 1, "{}", link.id);
        }
    }
}
