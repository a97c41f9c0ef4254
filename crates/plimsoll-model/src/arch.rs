//! The shape of a model in the field's own terms: stacks of layers, each a mixer (attention, recurrence) and a
//! feed-forward part. Widths are read from configurations, never guessed from one another.

use plimsoll_units::DType;

use crate::inventory::{Naming, Part};

mod queries;

pub use queries::{KvWidths, LayerCounts, RecurrentState};

/// A model: what a configuration says, normalised.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// The `model_type` of Hugging Face, or the `general.architecture` of GGUF.
    pub family: String,
    /// The class that users instantiate, as in `architectures[0]`; empty where unknown.
    pub class: String,
    /// What the model computes; decides the head.
    pub kind: ModelKind,
    /// Width of the residual stream of the main (last) stack.
    pub hidden: u64,
    /// Token and position tables. Absent for pure vision models.
    pub embedding: Option<Embedding>,
    /// Stacks in the order of execution: encoder before decoder, vision tower before language model.
    pub stacks: Vec<Stack>,
    /// The output projection and what stands before it.
    pub head: Head,
    /// Type of the published weights (`torch_dtype`); F32 where a configuration does not say.
    pub dtype: DType,
    /// How published weights are quantized, if they are.
    pub quantization: Option<Quantization>,
    /// The longest sequence that the model was made for (after rope scaling), if it has one.
    pub max_positions: Option<u64>,
    /// How published checkpoints name the tables and the head.
    pub naming: Naming,
    /// Name prefix of the tables, such as `model.`; empty or ending in a dot.
    pub root: String,
    /// Name prefix of the head, such as `language_model.`; empty or ending in a dot.
    pub head_root: String,
    /// Parameters that belong to no layer pattern: projectors, logit scales, relative biases.
    pub extra: Vec<Extra>,
}

/// A parameter that the stacks do not describe, spelt out.
#[derive(Clone, Debug, PartialEq)]
pub struct Extra {
    /// Full published name.
    pub name: String,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// What it does.
    pub part: Part,
    /// Whether it is the bias of the part.
    pub bias: bool,
    /// The stack it runs with, if any.
    pub stack: Option<usize>,
    /// The layer it runs with, if any.
    pub layer: Option<usize>,
}

/// What comes out of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelKind {
    /// Next-token logits.
    CausalLm,
    /// Masked-token logits (BERT and relatives).
    MaskedLm,
    /// Encoder and decoder, token logits (T5, BART).
    EncoderDecoderLm,
    /// Audio encoder and text decoder (Whisper).
    SpeechSeq2Seq,
    /// Image to class logits (ViT).
    ImageClassifier,
    /// Image and text encoders with a shared space (CLIP).
    Contrastive,
    /// Image (or audio) tower, projector and language model.
    VisionLanguage,
    /// Hidden states only.
    Encoder,
}

/// Token table and positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Rows of the token table as published (padding included).
    pub vocab: u64,
    /// Columns of the token table; differs from `hidden` in ALBERT, ELECTRA, OPT-350m.
    pub width: u64,
    /// Projection from `width` to `hidden` where they differ: `Some(bias)`.
    pub projection: Option<bool>,
    /// How positions enter.
    pub positions: Positions,
    /// Rows of the segment table, if any.
    pub token_types: Option<u64>,
    /// A norm directly after the sum.
    pub norm: Option<Norm>,
    /// Several token tables of the same shape (one per stack) that are *not* shared.
    pub tables: u64,
    /// The learned position table and the norm exist once per text stack, not once (BART).
    pub per_stack: bool,
}

/// How a model knows positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Positions {
    /// None, or inside the mixer (recurrence, convolution).
    None,
    /// A learned table of so many rows.
    Learned {
        /// Rows of the table, offsets included (OPT has two more).
        rows: u64,
    },
    /// A fixed table that is a parameter or buffer of so many rows.
    Sinusoidal {
        /// Rows.
        rows: u64,
        /// Whether `parameters()` lists it (Whisper's encoder does).
        is_parameter: bool,
    },
    /// Rotary on the first `dim` channels of each head.
    Rotary {
        /// Rotated channels per head.
        dim: u64,
    },
    /// Linear biases, no parameters.
    Alibi,
    /// A bias table of `buckets` x heads per stack (T5).
    RelativeBuckets {
        /// Buckets.
        buckets: u64,
    },
    /// Disentangled attention: a shared table of `rows` relative positions (DeBERTa).
    Disentangled {
        /// Rows of the relative table.
        rows: u64,
    },
}

