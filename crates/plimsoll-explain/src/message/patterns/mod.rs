//! The messages that are recognised, by framework. Texts are facts of the named versions; `source` is a repository
//! and file where the statement that prints them was read, or an issue (`owner/name#number`) that quotes a log.
//! `recalled` marks texts that are general knowledge and were not read again.

mod compilers;
mod ggml;
mod host;
mod serving;
mod torch;

use super::table::Pattern;

/// Every message, framework by framework.
pub fn all() -> impl Iterator<Item = &'static Pattern> {
    [torch::TORCH, host::HOST, serving::SERVING, ggml::GGML, compilers::COMPILERS]
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_are_complete_and_apart() {
        let mut keys = BTreeSet::new();
        for pattern in all() {
            assert!(keys.insert(pattern.key), "{} stands twice", pattern.key);
            assert!(pattern.trigger.len() >= 4, "{}: the trigger is too short", pattern.key);
            assert!(!pattern.source.is_empty(), "{}: no source", pattern.key);
            assert!(!pattern.versions.is_empty(), "{}: no versions", pattern.key);
            for field in pattern.fields {
                assert!(!(field.before.is_empty() && field.after.is_empty()), "{}", pattern.key);
            }
        }
    }
}
