//! What the stack of an allocation says about its purpose: a table of words in files and functions, each with its
//! reason. The first rule that any frame of the stack meets decides, so that specific rules stand above general ones.
//!
//! Names were taken from the sources of PyTorch 2.0 to 2.12, DeepSpeed, Megatron-LM, Transformers, Accelerate, vLLM
//! and bitsandbytes, and from the stacks of public snapshots; 2026-11-30.

use plimsoll_formats::snapshot::{Frame, Snapshot, StackId};
use serde::Serialize;

/// What a stack is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// Reserving or growing a cache of keys and values.
    KvCache,
    /// Moving tensors between ranks.
    Communication,
    /// Clearing gradients.
    ZeroGrad,
    /// The optimizer's step.
    Optimizer,
    /// Scratch of a library.
    Workspace,
    /// Accumulating a parameter's gradient.
    AccumulateGradient,
    /// Computing activations again within the backward pass.
    Recompute,
    /// The backward pass.
    Backward,
    /// Making parameters or loading them.
    Load,
    /// Logits and loss.
    Loss,
    /// Bringing a batch to the device.
    Inputs,
    /// The forward pass.
    Forward,
}

impl Doing {
    /// The word for a stretch of events that does this; absent for what no stretch is made of.
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Doing::Forward => Some("forward"),
            Doing::Backward => Some("backward"),
            Doing::Optimizer => Some("optimizer"),
            Doing::Load => Some("load"),
            _ => None,
        }
    }
}

/// Where a word is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The path of the source file.
    File,
    /// The name of the function.
    Function,
}

/// A rule on stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackRule {
    pub doing: Doing,
    part: Part,
    /// A word with `=` before it is the whole name; others may stand anywhere in it.
    words: &'static [&'static str],
    /// Why it says so.
    pub reason: &'static str,
}

const fn file(doing: Doing, words: &'static [&'static str], reason: &'static str) -> StackRule {
    StackRule { doing, part: Part::File, words, reason }
}

const fn function(doing: Doing, words: &'static [&'static str], reason: &'static str) -> StackRule {
    StackRule { doing, part: Part::Function, words, reason }
}

/// The rules, the most specific first.
pub(crate) static STACK_RULES: [StackRule; 19] = [
    function(
        Doing::ZeroGrad,
        &["=zero_grad", ".zero_grad", "zero_grad_buffer"],
        "a frame is the optimizer's or module's zero_grad",
    ),
    file(
        Doing::KvCache,
        &["/cache_utils.py", "/cache_engine.py", "kv_cache", "/mem_cache/", "/memory_pool.py"],
        "a frame lies in a file that keeps keys and values of past tokens",
    ),
    function(
        Doing::KvCache,
        &["kv_cache", "KVCache", "initialize_kv", "allocate_kv", "past_key_values"],
        "a frame is named after the cache of keys and values",
    ),
    function(
        Doing::Communication,
        &[
            "c10d::",
            "ProcessGroupNCCL",
            "all_gather",
            "allgather",
            "all_reduce",
            "allreduce",
            "reduce_scatter",
            "all_to_all",
            "unshard",
            "ncclComm",
            "symm_mem",
        ],
        "a frame is a collective operation or prepares one",
    ),
    file(
        Doing::Communication,
        &[
            "torch/distributed/distributed_c10d.py",
            "deepspeed/comm/",
            "deepspeed/runtime/zero/partition",
        ],
        "a frame lies in the code of collective operations",
    ),
    file(
        Doing::Optimizer,
        &[
            "torch/optim/",
            "bitsandbytes/optim",
            "apex/optimizers",
            "deepspeed/ops/adam",
            "megatron/core/optimizer",
            "transformers/optimization.py",
            "/schedulefree/",
        ],
        "a frame lies in an optimizer's file",
    ),
    function(
        Doing::Optimizer,
        &[
            "Optimizer.step",
            "optimizer_step",
            "_fused_adam",
            "_foreach_adam",
            "_single_tensor_adam",
            "_multi_tensor_adam",
        ],
        "a frame is an optimizer's step",
    ),
    function(
        Doing::Workspace,
        &[
            "getCurrentCUDABlasHandle",
            "getCUDABlasLtWorkspace",
            "CUDABlasWorkspace",
            "chooseCUDABlasWorkspace",
            "Workspace::Workspace",
            "cudnn_workspace",
            "allocate_workspace",
            "get_workspace",
            "_workspace_buffer",
        ],
        "a frame asks for scratch memory of cuBLAS, cuDNN or an attention kernel",
    ),
    function(
        Doing::AccumulateGradient,
        &["AccumulateGrad"],
        "a frame is autograd's accumulation of a leaf's gradient",
    ),
    file(
        Doing::Recompute,
        &["torch/utils/checkpoint.py"],
        "a frame lies in torch.utils.checkpoint",
    ),
    function(
        Doing::Backward,
        &[
            "torch::autograd::Engine",
            "PythonEngine::thread_init",
            "torch::autograd::Node::operator()",
            "run_backward",
            "Backward0",
            "BackwardHook",
            "=backward",
            ".backward",
        ],
        "a frame is autograd's backward pass",
    ),
    file(
        Doing::Load,
        &[
            "safetensors/torch.py",
            "torch/serialization.py",
            "transformers/modeling_utils.py",
            "accelerate/utils/modeling.py",
            "torch/nn/init.py",
            "torch/nn/parameter.py",
            "model_loader/",
            "/core_model_loading.py",
        ],
        "a frame lies in code that makes or loads parameters",
    ),
    function(
        Doing::Load,
        &[
            "load_state_dict",
            "from_pretrained",
            "load_model",
            "load_weights",
            "reset_parameters",
            "=_apply",
            "materialize",
            "=__init__",
            ".__init__",
            "init_empty_weights",
        ],
        "a frame constructs, moves or loads a module",
    ),
    function(
        Doing::Loss,
        &[
            "cross_entropy",
            "log_softmax",
            "nll_loss",
            "CrossEntropy",
            "loss_fn",
            "compute_loss",
            "logprobs",
        ],
        "a frame computes a loss",
    ),
    file(
        Doing::Inputs,
        &["torch/utils/data/", "accelerate/data_loader.py", "datasets/formatting"],
        "a frame lies in a data loader",
    ),
    function(
        Doing::Inputs,
        &[
            "collate",
            "send_to_device",
            "get_batch",
            "next_batch",
            "_prepare_input",
            "batch_to_device",
        ],
        "a frame brings a batch to the device",
    ),
    function(
        Doing::Forward,
        &["=forward", ".forward", "=_call_impl"],
        "a frame is a module's forward",
    ),
    file(
        Doing::Forward,
        &["torch/nn/functional.py", "/flash_attn/", "/xformers/", "einops/"],
        "a frame computes with tensors as layers do",
    ),
    function(
        Doing::Forward,
        &["attention", "CompiledFxGraph", "call_compiled"],
        "a frame is a kernel of a layer or a compiled graph",
    ),
];

