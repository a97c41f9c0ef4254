//! How published checkpoints name their tensors: one table per naming, each written as the difference from another.
//! Names are those that current transformers modules list; where a family has a published convention of its own
//! (remote code), that one.

mod families;

use families::{
    BART, BERT, CLIP, DEEPSEEK, FALCON, GGUF, GPT_NEOX, GPT2, JAMBA, LFM2, MAMBA, OPT, QWEN_VISION,
    ROBERTA, T5, VIT,
};

/// Which convention a stack, or the tables and the head of a model, follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the family whose convention it is")]
pub enum Naming {
    /// `self_attn.q_proj`, `mlp.gate_proj`, `input_layernorm`: Llama and most decoders since.
    #[default]
    Llama,
    DeepSeek,
    Gpt2,
    GptBigCode,
    GptJ,
    GptNeo,
    GptNeoX,
    Persimmon,
    Falcon,
    FalconNew,
    Mpt,
    Opt,
    Phi,
    PhiMoe,
    MinimaxM2,
    Starcoder2,
    StableLm,
    GptOss,
    Llama4,
    Glm4,
    Olmo2,
    Granite,
    Jamba,
    Mamba,
    NemotronH,
    Zamba2,
    Zamba2Hybrid,
    Qwen35,
    Lfm2,
    Apertus,
    Qwen1,
    Baichuan,
    Internlm2,
    ChatGlm,
    Bert,
    Roberta,
    Albert,
    Electra,
    DistilBert,
    Deberta,
    DebertaV2,
    Mpnet,
    ModernBert,
    T5Encoder,
    T5Decoder,
    Bart,
    Whisper,
    Vit,
    Clip,
    Pixtral,
    Llama4Vision,
    QwenVision,
    QwenVision25,
    Qwen3Vision,
    MoonVit,
    Gemma4,
    Gemma4Vision,
    ClipText,
    Deit,
    OpenClip,
    WavLm,
    DeepSeekV4,
    KimiLinear,
    /// llama.cpp's `blk.N.attn_q`.
    Gguf,
}

