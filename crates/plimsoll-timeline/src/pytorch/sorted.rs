//! A sorted list of free blocks. Size, tie-break and block number share one 128-bit word, kept sorted in chunks: a
//! list of some dozen blocks, the common case, is one short array, and a list of millions stays usable.

use super::arena::BlockId;
use super::config::MIN_BLOCK;

/// Entries of a chunk before it is halved.
const CHUNK: usize = 128;

/// Bits of the tie-break, above the 32 bits of the block number.
const TIE_BITS: u32 = 48;

/// Size (in units of 512 bytes), tie-break and block of one entry, in the order in which they compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u128);

impl Key {
    /// `size` is a multiple of 512 below 2^57; a `tie` of 2^48 or more is the highest.
    pub fn new(size: u64, tie: u64, id: BlockId) -> Self {
        debug_assert!(size.is_multiple_of(MIN_BLOCK) && size < 1 << 57);
        let tie = tie.min((1 << TIE_BITS) - 1);
        let high = u128::from(size / MIN_BLOCK) << (TIE_BITS + 32);
        Key(high | u128::from(tie) << 32 | u128::from(id.0))
    }

    pub fn id(self) -> BlockId {
        BlockId(self.0 as u32)
    }

    pub fn size(self) -> u64 {
        self.units() * MIN_BLOCK
    }

    /// Its size in units of 512 bytes.
    pub fn units(self) -> u64 {
        (self.0 >> (TIE_BITS + 32)) as u64
    }
}

/// Where an entry is; valid until the list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    chunk: u32,
    entry: u32,
}

impl Place {
    pub const FIRST: Place = Place { chunk: 0, entry: 0 };
}

/// The sorted entries. No chunk is empty, but the last one that is left stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    chunks: Vec<Vec<Key>>,
    /// The last entry of each chunk, side by side: a search touches no chunk but its own.
    lasts: Vec<Key>,
}

impl Sorted {
    /// Chunk and entry at which `key` is or would be inserted; the last chunk takes what is beyond every entry.
    fn locate(&self, key: Key) -> (usize, usize) {
        let chunk = match self.lasts.len() {
            0 | 1 => 0,
            n => self.lasts.partition_point(|last| *last < key).min(n - 1),
        };
        let entry = self.chunks.get(chunk).map_or(0, |c| c.partition_point(|k| *k < key));
        (chunk, entry)
    }

    /// The first entry of at least `size` bytes.
    pub fn first_at_least(&self, size: u64) -> Option<Place> {
        let (chunk, entry) = self.locate(Key::new(size, 0, BlockId(0)));
        (entry < self.chunks.get(chunk)?.len())
            .then_some(Place { chunk: chunk as u32, entry: entry as u32 })
    }

    pub fn at(&self, at: Place) -> Key {
        self.chunks[at.chunk as usize][at.entry as usize]
    }

    /// The entry after `at`.
    pub fn next(&self, at: Place) -> Option<Place> {
        if (at.entry as usize + 1) < self.chunks[at.chunk as usize].len() {
            Some(Place { entry: at.entry + 1, ..at })
        } else {
            (at.chunk as usize + 1 < self.chunks.len())
                .then_some(Place { chunk: at.chunk + 1, entry: 0 })
        }
    }

    pub fn insert(&mut self, key: Key) {
        let (chunk, entry) = self.locate(key);
        let Some(entries) = self.chunks.get_mut(chunk) else {
            self.chunks.push(vec![key]);
            self.lasts.push(key);
            return;
        };
        entries.insert(entry, key);
        self.lasts[chunk] = entries[entries.len() - 1];
        if entries.len() > CHUNK {
            let upper = entries.split_off(CHUNK / 2);
            self.lasts.insert(chunk, entries[entries.len() - 1]);
            self.chunks.insert(chunk + 1, upper);
        }
    }

