//! Pictures of a footprint: memory over one step under the load line, and the peak by category against what the
//! card can use. [`PlotData`] is plain data; [`figure`] and [`peak_bar`] turn it into SVG text, and with the feature
//! `png` into pixels.
//!
//! Text stays text, colours follow the reader's light or dark mode, and no meaning rests on colour alone: every
//! category has its own hatching, and the legend names it with its bytes.

mod axis;
mod bar;
mod curve;
mod layout;
mod palette;
#[cfg(feature = "png")]
mod png;
mod svg;
#[cfg(test)]
mod tests;

use plimsoll_timeline::{Category, Footprint};
use plimsoll_units::Bytes;

pub use layout::{figure, peak_bar};
#[cfg(feature = "png")]
pub use png::{RenderError, png};

/// Number of categories; arrays are in the order of [`Category::ALL`].
const CATEGORIES: usize = Category::ALL.len();

/// What a picture shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlotData {
    /// First line, such as the model and what is done with it.
    pub title: String,
    /// Second line, such as batch, sequence and strategy.
    pub subtitle: String,
    /// Usable memory: where the load line is drawn; `None` for no line.
    pub capacity: Option<Bytes>,
    /// Whose memory that is, such as `H100 80 GB`; may be empty.
    pub machine: String,
    /// Held outside the allocator for the whole step: context, loaded kernels, libraries, other processes.
    pub outside: Bytes,
    /// The curve, in order of events.
    pub points: Vec<PlotPoint>,
    /// Phases in order; the first begins with the first event.
    pub phases: Vec<PlotPhase>,
    /// Number of events.
    pub events: u32,
    /// The highest point of the curve.
    pub peak: Option<PlotPeak>,
}

/// The state after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlotPoint {
    /// The event.
    pub event: u32,
    /// Allocated bytes in the order of [`Category::ALL`].
    pub by_category: [Bytes; CATEGORIES],
    /// Reserved bytes.
    pub reserved: Bytes,
}

/// A labelled stretch of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlotPhase {
    /// Its name.
    pub label: String,
    /// Its first event.
    pub first_event: u32,
}

/// The highest point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlotPeak {
    /// The event.
    pub event: u32,
    /// The name of its phase; may be empty.
    pub phase: String,
    /// Allocated bytes then, in the order of [`Category::ALL`].
    pub by_category: [Bytes; CATEGORIES],
    /// Reserved bytes then.
    pub reserved: Bytes,
    /// The most reserved at any event: what must fit under the load line, with [`PlotData::outside`].
    pub reserved_peak: Bytes,
}

impl PlotData {
    /// The curve, the phases and the peak of a footprint, without title, capacity and what lies outside the
    /// allocator: the caller knows those.
    pub fn from_footprint(footprint: &Footprint) -> Self {
        let points = (footprint.series.iter())
            .map(|p| PlotPoint { event: p.event, by_category: p.by_category, reserved: p.reserved })
            .collect();
        let phases = (footprint.phases.iter())
            .map(|p| PlotPhase { label: p.kind.label().to_owned(), first_event: p.first_event })
            .collect();
        let peak = footprint.peak_event.map(|event| {
            let mut by_category = [Bytes::ZERO; CATEGORIES];
            for (category, bytes) in &footprint.live.by_category {
                by_category[*category as usize] = *bytes;
            }
            PlotPeak {
                event,
                phase: footprint.peak_phase.map_or("", |p| p.kind.label()).to_owned(),
                by_category,
                reserved: footprint.at_peak.reserved,
                reserved_peak: footprint.reserved_peak,
            }
        });
        PlotData { points, phases, events: footprint.events, peak, ..PlotData::default() }
    }

    /// What the device must hold at the most, everything included.
    pub fn device_peak(&self) -> Bytes {
        self.outside + self.peak.as_ref().map_or(Bytes::ZERO, |p| p.reserved_peak)
    }

    /// Bytes of the peak by category, bottom of the stack first, empty ones left out; what lies outside the
    /// allocator counts as context.
    fn stack_at_peak(&self) -> Vec<(Category, Bytes)> {
        let bytes = |category: Category| {
            let inside =
                self.peak.as_ref().map_or(Bytes::ZERO, |p| p.by_category[category as usize]);
            if category == Category::Context { inside + self.outside } else { inside }
        };
        palette::STACK.iter().map(|c| (*c, bytes(*c))).filter(|(_, b)| !b.is_zero()).collect()
    }

    /// Categories that appear anywhere in the picture, bottom of the stack first.
    fn categories(&self) -> Vec<Category> {
        let appears = |c: Category| {
            c == Category::Context && !self.outside.is_zero()
                || self.points.iter().any(|p| !p.by_category[c as usize].is_zero())
                || self.peak.as_ref().is_some_and(|p| !p.by_category[c as usize].is_zero())
        };
        palette::STACK.iter().copied().filter(|c| appears(*c)).collect()
    }
}