/// One convention. Paths are relative to the layer, the root or the head root; `.weight` and `.bias` follow, except
/// that a path that starts with `=` is the whole name (its bias has `_bias` appended).
pub(super) struct Names {
    // Layer.
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    pub qkv: &'static str,
    pub o: &'static str,
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub sinks: &'static str,
    /// Query, key, value, output of cross-attention.
    pub cross: [&'static str; 4],
    pub cross_norm: &'static str,
    /// Prefix of the latent attention's projections, dot included.
    pub latent: &'static str,
    /// Prefix of the recurrent mixer, dot included.
    pub ssm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    /// The up projection where a gate stands beside it; empty for the same as `up`.
    pub gated_up: &'static str,
    pub gate_up: &'static str,
    pub down: &'static str,
    pub router: &'static str,
    /// The router's correction bias, a buffer that checkpoints hold.
    pub correction: &'static str,
    pub expert_gate_up: &'static str,
    pub expert_up: &'static str,
    pub expert_down: &'static str,
    pub shared_gate: &'static str,
    pub shared_up: &'static str,
    pub shared_gate_up: &'static str,
    pub shared_down: &'static str,
    pub shared_scale: &'static str,
    pub norms: [&'static str; 4],
    // Stack.
    pub final_norm: &'static str,
    pub stack_position: &'static str,
    pub stack_norm: &'static str,
    pub patch: &'static str,
    pub patch2: &'static str,
    pub class_token: &'static str,
    // Tables.
    pub token: &'static str,
    pub position: &'static str,
    pub segment: &'static str,
    pub embedding_norm: &'static str,
    pub embedding_projection: &'static str,
    // Head.
    pub head: &'static str,
    /// Full path of the head's bias; empty where it is the head's own `.bias`.
    pub head_bias: &'static str,
    pub head_dense: &'static str,
    pub head_norm: &'static str,
    pub pooler: &'static str,
    // Layouts.
    /// Linear weights are stored `[in, out]` (GPT-2's `Conv1D`).
    pub transposed: bool,
    /// Fused experts are stored `[experts, in, out]`.
    pub experts_in_first: bool,
    /// Positions are added after the projection to the hidden width, so their table has that width (OPT).
    pub wide_positions: bool,
    /// Class token and position table have leading axes of one.
    pub leading_ones: bool,
    /// The gated delta mixer has four input projections, not two.
    pub split_delta: bool,
    /// The gated delta mixer is Kimi's: separate projections and low-rank gates.
    pub kimi_delta: bool,
    /// The head's dense layer maps to the embedding width (ALBERT, ELECTRA), not to the hidden width.
    pub narrow_head: bool,
    /// The head's dense layer and norm have no bias (ModernBERT).
    pub lean_head: bool,
    /// A block without its first norm keeps the second one (ModernBERT's first layer).
    pub drops_first_norm: bool,
}

const LLAMA: Names = Names {
    q: "self_attn.q_proj",
    k: "self_attn.k_proj",
    v: "self_attn.v_proj",
    qkv: "self_attn.qkv_proj",
    o: "self_attn.o_proj",
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    sinks: "=self_attn.sinks",
    cross: [
        "encoder_attn.q_proj",
        "encoder_attn.k_proj",
        "encoder_attn.v_proj",
        "encoder_attn.out_proj",
    ],
    cross_norm: "encoder_attn_layer_norm",
    latent: "self_attn.",
    ssm: "linear_attn.",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    gated_up: "",
    gate_up: "mlp.gate_up_proj",
    down: "mlp.down_proj",
    router: "mlp.gate",
    correction: "=mlp.gate.e_score_correction",
    expert_gate_up: "=mlp.experts.gate_up_proj",
    expert_up: "=mlp.experts.up_proj",
    expert_down: "=mlp.experts.down_proj",
    shared_gate: "mlp.shared_expert.gate_proj",
    shared_up: "mlp.shared_expert.up_proj",
    shared_gate_up: "mlp.shared_expert.gate_up_proj",
    shared_down: "mlp.shared_expert.down_proj",
    shared_scale: "mlp.shared_expert_gate",
    norms: [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ],
    final_norm: "norm",
    stack_position: "embed_positions",
    stack_norm: "layernorm_embedding",
    patch: "",
    patch2: "",
    class_token: "",
    token: "embed_tokens",
    position: "embed_positions",
    segment: "",
    embedding_norm: "embedding_norm",
    embedding_projection: "project_in",
    head: "lm_head",
    head_bias: "",
    head_dense: "",
    head_norm: "",
    pooler: "pooler.dense",
    transposed: false,
    experts_in_first: false,
    wide_positions: false,
    leading_ones: false,
    split_delta: false,
    kimi_delta: false,
    narrow_head: false,
    lean_head: false,
    drops_first_norm: false,
};

impl Naming {
    /// The convention's table.
    pub(super) fn names(self) -> &'static Names {
        match self {
            Naming::Llama => &LLAMA,
            Naming::DeepSeek => &DEEPSEEK,
            Naming::Gpt2 => &GPT2,
            Naming::GptBigCode => const { &Names { transposed: false, ..GPT2 } },
            Naming::GptJ => {
                const {
                    &Names {
                        q: "attn.q_proj",
                        k: "attn.k_proj",
                        v: "attn.v_proj",
                        o: "attn.out_proj",
                        up: "mlp.fc_in",
                        down: "mlp.fc_out",
                        transposed: false,
                        ..GPT2
                    }
                }
            }
            Naming::GptNeo => {
                const {
                    &Names {
                        q: "attn.attention.q_proj",
                        k: "attn.attention.k_proj",
                        v: "attn.attention.v_proj",
                        o: "attn.attention.out_proj",
                        transposed: false,
                        ..GPT2
                    }
                }
            }
            Naming::GptNeoX => &GPT_NEOX,
            Naming::Persimmon => {
                const {
                    &Names {
                        qkv: "self_attn.query_key_value",
                        o: "self_attn.dense",
                        q_norm: "self_attn.q_layernorm",
                        k_norm: "self_attn.k_layernorm",
                        up: "mlp.dense_h_to_4h",
                        down: "mlp.dense_4h_to_h",
                        final_norm: "final_layernorm",
                        ..LLAMA
                    }
                }
            }
            Naming::Falcon => &FALCON,
            Naming::FalconNew => {
                const { &Names { norms: ["ln_attn", "ln_mlp", "", ""], ..FALCON } }
            }
            Naming::Mpt => {
                const {
                    &Names {
                        qkv: "attn.Wqkv",
                        o: "attn.out_proj",
                        q_norm: "attn.q_ln",
                        k_norm: "attn.k_ln",
                        up: "ffn.up_proj",
                        down: "ffn.down_proj",
                        norms: ["norm_1", "norm_2", "", ""],
                        final_norm: "norm_f",
                        token: "wte",
                        position: "wpe",
                        ..LLAMA
                    }
                }
            }
            Naming::Opt => &OPT,
            Naming::Phi => {
                const {
                    &Names {
                        o: "self_attn.dense",
                        q_norm: "self_attn.q_layernorm",
                        k_norm: "self_attn.k_layernorm",
                        up: "mlp.fc1",
                        down: "mlp.fc2",
                        final_norm: "final_layernorm",
                        ..LLAMA
                    }
                }
            }
            Naming::PhiMoe => const { &Names { router: "mlp.router", ..LLAMA } },
            Naming::MinimaxM2 => {
                const { &Names { correction: "=mlp.e_score_correction", ..LLAMA } }
            }
            Naming::StableLm => {
                const {
                    &Names {
                        q_norm: "self_attn.q_layernorm.norms.*",
                        k_norm: "self_attn.k_layernorm.norms.*",
                        ..LLAMA
                    }
                }
            }
            Naming::Starcoder2 => const { &Names { up: "mlp.c_fc", down: "mlp.c_proj", ..LLAMA } },
            Naming::GptOss => {
                const { &Names { router: "mlp.router", experts_in_first: true, ..LLAMA } }
            }
            Naming::Llama4 => {
                const {
                    &Names {
                        gate: "feed_forward.gate_proj",
                        up: "feed_forward.up_proj",
                        down: "feed_forward.down_proj",
                        router: "feed_forward.router",
                        expert_gate_up: "=feed_forward.experts.gate_up_proj",
                        expert_down: "=feed_forward.experts.down_proj",
                        shared_gate: "feed_forward.shared_expert.gate_proj",
                        shared_up: "feed_forward.shared_expert.up_proj",
                        shared_down: "feed_forward.shared_expert.down_proj",
                        experts_in_first: true,
                        ..LLAMA
                    }
                }
            }
            // Sandwich norms under names of its own.
            Naming::Glm4 => {
                const {
                    &Names {
                        norms: [
                            "input_layernorm",
                            "post_self_attn_layernorm",
                            "post_attention_layernorm",
                            "post_mlp_layernorm",
                        ],
                        ..LLAMA
                    }
                }
            }
            Naming::Olmo2 => {
                const {
                    &Names {
                        norms: ["post_attention_layernorm", "post_feedforward_layernorm", "", ""],
                        ..LLAMA
                    }
                }
            }
            Naming::Granite => {
                const {
                    &Names {
                        ssm: "mamba.",
                        router: "block_sparse_moe.router",
                        expert_gate_up: "=block_sparse_moe.experts.gate_up_proj",
                        expert_down: "=block_sparse_moe.experts.down_proj",
                        gate_up: "shared_mlp.input_linear",
                        down: "shared_mlp.output_linear",
                        shared_gate_up: "shared_mlp.input_linear",
                        shared_down: "shared_mlp.output_linear",
                        ..LLAMA
                    }
                }
            }
            Naming::Jamba => &JAMBA,
            Naming::Mamba => &MAMBA,
            // Every layer is one `mixer`.
            Naming::NemotronH => {
                const {
                    &Names {
                        q: "mixer.q_proj",
                        k: "mixer.k_proj",
                        v: "mixer.v_proj",
                        o: "mixer.o_proj",
                        up: "mixer.up_proj",
                        down: "mixer.down_proj",
                        router: "mixer.gate",
                        correction: "=mixer.gate.e_score_correction",
                        expert_up: "=mixer.experts.up_proj",
                        expert_down: "=mixer.experts.down_proj",
                        shared_up: "mixer.shared_experts.up_proj",
                        shared_down: "mixer.shared_experts.down_proj",
                        ..MAMBA
                    }
                }
            }
            Naming::Zamba2 => {
                const { &Names { ssm: "mamba.", final_norm: "final_layernorm", ..LLAMA } }
            }
            // The mixer of a hybrid layer stands one level deeper.
            Naming::Zamba2Hybrid => {
                const {
                    &Names {
                        ssm: "mamba_decoder.mamba.",
                        norms: ["mamba_decoder.input_layernorm", "", "", ""],
                        q: "",
                        k: "",
                        v: "",
                        o: "",
                        ..LLAMA
                    }
                }
            }
            Naming::Qwen35 => const { &Names { split_delta: true, ..LLAMA } },
            Naming::Lfm2 => &LFM2,
            Naming::Apertus => {
                const {
                    &Names {
                        norms: ["attention_layernorm", "feedforward_layernorm", "", ""],
                        ..LLAMA
                    }
                }
            }
            // Remote code: `w2` is the gate, `w1` the up projection.
            Naming::Qwen1 => {
                const {
                    &Names {
                        qkv: "attn.c_attn",
                        o: "attn.c_proj",
                        gate: "mlp.w2",
                        up: "mlp.w1",
                        down: "mlp.c_proj",
                        norms: ["ln_1", "ln_2", "", ""],
                        final_norm: "ln_f",
                        token: "wte",
                        ..LLAMA
                    }
                }
            }
            Naming::Baichuan => const { &Names { qkv: "self_attn.W_pack", ..LLAMA } },
            // Remote code.
            Naming::Internlm2 => {
                const {
                    &Names {
                        qkv: "attention.wqkv",
                        o: "attention.wo",
                        gate: "feed_forward.w1",
                        up: "feed_forward.w3",
                        down: "feed_forward.w2",
                        norms: ["attention_norm", "ffn_norm", "", ""],
                        token: "tok_embeddings",
                        head: "output",
                        ..LLAMA
                    }
                }
            }
            // Remote code: the up matrix holds gate and up.
            Naming::ChatGlm => {
                const {
                    &Names {
                        qkv: "self_attention.query_key_value",
                        o: "self_attention.dense",
                        gate_up: "mlp.dense_h_to_4h",
                        down: "mlp.dense_4h_to_h",
                        final_norm: "final_layernorm",
                        token: "embedding.word_embeddings",
                        head: "output_layer",
                        ..LLAMA
                    }
                }
            }
            Naming::Bert => &BERT,
            Naming::Roberta => &ROBERTA,
            Naming::Albert => {
                const {
                    &Names {
                        q: "attention.query",
                        k: "attention.key",
                        v: "attention.value",
                        o: "attention.dense",
                        up: "ffn",
                        down: "ffn_output",
                        norms: ["attention.LayerNorm", "full_layer_layer_norm", "", ""],
                        embedding_projection: "encoder.embedding_hidden_mapping_in",
                        head: "predictions.decoder",
                        head_bias: "=predictions.bias",
                        head_dense: "predictions.dense",
                        head_norm: "predictions.LayerNorm",
                        pooler: "pooler",
                        narrow_head: true,
                        ..BERT
                    }
                }
            }
            Naming::Electra => {
                const {
                    &Names {
                        head: "generator_lm_head",
                        head_bias: "=generator_lm_head.bias",
                        head_dense: "generator_predictions.dense",
                        head_norm: "generator_predictions.LayerNorm",
                        narrow_head: true,
                        ..BERT
                    }
                }
            }
            Naming::DistilBert => {
                const {
                    &Names {
                        q: "attention.q_lin",
                        k: "attention.k_lin",
                        v: "attention.v_lin",
                        o: "attention.out_lin",
                        up: "ffn.lin1",
                        down: "ffn.lin2",
                        norms: ["sa_layer_norm", "output_layer_norm", "", ""],
                        head: "vocab_projector",
                        head_bias: "=vocab_projector.bias",
                        head_dense: "vocab_transform",
                        head_norm: "vocab_layer_norm",
                        pooler: "pre_classifier",
                        ..BERT
                    }
                }
            }
            Naming::Deberta => const { &Names { qkv: "attention.self.in_proj", ..BERT } },
            Naming::DebertaV2 => {
                const {
                    &Names {
                        q: "attention.self.query_proj",
                        k: "attention.self.key_proj",
                        v: "attention.self.value_proj",
                        embedding_projection: "embeddings.embed_proj",
                        ..BERT
                    }
                }
            }
            Naming::Mpnet => {
                const {
                    &Names {
                        q: "attention.attn.q",
                        k: "attention.attn.k",
                        v: "attention.attn.v",
                        o: "attention.attn.o",
                        norms: ["attention.LayerNorm", "output.LayerNorm", "", ""],
                        ..ROBERTA
                    }
                }
            }
            Naming::ModernBert => {
                const {
                    &Names {
                        qkv: "attn.Wqkv",
                        o: "attn.Wo",
                        gate_up: "mlp.Wi",
                        down: "mlp.Wo",
                        norms: ["attn_norm", "mlp_norm", "", ""],
                        final_norm: "final_norm",
                        token: "embeddings.tok_embeddings",
                        embedding_norm: "embeddings.norm",
                        head: "decoder",
                        head_bias: "=decoder.bias",
                        head_dense: "head.dense",
                        head_norm: "head.norm",
                        drops_first_norm: true,
                        lean_head: true,
                        ..LLAMA
                    }
                }
            }
            Naming::T5Encoder => &T5,
            // The feed-forward is the third sublayer.
            Naming::T5Decoder => {
                const {
                    &Names {
                        cross: [
                            "layer.1.EncDecAttention.q",
                            "layer.1.EncDecAttention.k",
                            "layer.1.EncDecAttention.v",
                            "layer.1.EncDecAttention.o",
                        ],
                        cross_norm: "layer.1.layer_norm",
                        gate: "layer.2.DenseReluDense.wi_0",
                        up: "layer.2.DenseReluDense.wi",
                        gated_up: "layer.2.DenseReluDense.wi_1",
                        down: "layer.2.DenseReluDense.wo",
                        norms: ["layer.0.layer_norm", "layer.2.layer_norm", "", ""],
                        ..T5
                    }
                }
            }
            Naming::Bart => &BART,
            Naming::Whisper => const { &Names { token: "embed_tokens", head: "proj_out", ..BART } },
            Naming::Vit => &VIT,
            Naming::Clip => &CLIP,
            Naming::Pixtral => {
                const {
                    &Names {
                        q: "attention.q_proj",
                        k: "attention.k_proj",
                        v: "attention.v_proj",
                        o: "attention.o_proj",
                        gate: "feed_forward.gate_proj",
                        up: "feed_forward.up_proj",
                        down: "feed_forward.down_proj",
                        norms: ["attention_norm", "ffn_norm", "", ""],
                        patch: "patch_conv",
                        ..LLAMA
                    }
                }
            }
            Naming::Llama4Vision => {
                const {
                    &Names {
                        up: "mlp.fc1",
                        down: "mlp.fc2",
                        final_norm: "layernorm_post",
                        class_token: "=class_embedding",
                        ..LLAMA
                    }
                }
            }
            Naming::QwenVision => &QWEN_VISION,
            Naming::QwenVision25 => {
                const {
                    &Names {
                        gate: "mlp.gate_proj",
                        up: "mlp.up_proj",
                        down: "mlp.down_proj",
                        ..QWEN_VISION
                    }
                }
            }
            Naming::Qwen3Vision => {
                const { &Names { up: "mlp.linear_fc1", down: "mlp.linear_fc2", ..QWEN_VISION } }
            }
            Naming::MoonVit => {
                const {
                    &Names {
                        q: "attn.q_proj",
                        k: "attn.k_proj",
                        v: "attn.v_proj",
                        final_norm: "final_layernorm",
                        ..QWEN_VISION
                    }
                }
            }
            Naming::Gemma4 => {
                const {
                    &Names {
                        router: "router.proj",
                        expert_gate_up: "=experts.gate_up_proj",
                        expert_down: "=experts.down_proj",
                        shared_gate: "mlp.gate_proj",
                        shared_up: "mlp.up_proj",
                        shared_down: "mlp.down_proj",
                        ..LLAMA
                    }
                }
            }
            Naming::Gemma4Vision => {
                const {
                    &Names {
                        q: "self_attn.q_proj.linear",
                        k: "self_attn.k_proj.linear",
                        v: "self_attn.v_proj.linear",
                        o: "self_attn.o_proj.linear",
                        gate: "mlp.gate_proj.linear",
                        up: "mlp.up_proj.linear",
                        down: "mlp.down_proj.linear",
                        ..LLAMA
                    }
                }
            }
            Naming::ClipText => const { &Names { final_norm: "final_layer_norm", ..CLIP } },
            Naming::Deit => const { &Names { head: "cls_classifier", ..VIT } },
            Naming::OpenClip => {
                const {
                    &Names {
                        qkv: "attn.in_proj",
                        o: "attn.out_proj",
                        up: "mlp.c_fc",
                        down: "mlp.c_proj",
                        norms: ["ln_1", "ln_2", "", ""],
                        ..LLAMA
                    }
                }
            }
            Naming::WavLm => {
                const {
                    &Names {
                        q: "attention.q_proj",
                        k: "attention.k_proj",
                        v: "attention.v_proj",
                        o: "attention.out_proj",
                        up: "feed_forward.intermediate_dense",
                        down: "feed_forward.output_dense",
                        norms: ["layer_norm", "final_layer_norm", "", ""],
                        final_norm: "layer_norm",
                        ..LLAMA
                    }
                }
            }
            Naming::DeepSeekV4 => {
                const { &Names { q: "", k: "self_attn.kv_proj", o: "", ..DEEPSEEK } }
            }
            Naming::KimiLinear => {
                const { &Names { ssm: "self_attn.", kimi_delta: true, ..DEEPSEEK } }
            }
            Naming::Gguf => &GGUF,
        }
    }
}
