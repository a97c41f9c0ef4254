//! Measured timelines and what they show. A memory snapshot becomes the same [`plimsoll_timeline::Timeline`] that an
//! estimate makes, and is replayed under its own or other allocator settings; out-of-memory messages and engine logs
//! are read into figures. What comes out is findings: sentences with their numbers that a person can act on.

mod compare;
mod export;
mod finding;
mod findings;
mod markup;
pub mod message;
mod page;
mod place;
mod recording;
mod replay;
mod tune;

pub use compare::{
    Change, Difference, Rank, RankShare, Ranks, SettingChange, StackChange, StateDifference, diff,
    ranks,
};
#[cfg(feature = "parquet")]
pub use export::write_parquet;
pub use export::{
    Cell, Column, ColumnKind, Export, Format, Table, Written, flame_graph, write_perfetto,
    write_table,
};
pub use finding::{Figure, Finding, Value, Weight};
pub use findings::{
    CategoryShare, Doing, ExplainOptions, Explanation, FailedRequest, Fragmentation, FreePart,
    InUse, Leak, Live, MomentState, NamedShare, Outside, Pinned, Rule, Run, StackShare, StepRule,
    Steps, Unusable, explain,
};
pub use page::{PageText, page};
pub use place::Place;
pub use recording::{
    RecordedCall, RecordedOom, Recording, RecordingError, Remark, RemarkKind, StartBlock,
    StartSegment, devices, grouped, recording,
};
pub use replay::{
    Compared, CurvePoint, Departure, DepartureKind, ExactReplay, Failure, Moment, Peaks,
    StartState, WhatIf, replay_exact, what_if,
};
pub use tune::{Candidate, TuneOptions, Tuning, tune};
