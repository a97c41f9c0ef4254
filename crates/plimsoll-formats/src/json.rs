//! JSON, more strictly than `serde_json` reads it by default: a key that appears twice is an error. Config
//! files come from Python, whose writer emits `NaN` and `Infinity`; these become null here, in place, so that
//! columns in messages stay true but for `NaN`, which is one character shorter than `null`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::FormatError;
use crate::error::shown;

/// Reads one JSON object of at most `limit` bytes.
pub(crate) fn object(
    section: &'static str,
    bytes: &[u8],
    limit: u64,
) -> Result<Map<String, Value>, FormatError> {
    let text = text(section, bytes, limit)?;
    let text = without_non_finite(text);
    let mut reader = serde_json::Deserializer::from_str(&text);
    let value = Strict.deserialize(&mut reader).map_err(|e| error(section, &e))?;
    reader.end().map_err(|e| error(section, &e))?;
    match value {
        Value::Object(map) => Ok(map),
        other => Err(FormatError::Json {
            section,
            line: 1,
            column: 1,
            reason: format!("found {}, a JSON object in braces is accepted", kind(&other)),
        }),
    }
}

/// The bytes as text, without a byte order mark.
pub(crate) fn text<'a>(
    section: &'static str,
    bytes: &'a [u8],
    limit: u64,
) -> Result<&'a str, FormatError> {
    let length = bytes.len() as u64;
    if length > limit {
        return Err(FormatError::TooLarge { section, what: "a length of", value: length, limit });
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|e| FormatError::NotUtf8 { section, offset: e.valid_up_to() as u64 })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let first = text.trim_start();
    let hint = if first.is_empty() {
        "the file is empty; fetch it again"
    } else if first.starts_with('<') {
        "this is an HTML page, not JSON; fetch the raw file instead of its web page"
    } else if first.starts_with("version https://git-lfs") {
        "this is a Git LFS pointer, not the file; run `git lfs pull` in its folder"
    } else {
        return Ok(text);
    };
    Err(FormatError::Json { section, line: 1, column: 1, reason: hint.to_owned() })
}

pub(crate) fn error(section: &'static str, e: &serde_json::Error) -> FormatError {
    // serde_json appends the position to its text; the position has fields of its own here.
    let text = e.to_string();
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
    FormatError::Json {
        section,
        line: e.line() as u64,
        column: e.column() as u64,
        reason: shown(reason),
    }
}

/// What a JSON value is, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Replaces the words NaN, Infinity and -Infinity outside strings.
fn without_non_finite(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let (mut copied, mut at, mut in_string) = (0, 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'N' | b'I' | b'-' if !in_string => {
                let word = [("NaN", "null"), ("Infinity", "null    "), ("-Infinity", "null     ")];
                if let Some((word, null)) =
                    word.iter().find(|(word, _)| bytes[at..].starts_with(word.as_bytes()))
                {
                    out.push_str(&text[copied..at]);
                    out.push_str(null);
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// Builds a [`Value`], refusing repeated keys.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let name = shown(&key);
                return Err(A::Error::custom(format_args!(
                    "the key `{name}` appears twice in one object; remove one"
                )));
            }
            let value = entries.next_value_seed(Strict)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_numbers_become_null_outside_strings() {
        let text = r#"{"a": [0.0, Infinity], "b\"NaN": "NaN -Infinity", "c": -Infinity, "d": NaN, "e": -1}"#;
        let map = object("config.json", text.as_bytes(), 1000).unwrap();
        assert_eq!(
            Value::Object(map).to_string(),
            r#"{"a":[0.0,null],"b\"NaN":"NaN -Infinity","c":null,"d":null,"e":-1}"#
        );
    }

    #[test]
    fn says_where_and_why() {
        for (text, message) in [
            ("", "config.json, line 1, column 1: the file is empty; fetch it again"),
            (
                "[1]",
                "config.json, line 1, column 1: found an array, a JSON object in braces is accepted",
            ),
            (
                "{\"a\": 1,\n \"a\": 2}",
                "config.json, line 2, column 4: the key `a` appears twice in one object; remove one",
            ),
            ("{\"a\": 1,}", "config.json, line 1, column 9: trailing comma"),
            ("{\"a\": 1} x", "config.json, line 1, column 10: trailing characters"),
            (
                "<!doctype html>",
                "config.json, line 1, column 1: this is an HTML page, not JSON; fetch the raw file instead of its web page",
            ),
        ] {
            let error = object("config.json", text.as_bytes(), 1000).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert!(object("x", b"{\"\xff\": 1}", 1000).unwrap_err().to_string().contains("UTF-8"));
        assert!(object("x", &[b' '; 20], 10).unwrap_err().to_string().contains("at most 10"));
        let deep = format!("{}{}", "{\"a\":".repeat(5000), "[".repeat(5000));
        assert!(
            object("x", deep.as_bytes(), 100_000).unwrap_err().to_string().contains("recursion")
        );
    }
}
