//! The bars that the project is held to, and the thresholds that it commits to today (`validation/bars.json`): what is
//! reached must not be lost again.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use super::score::{Group, Scores};

/// One bar: a figure of a group and the value to reach.
#[derive(Debug, Deserialize)]
pub struct Bar {
    /// The group, such as `bar:training-dense-allocated-high`.
    pub group: String,
    /// What is measured.
    pub what: Measure,
    /// The goal.
    pub goal: f64,
    /// What is committed to: worse than this fails.
    pub committed: f64,
    /// Words for the table.
    pub label: String,
}

/// A figure of a group.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Median absolute error; at most.
    Median,
    /// 90th percentile of the absolute error; at most.
    P90,
    /// Share within the bar's own tolerance; at least.
    Within,
    /// Share of rows with a score; at least.
    Modelled,
    /// Share of fits predicted rightly; at least.
    Right,
    /// Share of measurements inside the interval; at least.
    Covered,
    /// The same; at most.
    Spare,
}

impl Measure {
    /// Whether a smaller figure is better.
    fn smaller(self) -> bool {
        matches!(self, Measure::Median | Measure::P90 | Measure::Spare)
    }

    fn of(self, group: &Group) -> Option<f64> {
        let share = |(some, all): (usize, usize)| (all > 0).then(|| some as f64 / all as f64);
        match self {
            Measure::Median => group.quantile(0.5),
            Measure::P90 => group.quantile(0.9),
            Measure::Within => share(group.within),
            Measure::Modelled => share((group.modelled, group.cases)),
            Measure::Right => share(group.verdicts),
            Measure::Covered | Measure::Spare => group.coverage(),
        }
    }
}

/// A bar and what was measured; `None` where no case counts for it.
pub struct Outcome {
    /// The bar.
    pub bar: Bar,
    /// The figure.
    pub value: Option<f64>,
}

impl Outcome {
    fn meets(&self, limit: f64) -> bool {
        let Some(value) = self.value else { return true };
        if self.bar.what.smaller() { value <= limit + 1e-9 } else { value + 1e-9 >= limit }
    }

    /// Whether the goal is reached.
    pub fn reached(&self) -> bool {
        self.meets(self.bar.goal)
    }

    /// Whether the committed threshold holds.
    pub fn holds(&self) -> bool {
        self.meets(self.bar.committed)
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let percent = |v: f64| format!("{:.1} %", 100.0 * v);
        let sign = if self.bar.what.smaller() { "at most" } else { "at least" };
        let verdict = match self.value {
            None => "no case".to_owned(),
            Some(_) if self.reached() => "PASS".to_owned(),
            Some(v) => format!("MISS by {}", percent((v - self.bar.goal).abs())),
        };
        let value = self.value.map_or("-".to_owned(), percent);
        let kept = if self.holds() {
            String::new()
        } else {
            format!("; WORSE than the committed {}", percent(self.bar.committed))
        };
        format!(
            "{:<66} {value:>8}  {sign} {:<7} {verdict}{kept}",
            self.bar.label,
            percent(self.bar.goal)
        )
    }
}

/// The bars evaluated.
pub fn evaluate(scores: &Scores) -> anyhow::Result<Vec<Outcome>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../validation/bars.json");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let bars: Vec<Bar> =
        serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
    let none = Group::default();
    Ok(bars
        .into_iter()
        .map(|bar| {
            let value = bar.what.of(scores.groups.get(&bar.group).unwrap_or(&none));
            Outcome { bar, value }
        })
        .collect())
}
