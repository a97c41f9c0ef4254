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

/// The sorted entries: one array, or chunks of it once there are many.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    few: Vec<Key>,
    many: Option<Box<Chunks>>,
}

impl Sorted {
    /// The first entry of at least `size` bytes.
    #[inline]
    pub fn first_at_least(&self, size: u64) -> Option<Place> {
        let key = Key::new(size, 0, BlockId(0));
        if let Some(many) = &self.many {
            return many.first_at_least(key);
        }
        let entry = self.few.partition_point(|k| *k < key);
        (entry < self.few.len()).then_some(Place { chunk: 0, entry: entry as u32 })
    }

    #[inline]
    pub fn at(&self, at: Place) -> Key {
        match &self.many {
            None => self.few[at.entry as usize],
            Some(many) => many.chunks[at.chunk as usize][at.entry as usize],
        }
    }

    /// The entry after `at`.
    pub fn next(&self, at: Place) -> Option<Place> {
        match &self.many {
            None => ((at.entry as usize + 1) < self.few.len())
                .then_some(Place { entry: at.entry + 1, ..at }),
            Some(many) => many.next(at),
        }
    }

    #[inline]
    pub fn insert(&mut self, key: Key) {
        if let Some(many) = &mut self.many {
            return many.insert(key);
        }
        let entry = self.few.partition_point(|k| *k < key);
        self.few.insert(entry, key);
        if self.few.len() > CHUNK {
            self.many = Some(Box::new(Chunks::new(std::mem::take(&mut self.few))));
        }
    }

    #[inline]
    pub fn remove(&mut self, key: Key) {
        if self.many.is_some() {
            return self.remove_from_many(key);
        }
        let entry = self.few.partition_point(|k| *k < key);
        debug_assert!(self.few[entry] == key, "the entry is in the list");
        self.few.remove(entry);
    }

    #[inline]
    pub fn remove_at(&mut self, at: Place) {
        if self.many.is_some() {
            return self.remove_from_many(self.at(at));
        }
        self.few.remove(at.entry as usize);
    }

    /// Removes the entry at `at` and inserts `key`: one move instead of two.
    #[inline]
    pub fn replace_at(&mut self, at: Place, key: Key) {
        match &mut self.many {
            None => {
                let to = self.few.partition_point(|k| *k < key);
                move_entry(&mut self.few, at.entry as usize, to, key);
            }
            Some(many) => many.replace_at(at, key),
        }
    }

    /// [`replace_at`](Self::replace_at) for an entry that is known by its key.
    #[inline]
    pub fn replace(&mut self, old: Key, new: Key) {
        match &mut self.many {
            None => {
                let entry = self.few.partition_point(|k| *k < old);
                debug_assert!(self.few[entry] == old, "the entry is in the list");
                let to = self.few.partition_point(|k| *k < new);
                move_entry(&mut self.few, entry, to, new);
            }
            Some(many) => {
                let at = many.place(old);
                many.replace_at(at, new);
            }
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_none()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Key> {
        let chunks: &[Vec<Key>] = self.many.as_ref().map_or(&[], |many| &many.chunks);
        self.few.iter().chain(chunks.iter().flatten()).copied()
    }

    fn remove_from_many(&mut self, key: Key) {
        if let Some(many) = &mut self.many {
            let at = many.place(key);
            many.remove_at(at);
            if let [few] = &mut many.chunks[..]
                && few.len() < CHUNK / 4
            {
                self.few = std::mem::take(few);
                self.many = None;
            }
        }
    }
}

/// Moves the entry at `from` to before the entry at `to` and makes it `key`.
#[inline]
fn move_entry(entries: &mut [Key], from: usize, to: usize, key: Key) {
    let to = if to > from {
        entries.copy_within(from + 1..to, from);
        to - 1
    } else {
        entries.copy_within(to..from, to + 1);
        to
    };
    entries[to] = key;
}

/// Many entries. There is always a chunk; only a single one may be empty.
#[derive(Clone, Debug)]
struct Chunks {
    chunks: Vec<Vec<Key>>,
    /// The last entry of each chunk, side by side: a search touches no chunk but its own.
    lasts: Vec<Key>,
}

impl Chunks {
    /// Of one chunk that is not empty.
    fn new(entries: Vec<Key>) -> Self {
        let lasts = vec![entries[entries.len() - 1]];
        let mut chunks = Chunks { chunks: vec![entries], lasts };
        chunks.halve(0);
        chunks
    }

    /// Chunk and entry at which `key` is or would be inserted; the last chunk takes what is beyond every entry.
    fn place(&self, key: Key) -> Place {
        let chunk = self.lasts.partition_point(|last| *last < key).min(self.lasts.len() - 1);
        let entry = self.chunks[chunk].partition_point(|k| *k < key);
        Place { chunk: chunk as u32, entry: entry as u32 }
    }

    fn first_at_least(&self, key: Key) -> Option<Place> {
        let at = self.place(key);
        ((at.entry as usize) < self.chunks[at.chunk as usize].len()).then_some(at)
    }

    fn next(&self, at: Place) -> Option<Place> {
        if (at.entry as usize + 1) < self.chunks[at.chunk as usize].len() {
            Some(Place { entry: at.entry + 1, ..at })
        } else {
            (at.chunk as usize + 1 < self.chunks.len())
                .then_some(Place { chunk: at.chunk + 1, entry: 0 })
        }
    }

    fn insert(&mut self, key: Key) {
        let Place { chunk, entry } = self.place(key);
        let (chunk, entry) = (chunk as usize, entry as usize);
        let entries = &mut self.chunks[chunk];
        entries.insert(entry, key);
        self.lasts[chunk] = entries[entries.len() - 1];
        if entries.len() > CHUNK {
            self.halve(chunk);
        }
    }

    fn halve(&mut self, chunk: usize) {
        let entries = &mut self.chunks[chunk];
        let upper = entries.split_off(entries.len() / 2);
        self.lasts.insert(chunk, entries[entries.len() - 1]);
        self.chunks.insert(chunk + 1, upper);
    }

    fn remove_at(&mut self, at: Place) {
        let chunk = at.chunk as usize;
        let entries = &mut self.chunks[chunk];
        entries.remove(at.entry as usize);
        if let Some(last) = entries.last() {
            self.lasts[chunk] = *last;
        } else if self.chunks.len() > 1 {
            self.chunks.remove(chunk);
            self.lasts.remove(chunk);
        }
    }

    fn replace_at(&mut self, at: Place, key: Key) {
        let to = self.place(key);
        if to.chunk != at.chunk {
            self.remove_at(at);
            self.insert(key);
            return;
        }
        let chunk = at.chunk as usize;
        let entries = &mut self.chunks[chunk];
        move_entry(entries, at.entry as usize, to.entry as usize, key);
        self.lasts[chunk] = entries[entries.len() - 1];
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
            2 => any::<usize>().prop_map(Op::Remove),
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
            if let Some(many) = &list.many {
                prop_assert!(many.chunks.iter().all(|c| !c.is_empty() && c.len() <= CHUNK));
                let lasts = many.chunks.iter().map(|c| c[c.len() - 1]);
                prop_assert!(lasts.eq(many.lasts.iter().copied()));
                prop_assert!(list.few.is_empty());
            }
        }
    }
}
