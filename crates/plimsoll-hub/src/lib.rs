//! Reads model configurations and tensor headers from a Hugging Face style hub.
