//! Four tables of a recording, with the same columns in every format: `blocks` (one row for each allocation), `events`
//! (one for each event of the trace), `stacks` (one for each frame of each stack) and `curve` (memory in use after each
//! change). The schema is part of the promise of this crate: columns are added at the end and keep their meaning.

use std::io::Write;

use plimsoll_formats::snapshot::{Action, StackId};
use plimsoll_timeline::Event;

use super::{Export, Written};
use crate::findings::NEVER;
use crate::place;

/// One of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// One row for each allocation.
    Blocks,
    /// One row for each event of the trace.
    Events,
    /// One row for each frame of each stack.
    Stacks,
    /// Memory in use after each event that changes it.
    Curve,
}

/// A format of tables that is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated, with a header line; quotes as RFC 4180 has them.
    Csv,
    /// One JSON object on each line.
    JsonLines,
}

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A whole number that is not negative.
    Integer,
    /// Text.
    Text,
}

/// A column. Every column but the first two may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: ColumnKind,
    /// What it holds, with its unit.
    pub meaning: &'static str,
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// Nothing is known.
    Null,
    /// A number.
    Integer(u64),
    /// Text.
    Text(&'a str),
}

impl From<Option<u64>> for Cell<'_> {
    fn from(value: Option<u64>) -> Self {
        value.map_or(Cell::Null, Cell::Integer)
    }
}

const fn integer(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: ColumnKind::Integer, meaning }
}

const fn text(name: &'static str, meaning: &'static str) -> Column {
    Column { name, kind: ColumnKind::Text, meaning }
}

const RANK: Column = integer("rank", "number of the file, as given to the export");
const DEVICE: Column = integer("device", "device index");

const BLOCKS: &[Column] = &[
    RANK,
    DEVICE,
    integer("block", "number of the allocation, in order of birth"),
    integer("birth_event", "event that made it; empty if it was there before the recording"),
    integer("death_event", "event that freed it; empty if it is live at the end"),
    integer("birth_us", "microseconds since 1970"),
    integer("death_us", "microseconds since 1970"),
    integer("address", "first address"),
    integer("bytes", "bytes of the block, as the allocator counts them"),
    integer("requested", "bytes that were asked for"),
    integer("stream", "number of the stream, 0 for the default one"),
    integer("pool", "number of the memory pool, 0 for the default one"),
    text("category", "what it is for"),
    text("rule", "why it is taken for that"),
    text("module", "modules, outermost first"),
    text("line", "source line or operator"),
    integer("stack", "number of the stack, 0 for none"),
];

const EVENTS: &[Column] = &[
    RANK,
    DEVICE,
    integer("event", "number in the trace"),
    integer("time_us", "microseconds since 1970"),
    text(
        "action",
        "alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, snapshot, oom, or the file's word",
    ),
    integer("address", "address; empty for oom"),
    integer(
        "size",
        "bytes: requested for alloc and frees, of the segment for segment events, rounded for oom",
    ),
    integer("device_free", "free bytes of the device, for oom"),
    integer("stream", "number of the stream, 0 for the default one"),
    integer("pool", "number of the memory pool, 0 for the default one"),
    integer("stack", "number of the stack, 0 for none"),
];

const STACKS: &[Column] = &[
    RANK,
    DEVICE,
    integer("stack", "number of the stack"),
    integer("depth", "0 for the innermost frame"),
    text("file", "source file"),
    integer("line", "line, empty where unknown"),
    text("function", "function"),
];

const CURVE: &[Column] = &[
    RANK,
    DEVICE,
    integer("event", "timeline event; empty for the state before the first"),
    integer("time_us", "microseconds since 1970"),
    integer("allocated", "bytes of live blocks"),
    integer("requested", "bytes that were asked for and not freed"),
    integer("reserved", "bytes held from the driver"),
];

