//! Reads a snapshot, rewinds it, replays it under its own settings and says how exactly that reproduces it; with a
//! second word `tune` it searches settings. For checking real files by hand:
//! `cargo run --release -p plimsoll-explain --example snapshot_replay -- snapshot.pickle [tune]`.

use std::fs::File;
use std::time::Instant;

use plimsoll_explain::{TuneOptions, devices, recording, replay_exact, tune};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which snapshot?")?;
    let tuned = arguments.next().is_some_and(|word| word == "tune");
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
        if tuned {
            let begin = Instant::now();
            let tuning = tune(&recording, &TuneOptions::for_recording(&recording, None));
            println!("tuned in {:?}: {tuning:#?}", begin.elapsed());
        }
    }
    Ok(())
}
