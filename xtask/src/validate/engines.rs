//! The engine rows in full, one line each, and the shares within the bars: for work on one engine at a time.

use std::fs;

use anyhow::{Context as _, bail};

use super::{llamacpp as rows, serving as records};

fn read(arguments: &[String]) -> anyhow::Result<String> {
    let [path] = arguments else { bail!("give one file of records (JSON lines)") };
    fs::read_to_string(path).with_context(|| path.clone())
}

/// Prints the vLLM and SGLang records of a file.
pub fn serving(arguments: &[String]) -> anyhow::Result<bool> {
    let scores = records::run(&read(arguments)?);
    for score in &scores {
        println!("{score}");
    }
    for (engine, prefix) in [("vLLM", "vllm"), ("SGLang", "sgl")] {
        let rows = || scores.iter().filter(|s| s.id.starts_with(prefix));
        let near = |pair| records::relative(pair).abs() <= 0.02;
        summary(engine, "tokens within 2 %", rows().filter_map(|s| s.tokens), near);
        let of_pool = rows().filter_map(|s| s.tokens_of_pool);
        summary(engine, "tokens of the measured pool within 2 %", of_pool, near);
        let peaks = rows().filter(|s| s.text).filter_map(|s| s.activation);
        summary(engine, "peak within 0.2 GiB", peaks, |(p, m)| (p - m).abs() <= 204.8);
    }
    Ok(true)
}

/// Prints the llama.cpp records of a file.
pub fn llamacpp(arguments: &[String]) -> anyhow::Result<bool> {
    let scores = rows::run(&read(arguments)?);
    for score in &scores {
        println!("{score}");
    }
    let caches = scores.iter().filter(|s| s.stated).flat_map(|s| [s.kv, s.rs]).flatten();
    summary("llama.cpp", "caches within 0.5 % or 2 MiB", caches, rows::exact);
    let plain = scores.iter().filter(|s| s.plain).filter_map(|s| s.compute);
    summary("llama.cpp", "plain compute buffers within 3 %", plain, rows::close);
    let other = scores.iter().filter(|s| !s.plain).filter_map(|s| s.compute);
    summary("llama.cpp", "other compute buffers within 3 %", other, rows::close);
    Ok(true)
}

fn summary(
    engine: &str,
    what: &str,
    pairs: impl Iterator<Item = (f64, f64)>,
    good: impl Fn((f64, f64)) -> bool,
) {
    let (mut within, mut all) = (0, 0);
    for pair in pairs {
        all += 1;
        within += usize::from(good(pair));
    }
    println!("{engine}: {what}: {within} of {all}");
}
