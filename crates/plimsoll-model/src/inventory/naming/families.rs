//! The conventions that several namings build on, each the difference from Llama's.

use super::{LLAMA, Names};

/// DeepSeek and GLM: plural `shared_experts`.
pub(super) const DEEPSEEK: Names = Names {
    shared_gate: "mlp.shared_experts.gate_proj",
    shared_up: "mlp.shared_experts.up_proj",
    shared_gate_up: "mlp.shared_experts.gate_up_proj",
    shared_down: "mlp.shared_experts.down_proj",
    ..LLAMA
};

pub(super) const GPT2: Names = Names {
    qkv: "attn.c_attn",
    o: "attn.c_proj",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    norms: ["ln_1", "ln_2", "", ""],
    final_norm: "ln_f",
    token: "wte",
    position: "wpe",
    transposed: true,
    ..LLAMA
};

pub(super) const GPT_NEOX: Names = Names {
    qkv: "attention.query_key_value",
    o: "attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    final_norm: "final_layer_norm",
    token: "embed_in",
    ..LLAMA
};

pub(super) const FALCON: Names = Names {
    qkv: "self_attention.query_key_value",
    o: "self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    final_norm: "ln_f",
    token: "word_embeddings",
    embedding_norm: "word_embeddings_layernorm",
    ..LLAMA
};

pub(super) const OPT: Names = Names {
    o: "self_attn.out_proj",
    up: "fc1",
    down: "fc2",
    norms: ["self_attn_layer_norm", "final_layer_norm", "", ""],
    final_norm: "final_layer_norm",
    wide_positions: true,
    ..LLAMA
};

pub(super) const JAMBA: Names = Names {
    ssm: "mamba.",
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    router: "feed_forward.router",
    expert_gate_up: "=feed_forward.experts.gate_up_proj",
    expert_down: "=feed_forward.experts.down_proj",
    norms: ["input_layernorm", "pre_ff_layernorm", "", ""],
    final_norm: "final_layernorm",
    ..LLAMA
};

pub(super) const MAMBA: Names = Names {
    ssm: "mixer.",
    norms: ["norm", "", "", ""],
    final_norm: "norm_f",
    token: "embeddings",
    ..LLAMA
};

pub(super) const BERT: Names = Names {
    q: "attention.self.query",
    k: "attention.self.key",
    v: "attention.self.value",
    o: "attention.output.dense",
    up: "intermediate.dense",
    down: "output.dense",
    norms: ["attention.output.LayerNorm", "output.LayerNorm", "", ""],
    token: "embeddings.word_embeddings",
    position: "embeddings.position_embeddings",
    segment: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    embedding_projection: "embeddings_project",
    head: "cls.predictions.decoder",
    head_bias: "=cls.predictions.bias",
    head_dense: "cls.predictions.transform.dense",
    head_norm: "cls.predictions.transform.LayerNorm",
    ..LLAMA
};

pub(super) const ROBERTA: Names = Names {
    head: "lm_head.decoder",
    head_bias: "=lm_head.bias",
    head_dense: "lm_head.dense",
    head_norm: "lm_head.layer_norm",
    ..BERT
};

pub(super) const T5: Names = Names {
    q: "layer.0.SelfAttention.q",
    k: "layer.0.SelfAttention.k",
    v: "layer.0.SelfAttention.v",
    o: "layer.0.SelfAttention.o",
    gate: "layer.1.DenseReluDense.wi_0",
    up: "layer.1.DenseReluDense.wi",
    gated_up: "layer.1.DenseReluDense.wi_1",
    down: "layer.1.DenseReluDense.wo",
    norms: ["layer.0.layer_norm", "layer.1.layer_norm", "", ""],
    final_norm: "final_layer_norm",
    token: "shared",
    ..LLAMA
};

pub(super) const BART: Names = Names {
    o: "self_attn.out_proj",
    up: "fc1",
    down: "fc2",
    norms: ["self_attn_layer_norm", "final_layer_norm", "", ""],
    final_norm: "layer_norm",
    token: "shared",
    position: "embed_positions",
    patch: "conv1",
    patch2: "conv2",
    ..LLAMA
};

pub(super) const VIT: Names = Names {
    q: "attention.q_proj",
    k: "attention.k_proj",
    v: "attention.v_proj",
    o: "attention.o_proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
    norms: ["layernorm_before", "layernorm_after", "", ""],
    final_norm: "layernorm",
    stack_position: "=embeddings.position_embeddings",
    patch: "embeddings.patch_embeddings.projection",
    class_token: "=embeddings.cls_token",
    head: "classifier",
    leading_ones: true,
    ..LLAMA
};

pub(super) const CLIP: Names = Names {
    o: "self_attn.out_proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
    norms: ["layer_norm1", "layer_norm2", "", ""],
    final_norm: "post_layernorm",
    stack_position: "embeddings.position_embedding",
    patch: "embeddings.patch_embedding",
    class_token: "=embeddings.class_embedding",
    token: "embeddings.token_embedding",
    position: "embeddings.position_embedding",
    ..LLAMA
};

pub(super) const QWEN_VISION: Names = Names {
    qkv: "attn.qkv",
    o: "attn.proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
    norms: ["norm1", "norm2", "", ""],
    ..LLAMA
};

pub(super) const LFM2: Names = Names {
    o: "self_attn.out_proj",
    q_norm: "self_attn.q_layernorm",
    k_norm: "self_attn.k_layernorm",
    ssm: "conv.",
    gate: "feed_forward.w1",
    up: "feed_forward.w3",
    down: "feed_forward.w2",
    router: "feed_forward.gate",
    correction: "=feed_forward.expert",
    expert_gate_up: "=feed_forward.experts.gate_up_proj",
    expert_down: "=feed_forward.experts.down_proj",
    norms: ["operator_norm", "ffn_norm", "", ""],
    final_norm: "embedding_norm",
    ..LLAMA
};

pub(super) const GGUF: Names = Names {
    q: "attn_q",
    k: "attn_k",
    v: "attn_v",
    qkv: "attn_qkv",
    o: "attn_output",
    q_norm: "attn_q_norm",
    k_norm: "attn_k_norm",
    sinks: "attn_sinks",
    latent: "",
    ssm: "ssm_",
    gate: "ffn_gate",
    up: "ffn_up",
    gate_up: "ffn_up",
    down: "ffn_down",
    router: "ffn_gate_inp",
    expert_gate_up: "ffn_gate_up_exps",
    expert_up: "ffn_up_exps",
    expert_down: "ffn_down_exps",
    shared_gate: "ffn_gate_shexp",
    shared_up: "ffn_up_shexp",
    shared_gate_up: "ffn_up_shexp",
    shared_down: "ffn_down_shexp",
    shared_scale: "ffn_gate_inp_shexp",
    norms: ["attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"],
    final_norm: "output_norm",
    token: "token_embd",
    position: "position_embd",
    segment: "token_types",
    embedding_norm: "token_embd_norm",
    head: "output",
    ..LLAMA
};
