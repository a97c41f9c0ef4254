//! The settings that a search tries, in the order in which it tries them: what is most likely to help comes first,
//! since a long recording may leave time for some of them only.

use plimsoll_formats::snapshot::Writer;
use plimsoll_timeline::{PyTorchConfig, PyTorchSettings, RoundupDivisions, TorchRelease};
use plimsoll_units::Bytes;

use super::TuneOptions;

/// Values of `max_split_size_mb`: torch's documentation names no value; these are the powers of two from its least
/// one on, and larger ones never bound a block of these sizes differently in practice.
const MAX_SPLIT_MB: [u64; 7] = [32, 64, 128, 256, 512, 1024, 2048];

/// Values of `roundup_power2_divisions`: more than 16 steps round to less than 3 % and no longer make blocks alike;
/// one step doubles.
const ROUNDUP: [u32; 4] = [16, 8, 4, 2];

/// Values of `large_segment_size_mb`. The least that torch accepts is above 10; 12 is used in practice.
const LARGE_SEGMENT_MB: [u64; 4] = [12, 32, 64, 128];

/// Values of `garbage_collection_threshold`; torch's documentation uses 0.8.
const COLLECT_ABOVE: [f64; 3] = [0.9, 0.8, 0.6];

/// The release that the settings are for: the earliest that could have written the file.
pub(crate) fn release(writer: Writer) -> Option<TorchRelease> {
    Some(match writer {
        Writer::V2_0 => (2, 0),
        Writer::V2_1 => (2, 1),
        Writer::V2_2 => (2, 2),
        Writer::V2_3 => (2, 3),
        Writer::V2_5 => (2, 5),
        Writer::V2_8 => (2, 8),
        Writer::V2_9 => (2, 9),
        Writer::V2_10 => (2, 10),
        Writer::V2_12 => (2, 12),
        Writer::V2_14 => (2, 14),
        _ => return None,
    })
}

/// Every candidate other than the recorded settings themselves, each once.
pub(super) fn candidates(recorded: &PyTorchConfig, options: &TuneOptions) -> Vec<PyTorchSettings> {
    let mut space = Space { seen: vec![plain(recorded)], found: Vec::new(), options };
    let since = |release| options.release.is_none_or(|ours| ours >= release);
    let expandable: &[bool] = if since((2, 1)) { &[true, false] } else { &[false] };
    let large: Vec<Option<u64>> = if since((2, 11)) {
        std::iter::once(None).chain(LARGE_SEGMENT_MB.map(Some)).collect()
    } else {
        vec![None]
    };
    // One setting at a time, then pairs and triples: the layout settings exclude each other in part.
    let splits: Vec<Option<u64>> = std::iter::once(None).chain(MAX_SPLIT_MB.map(Some)).collect();
    let roundups: Vec<u32> = std::iter::once(0).chain(ROUNDUP).collect();
    let mut all = Vec::new();
    for &expandable in expandable {
        for &split in &splits {
            // Expandable segments are split always, and blocks of max_split_size are few then.
            if expandable && split.is_some() {
                continue;
            }
            for &roundup in &roundups {
                for &large in &large {
                    let fits = split.zip(large).is_none_or(|(split, large)| split >= large);
                    if fits {
                        all.push(Layout { expandable, split, roundup, large });
                    }
                }
            }
        }
    }
    all.sort_by_key(Layout::changes);
    for layout in &all {
        space.add(layout.settings(recorded), None);
    }
    for threshold in COLLECT_ABOVE {
        for layout in all.iter().filter(|layout| layout.changes() <= 1 && !layout.expandable) {
            space.add(layout.settings(recorded), Some(threshold));
        }
    }
    space.found
}

/// The settings that decide how memory is laid out.
#[derive(Clone, Copy, Debug)]
struct Layout {
    expandable: bool,
    split: Option<u64>,
    roundup: u32,
    large: Option<u64>,
}

impl Layout {
    /// How many settings it changes from torch's defaults.
    fn changes(&self) -> u32 {
        u32::from(self.expandable)
            + u32::from(self.split.is_some())
            + u32::from(self.roundup > 0)
            + u32::from(self.large.is_some())
    }

    fn settings(&self, recorded: &PyTorchConfig) -> PyTorchSettings {
        let mut settings = PyTorchSettings::default();
        // What belongs to the release stays.
        settings.config = recorded.clone();
        let config = &mut settings.config;
        (config.garbage_collection_threshold, config.memory_limit) = (None, None);
        config.expandable_segments = self.expandable;
        config.max_split_size = self.split.map(Bytes::mib);
        config.roundup_power2_divisions = RoundupDivisions::uniform(self.roundup);
        config.large_segment = self.large.map_or(Bytes::mib(20), Bytes::mib);
        config.max_non_split_rounding = config.large_segment;
        settings
    }
}

struct Space<'o> {
    seen: Vec<PyTorchConfig>,
    found: Vec<PyTorchSettings>,
    options: &'o TuneOptions,
}

impl Space<'_> {
    /// Adds a candidate. Garbage collection needs a memory limit, so it is tried only where the device's memory is
    /// known: the limit is the capacity, as a fraction of it.
    fn add(&mut self, mut settings: PyTorchSettings, collect_above: Option<f64>) {
        if let Some(threshold) = collect_above {
            let limit = self.options.capacity.zip(self.options.device_total);
            let Some((capacity, total)) = limit.filter(|(c, t)| !c.is_zero() && c <= t) else {
                return;
            };
            // In whole percent, rounded down, and below 1: torch takes 1 as no limit.
            let percent = (u128::from(capacity.get()) * 100 / u128::from(total.get())).min(99);
            settings.config.garbage_collection_threshold = Some(threshold);
            settings.memory_fraction = Some(percent as f64 / 100.0);
            settings.config.memory_limit = Some(total.scale(percent as u64, 100));
        }
        let plain = plain(&settings.config);
        if !self.seen.contains(&plain) {
            self.seen.push(plain);
            self.found.push(settings);
        }
    }
}

/// A configuration without the machine's part.
fn plain(config: &PyTorchConfig) -> PyTorchConfig {
    let mut config = config.clone();
    config.capacity = None;
    if config.garbage_collection_threshold.is_none() {
        config.memory_limit = None;
    }
    config
}
