//! The model of a request: where it comes from, and what the estimator needs to know of it. Files are read by the
//! faces; here they are bytes or `Read + Seek`.

use std::io::{self, Read, Seek};
use std::sync::Arc;

use plimsoll_catalog::models;
use plimsoll_estimate::tensor_parallel::StoredBytes;
use plimsoll_estimate::weights::StoredTensor;
use plimsoll_formats::gguf::{self, GgufFile};
use plimsoll_formats::hf_config::{self, Weights};
use plimsoll_formats::safetensors::{self, SafetensorsHeader};
use plimsoll_formats::sniff::{self, FileKind};
use plimsoll_formats::torch_checkpoint::{self, Checkpoint};
use plimsoll_formats::{TensorInfo, index};
use plimsoll_model::{Architecture, Inventory, hf, inventory};
use plimsoll_units::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::EngineError;
use crate::response::{Diagnostic, ModelSummary};
use crate::weights;

/// Where a model comes from. In JSON: a catalogue name as a string, or an object with `config` (and `tensors`).
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A name or alias of the catalogue.
    Name(String),
    /// A configuration in the request itself.
    Config(Box<ConfigSource>),
    /// Headers that a face read from files.
    Read(Arc<ModelInput>),
}

/// A configuration given in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfigSource {
    /// A name for reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The contents of `config.json`.
    pub config: Map<String, Value>,
}

impl PartialEq for ModelSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (ModelSource::Name(a), ModelSource::Name(b)) => a == b,
            (ModelSource::Config(a), ModelSource::Config(b)) => a == b,
            (ModelSource::Read(a), ModelSource::Read(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Headers that were read serialize as their label: they are no part of the wire format.
impl Serialize for ModelSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ModelSource::Name(name) => serializer.serialize_str(name),
            ModelSource::Config(source) => source.serialize(serializer),
            ModelSource::Read(input) => serializer.serialize_str(&input.label),
        }
    }
}

impl<'de> Deserialize<'de> for ModelSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) => Ok(ModelSource::Name(name)),
            value @ Value::Object(_) => serde_json::from_value(value)
                .map(|source| ModelSource::Config(Box::new(source)))
                .map_err(D::Error::custom),
            _ => Err(D::Error::custom("a model is a name, or an object with `config`")),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ModelSource {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ModelSource".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let config = generator.subschema_for::<ConfigSource>();
        schemars::json_schema!({
            "anyOf": [
                { "type": "string", "description": "A name or alias of the catalogue." },
                config,
            ],
        })
    }
}

/// Something that can be read from any place.
pub trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// The files of a model folder, local or remote.
pub trait ModelFiles {
    /// Names of the files directly in the folder.
    ///
    /// # Errors
    ///
    /// What the place says.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens one of them.
    ///
    /// # Errors
    ///
    /// What the place says.
    fn open(&self, name: &str) -> io::Result<Box<dyn ReadSeek + '_>>;
}

/// What was read of a model: its configuration, its tensor table, or both.
#[derive(Clone, Debug, Default)]
pub struct ModelInput {
    /// What messages call it: the path, or the hub name.
    pub label: String,
    config: Option<Map<String, Value>>,
    tensors: Vec<TensorInfo>,
    /// Bytes that loading takes, where they are not the sum of the tensors (tied storages of checkpoints).
    stored: Option<Bytes>,
    gguf: Option<GgufFile>,
    notes: Vec<String>,
}

/// Bytes of a file that are read to tell what it is.
const SNIFF: usize = sniff::SNIFF_LEN;

impl ModelInput {
    /// Reads one file, whatever it is by its first bytes. `siblings` opens the other parts of a split model.
    ///
    /// # Errors
    ///
    /// [`EngineError::ModelInput`] naming the file, what is wrong with it and the cure.
    pub fn from_file(
        label: &str,
        name: &str,
        files: &dyn ModelFiles,
    ) -> Result<ModelInput, EngineError> {
        let mut reader = open(label, name, files)?;
        let mut first = [0u8; SNIFF];
        let n = read_up_to(&mut reader, &mut first).map_err(|e| input_error(label, e))?;
        reader.rewind().map_err(|e| input_error(label, e))?;
        let mut input = ModelInput { label: label.to_owned(), ..Default::default() };
        match sniff::file_kind(&first[..n]) {
            Some(FileKind::Gguf) => {
                drop(reader);
                input.read_gguf(name, files)?;
            }
            Some(FileKind::Safetensors) => {
                drop(reader);
                input.read_config_beside(files)?;
                input.read_safetensors(name, files)?;
            }
            Some(FileKind::Json) => {
                input.config = Some(read_config(label, &mut reader)?);
            }
            Some(FileKind::Zip | FileKind::Pickle) => {
                drop(reader);
                input.read_config_beside(files)?;
                input.read_checkpoint(name, files)?;
            }
            _ => {
                return Err(EngineError::ModelInput {
                    name: label.to_owned(),
                    message: format!(
                        "it is no model file that can be read ({}); accepted: config.json, .safetensors, .gguf, .pt, .pth, .bin, or a folder with them",
                        describe(&first[..n])
                    ),
                });
            }
        }
        if input.config.is_none() && input.gguf.is_none() && input.tensors.is_empty() {
            return Err(import_error(label, "it holds no tensors; name the file with the weights"));
        }
        Ok(input)
    }

