//! `cargo xtask fit-intervals`: 90 % bounds from the residuals of the committed cases.
//!
//! A residual is measured over predicted. Within a group (kind of workload and counter) the bounds are the order
//! statistics of a split-conformal fit, every source weighted by the square root of its cases so that no benchmark
//! table decides alone. Held-out coverage is measured source by source: the bounds for one source come from all others.
//! Sources differ more than rows do, so level and stretch are set by that coverage: the narrowest bounds whose held-out
//! coverage reaches the goal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::case::{Case, Kind};

/// Groups below these numbers of cases and sources fall back to a wider group.
const LEAST: (usize, usize) = (8, 2);
/// What of held-out folds is to be covered.
const GOAL: f64 = 0.86;
/// What of the cases that they are made from bounds may cover at most: wider ones say little.
const SPARE: f64 = 0.97;
/// Miss rates of the order statistics that are tried, in thousandths.
const MISS: std::ops::RangeInclusive<u32> = 40..=200;
/// Stretches of the bounds' logarithms that are tried, in hundredths.
const STRETCH: std::ops::RangeInclusive<u32> = 100..=250;
/// Bounds never claim more than this, in thousandths around 1: rounding of printed figures alone is as large.
const FLOOR: f64 = 0.01;

struct Residual {
    keys: [String; 3],
    source: String,
    ratio: f64,
}

/// Runs the command.
pub fn run(arguments: &[String]) -> anyhow::Result<bool> {
    if !arguments.is_empty() {
        bail!("usage: cargo xtask fit-intervals");
    }
    let residuals = residuals(&super::read_all(&super::committed()?)?);
    if residuals.is_empty() {
        bail!("no case is modelled, so there is nothing to fit");
    }
    let Choice { miss, stretch, coverage, .. } = choose(&residuals);
    let table = fit(residuals.iter(), miss, stretch);
    let (_, by_source) = held_out(&residuals, miss, stretch);
    for (source, (covered, cases)) in &by_source {
        println!("{source:<28} {covered:>4} of {cases:>4} held-out cases covered");
    }
    println!("{:<28} {:>6} {:>6} {:>6}", "group", "cases", "low", "high");
    for (key, bounds) in &table {
        println!("{key:<28} {:>6} {:>6.3} {:>6.3}", bounds.cases, bounds.low, bounds.high);
    }
    println!(
        "miss rate {miss:.3}, stretched {stretch:.2} times: {:.1} % of held-out cases covered",
        100.0 * coverage
    );
    write(&table, residuals.len(), &Choice { miss, stretch, coverage, width: 0.0 })?;
    Ok(true)
}

/// A level and a stretch of the logarithms of the bounds, with what they cost and give.
struct Choice {
    miss: f64,
    stretch: f64,
    coverage: f64,
    width: f64,
}

/// The narrowest bounds, in the mean over the cases, that leave some of their own cases out and whose held-out coverage
/// reaches the goal; where none does, the best
/// covering ones.
fn choose(residuals: &[Residual]) -> Choice {
    let mut best: Option<Choice> = None;
    for permille in MISS.step_by(10) {
        for percent in STRETCH.step_by(5) {
            let (miss, stretch) = (f64::from(permille) / 1000.0, f64::from(percent) / 100.0);
            let (coverage, _) = held_out(residuals, miss, stretch);
            let table = fit(residuals.iter(), miss, stretch);
            let widths = residuals.iter().filter_map(|r| r.keys.iter().find_map(|k| table.get(k)));
            let width = widths.map(|b| (b.high / b.low).ln()).sum::<f64>() / residuals.len() as f64;
            let own = residuals.iter().filter(|r| {
                let found = r.keys.iter().find_map(|k| table.get(k));
                found.is_some_and(|b| (b.low..=b.high).contains(&r.ratio))
            });
            if own.count() as f64 > SPARE * residuals.len() as f64 {
                continue;
            }
            let new = Choice { miss, stretch, coverage, width };
            let better =
                best.as_ref().is_none_or(|old| match (old.coverage >= GOAL, coverage >= GOAL) {
                    (true, true) => width < old.width,
                    (false, true) => true,
                    (true, false) => false,
                    (false, false) => coverage > old.coverage,
                });
            if better {
                best = Some(new);
            }
        }
    }
    best.unwrap_or(Choice { miss: 0.1, stretch: 1.0, coverage: 0.0, width: 0.0 })
}

