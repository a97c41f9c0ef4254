//! Predictions against measured records.

pub mod names;
pub mod rows_sglang;
pub mod rows_vllm;
pub mod serving;
