//! Builds the operator graph of an [`Architecture`]: embeddings, layers, head and loss, written operator by operator
//! the way the chosen implementation runs them.

mod attention;
mod block;
mod ends;
mod ffn;
mod layer;
mod local;
mod options;
mod recurrent;

pub use options::{
    AdapterKind, Adapters, AttentionStyle, BuildOptions, FrozenBase, HeldLogits, LossStyle,
    NormStyle, RotaryStyle, SoftmaxStyle, Style, Trainable,
};

use plimsoll_units::Dim;

use crate::arch::{Architecture, Layer, Stack, StackRole};
use crate::graph::{BlockId, BoundaryId, Graph, Stage, StageKind};
use crate::inventory::{Inventory, Naming, Part};

/// Why a graph cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A layer lacks a parameter that its description needs: the inventory and the architecture disagree.
    #[error("{layer} has no parameter for {part}; the configuration and the tensor list disagree")]
    MissingParameter {
        /// Where.
        layer: String,
        /// Which.
        part: String,
    },
    /// The model does what no operator of the table describes.
    #[error("{what} are not modelled yet, only its parameters are")]
    NotModelled {
        /// Which parts, as a plural.
        what: String,
    },
    /// The model has no layers.
    #[error("the model has no layers; num_hidden_layers must be at least 1")]
    NoLayers,
}

impl BuildError {
    /// What to do about it.
    pub fn cure(&self) -> &'static str {
        match self {
            BuildError::MissingParameter { .. } => {
                "check the configuration against the tensor list"
            }
            BuildError::NotModelled { .. } => "estimate it for vLLM or SGLang",
            BuildError::NoLayers => "check the configuration",
        }
    }
}

/// The graph of `architecture` with loss, as `options` run it.
///
/// # Errors
/// [`BuildError`] where architecture and inventory disagree or there is nothing to run.
pub fn build(
    architecture: &Architecture,
    inventory: &Inventory,
    options: &BuildOptions,
) -> Result<Graph, BuildError> {
    let mut graph = Graph::default();
    let running: Vec<(usize, &Stack)> = architecture
        .stacks
        .iter()
        .enumerate()
        .filter(|(_, s)| s.role != StackRole::Draft)
        .collect();
    if running.iter().all(|(_, s)| s.layers.is_empty()) {
        return Err(BuildError::NoLayers);
    }
    if architecture.naming == Naming::DeepSeekV4 {
        let what = "its hyper-connections and compressed attention".to_owned();
        return Err(BuildError::NotModelled { what });
    }
    let last = running.last().map(|(i, _)| *i);
    let mut memory: Option<(BoundaryId, Dim)> = None;
    for (index, stack) in &running {
        let scope = Scope {
            architecture,
            inventory,
            options,
            stack_index: *index,
            stack,
            sequence: stack_sequence(architecture, stack),
            memory: memory.as_ref().map(|(_, d)| d.clone()),
            is_last: Some(*index) == last,
        };
        let out = scope.push(&mut graph, memory.as_ref().map(|(b, _)| *b))?;
        memory = Some((out, scope.sequence.clone()));
    }
    Ok(graph)
}

/// A parameter as far as equality of layers goes.
type Signature = (Part, bool, u64);

/// What the builders of one stack share.
pub(crate) struct Scope<'a> {
    pub architecture: &'a Architecture,
    pub inventory: &'a Inventory,
    pub options: &'a BuildOptions,
    pub stack_index: usize,
    pub stack: &'a Stack,
    /// Positions of this stack.
    pub sequence: Dim,
    /// Positions of the stack before, for cross-attention.
    pub memory: Option<Dim>,
    pub is_last: bool,
}

/// Positions that a stack runs over: the main sequence for text, the patches of the default input for towers, the
/// second sequence for the decoder of an encoder-decoder.
fn stack_sequence(architecture: &Architecture, stack: &Stack) -> Dim {
    let cross = stack.layers.iter().any(|l| l.cross.is_some());
    match (&stack.patch, stack.role) {
        (Some(patch), _) => Dim::Const(patch.tokens.max(1)),
        (None, StackRole::Decoder) if cross && architecture.stacks.len() > 1 => Dim::CONTEXT,
        _ => Dim::SEQUENCE,
    }
}

