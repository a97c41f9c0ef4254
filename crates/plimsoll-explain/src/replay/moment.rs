//! A moment of a recording in words: when, in which scope, at which line.

use plimsoll_formats::snapshot::{StackId, Stage};
use plimsoll_timeline::Event;
use serde::Serialize;

use crate::place;
use crate::recording::{Recording, grouped};

/// A moment of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Timeline event that comes next, or is the one in question.
    pub event: u32,
    /// Events of the timeline.
    pub events: u32,
    /// Its trace event.
    pub trace_index: Option<u32>,
    /// Milliseconds since the first event; absent where times were not recorded.
    pub milliseconds: Option<u64>,
    /// Scopes that were open (`record_function`, profiler and optimizer steps), outermost first.
    pub scopes: Vec<String>,
    /// The line: `train.py:31 main`.
    pub place: String,
    /// Modules, outermost first.
    pub module: String,
}

impl Moment {
    /// The moment of a timeline event.
    pub(crate) fn of_event(recording: &Recording<'_>, event: u32) -> Moment {
        let stack = match recording.timeline.events().get(event as usize) {
            Some(Event::Alloc(id)) => {
                recording.stack_of(recording.timeline.allocations()[id.0 as usize].origin)
            }
            _ => StackId::NONE,
        };
        let trace_index = recording.trace_index.get(event as usize).copied();
        Moment::new(recording, event, trace_index, stack)
    }

    /// The moment of a request that failed in the recording.
    pub(crate) fn of_failed(recording: &Recording<'_>, failed: usize) -> Moment {
        let Some(oom) = recording.ooms.get(failed) else { return Moment::default() };
        Moment::new(recording, oom.event, Some(oom.trace_index), oom.stack)
    }

    fn new(
        recording: &Recording<'_>,
        event: u32,
        trace_index: Option<u32>,
        stack: StackId,
    ) -> Moment {
        let time = trace_index.and_then(|index| recording.events().get(index as usize));
        let time = time.map(|event| event.time_us).filter(|time| *time > 0);
        let first = recording.events().first().map(|event| event.time_us);
        let place = place::of_stack(recording.snapshot, stack);
        Moment {
            event,
            events: recording.timeline.events().len() as u32,
            trace_index,
            milliseconds: time.zip(first).map(|(time, first)| time.saturating_sub(first) / 1000),
            scopes: time.map(|time| scopes_at(recording, time)).unwrap_or_default(),
            place: place.what,
            module: place.module,
        }
    }
}

impl std::fmt::Display for Moment {
    /// `event 12,345 of 20,000 (3.217 s in), in ProfilerStep#3, at train.py:31 main`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (event, events) = (grouped(self.event.into()), grouped(self.events.into()));
        write!(f, "event {event} of {events}")?;
        if let Some(ms) = self.milliseconds {
            write!(f, " ({}.{:03} s in)", ms / 1000, ms % 1000)?;
        }
        if let Some(scope) = self.scopes.last() {
            write!(f, ", in {scope}")?;
        }
        if !self.module.is_empty() {
            write!(f, ", in module {}", innermost(&self.module))?;
        }
        if !self.place.is_empty() && self.place != "not recorded" {
            write!(f, ", at {}", self.place)?;
        }
        Ok(())
    }
}

/// The two innermost modules of a chain: the rest of a deep one says little in a sentence.
pub(crate) fn innermost(module: &str) -> String {
    let mut cuts = module.rmatch_indices('/').map(|(at, _)| at);
    match cuts.nth(1) {
        Some(at) => format!("...{}", &module[at..]),
        None => module.to_owned(),
    }
}

/// The scopes that are open at a time, outermost first. An end closes the latest open scope of its name, so that
/// unbalanced scopes do no harm.
fn scopes_at(recording: &Recording<'_>, time_us: u64) -> Vec<String> {
    let mut open = Vec::new();
    for annotation in &recording.snapshot.annotations {
        let other = annotation.device >= 0
            && u32::try_from(annotation.device).ok() != Some(recording.device);
        if annotation.time_us > time_us || other {
            continue;
        }
        match annotation.stage {
            Stage::Start => open.push(annotation.name),
            Stage::End => {
                if let Some(at) = open.iter().rposition(|name| *name == annotation.name) {
                    open.remove(at);
                }
            }
        }
    }
    open.into_iter().map(|name| recording.snapshot.names.get(name).to_owned()).collect()
}
