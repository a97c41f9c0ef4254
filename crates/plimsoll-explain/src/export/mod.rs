//! A recording in the formats of other programs: tables for DuckDB, Spark, Ray or a spreadsheet, a trace for Perfetto,
//! a flame graph as a picture.

mod flame;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod table;

use std::io;

use plimsoll_timeline::Category;
use plimsoll_units::Bytes;

use crate::findings::{Rule, Sorted};
use crate::recording::Recording;
use crate::replay::place;

pub use flame::flame_graph;
#[cfg(feature = "parquet")]
pub use parquet::write_parquet;
pub use perfetto::write_perfetto;
pub use table::{Cell, Column, ColumnKind, Format, Table, write_table};

/// A recording with what every export needs: categories, places and sizes of its blocks.
pub struct Export<'r, 's> {
    sorted: Sorted<'r, 's>,
    /// Address and bytes of each tensor's block.
    blocks: Vec<(u64, u64)>,
    /// Reserved bytes from an event on.
    reserved: Vec<(u32, u64)>,
    /// Number that tells files of a fleet apart; a column of every table.
    rank: u32,
}

impl<'r, 's> Export<'r, 's> {
    /// Prepares a recording. `rank` is written into every row, so that the tables of many ranks can be put together.
    pub fn new(recording: &'r Recording<'s>, rank: u32) -> Self {
        let placed = place(recording);
        let sizes = placed.blocks.iter().map(|(_, size)| Bytes::new(*size)).collect();
        let sorted = Sorted::new(recording, sizes);
        Export { sorted, blocks: placed.blocks, reserved: placed.reserved, rank }
    }

    fn recording(&self) -> &'r Recording<'s> {
        self.sorted.recording
    }

    fn category(&self, tensor: usize) -> (Category, Rule) {
        self.sorted.categories.of.get(tensor).copied().unwrap_or((Category::Unknown, Rule::None))
    }
}

/// What every writer here returns: the receiver's own error, nothing else can go wrong.
pub type Written = io::Result<()>;
