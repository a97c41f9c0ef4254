//! The keys that torch's settings know: since when, what each accepts, and whether it changes device memory.

use plimsoll_units::Bytes;

use super::conf_text::{SettingError, TorchRelease};

/// The other backend's name.
pub(super) const MALLOC_ASYNC: &str = "cudaMallocAsync";

/// What a key sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Backend,
    Divisions,
    Expandable,
    GarbageCollection,
    LargeSegment,
    MaxNonSplitRounding,
    MaxSplitSize,
    MemoryFraction,
    ThrowOnOom,
    /// Timing or host memory: accepted, checked, without effect on device memory.
    Other(Effect),
}

/// What the value of a setting without effect must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// A boolean.
    Flag,
    /// A power of two up to 128.
    Threads,
    /// A whole number above zero.
    Positive,
    /// Any whole number.
    Count,
    /// Address space of expandable segments, which costs no memory.
    Reservation,
}

/// A key.
#[derive(Debug)]
pub(super) struct Key {
    pub name: &'static str,
    /// The name that builds for AMD GPUs also take.
    alias: &'static str,
    pub since: TorchRelease,
    pub setting: Setting,
}

const fn key(name: &'static str, since: TorchRelease, setting: Setting) -> Key {
    Key { name, alias: "", since, setting }
}

const fn flag(name: &'static str, alias: &'static str, since: TorchRelease) -> Key {
    Key { name, alias, since, setting: Setting::Other(Effect::Flag) }
}

/// Every key, in alphabetical order. Releases of the `pinned_` keys are not dated: they are never too new.
pub(super) static KEYS: [Key; 20] = [
    key("backend", (2, 0), Setting::Backend),
    key("expandable_segments", (2, 1), Setting::Expandable),
    key("expandable_segments_reserve", (2, 15), Setting::Other(Effect::Reservation)),
    key("expandable_segments_reserve_by_class", (2, 15), Setting::Other(Effect::Reservation)),
    key("garbage_collection_threshold", (1, 12), Setting::GarbageCollection),
    flag("graph_capture_record_stream_reuse", "", (2, 9)),
    key("large_segment_size_mb", (2, 11), Setting::LargeSegment),
    key("max_non_split_rounding_mb", (2, 6), Setting::MaxNonSplitRounding),
    key("max_split_size_mb", (1, 10), Setting::MaxSplitSize),
    key("per_process_memory_fraction", (2, 10), Setting::MemoryFraction),
    flag("pinned_free_catch_all", "", (2, 0)),
    key("pinned_max_cached_size_mb", (2, 0), Setting::Other(Effect::Count)),
    key("pinned_max_round_threshold_mb", (2, 0), Setting::Other(Effect::Count)),
    key("pinned_num_register_threads", (2, 0), Setting::Other(Effect::Threads)),
    key("pinned_reserve_segment_size_mb", (2, 0), Setting::Other(Effect::Positive)),
    flag("pinned_use_background_threads", "", (2, 0)),
    flag("pinned_use_cuda_host_register", "pinned_use_hip_host_register", (2, 0)),
    flag("release_lock_on_cudamalloc", "release_lock_on_hipmalloc", (2, 2)),
    key("roundup_power2_divisions", (1, 12), Setting::Divisions),
    key("throw_on_cudamalloc_oom", (2, 12), Setting::ThrowOnOom),
];

impl Key {
    /// The key of a name, if the release knows it.
    pub fn find(name: &str, release: Option<TorchRelease>) -> Result<&'static Key, SettingError> {
        let found =
            KEYS.iter().find(|k| k.name == name || (!k.alias.is_empty() && k.alias == name));
        let Some(key) = found else {
            // The name as far as it is one, cut where a message would become a page.
            let shown: String = name.chars().take(60).collect();
            return Err(SettingError::Unknown { nearest: nearest(&shown), key: shown });
        };
        match release {
            Some(release) if release < key.since => {
                Err(SettingError::TooNew { key: key.name, since: key.since, release })
            }
            _ => Ok(key),
        }
    }

    /// The key that sets something.
    pub fn of(setting: Setting) -> &'static Key {
        KEYS.iter().find(|k| k.setting == setting).unwrap_or(&KEYS[0])
    }

    /// Whether its value may stand in brackets.
    pub fn takes_list(&self) -> bool {
        matches!(self.setting, Setting::Divisions | Setting::Other(Effect::Reservation))
    }

    /// What it accepts, given the large segment.
    pub fn accepted(&self, large: Bytes) -> String {
        let large = large.get() >> 20;
        match self.setting {
            Setting::Backend => format!("native or {MALLOC_ASYNC}"),
            Setting::Divisions => {
                "a power of two, or a list [MB:STEPS,...,>:STEPS] of powers of two, where 0 STEPS are off".to_owned()
            }
            Setting::GarbageCollection => "between 0 and 1, both excluded".to_owned(),
            Setting::MemoryFraction => "from 0 to 1".to_owned(),
            Setting::LargeSegment => "a whole number above 10 (MiB)".to_owned(),
            Setting::MaxSplitSize | Setting::MaxNonSplitRounding => {
                format!("a whole number of at least {large} (MiB, the large segment)")
            }
            Setting::Expandable | Setting::ThrowOnOom | Setting::Other(Effect::Flag) => {
                "True or False, so written".to_owned()
            }
            Setting::Other(Effect::Threads) => "a power of two, 128 at most".to_owned(),
            Setting::Other(Effect::Positive) => "a whole number above 0".to_owned(),
            Setting::Other(Effect::Count) => "a whole number".to_owned(),
            Setting::Other(Effect::Reservation) => "a fraction, or a size such as 40G".to_owned(),
        }
    }

    /// An example that is accepted.
    fn example(&self, large: Bytes) -> String {
        let large = large.get() >> 20;
        match self.setting {
            Setting::Backend => "native".to_owned(),
            Setting::Divisions => "[256:1,512:2,1024:4,>:8]".to_owned(),
            Setting::GarbageCollection | Setting::MemoryFraction => "0.8".to_owned(),
            Setting::LargeSegment => "12".to_owned(),
            Setting::MaxSplitSize | Setting::MaxNonSplitRounding => large.max(128).to_string(),
            Setting::Expandable | Setting::ThrowOnOom | Setting::Other(Effect::Flag) => {
                "True".to_owned()
            }
            Setting::Other(Effect::Threads | Effect::Positive | Effect::Count) => "8".to_owned(),
            Setting::Other(Effect::Reservation) => "0.5".to_owned(),
        }
    }

    /// The error for a value that is not accepted.
    pub fn refuse(&self, value: &str, large: Bytes) -> SettingError {
        SettingError::Value {
            key: self.name,
            value: value.chars().take(60).collect(),
            accepted: self.accepted(large),
            cure: format!("write {}:{}, or leave it out", self.name, self.example(large)),
        }
    }
}

/// The key that a name was probably meant to be: the same letters in lower case, or one or two letters apart.
fn nearest(name: &str) -> Option<&'static str> {
    let wanted = name.to_ascii_lowercase().replace('-', "_");
    // `max_split_size` for `max_split_size_mb`.
    let starts =
        |k: &&Key| wanted.len() >= 7 && (k.name.starts_with(&wanted) || wanted.starts_with(k.name));
    let close = |k: &&Key| distance(k.name.as_bytes(), wanted.as_bytes()) <= 2;
    KEYS.iter().find(close).or_else(|| KEYS.iter().find(starts)).map(|k| k.name)
}

/// Letters to insert, drop or change.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
