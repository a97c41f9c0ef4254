//! What a page shows, taken from a recording: lives of blocks, the places they lay in, and the groups they belong to.

use std::collections::HashMap;

use plimsoll_formats::snapshot::{Snapshot, StackId};
use plimsoll_timeline::{Category, Event};

use crate::findings::Sorted;
use crate::place;
use crate::replay::Placed;

/// Bytes that the page counts in.
pub(super) const UNIT: u64 = 512;

/// One block, from its allocation to its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The event that made it; 0 with [`Life::from_start`] for one that was there before.
    pub birth: u32,
    /// The event that freed it; the number of events for one that is never freed.
    pub death: u32,
    /// Place in the row of ranges, in units.
    pub at: u32,
    /// Size in units.
    pub size: u32,
    /// Group.
    pub group: u32,
    /// Whether it was there before the first event.
    pub from_start: bool,
}

/// Allocations of the same stack and category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub category: Category,
    pub module: String,
    pub what: String,
    /// Frames, outermost first, by number in [`Scene::frames`].
    pub frames: Vec<u32>,
}

/// A range of addresses that was reserved at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub address: u64,
    pub size: u64,
    /// Where it begins in the row, in units.
    pub at: u32,
}

/// A recording as the page needs it.
#[derive(Clone, Debug, Default)]
pub(super) struct Scene {
    pub events: u32,
    pub lives: Vec<Life>,
    /// The life that each event begins (or ends), with whether it begins; `None` for other events.
    pub moves: Vec<Option<(u32, bool)>>,
    pub groups: Vec<Group>,
    pub frames: Vec<String>,
    pub ranges: Vec<Range>,
    /// Length of the row of ranges, in units.
    pub row: u32,
    /// Requested bytes by life, in bytes.
    pub requested: Vec<u64>,
    pub reserved: Vec<(u32, u64)>,
}

/// Frames of one stack that are kept; deeper ones are interpreter start-up.
const MOST_FRAMES: usize = 64;

impl Scene {
    pub fn new(sorted: &Sorted<'_, '_>, placed: &Placed) -> Scene {
        let recording = sorted.recording;
        let timeline = &recording.timeline;
        let events = timeline.events().len() as u32;
        let ranges = ranges(placed);
        let mut scene = Scene {
            events,
            row: ranges.last().map_or(0, |r: &Range| r.at.saturating_add(units(r.size))),
            ranges,
            reserved: placed.reserved.clone(),
            moves: Vec::with_capacity(events as usize),
            ..Scene::default()
        };
        let mut groups = Groups::default();
        let existing = timeline.existing() as usize;
        for (index, tensor) in timeline.allocations().iter().enumerate() {
            let stack = recording.stack_of(tensor.origin);
            let (address, size) = placed.blocks[index];
            scene.requested.push(tensor.requested.get());
            scene.lives.push(Life {
                birth: 0,
                death: events,
                at: scene.place_of(address),
                size: u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX),
                group: groups.of(stack, sorted.categories.of[index].0),
                from_start: index < existing,
            });
        }
        for (event, happens) in (0u32..).zip(timeline.events()) {
            let step = match happens {
                Event::Alloc(id) => {
                    scene.lives[id.0 as usize].birth = event;
                    Some((id.0, true))
                }
                Event::Free(id) | Event::FreeRequested(id) => {
                    scene.lives[id.0 as usize].death = event;
                    Some((id.0, false))
                }
                _ => None,
            };
            scene.moves.push(step);
        }
        groups.fill(recording.snapshot, &mut scene);
        scene
    }

    /// Where an address lies in the row of ranges.
    fn place_of(&self, address: u64) -> u32 {
        let after = self.ranges.partition_point(|range| range.address <= address);
        let Some(range) = after.checked_sub(1).and_then(|at| self.ranges.get(at)) else { return 0 };
        range.at.saturating_add(units((address - range.address).min(range.size)))
    }
}

/// Whole units, as many as the row can count.
fn units(bytes: u64) -> u32 {
    u32::try_from(bytes / UNIT).unwrap_or(u32::MAX)
}

/// The ranges that blocks ever lay in, rounded to the driver's pages of 2 MiB and joined where they touch, in the order
/// of their addresses.
fn ranges(placed: &Placed) -> Vec<Range> {
    const PAGE: u64 = 2 << 20;
    let mut spans: Vec<(u64, u64)> = (placed.blocks.iter())
        .filter(|(_, size)| *size > 0)
        .map(|(address, size)| {
            let end = address.saturating_add(*size);
            (address / PAGE * PAGE, end.checked_next_multiple_of(PAGE).unwrap_or(end))
        })
        .collect();
    spans.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (begin, end) in spans {
        match joined.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((begin, end)),
        }
    }
    let mut at = 0u32;
    let place = |(begin, end): (u64, u64)| {
        let range = Range { address: begin, size: end - begin, at };
        at = at.saturating_add(units(end - begin));
        range
    };
    joined.into_iter().map(place).collect()
}

/// Groups by stack and category, in order of appearance.
#[derive(Default)]
struct Groups {
    index: HashMap<(StackId, Category), u32>,
    keys: Vec<(StackId, Category)>,
}

impl Groups {
    fn of(&mut self, stack: StackId, category: Category) -> u32 {
        *self.index.entry((stack, category)).or_insert_with(|| {
            self.keys.push((stack, category));
            self.keys.len() as u32 - 1
        })
    }

    /// Puts words to the groups.
    fn fill(self, snapshot: &Snapshot, scene: &mut Scene) {
        let mut frames: HashMap<String, u32> = HashMap::new();
        for (stack, category) in self.keys {
            let place = place::of_stack(snapshot, stack);
            let mut chain: Vec<u32> = place::frames(snapshot, stack)
                .take(MOST_FRAMES)
                .filter_map(|frame| {
                    let text = place::named_in_words(snapshot, frame)?;
                    let next = frames.len() as u32;
                    Some(*frames.entry(text.clone()).or_insert_with(|| {
                        scene.frames.push(text);
                        next
                    }))
                })
                .collect();
            chain.reverse();
            scene.groups.push(Group {
                category,
                module: place.module,
                what: place.what,
                frames: chain,
            });
        }
    }
}
