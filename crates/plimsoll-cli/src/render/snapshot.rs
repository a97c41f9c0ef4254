//! The screens of snapshots: what held the memory, drawn over time; what a replay came to; what grew.

use std::fmt::Write;

use plimsoll_engine::analysis::{
    Candidate, Change, Explanation as Explained, MomentState, NamedShare, Peaks, Remark,
    RemarkKind, Tuning, WhatIf, grouped,
};
use plimsoll_engine::{Bytes, DiffResponse, ReplayResponse, SnapshotReport};

use super::explanation::write_finding;
use super::{BAD, DIM, DOUBTFUL, GOOD, HEAD, indent, share, wrap};
use crate::lists;

/// Rows of the chart.
const ROWS: u64 = 9;

/// What a snapshot shows, without its findings.
pub fn report(out: &mut String, snapshot: &SnapshotReport, top: usize, width: usize) {
    let main = snapshot.ranks.as_ref().map_or(0, |ranks| ranks.worst);
    let Some(device) = snapshot.devices.get(main) else { return };
    let e = &device.explanation;
    let line = format!(
        "  {}, device {}: {} events, written by {}; {}",
        device.label,
        e.device,
        grouped(e.events.into()),
        snapshot.writer,
        exactness(e)
    );
    let _ = writeln!(out, "{DIM}{}{DIM:#}\n", wrap(&line, width, 0, 2));
    chart(out, e, width);
    let (title, state) = match &e.failed {
        Some(failed) => ("WHEN IT FAILED", &failed.state),
        None => ("AT THE PEAK", &e.peak),
    };
    categories(out, title, state);
    shares(out, "lines", &state.live.by_line, state.live.bytes, top);
    shares(out, "modules", &state.live.by_module, state.live.bytes, top);
    if let Some(ranks) = &snapshot.ranks {
        let _ = writeln!(out, "{HEAD}recordings{HEAD:#}");
        let mut table = lists::table(&["", "ALLOCATED", "RESERVED", ""], &[1, 2]);
        for rank in &ranks.ranks {
            table.add_row([
                rank.label.clone(),
                rank.peak.allocated.to_string(),
                rank.reserved_peak.to_string(),
                if rank.failed { "ran out".to_owned() } else { String::new() },
            ]);
        }
        indent(out, &lists::text(&table));
        out.push('\n');
    }
}

/// Remarks of the reader and of the recording.
pub fn remarks(out: &mut String, snapshot: &SnapshotReport, width: usize) {
    let main = snapshot.ranks.as_ref().map_or(0, |ranks| ranks.worst);
    let of_file = snapshot.remarks.iter().map(String::as_str);
    let recorded = snapshot.devices.get(main).map_or(&[][..], |d| &d.explanation.remarks);
    list_remarks(out, of_file, recorded, width);
}

fn list_remarks<'a>(
    out: &mut String,
    of_file: impl Iterator<Item = &'a str>,
    recorded: &[Remark],
    width: usize,
) {
    let mut lines: Vec<String> = of_file.map(|remark| format!("  {remark}")).collect();
    lines.extend(recorded.iter().map(|remark| {
        let kind = match remark.kind {
            RemarkKind::Assumed => "assumed",
            RemarkKind::Incomplete => "incomplete",
            _ => "inconsistent",
        };
        format!("  {kind}: {}", remark.text)
    }));
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "{HEAD}about the recording{HEAD:#}");
    for line in lines {
        let _ = writeln!(out, "{DIM}{}{DIM:#}", wrap(&line, width, 0, 4));
    }
}

fn exactness(e: &Explained) -> String {
    if e.exact.exact {
        "a replay under its own settings reproduces it exactly".to_owned()
    } else {
        match e.exact.departures_in_all {
            1 => "a replay under its own settings departs in one place".to_owned(),
            n => format!("a replay under its own settings departs in {} places", grouped(n)),
        }
    }
}

