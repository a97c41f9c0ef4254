//! The words that a snapshot's keys and values are made of. They are interned first and in this order, so that a
//! key is recognised by its number.

use super::NameId;

macro_rules! words {
    ($($word:ident = $text:literal,)*) => {
        /// A known word.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Word { $($word,)* }

        impl Word {
            /// Every word, by [`NameId`].
            pub(super) const ALL: &[Word] = &[$(Word::$word,)*];
            /// Their texts, in the same order.
            pub(super) const TEXTS: &[&str] = &[$($text,)*];
        }
    };
}

words! {
    // Events.
    Action = "action",
    Addr = "addr",
    Size = "size",
    Stream = "stream",
    Frames = "frames",
    TimeUs = "time_us",
    CompileContext = "compile_context",
    UserMetadata = "user_metadata",
    PoolId = "pool_id",
    ForwardFrames = "forward_frames",
    InternalMetadata = "internal_metadata",
    Category = "category",
    DeviceFree = "device_free",
    Alloc = "alloc",
    FreeRequested = "free_requested",
    FreeCompleted = "free_completed",
    SegmentAlloc = "segment_alloc",
    SegmentFree = "segment_free",
    SegmentMap = "segment_map",
    SegmentUnmap = "segment_unmap",
    Snapshot = "snapshot",
    Oom = "oom",
    NotCompiled = "N/A",
    Empty = "",
    // Frames.
    Filename = "filename",
    Line = "line",
    Name = "name",
    FxNodeOp = "fx_node_op",
    FxNodeName = "fx_node_name",
    FxOriginalTrace = "fx_original_trace",
    FxNodeInfo = "fx_node_info",
    // Blocks.
    State = "state",
    RequestedSize = "requested_size",
    Address = "address",
    History = "history",
    RealSize = "real_size",
    ActiveAllocated = "active_allocated",
    ActivePendingFree = "active_pending_free",
    ActiveAwaitingFree = "active_awaiting_free",
    Inactive = "inactive",
    // Segments.
    Device = "device",
    TotalSize = "total_size",
    AllocatedSize = "allocated_size",
    ActiveSize = "active_size",
    SegmentType = "segment_type",
    SegmentPoolId = "segment_pool_id",
    IsExpandable = "is_expandable",
    Blocks = "blocks",
    Small = "small",
    Large = "large",
    // Annotations.
    Stage = "stage",
    Start = "START",
    End = "END",
    // The whole.
    Segments = "segments",
    DeviceTraces = "device_traces",
    AllocatorSettings = "allocator_settings",
    ExternalAnnotations = "external_annotations",
    HostSegments = "host_segments",
    HostTraces = "host_traces",
    // Settings.
    Conf = "PYTORCH_CUDA_ALLOC_CONF",
    MaxSplitSize = "max_split_size",
    GarbageCollectionThreshold = "garbage_collection_threshold",
    ExpandableSegments = "expandable_segments",
    RoundupPower2Divisions = "roundup_power2_divisions",
    GraphCaptureReuse = "graph_capture_record_stream_reuse",
}

impl Word {
    /// The word that an interned text is, if it is one.
    pub(super) fn of(name: NameId) -> Option<Word> {
        Word::ALL.get(name.0 as usize).copied()
    }

    /// The interned text of this word.
    pub(super) const fn id(self) -> NameId {
        NameId(self as u32)
    }
}
