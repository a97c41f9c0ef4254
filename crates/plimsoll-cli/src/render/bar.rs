//! The load bar: a column per share of memory, a letter per category, the load line where the device ends.
//!
//! ```text
//! [PPPPPGGGGGOOOOOOOOOOAAAAAAAAAAAAA.........|      of 79.10 GiB
//! ```

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use plimsoll_engine::{Bytes, CategoryBytes, Response};

/// The letter of a category, as the table beside the bar explains it.
pub fn letter<T: serde::Serialize>(category: T) -> char {
    let key = serde_json::to_value(category).ok();
    match key.as_ref().and_then(|k| k.as_str()).unwrap_or("") {
        "parameters" => 'P',
        "gradients" => 'G',
        "optimizer_states" => 'O',
        "activations" => 'A',
        "logits_and_loss" => 'L',
        "workspace" => 'W',
        "communication" => 'C',
        "kv_cache" => 'K',
        "engine_buffers" => 'E',
        "inputs" => 'I',
        "context" => 'X',
        _ => '?',
    }
}

fn style(letter: char) -> Style {
    let color = match letter {
        'P' => AnsiColor::Blue,
        'G' => AnsiColor::Cyan,
        'O' => AnsiColor::Magenta,
        'A' => AnsiColor::Green,
        'L' => AnsiColor::Yellow,
        'K' => AnsiColor::Green,
        'E' => AnsiColor::Yellow,
        _ => AnsiColor::White,
    };
    color.on_default()
}

/// Draws the bar. Its full length is the capacity, or the peak where that is more; then the load line stands within.
pub fn draw(out: &mut String, r: &Response, width: usize) {
    let columns = width.saturating_sub(24).clamp(20, 72) as u64;
    let scale = r.capacity.max(r.peak.device).get().max(1);
    let at =
        |bytes: Bytes| (u128::from(bytes.get()) * u128::from(columns) / u128::from(scale)) as u64;
    let line = at(r.capacity);
    let cells = cells(&r.categories, at, columns);
    out.push_str("  ");
    let mut last = ' ';
    for (i, cell) in cells.iter().enumerate() {
        if i as u64 == line {
            close(out, &mut last);
            out.push('|');
        }
        if *cell != last {
            close(out, &mut last);
            if *cell != '.' {
                let _ = write!(out, "{}", style(*cell));
            }
            last = *cell;
        }
        out.push(*cell);
    }
    close(out, &mut last);
    if line >= columns {
        out.push('|');
    }
    let percent = u128::from(r.peak.device.get()) * 100 / u128::from(r.capacity.get().max(1));
    let _ = writeln!(out, " {percent} % of {}\n", r.capacity);
}

fn close(out: &mut String, last: &mut char) {
    if !matches!(*last, ' ' | '.') {
        let _ = write!(out, "{:#}", style(*last));
    }
    *last = ' ';
}

/// One letter per column; columns beyond the peak are dots.
fn cells(categories: &[CategoryBytes], at: impl Fn(Bytes) -> u64, columns: u64) -> Vec<char> {
    let mut cells = Vec::with_capacity(columns as usize);
    let mut sum = Bytes::ZERO;
    for row in categories {
        sum += row.bytes;
        let end = at(sum).min(columns) as usize;
        while cells.len() < end {
            cells.push(letter(row.category));
        }
    }
    cells.resize(columns as usize, '.');
    cells
}
