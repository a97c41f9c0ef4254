//! The tables of a file, put together into a [`Snapshot`], with what there is to say about them.

use super::rows::{Root, Seen, Tables};
use super::value::{self, Value};
use super::{Action, Segment, Snapshot, Trace, Writer};
use crate::FormatError;

const NOT_A_SNAPSHOT: &str = "dump one with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";

/// Puts together what was read. `top` is the pickle's value, `cut_at` the end of a file that ends too early.
pub(super) fn finish(
    mut tables: Tables,
    top: Value,
    cut_at: Option<u64>,
    trailing: bool,
) -> Result<Snapshot, FormatError> {
    let mut remarks = Vec::new();
    let root = root(&mut tables, top, &mut remarks)?;
    let mut taken: Vec<Option<Trace>> =
        std::mem::take(&mut tables.traces).into_iter().map(Some).collect();
    let mut take = |list: Value| -> Vec<Trace> {
        let list = tables.trace_list(list);
        list.into_iter()
            .map(|at| at.and_then(|at| taken.get_mut(at as usize)?.take()).unwrap_or_default())
            .collect()
    };
    let traces = take(root.traces);
    let host_traces = take(root.host_traces);
    let segments = |list| -> Vec<Segment> {
        let rows = tables.segments.get(tables.rows(list, value::SEGMENT));
        let mut rows = rows.unwrap_or_default().to_vec();
        rows.sort_by_key(|s| (s.device, s.address));
        rows
    };
    let (host_segments, segments) = (segments(root.host_segments), segments(root.segments));
    let annotations = tables.annotations.get(tables.rows(root.annotations, value::ANNOTATION));
    let annotations = annotations.unwrap_or_default().to_vec();
    let unknown = tables.unknown_keys();
    let mut blocks = std::mem::take(&mut tables.blocks);
    // Blocks of a segment that was cut off belong to nothing.
    let used = segments.iter().chain(&host_segments).map(|s| s.blocks.end).max().unwrap_or(0);
    blocks.truncate(used as usize);
    let mut snapshot = Snapshot {
        names: tables.names.names,
        frames: tables.frames.frames,
        stacks: tables.stacks.stacks,
        streams: tables.streams,
        pools: tables.pools,
        segments,
        blocks,
        traces,
        extras: tables.extras,
        settings: tables.settings.filter(|_| root.settings),
        annotations,
        host_segments,
        host_traces,
        writer: writer(&tables.seen),
        cut_at,
        unknown,
        remarks,
    };
    let mut remarks = std::mem::take(&mut snapshot.remarks);
    if let Some(end) = cut_at {
        remarks.push(cut(&snapshot, end));
    }
    remarks.extend(emptiness(&snapshot));
    for (what, count) in tables.odd.counts {
        remarks.push(format!("{count} {what}"));
    }
    if tables.unlisted > 0 {
        remarks.push(format!("{} more unknown keys are not listed", tables.unlisted));
    }
    if trailing {
        remarks.push("data behind the end of the snapshot was not read".to_owned());
    }
    snapshot.remarks = remarks;
    Ok(snapshot)
}

/// The dictionary of the snapshot, wherever it is, or what stands in for it.
fn root(tables: &mut Tables, top: Value, remarks: &mut Vec<String>) -> Result<Root, FormatError> {
    let bare = |segments, traces| Root {
        segments,
        traces,
        settings: false,
        annotations: Value::NOTHING,
        host_segments: Value::NOTHING,
        host_traces: Value::NOTHING,
    };
    if top.is(value::ROOT)
        && let Some(root) = tables.roots.get(top.place() as usize)
    {
        return Ok(*root);
    }
    if let Some(root) = tables.roots.first() {
        let note = match tables.roots.len() {
            1 => "the snapshot lies inside another dictionary or list, whose other content was not read".to_owned(),
            n => format!("the file holds {n} snapshots; the first is shown"),
        };
        remarks.push(note);
        return Ok(*root);
    }
    let found = match top.tag() {
        value::ROWS if !tables.rows(top, value::SEGMENT).is_empty() => {
            remarks.push(
                "a bare list of segments, as torch.cuda.memory_snapshot() returns: there are no events".to_owned(),
            );
            return Ok(bare(top, Value::NOTHING));
        }
        value::TRACE | value::TRACES => {
            remarks.push("bare lists of events: there are no segments".to_owned());
            return Ok(bare(Value::NOTHING, top));
        }
        value::EMPTY => "an empty dictionary or list",
        value::INT | value::BIG | value::FLOAT | value::BOOL => "a number",
        value::TEXT | value::TEXTS => "text",
        value::NONE => "None",
        _ => "data without `segments` and `device_traces`",
    };
    Err(FormatError::NotSnapshot { found: format!("a pickle of {found}"), cure: NOT_A_SNAPSHOT })
}

fn cut(snapshot: &Snapshot, end: u64) -> String {
    let events: usize = snapshot.traces.iter().map(|t| t.events.len()).sum();
    format!(
        "the file is cut short at byte {end}: {} segments and {events} events were read, the newest events and whole \
         sections may be missing; copy or dump it again",
        snapshot.segments.len(),
    )
}

/// Why there is nothing, or little, to see.
fn emptiness(snapshot: &Snapshot) -> Option<String> {
    let events: usize = snapshot.traces.iter().map(|t| t.events.len()).sum();
    let stacks = snapshot.blocks.iter().any(|b| !b.stack.is_none());
    if snapshot.cut_at.is_some() {
        return None;
    }
    let segments = snapshot.segments.len();
    let text = match (segments, events) {
        (0, 0) => {
            "the snapshot is empty: this process held no memory of PyTorch's caching allocator when it was dumped. \
             Dump it in the process that allocates, before the model is deleted and empty_cache() is called"
        }
        (_, 0) if stacks => {
            "no events: the recording was cleared or switched off before the dump, or only the state was recorded. \
             Call torch.cuda.memory._record_memory_history(max_entries=...) and dump before it is switched off"
        }
        (_, 0) => {
            "no events and no stacks: nothing was recorded. Call torch.cuda.memory._record_memory_history() before \
             the model is made, and dump afterwards"
        }
        _ if snapshot.traces.iter().all(|t| t.events.len() <= 1)
            && snapshot
                .traces
                .iter()
                .flat_map(|t| &t.events)
                .all(|e| e.action != Action::OutOfMemory) =>
        {
            "one event only: the recording kept the state and no history (enabled=\"state\", or the default before \
             torch 2.1). Call torch.cuda.memory._record_memory_history(\"all\") for the timeline"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// The release, by what only it and later ones write.
fn writer(seen: &Seen) -> Writer {
    let signs = [
        (seen.host || seen.internal_metadata, Writer::V2_14),
        (seen.pool, Writer::V2_12),
        (seen.user_metadata, Writer::V2_10),
        (seen.capture_reuse, Writer::V2_9),
        (seen.compile_context, Writer::V2_8),
        (seen.annotations, Writer::V2_5),
        (seen.settings, Writer::V2_3),
        (seen.time, Writer::V2_2),
        (seen.history, Writer::V2_0),
        (seen.block_address, Writer::V2_1),
    ];
    signs.into_iter().find(|(seen, _)| *seen).map_or(Writer::Unknown, |(_, writer)| writer)
}
