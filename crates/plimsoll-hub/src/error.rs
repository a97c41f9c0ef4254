//! Why a model could not be fetched. Each message ends in the cure.

use std::path::PathBuf;

use plimsoll_formats::FormatError;

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text after `hf:` names no repository.
    #[error(
        "`{text}` names no hub repository: {reason}; write hf:org/name, hf:org/name@revision or \
         hf:org/name:FILE"
    )]
    Reference {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// A setting that cannot be used.
    #[error("{setting} is `{value}`; accepted: {accepted}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        accepted: &'static str,
    },

    /// No connection to the hub.
    #[error(
        "cannot reach {host}: {reason}; check the network and HF_ENDPOINT, or give a local folder or file instead"
    )]
    NoNetwork {
        /// The server.
        host: String,
        /// What the system says.
        reason: String,
    },

    /// No answer in time.
    #[error(
        "{host} did not answer within {seconds} s; try again, or give a local folder or file instead"
    )]
    Timeout {
        /// The server.
        host: String,
        /// The limit.
        seconds: u64,
    },

    /// The hub wants to know who asks.
    #[error(
        "{repo} is private, gated, or does not exist (the hub answers 401): check the name; if it is right, set \
         HF_TOKEN to a token with read access (https://huggingface.co/settings/tokens)"
    )]
    Unauthorized {
        /// The repository.
        repo: String,
    },

    /// The hub knows who asks and says no.
    #[error(
        "no access to {repo} (the hub answers 403): accept its conditions on its web page, and set HF_TOKEN to a \
         token of that account"
    )]
    Forbidden {
        /// The repository.
        repo: String,
    },

    /// No such repository.
    #[error("the hub has no repository {repo}; check the spelling of organisation and name")]
    RepoNotFound {
        /// The repository.
        repo: String,
    },

    /// No such revision.
    #[error(
        "{repo} has no revision `{revision}`; give a branch, tag or commit that it has, such as main"
    )]
    RevisionNotFound {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
    },

    /// No such file.
    #[error("{repo} has no file `{file}` at revision {revision}")]
    FileNotFound {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// The revision.
        revision: String,
    },

    /// Nothing in it that is a model.
    #[error(
        "{repo} holds no model that can be read: no config.json, safetensors, GGUF or torch weights at its top; \
         name a file with hf:{repo}:FILE"
    )]
    NoModel {
        /// The repository.
        repo: String,
    },

    /// Several models, and no choice between them.
    #[error(
        "{repo} offers several GGUF models: {candidates}; choose one, as in hf:{repo}:{example}"
    )]
    Ambiguous {
        /// The repository.
        repo: String,
        /// Their names.
        candidates: String,
        /// One of them.
        example: String,
    },

    /// Offline, and not in a cache.
    #[error(
        "HF_HUB_OFFLINE is set and {what} of {repo} is in no cache (looked in {places}); unset it, or run once online"
    )]
    Offline {
        /// The repository.
        repo: String,
        /// What was wanted.
        what: String,
        /// The caches.
        places: String,
    },

    /// A web page where a file was expected.
    #[error(
        "{url} answers with a web page instead of the file; a proxy or a login page may be in the way: check the \
         network, HF_ENDPOINT and HF_TOKEN"
    )]
    WebPage {
        /// The address.
        url: String,
    },

    /// An answer that ended early.
    #[error("{url} broke off after {got} of {expected} bytes; try again")]
    Truncated {
        /// The address.
        url: String,
        /// Bytes that came.
        got: u64,
        /// Bytes that were announced.
        expected: u64,
    },

    /// An answer larger than what is accepted for its kind.
    #[error("{url} has {bytes} bytes, at most {limit} are accepted for it")]
    TooLarge {
        /// The address.
        url: String,
        /// Its size, as far as known.
        bytes: u64,
        /// The limit.
        limit: u64,
    },

    /// A range that the server will not give.
    #[error(
        "{url} refuses the range {range} (its answer: {answer}); the file may have changed, try again"
    )]
    Range {
        /// The address.
        url: String,
        /// What was asked.
        range: String,
        /// The status or header that came back.
        answer: String,
    },

    /// Too many requests.
    #[error(
        "{host} asks to slow down (429); wait some minutes, or set HF_TOKEN for a higher limit"
    )]
    RateLimited {
        /// The server.
        host: String,
    },

    /// Any other answer.
    #[error("{url} answers {status}; try again later, or check HF_ENDPOINT")]
    Status {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },

    /// Anything else between here and the server.
    #[error("{url}: {reason}")]
    Protocol {
        /// The address.
        url: String,
        /// What went wrong.
        reason: String,
    },

    /// A file that came whole and is wrong.
    #[error("{file} of {repo}: {source}")]
    Format {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// What is wrong with it.
        source: Box<FormatError>,
    },

    /// A file in a cache that could not be read.
    #[error("cannot read {}: {reason}", path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
}

impl HubError {
    /// Whether the network is at fault, so that a cached copy may stand in.
    pub(crate) fn is_network(&self) -> bool {
        matches!(self, HubError::NoNetwork { .. } | HubError::Timeout { .. })
    }

    /// Whether the same request may succeed a moment later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            HubError::Status { status, .. } => matches!(status, 500 | 502 | 503 | 504),
            HubError::Truncated { .. } | HubError::NoNetwork { .. } => true,
            _ => false,
        }
    }
}
