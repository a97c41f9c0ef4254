//! The command line as a library, so that generated references (`cargo xtask references`) and tests see the same
//! definitions that the program runs.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

pub mod args;
pub mod exit;
mod explain;
mod explanation;
mod high;
mod input;
mod lists;
mod output;
mod render;
mod snapshots;

use args::{Cli, Command};
use exit::{CliError, Exit};

/// Runs the program with these arguments, the program's name first.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let matches = match Cli::command().try_get_matches_from(args::rewrite(arguments)) {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    cli.color.apply();
    let result = match &cli.command {
        Command::Estimate(args) => {
            let given = matches.subcommand().map(|(_, m)| args::given(m)).unwrap_or_default();
            estimate(args, &given)
        }
        Command::Explain(args) => explanation::run(args),
        Command::Replay(args) => snapshots::replay(args),
        Command::Diff(args) => snapshots::diff(args),
        Command::Export(args) => snapshots::export(args),
        Command::Models(args) => lists::models(args),
        Command::Gpus(args) => lists::gpus(args),
        Command::Completions { shell } => completions(*shell),
    };
    result.unwrap_or_else(|error| exit::report(&error))
}

/// Help and version are answers, everything else that the parser says is a usage error.
fn usage(error: &clap::Error) -> Exit {
    let printed = error.print();
    match (error.use_stderr(), printed) {
        (true, _) => Exit::Usage,
        (false, Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => Exit::Output,
        (false, _) => Exit::Success,
    }
}

fn estimate(args: &args::EstimateArgs, given: &[String]) -> Result<Exit, CliError> {
    let request = high::request(args, given)?;
    if args.output.all_gpus {
        return lists::all_gpus(&request, args.output.json);
    }
    let response = plimsoll_engine::estimate(&request)?;
    if let Some(path) = &args.output.plot {
        output::plot(&response, path)?;
    }
    let text = if args.output.json {
        output::json(&response)?
    } else if let Some(term) = &args.output.explain {
        explain::text(&response, term)?
    } else {
        let looked = match args.output.no_changes {
            true => render::Changes::Skipped,
            false => render::Changes::Searched,
        };
        render::screen(&response, looked, output::width())
    };
    output::print(&text)?;
    Ok(Exit::of(response.verdict))
}

fn completions(shell: clap_complete::Shell) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "plimsoll", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