/// A run of layers with one width.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Its part in the model.
    pub role: StackRole,
    /// Name prefix of its layers in published checkpoints, such as `model.layers`.
    pub prefix: String,
    /// Name prefix of what stands beside the layers (final norm, patches), such as `model.`; empty or ending in
    /// a dot.
    pub root: String,
    /// How published checkpoints name the parts of a layer.
    pub naming: Naming,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The layers, first to last. Identical neighbours compare equal.
    pub layers: Vec<Layer>,
    /// The norm after the last layer.
    pub final_norm: Option<Norm>,
    /// What turns pixels or samples into the stack's input; absent for text.
    pub patch: Option<Patch>,
    /// All layers share the parameters of the first (ALBERT).
    pub shared: bool,
}

/// The part that a stack plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackRole {
    /// Bidirectional over the main sequence.
    Encoder,
    /// Causal over the main sequence.
    Decoder,
    /// A tower over image patches.
    Vision,
    /// A tower over audio frames.
    Audio,
    /// Layers that draft further tokens (multi-token prediction); not run in plain inference.
    Draft,
}

/// Pixels or samples to tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// Input channels (3 for RGB, mel bins for audio).
    pub channels: u64,
    /// Side of a square patch, or kernel length for audio.
    pub size: u64,
    /// Side of the default image, or frames of the default clip.
    pub input: u64,
    /// Tokens per default input, class tokens included.
    pub tokens: u64,
    /// Extra learned tokens (class, distillation, registers).
    pub extra_tokens: u64,
    /// Rows of the learned position table; 0 for none.
    pub position_rows: u64,
    /// Whether the patch projection has a bias.
    pub bias: bool,
}

/// One residual block.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Token mixing.
    pub mixer: Mixer,
    /// Attention over another stack's output (encoder-decoder).
    pub cross: Option<Attention>,
    /// Channel mixing; [`Ffn::None`] where the mixer is all (Mamba).
    pub ffn: Ffn,
    /// The norms of the layer.
    pub norm: Norm,
    /// How many norms of width `hidden` the layer has (2 for pre- or post-norm; 4 with sandwich norms; 1 for
    /// parallel blocks that share one).
    pub norms: u64,
    /// Where the norms stand.
    pub placement: NormPlacement,
    /// Attention and feed-forward read the same normed input and are summed (GPT-J, Falcon, Phi-2, Command-R).
    pub parallel: bool,
    /// Dropout probability of the residual branches is non-zero as published.
    pub dropout: bool,
    /// The naming of this layer where it differs from its stack's.
    pub naming: Option<Naming>,
}

/// Where the norms of a block stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormPlacement {
    /// Before each branch.
    Pre,
    /// After each residual sum (BERT, first transformer).
    Post,
    /// On each branch's output, before the sum (OLMo 2).
    BranchOutput,
    /// Before and after each branch (Gemma 2 and 3).
    Sandwich,
}

/// A normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norm {
    /// Which.
    pub kind: NormKind,
    /// Has a scale vector.
    pub weight: bool,
    /// Has a shift vector.
    pub bias: bool,
}

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// Mean and variance.
    Layer,
    /// Root mean square.
    Rms,
}

impl Norm {
    /// RMS norm with a scale.
    pub const RMS: Norm = Norm { kind: NormKind::Rms, weight: true, bias: false };
    /// Layer norm with scale and shift.
    pub const LAYER: Norm = Norm { kind: NormKind::Layer, weight: true, bias: true };

    /// Parameters of one norm over `width` channels.
    pub const fn parameters(self, width: u64) -> u64 {
        width.saturating_mul(self.weight as u64 + self.bias as u64)
    }
}

