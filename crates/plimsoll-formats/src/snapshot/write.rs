//! Writes a [`Snapshot`] as a pickle: protocol 4 as CPython's pickler in C does, protocol 2 as TorchScript's does.
//! It serves tests and benchmarks; nothing that a user runs writes snapshots.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{
    Action, BlockState, EventExtra, FrameId, NameId, PoolId, Segment, SegmentKind, Settings,
    Snapshot, StackId, Stage, Trace, TraceEvent, Writer,
};

/// Items that CPython puts into one batch.
const BATCH: usize = 1000;
/// Bytes after which CPython ends a frame of protocol 4.
const FRAME: usize = 64 << 10;

/// Who pickles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `pickle.dump` of CPython 3.8 to 3.13: protocol 4, containers memoized before they are filled.
    Python,
    /// `torch::cuda::_memory_snapshot_pickled`: protocol 2, containers memoized after, one batch.
    TorchScript,
}

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Who pickles.
    pub dialect: Dialect,
    /// Whether equal frames are one object, as torch makes them; otherwise each stack spells its frames out, as
    /// after a detour over JSON.
    pub share_frames: bool,
}

/// Writes a snapshot with the keys that its [`Snapshot::writer`] has.
///
/// # Errors
/// Those of `out`.
pub fn write(snapshot: &Snapshot, options: WriteOptions, out: impl Write) -> io::Result<()> {
    let mut pickler = Pickler {
        out,
        ops: Vec::with_capacity(2 * FRAME),
        options,
        next: 0,
        keys: HashMap::new(),
        names: vec![None; snapshot.names.len()],
        frames: vec![None; snapshot.frames.len()],
        lists: HashMap::new(),
        latest: None,
        snapshot,
        writer: match snapshot.writer {
            Writer::Unknown => Writer::V2_1,
            writer => writer,
        },
    };
    pickler.whole()?;
    pickler.flush(true)?;
    pickler.out.flush()
}

struct Pickler<'a, W> {
    out: W,
    /// Opcodes of the frame that is being written.
    ops: Vec<u8>,
    options: WriteOptions,
    /// Next memo entry.
    next: u32,
    keys: HashMap<&'static str, u32>,
    names: Vec<Option<u32>>,
    frames: Vec<Option<u32>>,
    /// Lists of frames, for TorchScript, which shares them by stack.
    lists: HashMap<StackId, u32>,
    /// The stack, address and memo entry of the last list: the two events of one free share theirs.
    latest: Option<(StackId, u64, u32)>,
    snapshot: &'a Snapshot,
    writer: Writer,
}

