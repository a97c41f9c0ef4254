//! Option values that are words: `adamw8bit`, `bf16-mixed`, `every:4`. One table per option holds the word, its
//! other spellings, the value and the sentence that help texts, references and error messages print, so that
//! command line, JSON and documentation cannot drift apart.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One row of an option's table.
#[derive(Debug)]
pub struct Word<T: 'static> {
    /// Canonical spelling.
    pub name: &'static str,
    /// Other accepted spellings.
    pub aliases: &'static [&'static str],
    /// One line for people.
    pub help: &'static str,
    /// What it stands for.
    pub value: T,
}

/// A type whose values are written as words.
pub trait OptionValue: Sized + PartialEq + Clone + 'static {
    /// What the option sets, for messages: `optimizer`.
    const WHAT: &'static str;
    /// The fixed words.
    fn words() -> &'static [Word<Self>];
    /// Forms that carry a number or a list, as `(form, help)`: `("every:K", "...")`.
    const FORMS: &'static [(&'static str, &'static str)] = &[];
    /// Reads a form that carries a number or a list.
    fn read_form(_text: &str) -> Option<Self> {
        None
    }
    /// Writes a value that has no fixed word.
    fn write_form(&self) -> String {
        String::new()
    }
}

/// A text that is not one of an option's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a known {what}; accepted: {accepted}")]
pub struct ParseChoiceError {
    /// What the option sets.
    pub what: &'static str,
    /// What was given.
    pub text: String,
    /// The accepted words and forms, comma-separated.
    pub accepted: String,
}

/// An [`OptionValue`] as it stands in requests: reads and prints its word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<T>(pub T);

impl<T: OptionValue> Choice<T> {
    /// The canonical text of the value.
    pub fn text(&self) -> Cow<'static, str> {
        match T::words().iter().find(|w| w.value == self.0) {
            Some(word) => Cow::Borrowed(word.name),
            None => Cow::Owned(self.0.write_form()),
        }
    }

    /// Every accepted word and form, comma-separated.
    pub fn accepted() -> String {
        let words = T::words().iter().map(|w| w.name);
        words.chain(T::FORMS.iter().map(|f| f.0)).collect::<Vec<_>>().join(", ")
    }
}

impl<T: OptionValue> FromStr for Choice<T> {
    type Err = ParseChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase();
        T::words()
            .iter()
            .find(|w| w.name == wanted || w.aliases.contains(&wanted.as_str()))
            .map(|w| w.value.clone())
            .or_else(|| T::read_form(text.trim()))
            .map(Choice)
            .ok_or_else(|| ParseChoiceError {
                what: T::WHAT,
                text: text.to_owned(),
                accepted: Self::accepted(),
            })
    }
}

impl<T: OptionValue> fmt::Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl<T: OptionValue> Serialize for Choice<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de, T: OptionValue> Deserialize<'de> for Choice<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl<T: OptionValue> schemars::JsonSchema for Choice<T> {
    fn schema_name() -> Cow<'static, str> {
        Cow::Owned(T::WHAT.split_whitespace().map(capitalized).collect())
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let words = T::words();
        if T::FORMS.is_empty() {
            let names: Vec<_> = words.iter().map(|w| w.name).collect();
            return schemars::json_schema!({ "type": "string", "enum": names });
        }
        schemars::json_schema!({
            "type": "string",
            "description": format!("One of: {}.", Self::accepted()),
        })
    }
}

#[cfg(feature = "schema")]
fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}
