//! From a reference to everything that an estimate needs: which files matter, and each of them from the nearest
//! place that has it.

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::PoisonError;

use plimsoll_formats::gguf::{GgufFile, SplitName};
use plimsoll_formats::hf_config::{Folder, GgufSet, Weights, choose_files, gguf_sets};
use plimsoll_formats::index::{self, MAX_INDEX_LEN, ShardIndex};
use plimsoll_formats::safetensors::SafetensorsHeader;
use plimsoll_formats::torch_checkpoint::Checkpoint;

use crate::fetched::{FetchedFile, FetchedReader};
use crate::http::Client;
use crate::{HubConfig, HubError, RepoRef};
use files::Session;

/// Longest configuration file.
const MAX_CONFIG: u64 = plimsoll_formats::hf_config::MAX_CONFIG_LEN;
/// Most weight files of one model.
const MAX_FILES: usize = 4096;

/// A hub, ready to be asked.
pub struct Hub {
    client: Client,
    config: HubConfig,
}

/// A model without its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedModel {
    /// What was asked for.
    pub reference: RepoRef,
    /// The commit it was at, where the hub said so.
    pub commit: Option<String>,
    /// The repository's files by role; empty where the server lists none.
    pub folder: Folder,
    /// `config.json`.
    pub config: Option<Vec<u8>>,
    /// The quantization recipe beside it.
    pub quant_config: Option<Vec<u8>>,
    /// `adapter_config.json`.
    pub adapter_config: Option<Vec<u8>>,
    /// The index of sharded weights.
    pub index: Option<ShardIndex>,
    /// safetensors files and their headers, in the order of their names.
    pub safetensors: Vec<(String, SafetensorsHeader)>,
    /// GGUF files and their headers, in the order of the parts.
    pub gguf: Vec<(String, GgufFile)>,
    /// torch checkpoints and their tensors.
    pub torch: Vec<(String, Checkpoint)>,
    /// The adapter's weights, as safetensors.
    pub adapter_safetensors: Option<(String, SafetensorsHeader)>,
    /// The adapter's weights, as a torch checkpoint.
    pub adapter_torch: Option<(String, Checkpoint)>,
    /// What was noticed on the way.
    pub notes: Vec<Note>,
    files: BTreeMap<String, FetchedFile>,
}

impl FetchedModel {
    /// Names of the files that were fetched, in whole or in part, sorted. For a reader that wants files: with
    /// [`FetchedModel::open`] they are a folder that holds this model and nothing else.
    pub fn names(&self) -> Vec<&str> {
        self.files.keys().map(String::as_str).collect()
    }

    /// Opens a file that was fetched. Headers can be read from it; its weights cannot.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] for any other name, and what the system says of a file in the hub cache.
    pub fn open(&self, name: &str) -> io::Result<FetchedReader<'_>> {
        let file = self.files.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        file.open()
    }

    /// The file that is the model by itself, where one is: the first part of a GGUF model, or the file that the
    /// reference names. Otherwise the folder is the model.
    pub fn main_file(&self) -> Option<&str> {
        if let Some((name, _)) = self.gguf.first() {
            return Some(name);
        }
        let named = self.reference.file.as_deref();
        named.filter(|name| self.files.contains_key(*name))
    }
}

/// A remark on how a model was fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Note {
    /// The network failed, and a cache stood in.
    #[error(
        "no network ({reason}); the copy in the cache at commit {commit} is used, which may be old"
    )]
    FromCache {
        /// The commit.
        commit: String,
        /// What failed.
        reason: String,
    },
    /// The server does not list files.
    #[error("the server lists no files; the usual names were tried")]
    NoListing,
}

/// What to fetch, decided from names alone.
#[derive(Default)]
struct Wanted {
    folder: Folder,
    weights: Weights,
}

impl Hub {
    /// A hub by its settings. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`HubError::Setting`] for an endpoint or proxy that is no address, [`HubError::Cache`] where the file of
    /// certificates cannot be read.
    pub fn new(config: HubConfig) -> Result<Hub, HubError> {
        Ok(Hub { client: Client::new(&config)?, config })
    }

