//! The allocator's settings with torch's defaults, and the arithmetic that depends on nothing else: how a request
//! is rounded, which pool serves it, how large a new segment is and when a block is split.

use plimsoll_units::Bytes;

use super::{CaptureRule, PendingFrees, PoolKind};

/// The rounding quantum and the smallest block.
pub(super) const MIN_BLOCK: u64 = 512;
/// Rounded requests up to this, inclusive, belong to the small pool.
pub(super) const SMALL_LIMIT: u64 = 1 << 20;
/// Every segment of the small pool.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// Rounded requests from this on get a segment of their own.
const MIN_LARGE_ALLOC: u64 = 10 << 20;
/// What such a segment is rounded up to; also the alignment of every segment.
pub(super) const LARGE_ROUNDING: u64 = 2 << 20;
/// Larger requests fail without a look at any pool: 32 PiB. Torch refuses above 1 EiB; no device holds either,
/// and the tighter limit lets a size and an address share one machine word of the free lists.
pub(super) const MAX_REQUEST: u64 = 1 << 55;

/// How free blocks of the same size are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TieBreak {
    /// The lowest address first: torch up to and including 2.11.
    #[default]
    LowestAddress,
    /// The block object that was created first: torch 2.12. A split makes a new object for the part that is handed
    /// out; a merge keeps the object of the block that is being freed.
    OldestBlock,
    /// The segment that was made first, and the lowest address within it: torch from 2.13 on.
    OldestSegment,
}

/// `roundup_power2_divisions`: into how many equal steps the sizes between two powers of two are divided. Entry `i`
/// is for sizes from 2^(20+i) bytes; the first entry also serves smaller sizes and the last one larger sizes. Zero
/// and one turn the rounding off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundupDivisions(pub [u32; 16]);

impl RoundupDivisions {
    /// The same number of steps for every size.
    pub const fn uniform(divisions: u32) -> Self {
        RoundupDivisions([divisions; 16])
    }

    const fn for_size(&self, size: u64) -> u64 {
        let class = size.ilog2().saturating_sub(20);
        self.0[if class > 15 { 15 } else { class as usize }] as u64
    }
}

/// Settings of [`PyTorchAllocator`](super::PyTorchAllocator); the default is torch's.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PyTorchConfig {
    /// Blocks from this size on are neither split nor given to smaller requests; `None` for no such size.
    pub max_split_size: Option<Bytes>,
    /// How much larger than an oversize request a cached oversize block may be. Where `max_non_split_rounding_mb` is
    /// not set, torch takes the [`large_segment`](Self::large_segment), also when that was set.
    pub max_non_split_rounding: Bytes,
    /// Coarser rounding of requests.
    pub roundup_power2_divisions: RoundupDivisions,
    /// Fraction of [`memory_limit`](Self::memory_limit), between 0 and 1, above which unused segments are given
    /// back before a new one is made. Without a limit it does nothing, as in torch.
    pub garbage_collection_threshold: Option<f64>,
    /// Grow one address range page by page instead of making separate segments.
    pub expandable_segments: bool,
    /// Segment for rounded requests above 1 MiB and below 10 MiB; also the page of expandable segments.
    pub large_segment: Bytes,
    /// Order among free blocks of one size.
    pub tie_break: TieBreak,
    /// What counts as a capture.
    pub captures: CaptureRule,
    /// The most that may be reserved (`set_per_process_memory_fraction` x total memory).
    pub memory_limit: Option<Bytes>,
    /// `throw_on_cudamalloc_oom`: requests that would reserve more than this (`per_process_memory_fraction` x total
    /// memory) fail at once, without giving anything back. [`memory_limit`](Self::memory_limit) is looked at first.
    pub reject_above: Option<Bytes>,
    /// When frees that wait for another stream complete, where no recording says it.
    pub pending_frees: PendingFrees,
    /// Bytes that the driver has to give; `None` for as many as are asked for.
    pub capacity: Option<Bytes>,
}

