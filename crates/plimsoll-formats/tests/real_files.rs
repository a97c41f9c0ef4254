//! Files written by the formats' own libraries (see data/make.py) read as their writers meant them.

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;

use plimsoll_formats::{Diagnostic, FormatError, gguf, index, safetensors};
use plimsoll_units::{Bytes, DType};

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn safetensors_as_written() {
    let file = data("small.safetensors");
    let header = safetensors::read(Cursor::new(&file)).unwrap();
    let mut rows: Vec<_> = header
        .tensors
        .iter()
        .map(|t| (t.name.as_str(), t.shape.clone(), t.dtype, t.bytes.get()))
        .collect();
    rows.sort();
    assert_eq!(
        rows,
        [
            ("model.embed.weight", vec![16, 8], Some(DType::Bf16), 256),
            ("model.empty", vec![0, 3], Some(DType::F16), 0),
            ("model.flags", vec![3], Some(DType::Bool), 3),
            ("model.fp8", vec![4, 4], Some(DType::F8E4M3), 16),
            ("model.ids", vec![5], Some(DType::I64), 40),
            ("model.norm.weight", vec![8], Some(DType::F32), 32),
            ("model.scale", vec![], Some(DType::F64), 8),
        ]
    );
    assert_eq!(header.metadata["note"], "naïve");
    assert_eq!(header.data_offset + header.tensor_bytes().get(), file.len() as u64);
    let (short, whole) = (&file[..file.len() - 1], file.len() as u64);
    assert!(matches!(
        safetensors::read(Cursor::new(short)),
        Err(FormatError::Truncated { section: "safetensors data", .. })
    ));
    let prefix = &file[..header.data_offset as usize];
    assert_eq!(safetensors::parse_prefix(prefix, Some(whole)), Ok(header));
}

