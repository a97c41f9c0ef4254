//! The parameters of a model, one by one: name, shape and the part that each plays. Counts, weight bytes by
//! tensor, sharding, quantization and the operator graph all read this list; nothing else knows how many
//! parameters a model has.

mod emit;
mod naming;
mod parts;
mod stored;

pub use emit::inventory;
pub use naming::Naming;
pub use parts::{Classified, classify};
pub use stored::{StoredInventory, StoredRow, inventory_from_tensors};

/// All parameters of a model, in the order of the published checkpoint's modules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// The parameters; tied tables appear once.
    pub parameters: Vec<Parameter>,
}

/// One parameter tensor (or the `count` equal experts of a layer in one row).
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Published name, such as `model.layers.0.self_attn.q_proj.weight`; for a row that stands for several
    /// experts the expert index is written `*`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// How many tensors of this shape the row stands for; 1 except for unfused experts.
    pub count: u64,
    /// Index into [`Architecture::stacks`](crate::Architecture::stacks); `None` for embeddings and head.
    pub stack: Option<usize>,
    /// Layer within the stack.
    pub layer: Option<usize>,
    /// What it does.
    pub part: Part,
    /// Whether it is the bias of the part (else its weight).
    pub bias: bool,
    /// A parameter that is never trained nor quantized (a buffer that `parameters()` lists).
    pub frozen: bool,
}

/// What a parameter does. Weights and biases share a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Part {
    /// Token table.
    TokenEmbedding,
    /// Position table (learned, relative or fixed).
    PositionEmbedding,
    /// Segment table.
    TypeEmbedding,
    /// Norm after the embedding.
    EmbeddingNorm,
    /// Projection from embedding width to hidden.
    EmbeddingProjection,
    /// Patch or frame projection; convolution stem.
    Patch,
    /// Second convolution of an audio stem.
    Patch2,
    /// Class, distillation and register tokens.
    ExtraToken,
    /// First norm of a layer (before attention in pre-norm, after it in post-norm).
    Norm1,
    /// Second norm of a layer.
    Norm2,
    /// Third norm (sandwich, or before cross-attention).
    Norm3,
    /// Fourth norm (sandwich).
    Norm4,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Fused query, key and value projection.
    Qkv,
    /// Attention output projection.
    Output,
    /// Norm on queries.
    QueryNorm,
    /// Norm on keys.
    KeyNorm,
    /// Sink logits.
    Sinks,
    /// MLA: query down projection.
    QueryDown,
    /// MLA: norm of the query compression.
    QueryDownNorm,
    /// MLA: query up projection.
    QueryUp,
    /// MLA: key-value down projection with the rotary key.
    KvDown,
    /// MLA: norm of the key-value compression.
    KvDownNorm,
    /// MLA: key-value up projection.
    KvUp,
    /// Sparse-attention indexer.
    Indexer,
    /// Cross-attention query.
    CrossQuery,
    /// Cross-attention key.
    CrossKey,
    /// Cross-attention value.
    CrossValue,
    /// Cross-attention output.
    CrossOutput,
    /// Mamba, gated delta, short convolution: input projection.
    SsmIn,
    /// ... second input projection (gated delta's beta and alpha).
    SsmIn2,
    /// ... convolution.
    SsmConv,
    /// ... projection to dt, B, C.
    SsmX,
    /// ... time-step projection or bias.
    SsmDt,
    /// ... state matrix.
    SsmA,
    /// ... skip vector.
    SsmD,
    /// ... inner norm.
    SsmNorm,
    /// ... output projection.
    SsmOut,
    /// Gate projection of a feed-forward.
    Gate,
    /// Up projection (or the first matrix of an ungated feed-forward).
    Up,
    /// Fused gate and up projection.
    GateUp,
    /// Down projection.
    Down,
    /// Router of a mixture.
    Router,
    /// Routed experts: gate.
    ExpertGate,
    /// Routed experts: up.
    ExpertUp,
    /// Routed experts: fused gate and up.
    ExpertGateUp,
    /// Routed experts: down.
    ExpertDown,
    /// Shared expert: gate.
    SharedGate,
    /// Shared expert: up.
    SharedUp,
    /// Shared expert: down.
    SharedDown,
    /// Gate on the shared expert's output.
    SharedScale,
    /// Norm after the last layer of a stack.
    FinalNorm,
    /// Dense layer of a head transform or pooler.
    HeadDense,
    /// Norm of a head transform.
    HeadNorm,
    /// Output projection (absent where it is tied; its bias may still be there).
    Head,
    /// Multimodal projector.
    Projector,
    /// Anything else (logit scales, mixing scalars).
    Other,
}

impl Parameter {
    /// Elements of the row, all `count` tensors together, saturating.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(self.count, |n, d| n.saturating_mul(*d))
    }

    /// Whether the row is a matrix of a linear layer or convolution (what quantization, LoRA and Muon apply to),
    /// not a table, norm, bias or router.
    pub fn is_linear(&self) -> bool {
        use Part::*;
        !self.bias
            && self.shape.len() >= 2
            && !matches!(
                self.part,
                TokenEmbedding
                    | PositionEmbedding
                    | TypeEmbedding
                    | ExtraToken
                    | Patch
                    | Patch2
                    | SsmConv
                    | SsmA
                    | Router
                    | Other
            )
    }
}

impl Inventory {
    /// All elements, saturating.
    pub fn elements(&self) -> u64 {
        self.parameters.iter().fold(0u64, |n, p| n.saturating_add(p.elements()))
    }
}