impl Default for PyTorchConfig {
    fn default() -> Self {
        PyTorchConfig {
            max_split_size: None,
            max_non_split_rounding: Bytes::mib(20),
            roundup_power2_divisions: RoundupDivisions::default(),
            garbage_collection_threshold: None,
            expandable_segments: false,
            large_segment: Bytes::mib(20),
            tie_break: TieBreak::default(),
            captures: CaptureRule::default(),
            memory_limit: None,
            reject_above: None,
            pending_frees: PendingFrees::default(),
            capacity: None,
        }
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `garbage_collection_threshold`.
    #[error("garbage_collection_threshold is {0}; it must lie between 0 and 1, both excluded")]
    GarbageCollectionThreshold(f64),
    /// `max_split_size`.
    #[error("max_split_size is {0}; it must be at least the large segment ({1})")]
    MaxSplitSize(Bytes, Bytes),
    /// `large_segment`.
    #[error("large_segment is {0}; it must be more than 1 MiB and a multiple of 2 MiB")]
    LargeSegment(Bytes),
    /// `roundup_power2_divisions`.
    #[error("roundup_power2_divisions holds {0}; every entry must be 0 or a power of two")]
    RoundupDivisions(u32),
}

impl PyTorchConfig {
    /// The defaults of a version of torch: what changed over the versions without a setting. Versions before 2.11
    /// are taken to be like it; 2.11 to 2.15 were compared with the real allocator.
    pub fn for_torch(major: u32, minor: u32) -> Self {
        let (tie_break, captures) = match (major, minor) {
            (..=1, _) | (2, ..=11) => (TieBreak::LowestAddress, CaptureRule::AnyRouting),
            (2, 12) => (TieBreak::OldestBlock, CaptureRule::AnyRouting),
            _ => (TieBreak::OldestSegment, CaptureRule::GraphCapture),
        };
        PyTorchConfig { tie_break, captures, ..PyTorchConfig::default() }
    }

    /// Whether torch would accept these settings. The allocator itself stays well defined without this check: a
    /// threshold outside (0, 1) is off, divisions are rounded down to a power of two, and a segment is never
    /// smaller than the request that it is made for.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(t) = self.garbage_collection_threshold
            && !(t > 0.0 && t < 1.0)
        {
            return Err(ConfigError::GarbageCollectionThreshold(t));
        }
        let segment = self.large_segment;
        if segment.get() <= SMALL_LIMIT || !segment.get().is_multiple_of(LARGE_ROUNDING) {
            return Err(ConfigError::LargeSegment(segment));
        }
        match self.max_split_size {
            Some(size) if size < segment => {
                return Err(ConfigError::MaxSplitSize(size, segment));
            }
            _ => {}
        }
        match self.roundup_power2_divisions.0.iter().find(|d| **d != 0 && !d.is_power_of_two()) {
            Some(bad) => Err(ConfigError::RoundupDivisions(*bad)),
            None => Ok(()),
        }
    }

    /// A request as the allocator counts it: at least 512 bytes, a multiple of 512, coarser if
    /// [`roundup_power2_divisions`](Self::roundup_power2_divisions) says so. Slack of a block that is not split
    /// comes on top and depends on the blocks that are free.
    ///
    /// ```
    /// use plimsoll_timeline::PyTorchConfig;
    /// use plimsoll_units::Bytes;
    /// let torch = PyTorchConfig::default();
    /// assert_eq!(torch.rounded(Bytes::new(1)), Bytes::new(512));
    /// assert_eq!(torch.segment_size(Bytes::mib(3)), Bytes::mib(20));
    /// ```
    pub fn rounded(&self, requested: Bytes) -> Bytes {
        let size = requested.get();
        if size < MIN_BLOCK {
            return Bytes::new(MIN_BLOCK);
        }
        let divisions = self.roundup_power2_divisions.for_size(size);
        if divisions > 1 && size > MIN_BLOCK.saturating_mul(divisions) {
            let step = (1 << size.ilog2()) >> divisions.ilog2();
            return requested.round_up(Bytes::new(step));
        }
        requested.round_up(Bytes::new(MIN_BLOCK))
    }

    /// Bytes of the segment that is made for a rounded request when no cached block serves it.
    pub fn segment_size(&self, rounded: Bytes) -> Bytes {
        let size = rounded.get();
        if size <= SMALL_LIMIT {
            Bytes::new(SMALL_SEGMENT)
        } else if size < MIN_LARGE_ALLOC {
            self.large_segment.max(rounded).round_up(Bytes::new(LARGE_ROUNDING))
        } else {
            rounded.round_up(Bytes::new(LARGE_ROUNDING))
        }
    }
}

/// The settings as the replay wants them: plain words, options resolved.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub config: PyTorchConfig,
    coarse: bool,
    pub max_split: u64,
    pub max_non_split_rounding: u64,
    pub expandable: bool,
    /// Whether the order of a block moves with its beginning, see [`Block::order`](super::arena::Block).
    pub order_is_position: bool,
    pub routing_is_capture: bool,
    pub limit: u64,
    pub reject_above: u64,
    /// Reserved bytes above which unused segments are collected.
    pub collect_above: Option<u64>,
}

