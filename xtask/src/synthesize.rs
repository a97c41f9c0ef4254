//! `cargo xtask synthesize-snapshot`: a memory snapshot of a training run that never happened. Requests follow the
//! shape of a transformer's steps, the allocator's rules give addresses and segments, stacks are made up. For
//! benchmarks of the reader and for tests of what reads it.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;

use anyhow::{Context, bail};
use plimsoll_formats::snapshot::{
    Action, Annotation, Block, BlockState, Builder, Dialect, ExtraId, FrameId, NameId, PoolId,
    Segment, SegmentKind, Settings, StackId, Stage, StreamId, TraceEvent, WriteOptions, Writer,
    write,
};
use plimsoll_timeline::{
    self as timeline, DriverCall, DriverLog, PoolKind, PyTorchAllocator, PyTorchConfig,
};
use plimsoll_units::Bytes;

const USAGE: &str = "synthesize-snapshot [--events N] [--depth FRAMES] [--frames shared|inline] \
                     [--pickler python|torchscript] [--expandable] [--capacity-gib N] OUT";

struct Arguments {
    events: usize,
    depth: usize,
    options: WriteOptions,
    expandable: bool,
    capacity: Option<u64>,
    out: String,
}

/// Writes the file that the arguments ask for.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<bool> {
    let arguments = parse(arguments)?;
    let snapshot = Run::new(&arguments)?.play(arguments.events)?;
    let events = snapshot.traces.iter().map(|t| t.events.len()).sum::<usize>();
    let file =
        File::create(&arguments.out).with_context(|| format!("cannot write {}", arguments.out))?;
    write(&snapshot, arguments.options, BufWriter::with_capacity(1 << 20, file))?;
    let bytes = std::fs::metadata(&arguments.out)?.len();
    eprintln!(
        "{}: {bytes} bytes, {events} events, {} segments, {} blocks, {} stacks of {} frames",
        arguments.out,
        snapshot.segments.len(),
        snapshot.blocks.len(),
        snapshot.stacks.len(),
        arguments.depth,
    );
    Ok(true)
}

fn parse(arguments: &[String]) -> anyhow::Result<Arguments> {
    let options = WriteOptions { dialect: Dialect::Python, share_frames: true };
    let mut parsed = Arguments {
        events: 100_000,
        depth: 40,
        options,
        expandable: false,
        capacity: None,
        out: String::new(),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value =
            || words.next().with_context(|| format!("{word} needs a value; usage: {USAGE}"));
        match word.as_str() {
            "--events" => parsed.events = value()?.parse().context("--events")?,
            "--depth" => parsed.depth = value()?.parse().context("--depth")?,
            "--capacity-gib" => parsed.capacity = Some(value()?.parse().context("--capacity-gib")?),
            "--expandable" => parsed.expandable = true,
            "--frames" => match value()?.as_str() {
                "shared" => parsed.options.share_frames = true,
                "inline" => parsed.options.share_frames = false,
                other => bail!("--frames {other}: it is shared or inline"),
            },
            "--pickler" => match value()?.as_str() {
                "python" => parsed.options.dialect = Dialect::Python,
                "torchscript" => parsed.options.dialect = Dialect::TorchScript,
                other => bail!("--pickler {other}: it is python or torchscript"),
            },
            out if !out.starts_with('-') && parsed.out.is_empty() => parsed.out = out.to_owned(),
            _ => bail!("unknown argument {word}; usage: {USAGE}"),
        }
    }
    if parsed.out.is_empty() {
        bail!("no file to write; usage: {USAGE}");
    }
    Ok(parsed)
}

const LAYERS: u64 = 24;
const HIDDEN: u64 = 2048;
/// Operators of a layer: module, and bytes of its output for a token, in units of the hidden size.
const OPERATORS: [(&str, u64); 12] = [
    ("input_layernorm", 2),
    ("self_attn.q_proj", 2),
    ("self_attn.k_proj", 2),
    ("self_attn.v_proj", 2),
    ("self_attn.attention", 2),
    ("self_attn.o_proj", 2),
    ("residual", 2),
    ("post_attention_layernorm", 2),
    ("mlp.gate_proj", 6),
    ("mlp.up_proj", 6),
    ("mlp.act_fn", 6),
    ("mlp.down_proj", 2),
];

