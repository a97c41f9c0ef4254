//! GPUs, links, model configurations and engine constants: data with provenance. The facts are JSON files under
//! `data/`, each with its sources and date, compiled in and read when first asked for.

mod embedded;
pub mod gpus;
pub mod inputs;
pub mod links;
pub mod machines;
pub mod models;
pub mod overheads;
