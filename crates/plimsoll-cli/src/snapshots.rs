//! `plimsoll replay`, `diff` and `export`: memory snapshots, opened here and handed to the engine.

use std::fs::{self, File, OpenOptions};
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
    if args.output.as_ref().is_some_and(|output| same_file(&args.file, output)) {
        return Err(CliError::usage(
            format!("{}: the recording would be overwritten", args.file),
            "give -o another name",
        ));
    }
    let name = match &args.output {
        Some(name) => name.clone(),
        None if args.file == "-" => "-".to_owned(),
        None => beside(&args.file, args, ending),
    };
    let write = |to: &mut (dyn Write + Send)| {
        let total = args.total.map(|size| size.0);
        export_snapshot(&args.file, reader, args.device, args.rank, total, format, to)
    };
    let wrote = |written: Result<io::Result<Vec<String>>, EngineError>, what: &str| {
        written?.map_err(|error| CliError::Write { what: what.to_owned(), error })
    };
    if name == "-" {
        // The lock of standard output cannot be handed to another thread, which writers of Parquet may want.
        let mut text = Vec::new();
        let remarks = wrote(write(&mut text), "the result")?;
        output::raw(&text)?;
        tell(&remarks);
        return Ok(Exit::Success);
    }
    let failed = |error| CliError::Write { what: name.clone(), error };
    let target = Target::open(&name).map_err(failed)?;
    let mut to = BufWriter::new(&target.file);
    let written = wrote(write(&mut to), &name)
        .and_then(|remarks| to.flush().map(|()| remarks).map_err(failed));
    drop(to);
    let remarks = target.close(written, &name)?;
    tell(&remarks);
    anstream::eprintln!("wrote {name}");
    Ok(Exit::Success)
}

/// What the reader could live with, where it cannot stand in the result.
fn tell(remarks: &[String]) {
    for remark in remarks {
        anstream::eprintln!("note: {remark}");
    }
}

/// Whether two names lead to one file.
fn same_file(one: &str, other: &str) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other && one.is_file(),
        _ => false,
    }
}

/// Where an export goes. What is half written is not left behind under the name that was asked for; devices and
/// pipes are written as they are, for a file must not take their place.
struct Target {
    file: File,
    /// The file that is written, and the one that it becomes.
    renamed: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn open(name: &str) -> io::Result<Target> {
        let path = Path::new(name);
        match fs::metadata(path) {
            Ok(there) if there.is_dir() => {
                let text = "it is a folder; name a file in it";
                return Err(io::Error::new(io::ErrorKind::IsADirectory, text));
            }
            Ok(there) if !there.is_file() => {
                let file = OpenOptions::new().write(true).open(path)?;
                return Ok(Target { file, renamed: None });
            }
            _ => {}
        }
        // A link keeps leading where it does.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut partial = path.clone().into_os_string();
        partial.push(format!(".{}.part", std::process::id()));
        let partial = PathBuf::from(partial);
        let file = OpenOptions::new().write(true).create_new(true).open(&partial)?;
        Ok(Target { file, renamed: Some((partial, path)) })
    }

    fn close<T>(self, written: Result<T, CliError>, name: &str) -> Result<T, CliError> {
        let Some((partial, path)) = self.renamed else { return written };
        let closed = written.and_then(|value| {
            fs::rename(&partial, &path)
                .map(|()| value)
                .map_err(|error| CliError::Write { what: name.to_owned(), error })
        });
        if closed.is_err() {
            // There is nothing more to do about it.
            let _ = fs::remove_file(&partial);
        }
        closed
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_never_takes_the_place_of_a_device_or_folder() {
        let folder = std::env::temp_dir().join(format!("plimsoll-target-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let name = |file: &str| folder.join(file).to_string_lossy().into_owned();
        assert!(Target::open(&name("")).is_err());
        assert!(Target::open(&name("missing/file.csv")).is_err());

        // Written whole under its name, and nothing beside it.
        let to = name("out.csv");
        let target = Target::open(&to).unwrap();
        (&target.file).write_all(b"whole").unwrap();
        assert!(!Path::new(&to).exists());
        target.close(Ok(()), &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"whole");
        // What fails leaves the older file as it was.
        let target = Target::open(&to).unwrap();
        (&target.file).write_all(b"half").unwrap();
        assert!(target.close::<()>(Err(CliError::usage("", "")), &to).is_err());
        assert_eq!(fs::read(&to).unwrap(), b"whole");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert!(same_file(&to, &to) && !same_file(&to, &name("other")));

        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("out.csv", name("link.csv")).unwrap();
            let link = name("link.csv");
            assert!(same_file(&to, &link));
            let target = Target::open(&link).unwrap();
            (&target.file).write_all(b"through").unwrap();
            target.close(Ok(()), &link).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read(&to).unwrap(), b"through");
            // Opened and not replaced: a device has no file beside it.
            assert!(Target::open("/dev/null").unwrap().renamed.is_none());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
