//! Rows of inference engines: which reader serves an engine, and which of its printed terms are compared.

use serde_json::Value;

use super::case::{Case, Kind, Prediction, Verdict};
use super::row::{Row, flag, number};
use super::{llamacpp, rows_torch, serving};

const MIB: f64 = (1u64 << 20) as f64;

/// The row scored.
pub fn score(row: &Row) -> Case {
    let mut case = Case::of(row, Kind::Inference);
    let engine = row.lower("engine");
    let value = row.value();
    if engine.contains("vllm") {
        served(&mut case, "vllm", serving::vllm(&value));
    } else if engine.contains("sglang") {
        served(&mut case, "sglang", serving::sglang(&value));
    } else if engine.contains("llama") && !engine.contains("transformers") {
        llama(&mut case, &value);
    } else if engine.split(' ').next() == Some("transformers") {
        torch(&mut case, row);
    } else {
        let name = row.text("engine").unwrap_or_default();
        case.reason = Some(format!("{name}: no estimate for this engine yet"));
    }
    if case.reason.is_none() && case.predictions.is_empty() && case.verdict.is_none() {
        case.reason = Some("none of the terms that are estimated is printed".into());
    }
    case
}

/// Whether a predicted and measured pair is within a bar.
type Good = fn((f64, f64)) -> bool;

/// A term to compare: its name, whether it is the row's own figure, and the bar it counts for.
struct Term {
    name: &'static str,
    main: bool,
    unit: f64,
    bar: Option<(&'static str, Good)>,
}

impl Term {
    const fn of(name: &'static str, unit: f64) -> Term {
        Term { name, main: true, unit, bar: None }
    }

    const fn second(name: &'static str, unit: f64) -> Term {
        Term { name, main: false, unit, bar: None }
    }

    fn bar(self, bar: &'static str, good: Good, counts: bool) -> Term {
        Term { bar: counts.then_some((bar, good)), ..self }
    }
}

fn push(case: &mut Case, term: Term, pair: Option<(f64, f64)>) {
    let Some(pair) = pair.filter(|(_, m)| *m > 0.0) else { return };
    let Term { name, main, unit, bar } = term;
    case.predictions.push(Prediction {
        metric: if main { name.to_owned() } else { format!("also-{name}") },
        counter: "engine",
        main,
        predicted: pair.0 * unit,
        measured: pair.1 * unit,
        interval: None,
        bar: bar.map(|(bar, good)| (bar, good(pair))),
        parts: Vec::new(),
        phase: String::new(),
        others: String::new(),
    });
}

/// Within 2 %.
fn near((p, m): (f64, f64)) -> bool {
    (p - m).abs() <= 0.02 * m
}

/// Within 0.2 GiB, in MiB.
fn fifth((p, m): (f64, f64)) -> bool {
    (p - m).abs() <= 204.8
}

fn served(case: &mut Case, engine: &str, score: serving::Score) {
    if let Some(reason) = score.skipped {
        case.reason = Some(reason);
        return;
    }
    let vllm = engine == "vllm";
    case.model_kind = if score.text { "text" } else { "with-tower" }.to_owned();
    case.workload = engine.to_owned();
    push(case, Term::of("kv_tokens", 1.0).bar("vllm-kv-tokens", near, vllm), score.tokens);
    let peak = Term::of("profile_peak", MIB).bar("vllm-profile-peak", fifth, vllm && score.text);
    push(case, peak, score.activation);
    push(case, Term::of("weights", MIB), score.weights);
    push(case, Term::second("kv_tokens-of-pool", 1.0), score.tokens_of_pool);
    push(case, Term::second("non_torch", MIB), score.non_torch);
    push(case, Term::second("cuda_graph", MIB), score.graphs);
    if let Some((predicted, seen)) = score.fits {
        case.verdict = Some(Verdict { predicted, seen, bytes: (0.0, 0.0) });
    }
}

fn torch(case: &mut Case, row: &Row) {
    let estimate = match rows_torch::estimate(row) {
        Ok(estimate) => estimate,
        Err(reason) => {
            case.reason = Some(reason);
            return;
        }
    };
    case.workload = "torch-inference".to_owned();
    let measured = row.get("measured");
    let total = measured.and_then(|m| m.get("total_mib")).and_then(number);
    let bytes = |b: plimsoll_units::Bytes| b.get() as f64;
    push(case, Term::of("total", 1.0), total.map(|t| (bytes(estimate.peak.device), t * MIB)));
    if let Some(prediction) = case.predictions.last_mut() {
        prediction.counter = "device";
        prediction.interval = Some((bytes(estimate.interval.low), bytes(estimate.interval.high)));
        prediction.phase = estimate.peak_phase.clone().unwrap_or_default();
        let parts = estimate.categories.iter();
        prediction.parts = parts.map(|(c, b)| (c.label().to_owned(), bytes(*b))).collect();
    }
    let seen = measured.and_then(|m| m.get("oom")).and_then(flag);
    let capacity = row.number("gpu_mem_gib").map(|gib| gib * 1024.0 * MIB);
    if let (Some(oom), Some(capacity)) = (seen, capacity) {
        let predicted = bytes(estimate.peak.device);
        let fits = predicted <= capacity;
        case.verdict = Some(Verdict { predicted: fits, seen: !oom, bytes: (predicted, capacity) });
    }
}

fn llama(case: &mut Case, row: &Value) {
    let score = llamacpp::score(row);
    if let Some(reason) = score.skipped {
        case.reason = Some(reason);
        return;
    }
    case.workload = "llamacpp".to_owned();
    let cache = |name| Term::of(name, MIB).bar("llamacpp-caches", llamacpp::exact, score.stated);
    push(case, cache("kv"), score.kv);
    push(case, cache("rs"), score.rs);
    let compute = Term::of("compute", MIB).bar("llamacpp-compute", llamacpp::close, score.plain);
    push(case, compute, score.compute);
    push(case, Term::of("weights", MIB), score.weights);
    push(case, Term::second("host_compute", MIB), score.host_compute);
}
