//! The model argument: a catalogue name, a path, or a hub name. Files are opened here and read by the engine.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_engine::{ModelFiles, ModelInput, ModelSource, ReadSeek, is_catalogue_name};

use plimsoll_hub::{FetchedModel, Hub, HubConfig, HubError, RepoRef};

use crate::exit::CliError;

/// Resolves a model argument. A path that exists wins over a catalogue name, as it does in the field's own tools;
/// `./` says path, `hf:` says hub.
pub fn model(text: &str) -> Result<ModelSource, CliError> {
    if let Some(name) = text.strip_prefix("hf:") {
        return hub(name);
    }
    let path = Path::new(text);
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let files = Folder { path: path.to_owned() };
            Ok(read(ModelInput::from_folder(text, &files)?))
        }
        // Opening a pipe would wait for its writer, and headers are read by seeking.
        Ok(found) if !found.is_file() => {
            let error = io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is a pipe or a device; name a file or a folder",
            );
            Err(CliError::Read { path: text.to_owned(), error })
        }
        Ok(_) => {
            let parent = path.parent().map(Path::to_owned).unwrap_or_default();
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
                let error = io::Error::new(io::ErrorKind::InvalidInput, "its name is not UTF-8");
                return Err(CliError::Read { path: text.to_owned(), error });
            };
            Ok(read(ModelInput::from_file(text, name, &Folder { path: parent })?))
        }
        // What is a path by its looks must exist; everything else is a name.
        Err(error) if looks_like_path(text) && !is_catalogue_name(text) => {
            Err(CliError::Read { path: text.to_owned(), error })
        }
        Err(_) => Ok(ModelSource::Name(text.to_owned())),
    }
}

fn read(input: ModelInput) -> ModelSource {
    ModelSource::Read(Arc::new(input))
}

fn looks_like_path(text: &str) -> bool {
    const ENDINGS: [&str; 7] = [".gguf", ".safetensors", ".json", ".pt", ".pth", ".bin", "/"];
    text.starts_with(['.', '/', '~', '\\']) || ENDINGS.iter().any(|end| text.ends_with(end))
}

/// A local folder.
struct Folder {
    path: PathBuf,
}

impl ModelFiles for Folder {
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.here())? {
            let entry = entry?;
            // Follows links, as caches of the hub consist of them.
            if fs::metadata(entry.path()).is_ok_and(|m| m.is_file())
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadSeek + '_>> {
        // Names come from index files too: only plain names of this folder are opened.
        if name.contains(['/', '\\']) || name == ".." {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file name"));
        }
        Ok(Box::new(BufReader::new(File::open(self.here().join(name))?)))
    }
}

impl Folder {
    fn here(&self) -> &Path {
        if self.path.as_os_str().is_empty() { Path::new(".") } else { &self.path }
    }
}

/// Fetches configuration and headers of a hub model; the environment says where and as whom.
fn hub(name: &str) -> Result<ModelSource, CliError> {
    let reference: RepoRef = name.parse().map_err(hub_error)?;
    let hub = Hub::new(HubConfig::from_lookup(|key| std::env::var(key).ok())).map_err(hub_error)?;
    let model = hub.fetch(&reference).map_err(hub_error)?;
    let label = format!("hf:{name}");
    let files = Fetched(model);
    let input = match files.0.main_file() {
        Some(file) => ModelInput::from_file(&label, file, &files)?,
        None => ModelInput::from_folder(&label, &files)?,
    };
    Ok(read(input.with_notes(files.0.notes.iter().map(ToString::to_string))))
}

/// What was fetched of a hub model.
struct Fetched(FetchedModel);

impl ModelFiles for Fetched {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.names().into_iter().map(str::to_owned).collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadSeek + '_>> {
        Ok(Box::new(self.0.open(name)?))
    }
}

/// Wrong names and files are the model's fault, everything else the network's.
fn hub_error(error: HubError) -> CliError {
    let message = error.to_string();
    match error {
        HubError::Reference { .. } | HubError::Ambiguous { .. } => {
            CliError::Usage { message, hint: None }
        }
        HubError::RepoNotFound { .. }
        | HubError::RevisionNotFound { .. }
        | HubError::FileNotFound { .. }
        | HubError::NoModel { .. }
        | HubError::Format { .. } => CliError::Hub { message },
        _ => CliError::Network { message },
    }
}
