//! The scores as a page: bars, groups, reasons, and predicted against measured by source. One file, no scripts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::bars::Outcome;
use super::case::{Case, Kind, Prediction};
use super::score::{Group, Scores};

const GIB: f64 = (1u64 << 30) as f64;
const SIDE: f64 = 640.0;
const MARGIN: f64 = 46.0;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;font-size:.86rem}\
td,th{padding:.2rem .6rem;border-bottom:1px solid #d7dce1;text-align:right}td:first-child,th:first-child,td.w{text-align:left}\
.pass{color:#14603a}.miss{color:#9a2b1d}svg{max-width:100%;height:auto}\
@media(prefers-color-scheme:dark){body{color:#e4e7ea;background:#15181b}td,th{border-color:#343a40}.pass{color:#6fcf97}.miss{color:#ff9c8a}}";

/// Colours that stay apart for most eyes; shapes repeat the distinction.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7f3fbf", "#6b7280"];

/// Writes `index.html` into the folder.
pub fn write(
    folder: &Path,
    cases: &[Case],
    scores: &Scores,
    bars: &[Outcome],
) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join("index.html");
    fs::write(&path, page(cases, scores, bars))
        .with_context(|| format!("writing {}", path.display()))
}

fn page(cases: &[Case], scores: &Scores, bars: &[Outcome]) -> String {
    let mut out = String::new();
    let all = &scores.all;
    out.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width\"><title>Predictions and measurements</title>");
    let _ = write!(out, "<style>{STYLE}</style></head><body><h1>Predictions and measurements</h1>");
    let _ = write!(
        out,
        "<p>{} measured cases, {} of them modelled. Errors are relative to the measurement.</p>",
        all.cases, all.modelled
    );
    out.push_str("<h2>Bars</h2><table><tr><th>what</th><th>result</th></tr>");
    for bar in bars {
        let class = if bar.reached() { "pass" } else { "miss" };
        let line = bar.line();
        let (label, rest) = line.split_at(bar.bar.label.len());
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"w {class}\">{}</td></tr>",
            escape(label),
            escape(rest.trim())
        );
    }
    out.push_str("</table><h2>Training: predicted against measured</h2>");
    out.push_str("<p>GiB, both axes logarithmic; on the line they are equal, the dashed lines are 25 % off.</p>");
    out.push_str(&scatter(cases));
    groups(&mut out, scores);
    out.push_str("<h2>Not modelled</h2><table><tr><th>reason</th><th>rows</th></tr>");
    let mut reasons: Vec<_> = all.reasons.iter().collect();
    reasons.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    for (reason, count) in reasons {
        let _ = write!(out, "<tr><td>{}</td><td>{count}</td></tr>", escape(reason));
    }
    out.push_str("</table></body></html>\n");
    out
}

fn groups(out: &mut String, scores: &Scores) {
    out.push_str(
        "<h2>Groups</h2><table><tr><th>group</th><th>rows</th><th>modelled</th><th>median</th>",
    );
    out.push_str("<th>p90</th><th>bias</th><th>covered</th><th>worst</th></tr>");
    for (key, group) in &scores.groups {
        row(out, key, group);
    }
    out.push_str("</table>");
}

fn row(out: &mut String, key: &str, g: &Group) {
    let percent = |v: Option<f64>| v.map_or("-".into(), |v| format!("{:.1} %", 100.0 * v));
    let worst =
        g.worst.as_ref().map_or(String::new(), |(id, e)| format!("{id} {:+.0} %", 100.0 * e));
    let _ = write!(
        out,
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"w\">{}</td></tr>",
        escape(key),
        g.cases,
        g.modelled,
        percent(g.quantile(0.5)),
        percent(g.quantile(0.9)),
        percent(g.bias()),
        percent(g.coverage()),
        escape(&worst),
    );
}

/// Place of a size on an axis from 0.5 to 512 GiB.
fn place(bytes: f64) -> f64 {
    let octaves = (bytes / GIB).clamp(0.5, 512.0).log2() + 1.0;
    MARGIN + octaves / 10.0 * (SIDE - 2.0 * MARGIN)
}

fn scatter(cases: &[Case]) -> String {
    let mut sources: Vec<&str> =
        cases.iter().filter(|c| !points(c).is_empty()).map(|c| c.source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    let height = SIDE + 22.0 * sources.len().div_ceil(3) as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {SIDE} {height}\" width=\"{SIDE}\" role=\"img\" aria-label=\"predicted against measured memory\" font-size=\"11\" fill=\"currentColor\">"
    );
    axes(&mut svg);
    for (index, source) in sources.iter().enumerate() {
        for case in cases.iter().filter(|c| c.source == *source) {
            for p in points(case) {
                let (x, y) = (place(p.measured), SIDE - place(p.predicted));
                let _ = write!(svg, "{}", mark(index, x, y, Some((case, p))));
            }
        }
        let (column, line) = (index % 3, index / 3);
        let x = MARGIN + column as f64 * (SIDE - MARGIN) / 3.0;
        let y = SIDE + 14.0 + 22.0 * line as f64;
        svg.push_str(&mark(index, x, y - 4.0, None));
        let _ = write!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>", x + 10.0, escape(source));
    }
    svg.push_str("</svg>");
    svg
}

fn points(case: &Case) -> Vec<&Prediction> {
    let training = case.kind == Kind::Training;
    case.predictions.iter().filter(|p| training && p.main).collect()
}

fn axes(svg: &mut String) {
    for gib in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0] {
        let at = place(gib * GIB);
        let (low, high, up) = (MARGIN, SIDE - MARGIN, SIDE - at);
        let _ = write!(
            svg,
            "<path d=\"M{at:.1} {low}V{high}M{low} {up:.1}H{high}\" stroke=\"currentColor\" opacity=\".12\" fill=\"none\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{gib}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{gib}</text>",
            high + 14.0,
            low - 6.0,
            up + 4.0,
        );
    }
    for (factor, dash) in [(1.0, ""), (1.25, "4 4"), (0.8, "4 4")] {
        let (a, b) = (0.5 * GIB, 512.0 * GIB);
        let _ = write!(
            svg,
            "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"currentColor\" opacity=\".6\" stroke-dasharray=\"{dash}\" fill=\"none\"/>",
            place(a),
            SIDE - place(a * factor),
            place(b),
            SIDE - place(b * factor),
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">measured, GiB</text><text x=\"14\" y=\"{:.1}\" transform=\"rotate(-90 14 {:.1})\" text-anchor=\"middle\">predicted, GiB</text>",
        SIDE / 2.0,
        SIDE - MARGIN + 30.0,
        SIDE / 2.0,
        SIDE / 2.0
    );
}

/// A point; the shape changes with every round of colours.
fn mark(index: usize, x: f64, y: f64, of: Option<(&Case, &Prediction)>) -> String {
    let colour = COLOURS[index % COLOURS.len()];
    let title = of.map_or(String::new(), |(case, p)| {
        format!("<title>{} {:+.1} %</title>", escape(&case.id), 100.0 * p.error())
    });
    match index / COLOURS.len() % 3 {
        0 => format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{colour}\" fill-opacity=\".75\">{title}</circle>"
        ),
        1 => format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\" fill=\"{colour}\" fill-opacity=\".75\">{title}</rect>",
            x - 3.0,
            y - 3.0
        ),
        _ => format!(
            "<path d=\"M{x:.1} {:.1}l4 7h-8z\" fill=\"{colour}\" fill-opacity=\".75\">{title}</path>",
            y - 4.0
        ),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