    /// Reads a model folder: its configuration and the headers of its weights.
    ///
    /// # Errors
    ///
    /// [`EngineError::ModelInput`] naming the file, what is wrong with it and the cure.
    pub fn from_folder(label: &str, files: &dyn ModelFiles) -> Result<ModelInput, EngineError> {
        let names = files.names().map_err(|e| input_error(label, e))?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let folder = hf_config::choose_files(&names);
        let mut input = ModelInput { label: label.to_owned(), ..Default::default() };
        if let Some(config) = &folder.config {
            let mut reader = open(label, config, files)?;
            input.config = Some(read_config(&join(label, config), &mut reader)?);
        }
        match &folder.weights {
            Weights::SafetensorsIndex(name) => input.read_shards(name, &names, files, false)?,
            Weights::TorchIndex(name) => input.read_shards(name, &names, files, true)?,
            Weights::Torch(list) => {
                for name in list {
                    input.read_checkpoint(name, files)?;
                }
            }
            Weights::Safetensors(list) => {
                for name in list {
                    input.read_safetensors(name, files)?;
                }
            }
            Weights::Gguf(sets) => match sets.as_slice() {
                [set] if input.config.is_none() => input.read_gguf(&set.files[0], files)?,
                _ if input.config.is_some() => {}
                sets => {
                    let list: Vec<&str> =
                        sets.iter().filter_map(|s| s.files.first()).map(String::as_str).collect();
                    return Err(EngineError::ModelInput {
                        name: label.to_owned(),
                        message: format!(
                            "the folder holds {} GGUF models; name one of {}",
                            list.len(),
                            list.join(", ")
                        ),
                    });
                }
            },
            _ => {}
        }
        if input.config.is_none() && input.gguf.is_none() && input.tensors.is_empty() {
            let message = if folder.adapter_config.is_some() {
                "it is an adapter, not a model; give the base model and --finetune lora"
            } else {
                "the folder holds no config.json, .safetensors, .gguf or torch checkpoint"
            };
            return Err(EngineError::ModelInput {
                name: label.to_owned(),
                message: message.to_owned(),
            });
        }
        Ok(input)
    }

    /// Adds what was noticed while the files were fetched.
    #[must_use]
    pub fn with_notes(mut self, notes: impl IntoIterator<Item = String>) -> ModelInput {
        self.notes.extend(notes);
        self
    }

    /// The configuration beside a weight file, where there is one.
    fn read_config_beside(&mut self, files: &dyn ModelFiles) -> Result<(), EngineError> {
        if let Ok(mut reader) = files.open("config.json") {
            self.config = Some(read_config(&join(&self.label, "config.json"), &mut reader)?);
        }
        Ok(())
    }

    fn add_safetensors(&mut self, header: SafetensorsHeader) {
        self.notes.extend(header.diagnostics.iter().map(ToString::to_string));
        self.tensors.extend(header.tensors);
    }

    fn read_checkpoint(&mut self, name: &str, files: &dyn ModelFiles) -> Result<(), EngineError> {
        let label = self.part(name);
        let checkpoint = torch_checkpoint::read(open(&label, name, files)?)
            .map_err(|error| format_error(&label, error))?;
        self.add_checkpoint(checkpoint);
        Ok(())
    }

