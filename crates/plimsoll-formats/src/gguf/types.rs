//! ggml's element types by the number that GGUF files store. A type is a block of so many elements in so many
//! bytes; some types of ik_llama.cpp add a few bytes to each row.
//!
//! Sources: ggml `ggml_type` and its block structures (llama.cpp, gguf-py 0.19.0, 2026-11) for numbers below 96;
//! ik_llama.cpp commit 8337e4c (2026-08-15), `ggml.h`, `ggml.c` type traits and `ggml-common.h`, for the others.
//! Numbers that forks have given a second meaning keep the meaning of mainline; [`super::read`] then finds that
//! sizes and offsets disagree and says so.

use plimsoll_units::{Bytes, DType};

/// An element type of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlType {
    /// The number in the file.
    pub id: u32,
    /// ggml's name for it.
    pub name: &'static str,
    /// Elements in one block.
    pub block_elements: u64,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Bytes that each row (the innermost dimension) adds to its blocks.
    pub row_bytes: u64,
    /// The same type in [`DType`], where it is there.
    pub dtype: Option<DType>,
}

/// Microsoft BitNet's I2_S packs four elements in a byte and adds 32 bytes per tensor, whatever its rows.
const I2_S: u32 = 36;

impl GgmlType {
    /// The type with this number.
    ///
    /// ```
    /// use plimsoll_formats::gguf::GgmlType;
    /// assert_eq!(GgmlType::by_id(12).map(|t| t.name), Some("q4_K"));
    /// assert_eq!(GgmlType::by_id(5), None);
    /// ```
    pub fn by_id(id: u32) -> Option<&'static GgmlType> {
        TYPES.binary_search_by_key(&id, |t| t.id).ok().and_then(|i| TYPES.get(i))
    }

    /// Bytes of a tensor with `row` elements in its innermost dimension and `rows` rows. `None` where a row is
    /// not a whole number of blocks, or the size exceeds 2^64.
    pub fn bytes(&self, row: u64, rows: u64) -> Option<Bytes> {
        if self.id == I2_S {
            return row.checked_mul(rows)?.div_ceil(4).checked_add(32).map(Bytes::new);
        }
        if !row.is_multiple_of(self.block_elements) {
            return None;
        }
        let row_bytes = (row / self.block_elements)
            .checked_mul(self.block_bytes)?
            .checked_add(self.row_bytes)?;
        row_bytes.checked_mul(rows).map(Bytes::new)
    }
}

/// A type that [`DType`] has: its block is taken from there.
const fn shared(id: u32, name: &'static str, dtype: DType) -> GgmlType {
    GgmlType {
        id,
        name,
        block_elements: dtype.block_elements(),
        block_bytes: dtype.block_bytes(),
        row_bytes: 0,
        dtype: Some(dtype),
    }
}

/// A type of its own.
const fn own(
    id: u32,
    name: &'static str,
    block_elements: u64,
    block_bytes: u64,
    row_bytes: u64,
) -> GgmlType {
    GgmlType { id, name, block_elements, block_bytes, row_bytes, dtype: None }
}

