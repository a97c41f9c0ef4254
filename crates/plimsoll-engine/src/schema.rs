//! The JSON schemas of requests and responses, for the generated references.

use schemars::{Schema, schema_for};

/// The schema of [`Request`](crate::Request).
pub fn request() -> Schema {
    schema_for!(crate::Request)
}

/// The schema of [`Response`](crate::Response).
pub fn response() -> Schema {
    schema_for!(crate::Response)
}

/// The schema of [`Explanation`](crate::Explanation).
pub fn explanation() -> Schema {
    schema_for!(crate::Explanation)
}

/// The schema of [`ReplayResponse`](crate::ReplayResponse).
pub fn replay() -> Schema {
    schema_for!(crate::ReplayResponse)
}

/// The schema of [`DiffResponse`](crate::DiffResponse).
pub fn diff() -> Schema {
    schema_for!(crate::DiffResponse)
}
