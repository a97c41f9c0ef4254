//! The state before the first event: the final segments and blocks, walked backwards through the trace. Nearly
//! every recording starts warm, so nothing can be replayed without it.

use plimsoll_formats::snapshot::{
    Action, BlockState, PoolId, SegmentKind, Snapshot, StackId, StreamId, TraceEvent,
};
use plimsoll_timeline::PyTorchConfig;
use plimsoll_units::Bytes;

use super::address_map::AddressMap;
use super::gaps;
use super::ranges::{Held, Ranges};
use super::remark::Oddities;

/// Every segment of the small pool.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Alignment of segments.
const SEGMENT_ALIGNMENT: u64 = 2 << 20;
/// Rounded requests up to this belong to the small pool.
const SMALL_LIMIT: u64 = 1 << 20;

/// A segment held before the first event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartSegment {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: Bytes,
    /// Small or large.
    pub kind: SegmentKind,
    /// Stream.
    pub stream: StreamId,
    /// Memory pool.
    pub pool: PoolId,
    /// Whether it is a mapped range of an expandable segment.
    pub expandable: bool,
}

/// A block in use before the first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartBlock {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: Bytes,
    /// What the program asked for.
    pub requested: Bytes,
    /// Whether it has been freed and waits for another stream.
    pub pending: bool,
    /// Stack of its allocation, where a block of the file still has it.
    pub stack: StackId,
    /// Index into the segments.
    pub segment: u32,
}

/// The state before the first event, and what the walk learned about later ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewound {
    /// By address.
    pub segments: Vec<StartSegment>,
    /// By address.
    pub blocks: Vec<StartBlock>,
    /// Memory pools of segment events, where it is not the default pool. By event.
    pub private: Vec<(u32, PoolId)>,
}

/// A block during the walk.
#[derive(Clone, Copy, Debug)]
struct Live {
    /// 0 where only events tell of it.
    size: u64,
    requested: u64,
    stack: StackId,
    stream: StreamId,
    pool: PoolId,
    pending: bool,
}

/// Walks the events of a device backwards from its final state.
pub(super) fn rewind(
    snapshot: &Snapshot,
    device: u32,
    events: &[TraceEvent],
    config: &PyTorchConfig,
    oddities: &mut Oddities,
) -> Rewound {
    let mut walk = Walk::from_end(snapshot, device, oddities);
    walk.requests = events.iter().any(|event| event.action == Action::FreeRequested);
    for (index, event) in events.iter().enumerate().rev() {
        walk.undo(index as u32, event, oddities);
    }
    walk.finish(events, config, oddities)
}

#[derive(Default)]
struct Walk {
    ranges: Ranges,
    live: AddressMap<Live>,
    /// Whether requested frees were recorded; without them, a block that completes its free was in use before.
    requests: bool,
    private: Vec<(u32, PoolId)>,
}

impl Walk {
    fn from_end(snapshot: &Snapshot, device: u32, oddities: &mut Oddities) -> Self {
        let mut walk = Walk::default();
        for segment in snapshot.segments.iter().filter(|s| s.device == device) {
            let held = Held {
                end: segment.address.saturating_add(segment.total_size.get()),
                kind: Some(segment.kind),
                stream: segment.stream,
                pool: segment.pool,
                expandable: segment.expandable,
            };
            if !walk.ranges.insert(segment.address, held) {
                oddities.segment_mismatch += 1;
            }
            let blocks = segment.blocks.start as usize..segment.blocks.end as usize;
            for block in snapshot.blocks.get(blocks).unwrap_or_default() {
                if block.state == BlockState::Free {
                    continue;
                }
                let live = Live {
                    size: block.size.get(),
                    requested: block.requested.get(),
                    stack: block.stack,
                    stream: segment.stream,
                    pool: segment.pool,
                    pending: block.state == BlockState::PendingFree,
                };
                walk.live.insert(block.address, live);
            }
        }
        walk
    }

    fn undo(&mut self, index: u32, event: &TraceEvent, oddities: &mut Oddities) {
        let (start, end) = (event.address, event.address.saturating_add(event.size));
        match event.action {
            Action::Alloc => {
                if event.size > 0 && self.live.remove(&start).is_none() {
                    oddities.free_missing += 1;
                }
            }
            Action::FreeCompleted => {
                let live = Live { pending: self.requests, ..freed(event) };
                if event.size > 0 && self.live.insert(start, live).is_some() {
                    oddities.alloc_missing += 1;
                }
            }
            Action::FreeRequested if event.size > 0 => match self.live.get_mut(&start) {
                Some(live) if live.pending => live.pending = false,
                Some(_) => {
                    self.live.insert(start, Live { pending: false, ..freed(event) });
                    oddities.alloc_missing += 1;
                }
                None => {
                    self.live.insert(start, Live { pending: false, ..freed(event) });
                    oddities.completion_missing += 1;
                }
            },
            Action::SegmentAlloc => self.undo_alloc(index, start, end, oddities),
            Action::SegmentMap => match self.ranges.cut(start, end) {
                Some(held) => self.note_pool(index, held.pool),
                None => oddities.segment_mismatch += 1,
            },
            Action::SegmentFree => {
                let kind = if event.size == SMALL_SEGMENT {
                    SegmentKind::Small
                } else {
                    SegmentKind::Large
                };
                let held = held_by(event, end, Some(kind), false);
                oddities.segment_mismatch += u64::from(!self.ranges.insert(start, held));
            }
            Action::SegmentUnmap => {
                let held = held_by(event, end, None, true);
                oddities.segment_mismatch += u64::from(!self.ranges.insert_mapped(start, held));
            }
            Action::FreeRequested | Action::Snapshot | Action::OutOfMemory | Action::Other => {}
        }
    }