impl Table {
    /// Every table.
    pub const ALL: [Table; 4] = [Table::Blocks, Table::Events, Table::Stacks, Table::Curve];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Blocks => "blocks",
            Table::Events => "events",
            Table::Stacks => "stacks",
            Table::Curve => "curve",
        }
    }

    /// Its columns, in order.
    pub const fn columns(self) -> &'static [Column] {
        match self {
            Table::Blocks => BLOCKS,
            Table::Events => EVENTS,
            Table::Stacks => STACKS,
            Table::Curve => CURVE,
        }
    }

    /// Hands its rows over, one by one.
    pub(super) fn rows(
        self,
        export: &Export<'_, '_>,
        take: &mut dyn FnMut(&[Cell<'_>]) -> Written,
    ) -> Written {
        match self {
            Table::Blocks => blocks(export, take),
            Table::Events => events(export, take),
            Table::Stacks => stacks(export, take),
            Table::Curve => curve(export, take),
        }
    }
}

type Take<'t> = &'t mut dyn FnMut(&[Cell<'_>]) -> Written;

fn blocks(export: &Export<'_, '_>, take: Take<'_>) -> Written {
    let recording = export.recording();
    let lives = &export.sorted.lives;
    let places: Vec<place::Place> =
        recording.stacks.iter().map(|stack| place::of_stack(recording.snapshot, *stack)).collect();
    let known = |event: u32| (event != NEVER).then_some(event);
    let time = |event: Option<u32>| event.and_then(|event| recording.time_of(event));
    let nowhere = place::Place::default();
    for (index, tensor) in recording.timeline.allocations().iter().enumerate() {
        let (birth, death) = (known(lives.born[index]), known(lives.freed[index]));
        let (address, bytes) = export.blocks[index];
        let (category, rule) = export.category(index);
        let place = places.get(tensor.origin.0 as usize).unwrap_or(&nowhere);
        take(&[
            Cell::Integer(export.rank.into()),
            Cell::Integer(recording.device.into()),
            Cell::Integer(index as u64),
            birth.map(u64::from).into(),
            death.map(u64::from).into(),
            time(birth).into(),
            time(death).into(),
            Cell::Integer(address),
            Cell::Integer(bytes),
            Cell::Integer(tensor.requested.get()),
            Cell::Integer(tensor.stream.into()),
            Cell::Integer(tensor.pool.0.into()),
            Cell::Text(category.label()),
            Cell::Text(rule.words()),
            Cell::Text(&place.module),
            Cell::Text(&place.what),
            Cell::Integer(recording.stack_of(tensor.origin).0.into()),
        ])?;
    }
    Ok(())
}

fn events(export: &Export<'_, '_>, take: Take<'_>) -> Written {
    let recording = export.recording();
    let snapshot = recording.snapshot;
    for (index, event) in recording.events().iter().enumerate() {
        let other = || {
            let extra = snapshot.extras.get(event.extra.0 as usize);
            extra.and_then(|extra| extra.action).map_or("", |name| snapshot.names.get(name))
        };
        let action = event.action.word().unwrap_or_else(other);
        let oom = event.action == Action::OutOfMemory;
        take(&[
            Cell::Integer(export.rank.into()),
            Cell::Integer(recording.device.into()),
            Cell::Integer(index as u64),
            (event.time_us > 0).then_some(event.time_us).into(),
            Cell::Text(action),
            (!oom).then_some(event.address).into(),
            Cell::Integer(event.size),
            oom.then_some(event.address).into(),
            Cell::Integer(event.stream.0.into()),
            Cell::Integer(event.pool.0.into()),
            Cell::Integer(event.stack.0.into()),
        ])?;
    }
    Ok(())
}

fn stacks(export: &Export<'_, '_>, take: Take<'_>) -> Written {
    let recording = export.recording();
    let snapshot = recording.snapshot;
    for stack in 1..snapshot.stacks.len() as u32 {
        for (depth, frame) in place::frames(snapshot, StackId(stack)).enumerate() {
            take(&[
                Cell::Integer(export.rank.into()),
                Cell::Integer(recording.device.into()),
                Cell::Integer(stack.into()),
                Cell::Integer(depth as u64),
                Cell::Text(snapshot.names.get(frame.file)),
                (frame.line > 0).then_some(u64::from(frame.line)).into(),
                Cell::Text(snapshot.names.get(frame.function)),
            ])?;
        }
    }
    Ok(())
}

/// A state of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub event: Option<u32>,
    pub allocated: u64,
    pub requested: u64,
    pub reserved: u64,
}

/// Hands over the state before the first event and after each one that changes it.
pub(super) fn states(export: &Export<'_, '_>, take: &mut dyn FnMut(State) -> Written) -> Written {
    let recording = export.recording();
    let timeline = &recording.timeline;
    let tensors = timeline.allocations();
    let mut state = State { event: None, allocated: 0, requested: 0, reserved: 0 };
    for (tensor, block) in tensors.iter().zip(&export.blocks).take(timeline.existing() as usize) {
        state.allocated = state.allocated.saturating_add(block.1);
        state.requested = state.requested.saturating_add(tensor.requested.get());
    }
    let mut reserved = export.reserved.iter().peekable();
    if let Some((_, bytes)) = reserved.next() {
        state.reserved = *bytes;
    }
    take(state)?;
    for (index, event) in (0u32..).zip(timeline.events()) {
        let before = state;
        match *event {
            Event::Alloc(id) => {
                state.allocated = state.allocated.saturating_add(export.blocks[id.0 as usize].1);
                let requested = tensors[id.0 as usize].requested.get();
                state.requested = state.requested.saturating_add(requested);
            }
            Event::Free(id) | Event::FreeRequested(id) => {
                let id = id.0 as usize;
                state.allocated = state.allocated.saturating_sub(export.blocks[id].1);
                state.requested = state.requested.saturating_sub(tensors[id].requested.get());
            }
            _ => {}
        }
        while let Some((_, bytes)) = reserved.next_if(|(from, _)| *from <= index) {
            state.reserved = *bytes;
        }
        state.event = before.event;
        if state != before {
            state.event = Some(index);
            take(state)?;
        }
    }
    Ok(())
}

fn curve(export: &Export<'_, '_>, take: Take<'_>) -> Written {
    let recording = export.recording();
    states(export, &mut |state| {
        take(&[
            Cell::Integer(export.rank.into()),
            Cell::Integer(recording.device.into()),
            state.event.map(u64::from).into(),
            state.event.and_then(|event| recording.time_of(event)).into(),
            Cell::Integer(state.allocated),
            Cell::Integer(state.requested),
            Cell::Integer(state.reserved),
        ])
    })
}

/// Writes a table as text.
///
/// # Errors
/// What the receiver reports.
pub fn write_table(
    export: &Export<'_, '_>,
    table: Table,
    format: Format,
    to: &mut dyn Write,
) -> Written {
    let columns = table.columns();
    let mut line = String::new();
    if format == Format::Csv {
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        writeln!(to, "{}", names.join(","))?;
    }
    table.rows(export, &mut |cells| {
        line.clear();
        match format {
            Format::Csv => csv(&mut line, cells),
            Format::JsonLines => json(&mut line, columns, cells),
        }
        line.push('\n');
        to.write_all(line.as_bytes())
    })
}

fn csv(line: &mut String, cells: &[Cell<'_>]) {
    for (at, cell) in cells.iter().enumerate() {
        if at > 0 {
            line.push(',');
        }
        match cell {
            Cell::Null => {}
            Cell::Integer(number) => line.push_str(&number.to_string()),
            Cell::Text(text) if text.contains([',', '"', '\n', '\r']) => {
                line.push('"');
                line.push_str(&text.replace('"', "\"\""));
                line.push('"');
            }
            Cell::Text(text) => line.push_str(text),
        }
    }
}

fn json(line: &mut String, columns: &[Column], cells: &[Cell<'_>]) {
    line.push('{');
    for (at, (column, cell)) in columns.iter().zip(cells).enumerate() {
        if at > 0 {
            line.push(',');
        }
        line.push('"');
        line.push_str(column.name);
        line.push_str("\":");
        match cell {
            Cell::Null => line.push_str("null"),
            Cell::Integer(number) => line.push_str(&number.to_string()),
            Cell::Text(text) => line.push_str(&serde_json::Value::from(*text).to_string()),
        }
    }
    line.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_what_needs_it() {
        let mut line = String::new();
        csv(&mut line, &[Cell::Integer(7), Cell::Null, Cell::Text("a,\"b\""), Cell::Text("plain")]);
        assert_eq!(line, "7,,\"a,\"\"b\"\"\",plain");
    }

    #[test]
    fn json_escapes_what_needs_it() {
        let mut line = String::new();
        let columns = &STACKS[2..5];
        json(&mut line, columns, &[Cell::Integer(7), Cell::Null, Cell::Text("a\"\n")]);
        assert_eq!(line, r#"{"stack":7,"depth":null,"file":"a\"\n"}"#);
    }

    #[test]
    fn column_names_are_unique() {
        for table in Table::ALL {
            let mut names: Vec<&str> = table.columns().iter().map(|c| c.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.columns().len(), "{}", table.name());
        }
    }
}
