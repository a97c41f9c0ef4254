//! Automation for the repository: `cargo xtask COMMAND`. One module for each command.

mod references;
mod synthesize;
mod validate;

use std::process::ExitCode;

const COMMANDS: &str =
    "references, synthesize-snapshot, validate, fit-intervals, validate-serving, validate-llamacpp";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("", &[][..]),
    };
    let result = match command {
        "references" => references::write(rest),
        "synthesize-snapshot" => synthesize::run(rest),
        "validate" => validate::run(rest),
        "fit-intervals" => validate::fit::run(rest),
        "validate-serving" => validate::engines::serving(rest),
        "validate-llamacpp" => validate::engines::llamacpp(rest),
        _ => Err(anyhow::anyhow!("unknown command {command:?}; commands: {COMMANDS}")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
