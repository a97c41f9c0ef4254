//! Which stacks and purposes grew between two recordings, at the peak and at the end. Stacks are the same where their
//! frames say the same, whatever their numbers in the files.

use std::collections::BTreeMap;

use plimsoll_formats::snapshot::StackId;
use plimsoll_timeline::{Category, OriginId, PyTorchConfig};
use plimsoll_units::Bytes;
use serde::Serialize;

use crate::finding::{Finding, Weight};
use crate::findings::{InUse, Sorted, Sum, frames_in_words, sums};
use crate::place;
use crate::recording::Recording;
use crate::replay::{ExactReplay, measure};

/// Growth is told from this share of the peak before on, in thousandths: less is noise between runs.
const WORTH_PERMILLE: u64 = 10;

/// Stacks told one by one in the findings.
const TOLD: usize = 5;

/// A quantity before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// Before.
    pub before: Bytes,
    /// After.
    pub after: Bytes,
}

/// What one stack held before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StackChange {
    /// The line: `train.py:31 main`.
    pub line: String,
    /// Modules, outermost first.
    pub module: String,
    /// The purpose of most of its bytes, where it holds more.
    pub category: Category,
    /// Bytes before; zero for a new stack.
    pub before: Bytes,
    /// Bytes after; zero for a stack that is gone.
    pub after: Bytes,
    /// Tensors before.
    pub tensors_before: u64,
    /// Tensors after.
    pub tensors_after: u64,
    /// Its frames, innermost first.
    pub frames: Vec<String>,
}

/// One moment of both recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StateDifference {
    /// Before.
    pub before: InUse,
    /// After.
    pub after: InUse,
    /// By purpose, the largest change first.
    pub by_category: Vec<Change>,
    /// By module.
    pub by_module: Vec<Change>,
    /// By source line.
    pub by_line: Vec<Change>,
    /// By stack.
    pub by_stack: Vec<StackChange>,
}

/// A setting of the allocator that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// Its name.
    pub name: String,
    /// Before.
    pub before: String,
    /// After.
    pub after: String,
}

/// What differs between two recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// At the allocated peak of each.
    pub peak: StateDifference,
    /// At the end of each.
    pub end: StateDifference,
    /// The most that each reserves.
    pub reserved_peak: Change,
    /// Settings that differ.
    pub settings: Vec<SettingChange>,
    /// The findings.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Lays two recordings side by side; `listed` bounds each list.
pub fn diff(before: &Recording<'_>, after: &Recording<'_>, listed: usize) -> Difference {
    let (before, after) = (Side::new(before), Side::new(after));
    let mut known = KnownStacks::default();
    let peak = |side: &Side<'_, '_>| side.exact.peaks.allocated_event;
    let end =
        |side: &Side<'_, '_>| (side.sorted.recording.timeline.events().len() as u32).checked_sub(1);
    let at_peak = state(&before, peak(&before), &after, peak(&after), &mut known, listed);
    let at_end = state(&before, end(&before), &after, end(&after), &mut known, listed);
    let mut difference = Difference {
        peak: at_peak,
        end: at_end,
        reserved_peak: Change {
            name: "reserved".to_owned(),
            before: before.exact.peaks.reserved,
            after: after.exact.peaks.reserved,
        },
        settings: settings(&before.sorted.recording.config, &after.sorted.recording.config),
        findings: Vec::new(),
    };
    difference.findings = findings(&difference);
    difference
}

struct Side<'r, 's> {
    sorted: Sorted<'r, 's>,
    exact: ExactReplay,
}

impl<'r, 's> Side<'r, 's> {
    fn new(recording: &'r Recording<'s>) -> Self {
        let measured = measure(recording);
        Side { sorted: Sorted::new(recording, measured.sizes), exact: measured.exact }
    }
}

/// Numbers for frames and stacks by what they say, shared by both files.
#[derive(Default)]
struct KnownStacks {
    frames: BTreeMap<(String, u32, String), u32>,
    stacks: BTreeMap<Vec<u32>, u32>,
}

