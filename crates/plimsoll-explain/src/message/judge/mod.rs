//! What the figures of a log mean together: whether they add up, why memory ran out, what to change, in order.

mod compilers;
mod ggml;
mod host;
mod overview;
mod serving;
mod shapes;
mod torch;

use plimsoll_units::Bytes;

pub use overview::worst;

use super::figure::{self, Key, Reading};
use super::quantity::Printed;
use super::table::{Framework, Kind};
use super::{Failure, Log, Usage};
use crate::finding::{Finding, Weight};

/// What is known besides the log, from whoever knows models.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    /// The model of the run, where its name is known.
    pub model: Option<ModelFacts>,
}

/// Facts on a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Its name.
    pub name: String,
    /// Entries of the token table.
    pub vocabulary: u64,
    /// Parameters.
    pub parameters: u64,
}

/// Everything that a log shows, causes first.
pub fn findings(log: &Log, knowledge: &Knowledge) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(main) = main_failure(log) {
        judge(log, main, knowledge, &mut findings);
    }
    overview::several(log, &mut findings);
    overview::growth(log, &mut findings);
    overview::engine(log, &mut findings);
    overview::lookalikes(log, &mut findings);
    // Stable: within a weight the order in which they were found stays.
    findings.sort_by_key(|f| f.weight);
    findings
}

/// The failure that the report is about: the first certain one, or of those close behind it the one with more figures
/// (an engine's own sentence and the allocator's often come together).
pub fn main_failure(log: &Log) -> Option<&Failure> {
    let certain = |f: &&Failure| f.pattern.kind != Kind::Perhaps && f.pattern.kind != Kind::Echo;
    let first = log.failures.iter().find(certain).or_else(|| log.failures.first())?;
    let near = log
        .failures
        .iter()
        .filter(|f| f.source == first.source && f.line >= first.line && f.line - first.line <= 60);
    let mut best = first;
    for failure in near {
        let figures = |f: &Failure| f.readings.len();
        // An engine that refuses to start says it best itself.
        let refused = best.pattern.kind == Kind::Refused;
        if !refused && certain(&failure) && figures(failure) > figures(best) {
            best = failure;
        }
    }
    Some(best)
}

/// What other processes hold of the device, as far as the message tells.
pub fn foreign(failure: &Failure) -> Bytes {
    match failure.pattern.key {
        "torch-oom" => torch::foreign(failure),
        // An engine that finds its share taken has not taken anything yet.
        "vllm-free" => {
            let get = |key| figure::bytes(&failure.readings, key);
            get(Key::Capacity).zip(get(Key::Free)).map_or(Bytes::ZERO, |(c, f)| c - f)
        }
        _ => Bytes::ZERO,
    }
}

/// Who holds the device, as parts of its capacity, the free part last; empty where the log does not tell.
pub fn division(log: &Log, main: Option<&Failure>) -> Vec<(&'static str, Bytes)> {
    match main {
        Some(main) if main.pattern.key == "torch-oom" => torch::division(main),
        _ => overview::division(log),
    }
}

/// The device's total, from the failure or a usage line.
pub fn capacity(log: &Log, main: Option<&Failure>) -> Option<Printed> {
    let own = main.and_then(|m| figure::printed(&m.readings, Key::Capacity));
    let any = || log.failures.iter().find_map(|f| figure::printed(&f.readings, Key::Capacity));
    own.or_else(any).or_else(|| {
        // nvidia-smi prints more than frameworks can use.
        let lines = log.usage.iter().filter(|u| u.pattern != "nvidia-smi");
        lines.into_iter().find_map(|u| figure::printed(&u.readings, Key::Capacity))
    })
}

