//! Many ranks of one job: the one that needs most, how far apart they are, and what makes the difference. It works on
//! explanations, so that one rank's file at a time is in memory.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_units::Bytes;
use serde::Serialize;

use crate::finding::{Finding, Value, Weight};
use crate::findings::{Explanation, InUse};

/// Ranks that are further apart than this are out of balance, in thousandths of the largest: less is noise.
const BALANCED_PERMILLE: u64 = 50;

/// Differences listed.
const LISTED: usize = 12;

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Rank {
    /// Its name: the file, or rank and device.
    pub label: String,
    /// Device index.
    pub device: u32,
    /// At its allocated peak.
    pub peak: InUse,
    /// The most that it reserves.
    pub reserved_peak: Bytes,
    /// Whether a request failed.
    pub failed: bool,
    /// At its peak, by purpose.
    pub by_category: Vec<RankShare>,
}

/// What a purpose or line holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankShare {
    /// Its name.
    pub name: String,
    /// In the rank that needs most, or in this one.
    pub bytes: Bytes,
    /// In the middle rank; the same as `bytes` within a rank's own list.
    pub middle: Bytes,
}

/// Many ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Ranks {
    /// All of them, in the order given.
    pub ranks: Vec<Rank>,
    /// The one that failed, or else reserves most.
    pub worst: usize,
    /// The one that reserves least.
    pub lightest: usize,
    /// How far those two are apart.
    pub imbalance: Bytes,
    /// Purposes whose bytes differ most between the worst rank and the middle one of that purpose.
    pub by_category: Vec<RankShare>,
    /// Source lines, likewise.
    pub by_line: Vec<RankShare>,
    /// The findings.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Lays ranks side by side. Explanations should list enough lines for a comparison of lines to be complete.
pub fn ranks(explained: &[(String, &Explanation)]) -> Ranks {
    let all: Vec<Rank> = explained.iter().map(|(label, e)| rank(label, e)).collect();
    let order = |rank: &Rank| (rank.failed, rank.reserved_peak, rank.peak.allocated);
    let index = |found: Option<(usize, &Rank)>| found.map_or(0, |(index, _)| index);
    // The first of equals.
    let worst = index(all.iter().enumerate().rev().max_by_key(|(_, rank)| order(rank)));
    let lightest = index(all.iter().enumerate().min_by_key(|(_, rank)| rank.reserved_peak));
    let reserved = |at: usize| all.get(at).map_or(Bytes::ZERO, |rank: &Rank| rank.reserved_peak);
    let imbalance = reserved(worst).saturating_sub(reserved(lightest));
    let categories: Vec<BTreeMap<&str, Bytes>> = (explained.iter())
        .map(|(_, e)| {
            e.peak.live.by_category.iter().map(|s| (s.category.label(), s.bytes)).collect()
        })
        .collect();
    let lines: Vec<BTreeMap<&str, Bytes>> = (explained.iter())
        .map(|(_, e)| e.peak.live.by_line.iter().map(|s| (s.name.as_str(), s.bytes)).collect())
        .collect();
    let mut found = Ranks {
        worst,
        lightest,
        imbalance,
        by_category: differences(&categories, worst),
        by_line: differences(&lines, worst),
        ranks: all,
        findings: Vec::new(),
    };
    found.findings = findings(&found);
    found
}

fn rank(label: &str, explanation: &Explanation) -> Rank {
    let shares = explanation.peak.live.by_category.iter();
    Rank {
        label: label.to_owned(),
        device: explanation.device,
        peak: explanation.peak.in_use,
        reserved_peak: explanation.exact.peaks.reserved,
        failed: explanation.failed.is_some(),
        by_category: shares
            .map(|share| RankShare {
                name: share.category.label().to_owned(),
                bytes: share.bytes,
                middle: share.bytes,
            })
            .collect(),
    }
}

/// What the worst rank holds beside what the middle one does, the largest difference first.
fn differences(all: &[BTreeMap<&str, Bytes>], worst: usize) -> Vec<RankShare> {
    let names: BTreeSet<&str> = all.iter().flat_map(|map| map.keys().copied()).collect();
    let mut shares: Vec<RankShare> = (names.into_iter())
        .map(|name| {
            let held = |map: &BTreeMap<&str, Bytes>| map.get(name).copied().unwrap_or_default();
            let mut bytes: Vec<Bytes> = all.iter().map(held).collect();
            bytes.sort_unstable();
            RankShare {
                name: name.to_owned(),
                bytes: all.get(worst).map(held).unwrap_or_default(),
                // The lower middle of an even number: of two ranks, the other one.
                middle: bytes.get((bytes.len() - 1) / 2).copied().unwrap_or_default(),
            }
        })
        .filter(|share| share.bytes != share.middle)
        .collect();
    let size = |share: &RankShare| share.bytes.get().abs_diff(share.middle.get());
    shares.sort_by(|a, b| size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
    shares.truncate(LISTED);
    shares
}

fn findings(found: &Ranks) -> Vec<Finding> {
    let (Some(worst), Some(lightest)) =
        (found.ranks.get(found.worst), found.ranks.get(found.lightest))
    else {
        return Vec::new();
    };
    let largest = worst.reserved_peak.max(lightest.reserved_peak).get().max(1);
    let permille = (u128::from(found.imbalance.get()) * 1000 / u128::from(largest)) as u64;
    let why = if worst.failed { "ran out of memory" } else { "needs most" };
    let mut finding = Finding::new(
        "worst-rank",
        if worst.failed { Weight::Cause } else { Weight::Note },
        "the rank that needs most",
    )
    .say(format!(
        "of {} ranks, {} {why}: {} allocated and {} reserved at its peak",
        found.ranks.len(),
        worst.label,
        worst.peak.allocated,
        worst.reserved_peak,
    ))
    .bytes("allocated", worst.peak.allocated)
    .bytes("reserved", worst.reserved_peak)
    .check(format!("plimsoll explain {}", worst.label));
    if found.ranks.iter().filter(|rank| rank.failed).count() > 1 {
        let failed = found.ranks.iter().filter(|rank| rank.failed).count() as u64;
        finding = finding.say(format!("{failed} ranks ran out of memory")).count("failed", failed);
    }
    let mut findings = vec![finding];
    if permille >= BALANCED_PERMILLE {
        let differs: Vec<String> = (found.by_category.iter().take(3))
            .map(|s| format!("{}: {} instead of {}", s.name, s.bytes, s.middle))
            .collect();
        let mut finding = Finding::new("imbalance", Weight::Contribution, "ranks out of balance")
            .say(format!(
                "{} reserves {} more than {} ({}.{} %)",
                worst.label,
                found.imbalance,
                lightest.label,
                permille / 10,
                permille % 10,
            ))
            .bytes("imbalance", found.imbalance)
            .figure("share", Value::Permille(permille));
        if !differs.is_empty() {
            finding =
                finding.say(format!("beside the middle rank it holds {}", differs.join(", ")));
        }
        if let Some(line) = found.by_line.first() {
            finding = finding.say(format!(
                "the line that differs most is {}: {} instead of {}",
                line.name, line.bytes, line.middle
            ));
        }
        findings.push(
            finding
                .act("move layers or experts from it to lighter ranks, or give it a smaller share of the batch")
                .check(format!("plimsoll diff {} {}", lightest.label, worst.label)),
        );
    }
    findings
}
