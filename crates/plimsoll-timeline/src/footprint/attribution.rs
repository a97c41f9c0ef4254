//! What is live after one event, sorted by category, phase, module and origin.

use std::collections::HashMap;

use plimsoll_units::Bytes;

use super::{LiveSet, OriginShare, by_category};
use crate::{Category, Event, Phase, PhaseKind, Timeline};

/// No event: the tensor is not live.
const DEAD: u32 = u32::MAX;
/// Live since before the first event.
const BEFORE: u32 = u32::MAX - 1;

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
    sizes: &[Bytes],
    at: Option<u32>,
    listed: usize,
) -> LiveSet {
    let mut born = vec![DEAD; sizes.len()];
    born[..timeline.existing() as usize].fill(BEFORE);
    for (event, happens) in (0..at.map_or(0, |at| at + 1)).zip(timeline.events()) {
        match *happens {
            Event::Alloc(id) => born[id.0 as usize] = event,
            Event::Free(id) | Event::FreeRequested(id) => born[id.0 as usize] = DEAD,
            _ => {}
        }
    }

    let mut categories = [Bytes::ZERO; Category::ALL.len()];
    let mut phases: Vec<(Option<PhaseKind>, Bytes)> = Vec::new();
    let mut held: Vec<Held> = Vec::new();
    // Index into `held` of the last entry of each origin: an origin nearly always has one category.
    let mut last_of = vec![u32::MAX; timeline.origins.len()];
    let mut tensors = 0;
    for (i, (born, bytes)) in born.iter().zip(sizes).enumerate() {
        if *born == DEAD {
            continue;
        }
        tensors += 1;
        let tensor = &timeline.allocations()[i];
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

fn by_module(timeline: &Timeline, held: &[Held]) -> Vec<(Box<str>, Bytes)> {
    let mut modules: HashMap<&str, Bytes> = HashMap::new();
    // Tensors of one module mostly follow each other; a run of them costs one look-up.
    let runs = held.chunk_by(|a, b| name(timeline, a.origin).0 == name(timeline, b.origin).0);
    for run in runs {
        let bytes = run.iter().map(|entry| entry.bytes).sum::<Bytes>();
        *modules.entry(name(timeline, run[0].origin).0).or_default() += bytes;
    }
    let mut modules: Vec<_> = modules.into_iter().collect();
    modules.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    modules.into_iter().map(|(name, bytes)| (name.into(), bytes)).collect()
}

/// The `listed` largest, names merged, and the sum of the rest; names are copied for what is listed only.
fn by_origin(timeline: &Timeline, held: &[Held], listed: usize) -> (Vec<OriginShare>, Bytes) {
    type Share<'a> = ((&'a str, &'a str, Category), (Bytes, u32));
    let mut origins: HashMap<_, (Bytes, u32)> = HashMap::with_capacity(held.len());
    for entry in held {
        let (module, what) = name(timeline, entry.origin);
        let share = origins.entry((module, what, entry.category)).or_default();
        share.0 += entry.bytes;
        share.1 += entry.tensors;
    }
    let mut origins: Vec<Share<'_>> = origins.into_iter().collect();
    let order = |a: &Share<'_>, b: &Share<'_>| b.1.0.cmp(&a.1.0).then(a.0.cmp(&b.0));
    if listed < origins.len() && listed > 0 {
        origins.select_nth_unstable_by(listed - 1, order);
    }
    let others = origins.iter().skip(listed).map(|(_, (bytes, _))| *bytes).sum();
    origins.truncate(listed);
    origins.sort_unstable_by(order);
    let shares = (origins.into_iter())
        .map(|((module, what, category), (bytes, tensors))| OriginShare {
            module: module.into(),
            what: what.into(),
            category,
            bytes,
            tensors,
        })
        .collect();
    (shares, others)
}