fn judge(log: &Log, main: &Failure, knowledge: &Knowledge, findings: &mut Vec<Finding>) {
    match main.pattern.key {
        "torch-oom" => torch::caching(log, main, knowledge, findings),
        "torch-async-oom" => torch::asynchronous(log, main, knowledge, findings),
        "torch-mps-oom" => torch::mps(main, findings),
        "torch-mps-buffer" | "torch-exabyte" => torch::one_buffer(main, findings),
        "numpy-oom" | "torch-cpu-oom" | "python-oom" | "cpp-oom" => {
            host::allocation(main, findings)
        }
        key if key.starts_with("vllm-") => serving::vllm(log, main, findings),
        key if key.starts_with("sglang-") => serving::sglang(log, main, findings),
        key if key.starts_with("ggml-") => ggml::llama(log, main, findings),
        "ollama-host" => ggml::ollama_host(log, main, findings),
        "xla-oom" | "xla-request" => compilers::xla(log, main, knowledge, findings),
        "tpu-hbm" => compilers::tpu(main, knowledge, findings),
        "jax-resource" => compilers::xla(log, main, knowledge, findings),
        "tf-bfc" | "tf-tensor" => compilers::tensorflow(log, main, knowledge, findings),
        key if key.starts_with("ort-") || key == "trt-oom" => compilers::onnx(main, findings),
        _ => match main.pattern.framework {
            Framework::Host => host::killed(log, main, findings),
            _ => driver(log, main, findings),
        },
    }
}

/// The driver or a library says it without figures.
fn driver(log: &Log, main: &Failure, findings: &mut Vec<Finding>) {
    let buffers = log.usage.iter().any(|u| u.pattern == "ggml-size");
    if buffers {
        ggml::llama(log, main, findings);
        return;
    }
    let perhaps = main.pattern.kind == Kind::Perhaps;
    let mut finding = match perhaps {
        true => Finding::new("library-error", Weight::Cause, "a CUDA library failed, perhaps for want of memory")
            .say(format!("{} found no memory for its handle or workspace, or hit an earlier error of a kernel", library(main)))
            .say("an index out of range gives the same message, as a label beyond the number of classes or a token beyond the vocabulary does"),
        false => Finding::new("driver-error", Weight::Cause, "the driver ran out of memory outside the allocator")
            .say("the request came from the CUDA context, a kernel or a library, not from PyTorch's allocator, so the message has no figures"),
    };
    finding = finding
        .act("look at nvidia-smi before the start: another process may hold the device")
        .act("leave room for context and libraries: PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.95, or a smaller share for the engine")
        .act("lower the batch");
    if perhaps {
        finding =
            finding.act("run once with CUDA_LAUNCH_BLOCKING=1, which names the kernel that failed");
    }
    findings.push(at(finding, main));
}

fn library(main: &Failure) -> &'static str {
    match main.pattern.key {
        key if key.starts_with("cublas") => "cuBLAS",
        key if key.starts_with("cudnn") => "cuDNN",
        _ => "the library",
    }
}

/// Adds where it happened.
fn at(mut finding: Finding, failure: &Failure) -> Finding {
    if let Some(place) = &failure.place {
        let phase = place.phase.map_or(String::new(), |p| format!("in {}, ", p.words()));
        finding = finding.say(format!("It happened {phase}at {}", place.frame));
    }
    finding
}

/// A size with what it is, as a figure of the finding.
fn push(finding: Finding, key: Key, printed: Option<Printed>) -> Finding {
    match printed {
        Some(printed) => finding.bytes(key.name(), printed.bytes),
        None => finding,
    }
}

/// The newest usage line of a pattern that fits the failure's process, else of any.
fn usage<'a>(log: &'a Log, failure: Option<&Failure>, pattern: &str) -> Option<&'a Usage> {
    let mut lines = log.usage.iter().filter(|u| u.pattern == pattern);
    let own = failure.and_then(|f| lines.clone().find(|u| u.origin == f.origin));
    own.or_else(|| lines.next())
}

/// A figure of any of the patterns.
fn look(log: &Log, failure: Option<&Failure>, patterns: &[&str], key: Key) -> Option<Printed> {
    patterns.iter().find_map(|p| figure::printed(&usage(log, failure, p)?.readings, key))
}

/// A count of any of the patterns.
fn look_count(log: &Log, failure: Option<&Failure>, patterns: &[&str], key: Key) -> Option<u64> {
    patterns.iter().find_map(|p| figure::count(&usage(log, failure, p)?.readings, key))
}

/// Whole percent of `part` in `whole`.
fn percent(part: Bytes, whole: Bytes) -> u64 {
    let wide = u128::from(part.get()) * 100;
    u64::try_from(wide / u128::from(whole.get().max(1))).unwrap_or(u64::MAX)
}

fn readings_of(failure: &Failure, key: Key) -> impl Iterator<Item = &Reading> {
    failure.readings.iter().filter(move |r| r.key == key)
}
