//! vLLM and SGLang: a budget, and a KV cache that gets what the rest leaves.

use plimsoll_units::Bytes;

use super::super::figure::{self, Key};
use super::super::quantity::Printed;
use super::super::settings::Setting;
use super::super::{Failure, Log};
use super::{at, look, look_count, push};
use crate::finding::{Finding, Value, Weight};

const SPLIT: [&str; 6] = [
    "vllm-split",
    "vllm-split-0.6.4",
    "vllm-budget",
    "vllm-kv-bytes",
    "vllm-weights",
    "vllm-weights-v1",
];

/// vLLM refuses to start, or fails on the way.
pub fn vllm(log: &Log, failure: &Failure, out: &mut Vec<Finding>) {
    match failure.pattern.key {
        "vllm-free" => taken(failure, out),
        "vllm-no-blocks" => no_blocks(log, failure, out),
        "vllm-too-long" | "vllm-too-long-bytes" => too_long(log, failure, out),
        "vllm-profiling" => out.push(
            Finding::new("profiling-disturbed", Weight::Cause, "another process freed memory during the trial run")
                .say("vLLM measures its own use as a difference of free memory; it found more free after the trial run than before, so the measurement is worthless")
                .act("start engines on one GPU one after the other, each after the other is ready")
                .act("give the cache's size directly: --kv-cache-memory-bytes, or --num-gpu-blocks-override"),
        ),
        _ => {
            let finding = Finding::new("warm-up", Weight::Cause, "memory ran out while the sampler warmed up")
                .say("the dummy batch has --max-num-seqs sequences, and the sampler makes logits of all of them")
                .act("lower --max-num-seqs (256 is plenty on small cards)")
                .act("lower --gpu-memory-utilization, which leaves more outside the KV cache");
            out.push(at(finding, failure));
        }
    }
}

/// The budget is more than what is free.
fn taken(failure: &Failure, out: &mut Vec<Finding>) {
    let get = |key| figure::printed(&failure.readings, key);
    let (free, capacity, budget) = (get(Key::Free), get(Key::Capacity), get(Key::Budget));
    let utilization = figure::permille(&failure.readings, Key::Utilization);
    let mut finding = Finding::new(
        "budget-not-free",
        Weight::Cause,
        "the engine's share of the device is not free",
    );
    if let (Some(free), Some(capacity), Some(budget)) = (free, capacity, budget) {
        let missing = budget.bytes - free.bytes;
        finding = finding.say(format!(
            "{} of {} are free, {} are wanted: {missing} are missing, and {} were in use before the engine took anything",
            free.bytes, capacity.bytes, budget.bytes, capacity.bytes - free.bytes
        ));
        if let Some(utilization) = utilization {
            check_budget(capacity, utilization, budget, out);
        }
        // Rounded down, so that it starts.
        let fits = percent_down(free.low(), capacity.high());
        if fits > 0 {
            finding = finding
                .say(format!("The largest share that starts is {}", fraction(fits * 10)))
                .act(format!("--gpu-memory-utilization {}", fraction(fits * 10)));
        }
    }
    for key in [Key::Free, Key::Capacity, Key::Budget] {
        finding = push(finding, key, get(key));
    }
    if let Some(utilization) = utilization {
        finding = finding.figure(Key::Utilization.name(), Value::Permille(utilization));
    }
    out.push(
        finding
            .act("end what holds the rest: nvidia-smi shows it, an engine that crashed often leaves workers behind")
            .act("in the same process, delete the model before the engine starts and call torch.cuda.empty_cache()"),
    );
}

fn check_budget(capacity: Printed, utilization: u64, budget: Printed, out: &mut Vec<Finding>) {
    let expected = capacity.bytes.scale(utilization, 1000);
    let slack = capacity.slack + budget.slack + capacity.bytes.scale(6, 1000);
    let off =
        if expected > budget.bytes { expected - budget.bytes } else { budget.bytes - expected };
    if off > slack {
        out.push(
            Finding::new(
                "budget-arithmetic",
                Weight::Doubt,
                "the budget is not the share of the device",
            )
            .say(format!(
                "{} of {} are {expected}, the message says {}",
                fraction(utilization),
                capacity.bytes,
                budget.bytes
            )),
        );
    }
}