impl Rules {
    pub fn new(config: PyTorchConfig) -> Self {
        let threshold = config.garbage_collection_threshold.filter(|t| *t > 0.0 && *t < 1.0);
        Rules {
            coarse: config.roundup_power2_divisions.0.iter().any(|d| *d > 1),
            // No block is larger than the largest request: such a limit is none.
            max_split: (config.max_split_size.map(Bytes::get))
                .filter(|size| *size <= MAX_REQUEST)
                .unwrap_or(u64::MAX),
            max_non_split_rounding: config.max_non_split_rounding.get(),
            expandable: config.expandable_segments,
            order_is_position: config.tie_break != TieBreak::OldestBlock,
            routing_is_capture: config.captures == CaptureRule::AnyRouting,
            limit: config.memory_limit.map_or(u64::MAX, Bytes::get),
            reject_above: config.reject_above.map_or(u64::MAX, Bytes::get),
            // The same product of doubles that torch truncates, taken once.
            collect_above: threshold
                .zip(config.memory_limit)
                .map(|(threshold, limit)| (threshold * limit.get() as f64) as u64),
            config,
        }
    }

    pub fn round(&self, requested: u64) -> u64 {
        if self.coarse {
            self.config.rounded(Bytes::new(requested)).get()
        } else {
            requested.max(1).next_multiple_of(MIN_BLOCK)
        }
    }

    /// By how much the order of a block grows when its beginning moves up.
    pub fn moves_order(&self, bytes: u64) -> u64 {
        if self.order_is_position { bytes / MIN_BLOCK } else { 0 }
    }

    pub fn segment_size(&self, rounded: u64) -> u64 {
        self.config.segment_size(Bytes::new(rounded)).get()
    }

    /// Page of an expandable segment.
    pub fn page(&self, pool: PoolKind) -> u64 {
        match pool {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => self
                .config
                .large_segment
                .max(Bytes::new(LARGE_ROUNDING))
                .min(Bytes::new(MAX_REQUEST))
                .round_up(Bytes::new(LARGE_ROUNDING))
                .get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_as_torch_rounds_them() {
        for (requested, divisions, expected) in [
            (1, 0, 512),
            (512, 0, 512),
            (513, 0, 1024),
            (1200, 4, 1536),
            (2048, 4, 2048),
            (2049, 4, 2560),
            (3000, 4, 3072),
            (1_048_577, 8, 1_179_648),
            ((5 << 20) + 1, 4, 6_291_456),
            (9 << 20, 2, 12 << 20),
            (100_000_000, 8, 100_663_296),
            (200_000_000, 4, 201_326_592),
        ] {
            let config = PyTorchConfig {
                roundup_power2_divisions: RoundupDivisions::uniform(divisions),
                ..PyTorchConfig::default()
            };
            assert_eq!(
                config.rounded(Bytes::new(requested)),
                Bytes::new(expected),
                "{requested} in {divisions} steps"
            );
            assert_eq!(Rules::new(config).round(requested), expected);
        }
    }

    #[test]
    fn divisions_apply_by_size_class() {
        let mut classes = [0; 16];
        classes[1] = 8;
        let divisions = RoundupDivisions(classes);
        assert_eq!(divisions.for_size(1), 0);
        assert_eq!(divisions.for_size((2 << 20) - 1), 0);
        assert_eq!(divisions.for_size(2 << 20), 8);
        assert_eq!(RoundupDivisions::uniform(2).for_size(u64::MAX), 2);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let default = PyTorchConfig::default;
        assert_eq!(default().check(), Ok(()));
        for (config, text) in [
            (PyTorchConfig { garbage_collection_threshold: Some(1.0), ..default() }, "garbage_c"),
            (PyTorchConfig { garbage_collection_threshold: Some(f64::NAN), ..default() }, "NaN"),
            (PyTorchConfig { max_split_size: Some(Bytes::mib(19)), ..default() }, "19.00 MiB"),
            (PyTorchConfig { large_segment: Bytes::mib(1), ..default() }, "large_segment"),
            (
                PyTorchConfig {
                    roundup_power2_divisions: RoundupDivisions::uniform(3),
                    ..default()
                },
                "power of two",
            ),
        ] {
            let message = config.check().unwrap_err().to_string();
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn a_segment_always_holds_its_request() {
        for large_segment in [Bytes::ZERO, Bytes::new(3), Bytes::mib(4), Bytes::mib(40)] {
            let config = PyTorchConfig { large_segment, ..PyTorchConfig::default() };
            for size in [512, 1 << 20, (1 << 20) + 512, 8 << 20, 10 << 20, MAX_REQUEST] {
                assert!(config.segment_size(Bytes::new(size)) >= Bytes::new(size));
            }
        }
    }
}
