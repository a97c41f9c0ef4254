//! The operator graph: blocks of operators with symbolic sizes, and stages that instantiate them. Layers that are
//! alike share one block, so a model of 126 equal layers is one block and 126 stages.
//!
//! A graph is what the program *does*, in its order: nodes run first to last, and autograd runs them last to first.
//! What a node allocates, keeps and computes stands in the operator table ([`crate::ops`]), not here.

use plimsoll_units::{Bytes, DType, Shape};

use crate::inventory::Part;
use crate::ops::Op;

/// A value of a block, by order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// A block of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A parameter of a block, by order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(pub u32);

/// A value that crosses stages, by order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoundaryId(pub u32);

/// A whole model in execution order.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Distinct blocks.
    pub blocks: Vec<Block>,
    /// Their instances, in forward order.
    pub stages: Vec<Stage>,
    /// Number of boundary values.
    pub boundaries: u32,
}

/// One instance of a block.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Which block.
    pub block: BlockId,
    /// Name for reports: `layers.3`, `embed`, `head`.
    pub name: Box<str>,
    /// Layer number within its stack, for layers.
    pub layer: Option<u32>,
    /// What activation checkpointing and pipeline cuts may treat as a unit.
    pub kind: StageKind,
    /// Boundary values that enter, in the order of the block's inputs.
    pub inputs: Vec<BoundaryId>,
    /// Boundary values that leave, in the order of the block's outputs.
    pub outputs: Vec<BoundaryId>,
    /// The parameters are those of an earlier stage (ALBERT, tied tables): its index in the list of stages.
    pub shares: Option<u32>,
}

/// The part of a stage in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// Token, position and patch embeddings.
    Embedding,
    /// A residual layer.
    Layer,
    /// Final norm, projection, loss.
    Head,
}

/// A piece of straight-line program.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Values; inputs come first.
    pub values: Vec<Value>,
    /// How many of the values are inputs.
    pub inputs: u32,
    /// Values that leave.
    pub outputs: Vec<ValueId>,
    /// Values that a variable of the program keeps alive beyond their last use.
    pub held: Vec<(ValueId, Hold)>,
    /// Operators in order.
    pub nodes: Vec<Node>,
    /// Parameters.
    pub params: Vec<BlockParam>,
}

/// How long a variable of the program lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// To the end of the block's forward pass (an output object that is dropped before backward).
    Forward,
    /// To the end of backward (a local variable of a training step).
    Backward,
    /// Until the next forward pass assigns it anew (a variable of the training loop). With it lives the graph: what
    /// nodes keep as attributes.
    Reassigned,
}

/// A tensor of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Sizes.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// Whether a gradient flows to it.
    pub requires_grad: bool,
    /// Belongs to logits and loss rather than to activations.
    pub is_logits: bool,
}

/// One operator application.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Short name for reports: `q`, `norm1.upcast`, `mlp.act`.
    pub label: &'static str,
    /// Tensor inputs.
    pub inputs: Vec<ValueId>,
    /// Tensor outputs.
    pub outputs: Vec<ValueId>,
    /// Parameters, weight first.
    pub params: Vec<ParamId>,
    /// Selective checkpointing keeps this node's output instead of recomputing it.
    pub keep_in_selective: bool,
    /// The node belongs to the attention core (scores, softmax, context).
    pub attention_core: bool,
}

/// A parameter as one device holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockParam {
    /// What it does.
    pub part: Part,
    /// Whether it is a bias.
    pub bias: bool,
    /// Elements on this device, all experts of the row together.
    pub elements: u64,
    /// Elements of the largest single tensor in the row.
    pub tensor_elements: u64,
    /// Tensors in the row.
    pub count: u64,
    /// Size of the last two axes (rows, columns) of one tensor, for factored optimizers; vectors have rows = 1.
    pub matrix: (u64, u64),
    /// Bytes on this device, all tensors of the row together.
    pub bytes: Bytes,
    /// Storage type.
    pub dtype: DType,
    /// Learns.
    pub trainable: bool,
    /// A low-rank adapter.
    pub adapter: bool,
    /// A routed expert (sharded by expert parallelism and by the expert data-parallel group).
    pub expert: bool,
    /// Another stage owns it (tied table): no bytes and no optimizer state here, but its gradient arrives here too.
    pub tied: bool,
}

impl Graph {
    /// The block of a stage.
    pub fn block(&self, stage: &Stage) -> &Block {
        &self.blocks[stage.block.0 as usize]
    }

    /// Parameters of all stages that own theirs, on this device.
    pub fn owned_params(&self) -> impl Iterator<Item = &BlockParam> {
        self.stages
            .iter()
            .filter(|s| s.shares.is_none())
            .flat_map(|s| &self.block(s).params)
            .filter(|p| !p.tied)
    }
}
