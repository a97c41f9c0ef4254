//! Where an estimate stands relative to the load line.

use std::fmt;

use plimsoll_estimate::{Estimate, Figure, Interval};
use plimsoll_units::Bytes;
use serde::Serialize;

/// Four answers instead of two: an interval that straddles the line is not a plain yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval is within the capacity.
    Fits,
    /// The estimate is within, the upper end of the interval is not.
    LikelyFits,
    /// The estimate exceeds, the lower end of the interval does not.
    LikelyNot,
    /// The whole interval exceeds the capacity.
    DoesNotFit,
}

impl Verdict {
    /// Judges `device` bytes with their interval.
    pub fn of(device: Bytes, interval: Interval, capacity: Bytes) -> Verdict {
        match (device <= capacity, interval.high <= capacity, interval.low <= capacity) {
            (true, true, _) => Verdict::Fits,
            (true, false, _) => Verdict::LikelyFits,
            (false, _, true) => Verdict::LikelyNot,
            (false, _, false) => Verdict::DoesNotFit,
        }
    }

    /// The estimate itself is within the capacity.
    pub const fn fits(self) -> bool {
        matches!(self, Verdict::Fits | Verdict::LikelyFits)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Fits => "fits",
            Verdict::LikelyFits => "likely fits",
            Verdict::LikelyNot => "likely does not fit",
            Verdict::DoesNotFit => "does not fit",
        })
    }
}

/// A judged estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub verdict: Verdict,
    /// Why not, where it does not.
    pub reason: Option<String>,
}

/// Findings of the engines that mean "it does not start", whatever the bytes say.
const BLOCKING: [&str; 2] = ["kv-below-one-request", "startup-refused"];

/// Judges an estimate: bytes first, then whether an engine would start at all.
pub(crate) fn judge(estimate: &Estimate, capacity: Bytes) -> Judgement {
    let verdict = Verdict::of(estimate.peak.device, estimate.interval, capacity);
    if let Some(finding) = estimate.diagnostics.iter().find(|d| BLOCKING.contains(&&*d.code)) {
        let reason = Some(finding.message.clone());
        return Judgement { verdict: Verdict::DoesNotFit, reason };
    }
    let over = estimate.peak.device - capacity;
    let reason = (!verdict.fits()).then(|| format!("{over} more than the device offers"));
    Judgement { verdict, reason }
}

/// Sequences of the greatest length that an engine's KV pool holds at a time, in thousandths.
pub(crate) fn concurrency_permille(estimate: &Estimate) -> Option<u64> {
    estimate.figures.iter().find_map(|(name, figure)| match figure {
        // A reported ratio, never part of a memory formula.
        Figure::Ratio(ratio) if name == "max_concurrency" => Some((ratio * 1000.0).round() as u64),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_answers() {
        let interval = |low, high| Interval { low: Bytes::new(low), high: Bytes::new(high) };
        for (device, low, high, verdict) in [
            (80, 70, 90, Verdict::Fits),
            (100, 90, 100, Verdict::Fits),
            (95, 90, 101, Verdict::LikelyFits),
            (105, 95, 110, Verdict::LikelyNot),
            (120, 101, 130, Verdict::DoesNotFit),
        ] {
            let got = Verdict::of(Bytes::new(device), interval(low, high), Bytes::new(100));
            assert_eq!(got, verdict, "{device} [{low}, {high}]");
        }
    }
}
