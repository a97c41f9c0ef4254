//! The screen of `plimsoll explain`: what happened and why, first; who held the device; every figure with its meaning;
//! findings with what to do; the command that models the run.

use std::fmt::Write;

use anstyle::Style;
use plimsoll_engine::{
    Bytes, DevicePart, Explanation, FailureSummary, Figure, Finding, LogReport, Meaning,
};

use super::{BAD, DIM, DOUBTFUL, GOOD, HEAD, figure_text, indent, share, wrap};
use crate::lists;

/// The whole report, at most `width` columns where words can wrap.
pub fn explanation(e: &Explanation, top: usize, width: usize) -> String {
    let mut out = String::new();
    let failed = e.log.as_ref().is_some_and(|l| l.main.is_some())
        || e.snapshot.as_ref().is_some_and(|s| s.failed());
    let style = if failed { BAD } else { GOOD };
    let first = e.headline.split(": ").next().unwrap_or_default();
    let text = wrap(&e.headline, width, 0, 2);
    let rest = text.strip_prefix(first).unwrap_or_default();
    match text.starts_with(first) {
        true => {
            let _ = writeln!(out, "{style}{first}{style:#}{rest}");
        }
        false => {
            let _ = writeln!(out, "{style}{text}{style:#}");
        }
    }
    if let Some(log) = &e.log {
        report(&mut out, log, width);
    }
    if let Some(snapshot) = &e.snapshot {
        super::snapshot::report(&mut out, snapshot, top, width);
    }
    for finding in &e.findings {
        write_finding(&mut out, finding, width);
    }
    if let Some(log) = &e.log {
        before(&mut out, log, width);
    }
    if let Some(snapshot) = &e.snapshot {
        super::snapshot::remarks(&mut out, snapshot, width);
    }
    modelled(&mut out, e, width);
    out
}

fn report(out: &mut String, log: &LogReport, width: usize) {
    let Some(main) = &log.main else {
        out.push('\n');
        division(out, log, width);
        return;
    };
    let _ = writeln!(out, "{}\n", wrap(&format!("  {}", place(main)), width, 0, 2));
    division(out, log, width);
    meanings(out, &main.figures, width);
}

/// `train.log:120, rank 3, GPU 0; train.py:41 in main, in the backward pass; printed 3 times`.
fn place(failure: &FailureSummary) -> String {
    let mut text = format!("{}:{}", failure.source, failure.line);
    for part in [&failure.origin, &failure.device].into_iter().flatten() {
        let _ = write!(text, ", {part}");
    }
    if let Some(place) = &failure.place {
        let _ = write!(text, "; {place}");
    }
    if failure.printed > 1 {
        let _ = write!(text, "; printed {} times", failure.printed);
    }
    text
}

/// The device as a bar with a letter per part, and the parts below it.
fn division(out: &mut String, log: &LogReport, width: usize) {
    let Some(capacity) = log.capacity.filter(|_| !log.division.is_empty()) else { return };
    let columns = width.saturating_sub(24).clamp(20, 72) as u64;
    let sum: Bytes = log.division.iter().map(|p| p.bytes).sum();
    let scale = capacity.max(sum).get().max(1);
    let at = |b: Bytes| (u128::from(b.get()) * u128::from(columns) / u128::from(scale)) as u64;
    let line = at(capacity);
    out.push_str("  ");
    let (mut column, mut reached) = (0u64, Bytes::ZERO);
    for part in &log.division {
        reached += part.bytes;
        let style = letter_style(part);
        let _ = write!(out, "{style}");
        while column < at(reached) {
            if column == line {
                out.push('|');
            }
            out.push(letter(part));
            column += 1;
        }
        let _ = write!(out, "{style:#}");
    }
    for _ in column..columns {
        out.push('.');
    }
    if line >= columns {
        out.push('|');
    }
    let _ = writeln!(out, " {capacity}\n");
    let mut table = lists::table(&["", "ON THE DEVICE", "BYTES", "SHARE"], &[2, 3]);
    for part in &log.division {
        table.add_row([
            letter(part).to_string(),
            part.name.to_owned(),
            part.bytes.to_string(),
            share(part.bytes, capacity),
        ]);
    }
    indent(out, &lists::text(&table));
    out.push('\n');
}

