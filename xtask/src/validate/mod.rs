//! Predictions against measured records.

pub mod llamacpp;
pub mod names;
pub mod rows_llamacpp;
mod rows_llamacpp_base;
pub mod rows_sglang;
pub mod rows_vllm;
pub mod serving;
