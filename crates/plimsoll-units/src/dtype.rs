//! Element types, sub-byte and block-quantized ones included. A type is a block: so many elements in so many
//! bytes. Scales and indices that a format stores with the weights belong to the block.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Bytes;

macro_rules! dtypes {
    ($($variant:ident, $name:literal, $elements:literal, $bytes:literal, [$($alias:literal),*], $doc:literal;)*) => {
        /// How one element, or one block of elements, is stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum DType { $(#[doc = $doc] $variant,)* }

        impl DType {
            /// Every type, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The canonical name, as reports print it and [`DType::from_str`] reads it.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Elements in one block; 1 for plain types.
            pub const fn block_elements(self) -> u64 {
                match self { $(DType::$variant => $elements,)* }
            }

            /// Bytes of one block, scales included.
            pub const fn block_bytes(self) -> u64 {
                match self { $(DType::$variant => $bytes,)* }
            }

            const fn aliases(self) -> &'static [&'static str] {
                match self { $(DType::$variant => &[$($alias),*],)* }
            }
        }
    };
}

dtypes! {
    F64, "f64", 1, 8, ["float64", "double", "fp64"], "IEEE double.";
    F32, "f32", 1, 4, ["float32", "float", "fp32"], "IEEE single.";
    Bf16, "bf16", 1, 2, ["bfloat16"], "bfloat16.";
    F16, "f16", 1, 2, ["float16", "half", "fp16"], "IEEE half.";
    F8E4M3, "f8_e4m3", 1, 1, ["fp8", "f8", "float8_e4m3fn", "float8_e4m3", "fp8_e4m3", "e4m3", "f8_e4m3fnuz", "float8_e4m3fnuz"], "8-bit float, 4 exponent bits.";
    F8E5M2, "f8_e5m2", 1, 1, ["float8_e5m2", "fp8_e5m2", "e5m2", "f8_e5m2fnuz", "float8_e5m2fnuz"], "8-bit float, 5 exponent bits.";
    F8E8M0, "f8_e8m0", 1, 1, ["float8_e8m0fnu", "e8m0"], "8-bit power-of-two scale.";
    F6E2M3, "f6_e2m3", 4, 3, ["e2m3"], "6-bit float, 2 exponent bits, four packed in three bytes.";
    F6E3M2, "f6_e3m2", 4, 3, ["e3m2"], "6-bit float, 3 exponent bits, four packed in three bytes.";
    F4E2M1, "f4_e2m1", 2, 1, ["f4", "fp4", "float4_e2m1", "e2m1"], "4-bit float, two packed in a byte; scales are separate tensors.";
    C64, "c64", 1, 8, ["complex64"], "Two singles.";
    C128, "c128", 1, 16, ["complex128"], "Two doubles.";
    I64, "i64", 1, 8, ["int64", "long"], "Signed 64-bit integer.";
    I32, "i32", 1, 4, ["int32", "int"], "Signed 32-bit integer.";
    I16, "i16", 1, 2, ["int16", "short"], "Signed 16-bit integer.";
    I8, "i8", 1, 1, ["int8"], "Signed 8-bit integer.";
    U64, "u64", 1, 8, ["uint64"], "Unsigned 64-bit integer.";
    U32, "u32", 1, 4, ["uint32"], "Unsigned 32-bit integer.";
    U16, "u16", 1, 2, ["uint16"], "Unsigned 16-bit integer.";
    U8, "u8", 1, 1, ["uint8", "byte"], "Unsigned 8-bit integer.";
    Bool, "bool", 1, 1, ["boolean"], "One byte per flag, as torch stores it.";
    Int8Row, "int8_row", 1, 1, ["llm.int8", "llm_int8"], "LLM.int8 weight; the row scales are separate tensors.";
    Nf4, "nf4", 64, 36, ["bnb-nf4", "fp4-bnb"], "4-bit NormalFloat, one f32 scale per 64 (bitsandbytes; QLoRA paper, arXiv 2305.14314).";
    Nf4Dq, "nf4_dq", 16384, 8452, ["nf4-dq", "bnb-nf4-dq"], "NF4 with double quantization: 8-bit scale per 64, f32 scale per 256 of those (arXiv 2305.14314, section 3).";
    Int4G128, "int4_g128", 1024, 532, ["gptq", "awq", "int4", "w4a16"], "4-bit integer in groups of 128: f16 scale and 4-bit zero point per group (GPTQ/AWQ packing).";
    Int8G128, "int8_g128", 128, 131, ["gptq-int8"], "8-bit integer in groups of 128: f16 scale and 8-bit zero point per group.";
    Int4G32, "int4_g32", 256, 145, ["w4a16_g32"], "4-bit integer in groups of 32: f16 scale and 4-bit zero point per group.";
    Mxfp4, "mxfp4", 32, 17, ["mx-fp4"], "OCP MXFP4: 32 elements share one 8-bit power-of-two scale.";
    Mxfp8, "mxfp8", 32, 33, ["mx-fp8"], "OCP MXFP8: 32 elements share one 8-bit power-of-two scale.";
    Nvfp4, "nvfp4", 16, 9, ["nv-fp4"], "NVFP4: 16 elements share one e4m3 scale; the per-tensor f32 scale is separate.";
    Q4_0, "q4_0", 32, 18, [], "ggml block: f16 scale and 32 nibbles.";
    Q4_1, "q4_1", 32, 20, [], "ggml block: f16 scale and minimum, 32 nibbles.";
    Q5_0, "q5_0", 32, 22, [], "ggml block of 5-bit values.";
    Q5_1, "q5_1", 32, 24, [], "ggml block of 5-bit values with minimum.";
    Q8_0, "q8_0", 32, 34, [], "ggml block: f16 scale and 32 bytes.";
    Q8_1, "q8_1", 32, 36, [], "ggml block: two f16 and 32 bytes.";
    Q2K, "q2_k", 256, 84, [], "ggml super-block of 2-bit values.";
    Q3K, "q3_k", 256, 110, [], "ggml super-block of 3-bit values.";
    Q4K, "q4_k", 256, 144, [], "ggml super-block of 4-bit values.";
    Q5K, "q5_k", 256, 176, [], "ggml super-block of 5-bit values.";
    Q6K, "q6_k", 256, 210, [], "ggml super-block of 6-bit values.";
    Q8K, "q8_k", 256, 292, [], "ggml super-block of 8-bit values.";
    Iq2Xxs, "iq2_xxs", 256, 66, [], "ggml 2.06-bit grid.";
    Iq2Xs, "iq2_xs", 256, 74, [], "ggml 2.31-bit grid.";
    Iq2S, "iq2_s", 256, 82, [], "ggml 2.56-bit grid.";
    Iq3Xxs, "iq3_xxs", 256, 98, [], "ggml 3.06-bit grid.";
    Iq3S, "iq3_s", 256, 110, [], "ggml 3.44-bit grid.";
    Iq1S, "iq1_s", 256, 50, [], "ggml 1.56-bit grid.";
    Iq1M, "iq1_m", 256, 56, [], "ggml 1.75-bit grid.";
    Iq4Nl, "iq4_nl", 32, 18, [], "ggml non-linear 4-bit block.";
    Iq4Xs, "iq4_xs", 256, 136, [], "ggml non-linear 4.25-bit super-block.";
    Tq1_0, "tq1_0", 256, 54, [], "ggml ternary, 1.69 bits.";
    Tq2_0, "tq2_0", 256, 66, [], "ggml ternary, 2.06 bits.";
}

