//! The header of a safetensors file: eight bytes of length, then a JSON object that gives each tensor's element
//! type, shape and byte range. The header alone is needed, so a range request of a few kilobytes is enough to
//! measure a model of any size. Weights are never touched.
//!
//! The format: <https://huggingface.co/docs/safetensors>. Checked here: the length's cap, UTF-8, unique names,
//! known fields, sizes equal to shape times element type, and byte ranges that follow each other without
//! overlap or hole up to the end of the file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{Read, Seek};

use plimsoll_units::{Bytes, DType};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::{shown, shown_bytes};
use crate::source::Source;
use crate::{Diagnostic, FormatError, TensorInfo, json, sniff};

/// Longest header that is accepted; the format's own limit.
pub const MAX_HEADER_LEN: u64 = 100_000_000;
/// Most dimensions of a tensor; torch and numpy stop at 64.
pub const MAX_RANK: usize = 64;
/// Bytes of the length in front of the header.
pub const PREFIX_LEN: u64 = 8;

const SECTION: &str = "safetensors header";

/// What a header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SafetensorsHeader {
    /// Bytes before the first tensor: the length and the header.
    pub data_offset: u64,
    /// The tensors in the order of their bytes.
    pub tensors: Vec<TensorInfo>,
    /// The free text under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// What was noticed.
    pub diagnostics: Vec<Diagnostic>,
}

