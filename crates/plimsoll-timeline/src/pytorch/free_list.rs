//! Free blocks of one pool and stream, ordered by size and then by the tie-break: bins of sizes, eight to a power of
//! two, each a short sorted list. A bitmap says which bins hold anything, so a search looks at two bins at most.

use super::config::MIN_BLOCK;
use super::sorted::{Key, Place, Sorted};

/// Bins of all sizes below 2^57, in words of the bitmap.
const WORDS: usize = 6;

/// Where an entry is; valid until the list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Index into the bins in use.
    bin: u16,
    place: Place,
}

/// The bins.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeList {
    /// Bins that were ever used, in order of first use.
    bins: Vec<Sorted>,
    /// For each bin number, the index of its bin plus one; zero for none.
    index: Vec<u16>,
    /// The numbers of the bins that hold anything.
    filled: [u64; WORDS],
}

/// Number of the bin for a size in units of 512 bytes.
#[inline]
fn bin_number(units: u64) -> usize {
    let octave = units.max(1).ilog2();
    if octave < 3 {
        return units as usize;
    }
    ((octave as usize - 2) << 3) | (units >> (octave - 3)) as usize & 7
}

impl FreeList {
    /// The first entry of at least `size` bytes.
    #[inline]
    pub fn first_at_least(&self, size: u64) -> Option<Position> {
        let number = bin_number(size / MIN_BLOCK);
        if self.is_filled(number) {
            let bin = self.index[number] - 1;
            if let Some(place) = self.bins[bin as usize].first_at_least(size) {
                return Some(Position { bin, place });
            }
        }
        self.first_beyond(number)
    }

    #[inline]
    pub fn at(&self, at: Position) -> Key {
        self.bins[at.bin as usize].at(at.place)
    }

    /// The entry after `at`.
    pub fn next(&self, at: Position) -> Option<Position> {
        match self.bins[at.bin as usize].next(at.place) {
            Some(place) => Some(Position { place, ..at }),
            None => self.first_beyond(bin_number(self.at(at).units())),
        }
    }

    #[inline]
    pub fn insert(&mut self, key: Key) {
        let number = bin_number(key.units());
        self.fill(number).insert(key);
    }

    #[inline]
    pub fn remove(&mut self, key: Key) {
        let number = bin_number(key.units());
        let bin = self.index[number] - 1;
        self.bins[bin as usize].remove(key);
        self.note_removal(number, bin);
    }

    #[inline]
    pub fn remove_at(&mut self, at: Position) {
        let number = bin_number(self.at(at).units());
        self.bins[at.bin as usize].remove_at(at.place);
        self.note_removal(number, at.bin);
    }

    /// Removes the entry at `at` and inserts `key`.
    #[inline]
    pub fn replace_at(&mut self, at: Position, key: Key) {
        let (from, to) = (bin_number(self.at(at).units()), bin_number(key.units()));
        if from == to {
            self.bins[at.bin as usize].replace_at(at.place, key);
        } else {
            self.bins[at.bin as usize].remove_at(at.place);
            self.note_removal(from, at.bin);
            self.fill(to).insert(key);
        }
    }

