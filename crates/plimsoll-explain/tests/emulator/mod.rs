//! A process that records a snapshot: random requests on the allocator, its events written down as torch writes
//! them, from some moment on. The tests then know what the recording cannot say.

#![expect(dead_code, reason = "every test file uses another part")]

pub mod program;

use std::collections::BTreeMap;

use plimsoll_formats::snapshot::{
    Action, Block, BlockState, Builder, ExtraId, PoolId, Segment, SegmentKind, Settings, Snapshot,
    StackId, StreamId, Trace, TraceEvent, Writer,
};
use plimsoll_timeline::{
    self as timeline, BlockHandle, Device, DriverCall, DriverLog, Layout, PoolKind,
    PyTorchAllocator, PyTorchConfig, TieBreak,
};
use plimsoll_units::Bytes;

/// What a program does.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Allocates bytes on a stream, in a pool.
    Alloc(u64, u16, u16),
    /// Frees the n-th live block, modulo their number.
    Free(usize),
    /// Frees it while another stream still uses it.
    FreeLater(usize),
    /// The n-th of those becomes free.
    Complete(usize),
    /// `torch.cuda.empty_cache`.
    EmptyCache,
}

type Torch = PyTorchAllocator<DriverLog<Device>>;

struct Live {
    block: BlockHandle,
    address: u64,
    requested: u64,
    stream: u16,
    pool: u16,
    stack: StackId,
    tag: usize,
}

/// The process.
pub struct Process {
    torch: Torch,
    live: Vec<Live>,
    pending: Vec<Live>,
    events: Vec<TraceEvent>,
    recording: bool,
    pools: u16,
    streams: u16,
    /// For whom ranges were got from the driver: first address, stream, pool.
    owners: BTreeMap<u64, (u16, u16)>,
    /// The stack of what happens now; tests of laws do not look at its frames.
    stack: StackId,
    /// Microseconds since 1970, 0 for none.
    now: u64,
    made: usize,
}

/// The stack of every request; nobody looks at its frames.
const REQUEST: StackId = StackId(1);
/// The stack of an emptied cache.
const EMPTY_CACHE: StackId = StackId(2);
/// The stack of every free.
const FREE: StackId = StackId(3);

fn event(action: Action, address: u64, size: u64, stream: u16, pool: u16) -> TraceEvent {
    TraceEvent {
        address,
        size,
        time_us: 0,
        stack: REQUEST,
        extra: ExtraId::NONE,
        stream: StreamId(stream),
        pool: PoolId(pool),
        action,
    }
}

impl Process {
    pub fn new(config: PyTorchConfig) -> Self {
        let driver = DriverLog::new(Device::new(config.capacity));
        Process {
            torch: PyTorchAllocator::with_driver(config, driver),
            live: Vec::new(),
            pending: Vec::new(),
            events: Vec::new(),
            recording: false,
            pools: 1,
            streams: 1,
            owners: BTreeMap::new(),
            stack: REQUEST,
            now: 0,
            made: 0,
        }
    }

    /// Recording begins; what the allocator holds at that moment.
    pub fn record(&mut self) -> Layout {
        self.recording = true;
        self.torch.layout()
    }

