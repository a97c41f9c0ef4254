//! What GGUF keys leave unsaid, by architecture name. With a tensor table most of this is seen instead.

use super::{norm, placement};
use crate::arch::{Activation, Norm, NormKind, NormPlacement, QkNorm};

/// Which mixers the layers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MixerRule {
    /// Attention everywhere (latent where the file has its ranks).
    Attention,
    Mamba1,
    Mamba2,
    /// Mamba-1 where a layer has no KV heads.
    Jamba,
    /// Mamba-2 where a layer has no KV heads.
    Granite,
    /// Mamba-2 where a layer has neither KV heads nor a feed-forward.
    Nemotron,
    /// Attention and Mamba-2 side by side.
    Both,
    /// Short convolution where a layer has no KV heads.
    ShortConv,
    /// Gated delta rule, with full attention every few layers.
    GatedDelta,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub known: bool,
    pub mixer: MixerRule,
    pub norm: Norm,
    pub norms: u64,
    pub placement: NormPlacement,
    pub parallel: bool,
    pub gated: bool,
    pub fused_gate: bool,
    pub activation: Activation,
    pub fused_qkv: bool,
    pub qkv_bias: bool,
    pub out_bias: bool,
    pub mlp_bias: bool,
    pub qk_norm: QkNorm,
    pub sinks: bool,
    pub shared: bool,
    pub tied: bool,
    pub learned: bool,
    pub unrotated: bool,
    pub encoder: bool,
    pub chunked: bool,
    pub dense_ffn: bool,
    /// Every so many layers one is full, where the file has a window but no pattern; 0 for none sliding.
    pub period: u64,
}

const LLAMA: Rules = Rules {
    known: true,
    mixer: MixerRule::Attention,
    norm: Norm::RMS,
    norms: 2,
    placement: NormPlacement::Pre,
    parallel: false,
    gated: true,
    fused_gate: false,
    activation: Activation::Silu,
    fused_qkv: false,
    qkv_bias: false,
    out_bias: false,
    mlp_bias: false,
    qk_norm: QkNorm::None,
    sinks: false,
    shared: false,
    tied: false,
    learned: false,
    unrotated: false,
    encoder: false,
    chunked: false,
    dense_ffn: true,
    period: 0,
};

/// GPT-2 and its time: layer norms, biases, ungated.
const CLASSIC: Rules = Rules {
    norm: norm(NormKind::Layer, true),
    gated: false,
    activation: Activation::Gelu,
    fused_qkv: true,
    qkv_bias: true,
    out_bias: true,
    mlp_bias: true,
    ..LLAMA
};

const BERT: Rules = Rules {
    fused_qkv: false,
    placement: NormPlacement::Post,
    learned: true,
    encoder: true,
    tied: true,
    ..CLASSIC
};

const GEMMA: Rules = Rules { activation: Activation::GeluTanh, tied: true, ..LLAMA };
const SANDWICH: Rules = Rules { norms: 4, placement: placement(4), ..GEMMA };
const RECURRENT: Rules =
    Rules { norms: 1, dense_ffn: false, unrotated: true, gated: false, ..LLAMA };

