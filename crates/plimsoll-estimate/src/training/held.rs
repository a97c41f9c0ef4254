//! What a graph keeps when its backward pass is over.

use plimsoll_model::graph::{Block, Hold};

use super::run::Simulation;

impl Simulation<'_> {
    /// Frees what outlived graphs since there were `first` such tensors.
    pub(super) fn free_outliving(&mut self, first: usize) {
        for id in self.outliving.split_off(first.min(self.outliving.len())) {
            self.t.free(id);
        }
    }

    /// Whether a variable of the training loop holds the graph of a step into the next one.
    pub(super) fn graph_outlives(&self) -> bool {
        let held = |b: &Block| b.held.iter().any(|(_, hold)| *hold == Hold::Reassigned);
        self.run.graph.blocks.iter().any(held)
    }
}
