//! What is live after one event, sorted by category, phase, module and origin.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_units::Bytes;

use super::{LiveSet, OriginShare, by_category};
use crate::{Category, Phase, PhaseKind, Timeline};

/// No event: never born, or never freed.
const NEVER: u32 = u32::MAX;
/// Live since before the first event.
const BEFORE: u32 = u32::MAX - 1;

/// The life of a tensor: its allocated bytes, and the events that made it and let it go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub size: Bytes,
    born: u32,
    gone: u32,
}

impl Life {
    /// Of a tensor that no event made yet.
    pub const NONE: Life = Life { size: Bytes::ZERO, born: NEVER, gone: NEVER };

    /// Of a tensor that was there before the first event.
    pub fn before(size: Bytes) -> Life {
        Life { size, born: BEFORE, gone: NEVER }
    }

    /// Of a tensor that an event made.
    pub fn born(size: Bytes, event: u32) -> Life {
        Life { size, born: event, gone: NEVER }
    }

    /// The program lets it go; what completes the free later changes nothing.
    pub fn end(&mut self, event: u32) {
        self.gone = self.gone.min(event);
    }

    /// Whether it is live after an event, or before the first one.
    fn spans(&self, event: Option<u32>) -> bool {
        match event {
            Some(event) => (self.born <= event || self.born == BEFORE) && self.gone > event,
            None => self.born == BEFORE,
        }
    }

    /// Whether it is live after the last event.
    pub fn lasts(&self) -> bool {
        self.born != NEVER && self.gone == NEVER
    }
}

/// Bytes and tensors of one origin and category.
#[derive(Clone, Copy)]
struct Held {
    origin: u32,
    category: Category,
    bytes: Bytes,
    tensors: u32,
}

/// The live set after event `at`, or before the first one; the `listed` largest origins one by one.
pub(super) fn live_after(
    timeline: &Timeline,
    lives: &[Life],
    at: Option<u32>,
    listed: usize,
) -> LiveSet {
    let mut categories = [Bytes::ZERO; Category::ALL.len()];
    let mut phases: Vec<(Option<PhaseKind>, Bytes)> = Vec::new();
    let mut held: Vec<Held> = Vec::new();
    // Index into `held` of the last entry of each origin: an origin nearly always has one category.
    let mut last_of = vec![u32::MAX; timeline.origins.len()];
    let mut tensors = 0;
    for (Life { size: bytes, born, .. }, tensor) in
        lives.iter().zip(timeline.allocations()).filter(|(life, _)| life.spans(at))
    {
        tensors += 1;
        categories[tensor.category as usize] += *bytes;
        let phase = if *born == BEFORE { None } else { timeline.phase_at(*born as usize) };
        let phase = phase.map(|Phase { kind, .. }| kind);
        match phases.iter_mut().find(|(kind, _)| *kind == phase) {
            Some((_, sum)) => *sum += *bytes,
            None => phases.push((phase, *bytes)),
        }
        let origin = tensor.origin.0;
        let last = last_of.get(origin as usize).and_then(|at| held.get_mut(*at as usize));
        match last {
            Some(entry) if entry.category == tensor.category => {
                entry.bytes += *bytes;
                entry.tensors += 1;
            }
            _ => {
                if let Some(last) = last_of.get_mut(origin as usize) {
                    *last = held.len() as u32;
                }
                held.push(Held { origin, category: tensor.category, bytes: *bytes, tensors: 1 });
            }
        }
    }

    let (by_origin, other_origins) = by_origin(timeline, &held, listed);
    LiveSet {
        by_category: by_category(&categories),
        by_phase: phases,
        by_module: by_module(timeline, &held),
        by_origin,
        other_origins,
        tensors,
    }
}

/// Module and operator of an origin; no names for an id that the timeline does not know.
fn name(timeline: &Timeline, origin: u32) -> (&str, &str) {
    match timeline.origins.get(origin as usize) {
        Some(origin) => (&origin.module, &origin.what),
        None => ("", ""),
    }
}

/// The names of an origin, to keep.
fn shared(timeline: &Timeline, origin: u32) -> (Arc<str>, Arc<str>) {
    match timeline.origins.get(origin as usize) {
        Some(origin) => (origin.module.clone(), origin.what.clone()),
        None => ("".into(), "".into()),
    }
}

fn by_module(timeline: &Timeline, held: &[Held]) -> Vec<(Arc<str>, Bytes)> {
    let mut modules: HashMap<&str, (Bytes, u32)> = HashMap::new();
    // Tensors of one module mostly follow each other; a run of them costs one look-up.
    let runs = held.chunk_by(|a, b| name(timeline, a.origin).0 == name(timeline, b.origin).0);
    for run in runs {
        let bytes = run.iter().map(|entry| entry.bytes).sum::<Bytes>();
        let origin = run[0].origin;
        modules.entry(name(timeline, origin).0).or_insert((Bytes::ZERO, origin)).0 += bytes;
    }
    let mut modules: Vec<_> = modules.into_iter().collect();
    modules.sort_unstable_by(|a, b| b.1.0.cmp(&a.1.0).then(a.0.cmp(b.0)));
    modules.into_iter().map(|(_, (bytes, origin))| (shared(timeline, origin).0, bytes)).collect()
}

/// The `listed` largest, names merged, and the sum of the rest.
fn by_origin(timeline: &Timeline, held: &[Held], listed: usize) -> (Vec<OriginShare>, Bytes) {
    type Share<'a> = ((&'a str, &'a str, Category), (Bytes, u32, u32));
    let mut origins: HashMap<_, (Bytes, u32, u32)> = HashMap::with_capacity(held.len());
    for entry in held {
        let (module, what) = name(timeline, entry.origin);
        let key = (module, what, entry.category);
        let share = origins.entry(key).or_insert((Bytes::ZERO, 0, entry.origin));
        share.0 += entry.bytes;
        share.1 += entry.tensors;
    }
    let mut origins: Vec<Share<'_>> = origins.into_iter().collect();
    let order = |a: &Share<'_>, b: &Share<'_>| b.1.0.cmp(&a.1.0).then(a.0.cmp(&b.0));
    if listed < origins.len() && listed > 0 {
        origins.select_nth_unstable_by(listed - 1, order);
    }
    let others = origins.iter().skip(listed).map(|(_, (bytes, ..))| *bytes).sum();
    origins.truncate(listed);
    origins.sort_unstable_by(order);
    let shares = (origins.into_iter())
        .map(|((_, _, category), (bytes, tensors, origin))| {
            let (module, what) = shared(timeline, origin);
            OriginShare { module, what, category, bytes, tensors }
        })
        .collect();
    (shares, others)
}
