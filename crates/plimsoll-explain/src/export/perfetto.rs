//! The JSON trace format that Perfetto and `chrome://tracing` read: counters of memory in use by category, marks where
//! memory ran out, and the passes of a training step as slices.

use std::io::Write;

use plimsoll_timeline::{Category, Event};

use super::table::{State, states};
use super::{Export, Written};

/// Writes the trace. Times are microseconds since the first event; where the recording has none, event numbers.
///
/// # Errors
/// What the receiver reports.
pub fn write_perfetto(export: &Export<'_, '_>, to: &mut dyn Write) -> Written {
    let recording = export.recording();
    let first = recording.time_of(0);
    let at = |event: u32| match first {
        Some(first) => recording.time_of(event).unwrap_or(first).saturating_sub(first),
        None => u64::from(event),
    };
    let process = recording.device;
    write!(to, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    write!(
        to,
        "{{\"ph\":\"M\",\"pid\":{process},\"name\":\"process_name\",\"args\":{{\"name\":\"GPU {process}, rank {}\"}}}}",
        export.rank
    )?;
    states(export, &mut |state| {
        let State { event, allocated, requested, reserved } = state;
        let time = event.map_or(0, at);
        write!(
            to,
            ",\n{{\"ph\":\"C\",\"pid\":{process},\"ts\":{time},\"name\":\"memory\",\"args\":{{\"allocated\":{allocated},\"requested\":{requested},\"reserved\":{reserved}}}}}"
        )
    })?;
    categories(export, &at, to)?;
    for run in &export.sorted.runs {
        let Some(name) = run.doing.word() else { continue };
        let (begin, end) = (at(run.first), at(run.end.saturating_sub(1)));
        write!(
            to,
            ",\n{{\"ph\":\"X\",\"pid\":{process},\"tid\":0,\"ts\":{begin},\"dur\":{},\"name\":\"{name}\"}}",
            end.saturating_sub(begin)
        )?;
    }
    for oom in &recording.ooms {
        write!(
            to,
            ",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{process},\"tid\":0,\"ts\":{},\"name\":\"out of memory\",\"args\":{{\"rounded\":{},\"device_free\":{}}}}}",
            at(oom.event.saturating_sub(1)),
            oom.rounded.get(),
            oom.device_free.get()
        )?;
    }
    writeln!(to, "\n]}}")
}

/// One counter for each category, written where it changes.
fn categories(export: &Export<'_, '_>, at: &dyn Fn(u32) -> u64, to: &mut dyn Write) -> Written {
    let recording = export.recording();
    let index = |tensor: usize| {
        let (category, _) = export.category(tensor);
        Category::ALL.iter().position(|c| *c == category).unwrap_or(Category::ALL.len() - 1)
    };
    let mut sums = [0u64; Category::ALL.len()];
    for tensor in 0..recording.timeline.existing() as usize {
        let sum = &mut sums[index(tensor)];
        *sum = sum.saturating_add(export.blocks[tensor].1);
    }
    let mut counter = |category: usize, bytes: u64, time: u64| {
        let name = Category::ALL[category].label();
        write!(
            to,
            ",\n{{\"ph\":\"C\",\"pid\":{},\"ts\":{time},\"name\":\"{name}\",\"args\":{{\"bytes\":{bytes}}}}}",
            recording.device
        )
    };
    for (category, bytes) in sums.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
        counter(category, *bytes, 0)?;
    }
    for (event, happens) in (0u32..).zip(recording.timeline.events()) {
        let (tensor, born) = match *happens {
            Event::Alloc(id) => (id.0 as usize, true),
            Event::Free(id) | Event::FreeRequested(id) => (id.0 as usize, false),
            _ => continue,
        };
        let category = index(tensor);
        let bytes = export.blocks[tensor].1;
        sums[category] = if born {
            sums[category].saturating_add(bytes)
        } else {
            sums[category].saturating_sub(bytes)
        };
        counter(category, sums[category], at(event))?;
    }
    Ok(())
}
