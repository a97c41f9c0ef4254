//! The allocator before the first event: as it was recorded, or with the same blocks put in place afresh under other
//! settings.

use plimsoll_formats::snapshot::{Action, SegmentKind};
use plimsoll_timeline::{
    Allocator, BlockHandle, BlockState, Driver, DriverCall, Layout, LayoutBlock, LayoutError,
    LayoutReservation, LayoutSegment, OutOfMemory, PoolId, PoolKind, PyTorchAllocator,
    PyTorchConfig,
};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::whatif::Torch;
use crate::recording::{Recording, Remark, counted};

/// Rounded requests up to this belong to the small pool.
const SMALL_LIMIT: u64 = 1 << 20;

/// Address space of a reservation whose length is not known: more than any device has.
const RESERVATION: u64 = 1 << 42;

/// How the blocks that were there before the first event are put in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "how")]
#[non_exhaustive]
pub enum StartState {
    /// In the segments that the recording shows, free blocks included.
    AsRecorded,
    /// In the recorded segments, after the cache was emptied: with it they do not fit.
    CacheEmptied {
        /// What emptying gave back.
        given_back: Bytes,
    },
    /// Allocated anew in the order of their recorded addresses, nothing freed between: the settings lay memory out
    /// in another way, or the recorded segments do not fit.
    Remade {
        /// Reserved by the recording for the same blocks.
        recorded: Bytes,
    },
}

/// The recorded start state as the allocator sees it.
pub(super) fn layout(recording: &Recording<'_>) -> Layout {
    let mut blocks = recording.start_blocks.iter().peekable();
    let segments = (0u32..).zip(&recording.start_segments).map(|(index, segment)| {
        let mut tiles = Vec::new();
        let mut at = segment.address;
        let free = |from: u64, to: u64| LayoutBlock {
            address: from,
            size: Bytes::new(to - from),
            requested: Bytes::ZERO,
            state: BlockState::Free,
        };
        while let Some(block) = blocks.next_if(|block| block.segment == index) {
            if block.address > at {
                tiles.push(free(at, block.address));
            }
            tiles.push(LayoutBlock {
                address: block.address,
                size: block.size,
                requested: block.requested,
                // The timeline's first events free those that wait.
                state: BlockState::Allocated,
            });
            at = block.address + block.size.get();
        }
        let end = segment.address + segment.size.get();
        if at < end {
            tiles.push(free(at, end));
        }
        LayoutSegment {
            address: segment.address,
            size: segment.size,
            kind: match segment.kind {
                SegmentKind::Small => PoolKind::Small,
                SegmentKind::Large => PoolKind::Large,
            },
            stream: segment.stream.0,
            pool: PoolId(segment.pool.0),
            expandable: segment.expandable,
            blocks: tiles,
        }
    });
    let segments: Vec<LayoutSegment> = segments.collect();
    let reservations = reservations(recording, &segments);
    Layout { segments, reservations }
}

/// The address ranges of expandable segments that reach below their lowest mapped page: pages that are mapped later,
/// below a range of the same stream, pool and kind and with nothing else between, belong to the same reservation.
fn reservations(recording: &Recording<'_>, segments: &[LayoutSegment]) -> Vec<LayoutReservation> {
    let mut lowest: Vec<LayoutReservation> = Vec::new();
    let mut seen: Vec<(PoolKind, u16, PoolId)> = Vec::new();
    for (index, segment) in segments.iter().enumerate().filter(|(_, s)| s.expandable) {
        let LayoutSegment { address, size, kind, stream, pool, .. } = *segment;
        if seen.contains(&(kind, stream, pool)) {
            continue;
        }
        seen.push((kind, stream, pool));
        let below =
            index.checked_sub(1).map_or(0, |i| segments[i].address + segments[i].size.get());
        let events = recording.events();
        let first = (recording.driver.iter())
            .filter(|call| call.event.call == DriverCall::SegmentMap)
            .filter(|call| (below..address).contains(&call.event.address))
            .filter(|call| {
                let index = call.trace_index as usize;
                let mut later = events.get(index..).unwrap_or_default().iter();
                let served = later.find(|event| event.action == Action::Alloc);
                let ours = events
                    .get(index)
                    .is_some_and(|event| (event.stream.0, event.pool.0) == (stream, pool.0));
                ours && served.is_some_and(|served| {
                    let rounded = recording.config.rounded(Bytes::new(served.size)).get();
                    (rounded > SMALL_LIMIT) == (kind == PoolKind::Large)
                })
            })
            .map(|call| call.event.address)
            .min();
        if let Some(first) = first {
            let mut above = segments[index + 1..].iter();
            let other =
                above.find(|s| !s.expandable || (s.kind, s.stream, s.pool) != (kind, stream, pool));
            let end = other.map_or(u64::MAX, |s| s.address).min(first.saturating_add(RESERVATION));
            let size = Bytes::new(end.max(address + size.get()) - first);
            lowest.push(LayoutReservation { address: first, size, kind, stream, pool });
        }
    }
    lowest
}

