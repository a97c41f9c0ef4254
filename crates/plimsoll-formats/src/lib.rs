//! Pure readers of model files: config.json, safetensors, GGUF, torch checkpoints.
