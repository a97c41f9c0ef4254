//! The memo of a pickle, four bytes an entry: a tag and 27 bits, or the place of a value that needs more.

use super::value::{self, Value};

const BITS: u32 = 27;
/// A tag that no value has: the place is one of the wide values.
const WIDE: u32 = 31;

/// What a pickle has put aside, by number.
#[derive(Default)]
pub(super) struct Memo {
    entries: Vec<u32>,
    wide: Vec<Value>,
}

impl Memo {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// About how much this takes.
    pub(super) fn bytes(&self) -> usize {
        4 * self.entries.len() + 8 * self.wide.len()
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Value {
        let Some(entry) = self.entries.get(at).copied() else { return Value::NOTHING };
        let place = entry & ((1 << BITS) - 1);
        match entry >> BITS {
            WIDE => self.wide.get(place as usize).copied().unwrap_or(Value::NOTHING),
            tag => Value::new(tag as value::Tag, place),
        }
    }

    #[inline]
    fn pack(&mut self, v: Value) -> u32 {
        match v.tag() {
            // A row that lies in its table is never asked for again by an honest file.
            value::EVENT..=value::HISTORY => u32::from(value::OTHER) << BITS,
            value::INT => self.widen(v),
            tag if v.place() < 1 << BITS => u32::from(tag) << BITS | v.place(),
            _ => self.widen(v),
        }
    }

    #[cold]
    fn widen(&mut self, v: Value) -> u32 {
        self.wide.push(v);
        // Beyond 2^27 of them, which only a file of that many memoized integers has, the value is lost.
        let place = self.wide.len() as u32 - 1;
        if place < 1 << BITS { WIDE << BITS | place } else { u32::from(value::OTHER) << BITS }
    }

    #[inline]
    pub(super) fn push(&mut self, v: Value) {
        let entry = self.pack(v);
        self.entries.push(entry);
    }

    /// Writes an entry; those between the last one and it are nothing.
    pub(super) fn set(&mut self, at: usize, v: Value) {
        if at >= self.entries.len() {
            self.entries.resize(at + 1, u32::from(value::NOTHING) << BITS);
        }
        let entry = self.pack(v);
        if let Some(slot) = self.entries.get_mut(at) {
            *slot = entry;
        }
    }

    /// Writes an entry anew if it still is `old`.
    #[inline]
    pub(super) fn replace(&mut self, at: usize, old: Value, v: Value) {
        if self.get(at) == old {
            self.set(at, v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_was_put() {
        let mut memo = Memo::default();
        let large = Value::new(value::FRAME, 1 << 30);
        let values =
            [Value::NONE, Value::new(value::TEXT, 7), large, Value::int(-5).unwrap(), Value::OTHER];
        values.iter().for_each(|v| memo.push(*v));
        assert!(values.iter().enumerate().all(|(at, v)| memo.get(at) == *v));
        memo.set(9, Value::EMPTY);
        assert_eq!(
            (memo.get(8), memo.get(9), memo.get(10)),
            (Value::NOTHING, Value::EMPTY, Value::NOTHING)
        );
        memo.replace(9, Value::EMPTY, large);
        memo.replace(9, Value::EMPTY, Value::NONE);
        assert_eq!(memo.get(9), large);
        // Rows are not referred to.
        memo.push(Value::new(value::EVENT, 3));
        assert_eq!(memo.get(10), Value::OTHER);
    }
}