/// Sorted by number.
#[rustfmt::skip]
pub(super) const TYPES: &[GgmlType] = &[
    shared(0, "f32", DType::F32),
    shared(1, "f16", DType::F16),
    shared(2, "q4_0", DType::Q4_0),
    shared(3, "q4_1", DType::Q4_1),
    shared(6, "q5_0", DType::Q5_0),
    shared(7, "q5_1", DType::Q5_1),
    shared(8, "q8_0", DType::Q8_0),
    shared(9, "q8_1", DType::Q8_1),
    shared(10, "q2_K", DType::Q2K),
    shared(11, "q3_K", DType::Q3K),
    shared(12, "q4_K", DType::Q4K),
    shared(13, "q5_K", DType::Q5K),
    shared(14, "q6_K", DType::Q6K),
    shared(15, "q8_K", DType::Q8K),
    shared(16, "iq2_xxs", DType::Iq2Xxs),
    shared(17, "iq2_xs", DType::Iq2Xs),
    shared(18, "iq3_xxs", DType::Iq3Xxs),
    shared(19, "iq1_s", DType::Iq1S),
    shared(20, "iq4_nl", DType::Iq4Nl),
    shared(21, "iq3_s", DType::Iq3S),
    shared(22, "iq2_s", DType::Iq2S),
    shared(23, "iq4_xs", DType::Iq4Xs),
    shared(24, "i8", DType::I8),
    shared(25, "i16", DType::I16),
    shared(26, "i32", DType::I32),
    shared(27, "i64", DType::I64),
    shared(28, "f64", DType::F64),
    shared(29, "iq1_m", DType::Iq1M),
    shared(30, "bf16", DType::Bf16),
    own(31, "q4_0_4_4", 32, 18, 0),
    own(32, "q4_0_4_8", 32, 18, 0),
    own(33, "q4_0_8_8", 32, 18, 0),
    shared(34, "tq1_0", DType::Tq1_0),
    shared(35, "tq2_0", DType::Tq2_0),
    own(I2_S, "i2_s", 1, 1, 0),
    own(37, "iq4_nl_4_8", 32, 18, 0),
    own(38, "iq4_nl_8_8", 32, 18, 0),
    shared(39, "mxfp4", DType::Mxfp4),
    GgmlType { id: 40, name: "nvfp4", block_elements: 64, block_bytes: 36, row_bytes: 0, dtype: Some(DType::Nvfp4) },
    own(41, "q1_0", 128, 18, 0),
    own(42, "q2_0", 64, 18, 0),
    own(97, "q8_0_x4", 32, 34, 0),
    own(98, "q8_1_x4", 32, 36, 0),
    own(99, "q8_2_x4", 32, 36, 0),
    own(133, "q6_0", 32, 26, 0),
    own(134, "iq1_bn", 64, 13, 2),
    own(135, "iq2_bn", 64, 16, 4),
    own(136, "q8_K64", 64, 68, 0),
    own(137, "iq2_k", 256, 76, 0),
    own(138, "iq3_k", 256, 110, 0),
    own(139, "iq4_k", 256, 144, 0),
    own(140, "iq5_k", 256, 176, 0),
    own(141, "iq6_k", 256, 212, 0),
    own(144, "iq4_ks", 256, 136, 4),
    own(145, "iq2_ks", 256, 70, 2),
    own(146, "iq4_kss", 256, 128, 4),
    own(147, "q8_K16", 64, 64, 20),
    own(148, "q8_K32", 256, 296, 0),
    own(149, "q8_KR8", 256, 296, 0),
    own(150, "q8_K128", 128, 140, 0),
    own(151, "q8_KV", 32, 32, 8),
    own(152, "iq5_ks", 256, 168, 4),
    own(153, "iq2_kt", 256, 68, 4),
    own(154, "iq3_kt", 256, 100, 4),
    own(155, "iq4_kt", 256, 128, 4),
    own(156, "iq3_ks", 256, 102, 2),
    own(157, "iq2_kl", 256, 86, 2),
    own(158, "iq1_kt", 256, 56, 4),
    own(202, "q4_0_r8", 32, 18, 0),
    own(206, "q5_0_r4", 32, 22, 0),
    own(208, "q8_0_r8", 32, 34, 0),
    own(210, "q2_k_r4", 256, 84, 0),
    own(211, "q3_k_r4", 256, 110, 0),
    own(212, "q4_k_r4", 256, 144, 0),
    own(213, "q5_k_r4", 256, 176, 0),
    own(214, "q6_k_r4", 256, 210, 0),
    own(216, "iq2_xxs_r4", 256, 66, 0),
    own(217, "iq2_xs_r4", 256, 74, 0),
    own(218, "iq3_xxs_r4", 256, 98, 0),
    own(219, "iq1_s_r4", 32, 6, 2),
    own(220, "iq4_nl_r4", 32, 18, 0),
    own(221, "iq3_s_r4", 256, 110, 0),
    own(222, "iq2_s_r4", 256, 82, 0),
    own(223, "iq4_xs_r8", 256, 136, 0),
    own(229, "iq1_m_r4", 32, 7, 2),
    own(230, "bf16_r16", 1, 2, 0),
    own(233, "q6_0_r4", 32, 26, 0),
    own(335, "iq2_bn_r4", 64, 16, 4),
    own(337, "iq2_k_r4", 256, 76, 0),
    own(338, "iq3_k_r4", 256, 110, 0),
    own(339, "iq4_k_r4", 256, 144, 0),
    own(340, "iq5_k_r4", 256, 176, 0),
    own(344, "iq4_ks_r4", 256, 136, 4),
    own(352, "iq5_ks_r4", 256, 168, 4),
    own(353, "mxfp4_r8", 32, 17, 0),
    own(397, "q8_k_r16", 256, 258, 0),
    own(398, "q8_KV_r8", 32, 32, 4),
    own(399, "q8_k_r8", 256, 258, 0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_type_is_found() {
        assert!(TYPES.windows(2).all(|pair| pair[0].id < pair[1].id));
        for t in TYPES {
            assert_eq!(GgmlType::by_id(t.id), Some(t));
        }
    }

    #[test]
    fn sizes_by_type() {
        for (id, row, rows, bytes) in [
            (12, 4096, 4096, Some(4096 * 4096 / 256 * 144)),
            (144, 4096, 4096, Some(4096 * (4096 / 256 * 136 + 4))),
            (36, 2560, 640, Some(2560 * 640 / 4 + 32)),
            (40, 64, 1, Some(36)),
            (12, 100, 1, None),
            (0, u64::MAX, 2, None),
        ] {
            let found = GgmlType::by_id(id).unwrap().bytes(row, rows);
            assert_eq!(found, bytes.map(Bytes::new), "type {id}");
        }
    }
}
