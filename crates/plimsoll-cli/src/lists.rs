//! `plimsoll models`, `plimsoll gpus` and `--all-gpus`.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use plimsoll_engine::{Request, Verdict};

use crate::args::ListArgs;
use crate::exit::{CliError, Exit};
use crate::output;

/// A bare table: headings, no lines, right-aligned columns where asked.
pub fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.to_vec());
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The table's text without trailing blanks.
pub fn text(table: &Table) -> String {
    let mut text: String = table.lines().map(|l| format!("{}\n", l.trim_end())).collect();
    if text.is_empty() {
        text.push('\n');
    }
    text
}

/// Lists models.
pub fn models(args: &ListArgs) -> Result<Exit, CliError> {
    let rows = plimsoll_engine::list_models(&args.filter);
    if rows.is_empty() {
        return Err(nothing("model", &args.filter));
    }
    if args.json {
        output::print(&output::json(&rows)?)?;
        return Ok(Exit::Success);
    }
    let mut table =
        table(&["MODEL", "PARAMETERS", "ACTIVE", "POSITIONS", "FAMILY", "DATE"], &[1, 2, 3]);
    for row in &rows {
        table.add_row([
            row.name.to_owned(),
            billions(row.parameters),
            if row.active == row.parameters { String::new() } else { billions(row.active) },
            row.max_positions.map_or(String::new(), |n| n.to_string()),
            row.family.clone(),
            row.date.to_owned(),
        ]);
    }
    output::print(&text(&table))?;
    Ok(Exit::Success)
}

/// Lists GPUs.
pub fn gpus(args: &ListArgs) -> Result<Exit, CliError> {
    let rows = plimsoll_engine::list_gpus(&args.filter);
    if rows.is_empty() {
        return Err(nothing("GPU", &args.filter));
    }
    if args.json {
        output::print(&output::json(&rows)?)?;
        return Ok(Exit::Success);
    }
    let mut table =
        table(&["GPU", "USABLE", "PRINTED", "GB/S", "TFLOP/S", "TARGET", "NAME"], &[1, 2, 3, 4]);
    for row in &rows {
        table.add_row([
            row.id.to_owned(),
            row.usable.to_string() + if row.measured { "" } else { "*" },
            row.printed.to_string(),
            row.bandwidth_gbps.to_string(),
            row.half_tflops.map_or(String::new(), |n| n.to_string()),
            row.target.clone(),
            row.name.to_owned(),
        ]);
    }
    let mut shown = text(&table);
    if rows.iter().any(|r| !r.measured) {
        shown.push_str("* derived from the printed total, not measured\n");
    }
    output::print(&shown)?;
    Ok(Exit::Success)
}

/// Tries every GPU.
pub fn all_gpus(request: &Request, as_json: bool) -> Result<Exit, CliError> {
    let mut rows = plimsoll_engine::all_gpus(request)?;
    let any = rows.iter().any(|r| r.verdict.fits());
    let exit = if any { Exit::Success } else { Exit::DoesNotFit };
    if as_json {
        output::print(&output::json(&rows)?)?;
        return Ok(exit);
    }
    rows.sort_by(|a, b| (a.capacity, &a.id).cmp(&(b.capacity, &b.id)));
    let mut table = table(&["GPU", "USABLE", "NEEDED", "MARGIN", "VERDICT"], &[1, 2, 3]);
    for row in &rows {
        let sign = if row.margin < 0 { "-" } else { "" };
        let margin = plimsoll_engine::Bytes::new(row.margin.unsigned_abs());
        table.add_row([
            row.id.clone(),
            row.capacity.to_string(),
            row.device.to_string(),
            format!("{sign}{margin}"),
            mark(row.verdict),
        ]);
    }
    output::print(&text(&table))?;
    Ok(exit)
}

fn mark(verdict: Verdict) -> String {
    verdict.to_string()
}

fn nothing(what: &str, filter: &str) -> CliError {
    CliError::usage(
        format!("no {what} matches `{filter}`"),
        format!("`plimsoll {}s` without a filter lists all", what.to_ascii_lowercase()),
    )
}

/// `8.03B`, `124M`: three digits, for tables.
pub fn billions(n: u64) -> String {
    let (value, unit) = match n {
        0..1_000_000 => return n.to_string(),
        1_000_000..1_000_000_000 => (n / 10_000, "M"),
        1_000_000_000..1_000_000_000_000 => (n / 10_000_000, "B"),
        _ => (n / 10_000_000_000, "T"),
    };
    match value {
        0..1000 => format!("{}.{:02}{unit}", value / 100, value % 100),
        1000..10_000 => format!("{}.{}{unit}", value / 100, value % 100 / 10),
        _ => format!("{}{unit}", value / 100),
    }
}
