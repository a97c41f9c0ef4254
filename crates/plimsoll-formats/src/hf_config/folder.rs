//! Which files of a folder make up the model. Folders hold more than one copy of the weights, optimizer
//! states, adapters and projectors; loading every file that ends in `.safetensors` would count them all.

use std::collections::BTreeMap;

use crate::gguf::SplitName;
use crate::index::ShardIndex;

/// The files of a folder by their role. Names are as in the listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// `config.json`.
    pub config: Option<String>,
    /// `generation_config.json`.
    pub generation_config: Option<String>,
    /// A quantization recipe beside the configuration, such as `quantize_config.json` (GPTQ) or
    /// `hf_quant_config.json` (ModelOpt).
    pub quant_config: Option<String>,
    /// `adapter_config.json`: the folder holds an adapter.
    pub adapter_config: Option<String>,
    /// The adapter's weights, `adapter_model.safetensors` or `.bin`.
    pub adapter_weights: Option<String>,
    /// The weights of the model.
    pub weights: Weights,
    /// GGUF files of a vision or audio projector (`mmproj`).
    pub projectors: Vec<String>,
    /// Weight files that were left out because the chosen ones hold the same, or because they are no model
    /// weights (optimizer states, `consolidated` copies).
    pub left_out: Vec<String>,
}

/// In what form the weights lie there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Weights {
    /// No weights: the configuration alone is there.
    #[default]
    None,
    /// safetensors files named by an index, which must be read for their names.
    SafetensorsIndex(String),
    /// safetensors files without an index.
    Safetensors(Vec<String>),
    /// GGUF files; more than one set where a folder offers several quantizations.
    Gguf(Vec<GgufSet>),
    /// torch checkpoints named by an index.
    TorchIndex(String),
    /// torch checkpoints without an index.
    Torch(Vec<String>),
}

/// The files of one GGUF model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufSet {
    /// The files that the listing has, in the order of the parts.
    pub files: Vec<String>,
    /// How many there should be; 1 for a file that is not split.
    pub parts: u32,
}

impl GgufSet {
    /// The names of the parts that the listing lacks, in order.
    pub fn missing(&self) -> Vec<String> {
        let split = self.files.first().and_then(|file| SplitName::parse(file));
        let mut names = split.map(|split| split.siblings()).unwrap_or_default();
        names.retain(|name| self.files.binary_search(name).is_err());
        names
    }
}

/// Sorts a folder's listing into roles. Only the top folder counts: names with a `/` are ignored.
///
/// ```
/// use plimsoll_formats::hf_config::{choose_files, Weights};
/// let folder = choose_files(&["config.json", "model.safetensors", "optimizer.pt", "README.md"]);
/// assert_eq!(folder.config.as_deref(), Some("config.json"));
/// assert_eq!(folder.weights, Weights::Safetensors(vec!["model.safetensors".to_owned()]));
/// ```
pub fn choose_files(names: &[&str]) -> Folder {
    let mut names: Vec<&str> = names.iter().copied().filter(|n| !n.contains(['/', '\\'])).collect();
    names.sort_unstable();
    names.dedup();
    let has = |wanted: &str| names.contains(&wanted).then(|| wanted.to_owned());
    let first = |wanted: &[&str]| wanted.iter().find_map(|name| has(name));
    let mut folder = Folder {
        config: has("config.json"),
        generation_config: has("generation_config.json"),
        quant_config: first(&["hf_quant_config.json", "quantize_config.json", "quant_config.json"]),
        adapter_config: has("adapter_config.json"),
        adapter_weights: first(&["adapter_model.safetensors", "adapter_model.bin"]),
        ..Default::default()
    };

    let ending = |end: &str| names.iter().copied().filter(|n| n.ends_with(end)).collect::<Vec<_>>();
    let is_adapter = |n: &&str| n.starts_with("adapter_model");
    let safetensors: Vec<_> =
        ending(".safetensors").into_iter().filter(|n| !is_adapter(n)).collect();
    let gguf = ending(".gguf");
    let mut torch = [ending(".bin"), ending(".pt"), ending(".pth")].concat();
    torch.retain(|n| !is_adapter(n));
    let (training, torch): (Vec<_>, Vec<_>) = torch.into_iter().partition(|n| is_training_state(n));

    let (projectors, gguf): (Vec<_>, Vec<_>) =
        gguf.into_iter().partition(|n| n.to_ascii_lowercase().contains("mmproj"));
    folder.projectors = owned(&projectors);
    // The loader's own copy wins over Mistral's and Meta's original layout beside it.
    let (copies, own): (Vec<_>, Vec<_>) =
        safetensors.iter().copied().partition(|n| n.starts_with("consolidated"));

    let mut used: Vec<&str> = Vec::new();
    folder.weights = if let Some(index) = has("model.safetensors.index.json") {
        used.extend(own.iter().filter(|n| SplitName::parse_any(n).is_some()));
        Weights::SafetensorsIndex(index)
    } else if names.contains(&"model.safetensors") {
        used.push("model.safetensors");
        Weights::Safetensors(owned(&used))
    } else if let Some(index) = ending(".safetensors.index.json").first() {
        used.extend(&own);
        Weights::SafetensorsIndex((*index).to_owned())
    } else if !own.is_empty() || !copies.is_empty() {
        used.extend(if own.is_empty() { &copies } else { &own });
        Weights::Safetensors(owned(&used))
    } else if !gguf.is_empty() {
        used.extend(&gguf);
        Weights::Gguf(gguf_sets(&gguf))
    } else if let Some(index) = has("pytorch_model.bin.index.json") {
        used.extend(torch.iter().filter(|n| n.starts_with("pytorch_model")));
        Weights::TorchIndex(index)
    } else if names.contains(&"pytorch_model.bin") {
        used.push("pytorch_model.bin");
        Weights::Torch(owned(&used))
    } else if !torch.is_empty() {
        used.extend(&torch);
        Weights::Torch(owned(&used))
    } else {
        Weights::None
    };
    let all = safetensors.iter().chain(&gguf).chain(&torch).chain(&training);
    folder.left_out = all.filter(|n| !used.contains(n)).map(|n| (*n).to_owned()).collect();
    folder.left_out.sort_unstable();
    folder
}

