//! `cargo xtask validate`: predictions against measured cases. Rows are read by the meaning of their fields; none is
//! known by its id, and what cannot be modelled is listed with the reason.

mod bars;
mod bounds;
mod case;
pub mod engines;
pub mod fit;
mod framework;
mod inference;
mod llamacpp;
mod megatron;
mod model;
mod names;
mod report;
mod row;
mod rows_llamacpp;
mod rows_llamacpp_base;
mod rows_sglang;
mod rows_torch;
mod rows_vllm;
mod score;
mod serving;
mod settings;
mod sharding;
mod text;
mod training;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use case::Case;
use row::Row;

/// What was asked for on the command line.
#[derive(Default)]
struct Options {
    cases: Vec<PathBuf>,
    committed: bool,
    json: bool,
    rows: bool,
    worst: Option<usize>,
    by_source: bool,
    report: Option<PathBuf>,
}

const USAGE: &str = "usage: cargo xtask validate [--cases FILE...] [--json] [--rows] [--by-source] [--worst N] [--report DIR]";

/// Runs the command; `false` where a committed threshold is violated.
pub fn run(arguments: &[String]) -> anyhow::Result<bool> {
    let options = options(arguments)?;
    let cases = read_all(&options.cases)?;
    let scores = score::Scores::of(&cases);
    let bars = bars::evaluate(&scores)?;
    if let Some(folder) = &options.report {
        report::write(folder, &cases, &scores, &bars)?;
    }
    let mut out = String::new();
    if options.json {
        out = serde_json::to_string_pretty(&scores.json())?;
        out.push('\n');
    } else if options.by_source {
        text::by_source(&mut out, &cases);
    } else {
        if options.rows {
            text::rows(&mut out, &cases);
        }
        if let Some(count) = options.worst {
            text::worst(&mut out, &cases, count);
        }
        text::table(&mut out, &scores);
        out.push_str("\nbars:\n");
        bars.iter().for_each(|bar| out.push_str(&format!("{}\n", bar.line())));
    }
    print(&out)?;
    // Thresholds are held against the committed cases; other files are measured, not judged.
    Ok(!options.committed || bars.iter().all(bars::Outcome::holds))
}

/// Prints; a reader that has seen enough (a broken pipe) is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to standard output"),
    }
}

fn options(arguments: &[String]) -> anyhow::Result<Options> {
    let mut options = Options::default();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--cases" => {
                while let Some(file) = rest.next_if(|a| !a.starts_with("--")) {
                    options.cases.push(PathBuf::from(file));
                }
            }
            "--json" => options.json = true,
            "--rows" => options.rows = true,
            "--by-source" => options.by_source = true,
            "--worst" => {
                let count = rest.next().context("--worst needs a number")?;
                options.worst = Some(count.parse().context("--worst needs a number")?);
            }
            "--report" => {
                options.report = Some(rest.next().context("--report needs a folder")?.into());
            }
            other => bail!("unknown argument {other:?}; {USAGE}"),
        }
    }
    if options.cases.is_empty() {
        options.cases = committed()?;
        options.committed = true;
    }
    Ok(options)
}

/// The committed cases.
fn committed() -> anyhow::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../validation/cases");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    files.sort();
    Ok(files)
}

/// Reads and scores every row of the files.
fn read_all(files: &[PathBuf]) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for file in files {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let value: Value = serde_json::from_str(line)
                .with_context(|| format!("{}:{}: not JSON", file.display(), number + 1))?;
            let row = Row::new(&value)
                .with_context(|| format!("{}:{}: not an object", file.display(), number + 1))?;
            cases.push(score_row(&row));
        }
    }
    Ok(cases)
}

/// Scores one row by what its fields say it is.
fn score_row(row: &Row) -> Case {
    if row.get("measured").is_some() || row.get("engine").is_some() {
        inference::score(row)
    } else if row.get("kind").is_some() && row.get("measured_gib").is_none() {
        bounds::score(row)
    } else {
        training::score(row)
    }
}

#[cfg(test)]
mod tests;
