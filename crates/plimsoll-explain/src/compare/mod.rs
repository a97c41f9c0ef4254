//! Recordings side by side: two of one program before and after a change, and those of many ranks.

mod difference;
mod ranks;

pub use difference::{Change, Difference, SettingChange, StackChange, StateDifference, diff};
pub use ranks::{Rank, RankShare, Ranks, ranks};