/// Nothing is left for the KV cache.
fn no_blocks(log: &Log, failure: &Failure, out: &mut Vec<Finding>) {
    let get = |key| look(log, Some(failure), &SPLIT, key);
    let mut finding = Finding::new(
        "no-kv-cache",
        Weight::Cause,
        "nothing is left for the KV cache",
    )
    .say(
        "weights, activations of the trial run and what lies outside PyTorch take the whole budget",
    );
    let parts = [Key::Weights, Key::NonTorch, Key::Activations].map(|key| (key, get(key)));
    let sum: Bytes = parts.iter().filter_map(|(_, p)| p.map(|p| p.bytes)).sum();
    for (key, part) in parts {
        finding = push(finding, key, part);
    }
    let capacity = get(Key::Capacity);
    if let (Some(budget), true) = (get(Key::Budget), get(Key::Activations).is_some()) {
        finding = push(finding, Key::Budget, Some(budget)).say(format!(
            "They sum to {sum} of {}: {} too much",
            budget.bytes,
            sum - budget.bytes
        ));
    }
    let utilization = utilization(log, failure);
    if let Some(u) = utilization {
        finding = finding.figure(Key::Utilization.name(), Value::Permille(u));
    }
    let needed = capacity.map(|c| (sum * 1000 / c.bytes.get().max(1)).get());
    match (needed, utilization) {
        (Some(needed), Some(now))
            if needed > now && needed < 960 && get(Key::Activations).is_some() =>
        {
            finding = finding.act(format!(
                "--gpu-memory-utilization {} or more, if no other process needs the device",
                fraction((needed + 30).min(980))
            ));
        }
        (_, Some(now)) if now >= 950 => {}
        _ => {
            finding =
                finding.act("--gpu-memory-utilization 0.95, if no other process needs the device")
        }
    }
    out.push(at(
        finding
            .act("lower --max-num-batched-tokens and --max-num-seqs: the trial run's activations grow with them")
            .act("--enforce-eager saves the CUDA graphs")
            .act("quantized weights (AWQ, GPTQ, FP8), or more GPUs: --tensor-parallel-size"),
        failure,
    ));
}

/// One sequence of the promised length does not fit into the KV cache.
fn too_long(log: &Log, failure: &Failure, out: &mut Vec<Finding>) {
    let get = |key| {
        figure::printed(&failure.readings, key).or_else(|| look(log, Some(failure), &SPLIT, key))
    };
    let count = |key| figure::count(&failure.readings, key);
    let length = count(Key::MaxLen);
    let kv = get(Key::KvCache);
    let fits = count(Key::KvTokens).or_else(|| count(Key::MaxLenFits));
    let needed = get(Key::KvNeeded).or_else(|| {
        let (kv, tokens, length) = (kv?, count(Key::KvTokens)?, length?);
        let bytes = kv.bytes.scale(length, tokens.max(1));
        Some(Printed { bytes, slack: kv.slack.scale(length, tokens.max(1)) + Bytes::mib(1) })
    });
    let mut finding = Finding::new(
        "sequence-too-long",
        Weight::Cause,
        "one sequence of full length does not fit into the KV cache",
    );
    if let (Some(length), Some(fits)) = (length, fits) {
        finding = finding
            .say(format!("the engine promises {length} tokens, the cache holds {fits}"))
            .count(Key::MaxLen.name(), length)
            .count(Key::MaxLenFits.name(), fits);
    }
    if let (Some(kv), Some(needed)) = (kv, needed) {
        finding = finding
            .say(format!(
                "{} are there, {} are needed: {} too few",
                kv.bytes,
                needed.bytes,
                needed.bytes - kv.bytes
            ))
            .bytes(Key::KvCache.name(), kv.bytes)
            .bytes(Key::KvNeeded.name(), needed.bytes);
    }
    if let Some(fits) = fits.filter(|n| *n >= 16) {
        finding = finding.act(format!("--max-model-len {} if that is long enough", fits / 16 * 16));
    }
    if let (Some(now), Some(kv), Some(needed), Some(capacity)) =
        (utilization(log, failure), kv, needed, get(Key::Capacity))
    {
        let more = (needed.high() - kv.low()) * 1000 / capacity.bytes.get().max(1);
        let target = (now + more.get()).div_ceil(10) * 10;
        if target <= 970 {
            finding = finding.act(format!(
                "--gpu-memory-utilization {}, if nothing else uses the device",
                fraction(target)
            ));
        } else {
            finding = finding.say(format!(
                "No share of the device is enough at this length: {} % would be needed",
                target / 10
            ));
        }
    } else {
        finding = finding.act("a higher --gpu-memory-utilization, if nothing else uses the device");
    }
    if !log.run.settings.contains_key(&Setting::KvDtype) {
        finding = finding.act("--kv-cache-dtype fp8, which halves the cache");
    }
    out.push(
        finding.act(
            "more GPUs (--tensor-parallel-size divides weights and cache), or quantized weights",
        ),
    );
}

/// The share that the run was given, in thousandths.
fn utilization(log: &Log, failure: &Failure) -> Option<u64> {
    let printed = ["vllm-budget", "vllm-split-0.6.4"].iter().find_map(|p| {
        figure::permille(&super::usage(log, Some(failure), p)?.readings, Key::Utilization)
    });
    printed.or_else(|| permille(log.run.settings.get(&Setting::Utilization)?))
}

fn permille(text: &str) -> Option<u64> {
    super::super::quantity::permille(text).map(|(n, _)| n)
}

