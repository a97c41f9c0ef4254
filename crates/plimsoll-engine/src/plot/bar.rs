//! The peak as one horizontal bar against the usable memory.

use plimsoll_timeline::Category;
use plimsoll_units::Bytes;

use super::axis::ByteAxis;
use super::svg::{Area, Svg, text_width};
use super::{PlotData, palette};

const BAR: f64 = 40.0;

/// The picture's message in one sentence.
pub(super) fn verdict(data: &PlotData) -> String {
    let peak = data.device_peak();
    match data.capacity {
        None => format!("{peak} on the device at the most"),
        Some(capacity) if peak <= capacity => format!(
            "{peak} on the device at the most, {} of {capacity} usable; {} remain",
            percent(peak, capacity),
            capacity - peak
        ),
        Some(capacity) => format!(
            "{peak} on the device at the most, {} more than the {capacity} usable",
            peak - capacity
        ),
    }
}

/// One decimal, rounded half up.
fn percent(part: Bytes, whole: Bytes) -> String {
    let tenths = (u128::from(part.get()) * 2000 + u128::from(whole.get()))
        / (2 * u128::from(whole.get().max(1)));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

pub(super) fn draw(svg: &mut Svg, data: &PlotData, area: Area) {
    let over = data.capacity.is_some_and(|capacity| data.device_peak() > capacity);
    let words = verdict(data);
    svg.text((area.x, area.y + 8.0), if over { "strong bad" } else { "strong" }, &words);
    let most = data.capacity.unwrap_or_default().max(data.device_peak());
    let axis = ByteAxis::new(most, 0.06, area.x, area.right());
    let bar = Area { y: area.y + 36.0, height: BAR, ..area };
    let line = data.capacity.map(|capacity| axis.at(capacity));
    let mut total = Bytes::ZERO;
    for (category, amount) in data.stack_at_peak() {
        let part = span(&axis, bar, total, total + amount);
        let fill = format!("style=\"fill:url(#{})\"", palette::pattern(category));
        svg.rect(part, "edge", &fill);
        label_part(svg, clear_of(part, line), category, amount);
        total += amount;
    }
    let device = data.device_peak();
    if device > total {
        let slack = span(&axis, bar, total, device);
        svg.rect(slack, "slack", "");
        svg.line((slack.x, bar.y), (slack.x, bar.bottom()), "slackline");
        inner(svg, clear_of(slack, line), "cached", device - total, "mid", "small mid");
    }
    if let Some(capacity) = data.capacity {
        let used = total.max(device);
        if capacity > used {
            let room = span(&axis, bar, used, capacity);
            svg.rect(room, "room", "");
            inner(svg, room, "free", capacity - used, "mid", "small mid");
        }
        let x = axis.at(capacity);
        svg.line((x, bar.y - 14.0), (x, bar.bottom() + 8.0), "load");
        svg.circle((x, bar.y - 14.0), 7.0, "mark");
        svg.line((x - 12.0, bar.y - 14.0), (x + 12.0, bar.y - 14.0), "load");
    }
    svg.line((bar.x, bar.bottom() + 8.0), (bar.right(), bar.bottom() + 8.0), "axis");
    let (unit, ticks) = axis.ticks(8);
    for (amount, label) in ticks {
        let x = axis.at(amount);
        svg.line((x, bar.bottom() + 8.0), (x, bar.bottom() + 13.0), "axis");
        svg.text((x, bar.bottom() + 26.0), "small mid", &label);
    }
    svg.text((bar.x - 14.0, bar.bottom() + 26.0), "small end", unit);
}

fn span(axis: &ByteAxis, bar: Area, from: Bytes, to: Bytes) -> Area {
    let x = axis.at(from);
    Area { x, width: axis.at(to) - x, ..bar }
}

/// The larger side of a part that a line runs through.
fn clear_of(part: Area, line: Option<f64>) -> Area {
    let Some(line) = line.filter(|x| part.x < *x && *x < part.right()) else { return part };
    let (left, right) = (line - 4.0 - part.x, part.right() - line - 4.0);
    if left > right {
        Area { width: left, ..part }
    } else {
        Area { x: line + 4.0, width: right, ..part }
    }
}

/// Name and bytes inside a part that is wide enough; the legend holds the others.
fn label_part(svg: &mut Svg, part: Area, category: Category, amount: Bytes) {
    let (name, size) = if palette::is_light(category) {
        ("mid strong onlight", "mid onlight")
    } else {
        ("mid strong on", "mid on")
    };
    inner(svg, part, category.label(), amount, name, size);
}

fn inner(svg: &mut Svg, part: Area, name: &str, amount: Bytes, name_class: &str, class: &str) {
    let amount = amount.to_string();
    let width = text_width(name, 12.5).max(text_width(&amount, 12.0)) + 6.0;
    if width <= part.width {
        let middle = part.x + part.width / 2.0;
        svg.text((middle, part.y + 17.0), name_class, name);
        svg.text((middle, part.y + 32.0), class, &amount);
    }
}
