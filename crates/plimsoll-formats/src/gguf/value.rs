//! Metadata of a GGUF file: typed values by key, and getters that say no instead of guessing.

use std::collections::BTreeMap;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// u8, u16, u32 or u64.
    Unsigned(u64),
    /// i8, i16, i32 or i64.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// Text.
    Text(String),
    /// A list.
    Array(Array),
}

/// A list in the metadata. Long lists, such as a tokenizer's words, are counted and not kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// How many elements the file has.
    pub len: u64,
    /// The elements, where the list was short enough to keep.
    pub items: Option<Vec<Value>>,
}

/// Typed metadata, sorted by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub(super) BTreeMap<String, Value>);

impl FromIterator<(String, Value)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(pairs: I) -> Self {
        Metadata(pairs.into_iter().collect())
    }
}

impl Metadata {
    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// All pairs, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A count: any integer type that is not negative.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    /// A number, integers included.
    pub fn f64(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(x) => Some(*x),
            Value::Unsigned(n) => Some(*n as f64),
            Value::Signed(n) => Some(*n as f64),
            _ => None,
        }
    }

    /// A flag.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// How many elements the list under `key` has, kept or not.
    pub fn array_len(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Array(array) => Some(array.len),
            _ => None,
        }
    }

    /// Counts: a list of them, or one as a list of one. `None` where an element is not a count, or the list was
    /// too long to keep.
    pub fn u64_list(&self, key: &str) -> Option<Vec<u64>> {
        match self.get(key)? {
            Value::Array(array) => array.items.as_ref()?.iter().map(Value::as_u64).collect(),
            one => Some(vec![one.as_u64()?]),
        }
    }

    /// Flags: a list of them, stored as booleans or as integers.
    pub fn bool_list(&self, key: &str) -> Option<Vec<bool>> {
        let flag = |value: &Value| match value {
            Value::Bool(b) => Some(*b),
            other => other.as_u64().map(|n| n != 0),
        };
        match self.get(key)? {
            Value::Array(array) => array.items.as_ref()?.iter().map(flag).collect(),
            one => Some(vec![flag(one)?]),
        }
    }

    /// A count for each of `layers` layers: a list of that length, or one count that holds for all. `None`
    /// where the list has another length.
    pub fn per_layer(&self, key: &str, layers: usize) -> Option<Vec<u64>> {
        match self.get(key)? {
            Value::Array(_) => self.u64_list(key).filter(|list| list.len() == layers),
            one => one.as_u64().map(|n| vec![n; layers]),
        }
    }
}

impl Value {
    /// The value as a count.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn getters_say_no_instead_of_guessing() {
        let list =
            |items: Vec<Value>| Value::Array(Array { len: items.len() as u64, items: Some(items) });
        let metadata = Metadata(BTreeMap::from([
            ("n".to_owned(), Value::Unsigned(8)),
            ("i".to_owned(), Value::Signed(-1)),
            ("heads".to_owned(), list(vec![Value::Signed(8), Value::Unsigned(0)])),
            ("words".to_owned(), Value::Array(Array { len: 128_256, items: None })),
            ("swa".to_owned(), list(vec![Value::Bool(true), Value::Unsigned(0)])),
        ]));
        assert_eq!(metadata.u64("n"), Some(8));
        assert_eq!(metadata.u64("i"), None);
        assert_eq!(metadata.u64_list("heads"), Some(vec![8, 0]));
        assert_eq!(metadata.u64_list("words"), None);
        assert_eq!(metadata.array_len("words"), Some(128_256));
        assert_eq!(metadata.per_layer("heads", 2), Some(vec![8, 0]));
        assert_eq!(metadata.per_layer("heads", 3), None);
        assert_eq!(metadata.per_layer("n", 3), Some(vec![8, 8, 8]));
        assert_eq!(metadata.bool_list("swa"), Some(vec![true, false]));
        assert_eq!(metadata.f64("n"), Some(8.0));
    }
}