    /// Fetches what `reference` names.
    ///
    /// # Errors
    ///
    /// [`HubError`] with the cure in its text: no network, no access, no such repository, revision or file,
    /// nothing cached while offline, an answer cut short or not of its kind, or a file that is damaged.
    pub fn fetch(&self, reference: &RepoRef) -> Result<FetchedModel, HubError> {
        let mut session = Session::open(&self.client, &self.config, reference)?;
        let wanted = match session.names.clone() {
            Some(names) => choose(reference, &names)?,
            None => probe(&mut session)?,
        };
        let folder = wanted.folder;
        let file = |name: &Option<String>, limit| match name {
            Some(name) => session.whole(name, limit).map(Some),
            None => Ok(None),
        };
        let config = file(&folder.config, MAX_CONFIG)?;
        let quant_config = file(&folder.quant_config, MAX_CONFIG)?;
        let adapter_config = file(&folder.adapter_config, MAX_CONFIG)?;

        let (mut shards, mut parts, mut checkpoints) = (Vec::new(), Vec::new(), Vec::new());
        let mut index = None;
        match wanted.weights {
            Weights::SafetensorsIndex(name) => (shards, index) = read_index(&session, &name)?,
            Weights::TorchIndex(name) => (checkpoints, index) = read_index(&session, &name)?,
            Weights::Safetensors(files) => shards = files,
            Weights::Torch(files) => checkpoints = files,
            Weights::Gguf(sets) => {
                if let Some(missing) = sets.iter().flat_map(GgufSet::missing).next() {
                    return Err(session.no_file(&missing));
                }
                parts = sets.into_iter().flat_map(|set| set.files).collect();
            }
            _ => {}
        }
        for count in [shards.len(), parts.len(), checkpoints.len()] {
            if count > MAX_FILES {
                return Err(HubError::TooLarge {
                    url: format!("the list of weight files of {}", reference.repo),
                    bytes: count as u64,
                    limit: MAX_FILES as u64,
                });
            }
        }
        let safetensors = session.all(&shards, |file| session.safetensors(file))?;
        let gguf = session.all(&parts, |file| session.gguf(file))?;
        let torch = session.all(&checkpoints, |file| session.torch(file))?;
        let (mut adapter_safetensors, mut adapter_torch) = (None, None);
        match &folder.adapter_weights {
            Some(name) if name.ends_with(".safetensors") => {
                adapter_safetensors = Some((name.clone(), session.safetensors(name)?));
            }
            Some(name) => adapter_torch = Some((name.clone(), session.torch(name)?)),
            None => {}
        }
        Ok(FetchedModel {
            reference: reference.clone(),
            commit: session.commit.clone(),
            folder,
            config,
            quant_config,
            adapter_config,
            index,
            safetensors,
            gguf,
            torch,
            adapter_safetensors,
            adapter_torch,
            files: session.files.into_inner().unwrap_or_else(PoisonError::into_inner),
            notes: session.notes,
        })
    }
}

/// Reads an index and returns the files it names.
fn read_index(
    session: &Session<'_>,
    name: &str,
) -> Result<(Vec<String>, Option<ShardIndex>), HubError> {
    let bytes = session.whole(name, MAX_INDEX_LEN)?;
    let index = index::parse(&bytes).map_err(|source| session.format(name, source))?;
    let files: Vec<String> = index.files().into_iter().map(str::to_owned).collect();
    if let Some(names) = &session.names {
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        if let Some(missing) = files.iter().find(|file| !names.contains(file.as_str())) {
            return Err(session.no_file(missing));
        }
    }
    Ok((files, Some(index)))
}

/// Decides from a listing.
fn choose(reference: &RepoRef, names: &[String]) -> Result<Wanted, HubError> {
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let folder = choose_files(&all);
    if let Some(wanted) = &reference.file {
        let weights = named(reference, wanted, &all)?;
        return Ok(Wanted { folder: Folder { adapter_weights: None, ..folder }, weights });
    }
    let mut weights = folder.weights.clone();
    let is_empty = folder.config.is_none() && folder.adapter_config.is_none();
    if weights == Weights::None && is_empty {
        // Large quantizations lie in folders of their own.
        let sets = gguf_sets(&gguf_names(&all));
        if sets.is_empty() {
            return Err(HubError::NoModel { repo: reference.repo.clone() });
        }
        weights = Weights::Gguf(sets);
    }
    if let Weights::Gguf(sets) = &weights
        && sets.len() > 1
    {
        return Err(ambiguous(reference, sets));
    }
    Ok(Wanted { folder, weights })
}

/// The weights that `hf:org/name:FILE` names: a file, or the one GGUF model whose name has `FILE` as a word.
fn named(reference: &RepoRef, wanted: &str, all: &[&str]) -> Result<Weights, HubError> {
    if all.contains(&wanted) {
        return Ok(by_extension(wanted));
    }
    let mut sets = gguf_sets(&gguf_names(all));
    sets.retain(|set| set.files.first().is_some_and(|file| has_word(file, wanted)));
    match sets.len() {
        0 => Err(HubError::FileNotFound {
            repo: reference.repo.clone(),
            file: wanted.to_owned(),
            revision: reference.revision.clone(),
        }),
        1 => Ok(Weights::Gguf(sets)),
        _ => Err(ambiguous(reference, &sets)),
    }
}

