//! Requests that cannot be estimated because they contradict the model or the machine. What is merely doubtful is
//! a [`Diagnostic`](crate::Diagnostic) of the estimate instead.

/// Why there is no estimate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// A value that the request may not have.
    #[error("{field} is {value}, but {accepted}; {cure}")]
    Invalid {
        /// The field of the request.
        field: &'static str,
        /// What it was.
        value: String,
        /// What would be accepted and why.
        accepted: String,
        /// What to do.
        cure: String,
    },
    /// A model that the engine cannot run, or that lacks what the estimate needs.
    #[error("{engine} cannot run `{family}`: {reason}; {cure}")]
    UnsupportedModel {
        /// The engine.
        engine: &'static str,
        /// The model family.
        family: String,
        /// What is missing.
        reason: String,
        /// What to do.
        cure: String,
    },
}
