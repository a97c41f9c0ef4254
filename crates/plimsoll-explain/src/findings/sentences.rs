//! The findings: sentences that a person can act on, with their numbers and a command that checks them.

use plimsoll_timeline::Category;
use plimsoll_units::Bytes;

use super::fragmentation::{FreePart, Unusable};
use super::{ExplainOptions, Explanation, FailedRequest, MomentState};
use crate::finding::{Finding, Value, Weight};
use crate::recording::{Recording, counted, grouped};
use crate::replay::innermost;

/// Unusable memory is a finding from this share of what is reserved on, in thousandths: less is noise between runs.
const WORTH_PERMILLE: u64 = 50;

/// Slack of blocks is a finding from this share of what is allocated on, in thousandths.
const SLACK_PERMILLE: u64 = 30;

/// Growth per step is a finding from this many bytes on: less than 4 KiB a step takes 260,000 steps to a GiB.
const LEAK_BYTES: Bytes = Bytes::kib(4);

/// Leaks told one by one.
const LEAKS_TOLD: usize = 5;

/// The findings, in order of weight.
pub(super) fn findings(
    recording: &Recording<'_>,
    explanation: &Explanation,
    options: &ExplainOptions,
) -> Vec<Finding> {
    let teller = Teller { recording, explanation, file: &options.file };
    let mut findings = Vec::new();
    if let Some(failed) = &explanation.failed {
        findings.extend(teller.failure(failed));
    }
    findings.push(teller.peak());
    findings.extend(teller.line_at_peak());
    findings.extend(teller.leaks());
    findings.extend(teller.unusable_at_peak());
    findings.extend(teller.pinned());
    findings.extend(teller.private_pools());
    findings.extend(teller.slack());
    findings.extend(teller.outside());
    findings.extend(teller.emptied_caches());
    findings.extend(teller.unknown());
    findings.extend(teller.departure());
    findings.extend(teller.steps());
    findings.sort_by_key(|finding| finding.weight);
    findings
}

/// A share of a whole in thousandths, 0 of nothing.
fn permille(part: Bytes, whole: Bytes) -> u64 {
    match whole.get() {
        0 => 0,
        whole => (u128::from(part.get()) * 1000 / u128::from(whole)) as u64,
    }
}

/// `68.1 %`.
fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

struct Teller<'a, 's> {
    recording: &'a Recording<'s>,
    explanation: &'a Explanation,
    file: &'a str,
}

impl Teller<'_, '_> {
    fn explain(&self) -> String {
        format!("plimsoll explain {}", self.file)
    }

    fn tune(&self, capacity: Option<Bytes>) -> String {
        match capacity {
            Some(capacity) => {
                let capacity = capacity.exact().replace(' ', "");
                format!("plimsoll replay {} --tune --capacity {capacity}", self.file)
            }
            None => format!("plimsoll replay {} --tune", self.file),
        }
    }