    fn add_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.notes.extend(checkpoint.diagnostics.iter().map(ToString::to_string));
        let bytes = self.stored.unwrap_or(Bytes::ZERO) + checkpoint.storage_bytes();
        self.stored = Some(bytes);
        self.tensors.extend(checkpoint.tensor_infos());
    }

    fn read_safetensors(&mut self, name: &str, files: &dyn ModelFiles) -> Result<(), EngineError> {
        let label = self.part(name);
        let header = safetensors::read(open(&label, name, files)?)
            .map_err(|error| format_error(&label, error))?;
        self.add_safetensors(header);
        Ok(())
    }

    fn read_shards(
        &mut self,
        index_name: &str,
        names: &[&str],
        files: &dyn ModelFiles,
        torch: bool,
    ) -> Result<(), EngineError> {
        let label = self.part(index_name);
        let bytes = read_all(&label, &mut open(&label, index_name, files)?, index::MAX_INDEX_LEN)?;
        let shards = index::parse(&bytes).map_err(|error| format_error(&label, error))?;
        let (here, missing) = hf_config::needed_shards(&shards, names);
        if here.is_empty() && self.config.is_some() {
            self.notes.push(format!(
                "no weight file of `{index_name}` is in the folder; the configuration alone is used"
            ));
            return Ok(());
        }
        if let Some(first) = missing.first() {
            self.notes.push(format!(
                "{} of {} weight files are missing, such as `{first}`; the configuration alone is used",
                missing.len(),
                missing.len() + here.len()
            ));
            if self.config.is_some() {
                return Ok(());
            }
        }
        for name in &here {
            match torch {
                true => self.read_checkpoint(name, files)?,
                false => self.read_safetensors(name, files)?,
            }
        }
        Ok(())
    }

    fn read_gguf(&mut self, name: &str, files: &dyn ModelFiles) -> Result<(), EngineError> {
        let label = self.part(name);
        let parts = match gguf::SplitName::parse(name) {
            Some(split) => split.siblings(),
            None => vec![name.to_owned()],
        };
        let mut read = Vec::with_capacity(parts.len().min(64));
        for part in &parts {
            let file = gguf::read(open(&label, part, files)?)
                .map_err(|error| format_error(&self.part(part), error))?;
            read.push(file);
        }
        let whole = gguf::join(read).map_err(|error| format_error(&label, error))?;
        self.notes.extend(whole.diagnostics.iter().map(ToString::to_string));
        self.gguf = Some(whole);
        Ok(())
    }

    /// What messages call a file of the model.
    fn part(&self, name: &str) -> String {
        if self.label.ends_with(name) { self.label.clone() } else { join(&self.label, name) }
    }

    /// Bytes of the weights alone, where nothing says what kind of model they belong to.
    pub(crate) fn bare_weights(&self) -> Option<Bytes> {
        let bare = self.config.is_none() && self.gguf.is_none();
        bare.then(|| self.stored.unwrap_or_else(|| self.tensors.iter().map(|t| t.bytes).sum()))
    }

    /// Whether the model is a GGUF file.
    pub fn is_gguf(&self) -> bool {
        self.gguf.is_some()
    }
}

fn open<'a>(
    label: &str,
    name: &str,
    files: &'a dyn ModelFiles,
) -> Result<Box<dyn ReadSeek + 'a>, EngineError> {
    files.open(name).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => EngineError::ModelInput {
            name: label.to_owned(),
            message: format!("`{name}` is missing; fetch it, or give another model"),
        },
        _ => input_error(label, error),
    })
}

fn read_config(label: &str, reader: &mut dyn ReadSeek) -> Result<Map<String, Value>, EngineError> {
    let bytes = read_all(label, reader, hf_config::MAX_CONFIG_LEN)?;
    hf_config::read_json_object("config.json", &bytes).map_err(|error| format_error(label, error))
}

fn read_all(label: &str, reader: &mut dyn ReadSeek, limit: u64) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    reader.take(limit + 1).read_to_end(&mut bytes).map_err(|e| input_error(label, e))?;
    if bytes.len() as u64 > limit {
        return Err(EngineError::ModelInput {
            name: label.to_owned(),
            message: format!("it is longer than {limit} bytes, too long for what it should be"),
        });
    }
    Ok(bytes)
}

fn read_up_to(reader: &mut dyn ReadSeek, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

fn describe(first: &[u8]) -> &'static str {
    match sniff::file_kind(first) {
        Some(FileKind::Empty) => "it is empty",
        Some(FileKind::GgmlLegacy) => "a ggml file from before GGUF",
        Some(FileKind::GitLfsPointer) => "a Git LFS pointer; run `git lfs pull`",
        Some(FileKind::Html) => "a web page; fetch the raw file",
        _ => "its first bytes are of no known format",
    }
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() || folder.ends_with('/') {
        format!("{folder}{name}")
    } else {
        format!("{folder}/{name}")
    }
}

fn input_error(label: &str, error: io::Error) -> EngineError {
    EngineError::ModelInput { name: label.to_owned(), message: format!("cannot be read: {error}") }
}

fn format_error(label: &str, error: plimsoll_formats::FormatError) -> EngineError {
    EngineError::ModelInput { name: label.to_owned(), message: error.to_string() }
}

/// A model, understood.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub name: String,
    pub source: &'static str,
    pub architecture: Architecture,
    pub inventory: Inventory,
    /// The tensors of a GGUF file, or what one of another type would hold; empty until llama.cpp is asked about.
    pub weights: Vec<StoredTensor>,
    /// Bytes by module, where weight files were read.
    pub stored: Option<StoredBytes>,
    pub diagnostics: Vec<Diagnostic>,
}

