//! What torch calls its element types and storages in a pickle, and which classes are known to be plain data.
//! Source: torch 2.15, `torch/storage.py`, `torch/_utils.py` and `torch/_weights_only_unpickler.py`.

use plimsoll_units::DType;

/// An element type as torch counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// torch's name, without `torch.`.
    pub(super) name: &'static str,
    /// Bytes per element of a tensor of this type. Packed types count the bytes, not the values in them.
    pub(super) size: u64,
    pub(super) dtype: Option<DType>,
}

const fn element(name: &'static str, size: u64, dtype: Option<DType>) -> Element {
    Element { name, size, dtype }
}

/// Bytes without a type.
pub(super) const UNTYPED: Element = element("uint8", 1, Some(DType::U8));

const ELEMENTS: &[(Element, &str)] = &[
    (element("float32", 4, Some(DType::F32)), "FloatStorage"),
    (element("float64", 8, Some(DType::F64)), "DoubleStorage"),
    (element("float16", 2, Some(DType::F16)), "HalfStorage"),
    (element("bfloat16", 2, Some(DType::Bf16)), "BFloat16Storage"),
    (element("int64", 8, Some(DType::I64)), "LongStorage"),
    (element("int32", 4, Some(DType::I32)), "IntStorage"),
    (element("int16", 2, Some(DType::I16)), "ShortStorage"),
    (element("int8", 1, Some(DType::I8)), "CharStorage"),
    (UNTYPED, "ByteStorage"),
    (element("bool", 1, Some(DType::Bool)), "BoolStorage"),
    (element("complex64", 8, Some(DType::C64)), "ComplexFloatStorage"),
    (element("complex128", 16, Some(DType::C128)), "ComplexDoubleStorage"),
    (element("qint8", 1, Some(DType::I8)), "QInt8Storage"),
    (element("quint8", 1, Some(DType::U8)), "QUInt8Storage"),
    (element("qint32", 4, Some(DType::I32)), "QInt32Storage"),
    (element("quint4x2", 1, None), "QUInt4x2Storage"),
    (element("quint2x4", 1, None), "QUInt2x4Storage"),
    (element("complex32", 4, None), ""),
    (element("uint16", 2, Some(DType::U16)), ""),
    (element("uint32", 4, Some(DType::U32)), ""),
    (element("uint64", 8, Some(DType::U64)), ""),
    (element("float8_e4m3fn", 1, Some(DType::F8E4M3)), ""),
    (element("float8_e4m3fnuz", 1, Some(DType::F8E4M3)), ""),
    (element("float8_e5m2", 1, Some(DType::F8E5M2)), ""),
    (element("float8_e5m2fnuz", 1, Some(DType::F8E5M2)), ""),
    (element("float8_e8m0fnu", 1, Some(DType::F8E8M0)), ""),
    (element("float4_e2m1fn_x2", 1, None), ""),
    (element("bits8", 1, None), ""),
    (element("bits16", 2, None), ""),
    (element("bits1x8", 1, None), ""),
    (element("bits2x4", 1, None), ""),
    (element("bits4x2", 1, None), ""),
    (element("uint1", 1, None), ""),
    (element("uint2", 1, None), ""),
    (element("uint3", 1, None), ""),
    (element("uint4", 1, None), ""),
    (element("uint5", 1, None), ""),
    (element("uint6", 1, None), ""),
    (element("uint7", 1, None), ""),
    (element("int1", 1, None), ""),
    (element("int2", 1, None), ""),
    (element("int3", 1, None), ""),
    (element("int4", 1, None), ""),
    (element("int5", 1, None), ""),
    (element("int6", 1, None), ""),
    (element("int7", 1, None), ""),
];

/// The element type behind a global such as `torch.bfloat16`.
pub(super) fn dtype(global: &str) -> Option<Element> {
    let name = global.strip_prefix("torch.")?;
    ELEMENTS.iter().map(|(element, _)| *element).find(|element| element.name == name)
}

/// The element type of a storage class such as `torch.FloatStorage` or `torch.cuda.HalfStorage`.
pub(super) fn storage(global: &str) -> Option<Element> {
    let name = global.strip_prefix("torch.")?;
    let name = name.strip_prefix("cuda.").unwrap_or(name);
    if matches!(name, "storage.UntypedStorage" | "UntypedStorage" | "storage._UntypedStorage") {
        return Some(UNTYPED);
    }
    let found = ELEMENTS.iter().find(|(_, class)| !class.is_empty() && *class == name);
    found.map(|(element, _)| *element)
}

/// Whether a class or function is one that checkpoints are made of.
pub(super) fn is_known(global: &str) -> bool {
    const NAMES: &[&str] = &[
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.Counter",
        "collections.deque",
        "torch.device",
        "torch.Size",
        "torch.Tensor",
        "torch.nn.parameter.Parameter",
        "torch.nn.parameter.Buffer",
        "torch.serialization._get_layout",
        "torch._tensor._rebuild_from_type_v2",
        "_codecs.encode",
        "argparse.Namespace",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy.core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy._core.multiarray._reconstruct",
    ];
    const BUILTINS: &[&str] = &[
        "set",
        "frozenset",
        "bytearray",
        "complex",
        "slice",
        "range",
        "dict",
        "list",
        "int",
        "float",
        "str",
        "object",
    ];
    const MODULES: &[&str] = &["torch._utils._rebuild_", "torch.nn.modules."];
    let builtin = global.strip_prefix("builtins.").or_else(|| global.strip_prefix("__builtin__."));
    NAMES.contains(&global)
        || builtin.is_some_and(|name| BUILTINS.contains(&name))
        || MODULES.iter().any(|module| global.starts_with(module))
        || storage(global).is_some()
        || dtype(global).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_and_storages() {
        assert_eq!(dtype("torch.bfloat16").unwrap().dtype, Some(DType::Bf16));
        assert_eq!(storage("torch.cuda.HalfStorage").unwrap().name, "float16");
        assert_eq!(storage("torch.storage.UntypedStorage"), Some(UNTYPED));
        assert_eq!(storage("torch."), None);
        assert!(is_known("builtins.set") && is_known("torch.nn.modules.linear.Linear"));
        for evil in ["os.system", "builtins.eval", "builtins.getattr", "torch.load", "nt.system"] {
            assert!(!is_known(evil), "{evil}");
        }
        for (element, _) in ELEMENTS {
            assert!(element.dtype.is_none_or(|d| d.is_plain() && d.block_bytes() == element.size));
        }
    }
}
