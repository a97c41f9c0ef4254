//! Where in the program an allocation comes from: one line of a stack of sixty, and the chain of modules above it.
//!
//! The line is the innermost frame of the user's own code; where there is none, the innermost Python frame; where
//! there is none either (the backward pass runs on a thread without Python), the operator or autograd node that the
//! C++ frames name. Modules are the frames of `forward` methods, outermost first: a stack does not name classes, so
//! a module is the file and line that it runs in.

use plimsoll_formats::snapshot::{Frame, FrameId, Snapshot, StackId};

/// Parts of a path that belong to installed code: third-party packages, Debian's packages, the standard library and
/// the interpreter itself.
const LIBRARY_PATHS: [&str; 5] =
    ["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "/torch/_"];

/// Files without a suffix that hold Python: notebooks, standard input, `exec`, graphs of torch.fx.
const PYTHON_TEXTS: [&str; 5] =
    ["<ipython-input", "<stdin>", "<string>", "<eval_with_key>", "/ipykernel_"];

/// C++ functions that every stack has between the operator and the allocator, or around the operator: they tell
/// nothing.
const PLUMBING: [&str; 22] = [
    "CUDACachingAllocator",
    "torch::unwind",
    "CapturedTraceback",
    "at::detail::empty",
    "at::detail::_empty",
    "c10::impl::",
    "c10::Dispatcher",
    "c10::OperatorHandle",
    "at::native::empty",
    "at::(anonymous namespace)::create_out",
    "::wrapper_CUDA",
    "at::_ops::new_empty",
    "set_output_raw_strided",
    "at::TensorIteratorBase::",
    "at::_ops::empty",
    "at::empty",
    "at::meta::",
    "gather_with_cpp",
    "c10::StorageImpl",
    "wrap_kernel_functor",
    "at::native::resize",
    "c10::cuda::",
];

/// Where an allocation comes from, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Modules, outermost first, joined by `/`; `backward` and the autograd node in the backward pass; empty for
    /// none.
    pub module: String,
    /// `train.py:31 main`, or the operator; `not recorded` without a stack.
    pub what: String,
}

/// What kind of frame the line of a stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// The user's own code.
    User,
    /// Python of a library.
    Library,
    /// C++.
    Native,
}

/// The frames of a stack, innermost first.
pub(crate) fn frames(snapshot: &Snapshot, stack: StackId) -> impl Iterator<Item = &Frame> {
    let frame = |id: &FrameId| snapshot.frames.get(id.0 as usize);
    snapshot.stacks.get(stack).iter().filter_map(frame)
}

/// The frame that stands for a stack.
pub(crate) fn line_of(snapshot: &Snapshot, stack: StackId) -> Option<(&Frame, LineKind)> {
    let (mut library, mut native) = (None, None);
    for frame in frames(snapshot, stack) {
        let file = snapshot.names.get(frame.file);
        if is_python(file) {
            if !is_library(file) {
                return Some((frame, LineKind::User));
            }
            library = library.or(Some((frame, LineKind::Library)));
        } else if native.is_none() && !is_plumbing(snapshot.names.get(frame.function)) {
            native = Some((frame, LineKind::Native));
        }
    }
    library.or(native)
}

/// A frame in words: `train.py:31 main` in Python, the function in C++.
pub(crate) fn in_words(snapshot: &Snapshot, frame: &Frame) -> String {
    let file = snapshot.names.get(frame.file);
    let function = snapshot.names.get(frame.function);
    if is_python(file) {
        format!("{}:{} {function}", short_path(file), frame.line)
    } else {
        short_function(function).to_owned()
    }
}

/// The same, without C++ frames that have no name.
pub(crate) fn named_in_words(snapshot: &Snapshot, frame: &Frame) -> Option<String> {
    let unnamed =
        snapshot.names.get(frame.function).is_empty() && !is_python(snapshot.names.get(frame.file));
    (!unnamed).then(|| in_words(snapshot, frame))
}

/// Module and line of a stack, in words.
pub(crate) fn of_stack(snapshot: &Snapshot, stack: StackId) -> Place {
    if stack.is_none() {
        return Place { module: String::new(), what: "not recorded".to_owned() };
    }
    let what = match line_of(snapshot, stack) {
        None => "unknown".to_owned(),
        Some((frame, _)) => in_words(snapshot, frame),
    };
    Place { module: module_of(snapshot, stack), what }
}

