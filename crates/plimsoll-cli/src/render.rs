//! The one screen of `plimsoll estimate`: verdict first, then the load bar, the table of the peak, what was found,
//! assumed and doubted, and the nearest changes. Colour repeats what words and letters already say.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use plimsoll_engine::{Bytes, Figure, FigureValue, Response, Verdict};

use crate::lists;

mod bar;
mod explanation;
mod snapshot;

pub use explanation::explanation;
pub use snapshot::{diff, replay};

const GOOD: Style = AnsiColor::Green.on_default().bold();
const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const HEAD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

/// Whether the report says what would fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Changes were looked for.
    Searched,
    /// Nobody looked.
    Skipped,
}

/// The whole report, at most `width` columns where words can wrap.
pub fn screen(response: &Response, looked: Changes, width: usize) -> String {
    let mut out = String::new();
    verdict(&mut out, response, width);
    bar::draw(&mut out, response, width);
    categories(&mut out, response, width);
    figures(&mut out, response);
    search(&mut out, response, width);
    if looked == Changes::Searched {
        changes(&mut out, response, width);
    }
    diagnostics(&mut out, response, width);
    assumptions(&mut out, response, width);
    out
}

/// `fits: NAME needs 61.20 GiB of 79.10 GiB on one a100-80g, 17.90 GiB to spare`.
fn verdict(out: &mut String, r: &Response, width: usize) {
    let style = match r.verdict {
        Verdict::Fits => GOOD,
        Verdict::LikelyFits | Verdict::LikelyNot => DOUBTFUL,
        Verdict::DoesNotFit => BAD,
    };
    let what = r.model.as_ref().map_or("the data", |m| m.name.as_str());
    let each = if r.machine.count > 1 { " on each of " } else { " on " };
    let free = if r.machine.free.is_some() { " free" } else { "" };
    let margin = Bytes::new(r.margin.unsigned_abs());
    let end = match &r.reason {
        None => format!("{margin} to spare"),
        Some(_) if r.margin < 0 => format!("{margin} too much"),
        Some(reason) => reason.clone(),
    };
    let line = format!(
        "{what} needs {} of {}{free}{each}{}: {end}",
        r.peak.device, r.capacity, r.machine.label
    );
    let words = r.verdict.to_string();
    let wrapped = wrap(&format!("{words}: {line}"), width, 0, 2);
    let rest = wrapped.strip_prefix(&words).unwrap_or(&wrapped);
    let _ = writeln!(out, "{style}{words}{style:#}{rest}");
    let request = &r.request;
    let detail = match (request.workload.as_str(), request.strategy.as_str()) {
        (workload, "") => workload.to_owned(),
        (workload, strategy) => format!("{workload}; {strategy}"),
    };
    let model = r.model.as_ref().map_or(String::new(), |m| {
        let active = if m.active == m.parameters {
            String::new()
        } else {
            format!(", {} active", lists::billions(m.active))
        };
        format!("{} parameters{active}: ", lists::billions(m.parameters))
    });
    let _ = writeln!(out, "{}\n", wrap(&format!("  {model}{detail}"), width, 0, 2));
}

fn categories(out: &mut String, r: &Response, width: usize) {
    let mut table = lists::table(&["", "AT THE PEAK", "BYTES", "SHARE"], &[2, 3]);
    for row in &r.categories {
        let letter = bar::letter(row.category).to_string();
        table.add_row([
            letter,
            row.label.to_owned(),
            row.bytes.to_string(),
            share(row.bytes, r.peak.device),
        ]);
    }
    let place = match (&r.peak_phase, &r.peak_module) {
        (Some(phase), Some(module)) => format!("in {phase}, {module}"),
        (Some(phase), None) => format!("in {phase}"),
        (None, Some(module)) => module.clone(),
        (None, None) => String::new(),
    };
    table.add_row([String::new(), "device total".to_owned(), r.peak.device.to_string(), place]);
    indent(out, &lists::text(&table));
    let line = format!(
        "  allocated {}, reserved {}, device {}; 9 of 10 runs between {} and {}",
        r.peak.allocated, r.peak.reserved, r.peak.device, r.interval.low, r.interval.high
    );
    let _ = writeln!(out, "{DIM}{}{DIM:#}", wrap(&line, width, 0, 4));
    if !r.host.is_zero() {
        let _ = writeln!(out, "  host memory {}", r.host);
    }
    out.push('\n');
}

fn share(part: Bytes, whole: Bytes) -> String {
    if whole.is_zero() {
        return String::new();
    }
    let percent =
        (u128::from(part.get()) * 100 + u128::from(whole.get()) / 2) / u128::from(whole.get());
    if percent == 0 { "< 1 %".to_owned() } else { format!("{percent} %") }
}