impl<W: Write> Pickler<'_, W> {
    fn is_python(&self) -> bool {
        self.options.dialect == Dialect::Python
    }

    fn flush(&mut self, last: bool) -> io::Result<()> {
        if !self.is_python() {
            if last || self.ops.len() >= FRAME {
                self.out.write_all(&self.ops)?;
                self.ops.clear();
            }
            return Ok(());
        }
        if last || self.ops.len() >= FRAME {
            // A frame of fewer than four bytes is not announced.
            if self.ops.len() >= 4 {
                self.out.write_all(&[0x95])?;
                self.out.write_all(&(self.ops.len() as u64).to_le_bytes())?;
            }
            self.out.write_all(&self.ops)?;
            self.ops.clear();
        }
        Ok(())
    }

    fn op(&mut self, bytes: &[u8]) {
        self.ops.extend_from_slice(bytes);
    }

    // Values.

    /// Puts the value that was just written into the memo.
    fn memoize(&mut self) -> u32 {
        let at = self.next;
        self.next += 1;
        match (self.options.dialect, u8::try_from(at)) {
            (Dialect::Python, _) => self.op(&[0x94]),
            (Dialect::TorchScript, Ok(at)) => self.op(&[b'q', at]),
            (Dialect::TorchScript, Err(_)) => {
                self.op(b"r");
                self.op(&at.to_le_bytes());
            }
        }
        at
    }

    fn recall(&mut self, at: u32) {
        match u8::try_from(at) {
            Ok(at) => self.op(&[b'h', at]),
            Err(_) => {
                self.op(b"j");
                self.op(&at.to_le_bytes());
            }
        }
    }

    fn int(&mut self, n: i128) {
        if let Ok(n) = u8::try_from(n) {
            self.op(&[b'K', n]);
        } else if let Ok(n) = u16::try_from(n) {
            self.op(b"M");
            self.op(&n.to_le_bytes());
        } else if let Ok(n) = i32::try_from(n) {
            self.op(b"J");
            self.op(&n.to_le_bytes());
        } else if !self.is_python() {
            // C++ has signed integers of eight bytes only.
            self.op(&[0x8a, 8]);
            self.op(&(n as i64).to_le_bytes());
        } else {
            let bytes = n.to_le_bytes();
            let fill = if n < 0 { 0xff } else { 0 };
            let mut length = bytes.iter().rposition(|b| *b != fill).map_or(1, |at| at + 1);
            if (bytes[length - 1] >= 0x80) != (n < 0) {
                length += 1;
            }
            self.op(&[0x8a, length as u8]);
            self.op(&bytes[..length]);
        }
    }

    fn uint(&mut self, n: u64) {
        self.int(i128::from(n));
    }

    fn bool(&mut self, b: bool) {
        self.op(&[if b { 0x88 } else { 0x89 }]);
    }

    fn text(&mut self, text: &str) -> u32 {
        match u8::try_from(text.len()) {
            Ok(length) if self.is_python() => self.op(&[0x8c, length]),
            _ => {
                self.op(b"X");
                self.op(&(text.len() as u32).to_le_bytes());
            }
        }
        self.op(text.as_bytes());
        self.memoize()
    }

    /// Text that the writer has as one object.
    fn word(&mut self, word: &'static str) {
        match self.keys.get(word) {
            Some(at) => self.recall(*at),
            None => {
                let at = self.text(word);
                self.keys.insert(word, at);
            }
        }
    }

    fn name(&mut self, name: NameId) {
        match self.names.get(name.0 as usize).copied().flatten() {
            Some(at) => self.recall(at),
            None => {
                let at = self.text(self.snapshot.names.get(name));
                if let Some(slot) = self.names.get_mut(name.0 as usize) {
                    *slot = Some(at);
                }
            }
        }
    }

    // Containers. A closure writes one item; those of a dictionary are a key and a value.

    fn dict<T>(
        &mut self,
        items: &[T],
        mut item: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<Option<u32>> {
        self.op(b"}");
        let at = self.is_python().then(|| self.memoize());
        self.batches(items, &mut item, b"s", b"u")?;
        Ok(at)
    }

    fn list<T>(
        &mut self,
        items: &[T],
        mut item: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<Option<u32>> {
        self.op(b"]");
        let at = self.is_python().then(|| self.memoize());
        self.batches(items, &mut item, b"a", b"e")?;
        Ok(at)
    }

    fn batches<T>(
        &mut self,
        items: &[T],
        item: &mut impl FnMut(&mut Self, &T) -> io::Result<()>,
        one: &[u8],
        many: &[u8],
    ) -> io::Result<()> {
        if let ([only], true) = (items, self.is_python()) {
            item(self, only)?;
            self.op(one);
            return Ok(());
        }
        let size = if self.is_python() { BATCH } else { items.len().max(1) };
        for batch in items.chunks(size) {
            self.op(b"(");
            for i in batch {
                item(self, i)?;
                self.flush(false)?;
            }
            self.op(many);
        }
        Ok(())
    }

    fn pool(&mut self, pool: PoolId) {
        let (a, b) = self.snapshot.pools.get(usize::from(pool.0)).copied().unwrap_or_default();
        self.uint(a);
        self.uint(b);
        self.op(&[0x86]);
        if self.is_python() {
            self.memoize();
        }
    }

    fn frame(&mut self, frame: FrameId) -> io::Result<()> {
        let at = frame.0 as usize;
        if let Some(at) = self.frames.get(at).copied().flatten() {
            self.recall(at);
            return Ok(());
        }
        let Some(f) = self.snapshot.frames.get(at).copied() else { return Ok(()) };
        let plain = ["filename", "name", "line"];
        let fx = ["fx_node_op", "fx_node_name", "fx_original_trace", "fx_node_info"];
        let keys: Vec<&'static str> =
            plain.into_iter().chain(fx.into_iter().filter(|_| f.fx.is_some())).collect();
        let memo = self.dict(&keys, |p, key| {
            p.word(key);
            match (*key, f.fx) {
                ("filename", _) => p.name(f.file),
                ("name", _) => p.name(f.function),
                ("fx_node_op", Some(fx)) => p.name(fx.op),
                ("fx_node_name", Some(fx)) => p.name(fx.name),
                ("fx_original_trace", Some(fx)) => p.name(fx.original_trace),
                ("fx_node_info", Some(fx)) => p.name(fx.info),
                _ => p.uint(f.line.into()),
            }
            Ok(())
        })?;
        if self.options.share_frames {
            let memo = memo.unwrap_or_else(|| self.memoize());
            if let Some(slot) = self.frames.get_mut(at) {
                *slot = Some(memo);
            }
        }
        Ok(())
    }

    /// A list of frames. `address` is that of the event: the two events of a free share their list.
    fn stack(&mut self, stack: StackId, address: Option<u64>) -> io::Result<()> {
        let shared = match address {
            _ if !self.is_python() => self.lists.get(&stack).copied(),
            Some(address) => self
                .latest
                .filter(|(s, a, _)| (*s, *a) == (stack, address) && !stack.is_none())
                .map(|(_, _, at)| at),
            None => None,
        };
        if let Some(at) = shared {
            self.recall(at);
            return Ok(());
        }
        let frames = self.snapshot.stacks.get(stack);
        let memo = self.list(frames, |p, frame| p.frame(*frame))?;
        let memo = memo.unwrap_or_else(|| self.memoize());
        if self.is_python() {
            self.latest = address.map(|address| (stack, address, memo));
        } else {
            self.lists.insert(stack, memo);
        }
        Ok(())
    }

    // Rows.

    fn whole(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot;
        self.out.write_all(if self.is_python() { b"\x80\x04" } else { b"\x80\x02" })?;
        let mut keys = vec!["segments", "device_traces"];
        if snapshot.settings.is_some() && self.writer >= Writer::V2_3 {
            keys.push("allocator_settings");
        }
        if self.writer >= Writer::V2_5 {
            keys.push("external_annotations");
        }
        if self.writer >= Writer::V2_14 {
            keys.extend(["host_segments", "host_traces"]);
        }
        self.dict(&keys, |p, key| {
            p.word(key);
            match *key {
                "segments" => p.list(&snapshot.segments, Self::segment)?,
                "host_segments" => p.list(&snapshot.host_segments, Self::segment)?,
                "device_traces" => p.list(&snapshot.traces, Self::trace)?,
                "host_traces" => p.list(&snapshot.host_traces, Self::trace)?,
                "external_annotations" => p.list(&snapshot.annotations, |p, a| {
                    p.dict(&["name", "stage", "device", "time_us"], |p, key| {
                        p.word(key);
                        match *key {
                            "name" => p.name(a.name),
                            "stage" => {
                                p.word(if a.stage == Stage::Start { "START" } else { "END" })
                            }
                            "device" => p.int(a.device.into()),
                            _ => p.uint(a.time_us),
                        }
                        Ok(())
                    })
                    .map(drop)
                })?,
                _ => p.settings(snapshot.settings.as_ref())?,
            };
            Ok(())
        })?;
        self.op(b".");
        Ok(())
    }

    fn settings(&mut self, settings: Option<&Settings>) -> io::Result<Option<u32>> {
        let Some(settings) = settings else { return Ok(None) };
        let mut keys = vec!["PYTORCH_CUDA_ALLOC_CONF", "max_split_size"];
        keys.extend(settings.garbage_collection_threshold.map(|_| "garbage_collection_threshold"));
        keys.extend(settings.expandable_segments.map(|_| "expandable_segments"));
        if self.writer >= Writer::V2_9 {
            keys.push("graph_capture_record_stream_reuse");
        }
        keys.extend(settings.roundup_power2_divisions.map(|_| "roundup_power2_divisions"));
        self.dict(&keys, |p, key| {
            p.word(key);
            match *key {
                "PYTORCH_CUDA_ALLOC_CONF" => drop(p.text(&settings.conf)),
                "max_split_size" => {
                    p.int(settings.max_split_size.map_or(-1, |b| i128::from(b.get())))
                }
                "garbage_collection_threshold" => {
                    let x = settings.garbage_collection_threshold.unwrap_or(0.0);
                    p.op(b"G");
                    p.op(&x.to_be_bytes());
                }
                "expandable_segments" => p.bool(settings.expandable_segments == Some(true)),
                "roundup_power2_divisions" => {
                    let divisions = settings.roundup_power2_divisions.unwrap_or_default();
                    let pairs: Vec<(usize, u32)> = divisions.into_iter().enumerate().collect();
                    p.dict(&pairs, |p, (power, divisions)| {
                        p.text(&(1u32 << power).to_string());
                        p.uint((*divisions).into());
                        Ok(())
                    })?;
                }
                _ => p.bool(settings.other.iter().any(|(k, v)| k == key && v == "true")),
            }
            Ok(())
        })
    }

    fn segment(&mut self, s: &Segment) -> io::Result<()> {
        let snapshot = self.snapshot;
        let mut keys = vec!["device", "address", "total_size", "allocated_size", "active_size"];
        keys.extend(s.requested_size.map(|_| "requested_size"));
        keys.extend(["stream", "segment_type"]);
        if self.writer > Writer::V2_0 {
            keys.extend(["segment_pool_id", "is_expandable", "frames"]);
        }
        keys.push("blocks");
        let blocks = snapshot.blocks.get(s.blocks.start as usize..s.blocks.end as usize);
        self.dict(&keys, |p, key| {
            p.word(key);
            match *key {
                "device" => p.uint(s.device.into()),
                "address" => p.uint(s.address),
                "total_size" => p.uint(s.total_size.get()),
                "allocated_size" => p.uint(s.allocated_size.get()),
                "active_size" => p.uint(s.active_size.get()),
                "requested_size" => p.uint(s.requested_size.map_or(0, |b| b.get())),
                "stream" => {
                    p.uint(snapshot.streams.get(usize::from(s.stream.0)).copied().unwrap_or(0))
                }
                "segment_type" => {
                    p.word(if s.kind == SegmentKind::Small { "small" } else { "large" })
                }
                "segment_pool_id" => p.pool(s.pool),
                "is_expandable" => p.bool(s.expandable),
                "frames" => p.stack(s.stack, None)?,
                _ => drop(p.list(blocks.unwrap_or_default(), |p, b| p.block(b))?),
            }
            Ok(())
        })
        .map(drop)
    }

    fn block(&mut self, b: &super::Block) -> io::Result<()> {
        let old = self.writer == Writer::V2_0;
        let mut keys = if old { vec![] } else { vec!["address"] };
        keys.extend(["size", "requested_size", "state"]);
        if !old {
            keys.push("frames");
        } else if !b.stack.is_none() {
            keys.push("history");
        }
        self.dict(&keys, |p, key| {
            p.word(key);
            match *key {
                "address" => p.uint(b.address),
                "size" => p.uint(b.size.get()),
                "requested_size" => p.uint(b.requested.get()),
                "state" => p.word(match b.state {
                    BlockState::Allocated => "active_allocated",
                    BlockState::PendingFree => "active_pending_free",
                    BlockState::Free => "inactive",
                }),
                "frames" => p.stack(b.stack, None)?,
                _ => {
                    p.list(&[()], |p, ()| {
                        p.dict(&["addr", "real_size", "frames"], |p, key| {
                            p.word(key);
                            match *key {
                                "addr" => p.uint(b.address),
                                "real_size" => p.uint(b.requested.get()),
                                _ => p.stack(b.stack, None)?,
                            }
                            Ok(())
                        })
                        .map(drop)
                    })?;
                }
            }
            Ok(())
        })
        .map(drop)
    }

    fn trace(&mut self, trace: &Trace) -> io::Result<()> {
        self.list(&trace.events, Self::event).map(drop)
    }

    fn event(&mut self, e: &TraceEvent) -> io::Result<()> {
        let snapshot = self.snapshot;
        let none = EventExtra::default();
        let extra = snapshot.extras.get(e.extra.0 as usize).unwrap_or(&none);
        let address = if e.action == Action::OutOfMemory { "device_free" } else { "addr" };
        let mut keys = [""; 13];
        let mut length = 0;
        let mut add = |wanted: bool, key| {
            if wanted {
                keys[length] = key;
                length += 1;
            }
        };
        let since = |writer| self.writer >= writer;
        add(true, "action");
        add(true, address);
        add(true, "size");
        add(true, "stream");
        add(since(Writer::V2_2), "time_us");
        add(since(Writer::V2_8), "compile_context");
        add(since(Writer::V2_10), "user_metadata");
        add(since(Writer::V2_12), "pool_id");
        add(extra.internal_metadata.is_some(), "internal_metadata");
        add(extra.category.is_some(), "category");
        add(!extra.forward_frames.is_empty(), "forward_frames");
        add(!e.stack.is_none(), "frames");
        self.dict(&keys[..length], |p, key| {
            p.word(key);
            match *key {
                "action" => match e.action.word() {
                    Some(word) => p.word(word),
                    None => match extra.action {
                        Some(name) => p.name(name),
                        None => drop(p.text("other")),
                    },
                },
                "addr" | "device_free" => p.uint(e.address),
                "size" => p.uint(e.size),
                "stream" => {
                    p.uint(snapshot.streams.get(usize::from(e.stream.0)).copied().unwrap_or(0))
                }
                "time_us" => p.uint(e.time_us),
                // Made anew for each event, so CPython does not share it; the empty text it has once.
                "compile_context" => match extra.compile_context {
                    None if p.is_python() => drop(p.text("N/A")),
                    None => p.word("N/A"),
                    Some(name) => p.name(name),
                },
                "user_metadata" => match extra.user_metadata {
                    None => p.word(""),
                    Some(name) => p.name(name),
                },
                "pool_id" => p.pool(e.pool),
                "internal_metadata" => extra.internal_metadata.map_or((), |name| p.name(name)),
                "category" => extra.category.map_or((), |name| p.name(name)),
                "forward_frames" => {
                    p.list(&extra.forward_frames, |p, name| {
                        p.name(*name);
                        Ok(())
                    })?;
                }
                _ => p.stack(e.stack, Some(e.address))?,
            }
            Ok(())
        })
        .map(drop)
    }
}
