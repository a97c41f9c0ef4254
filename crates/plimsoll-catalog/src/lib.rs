//! GPUs, links, model configurations and engine constants: data with provenance.
