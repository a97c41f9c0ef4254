//! The curve: categories stacked over the events, the reserved line, the load line with its mark, the peak.

use std::fmt::Write;

use plimsoll_units::Bytes;

use super::axis::{ByteAxis, EventAxis};
use super::svg::{Area, Svg, coordinate, fitted, text_width};
use super::{PlotData, palette};

/// Radius of the mark on the load line.
const MARK: f64 = 11.0;

pub(super) fn draw(
    svg: &mut Svg,
    data: &PlotData,
    plot: Area,
    bytes: &ByteAxis,
    events: &EventAxis,
) {
    frame(svg, plot, bytes, events);
    let over = data.capacity.filter(|capacity| data.device_peak() > *capacity);
    stack(svg, data, plot, bytes, events);
    reserved(svg, data, plot, bytes, events);
    let mut taken = Vec::new();
    if let Some(capacity) = data.capacity {
        taken = load_line(svg, data, plot, bytes.at(capacity), over.is_some());
    }
    svg.line((plot.x, plot.bottom()), (plot.right(), plot.bottom()), "axis");
    if data.points.is_empty() {
        let middle = (plot.x + plot.width / 2.0, plot.y + plot.height / 2.0);
        svg.text(middle, "sub mid", "nothing is allocated");
    }
    peak(svg, data, plot, bytes, events, &taken);
}

/// Bands of phases with their names, grid and ticks.
fn frame(svg: &mut Svg, plot: Area, bytes: &ByteAxis, events: &EventAxis) {
    for band in events.bands.iter().step_by(2) {
        let area = Area { x: band.x, width: band.width, ..plot };
        svg.rect(area, "band", "");
    }
    for label in events.labels() {
        if text_width(&label.text, 11.0) + 4.0 <= label.width {
            let at = (label.x + label.width / 2.0, plot.bottom() + 17.0);
            svg.text(at, "small mid", &label.text);
        }
    }
    let caption = "events in order, phases not to scale";
    svg.text((plot.x + plot.width / 2.0, plot.bottom() + 37.0), "small mid", caption);
    let (unit, ticks) = bytes.ticks(6);
    for (amount, label) in ticks {
        let y = bytes.at(amount);
        svg.line((plot.x, y), (plot.right(), y), "grid");
        svg.text((plot.x - 8.0, y + 4.0), "small end", &label);
    }
    svg.text((plot.x - 8.0, plot.y - 10.0), "small end", unit);
}

/// One closed area per category, from the highest down: each is painted over the lower part of the one before.
fn stack(svg: &mut Svg, data: &PlotData, plot: Area, bytes: &ByteAxis, events: &EventAxis) {
    let categories = data.categories();
    for (i, category) in categories.iter().enumerate().rev() {
        let below = &categories[..=i];
        let tops = data.points.iter().map(|point| {
            let inside: Bytes = below.iter().map(|c| point.by_category[*c as usize]).sum();
            (point.event, data.outside + inside)
        });
        let start = bytes.at(data.outside);
        let mut d =
            format!("M{} {}V{}", coordinate(plot.x), coordinate(plot.bottom()), coordinate(start));
        steps(&mut d, tops, start, plot, bytes, events);
        let _ = write!(d, "V{}Z", coordinate(plot.bottom()));
        svg.path(&d, "edge", &format!("style=\"fill:url(#{})\"", palette::pattern(*category)));
    }
}

/// Level until each event, then up or down; to the right end.
fn steps(
    d: &mut String,
    states: impl Iterator<Item = (u32, Bytes)>,
    start: f64,
    plot: Area,
    bytes: &ByteAxis,
    events: &EventAxis,
) {
    let mut last = coordinate(start);
    for (event, amount) in states {
        let y = coordinate(bytes.at(amount));
        if y != last {
            let _ = write!(d, "H{}V{y}", coordinate(events.after(event)));
            last = y;
        }
    }
    let _ = write!(d, "H{}", coordinate(plot.right()));
}