/// Token mixing of one layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Softmax attention with separate K and V heads (MHA, GQA, MQA).
    Attention(Attention),
    /// Multi-head latent attention (DeepSeek).
    Latent(LatentAttention),
    /// Mamba-1 selective state space.
    Mamba1(Mamba1),
    /// Mamba-2 state space dual.
    Mamba2(Mamba2),
    /// Gated delta rule (Qwen3-Next, Kimi linear attention).
    GatedDelta(GatedDelta),
    /// Short convolution (LFM2).
    ShortConv {
        /// Channels, the width of the residual stream.
        channels: u64,
        /// Kernel length.
        kernel: u64,
        /// Whether its projections have biases.
        bias: bool,
    },
    /// Attention and Mamba-2 side by side in one layer (Falcon-H1).
    Parallel(Box<Attention>, Box<Mamba2>),
    /// No mixer (a pure feed-forward layer of a hybrid).
    None,
}

/// Softmax attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Channels per query and key head.
    pub head_dim: u64,
    /// Channels per value head; equals `head_dim` in most models.
    pub value_dim: u64,
    /// Which positions see which.
    pub span: Span,
    /// Biases of the q, k and v projections.
    pub qkv_bias: bool,
    /// Bias of the k projection where it differs from q and v (Whisper has none): `None` means as `qkv_bias`.
    pub key_bias: Option<bool>,
    /// Bias of the output projection.
    pub out_bias: bool,
    /// q, k and v come from one matrix.
    pub fused_qkv: bool,
    /// Norms on q and k.
    pub qk_norm: QkNorm,
    /// A learned sink logit per head (gpt-oss).
    pub sinks: bool,
    /// The query projection has an output gate of the same size (Qwen3-Next).
    pub gated: bool,
    /// Attention dropout probability is non-zero as published.
    pub dropout: bool,
    /// K and V are read from an earlier layer's cache and not stored again (Gemma 3n, 4).
    pub shares_kv: bool,
    /// Keys serve as values too: there is no value projection (full layers of some Gemma 4).
    pub value_is_key: bool,
}

/// Norms on queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QkNorm {
    /// None.
    None,
    /// One scale of `head_dim`, shared by the heads (Qwen3, Gemma 3).
    PerHead,
    /// Scales over all heads: `heads * head_dim` and `kv_heads * head_dim` (OLMo 2, Chameleon).
    Full,
    /// Layer norm per head with its own scale per head (Command-R+): `heads x head_dim`.
    PerHeadWeights,
    /// One scale and one shift of `head_dim`, shared by the heads (Phi with `qk_layernorm`, Persimmon).
    PerHeadLayer,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Span {
    /// All (before it, in a causal stack).
    Full,
    /// The last `window` positions.
    Sliding {
        /// Window length in tokens.
        window: u64,
    },
    /// Its own chunk (Llama 4).
    Chunked {
        /// Chunk length in tokens.
        chunk: u64,
    },
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: u64,
    /// Rank of the query compression, if queries are compressed.
    pub q_lora_rank: Option<u64>,
    /// Rank of the K and V compression.
    pub kv_lora_rank: u64,
    /// Channels per head without rotary.
    pub nope_dim: u64,
    /// Rotary channels, shared by the heads in keys.
    pub rope_dim: u64,
    /// Channels per value head.
    pub value_dim: u64,
    /// Biases of the down projections.
    pub bias: bool,
    /// Sparse-attention indexer (DeepSeek V3.2): heads and channels.
    pub indexer: Option<(u64, u64)>,
}

/// Mamba-1.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba1 {
    /// Inner width.
    pub inner: u64,
    /// State channels.
    pub state: u64,
    /// Convolution kernel.
    pub conv: u64,
    /// Rank of the time-step projection.
    pub dt_rank: u64,
    /// Bias of the convolution.
    pub conv_bias: bool,
    /// Bias of the in and out projections.
    pub bias: bool,
    /// Norms on dt, B and C (Jamba).
    pub inner_norms: bool,
}

