//! Why memory was given back: within a request that found no room, or because the program emptied the cache. The
//! trace shows the same segment events for both; what follows them and their stacks tell.

use plimsoll_formats::snapshot::{Action, Snapshot, StackId, TraceEvent};

/// Segment frees and completions that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReleaseGroup {
    /// Events of the group.
    pub length: u32,
    /// The last segment event, counted from the first.
    pub last: u32,
    /// Whether it gives memory back at all.
    pub releases: bool,
    /// Why.
    pub reason: Reason,
}

/// Why frees complete and memory is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The program emptied the cache.
    EmptiedCache,
    /// A request found no room and asks again.
    Request,
    /// Frees that were due complete at the beginning of a request.
    Polling,
}

impl ReleaseGroup {
    /// The group that begins with the first of `events`.
    ///
    /// A request that gives memory back goes on to a new segment, to new pages or to failure, with one stack for all
    /// of them. So a group that something else follows, or another stack, was an emptied cache. Without stacks, what
    /// follows decides.
    pub fn new(snapshot: &Snapshot, events: &[TraceEvent]) -> Self {
        let (mut length, mut last, mut first) = (0, 0, None);
        for (at, event) in (0u32..).zip(events) {
            match event.action {
                Action::SegmentFree | Action::SegmentUnmap => {
                    last = at;
                    first = first.or(Some(event));
                }
                Action::FreeCompleted | Action::Other => {}
                _ => break,
            }
            length = at + 1;
        }
        let goes_on = events.get(length as usize).filter(|next| {
            matches!(next.action, Action::SegmentAlloc | Action::SegmentMap | Action::OutOfMemory)
        });
        let reason = match (first, goes_on) {
            (Some(first), Some(next)) if is_one_request(snapshot, first, next) => Reason::Request,
            (Some(_), _) => Reason::EmptiedCache,
            (None, Some(next)) if next.action == Action::OutOfMemory => Reason::Request,
            (None, _) => Reason::Polling,
        };
        ReleaseGroup { length, last, releases: first.is_some(), reason }
    }
}

/// Whether memory was given back by the request that asks for memory next.
fn is_one_request(snapshot: &Snapshot, gives_back: &TraceEvent, asks: &TraceEvent) -> bool {
    if gives_back.stack.is_none() || asks.stack.is_none() {
        return !names_empty_cache(snapshot, gives_back.stack);
    }
    gives_back.stack == asks.stack
}

fn names_empty_cache(snapshot: &Snapshot, stack: StackId) -> bool {
    let mut frames = snapshot.stacks.get(stack).iter();
    frames.any(|frame| {
        let frame = snapshot.frames.get(frame.0 as usize);
        let function = frame.map_or("", |frame| snapshot.names.get(frame.function));
        function == "empty_cache" || function.contains("emptyCache")
    })
}
