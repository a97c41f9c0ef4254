//! The generated references under `docs/reference/`, and the man pages. They are made from the definitions that the
//! program runs; a test fails where a checked-in page is stale.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, Command, CommandFactory};
use plimsoll_cli::args::{Cli, SHORT_SPELLINGS};
use plimsoll_cli::exit::Exit;

/// Where the pages stand.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Writes every page.
pub fn write(arguments: &[String]) -> anyhow::Result<bool> {
    anyhow::ensure!(arguments.is_empty(), "`references` takes no arguments");
    for (path, text) in pages()? {
        let path = root().join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(true)
}

/// Path and text of every page.
fn pages() -> anyhow::Result<Vec<(String, String)>> {
    let schema = |schema| serde_json::to_string_pretty(&schema).map(|text| text + "\n");
    let mut pages = vec![
        ("docs/reference/cli.md".to_owned(), command_line()),
        ("docs/reference/exit-codes.md".to_owned(), exit_codes()),
        (
            "docs/reference/request.schema.json".to_owned(),
            schema(plimsoll_engine::schema::request())?,
        ),
        (
            "docs/reference/estimate.schema.json".to_owned(),
            schema(plimsoll_engine::schema::response())?,
        ),
        (
            "docs/reference/explain.schema.json".to_owned(),
            schema(plimsoll_engine::schema::explanation())?,
        ),
        (
            "docs/reference/replay.schema.json".to_owned(),
            schema(plimsoll_engine::schema::replay())?,
        ),
        ("docs/reference/diff.schema.json".to_owned(), schema(plimsoll_engine::schema::diff())?),
        ("docs/reference/messages.md".to_owned(), messages()),
        ("docs/reference/models.md".to_owned(), models()),
        ("docs/reference/gpus.md".to_owned(), gpus()),
    ];
    pages.extend(manual()?);
    Ok(pages)
}

const MADE: &str = "<!-- Made by `cargo xtask references`; do not edit. -->\n";

fn command_line() -> String {
    let mut command = Cli::command();
    command.build();
    let mut out = format!("{MADE}# Command line\n\n");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(out, "{about}\n");
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        section(&mut out, sub);
    }
    out.push_str("## Short spellings of llama.cpp\n\n");
    for (short, long) in SHORT_SPELLINGS {
        let _ = writeln!(out, "- `{short}` is `{long}`");
    }
    out
}

fn section(out: &mut String, command: &Command) {
    let _ = writeln!(out, "## plimsoll {}\n", command.get_name());
    if let Some(about) = command.get_about() {
        let _ = writeln!(out, "{about}\n");
    }
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(out, "```text\n{}\n```\n", usage.trim_start_matches("Usage: "));
    let mut heading: Option<String> = None;
    let mut started = false;
    for arg in command
        .get_arguments()
        .filter(|a| !a.is_hide_set() && a.get_id() != "help" && a.get_id() != "color")
    {
        let own = arg.get_help_heading().map(str::to_owned);
        if own != heading {
            let _ = writeln!(out, "\n### {}\n", own.as_deref().unwrap_or("Options"));
            heading = own;
            started = false;
        }
        if !started {
            out.push_str("| option | meaning |\n|---|---|\n");
            started = true;
        }
        let _ = writeln!(out, "| {} | {} |", spelling(arg), meaning(arg));
    }
    out.push('\n');
}

fn spelling(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let value = if arg.get_action().takes_values() { format!(" {value}") } else { String::new() };
    let mut names: Vec<String> = Vec::new();
    names.extend(arg.get_short().map(|c| format!("`-{c}`")));
    match arg.get_long() {
        Some(long) => names.push(format!("`--{long}{value}`")),
        None => names.push(format!("`[{}]`", arg.get_id().as_str().to_uppercase())),
    }
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    names.extend(aliases.iter().map(|a| format!("`--{a}`")));
    names.join(", ")
}

fn meaning(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !values.is_empty() {
        let rows = values.iter().map(|v| match v.get_help() {
            Some(help) => format!("`{}`: {help}", v.get_name()),
            None => format!("`{}`", v.get_name()),
        });
        let _ = write!(text, "<br>{}", rows.collect::<Vec<_>>().join("<br>"));
    }
    text.replace('|', "\\|")
}

fn exit_codes() -> String {
    let mut out = format!("{MADE}# Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (exit, meaning) in Exit::ALL {
        let _ = writeln!(out, "| {} | {meaning} |", exit.code());
    }
    out
}

fn messages() -> String {
    let (date, rows) = plimsoll_engine::explained_messages();
    let mut out = format!(
        "{MADE}# Messages\n\n{} messages that `plimsoll explain` looks for; their sources were read on {date}. \
         `owner/name#number` is an issue or pull request of that repository that quotes the text, a path is the file \
         that prints it, and *recalled* marks general knowledge that was not read again.\n\n\
         | framework | words | what it is | versions | source |\n|---|---|---|---|---|\n",
        rows.len()
    );
    for row in rows {
        let _ = writeln!(
            out,
            "| {} | `{}` | {} | {} | {} |",
            row.framework,
            row.words.replace('|', "\\|"),
            row.kind,
            row.versions.replace('|', "\\|"),
            row.source
        );
    }
    out
}

fn models() -> String {
    let rows = plimsoll_engine::list_models("");
    let mut out = format!(
        "{MADE}# Models\n\n{} models. Parameters are exact, tied tables once; active are those that one token passes.\n\n\
         | model | parameters | active | positions | family | date | other names |\n|---|---:|---:|---:|---|---|---|\n",
        rows.len()
    );
    for row in rows {
        let positions = row.max_positions.map_or(String::new(), |n| n.to_string());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {positions} | {} | {} | {} |",
            row.name,
            row.parameters,
            row.active,
            row.family,
            row.date,
            row.aliases.join(", ")
        );
    }
    out
}

fn gpus() -> String {
    let rows = plimsoll_engine::list_gpus("");
    let mut out = format!(
        "{MADE}# GPUs\n\n{} GPUs. Usable is what frameworks see; a star marks what a rule over the printed total gives.\n\n\
         | id | usable | printed | GB/s | bf16 TFLOP/s | target | name | MIG slices |\n|---|---:|---:|---:|---:|---|---|---|\n",
        rows.len()
    );
    for row in rows {
        let peak = row.half_tflops.map_or(String::new(), |n| n.to_string());
        let star = if row.measured { "" } else { "*" };
        let _ = writeln!(
            out,
            "| {} | {}{star} | {} | {} | {peak} | {} | {} | {} |",
            row.id,
            row.usable,
            row.printed,
            row.bandwidth_gbps,
            row.target,
            row.name,
            row.slices.join(", ")
        );
    }
    out
}

/// One man page per command.
fn manual() -> anyhow::Result<Vec<(String, String)>> {
    let mut command = Cli::command();
    command.build();
    let mut pages = vec![("docs/man/plimsoll.1".to_owned(), page(command.clone())?)];
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        let name = format!("plimsoll-{}", sub.get_name());
        let sub = sub.clone().display_name(&name);
        pages.push((format!("docs/man/{name}.1"), page(sub)?));
    }
    Ok(pages)
}

fn page(command: Command) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    clap_mangen::Man::new(command).render(&mut bytes)?;
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn references_are_fresh() {
        for (path, text) in super::pages().unwrap() {
            let found = std::fs::read_to_string(super::root().join(&path)).unwrap_or_default();
            assert!(found == text, "{path} is stale; run `cargo xtask references`");
        }
    }
}
