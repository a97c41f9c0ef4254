//! `plimsoll explain FILE...`: opens the files, looks what each is, and hands them to what explains that kind.

use std::fs::File;
use std::io::{self, Read};

use plimsoll_engine::{
    EngineError, ExplainInput, ExplainSource, LogExplainer, SnapshotExplainer, SnapshotOptions,
};

use crate::args::ExplainArgs;
use crate::exit::{CliError, Exit};
use crate::{output, render};

/// Explains the files and prints the answer.
pub fn run(args: &ExplainArgs) -> Result<Exit, CliError> {
    let mut logs = LogExplainer::new();
    let mut snapshots = SnapshotExplainer::new(SnapshotOptions {
        device: args.device,
        total: args.total.map(|size| size.0),
        used: args.used.map(|size| size.0),
        listed: Some(args.top.max(20)),
    });
    if args.files.iter().filter(|name| *name == "-").count() > 1 {
        return Err(CliError::usage("- is named twice", "standard input can be read once"));
    }
    let mut first: Option<(&str, ExplainInput)> = None;
    for name in &args.files {
        let failed = |error| CliError::Read { path: name.clone(), error };
        let source = open(name).map_err(failed)?;
        let source = ExplainSource::open(source).map_err(|error| failed(unpacking(error)))?;
        let kind = source.kind();
        if !matches!(kind, ExplainInput::Log | ExplainInput::Snapshot) {
            return Err(foreign(name, kind).into());
        }
        match first {
            Some((other, seen)) if seen != kind => return Err(mixed(other, name)),
            _ => first = Some((name, kind)),
        }
        match kind {
            ExplainInput::Log => logs.read(name, source).map_err(failed)?,
            // Of many ranks, those that can be read are explained.
            ExplainInput::Snapshot if args.files.len() > 1 => snapshots.try_read(name, source),
            ExplainInput::Snapshot => snapshots.read(name, source)?,
            kind => return Err(foreign(name, kind).into()),
        }
    }
    let explanation = match first {
        Some((_, ExplainInput::Snapshot)) => snapshots.finish()?,
        _ => logs.finish()?,
    };
    let text = if args.json {
        output::json(&explanation)?
    } else {
        render::explanation(&explanation, args.top, output::width())
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

/// An error while a compressed file is unpacked, with its cure; others as they are.
fn unpacking(error: io::Error) -> io::Error {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    match error.kind() {
        InvalidData | InvalidInput | UnexpectedEof => io::Error::new(
            error.kind(),
            format!("its compressed data is cut short or damaged ({error}); copy the file again"),
        ),
        _ => error,
    }
}

fn mixed(first: &str, second: &str) -> CliError {
    CliError::usage(
        format!("{first} and {second} are of different kinds"),
        "explain logs and snapshots one after the other",
    )
}

/// The file, or standard input for `-`.
pub fn open(name: &str) -> io::Result<Box<dyn Read>> {
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
        ExplainInput::Compressed => ("compressed twice", "unpack it once"),
        ExplainInput::Foreign("empty") => (
            "empty",
            "nothing was written to it: log stderr as well (2>&1), or dump the snapshot again and look whether the \
             disk is full",
        ),
        ExplainInput::Foreign(what) => (
            what,
            "`plimsoll explain` reads logs and memory snapshots; `plimsoll estimate` reads models",
        ),
        _ => ("something else", "give the text that the program printed"),
    };
    EngineError::NotExplained { name: name.to_owned(), what: what.to_owned(), cure }
}
