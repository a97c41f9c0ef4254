//! The scores as text.

use std::fmt::Write as _;

use super::case::{Case, Prediction};
use super::score::{Group, Scores};

const GIB: f64 = (1u64 << 30) as f64;

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |v| format!("{:.1}%", 100.0 * v))
}

/// One line for each group, then the reasons.
pub fn table(out: &mut String, scores: &Scores) {
    let _ = writeln!(
        out,
        "{:<52} {:>5} {:>5} {:>7} {:>7} {:>7} {:>7}  worst",
        "group", "cases", "mod", "median", "p90", "bias", "cover"
    );
    line(out, "all", &scores.all);
    for (key, group) in &scores.groups {
        line(out, key, group);
    }
    let _ = writeln!(out, "\nnot modelled:");
    let mut reasons: Vec<_> = scores.all.reasons.iter().collect();
    reasons.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    for (reason, count) in reasons {
        let _ = writeln!(out, "{count:5}  {reason}");
    }
}

fn line(out: &mut String, key: &str, g: &Group) {
    let worst =
        g.worst.as_ref().map_or(String::new(), |(id, e)| format!("{:+.1}% {id}", 100.0 * e));
    let right = if g.verdicts.1 > 0 {
        format!(" right {}/{}", g.verdicts.0, g.verdicts.1)
    } else {
        String::new()
    };
    let _ = writeln!(
        out,
        "{key:<52} {:>5} {:>5} {:>7} {:>7} {:>7} {:>7}  {worst}{right}",
        g.cases,
        g.modelled,
        percent(g.quantile(0.5)),
        percent(g.quantile(0.9)),
        percent(g.bias()),
        percent(g.coverage()),
    );
}

/// Every row with its figures.
pub fn rows(out: &mut String, cases: &[Case]) {
    for case in cases {
        match (&case.reason, &case.verdict) {
            (Some(reason), _) => {
                let _ = writeln!(out, "{:<60} - {reason}", case.id);
            }
            (None, Some(v)) => {
                let _ = writeln!(
                    out,
                    "{:<60} {} predicted {} seen {}: {:.2} of {:.2} GiB  {}",
                    case.id,
                    if v.predicted == v.seen { "right" } else { "WRONG" },
                    if v.predicted { "fits" } else { "oom" },
                    if v.seen { "fits" } else { "oom" },
                    v.bytes.0 / GIB,
                    v.bytes.1 / GIB,
                    case.settings,
                );
            }
            _ => {}
        }
        case.predictions.iter().for_each(|p| figure(out, case, p));
    }
}

fn figure(out: &mut String, case: &Case, p: &Prediction) {
    let _ = writeln!(
        out,
        "{:<60} {:+7.2}% {:<22} p {:.3} m {:.3}",
        case.id,
        100.0 * p.error(),
        p.metric,
        p.predicted / GIB,
        p.measured / GIB,
    );
}

/// The worst rows with settings and parts.
pub fn worst(out: &mut String, cases: &[Case], count: usize) {
    let mut all: Vec<(&Case, &Prediction)> = cases
        .iter()
        .flat_map(|c| c.predictions.iter().filter(|p| p.main).map(move |p| (c, p)))
        .collect();
    all.sort_by(|a, b| b.1.error().abs().total_cmp(&a.1.error().abs()));
    for (case, p) in all.into_iter().take(count) {
        detail(out, case, p);
    }
}

/// Every row with settings and parts, by source, the worst first.
pub fn by_source(out: &mut String, cases: &[Case]) {
    let mut sources: Vec<&str> = cases.iter().map(|c| c.source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    for source in sources {
        let mut rows: Vec<(&Case, &Prediction)> = cases
            .iter()
            .filter(|c| c.source == source)
            .flat_map(|c| c.predictions.iter().map(move |p| (c, p)))
            .collect();
        rows.sort_by(|a, b| b.1.error().abs().total_cmp(&a.1.error().abs()));
        if !rows.is_empty() {
            let _ = writeln!(out, "\n== {source}");
        }
        rows.into_iter().for_each(|(case, p)| detail(out, case, p));
    }
}

/// One row with settings and parts.
pub fn detail(out: &mut String, case: &Case, p: &Prediction) {
    figure(out, case, p);
    let _ = writeln!(out, "    {} | {} | {}", case.confidence, case.source, case.settings);
    let parts: Vec<String> = p
        .parts
        .iter()
        .filter(|(_, b)| *b >= 0.01 * GIB)
        .map(|(name, b)| format!("{name} {:.2}", b / GIB))
        .collect();
    let _ = writeln!(out, "    peak in {} | {} | {}", p.phase, p.others, parts.join(", "));
    if !case.notes.is_empty() {
        let _ = writeln!(out, "    assumed: {}", case.notes.join("; "));
    }
}