fn figures(out: &mut String, r: &Response) {
    if r.figures.is_empty() {
        return;
    }
    let _ = writeln!(out, "{HEAD}figures{HEAD:#}");
    let widest = r.figures.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    for figure in &r.figures {
        let name = figure.name.replace('_', " ");
        let _ = writeln!(out, "  {name:<widest$}  {}", figure_text(figure));
    }
    out.push('\n');
}

fn figure_text(figure: &Figure) -> String {
    match &figure.value {
        FigureValue::Bytes(bytes) => bytes.to_string(),
        FigureValue::Count(n) => n.to_string(),
        FigureValue::Ratio(ratio) => format!("{ratio:.2}"),
        FigureValue::Text(text) => text.clone(),
    }
}

fn search(out: &mut String, r: &Response, width: usize) {
    let Some(s) = &r.search else { return };
    let answer = match s.value {
        Some(n) => format!("{} {n} is the most that fits", s.option),
        None => format!("no {} fits, not even {}", s.find, s.next),
    };
    let next = match s.next_device {
        Some(bytes) => format!("{} {} would need {bytes}: {}", s.option, s.next, s.why),
        None => format!("{} {}: {}", s.option, s.next, s.why),
    };
    let _ = writeln!(out, "{HEAD}search{HEAD:#}");
    let _ =
        writeln!(out, "{}", wrap(&format!("  {answer} ({} estimates)", s.evaluated), width, 0, 4));
    let _ = writeln!(out, "{}\n", wrap(&format!("  {next}"), width, 0, 4));
}

fn changes(out: &mut String, r: &Response, width: usize) {
    if r.changes.is_empty() {
        if !r.fits {
            let _ = writeln!(out, "no single change or pair of changes that is known would fit\n");
        }
        return;
    }
    let _ = writeln!(out, "{HEAD}nearest changes that would fit{HEAD:#}, least change first");
    let mut table = lists::table(&["NEEDED", "OF", "OPTIONS", ""], &[0, 1]);
    let labels = r.changes.iter().map(|c| c.label.chars().count()).max().unwrap_or(0);
    let options = r.changes.iter().map(|c| c.options.chars().count()).max().unwrap_or(0);
    let roomy = labels + options + 30 <= width;
    for c in &r.changes {
        let mut label = if roomy { c.label.clone() } else { String::new() };
        if !c.certain {
            label = format!("{label}{}likely", if label.is_empty() { "" } else { ", " });
        }
        table.add_row([c.device.to_string(), c.capacity.to_string(), c.options.clone(), label]);
    }
    indent(out, &lists::text(&table));
    out.push('\n');
}

fn diagnostics(out: &mut String, r: &Response, width: usize) {
    if r.diagnostics.is_empty() {
        return;
    }
    for d in &r.diagnostics {
        let style = if d.severity == "warning" { DOUBTFUL } else { HEAD };
        let cure = if d.cure.is_empty() { String::new() } else { format!("; {}", d.cure) };
        let text = wrap(&format!("{}: {}{cure}", d.severity, d.message), width, 0, 2);
        let rest = text.strip_prefix(d.severity).unwrap_or(&text);
        let _ = writeln!(out, "{style}{}{style:#}{rest}", d.severity);
    }
    out.push('\n');
}

fn assumptions(out: &mut String, r: &Response, width: usize) {
    if r.assumptions.is_empty() {
        return;
    }
    let _ = writeln!(out, "{HEAD}assumed{HEAD:#}");
    for a in &r.assumptions {
        let option = if a.option.is_empty() { String::new() } else { format!(" ({})", a.option) };
        let _ =
            writeln!(out, "{}", wrap(&format!("  {}: {}{option}", a.about, a.value), width, 0, 4));
    }
}

fn indent(out: &mut String, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "  {}", line.trim_end());
    }
}

/// Breaks a line at blanks so that no row exceeds `width`; continuation rows get `hang` blanks. Long words stay whole.
fn wrap(text: &str, width: usize, first: usize, hang: usize) -> String {
    let lead: String = text.chars().take_while(|c| *c == ' ').collect();
    let mut out = lead.clone();
    let mut column = first + lead.len();
    let mut empty = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !empty && column + 1 + length > width {
            out.push('\n');
            out.push_str(&" ".repeat(hang));
            column = hang;
        } else if !empty {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
        empty = false;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_blanks() {
        assert_eq!(wrap("  one two three", 10, 0, 4), "  one two\n    three");
        assert_eq!(wrap("averyveryverylongword x", 10, 0, 2), "averyveryverylongword\n  x");
        assert_eq!(wrap("", 10, 0, 2), "");
    }

    #[test]
    fn shares_round_half_up() {
        for (part, whole, text) in
            [(1, 2, "50 %"), (1, 3, "33 %"), (0, 7, "< 1 %"), (7, 7, "100 %"), (1, 0, "")]
        {
            assert_eq!(share(Bytes::new(part), Bytes::new(whole)), text);
        }
    }
}
