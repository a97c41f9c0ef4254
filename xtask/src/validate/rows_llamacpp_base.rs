//! The plain decoder that rows start from: what the importer makes of a small Llama configuration.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Attention, Ffn, Layer, Mixer};

const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
"intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
"vocab_size": 256, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;

fn smallest() -> Result<Architecture, String> {
    plimsoll_model::hf::from_config(LLAMA.as_bytes())
        .map(|i| i.architecture)
        .map_err(|e| e.to_string())
}

fn first() -> Result<Layer, String> {
    let a = smallest()?;
    let layer = a.stacks.first().and_then(|s| s.layers.first()).cloned();
    layer.ok_or_else(|| "the importer gave no layer".to_owned())
}

/// A rotary decoder with RMS norms.
pub fn llama(hidden: u64, vocab: u64, layers: Vec<Layer>) -> Result<Architecture, String> {
    let mut a = smallest()?;
    a.hidden = hidden;
    a.head.outputs = vocab;
    if let Some(e) = &mut a.embedding {
        (e.vocab, e.width) = (vocab, hidden);
    }
    if let Some(s) = a.stacks.first_mut() {
        s.hidden = hidden;
        s.layers = layers;
    }
    Ok(a)
}

/// A pre-norm layer.
pub fn layer(mixer: Mixer, ffn: Ffn) -> Result<Layer, String> {
    Ok(Layer { mixer, ffn, ..first()? })
}

/// Attention without biases over all positions.
pub fn attention(
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    value_dim: u64,
) -> Result<Attention, String> {
    match first()?.mixer {
        Mixer::Attention(a) => Ok(Attention { heads, kv_heads, head_dim, value_dim, ..a }),
        _ => Err("the importer gave no attention".to_owned()),
    }
}
