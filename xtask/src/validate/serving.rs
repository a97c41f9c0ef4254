//! Scores of the serving estimates on measured records: KV tokens, profile peak, weights.

use std::fmt;

use plimsoll_estimate::{Figure, sglang, vllm};
use plimsoll_units::Bytes;
use serde_json::Value;

use super::{rows_sglang, rows_vllm};

/// How one record came out. Absent where the record does not say, or does not say enough.
#[derive(Debug, Default)]
pub struct Score {
    /// Id of the record.
    pub id: String,
    /// Why the record could not be estimated.
    pub skipped: Option<String>,
    /// Predicted and printed tokens, all terms predicted.
    pub tokens: Option<(f64, f64)>,
    /// Predicted and printed tokens, from the measured pool.
    pub tokens_of_pool: Option<(f64, f64)>,
    /// Predicted and measured profile peak, MiB.
    pub activation: Option<(f64, f64)>,
    /// Predicted and measured weights, MiB.
    pub weights: Option<(f64, f64)>,
    /// Predicted and measured growth outside the allocator, MiB.
    pub non_torch: Option<(f64, f64)>,
    /// Predicted and measured CUDA graphs, MiB.
    pub graphs: Option<(f64, f64)>,
    /// The model has no encoder for images or sound.
    pub text: bool,
    /// Whether the start is predicted to succeed, and did.
    pub fits: Option<(bool, bool)>,
}

/// Relative error of a pair.
pub fn relative(pair: (f64, f64)) -> f64 {
    (pair.0 - pair.1) / pair.1
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:24}", self.id)?;
        if let Some(reason) = &self.skipped {
            return write!(f, " skipped: {reason}");
        }
        for (name, pair) in [("tokens", self.tokens), ("of pool", self.tokens_of_pool)] {
            match pair {
                Some(pair) => write!(f, " {name} {:+7.2}%", 100.0 * relative(pair))?,
                None => write!(f, " {name}        -")?,
            }
        }
        for (name, pair) in [
            ("weights", self.weights),
            ("peak", self.activation),
            ("non-torch", self.non_torch),
            ("graphs", self.graphs),
        ] {
            match pair {
                Some((p, m)) => {
                    write!(
                        f,
                        " {name} {:.2}-{:.2}={:+.2}",
                        p / 1024.0,
                        m / 1024.0,
                        (p - m) / 1024.0
                    )?;
                }
                None => write!(f, " {name} -")?,
            }
        }
        match self.fits {
            Some((predicted, seen)) if predicted != seen => {
                write!(f, " FITS {predicted}, seen {seen}")
            }
            _ => Ok(()),
        }
    }
}

fn bytes(figures: &[(String, Figure)], key: &str) -> Option<f64> {
    figures.iter().find_map(|(k, figure)| match figure {
        Figure::Bytes(bytes) if k == key => Some(bytes.as_mib_f64()),
        _ => None,
    })
}

fn count(figures: &[(String, Figure)], key: &str) -> Option<f64> {
    figures.iter().find_map(|(k, figure)| match figure {
        Figure::Count(n) if k == key => Some(*n as f64),
        _ => None,
    })
}

fn mib(value: f64) -> Bytes {
    Bytes::new((value * f64::from(1 << 20)).max(0.0) as u64)
}

/// Scores one vLLM record.
pub fn vllm(row: &Value) -> Score {
    let id = row["id"].as_str().unwrap_or("?").to_owned();
    let case = match rows_vllm::case(row) {
        Ok(case) => case,
        Err(reason) => return Score { id, skipped: Some(reason), ..Score::default() },
    };
    let estimate =
        vllm::estimate(&case.architecture, &case.inventory, None, &case.request, &case.device);
    let estimate = match estimate {
        Ok(estimate) => estimate,
        Err(error) => return Score { id, skipped: Some(error.to_string()), ..Score::default() },
    };
    let measured = case.measured;
    let figures = &estimate.figures;
    let pair = |key: &str, measured: Option<f64>| bytes(figures, key).zip(measured);
    let printed = measured.tokens.map(|n| n as f64);
    let of_pool = measured.pool.and_then(|pool| {
        vllm::tokens_in_pool(&case.architecture, &case.request, &case.device, mib(pool)).ok()?
    });
    let whole = case.device_known.then(|| count(figures, "kv_tokens")).flatten();
    let refused = estimate
        .diagnostics
        .iter()
        .any(|d| d.code == "kv-below-one-request" || d.code == "startup-refused");
    Score {
        id: case.id,
        skipped: None,
        tokens: whole.zip(printed),
        tokens_of_pool: of_pool.map(|(_, tokens, _)| tokens as f64).zip(printed),
        // Under pipeline parallelism the record holds the first stage.
        activation: pair("stage.0.profile_peak", measured.activation)
            .or_else(|| pair("profile_peak", measured.activation))
            .filter(|_| case.limits_known),
        weights: pair("weights", measured.weights),
        non_torch: pair("non_torch", measured.non_torch),
        graphs: pair("cuda_graphs", measured.graphs),
        text: !has_tower(&case.architecture),
        fits: case.device_known.then_some((!refused, !measured.failed)),
    }
}

fn has_tower(model: &plimsoll_model::Architecture) -> bool {
    use plimsoll_model::arch::StackRole::{Audio, Vision};
    model.stacks.iter().any(|s| matches!(s.role, Vision | Audio))
}

/// Scores one SGLang record.
pub fn sglang(row: &Value) -> Score {
    let id = row["id"].as_str().unwrap_or("?").to_owned();
    let case = match rows_sglang::case(row) {
        Ok(case) => case,
        Err(reason) => return Score { id, skipped: Some(reason), ..Score::default() },
    };
    let estimate =
        sglang::estimate(&case.architecture, &case.inventory, None, &case.request, &case.device);
    let estimate = match estimate {
        Ok(estimate) => estimate,
        Err(error) => return Score { id, skipped: Some(error.to_string()), ..Score::default() },
    };
    let measured = case.measured;
    let figures = &estimate.figures;
    let printed = measured.tokens.map(|n| n as f64);
    let whole = case.identity_known.then(|| count(figures, "kv_tokens")).flatten();
    let of_pool = measured.pool.and_then(|pool| {
        sglang::tokens_in_pool(&case.architecture, &case.request, &case.device, mib(pool)).ok()
    });
    let of_pool = of_pool.map(|tokens| tokens as f64);
    Score {
        id: case.id,
        skipped: None,
        tokens: whole.zip(printed),
        tokens_of_pool: of_pool.zip(printed),
        weights: bytes(figures, "weights").zip(measured.weights),
        text: !has_tower(&case.architecture),
        ..Score::default()
    }
}

/// Scores every vLLM and SGLang record of a file and prints a line for each, then the shares within the bars.
pub fn run(text: &str) -> Vec<Score> {
    let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    rows.filter_map(|row| match row["engine"].as_str() {
        Some("vllm") => Some(vllm(&row)),
        Some("sglang") => Some(sglang(&row)),
        _ => None,
    })
    .collect()
}
