//! The tables of a snapshot. Ids are small numbers into the table of the same [`Snapshot`].

use std::ops::Range;

use plimsoll_units::Bytes;

/// Interned text: file, function, annotation, metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// An interned frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// An interned stack; [`StackId::NONE`] where none was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

impl StackId {
    /// No stack was recorded (or it was empty).
    pub const NONE: StackId = StackId(0);

    /// Whether no stack was recorded.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A CUDA stream, by order of appearance; the raw handles are in [`Snapshot::streams`]. The default stream is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// A memory pool, by order of appearance; the pairs are in [`Snapshot::pools`]. The default pool is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u16);

/// The rare fields of an event; [`ExtraId::NONE`] for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtraId(pub u32);

impl ExtraId {
    /// The event has none of the rare fields.
    pub const NONE: ExtraId = ExtraId(0);
}

/// Interned text, in one buffer.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub(super) text: String,
    pub(super) ends: Vec<u32>,
}

impl Names {
    /// The text of an id of the same table; empty for another's.
    pub fn get(&self, id: NameId) -> &str {
        let at = id.0 as usize;
        let begin =
            at.checked_sub(1).map_or(0, |before| self.ends.get(before).copied().unwrap_or(0));
        let end = self.ends.get(at).copied().unwrap_or(begin);
        self.text.get(begin as usize..end as usize).unwrap_or("")
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Source file; `??` for an unsymbolised C++ frame.
    pub file: NameId,
    /// Function.
    pub function: NameId,
    /// Line, 0 where unknown.
    pub line: u32,
    /// What `augment_with_fx_traces` adds (torch 2.10 and later).
    pub fx: Option<FxNode>,
}

/// The node of a compiled graph that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FxNode {
    /// Kind of node, such as `call_function`.
    pub op: NameId,
    /// Its name in the graph.
    pub name: NameId,
    /// The eager source that it was traced from.
    pub original_trace: NameId,
    /// Further words.
    pub info: NameId,
}

/// Frames of every stack, in one buffer.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    pub(super) frames: Vec<FrameId>,
    /// Where each stack ends; entry 0 is the empty stack.
    pub(super) ends: Vec<u32>,
}

/// The frames of one stack, innermost first.
pub type Stack<'a> = &'a [FrameId];

impl Stacks {
    /// The frames of a stack, innermost first; empty for [`StackId::NONE`] and for ids of another table.
    pub fn get(&self, id: StackId) -> Stack<'_> {
        let at = id.0 as usize;
        let begin =
            at.checked_sub(1).map_or(0, |before| self.ends.get(before).copied().unwrap_or(0));
        let end = self.ends.get(at).copied().unwrap_or(begin);
        self.frames.get(begin as usize..end as usize).unwrap_or(&[])
    }

    /// How many there are, the empty one included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether not even the empty stack is there.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// Which of the two pools of segment sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// `small`: rounded requests up to 1 MiB.
    Small,
    /// `large`.
    Large,
}

/// A range that the allocator holds from the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Device index.
    pub device: u32,
    /// First address.
    pub address: u64,
    /// Bytes held.
    pub total_size: Bytes,
    /// Bytes of allocated blocks.
    pub allocated_size: Bytes,
    /// Bytes of blocks that are allocated or wait for a stream.
    pub active_size: Bytes,
    /// Requested bytes of those; absent in the oldest files.
    pub requested_size: Option<Bytes>,
    /// Stream.
    pub stream: StreamId,
    /// Small or large.
    pub kind: SegmentKind,
    /// Memory pool.
    pub pool: PoolId,
    /// Whether it is a mapped range of an expandable segment.
    pub expandable: bool,
    /// Stack of the driver call; often none.
    pub stack: StackId,
    /// Its blocks in [`Snapshot::blocks`], by address.
    pub blocks: Range<u32>,
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockState {
    /// `active_allocated`.
    Allocated,
    /// `active_pending_free` or `active_awaiting_free`: freed, but another stream may still use it.
    PendingFree,
    /// `inactive`.
    Free,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First address; torch 2.0 does not write it, then it is summed up from the segment's.
    pub address: u64,
    /// Bytes.
    pub size: Bytes,
    /// What the program asked for. Of a free block this is the last user's and means nothing.
    pub requested: Bytes,
    /// State.
    pub state: BlockState,
    /// Stack of the allocation.
    pub stack: StackId,
}

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// `alloc`: a block was handed out. Size: the request.
    Alloc,
    /// `free_requested`: the program let go. Size: the request.
    FreeRequested,
    /// `free_completed`: the block is free for others. Size: the request.
    FreeCompleted,
    /// `segment_alloc`. Size: the segment.
    SegmentAlloc,
    /// `segment_free`. Size: the segment.
    SegmentFree,
    /// `segment_map`. Size: bytes mapped.
    SegmentMap,
    /// `segment_unmap`. Size: bytes unmapped.
    SegmentUnmap,
    /// `snapshot`. Size: active bytes.
    Snapshot,
    /// `oom`. Size: the rounded request; the address column holds the driver's free bytes (`device_free`).
    OutOfMemory,
    /// `annotate` and every action that this reader does not know; the word is in [`EventExtra::action`].
    Other,
}