    /// Why the last request failed: too much in use, or enough free in the wrong places.
    fn failure(&self, failed: &FailedRequest) -> Vec<Finding> {
        let state = &failed.state;
        let when = state.moment.as_ref().map(ToString::to_string).unwrap_or_default();
        let free = state.fragmentation.free_bytes();
        // What a limit keeps back is out of reach, however much the driver has.
        let reachable = if failed.limited { free } else { free + failed.device_free };
        let scattered = reachable >= failed.rounded;
        let title = if scattered {
            "memory ran out with enough of it free, in the wrong places"
        } else if failed.limited {
            "a limit of the process refused memory that the device had"
        } else {
            "memory ran out"
        };
        let mut finding = Finding::new("out-of-memory", Weight::Cause, title)
            .say(format!(
                "{when}: {} were asked for ({} from the driver), {} are allocated, {} reserved, and the driver has {} left{}",
                failed.rounded, failed.segment, state.in_use.allocated, state.in_use.reserved,
                failed.device_free,
                if failed.limited { String::new() } else { format!(" of {}", failed.capacity) },
            ))
            .bytes("request", failed.rounded)
            .bytes("asked of the driver", failed.segment)
            .bytes("allocated", state.in_use.allocated)
            .bytes("reserved", state.in_use.reserved)
            .bytes("free on the device", failed.device_free)
            .bytes("capacity", failed.capacity);
        if failed.limited {
            finding = finding
                .say(format!(
                    "the driver had room for it, so a limit of the process refused it: {} were reserved at most before",
                    failed.capacity
                ))
                .act("raise or drop the limit: torch.cuda.set_per_process_memory_fraction, per_process_memory_fraction of the settings, or the engine's option for it");
        }
        if scattered {
            finding = finding
                .say(format!(
                    "{free} of the reserved memory are free, but {}",
                    parts_in_words(&state.fragmentation.free)
                ))
                .bytes("reserved but unused", free)
                .bytes("largest usable block", state.fragmentation.largest_free);
            if !self.recording.config.expandable_segments {
                finding = finding.act(format!(
                    "set {}=expandable_segments:True",
                    crate::tune::variable(crate::tune::release(self.recording.snapshot.writer))
                ));
            }
        } else {
            let missing = failed.segment.saturating_sub(reachable);
            finding = finding
                .say(format!("even without any fragmentation {missing} are missing"))
                .bytes("missing", missing);
            finding = match state.live.by_category.first() {
                Some(most) => finding.act(format!(
                    "make {} smaller, which hold {} of {}: {}",
                    most.category.label(),
                    most.bytes,
                    state.live.bytes,
                    cure(most.category),
                )),
                None => finding,
            };
        }
        if failed.failures > 1 {
            finding = finding.say(format!(
                "{} failed in all; this is the last",
                counted(failed.failures, "request")
            ));
        }
        vec![finding.check(self.tune(Some(failed.capacity)))]
    }

    fn peak(&self) -> Finding {
        let MomentState { moment, in_use, live, .. } = &self.explanation.peak;
        let when = match moment {
            Some(moment) => format!("at {moment}"),
            None => "before the first event".to_owned(),
        };
        let mut finding = Finding::new("peak", Weight::Note, "who holds the memory at the peak")
            .say(format!(
                "the most that is allocated is {}, {when}; {} are reserved then, {} at most",
                in_use.allocated, in_use.reserved, self.explanation.exact.peaks.reserved,
            ))
            .bytes("allocated", in_use.allocated)
            .bytes("reserved", in_use.reserved)
            .bytes("reserved at most", self.explanation.exact.peaks.reserved);
        let shares: Vec<String> = (live.by_category.iter().take(4))
            .map(|share| {
                let part = percent(permille(share.bytes, live.bytes));
                format!("{}: {} ({part})", share.category.label(), share.bytes)
            })
            .collect();
        if !shares.is_empty() {
            finding = finding.say(shares.join(", "));
        }
        for share in &live.by_category {
            finding = finding.bytes(share.category.label(), share.bytes);
        }
        finding.check(self.explain())
    }

    /// The line that holds most at the peak, if any stands out.
    fn line_at_peak(&self) -> Option<Finding> {
        let live = &self.explanation.peak.live;
        let most = live.by_stack.iter().find(|share| !share.stack.is_none())?;
        let share = permille(most.bytes, live.bytes);
        if share < 2 * WORTH_PERMILLE {
            return None;
        }
        let module = match most.module.as_str() {
            "" => String::new(),
            module => format!(" in {}", innermost(module)),
        };
        Some(
            Finding::new("largest-line", Weight::Contribution, "one line holds much of the peak")
                .say(format!(
                    "{}{module} holds {} of the {} at the peak ({}) in {}: {}",
                    most.line,
                    most.bytes,
                    live.bytes,
                    percent(share),
                    counted(most.tensors, "tensor"),
                    most.category.label(),
                ))
                .bytes("held", most.bytes)
                .count("tensors", most.tensors)
                .figure("share", Value::Permille(share))
                .act(match most.category {
                    Category::Workspace if of_optimizer(&most.frames) => OPTIMIZER_SCRATCH,
                    // The stack is there, so recording earlier would tell no more.
                    Category::Unknown => {
                        "see what this line keeps, and keep less of it or free it earlier"
                    }
                    category => cure(category),
                })
                .check(self.explain()),
        )
    }

