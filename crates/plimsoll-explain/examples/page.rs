//! Writes the page of a snapshot: `cargo run --example page -- SNAPSHOT OUT.html`.

use std::io::BufReader;

use plimsoll_explain::{PageText, page, recording};
use plimsoll_formats::snapshot;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: page SNAPSHOT OUT.html".into());
    };
    let file = BufReader::new(std::fs::File::open(&from)?);
    let snapshot = snapshot::read(file)?;
    let device = plimsoll_explain::devices(&snapshot).first().copied().unwrap_or(0);
    let recording = recording(&snapshot, device)?;
    let text = PageText { title: from, ..PageText::default() };
    std::fs::write(to, page(&recording, &text))?;
    Ok(())
}
