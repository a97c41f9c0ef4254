//! Reads a snapshot, rewinds it, replays it under its own settings and says how exactly that reproduces it; a second
//! word `tune` searches settings, `explain` tells the findings. For checking real files by hand:
//! `cargo run --release -p plimsoll-explain --example snapshot_replay -- snapshot.pickle [tune|explain]`.

use std::fs::File;
use std::time::Instant;

use plimsoll_explain::{
    ExplainOptions, TuneOptions, devices, explain, recording, replay_exact, tune,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which snapshot?")?;
    let word = arguments.next().unwrap_or_default();
    let begin = Instant::now();
    let snapshot = plimsoll_formats::snapshot::read(File::open(&path)?)?;
    println!("{path}: read in {:?}, written by {:?}", begin.elapsed(), snapshot.writer);
    for device in devices(&snapshot) {
        let begin = Instant::now();
        let recording = recording(&snapshot, device)?;
        println!(
            "device {device}: {} events, {} start blocks, {} driver calls, {} ooms, {} caches emptied; rewound in {:?}",
            recording.timeline.events().len(),
            recording.start_blocks.len(),
            recording.driver.len(),
            recording.ooms.len(),
            recording.caches_emptied,
            begin.elapsed(),
        );
        for remark in &recording.remarks {
            println!("  {:?}: {}", remark.kind, remark.text);
        }
        let begin = Instant::now();
        let exact = replay_exact(&recording);
        println!("replayed in {:?}: {exact:#?}", begin.elapsed());
        if word == "tune" {
            let begin = Instant::now();
            let tuning = tune(&recording, &TuneOptions::for_recording(&recording, None));
            println!("tuned in {:?}: {tuning:#?}", begin.elapsed());
        }
        if word == "explain" {
            let begin = Instant::now();
            let explanation = explain(&recording, &ExplainOptions::default());
            println!("explained in {:?}", begin.elapsed());
            for finding in &explanation.findings {
                println!("[{}] {}: {}", finding.weight.word(), finding.title, finding.sentence);
                println!("    {:?}  {:?}", finding.actions, finding.command);
            }
            for (name, moment) in [("peak", &explanation.peak), ("end", &explanation.end)] {
                println!("{name}: {:?} {:#?}", moment.in_use, moment.live.by_category);
                for share in moment.live.by_stack.iter().take(6) {
                    println!(
                        "  {} {:?} {} | {}",
                        share.bytes, share.category, share.line, share.module
                    );
                }
            }
        }
    }
    Ok(())
}
