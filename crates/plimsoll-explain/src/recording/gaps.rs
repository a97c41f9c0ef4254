//! Who owns the bytes after a block that exists only in the past. Its request is known, its size is not: a block of
//! the large pool that was not split keeps up to 1 MiB more than was asked for.

use std::collections::BTreeMap;

use plimsoll_formats::snapshot::{Action, SegmentKind, TraceEvent};
use plimsoll_timeline::PyTorchConfig;
use plimsoll_units::Bytes;

use super::remark::Oddities;
use super::rewind::{StartBlock, StartSegment};

/// A remainder up to this, inclusive, is not split off in the large pool, so no free block there is smaller.
const LARGEST_SLACK: u64 = 1 << 20;

/// A block of the start state, and whether the file states its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub block: StartBlock,
    pub known: bool,
}

/// Gives blocks of unknown size the slack that is theirs.
///
/// A gap of 1 MiB or less cannot be a free block, so the block owns it. A larger gap is a free block, but up to
/// 1 MiB at its beginning may belong to the block: one that was not split, and whose neighbour was freed later. The
/// first allocation in the gap while the block lives starts where the free block starts.
pub(super) fn settle(
    segments: &[StartSegment],
    mut placed: Vec<Placed>,
    events: &[TraceEvent],
    config: &PyTorchConfig,
    oddities: &mut Oddities,
) -> Vec<StartBlock> {
    // Gap start -> (gap end, the most that the block may own, index of the block).
    let mut open: BTreeMap<u64, (u64, u64, usize)> = BTreeMap::new();
    for i in 0..placed.len() {
        let Placed { block, known } = placed[i];
        let Some(segment) = segments.get(block.segment as usize) else { continue };
        if known || segment.kind == SegmentKind::Small || segment.expandable {
            continue;
        }
        let end = segment.address + segment.size.get();
        let start = block.address + block.size.get();
        let next = placed.get(i + 1).map_or(end, |next| end.min(next.block.address));
        let most = largest_slack(block.size, config);
        match next.saturating_sub(start) {
            0 => {}
            gap if gap <= most => placed[i].block.size += Bytes::new(gap),
            _ => {
                open.insert(start, (next, most, i));
            }
        }
    }
    ask_events(open, &mut placed, events, oddities);
    placed.into_iter().map(|placed| placed.block).collect()
}

/// Oversize blocks are never split; others are when more than 1 MiB remains.
fn largest_slack(rounded: Bytes, config: &PyTorchConfig) -> u64 {
    match config.max_split_size {
        Some(max) if rounded >= max => config.max_non_split_rounding.get().max(LARGEST_SLACK),
        _ => LARGEST_SLACK,
    }
}

fn ask_events(
    mut open: BTreeMap<u64, (u64, u64, usize)>,
    placed: &mut [Placed],
    events: &[TraceEvent],
    oddities: &mut Oddities,
) {
    // Where the block of each open gap starts, to close the question when that block is freed.
    let mut gap_of: BTreeMap<u64, u64> =
        open.iter().map(|(gap, (_, _, i))| (placed[*i].block.address, *gap)).collect();
    for event in events {
        if open.is_empty() {
            return;
        }
        match event.action {
            Action::Alloc => {
                let found = open.range(..=event.address).next_back();
                let Some((&gap, &(end, most, i))) = found else { continue };
                if event.address >= end {
                    continue;
                }
                let slack = event.address - gap;
                if slack > 0 && slack <= most {
                    placed[i].block.size += Bytes::new(slack);
                    oddities.slack_resolved += 1;
                }
                gap_of.remove(&placed[i].block.address);
                open.remove(&gap);
            }
            Action::FreeCompleted => {
                if let Some(gap) = gap_of.remove(&event.address) {
                    open.remove(&gap);
                }
            }
            _ => {}
        }
    }
}