impl Scope<'_> {
    /// Appends the stages of the stack; returns the boundary that leaves it.
    fn push(
        &self,
        graph: &mut Graph,
        memory: Option<BoundaryId>,
    ) -> Result<BoundaryId, BuildError> {
        let embed = self.embedding_block()?;
        let mut current = new_boundary(graph);
        let block = push_block(graph, embed);
        graph.stages.push(Stage {
            block,
            name: self.stage_name("embed", None),
            layer: None,
            kind: StageKind::Embedding,
            inputs: Vec::new(),
            outputs: vec![current],
            shares: None,
        });
        let mut known: Vec<(&Layer, [bool; 3], Vec<Signature>, BlockId)> = Vec::new();
        let parameters = self.signatures();
        let first_layer_stage = graph.stages.len() as u32;
        for (number, layer) in self.stack.layers.iter().enumerate() {
            let learns = [
                self.options.trainable.layer(number, self.stack.layers.len()),
                self.input_needs_grad(number),
                self.prefixes(number),
            ];
            // Equal layers may still hold different parameters (T5's first layer has the relative positions).
            let own = &parameters[number];
            let same = |(l, t, p, _): &&(&Layer, [bool; 3], Vec<Signature>, BlockId)| {
                *l == layer && *t == learns && p == own
            };
            let block = match known.iter().find(same) {
                Some((.., block)) => *block,
                None if self.stack.shared && number > 0 => known[0].3,
                None => {
                    let block = push_block(graph, self.layer_block(layer, number)?);
                    known.push((layer, learns, own.clone(), block));
                    block
                }
            };
            let next = new_boundary(graph);
            let mut inputs = vec![current];
            if layer.cross.is_some() {
                inputs.extend(memory);
            }
            graph.stages.push(Stage {
                block,
                name: self.stage_name("layers", Some(number)),
                layer: Some(number as u32),
                kind: StageKind::Layer,
                inputs,
                outputs: vec![next],
                shares: (self.stack.shared && number > 0).then_some(first_layer_stage),
            });
            current = next;
        }
        let head = self.head_block()?;
        let out = new_boundary(graph);
        let block = push_block(graph, head);
        graph.stages.push(Stage {
            block,
            name: self.stage_name("head", None),
            layer: None,
            kind: StageKind::Head,
            inputs: vec![current],
            outputs: vec![out],
            shares: None,
        });
        Ok(out)
    }

    /// Whether layer `number` attends to learned tokens.
    pub(crate) fn prefixes(&self, number: usize) -> bool {
        self.options.adapters.as_ref().is_some_and(|a| a.kind.prefixes(number))
    }

    /// What each layer's parameters are, by part and size.
    fn signatures(&self) -> Vec<Vec<Signature>> {
        let mut layers = vec![Vec::new(); self.stack.layers.len()];
        for p in &self.inventory.parameters {
            if let (Some(stack), Some(layer)) = (p.stack, p.layer)
                && stack == self.stack_index
                && let Some(own) = layers.get_mut(layer)
            {
                own.push((p.part, p.bias, p.elements()));
            }
        }
        layers
    }

    fn stage_name(&self, what: &str, number: Option<usize>) -> Box<str> {
        let prefix = match self.stack.role {
            StackRole::Encoder if self.architecture.stacks.len() > 1 => "encoder.",
            StackRole::Decoder if self.memory.is_some() => "decoder.",
            StackRole::Vision => "vision.",
            StackRole::Audio => "audio.",
            _ => "",
        };
        match number {
            Some(n) => format!("{prefix}{what}.{n}").into(),
            None => format!("{prefix}{what}").into(),
        }
    }
}

fn new_boundary(graph: &mut Graph) -> BoundaryId {
    graph.boundaries += 1;
    BoundaryId(graph.boundaries - 1)
}

fn push_block(graph: &mut Graph, block: crate::graph::Block) -> BlockId {
    graph.blocks.push(block);
    BlockId(graph.blocks.len() as u32 - 1)
}
