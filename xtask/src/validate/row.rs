//! Tolerant access to one measured row. A row is a JSON object under the field names of the measured cases; numbers may
//! be written as text, anything may be null or missing.

use serde_json::{Map, Value};

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    map: Map<String, Value>,
}

impl Row {
    /// The row in `value`, if it is an object.
    pub fn new(value: &Value) -> Option<Row> {
        value.as_object().map(|map| Row { map: map.clone() })
    }

    /// The field as it stands; null counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// The whole row as JSON.
    pub fn value(&self) -> Value {
        Value::Object(self.map.clone())
    }

    /// The field as text; numbers and flags are written out.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(words)
    }

    /// The field as lower-case text, empty where absent.
    pub fn lower(&self, key: &str) -> String {
        self.text(key).unwrap_or_default().to_ascii_lowercase()
    }

    /// The field as a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key).and_then(number)
    }

    /// The field as a whole number.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(whole)
    }

    /// Puts a field in place of what was there.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.map.insert(key.to_owned(), value.into());
    }
}

/// Any scalar as text; a list is joined with commas.
pub fn words(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        Value::Bool(b) => Some(b.to_string()),
        Value::Array(list) => Some(list.iter().filter_map(words).collect::<Vec<_>>().join(",")),
        _ => None,
    }
}

/// A number, written as one or as text.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => s.trim().replace('_', "").parse().ok(),
        _ => None,
    }
    .filter(|n: &f64| n.is_finite())
}

/// A whole number, written as one, as `4096.0` or as text.
pub fn whole(value: &Value) -> Option<u64> {
    number(value).filter(|n| *n >= 0.0 && *n < 9.0e15 && n.fract() == 0.0).map(|n| n as u64)
}

/// A flag; words such as `true` and `yes` count.
pub fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(b) => Some(*b),
        Value::Number(n) => n.as_f64().map(|n| n != 0.0),
        Value::String(s) => match s.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "none" | "0" | "" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// The whole number that follows `key` in `text`, past blanks, `=`, `:` and `_`: `seq 4096`, `micro batch 2`, `FSDP4`.
/// `4k` counts as 4096.
pub fn after(text: &str, key: &str) -> Option<u64> {
    let mut from = 0;
    while let Some(found) = text[from..].find(key) {
        let start = from + found;
        let end = start + key.len();
        from = end;
        let before = text[..start].chars().next_back();
        if before.is_some_and(|c| c.is_ascii_alphanumeric()) {
            continue;
        }
        let rest = text[end..].trim_start_matches([' ', '=', ':', '_', '-']);
        if let Some(number) = leading(rest) {
            return Some(number);
        }
    }
    None
}

/// The whole number that stands before `key`: `8 GPUs`, `32 layers`, `1079 tokens`.
pub fn before(text: &str, key: &str) -> Option<u64> {
    text.match_indices(key).find_map(|(at, _)| {
        let head = text[..at].trim_end_matches([' ', '-']);
        let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
        head[start..].parse().ok()
    })
}

fn leading(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let tail = &text[end..];
    let thousands = tail.starts_with('k') || tail.starts_with('K');
    Some(if thousands { number.saturating_mul(1024) } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_text() {
        for (text, key, expected) in [
            ("seq 4096, full ac, local batch 64, fsdp4 tp8", "seq", Some(4096)),
            ("seq 4096, full ac, local batch 64, fsdp4 tp8", "local batch", Some(64)),
            ("seq 4096, full ac, local batch 64, fsdp4 tp8", "fsdp", Some(4)),
            ("devices in yaml=4, x", "devices in yaml", Some(4)),
            ("max_seq 8k", "max_seq", Some(8192)),
            ("batch", "batch", None),
            ("minibatch 3, batch 2", "batch", Some(2)),
        ] {
            assert_eq!(after(text, key), expected, "{text} {key}");
        }
        assert_eq!(before("on 8 gpus", "gpu"), Some(8));
        assert_eq!(before("a gpu", "gpu"), None);
    }
}
