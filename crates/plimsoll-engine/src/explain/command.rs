//! The command that models the run of a log, as far as the log tells: model, GPU by its name or total memory, the
//! engine's options. What the log does not tell is listed, with a placeholder in the command where it cannot do
//! without.

use plimsoll_catalog::gpus::{self, Gpu};
use plimsoll_catalog::models;
use plimsoll_explain::message::figure::{self, Key};
use plimsoll_explain::message::judge;
use plimsoll_explain::message::quantity::Printed;
use plimsoll_explain::message::settings::Setting;
use plimsoll_explain::message::table::Framework;
use plimsoll_explain::message::{Failure, Log, Phase};
use plimsoll_units::{Bytes, DType};
use serde::Serialize;

use crate::choice::Choice;
use crate::choices::WeightType;
use crate::quantity::{Fraction, Release};

/// A command that models a run, and what it had to leave open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Modelled {
    /// The command, as typed in a shell. Words in capitals are to be replaced.
    pub command: String,
    /// What the log does not tell.
    pub missing: Vec<String>,
    /// What was taken for granted, or could not be passed on.
    pub notes: Vec<String>,
}

/// The command for the run, where there is something to model.
pub(super) fn modelled(log: &Log) -> Option<Modelled> {
    let main = judge::main_failure(log);
    // Without model and GPU nothing of the run would stand in the command.
    if log.run.model.is_none() && log.run.gpus.is_empty() && judge::capacity(log, main).is_none() {
        return None;
    }
    let task = task(log, main)?;
    let mut parts = Parts { words: vec!["plimsoll estimate".to_owned()], ..Parts::default() };
    parts.model(log, task);
    match task {
        Task::Vllm => vllm(log, &mut parts),
        Task::Sglang => sglang(log, &mut parts),
        Task::LlamaCpp => llama(log, &mut parts),
        Task::Train => {
            train(log, &mut parts);
            let phase = main.and_then(|m| m.place.as_ref()?.phase);
            let told = matches!(phase, Some(Phase::Backward | Phase::Optimizer | Phase::Loss));
            if !told && !log.run.settings.contains_key(&Setting::MicroBatch) {
                parts.notes.push("taken as training; write --infer for inference".to_owned());
            }
        }
        Task::Infer => {
            parts.word("--infer");
            parts.count(log, Setting::MicroBatch, "--batch", "the batch");
            parts.count(log, Setting::SequenceLength, "--seq", "the prompt's length");
        }
    }
    parts.machine(log, main, task);
    Some(Modelled { command: parts.words.join(" "), missing: parts.missing, notes: parts.notes })
}

/// What the run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Vllm,
    Sglang,
    LlamaCpp,
    Train,
    Infer,
}

fn task(log: &Log, main: Option<&Failure>) -> Option<Task> {
    let framework = match log.run.framework {
        Some(framework) => framework,
        None => match main.map(|m| m.pattern.framework) {
            Some(framework) => framework,
            None => *log.frameworks.keys().next()?,
        },
    };
    let seen = |f: Framework| log.frameworks.contains_key(&f);
    Some(match framework {
        Framework::Vllm => Task::Vllm,
        Framework::Sglang => Task::Sglang,
        Framework::LlamaCpp | Framework::Ollama => Task::LlamaCpp,
        // Other compilers and arenas are not modelled.
        Framework::Jax | Framework::TensorFlow | Framework::OnnxRuntime | Framework::Triton => {
            return None;
        }
        _ if seen(Framework::Vllm) => Task::Vllm,
        _ if seen(Framework::Sglang) => Task::Sglang,
        _ if seen(Framework::LlamaCpp) || seen(Framework::Ollama) => Task::LlamaCpp,
        _ => {
            let phase = main.and_then(|m| m.place.as_ref()?.phase);
            let batch = log.run.settings.contains_key(&Setting::MicroBatch);
            match phase {
                Some(Phase::Generate) if !batch => Task::Infer,
                _ => Task::Train,
            }
        }
    })
}

#[derive(Default)]
struct Parts {
    words: Vec<String>,
    missing: Vec<String>,
    notes: Vec<String>,
}

impl Parts {
    fn word(&mut self, word: impl Into<String>) {
        self.words.push(word.into());
    }

    fn option(&mut self, option: &str, value: impl AsRef<str>) {
        self.words.push(format!("{option} {}", quoted(value.as_ref())));
    }

