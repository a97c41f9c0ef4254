//! Times the library call: Llama-3.1-405B training on 128 GPUs, the question that the project's bar names. Prints the
//! fastest and the middle one of the runs, and the same for a request that does not fit, with its nearest changes.
//!
//! usage: library_call [RUNS] [fits | too-large]
//!
//! With RUNS 0 the question is answered once and nothing is timed, for tools that count instructions.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use plimsoll_engine::{Request, estimate};

/// FSDP over 16 groups of 8 tensor-parallel ranks, everything in bf16.
const FITS: &str = r#"{
    "schema": "plimsoll.request/1", "model": "meta-llama/Llama-3.1-405B", "machine": "h100-80g*128",
    "workload": {"train": {"batch": 1, "seq": 8192, "precision": "bf16"}},
    "strategy": {"tp": 8, "zero": "fsdp", "checkpoint": "full"}
}"#;

/// FSDP alone.
const TOO_LARGE: &str = r#"{
    "schema": "plimsoll.request/1", "model": "meta-llama/Llama-3.1-405B", "machine": "h100-80g*128",
    "workload": {"train": {"batch": 1, "seq": 8192, "precision": "bf16-mixed"}},
    "strategy": {"zero": "fsdp", "checkpoint": "full"}
}"#;

fn timed(request: &Request, runs: usize) -> Result<(Duration, Duration), Box<dyn Error>> {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        black_box(estimate(black_box(request))?);
        times.push(start.elapsed());
    }
    times.sort();
    Ok((times[0], times[times.len() / 2]))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let runs = arguments.next().map_or(Ok(101), |n| n.parse::<usize>())?;
    let only = arguments.next();
    for (name, text, runs) in [("fits", FITS, runs), ("too-large", TOO_LARGE, runs.div_ceil(10))] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut request: Request = serde_json::from_str(text)?;
        request.changes = false;
        let response = estimate(&request)?;
        let events = response.timeline.as_ref().map_or(0, |t| t.events().len());
        println!("{name}: {}, {events} events", response.peak.device);
        if runs == 0 {
            continue;
        }
        let (least, median) = timed(&request, runs)?;
        println!("  library call    {least:>12.1?} least {median:>12.1?} median");
        request.changes = true;
        let (least, median) = timed(&request, runs)?;
        println!("  with changes    {least:>12.1?} least {median:>12.1?} median");
    }
    Ok(())
}
