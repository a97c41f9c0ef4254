//! Replays of a recording: under its own settings, to see that the allocator's rules reproduce it; under others, to
//! see what they would have changed; under many, to find the best ones.

mod blocks;
mod curve;
mod exact;
mod moment;
mod script;
mod start;
mod walk;
mod whatif;

pub(crate) use blocks::{Placed, place};
pub use curve::CurvePoint;
pub use exact::{Compared, Departure, DepartureKind, ExactReplay, replay_exact};
pub(crate) use exact::{Until, layout_at, measure};
pub use moment::Moment;
pub(crate) use moment::innermost;
pub use start::StartState;
pub use walk::Peaks;
pub use whatif::{Failure, WhatIf, what_if};
pub(crate) use whatif::{Manner, run};