fn residuals(cases: &[Case]) -> Vec<Residual> {
    let mut list = Vec::new();
    for case in cases.iter().filter(|c| c.kind == Kind::Training) {
        for p in case.predictions.iter().filter(|p| p.main && p.predicted > 0.0) {
            let method = case.workload.split('-').next().unwrap_or_default();
            // What the driver sees is reserved memory and a context, which has a spread of its own.
            let counter = if p.counter == "device" { "reserved" } else { p.counter };
            list.push(Residual {
                keys: [
                    format!("{}:{counter}", case.workload),
                    format!("{method}:{counter}"),
                    format!("any:{counter}"),
                ],
                source: case.source.clone(),
                ratio: p.measured / p.predicted,
            });
        }
    }
    list
}

struct Bounds {
    low: f64,
    high: f64,
    cases: usize,
}

fn fit<'a>(
    residuals: impl Iterator<Item = &'a Residual>,
    miss: f64,
    stretch: f64,
) -> BTreeMap<String, Bounds> {
    let mut groups: BTreeMap<&str, Vec<&Residual>> = BTreeMap::new();
    for residual in residuals {
        for key in &residual.keys {
            groups.entry(key).or_default().push(residual);
        }
    }
    let enough = |g: &Vec<&Residual>| {
        let sources: BTreeSet<&str> = g.iter().map(|r| r.source.as_str()).collect();
        g.len() >= LEAST.0 && sources.len() >= LEAST.1
    };
    groups
        .into_iter()
        .filter(|(key, group)| key.starts_with("any:") || enough(group))
        .map(|(key, group)| (key.to_owned(), bounds(&group, miss, stretch)))
        .collect()
}

/// Weighted order statistics: a share `miss / 2` of the weight is left out at either end, one case's weight more is
/// kept (the finite-sample correction of a conformal fit).
fn bounds(group: &[&Residual], miss: f64, stretch: f64) -> Bounds {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for residual in group {
        *sizes.entry(&residual.source).or_default() += 1;
    }
    let weight = |r: &Residual| (sizes[r.source.as_str()] as f64).sqrt().recip();
    let mut sorted: Vec<(f64, f64)> = group.iter().map(|r| (r.ratio, weight(r))).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = sorted.iter().map(|(_, w)| w).sum();
    let mean = total / sorted.len() as f64;
    let cut = (miss / 2.0 * (total + mean) - mean).max(0.0);
    let at = |list: &mut dyn Iterator<Item = &(f64, f64)>| {
        let mut passed = 0.0;
        let mut last = 1.0;
        for (ratio, weight) in list {
            last = *ratio;
            passed += weight;
            if passed > cut {
                break;
            }
        }
        last
    };
    let low = at(&mut sorted.iter()).powf(stretch).min(1.0 - FLOOR);
    let high = at(&mut sorted.iter().rev()).powf(stretch).max(1.0 + FLOOR);
    Bounds { low, high, cases: group.len() }
}

/// Coverage of every source by bounds from all others.
fn held_out(
    residuals: &[Residual],
    miss: f64,
    stretch: f64,
) -> (f64, BTreeMap<String, (usize, usize)>) {
    let sources: BTreeSet<&str> = residuals.iter().map(|r| r.source.as_str()).collect();
    let mut by_source = BTreeMap::new();
    for source in sources {
        let table = fit(residuals.iter().filter(|r| r.source != source), miss, stretch);
        let own = residuals.iter().filter(|r| r.source == source);
        let (mut covered, mut cases) = (0, 0);
        for residual in own {
            cases += 1;
            let found = residual.keys.iter().find_map(|k| table.get(k));
            covered +=
                usize::from(found.is_some_and(|b| (b.low..=b.high).contains(&residual.ratio)));
        }
        by_source.insert(source.to_owned(), (covered, cases));
    }
    let (covered, cases) =
        by_source.values().fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    (covered as f64 / cases.max(1) as f64, by_source)
}

fn write(table: &BTreeMap<String, Bounds>, cases: usize, choice: &Choice) -> anyhow::Result<()> {
    let groups: Map<String, Value> = table
        .iter()
        .map(|(key, b)| {
            let value = json!({
                "low_permille": (b.low * 1000.0).floor() as u64,
                "high_permille": (b.high * 1000.0).ceil() as u64,
                "cases": b.cases,
            });
            (key.clone(), value)
        })
        .collect();
    let file = json!({
        "about": "measured over predicted, in thousandths, that the cases of a group stay within",
        "method": "weighted split-conformal bounds; level by coverage of held-out sources; cargo xtask fit-intervals",
        "date": "2026-11-30",
        "cases": cases,
        "miss_rate": choice.miss,
        "stretch": choice.stretch,
        "held_out_coverage_permille": (choice.coverage * 1000.0).round() as u64,
        "groups": groups,
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/plimsoll-estimate/data/intervals.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&file)?);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
