//! Reserved memory that was of no use at one moment: where it lies, why it could not serve the request that failed or
//! the peak, and which small blocks hold segments that are otherwise free.

use std::collections::BTreeMap;

use plimsoll_timeline::{BlockState, Layout, LayoutSegment, PoolId, PoolKind};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::lives::{Lives, NEVER};
use crate::recording::Recording;

/// Segments listed one by one.
const LISTED: usize = 8;

/// A segment counts as pinned when at most one part in this many is in use: so little that the rest is the news.
const PINNED_PARTS: u64 = 4;

/// Rounded requests up to this belong to the small pool.
const SMALL_LIMIT: u64 = 1 << 20;

/// Why free memory is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unusable {
    /// It would serve the request.
    No,
    /// Pieces between blocks in use, each smaller than the request.
    TooSmall,
    /// Freed, and another stream may still use it.
    Pending,
    /// It belongs to another stream.
    OtherStream,
    /// It belongs to a private pool: CUDA graphs, a `MemPool`.
    OtherPool,
    /// It belongs to the pool of small or of large requests, and the request is of the other kind.
    OtherKind,
}

impl Unusable {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Unusable::No => "usable",
            Unusable::TooSmall => "in pieces that are too small",
            Unusable::Pending => "held by another stream",
            Unusable::OtherStream => "cached for another stream",
            Unusable::OtherPool => "in private pools",
            Unusable::OtherKind => "in the pool of the other size",
        }
    }
}

/// Free memory with one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FreePart {
    /// Why it is of no use.
    pub why: Unusable,
    /// Bytes.
    pub bytes: Bytes,
    /// Blocks.
    pub blocks: u64,
    /// The largest of them.
    pub largest: Bytes,
}

/// A segment that a few blocks hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pinned {
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// Bytes in use.
    pub used: Bytes,
    /// Blocks in use.
    pub blocks: u64,
    /// The lines that made them, largest first, each once.
    pub lines: Vec<String>,
}

/// Where reserved memory was at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fragmentation {
    /// The request in question, rounded; absent where none failed.
    pub request: Option<Bytes>,
    /// Held from the driver.
    pub reserved: Bytes,
    /// In blocks in use.
    pub allocated: Bytes,
    /// What of that the program had asked for.
    pub requested: Bytes,
    /// Free or pending, by reason, largest first. Without a request, pieces of segments in use count as too small.
    pub free: Vec<FreePart>,
    /// Free segments as a whole, which an emptied cache gives back.
    pub releasable: Bytes,
    /// Free parts of segments that hold blocks in use.
    pub split: Bytes,
    /// Segments of private pools (CUDA graphs, `MemPool`), whatever is in them.
    pub private: Bytes,
    /// The largest free block that the request could have used, or the largest at all.
    pub largest_free: Bytes,
    /// Segments of which at most a quarter is in use.
    pub pinned: u64,
    /// The free bytes in them.
    pub pinned_free: Bytes,
    /// Those with most free bytes.
    pub pinned_segments: Vec<Pinned>,
}

impl Fragmentation {
    /// Rounding, and slack of blocks that were not split.
    pub fn slack(&self) -> Bytes {
        self.allocated.saturating_sub(self.requested)
    }

    /// Bytes that are free or pending.
    pub fn free_bytes(&self) -> Bytes {
        self.free.iter().map(|part| part.bytes).sum()
    }
}

/// A request that found no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub rounded: Bytes,
    pub stream: u16,
    pub pool: PoolId,
}

