//! Checkpoints written by torch itself (see data/make.py) give the tensors that torch would load.

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;

use plimsoll_formats::torch_checkpoint::{self, Checkpoint, Layout};
use plimsoll_formats::{Diagnostic, FormatError};
use plimsoll_units::{Bytes, DType};

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn read(name: &str) -> Checkpoint {
    torch_checkpoint::read(Cursor::new(data(name))).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors.iter().map(|t| t.name.as_str()).collect()
}

/// The module of make.py: an embedding 10 x 4 tied to the head, two linear layers of 4, three steps.
const STATE: [&str; 7] = [
    "steps",
    "embed.weight",
    "layers.0.weight",
    "layers.0.bias",
    "layers.1.weight",
    "layers.1.bias",
    "head.weight",
];
const STATE_BYTES: u64 = 10 * 4 * 4 + 2 * (4 * 4 + 4) * 4 + 3 * 8;

#[test]
fn a_state_dict_in_both_layouts() {
    for (file, layout) in [("state_dict.pt", Layout::Zip), ("legacy.pt", Layout::Legacy)] {
        let checkpoint = read(file);
        assert_eq!(checkpoint.layout, layout);
        assert_eq!(names(&checkpoint), STATE, "{file}");
        assert_eq!(checkpoint.storage_bytes(), Bytes::new(STATE_BYTES), "{file}");
        let (embed, head) = (&checkpoint.tensors[1], &checkpoint.tensors[6]);
        assert_eq!((&embed.shape, embed.dtype), (&vec![10, 4], Some(DType::F32)));
        assert_eq!(embed.storage, head.storage, "{file}: tied weights share their storage");
        assert_eq!(checkpoint.storage(embed.storage.unwrap()).unwrap().location, "cpu");
        assert!(checkpoint.diagnostics.is_empty(), "{:?}", checkpoint.diagnostics);
        let once: Vec<_> = checkpoint.tensor_infos().into_iter().map(|t| t.name).collect();
        assert_eq!(once, STATE[..6], "{file}: the tied head is the embedding");
    }
}

#[test]
fn a_whole_module_is_searched_without_its_class() {
    let checkpoint = read("module.pt");
    let mut found = names(&checkpoint);
    found.sort_unstable();
    let mut expected = STATE;
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(checkpoint.storage_bytes(), Bytes::new(STATE_BYTES));
    assert!(checkpoint.tensors.iter().all(|t| t.is_parameter == (t.name != "steps")));
    let unknown = Diagnostic::UnknownGlobal { name: "__main__.Net".to_owned() };
    assert_eq!(checkpoint.diagnostics, [unknown]);
}

#[test]
fn a_checkpoint_of_everything() {
    for file in ["checkpoint.pt", "checkpoint_p5.pt"] {
        let checkpoint = read(file);
        let rows: Vec<_> = checkpoint
            .tensors
            .iter()
            .filter(|t| !t.name.starts_with("model.") && !t.name.starts_with("optimizer."))
            .map(|t| {
                (t.name.as_str(), t.shape.clone(), &*t.type_name, t.bytes.get(), t.is_parameter)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("view", vec![3, 4], "float16", 24, false),
                ("whole", vec![24], "float16", 48, false),
                ("fp8", vec![6], "float8_e4m3fn", 6, false),
                ("bf16", vec![2, 2], "bfloat16", 8, false),
                ("parameter", vec![3], "float32", 12, true),
                ("list.0", vec![1], "float32", 4, false),
                ("list.1.0", vec![2], "float32", 8, false),
                ("list.1.1.x", vec![3], "float32", 12, false),
                ("meta", vec![7], "float32", 28, false),
                ("sparse.indices", vec![2, 3], "int64", 48, false),
                ("sparse.values", vec![3], "float32", 12, false),
            ],
            "{file}"
        );
        assert!(names(&checkpoint).contains(&"model.layers.1.bias"));
        assert!(names(&checkpoint).contains(&"optimizer.state.0.exp_avg_sq"));
        let view = checkpoint.tensors.iter().find(|t| t.name == "view").unwrap();
        assert_eq!(view.storage_offset, Bytes::new(8));
        // 5 parameters with two moments and a step each; `view` and `whole` share one storage.
        let moments = 2 * (STATE_BYTES - 24) + 5 * 4;
        let others = 48 + 6 + 8 + 12 + 4 + 8 + 12 + 48 + 12;
        assert_eq!(
            checkpoint.storage_bytes(),
            Bytes::new(STATE_BYTES + moments + others),
            "{file}"
        );
        let meta = Diagnostic::MetaTensor { tensor: "meta".to_owned() };
        assert_eq!(checkpoint.diagnostics, [meta], "{file}");
    }
}

#[test]
fn a_subclass_gives_its_inner_tensors() {
    let checkpoint = read("subclass.pt");
    assert_eq!(names(&checkpoint), ["w.a", "w.b"]);
    assert_eq!(checkpoint.storage_bytes(), Bytes::new(2 * 3 * 4 * 4));
}

#[test]
fn damaged_files_are_refused_by_name() {
    let zip = data("state_dict.pt");
    let legacy = data("legacy.pt");
    let message =
        |bytes: &[u8]| torch_checkpoint::read(Cursor::new(bytes)).unwrap_err().to_string();
    assert!(message(&zip[..zip.len() - 40]).contains("a damaged directory"));
    assert!(message(&legacy[..legacy.len() - 1]).contains("storages is cut short"));
    assert!(message(&legacy[..200]).contains("pickle is cut short"));
    assert!(message(b"").contains("it is empty"));
    assert!(message(b"\x80\x02K\x01.").contains("without torch's number"));
    assert!(message(b"GGUF\x03\0\0\0").contains("it is a GGUF file"));
    assert!(message(b"version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));

    // A storage that claims more elements than its record has bytes for.
    let at = zip.windows(4).position(|w| w == b"K(tq").unwrap();
    let mut more = zip.clone();
    more[at + 1] = 0xff;
    let error = message(&more);
    assert!(error.contains("state_dict/data/1` has in the archive 160 bytes"), "{error}");
    let mut fewer = zip.clone();
    fewer[at + 1] = 1;
    // The tied head refers to the storage with its true size; the larger of the two counts.
    assert!(torch_checkpoint::read(Cursor::new(&fewer)).is_ok());
    let mut opcode = zip;
    opcode[at] = 0xfe;
    assert!(matches!(
        torch_checkpoint::read(Cursor::new(&opcode)),
        Err(FormatError::Pickle { opcode: 0xfe, .. })
    ));
}
