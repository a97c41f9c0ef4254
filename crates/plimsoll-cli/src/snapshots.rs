//! `plimsoll replay`, `diff` and `export`: memory snapshots, opened here and handed to the engine.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll_engine::{
    EngineError, ExportFormat, ExportTable, ReplayOptions, diff_snapshots, export_snapshot,
    replay_snapshot,
};

use crate::args::{DiffArgs, ExportArgs, ExportTo, ReplayArgs, TableName};
use crate::exit::{CliError, Exit};
use crate::explanation::open;
use crate::{output, render};

/// Replays a snapshot and prints what came of it.
pub fn replay(args: &ReplayArgs) -> Result<Exit, CliError> {
    let failed = |error| CliError::Read { path: args.file.clone(), error };
    let options = ReplayOptions {
        device: args.device,
        set: args.set.clone(),
        conf: args.conf.clone(),
        capacity: args.capacity.map(|size| size.0),
        total: args.total.map(|size| size.0),
        tune: args.tune,
    };
    let response = replay_snapshot(&args.file, open(&args.file).map_err(failed)?, &options)?;
    let text = if args.json {
        output::json(&response)?
    } else {
        render::replay(&response, output::width())
    };
    output::print(&text)?;
    Ok(if response.fits() { Exit::Success } else { Exit::DoesNotFit })
}

/// Compares two snapshots and prints what differs.
pub fn diff(args: &DiffArgs) -> Result<Exit, CliError> {
    if args.before == "-" && args.after == "-" {
        return Err(CliError::usage("both snapshots are -", "name at least one file"));
    }
    let opened =
        |name: &String| open(name).map_err(|error| CliError::Read { path: name.clone(), error });
    let (before, after) = (opened(&args.before)?, opened(&args.after)?);
    let response =
        diff_snapshots((&args.before, before), (&args.after, after), args.device, args.top)?;
    let text = if args.json {
        output::json(&response)?
    } else {
        render::diff(&response, args.top, output::width())
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

/// Writes a snapshot in another format.
pub fn export(args: &ExportArgs) -> Result<Exit, CliError> {
    let table = match args.table {
        TableName::Blocks => ExportTable::Blocks,
        TableName::Events => ExportTable::Events,
        TableName::Stacks => ExportTable::Stacks,
        TableName::Curve => ExportTable::Curve,
    };
    let (format, ending) = format(args.to, table)?;
    let failed = |error| CliError::Read { path: args.file.clone(), error };
    let reader = open(&args.file).map_err(failed)?;
    let name = match &args.output {
        Some(name) => name.clone(),
        None if args.file == "-" => "-".to_owned(),
        None => beside(&args.file, args, ending),
    };
    let write = |to: &mut (dyn Write + Send)| {
        let total = args.total.map(|size| size.0);
        export_snapshot(&args.file, reader, args.device, args.rank, total, format, to)
    };
    let wrote = |written: Result<io::Result<()>, EngineError>, what: &str| {
        written?.map_err(|error| CliError::Write { what: what.to_owned(), error })
    };
    if name == "-" {
        // The lock of standard output cannot be handed to another thread, which writers of Parquet may want.
        let mut text = Vec::new();
        wrote(write(&mut text), "the result")?;
        return output::raw(&text).map(|()| Exit::Success);
    }
    // What is half written is not left behind under the name that was asked for.
    let partial = format!("{name}.part");
    let file =
        File::create(&partial).map_err(|error| CliError::Write { what: name.clone(), error })?;
    let mut to = BufWriter::new(file);
    let written = wrote(write(&mut to), &name).and_then(|()| {
        to.flush()
            .and_then(|()| std::fs::rename(&partial, &name))
            .map_err(|error| CliError::Write { what: name.clone(), error })
    });
    if written.is_err() {
        // It may never have come into being; there is nothing more to do about it.
        let _ = std::fs::remove_file(&partial);
    }
    written?;
    anstream::eprintln!("wrote {name}");
    Ok(Exit::Success)
}

fn format(to: ExportTo, table: ExportTable) -> Result<(ExportFormat, &'static str), CliError> {
    Ok(match to {
        ExportTo::Html => (ExportFormat::Html, "html"),
        ExportTo::Perfetto => (ExportFormat::Perfetto, "perfetto.json"),
        ExportTo::FlameGraph => (ExportFormat::FlameGraph, "flamegraph.svg"),
        ExportTo::Csv => (ExportFormat::Csv(table), "csv"),
        ExportTo::Jsonl => (ExportFormat::JsonLines(table), "jsonl"),
        #[cfg(feature = "parquet")]
        ExportTo::Parquet => (ExportFormat::Parquet(table), "parquet"),
        #[cfg(not(feature = "parquet"))]
        ExportTo::Parquet => {
            return Err(CliError::usage(
                "--to parquet: this build writes no Parquet",
                "build with `cargo build --release --features parquet`, or take --to jsonl, which the same tools read",
            ));
        }
    })
}

/// `run/rank3.pickle.gz` with the ending `csv` and the table `blocks`: `run/rank3.blocks.csv`.
fn beside(file: &str, args: &ExportArgs, ending: &str) -> String {
    let mut path = PathBuf::from(file);
    for known in ["gz", "zst", "pickle", "pkl", "html"] {
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case(known)) {
            path.set_extension("");
        }
    }
    let table = match args.to {
        ExportTo::Csv | ExportTo::Jsonl | ExportTo::Parquet => match args.table {
            TableName::Blocks => ".blocks",
            TableName::Events => ".events",
            TableName::Stacks => ".stacks",
            TableName::Curve => ".curve",
        },
        _ => "",
    };
    let stem = path.file_name().map_or("snapshot".into(), |name| name.to_string_lossy());
    let name = format!("{stem}{table}.{ending}");
    path.parent().unwrap_or(Path::new("")).join(name).to_string_lossy().into_owned()
}