/// The recorded start state on a driver, and the blocks of the existing tensors.
pub(super) fn as_recorded<D: Driver>(
    recording: &Recording<'_>,
    config: PyTorchConfig,
    driver: D,
) -> Result<(PyTorchAllocator<D>, Vec<Option<BlockHandle>>), LayoutError> {
    let (torch, blocks) = PyTorchAllocator::from_layout_on(config, &layout(recording), driver)?;
    Ok((torch, blocks.into_iter().map(Some).collect()))
}

/// The start of a what-if: allocator, blocks of the existing tensors, and how it was done.
pub(super) type Started = (Torch, Vec<Option<BlockHandle>>, StartState);

/// The start state under a configuration: as recorded where it lays memory out as the recorded one does and the
/// segments fit, else remade.
pub(super) fn under(
    recording: &Recording<'_>,
    config: &PyTorchConfig,
) -> Result<Started, (StartState, OutOfMemory)> {
    if lays_out_alike(&recording.config, config)
        && let Ok((mut torch, blocks)) =
            PyTorchAllocator::from_layout(config.clone(), &layout(recording))
    {
        let most = config.capacity.unwrap_or(Bytes::MAX);
        let most = most.min(config.memory_limit.unwrap_or(Bytes::MAX));
        let reserved = |torch: &Torch| Allocator::usage(torch).reserved;
        let before = reserved(&torch);
        let mut state = StartState::AsRecorded;
        if before > most {
            torch.empty_cache();
            state = StartState::CacheEmptied { given_back: before - reserved(&torch) };
        }
        if reserved(&torch) <= most {
            return Ok((torch, blocks.into_iter().map(Some).collect(), state));
        }
    }
    remade(recording, config)
}

/// Allocates the blocks of the start state in the order of their addresses.
pub(super) fn remade(
    recording: &Recording<'_>,
    config: &PyTorchConfig,
) -> Result<Started, (StartState, OutOfMemory)> {
    let recorded = recording.start_segments.iter().map(|segment| segment.size).sum();
    let state = StartState::Remade { recorded };
    let mut torch = PyTorchAllocator::new(config.clone());
    let existing = recording.timeline.existing() as usize;
    let mut blocks = Vec::with_capacity(recording.timeline.allocations().len());
    for tensor in recording.timeline.allocations().iter().take(existing) {
        let block = torch.malloc_in(tensor.pool, tensor.requested, tensor.stream);
        blocks.push(Some(block.map_err(|error| (state, error))?));
    }
    Ok((torch, blocks, state))
}

/// Whether two configurations put the same requests into the same places as long as memory lasts.
pub(super) fn lays_out_alike(a: &PyTorchConfig, b: &PyTorchConfig) -> bool {
    a.max_split_size == b.max_split_size
        && a.max_non_split_rounding == b.max_non_split_rounding
        && a.roundup_power2_divisions == b.roundup_power2_divisions
        && a.expandable_segments == b.expandable_segments
        && a.large_segment == b.large_segment
}

/// What was assumed about the start state, in sentences.
pub(super) fn remarks(recording: &Recording<'_>, state: &StartState) -> Vec<Remark> {
    let blocks = counted(recording.start_blocks.len() as u64, "block");
    match state {
        _ if recording.start_segments.is_empty() => Vec::new(),
        StartState::AsRecorded => vec![Remark::assumed(format!(
            "the {blocks} from before the recording lie where they were recorded"
        ))],
        StartState::CacheEmptied { given_back } => vec![Remark::assumed(format!(
            "the {blocks} from before the recording lie where they were recorded; {given_back} of cached memory were given back first, since they would not fit"
        ))],
        StartState::Remade { recorded } => vec![Remark::assumed(format!(
            "the {blocks} from before the recording (in {recorded} of segments) are allocated anew in the order of their addresses, without the free memory between them: what happened to them under other settings is not known"
        ))],
    }
}
