//! What a log shows as a whole: several failures, growth over time, how an engine divides the device, look-alikes.

use plimsoll_units::Bytes;

use super::super::figure::{self, Key};
use super::super::table::Kind;
use super::super::{Failure, Log, Series};
use super::{look, look_count};
use crate::finding::{Finding, Value, Weight};

/// Many failures: first, worst, how many, where.
pub fn several(log: &Log, out: &mut Vec<Finding>) {
    let failures: Vec<&Failure> =
        log.failures.iter().filter(|f| f.pattern.kind.is_failure()).collect();
    if failures.len() < 2 {
        return;
    }
    let (Some(first), Some(worst)) = (failures.first(), worst(&failures)) else { return };
    let mut finding =
        Finding::new("several-failures", Weight::Note, "memory ran out more than once")
            .say(format!(
                "{} different messages, printed {} times, from {} place{}",
                failures.len(),
                log.failure_prints,
                log.groups.len(),
                if log.groups.len() == 1 { "" } else { "s" }
            ))
            .say(format!("The first is at {}", position(log, first)))
            .count("messages", failures.len() as u64)
            .count("printed", log.failure_prints);
    if let Some(size) = figure::bytes(&worst.readings, Key::Requested)
        && !std::ptr::eq(*first, worst)
    {
        finding =
            finding.say(format!("The largest request, {size}, is at {}", position(log, worst)));
    }
    let places: Vec<String> = log
        .groups
        .iter()
        .filter_map(|(group, count)| {
            let names = [group.origin.as_deref(), group.device.as_deref()];
            let name: Vec<&str> = names.into_iter().flatten().collect();
            (!name.is_empty()).then(|| format!("{} ({count})", name.join(" on ")))
        })
        .take(12)
        .collect();
    if !places.is_empty() {
        finding = finding.figure("where", Value::Text(places.join(", ")));
    }
    let devices: std::collections::BTreeSet<_> = log.groups.keys().map(|g| &g.device).collect();
    let origins: std::collections::BTreeSet<_> = log.groups.keys().map(|g| &g.origin).collect();
    if origins.len() > 1 && devices.len() == 1 && devices.first().is_some_and(|d| d.is_some()) {
        out.push(
            Finding::new("one-device-for-all", Weight::Contribution, "several processes use one device")
                .say(format!(
                    "{} processes ran out on the same device number; unless each sees its own GPU as number 0, they share it",
                    origins.len()
                ))
                .act("set the device by local rank before the first CUDA call: torch.cuda.set_device(local_rank)"),
        );
    }
    out.push(finding.act("judge the first: later ones often follow from it"));
}

/// The failure with the largest request.
pub fn worst<'a>(failures: &[&'a Failure]) -> Option<&'a Failure> {
    failures
        .iter()
        .copied()
        .max_by_key(|f| figure::bytes(&f.readings, Key::Requested).unwrap_or(Bytes::ZERO))
}

/// `train.log:120, rank 3`.
fn position(log: &Log, failure: &Failure) -> String {
    let name = log.sources.get(failure.source).map_or("-", |s| s.name.as_str());
    let origin = failure.origin.as_deref().map_or(String::new(), |o| format!(", {o}"));
    format!("{name}:{}{origin}", failure.line)
}

/// Points below which nothing is said of a trend.
const ENOUGH: usize = 8;