impl SafetensorsHeader {
    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> Bytes {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Elements of all tensors as stored, saturating. For packed formats (GPTQ, bitsandbytes) this is less
    /// than the number of parameters.
    pub fn elements(&self) -> u64 {
        self.tensors.iter().fold(0, |n, t| n.saturating_add(t.elements()))
    }
}

/// The length of the header, from the first eight bytes of a file.
///
/// # Errors
///
/// [`FormatError::TooLarge`] beyond [`MAX_HEADER_LEN`], [`FormatError::WrongMagic`] where the bytes are those of
/// another kind of file.
///
/// ```
/// use plimsoll_formats::safetensors::header_len;
/// assert_eq!(header_len(&[0x40, 0x01, 0, 0, 0, 0, 0, 0]), Ok(320));
/// assert!(header_len(b"GGUF\x03\0\0\0").unwrap_err().to_string().contains("GGUF"));
/// ```
pub fn header_len(first: &[u8; 8]) -> Result<u64, FormatError> {
    let length = u64::from_le_bytes(*first);
    let kind = sniff::file_kind(first);
    // A zip's signature reads as a length of some 67 MB, within the cap; no header has exactly that.
    if (2..=MAX_HEADER_LEN).contains(&length) && kind != Some(sniff::FileKind::Zip) {
        return Ok(length);
    }
    if kind.is_some() {
        return Err(FormatError::WrongMagic {
            format: "safetensors",
            found: shown_bytes(first),
            hint: sniff::hint(first).to_owned(),
        });
    }
    if length > MAX_HEADER_LEN {
        let (what, limit) = ("a length of", MAX_HEADER_LEN);
        return Err(FormatError::TooLarge { section: SECTION, what, value: length, limit });
    }
    Err(FormatError::invalid(SECTION, "header", "length", length, "at least 2, for `{}`"))
}

/// Reads the header from `prefix`, the first bytes of a file, which must hold the whole header and may hold
/// more. `file_len` is the length of the whole file where it is known; the tensors must then end exactly there.
///
/// # Errors
///
/// [`FormatError::Truncated`] states how many bytes are needed where `prefix` is too short; the other variants
/// name what is wrong with the header.
pub fn parse_prefix(
    prefix: &[u8],
    file_len: Option<u64>,
) -> Result<SafetensorsHeader, FormatError> {
    let available = prefix.len() as u64;
    let Some((first, rest)) = prefix.split_first_chunk::<8>() else {
        let (offset, end) = (0, PREFIX_LEN);
        return Err(FormatError::Truncated { section: SECTION, offset, end, available });
    };
    let length = header_len(first)?;
    match usize::try_from(length).ok().and_then(|n| rest.get(..n)) {
        Some(header) => parse_header(header, file_len),
        None => {
            let (offset, end) = (PREFIX_LEN, PREFIX_LEN + length);
            Err(FormatError::Truncated { section: SECTION, offset, end, available })
        }
    }
}

/// Reads the header of a whole file.
///
/// # Errors
///
/// As [`parse_prefix`], and [`FormatError::Io`].
pub fn read(reader: impl Read + Seek) -> Result<SafetensorsHeader, FormatError> {
    let mut source = Source::new(reader, SECTION, None)?;
    let file_len = source.left_in_file();
    let length = header_len(&source.array(SECTION)?)?;
    let header = source.bytes(SECTION, length)?;
    parse_header(&header, Some(file_len))
}

/// Reads a header: the bytes behind the length, exactly as many as it says. `file_len` as in [`parse_prefix`].
///
/// # Errors
///
/// See [`parse_prefix`].
pub fn parse_header(
    header: &[u8],
    file_len: Option<u64>,
) -> Result<SafetensorsHeader, FormatError> {
    let length = header.len() as u64;
    let text = json::text(SECTION, header, MAX_HEADER_LEN)?;
    if !text.starts_with('{') {
        return Err(FormatError::WrongMagic {
            format: "safetensors",
            found: shown_bytes(header),
            hint: "its header should begin with `{`; check the path, or fetch the file again"
                .to_owned(),
        });
    }
    let raw: RawHeader = serde_json::from_str(text).map_err(|e| json::error(SECTION, &e))?;
    let data_offset = PREFIX_LEN + length;
    let mut out = SafetensorsHeader { data_offset, metadata: raw.metadata, ..Default::default() };

    let mut names = HashSet::with_capacity(raw.tensors.len());
    for (name, _) in &raw.tensors {
        if !names.insert(name.as_str()) {
            return Err(FormatError::Duplicate { section: SECTION, name: shown(name) });
        }
    }
    drop(names);
    for (name, tensor) in raw.tensors {
        out.tensors.push(check_tensor(name, tensor, data_offset, &mut out.diagnostics)?);
    }
    // A stable sort: empty tensors at the same offset keep the header's order.
    out.tensors.sort_by_key(|t| (t.offset, t.bytes));
    check_layout(&out.tensors, data_offset, file_len)?;
    Ok(out)
}

/// Checks one entry by itself, and makes its range absolute.
fn check_tensor(
    name: String,
    raw: RawTensor<'_>,
    data_offset: u64,
    diagnostics: &mut Vec<Diagnostic>,
) -> Result<TensorInfo, FormatError> {
    let invalid = |field, found: String, accepted: String| {
        Err(FormatError::invalid(SECTION, &name, field, found, accepted))
    };
    let (begin, end) = raw.data_offsets;
    if raw.shape.len() > MAX_RANK {
        return invalid("rank", raw.shape.len().to_string(), format!("at most {MAX_RANK}"));
    }
    let Some(size) = end.checked_sub(begin) else {
        return invalid("data_offsets", format!("[{begin}, {end}]"), "begin <= end".to_owned());
    };
    let Some(offset) = data_offset.checked_add(begin) else {
        return invalid(
            "data_offsets",
            format!("[{begin}, {end}]"),
            "offsets below 2^64".to_owned(),
        );
    };
    let Some(elements) = raw.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)) else {
        return invalid("shape", format!("{:?}", raw.shape), "a product below 2^64".to_owned());
    };
    let (dtype, type_name) = match DTYPES.iter().find(|(known, _)| *known == raw.dtype) {
        Some((known, dtype)) => (Some(*dtype), Cow::Borrowed(*known)),
        None => (None, Cow::Owned(shown(&raw.dtype))),
    };
    match dtype {
        Some(dtype) => {
            let whole = elements.is_multiple_of(dtype.block_elements());
            let expected = (elements / dtype.block_elements()).checked_mul(dtype.block_bytes());
            if !whole || expected != Some(size) {
                let accepted = match expected {
                    Some(bytes) if whole => {
                        format!("{bytes}, for shape {:?} of {}", raw.shape, raw.dtype)
                    }
                    _ => format!("whole bytes below 2^64, shape {:?} has not", raw.shape),
                };
                return invalid("a size in bytes of", size.to_string(), accepted);
            }
        }
        None => diagnostics.push(Diagnostic::UnknownElementType {
            tensor: shown(&name),
            found: type_name.to_string(),
        }),
    }
    Ok(TensorInfo { name, shape: raw.shape, dtype, type_name, offset, bytes: Bytes::new(size) })
}