/// Memory over the recording: allocated in full blocks, what is reserved beyond in light ones.
fn chart(out: &mut String, e: &Explained, width: usize) {
    let top = e.curve.iter().map(|point| point.reserved).max().unwrap_or_default();
    if e.curve.len() < 2 || top.is_zero() {
        return;
    }
    let columns = width.saturating_sub(16).clamp(24, 96);
    let last = e.curve.last().map_or(0, |point| point.event).max(1);
    let mut heights = vec![(Bytes::ZERO, Bytes::ZERO); columns];
    let mut before = (Bytes::ZERO, Bytes::ZERO);
    let mut filled = vec![false; columns];
    for point in &e.curve {
        let column = (u64::from(point.event) * (columns as u64 - 1) / u64::from(last)) as usize;
        let height = &mut heights[column];
        *height = (height.0.max(point.allocated), height.1.max(point.reserved));
        filled[column] = true;
    }
    for (height, filled) in heights.iter_mut().zip(filled) {
        if !filled {
            *height = before;
        }
        before = *height;
    }
    // Half rows: each row has a lower and an upper half.
    let halves = |bytes: Bytes| {
        (u128::from(bytes.get()) * u128::from(ROWS * 2)).div_ceil(u128::from(top.get()).max(1))
            as u64
    };
    for row in (0..ROWS).rev() {
        let label = match row {
            r if r == ROWS - 1 => top.to_string(),
            0 => "0".to_owned(),
            r if r == ROWS / 2 => Bytes::new(top.get() / 2).to_string(),
            _ => String::new(),
        };
        let _ = write!(out, "  {label:>11} ");
        for (allocated, reserved) in &heights {
            let filled = halves(*allocated).saturating_sub(row * 2);
            let held = halves(*reserved).saturating_sub(row * 2);
            out.push(match (filled, held) {
                (2.., _) => '█',
                (1, _) => '▄',
                (0, 1..) => '░',
                (0, 0) => ' ',
            });
        }
        let _ = writeln!(out);
    }
    let _ = writeln!(
        out,
        "{DIM}{:14}█ allocated  ░ reserved beyond it, over {} events{DIM:#}\n",
        "",
        grouped(e.events.into())
    );
}

fn categories(out: &mut String, title: &str, state: &MomentState) {
    let total = state.live.bytes;
    let mut table = lists::table(&[title, "BYTES", "SHARE", "BLOCKS", "DECIDED BY"], &[1, 2, 3]);
    for row in &state.live.by_category {
        let rule = row.rules.first().map_or("", |rule| rule.name.as_str());
        let more = match row.rules.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        table.add_row([
            row.category.label().to_owned(),
            row.bytes.to_string(),
            share(row.bytes, total),
            grouped(row.tensors),
            format!("{rule}{more}"),
        ]);
    }
    table.add_row([
        "allocated".to_owned(),
        total.to_string(),
        String::new(),
        grouped(state.live.tensors),
        format!(
            "{} reserved, {} of it free",
            state.in_use.reserved,
            state.fragmentation.free_bytes()
        ),
    ]);
    indent(out, &lists::text(&table));
    if let Some(moment) = &state.moment
        && !moment.place.is_empty()
    {
        let scopes = moment.scopes.join(" > ");
        let scopes = if scopes.is_empty() { String::new() } else { format!(", in {scopes}") };
        let _ = writeln!(
            out,
            "{DIM}  at event {}, {}{scopes}{DIM:#}",
            grouped(moment.event.into()),
            moment.place
        );
    }
    out.push('\n');
}

fn shares(out: &mut String, title: &str, rows: &[NamedShare], total: Bytes, top: usize) {
    let rows: Vec<&NamedShare> = rows.iter().filter(|row| !row.name.is_empty()).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "{HEAD}{title}{HEAD:#}");
    let mut table = lists::table(&["BYTES", "SHARE", "BLOCKS", ""], &[0, 1, 2]);
    for row in rows.iter().take(top) {
        table.add_row([
            row.bytes.to_string(),
            share(row.bytes, total),
            grouped(row.tensors),
            row.name.clone(),
        ]);
    }
    indent(out, &lists::text(&table));
    out.push('\n');
}