impl KnownStacks {
    fn number(&mut self, recording: &Recording<'_>, stack: StackId) -> u32 {
        let names = &recording.snapshot.names;
        let frames: Vec<u32> = place::frames(recording.snapshot, stack)
            .map(|frame| {
                let (file, function) = (names.get(frame.file), names.get(frame.function));
                let next = self.frames.len() as u32;
                let key = (file.to_owned(), frame.line, function.to_owned());
                *self.frames.entry(key).or_insert(next)
            })
            .collect();
        let next = self.stacks.len() as u32;
        *self.stacks.entry(frames).or_insert(next)
    }
}

fn state(
    before: &Side<'_, '_>,
    before_event: Option<u32>,
    after: &Side<'_, '_>,
    after_event: Option<u32>,
    known: &mut KnownStacks,
    listed: usize,
) -> StateDifference {
    let mut table = Table::default();
    let before_in_use = table.add(before, before_event, false, known);
    let after_in_use = table.add(after, after_event, true, known);
    let mut by_stack: Vec<StackChange> = table.stacks.into_values().collect();
    by_stack.sort_by(|a, b| {
        let change = |c: &StackChange| c.before.get().abs_diff(c.after.get());
        change(b)
            .cmp(&change(a))
            .then_with(|| a.line.cmp(&b.line))
            .then_with(|| a.frames.cmp(&b.frames))
    });
    by_stack.truncate(listed);
    StateDifference {
        before: before_in_use,
        after: after_in_use,
        by_category: changes(table.categories, usize::MAX),
        by_module: changes(table.modules, listed),
        by_line: changes(table.lines, listed),
        by_stack,
    }
}

#[derive(Default)]
struct Table {
    categories: BTreeMap<String, (Bytes, Bytes)>,
    modules: BTreeMap<String, (Bytes, Bytes)>,
    lines: BTreeMap<String, (Bytes, Bytes)>,
    stacks: BTreeMap<u32, StackChange>,
}

impl Table {
    /// Adds what is live in one recording; what is in use in it.
    fn add(
        &mut self,
        side: &Side<'_, '_>,
        event: Option<u32>,
        is_after: bool,
        known: &mut KnownStacks,
    ) -> InUse {
        let Sorted { recording, sizes, lives, categories, .. } = &side.sorted;
        let found = sums(recording, sizes, lives, categories, event);
        for (category, bytes) in found.categories() {
            add(&mut self.categories, category.label(), bytes, is_after);
        }
        for (origin, sum, category) in &found.by_origin {
            let id = OriginId(*origin);
            let place = recording.timeline.origin(id);
            add(&mut self.modules, &place.module, sum.bytes, is_after);
            add(&mut self.lines, &place.what, sum.bytes, is_after);
            let stack = recording.stack_of(id);
            let number = known.number(recording, stack);
            let change = self.stacks.entry(number).or_insert_with(|| StackChange {
                line: place.what.to_string(),
                module: place.module.to_string(),
                category: *category,
                before: Bytes::ZERO,
                after: Bytes::ZERO,
                tensors_before: 0,
                tensors_after: 0,
                frames: frames_in_words(recording, stack),
            });
            let Sum { bytes, tensors } = *sum;
            if is_after {
                change.after += bytes;
                change.tensors_after += tensors;
                if bytes > change.before {
                    change.category = *category;
                }
            } else {
                change.before += bytes;
                change.tensors_before += tensors;
            }
        }
        InUse {
            requested: found.live.requested,
            allocated: found.live.bytes,
            reserved: side.reserved_at(event),
        }
    }
}

impl Side<'_, '_> {
    /// Reserved right after an event, from the segments and the calls of the driver.
    fn reserved_at(&self, event: Option<u32>) -> Bytes {
        let recording = self.sorted.recording;
        let until = event.and_then(|event| recording.trace_index.get(event as usize).copied());
        recording.reserved_after(until)
    }
}

fn add(map: &mut BTreeMap<String, (Bytes, Bytes)>, name: &str, bytes: Bytes, is_after: bool) {
    let entry = map.entry(name.to_owned()).or_default();
    if is_after {
        entry.1 += bytes;
    } else {
        entry.0 += bytes;
    }
}