    /// An option with a count; `what` is reported where the log does not tell it.
    fn count(&mut self, log: &Log, setting: Setting, option: &str, what: &str) {
        match log.run.number(setting) {
            Some(n) if n > 0 => self.option(option, n.to_string()),
            _ if !what.is_empty() => {
                self.missing.push(format!("{what} ({option})"));
            }
            _ => {}
        }
    }

    fn model(&mut self, log: &Log, task: Task) {
        match log.run.model.as_deref().map(model_word) {
            Some(word) => self.word(quoted(&word)),
            None => {
                self.word("MODEL");
                let file = if task == Task::LlamaCpp { ", a .gguf file" } else { "" };
                self.missing
                    .push(format!("the model: a catalogue name{file}, a folder or hf:org/name"));
            }
        }
    }

    fn fraction(&mut self, log: &Log, option: &str) {
        let set = log.run.settings.get(&Setting::Utilization).and_then(|t| t.parse().ok());
        let printed = || {
            log.usage.iter().find_map(|u| {
                let permille = figure::permille(&u.readings, Key::Utilization)?;
                (1..=1000).contains(&permille).then_some(Fraction { permille })
            })
        };
        if let Some(fraction) = set.or_else(printed) {
            self.option(option, fraction.to_string());
        }
    }

    fn dtype(&mut self, log: &Log, setting: Setting, option: &str) {
        let Some(text) = log.run.settings.get(&setting) else { return };
        let word = match text.as_str() {
            "half" => "f16",
            "float" => "f32",
            "fp8_e5m2" => "float8_e5m2",
            "fp8_e4m3" | "fp8_e4m3fn" => "fp8",
            other => other,
        };
        match word.parse::<DType>() {
            Ok(dtype) => self.option(option, dtype.name()),
            Err(_) => self.notes.push(format!("{} {text} is not passed on", setting.name())),
        }
    }

    /// GPU, their number, and what was free.
    fn machine(&mut self, log: &Log, main: Option<&Failure>, task: Task) {
        let count = devices(log, task);
        let times = if count > 1 { format!("*{count}") } else { String::new() };
        let capacity = judge::capacity(log, main);
        let found = gpu(&log.run.gpus, capacity);
        match (&found, capacity) {
            (Match::One(gpu), _) => self.option("--gpu", format!("{}{times}", gpu.id)),
            (Match::Many(gpus), Some(capacity)) => {
                self.option("--gpu", format!("{}{times}", gib(capacity.bytes)));
                let ids: Vec<&str> = gpus.iter().take(6).map(|g| g.id.as_str()).collect();
                self.notes.push(format!(
                    "{} are the total of {}; name yours instead of the bytes",
                    capacity.bytes,
                    ids.join(", ")
                ));
            }
            (Match::None, Some(capacity)) => {
                self.option("--gpu", format!("{}{times}", gib(capacity.bytes)));
            }
            (_, None) => {
                self.option("--gpu", format!("GPU{times}"));
                self.missing.push("the GPU".to_owned());
            }
        }
        if let (Some(main), Some(capacity)) = (main, capacity) {
            let foreign = judge::foreign(main);
            if foreign > Bytes::mib(256) && foreign < capacity.bytes {
                self.option("--free", gib(capacity.bytes - foreign));
            }
        }
    }
}

fn vllm(log: &Log, parts: &mut Parts) {
    parts.word("--engine vllm");
    if let Some(version) = &log.run.version
        && let Ok(release) = version.parse::<Release>()
    {
        parts.option("--engine-version", release.to_string());
    }
    parallel(log, parts);
    parts.count(log, Setting::MaxLen, "--max-model-len", "");
    parts.fraction(log, "--gpu-memory-utilization");
    parts.count(log, Setting::MaxSeqs, "--max-num-seqs", "");
    parts.count(log, Setting::BatchedTokens, "--max-num-batched-tokens", "");
    parts.dtype(log, Setting::Dtype, "--dtype");
    parts.dtype(log, Setting::KvDtype, "--cache-type");
    weights(log, parts);
    if log.run.settings.get(&Setting::Eager).is_some_and(|v| v == "True") {
        parts.word("--enforce-eager");
    }
}

