//! Everything that can be wrong with a request, by whose fault it is. Faces map [`EngineError::kind`] to exit
//! codes and HTTP statuses in one place each.

use std::fmt;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The request is not valid JSON of the schema.
    #[error("the request is not valid: {0}")]
    Request(#[from] serde_json::Error),

    /// The schema is of another version.
    #[error("schema `{found}` is not supported; this version reads `{accepted}`")]
    Schema {
        /// What was given.
        found: String,
        /// What is read.
        accepted: &'static str,
    },

    /// Neither a model nor data was given.
    #[error("no model was given")]
    NoModel,

    /// No machine was given.
    #[error("no GPU was given")]
    NoMachine,

    /// The catalogue has no such model.
    #[error("model `{name}` is not in the catalogue")]
    UnknownModel {
        /// What was given.
        name: String,
        /// The nearest names, best first.
        nearest: Vec<String>,
    },

    /// The machine text is wrong; the message says how.
    #[error("{message}")]
    Machine {
        /// From the catalogue.
        message: String,
    },

    /// A model file or configuration cannot be used.
    #[error("{name}: {message}")]
    ModelInput {
        /// File, folder or name.
        name: String,
        /// What is wrong, what is accepted and the cure.
        message: String,
    },

    /// A value of the request is out of range or contradicts another.
    #[error("{option}: {message}")]
    Value {
        /// The option, such as `--tp`.
        option: String,
        /// What is wrong and what is accepted.
        message: String,
    },

    /// The combination is not modelled.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// What was asked.
        what: String,
        /// Why there is no answer.
        reason: String,
    },

    /// An input to be explained holds no line that is known.
    #[error("{name}: {lines} read, and none says anything of memory that is known")]
    NothingKnown {
        /// The input.
        name: String,
        /// How many lines were read.
        lines: String,
        /// How many messages were looked for.
        messages: usize,
        /// Whose messages.
        frameworks: String,
    },

    /// An input to be explained is of another kind.
    #[error("{name} is {what}, not a log")]
    NotExplained {
        /// The input.
        name: String,
        /// What it is.
        what: String,
        /// What to do instead.
        cure: &'static str,
    },

    /// The estimate exceeded 2^64 bytes.
    #[error("the sizes in this request multiply to more than 8 EiB")]
    TooLarge,
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is malformed, contradictory or out of range.
    Usage,
    /// The model is unknown, or its files cannot be used.
    Model,
    /// The machine is unknown or impossible.
    Machine,
    /// Valid, but not modelled.
    Unsupported,
    /// The input holds nothing that is known.
    Nothing,
}

impl EngineError {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EngineError::Request(_)
            | EngineError::Schema { .. }
            | EngineError::NoModel
            | EngineError::NoMachine
            | EngineError::Value { .. }
            | EngineError::TooLarge => ErrorKind::Usage,
            EngineError::UnknownModel { .. } | EngineError::ModelInput { .. } => ErrorKind::Model,
            EngineError::Machine { .. } => ErrorKind::Machine,
            EngineError::Unsupported { .. } => ErrorKind::Unsupported,
            EngineError::NothingKnown { .. } | EngineError::NotExplained { .. } => {
                ErrorKind::Nothing
            }
        }
    }

    /// What to do about it, where the message does not say.
    pub fn hint(&self) -> Option<String> {
        match self {
            EngineError::NoModel => Some("name a model, a file or a folder; `plimsoll models` lists the catalogue".into()),
            EngineError::NoMachine => Some(
                "give --gpu h100-80g, --gpu 'rtx-4090*2' or --gpu 24GiB; `plimsoll gpus` lists the catalogue, --all-gpus tries every one"
                    .into(),
            ),
            EngineError::UnknownModel { nearest, .. } if nearest.is_empty() => Some(
                "`plimsoll models` lists the catalogue; a folder, a config.json, a .safetensors, .gguf or .pt file, or hf:org/name work as well"
                    .into(),
            ),
            EngineError::UnknownModel { nearest, .. } => Some(format!(
                "did you mean {}? For a model of the Hugging Face hub write hf:org/name",
                nearest.join(", ")
            )),
            EngineError::NothingKnown { messages, frameworks, .. } => Some(format!(
                "looked for {messages} messages of {frameworks}; give the part of the log with the error, from the first traceback on, with stderr in it (2>&1)"
            )),
            EngineError::NotExplained { cure, .. } => Some((*cure).to_owned()),
            EngineError::TooLarge => Some("check batch, sequence and context: one of them is too large by far".into()),
            _ => None,
        }
    }

    pub(crate) fn value(option: impl Into<String>, message: impl fmt::Display) -> Self {
        EngineError::Value { option: option.into(), message: message.to_string() }
    }
}