/// The screen of `plimsoll replay`.
pub fn replay(r: &ReplayResponse, width: usize) -> String {
    let mut out = String::new();
    let style = if r.exact { GOOD } else { DOUBTFUL };
    let words = if r.exact { "exact" } else { "departs" };
    let settings = match r.recorded_settings.as_str() {
        "" => "torch's default settings".to_owned(),
        text => text.to_owned(),
    };
    let compared = &r.replay.compared;
    let rest = format!(
        ": under the recorded settings ({settings}), {} addresses, {} driver calls and {} final blocks were compared, {} depart",
        grouped(compared.allocations),
        grouped(compared.given + compared.given_back),
        grouped(compared.blocks),
        grouped(r.replay.departures_in_all)
    );
    let text = wrap(&rest, width, words.len(), 2);
    let _ = writeln!(out, "{style}{words}{style:#}{text}");
    let _ =
        writeln!(out, "{DIM}  {}, device {}, written by {}{DIM:#}\n", r.source, r.device, r.writer);
    for departure in r.departures.iter().take(3) {
        let at = departure.trace_index.map_or("at the end".to_owned(), |i| format!("event {i}"));
        let line = format!(
            "  {at}: {} expected, {} came; {}",
            departure.expected, departure.got, departure.why
        );
        let _ = writeln!(out, "{}", wrap(&line, width, 0, 4));
    }
    if !r.departures.is_empty() {
        out.push('\n');
    }
    let mut table = lists::table(&["", "REQUESTED", "ALLOCATED", "RESERVED"], &[1, 2, 3]);
    let mut row = |name: &str, peaks: &Peaks| {
        table.add_row([
            name.to_owned(),
            peaks.requested.to_string(),
            peaks.allocated.to_string(),
            peaks.reserved.to_string(),
        ]);
    };
    row("recorded", &r.peak);
    if let Some(what_if) = &r.what_if {
        row("as asked", &what_if.peaks);
        if let Some(peaks) = &what_if.peaks_without_limit {
            row("as asked, without a limit", peaks);
        }
    }
    indent(&mut out, &lists::text(&table));
    out.push('\n');
    if let Some(what_if) = &r.what_if {
        asked(&mut out, r.settings.as_deref().unwrap_or(""), what_if, width);
    }
    if let Some(tuning) = &r.tuning {
        tuned(&mut out, tuning, width);
    }
    let asked = r.what_if.as_ref().map_or(&[][..], |what_if| &what_if.remarks);
    let tuned = r.tuning.as_ref().map_or(&[][..], |tuning| &tuning.remarks);
    let mut all: Vec<Remark> = Vec::new();
    for remark in r.remarks.iter().chain(asked).chain(tuned) {
        if !all.contains(remark) {
            all.push(remark.clone());
        }
    }
    list_remarks(&mut out, std::iter::empty(), &all, width);
    out
}

fn asked(out: &mut String, settings: &str, what_if: &WhatIf, width: usize) {
    let settings = if settings.is_empty() { "torch's default settings" } else { settings };
    match &what_if.failure {
        None => {
            let line = format!(
                ": with {settings} every request is served{}",
                match what_if.retries {
                    0 => String::new(),
                    1 => "; the cache was given back once for that".to_owned(),
                    n => format!("; the cache was given back {} times for that", grouped(n)),
                }
            );
            let _ = writeln!(out, "{GOOD}fits{GOOD:#}{}\n", wrap(&line, width, 4, 2));
        }
        Some(failure) => {
            let line = format!(": with {settings} {}", failure.text);
            let _ = writeln!(out, "{BAD}does not fit{BAD:#}{}\n", wrap(&line, width, 12, 2));
        }
    }
}

