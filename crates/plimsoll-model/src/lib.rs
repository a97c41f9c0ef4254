//! What the user has: an [`Architecture`] (read from a configuration or from tensor headers), the exact
//! [`Inventory`] of its parameters, and the operator graph with symbolic sizes.
//!
//! Architecture answers "which widths, which kinds of layer"; everything that counts bytes is derived from the
//! inventory (weights) or from the graph (activations), never from a formula of its own.

pub mod arch;
pub mod build;
pub mod gguf;
pub mod graph;
pub mod hf;
pub mod inventory;
pub mod ops;

pub use arch::Architecture;
pub use build::{BuildError, BuildOptions, build};
pub use graph::Graph;
pub use inventory::{Inventory, Parameter, Part};