/// Finds or imports the model of a request.
pub(crate) fn resolve(source: &ModelSource) -> Result<Model, EngineError> {
    match source {
        ModelSource::Name(name) => from_catalogue(name),
        ModelSource::Config(source) => {
            let name = source.name.clone().unwrap_or_else(|| "config".to_owned());
            from_config(name, "config", &source.config)
        }
        ModelSource::Read(input) => from_input(input),
    }
}

fn from_catalogue(name: &str) -> Result<Model, EngineError> {
    let entry = models::find(name).map_err(|unknown| EngineError::UnknownModel {
        name: name.to_owned(),
        nearest: unknown.nearest.into_iter().map(str::to_owned).collect(),
    })?;
    let imported = hf::from_config(entry.config.as_bytes())
        .map_err(|error| import_error(entry.name, &error.to_string()))?;
    let inventory = inventory::inventory(&imported.architecture);
    Ok(Model {
        name: entry.name.to_owned(),
        source: "catalogue",
        architecture: imported.architecture,
        inventory,
        weights: Vec::new(),
        stored: None,
        diagnostics: Vec::new(),
    })
}

fn from_config(
    name: String,
    source: &'static str,
    config: &Map<String, Value>,
) -> Result<Model, EngineError> {
    let imported = hf::from_value(&Value::Object(config.clone()))
        .map_err(|error| import_error(&name, &error.to_string()))?;
    let inventory = inventory::inventory(&imported.architecture);
    Ok(Model {
        name,
        source,
        architecture: imported.architecture,
        inventory,
        weights: Vec::new(),
        stored: None,
        diagnostics: notes(imported.diagnostics),
    })
}

fn from_input(input: &ModelInput) -> Result<Model, EngineError> {
    let mut model = match (&input.gguf, &input.config) {
        (Some(file), _) => from_gguf(&input.label, file)?,
        (None, Some(config)) => from_config(input.label.clone(), "config", config)?,
        (None, None) => {
            return Err(import_error(
                &input.label,
                "its tensors do not say what kind of model they are; put the model's config.json into the same folder (plain inference, without --train or --engine, counts the weights alone)",
            ));
        }
    };
    model.diagnostics.extend(input.notes.iter().map(|n| Diagnostic::note("file", n.clone())));
    if !input.tensors.is_empty() {
        compare(&mut model, &input.tensors, input.stored.is_some());
    }
    Ok(model)
}

fn from_gguf(label: &str, file: &GgufFile) -> Result<Model, EngineError> {
    let imported = plimsoll_model::gguf::from_file(file)
        .map_err(|error| import_error(label, &error.to_string()))?;
    let architecture = imported.architecture;
    let stored = inventory::inventory_from_tensors(&file.tensors, Some(&architecture));
    Ok(Model {
        name: label.to_owned(),
        source: "gguf",
        inventory: stored.inventory(),
        weights: weights::of_file(&file.tensors, architecture.dtype),
        stored: None,
        diagnostics: notes(imported.diagnostics),
        architecture,
    })
}

/// Holds the weight files against the configuration: the number of elements must agree.
fn compare(model: &mut Model, tensors: &[TensorInfo], torch: bool) {
    model.source = if torch { "checkpoint" } else { "safetensors" };
    model.stored = Some(StoredBytes::new(tensors.iter().map(|t| (&*t.name, t.bytes))));
    let stored = inventory::inventory_from_tensors(tensors, Some(&model.architecture)).elements();
    let counted = model.inventory.elements();
    if stored != counted {
        model.diagnostics.push(Diagnostic::warning(
            "tensors-differ",
            format!(
                "the weight files hold {stored} parameters, the configuration describes {counted}"
            ),
            "check that config.json belongs to these files; the configuration is used",
        ));
    }
}

fn notes(found: Vec<hf::Diagnostic>) -> Vec<Diagnostic> {
    found.iter().map(|d| Diagnostic::note("config", format!("{}: {}", d.key, d.message))).collect()
}

fn import_error(name: &str, message: &str) -> EngineError {
    EngineError::ModelInput { name: name.to_owned(), message: message.to_owned() }
}

impl Model {
    /// What the response says of the model.
    pub(crate) fn summary(&self) -> ModelSummary {
        ModelSummary {
            name: self.name.clone(),
            source: self.source,
            family: self.architecture.family.clone(),
            parameters: self.inventory.elements(),
            active: self.architecture.active_parameters(),
            layers: self.architecture.layers().count() as u64,
            dtype: self.architecture.dtype.name().to_owned(),
            max_positions: self.architecture.max_positions,
        }
    }
}