    /// [`replace_at`](Self::replace_at) for an entry that is known by its key.
    #[inline]
    pub fn replace(&mut self, old: Key, new: Key) {
        let (from, to) = (bin_number(old.units()), bin_number(new.units()));
        if from == to {
            let bin = self.index[from] - 1;
            self.bins[bin as usize].replace(old, new);
        } else {
            self.remove(old);
            self.fill(to).insert(new);
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Key> {
        let filled: Vec<usize> = (0..self.index.len()).filter(|n| self.is_filled(*n)).collect();
        filled.into_iter().flat_map(|number| self.bins[self.index[number] as usize - 1].iter())
    }

    fn is_filled(&self, number: usize) -> bool {
        self.filled[number / 64] >> (number % 64) & 1 == 1
    }

    /// The first entry of the bins after a number.
    #[inline]
    fn first_beyond(&self, number: usize) -> Option<Position> {
        let from = number + 1;
        let mut word = from / 64;
        let mut bits = self.filled.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.filled.get(word)?;
        }
        let bin = self.index[word * 64 + bits.trailing_zeros() as usize] - 1;
        Some(Position { bin, place: Place::FIRST })
    }

    /// The bin of a number, made on first use, which is about to hold something.
    #[inline]
    fn fill(&mut self, number: usize) -> &mut Sorted {
        if self.index.len() <= number {
            self.index.resize(number + 1, 0);
        }
        if self.index[number] == 0 {
            self.bins.push(Sorted::default());
            self.index[number] = self.bins.len() as u16;
        }
        self.filled[number / 64] |= 1 << (number % 64);
        &mut self.bins[self.index[number] as usize - 1]
    }

    #[inline]
    fn note_removal(&mut self, number: usize, bin: u16) {
        if self.bins[bin as usize].is_empty() {
            self.filled[number / 64] &= !(1 << (number % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::pytorch::arena::BlockId;

    #[test]
    fn bins_grow_with_sizes() {
        let mut last = 0;
        for octave in 0..48 {
            for step in 0..16u64 {
                let number = bin_number((1 << octave) + (step << octave) / 16);
                assert!(number >= last && number < 64 * WORDS);
                last = number;
            }
        }
        assert_eq!(bin_number(1 << 20), bin_number((1 << 20) + 1));
        assert_eq!(bin_number((1 << 20) - 1) + 1, bin_number(1 << 20));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64, u64),
        Remove(usize),
        Replace(usize, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let size = || prop_oneof![1..400u64, (0..45u32, 0..9u64).prop_map(|(b, s)| (1 << b) + s)];
        prop_oneof![
            4 => (size(), 0..1000u64).prop_map(|(s, t)| Op::Insert(s, t)),
            3 => any::<usize>().prop_map(Op::Remove),
            3 => (any::<usize>(), size()).prop_map(|(i, s)| Op::Replace(i, s)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn behaves_as_an_ordered_set(ops in prop::collection::vec(op(), 1..1500)) {
            let (mut list, mut set) = (FreeList::default(), BTreeSet::new());
            for (i, op) in ops.into_iter().enumerate() {
                let pick = |n: usize| set.iter().nth(n % set.len().max(1)).copied();
                match op {
                    Op::Insert(size, tie) => {
                        let key = Key::new(size * 512, tie, BlockId(i as u32 + 1));
                        list.insert(key);
                        set.insert(key);
                    }
                    Op::Remove(n) => if let Some(key) = pick(n) {
                        match list.first_at_least(key.size()).filter(|p| list.at(*p) == key) {
                            Some(at) => list.remove_at(at),
                            None => list.remove(key),
                        }
                        set.remove(&key);
                    },
                    Op::Replace(n, size) => if let Some(old) = pick(n) {
                        let new = Key::new(size * 512, 7, old.id());
                        match list.first_at_least(old.size()).filter(|p| list.at(*p) == old) {
                            Some(at) => list.replace_at(at, new),
                            None => list.replace(old, new),
                        }
                        set.remove(&old);
                        set.insert(new);
                    },
                }
                let size = (1 << (i % 46)) * 512 + (i as u64 % 3) * 512;
                let expected = set.range(Key::new(size, 0, BlockId(0))..).next().copied();
                let found = list.first_at_least(size);
                prop_assert_eq!(found.map(|p| list.at(p)), expected);
                if let Some(at) = found {
                    let after = set.range(list.at(at)..).nth(1).copied();
                    prop_assert_eq!(list.next(at).map(|p| list.at(p)), after);
                }
            }
            prop_assert!(list.iter().eq(set.iter().copied()));
            prop_assert!(list.iter().rev().eq(set.iter().rev().copied()));
        }
    }
}
