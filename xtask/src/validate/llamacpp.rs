//! Scores of the llama.cpp estimate on measured records: caches, recurrent states, compute buffers.

use std::fmt;

use plimsoll_estimate::{Figure, llamacpp};
use serde_json::Value;

use super::rows_llamacpp;

/// How one record came out; pairs are predicted and measured MiB.
#[derive(Debug, Default)]
pub struct Score {
    /// Id of the record.
    pub id: String,
    /// Engine and family.
    pub what: String,
    /// Why the record could not be estimated.
    pub skipped: Option<String>,
    /// The record states the widths that decide the cache.
    pub stated: bool,
    /// Mainline, one device, the whole model on it.
    pub plain: bool,
    /// KV cache on devices.
    pub kv: Option<(f64, f64)>,
    /// Recurrent states.
    pub rs: Option<(f64, f64)>,
    /// Compute buffers of devices.
    pub compute: Option<(f64, f64)>,
    /// Compute buffer of the host.
    pub host_compute: Option<(f64, f64)>,
    /// Weights on devices.
    pub weights: Option<(f64, f64)>,
}

/// Within 0.5 % or 2 MiB.
pub fn exact((p, m): (f64, f64)) -> bool {
    (p - m).abs() <= (m * 0.005).max(2.0)
}

/// Within 3 %.
pub fn close((p, m): (f64, f64)) -> bool {
    (p - m).abs() <= m * 0.03
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:14} {:20}", self.id, self.what)?;
        if let Some(reason) = &self.skipped {
            return write!(f, " skipped: {reason}");
        }
        for (name, pair) in [
            ("kv", self.kv),
            ("rs", self.rs),
            ("compute", self.compute),
            ("host", self.host_compute),
            ("weights", self.weights),
        ] {
            if let Some((p, m)) = pair {
                let mark = if exact((p, m)) { ' ' } else { '*' };
                write!(f, " {name} {p:.2}/{m:.2}{mark}")?;
            }
        }
        if self.plain { f.write_str(" [plain]") } else { Ok(()) }
    }
}

/// Scores every llama.cpp record of a JSON-lines text.
pub fn run(text: &str) -> Vec<Score> {
    let rows = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    rows.filter(|r| r["engine"].as_str().is_some_and(|e| e.contains("llama")))
        .map(|r| score(&r))
        .collect()
}

/// Scores one record.
pub fn score(row: &Value) -> Score {
    let engine = row["engine"].as_str().unwrap_or("");
    let id = row["id"].as_str().unwrap_or("").to_owned();
    let short: String = engine.chars().take(12).collect();
    let mut s = Score { id, what: short.clone(), ..Score::default() };
    let (model, weights, request, device) = match rows_llamacpp::request(row) {
        Ok(r) => r,
        Err(reason) => return Score { skipped: Some(reason), ..s },
    };
    s.what = format!("{short} {}", model.family);
    let stored = weights.unwrap_or_default();
    let estimate = match llamacpp::estimate(&model, &stored, &request, &device) {
        Ok(e) => e,
        Err(e) => return Score { skipped: Some(e.to_string()), ..s },
    };
    let pair = |measured: &str, key: &str| {
        let m = row["measured"][measured].as_f64()?;
        let p = estimate.figures.iter().find_map(|(k, f)| match f {
            Figure::Bytes(b) if k == key => Some(b.as_mib_f64()),
            _ => None,
        })?;
        Some((p, m))
    };
    // Where the log gives the sum over all places, it is the surer number.
    s.kv = match (pair("kv_total_mib", "kv"), pair("kv_total_mib", "host_kv")) {
        (Some((device, total)), Some((host, _))) => Some((device + host, total)),
        _ => pair("kv_mib", "kv"),
    };
    s.rs = pair("rs_mib", "rs");
    s.compute = pair("compute_mib", "compute");
    s.host_compute = pair("host_compute_mib", "host_compute");
    s.weights = (!stored.is_empty()).then(|| pair("weights_mib", "weights")).flatten();
    s.stated = row["hparams"]["n_embd_k_gqa"].as_u64().is_some()
        || row["hparams"]["n_lora_kv"].as_u64().is_some();
    let layers = model.main_stack().map_or(0, |s| s.layers.len() as u64);
    s.plain = engine == "llama.cpp"
        && device.count == 1
        && request.offload.gpu_layers.is_none_or(|n| n > layers)
        && row["settings"]["override_tensor"].is_null()
        && row["measured"]["oom"].as_bool() != Some(true);
    s
}
