//! Axes: bytes with round ticks, and events by phase.

use plimsoll_units::Bytes;

use super::PlotPhase;
use super::svg::text_width;

/// A linear scale of bytes from zero, over pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteAxis {
    most: f64,
    from: f64,
    to: f64,
}

impl ByteAxis {
    /// `most` bytes and some headroom lie between the pixels `from` (zero) and `to`.
    pub fn new(most: Bytes, headroom: f64, from: f64, to: f64) -> Self {
        let most = (most.get().max(1)) as f64 * (1.0 + headroom);
        ByteAxis { most, from, to }
    }

    pub fn at(&self, bytes: Bytes) -> f64 {
        self.from + (self.to - self.from) * (bytes.get() as f64 / self.most).min(1.0)
    }

    /// The unit's name, and about `wanted` round ticks as bytes and label.
    pub fn ticks(&self, wanted: usize) -> (&'static str, Vec<(Bytes, String)>) {
        let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        // TiB only where GiB would have five digits; the field thinks in GiB.
        let fits = |(name, size): &(&str, u64)| {
            let units = self.most / *size as f64;
            if *name == "TiB" { units >= 10.0 } else { units >= 1.0 }
        };
        let (name, size) = units.into_iter().find(fits).unwrap_or(("B", 1));
        let span = self.most / size as f64;
        let rough = span / wanted.max(1) as f64;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|m| m * magnitude)
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * magnitude)
            // There is no part of a byte.
            .max(1.0 / size as f64);
        let decimals = if step < 1.0 { (-step.log10().floor()) as usize } else { 0 };
        let ticks = (0..=(span / step) as u32)
            .map(|i| {
                let units = f64::from(i) * step;
                (Bytes::new((units * size as f64) as u64), format!("{units:.decimals$}"))
            })
            .collect();
        (name, ticks)
    }
}

/// A phase on the axis of events.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Band {
    pub label: String,
    pub first_event: u32,
    pub events: u32,
    pub x: f64,
    pub width: f64,
}

/// Text under one or more bands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Label {
    pub text: String,
    pub x: f64,
    pub width: f64,
}

/// Bands that repeat: `times` x `period` bands from `first` on.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    first: usize,
    period: usize,
    times: usize,
}

impl Repeat {
    fn end(&self) -> usize {
        self.first + self.period * self.times
    }
}

/// Events in order, phase by phase. A phase is as wide as the square root of its events, and at least as its label
/// where there is room, so that a loss of ten events is seen beside a backward pass of ten thousand.
#[derive(Clone, Debug)]
pub(super) struct EventAxis {
    pub bands: Vec<Band>,
    repeat: Option<Repeat>,
}

impl EventAxis {
    pub fn new(phases: &[PlotPhase], events: u32, x: f64, width: f64) -> Self {
        let mut bands: Vec<Band> = Vec::new();
        let mut push = |label: &str, first_event: u32, end: u32| {
            let events = end.saturating_sub(first_event);
            if events > 0 {
                let label = label.to_owned();
                bands.push(Band { label, first_event, events, x: 0.0, width: 0.0 });
            }
        };
        let mut sorted: Vec<&PlotPhase> = phases.iter().collect();
        sorted.sort_by_key(|p| p.first_event);
        let first = sorted.first().map_or(events, |p| p.first_event.min(events));
        push("", 0, first);
        for (i, phase) in sorted.iter().enumerate() {
            let end = sorted.get(i + 1).map_or(events, |next| next.first_event.min(events));
            push(&phase.label, phase.first_event, end);
        }
        if bands.is_empty() {
            bands.push(Band { label: String::new(), first_event: 0, events: 1, x, width });
        }
        let least =
            |b: &Band| if b.label.is_empty() { 4.0 } else { text_width(&b.label, 11.0) + 12.0 };
        let mut floors: Vec<f64> = bands.iter().map(least).collect();
        // Where the names of all bands need more than the axis, those of a repeated part stand once.
        let crowded = floors.iter().sum::<f64>() > width;
        let repeat = if crowded { longest_repeat(&bands) } else { None };
        if let Some(repeat) = repeat {
            floors[repeat.first..repeat.end()].fill(2.0);
        }
        spread(&mut bands, &floors, x, width);
        EventAxis { bands, repeat }
    }

    /// The names of the bands; a part that repeats has one name.
    pub fn labels(&self) -> Vec<Label> {
        let mut labels = Vec::new();
        let mut i = 0;
        while let Some(band) = self.bands.get(i) {
            let part = match self.repeat {
                Some(repeat) if repeat.first == i => {
                    let names: Vec<&str> = (self.bands[i..i + repeat.period].iter())
                        .map(|b| b.label.as_str())
                        .collect();
                    i = repeat.end();
                    format!("{} × ({})", repeat.times, names.join(", "))
                }
                _ => {
                    i += 1;
                    band.label.clone()
                }
            };
            let last = &self.bands[i - 1];
            labels.push(Label { text: part, x: band.x, width: last.x + last.width - band.x });
        }
        labels
    }

