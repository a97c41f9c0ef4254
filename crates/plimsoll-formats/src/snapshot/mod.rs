//! PyTorch CUDA memory snapshots as tables: what `torch.cuda.memory._dump_snapshot` and its relatives write.
//!
//! Text, frames and stacks are interned by content, because a recording names the same few hundred places millions
//! of times. Events are rows of fixed size. What the file does not say is absent, never guessed; what it says and
//! this reader does not know is kept by name.

mod table;

pub use table::{
    Action, Annotation, Block, BlockState, EventExtra, ExtraId, Frame, FrameId, FxNode, NameId,
    Names, PoolId, Segment, SegmentKind, Settings, Snapshot, Stack, StackId, Stacks, Stage,
    StreamId, Trace, TraceEvent, UnknownKey, Writer,
};
