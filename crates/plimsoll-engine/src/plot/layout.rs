//! Where the parts of a picture go: header, curve, legend, bar.

use plimsoll_timeline::Category;
use plimsoll_units::Bytes;

use super::axis::{ByteAxis, EventAxis};
use super::svg::{Area, Svg, fitted};
use super::{PlotData, bar, curve, palette};

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = WIDTH - 28.0;
const LEGEND_WIDTH: f64 = 278.0;
const HEADER: f64 = 88.0;
const CURVE_HEIGHT: f64 = 372.0;
const BAR_HEIGHT: f64 = 118.0;

/// Memory over the events, by category, under the load line; and the peak as one bar. SVG text.
pub fn figure(data: &PlotData) -> String {
    let height = HEADER + CURVE_HEIGHT + 76.0 + BAR_HEIGHT;
    let mut svg = begin(data, height);
    let plot = Area {
        x: LEFT,
        y: HEADER,
        width: RIGHT - LEGEND_WIDTH - 40.0 - LEFT,
        height: CURVE_HEIGHT,
    };
    let most = data.capacity.unwrap_or_default().max(data.device_peak()).max(highest(data));
    let bytes = ByteAxis::new(most, 0.13, plot.bottom(), plot.y);
    let events = EventAxis::new(&data.phases, data.events, plot.x, plot.width);
    curve::draw(&mut svg, data, plot, &bytes, &events);
    legend(&mut svg, data, RIGHT - LEGEND_WIDTH, HEADER);
    bar::draw(&mut svg, data, bar_area(HEADER + CURVE_HEIGHT + 76.0));
    svg.finish()
}

/// The peak by category against the usable memory. SVG text.
pub fn peak_bar(data: &PlotData) -> String {
    let rows = (data.stack_at_peak().len() + 1).div_ceil(3) as f64;
    let mut svg = begin(data, HEADER + BAR_HEIGHT + rows * 22.0 + 8.0);
    bar::draw(&mut svg, data, bar_area(HEADER));
    for (i, (category, amount)) in data.stack_at_peak().into_iter().enumerate() {
        let column = (RIGHT - LEFT) / 3.0;
        let x = LEFT + (i % 3) as f64 * column;
        let y = HEADER + BAR_HEIGHT + (i / 3) as f64 * 22.0;
        entry(&mut svg, (x, y), column - 32.0, category, amount);
    }
    svg.finish()
}

fn bar_area(y: f64) -> Area {
    Area { x: LEFT, y, width: RIGHT - LEFT, height: BAR_HEIGHT }
}

fn begin(data: &PlotData, height: f64) -> Svg {
    let mut svg = Svg::new(WIDTH, height, &data.title, &describe(data), palette::STYLE);
    for category in Category::ALL {
        let (fill, hatch) = palette::look(category);
        svg.pattern(&palette::pattern(category), fill, hatch);
    }
    svg.paper();
    svg.text((LEFT, 36.0), "title", &fitted(&data.title, 18.0, RIGHT - LEFT));
    svg.text((LEFT, 58.0), "sub", &fitted(&data.subtitle, 13.0, RIGHT - LEFT));
    svg
}

/// The picture in words, for readers who do not see it.
fn describe(data: &PlotData) -> String {
    let mut words = bar::verdict(data);
    let parts: Vec<String> = (data.stack_at_peak().iter())
        .map(|(category, bytes)| format!("{} {bytes}", category.label()))
        .collect();
    if !parts.is_empty() {
        words.push_str(". At the peak: ");
        words.push_str(&parts.join(", "));
    }
    words
}

/// The highest point of the stack or of the reserved line.
fn highest(data: &PlotData) -> Bytes {
    let points = data.points.iter().map(|p| p.reserved.max(p.by_category.iter().sum()));
    data.outside + points.max().unwrap_or_default()
}

fn legend(svg: &mut Svg, data: &PlotData, x: f64, y: f64) {
    svg.text((x + LEGEND_WIDTH, y + 4.0), "small end", "at the peak");
    let mut y = y + 16.0;
    let at_peak = data.stack_at_peak();
    for category in data.categories().into_iter().rev() {
        let amount = at_peak.iter().find(|(c, _)| *c == category).map_or(Bytes::ZERO, |(_, b)| *b);
        entry(svg, (x, y), LEGEND_WIDTH, category, amount);
        y += 22.0;
    }
    y += 8.0;
    svg.line((x, y), (x + LEGEND_WIDTH, y), "grid");
    y += 8.0;
    let mut line = |class: &str, label: &str, amount: Bytes| {
        svg.line((x, y + 7.0), (x + 22.0, y + 7.0), class);
        if class == "load" {
            svg.circle((x + 11.0, y + 7.0), 5.0, "mark");
            svg.line((x, y + 7.0), (x + 22.0, y + 7.0), class);
        }
        svg.text((x + 30.0, y + 11.0), "", label);
        svg.text((x + LEGEND_WIDTH, y + 11.0), "end", &amount.to_string());
        y += 22.0;
    };
    if data.peak.is_some() {
        line("reserved", "reserved, with context", data.device_peak());
    }
    if let Some(capacity) = data.capacity {
        line("load", "load line: usable", capacity);
    }
}

fn entry(svg: &mut Svg, at: (f64, f64), width: f64, category: Category, amount: Bytes) {
    let swatch = Area { x: at.0, y: at.1, width: 22.0, height: 14.0 };
    let fill = format!("style=\"fill:url(#{})\" rx=\"2\"", palette::pattern(category));
    svg.rect(swatch, "edge", &fill);
    let label = match category {
        Category::Context => "context and libraries",
        other => other.label(),
    };
    svg.text((at.0 + 30.0, at.1 + 11.0), "", label);
    svg.text((at.0 + width, at.1 + 11.0), "end", &amount.to_string());
}
