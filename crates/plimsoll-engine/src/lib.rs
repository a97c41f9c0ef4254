//! The facade: one versioned request and response behind every face. A face (command line, HTTP, Python) reads
//! files and words, fills a [`Request`], and shows the [`Response`]; everything between is here and pure: no file
//! system, clock, environment or network.
//!
//! Where a request names files, the face opens them and hands over [`ModelInput`]s; see [`ModelFiles`].

mod backend;
mod changes;
mod choice;
pub mod choices;
mod describe;
mod error;
mod explain;
mod find;
mod job;
mod lists;
mod machine;
mod model;
mod moves;
mod picture;
pub mod plot;
mod quantity;
mod request;
mod response;
mod run;
#[cfg(feature = "schema")]
pub mod schema;
mod search;
mod verdict;
mod weights;
mod workload;

pub use choice::{Choice, OptionValue, ParseChoiceError, Word};
pub use error::{EngineError, ErrorKind};
pub use explain::{
    DIFF_SCHEMA, DeviceReport, DiffResponse, ExportFormat, ExportTable, REPLAY_SCHEMA,
    ReplayOptions, ReplayResponse, SnapshotExplainer, SnapshotOptions, SnapshotReport,
    diff_snapshots, export_snapshot, replay_snapshot,
};
pub use explain::{
    DevicePart, EXPLAIN_SCHEMA, EXPLAIN_SNIFF, ExplainInput, ExplainSource, Explanation,
    ExplanationKind, FailurePlace, FailureSummary, Finding, LogExplainer, LogReport, Meaning,
    MessageRow, Modelled, SettingRow, SourceSummary, UsageSummary, explain_input,
    explained_messages,
};
pub use lists::{GpuRow, ModelRow, list_gpus, list_models};
pub use model::{ConfigSource, ModelFiles, ModelInput, ModelSource, ReadSeek};
pub use picture::picture;
/// What a snapshot's analyses hand out, inside their responses.
pub use plimsoll_explain as analysis;
pub use plimsoll_units::{Bytes, DType};
pub use quantity::{
    Dtype, Fraction, ParseFractionError, ParseReleaseError, Release, Size, parse_count,
};
pub use request::{
    InferRequest, LlamaCppRequest, Request, SglangRequest, StrategyRequest, TrainRequest,
    VllmRequest, WithRequest, WorkloadRequest,
};
pub use response::{
    AllocatorSummary, Assumption, CategoryBytes, Change, Diagnostic, Figure, FigureValue, Interval,
    MachineSummary, ModelSummary, Peak, Response, Search, Summary, Term, TermInput,
};
pub use run::{GpuOutcome, all_gpus, estimate, estimate_json, is_catalogue_name};
pub use verdict::Verdict;

/// The schema that [`Request`] follows.
pub const REQUEST_SCHEMA: &str = "plimsoll.request/1";
/// The schema that [`Response`] follows.
pub const ESTIMATE_SCHEMA: &str = "plimsoll.estimate/1";

/// The option values of the estimator, by their own names, for faces that name them in types.
pub mod options {
    pub use plimsoll_estimate::request::{
        AttentionKernel, Checkpointing, Lengths, LoraTargets, Loss, Optimizer, OptimizerForm,
        PipelineSchedule, Precision, SparseIndex, Sparsity, SplitMode, Stack, StepScope, ZeroGrad,
        ZeroStage,
    };
}
