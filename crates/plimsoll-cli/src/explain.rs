//! `--explain TERM`: the tree of terms with formula, inputs and source.

use std::fmt::Write;

use plimsoll_engine::{Response, Term};

use crate::exit::CliError;

/// The terms under a key (or with it in a part of their key), as an indented tree.
pub fn text(response: &Response, wanted: &str) -> Result<String, CliError> {
    let wanted = wanted.trim().to_ascii_lowercase();
    let mut out = String::new();
    let mut roots: Vec<&Term> = Vec::new();
    match wanted.as_str() {
        "all" => roots.extend(&response.terms),
        // Every key holds the empty word.
        "" => {}
        _ => collect(&response.terms, &wanted, &mut roots),
    }
    if roots.is_empty() {
        let mut keys = Vec::new();
        all_keys(&response.terms, 1, &mut keys);
        return Err(CliError::usage(
            format!("no term is called `{wanted}`"),
            format!("the terms of this estimate are: all, {}", keys.join(", ")),
        ));
    }
    for root in roots {
        write_term(&mut out, root, 0);
    }
    Ok(out)
}

/// Exact keys first; where there are none, keys that begin with the word or hold it.
fn collect<'a>(terms: &'a [Term], wanted: &str, found: &mut Vec<&'a Term>) {
    walk(terms, &mut |t| t.key == wanted, found);
    if found.is_empty() {
        let label = |t: &Term| t.label.to_ascii_lowercase() == wanted;
        walk(terms, &mut |t| t.key.split('.').any(|part| part == wanted) || label(t), found);
    }
    if found.is_empty() {
        walk(
            terms,
            &mut |t| t.key.contains(wanted) || t.label.to_ascii_lowercase().contains(wanted),
            found,
        );
    }
}

/// Outermost terms for which `test` holds.
fn walk<'a>(terms: &'a [Term], test: &mut dyn FnMut(&Term) -> bool, found: &mut Vec<&'a Term>) {
    for term in terms {
        if test(term) {
            found.push(term);
        } else {
            walk(&term.children, test, found);
        }
    }
}

fn all_keys<'a>(terms: &'a [Term], depth: usize, keys: &mut Vec<&'a str>) {
    for term in terms {
        keys.push(&term.key);
        if depth > 0 {
            all_keys(&term.children, depth - 1, keys);
        }
    }
    keys.dedup();
}

fn write_term(out: &mut String, term: &Term, depth: usize) {
    let pad = "  ".repeat(depth);
    let spread = match term.spread_permille {
        Some((low, high)) => format!("  (-{} % / +{} %)", tenths(low), tenths(high)),
        None => String::new(),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{pad}{:>12}  {}  [{}]{spread}",
        term.bytes.to_string(),
        term.label,
        term.key
    );
    let detail = format!("{pad}{:>12}  ", "");
    if !term.formula.is_empty() {
        let _ = writeln!(out, "{detail}= {}", term.formula);
    }
    if !term.inputs.is_empty() {
        let inputs: Vec<String> =
            term.inputs.iter().map(|i| format!("{} = {}", i.symbol, i.value)).collect();
        let _ = writeln!(out, "{detail}  with {}", inputs.join(", "));
    }
    if !term.source.is_empty() {
        let _ = writeln!(out, "{detail}  source: {}", term.source);
    }
    for child in &term.children {
        write_term(out, child, depth + 1);
    }
}

fn tenths(permille: u32) -> String {
    match permille % 10 {
        0 => (permille / 10).to_string(),
        rest => format!("{}.{rest}", permille / 10),
    }
}