/// The shards that an index names, split into those that the listing has and those that it lacks.
pub fn needed_shards(index: &ShardIndex, names: &[&str]) -> (Vec<String>, Vec<String>) {
    let (here, missing): (Vec<&str>, Vec<&str>) =
        index.files().into_iter().partition(|file| names.contains(file));
    (owned(&here), owned(&missing))
}

/// What trainers write beside the weights.
fn is_training_state(name: &str) -> bool {
    ["optimizer", "scheduler", "rng_state", "training_args", "scaler", "random_states"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Groups GGUF files, in any folder: the parts of a split file belong together, every other file stands alone.
/// Sorted by name; other files are to be left out by the caller.
pub fn gguf_sets(names: &[&str]) -> Vec<GgufSet> {
    let mut sets: BTreeMap<String, GgufSet> = BTreeMap::new();
    for name in names {
        let (key, parts) = match SplitName::parse(name) {
            Some(split) => (split.sibling(1), split.parts),
            None => ((*name).to_owned(), 1),
        };
        let set = sets.entry(key).or_insert_with(|| GgufSet { files: Vec::new(), parts });
        set.files.push((*name).to_owned());
    }
    let mut sets: Vec<GgufSet> = sets.into_values().collect();
    for set in &mut sets {
        // Part numbers have a fixed width, so this is their order too.
        set.files.sort_unstable();
        set.files.dedup();
    }
    sets
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_wins_and_copies_are_left_out() {
        let folder = choose_files(&[
            "config.json",
            "consolidated.safetensors",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "original/consolidated.00.pth",
            "pytorch_model-00001-of-00001.bin",
            "pytorch_model.bin.index.json",
            "training_args.bin",
        ]);
        let index = "model.safetensors.index.json".to_owned();
        assert_eq!(folder.weights, Weights::SafetensorsIndex(index));
        assert_eq!(
            folder.left_out,
            ["consolidated.safetensors", "pytorch_model-00001-of-00001.bin", "training_args.bin"]
        );
    }

    #[test]
    fn an_adapter_is_no_model() {
        let folder =
            choose_files(&["adapter_config.json", "adapter_model.safetensors", "optimizer.pt"]);
        assert_eq!(folder.weights, Weights::None);
        assert_eq!(folder.adapter_weights.as_deref(), Some("adapter_model.safetensors"));
        assert_eq!(folder.left_out, ["optimizer.pt"]);
    }

    #[test]
    fn gguf_parts_are_grouped() {
        let folder = choose_files(&[
            "m-Q4_K_M.gguf",
            "m-Q8_0-00001-of-00003.gguf",
            "m-Q8_0-00003-of-00003.gguf",
            "mmproj-m-f16.gguf",
        ]);
        let Weights::Gguf(sets) = folder.weights else { panic!("{folder:?}") };
        assert_eq!(sets.len(), 2);
        assert_eq!((sets[1].files.len(), sets[1].parts), (2, 3));
        assert_eq!(sets[1].missing(), ["m-Q8_0-00002-of-00003.gguf"]);
        assert_eq!(sets[0].missing(), Vec::<String>::new());
        assert_eq!(folder.projectors, ["mmproj-m-f16.gguf"]);
    }

    #[test]
    fn other_layouts() {
        for (names, weights) in [
            (
                &["pytorch_model.bin", "rng_state_0.pth"][..],
                Weights::Torch(vec!["pytorch_model.bin".into()]),
            ),
            (
                &["consolidated.safetensors"],
                Weights::Safetensors(vec!["consolidated.safetensors".into()]),
            ),
            (&["model.pt"], Weights::Torch(vec!["model.pt".into()])),
            (&["config.json"], Weights::None),
            (
                &[
                    "diffusion_pytorch_model.safetensors.index.json",
                    "diffusion_pytorch_model-00001-of-00001.safetensors",
                ],
                Weights::SafetensorsIndex("diffusion_pytorch_model.safetensors.index.json".into()),
            ),
        ] {
            assert_eq!(choose_files(names).weights, weights, "{names:?}");
        }
    }

    #[test]
    fn shards_are_checked_against_the_listing() {
        let index =
            crate::index::parse(br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#)
                .unwrap();
        let (here, missing) = needed_shards(&index, &["m-2.safetensors"]);
        assert_eq!(
            (here, missing),
            (vec!["m-2.safetensors".to_owned()], vec!["m-1.safetensors".to_owned()])
        );
    }
}