    fn leaks(&self) -> Vec<Finding> {
        let leaks = self.explanation.leaks.iter().filter(|l| l.bytes_per_step >= LEAK_BYTES);
        let leaks = leaks.take(LEAKS_TOLD);
        leaks.map(|leak| {
            Finding::new("leak", Weight::Contribution, "memory that grows with every step")
                .say(format!(
                    "{} keeps {} more after every step ({} a step), {} times in a row; at the end it holds {}",
                    leak.line,
                    leak.bytes_per_step,
                    counted(leak.tensors_per_step, "tensor"),
                    leak.steps,
                    leak.held,
                ))
                .bytes("growth per step", leak.bytes_per_step)
                .count("tensors per step", leak.tensors_per_step)
                .count("steps", leak.steps)
                .bytes("held at the end", leak.held)
                .act(format!(
                    "see what keeps the tensors of {} alive: a list that grows, a loss that is summed without .item() or .detach(), a graph that is retained",
                    leak.line
                ))
                .check(self.explain())
        }).collect()
    }

    /// Reserved memory that was of no use at the peak.
    fn unusable_at_peak(&self) -> Option<Finding> {
        let peak = &self.explanation.peak;
        let found = &peak.fragmentation;
        let free = found.free_bytes();
        let share = permille(free, found.reserved);
        if share < WORTH_PERMILLE {
            return None;
        }
        let mut finding =
            Finding::new("reserved-unused", Weight::Contribution, "reserved memory without use")
                .say(format!(
                    "at the peak {free} of the {} reserved ({}) are in no block in use: {}",
                    found.reserved,
                    percent(share),
                    parts_in_words(&found.free),
                ))
                .bytes("reserved but unused", free)
                .figure("share", Value::Permille(share));
        for part in &found.free {
            finding = finding.bytes(free_words(part.why, false), part.bytes);
        }
        if found.split > found.releasable && !self.recording.config.expandable_segments {
            finding = finding.act("try expandable_segments:True, or let the search find settings");
        } else if found.releasable > found.split {
            finding = finding.act(
                "whole segments are cached for later requests: only where another process needs them does torch.cuda.empty_cache() help",
            );
        }
        Some(finding.check(self.tune(None)))
    }

    /// Segments that a few blocks hold.
    fn pinned(&self) -> Option<Finding> {
        let state = self.explanation.failed.as_ref().map_or(&self.explanation.peak, |f| &f.state);
        let found = &state.fragmentation;
        if permille(found.pinned_free, found.reserved) < WORTH_PERMILLE {
            return None;
        }
        let used: Bytes = found.pinned_segments.iter().map(|segment| segment.used).sum();
        let first = found.pinned_segments.first()?;
        let lines = first.lines.join("; ");
        Some(
            Finding::new("pinned-segments", Weight::Contribution, "small blocks hold large segments")
                .say(format!(
                    "{} of which at most a quarter is in use keep {} from the driver; in the largest, {} of {} are used by {lines}",
                    counted(found.pinned, "segment"),
                    found.pinned_free,
                    first.used,
                    first.size,
                ))
                .count("segments", found.pinned)
                .bytes("free in them", found.pinned_free)
                .bytes("used in those listed", used)
                .act(format!("allocate what {lines} makes before the large temporary tensors, or free it earlier"))
                .check(self.tune(None)),
        )
    }