fn tuned(out: &mut String, tuning: &Tuning, width: usize) {
    match &tuning.winner {
        Some(winner) => {
            let goal = match tuning.capacity {
                Some(capacity) => format!("fits {capacity}"),
                None => "reserves least".to_owned(),
            };
            let _ = writeln!(out, "{GOOD}best{GOOD:#}: {goal}");
            let line = if winner.line.is_empty() {
                "  torch's default settings".to_owned()
            } else {
                format!("  {}", winner.environment)
            };
            let _ = writeln!(out, "{line}\n");
        }
        None => {
            let line = ": no settings that were tried serve every request";
            let _ = writeln!(out, "{BAD}none fits{BAD:#}{}\n", wrap(line, width, 9, 2));
        }
    }
    let mut table =
        lists::table(&["SETTINGS", "", "RESERVED", "RETRIES", "DRIVER CALLS"], &[2, 3, 4]);
    let mut row = |candidate: &Candidate, name: &str| {
        let settings = if candidate.line.is_empty() { "default" } else { &candidate.line };
        let fits = match (tuning.capacity, candidate.fits) {
            (None, true) => "",
            (_, true) => "fits",
            (_, false) => "does not fit",
        };
        table.add_row([
            format!("{settings}{name}"),
            fits.to_owned(),
            candidate.reserved_peak.to_string(),
            grouped(candidate.retries),
            grouped(candidate.device_allocs + candidate.device_frees),
        ]);
    };
    if let Some(winner) = &tuning.winner {
        row(winner, "");
    }
    for candidate in &tuning.others {
        row(candidate, "");
    }
    row(&tuning.recorded, " (recorded)");
    indent(out, &lists::text(&table));
    let line = format!("  {} settings replayed", tuning.replayed);
    let _ = writeln!(out, "{DIM}{line}{DIM:#}\n");
}

/// The screen of `plimsoll diff`.
pub fn diff(r: &DiffResponse, top: usize, width: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{HEAD}{}{HEAD:#}", wrap(&r.headline, width, 0, 2));
    let _ = writeln!(out, "{DIM}  {} to {}{DIM:#}\n", r.before, r.after);
    let d = &r.difference;
    let mut table = lists::table(&["", "BEFORE", "AFTER", "CHANGE"], &[1, 2, 3]);
    for (name, before, after) in [
        ("allocated at the peak", d.peak.before.allocated, d.peak.after.allocated),
        ("requested at the peak", d.peak.before.requested, d.peak.after.requested),
        ("reserved at most", d.reserved_peak.before, d.reserved_peak.after),
        ("allocated at the end", d.end.before.allocated, d.end.after.allocated),
    ] {
        table.add_row([
            name.to_owned(),
            before.to_string(),
            after.to_string(),
            change(before, after),
        ]);
    }
    for setting in &d.settings {
        table.add_row([
            setting.name.clone(),
            setting.before.clone(),
            setting.after.clone(),
            String::new(),
        ]);
    }
    indent(&mut out, &lists::text(&table));
    out.push('\n');
    changes(&mut out, "categories at the peak", &d.peak.by_category, top);
    changes(&mut out, "lines at the peak", &d.peak.by_line, top);
    changes(&mut out, "lines at the end", &d.end.by_line, top);
    for finding in &r.findings {
        write_finding(&mut out, finding, width);
    }
    list_remarks(&mut out, r.remarks.iter().map(String::as_str), &[], width);
    out
}

fn changes(out: &mut String, title: &str, rows: &[Change], top: usize) {
    let rows: Vec<&Change> = rows.iter().filter(|row| row.before != row.after).take(top).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "{HEAD}{title}{HEAD:#}");
    let mut table = lists::table(&["CHANGE", "BEFORE", "AFTER", ""], &[0, 1, 2]);
    for row in rows {
        table.add_row([
            change(row.before, row.after),
            row.before.to_string(),
            row.after.to_string(),
            row.name.clone(),
        ]);
    }
    indent(out, &lists::text(&table));
    out.push('\n');
}

fn change(before: Bytes, after: Bytes) -> String {
    match before.cmp(&after) {
        std::cmp::Ordering::Less => format!("+{}", after - before),
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("-{}", before - after),
    }
}
