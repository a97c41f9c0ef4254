//! Weights with zeros: how they are stored where products skip the zeros, and what training keeps to hold them at zero.

use plimsoll_units::{Bytes, DType};

/// Which weights of the linear layers are zero, and how the others are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sparsity {
    /// Two of four consecutive weights of a row are zero.
    TwoFour,
    /// The smallest weights of each matrix are zero, wherever they are.
    TopK {
        /// The share that is zero, in thousandths.
        zeros_permille: u64,
        /// How the places of the others are stored.
        index: SparseIndex,
    },
}

/// Where the values of an unstructured sparse matrix belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SparseIndex {
    /// One bit per element.
    Bitmap,
    /// Compressed rows: a 16-bit column per value, a 32-bit offset per row.
    Csr16,
    /// Compressed rows: a 32-bit column per value, a 32-bit offset per row.
    Csr32,
    /// Compressed rows as `torch.sparse_csr` has them: 64-bit columns and offsets.
    Csr64,
}

impl Sparsity {
    /// Bytes of a matrix of `rows` rows and `elements` elements.
    ///
    /// 2:4 is what cuSPARSELt compresses to and `torch.sparse.to_sparse_semi_structured` allocates: half of the values
    /// and a 2-bit place for each, 9/16 of the dense matrix in 16 and 32 bits, 10/16 in 8 bits
    /// (aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp, `compression_factor`).
    ///
    /// ```
    /// use plimsoll_estimate::request::{SparseIndex, Sparsity};
    /// use plimsoll_units::DType;
    /// let (elements, rows) = (1 << 20, 1 << 10);
    /// assert_eq!(Sparsity::TwoFour.bytes(DType::Bf16, elements, rows).get(), (2 << 20) * 9 / 16);
    /// let tenth = Sparsity::TopK { zeros_permille: 900, index: SparseIndex::Bitmap };
    /// assert_eq!(tenth.bytes(DType::Bf16, elements, rows).get(), 2 * 104_858 + (1 << 17));
    /// ```
    pub fn bytes(self, dtype: DType, elements: u64, rows: u64) -> Bytes {
        match self {
            Sparsity::TwoFour => {
                let sixteenths = if dtype.bytes(16).get() <= 16 { 10 } else { 9 };
                dtype.bytes(elements).scale(sixteenths, 16)
            }
            Sparsity::TopK { zeros_permille, index } => {
                let kept = Bytes::new(elements).scale(1000 - zeros_permille.min(1000), 1000).get();
                // What is not zero is rounded up, so that no share of zeros is overstated.
                let exact = u128::from(kept) * 1000
                    == u128::from(elements) * u128::from(1000 - zeros_permille.min(1000));
                let kept = if exact { kept } else { kept + 1 };
                let (column, offset) = match index {
                    SparseIndex::Bitmap => {
                        return dtype.bytes(kept) + Bytes::new(elements.div_ceil(8));
                    }
                    SparseIndex::Csr16 => (2, 4),
                    SparseIndex::Csr32 => (4, 4),
                    SparseIndex::Csr64 => (8, 8),
                };
                let offsets = Bytes::new(offset) * rows.saturating_add(1);
                dtype.bytes(kept) + Bytes::new(column) * kept + offsets
            }
        }
    }

    /// What training keeps beside `elements` dense weights of a type: for 2:4 a mask of one byte each, as NVIDIA's ASP
    /// (apex.contrib.sparsity), which multiplies the weights in place after every step; else the mask in the weights' type
    /// and the masked weights of `torch.nn.utils.prune`, which multiplies before every forward.
    pub fn training_bytes(self, dtype: DType, elements: u64) -> Bytes {
        match self {
            Sparsity::TwoFour => DType::Bool.bytes(elements),
            Sparsity::TopK { .. } => dtype.bytes(elements) * 2,
        }
    }

    /// Whether products of this type exist: whole floats, and for 2:4 8-bit types.
    pub fn suits(self, dtype: DType) -> bool {
        let eighths = matches!(dtype, DType::Int8Row | DType::F8E4M3 | DType::F8E5M2);
        matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
            || eighths && self == Sparsity::TwoFour
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_formats() {
        use SparseIndex::*;
        let (elements, rows) = (4096 * 4096, 4096);
        let top = |zeros_permille, index| Sparsity::TopK { zeros_permille, index };
        for (sparsity, dtype, expected) in [
            (Sparsity::TwoFour, DType::Bf16, 18_874_368),
            (Sparsity::TwoFour, DType::F32, 37_748_736),
            (Sparsity::TwoFour, DType::F8E4M3, 10_485_760),
            (Sparsity::TwoFour, DType::Int8Row, 10_485_760),
            (top(500, Bitmap), DType::F16, elements + elements / 8),
            (top(500, Csr16), DType::F16, 2 * elements + 4 * 4097),
            (top(750, Csr32), DType::F16, elements / 4 * 6 + 4 * 4097),
            (top(750, Csr64), DType::F16, elements / 4 * 10 + 8 * 4097),
            (top(0, Bitmap), DType::F32, 4 * elements + elements / 8),
        ] {
            let bytes = sparsity.bytes(dtype, elements, rows).get();
            assert_eq!(bytes, expected, "{sparsity:?} {dtype}");
        }
    }
}