/// Checks that the tensors, sorted by offset, tile the file.
fn check_layout(
    tensors: &[TensorInfo],
    data_offset: u64,
    file_len: Option<u64>,
) -> Result<(), FormatError> {
    let mut end = data_offset;
    let mut first: Option<&TensorInfo> = None;
    for tensor in tensors {
        if tensor.offset < end {
            return Err(FormatError::Overlap {
                section: SECTION,
                first: shown(first.map_or("the header", |t| &t.name)),
                end,
                second: shown(&tensor.name),
                begin: tensor.offset,
            });
        }
        if tensor.offset > end {
            let (found, accepted) = (tensor.offset, format!("{end}, where the one before ends"));
            return Err(FormatError::invalid(
                SECTION,
                &tensor.name,
                "an offset of",
                found,
                accepted,
            ));
        }
        end = end.saturating_add(tensor.bytes.get());
        first = Some(tensor);
    }
    match file_len {
        Some(length) if end > length => Err(FormatError::Truncated {
            section: "safetensors data",
            offset: data_offset,
            end,
            available: length,
        }),
        Some(length) if end < length => Err(FormatError::invalid(
            SECTION,
            first.map_or("header", |t| &t.name),
            "as last an end of",
            end,
            format!("{length}, the end of the file"),
        )),
        _ => Ok(()),
    }
}

/// Element types of the format, as the header spells them.
const DTYPES: &[(&str, DType)] = &[
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::Bf16),
    ("F8_E4M3", DType::F8E4M3),
    ("F8_E4M3FNUZ", DType::F8E4M3),
    ("F8_E5M2", DType::F8E5M2),
    ("F8_E5M2FNUZ", DType::F8E5M2),
    ("F8_E8M0", DType::F8E8M0),
    ("F6_E2M3", DType::F6E2M3),
    ("F6_E3M2", DType::F6E3M2),
    ("F4", DType::F4E2M1),
    ("C64", DType::C64),
    ("I64", DType::I64),
    ("I32", DType::I32),
    ("I16", DType::I16),
    ("I8", DType::I8),
    ("U64", DType::U64),
    ("U32", DType::U32),
    ("U16", DType::U16),
    ("U8", DType::U8),
    ("BOOL", DType::Bool),
];

/// The header as JSON has it, entries in the order of the text.
#[derive(Default)]
struct RawHeader<'a> {
    tensors: Vec<(String, RawTensor<'a>)>,
    metadata: BTreeMap<String, String>,
}

