//! Reading the data files that are compiled in. They are part of the program, so a file that does not parse is a
//! defect that the tests catch, never something a user can cause.

use serde::de::DeserializeOwned;

/// The parsed file. Panics with the file's name where it does not fit its type; every file has a test that reads it.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, name: &str) -> T {
    match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => panic!("embedded data file {name} is malformed: {error}"),
    }
}
