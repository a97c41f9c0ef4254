//! The allocator's settings while the recording was made: what the file states, and what only its events tell.

use std::collections::BTreeMap;

use plimsoll_formats::snapshot::{
    Action, BlockState, Segment, SegmentKind, Settings, Snapshot, TraceEvent, Writer,
};
use plimsoll_timeline::{PyTorchConfig, PyTorchSettings, RoundupDivisions};
use plimsoll_units::Bytes;

use super::remark::{Remark, grouped};

/// Rounded requests up to this belong to the small pool.
const SMALL_LIMIT: u64 = 1 << 20;
/// Rounded requests from this on get a segment of their own.
const OWN_SEGMENT: u64 = 10 << 20;
/// Segments are multiples of this.
const SEGMENT_QUANTUM: u64 = 2 << 20;

/// The settings of a recording and what was assumed about them.
pub(super) fn recorded_config(
    snapshot: &Snapshot,
    device: u32,
    events: &[TraceEvent],
) -> (PyTorchConfig, Vec<Remark>) {
    // A file of 2.13 looks like one of 2.12.
    let mut config = match snapshot.writer {
        Writer::V2_14 => PyTorchConfig::for_torch(2, 14),
        Writer::V2_12 => PyTorchConfig::for_torch(2, 12),
        _ => PyTorchConfig::default(),
    };
    let mut remarks = Vec::new();
    match &snapshot.settings {
        Some(settings) => {
            remarks.extend(hidden(&mut config, &settings.conf));
            state(&mut config, settings);
        }
        None => remarks.push(Remark::assumed(
            "the file has no allocator settings (they came with torch 2.3): torch's defaults are assumed",
        )),
    }
    let expandable = snapshot.segments.iter().any(|s| s.device == device && s.expandable)
        || events.iter().any(|e| e.action == Action::SegmentMap);
    if expandable && !config.expandable_segments {
        if snapshot.settings.is_none() {
            config.expandable_segments = true;
            remarks.push(Remark::assumed("expandable segments are on: the recording maps pages"));
        } else {
            remarks.push(Remark::inconsistent(
                "the settings say expandable_segments:False, and some segments are expandable: the setting was changed while the program ran",
            ));
        }
    }
    let inferred = if config.expandable_segments {
        page(events, &config)
    } else {
        large_segment(snapshot, device, events, &config)
    };
    if let Some((size, count)) = inferred.filter(|(size, _)| *size != config.large_segment) {
        remarks.push(Remark::assumed(format!(
            "large_segment_size_mb is {}: {} segments for requests between 1 and 10 MiB are that large, and the file does not state the setting",
            size.get() >> 20,
            grouped(count),
        )));
        config.large_segment = size;
    }
    (config, remarks)
}

/// What only the text of the settings tells: the other fields of the file leave it out.
fn hidden(config: &mut PyTorchConfig, conf: &str) -> Vec<Remark> {
    let said = match PyTorchSettings::read(conf, None) {
        Ok(said) => said,
        Err(error) => {
            return vec![Remark::inconsistent(format!(
                "the text of the settings is not valid: {error}"
            ))];
        }
    };
    config.large_segment = said.config.large_segment;
    config.max_non_split_rounding = said.config.max_non_split_rounding;
    let limited = said.memory_fraction.filter(|fraction| *fraction < 1.0);
    let remark = limited.map(|fraction| {
        Remark::incomplete(format!(
            "per_process_memory_fraction is {fraction}, and the file does not say of how much memory: the limit is left out"
        ))
    });
    remark.into_iter().collect()
}

/// What `allocator_settings` states.
fn state(config: &mut PyTorchConfig, settings: &Settings) {
    config.max_split_size = settings.max_split_size;
    config.garbage_collection_threshold =
        settings.garbage_collection_threshold.filter(|t| *t > 0.0 && *t < 1.0);
    config.expandable_segments = settings.expandable_segments.unwrap_or(false);
    config.roundup_power2_divisions =
        RoundupDivisions(settings.roundup_power2_divisions.unwrap_or_default());
}

/// Segments of one size that show a setting, where no event proves it.
const ENOUGH_SEGMENTS: u64 = 3;

/// The most common size of segments made for requests between 1 and 10 MiB, and how many there are. An event of such
/// a segment proves it. Final segments that hold such requests may have been made for one larger request before, so
/// they tell only where the release has the setting and no segment has the usual size.
fn large_segment(
    snapshot: &Snapshot,
    device: u32,
    events: &[TraceEvent],
    config: &PyTorchConfig,
) -> Option<(Bytes, u64)> {
    let between = |requested: Bytes| {
        let rounded = config.rounded(requested).get();
        rounded > SMALL_LIMIT && rounded < OWN_SEGMENT
    };
    let mut votes: BTreeMap<u64, u64> = BTreeMap::new();
    for pair in events.windows(2) {
        if let [made, used] = pair
            && (made.action, used.action) == (Action::SegmentAlloc, Action::Alloc)
            && between(Bytes::new(used.size))
        {
            *votes.entry(made.size).or_default() += 1;
        }
    }
    if votes.is_empty() {
        votes = segment_votes(snapshot, device, config, &between);
    }
    let (size, count) = votes.into_iter().max_by_key(|(size, count)| (*count, *size))?;
    (size > SMALL_LIMIT && size.is_multiple_of(SEGMENT_QUANTUM))
        .then_some((Bytes::new(size), count))
}

/// Sizes of final segments in which every block in use asked for 1 to 10 MiB.
fn segment_votes(
    snapshot: &Snapshot,
    device: u32,
    config: &PyTorchConfig,
    between: &dyn Fn(Bytes) -> bool,
) -> BTreeMap<u64, u64> {
    let mut votes = BTreeMap::new();
    let has_setting =
        matches!(snapshot.writer, Writer::Unknown | Writer::V2_10 | Writer::V2_12 | Writer::V2_14);
    let large = |s: &&Segment| s.device == device && s.kind == SegmentKind::Large && !s.expandable;
    let usual = |s: &Segment| s.total_size == config.large_segment;
    if !has_setting || snapshot.segments.iter().filter(large).any(usual) {
        return votes;
    }
    for segment in snapshot.segments.iter().filter(large) {
        let blocks = segment.blocks.start as usize..segment.blocks.end as usize;
        let blocks = snapshot.blocks.get(blocks).unwrap_or_default();
        let mut used = blocks.iter().filter(|b| b.state != BlockState::Free).peekable();
        if used.peek().is_some() && used.all(|block| between(block.requested)) {
            *votes.entry(segment.total_size.get()).or_default() += 1;
        }
    }
    votes.retain(|_, count| *count >= ENOUGH_SEGMENTS);
    votes
}

/// The page of expandable segments of the large pool: what all mapped sizes are multiples of.
fn page(events: &[TraceEvent], config: &PyTorchConfig) -> Option<(Bytes, u64)> {
    let (mut divisor, mut count) = (0, 0);
    for pair in events.windows(2) {
        if let [mapped, used] = pair
            && (mapped.action, used.action) == (Action::SegmentMap, Action::Alloc)
            && config.rounded(Bytes::new(used.size)).get() > SMALL_LIMIT
        {
            divisor = greatest_common_divisor(divisor, mapped.size);
            count += 1;
        }
    }
    let usual = config.large_segment.get();
    // Few mappings can share a larger divisor by chance; a smaller one is proof.
    let proven = divisor > SMALL_LIMIT
        && divisor.is_multiple_of(SEGMENT_QUANTUM)
        && !divisor.is_multiple_of(usual);
    proven.then_some((Bytes::new(divisor), count))
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
