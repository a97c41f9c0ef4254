//! What a model on a Hugging Face style hub needs, without its weights: `hf:org/name[@rev][:FILE]` becomes
//! configuration, shard index and tensor headers, fetched by range requests of some kilobytes each.
//!
//! The local hub cache of the Hugging Face libraries is read first, then this crate's own small cache, then the
//! network. Every answer is capped, timed and checked, and every refusal says what to do about it.
//!
//! This crate reads files and the network, so no engine crate may use it; a face does, and hands the bytes on.
//! It reads no environment variable by itself: the face passes a [`HubConfig`].

mod cache;
mod config;
mod error;
mod fetch;
mod fetched;
mod http;
mod reference;
mod remote;

pub use config::{HubConfig, Token};
pub use error::HubError;
pub use fetch::{FetchedModel, Hub, Note};
pub use fetched::FetchedReader;
pub use reference::RepoRef;