/// Sorts the blocks of a layout.
pub(crate) fn fragmentation(
    recording: &Recording<'_>,
    lives: &Lives,
    layout: &Layout,
    event: Option<u32>,
    wanted: Option<Wanted>,
) -> Fragmentation {
    let mut found = Fragmentation {
        request: wanted.map(|wanted| wanted.rounded),
        reserved: layout.reserved(),
        ..Fragmentation::default()
    };
    let mut parts: BTreeMap<Unusable, FreePart> = BTreeMap::new();
    let mut pinned: Vec<&LayoutSegment> = Vec::new();
    for segment in &layout.segments {
        let used: Bytes = in_use(segment).map(|block| block.size).sum();
        found.allocated += (segment.blocks.iter())
            .filter(|block| block.state == BlockState::Allocated)
            .map(|block| block.size)
            .sum();
        found.requested += (segment.blocks.iter())
            .filter(|block| block.state == BlockState::Allocated)
            .map(|block| block.requested)
            .sum();
        if !segment.pool.is_default() {
            found.private += segment.size;
        }
        if used.is_zero() {
            found.releasable += segment.size;
        } else {
            found.split += segment.size - used;
            if used.get() <= segment.size.get() / PINNED_PARTS {
                found.pinned += 1;
                found.pinned_free += segment.size - used;
                pinned.push(segment);
            }
        }
        for block in segment.blocks.iter().filter(|b| b.state != BlockState::Allocated) {
            let pending = block.state == BlockState::PendingFree;
            let why = unusable(segment, block.size, pending, !used.is_zero(), wanted);
            let empty = FreePart { why, bytes: Bytes::ZERO, blocks: 0, largest: Bytes::ZERO };
            let part = parts.entry(why).or_insert(empty);
            part.bytes += block.size;
            part.blocks += 1;
            part.largest = part.largest.max(block.size);
        }
    }
    let candidate = |part: &&FreePart| matches!(part.why, Unusable::No | Unusable::TooSmall);
    let largest = parts.values().filter(candidate).map(|part| part.largest).max();
    found.largest_free = largest.unwrap_or_default();
    found.free = parts.into_values().collect();
    found.free.sort_by_key(|part| (std::cmp::Reverse(part.bytes), part.why));
    pinned
        .sort_by_key(|s| (std::cmp::Reverse(s.size - in_use(s).map(|b| b.size).sum()), s.address));
    let lines = Lines::new(recording, lives, event);
    found.pinned_segments = pinned.into_iter().take(LISTED).map(|s| lines.pinned(s)).collect();
    found
}

fn in_use(segment: &LayoutSegment) -> impl Iterator<Item = &plimsoll_timeline::LayoutBlock> {
    segment.blocks.iter().filter(|block| block.state != BlockState::Free)
}

/// Why a free or pending block does not serve a request. Without a request only its segment matters.
fn unusable(
    segment: &LayoutSegment,
    size: Bytes,
    pending: bool,
    in_use: bool,
    wanted: Option<Wanted>,
) -> Unusable {
    if pending {
        return Unusable::Pending;
    }
    let Some(wanted) = wanted else {
        return match (segment.pool.is_default(), in_use) {
            (false, _) => Unusable::OtherPool,
            (true, true) => Unusable::TooSmall,
            (true, false) => Unusable::No,
        };
    };
    let small = wanted.rounded.get() <= SMALL_LIMIT;
    if segment.pool != wanted.pool {
        Unusable::OtherPool
    } else if (segment.kind == PoolKind::Small) != small {
        Unusable::OtherKind
    } else if segment.stream != wanted.stream {
        Unusable::OtherStream
    } else if size < wanted.rounded {
        Unusable::TooSmall
    } else {
        Unusable::No
    }
}

/// The lines that made the blocks that are live at a moment, by address.
struct Lines<'r, 's> {
    recording: &'r Recording<'s>,
    tensors: BTreeMap<u64, usize>,
}

impl<'r, 's> Lines<'r, 's> {
    fn new(recording: &'r Recording<'s>, lives: &Lives, event: Option<u32>) -> Self {
        let events = recording.events();
        let address = |tensor: usize| match lives.born[tensor] {
            NEVER => recording.start_blocks.get(tensor).map(|block| block.address),
            born => {
                let index = recording.trace_index.get(born as usize)?;
                events.get(*index as usize).map(|event| event.address)
            }
        };
        let tensors = (0..recording.timeline.allocations().len())
            .filter(|tensor| lives.is_live(*tensor, event))
            .filter_map(|tensor| Some((address(tensor)?, tensor)))
            .collect();
        Lines { recording, tensors }
    }

    fn pinned(&self, segment: &LayoutSegment) -> Pinned {
        let timeline = &self.recording.timeline;
        let mut lines: BTreeMap<&str, Bytes> = BTreeMap::new();
        for block in in_use(segment) {
            let tensor = self.tensors.get(&block.address);
            let origin = tensor.map(|tensor| timeline.allocations()[*tensor].origin);
            let line = origin.map_or("not recorded", |origin| &timeline.origin(origin).what);
            *lines.entry(line).or_default() += block.size;
        }
        let mut lines: Vec<(&str, Bytes)> = lines.into_iter().collect();
        lines.sort_by_key(|(line, bytes)| (std::cmp::Reverse(*bytes), *line));
        Pinned {
            address: segment.address,
            size: segment.size,
            used: in_use(segment).map(|block| block.size).sum(),
            blocks: in_use(segment).count() as u64,
            lines: lines.into_iter().take(3).map(|(line, _)| line.to_owned()).collect(),
        }
    }
}
