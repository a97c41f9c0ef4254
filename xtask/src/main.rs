//! Automation for the repository.

mod validate;

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("validate-serving"), Some(path)) => {
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            let scores = validate::serving::run(&text);
            for score in &scores {
                println!("{score}");
            }
            for (engine, prefix) in [("vLLM", "vllm"), ("SGLang", "sgl")] {
                let rows = || scores.iter().filter(|s| s.id.starts_with(prefix));
                let near = |pair| validate::serving::relative(pair).abs() <= 0.02;
                summary(engine, "tokens within 2 %", rows().filter_map(|s| s.tokens), near);
                let of_pool = rows().filter_map(|s| s.tokens_of_pool);
                summary(engine, "tokens of the measured pool within 2 %", of_pool, near);
                let peaks = rows().filter(|s| s.text).filter_map(|s| s.activation);
                summary(engine, "peak within 0.2 GiB", peaks, |(p, m)| (p - m).abs() <= 204.8);
            }
            Ok(())
        }
        (Some("validate-llamacpp"), Some(path)) => {
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            let scores = validate::llamacpp::run(&text);
            for score in &scores {
                println!("{score}");
            }
            let stated = || scores.iter().filter(|s| s.stated);
            let caches = stated().flat_map(|s| [s.kv, s.rs]).flatten();
            summary("llama.cpp", "caches within 0.5 % or 2 MiB", caches, validate::llamacpp::exact);
            let plain = scores.iter().filter(|s| s.plain).filter_map(|s| s.compute);
            summary(
                "llama.cpp",
                "plain compute buffers within 3 %",
                plain,
                validate::llamacpp::close,
            );
            let other = scores.iter().filter(|s| !s.plain).filter_map(|s| s.compute);
            summary(
                "llama.cpp",
                "other compute buffers within 3 %",
                other,
                validate::llamacpp::close,
            );
            Ok(())
        }
        _ => anyhow::bail!("usage: xtask validate-serving|validate-llamacpp RECORDS.jsonl"),
    }
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