impl Action {
    /// The word that torch writes; absent for [`Action::Other`], whose word the file gives.
    pub const fn word(self) -> Option<&'static str> {
        Some(match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::OutOfMemory => "oom",
            Action::Other => return None,
        })
    }
}

/// One event of a trace, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Address, or `device_free` of an out-of-memory event.
    pub address: u64,
    /// Bytes, as [`Action`] says.
    pub size: u64,
    /// Microseconds since 1970; 0 where not recorded (before torch 2.2).
    pub time_us: u64,
    /// Stack.
    pub stack: StackId,
    /// Rare fields.
    pub extra: ExtraId,
    /// Stream.
    pub stream: StreamId,
    /// Pool, where the file says (torch 2.12 and later), otherwise the default pool.
    pub pool: PoolId,
    /// What happened.
    pub action: Action,
}

/// Fields that few events carry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EventExtra {
    /// The word of an action that this reader does not know.
    pub action: Option<NameId>,
    /// `compile_context`, unless `N/A`.
    pub compile_context: Option<NameId>,
    /// `user_metadata`, unless empty.
    pub user_metadata: Option<NameId>,
    /// `internal_metadata`, which the allocator sets on events of its own (torch 2.15).
    pub internal_metadata: Option<NameId>,
    /// `category`, in snapshots made from profiler data.
    pub category: Option<NameId>,
    /// `forward_frames`: the forward stack of a backward allocation, preformatted, innermost first.
    pub forward_frames: Vec<NameId>,
}

/// The events of one device.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In the order of the allocator's lock.
    pub events: Vec<TraceEvent>,
    /// Whether events say which pool they belong to.
    pub has_pools: bool,
}

/// `allocator_settings`; a field is absent where the file lacks it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The last settings text, empty where none was set.
    pub conf: String,
    /// Blocks from this size on are not split; absent for no limit.
    pub max_split_size: Option<Bytes>,
    /// Between 0 and 1; 0 is off.
    pub garbage_collection_threshold: Option<f64>,
    /// Expandable segments.
    pub expandable_segments: Option<bool>,
    /// Steps between powers of two, by size class from 1 MiB.
    pub roundup_power2_divisions: Option<[u32; 16]>,
    /// Everything else, as text, by key.
    pub other: Vec<(String, String)>,
}

/// Whether an annotation begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// `START`.
    Start,
    /// `END`.
    End,
}

/// A `record_function` scope of the recording thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Its name.
    pub name: NameId,
    /// Begin or end; the two may be unbalanced.
    pub stage: Stage,
    /// Device index; -1 for none.
    pub device: i32,
    /// Microseconds since 1970.
    pub time_us: u64,
}

/// The release of torch that wrote the file, as far as its fields tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Writer {
    /// Nothing tells.
    Unknown,
    /// 2.0: blocks with a history.
    V2_0,
    /// 2.1: frames on blocks, no times.
    V2_1,
    /// 2.2: times, no settings.
    V2_2,
    /// 2.3 or 2.4: settings, no annotations.
    V2_3,
    /// 2.5 to 2.7: annotations.
    V2_5,
    /// 2.8: compile context.
    V2_8,
    /// 2.9: the setting for reuse during graph capture.
    V2_9,
    /// 2.10 or 2.11: user metadata.
    V2_10,
    /// 2.12 or 2.13: pool of each event.
    V2_12,
    /// 2.14 and later: pinned host memory, internal metadata.
    V2_14,
}

/// A key that this reader does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// Where it stands: `top level`, `segment`, `block`, `event`, `frame`, `annotation`.
    pub place: &'static str,
    /// The key.
    pub key: String,
    /// How many times.
    pub count: u64,
}

/// A memory snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Text.
    pub names: Names,
    /// Frames.
    pub frames: Vec<Frame>,
    /// Stacks.
    pub stacks: Stacks,
    /// Raw stream handles, by [`StreamId`]; the first is 0, the default stream.
    pub streams: Vec<u64>,
    /// Pool ids as written, by [`PoolId`]; the first is (0, 0), the default pool.
    pub pools: Vec<(u64, u64)>,
    /// Segments of all devices, by device and address.
    pub segments: Vec<Segment>,
    /// Blocks of all segments.
    pub blocks: Vec<Block>,
    /// Traces by device index.
    pub traces: Vec<Trace>,
    /// Rare fields of events; entry 0 is empty.
    pub extras: Vec<EventExtra>,
    /// Settings of the allocator (torch 2.3 and later).
    pub settings: Option<Settings>,
    /// Scopes (torch 2.5 and later).
    pub annotations: Vec<Annotation>,
    /// Segments of pinned host memory (torch 2.14 and later).
    pub host_segments: Vec<Segment>,
    /// Events of pinned host memory.
    pub host_traces: Vec<Trace>,
    /// Which release wrote it.
    pub writer: Writer,
    /// Where the file ends, if it ends too early: then the newest events, and whole sections, may be missing.
    pub cut_at: Option<u64>,
    /// Keys that were skipped.
    pub unknown: Vec<UnknownKey>,
    /// What the reader could live with, in sentences.
    pub remarks: Vec<String>,
}
