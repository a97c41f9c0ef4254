//! Measured timelines and what they show. A memory snapshot becomes the same [`plimsoll_timeline::Timeline`] that an
//! estimate makes, and is replayed under its own or other allocator settings; out-of-memory messages and engine logs
//! are read into figures. What comes out is findings: sentences with their numbers that a person can act on.

mod finding;

pub use finding::{Figure, Finding, Value, Weight};
