//! Names and shapes of small models of each class, as transformers lists them (`data/generate_names.py`).

use std::collections::BTreeMap;

use plimsoll_model::hf;
use plimsoll_model::inventory::inventory;
use serde_json::Value;

type Names = BTreeMap<String, Vec<u64>>;

fn shape(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// Unfolds one case of the file.
fn expected(case: &Value) -> Names {
    let mut names = Names::new();
    for (name, sizes) in case["parameters"].as_object().unwrap() {
        names.insert(name.clone(), shape(sizes));
    }
    for (prefix, folded) in case["layers"].as_object().unwrap() {
        for pair in folded["order"].as_array().unwrap() {
            let (index, kind) = (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap());
            let kind = &folded["kinds"][usize::try_from(kind).unwrap()];
            for (tail, sizes) in kind.as_object().unwrap() {
                names.insert(format!("{prefix}.{index}.{tail}"), shape(sizes));
            }
        }
    }
    names
}

#[test]
fn every_class_lists_what_transformers_lists() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("data/names.json")).unwrap();
    assert!(cases.len() >= 90, "{} classes", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let kind = case["model_type"].as_str().unwrap();
        let mine: Names = match hf::from_value(&case["config"]) {
            Ok(imported) => {
                let list = inventory(&imported.architecture).parameters;
                list.into_iter().map(|p| (p.name, p.shape)).collect()
            }
            Err(error) => {
                wrong.push(format!("{kind}: {error}"));
                continue;
            }
        };
        let theirs = expected(case);
        let lacks = theirs.iter().filter(|(name, sizes)| mine.get(*name) != Some(*sizes));
        let adds = mine.iter().filter(|(name, sizes)| theirs.get(*name) != Some(*sizes));
        let (lacks, adds): (Vec<_>, Vec<_>) = (lacks.take(3).collect(), adds.take(3).collect());
        if !lacks.is_empty() || !adds.is_empty() {
            wrong.push(format!("{kind}: lacks {lacks:?}, adds {adds:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
