//! How fast a replay is: `cargo bench -p plimsoll-timeline --bench replay`. Each trace is five million events that
//! are replayed as a stream, with one handle per live block; the fastest of some runs counts, and the numbers of
//! blocks say how much memory it takes. With `once NAME` a trace is replayed once, for counting instructions.

use std::time::{Duration, Instant};

use plimsoll_timeline::{
    BlockHandle, Category, PyTorchAllocator, PyTorchConfig, Timeline, TimelineBuilder, replay,
};
use plimsoll_units::Bytes;

const EVENTS: usize = 5_000_000;

/// One event of a stream. Slots are used again, so there are as many as blocks are live at once.
#[derive(Clone, Copy)]
enum Step {
    Alloc { slot: u32, bytes: u64 },
    Free { slot: u32 },
}

/// Numbers that look random and are the same everywhere (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Names slots and takes them back.
#[derive(Default)]
struct Stream {
    steps: Vec<Step>,
    vacant: Vec<u32>,
    slots: u32,
}

impl Stream {
    fn alloc(&mut self, bytes: u64) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.steps.push(Step::Alloc { slot, bytes });
        slot
    }

    fn free(&mut self, slot: u32) {
        self.vacant.push(slot);
        self.steps.push(Step::Free { slot });
    }
}

/// Training steps of a transformer, again and again: a forward pass that saves, a backward pass that frees and
/// makes gradients, an optimizer step with its temporaries.
fn training() -> Stream {
    let mut s = Stream::default();
    let sizes = [16, 2, 2, 16, 1, 52, 52, 52, 1, 16];
    let tensors = 32 * sizes.len();
    for i in 0..3 * tensors {
        s.alloc((700 + 400 * sizes[i % sizes.len()]) << 10);
    }
    while s.steps.len() < EVENTS {
        let mut saved = Vec::new();
        for i in 0..tensors {
            let size = sizes[i % sizes.len()];
            let scratch = s.alloc((64 * size) << 10);
            let scalar = s.alloc(4);
            saved.push(s.alloc((512 * size) << 10));
            s.free(scratch);
            s.free(scalar);
        }
        let mut gradients = Vec::new();
        for i in (0..tensors).rev() {
            let size = sizes[i % sizes.len()];
            let scratch = s.alloc(((96 * size) << 10) + 3);
            gradients.push(s.alloc((700 + 400 * size) << 10));
            s.free(saved[i]);
            s.free(scratch);
        }
        for (i, gradient) in gradients.into_iter().enumerate() {
            let temporary = s.alloc((700 + 400 * sizes[i % sizes.len()]) << 10);
            s.free(gradient);
            s.free(temporary);
        }
    }
    s
}

/// Sizes between 512 bytes and 64 MiB, most lifetimes short and some very long, about twenty thousand live blocks.
fn random() -> Stream {
    let mut s = Stream::default();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut short = Vec::new();
    let mut long = Vec::new();
    while s.steps.len() < EVENTS {
        let bits = 9 + random.below(17);
        let bytes = (1 << bits) + random.below(1 << bits);
        let slot = s.alloc(bytes);
        if random.below(16) == 0 {
            long.push(slot)
        } else {
            short.push(slot)
        }
        while short.len() > 1000 || random.below(3) == 0 && !short.is_empty() {
            let at = random.below(short.len() as u64) as usize;
            s.free(short.swap_remove(at));
        }
        if long.len() > 19_000 {
            let at = random.below(long.len() as u64) as usize;
            s.free(long.swap_remove(at));
        }
    }
    s
}

fn run(stream: &Stream, config: &PyTorchConfig) -> PyTorchAllocator {
    let mut torch = PyTorchAllocator::new(config.clone());
    let mut blocks: Vec<Option<BlockHandle>> = Vec::new();
    blocks.resize_with(stream.slots as usize, || None);
    for step in &stream.steps {
        match *step {
            Step::Alloc { slot, bytes } => {
                blocks[slot as usize] = torch.malloc(Bytes::new(bytes), 0).ok();
            }
            Step::Free { slot } => {
                if let Some(block) = blocks[slot as usize].take() {
                    torch.free(block);
                }
            }
        }
    }
    torch
}

/// The same steps as a timeline.
fn timeline(stream: &Stream) -> Timeline {
    let mut t = TimelineBuilder::new();
    let origin = t.origin("", "trace");
    let mut ids = vec![None; stream.slots as usize];
    for step in &stream.steps {
        match *step {
            Step::Alloc { slot, bytes } => {
                ids[slot as usize] = Some(t.alloc(Bytes::new(bytes), Category::Unknown, origin));
            }
            Step::Free { slot } => {
                if let Some(id) = ids[slot as usize].take() {
                    t.free(id);
                }
            }
        }
    }
    t.finish()
}

/// Time that this process has spent on a core, where Linux tells; a busy machine does not count then.
fn on_core() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

fn fastest(runs: usize, mut run: impl FnMut()) -> Duration {
    let times = (0..runs).map(|_| {
        let (start, core) = (Instant::now(), on_core());
        run();
        let spent = on_core().zip(core).map(|(after, before)| after - before);
        spent.unwrap_or_else(|| start.elapsed())
    });
    times.min().unwrap_or_default()
}

fn settings(name: &str) -> PyTorchConfig {
    let mut config = PyTorchConfig::default();
    match name {
        "expandable" => config.expandable_segments = true,
        "limited" => {
            config.max_split_size = Some(Bytes::mib(128));
            config.garbage_collection_threshold = Some(0.8);
            config.memory_limit = Some(Bytes::gib(150));
        }
        _ => {}
    }
    config
}

/// A trace by name.
type Trace = (&'static str, fn() -> Stream);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let traces: [Trace; 2] = [("training", training), ("random", random)];
    if let [once, name, rest @ ..] = &words[..]
        && once == "once"
    {
        let (_, make) = traces.iter().find(|(trace, _)| trace == name).expect("training or random");
        let stream = make();
        let torch = run(&stream, &settings(rest.first().map_or("default", |s| s)));
        println!("{} events, {:?}", stream.steps.len(), torch.statistics().all.reserved_bytes);
        return;
    }
    for (name, make) in traces {
        let stream = make();
        let events = stream.steps.len() as f64;
        for setting in ["default", "expandable", "limited"] {
            let config = settings(setting);
            let time = fastest(5, || drop(run(&stream, &config)));
            let torch = run(&stream, &config);
            let layout = torch.layout();
            let blocks: usize = layout.segments.iter().map(|s| s.blocks.len()).sum();
            println!(
                "{name}, {setting}: {:.1} M events/s, {} live blocks at most, {blocks} blocks at the end, {} reserved at most",
                events / time.as_secs_f64() / 1e6,
                torch.statistics().all.allocation.peak,
                torch.statistics().all.reserved_bytes.peak,
            );
        }
        let timeline = timeline(&stream);
        let time = fastest(3, || drop(replay(&timeline, &PyTorchConfig::default())));
        println!("{name}, footprint: {:.1} M events/s", events / time.as_secs_f64() / 1e6);
    }
}
