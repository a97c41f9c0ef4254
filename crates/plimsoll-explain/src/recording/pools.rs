//! Which memory pool a block belongs to. From torch 2.12 on events say it; before that only the final segments do,
//! so a block belongs to the pool of the segment that it lies in.

use plimsoll_formats::snapshot::{PoolId, SegmentKind, Snapshot, TraceEvent};
use plimsoll_timeline::DriverCall;

use super::ranges::{Held, Ranges};
use super::rewind::Rewound;

const DEFAULT: PoolId = PoolId(0);

/// The pools during the forward walk.
pub(super) struct Pools<'s> {
    source: Source,
    /// Pools of segment events, where it is not the default pool. By event.
    private: &'s [(u32, PoolId)],
}

enum Source {
    /// There is but the default pool.
    One,
    /// Events say it.
    Events,
    /// The segment says it.
    Segments(Ranges),
}

impl<'s> Pools<'s> {
    pub fn new(snapshot: &Snapshot, start: &'s Rewound, events_say: bool) -> Self {
        let source = if snapshot.pools.len() <= 1 {
            Source::One
        } else if events_say {
            Source::Events
        } else {
            let mut ranges = Ranges::default();
            for segment in &start.segments {
                let held = Held {
                    end: segment.address.saturating_add(segment.size.get()),
                    kind: Some(segment.kind),
                    stream: segment.stream,
                    pool: segment.pool,
                    expandable: segment.expandable,
                };
                ranges.insert(segment.address, held);
            }
            Source::Segments(ranges)
        };
        Pools { source, private: &start.private }
    }

    /// The pool of the block that an event allocates.
    pub fn of_block(&self, event: &TraceEvent) -> PoolId {
        match &self.source {
            Source::One => DEFAULT,
            Source::Events => event.pool,
            Source::Segments(ranges) => {
                ranges.containing(event.address).map_or(DEFAULT, |(_, held)| held.pool)
            }
        }
    }

    /// The pool of a segment event, which is followed.
    pub fn segment_event(&mut self, index: u32, event: &TraceEvent, call: DriverCall) -> PoolId {
        let ranges = match &mut self.source {
            Source::One => return DEFAULT,
            Source::Events => return event.pool,
            Source::Segments(ranges) => ranges,
        };
        let (start, end) = (event.address, event.address.saturating_add(event.size));
        let known = self.private.binary_search_by_key(&index, |(at, _)| *at);
        let pool = known.map_or(DEFAULT, |at| self.private[at].1);
        let held = |expandable| Held {
            end,
            kind: Some(SegmentKind::Large),
            stream: event.stream,
            pool,
            expandable,
        };
        match call {
            DriverCall::SegmentAlloc => {
                ranges.insert(start, held(false));
                pool
            }
            DriverCall::SegmentMap => {
                ranges.insert_mapped(start, held(true));
                pool
            }
            DriverCall::SegmentFree => ranges.remove(start, end).map_or(pool, |held| held.pool),
            _ => ranges.cut(start, end).map_or(pool, |held| held.pool),
        }
    }
}