struct RawTensor<'a> {
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut header = RawHeader::default();
                let mut seen_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        header.tensors.push((name, map.next_value()?));
                        continue;
                    }
                    if seen_metadata {
                        return Err(A::Error::custom("the key `__metadata__` appears twice"));
                    }
                    seen_metadata = true;
                    // Writers have put null here; it says nothing, so it is read as nothing.
                    header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for RawTensor<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = RawTensor<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut dtype, mut shape, mut data_offsets) = (None, None, None);
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    let repeated = match key.as_ref() {
                        "dtype" => dtype.replace(map.next_value()?).is_some(),
                        "shape" => shape.replace(map.next_value()?).is_some(),
                        "data_offsets" => data_offsets.replace(map.next_value()?).is_some(),
                        _ => map.next_value::<IgnoredAny>().map(|_| false)?,
                    };
                    if repeated {
                        let name = shown(&key);
                        return Err(A::Error::custom(format_args!(
                            "the key `{name}` appears twice in one tensor"
                        )));
                    }
                }
                let missing = A::Error::missing_field;
                Ok(RawTensor {
                    dtype: dtype.ok_or_else(|| missing("dtype"))?,
                    shape: shape.ok_or_else(|| missing("shape"))?,
                    data_offsets: data_offsets.ok_or_else(|| missing("data_offsets"))?,
                })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(tensors: &str) -> Result<SafetensorsHeader, FormatError> {
        parse_header(format!("{{{tensors}}}").as_bytes(), None)
    }

    #[test]
    fn reads_tensors_in_the_order_of_their_bytes() {
        let text = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},
            "a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},
            "s":{"shape":[],"data_offsets":[32,33],"dtype":"U8"},
            "n":{"dtype":"F4","shape":[0,7],"data_offsets":[33,33],"later":{"x":[1]}}}    "#;
        let data_offset = 8 + text.len() as u64;
        let header = parse_header(text.as_bytes(), Some(data_offset + 33)).unwrap();
        let names: Vec<_> = header.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "s", "n"]);
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(header.tensor_bytes(), Bytes::new(33));
        assert_eq!(header.elements(), 4 + 6 + 1);
        assert_eq!(header.tensors[1].offset, data_offset + 8);
        assert_eq!(header.tensors[0].dtype, Some(DType::Bf16));
        assert!(header.diagnostics.is_empty());
    }

    #[test]
    fn an_unknown_element_type_keeps_its_bytes() {
        let header = header(r#""a":{"dtype":"P3","shape":[5],"data_offsets":[0,7]}"#).unwrap();
        assert_eq!((header.tensors[0].dtype, header.tensors[0].bytes), (None, Bytes::new(7)));
        assert!(header.diagnostics[0].to_string().contains("P3"));
    }

    #[test]
    fn refuses_what_contradicts_itself() {
        for (tensors, message) in [
            (
                r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}"#,
                "accepted: 8, for shape [2] of F32",
            ),
            (r#""a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}"#, "whole bytes"),
            (r#""a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#, "begin <= end"),
            (
                r#""a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}"#,
                "product below 2^64",
            ),
            (
                r#""a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}"#,
                "below 2^64",
            ),
            (
                r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
                "`b` begins at byte",
            ),
            (
                r#""a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#,
                "where the one before ends",
            ),
            (
                r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#,
                "`a` appears twice",
            ),
            (
                r#""a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}"#,
                "`dtype` appears twice",
            ),
            (r#""a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#, "line 1, column"),
            (r#""a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}"#, "line 1, column"),
            (r#""a":{"dtype":"F32","data_offsets":[0,4]}"#, "missing field `shape`"),
            (
                r#""a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}"#,
                "offsets below 2^64",
            ),
            (r#""__metadata__":{},"__metadata__":{}"#, "appears twice"),
            (r#""__metadata__":{"x":1}"#, "line 1, column"),
            (r#""a":1"#, "an object with dtype"),
        ] {
            let error = header(tensors).unwrap_err().to_string();
            assert!(error.contains(message), "{tensors}\n{error}");
        }
        let ranks =
            format!(r#""a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}"#, "1,".repeat(64));
        assert!(header(&ranks).unwrap_err().to_string().contains("at most 64"));
    }

    #[test]
    fn a_prefix_says_how_much_more_it_needs() {
        let mut file = 52u64.to_le_bytes().to_vec();
        file.extend_from_slice(br#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}"#);
        file[0] = file.len() as u8 - 8 + 1;
        file.push(b'}');
        let whole = file.len() as u64;
        for n in 0..file.len() {
            match parse_prefix(&file[..n], None) {
                Err(FormatError::Truncated { end, .. }) => {
                    assert_eq!(end, if n < 8 { 8 } else { whole });
                }
                other => panic!("{n}: {other:?}"),
            }
        }
        assert!(parse_prefix(&file, Some(whole + 4)).is_ok());
        let error = parse_prefix(&file, Some(whole + 3)).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{error}");
        let error = parse_prefix(&file, Some(whole + 5)).unwrap_err().to_string();
        assert!(error.contains("the end of the file"), "{error}");
    }

    #[test]
    fn other_files_are_named() {
        for (first, message) in [
            (*b"PK\x03\x04\0\0\0\0", "zip archive"),
            (*b"<!docty>", "web page"),
            (*b"version ", "at most 100000000"),
            ([0; 8], "at least 2"),
            ([0xff; 8], "at most 100000000"),
        ] {
            let error = header_len(&first).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