    pub fn remove(&mut self, key: Key) {
        let (chunk, entry) = self.locate(key);
        debug_assert!(self.chunks[chunk][entry] == key, "the entry is in the list");
        self.remove_at(Place { chunk: chunk as u32, entry: entry as u32 });
    }

    pub fn remove_at(&mut self, at: Place) {
        let chunk = at.chunk as usize;
        let entries = &mut self.chunks[chunk];
        entries.remove(at.entry as usize);
        if let Some(last) = entries.last() {
            self.lasts[chunk] = *last;
        } else if self.chunks.len() > 1 {
            // The last chunk stays: a list that is emptied is filled again soon.
            self.chunks.remove(chunk);
            self.lasts.remove(chunk);
        }
    }

    /// Removes the entry at `at` and inserts `key`: one move instead of two where both fall into one chunk.
    pub fn replace_at(&mut self, at: Place, key: Key) {
        let (chunk, entry) = self.locate(key);
        if chunk != at.chunk as usize {
            self.remove_at(at);
            self.insert(key);
            return;
        }
        let entries = &mut self.chunks[chunk];
        let from = at.entry as usize;
        let to = if entry > from {
            entries.copy_within(from + 1..entry, from);
            entry - 1
        } else {
            entries.copy_within(entry..from, entry + 1);
            entry
        };
        entries[to] = key;
        self.lasts[chunk] = entries[entries.len() - 1];
    }

    /// [`replace_at`](Self::replace_at) for an entry that is known by its key.
    pub fn replace(&mut self, old: Key, new: Key) {
        let (chunk, entry) = self.locate(old);
        debug_assert!(self.chunks[chunk][entry] == old, "the entry is in the list");
        self.replace_at(Place { chunk: chunk as u32, entry: entry as u32 }, new);
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.len() <= 1 && self.chunks.first().is_none_or(Vec::is_empty)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Key> {
        self.chunks.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64, u64),
        Remove(usize),
        Replace(usize, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1..400u64, 0..1000u64).prop_map(|(s, t)| Op::Insert(s, t)),
            1 => any::<usize>().prop_map(Op::Remove),
            3 => (any::<usize>(), 1..400u64).prop_map(|(i, s)| Op::Replace(i, s)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn behaves_as_an_ordered_set(ops in prop::collection::vec(op(), 1..3000)) {
            let (mut list, mut set) = (Sorted::default(), BTreeSet::new());
            for (i, op) in ops.into_iter().enumerate() {
                let pick = |n: usize| set.iter().nth(n % set.len().max(1)).copied();
                match op {
                    Op::Insert(size, tie) => {
                        let key = Key::new(size * 512, tie, BlockId(i as u32 + 1));
                        list.insert(key);
                        set.insert(key);
                    }
                    Op::Remove(n) => if let Some(key) = pick(n) {
                        list.remove(key);
                        set.remove(&key);
                    },
                    Op::Replace(n, size) => if let Some(old) = pick(n) {
                        let new = Key::new(size * 512, 7, old.id());
                        list.replace(old, new);
                        set.remove(&old);
                        set.insert(new);
                    },
                }
                let size = (i as u64 * 37 % 400) * 512;
                let expected = set.range(Key::new(size, 0, BlockId(0))..).next().copied();
                let found = list.first_at_least(size);
                prop_assert_eq!(found.map(|p| list.at(p)), expected);
                if let Some(at) = found {
                    let after = set.range(list.at(at)..).nth(1).copied();
                    prop_assert_eq!(list.next(at).map(|p| list.at(p)), after);
                }
            }
            prop_assert!(list.iter().eq(set.iter().copied()));
            prop_assert_eq!(list.is_empty(), set.is_empty());
            if !list.is_empty() {
                prop_assert!(list.chunks.iter().all(|c| !c.is_empty() && c.len() <= CHUNK));
                let lasts = list.chunks.iter().map(|c| c[c.len() - 1]);
                prop_assert!(lasts.eq(list.lasts.iter().copied()));
            }
        }
    }
}
