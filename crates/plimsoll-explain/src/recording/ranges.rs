//! The address ranges that an allocator holds from the driver, while a trace is walked backwards: segments, and
//! mapped ranges of expandable segments that grow together and fall apart.

use std::collections::BTreeMap;

use plimsoll_formats::snapshot::{PoolId, SegmentKind, StreamId};

/// A held range; its first address is its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub end: u64,
    /// `None` where only an unmap event tells of it.
    pub kind: Option<SegmentKind>,
    pub stream: StreamId,
    pub pool: PoolId,
    pub expandable: bool,
}

/// Held ranges, without overlaps.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, Held>);

impl Ranges {
    /// The range that holds an address.
    pub fn containing(&self, address: u64) -> Option<(u64, Held)> {
        let (start, held) = self.0.range(..=address).next_back()?;
        (address < held.end).then_some((*start, *held))
    }

    /// Adds a range; `false`, with nothing changed, where it is empty or overlaps another.
    pub fn insert(&mut self, start: u64, held: Held) -> bool {
        let before = self.0.range(..held.end).next_back();
        if held.end <= start || before.is_some_and(|(_, other)| other.end > start) {
            return false;
        }
        self.0.insert(start, held);
        true
    }

    /// Adds a mapped range and lets it grow together with mapped neighbours of the same stream, pool and kind.
    pub fn insert_mapped(&mut self, start: u64, held: Held) -> bool {
        let alike = |other: &Held| {
            other.expandable
                && (other.stream, other.pool) == (held.stream, held.pool)
                && (other.kind == held.kind || other.kind.is_none() || held.kind.is_none())
        };
        let left =
            start.checked_sub(1).and_then(|at| self.containing(at)).filter(|(_, o)| alike(o));
        let right = self.0.get(&held.end).copied().filter(alike);
        if !self.insert(start, held) {
            return false;
        }
        let mut merged = (start, held);
        if let Some(right) = right {
            self.0.remove(&held.end);
            merged.1.end = right.end;
            merged.1.kind = merged.1.kind.or(right.kind);
        }
        if let Some((left_start, left)) = left {
            self.0.remove(&start);
            merged.0 = left_start;
            merged.1.kind = merged.1.kind.or(left.kind);
        }
        self.0.insert(merged.0, merged.1);
        true
    }

    /// Takes away a whole range of exactly these bounds.
    pub fn remove(&mut self, start: u64, end: u64) -> Option<Held> {
        let found = self.0.get(&start).copied().filter(|held| held.end == end)?;
        self.0.remove(&start);
        Some(found)
    }

    /// Takes a part out of a range; what lies before and after it stays.
    pub fn cut(&mut self, start: u64, end: u64) -> Option<Held> {
        let (at, held) =
            self.containing(start).filter(|(_, held)| start < end && end <= held.end)?;
        self.0.remove(&at);
        if at < start {
            self.0.insert(at, Held { end: start, ..held });
        }
        if end < held.end {
            self.0.insert(end, held);
        }
        Some(held)
    }

    /// The ranges by address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Held)> + '_ {
        self.0.iter().map(|(start, held)| (*start, *held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(end: u64, expandable: bool) -> Held {
        let kind = Some(SegmentKind::Large);
        Held { end, kind, stream: StreamId(0), pool: PoolId(0), expandable }
    }

    fn bounds(ranges: &Ranges) -> Vec<(u64, u64)> {
        ranges.iter().map(|(start, held)| (start, held.end)).collect()
    }

    #[test]
    fn ranges_never_overlap() {
        let mut ranges = Ranges::default();
        assert!(ranges.insert(10, held(20, false)));
        for (start, end) in [(5, 11), (10, 20), (12, 13), (19, 30), (0, 40), (7, 7), (9, 3)] {
            assert!(!ranges.insert(start, held(end, false)), "{start}..{end}");
        }
        assert!(ranges.insert(20, held(25, false)));
        assert_eq!(ranges.containing(19).map(|(start, _)| start), Some(10));
        assert_eq!(ranges.containing(25), None);
        assert!(ranges.remove(10, 19).is_none());
        assert!(ranges.remove(10, 20).is_some());
        assert_eq!(bounds(&ranges), [(20, 25)]);
    }

    #[test]
    fn mapped_ranges_grow_together_and_fall_apart() {
        let mut ranges = Ranges::default();
        assert!(ranges.insert_mapped(0, held(20, true)));
        assert!(ranges.insert_mapped(40, held(60, true)));
        assert!(ranges.insert(60, held(80, false)));
        assert!(ranges.insert_mapped(20, held(40, true)));
        assert_eq!(bounds(&ranges), [(0, 60), (60, 80)]);
        assert!(ranges.cut(20, 61).is_none());
        assert!(ranges.cut(20, 40).is_some());
        assert!(ranges.cut(0, 10).is_some());
        assert_eq!(bounds(&ranges), [(10, 20), (40, 60), (60, 80)]);
    }
}
