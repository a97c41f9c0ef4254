//! One self-contained HTML file of a recording: memory over time, the addresses with every block, the live set at any
//! moment with its flame graph, and the findings. It opens from disk, asks no server for anything, and works without a
//! network.
//!
//! Everything that depends on the number of events is prepared here: curves in stretches, the largest blocks, a raster of
//! the addresses, and the events in pieces that the page unpacks only where somebody looks closer.

mod curves;
mod detail;
mod pack;
mod scene;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use plimsoll_units::Bytes;
use serde::Serialize;

use crate::finding::{Finding, Value};
use crate::findings::Sorted;
use crate::markup::escaped;
use crate::recording::Recording;
use crate::replay::place;
use curves::Curves;
use scene::Scene;

/// What a page says besides what it draws.
#[derive(Clone, Debug, Default)]
pub struct PageText {
    /// Heading, such as the file's name.
    pub title: String,
    /// A line below it.
    pub subtitle: String,
    /// Figures by name, already in words.
    pub facts: Vec<(String, String)>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// Bytes that the card has for the allocator: the load line.
    pub capacity: Option<Bytes>,
}

/// The page of a recording.
///
/// ```
/// use plimsoll_explain::{PageText, page, recording};
/// # use plimsoll_formats::snapshot;
/// # fn show(snapshot: &snapshot::Snapshot) -> Result<String, plimsoll_explain::RecordingError> {
/// let recording = recording(snapshot, 0)?;
/// let text = PageText { title: "train.pickle".to_owned(), ..PageText::default() };
/// Ok(page(&recording, &text))
/// # }
/// ```
pub fn page(recording: &Recording<'_>, text: &PageText) -> String {
    let placed = place(recording);
    let sizes = placed.blocks.iter().map(|(_, size)| Bytes::new(*size)).collect();
    let sorted = Sorted::new(recording, sizes);
    let scene = Scene::new(&sorted, &placed);
    let curves = curves::curves(&scene);
    let pieces = detail::pieces(&scene);
    let keys = detail::keys(&scene);
    let head = head(&sorted, text, &scene, &curves);
    // Angle brackets would end the script element that holds the JSON.
    let head = serde_json::to_string(&head).unwrap_or_default().replace('<', "\\u003c");

    let mut html = String::with_capacity(
        pieces.iter().chain(&keys).map(|piece| piece.len() + 64).sum::<usize>() + (1 << 20),
    );
    html.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let _ = writeln!(html, "<title>{} - Plimsoll</title>", escaped(&text.title));
    let _ = writeln!(html, "<style>\n{}</style>\n</head>", include_str!("../../assets/page.css"));
    html.push_str(include_str!("../../assets/page.html"));
    let mut data = |id: &str, text: &str| {
        let _ = writeln!(html, "<script type=\"text/plain\" id=\"{id}\">{text}</script>");
    };
    data("head", &head);
    data("curves", &curves.packed);
    data("raster", &detail::raster(&scene));
    data("largest", &detail::largest(&scene));
    data("key-0", keys.first().map_or("", |key| key));
    let _ = writeln!(html, "<script>\n{}</script>", include_str!("../../assets/page.js"));
    // What the first picture does not need comes behind the code that draws it.
    let mut data = |id: String, text: &str| {
        let _ = writeln!(html, "<script type=\"text/plain\" id=\"{id}\">{text}</script>");
    };
    for (number, key) in keys.iter().enumerate().skip(1) {
        data(format!("key-{number}"), key);
    }
    for (number, piece) in pieces.iter().enumerate() {
        data(format!("piece-{number}"), piece);
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// What the page's code reads first. Names are short because the code is the only reader.
#[derive(Serialize)]
struct Head<'a> {
    title: &'a str,
    subtitle: &'a str,
    facts: &'a [(String, String)],
    findings: Vec<FindingOfPage<'a>>,
    events: u32,
    unit: u64,
    stride: u32,
    stretches: u32,
    piece: u32,
    pieces_per_key: u32,
    raster: (usize, usize),
    row: u32,
    capacity: Option<u64>,
    peak: u32,
    peak_bytes: u64,
    reserved_peak: u64,
    layers: Vec<LayerOfPage<'a>>,
    layer_of: &'a [u8],
    groups: Vec<GroupOfPage<'a>>,
    frames: &'a [String],
    /// Ranges: address in hexadecimal, bytes, place.
    ranges: Vec<(String, u64, u32)>,
    /// Events at which memory ran out.
    ooms: Vec<u32>,
    /// What began at which event.
    runs: Vec<(u32, &'static str)>,
    /// Event and seconds since the first, at even distances.
    times: Vec<(u32, f64)>,
}

#[derive(Serialize)]
struct LayerOfPage<'a> {
    name: &'a str,
    category: Option<&'static str>,
}

#[derive(Serialize)]
struct GroupOfPage<'a> {
    category: &'static str,
    module: &'a str,
    what: &'a str,
    frames: &'a [u32],
}

