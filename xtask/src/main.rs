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
            summary("tokens within 2 %", scores.iter().filter_map(|s| s.tokens), |pair| {
                validate::serving::relative(pair).abs() <= 0.02
            });
            summary(
                "tokens of pool within 2 %",
                scores.iter().filter_map(|s| s.tokens_of_pool),
                |pair| validate::serving::relative(pair).abs() <= 0.02,
            );
            let text_only = scores.iter().filter(|s| s.text).filter_map(|s| s.activation);
            summary("peak within 0.2 GiB", text_only, |(p, m)| (p - m).abs() <= 204.8);
            Ok(())
        }
        _ => anyhow::bail!("usage: xtask validate-serving RECORDS.jsonl"),
    }
}

fn summary(what: &str, pairs: impl Iterator<Item = (f64, f64)>, good: impl Fn((f64, f64)) -> bool) {
    let (mut within, mut all) = (0, 0);
    for pair in pairs {
        all += 1;
        within += usize::from(good(pair));
    }
    println!("{what}: {within} of {all}");
}
