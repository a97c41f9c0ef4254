//! Model + workload + strategy + machine in; [`Estimate`] out: a footprint with an interval, the tree of terms
//! behind every number, the assumptions that were made and what could not be known.

mod device;
pub mod request;
mod term;

pub use device::{Device, Spread};
pub use term::{
    Assumption, Diagnostic, Estimate, Figure, Interval, Peak, Severity, Term, TermInput,
};