/// A block of the run.
struct Live {
    block: timeline::BlockHandle,
    requested: u64,
}

struct Run {
    torch: PyTorchAllocator<DriverLog<timeline::Device>>,
    file: Builder,
    depth: usize,
    /// Stacks by what was done where.
    stacks: HashMap<(&'static str, &'static str), StackId>,
    /// Stack and request of each live address.
    live: HashMap<u64, StackId>,
    events: usize,
    time: u64,
    random: u64,
    out_of_memory: bool,
}

impl Run {
    fn new(arguments: &Arguments) -> anyhow::Result<Self> {
        let mut config = PyTorchConfig::default();
        config.expandable_segments = arguments.expandable;
        config.capacity = arguments.capacity.map(Bytes::gib);
        let device = timeline::Device::new(config.capacity);
        let mut file = Builder::new(Writer::V2_10);
        file.settings(Settings {
            conf: if arguments.expandable {
                "expandable_segments:True".to_owned()
            } else {
                String::new()
            },
            garbage_collection_threshold: Some(0.0),
            expandable_segments: Some(arguments.expandable),
            roundup_power2_divisions: Some([0; 16]),
            ..Settings::default()
        });
        Ok(Run {
            torch: PyTorchAllocator::with_driver(config, DriverLog::new(device)),
            file,
            depth: arguments.depth,
            stacks: HashMap::new(),
            live: HashMap::new(),
            events: 0,
            time: 1_780_000_000_000_000,
            random: 0x9e37_79b9_7f4a_7c15,
            out_of_memory: false,
        })
    }

    /// xorshift64*: the same run every time.
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    /// Steps until there are enough events, or memory runs out; then the state at that moment.
    fn play(mut self, events: usize) -> anyhow::Result<plimsoll_formats::snapshot::Snapshot> {
        let step = self.file.name("Optimizer.step#AdamW.step")?;
        let weights = self.load()?;
        let mut moments = Vec::new();
        let done = |run: &Run| run.events >= events || run.out_of_memory;
        let mut kept = Vec::new();
        while !done(&self) {
            let tokens = 1024 + 128 * self.below(8);
            let logits = self.forward(tokens, events, &mut kept)?;
            let mut gradients = Vec::new();
            self.backward(tokens, events, &mut kept, &mut gradients)?;
            if let Some(logits) = logits {
                self.free(logits, "loss", "backward")?;
            }
            if done(&self) {
                break;
            }
            self.annotate(step, Stage::Start);
            if moments.is_empty() {
                for _ in 0..2 * LAYERS * 2 {
                    moments.extend(self.alloc(16 * HIDDEN * HIDDEN, "optimizer", "step")?);
                }
            }
            for gradient in gradients {
                self.free(gradient, "optimizer", "zero_grad")?;
            }
            self.annotate(step, Stage::End);
        }
        drop((weights, moments));
        self.finish()
    }

    fn load(&mut self) -> anyhow::Result<Vec<Live>> {
        let mut weights = Vec::new();
        weights.extend(self.alloc(32_000 * HIDDEN * 2, "embed_tokens", "load")?);
        for _ in 0..LAYERS {
            for (module, width) in OPERATORS {
                let bytes =
                    if module.ends_with("norm") { 2 * HIDDEN } else { width * HIDDEN * HIDDEN };
                weights.extend(self.alloc(bytes, module, "load")?);
            }
        }
        Ok(weights)
    }

    fn forward(
        &mut self,
        tokens: u64,
        events: usize,
        kept: &mut Vec<Live>,
    ) -> anyhow::Result<Option<Live>> {
        for _ in 0..LAYERS {
            for (module, width) in OPERATORS {
                if self.events >= events || self.out_of_memory {
                    return Ok(None);
                }
                let workspace = match self.below(4) {
                    0 => self.alloc(8 << 20, module, "workspace")?,
                    _ => self.alloc(4 * tokens + 256, module, "cast")?,
                };
                kept.extend(self.alloc(width * HIDDEN * tokens, module, "forward")?);
                if let Some(workspace) = workspace {
                    self.free(workspace, module, "forward")?;
                }
            }
        }
        self.alloc(32_000 * tokens * 4, "loss", "forward")
    }