/// The rules that each frame of a snapshot meets: a frame stands on many stacks, and its words are looked at once.
#[derive(Clone, Debug)]
pub(crate) struct Rules<'s> {
    snapshot: &'s Snapshot,
    /// A bit per rule, by frame.
    met: Vec<u32>,
}

impl<'s> Rules<'s> {
    pub fn new(snapshot: &'s Snapshot) -> Self {
        let met = snapshot.frames.iter().map(|frame| rules_met(snapshot, frame)).collect();
        Rules { snapshot, met }
    }

    /// The rule that decides for a stack, by index into [`STACK_RULES`]; `None` where no frame meets any.
    ///
    /// A stack of the forward pass inside of a loss is the loss's, and a recomputation counts only within the
    /// backward pass: torch.utils.checkpoint's frames are those of the forward pass the first time.
    pub fn of_stack(&self, stack: StackId) -> Option<usize> {
        let frames = self.snapshot.stacks.get(stack).iter();
        let frames = frames.map(|frame| self.met.get(frame.0 as usize).copied().unwrap_or(0));
        let met = frames.fold(0, |met, frame| met | frame);
        let rules = || STACK_RULES.iter().enumerate().filter(|(i, _)| met & (1 << i) != 0);
        let meets = |doing| rules().any(|(_, rule)| rule.doing == doing);
        let backward = meets(Doing::Backward);
        // A constructor is on every stack of a program that trains in one; what runs inside of it says more.
        let computes = backward || meets(Doing::Forward) || meets(Doing::Loss);
        let decides = |rule: &StackRule| match rule.doing {
            Doing::Recompute => backward,
            Doing::Load => !computes || is_load_only(rule),
            _ => true,
        };
        rules().find(|(_, rule)| decides(rule)).map(|(index, _)| index)
    }

    /// What a stack is doing.
    pub fn doing(&self, stack: StackId) -> Option<Doing> {
        self.of_stack(stack).map(|rule| STACK_RULES[rule].doing)
    }
}

fn rules_met(snapshot: &Snapshot, frame: &Frame) -> u32 {
    let (path, name) = (snapshot.names.get(frame.file), snapshot.names.get(frame.function));
    let mut met = 0;
    for (i, rule) in STACK_RULES.iter().enumerate() {
        let text = if rule.part == Part::File { path } else { name };
        let meets = rule.words.iter().any(|word| match word.strip_prefix('=') {
            Some(whole) => text == whole,
            None => text.contains(word),
        });
        met |= u32::from(meets) << i;
    }
    met
}

/// Files that are on the stack only while parameters come into being.
fn is_load_only(rule: &StackRule) -> bool {
    rule.part == Part::File
}
