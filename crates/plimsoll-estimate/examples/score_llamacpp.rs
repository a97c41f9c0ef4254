//! Scores the llama.cpp estimate on measured rows: `score_llamacpp ROWS.jsonl [ID]`.

#[path = "../../../xtask/src/validate/rows_llamacpp.rs"]
mod rows;

use plimsoll_estimate::{Figure, llamacpp};
use serde_json::Value;

fn mib(figures: &[(String, Figure)], key: &str) -> f64 {
    figures.iter().find(|(k, _)| k == key).map_or(0.0, |(_, f)| match f {
        Figure::Bytes(b) => b.as_mib_f64(),
        _ => 0.0,
    })
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(path), only) = (args.next(), args.next()) else {
        eprintln!("usage: score_llamacpp ROWS.jsonl [ID]");
        std::process::exit(2);
    };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        eprintln!("{path}: {e}");
        std::process::exit(1);
    });
    for line in text.lines() {
        let Ok(row) = serde_json::from_str::<Value>(line) else { continue };
        let engine = row["engine"].as_str().unwrap_or("");
        let id = row["id"].as_str().unwrap_or("");
        if !engine.contains("llama") || only.as_deref().is_some_and(|o| o != id) {
            continue;
        }
        let (arch, weights, request, device) = match rows::request(&row) {
            Ok(r) => r,
            Err(reason) => {
                println!("{id:14} -- {reason}");
                continue;
            }
        };
        match llamacpp::estimate(&arch, weights.as_deref().unwrap_or(&[]), &request, &device) {
            Err(e) => println!("{id:14} !! {e}"),
            Ok(e) => {
                print!(
                    "{id:14} {:9} {:10}",
                    engine.chars().take(9).collect::<String>(),
                    arch.family
                );
                for (name, key) in [
                    ("kv_mib", "kv"),
                    ("rs_mib", "rs"),
                    ("compute_mib", "compute"),
                    ("host_compute_mib", "host_compute"),
                ] {
                    let ours = mib(&e.figures, key);
                    match row["measured"][name].as_f64() {
                        Some(m) => {
                            let off = (ours - m) / m.max(0.01) * 100.0;
                            let mark =
                                if off.abs() <= 0.5 || (ours - m).abs() <= 2.0 { ' ' } else { '*' };
                            print!(" | {key} {ours:.2}/{m} {off:+.1}%{mark}");
                        }
                        None => print!(" | {key} {ours:.2}"),
                    }
                }
                println!();
            }
        }
    }
}
