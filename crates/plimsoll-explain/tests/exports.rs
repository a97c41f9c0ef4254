//! Exports of a recording whose truth is known: what a reader of the files adds up is what the recording says.

mod emulator;

use emulator::{Op, Process};
use plimsoll_explain::{
    Export, Format, PageText, Table, flame_graph, page, recording, replay_exact, write_perfetto,
    write_table,
};
use plimsoll_formats::snapshot::Snapshot;
use plimsoll_timeline::PyTorchConfig;
use serde_json::Value;

/// Some blocks from before the recording, some freed, some that stay, an emptied cache.
fn snapshot() -> Snapshot {
    let mut process = Process::new(PyTorchConfig::default());
    process.run(&[Op::Alloc(3 << 20, 0, 0), Op::Alloc(700, 0, 0)]);
    process.record();
    for n in 1..200u64 {
        process.run(&[Op::Alloc(n * 40_000, 0, 0), Op::Alloc(n * 3, 0, 0), Op::Free(n as usize)]);
    }
    process.run(&[Op::EmptyCache, Op::Alloc(90 << 20, 0, 0)]);
    process.dump()
}

fn rows(export: &Export<'_, '_>, table: Table) -> Vec<Value> {
    let mut text = Vec::new();
    write_table(export, table, Format::JsonLines, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sum<'a>(rows: impl Iterator<Item = &'a Value>, column: &str) -> u64 {
    rows.map(|row| row[column].as_u64().unwrap()).sum()
}

#[test]
fn blocks_alive_at_the_end_add_up_to_what_is_allocated() {
    let snapshot = snapshot();
    let recording = recording(&snapshot, 0).unwrap();
    let export = Export::new(&recording, 3);
    let blocks = rows(&export, Table::Blocks);
    assert_eq!(blocks.len(), recording.timeline.allocations().len());
    assert!(blocks.iter().all(|row| row["rank"] == 3 && row["device"] == 0));
    let alive = blocks.iter().filter(|row| row["death_event"].is_null());
    assert_eq!(sum(alive, "bytes"), replay_exact(&recording).allocated_at_end.get());
    assert_eq!(blocks.iter().filter(|row| row["birth_event"].is_null()).count(), 2);
}

#[test]
fn the_curve_reaches_the_peaks_of_the_replay() {
    let snapshot = snapshot();
    let recording = recording(&snapshot, 0).unwrap();
    let curve = rows(&Export::new(&recording, 0), Table::Curve);
    let highest = |column: &str| curve.iter().map(|row| row[column].as_u64().unwrap()).max();
    let peaks = replay_exact(&recording).peaks;
    assert_eq!(highest("allocated"), Some(peaks.allocated.get()));
    assert_eq!(highest("reserved"), Some(peaks.reserved.get()));
    assert_eq!(highest("requested"), Some(peaks.requested.get()));
}

/// The cells of a line of comma-separated values.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let last = cells.last_mut().unwrap();
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => last.extend(letters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => last.push(other),
        }
    }
    cells
}

#[test]
fn text_formats_hold_the_same_cells() {
    let snapshot = snapshot();
    let recording = recording(&snapshot, 0).unwrap();
    let export = Export::new(&recording, 0);
    for table in Table::ALL {
        let mut csv = Vec::new();
        write_table(&export, table, Format::Csv, &mut csv).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        let names: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
        assert_eq!(csv.lines().next(), Some(names.join(",").as_str()));
        let rows = rows(&export, table);
        assert_eq!(csv.lines().count(), rows.len() + 1, "{}", table.name());
        for (line, row) in csv.lines().skip(1).zip(&rows) {
            for (cell, name) in cells(line).into_iter().zip(&names) {
                let expected = match &row[*name] {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    number => number.to_string(),
                };
                assert_eq!(cell, expected, "{name}");
            }
        }
    }
    assert_eq!(rows(&export, Table::Events).len(), recording.events().len());
}

#[test]
fn the_trace_for_perfetto_is_json_and_its_counters_end_right() {
    let snapshot = snapshot();
    let recording = recording(&snapshot, 0).unwrap();
    let mut text = Vec::new();
    write_perfetto(&Export::new(&recording, 0), &mut text).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let last = events.iter().rfind(|event| event["name"] == "memory").unwrap();
    let end = replay_exact(&recording);
    assert_eq!(last["args"]["allocated"].as_u64(), Some(end.allocated_at_end.get()));
    assert_eq!(last["args"]["reserved"].as_u64(), Some(end.reserved_at_end.get()));
}

#[test]
fn pictures_are_well_formed() {
    let snapshot = snapshot();
    let recording = recording(&snapshot, 0).unwrap();
    let peak = replay_exact(&recording).peaks.allocated_event;
    let svg = flame_graph(&Export::new(&recording, 0), peak, "a <b> & \"c\"");
    let document = roxmltree::Document::parse(&svg).unwrap();
    assert!(document.descendants().filter(|node| node.has_tag_name("rect")).count() > 1);
    let text = PageText { title: "</script><b>".to_owned(), ..PageText::default() };
    let html = page(&recording, &text);
    assert!(!html.contains("</script><b>") && html.contains("&lt;/script&gt;&lt;b&gt;"));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files_hold_the_same_cells() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    let snapshot = snapshot();
    let recording = recording(&snapshot, 0).unwrap();
    let export = Export::new(&recording, 0);
    for table in Table::ALL {
        let mut file = Vec::new();
        plimsoll_explain::write_parquet(&export, table, &mut file).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(file)).unwrap();
        let expected = rows(&export, table);
        let mut count = 0;
        for (row, expected) in reader.get_row_iter(None).unwrap().zip(&expected) {
            for (name, field) in row.unwrap().get_column_iter() {
                let value = match field {
                    Field::Null => Value::Null,
                    Field::Long(number) => Value::from(*number),
                    Field::Str(text) => Value::from(text.as_str()),
                    other => panic!("{other}"),
                };
                assert_eq!(value, expected[name], "{name}");
            }
            count += 1;
        }
        assert_eq!(count, expected.len(), "{}", table.name());
    }
}