    /// What CUDA graphs and `MemPool`s keep to themselves.
    fn private_pools(&self) -> Option<Finding> {
        let found = &self.explanation.peak.fragmentation;
        let share = permille(found.private, found.reserved);
        if share < WORTH_PERMILLE {
            return None;
        }
        let free = found.free.iter().find(|part| part.why == Unusable::OtherPool);
        let free = free.map_or(Bytes::ZERO, |part| part.bytes);
        Some(
            Finding::new("private-pools", Weight::Contribution, "pools of CUDA graphs keep memory")
                .say(format!(
                    "{} of the {} reserved at the peak ({}) belong to private pools of CUDA graphs or MemPools; {free} of it are free, and no other request may use them",
                    found.private,
                    found.reserved,
                    percent(share),
                ))
                .bytes("in private pools", found.private)
                .bytes("free in them", free)
                .act("capture fewer graphs (batch sizes), or let graphs share one pool")
                .check(self.explain()),
        )
    }

    fn slack(&self) -> Option<Finding> {
        let found = &self.explanation.peak.fragmentation;
        let share = permille(found.slack(), found.allocated);
        (share >= SLACK_PERMILLE).then(|| {
            Finding::new("rounding", Weight::Contribution, "blocks are larger than what was asked for")
                .say(format!(
                    "{} of the {} allocated at the peak ({}) are rounding and blocks that were not split",
                    found.slack(), found.allocated, percent(share),
                ))
                .bytes("slack", found.slack())
                .figure("share", Value::Permille(share))
                .act("expandable_segments:True splits every block exactly; roundup_power2_divisions, if set, rounds less with more divisions")
                .check(format!("plimsoll replay {} --set expandable_segments=true", self.file))
        })
    }

    fn outside(&self) -> Option<Finding> {
        let outside = self.explanation.outside?;
        let share = permille(outside.outside, outside.used);
        let weight = if share >= 2 * WORTH_PERMILLE { Weight::Contribution } else { Weight::Note };
        let when = if outside.at_failure { "when memory ran out" } else { "at the end" };
        Some(
            Finding::new("outside", weight, "memory outside of the allocator")
                .say(format!(
                    "{when} the device had {} in use, of which this allocator held {}: {} ({}) belong to driver contexts, NCCL, other libraries and other processes",
                    outside.used, outside.reserved, outside.outside, percent(share),
                ))
                .bytes("in use on the device", outside.used)
                .bytes("reserved", outside.reserved)
                .bytes("outside", outside.outside)
                .act("see nvidia-smi for other processes; fewer NCCL channels and processes need less")
                .check("nvidia-smi"),
        )
    }

    fn emptied_caches(&self) -> Option<Finding> {
        let times = self.recording.caches_emptied;
        let per_step = self.explanation.steps.count() as u64;
        (times > 0 && times >= per_step.max(1)).then(|| {
            Finding::new("emptied-cache", Weight::Note, "the program empties the cache often")
                .say(format!(
                    "torch.cuda.empty_cache is called {}; each call waits for the device, and the segments are made anew after it",
                    counted(times, "time")
                ))
                .count("times", times)
                .act("leave torch.cuda.empty_cache out of the loop; expandable_segments:True fights fragmentation without it")
                .check(self.tune(None))
        })
    }

    fn unknown(&self) -> Option<Finding> {
        let live = &self.explanation.peak.live;
        let unseen = live.by_line.iter().find(|share| share.name == "not recorded")?;
        let share = permille(unseen.bytes, live.bytes);
        (share >= 2 * WORTH_PERMILLE).then(|| {
            Finding::new("unrecorded", Weight::Note, "blocks from before the recording")
                .say(format!(
                    "{} at the peak ({}) were allocated before the recording began, so nobody knows where",
                    unseen.bytes, percent(share),
                ))
                .bytes("unrecorded", unseen.bytes)
                .figure("share", Value::Permille(share))
                .act("call torch.cuda.memory._record_memory_history() before the model is made")
                .check(self.explain())
        })
    }