/// The weights that a file is, by its name; a part of a split GGUF stands for all parts.
fn by_extension(file: &str) -> Weights {
    let one = || vec![file.to_owned()];
    match file.rsplit_once('.').map(|(_, extension)| extension) {
        Some("gguf") => {
            let files = SplitName::parse(file).map_or_else(one, |split| split.siblings());
            let parts = files.len() as u32;
            Weights::Gguf(vec![GgufSet { files, parts }])
        }
        Some("safetensors") => Weights::Safetensors(one()),
        Some("bin" | "pt" | "pth") => Weights::Torch(one()),
        _ if file.ends_with(".safetensors.index.json") => {
            Weights::SafetensorsIndex(file.to_owned())
        }
        _ if file.ends_with(".bin.index.json") => Weights::TorchIndex(file.to_owned()),
        _ => Weights::None,
    }
}

fn gguf_names<'a>(all: &[&'a str]) -> Vec<&'a str> {
    let is_model = |n: &&&str| n.ends_with(".gguf") && !n.to_ascii_lowercase().contains("mmproj");
    all.iter().filter(is_model).copied().collect()
}

/// Whether `word` stands in `name` with no letter or digit on either side.
fn has_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_ascii_lowercase(), word.to_ascii_lowercase());
    let edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    name.match_indices(&word).any(|(at, found)| {
        edge(name[..at].chars().next_back()) && edge(name[at + found.len()..].chars().next())
    })
}

fn ambiguous(reference: &RepoRef, sets: &[GgufSet]) -> HubError {
    let names: Vec<&str> =
        sets.iter().filter_map(|set| set.files.first()).map(String::as_str).collect();
    let shown = names.iter().take(12).copied().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(12);
    HubError::Ambiguous {
        repo: reference.repo.clone(),
        candidates: if more > 0 { format!("{shown} and {more} more") } else { shown },
        example: names.first().copied().unwrap_or_default().to_owned(),
    }
}

/// Where nothing is listed, the usual names are tried.
fn probe(session: &mut Session<'_>) -> Result<Wanted, HubError> {
    session.notes.push(Note::NoListing);
    let mut folder = Folder::default();
    for (name, role) in [
        ("config.json", &mut folder.config),
        ("hf_quant_config.json", &mut folder.quant_config),
        ("adapter_config.json", &mut folder.adapter_config),
    ] {
        if session.exists(name, MAX_CONFIG)? {
            *role = Some(name.to_owned());
        }
    }
    if let Some(file) = &session.reference.file {
        return Ok(Wanted { folder, weights: by_extension(file) });
    }
    if folder.adapter_config.is_some() {
        folder.adapter_weights = Some("adapter_model.safetensors".to_owned());
    }
    let index = "model.safetensors.index.json";
    let single = "model.safetensors";
    let weights = if session.exists(index, MAX_INDEX_LEN)? {
        Weights::SafetensorsIndex(index.to_owned())
    } else if session.begins(single)? {
        Weights::Safetensors(vec![single.to_owned()])
    } else {
        Weights::None
    };
    if folder.config.is_none() && folder.adapter_config.is_none() && weights == Weights::None {
        return Err(HubError::RepoNotFound { repo: session.reference.repo.clone() });
    }
    Ok(Wanted { folder, weights })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn a_quantization_is_chosen_by_word() {
        let all = names(&[
            "README.md",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "mmproj-F16.gguf",
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
            "Q8_0/m-Q8_0-00002-of-00002.gguf",
        ]);
        let pick = |text: &str| {
            let reference: RepoRef = text.parse().unwrap();
            choose(&reference, &all).map(|wanted| match wanted.weights {
                Weights::Gguf(sets) => sets.into_iter().flat_map(|s| s.files).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(pick("o/n:q4_k_m").unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(pick("o/n:Q8_0").unwrap().len(), 2);
        assert_eq!(pick("o/n:mmproj-F16.gguf").unwrap(), ["mmproj-F16.gguf"]);
        let error = pick("o/n").unwrap_err().to_string();
        assert!(error.contains("m-Q4_K_M.gguf, m-Q4_K_S.gguf; choose one"), "{error}");
        let error = pick("o/n:Q4").unwrap_err().to_string();
        assert!(error.contains("has no file `Q4`"), "{error}");
    }

    #[test]
    fn a_repository_without_a_model_says_so() {
        let reference: RepoRef = "o/n".parse().unwrap();
        let error = choose(&reference, &names(&["README.md", "data.csv"])).err().unwrap();
        assert!(matches!(error, HubError::NoModel { .. }));
        assert!(choose(&reference, &names(&["config.json"])).is_ok());
    }
}
