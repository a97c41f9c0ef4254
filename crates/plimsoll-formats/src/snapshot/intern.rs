//! Tables that keep each distinct thing once: text, frames, stacks.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::{Frame, FrameId, NameId, Names, StackId, Stacks};
use crate::FormatError;

const SECTION: &str = "memory snapshot";
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where hashes point: open addressing over the ids of a table that lies elsewhere.
struct Index {
    /// Ids plus one; 0 is free. A power of two long, at most half full.
    slots: Vec<u32>,
    /// Hash of each id.
    hashes: Vec<u64>,
    /// Differs from process to process, so that no file can choose its collisions.
    seed: u64,
}

impl Index {
    fn new() -> Self {
        let seed = RandomState::new().build_hasher().finish();
        Index { slots: vec![0; 64], hashes: Vec::new(), seed }
    }

    /// The id with this hash for which `same` holds; otherwise the next id, which the caller adds to its table.
    #[inline]
    fn find(&mut self, hash: u64, same: impl Fn(u32) -> bool) -> Result<u32, u32> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while let Some(id) = self.slots[at].checked_sub(1) {
            if self.hashes[id as usize] == hash && same(id) {
                return Ok(id);
            }
            at = (at + 1) & mask;
        }
        let id = self.hashes.len() as u32;
        self.hashes.push(hash);
        self.slots[at] = id + 1;
        if self.hashes.len() * 2 > self.slots.len() {
            self.grow();
        }
        Err(id)
    }

    #[cold]
    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        self.slots = vec![0; mask + 1];
        for (id, hash) in self.hashes.iter().enumerate() {
            let mut at = *hash as usize & mask;
            while self.slots[at] != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = id as u32 + 1;
        }
    }
}

#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * u128::from(MULTIPLIER);
    product as u64 ^ (product >> 64) as u64
}

fn full(what: &'static str) -> FormatError {
    let limit = u64::from(u32::MAX);
    FormatError::TooLarge { section: SECTION, what, value: limit + 1, limit }
}

/// Text, each once.
pub(super) struct NameTable {
    pub(super) names: Names,
    index: Index,
}

impl NameTable {
    /// A table that holds `first` in this order.
    pub(super) fn new(first: &[&str]) -> Self {
        let mut table = NameTable { names: Names::default(), index: Index::new() };
        for text in first {
            let _ = table.intern(text);
        }
        table
    }

    /// About how much this takes.
    pub(super) fn bytes(&self) -> usize {
        self.names.text.len() + self.names.ends.len() * 20
    }

    #[inline]
    pub(super) fn intern(&mut self, text: &str) -> Result<NameId, FormatError> {
        let mut hash = mix(self.index.seed, text.len() as u64);
        let mut chunks = text.as_bytes().chunks_exact(8);
        for chunk in &mut chunks {
            hash = mix(hash, chunk.try_into().map_or(0, u64::from_le_bytes));
        }
        let rest = chunks.remainder().iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let hash = mix(hash, rest);
        let names = &self.names;
        match self.index.find(hash, |id| names.get(NameId(id)) == text) {
            Ok(id) => Ok(NameId(id)),
            Err(id) => {
                self.names.text.push_str(text);
                let end =
                    u32::try_from(self.names.text.len()).map_err(|_| full("bytes of text"))?;
                self.names.ends.push(end);
                Ok(NameId(id))
            }
        }
    }
}

/// Frames, each once.
pub(super) struct FrameTable {
    pub(super) frames: Vec<Frame>,
    index: Index,
}

impl FrameTable {
    pub(super) fn new() -> Self {
        FrameTable { frames: Vec::new(), index: Index::new() }
    }

    /// About how much this takes.
    pub(super) fn bytes(&self) -> usize {
        self.frames.len() * (size_of::<Frame>() + 16)
    }

    pub(super) fn intern(&mut self, frame: Frame) -> FrameId {
        let pair = |a: NameId, b: u32| u64::from(a.0) << 32 | u64::from(b);
        let mut hash = mix(self.index.seed, pair(frame.file, frame.function.0));
        hash = mix(hash, u64::from(frame.line));
        if let Some(fx) = frame.fx {
            hash = mix(hash, pair(fx.op, fx.name.0));
            hash = mix(hash, pair(fx.original_trace, fx.info.0));
        }
        let frames = &self.frames;
        match self.index.find(hash, |id| frames[id as usize] == frame) {
            Ok(id) => FrameId(id),
            Err(id) => {
                self.frames.push(frame);
                FrameId(id)
            }
        }
    }
}

/// Stacks, each once; the first is the empty one.
pub(super) struct StackTable {
    pub(super) stacks: Stacks,
    index: Index,
}

impl StackTable {
    pub(super) fn new() -> Self {
        let mut table = StackTable { stacks: Stacks::default(), index: Index::new() };
        let _ = table.intern(&[]);
        table
    }

    /// About how much this takes.
    pub(super) fn bytes(&self) -> usize {
        self.stacks.frames.len() * 4 + self.stacks.ends.len() * 20
    }

    pub(super) fn intern(&mut self, frames: &[FrameId]) -> Result<StackId, FormatError> {
        let mut hash = mix(self.index.seed, frames.len() as u64);
        let mut pairs = frames.chunks_exact(2);
        for pair in &mut pairs {
            hash = mix(hash, u64::from(pair[0].0) << 32 | u64::from(pair[1].0));
        }
        for rest in pairs.remainder() {
            hash = mix(hash, u64::from(rest.0));
        }
        let stacks = &self.stacks;
        match self.index.find(hash, |id| stacks.get(StackId(id)) == frames) {
            Ok(id) => Ok(StackId(id)),
            Err(id) => {
                self.stacks.frames.extend_from_slice(frames);
                let end = u32::try_from(self.stacks.frames.len())
                    .map_err(|_| full("frames of distinct stacks"))?;
                self.stacks.ends.push(end);
                Ok(StackId(id))
            }
        }
    }
}
