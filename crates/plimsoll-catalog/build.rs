//! Turns `data/models/*.json` into Rust tables, so that a lookup at run time parses nothing: one static entry for
//! each model, its configuration with the white space taken out, and every spelling in sorted order. A malformed file
//! stops the build and is named.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::value::RawValue;

type Entry = BTreeMap<String, Box<RawValue>>;

fn main() {
    println!("cargo::rerun-if-changed=data/models");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("models.rs");
    fs::write(&out, tables(Path::new("data/models"))).expect("the build folder is writable");
}

/// The generated source: `ENTRIES`, in the order of file names and then of each file, and `SPELLINGS`.
fn tables(folder: &Path) -> String {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("data/models is a folder")
        .map(|file| file.expect("data/models can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let mut entries = String::new();
    let mut spellings = Vec::new();
    let mut count = 0_u16;
    for path in files {
        let name = path.display();
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let models: Vec<Entry> =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        for model in &models {
            write_entry(&mut entries, model, &format!("{name}, entry {count}"));
            for spelling in spellings_of(model, &format!("{name}, entry {count}")) {
                spellings.push((spelling, count));
            }
            count += 1;
        }
    }
    spellings.sort();
    spellings.dedup();
    let mut source = format!("static ENTRIES: [ModelEntry; {count}] = [\n{entries}];\n");
    let _ = writeln!(source, "static SPELLINGS: [(&str, u16); {}] = [", spellings.len());
    for (spelling, index) in &spellings {
        let _ = writeln!(source, "    ({spelling:?}, {index}),");
    }
    source.push_str("];\n");
    source
}

fn write_entry(out: &mut String, model: &Entry, place: &str) {
    const KEYS: [&str; 6] = ["aliases", "config", "date", "name", "parameters", "source"];
    assert!(
        model.keys().map(String::as_str).eq(KEYS),
        "{place}: the keys are not exactly {KEYS:?}"
    );
    let text = |key: &str| parse::<String>(model, key, place);
    let _ = writeln!(
        out,
        "    ModelEntry {{ name: {:?}, aliases: &{:?}, parameters: {}, source: {:?}, date: {:?}, config: {:?} }},",
        text("name"),
        parse::<Vec<String>>(model, "aliases", place),
        parse::<u64>(model, "parameters", place),
        text("source"),
        text("date"),
        compact(model["config"].get()),
    );
}

/// Every spelling that finds the model, in lower case: names and aliases, whole and without their owner.
fn spellings_of(model: &Entry, place: &str) -> Vec<String> {
    let mut names = parse::<Vec<String>>(model, "aliases", place);
    names.push(parse(model, "name", place));
    let mut spellings = Vec::new();
    for name in names {
        let name = name.to_ascii_lowercase();
        if let Some((_, tail)) = name.split_once('/') {
            spellings.push(tail.to_owned());
        }
        spellings.push(name);
    }
    spellings
}

fn parse<T: serde::de::DeserializeOwned>(model: &Entry, key: &str, place: &str) -> T {
    serde_json::from_str(model[key].get()).unwrap_or_else(|error| panic!("{place}: {key}: {error}"))
}

/// The same JSON without the white space between its tokens; the order of keys stays.
fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut quoted, mut escaped) = (false, false);
    for character in json.chars() {
        if quoted {
            (quoted, escaped) = match (character, escaped) {
                ('"', false) => (false, false),
                ('\\', false) => (true, true),
                _ => (true, false),
            };
        } else if character.is_ascii_whitespace() {
            continue;
        } else {
            quoted = character == '"';
        }
        out.push(character);
    }
    out
}
