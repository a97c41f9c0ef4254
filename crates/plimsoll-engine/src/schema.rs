//! The JSON schemas of request and response, for the generated references.

use schemars::{Schema, schema_for};

/// The schema of [`Request`](crate::Request).
pub fn request() -> Schema {
    schema_for!(crate::Request)
}

/// The schema of [`Response`](crate::Response).
pub fn response() -> Schema {
    schema_for!(crate::Response)
}