/// The chain of `forward` methods, outermost first, or the autograd node.
fn module_of(snapshot: &Snapshot, stack: StackId) -> String {
    let mut chain: Vec<String> = Vec::new();
    let mut node = None;
    for frame in frames(snapshot, stack) {
        let function = snapshot.names.get(frame.function);
        if node.is_none() {
            node = autograd_node(function);
        }
        if function == "forward" || function.ends_with(".forward") {
            let file = snapshot.names.get(frame.file);
            chain.push(match function.strip_suffix(".forward") {
                Some(class) => class.to_owned(),
                None => format!("{}:{}", stem(file), frame.line),
            });
        }
    }
    if let Some(node) = node {
        return format!("backward/{node}");
    }
    chain.reverse();
    // A module that calls itself through hooks shows the same frame twice.
    chain.dedup();
    chain.join("/")
}

/// `MulBackward0` of `torch::autograd::generated::MulBackward0::apply`.
fn autograd_node(function: &str) -> Option<&str> {
    let at = function.find("Backward")?;
    let begin = function[..at].rfind([':', ' ', '<']).map_or(0, |i| i + 1);
    let rest = &function[at..];
    let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    let name = &function[begin..at + length];
    (name.starts_with(|c: char| c.is_ascii_uppercase()) && rest.contains("apply")).then_some(name)
}

/// Whether a file holds Python source.
pub(crate) fn is_python(file: &str) -> bool {
    file.ends_with(".py") || PYTHON_TEXTS.iter().any(|text| file.contains(text))
}

/// Whether a file belongs to installed code.
pub(crate) fn is_library(file: &str) -> bool {
    LIBRARY_PATHS.iter().any(|part| file.contains(part))
}

fn is_plumbing(function: &str) -> bool {
    function.is_empty() || function == "??" || PLUMBING.iter().any(|part| function.contains(part))
}

/// The file and its folder: enough to recognise it, short enough for a table.
pub(crate) fn short_path(path: &str) -> &str {
    let mut cuts = path.rmatch_indices('/').map(|(at, _)| at + 1);
    cuts.nth(1).map_or(path, |at| &path[at..])
}

/// File name without folder and suffix.
fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".py").unwrap_or(name)
}

/// A C++ function without its parameters.
fn short_function(function: &str) -> &str {
    // The first parenthesis that does not belong to `(anonymous namespace)`.
    let mut from = 0;
    while let Some(at) = function[from..].find('(').map(|at| from + at) {
        if function[at..].starts_with("(anonymous namespace)") {
            from = at + "(anonymous namespace)".len();
        } else {
            return &function[..at];
        }
    }
    function
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_names_lose_their_parameters() {
        for (function, short) in [
            ("at::_ops::mm::call(at::Tensor const&)", "at::_ops::mm::call"),
            ("at::(anonymous namespace)::f(int)", "at::(anonymous namespace)::f"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(short_function(function), short);
        }
    }

    #[test]
    fn autograd_nodes_are_recognised() {
        for (function, node) in [
            (
                "torch::autograd::generated::BmmBackward0::apply(std::vector<x>&&)",
                Some("BmmBackward0"),
            ),
            (
                "torch::autograd::generated::AddmmBackward0_apply_functional(x)",
                Some("AddmmBackward0"),
            ),
            ("backward", None),
            ("at::native::mul", None),
            ("Backward", None),
        ] {
            assert_eq!(autograd_node(function), node, "{function}");
        }
    }

    #[test]
    fn files_are_sorted_into_own_and_installed() {
        for (file, python, library) in [
            ("/home/u/train.py", true, false),
            ("/home/u/.venv/lib/python3.12/site-packages/torch/nn/functional.py", true, true),
            ("<ipython-input-3-abc>", true, false),
            ("??", false, false),
            ("RegisterCUDA_0.cpp", false, false),
        ] {
            assert_eq!((is_python(file), is_library(file)), (python, library), "{file}");
        }
        assert_eq!(short_path("/home/u/project/train.py"), "project/train.py");
        assert_eq!(short_path("train.py"), "train.py");
    }
}