    fn departure(&self) -> Option<Finding> {
        let exact = &self.explanation.exact;
        let first = exact.departures.first()?;
        Some(
            Finding::new("departure", Weight::Doubt, "the replay departs from the recording")
                .say(format!(
                    "{} in all, the first: expected {}, got {}: {}",
                    counted(exact.departures_in_all, "departure"),
                    first.expected,
                    first.got,
                    first.why,
                ))
                .count("departures", exact.departures_in_all)
                .check(format!("plimsoll replay {} --json", self.file)),
        )
    }

    fn steps(&self) -> Option<Finding> {
        let steps = &self.explanation.steps;
        let rule = steps.rule?;
        Some(
            Finding::new("steps", Weight::Note, "the program repeats itself")
                .say(format!(
                    "{}, found by {}; {} events a step on average",
                    counted(steps.count() as u64, "whole step"),
                    rule.words(),
                    grouped(events_per_step(&steps.bounds)),
                ))
                .count("steps", steps.count() as u64)
                .check(self.explain()),
        )
    }
}

fn events_per_step(bounds: &[u32]) -> u64 {
    match bounds {
        [first, .., last] => u64::from(last - first) / (bounds.len() as u64 - 1),
        _ => 0,
    }
}

/// `3.00 GiB in pieces that are too small (120 blocks, the largest 20.00 MiB), 1.00 GiB ...`.
fn parts_in_words(parts: &[FreePart]) -> String {
    let words: Vec<String> = (parts.iter().take(4))
        .map(|part| {
            format!(
                "{} {} ({}, the largest {})",
                part.bytes,
                free_words(part.why, true),
                counted(part.blocks, "block"),
                part.largest,
            )
        })
        .collect();
    words.join(", ")
}

fn free_words(why: Unusable, verb: bool) -> &'static str {
    match (why, verb) {
        (Unusable::No, true) => "cached as whole segments",
        (Unusable::No, false) => "whole segments",
        (Unusable::TooSmall, true) => "in pieces between blocks in use",
        (Unusable::TooSmall, false) => "pieces between blocks",
        (why, _) => why.words(),
    }
}

/// The optimizer's scratch and what avoids it.
const OPTIMIZER_SCRATCH: &str = "pass fused=True (or foreach=False) to the optimizer: its foreach form makes temporaries as large as the parameters";

/// Whether a stack goes through `torch.optim`.
fn of_optimizer(frames: &[String]) -> bool {
    frames.iter().any(|frame| frame.contains("optim/"))
}

/// What usually makes a category smaller.
const fn cure(category: Category) -> &'static str {
    match category {
        Category::Parameters => {
            "shard the weights (FSDP, ZeRO-3), load fewer bits, or offload them"
        }
        Category::Gradients => {
            "shard gradients (ZeRO-2), accumulate in bf16, or free them with zero_grad(set_to_none=True)"
        }
        Category::OptimizerStates => {
            "shard the optimizer's states (ZeRO-1), use 8-bit states, or offload them"
        }
        Category::Activations => {
            "checkpoint activations, take a smaller micro-batch, or a fused attention kernel"
        }
        Category::LogitsAndLoss => "compute the loss in chunks of the vocabulary or sequence",
        Category::Workspace => {
            "bound the library's scratch (CUBLAS_WORKSPACE_CONFIG, cudnn.benchmark=False)"
        }
        Category::Communication => "use smaller buckets, fewer prefetched shards, or NCCL_BUFFSIZE",
        Category::KvCache => {
            "bound the cache (gpu_memory_utilization, max_model_len), or quantize it"
        }
        Category::EngineBuffers => "capture fewer CUDA graphs, or lower the engine's batch limits",
        Category::Inputs => "bring smaller batches, and free them after use",
        _ => "record earlier, so that stacks say what these are",
    }
}
