//! How a graph is to be run: element types, kernels, the style of the implementation, shards and adapters.

use plimsoll_units::DType;

use crate::graph::Hold;
use crate::inventory::Part;

/// Everything that decides which operators a layer consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildOptions {
    /// Type of the weights.
    pub weights: DType,
    /// Type of matrix products.
    pub compute: DType,
    /// Weights and inputs of products are cast at every use (`torch.autocast`).
    pub autocast: bool,
    /// FP8 products.
    pub fp8: bool,
    /// Attention.
    pub attention: AttentionStyle,
    /// Implementation.
    pub style: Style,
    /// Which parameters learn.
    pub trainable: Trainable,
    /// Low-rank adapters, if any.
    pub adapters: Option<Adapters>,
    /// Storage of frozen matrices.
    pub base: Option<FrozenBase>,
    /// The output projection is quantized like any linear layer.
    pub quantize_head: bool,
    /// Dropout where the model has it.
    pub dropout: bool,
    /// Loss.
    pub loss: LossStyle,
    /// The model's outputs are copied to F32 (accelerate's wrapper under mixed precision).
    pub widens_outputs: bool,
    /// The wrapper around the model returns F32 logits, and the loss runs on those (Lightning Fabric under `-true`
    /// precisions).
    pub wide_logits: bool,
    /// How long the program keeps the logits alive beyond their use.
    pub hold_logits: Option<Hold>,
    /// Which form of them.
    pub held: HeldLogits,
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Norm and dropout regions are split along the sequence.
    pub sequence_parallel: bool,
    /// Logits stay split along the vocabulary in the loss.
    pub loss_parallel: bool,
    /// Expert-parallel ranks.
    pub expert: u64,
    /// Tensor ranks split experts beside expert ranks, which are data ranks then (Megatron).
    pub expert_tensor: bool,
    /// Load of the busiest expert rank, in thousandths of the mean.
    pub imbalance_permille: u64,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions {
            weights: DType::F32,
            compute: DType::F32,
            autocast: false,
            fp8: false,
            attention: AttentionStyle::Flash,
            style: Style::default(),
            trainable: Trainable::All,
            adapters: None,
            base: None,
            quantize_head: false,
            dropout: false,
            loss: LossStyle::CrossEntropy { upcast: true, shifted_copy: false },
            widens_outputs: false,
            wide_logits: false,
            hold_logits: None,
            held: HeldLogits::Made,
            tensor: 1,
            sequence_parallel: false,
            loss_parallel: false,
            expert: 1,
            expert_tensor: false,
            imbalance_permille: 1000,
        }
    }
}

/// Storage of frozen matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrozenBase {
    /// Block type.
    pub dtype: DType,
    /// A dequantized copy is written at each use.
    pub dequantizes: bool,
    /// Type that the kernel dequantizes to before the copy is cast to that of the product; `None` where they agree.
    pub written_as: Option<DType>,
    /// The product's node keeps its input as an attribute.
    pub keeps_inputs: bool,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionStyle {
    /// Scores in memory.
    Eager,
    /// flash-attention 2.
    Flash,
    /// Memory-efficient.
    Efficient,
    /// cuDNN fused.
    Cudnn,
}

/// How an implementation writes its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// RMS norms.
    pub norm: NormStyle,
    /// Rotary embedding.
    pub rotary: RotaryStyle,
    /// SwiGLU in one kernel.
    pub fused_swiglu: bool,
    /// SiLU written out as `x * sigmoid(x)`.
    pub composed_silu: bool,
    /// K and V are copied to all query heads before attention.
    pub repeat_kv: bool,
    /// q, k and v are slices of one product even where the published model has three matrices; their adapters are one as
    /// well: one A for all, one convolution for their B, written into zeros where one of the three has none.
    pub fused_qkv: bool,
    /// Gate and up are two products, with adapters of their own, even where the published model has one matrix.
    pub splits_gate_up: bool,
    /// Queries reach SDPA as `[b, heads, s, d]` in memory (joined from rotated and plain parts), and so its output, which
    /// is made like them, has to be copied into rows.
    pub context_copy: bool,
    /// Softmax of eager attention.
    pub softmax: SoftmaxStyle,
    /// Bias, activation and dropout are fused where the model has them.
    pub fused_bias: bool,
    /// Column-parallel inputs are gathered again in backward instead of kept (Megatron).
    pub regather: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style {
            norm: NormStyle::Composed,
            rotary: RotaryStyle::Composed,
            fused_swiglu: false,
            composed_silu: false,
            repeat_kv: false,
            fused_qkv: false,
            splits_gate_up: false,
            context_copy: false,
            softmax: SoftmaxStyle::Upcast,
            fused_bias: false,
            regather: false,
        }
    }
}

