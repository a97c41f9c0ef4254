//! The one place that turns outcomes and errors into text, hint and exit code.

use std::io;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use plimsoll_engine::{EngineError, ErrorKind, Verdict};

/// How the program ends. The numbers are a promise to scripts; the table in `docs/reference/exit-codes.md` is made
/// from this enum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It fits, or another command did what it was asked.
    Success,
    /// It does not fit, or is likely not to.
    DoesNotFit,
    /// The command line or request is wrong.
    Usage,
    /// The model is unknown, or its files cannot be used.
    Model,
    /// The model hub could not be reached, refused, or is switched off.
    Network,
    /// The GPU is unknown or impossible.
    Machine,
    /// The request is valid, but Plimsoll has no model of it yet.
    Unsupported,
    /// The result could not be written.
    Output,
    /// An input to be explained holds nothing that is known.
    Nothing,
}

impl Exit {
    /// Every code with its meaning, in order.
    pub const ALL: [(Exit, &'static str); 9] = [
        (
            Exit::Success,
            "it fits (the estimate is within the capacity), or the command did what it was asked",
        ),
        (
            Exit::DoesNotFit,
            "it does not fit: the estimate exceeds the capacity, or an engine could not start",
        ),
        (
            Exit::Usage,
            "the command line or the request is wrong: an unknown option, a value out of range, a contradiction",
        ),
        (
            Exit::Model,
            "the model is unknown, or a file is missing, unreadable, damaged or contradictory",
        ),
        (
            Exit::Network,
            "the model hub could not be reached, refused the request, or is switched off by HF_HUB_OFFLINE",
        ),
        (Exit::Machine, "the GPU is unknown, or its count, slice or free memory is impossible"),
        (
            Exit::Unsupported,
            "the request is valid, but this combination of model and workload is not modelled",
        ),
        (Exit::Output, "the result could not be written; a closed pipe is not an error"),
        (
            Exit::Nothing,
            "`plimsoll explain`: the input was read, and nothing in it is known, or it is of another kind",
        ),
    ];

    /// The number that the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::DoesNotFit => 1,
            Exit::Usage => 2,
            Exit::Model => 3,
            Exit::Network => 4,
            Exit::Machine => 5,
            Exit::Unsupported => 6,
            Exit::Output => 7,
            Exit::Nothing => 8,
        }
    }

    /// The exit of a verdict.
    pub fn of(verdict: Verdict) -> Exit {
        if verdict.fits() { Exit::Success } else { Exit::DoesNotFit }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// Everything that can end a command early.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The engine refused the request.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The combination of options is wrong.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// The cure.
        hint: Option<String>,
    },
    /// A file or folder cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// What was to be read.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// The hub has no such model, or one that is damaged.
    #[error("{message}")]
    Hub {
        /// What is wrong, with the cure.
        message: String,
    },
    /// The hub could not be reached, or refused.
    #[error("{message}")]
    Network {
        /// What happened, with the cure.
        message: String,
    },
    /// The result cannot be written.
    #[error("cannot write {what}: {error}")]
    Write {
        /// Where to.
        what: String,
        /// What the system says.
        error: io::Error,
    },
}

impl CliError {
    /// A usage error with a cure.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        CliError::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// How the program ends.
    pub fn exit(&self) -> Exit {
        match self {
            CliError::Engine(error) => match error.kind() {
                ErrorKind::Usage => Exit::Usage,
                ErrorKind::Model => Exit::Model,
                ErrorKind::Machine => Exit::Machine,
                ErrorKind::Unsupported => Exit::Unsupported,
                ErrorKind::Nothing => Exit::Nothing,
            },
            CliError::Usage { .. } => Exit::Usage,
            CliError::Read { .. } | CliError::Hub { .. } => Exit::Model,
            CliError::Network { .. } => Exit::Network,
            CliError::Write { .. } => Exit::Output,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            CliError::Engine(error) => error.hint(),
            CliError::Usage { hint, .. } => hint.clone(),
            CliError::Read { error, .. } if error.kind() == io::ErrorKind::NotFound => {
                Some("check the path".to_owned())
            }
            CliError::Read { .. }
            | CliError::Write { .. }
            | CliError::Hub { .. }
            | CliError::Network { .. } => None,
        }
    }

    /// Whether the reader of our output went away, which is its right.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Write { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

const ERROR: Style = AnsiColor::Red.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Prints an error and its hint to stderr and says how to end.
pub fn report(error: &CliError) -> Exit {
    if error.is_broken_pipe() {
        return Exit::Success;
    }
    anstream::eprintln!("{ERROR}error{ERROR:#}: {error}");
    if let Some(hint) = error.hint() {
        anstream::eprintln!("{HINT}hint{HINT:#}: {hint}");
    }
    error.exit()
}