/// Usage that rose until the end, and failures late in a run.
pub fn growth(log: &Log, out: &mut Vec<Finding>) {
    let failed = log.failures.iter().find(|f| f.pattern.kind.is_failure());
    let grown = log
        .series
        .iter()
        .filter(|((_, key), _)| matches!(key, Key::Allocated | Key::Reserved | Key::HostUsed))
        .filter_map(|((origin, key), series)| {
            rise(series).map(|(from, to)| (origin, *key, from, to))
        })
        .max_by_key(|(_, _, from, to)| *to - *from);
    if let Some((origin, key, from, to)) = grown {
        let weight = if failed.is_some() { Weight::Cause } else { Weight::Contribution };
        let who = origin.as_deref().map_or(String::new(), |o| format!(" of {o}"));
        out.push(
            Finding::new("growth", weight, "memory grew step by step")
                .say(format!("{}{who} rose from {from} to {to} over the log, without falling back", key.name()))
                .bytes("at first", from)
                .bytes("at last", to)
                .act("look for tensors that are kept: losses added up without .item() or .detach(), outputs collected in a list, hooks, a graph kept by retain_graph")
                .act("record a memory snapshot over several steps: blocks that outlive a step and their stacks are the leak"),
        );
        return;
    }
    if let Some(failure) = failed
        && let Some((step, steps)) = failure.step
        && step >= 10
        && matches!(failure.pattern.kind, Kind::Oom)
    {
        out.push(
            Finding::new("late", Weight::Note, "the run worked for a while")
                .say(format!(
                    "memory ran out after step {step} of {steps}: either a batch was longer than those before it, or something grows"
                ))
                .count("step", step)
                .act("log torch.cuda.max_memory_allocated and the batch's shape: a jump says long batch, a slope says leak")
                .act("try the longest batch first; pad or cut to a limit"),
        );
    }
}

/// First and last of a series that rose by at least a tenth and hardly fell.
fn rise(series: &Series) -> Option<(Bytes, Bytes)> {
    let points = &series.points;
    if points.len() < ENOUGH {
        return None;
    }
    // Loading and the first step are no growth: the second half tells.
    let half = points.get(points.len() / 2..)?;
    let (first, last) = (*half.first()?, *half.last()?);
    let pairs = || half.windows(2).filter_map(|w| Some((*w.first()?, *w.last()?)));
    let (ups, downs) =
        (pairs().filter(|(a, b)| b > a).count(), pairs().filter(|(a, b)| b < a).count());
    let much = last > first.saturating_add(first / 10) && last - first > 64 << 20;
    (much && ups >= 3 && ups >= 4 * downs.max(1)).then_some((Bytes::new(first), Bytes::new(last)))
}

const VLLM_SPLIT: [&str; 4] = ["vllm-split", "vllm-split-0.6.4", "vllm-weights", "vllm-weights-v1"];

/// How an engine divides the device, with its sum checked.
pub fn engine(log: &Log, out: &mut Vec<Finding>) {
    let get = |key, patterns: &[&str]| look(log, None, patterns, key);
    let all = [
        "vllm-split",
        "vllm-split-0.6.4",
        "vllm-budget",
        "vllm-kv-bytes",
        "vllm-graphs",
        "sglang-loaded",
        "sglang-kv",
        "sglang-graphs",
    ];
    let weights = get(Key::Weights, &VLLM_SPLIT).or_else(|| get(Key::Weights, &["sglang-loaded"]));
    let kv = get(Key::KvCache, &all);
    let tokens =
        look_count(log, None, &["vllm-kv-tokens", "sglang-kv", "sglang-tokens"], Key::KvTokens);
    let blocks = look_count(log, None, &["vllm-blocks"], Key::KvBlocks);
    if weights.is_none() && kv.is_none() && tokens.is_none() && blocks.is_none() {
        return;
    }
    let mut finding =
        Finding::new("engine-memory", Weight::Note, "how the engine divides the device");
    let mut parts = Vec::new();
    for (key, value) in [
        (Key::Budget, get(Key::Budget, &all)),
        (Key::Weights, weights),
        (Key::NonTorch, get(Key::NonTorch, &all)),
        (Key::Activations, get(Key::Activations, &all)),
        (Key::GraphMemory, get(Key::GraphMemory, &all)),
        (Key::KvCache, kv),
    ] {
        if let Some(value) = value {
            parts.push(format!("{} {}", key.name(), value.bytes));
            finding = finding.bytes(key.name(), value.bytes);
        }
    }
    if let Some(tokens) = tokens {
        parts.push(format!("{tokens} KV tokens"));
        finding = finding.count(Key::KvTokens.name(), tokens);
        if let Some(kv) = kv.filter(|_| tokens > 0) {
            let each = kv.bytes / tokens;
            parts.push(format!("{each} per token"));
            finding = finding.bytes("KV cache per token", each);
        }
    }
    if let Some(blocks) = blocks {
        parts.push(format!("{blocks} KV blocks"));
        finding = finding.count(Key::KvBlocks.name(), blocks);
    }
    let concurrency = super::usage(log, None, "vllm-concurrency").and_then(|u| {
        let times = figure::permille(&u.readings, Key::Concurrency)?;
        Some((times, figure::count(&u.readings, Key::MaxLen)?))
    });
    if let Some((times, length)) = concurrency {
        let whole = format!("{}.{:02}", times / 1000, times % 1000 / 10);
        parts.push(format!("enough for {whole} sequences of {length} tokens"));
        finding = finding.figure(Key::Concurrency.name(), Value::Permille(times));
    }
    out.push(finding.say(parts.join(", ")));
    check_split(log, out);
}

