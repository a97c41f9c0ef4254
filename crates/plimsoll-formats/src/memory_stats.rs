//! The JSON of `torch.cuda.memory_stats()`: flat keys such as `allocated_bytes.all.current`, or the same nested.

use plimsoll_units::Bytes;
use serde_json::Value;

use crate::{FormatError, json};

const SECTION: &str = "memory statistics";
/// Longest file that is read; torch writes about 5 KB.
const MAX_LENGTH: u64 = 16 << 20;
/// Deepest nesting of names.
const MAX_DEPTH: usize = 8;

/// A quantity now, at its highest, and its history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The highest so far, or since the last reset.
    pub peak: u64,
    /// The sum of all increases.
    pub allocated: u64,
    /// The sum of all decreases.
    pub freed: u64,
}

/// What is counted for all pools together and for each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// `allocation`: live blocks.
    pub allocation: Stat,
    /// `allocated_bytes`: their bytes.
    pub allocated_bytes: Stat,
    /// `active`: live blocks and those that wait for a stream.
    pub active: Stat,
    /// `active_bytes`: their bytes.
    pub active_bytes: Stat,
    /// `requested_bytes`: what the program asked for; absent before torch 2.0.
    pub requested_bytes: Stat,
    /// `segment`: segments.
    pub segment: Stat,
    /// `reserved_bytes`: their bytes.
    pub reserved_bytes: Stat,
    /// `inactive_split`: free parts of segments in use.
    pub inactive_split: Stat,
    /// `inactive_split_bytes`: their bytes.
    pub inactive_split_bytes: Stat,
}

/// The statistics of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Both kinds of pools.
    pub all: PoolStats,
    /// `small_pool`.
    pub small_pool: PoolStats,
    /// `large_pool`.
    pub large_pool: PoolStats,
    /// Blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// Times that everything unused was given back to serve a request.
    pub num_alloc_retries: u64,
    /// Requests that failed.
    pub num_ooms: u64,
    /// Times that the allocator waited for every stream.
    pub num_sync_all_streams: Option<u64>,
    /// Calls that got memory from the driver.
    pub num_device_alloc: Option<u64>,
    /// Calls that gave memory back.
    pub num_device_free: Option<u64>,
    /// Blocks from this size on are not split; absent for no limit.
    pub max_split_size: Option<Bytes>,
    /// Every other number, by key.
    pub other: Vec<(String, i64)>,
}

/// Whether this is the text of such statistics: an object that counts allocated bytes.
pub fn is_memory_stats(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
        && bytes.windows(16).take(1 << 16).any(|w| w == b"\"allocated_bytes")
}

/// Reads the statistics of one device.
///
/// # Errors
///
/// [`FormatError::Json`] for other text; [`FormatError::Invalid`] for an object without `allocated_bytes`.
pub fn parse(bytes: &[u8]) -> Result<MemoryStats, FormatError> {
    let map = json::object(SECTION, bytes, MAX_LENGTH)?;
    let mut stats = MemoryStats::default();
    let mut counted = false;
    let mut key = String::new();
    for (name, value) in &map {
        key.clear();
        key.push_str(name);
        flatten(&mut key, value, 0, &mut |key, n| {
            counted |= key.starts_with("allocated_bytes.");
            stats.set(key, n);
        })?;
    }
    if !counted {
        return Err(FormatError::invalid(
            SECTION,
            "allocated_bytes.all.current",
            "no value, and the keys are",
            map.keys().take(5).cloned().collect::<Vec<_>>().join(", "),
            "the JSON of torch.cuda.memory_stats()",
        ));
    }
    stats.other.sort();
    Ok(stats)
}

/// Calls `each` for every number below a value, with the names to it joined by points.
fn flatten(
    key: &mut String,
    value: &Value,
    depth: usize,
    each: &mut impl FnMut(&str, i64),
) -> Result<(), FormatError> {
    match value {
        Value::Object(map) if depth < MAX_DEPTH => {
            for (name, value) in map {
                let length = key.len();
                key.push('.');
                key.push_str(name);
                flatten(key, value, depth + 1, each)?;
                key.truncate(length);
            }
        }
        Value::Number(n) => match n.as_i64().or_else(|| n.as_u64().map(|_| i64::MAX)) {
            Some(n) => each(key, n),
            None => return Err(FormatError::invalid(SECTION, key, "value", n, "whole numbers")),
        },
        Value::Bool(_) | Value::Null => {}
        other => {
            return Err(FormatError::invalid(
                SECTION,
                key,
                "value",
                json::kind(other),
                "whole numbers",
            ));
        }
    }
    Ok(())
}