#[derive(Serialize)]
struct FindingOfPage<'a> {
    weight: &'static str,
    title: &'a str,
    sentence: &'a str,
    figures: Vec<(&'a str, String)>,
    actions: &'a [String],
    command: Option<&'a str>,
}

/// Times kept for the axis.
const TIMES: u32 = 512;

fn head<'a>(
    sorted: &Sorted<'_, '_>,
    text: &'a PageText,
    scene: &'a Scene,
    curves: &'a Curves,
) -> Head<'a> {
    let recording = sorted.recording;
    let mut runs: Vec<(u32, Option<&'static str>)> =
        sorted.runs.iter().map(|run| (run.first, run.doing.word())).collect();
    // A long recording has a hundred thousand runs, most of which go on with what the one before did.
    runs.dedup_by_key(|run| run.1);
    let runs = runs.into_iter().filter_map(|(first, word)| Some((first, word?))).collect();
    let mut ooms: Vec<u32> = recording.ooms.iter().map(|oom| oom.event).collect();
    ooms.sort_unstable();
    Head {
        title: &text.title,
        subtitle: &text.subtitle,
        facts: &text.facts,
        findings: text.findings.iter().map(finding).collect(),
        events: scene.events,
        unit: scene::UNIT,
        stride: curves.stride,
        stretches: curves.stretches,
        piece: detail::PIECE,
        pieces_per_key: detail::PIECES_PER_KEY,
        raster: detail::RASTER,
        row: scene.row,
        capacity: text.capacity.map(Bytes::get),
        peak: curves.peak.1,
        peak_bytes: curves.peak.0 * scene::UNIT,
        reserved_peak: curves.reserved_peak,
        layers: (curves.layers.iter())
            .map(|layer| LayerOfPage {
                name: &layer.name,
                category: layer.category.map(|category| category.label()),
            })
            .collect(),
        layer_of: &curves.layer_of,
        groups: (scene.groups.iter())
            .map(|group| GroupOfPage {
                category: group.category.label(),
                module: &group.module,
                what: &group.what,
                frames: &group.frames,
            })
            .collect(),
        frames: &scene.frames,
        ranges: (scene.ranges.iter())
            .map(|range| (format!("{:#x}", range.address), range.size, range.at))
            .collect(),
        ooms,
        runs,
        times: times(recording, scene.events),
    }
}

fn finding(finding: &Finding) -> FindingOfPage<'_> {
    let value = |value: &Value| match value {
        Value::Bytes(bytes) => bytes.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Permille(share) => format!("{}.{} %", share / 10, share % 10),
        Value::Text(text) => text.clone(),
    };
    FindingOfPage {
        weight: finding.weight.word(),
        title: &finding.title,
        sentence: &finding.sentence,
        figures: (finding.figures.iter())
            .map(|figure| (figure.name.as_str(), value(&figure.value)))
            .collect(),
        actions: &finding.actions,
        command: finding.command.as_deref(),
    }
}

/// Seconds since the first event, at even distances; empty where times were not recorded.
fn times(recording: &Recording<'_>, events: u32) -> Vec<(u32, f64)> {
    let Some(first) = recording.time_of(0) else { return Vec::new() };
    let step = events.div_ceil(TIMES).max(1);
    let last = events.saturating_sub(1);
    let at = (0..events).step_by(step as usize).chain([last]);
    at.filter_map(|event| {
        let micros = recording.time_of(event)?.saturating_sub(first);
        Some((event, micros as f64 / 1e6))
    })
    .collect()
}