    fn backward(
        &mut self,
        tokens: u64,
        events: usize,
        kept: &mut Vec<Live>,
        gradients: &mut Vec<Live>,
    ) -> anyhow::Result<()> {
        while let Some(activation) = kept.pop() {
            let (module, width) = OPERATORS[kept.len() % OPERATORS.len()];
            if self.events >= events || self.out_of_memory {
                kept.push(activation);
                return Ok(());
            }
            let gradient = self.alloc(width * HIDDEN * tokens, module, "backward")?;
            if module.ends_with("proj") {
                gradients.extend(self.alloc(width * HIDDEN * HIDDEN, module, "accumulate")?);
            }
            self.free(activation, module, "backward")?;
            if let Some(gradient) = gradient {
                self.free(gradient, module, "backward")?;
            }
        }
        Ok(())
    }

    /// `None` where memory ran out; the event says so.
    fn alloc(
        &mut self,
        bytes: u64,
        module: &'static str,
        what: &'static str,
    ) -> anyhow::Result<Option<Live>> {
        let stack = self.stack(module, what)?;
        let block = self.torch.malloc(Bytes::new(bytes), 0);
        self.driver_events(stack);
        match block {
            Ok(block) => {
                let address = self.torch.address(&block);
                self.live.insert(address, stack);
                self.event(Action::Alloc, address, bytes, stack);
                Ok(Some(Live { block, requested: bytes }))
            }
            Err(e) => {
                let free = e.free.map_or(0, Bytes::get);
                self.event(Action::OutOfMemory, free, e.rounded.get(), stack);
                self.out_of_memory = true;
                Ok(None)
            }
        }
    }

    fn free(&mut self, live: Live, module: &'static str, what: &'static str) -> anyhow::Result<()> {
        let stack = self.stack(module, what)?;
        let address = self.torch.address(&live.block);
        self.live.remove(&address);
        self.event(Action::FreeRequested, address, live.requested, stack);
        self.event(Action::FreeCompleted, address, live.requested, stack);
        self.torch.free(live.block);
        Ok(())
    }

    fn driver_events(&mut self, stack: StackId) {
        let calls: Vec<_> = self.torch.driver_mut().drain().collect();
        for call in calls {
            let action = match call.call {
                DriverCall::SegmentAlloc => Action::SegmentAlloc,
                DriverCall::SegmentFree => Action::SegmentFree,
                DriverCall::SegmentMap => Action::SegmentMap,
                DriverCall::SegmentUnmap => Action::SegmentUnmap,
                DriverCall::Refused => continue,
            };
            self.event(action, call.address, call.size.get(), stack);
        }
    }

    fn event(&mut self, action: Action, address: u64, size: u64, stack: StackId) {
        self.time += self.below(40);
        self.events += 1;
        let (time_us, extra) = (self.time, ExtraId::NONE);
        let (stream, pool) = (StreamId(0), PoolId(0));
        self.file
            .event(0, TraceEvent { address, size, time_us, stack, extra, stream, pool, action });
    }

    fn annotate(&mut self, name: NameId, stage: Stage) {
        self.file.annotation(Annotation { name, stage, device: 0, time_us: self.time });
    }

    /// A stack as torch records it: the allocator's frames, the operator's, the module's, the training loop's.
    fn stack(&mut self, module: &'static str, what: &'static str) -> anyhow::Result<StackId> {
        if let Some(stack) = self.stacks.get(&(module, what)) {
            return Ok(*stack);
        }
        let mut frames: Vec<FrameId> = Vec::new();
        let native = self.depth / 2;
        for n in 0..native {
            let name = match n {
                0 => "torch::unwind::unwind()".to_owned(),
                1 => "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)".to_owned(),
                n if n > native / 2 => format!("_PyEval_EvalFrameDefault+{n}"),
                n => format!("at::_ops::{}_{what}::redispatch({n})", module.replace('.', "_")),
            };
            frames.push(self.file.frame("??", 0, &name)?);
        }
        for n in 0..self.depth - native {
            let frame = match n {
                0 => self.file.frame(
                    "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py",
                    1700,
                    "_call_impl",
                )?,
                1 => {
                    self.file.frame("/workspace/model/layers.py", 40 + module.len() as u32, what)?
                }
                2 => self.file.frame(
                    "/workspace/model/layers.py",
                    200 + what.len() as u32,
                    module,
                )?,
                n if n + 2 >= self.depth - native => {
                    self.file.frame("/workspace/train.py", 100 + n as u32, "train_step")?
                }
                n => self.file.frame("/workspace/model/decoder.py", 10 * n as u32, "forward")?,
            };
            frames.push(frame);
        }
        let stack = self.file.stack(&frames)?;
        self.stacks.insert((module, what), stack);
        Ok(stack)
    }

