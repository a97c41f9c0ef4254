//! Quantities as requests write them: sizes with units, fractions in thousandths, release numbers.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use plimsoll_estimate::request::Version;
use plimsoll_units::{Bytes, DType, ParseBytesError, ParseDTypeError};
use serde::{Deserialize, Serialize};

/// A size: an integer number of bytes, or a text with a unit such as `19GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub Bytes);

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<'a> {
            Number(u64),
            Text(Cow<'a, str>),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(n) => Ok(Size(Bytes::new(n))),
            Either::Text(text) => text.parse().map(Size).map_err(serde::de::Error::custom),
        }
    }
}

/// An element type by name: `bf16`, `q8_0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dtype(pub DType);

impl FromStr for Dtype {
    type Err = ParseDTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Dtype)
    }
}

impl FromStr for Size {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Size)
    }
}

/// A share of something, kept in thousandths; written as a decimal between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    /// Thousandths.
    pub permille: u64,
}

/// A text that is not a fraction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a fraction; write a decimal above 0 and up to 1, such as 0.9")]
pub struct ParseFractionError {
    /// What was given.
    pub text: String,
}

impl FromStr for Fraction {
    type Err = ParseFractionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseFractionError { text: text.to_owned() };
        let value: f64 = text.trim().parse().map_err(|_| fail())?;
        Fraction::from_f64(value).ok_or_else(fail)
    }
}

impl Fraction {
    /// Rounds to the nearest thousandth; `None` outside (0, 1].
    pub fn from_f64(value: f64) -> Option<Fraction> {
        let permille = (value * 1000.0).round();
        (1.0..=1000.0).contains(&permille).then_some(Fraction { permille: permille as u64 })
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:03}", self.permille % 1000);
        let digits = digits.trim_end_matches('0');
        let digits = if digits.is_empty() { "0" } else { digits };
        f.pad(&format!("{}.{digits}", self.permille / 1000))
    }
}

impl Serialize for Fraction {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.permille as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Fraction::from_f64(value)
            .ok_or_else(|| serde::de::Error::custom(ParseFractionError { text: value.to_string() }))
    }
}

/// A release as engines write it: `0.19.1`, `v0.8`, or a llama.cpp build `b5050`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Dotted numbers.
    Version(Version),
    /// A build number.
    Build(u64),
}

/// A text that is not a release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a release; write 0.19.1 for vLLM and SGLang, b5050 for llama.cpp")]
pub struct ParseReleaseError {
    /// What was given.
    pub text: String,
}

impl FromStr for Release {
    type Err = ParseReleaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseReleaseError { text: text.to_owned() };
        let trimmed = text.trim();
        if let Some(build) = trimmed.strip_prefix(['b', 'B']) {
            return build.parse().map(Release::Build).map_err(|_| fail());
        }
        let mut parts = [0u64; 3];
        let numbers = trimmed.strip_prefix(['v', 'V']).unwrap_or(trimmed);
        // "0.8.5.post1" and "0.9.0rc2" count as 0.8.5 and 0.9.0.
        for (i, part) in numbers.split('.').enumerate() {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            if i < 3 {
                parts[i] = part[..digits].parse().map_err(|_| fail())?;
            }
        }
        Ok(Release::Version(Version { major: parts[0], minor: parts[1], patch: parts[2] }))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Release::Version(v) => f.pad(&format!("{}.{}.{}", v.major, v.minor, v.patch)),
            Release::Build(n) => f.pad(&format!("b{n}")),
        }
    }
}

impl Serialize for Release {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Release {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads a count of tokens, sequences or layers: `4096`, `32k` (x 1024), `1m` (x 1024 x 1024), `1_000`.
///
/// # Errors
///
/// A sentence that says what is accepted.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let fail =
        || format!("`{text}` is not a count; write a whole number such as 4096, or 32k for 32768");
    let trimmed = text.trim().replace('_', "");
    let (digits, scale) = match trimmed.to_ascii_lowercase().strip_suffix(['k', 'm']) {
        Some(digits) if trimmed.ends_with(['k', 'K']) => (digits.to_owned(), 1024),
        Some(digits) => (digits.to_owned(), 1024 * 1024),
        None => (trimmed, 1),
    };
    let n: u64 = digits.parse().map_err(|_| fail())?;
    n.checked_mul(scale).ok_or_else(fail)
}

#[cfg(feature = "schema")]
mod schema {
    use super::{DType, Dtype, Fraction, Release, Size};
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use std::borrow::Cow;

    impl JsonSchema for Size {
        fn schema_name() -> Cow<'static, str> {
            "Size".into()
        }
        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "Bytes, or a text with a unit such as `19GiB`.",
                "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }],
            })
        }
    }

    impl JsonSchema for Dtype {
        fn schema_name() -> Cow<'static, str> {
            "Dtype".into()
        }
        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            json_schema!({ "type": "string", "description": "An element type; other spellings of torch, safetensors and ggml are read too.", "examples": names })
        }
    }

    impl JsonSchema for Fraction {
        fn schema_name() -> Cow<'static, str> {
            "Fraction".into()
        }
        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 })
        }
    }

    impl JsonSchema for Release {
        fn schema_name() -> Cow<'static, str> {
            "Release".into()
        }
        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "string", "description": "A release, such as `0.19.1` or `b5050`." })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_as_people_write_them() {
        for (text, n) in [("4096", 4096), ("32k", 32768), ("1M", 1 << 20), ("1_000", 1000)] {
            assert_eq!(parse_count(text), Ok(n), "{text}");
        }
        for bad in ["", "k", "-1", "1.5k", "4 096", "99999999999999999999", "18446744073709551615k"]
        {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn releases_read_and_print() {
        for (text, printed) in [
            ("0.19.1", "0.19.1"),
            ("v0.8", "0.8.0"),
            ("b5050", "b5050"),
            ("0.8.5.post1", "0.8.5"),
            ("0.9.0rc2", "0.9.0"),
        ] {
            assert_eq!(text.parse::<Release>().unwrap().to_string(), printed, "{text}");
        }
        for bad in ["", "latest", "b", "v", "0..1"] {
            assert!(bad.parse::<Release>().is_err(), "{bad}");
        }
    }

    #[test]
    fn fractions_are_thousandths() {
        for (text, permille, printed) in
            [("0.9", 900, "0.9"), ("0.925", 925, "0.925"), ("1", 1000, "1.0")]
        {
            let fraction = text.parse::<Fraction>().unwrap();
            assert_eq!((fraction.permille, fraction.to_string().as_str()), (permille, printed));
        }
        for bad in ["0", "1.1", "-0.5", "nan", "inf", "x", ""] {
            assert!(bad.parse::<Fraction>().is_err(), "{bad}");
        }
    }
}
