//! Opens a memory snapshot and prints what is in it: `snapshot FILE [--lines]`. With `--lines` every segment, block
//! and event is printed, for comparison with another reader.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

use plimsoll_formats::snapshot::{self, Action, Snapshot, StackId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: snapshot FILE [--lines]")?;
    let lines = arguments.next().is_some_and(|a| a == "--lines");
    let file = File::open(&path)?;
    let bytes = file.metadata()?.len();
    let begin = Instant::now();
    let snapshot = snapshot::read(file)?;
    let seconds = begin.elapsed().as_secs_f64();
    if lines {
        return Ok(print_lines(&snapshot)?);
    }
    let events: usize = snapshot.traces.iter().map(|t| t.events.len()).sum();
    println!("{path}: {bytes} bytes in {seconds:.2} s, {:.0} MB/s", bytes as f64 / 1e6 / seconds);
    println!(
        "{:?}, {} segments, {} blocks, {events} events",
        snapshot.writer,
        snapshot.segments.len(),
        snapshot.blocks.len()
    );
    println!(
        "{} texts, {} frames, {} stacks, {} streams, {} pools, {} annotations",
        snapshot.names.len(),
        snapshot.frames.len(),
        snapshot.stacks.len(),
        snapshot.streams.len(),
        snapshot.pools.len(),
        snapshot.annotations.len(),
    );
    println!("{:?}", snapshot.settings);
    println!("{:?}", snapshot.unknown);
    for remark in &snapshot.remarks {
        println!("{remark}");
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(line) = status.lines().find(|l| l.starts_with("VmHWM"))
    {
        println!("{line}");
    }
    Ok(())
}

fn stack(snapshot: &Snapshot, id: StackId) -> String {
    let mut text = String::new();
    for frame in snapshot.stacks.get(id) {
        let frame = snapshot.frames[frame.0 as usize];
        let (file, function) = (snapshot.names.get(frame.file), snapshot.names.get(frame.function));
        let _ = write!(text, "|{file}:{}:{function}", frame.line);
    }
    text
}

fn print_lines(snapshot: &Snapshot) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    for s in &snapshot.segments {
        let requested = s.requested_size.map_or(-1, |b| b.get() as i128);
        let (stream, pool) =
            (snapshot.streams[usize::from(s.stream.0)], snapshot.pools[usize::from(s.pool.0)]);
        let (total, allocated, active) =
            (s.total_size.get(), s.allocated_size.get(), s.active_size.get());
        let (kind, expandable) = (format!("{:?}", s.kind).to_lowercase(), s.expandable);
        writeln!(
            out,
            "segment {} {} {total} {allocated} {active} {requested} {stream} {kind} {},{} {expandable} {}",
            s.device,
            s.address,
            pool.0,
            pool.1,
            stack(snapshot, s.stack),
        )?;
        for b in &snapshot.blocks[s.blocks.start as usize..s.blocks.end as usize] {
            let (size, requested) = (b.size.get(), b.requested.get());
            writeln!(
                out,
                "block {} {size} {requested} {:?} {}",
                b.address,
                b.state,
                stack(snapshot, b.stack)
            )?;
        }
    }
    for (device, trace) in snapshot.traces.iter().enumerate() {
        for e in &trace.events {
            let extra = &snapshot.extras[e.extra.0 as usize];
            let name = |id: Option<snapshot::NameId>| id.map_or("", |id| snapshot.names.get(id));
            let action = match e.action {
                Action::Other => name(extra.action).to_owned(),
                action => format!("{action:?}"),
            };
            let (stream, pool) =
                (snapshot.streams[usize::from(e.stream.0)], snapshot.pools[usize::from(e.pool.0)]);
            writeln!(
                out,
                "event {device} {action} {} {} {stream} {} {},{} <{}> <{}> {}",
                e.address,
                e.size,
                e.time_us,
                pool.0,
                pool.1,
                name(extra.compile_context),
                name(extra.user_metadata),
                stack(snapshot, e.stack),
            )?;
        }
    }
    for a in &snapshot.annotations {
        writeln!(
            out,
            "annotation {} {:?} {} {}",
            snapshot.names.get(a.name),
            a.stage,
            a.device,
            a.time_us
        )?;
    }
    out.flush()
}