    fn finish(mut self) -> anyhow::Result<plimsoll_formats::snapshot::Snapshot> {
        for segment in self.torch.layout().segments {
            let blocks: Vec<Block> = segment
                .blocks
                .iter()
                .map(|b| Block {
                    address: b.address,
                    size: b.size,
                    requested: b.requested,
                    state: match b.state {
                        timeline::BlockState::Allocated => BlockState::Allocated,
                        timeline::BlockState::PendingFree => BlockState::PendingFree,
                        timeline::BlockState::Free => BlockState::Free,
                    },
                    stack: self.live.get(&b.address).copied().unwrap_or(StackId::NONE),
                })
                .collect();
            let sum = |of: fn(&Block) -> Bytes| {
                blocks.iter().filter(|b| b.state == BlockState::Allocated).map(of).sum::<Bytes>()
            };
            let allocated = sum(|b| b.size);
            let row = Segment {
                device: 0,
                address: segment.address,
                total_size: segment.size,
                allocated_size: allocated,
                active_size: allocated,
                requested_size: Some(sum(|b| b.requested)),
                stream: StreamId(0),
                kind: match segment.kind {
                    PoolKind::Small => SegmentKind::Small,
                    PoolKind::Large => SegmentKind::Large,
                },
                pool: PoolId(0),
                expandable: segment.expandable,
                stack: StackId::NONE,
                blocks: 0..0,
            };
            self.file.segment(row, &blocks);
        }
        Ok(self.file.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_formats::snapshot::read;

    /// What is live at the end is what was allocated and not freed, and it lies where the blocks are.
    #[test]
    fn the_final_blocks_are_what_the_events_leave() {
        for (expandable, gib) in [("--expandable", "64"), ("--depth", "6"), ("--depth", "64")] {
            let words = ["--events", "4000", "--capacity-gib", gib, expandable];
            let mut words: Vec<String> = words.map(str::to_owned).to_vec();
            words.extend((expandable == "--depth").then(|| "9".to_owned()));
            words.push("out".to_owned());
            let arguments = parse(&words).unwrap();
            let snapshot = Run::new(&arguments).unwrap().play(arguments.events).unwrap();
            let mut bytes = Vec::new();
            write(&snapshot, arguments.options, &mut bytes).unwrap();
            let again = read(&bytes[..]).unwrap();
            assert_eq!(again.remarks, Vec::<String>::new());
            let events = &again.traces[0].events;
            let mut live = HashMap::new();
            for e in events {
                match e.action {
                    Action::Alloc => drop(live.insert(e.address, (e.size, e.stack))),
                    Action::FreeCompleted => drop(live.remove(&e.address)),
                    _ => {}
                }
            }
            let blocks = again.blocks.iter().filter(|b| b.state == BlockState::Allocated);
            let blocks: HashMap<u64, (u64, StackId)> =
                blocks.map(|b| (b.address, (b.requested.get(), b.stack))).collect();
            assert_eq!(blocks, live);
            for s in &again.segments {
                let mut next = s.address;
                for b in &again.blocks[s.blocks.start as usize..s.blocks.end as usize] {
                    assert_eq!(b.address, next);
                    next += b.size.get();
                }
                assert_eq!(next, s.address + s.total_size.get());
            }
            let out_of_memory = events.iter().any(|e| e.action == Action::OutOfMemory);
            assert_eq!((out_of_memory, events.len() >= 4000), (gib == "6", gib != "6"));
        }
    }
}
