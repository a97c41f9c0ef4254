//! What was assumed and what was found wanting while a recording was read: counted by kind, told in sentences.

use serde::Serialize;

/// How much a remark matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RemarkKind {
    /// The file does not say it; this is what was taken instead.
    Assumed,
    /// Something was not recorded; what depends on it is missing from the results.
    Incomplete,
    /// The file contradicts itself.
    Inconsistent,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// How much it matters.
    pub kind: RemarkKind,
    /// A sentence.
    pub text: String,
}

impl Remark {
    pub(crate) fn assumed(text: impl Into<String>) -> Self {
        Remark { kind: RemarkKind::Assumed, text: text.into() }
    }

    pub(crate) fn incomplete(text: impl Into<String>) -> Self {
        Remark { kind: RemarkKind::Incomplete, text: text.into() }
    }

    pub(crate) fn inconsistent(text: impl Into<String>) -> Self {
        Remark { kind: RemarkKind::Inconsistent, text: text.into() }
    }
}

/// `1 block`, `3 blocks`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// A number with separators between thousands.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What the two walks over a trace came across, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Oddities {
    /// Allocations of an address that is still in use.
    pub free_missing: u64,
    /// Frees or final blocks of an address that no event allocated, in the middle of the trace.
    pub alloc_missing: u64,
    /// Frees that complete without having been requested.
    pub request_missing: u64,
    /// Frees that are requested, never complete, and are not pending at the end.
    pub completion_missing: u64,
    /// Segment events that do not agree with the segments.
    pub segment_mismatch: u64,
    /// Blocks outside every known segment.
    pub homeless: u64,
    /// Start blocks that overlap another, dropped.
    pub overlapping: u64,
    /// Start blocks whose place is smaller than their request, rounded.
    pub clipped: u64,
    /// Start blocks whose size follows from the free block beside them.
    pub slack_resolved: u64,
    /// Start blocks that exist only in the past: their size is computed.
    pub size_computed: u64,
    /// Events of no bytes.
    pub empty: u64,
    /// Events whose action this version does not know.
    pub unknown_actions: u64,
}

impl Oddities {
    /// In sentences.
    pub fn remarks(&self) -> Vec<Remark> {
        let mut remarks = Vec::new();
        use RemarkKind::{Assumed, Incomplete, Inconsistent};
        let mut tell = |n: u64, kind: RemarkKind, one: &str, several: &str| match n {
            0 => {}
            1 => remarks.push(Remark { kind, text: format!("1 {one}") }),
            n => remarks.push(Remark { kind, text: format!("{} {several}", grouped(n)) }),
        };
        tell(
            self.size_computed,
            Assumed,
            "block was freed during the recording and allocated before it: its size is its request, rounded",
            "blocks were freed during the recording and allocated before it: their sizes are their requests, rounded",
        );
        tell(
            self.slack_resolved,
            Assumed,
            "of them lies before a large gap; the first allocation in the gap tells where it ends",
            "of them lie before a large gap; the first allocation in the gap tells where they end",
        );
        tell(
            self.free_missing,
            Incomplete,
            "address is allocated again without a recorded free; the earlier block is taken as freed just before",
            "addresses are allocated again without a recorded free; the earlier blocks are taken as freed just before",
        );
        tell(
            self.alloc_missing,
            Incomplete,
            "block appears without a recorded allocation and is left out",
            "blocks appear without a recorded allocation and are left out",
        );
        tell(
            self.request_missing,
            Incomplete,
            "free completes without having been requested; it counts as a free",
            "frees complete without having been requested; they count as frees",
        );
        tell(
            self.completion_missing,
            Incomplete,
            "requested free never completes; it counts as completed at once",
            "requested frees never complete; they count as completed at once",
        );
        tell(
            self.segment_mismatch,
            Inconsistent,
            "segment event does not agree with the segments of the file",
            "segment events do not agree with the segments of the file",
        );
        tell(
            self.homeless,
            Incomplete,
            "block lies outside every recorded segment; a segment was made up around it",
            "blocks lie outside every recorded segment; segments were made up around them",
        );
        tell(
            self.overlapping,
            Inconsistent,
            "block of the start state overlaps others and is left out",
            "blocks of the start state overlap others and are left out",
        );
        tell(
            self.clipped,
            Inconsistent,
            "block of the start state has less room than its request needs",
            "blocks of the start state have less room than their requests need",
        );
        tell(
            self.empty,
            Inconsistent,
            "event of no bytes is left out",
            "events of no bytes are left out",
        );
        tell(
            self.unknown_actions,
            Incomplete,
            "event has an action that this version does not know and is left out",
            "events have an action that this version does not know and are left out",
        );
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(n), text);
        }
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(2000, "block"), "2,000 blocks");
    }

    #[test]
    fn one_is_told_in_the_singular() {
        for (n, text) in [
            (1, "1 block appears without a recorded allocation and is left out"),
            (2000, "2,000 blocks appear without a recorded allocation and are left out"),
        ] {
            let oddities = Oddities { alloc_missing: n, ..Oddities::default() };
            assert_eq!(oddities.remarks(), [Remark::incomplete(text)]);
        }
    }
}