/// Mamba-2.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Inner width.
    pub inner: u64,
    /// State channels.
    pub state: u64,
    /// Convolution kernel.
    pub conv: u64,
    /// Heads.
    pub heads: u64,
    /// Channels per head.
    pub head_dim: u64,
    /// Groups of B and C.
    pub groups: u64,
    /// Bias of the convolution.
    pub conv_bias: bool,
    /// Bias of the in and out projections.
    pub bias: bool,
    /// Gated norm before the output projection.
    pub norm: bool,
}

/// Gated delta rule.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// Key heads.
    pub key_heads: u64,
    /// Value heads.
    pub value_heads: u64,
    /// Channels per key head.
    pub key_dim: u64,
    /// Channels per value head.
    pub value_dim: u64,
    /// Convolution kernel.
    pub conv: u64,
}

/// Channel mixing of one layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ffn {
    /// None.
    None,
    /// One expert for all.
    Dense(Mlp),
    /// Routed experts.
    Moe(Moe),
}

/// A feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mlp {
    /// Inner width.
    pub width: u64,
    /// Up and gate projections (three matrices), or up alone (two).
    pub gated: bool,
    /// Biases.
    pub bias: bool,
    /// The non-linearity.
    pub activation: Activation,
    /// Gate and up come from one matrix (Phi-3, GLM).
    pub fused_gate: bool,
}

/// Non-linearities by what autograd keeps for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// SiLU / swish.
    Silu,
    /// Exact GELU, one kernel.
    Gelu,
    /// Tanh GELU as one kernel (`gelu_pytorch_tanh`).
    GeluTanh,
    /// Tanh GELU written out in Python (`gelu_new`, BLOOM's and MPT's own): several kept intermediates.
    GeluComposed,
    /// Sigmoid approximation written out (`quick_gelu`, CLIP).
    QuickGelu,
    /// ReLU.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// Squared ReLU.
    Relu2,
}

/// Routed experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Routed experts.
    pub experts: u64,
    /// Experts that a token visits.
    pub top_k: u64,
    /// One routed expert.
    pub expert: Mlp,
    /// The shared expert (all of them as one wide network), if any.
    pub shared: Option<Mlp>,
    /// The shared expert has a gate of its own, `hidden -> 1` (Qwen2-MoE).
    pub shared_gate: bool,
    /// The router has a trained bias (gpt-oss).
    pub router_bias: bool,
    /// The router has a correction bias: a buffer that checkpoints hold and no optimizer trains (DeepSeek-V3).
    pub correction_bias: bool,
}

/// The end of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Output classes: the vocabulary or the labels; 0 where there is no head.
    pub outputs: u64,
    /// The projection is the token table itself.
    pub tied: bool,
    /// The projection has a bias.
    pub bias: bool,
    /// A dense layer, activation and norm before it (BERT's MLM transform), or a pooler: square matrices with bias.
    pub transform: Option<HeadTransform>,
}

/// What stands between the last layer and the projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadTransform {
    /// `hidden x hidden` with bias, activation, layer norm (masked language models).
    MaskedLm,
    /// `hidden x hidden` with bias and tanh on the first token.
    Pooler,
}

/// How published weights are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// The method as upstream names it: `gptq`, `awq`, `fp8`, `mxfp4`, `bitsandbytes`, `compressed-tensors`.
    pub method: String,
    /// Storage type of quantized matrices.
    pub dtype: DType,
    /// Parts of module names that stay in the model's own type (`lm_head`, `router`, ...).
    pub skip: Vec<String>,
}

impl Architecture {
    /// Layers of all stacks that run in a plain forward pass (draft layers are left out).
    pub fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.stacks.iter().filter(|s| s.role != StackRole::Draft).flat_map(|s| &s.layers)
    }

    /// The stack that generates or encodes text: the last one that is neither a tower nor a draft.
    pub fn main_stack(&self) -> Option<&Stack> {
        self.stacks
            .iter()
            .rev()
            .find(|s| matches!(s.role, StackRole::Decoder | StackRole::Encoder))
            .or(self.stacks.last())
    }
}
