//! Memory that grows with every step: blocks of one stack that are made in each step and stay.

use plimsoll_timeline::{Category, Event, OriginId};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::category::Categories;
use super::live_set::frames_in_words;
use super::steps::Steps;
use crate::recording::Recording;

/// Whole steps over which growth must be seen, so that one late buffer is no leak.
const LEAST_STEPS: usize = 3;

/// A stack whose live bytes grow with every step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Leak {
    /// The line: `train.py:31 main`.
    pub line: String,
    /// Modules, outermost first.
    pub module: String,
    /// The purpose of its newest tensor.
    pub category: Category,
    /// Bytes that a step adds, the middle of all steps.
    pub bytes_per_step: Bytes,
    /// Tensors that a step adds, on average, rounded down.
    pub tensors_per_step: u64,
    /// Steps in which it grew.
    pub steps: u64,
    /// What it holds at the end.
    pub held: Bytes,
    /// Frames of the stack, innermost first.
    pub frames: Vec<String>,
}

/// Bounds that are looked at, at most; of more steps every second, third... is one.
const MOST_BOUNDS: usize = 200;

/// What an origin held at the bounds of the steps.
#[derive(Clone, Copy, Default)]
struct Held {
    bytes: Bytes,
    tensors: u64,
}

/// The stacks that hold more at the end of every step than at the end of the one before, largest growth first.
///
/// The first step does not count: what is made once and kept (optimizer states, caches) comes into being in it.
pub(crate) fn leaks(
    recording: &Recording<'_>,
    sizes: &[Bytes],
    categories: &Categories,
    steps: &Steps,
) -> Vec<Leak> {
    if steps.count() < LEAST_STEPS {
        return Vec::new();
    }
    let timeline = &recording.timeline;
    let mut now = vec![Held::default(); recording.stacks.len()];
    let mut marks: Vec<Vec<Held>> = vec![Vec::new(); recording.stacks.len()];
    let mut newest = vec![Category::Unknown; recording.stacks.len()];
    let stride = steps.bounds.len().div_ceil(MOST_BOUNDS);
    let mut bounds = steps.bounds.iter().step_by(stride).peekable();
    for tensor in 0..timeline.existing() as usize {
        let held = &mut now[timeline.allocations()[tensor].origin.0 as usize];
        held.bytes += sizes[tensor];
        held.tensors += 1;
    }
    let mark = |marks: &mut Vec<Vec<Held>>, now: &[Held]| {
        for (marks, held) in marks.iter_mut().zip(now) {
            marks.push(*held);
        }
    };
    for (index, event) in (0u32..).zip(timeline.events()) {
        while bounds.next_if(|bound| **bound <= index).is_some() {
            mark(&mut marks, &now);
        }
        let (id, alloc) = match *event {
            Event::Alloc(id) => (id, true),
            Event::Free(id) | Event::FreeRequested(id) => (id, false),
            _ => continue,
        };
        let tensor = id.0 as usize;
        let origin = timeline.allocations()[tensor].origin.0 as usize;
        let held = &mut now[origin];
        if alloc {
            held.bytes += sizes[tensor];
            held.tensors += 1;
            newest[origin] = categories.of[tensor].0;
        } else {
            held.bytes = held.bytes.saturating_sub(sizes[tensor]);
            held.tensors = held.tensors.saturating_sub(1);
        }
    }
    while bounds.next().is_some() {
        mark(&mut marks, &now);
    }
    let mut leaks: Vec<Leak> = (marks.iter().enumerate())
        .filter_map(|(origin, marks)| {
            let found = Growth { marks, stride: stride as u64, end: now[origin] };
            found.leak(recording, origin, newest[origin])
        })
        .collect();
    leaks.sort_by(|a, b| {
        (b.bytes_per_step.cmp(&a.bytes_per_step)).then_with(|| a.frames.cmp(&b.frames))
    });
    leaks
}

/// What one origin held at the bounds.
struct Growth<'a> {
    marks: &'a [Held],
    /// Steps between bounds.
    stride: u64,
    end: Held,
}

impl Growth<'_> {
    fn leak(&self, recording: &Recording<'_>, origin: usize, category: Category) -> Option<Leak> {
        // Growth from the end of the first step on.
        let marks = self.marks.get(1..)?;
        let mut growth: Vec<u64> = (marks.windows(2))
            .map(|pair| pair[1].bytes.get().checked_sub(pair[0].bytes.get()))
            .collect::<Option<_>>()?;
        let grown = growth.iter().filter(|bytes| **bytes > 0).count();
        // Every step, or nearly: a step may end before or after the block of its own is made.
        if grown < LEAST_STEPS - 1 || grown * 10 < growth.len() * 9 {
            return None;
        }
        // What is let go after the last step was only kept for a while.
        let (first, last) = (marks.first()?, marks.last()?);
        if self.end.bytes < last.bytes.scale(9, 10) {
            return None;
        }
        growth.sort_unstable();
        let steps = growth.len() as u64 * self.stride;
        let id = OriginId(origin as u32);
        let place = recording.timeline.origin(id);
        Some(Leak {
            line: place.what.to_string(),
            module: place.module.to_string(),
            category,
            bytes_per_step: Bytes::new(growth[growth.len() / 2] / self.stride),
            tensors_per_step: last.tensors.saturating_sub(first.tensors) / steps,
            steps: grown as u64 * self.stride,
            held: self.end.bytes,
            frames: frames_in_words(recording, recording.stack_of(id)),
        })
    }
}
