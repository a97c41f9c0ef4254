//! The curve of bytes over events, thinned to what a picture can show: of each stretch of events the state with the
//! most allocated, and the most that was reserved.

use plimsoll_timeline::Usage;
use plimsoll_units::Bytes;
use serde::Serialize;

use crate::recording::Recording;

/// Points of a curve, at most.
const POINTS: usize = 1000;

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CurvePoint {
    /// The timeline event after which the stretch has most allocated.
    pub event: u32,
    /// Microseconds since 1970; absent where times were not recorded.
    pub time_us: Option<u64>,
    /// What the program had asked for and not freed.
    pub requested: Bytes,
    /// The same in blocks of the allocator.
    pub allocated: Bytes,
    /// The most that was held from the driver in the stretch.
    pub reserved: Bytes,
}

/// Builds a curve.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    events_per_point: u32,
    points: Vec<CurvePoint>,
}

impl Curve {
    pub fn new(events: usize) -> Self {
        let per_point = events.div_ceil(POINTS).max(1);
        Curve { events_per_point: u32::try_from(per_point).unwrap_or(u32::MAX), points: Vec::new() }
    }

    pub fn note(&mut self, event: u32, usage: Usage) {
        let Usage { requested, allocated, reserved } = usage;
        let new = CurvePoint { event, time_us: None, requested, allocated, reserved };
        match self.points.last_mut() {
            Some(point) if !event.is_multiple_of(self.events_per_point) => {
                let reserved = point.reserved.max(reserved);
                if allocated > point.allocated {
                    *point = new;
                }
                point.reserved = reserved;
            }
            _ => self.points.push(new),
        }
    }

    pub fn finish(mut self, recording: &Recording<'_>) -> Vec<CurvePoint> {
        for point in &mut self.points {
            point.time_us = recording.time_of(point.event);
        }
        self.points
    }
}