fn changes(map: BTreeMap<String, (Bytes, Bytes)>, listed: usize) -> Vec<Change> {
    let mut changes: Vec<Change> =
        map.into_iter().map(|(name, (before, after))| Change { name, before, after }).collect();
    let size = |change: &Change| change.before.get().abs_diff(change.after.get());
    changes.sort_by(|a, b| size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
    changes.truncate(listed);
    changes
}

fn settings(before: &PyTorchConfig, after: &PyTorchConfig) -> Vec<SettingChange> {
    let words = |config: &PyTorchConfig| {
        let limit = |size: Option<Bytes>| size.map_or("none".to_owned(), |size| size.exact());
        let roundup = config.roundup_power2_divisions.0;
        [
            ("expandable_segments", config.expandable_segments.to_string()),
            ("max_split_size", limit(config.max_split_size)),
            ("roundup_power2_divisions", format!("{roundup:?}")),
            (
                "garbage_collection_threshold",
                config.garbage_collection_threshold.map_or("off".to_owned(), |t| t.to_string()),
            ),
            ("large_segment_size", config.large_segment.exact()),
        ]
    };
    let pairs = words(before).into_iter().zip(words(after));
    pairs
        .filter(|((_, before), (_, after))| before != after)
        .map(|((name, before), (_, after))| SettingChange { name: name.to_owned(), before, after })
        .collect()
}

/// `1.00 GiB more`, `20.00 MiB less`, `the same`.
fn more_or_less(before: Bytes, after: Bytes) -> String {
    match before.cmp(&after) {
        std::cmp::Ordering::Less => format!("{} more", after - before),
        std::cmp::Ordering::Equal => "the same".to_owned(),
        std::cmp::Ordering::Greater => format!("{} less", before - after),
    }
}

fn findings(difference: &Difference) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Change { before, after, .. } = difference.reserved_peak;
    for (code, when, state) in [
        ("peak-changed", "at the peak", &difference.peak),
        ("end-changed", "at the end", &difference.end),
    ] {
        let (a, b) = (state.before.allocated, state.after.allocated);
        let changed: Vec<String> = (state.by_category.iter())
            .filter(|change| change.before != change.after)
            .take(4)
            .map(|c| {
                format!(
                    "{}: {} ({} -> {})",
                    c.name,
                    more_or_less(c.before, c.after),
                    c.before,
                    c.after
                )
            })
            .collect();
        let mut finding = Finding::new(code, Weight::Note, format!("what is allocated {when}"))
            .say(
                format!("{when} {b} are allocated, {} than before ({a})", more_or_less(a, b))
                    .replace("the same than", "the same as"),
            )
            .bytes("before", a)
            .bytes("after", b);
        if !changed.is_empty() {
            finding = finding.say(changed.join(", "));
        }
        if code == "peak-changed" && before != after {
            finding = finding
                .say(format!("{after} are reserved at most, {}", more_or_less(before, after)));
        }
        findings.push(finding);
    }
    let worth = difference.peak.before.allocated.scale(WORTH_PERMILLE, 1000);
    let grown = difference.peak.by_stack.iter().filter(|s| s.after > s.before);
    for stack in grown.filter(|s| s.after - s.before >= worth).take(TOLD) {
        let title = match stack.before.is_zero() {
            true => "a stack that was not there before",
            false => "a stack that holds more",
        };
        findings.push(
            Finding::new("stack-grew", Weight::Contribution, title)
                .say(format!(
                    "{} holds {} at the peak instead of {}, in {} tensors instead of {}: {}",
                    stack.line,
                    stack.after,
                    stack.before,
                    stack.tensors_after,
                    stack.tensors_before,
                    stack.category.label(),
                ))
                .bytes("before", stack.before)
                .bytes("after", stack.after),
        );
    }
    for setting in &difference.settings {
        findings.push(
            Finding::new(
                "setting-changed",
                Weight::Contribution,
                "another setting of the allocator",
            )
            .say(format!("{} was {} and is {}", setting.name, setting.before, setting.after)),
        );
    }
    findings.sort_by_key(|finding| finding.weight);
    findings
}
