//! What each framework does by default. The facts, with their sources, are in `data/frameworks.json`.

use std::sync::OnceLock;

use plimsoll_estimate::request::{OptimizerForm, Stack};
use plimsoll_units::DType;
use serde::Deserialize;

use super::row::{Row, after};

#[derive(Deserialize)]
struct File {
    entries: Vec<Entry>,
}

/// Defaults of one framework.
#[derive(Deserialize)]
pub struct Entry {
    words: Vec<String>,
    stack: String,
    form: String,
    adapter: String,
    /// Micro-batch of its default recipes, where they have one.
    #[serde(default)]
    pub batch: Option<u64>,
    /// Sequences in a step of its pretraining script by default, over all ranks.
    #[serde(default)]
    pub pretrain_batch: Option<u64>,
    /// Activation checkpointing of its default recipes.
    #[serde(default)]
    pub checkpointing: String,
    /// Attention kernel of its default recipes.
    #[serde(default)]
    pub attention: String,
    /// Loss of its default recipes, where it is not the plain one.
    #[serde(default)]
    pub loss: String,
    /// Under tensor parallelism the loss runs on sharded logits.
    #[serde(default)]
    pub loss_parallel: bool,
    /// 16-bit models run under autocast (`bf16=True` of a Trainer).
    #[serde(default)]
    pub mixed: bool,
    /// What is not quantized is cast to F32 before QLoRA (`prepare_model_for_kbit_training`).
    #[serde(default)]
    pub widens_unquantized: bool,
    /// Adapters have dropout before them where a row does not say.
    #[serde(default)]
    pub adapter_dropout: bool,
    /// The loop empties the allocator's cache, so that shorter batches leave nothing behind.
    #[serde(default)]
    pub empties_cache: bool,
    /// Data parallelism is written by hand: gradients are reduced where they are.
    #[serde(default)]
    pub reduces_in_place: bool,
    /// The longest sample comes in the first iteration, once.
    #[serde(default)]
    pub longest_first: bool,
    /// Batches are padded to their own longest sample, where nothing says that they are packed or padded to one length.
    #[serde(default)]
    pub pads_to_longest: bool,
    /// Words of `version` from which AdamW is the fused one.
    #[serde(default)]
    fused_in: Vec<String>,
    /// The optimizer of its single-device recipes, where a row states none.
    #[serde(default)]
    pub optimizer: String,
    /// The ZeRO stage of its script for full fine-tuning.
    #[serde(default)]
    pub full_zero: Option<u64>,
    /// The ZeRO stage of its script for adapters on quantized models, where a row says that DeepSpeed ran it.
    #[serde(default)]
    pub quantized_zero: Option<u64>,
    /// Gradients are there when the measured step begins: its profiler counts them among the model states.
    #[serde(default)]
    pub keeps_gradients: bool,
    /// The month (`2025-04`) from which `compile` covers the loss as well.
    #[serde(default)]
    pub compiled_loss_from: Option<String>,
    /// The month until which the loop keeps F32 logits that the model returns.
    #[serde(default)]
    pub returned_until: Option<String>,
    /// The month from which its launcher asks for expandable segments.
    #[serde(default)]
    pub expandable_from: Option<String>,
}

impl Entry {
    /// Which implementation of the layers runs.
    pub fn stack(&self) -> Stack {
        match self.stack.as_str() {
            "torchtitan" => Stack::Torchtitan,
            "torchtune" => Stack::Torchtune,
            "litgpt" => Stack::LitGpt,
            "megatron" => Stack::Megatron,
            "foundry" => Stack::Foundry,
            "torch" => Stack::Torch,
            "plain" => Stack::Plain,
            _ => Stack::Transformers,
        }
    }

