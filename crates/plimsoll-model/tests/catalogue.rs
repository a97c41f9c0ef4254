//! Every configuration of the catalogue: the published count, and names that read back to the parts they came from.

use std::collections::BTreeMap;

use plimsoll_catalog::models;
use plimsoll_model::Part;
use plimsoll_model::hf::{self, Imported};
use plimsoll_model::inventory::{classify, inventory};
use plimsoll_model::{BuildError, BuildOptions, build};

fn all() -> impl Iterator<Item = (&'static models::ModelEntry, Imported)> {
    models::models().map(|entry| match hf::from_config(entry.config.as_bytes()) {
        Ok(imported) => (entry, imported),
        Err(error) => panic!("{}: {error}", entry.name),
    })
}

#[test]
fn counts_equal_the_published_ones() {
    let mut wrong = Vec::new();
    for (entry, imported) in all() {
        let count = inventory(&imported.architecture).elements();
        if count != entry.parameters {
            let off = i128::from(count) - i128::from(entry.parameters);
            wrong.push(format!("{}: {count}, off by {off}", entry.name));
        }
    }
    assert!(wrong.is_empty(), "{} models differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn names_read_back_to_their_parts() {
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    for (entry, imported) in all() {
        let extras: Vec<&str> =
            imported.architecture.extra.iter().map(|e| e.name.as_str()).collect();
        for row in inventory(&imported.architecture).parameters {
            if extras.contains(&row.name.as_str()) {
                continue;
            }
            let read = classify(&row.name);
            if (read.part, read.bias, read.layer, read.stale)
                != (row.part, row.bias, row.layer, false)
                && !same_slot(row.part, read.part)
            {
                let shown = row.name.split('.').filter(|c| c.parse::<u32>().is_err());
                let shown = shown.collect::<Vec<_>>().join(".");
                let note = format!("{shown}: {:?} read as {:?}", row.part, read.part);
                wrong.entry(note).or_insert_with(|| entry.name.to_owned());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a name alone does not tell: which slot a norm of a sandwich takes, that ChatGLM's up matrix holds the gate
/// too, and that Gemma 4's plain feed-forward stands beside experts.
fn same_slot(written: Part, read: Part) -> bool {
    let norm = |part| matches!(part, Part::Norm1 | Part::Norm2 | Part::Norm3 | Part::Norm4);
    let beside = [
        (Part::GateUp, Part::Up),
        (Part::SharedGate, Part::Gate),
        (Part::SharedUp, Part::Up),
        (Part::SharedDown, Part::Down),
    ];
    (norm(written) && norm(read)) || beside.contains(&(written, read))
}

#[test]
fn nothing_in_the_catalogue_needs_a_guess() {
    for (entry, imported) in all() {
        let guessed: Vec<_> =
            imported.diagnostics.iter().filter(|d| d.message.contains("not known")).collect();
        assert!(guessed.is_empty(), "{}: {guessed:?}", entry.name);
    }
}

/// Every model has a graph, whichever style runs it; what is not modelled says so.
#[test]
fn every_graph_builds() {
    let mut wrong = Vec::new();
    for (entry, imported) in all() {
        let model = &imported.architecture;
        match build(model, &inventory(model), &BuildOptions::default()) {
            Ok(_) | Err(BuildError::NotModelled { .. }) => {}
            Err(error) => wrong.push(format!("{}: {error}", entry.name)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
