//! Values of the pickle machine, eight bytes each: a tag below, a number above. Everything that is larger than a
//! small integer lies in a table, and the value is its place there.

use super::NameId;

/// What a [`Value`] is.
pub(super) type Tag = u8;

/// No value: a memo entry never written.
pub(super) const NOTHING: Tag = 0;
/// `None`.
pub(super) const NONE: Tag = 1;
/// `True` (1) or `False` (0).
pub(super) const BOOL: Tag = 2;
/// An integer of up to 56 bits, signed.
pub(super) const INT: Tag = 3;
/// Place of a larger integer.
pub(super) const BIG: Tag = 4;
/// Place of a float.
pub(super) const FLOAT: Tag = 5;
/// Interned text.
pub(super) const TEXT: Tag = 6;
/// A container that may still be filled: its place among the open ones.
pub(super) const OPEN: Tag = 7;
/// An interned frame.
pub(super) const FRAME: Tag = 8;
/// An interned stack: a finished list of frames.
pub(super) const STACK: Tag = 9;
/// A row of the events.
pub(super) const EVENT: Tag = 10;
/// A row of the blocks.
pub(super) const BLOCK: Tag = 11;
/// A row of the segments.
pub(super) const SEGMENT: Tag = 12;
/// A row of the annotations.
pub(super) const ANNOTATION: Tag = 13;
/// A row of the histories of torch 2.0.
pub(super) const HISTORY: Tag = 14;
/// A run of rows in a list that is being filled: its place among the groups.
pub(super) const RUN: Tag = 15;
/// A finished list of rows: its place among the groups.
pub(super) const ROWS: Tag = 16;
/// A finished list of events: its place among the traces.
pub(super) const TRACE: Tag = 17;
/// A finished list of lists of events.
pub(super) const TRACES: Tag = 18;
/// A finished list of texts.
pub(super) const TEXTS: Tag = 19;
/// A pair of integers: a pool.
pub(super) const PAIR: Tag = 20;
/// A dictionary of counts by power of two.
pub(super) const COUNTS: Tag = 21;
/// The settings.
pub(super) const SETTINGS: Tag = 22;
/// A dictionary with segments or traces: the snapshot itself.
pub(super) const ROOT: Tag = 23;
/// An empty list or tuple.
pub(super) const EMPTY: Tag = 24;
/// Anything else that is finished; its content is gone.
pub(super) const OTHER: Tag = 25;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value(u64);

impl Value {
    pub(super) const NOTHING: Value = Value::new(NOTHING, 0);
    pub(super) const NONE: Value = Value::new(NONE, 0);
    pub(super) const EMPTY: Value = Value::new(EMPTY, 0);
    pub(super) const OTHER: Value = Value::new(OTHER, 0);
    pub(super) const SETTINGS: Value = Value::new(SETTINGS, 0);

    /// A value of a table, or a flag.
    pub(super) const fn new(tag: Tag, place: u32) -> Value {
        Value((place as u64) << 8 | tag as u64)
    }

    pub(super) const fn text(name: NameId) -> Value {
        Value::new(TEXT, name.0)
    }

    /// A small integer; `None` where it needs more than 56 bits.
    pub(super) const fn int(n: i64) -> Option<Value> {
        let shifted = n << 8;
        if shifted >> 8 == n { Some(Value(shifted as u64 | INT as u64)) } else { None }
    }

    pub(super) const fn tag(self) -> Tag {
        self.0 as u8
    }

    /// Place in the table that the tag names.
    pub(super) const fn place(self) -> u32 {
        (self.0 >> 8) as u32
    }

    /// The integer of an [`INT`].
    pub(super) const fn small(self) -> i64 {
        self.0 as i64 >> 8
    }

    pub(super) const fn is(self, tag: Tag) -> bool {
        self.tag() == tag
    }

    pub(super) const fn name(self) -> Option<NameId> {
        if self.is(TEXT) { Some(NameId(self.place())) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_56_bits_fit() {
        for n in [0, 1, -1, 255, -256, (1 << 55) - 1, -(1 << 55)] {
            let value = Value::int(n).unwrap();
            assert_eq!((value.tag(), value.small()), (INT, n));
        }
        for n in [1 << 55, -(1 << 55) - 1, i64::MAX, i64::MIN] {
            assert_eq!(Value::int(n), None);
        }
    }
}
