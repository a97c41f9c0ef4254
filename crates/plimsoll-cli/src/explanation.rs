//! `plimsoll explain FILE...`: opens the files, looks what each is, and hands them to what explains that kind.

use std::fs::File;
use std::io::{self, Read};

use plimsoll_engine::{EngineError, ExplainInput, ExplainSource, LogExplainer};

use crate::args::ExplainArgs;
use crate::exit::{CliError, Exit};
use crate::{output, render};

/// Explains the files and prints the answer.
pub fn run(args: &ExplainArgs) -> Result<Exit, CliError> {
    let mut logs = LogExplainer::new();
    for name in &args.files {
        let failed = |error| CliError::Read { path: name.clone(), error };
        let source = ExplainSource::open(open(name).map_err(failed)?).map_err(failed)?;
        match source.kind() {
            ExplainInput::Log => logs.read(name, source).map_err(failed)?,
            kind => return Err(foreign(name, kind).into()),
        }
    }
    let explanation = logs.finish()?;
    let text = if args.json {
        output::json(&explanation)?
    } else {
        render::explanation(&explanation, output::width())
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

/// The file, or standard input for `-`.
fn open(name: &str) -> io::Result<Box<dyn Read>> {
    if name == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(name)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder; name the files"));
    }
    Ok(Box::new(file))
}

/// What cannot be explained yet, or at all.
fn foreign(name: &str, kind: ExplainInput) -> EngineError {
    let (what, cure) = match kind {
        ExplainInput::Snapshot => (
            "a pickle, as memory snapshots are",
            "this version explains logs; give the text that the program printed",
        ),
        ExplainInput::Compressed => ("compressed twice", "unpack it once"),
        ExplainInput::Foreign(what) => {
            (what, "`plimsoll explain` reads logs; `plimsoll estimate` reads models")
        }
        _ => ("something else", "give the text that the program printed"),
    };
    EngineError::NotExplained { name: name.to_owned(), what: what.to_owned(), cure }
}
