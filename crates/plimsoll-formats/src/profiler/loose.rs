//! Fields of a trace's events, which have one type in memory events and any type elsewhere.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A number; nothing where it is something else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Number {
    #[default]
    None,
    Integer(i128),
    Float(f64),
}

impl Number {
    pub(super) fn integer(self) -> Option<i64> {
        match self {
            Number::Integer(n) => i64::try_from(n).ok(),
            // Writers of other languages write whole numbers with a point.
            Number::Float(x) if x.fract() == 0.0 && x.abs() < 9e15 => Some(x as i64),
            _ => None,
        }
    }

    pub(super) fn count(self) -> u64 {
        match self {
            Number::Integer(n) => u64::try_from(n).unwrap_or(0),
            other => other.integer().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        }
    }

    /// Microseconds as nanoseconds.
    pub(super) fn nanoseconds(self) -> i64 {
        match self {
            Number::None => 0,
            Number::Integer(n) => i64::try_from(n.saturating_mul(1000)).unwrap_or(i64::MAX),
            // Saturates, and NaN is 0.
            Number::Float(x) => (x * 1000.0).round() as i64,
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_i64<E>(self, n: i64) -> Result<Number, E> {
                Ok(Number::Integer(n.into()))
            }
            fn visit_u64<E>(self, n: u64) -> Result<Number, E> {
                Ok(Number::Integer(n.into()))
            }
            fn visit_f64<E>(self, x: f64) -> Result<Number, E> {
                Ok(Number::Float(x))
            }
            fn visit_str<E>(self, text: &str) -> Result<Number, E> {
                Ok(text.parse().map_or(Number::None, Number::Integer))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
                Ok(Number::None)
            }
            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number::None)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Number, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Number::None)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Number, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Number::None)
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// Text; empty where it is something else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text(pub(super) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<Text, E> {
                Ok(Text(text))
            }
            fn visit_i64<E>(self, n: i64) -> Result<Text, E> {
                Ok(Text(n.to_string()))
            }
            fn visit_u64<E>(self, n: u64) -> Result<Text, E> {
                Ok(Text(n.to_string()))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Text, E> {
                Ok(Text::default())
            }
            fn visit_bool<E>(self, _: bool) -> Result<Text, E> {
                Ok(Text::default())
            }
            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }
        }
        deserializer.deserialize_any(Visit)
    }
}