impl MemoryStats {
    fn set(&mut self, key: &str, n: i64) {
        let count = u64::try_from(n).unwrap_or(0);
        match key {
            "num_alloc_retries" => self.num_alloc_retries = count,
            "num_ooms" => self.num_ooms = count,
            "num_sync_all_streams" => self.num_sync_all_streams = Some(count),
            "num_device_alloc" => self.num_device_alloc = Some(count),
            "num_device_free" => self.num_device_free = Some(count),
            "max_split_size" => {
                self.max_split_size = (n >= 0 && n != i64::MAX).then_some(Bytes::new(count));
            }
            _ => match self.slot(key) {
                Some(slot) => *slot = count,
                None => self.other.push((key.to_owned(), n)),
            },
        }
    }

    /// The number that a key of the form `name.pool.metric` or `name.metric` means.
    fn slot(&mut self, key: &str) -> Option<&mut u64> {
        let mut parts = key.split('.');
        let name = parts.next()?;
        let stat = match name {
            "oversize_allocations" => &mut self.oversize_allocations,
            "oversize_segments" => &mut self.oversize_segments,
            _ => {
                let pool = match parts.next()? {
                    "all" => &mut self.all,
                    "small_pool" => &mut self.small_pool,
                    "large_pool" => &mut self.large_pool,
                    _ => return None,
                };
                match name {
                    "allocation" => &mut pool.allocation,
                    "allocated_bytes" => &mut pool.allocated_bytes,
                    "active" => &mut pool.active,
                    "active_bytes" => &mut pool.active_bytes,
                    "requested_bytes" => &mut pool.requested_bytes,
                    "segment" => &mut pool.segment,
                    "reserved_bytes" => &mut pool.reserved_bytes,
                    "inactive_split" => &mut pool.inactive_split,
                    "inactive_split_bytes" => &mut pool.inactive_split_bytes,
                    _ => return None,
                }
            }
        };
        let slot = match parts.next()? {
            "current" => &mut stat.current,
            "peak" => &mut stat.peak,
            "allocated" => &mut stat.allocated,
            "freed" => &mut stat.freed,
            _ => return None,
        };
        parts.next().is_none().then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_flat_and_nested_keys() {
        let flat = br#"{"allocated_bytes.all.current": 512, "allocated_bytes.all.peak": 1024,
            "reserved_bytes.small_pool.freed": 7, "num_ooms": 2, "num_device_alloc": 9, "max_split_size": -1,
            "oversize_segments.peak": 3, "host.novelty": -4, "allocated_bytes.all.median": 1}"#;
        let stats = parse(flat).unwrap();
        assert!(is_memory_stats(flat));
        assert_eq!(
            (stats.all.allocated_bytes.current, stats.all.allocated_bytes.peak),
            (512, 1024)
        );
        assert_eq!((stats.small_pool.reserved_bytes.freed, stats.num_ooms), (7, 2));
        assert_eq!(
            (stats.num_device_alloc, stats.num_device_free, stats.max_split_size),
            (Some(9), None, None)
        );
        assert_eq!(stats.oversize_segments.peak, 3);
        assert_eq!(
            stats.other,
            [("allocated_bytes.all.median".to_owned(), 1), ("host.novelty".to_owned(), -4)]
        );
        let nested = br#"{"allocated_bytes": {"all": {"current": 512, "peak": 1024}}, "max_split_size": 99}"#;
        let stats = parse(nested).unwrap();
        assert_eq!(stats.all.allocated_bytes.peak, 1024);
        assert_eq!(stats.max_split_size, Some(Bytes::new(99)));
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, message) in [
            (r#"{"a": 1}"#, "the keys are a"),
            (r#"{"allocated_bytes.all.current": 1.5}"#, "whole numbers"),
            (r#"{"allocated_bytes.all.current": "x"}"#, "a string"),
            ("[]", "a JSON object in braces"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
