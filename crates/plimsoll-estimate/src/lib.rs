//! Model + workload + strategy + machine in; [`Estimate`] out: a footprint with an interval, the tree of terms
//! behind every number, the assumptions that were made and what could not be known.

mod device;
mod error;
pub mod framework;
pub mod inference;
pub mod interval;
pub mod kv;
pub mod llamacpp;
pub mod request;
pub mod sglang;
pub mod tensor_parallel;
mod term;
pub mod training;
pub mod vllm;
pub mod weights;

pub use device::{Device, Spread};
pub use error::EstimateError;
pub use term::{
    Assumption, Diagnostic, Estimate, Figure, Interval, Peak, Severity, Term, TermInput,
};