/// An engine's parts of the device.
pub fn division(log: &Log) -> Vec<(&'static str, Bytes)> {
    let patterns = ["vllm-split", "vllm-budget"];
    let get = |key| look(log, None, &patterns, key).map(|p| p.bytes);
    let (Some(capacity), Some(weights), Some(kv)) =
        (get(Key::Capacity), get(Key::Weights), get(Key::KvCache))
    else {
        return Vec::new();
    };
    let (peak, non_torch) =
        (get(Key::Activations).unwrap_or_default(), get(Key::NonTorch).unwrap_or_default());
    vec![
        ("weights", weights),
        ("activation peak", peak),
        ("outside PyTorch", non_torch),
        ("KV cache", kv),
        ("left to others", capacity - weights - kv - peak - non_torch),
    ]
}

/// `budget - weights - non-torch - activations = KV cache`.
fn check_split(log: &Log, out: &mut Vec<Finding>) {
    let get = |key| look(log, None, &["vllm-split", "vllm-budget"], key);
    let (Some(budget), Some(weights), Some(non_torch), Some(peak), Some(kv)) = (
        get(Key::Budget),
        get(Key::Weights),
        get(Key::NonTorch),
        get(Key::Activations),
        get(Key::KvCache),
    ) else {
        return;
    };
    let sum = weights.bytes + non_torch.bytes + peak.bytes + kv.bytes;
    let slack = [budget, weights, non_torch, peak, kv].iter().map(|p| p.slack).sum::<Bytes>();
    let off = if sum > budget.bytes { sum - budget.bytes } else { budget.bytes - sum };
    if off > slack + Bytes::mib(16) {
        out.push(
            Finding::new(
                "split-arithmetic",
                Weight::Doubt,
                "the engine's parts do not add up to its budget",
            )
            .say(format!("the parts sum to {sum}, the budget is {}", budget.bytes))
            .bytes("sum", sum)
            .bytes("budget", budget.bytes),
        );
    }
}

/// Messages that sound like memory and are not.
pub fn lookalikes(log: &Log, out: &mut Vec<Finding>) {
    let mut said = std::collections::BTreeSet::new();
    for remark in &log.not_memory {
        if !said.insert(remark.pattern.key) {
            continue;
        }
        match remark.pattern.key {
            "triton-resources" => {
                let mut finding = Finding::new("on-chip-memory", Weight::Note, "a kernel needs too much on-chip memory")
                    .say("\"out of resource: shared memory\" is about the few KiB of on-chip memory per block, not the device's memory: more free memory does not help");
                for key in [Key::SharedNeeded, Key::SharedLimit] {
                    if let Some(n) = figure::count(&remark.readings, key) {
                        finding = finding.bytes(key.name(), Bytes::new(n));
                    }
                }
                out.push(
                    finding
                        .act("lower the kernel's block sizes or num_stages, or update the library that brings the kernel")
                        .act("use another attention kernel on this GPU"),
                );
            }
            "tf-bfc-warning" => out.push(
                Finding::new("allocation-warning", Weight::Note, "an allocation was tried and given up")
                    .say("\"the caller indicates that this is not a failure\": a convolution looked for a larger workspace and took a smaller one; it may be slower, nothing failed"),
            ),
            _ => {}
        }
    }
}
