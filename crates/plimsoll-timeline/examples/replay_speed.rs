//! Measures the replay: a training step shaped like Llama-3.1-405B on one rank, or a text file of events
//! (`a ID BYTES STREAM`, `f ID`, `m` for the end of the warm-up state). Prints peaks and the fastest of 101 runs.

use std::time::{Duration, Instant};

use plimsoll_timeline::{
    Category, PhaseKind, PyTorchAllocator, PyTorchConfig, Timeline, TimelineBuilder, replay,
};
use plimsoll_units::Bytes;

/// Weights, a forward pass that saves, a backward pass that frees and makes gradients, an optimizer step.
fn training(layers: u64, per_layer: u64) -> Timeline {
    let mut t = TimelineBuilder::new();
    // Hidden, key-value, intermediate and norm sizes, as they repeat from layer to layer.
    let sizes: Vec<u64> =
        [16, 2, 2, 16, 1, 52, 52, 52, 1, 16].into_iter().cycle().take(per_layer as usize).collect();
    t.phase(PhaseKind::Load, 0);
    let mut origins = Vec::new();
    for layer in 0..layers {
        for what in 0..per_layer {
            let origin = t.origin(&format!("layers.{layer}"), &format!("mlp.part{what}"));
            t.alloc(Bytes::kib(700 + 400 * sizes[what as usize]), Category::Parameters, origin);
            origins.push(origin);
        }
    }
    t.phase(PhaseKind::Forward, 0);
    let mut saved = Vec::new();
    for (i, origin) in origins.iter().enumerate() {
        let size = sizes[i % sizes.len()];
        let scratch = t.alloc(Bytes::kib(64 * size), Category::Workspace, *origin);
        saved.push(t.alloc(Bytes::kib(512 * size), Category::Activations, *origin));
        t.free(scratch);
    }
    t.phase(PhaseKind::Backward, 0);
    let mut gradients = Vec::new();
    for (i, origin) in origins.iter().enumerate().rev() {
        let size = sizes[i % sizes.len()];
        let scratch = t.alloc(Bytes::kib(96 * size + 3), Category::Activations, *origin);
        gradients.push(t.alloc(Bytes::kib(700 + 400 * size), Category::Gradients, *origin));
        t.free(saved[i]);
        t.free(scratch);
    }
    t.phase(PhaseKind::OptimizerStep, 0);
    gradients.into_iter().for_each(|g| t.free(g));
    t.finish()
}

fn fastest(mut run: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..101)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[0]
}

fn allocator_only(timeline: &Timeline, config: &PyTorchConfig) -> PyTorchAllocator {
    use plimsoll_timeline::Event;
    let mut torch = PyTorchAllocator::new(config.clone());
    let mut blocks: Vec<_> = timeline.allocations().iter().map(|_| None).collect();
    for event in timeline.events() {
        match *event {
            Event::Alloc(id) => {
                let tensor = timeline.allocations()[id.0 as usize];
                blocks[id.0 as usize] = torch.malloc(tensor.requested, tensor.stream).ok();
            }
            Event::Free(id) => {
                if let Some(block) = blocks[id.0 as usize].take() {
                    torch.free(block);
                }
            }
            Event::EmptyCache => torch.empty_cache(),
            _ => {}
        }
    }
    torch
}

fn main() {
    let config = PyTorchConfig::default();
    let timeline = match std::env::args().nth(1) {
        None => training(126, 20),
        Some(path) => {
            let text = std::fs::read_to_string(path).expect("the file is readable");
            let mut t = TimelineBuilder::new();
            let origin = t.origin("", "trace");
            let mut ids = Vec::new();
            for line in text.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                match words[0] {
                    "a" => {
                        let bytes = Bytes::new(words[2].parse().expect("a size"));
                        ids.push(t.alloc(bytes, Category::Unknown, origin));
                    }
                    "f" => t.free(ids[words[1].parse::<usize>().expect("an index")]),
                    _ => t.phase(PhaseKind::Forward, 0),
                }
            }
            t.finish()
        }
    };
    let footprint = replay(&timeline, &config);
    let events = footprint.events;
    let all = fastest(|| drop(replay(&timeline, &config)));
    let alone = fastest(|| drop(allocator_only(&timeline, &config)));
    println!(
        "{events} events, allocated {} B, reserved {} B, {} segments, {} points",
        footprint.allocated_peak.get(),
        footprint.reserved_peak.get(),
        footprint.segments_peak,
        footprint.series.len()
    );
    for (what, time) in [("footprint", all), ("allocator", alone)] {
        let rate = f64::from(events) / time.as_secs_f64() / 1e6;
        println!("{what}: {time:?}, {rate:.1} M events/s");
    }
}