fn reserved(svg: &mut Svg, data: &PlotData, plot: Area, bytes: &ByteAxis, events: &EventAxis) {
    if data.points.is_empty() {
        return;
    }
    let start = bytes.at(data.outside);
    let mut d = format!("M{} {}", coordinate(events.start()), coordinate(start));
    let states = data.points.iter().map(|p| (p.event, data.outside + p.reserved));
    steps(&mut d, states, start, plot, bytes, events);
    svg.path(&d, "reserved", "");
}

/// The line, its circle and its label; returns what a later label must keep clear of.
fn load_line(svg: &mut Svg, data: &PlotData, plot: Area, y: f64, over: bool) -> Vec<Area> {
    if over {
        svg.rect(Area { height: y - plot.y, ..plot }, "over", "");
    }
    let mark = (plot.right() + 16.0, y);
    svg.circle(mark, MARK, "mark");
    svg.line((plot.x, y), (mark.0 + MARK + 7.0, y), "load");
    let mut label = String::from("load line");
    if let Some(capacity) = data.capacity {
        let _ = write!(label, ": {capacity} usable");
    }
    if !data.machine.is_empty() {
        let _ = write!(label, " on {}", data.machine);
    }
    let label = fitted(&label, 12.0, plot.width - 24.0);
    let text =
        Area { x: plot.x + 10.0, y: y - 24.0, width: text_width(&label, 12.0), height: 18.0 };
    svg.rect(text, "box", "rx=\"3\" style=\"stroke:none\"");
    svg.text((text.x + 4.0, y - 10.0), "loadtext", &label);
    vec![text, Area { x: plot.x, y: y - 4.0, width: plot.width, height: 8.0 }]
}

/// The peak's point and a label beside it that covers neither the load line nor its label.
fn peak(
    svg: &mut Svg,
    data: &PlotData,
    plot: Area,
    bytes: &ByteAxis,
    events: &EventAxis,
    taken: &[Area],
) {
    let Some(peak) = &data.peak else { return };
    let allocated = data.outside + peak.by_category.iter().sum::<Bytes>();
    let at = (events.after(peak.event), bytes.at(allocated));
    let first = format!("peak: {allocated} in use");
    let second = if peak.phase.is_empty() {
        format!("at event {}", peak.event)
    } else {
        format!("in {}, at event {}", peak.phase, peak.event)
    };
    let width = text_width(&first, 12.0).max(text_width(&second, 11.0)) + 18.0;
    let size = Area { x: 0.0, y: 0.0, width, height: 40.0 };
    let inside = Area { x: plot.x + 4.0, width: plot.width - 8.0, ..plot };
    // Above before below, near before far; best on bare paper, else anywhere inside that hides no other label.
    let places = [-16.0, 12.0, 36.0, 70.0, 120.0].into_iter().flat_map(|dy| {
        [20.0, 60.0, 120.0].into_iter().flat_map(move |dx| {
            let y = if dy < 0.0 { at.1 + dy - size.height } else { at.1 + dy };
            [at.0 - dx - width, at.0 + dx].map(|x| Area { x, y, ..size })
        })
    });
    let clear = |place: &Area| inside.holds(place) && taken.iter().all(|t| !t.overlaps(place));
    let outline: Vec<(f64, f64)> = (data.points.iter())
        .map(|p| (events.after(p.event), bytes.at(data.outside + p.reserved)))
        .collect();
    // The reserved line is above the stack, so what is above it is bare.
    let bare = |place: &Area| {
        let before = outline.partition_point(|p| p.0 < place.x).saturating_sub(1);
        (outline[before..].iter().take_while(|p| p.0 <= place.right()))
            .all(|p| place.bottom() + 3.0 < p.1)
    };
    let fallback = Area { x: inside.right() - width, y: inside.bottom() - 60.0, ..size };
    let place = (places.clone().find(|p| clear(p) && bare(p)))
        .or_else(|| places.clone().find(clear))
        .unwrap_or(fallback);
    let nearest = (at.0.clamp(place.x, place.right()), at.1.clamp(place.y, place.bottom()));
    svg.line(at, nearest, "leader");
    svg.circle(at, 5.0, "peak");
    svg.rect(place, "box", "rx=\"4\"");
    svg.text((place.x + 9.0, place.y + 17.0), "strong", &first);
    svg.text((place.x + 9.0, place.y + 32.0), "small", &second);
}