fn letter(part: &DevicePart) -> char {
    match part.name {
        "in tensors" => 'T',
        "reserved but unallocated" => 'U',
        "this process outside PyTorch" | "outside PyTorch" => 'X',
        "other processes" => 'O',
        "weights" => 'P',
        "activation peak" => 'A',
        "KV cache" => 'K',
        "free" | "left to others" => '.',
        _ => '?',
    }
}

fn letter_style(part: &DevicePart) -> Style {
    use anstyle::AnsiColor::{Blue, Cyan, Green, Magenta, White, Yellow};
    let color = match letter(part) {
        'T' | 'P' => Blue,
        'U' | 'K' => Yellow,
        'X' => Cyan,
        'O' => Magenta,
        'A' => Green,
        _ => White,
    };
    color.on_default()
}

fn meanings(out: &mut String, figures: &[Meaning], width: usize) {
    if figures.is_empty() {
        return;
    }
    let _ = writeln!(out, "{HEAD}what the figures mean{HEAD:#}");
    let value = |m: &Meaning| figure_text(&Figure { name: String::new(), value: m.value.clone() });
    let cap = width * 2 / 5;
    let names = figures.iter().map(|m| m.name.chars().count().min(cap)).max().unwrap_or(0);
    let values = figures.iter().map(|m| value(m).chars().count().min(16)).max().unwrap_or(0);
    let mut told = std::collections::BTreeSet::new();
    for figure in figures {
        // A meaning is told once, where figures repeat.
        let meaning = if told.insert(figure.meaning) { figure.meaning } else { "" };
        let hang = 2 + names + 2 + values + 2;
        let name: String = figure.name.chars().take(cap).collect();
        let head = format!("  {name:<names$}  {:>values$}  ", value(figure));
        let text = wrap(meaning, width, head.chars().count(), hang);
        let _ = writeln!(out, "{}", format!("{head}{text}").trim_end());
    }
    out.push('\n');
}

pub(super) fn write_finding(out: &mut String, finding: &Finding, width: usize) {
    let style = match finding.weight {
        "cause" => BAD,
        "contribution" | "doubt" => DOUBTFUL,
        _ => HEAD,
    };
    let head = format!("{}: {}", finding.weight, finding.title);
    let text = wrap(&head, width, 0, 2);
    let rest = text.strip_prefix(finding.weight).unwrap_or(&text);
    let _ = writeln!(out, "{style}{}{style:#}{rest}", finding.weight);
    for sentence in finding.sentence.split(". ").filter(|s| !s.is_empty()) {
        let line = format!("  {sentence}.");
        let _ = writeln!(out, "{}", wrap(&line, width, 0, 2));
    }
    let numbered = finding.actions.len() > 1;
    for (index, action) in finding.actions.iter().enumerate() {
        let mark = if numbered { format!("{}.", index + 1) } else { "-".to_owned() };
        let _ = writeln!(out, "{}", wrap(&format!("  {mark} {action}"), width, 0, 5));
    }
    out.push('\n');
}

fn before(out: &mut String, log: &LogReport, width: usize) {
    if log.before.is_empty() || log.main.is_none() {
        return;
    }
    let _ = writeln!(out, "{HEAD}usage before it{HEAD:#}");
    for usage in &log.before {
        let figures: Vec<String> =
            usage.figures.iter().map(|f| format!("{} {}", f.name, figure_text(f))).collect();
        let origin = usage.origin.as_deref().map_or(String::new(), |o| format!(", {o}"));
        let line = format!("  line {}{origin}: {}", usage.line, figures.join(", "));
        let _ = writeln!(out, "{DIM}{}{DIM:#}", wrap(&line, width, 0, 4));
    }
    out.push('\n');
}

fn modelled(out: &mut String, e: &Explanation, width: usize) {
    let Some(modelled) = &e.model_with else { return };
    let _ = writeln!(out, "{HEAD}model it before the next attempt{HEAD:#}");
    // A command is copied: it stays on one line.
    let _ = writeln!(out, "  {}", modelled.command);
    if !modelled.missing.is_empty() {
        let line = format!("  the log does not tell {}", modelled.missing.join("; "));
        let _ = writeln!(out, "{}", wrap(&line, width, 0, 4));
    }
    for note in &modelled.notes {
        let _ = writeln!(out, "{}", wrap(&format!("  {note}"), width, 0, 4));
    }
}