/// RMS norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormStyle {
    /// Written out with an F32 copy (`x.float()`, `pow`, `mean`, `rsqrt`, `mul`).
    Composed,
    /// One kernel.
    Fused,
}

/// Rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryStyle {
    /// `q * cos + rotate_half(q) * sin`.
    Composed,
    /// F32 copy viewed as complex numbers, multiplied, cast back.
    Complex,
    /// One kernel, in place.
    Fused,
}

/// Softmax of eager attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftmaxStyle {
    /// In F32, then a copy in the compute type.
    Upcast,
    /// In the type of the scores.
    Native,
    /// Written out: `exp(x - max) / sum`.
    Composed,
}

/// Which parameters learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trainable {
    /// All.
    All,
    /// None but adapters (and, with `embeddings`, the token table and head).
    Adapters {
        /// Token table and head learn too.
        embeddings: bool,
    },
    /// The last layers and the head.
    Last(u64),
    /// None: inference.
    Nothing,
}

impl Trainable {
    /// Whether the base weights of layer `number` of `layers` learn.
    pub fn layer(self, number: usize, layers: usize) -> bool {
        match self {
            Trainable::All => true,
            Trainable::Last(n) => (number as u64).saturating_add(n) >= layers as u64,
            _ => false,
        }
    }

    /// Whether embeddings learn.
    pub fn embeddings(self) -> bool {
        matches!(self, Trainable::All | Trainable::Adapters { embeddings: true })
    }

    /// Whether the head learns.
    pub fn head(self) -> bool {
        matches!(
            self,
            Trainable::All | Trainable::Last(_) | Trainable::Adapters { embeddings: true }
        )
    }
}

/// Families of adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// LoRA: a pair of thin matrices beside each target.
    LowRank,
    /// LLaMA-Adapter: every layer but the first two attends to learned tokens as well, behind a gate for each head.
    Prefix,
    /// LLaMA-Adapter v2: besides, a learned shift and scale on the output of every linear layer, and learned norms.
    ScaleShift,
}

impl AdapterKind {
    /// First layer that attends to learned tokens (LitGPT's `adapter_start_layer`).
    const PREFIX_START: usize = 2;

    /// Whether layer `number` has learned tokens.
    pub(crate) fn prefixes(self, number: usize) -> bool {
        self != AdapterKind::LowRank && number >= Self::PREFIX_START
    }
}

/// Adapters on a frozen model.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapters {
    /// Which family.
    pub kind: AdapterKind,
    /// Rank.
    pub rank: u64,
    /// Matrices that have them.
    pub parts: Vec<Part>,
    /// Type of the adapter weights.
    pub dtype: DType,
    /// Dropout before A.
    pub dropout: bool,
    /// The input is cast to the adapter's type before A (PEFT: `x.to(lora_A.weight.dtype)`).
    pub casts_input: bool,
    /// Weight-decomposed.
    pub dora: bool,
}

/// Forms of logits on their way to the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldLogits {
    /// As the projection made them (as the model returned them where a wrapper widens its outputs).
    Made,
    /// Their F32 copy.
    Widened,
    /// The shifted copy.
    Shifted,
}

/// How logits become a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossStyle {
    /// PyTorch's `cross_entropy`.
    CrossEntropy {
        /// On an F32 copy.
        upcast: bool,
        /// Of a shifted contiguous copy.
        shifted_copy: bool,
    },
    /// F32 copy that becomes the probabilities in place (Megatron's vocabulary-parallel loss).
    InPlaceUpcast,
    /// Fused kernel on an F32 copy of the logits, over which it writes the gradient.
    FusedUpcast,
    /// Fused kernel that writes the gradient over the logits.
    Fused,
    /// Head and loss chunk by chunk, gradients in forward.
    FusedLinear {
        /// Tokens per chunk; 0 lets the kernel choose (Liger: about hidden x tokens / vocabulary).
        chunk: u64,
    },
    /// Logits in chunks of so many tokens, each kept (LitGPT, torchtune).
    Chunked {
        /// Tokens per chunk.
        tokens: u64,
        /// Upcast per chunk.
        upcast: bool,
        /// Compiled: logits are kept instead of log-probabilities.
        recomputes: bool,
        /// Of a shifted contiguous copy of all logits.
        shifted_copy: bool,
    },
    /// No loss: logits are the result.
    Nothing,
}