/// `950` as `0.95`.
pub fn fraction(permille: u64) -> String {
    let text = format!("{}.{:03}", permille / 1000, permille % 1000);
    let trimmed = text.trim_end_matches('0');
    if trimmed.ends_with('.') { format!("{trimmed}0") } else { trimmed.to_owned() }
}

fn percent_down(part: Bytes, whole: Bytes) -> u64 {
    super::percent(part, whole).min(100)
}

/// SGLang: start and run time need opposite moves of one option.
pub fn sglang(log: &Log, failure: &Failure, out: &mut Vec<Finding>) {
    let loaded = ["sglang-loaded"];
    let weights = look(log, Some(failure), &loaded, Key::Weights);
    let available = look(log, Some(failure), &loaded, Key::AvailableNow);
    let now = log.run.settings.get(&Setting::Utilization).and_then(|t| permille(t));
    let finding = match failure.pattern.key {
        "sglang-static" => {
            let mut finding = Finding::new("static-share-too-small", Weight::Cause, "weights fill the static share, nothing is left for the KV cache")
                .say("--mem-fraction-static covers weights and KV cache together; at the start it must be raised, while memory that runs out later asks for lowering it");
            if let (Some(weights), Some(available)) = (weights, available) {
                // What was free before loading is the base of the share.
                let before = weights.bytes + available.bytes;
                let least = (super::percent(weights.bytes, before) * 10).min(1000);
                finding = finding
                    .say(format!(
                        "weights take {} of {before}, {} % of it",
                        weights.bytes,
                        least / 10
                    ))
                    .bytes(Key::Weights.name(), weights.bytes)
                    .bytes(Key::AvailableNow.name(), available.bytes);
                if least < 930 {
                    finding = finding.act(format!(
                        "--mem-fraction-static {} or more",
                        fraction((least + 40).div_ceil(10) * 10)
                    ));
                }
            }
            finding
                .act("lower --context-length and --chunked-prefill-size")
                .act("quantized weights, or more GPUs: --tp")
        }
        "sglang-unbalanced" => {
            Finding::new("unbalanced", Weight::Cause, "some of the GPUs are partly taken")
                .say("tensor-parallel ranks must find about the same memory free")
                .act(
                    "end other processes on these GPUs, or choose others with CUDA_VISIBLE_DEVICES",
                )
        }
        "sglang-prefill" | "sglang-decode" => pool_full(failure),
        _ => {
            let mut finding = Finding::new(
                "static-share-too-large",
                Weight::Cause,
                "the static share leaves too little for CUDA graphs",
            )
            .say("what --mem-fraction-static leaves must hold activations and CUDA graphs");
            if let Some(left) = look(log, Some(failure), &["sglang-pool"], Key::AvailableNow) {
                finding = finding
                    .say(format!("{} were left after the pool was made", left.bytes))
                    .bytes(Key::AvailableNow.name(), left.bytes);
            }
            finding
                .act(smaller_share(now))
                .act("a smaller --cuda-graph-max-bs, or --disable-cuda-graph")
        }
    };
    let mut finding = finding;
    if let Some(now) = now {
        finding = finding.figure("static share", Value::Permille(now));
    }
    if let Some(tokens) = look_count(log, Some(failure), &["sglang-kv"], Key::KvTokens) {
        finding = finding.count(Key::KvTokens.name(), tokens);
    }
    out.push(at(finding, failure));
}

/// `--mem-fraction-static 0.83 (it is 0.88)`.
fn smaller_share(now: Option<u64>) -> String {
    match now.filter(|n| *n > 100) {
        Some(now) => {
            format!("--mem-fraction-static {} (it is {})", fraction(now - 50), fraction(now))
        }
        None => "a smaller --mem-fraction-static".to_owned(),
    }
}

/// The token pool is full; the device is not the question.
fn pool_full(failure: &Failure) -> Finding {
    let count = |key| figure::count(&failure.readings, key);
    let mut finding = Finding::new("pool-full", Weight::Cause, "the pool of KV tokens is full")
        .say("\"out of memory\" here is the engine's token pool, not the device's memory: running sequences hold it");
    if let (Some(wanted), Some(free)) = (count(Key::TokensWanted), count(Key::TokensFree)) {
        finding = finding
            .say(format!("{wanted} tokens were wanted, {free} were free"))
            .count(Key::TokensWanted.name(), wanted)
            .count(Key::TokensFree.name(), free);
    }
    finding
        .act("a larger pool: raise --mem-fraction-static as long as the device has room, or --kv-cache-dtype fp8_e5m2")
        .act("a smaller --max-running-requests, or a larger --schedule-conservativeness")
        .act("a smaller --chunked-prefill-size, where a long prompt asks for more than the pool has")
}

#[cfg(test)]
mod tests {
    #[test]
    fn fractions_print_as_typed() {
        for (permille, text) in
            [(950, "0.95"), (900, "0.9"), (1000, "1.0"), (875, "0.875"), (0, "0.0")]
        {
            assert_eq!(super::fraction(permille), text);
        }
    }
}
