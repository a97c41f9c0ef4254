//! The curve over the events, thinned so that no extreme is lost: each stretch of events is drawn by its highest
//! and its lowest state.

use plimsoll_units::Bytes;

use super::SeriesPoint;
use super::attribution::Life;
use crate::{Category, Event, Timeline, Usage};

/// How many events one stretch covers, at least one. A stretch of one event makes one point, a longer one up to
/// two, so that `points` is never exceeded; without points, one stretch covers all.
pub(super) fn events_per_stretch(events: usize, points: usize) -> usize {
    if events <= points { 1 } else { events.div_ceil((points / 2).max(1)) }
}

/// The extremes of consecutive events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    high: (Bytes, u32),
    low: (Bytes, u32),
    reserved: Bytes,
}

impl Stretch {
    pub fn new(first_event: u32) -> Self {
        Stretch {
            high: (Bytes::ZERO, first_event),
            low: (Bytes::MAX, first_event),
            reserved: Bytes::ZERO,
        }
    }

    pub fn note(&mut self, event: u32, usage: Usage) {
        if usage.allocated > self.high.0 {
            self.high = (usage.allocated, event);
        }
        if usage.allocated < self.low.0 {
            self.low = (usage.allocated, event);
        }
        self.reserved = self.reserved.max(usage.reserved);
    }

    /// Its one or two events, in order.
    fn events(&self) -> impl Iterator<Item = u32> {
        let (first, second) = (self.high.1.min(self.low.1), self.high.1.max(self.low.1));
        std::iter::once(first).chain((second != first).then_some(second))
    }
}

/// The points of the stretches with their categories.
pub(super) fn curve(
    timeline: &Timeline,
    lives: &[Life],
    stretches: &[Stretch],
) -> Vec<SeriesPoint> {
    let mut now = [Bytes::ZERO; Category::ALL.len()];
    let existing = timeline.existing() as usize;
    for (tensor, life) in timeline.allocations().iter().zip(lives).take(existing) {
        now[tensor.category as usize] += life.size;
    }
    let mut points = Vec::with_capacity(2 * stretches.len());
    let mut done = 0;
    for stretch in stretches {
        for event in stretch.events() {
            let to = event as usize + 1;
            for event in &timeline.events()[done..to] {
                match *event {
                    Event::Alloc(id) => {
                        let i = id.0 as usize;
                        now[timeline.allocations()[i].category as usize] += lives[i].size;
                    }
                    Event::Free(id) | Event::FreeRequested(id) => {
                        let i = id.0 as usize;
                        now[timeline.allocations()[i].category as usize] -= lives[i].size;
                    }
                    _ => {}
                }
            }
            done = to;
            points.push(SeriesPoint {
                event,
                allocated: now.iter().sum(),
                reserved: stretch.reserved,
                by_category: now,
            });
        }
    }
    points
}