    pub fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.step(*op);
        }
    }

    /// From now on, everything happens on this stack.
    pub fn at(&mut self, stack: StackId) {
        self.stack = stack;
    }

    /// From now on, events have times, one microsecond apart.
    pub fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// The time of the last event.
    pub fn time(&self) -> u64 {
        self.now
    }

    /// Allocates on the default stream; a tag to free it by, `None` where memory ran out.
    pub fn malloc(&mut self, size: u64) -> Option<usize> {
        self.alloc(size, 0, 0).then(|| self.made - 1)
    }

    /// Frees by tag, now or when another stream is done with it.
    pub fn free(&mut self, tag: usize, later: bool) {
        if let Some(at) = self.live.iter().position(|live| live.tag == tag) {
            self.step(if later { Op::FreeLater(at) } else { Op::Free(at) });
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc(size, stream, pool) => {
                self.alloc(size, stream, pool);
            }
            Op::Free(n) if !self.live.is_empty() => {
                let freed = self.live.swap_remove(n % self.live.len());
                self.write_free(Action::FreeRequested, &freed);
                self.write_free(Action::FreeCompleted, &freed);
                self.torch.free(freed.block);
            }
            Op::FreeLater(n) if !self.live.is_empty() => {
                let freed = self.live.swap_remove(n % self.live.len());
                self.write_free(Action::FreeRequested, &freed);
                self.torch.request_free(&freed.block);
                self.pending.push(freed);
            }
            Op::Complete(n) if !self.pending.is_empty() => {
                let freed = self.pending.remove(n % self.pending.len());
                self.write(Action::FreeCompleted, &freed);
                self.torch.free(freed.block);
            }
            Op::EmptyCache => {
                let begin = self.events.len();
                self.torch.empty_cache();
                self.write_synchronized();
                self.write_driver(0, 0);
                if self.stack == REQUEST {
                    self.events[begin..].iter_mut().for_each(|event| event.stack = EMPTY_CACHE);
                }
            }
            Op::Free(_) | Op::FreeLater(_) | Op::Complete(_) => {}
        }
    }

    fn alloc(&mut self, size: u64, stream: u16, pool: u16) -> bool {
        self.pools = self.pools.max(pool + 1);
        self.streams = self.streams.max(stream + 1);
        let synchronized = self.torch.statistics().num_sync_all_streams;
        let requested = Bytes::new(size);
        let result = self.torch.malloc_in(timeline::PoolId(pool), requested, stream);
        if self.torch.statistics().num_sync_all_streams > synchronized {
            self.write_synchronized();
        }
        self.write_driver(stream, pool);
        match result {
            Ok(block) => {
                let address = self.torch.address(&block);
                let stack = if self.recording { self.stack } else { StackId::NONE };
                let tag = self.made;
                self.made += 1;
                let live = Live { block, address, requested: size, stream, pool, stack, tag };
                self.write(Action::Alloc, &live);
                self.live.push(live);
                true
            }
            Err(error) => {
                if self.recording {
                    let free = error.free.unwrap_or_default().get();
                    let rounded = error.rounded.get();
                    self.push(event(Action::OutOfMemory, free, rounded, stream, pool));
                }
                false
            }
        }
    }

    /// Writes an event down, on the stack and at the time of now.
    fn push(&mut self, mut event: TraceEvent) {
        if self.now > 0 {
            self.now += 1;
        }
        (event.stack, event.time_us) = (self.stack, self.now);
        self.events.push(event);
    }

    /// The allocator waited for every stream: what was pending is free.
    fn write_synchronized(&mut self) {
        for freed in std::mem::take(&mut self.pending) {
            self.write(Action::FreeCompleted, &freed);
            self.torch.free(freed.block);
        }
    }

    fn write(&mut self, action: Action, block: &Live) {
        if self.recording {
            let Live { address, requested, stream, pool, .. } = *block;
            self.push(event(action, address, requested, stream, pool));
        }
    }

    fn write_free(&mut self, action: Action, block: &Live) {
        self.write(action, block);
        if let Some(event) = self.events.last_mut()
            && self.stack == REQUEST
        {
            event.stack = FREE;
        }
    }

    fn write_driver(&mut self, stream: u16, pool: u16) {
        let calls: Vec<_> = self.torch.driver_mut().drain().collect();
        for call in calls {
            // Whoever asks owns what is given; what is given back belongs to the last owner at or below it.
            let given = matches!(call.call, DriverCall::SegmentAlloc | DriverCall::SegmentMap);
            if given {
                self.owners.insert(call.address, (stream, pool));
            }
            let owner = self.owners.range(..=call.address).next_back();
            let (stream, pool) = owner.map_or((0, 0), |(_, owner)| *owner);
            if !self.recording {
                continue;
            }
            let action = match call.call {
                DriverCall::SegmentAlloc => Action::SegmentAlloc,
                DriverCall::SegmentFree => Action::SegmentFree,
                DriverCall::SegmentMap => Action::SegmentMap,
                DriverCall::SegmentUnmap => Action::SegmentUnmap,
                DriverCall::Refused => continue,
            };
            self.push(event(action, call.address, call.size.get(), stream, pool));
        }
    }

    /// What the process dumps.
    pub fn dump(&self) -> Snapshot {
        self.dump_into(Builder::new(Writer::Unknown).finish())
    }

    /// What it dumps, with the names, stacks and scopes of another snapshot.
    pub fn dump_into(&self, base: Snapshot) -> Snapshot {
        let stacks: BTreeMap<u64, StackId> =
            self.live.iter().chain(&self.pending).map(|live| (live.address, live.stack)).collect();
        let config = self.torch.config();
        let mut snapshot = Snapshot {
            streams: (0..u64::from(self.streams)).collect(),
            pools: (0..u64::from(self.pools)).map(|pool| (0, pool)).collect(),
            segments: Vec::new(),
            blocks: Vec::new(),
            traces: vec![Trace { events: self.events.clone(), has_pools: true }],
            settings: Some(Settings {
                max_split_size: config.max_split_size,
                garbage_collection_threshold: config.garbage_collection_threshold,
                expandable_segments: Some(config.expandable_segments),
                roundup_power2_divisions: Some(config.roundup_power2_divisions.0),
                ..Settings::default()
            }),
            writer: match config.tie_break {
                TieBreak::OldestBlock => Writer::V2_12,
                TieBreak::OldestSegment => Writer::V2_14,
                TieBreak::LowestAddress => Writer::V2_10,
            },
            ..base
        };
        for segment in self.torch.layout().segments {
            let first = snapshot.blocks.len() as u32;
            let sum = |states: &[timeline::BlockState]| {
                let blocks = segment.blocks.iter().filter(|b| states.contains(&b.state));
                blocks.map(|b| b.size).sum::<Bytes>()
            };
            let allocated = sum(&[timeline::BlockState::Allocated]);
            let pending = sum(&[timeline::BlockState::PendingFree]);
            snapshot.blocks.extend(segment.blocks.iter().map(|block| Block {
                address: block.address,
                size: block.size,
                // A free block keeps its last user's request.
                requested: match block.state {
                    timeline::BlockState::Free => Bytes::new(12345),
                    _ => block.requested,
                },
                state: match block.state {
                    timeline::BlockState::Allocated => BlockState::Allocated,
                    timeline::BlockState::PendingFree => BlockState::PendingFree,
                    timeline::BlockState::Free => BlockState::Free,
                },
                stack: stacks.get(&block.address).copied().unwrap_or(StackId::NONE),
            }));
            snapshot.segments.push(Segment {
                device: 0,
                address: segment.address,
                total_size: segment.size,
                allocated_size: allocated,
                active_size: allocated + pending,
                requested_size: None,
                stream: StreamId(segment.stream),
                kind: match segment.kind {
                    PoolKind::Small => SegmentKind::Small,
                    PoolKind::Large => SegmentKind::Large,
                },
                pool: PoolId(segment.pool.0),
                expandable: segment.expandable,
                stack: StackId::NONE,
                blocks: first..snapshot.blocks.len() as u32,
            });
        }
        snapshot
    }

    /// The most that was reserved since recording began would be the allocator's peak, reset at that moment.
    pub fn reset_peaks(&mut self) {
        self.torch.reset_peaks();
    }

    /// The most that was reserved since the last reset.
    pub fn reserved_peak(&self) -> Bytes {
        self.torch.statistics().all.reserved_bytes.peak
    }
}