impl Rules {
    /// The rules of `arch`; Llama's with `known` off for an unknown one.
    pub fn of(arch: &str) -> Rules {
        match arch {
            "llama" | "internlm2" | "minicpm" | "granite" | "granitemoe" | "deci" | "smollm3"
            | "arcee" | "baichuan" | "xverse" | "orion" | "mistral3" | "mistral4" | "ernie4_5"
            | "ernie4_5-moe" | "minicpm3" | "llama-embed" | "exaone" | "plm" | "bailingmoe"
            | "bailingmoe2" | "grovemoe" => Rules { unrotated: arch == "minicpm3", ..LLAMA },
            "deepseek2" | "deepseek" | "deepseek2-ocr" | "kimi-k2" | "glm-dsa" | "deepseek32" => {
                Rules { shared: true, ..LLAMA }
            }
            "llama4" => Rules { chunked: true, period: 4, shared: true, ..LLAMA },
            "qwen" => Rules { fused_qkv: true, qkv_bias: true, ..LLAMA },
            "qwen2" | "qwen2moe" | "qwen2vl" | "dream" => {
                Rules { qkv_bias: true, shared: arch == "qwen2moe", ..LLAMA }
            }
            "qwen3" | "qwen3moe" | "qwen3vl" | "qwen3vlmoe" | "hunyuan-dense" | "hunyuan-moe"
            | "apertus" | "laguna" => Rules { qk_norm: QkNorm::PerHead, ..LLAMA },
            "qwen3next" | "qwen35" | "qwen35moe" => Rules {
                mixer: MixerRule::GatedDelta,
                qk_norm: QkNorm::PerHead,
                shared: arch != "qwen35",
                ..LLAMA
            },
            "gemma" => GEMMA,
            "gemma2" => Rules { period: 2, ..SANDWICH },
            "gemma3" | "gemma4" => Rules { period: 6, qk_norm: QkNorm::PerHead, ..SANDWICH },
            "gemma3n" => Rules { period: 5, qk_norm: QkNorm::PerHead, ..SANDWICH },
            "phi2" => Rules { norms: 1, parallel: true, ..CLASSIC },
            "phi3" | "phimoe" => {
                Rules { fused_qkv: arch == "phi3", fused_gate: arch == "phi3", ..LLAMA }
            }
            "gpt-oss" => Rules {
                sinks: true,
                qkv_bias: true,
                out_bias: true,
                mlp_bias: true,
                period: 2,
                ..LLAMA
            },
            "chatglm" => Rules { fused_qkv: true, qkv_bias: true, fused_gate: true, ..LLAMA },
            "glm4" => Rules {
                norms: 4,
                placement: placement(4),
                qkv_bias: true,
                fused_gate: true,
                ..LLAMA
            },
            "glm4moe" => Rules { qkv_bias: true, shared: true, ..LLAMA },
            "command-r" | "cohere2" => Rules {
                norm: norm(NormKind::Layer, false),
                norms: 1,
                parallel: true,
                tied: true,
                period: if arch == "cohere2" { 4 } else { 0 },
                ..LLAMA
            },
            "olmo" => {
                Rules { norm: Norm { weight: false, ..norm(NormKind::Layer, false) }, ..LLAMA }
            }
            "olmo2" | "olmo3" => Rules {
                placement: NormPlacement::BranchOutput,
                qk_norm: QkNorm::Full,
                period: 4,
                ..LLAMA
            },
            "olmoe" | "minimax-m2" => Rules { qk_norm: QkNorm::Full, ..LLAMA },
            "exaone4" => Rules {
                placement: NormPlacement::BranchOutput,
                qk_norm: QkNorm::PerHead,
                period: 4,
                ..LLAMA
            },
            "seed_oss" => Rules { qkv_bias: true, ..LLAMA },
            "dots1" => Rules { qk_norm: QkNorm::PerHead, shared: true, ..LLAMA },
            "stablelm" => Rules { norm: norm(NormKind::Layer, true), ..LLAMA },
            "nemotron" => Rules {
                norm: norm(NormKind::Layer, true),
                gated: false,
                activation: Activation::Relu2,
                ..LLAMA
            },
            "falcon" => Rules {
                norms: 1,
                parallel: true,
                qkv_bias: false,
                out_bias: false,
                mlp_bias: false,
                ..CLASSIC
            },
            "gptneox" => Rules { parallel: true, ..CLASSIC },
            "gptj" => Rules { norms: 1, parallel: true, fused_qkv: false, ..CLASSIC },
            "gpt2" | "starcoder" => Rules { learned: true, tied: true, ..CLASSIC },
            "starcoder2" => Rules { fused_qkv: false, tied: true, ..CLASSIC },
            "bloom" | "mpt" => Rules { unrotated: true, tied: true, ..CLASSIC },
            "bert" | "jina-bert-v2" | "modern-bert" => BERT,
            "nomic-bert" | "nomic-bert-moe" => {
                Rules { learned: false, gated: arch == "nomic-bert", fused_qkv: true, ..BERT }
            }
            "mamba" => Rules { mixer: MixerRule::Mamba1, tied: true, ..RECURRENT },
            "mamba2" => Rules { mixer: MixerRule::Mamba2, ..RECURRENT },
            "jamba" => Rules { mixer: MixerRule::Jamba, unrotated: true, ..LLAMA },
            "granitehybrid" => Rules { mixer: MixerRule::Granite, shared: true, ..LLAMA },
            "nemotron_h" | "nemotron_h_moe" => Rules {
                mixer: MixerRule::Nemotron,
                norms: 1,
                unrotated: true,
                gated: false,
                activation: Activation::Relu2,
                shared: true,
                ..LLAMA
            },
            "falcon-h1" => Rules { mixer: MixerRule::Both, ..LLAMA },
            "lfm2" | "lfm2moe" => {
                Rules { mixer: MixerRule::ShortConv, qk_norm: QkNorm::PerHead, tied: true, ..LLAMA }
            }
            _ => Rules { known: false, ..LLAMA },
        }
    }
}