impl DType {
    /// Bytes of `elements` values laid out in whole blocks (the last one padded), saturating.
    ///
    /// ```
    /// use plimsoll_units::{Bytes, DType};
    /// assert_eq!(DType::Q8_0.bytes(4096), Bytes::new(4352));
    /// assert_eq!(DType::Bf16.bytes(3), Bytes::new(6));
    /// ```
    pub const fn bytes(self, elements: u64) -> Bytes {
        Bytes::new(elements.div_ceil(self.block_elements()).saturating_mul(self.block_bytes()))
    }

    /// Whether elements are stored one by one, without shared scales.
    pub const fn is_plain(self) -> bool {
        self.block_elements() == 1
    }

    /// Whether this is a floating-point type that autograd can differentiate.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::Bf16 | DType::F16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an element type; known ones include f32, bf16, f16, fp8, int8, nf4, q8_0, q4_k, mxfp4, nvfp4"
)]
pub struct ParseDTypeError {
    /// What was given.
    pub text: String,
}

impl FromStr for DType {
    type Err = ParseDTypeError;

    /// Reads canonical names and the spellings of torch, safetensors and ggml, in any case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase();
        let wanted = wanted.strip_prefix("torch.").unwrap_or(&wanted);
        DType::ALL
            .iter()
            .copied()
            .find(|d| d.name() == wanted || d.aliases().contains(&wanted))
            .ok_or_else(|| ParseDTypeError { text: text.to_owned() })
    }
}

impl Serialize for DType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_is_unique() {
        for (i, d) in DType::ALL.iter().enumerate() {
            assert_eq!(d.name().parse::<DType>().as_ref(), Ok(d));
            for alias in d.aliases() {
                assert_eq!(alias.parse::<DType>().as_ref(), Ok(d), "{alias}");
            }
            assert!(DType::ALL[..i].iter().all(|o| o.name() != d.name()));
        }
        assert!("float7".parse::<DType>().is_err());
    }

    #[test]
    fn bits_per_weight_match_the_published_layouts() {
        // Millibits per element over a whole number of blocks.
        for (dtype, millibits) in [
            (DType::Q4_0, 4_500),
            (DType::Q8_0, 8_500),
            (DType::Q4K, 4_500),
            (DType::Q6K, 6_562),
            (DType::Nf4, 4_500),
            (DType::Nf4Dq, 4_126),
            (DType::Mxfp4, 4_250),
            (DType::Nvfp4, 4_500),
            (DType::Int4G128, 4_156),
        ] {
            assert_eq!(dtype.block_bytes() * 8_000 / dtype.block_elements(), millibits, "{dtype}");
        }
    }
}
