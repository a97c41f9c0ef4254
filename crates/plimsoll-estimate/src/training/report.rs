//! From the footprint of the worst rank to the estimate: peaks, categories, terms, assumptions.

use plimsoll_model::Architecture;
use plimsoll_timeline::Category;
use plimsoll_units::Bytes;

use super::RankRun;
use crate::request::{Strategy, Training};
use crate::term::{Estimate, Figure, Peak, Term};
use crate::{Device, Diagnostic, Severity, interval};

pub(super) fn estimate(
    model: &Architecture,
    training: &Training,
    strategy: &Strategy,
    device: &Device,
    worst: RankRun,
) -> Estimate {
    let f = &worst.footprint;
    let context = device.context.typical;
    let peak = Peak {
        allocated: f.allocated_peak,
        reserved: f.reserved_peak,
        device: f.reserved_peak + context,
    };
    let mut categories: Vec<(Category, Bytes)> = f.live.by_category.clone();
    if !context.is_zero() {
        categories.push((Category::Context, context));
    }
    let terms = terms(&worst, device);
    let workload = interval::workload(model, training, strategy);
    let interval = interval::device_bounds(&workload, &peak, device);
    let mut diagnostics = Vec::new();
    if let Some(limit) = model.max_positions
        && training.sequence > limit
    {
        diagnostics.push(Diagnostic {
            severity: Severity::Warning,
            code: "sequence-beyond-limit".into(),
            message: format!(
                "sequence {} is beyond the {limit} positions that the model was made for",
                training.sequence
            ),
            cure: format!("use --seq {limit} or less"),
        });
    }
    let figures = vec![("pipeline_rank".to_owned(), Figure::Count(worst.rank))];
    Estimate {
        peak,
        interval,
        categories,
        terms,
        assumptions: Vec::new(),
        diagnostics,
        peak_phase: f.peak_phase.map(|p| p.kind.label().to_owned()),
        peak_module: None,
        host: worst.host,
        figures,
        timeline: Some(worst.timeline),
    }
}

fn terms(worst: &RankRun, device: &Device) -> Vec<Term> {
    let f = &worst.footprint;
    let mut terms: Vec<Term> = f
        .live
        .by_category
        .iter()
        .map(|(category, bytes)| {
            Term::new(category.label().replace(' ', "_"), category.label(), *bytes)
        })
        .collect();
    terms.push(Term::new(
        "allocator",
        "reserved but free",
        f.reserved_peak.saturating_sub(f.allocated_peak),
    ));
    terms.push(
        Term::new("context", "context and libraries", device.context.typical)
            .source(device.context.source.clone()),
    );
    terms
}