#[test]
fn gguf_as_written() {
    let file = data("small.gguf");
    let header = gguf::read(Cursor::new(&file)).unwrap();
    assert_eq!((header.version, header.arch()), (3, Some("llama")));
    assert_eq!(header.u64("block_count"), Some(2));
    assert_eq!(header.per_layer("attention.head_count", 2), Some(vec![8, 8]));
    assert_eq!(header.per_layer("attention.head_count_kv", 2), Some(vec![2, 4]));
    assert_eq!(header.metadata.f64("llama.rope.freq_base"), Some(500000.0));
    assert_eq!(header.metadata.text("tokenizer.ggml.model"), Some("gpt2"));
    assert_eq!(header.metadata.array_len("tokenizer.ggml.tokens"), Some(600));
    assert_eq!(header.metadata.array_len("llama.many"), Some(5000));
    assert_eq!(header.metadata.bool("llama.flag"), Some(true));
    assert_eq!(header.metadata.get("llama.negative"), Some(&gguf::Value::Signed(-3)));
    let q = header.tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!(
        (q.shape.as_slice(), q.dtype, q.bytes),
        (&[4, 256][..], Some(DType::Q8_0), Bytes::new(4 * 8 * 34))
    );
    let norm = header.tensor("output_norm.weight").unwrap();
    assert_eq!((norm.shape.as_slice(), norm.bytes), (&[7][..], Bytes::new(28)));
    assert_eq!(file[norm.offset as usize..][..4], 1.0f32.to_le_bytes());
    assert!(header.diagnostics.is_empty(), "{:?}", header.diagnostics);

    // Every shorter prefix asks for more, and the exact one is enough.
    let end = header.data_offset as usize;
    for n in (4..end - 32).step_by(97) {
        match gguf::read_prefix(&file[..n], Some(file.len() as u64)) {
            Err(FormatError::Truncated { available, .. }) => assert_eq!(available, n as u64),
            other => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(gguf::read_prefix(&file[..end], Some(file.len() as u64)), Ok(header.clone()));
    assert_eq!(gguf::read_prefix(&file[..end], None).unwrap().tensors, header.tensors);
    let error = gguf::read(Cursor::new(&file[..end + 10])).unwrap_err().to_string();
    assert!(error.starts_with("GGUF data is cut short"), "{error}");
}

#[test]
fn gguf_parts_join_in_order_only() {
    let part =
        |n: u32| gguf::read(Cursor::new(data(&format!("split-{n:05}-of-00002.gguf")))).unwrap();
    let joined = gguf::join(vec![part(1), part(2)]).unwrap();
    assert_eq!(joined.tensors.len(), 4);
    assert_eq!(joined.u64("block_count"), Some(2));
    for (parts, message) in [
        (vec![part(2), part(1)], "`part 1` has split.no 1"),
        (vec![part(1)], "`part 1` has split.count 2; accepted: 1"),
        (vec![part(1), part(1)], "`part 2` has split.no 0"),
        (vec![], "at least 1"),
    ] {
        let error = gguf::join(parts).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn gguf_variants() {
    let file = data("small.gguf");
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        gguf::read(Cursor::new(file))
    };
    let message = |at, bytes: &[u8]| patched(at, bytes).unwrap_err().to_string();
    assert!(message(4, &[0, 0, 0, 3]).contains("big-endian byte order (version 3)"));
    assert!(message(4, &[9, 0, 0, 0]).contains("version 9; accepted: 1, 2 or 3"));
    assert!(message(0, b"PK\x03\x04").contains("zip archive"));
    assert!(message(8, &[0xff; 8]).contains("a tensor count of"));
    assert!(message(16, &[0xff; 8]).contains("a metadata count of"));
    let table = file.windows(19).position(|w| w == b"blk.0.attn_q.weight").unwrap() + 19;
    // rank (4), two dimensions (16), type (4), offset (8)
    assert!(message(table, &[9]).contains("a rank of 9; accepted: at most 8"));
    assert!(message(table + 4, &[1]).contains("a multiple of 32 elements"));
    assert!(message(table + 4, &[0xff; 16]).contains("a product below 2^64"));
    assert!(message(table + 24, &[1]).contains("a multiple of the alignment, 32"));
    assert!(message(table + 20, &[0]).contains("tensors may not overlap"));
    let unknown = patched(table + 20, &[200]).unwrap();
    assert_eq!(unknown.tensors[0].bytes, Bytes::new(1088));
    assert!(
        matches!(&unknown.diagnostics[0], Diagnostic::UnknownElementType { tensor, .. } if tensor == "blk.0.attn_q.weight")
    );
    let smaller = patched(table + 20, &[2]).unwrap();
    assert_eq!(
        smaller.diagnostics,
        [Diagnostic::Unused { tensor: "blk.0.attn_q.weight".into(), bytes: 1088 - 576 }]
    );
}

#[test]
fn index_as_written() {
    let index = index::parse(&data("model.safetensors.index.json")).unwrap();
    assert_eq!(index.total_size, Some(Bytes::new(672)));
    assert_eq!(index.files().len(), 2);
}

/// A header by hand, lengths in four bytes for version 1 and in eight after.
fn gguf_by_hand(version: u32) -> Vec<u8> {
    let length = |out: &mut Vec<u8>, n: u64| match version {
        1 => out.extend_from_slice(&(n as u32).to_le_bytes()),
        _ => out.extend_from_slice(&n.to_le_bytes()),
    };
    let text = |out: &mut Vec<u8>, text: &str| {
        length(out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    };
    let mut out = b"GGUF".to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    length(&mut out, 1);
    length(&mut out, 3);
    text(&mut out, "general.architecture");
    out.extend_from_slice(&8u32.to_le_bytes());
    text(&mut out, "llama");
    text(&mut out, "llama.lists");
    for part in [9u32, 9] {
        out.extend_from_slice(&part.to_le_bytes());
    }
    length(&mut out, 2);
    for _ in 0..2 {
        out.extend_from_slice(&8u32.to_le_bytes());
        length(&mut out, 1);
        text(&mut out, "x");
    }
    text(&mut out, "general.alignment");
    out.extend_from_slice(&4u32.to_le_bytes());
    out.extend_from_slice(&64u32.to_le_bytes());
    text(&mut out, "w");
    out.extend_from_slice(&2u32.to_le_bytes());
    length(&mut out, 3);
    length(&mut out, 2);
    out.extend_from_slice(&[0; 12]);
    out.resize(out.len().next_multiple_of(64) + 24, 0);
    out
}

#[test]
fn gguf_of_every_version() {
    for version in 1..=3 {
        let file = gguf::read(Cursor::new(gguf_by_hand(version))).unwrap();
        assert_eq!((file.version, file.arch(), file.alignment), (version, Some("llama"), 64));
        assert_eq!(file.metadata.array_len("llama.lists"), Some(2));
        assert_eq!(
            (file.tensors[0].shape.as_slice(), file.tensors[0].bytes),
            (&[2, 3][..], Bytes::new(24))
        );
    }
}