    /// Form of AdamW where nothing else is said.
    pub fn form(&self, row: &Row) -> OptimizerForm {
        let version = row.lower("version");
        let fused = self.form == "fused" || self.fused_in.iter().any(|w| version.contains(w));
        match fused {
            true => OptimizerForm::Fused,
            false if before_torch_2(row) => OptimizerForm::Loop,
            false if version.contains("torch 2.0") => OptimizerForm::ForeachTwice,
            false => OptimizerForm::Foreach,
        }
    }

    /// Type of LoRA adapters.
    pub fn adapter(&self) -> DType {
        self.adapter.parse().unwrap_or(DType::F32)
    }
}

fn file() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| {
        serde_json::from_str(include_str!("data/frameworks.json")).expect("frameworks.json parses")
    })
}

/// The defaults for a row, by its `framework`.
pub fn of(row: &Row) -> Option<&'static Entry> {
    // The version may carry an older name of the project.
    let text = format!("{} {}", row.lower("framework"), row.lower("version"));
    file().entries.iter().find(|e| e.words.iter().any(|w| text.contains(w.as_str())))
}

/// The four-digit year in `version`, where it has one.
pub fn year(row: &Row) -> Option<u64> {
    let text = row.lower("version");
    let digits = |at: usize| text.get(at..at + 4).and_then(|t| t.parse::<u64>().ok());
    let stated = (0..text.len()).filter_map(digits).find(|y| (2015..2100).contains(y));
    stated.or_else(|| Some(released(after(&text, "torch 2.")?)))
}

/// Whether the version of a row is of that month (`2025-04`) or later; a version that states a year only counts as late in
/// it. Without a month nothing is.
pub fn since(row: &Row, month: Option<&str>) -> bool {
    let Some((Some(year), Some(month))) = month.map(parts) else { return false };
    let text = row.lower("version");
    let stated =
        (0..text.len()).filter_map(|at| text.get(at..at + 7)).find_map(|t| match parts(t) {
            (Some(y), Some(m)) if (2015..2100).contains(&y) => Some((y, m)),
            _ => None,
        });
    match stated {
        Some(stated) => stated >= (year, month),
        None => self::year(row).is_some_and(|y| y >= year),
    }
}

/// `2025-04` as numbers.
fn parts(text: &str) -> (Option<u64>, Option<u64>) {
    let (year, month) = text.split_once('-').unwrap_or((text, ""));
    let whole = |t: &str, digits| (t.len() == digits).then(|| t.parse().ok()).flatten();
    (whole(year, 4), whole(month, 2))
}

/// The year of torch 2.`minor`.
fn released(minor: u64) -> u64 {
    match minor {
        0 | 1 => 2023,
        2..=5 => 2024,
        6..=9 => 2025,
        _ => 2026,
    }
}

/// Whether the row's torch is older than 2.0: CUDA loads all kernels at start (lazy loading came with 11.7), optimizers
/// loop over parameters, and `zero_grad` fills gradients instead of dropping them.
pub fn before_torch_2(row: &Row) -> bool {
    let text = row.lower("version");
    let old_torch =
        ["torch 0.", "torch 1.", "pytorch 0.", "pytorch 1."].iter().any(|t| text.contains(t));
    old_torch || year(row).is_some_and(|y| y <= 2022)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_of_versions() {
        for (version, month, expect) in [
            ("torchtitan 2025-03", Some("2025-04"), false),
            ("torchtitan 2025-04", Some("2025-04"), true),
            ("torch 1963fc8 (2024-12-23)", Some("2024-11"), true),
            ("torchtitan 2024-06", Some("2024-07"), false),
            // A year alone counts as late in it.
            ("2025", Some("2025-04"), true),
            ("torch 2.4", Some("2025-04"), false),
            ("", Some("2025-04"), false),
            ("torchtitan 2025-04", None, false),
        ] {
            let value = serde_json::json!({ "version": version });
            let row = Row::new(&value).unwrap();
            assert_eq!(since(&row, month), expect, "{version} {month:?}");
        }
    }
}