fn sglang(log: &Log, parts: &mut Parts) {
    parts.word("--engine sglang");
    parallel(log, parts);
    parts.count(log, Setting::MaxLen, "--context-length", "");
    parts.fraction(log, "--mem-fraction-static");
    parts.count(log, Setting::ChunkedPrefill, "--chunked-prefill-size", "");
    parts.count(log, Setting::GraphBatch, "--cuda-graph-max-bs", "");
    parts.dtype(log, Setting::Dtype, "--dtype");
    parts.dtype(log, Setting::KvDtype, "--cache-type");
    weights(log, parts);
    if log.run.settings.get(&Setting::DpAttention).is_some_and(|v| v == "True") {
        parts.word("--dp-attention");
    }
}

fn parallel(log: &Log, parts: &mut Parts) {
    for (setting, option) in
        [(Setting::TensorParallel, "--tp"), (Setting::PipelineParallel, "--pp")]
    {
        if let Some(n) = log.run.number(setting).filter(|n| *n > 1) {
            parts.option(option, n.to_string());
        }
    }
}

fn weights(log: &Log, parts: &mut Parts) {
    let Some(text) = log.run.settings.get(&Setting::Quantization) else { return };
    let word = match text.as_str() {
        "awq_marlin" => "awq",
        "gptq_marlin" => "gptq",
        "bitsandbytes" => "nf4",
        other => other,
    };
    match word.parse::<Choice<WeightType>>() {
        Ok(choice) => parts.option("--weights", choice.text()),
        // The checkpoint says how it is stored.
        Err(_) => parts.notes.push(format!("quantization {text} is left to the model's own files")),
    }
}

fn llama(log: &Log, parts: &mut Parts) {
    parts.word("--engine llama.cpp");
    parts.count(log, Setting::Context, "--ctx", "the context");
    parts.count(log, Setting::Ubatch, "--ubatch", "");
    parts.count(log, Setting::Sequences, "--np", "");
    let offloaded = log.usage.iter().find_map(|u| {
        matches!(u.pattern, "ggml-offloaded" | "ollama-plan").then_some(())?;
        Some((
            figure::count(&u.readings, Key::LayersOnGpu)?,
            figure::count(&u.readings, Key::Layers)?,
        ))
    });
    match offloaded {
        Some((on_gpu, layers)) if on_gpu < layers => parts.option("--ngl", on_gpu.to_string()),
        _ => {}
    }
    parts.dtype(log, Setting::CacheK, "--cache-type-k");
    parts.dtype(log, Setting::CacheV, "--cache-type-v");
    let flash = log.run.settings.get(&Setting::FlashAttention).map(String::as_str);
    if let Some("0" | "off" | "disabled") = flash {
        parts.word("--flash-attn off");
    }
}

fn train(log: &Log, parts: &mut Parts) {
    match log.run.settings.get(&Setting::Adapter).map(String::as_str) {
        Some("qlora") => parts.word("--finetune qlora"),
        Some("lora" | "True" | "true") => parts.word("--finetune lora"),
        _ => parts.word("--train"),
    }
    parts.count(log, Setting::MicroBatch, "--batch", "the batch per device");
    parts.count(log, Setting::SequenceLength, "--seq", "the length of sequences");
    if let Some(n) = log.run.number(Setting::Accumulate).filter(|n| *n > 1) {
        parts.option("--accumulate", n.to_string());
    }
    if log.run.settings.contains_key(&Setting::Checkpointing) {
        parts.word("--checkpoint full");
    }
    if let Some(stage) = log.run.number(Setting::Zero).filter(|n| (1..=3).contains(n)) {
        parts.option("--zero", stage.to_string());
    }
}

/// How many GPUs the run used, as far as the log tells.
fn devices(log: &Log, task: Task) -> u64 {
    let number = |setting| log.run.number(setting).unwrap_or(1).clamp(1, 1 << 16);
    match task {
        Task::Vllm | Task::Sglang => {
            (number(Setting::TensorParallel) * number(Setting::PipelineParallel)).min(4096)
        }
        Task::LlamaCpp => {
            let names: std::collections::BTreeSet<&str> = log
                .usage
                .iter()
                .flat_map(|u| &u.readings)
                .filter_map(|r| r.of.as_deref()?.split_once(" on ").map(|(_, device)| device))
                .filter(|d| d.starts_with("CUDA") && !d.ends_with("_Host"))
                .collect();
            names.len().max(1) as u64
        }
        Task::Train | Task::Infer => {
            let devices: std::collections::BTreeSet<_> =
                log.groups.keys().filter_map(|g| g.device.as_deref()).collect();
            // The highest number that ran out tells that there are at least so many.
            let highest =
                devices.iter().filter_map(|d| d.strip_prefix("GPU ")?.parse::<u64>().ok()).max();
            if devices.len() > 1 { highest.map_or(1, |n| n.min(4095) + 1) } else { 1 }
        }
    }
}

