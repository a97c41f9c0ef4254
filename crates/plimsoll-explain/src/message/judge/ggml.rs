//! llama.cpp and Ollama: buffers of weights, cache and intermediate results, one after the other.

use std::collections::BTreeMap;

use plimsoll_units::Bytes;

use super::super::figure::{self, Amount, Key};
use super::super::{Failure, Log};
use super::{at, push};
use crate::finding::{Finding, Value, Weight};

/// Buffers of the newest load: device and kind to bytes.
fn buffers(log: &Log) -> BTreeMap<(String, String), Bytes> {
    let lines = log.usage.iter().filter(|u| matches!(u.pattern, "ggml-size" | "ollama-part"));
    let mut sums = BTreeMap::new();
    for reading in lines.flat_map(|u| &u.readings) {
        if let (Some(of), Amount::Size(size)) = (&reading.of, &reading.value)
            && let Some((kind, device)) = of.split_once(" on ")
        {
            sums.insert((device.to_owned(), kind.to_owned()), size.bytes);
        }
    }
    sums
}

/// Memory in the host.
fn on_host(device: &str) -> bool {
    device.starts_with("CPU") || device.ends_with("_Host")
}

/// A buffer could not be allocated.
pub fn llama(log: &Log, failure: &Failure, out: &mut Vec<Finding>) {
    let requested = figure::printed(&failure.readings, Key::Requested);
    let number = failure.device.as_deref().and_then(|d| d.strip_prefix("GPU "));
    let buffers = buffers(log);
    let mine = |device: &str| match number {
        Some(n) => {
            device.strip_suffix(n).is_some_and(|d| !d.ends_with(|c: char| c.is_ascii_digit()))
        }
        None => true,
    };
    let held: Vec<(&str, &str, Bytes)> = buffers
        .iter()
        .filter(|((device, _), _)| !on_host(device) && mine(device))
        .map(|((device, kind), bytes)| (device.as_str(), kind.as_str(), *bytes))
        .collect();
    let has = |kind: &str| held.iter().any(|(_, k, _)| *k == kind);
    // Buffers are made in the order weights, cache, compute.
    let (what, code) = match (has("model"), has("KV")) {
        (_, true) => ("intermediate results (the compute buffer)", "compute-buffer"),
        (true, false) => ("the KV cache or intermediate results", "cache-buffer"),
        (false, false) => ("weights", "weight-buffer"),
    };
    let mut finding =
        Finding::new(code, Weight::Cause, format!("no room on the device for {what}"));
    let sum: Bytes = held.iter().map(|(_, _, b)| *b).sum();
    if !held.is_empty() {
        let list: Vec<String> =
            held.iter().take(6).map(|(d, k, b)| format!("{k} on {d} {b}")).collect();
        finding = finding.say(format!("already there: {}", list.join(", ")));
    }
    if let Some(requested) = requested {
        finding = finding.say(format!("{} more were asked for in one piece", requested.bytes));
        if !sum.is_zero() {
            let where_ = failure.device.as_deref().unwrap_or("the device");
            finding = finding.say(format!("Together {} on {where_}", sum + requested.bytes));
        }
    }
    finding = push(finding, Key::Requested, requested);
    for (device, kind, bytes) in held.iter().take(6) {
        finding = finding.bytes(format!("{kind} on {device}"), *bytes);
    }
    finding = match code {
        "weight-buffer" => finding
            .act("fewer layers on the GPU: -ngl, or leave it to -fit on; experts to the host: --n-cpu-moe")
            .act("a smaller quantization of the model"),
        "cache-buffer" => finding
            .act("a shorter context: -c; the cache grows with it")
            .act("a quantized cache: -ctk q8_0 -ctv q8_0 with flash attention")
            .act("fewer layers on the GPU: -ngl"),
        _ => finding
            .act("a smaller physical batch: -ub 256 or 128; the compute buffer grows with it")
            .act("flash attention: -fa on; without it scores of batch x context are written out")
            .act("a shorter context: -c"),
    };
    let several = buffers
        .keys()
        .filter(|(d, _)| !on_host(d))
        .map(|(d, _)| d)
        .collect::<std::collections::BTreeSet<_>>();
    if several.len() > 1 {
        finding =
            finding.act("shares of the GPUs: -ts; the first one also holds what is not split");
    }
    out.push(at(finding, failure));
    offloaded(log, out);
}

/// Layers that stayed on the host.
fn offloaded(log: &Log, out: &mut Vec<Finding>) {
    let counts = ["ggml-offloaded", "ollama-plan"].iter().find_map(|p| {
        let line = log.usage.iter().find(|u| u.pattern == *p)?;
        Some((
            figure::count(&line.readings, Key::LayersOnGpu)?,
            figure::count(&line.readings, Key::Layers)?,
        ))
    });
    if let Some((on_gpu, layers)) = counts.filter(|(on_gpu, layers)| on_gpu < layers) {
        out.push(
            Finding::new(
                "layers-on-host",
                Weight::Note,
                "a part of the layers runs on the processor",
            )
            .say(format!(
                "{on_gpu} of {layers} layers are on GPUs; each layer on the host slows every token"
            ))
            .count(Key::LayersOnGpu.name(), on_gpu)
            .count(Key::Layers.name(), layers),
        );
    }
}

/// Ollama finds too little host memory for what the GPU does not take.
pub fn ollama_host(log: &Log, failure: &Failure, out: &mut Vec<Finding>) {
    let get = |key| figure::printed(&failure.readings, key);
    let mut finding = Finding::new(
        "host-too-small",
        Weight::Cause,
        "the part of the model that stays on the host does not fit there",
    );
    if let (Some(needed), Some(free)) = (get(Key::SystemNeeded), get(Key::SystemFree)) {
        finding = finding.say(format!("{} are needed, {} are free", needed.bytes, free.bytes));
    }
    for key in [Key::SystemNeeded, Key::SystemFree] {
        finding = push(finding, key, get(key));
    }
    if let Some(plan) = log.usage.iter().find(|u| u.pattern == "ollama-plan") {
        let plan_of = |key| figure::printed(&plan.readings, key);
        if let (Some(full), Some(kv)) = (plan_of(Key::RequiredFull), plan_of(Key::RequiredKv)) {
            finding = finding.say(format!(
                "Ollama's estimate with all layers on GPUs is {}, {} of it KV cache",
                full.bytes, kv.bytes
            ));
            if kv.bytes > full.bytes / 4 {
                finding = finding.act("a smaller context (num_ctx, OLLAMA_CONTEXT_LENGTH), or fewer parallel requests (OLLAMA_NUM_PARALLEL): the cache is a large part");
            }
        }
        if let Some(device) = plan_of(Key::AvailableNow) {
            finding = finding.figure("free on the first GPU", Value::Bytes(device.bytes));
        }
    }
    out.push(
        finding
            .act("a smaller model or quantization")
            .act("OLLAMA_KV_CACHE_TYPE=q8_0 with OLLAMA_FLASH_ATTENTION=1 halves the cache")
            .act("free host memory, or add swap"),
    );
    offloaded(log, out);
}
