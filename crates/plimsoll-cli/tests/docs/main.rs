//! The documentation is held against the program: every link leads somewhere, every command parses, every example
//! prints what it shows, every picture is what the program draws.
//! `PLIMSOLL_BLESS=1 cargo test -p plimsoll-cli --test docs` writes examples and pictures anew.

mod markdown;
mod terminal;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use plimsoll_cli::args::{Cli, rewrite};

use markdown::Block;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn blessing() -> bool {
    std::env::var_os("PLIMSOLL_BLESS").is_some()
}

/// Every page that people read: those of the root, of `docs/` and beside the measured cases.
fn pages() -> Vec<PathBuf> {
    let root = root();
    let mut pages = Vec::new();
    let files = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    pages.extend(files.filter(|path| is_markdown(path)));
    for folder in ["docs", "validation", "bench"] {
        walk(&root.join(folder), &mut pages);
    }
    pages.sort();
    assert!(pages.len() > 10, "found only {pages:?}");
    pages
}

fn walk(folder: &Path, pages: &mut Vec<PathBuf>) {
    let built = root().join("docs/book");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path != built {
            walk(&path, pages);
        } else if is_markdown(&path) {
            pages.push(path);
        }
    }
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "md")
}

/// A page's path as people write it.
fn short(page: &Path) -> String {
    page.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in markdown::links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            if !target.exists() {
                broken.push(format!("{}: {link}", short(&page)));
            } else if !anchor.is_empty() && is_markdown(&target) {
                let target = fs::read_to_string(&target).unwrap();
                if !markdown::anchors(&target).iter().any(|a| a == anchor) {
                    broken.push(format!("{}: {link} (no such heading)", short(&page)));
                }
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_summary_lists_every_page_of_the_book() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<PathBuf> =
        markdown::links(&summary).into_iter().map(|l| docs.join(l)).collect();
    let mut all = Vec::new();
    walk(&docs, &mut all);
    let missing: Vec<String> = all
        .iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(page))
        .map(|page| short(page))
        .collect();
    assert!(missing.is_empty(), "SUMMARY.md does not list {missing:?}");
}

/// Arguments of a line that starts the program, in either spelling; `None` for other lines.
fn arguments(line: &str) -> Option<Vec<String>> {
    let line = line.trim().trim_start_matches("$ ");
    let rest =
        line.strip_prefix("plimsoll ").or_else(|| line.strip_prefix("cargo run --release -- "))?;
    Some(markdown::words(rest))
}

#[test]
fn commands_parse() {
    let mut wrong = Vec::new();
    let mut commands = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for block in markdown::blocks(&text).iter().filter(|b| b.is_shell()) {
            for line in block.text(&text).lines() {
                let Some(arguments) = arguments(line) else { continue };
                commands += 1;
                let all = std::iter::once("plimsoll".to_owned()).chain(arguments);
                let all = rewrite(all.map(OsString::from));
                if let Err(error) = Cli::command().try_get_matches_from(all)
                    && error.use_stderr()
                {
                    wrong.push(format!("{}: {line}\n{error}", short(&page)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 10, "only {commands} commands were found");
}

/// Runs the program where the documentation's relative paths hold, without the user's environment.
fn run(arguments: &[String], colour: bool) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments)
        .args(if colour { ["--color", "always"] } else { ["--color", "never"] })
        .current_dir(root())
        .env_clear()
        .env("HF_HUB_OFFLINE", "1")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap()
}

/// The block as it should be: its commands with their output. Lines after a final `...` are left out; as many are
/// kept as the page shows.
fn refreshed(block: &str) -> String {
    let shown: Vec<&str> = block.lines().collect();
    let mut out = String::new();
    let mut at = 0;
    while at < shown.len() {
        let command = shown[at];
        let end = shown[at + 1..].iter().position(|l| l.starts_with("$ "));
        let end = end.map_or(shown.len(), |n| at + 1 + n);
        out.push_str(command);
        out.push('\n');
        if let Some(arguments) = arguments(command).filter(|_| command.starts_with("$ ")) {
            let text = run(&arguments, false);
            let lines: Vec<&str> = text.trim_end().lines().collect();
            let cut = shown[at + 1..end].contains(&"...");
            let keep = if cut { (end - at - 2).min(lines.len()) } else { lines.len() };
            for line in &lines[..keep] {
                out.push_str(line.trim_end());
                out.push('\n');
            }
            if cut {
                out.push_str("...\n");
            }
        }
        at = end;
    }
    out
}

#[test]
fn examples_print_what_they_show() {
    let mut stale = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let blocks: Vec<Block> =
            markdown::blocks(&text).into_iter().filter(|b| b.language == "console").collect();
        let mut fresh = text.clone();
        for block in blocks.iter().rev() {
            let wanted = refreshed(block.text(&text));
            if wanted != block.text(&text) {
                fresh.replace_range(block.range.clone(), &wanted);
                stale.push(format!("{}:\n{wanted}", short(&page)));
            }
        }
        if blessing() && fresh != text {
            fs::write(&page, fresh).unwrap();
        }
    }
    assert!(
        blessing() || stale.is_empty(),
        "examples are stale; PLIMSOLL_BLESS=1 cargo test -p plimsoll-cli --test docs\n{}",
        stale.join("\n")
    );
}

/// The pictures in `docs/images/` and what they show.
const PICTURES: [(&str, &str); 2] = [
    (
        "estimate.svg",
        "estimate meta-llama/Llama-3.1-8B --train --gpu a100-80g --batch 4 --seq 4096 --checkpoint full",
    ),
    (
        "step.svg",
        "estimate meta-llama/Llama-3.1-8B --finetune lora --rank 16 --gpu a100-80g --batch 4 --seq 2048 --checkpoint full --plot",
    ),
];

#[test]
fn pictures_are_what_the_program_draws() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, line) in PICTURES {
        let mut arguments = markdown::words(line);
        let drawn = if line.ends_with("--plot") {
            let file = scratch.join(name);
            arguments.push(file.display().to_string());
            run(&arguments, false);
            fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
        } else {
            terminal::svg(&format!("plimsoll {line}"), &run(&arguments, true))
        };
        let path = root().join("docs/images").join(name);
        if blessing() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, drawn).unwrap();
            continue;
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == drawn,
            "{name} is stale; PLIMSOLL_BLESS=1 cargo test -p plimsoll-cli --test docs"
        );
    }
}