enum Match {
    One(&'static Gpu),
    Many(Vec<&'static Gpu>),
    None,
}

/// The GPU by its driver's name, else by its total.
fn gpu(names: &[String], capacity: Option<Printed>) -> Match {
    let near = |gpu: &Gpu| {
        capacity.is_none_or(|c| {
            let margin = c.slack + Bytes::mib(8);
            gpu.usable.low <= c.bytes + margin && c.bytes <= gpu.usable.high + margin
        })
    };
    let named = names.iter().filter_map(|n| gpus::find_gpu(n).ok()).find(|gpu| near(gpu));
    if let Some(gpu) = named {
        return Match::One(gpu);
    }
    if capacity.is_none() {
        return Match::None;
    }
    let mut found: Vec<&'static Gpu> = gpus::gpus().filter(|gpu| near(gpu)).collect();
    // The nearest total first; what was read on a device comes before what a rule gives.
    let wanted = capacity.map_or(0, |c| c.bytes.get());
    found.sort_by_key(|gpu| (gpu.usable.basis, gpu.usable.typical.get().abs_diff(wanted)));
    match found.as_slice() {
        [] => Match::None,
        [one] => Match::One(one),
        _ => Match::Many(found),
    }
}

/// `23.65GiB`, as `--gpu` reads it.
fn gib(bytes: Bytes) -> String {
    bytes.to_string().replace(' ', "")
}

/// The catalogue's name of a model, by hub name or last part of a path.
pub(super) fn catalogue_model(text: &str) -> Option<&'static str> {
    let last = text.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(text);
    [text, last].iter().find_map(|name| models::find(name).ok()).map(|entry| entry.name)
}

fn model_word(text: &str) -> String {
    if let Some(name) = catalogue_model(text) {
        return name.to_owned();
    }
    let plain = !text.starts_with(['/', '.', '~']) && !text.contains('\\') && !text.contains(':');
    let hub = plain && text.matches('/').count() == 1 && !text.ends_with(".gguf");
    if hub { format!("hf:{text}") } else { text.to_owned() }
}

/// The value, quoted for a shell where it needs to be.
fn quoted(value: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !value.is_empty() && value.chars().all(safe) {
        return value.to_owned();
    }
    let printable: String = value.chars().filter(|c| !c.is_control()).collect();
    format!("'{}'", printable.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_name_and_path() {
        for (text, expected) in [
            ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
            ("/data/models/Llama-3.1-8B/", "meta-llama/Llama-3.1-8B"),
            ("nobody/nothing-7b", "hf:nobody/nothing-7b"),
            ("/data/model/", "/data/model/"),
            ("C:\\models\\x.gguf", "C:\\models\\x.gguf"),
        ] {
            assert_eq!(model_word(text), expected);
        }
    }

    #[test]
    fn shells_get_quotes() {
        for (text, expected) in
            [("a/b-1", "a/b-1"), ("x*2", "'x*2'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn gpus_are_found_by_name_and_total() {
        let total = |text: &str| {
            let bytes: Bytes = text.parse().unwrap();
            Some(Printed { bytes, slack: Bytes::mib(5) })
        };
        let id = |names: &[&str], capacity| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            match gpu(&names, capacity) {
                Match::One(gpu) => gpu.id.clone(),
                Match::Many(gpus) => format!("{} of several", gpus.len() > 1),
                Match::None => "none".to_owned(),
            }
        };
        assert_eq!(id(&["NVIDIA GeForce RTX 4090"], total("23.65GiB")), "rtx-4090");
        assert_eq!(id(&["NVIDIA H100 80GB HBM3"], None), "h100-80g");
        assert_eq!(id(&["NVIDIA H100 80GB HBM3"], total("15.77GiB")), id(&[], total("15.77GiB")));
        // Between every card of the catalogue.
        assert_eq!(id(&[], total("333GiB")), "none");
    }
}