    /// The pixel at which an event has happened.
    pub fn after(&self, event: u32) -> f64 {
        let i = self.bands.partition_point(|b| b.first_event <= event).saturating_sub(1);
        let band = &self.bands[i];
        let within = f64::from(event.saturating_sub(band.first_event)) + 1.0;
        band.x + band.width * (within / f64::from(band.events)).min(1.0)
    }

    /// The left end.
    pub fn start(&self) -> f64 {
        self.bands[0].x
    }
}

/// The part of the axis that repeats over most bands: micro-batches, steps. Periods up to eight are looked at.
fn longest_repeat(bands: &[Band]) -> Option<Repeat> {
    let mut best: Option<Repeat> = None;
    for period in 1..=8 {
        let mut first = 0;
        while first + 2 * period <= bands.len() {
            let same = (first + period..bands.len())
                .take_while(|i| bands[*i].label == bands[i - period].label)
                .count();
            let times = 1 + same / period;
            let longer = best.is_none_or(|b| times * period > b.times * b.period);
            if times > 1 && longer {
                best = Some(Repeat { first, period, times });
            }
            first += same.max(1);
        }
    }
    best
}

/// Shares the width among the bands: their floors first, as far as nine tenths of the room go, the rest by the
/// square root of the number of events.
fn spread(bands: &mut [Band], floors: &[f64], x: f64, width: f64) {
    let wanted: f64 = floors.iter().sum();
    let most = width * 0.9;
    let scale = if wanted > most { most / wanted } else { 1.0 };
    let weights: Vec<f64> = bands.iter().map(|b| f64::from(b.events).sqrt()).collect();
    let total: f64 = weights.iter().sum();
    // A phase whose share is wide enough needs no minimum; what minimums take is taken from the others.
    let floors: Vec<f64> = floors.iter().map(|w| w * scale).collect();
    let mut fixed = vec![false; bands.len()];
    let (mut room, mut weight) = (width, total);
    loop {
        let mut changed = false;
        for i in 0..bands.len() {
            if !fixed[i] && room * weights[i] / weight < floors[i] {
                fixed[i] = true;
                room -= floors[i];
                weight -= weights[i];
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let mut at = x;
    for (i, band) in bands.iter_mut().enumerate() {
        band.x = at;
        band.width = if fixed[i] { floors[i] } else { room * weights[i] / weight };
        at += band.width;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (most, unit, last, count) in [
            (Bytes::gib(80), "GiB", "80", 5),
            (Bytes::mib(700), "MiB", "600", 4),
            (Bytes::new(1), "B", "1", 2),
            (Bytes::new(3 << 29), "GiB", "1.5", 4),
            (Bytes::gib(4000), "GiB", "4000", 5),
            (Bytes::gib(40_000), "TiB", "40", 5),
        ] {
            let (name, ticks) = ByteAxis::new(most, 0.05, 0.0, 100.0).ticks(5);
            assert_eq!((name, ticks.last().unwrap().1.as_str()), (unit, last), "{most}");
            assert_eq!(ticks.len(), count, "{most}");
        }
    }

    #[test]
    fn bands_cover_the_axis_and_keep_room_for_labels() {
        let phase = |label: &str, first_event| PlotPhase { label: label.to_owned(), first_event };
        let phases =
            [phase("load", 0), phase("forward", 500), phase("loss", 9000), phase("backward", 9004)];
        let axis = EventAxis::new(&phases, 20_000, 50.0, 700.0);
        assert_eq!(axis.bands.len(), 4);
        assert_eq!(axis.start(), 50.0);
        let last = axis.bands.last().unwrap();
        assert!((last.x + last.width - 750.0).abs() < 1e-6);
        for band in &axis.bands {
            assert!(band.width + 1e-6 >= text_width(&band.label, 11.0), "{band:?}");
        }
        assert!((axis.after(19_999) - 750.0).abs() < 1e-6);
        assert!(axis.after(0) > 50.0);
    }

    #[test]
    fn micro_batches_share_one_label() {
        let mut phases = vec![("load", 0)];
        for i in 0..12 {
            phases.extend([
                ("forward", 10 + i * 20),
                ("loss", 20 + i * 20),
                ("backward", 22 + i * 20),
            ]);
        }
        phases.push(("optimizer step", 250));
        let phases: Vec<_> = (phases.into_iter())
            .map(|(label, first_event)| PlotPhase { label: label.to_owned(), first_event })
            .collect();
        let axis = EventAxis::new(&phases, 300, 0.0, 700.0);
        let labels: Vec<_> = axis.labels().into_iter().map(|l| l.text).collect();
        assert_eq!(labels, ["load", "12 × (forward, loss, backward)", "optimizer step"]);
    }

    #[test]
    fn hostile_phases_still_make_an_axis() {
        let phase = |first_event| PlotPhase { label: "x".repeat(300), first_event };
        for events in [0, 1, 7, u32::MAX] {
            let phases: Vec<_> = [5, 5, 3, u32::MAX].into_iter().map(phase).collect();
            let axis = EventAxis::new(&phases, events, 0.0, 100.0);
            let end = axis.bands.iter().map(|b| b.x + b.width).fold(0.0, f64::max);
            assert!((end - 100.0).abs() < 1e-6, "{axis:?}");
            for event in [0, 4, u32::MAX] {
                assert!((0.0..=100.001).contains(&axis.after(event)));
            }
        }
    }
}
