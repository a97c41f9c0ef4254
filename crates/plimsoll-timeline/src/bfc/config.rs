//! Settings of the allocator, and what each framework makes of them.

use plimsoll_units::Bytes;

/// The rounding quantum and the smallest chunk.
pub(super) const QUANTUM: u64 = 256;
/// Larger requests fail without a look at any chunk: 32 PiB.
pub(super) const MAX_REQUEST: u64 = 1 << 55;

/// How large a new region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The next size, doubled until the request fits; afterwards the next size doubles again, but not beyond the cap.
    /// A request that is larger than the cap is not held to it.
    Doubling {
        /// The largest size that is aimed at unasked; `None` for no such size.
        cap: Option<Bytes>,
    },
    /// As large as the request, rounded; where a part of it is free at the front, no larger than the limit leaves.
    Exact,
}

/// Where a new region lies, relative to those that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Apart: chunks of two regions never merge (`cudaMalloc`).
    #[default]
    Apart,
    /// Behind the last one, with which it merges (TensorFlow on a reserved address range).
    Behind,
    /// Before the first one, with which it merges. JAX's pool hands out its far end first and grows there: seen from
    /// that end, a new region lies before all others.
    Before,
}

/// Settings of a [`Bfc`](super::Bfc).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfcConfig {
    /// The most that the regions may hold together; `None` for no limit.
    pub limit: Option<Bytes>,
    /// Bytes that the driver has to give; `None` for as many as are asked for.
    pub capacity: Option<Bytes>,
    /// Size of the first region, unless a request needs more.
    pub first_region: Bytes,
    /// How later ones grow.
    pub growth: Growth,
    /// The next size after regions were given back on request; `None` keeps growing.
    pub regrowth: Option<Bytes>,
    /// A chunk is split where it is twice the request, or where so much would be left over.
    pub max_dead_bytes: Bytes,
    /// Regions without a live chunk are given back before a request fails, so that a larger one can be made.
    pub collects_regions: bool,
    /// Regions without a live chunk are given back when the program asks for it.
    pub shrinks: bool,
    /// The first region is never given back on request.
    pub keeps_first_region: bool,
    /// Below this size no smaller region is tried when the driver refuses.
    pub smallest_retreat: Bytes,
    /// Where regions lie.
    pub placement: Placement,
    /// A chunk that a stream has used is for that stream only, and merges with chunks of that stream only.
    pub by_stream: bool,
}

impl BfcConfig {
    /// The defaults of the code that TensorFlow and JAX share, growing from 2 MiB or taking the whole limit at the
    /// first request.
    pub fn xla(limit: Bytes, grows: bool) -> Self {
        BfcConfig {
            limit: Some(limit),
            capacity: None,
            first_region: if grows { limit.min(Bytes::mib(2)) } else { limit },
            growth: Growth::Doubling { cap: None },
            regrowth: None,
            max_dead_bytes: Bytes::mib(128),
            collects_regions: false,
            shrinks: false,
            keeps_first_region: false,
            smallest_retreat: Bytes::ZERO,
            placement: Placement::Apart,
            by_stream: false,
        }
    }

    /// TensorFlow on one GPU: as [`xla`](Self::xla), and unused regions are given back before a request fails
    /// (`TF_ENABLE_GPU_GARBAGE_COLLECTION`, on by default).
    pub fn tensorflow(limit: Bytes, allow_growth: bool) -> Self {
        BfcConfig { collects_regions: true, ..BfcConfig::xla(limit, allow_growth) }
    }

    /// JAX's pool of one size: `fraction` of the device, allocated at the first request or grown to.
    pub fn jax(limit: Bytes, preallocate: bool) -> Self {
        BfcConfig::xla(limit, !preallocate)
    }

    /// JAX's newest default, policy `0.75+`: `start` bytes at the first request, then up to `cap` for ordinary
    /// buffers. The next size is twice the first, so the first growth asks for all that is left.
    pub fn jax_growing(start: Bytes, cap: Bytes) -> Self {
        BfcConfig {
            first_region: start,
            placement: Placement::Before,
            ..BfcConfig::xla(cap, false)
        }
    }

    /// ONNX Runtime's arena with its defaults: doubling from 1 MiB, or regions of the size of each request
    /// (`kSameAsRequested`).
    ///
    /// ```
    /// use plimsoll_timeline::{Allocator, Bfc, BfcConfig};
    /// use plimsoll_units::Bytes;
    /// let mut arena = Bfc::new(BfcConfig::onnxruntime(false));
    /// arena.allocate(Bytes::new(1_000), 0)?;
    /// arena.allocate(Bytes::new(2_000_000), 0)?;
    /// // Regions of 1 MiB and 2 MiB; the second chunk keeps all of its region, which is less than twice the request.
    /// assert_eq!(arena.usage().reserved, Bytes::mib(3));
    /// assert_eq!(arena.usage().allocated, Bytes::mib(2) + Bytes::new(1_024));
    /// # Ok::<(), plimsoll_timeline::OutOfMemory>(())
    /// ```
    pub fn onnxruntime(same_as_requested: bool) -> Self {
        BfcConfig {
            limit: None,
            first_region: Bytes::mib(1),
            growth: match same_as_requested {
                true => Growth::Exact,
                false => Growth::Doubling { cap: Some(Bytes::gib(1)) },
            },
            regrowth: Some(Bytes::mib(2)),
            keeps_first_region: !same_as_requested,
            shrinks: true,
            smallest_retreat: Bytes::kib(8),
            ..BfcConfig::xla(Bytes::MAX, true)
        }
    }

    /// A request as the allocator counts it, before the slack of a chunk that is not split.
    pub fn rounded(requested: Bytes) -> Bytes {
        requested.round_up(Bytes::new(QUANTUM))
    }
}
