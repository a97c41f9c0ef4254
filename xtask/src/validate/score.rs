//! Errors by group, and the bars they are held against.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::case::{Case, Kind, Prediction};

/// The statistics of a group of cases.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Rows.
    pub cases: usize,
    /// Rows with a score.
    pub modelled: usize,
    /// Absolute relative errors, sorted.
    pub errors: Vec<f64>,
    /// Sum of signed errors.
    signed: Vec<f64>,
    /// Measurements within their interval, and with an interval at all.
    pub covered: (usize, usize),
    /// Largest error: id and signed error.
    pub worst: Option<(String, f64)>,
    /// Why rows are not modelled.
    pub reasons: BTreeMap<String, usize>,
    /// Fits and failures: right and all.
    pub verdicts: (usize, usize),
    /// Figures within their bar's tolerance, and with a bar at all.
    pub within: (usize, usize),
}

impl Group {
    fn add_row(&mut self, case: &Case) {
        self.cases += 1;
        match &case.reason {
            None => self.modelled += 1,
            Some(reason) => *self.reasons.entry(reason.clone()).or_default() += 1,
        }
        if let Some(v) = &case.verdict {
            self.verdicts.1 += 1;
            self.verdicts.0 += usize::from(v.predicted == v.seen);
        }
    }

    fn add(&mut self, case: &Case, p: &Prediction) {
        let error = p.error();
        self.errors.push(error.abs());
        self.signed.push(error);
        if let Some(covered) = p.covered() {
            self.covered.1 += 1;
            self.covered.0 += usize::from(covered);
        }
        if let Some((_, within)) = p.bar {
            self.within.1 += 1;
            self.within.0 += usize::from(within);
        }
        if self.worst.as_ref().is_none_or(|(_, e)| e.abs() < error.abs()) {
            self.worst = Some((case.id.clone(), error));
        }
    }

    fn finish(&mut self) {
        self.errors.sort_by(f64::total_cmp);
        self.signed.sort_by(f64::total_cmp);
    }

    /// The error that a share `q` of the cases stays within.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        quantile(&self.errors, q)
    }

    /// Median signed error.
    pub fn bias(&self) -> Option<f64> {
        quantile(&self.signed, 0.5)
    }

    /// Share of measurements within the interval.
    pub fn coverage(&self) -> Option<f64> {
        (self.covered.1 > 0).then(|| self.covered.0 as f64 / self.covered.1 as f64)
    }

    fn json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("cases".into(), json!(self.cases));
        map.insert("modelled".into(), json!(self.modelled));
        map.insert("median".into(), json!(self.quantile(0.5)));
        map.insert("p90".into(), json!(self.quantile(0.9)));
        map.insert("coverage".into(), json!(self.coverage()));
        map
    }

    fn full_json(&self) -> Value {
        let mut map = self.json();
        map.insert("bias".into(), json!(self.bias()));
        if let Some((id, error)) = &self.worst {
            map.insert("worst".into(), json!({"id": id, "error": error}));
        }
        if self.within.1 > 0 {
            let share = self.within.0 as f64 / self.within.1 as f64;
            map.insert("within".into(), json!(share));
        }
        if self.verdicts.1 > 0 {
            map.insert("right".into(), json!(self.verdicts.0 as f64 / self.verdicts.1 as f64));
        }
        map.insert("unmodelled".into(), json!(self.reasons));
        Value::Object(map)
    }
}

/// Linear interpolation between order statistics.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64))
}

/// All groups.
pub struct Scores {
    /// Every row, errors of the rows' own figures.
    pub all: Group,
    /// By key, such as `metric:max_memory_allocated`.
    pub groups: BTreeMap<String, Group>,
}

impl Scores {
    /// Scores the cases.
    pub fn of(cases: &[Case]) -> Scores {
        let mut all = Group::default();
        let mut groups: BTreeMap<String, Group> = BTreeMap::new();
        for case in cases {
            all.add_row(case);
            for key in row_keys(case) {
                groups.entry(key).or_default().add_row(case);
            }
            for p in &case.predictions {
                if !p.main {
                    let group = groups.entry(format!("metric:{}", p.metric)).or_default();
                    group.cases += 1;
                    group.modelled += 1;
                    group.add(case, p);
                    continue;
                }
                all.add(case, p);
                for key in row_keys(case) {
                    groups.entry(key).or_default().add(case, p);
                }
                for key in metric_keys(case, p) {
                    let group = groups.entry(key).or_default();
                    group.cases += 1;
                    group.modelled += 1;
                    group.add(case, p);
                }
            }
        }
        all.finish();
        groups.values_mut().for_each(Group::finish);
        Scores { all, groups }
    }

    /// `{cases, modelled, median, p90, coverage, groups}`.
    pub fn json(&self) -> Value {
        let mut map = self.all.json();
        let groups: Map<String, Value> =
            self.groups.iter().map(|(k, g)| (k.clone(), g.full_json())).collect();
        map.insert("groups".into(), Value::Object(groups));
        Value::Object(map)
    }
}

/// Groups that a row belongs to whether it is modelled or not.
fn row_keys(case: &Case) -> Vec<String> {
    let mut keys = vec![format!("source:{}", case.source)];
    if !case.task.is_empty() {
        let prefix = if case.kind == Kind::Inference { "engine" } else { "task" };
        keys.push(format!("{prefix}:{}", case.task));
    }
    if !case.confidence.is_empty() {
        keys.push(format!("confidence:{}", case.confidence));
    }
    if !case.model_kind.is_empty() {
        keys.push(format!("kind:{}", case.model_kind));
    }
    match case.kind {
        Kind::Training => {
            keys.push("file:training".into());
            if case.transformer && case.confidence != "low" {
                keys.push("bar:training-transformers-high-medium".into());
            }
        }
        Kind::Bound => {
            keys.push("file:bounds".into());
            if case.transformer {
                keys.push("bar:fits".into());
            }
        }
        Kind::Inference => keys.push("file:inference".into()),
    }
    keys
}

/// Groups of one figure.
fn metric_keys(case: &Case, p: &Prediction) -> Vec<String> {
    let mut keys = vec![format!("metric:{}", p.metric)];
    if !case.workload.is_empty() {
        keys.push(format!("workload:{}:{}", case.workload, p.counter));
    }
    keys.extend(p.bar.map(|(bar, _)| format!("bar:{bar}")));
    if case.kind == Kind::Training && p.interval.is_some() {
        keys.push("bar:coverage".into());
    }
    if case.kind == Kind::Training
        && case.model_kind == "dense"
        && case.confidence == "high"
        && p.metric == "max_memory_allocated"
    {
        keys.push("bar:training-dense-allocated-high".into());
    }
    keys
}