    fn undo_alloc(&mut self, index: u32, start: u64, end: u64, oddities: &mut Oddities) {
        match self.ranges.remove(start, end) {
            Some(held) => self.note_pool(index, held.pool),
            None => oddities.segment_mismatch += 1,
        }
    }

    fn note_pool(&mut self, index: u32, pool: PoolId) {
        if pool != PoolId(0) {
            self.private.push((index, pool));
        }
    }

    fn finish(
        mut self,
        events: &[TraceEvent],
        config: &PyTorchConfig,
        oddities: &mut Oddities,
    ) -> Rewound {
        let mut live: Vec<(u64, Live)> = self.live.drain().collect();
        live.sort_unstable_by_key(|(address, _)| *address);
        for (address, live) in &live {
            if self.ranges.containing(*address).is_none() {
                oddities.homeless += 1;
                let (start, held) = made_up(*address, live, config);
                self.ranges.insert(start, held);
            }
        }
        let segments = self.segments(&live, events, config);
        let blocks = place(&segments, &live, config, oddities);
        let blocks = gaps::settle(&segments, blocks, events, config, oddities);
        self.private.reverse();
        Rewound { segments, blocks, private: self.private }
    }

    /// The ranges as segments.
    fn segments(
        &self,
        live: &[(u64, Live)],
        events: &[TraceEvent],
        config: &PyTorchConfig,
    ) -> Vec<StartSegment> {
        (self.ranges.iter())
            .map(|(start, held)| StartSegment {
                address: start,
                size: Bytes::new(held.end - start),
                kind: held.kind.unwrap_or_else(|| kind_of(start, held.end, live, events, config)),
                stream: held.stream,
                pool: held.pool,
                expandable: held.expandable,
            })
            .collect()
    }
}

/// Small or large, where only unmap events tell of a range: what lies in it, what is allocated in it later, or else
/// whether it consists of whole pages of the large pool.
fn kind_of(
    start: u64,
    end: u64,
    live: &[(u64, Live)],
    events: &[TraceEvent],
    config: &PyTorchConfig,
) -> SegmentKind {
    let at = live.partition_point(|(address, _)| *address < start);
    let block = live.get(at).filter(|(address, _)| *address < end);
    let requested = block.map(|(_, live)| live.requested).or_else(|| {
        let within =
            |e: &&TraceEvent| e.action == Action::Alloc && (start..end).contains(&e.address);
        events.iter().find(within).map(|event| event.size)
    });
    let large = match requested {
        Some(requested) => config.rounded(Bytes::new(requested)).get() > SMALL_LIMIT,
        None => (end - start).is_multiple_of(config.large_segment.get().max(1)),
    };
    if large { SegmentKind::Large } else { SegmentKind::Small }
}

/// A block just before the event that completed its free.
fn freed(event: &TraceEvent) -> Live {
    Live {
        size: 0,
        requested: event.size,
        // The stack of the event is that of the free, not that of the allocation.
        stack: StackId::NONE,
        stream: event.stream,
        pool: event.pool,
        pending: true,
    }
}

fn held_by(event: &TraceEvent, end: u64, kind: Option<SegmentKind>, expandable: bool) -> Held {
    Held { end, kind, stream: event.stream, pool: event.pool, expandable }
}

/// A segment around a block that no segment holds.
fn made_up(address: u64, live: &Live, config: &PyTorchConfig) -> (u64, Held) {
    let rounded = config.rounded(Bytes::new(live.requested)).get().max(live.size);
    let start = address / SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT;
    let kind = if rounded <= SMALL_LIMIT { SegmentKind::Small } else { SegmentKind::Large };
    let end = address.saturating_add(rounded);
    let end = end.checked_next_multiple_of(SEGMENT_ALIGNMENT).unwrap_or(u64::MAX);
    let (stream, pool) = (live.stream, live.pool);
    (start, Held { end, kind: Some(kind), stream, pool, expandable: false })
}

/// Puts the blocks into their segments: known sizes as they are, others rounded from the request, none beyond the
/// next block or the segment's end.
fn place(
    segments: &[StartSegment],
    live: &[(u64, Live)],
    config: &PyTorchConfig,
    oddities: &mut Oddities,
) -> Vec<gaps::Placed> {
    let mut placed: Vec<gaps::Placed> = Vec::with_capacity(live.len());
    let mut at = 0;
    for (i, (address, live_block)) in live.iter().enumerate() {
        while segments.get(at).is_some_and(|s| s.address + s.size.get() <= *address) {
            at += 1;
        }
        let Some(segment) = segments.get(at).filter(|s| s.address <= *address) else {
            oddities.overlapping += 1;
            continue;
        };
        if placed.last().is_some_and(|last| last.block.address + last.block.size.get() > *address) {
            oddities.overlapping += 1;
            continue;
        }
        let end = segment.address + segment.size.get();
        let next = live.get(i + 1).map_or(end, |(next, _)| end.min(*next));
        let known = live_block.size > 0;
        oddities.size_computed += u64::from(!known);
        let size = if known {
            live_block.size
        } else {
            config.rounded(Bytes::new(live_block.requested)).get()
        };
        let room = next - address;
        oddities.clipped += u64::from(size > room);
        let block = StartBlock {
            address: *address,
            size: Bytes::new(size.min(room)),
            requested: Bytes::new(live_block.requested),
            pending: live_block.pending,
            stack: live_block.stack,
            segment: at as u32,
        };
        placed.push(gaps::Placed { block, known });
    }
    placed
}
