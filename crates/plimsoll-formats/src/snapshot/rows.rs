//! Dictionaries of a snapshot, turned into rows of tables as soon as they are finished. What a dictionary is, its
//! keys tell.

use std::collections::{BTreeMap, HashMap};

use plimsoll_units::Bytes;

use super::intern::{FrameTable, NameTable, StackTable};
use super::value::{self, Value};
use super::words::Word;
use super::{
    Action, Annotation, Block, BlockState, EventExtra, ExtraId, Frame, FrameId, FxNode, NameId,
    PoolId, Segment, SegmentKind, Settings, StackId, Stage, StreamId, Trace, TraceEvent,
};
use crate::FormatError;

/// Most keys that are listed by name.
const MAX_UNKNOWN: usize = 64;
/// Address of a block that has none in the file.
const NO_ADDRESS: u64 = u64::MAX;

/// What a dictionary is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Event,
    Frame,
    Block,
    Segment,
    Annotation,
    History,
    Settings,
    Root,
    Other,
}

/// The whole file's dictionary: what its keys point at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub(super) segments: Value,
    pub(super) traces: Value,
    pub(super) settings: bool,
    pub(super) annotations: Value,
    pub(super) host_segments: Value,
    pub(super) host_traces: Value,
}

/// A run of rows of one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) table: value::Tag,
    pub(super) begin: u32,
    pub(super) end: u32,
}

/// Things that were put right, by what they are.
#[derive(Default)]
pub(super) struct Oddities {
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl Oddities {
    #[cold]
    pub(super) fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

/// Which keys were seen: they tell the release.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) history: bool,
    pub(super) block_address: bool,
    pub(super) time: bool,
    pub(super) compile_context: bool,
    pub(super) user_metadata: bool,
    pub(super) pool: bool,
    pub(super) internal_metadata: bool,
    pub(super) settings: bool,
    pub(super) capture_reuse: bool,
    pub(super) annotations: bool,
    pub(super) host: bool,
}

/// Every table that fills while a file is read.
pub(super) struct Tables {
    pub(super) names: NameTable,
    pub(super) frames: FrameTable,
    pub(super) stacks: StackTable,
    pub(super) streams: Vec<u64>,
    pub(super) stream_ids: HashMap<u64, u16>,
    pub(super) pools: Vec<(u64, u64)>,
    pub(super) pool_ids: HashMap<(u64, u64), u16>,
    pub(super) extras: Vec<EventExtra>,
    pub(super) extra_ids: HashMap<EventExtra, u32>,
    /// Events of the list that is being read, and how many came before them.
    pub(super) events: Vec<TraceEvent>,
    pub(super) events_before: u32,
    pub(super) events_have_pools: bool,
    pub(super) traces: Vec<Trace>,
    pub(super) trace_lists: Vec<Vec<Option<u32>>>,
    pub(super) blocks: Vec<Block>,
    pub(super) segments: Vec<Segment>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) histories: Vec<(StackId, u64)>,
    pub(super) groups: Vec<Group>,
    pub(super) texts: Vec<Vec<NameId>>,
    pub(super) text_ids: HashMap<Vec<NameId>, u32>,
    pub(super) counts: Vec<[u32; 16]>,
    pub(super) bigs: Vec<i128>,
    pub(super) floats: Vec<f64>,
    pub(super) settings: Option<Settings>,
    pub(super) roots: Vec<Root>,
    pub(super) unknown: HashMap<(u8, NameId), u64>,
    pub(super) unlisted: u64,
    pub(super) odd: Oddities,
    pub(super) seen: Seen,
    pub(super) scratch: Vec<FrameId>,
}

/// Names of the places where unknown keys stand.
pub(super) const PLACES: [&str; 7] =
    ["top level", "segment", "block", "event", "frame", "annotation", "history"];
const TOP: u8 = 0;
const IN_SEGMENT: u8 = 1;
const IN_BLOCK: u8 = 2;
const IN_EVENT: u8 = 3;
const IN_FRAME: u8 = 4;
const IN_ANNOTATION: u8 = 5;
const IN_HISTORY: u8 = 6;

const NO_EVENT: TraceEvent = TraceEvent {
    address: 0,
    size: 0,
    time_us: 0,
    stack: StackId::NONE,
    extra: ExtraId::NONE,
    stream: StreamId(0),
    pool: PoolId(0),
    action: Action::Other,
};

impl Tables {
    pub(super) fn new() -> Self {
        Tables {
            names: NameTable::new(Word::TEXTS),
            frames: FrameTable::new(),
            stacks: StackTable::new(),
            streams: vec![0],
            stream_ids: HashMap::from([(0, 0)]),
            pools: vec![(0, 0)],
            pool_ids: HashMap::from([((0, 0), 0)]),
            extras: vec![EventExtra::default()],
            extra_ids: HashMap::new(),
            events: Vec::new(),
            events_before: 0,
            events_have_pools: false,
            traces: Vec::new(),
            trace_lists: Vec::new(),
            blocks: Vec::new(),
            segments: Vec::new(),
            annotations: Vec::new(),
            histories: Vec::new(),
            groups: Vec::new(),
            texts: Vec::new(),
            text_ids: HashMap::new(),
            counts: Vec::new(),
            bigs: Vec::new(),
            floats: Vec::new(),
            settings: None,
            roots: Vec::new(),
            unknown: HashMap::new(),
            unlisted: 0,
            odd: Oddities::default(),
            seen: Seen::default(),
            scratch: Vec::new(),
        }
    }

    /// About how much the tables take.
    pub(super) fn bytes(&self) -> u64 {
        let event = size_of::<TraceEvent>();
        let traced: usize =
            self.traces.iter().map(|t| t.events.len() * event + size_of::<Trace>()).sum();
        let rows = self.events.len() * event
            + self.blocks.len() * size_of::<Block>()
            + self.segments.len() * size_of::<Segment>()
            + self.annotations.len() * size_of::<Annotation>()
            + self.histories.len() * 16;
        let small =
            16 * (self.groups.len() + self.bigs.len() + self.floats.len() + self.trace_lists.len());
        let distinct = self.names.bytes() + self.frames.bytes() + self.stacks.bytes();
        let extras = self.extras.len() * 2 * size_of::<EventExtra>() + self.texts.len() * 64;
        (traced + rows + small + distinct + extras + self.counts.len() * 64) as u64
    }

    // Numbers.

    pub(super) fn integer(&mut self, n: i128) -> Value {
        let small = i64::try_from(n).ok().and_then(Value::int);
        small.unwrap_or_else(|| {
            self.bigs.push(n);
            Value::new(value::BIG, self.bigs.len() as u32 - 1)
        })
    }

    pub(super) fn float(&mut self, x: f64) -> Value {
        self.floats.push(x);
        Value::new(value::FLOAT, self.floats.len() as u32 - 1)
    }

    fn number(&self, v: Value) -> Option<i128> {
        match v.tag() {
            value::INT => Some(i128::from(v.small())),
            value::BIG => self.bigs.get(v.place() as usize).copied(),
            value::BOOL => Some(i128::from(v.place())),
            _ => None,
        }
    }

    /// A count of bytes, a time, a line: never below zero.
    #[inline]
    fn count(&mut self, v: Value) -> u64 {
        if v.is(value::INT) && v.small() >= 0 {
            return v.small() as u64;
        }
        match self.number(v).map(u64::try_from) {
            Some(Ok(n)) => n,
            Some(Err(_)) => {
                self.odd.note("numbers outside 0 to 2^64 - 1 where a count belongs count as 0");
                0
            }
            None => {
                self.odd.note("values that are no numbers where a number belongs count as 0");
                0
            }
        }
    }

    /// An address or a handle: C++ may have written it as a signed number.
    #[inline]
    fn bits(&mut self, v: Value) -> u64 {
        if v.is(value::INT) {
            return v.small() as u64;
        }
        match self.number(v) {
            Some(n) if n < 0 => i64::try_from(n).map_or(0, |n| n as u64),
            _ => self.count(v),
        }
    }

    #[inline]
    fn stack(&mut self, v: Value) -> StackId {
        match v.tag() {
            value::STACK => StackId(v.place()),
            value::EMPTY | value::NONE => StackId::NONE,
            _ => {
                self.odd.note("stacks that are no lists of frames were skipped");
                StackId::NONE
            }
        }
    }

    #[inline]
    pub(super) fn stream(&mut self, v: Value) -> StreamId {
        let raw = self.bits(v);
        if raw == 0 {
            return StreamId(0);
        }
        if let Some(id) = self.stream_ids.get(&raw) {
            return StreamId(*id);
        }
        match u16::try_from(self.streams.len()) {
            Ok(id) => {
                self.streams.push(raw);
                self.stream_ids.insert(raw, id);
                StreamId(id)
            }
            Err(_) => {
                self.odd.note("streams beyond the first 65536 count as the default stream");
                StreamId(0)
            }
        }
    }

    /// A pair of numbers, kept as a pool.
    pub(super) fn pair(&mut self, a: Value, b: Value) -> Option<Value> {
        if a.is(value::INT) && b.is(value::INT) && a.small() == 0 && b.small() == 0 {
            return Some(Value::new(value::PAIR, 0));
        }
        let pair = (self.number(a)?, self.number(b)?);
        let pair = (u64::try_from(pair.0).ok()?, u64::try_from(pair.1).ok()?);
        if let Some(id) = self.pool_ids.get(&pair) {
            return Some(Value::new(value::PAIR, u32::from(*id)));
        }
        let id = u16::try_from(self.pools.len()).ok()?;
        self.pools.push(pair);
        self.pool_ids.insert(pair, id);
        Some(Value::new(value::PAIR, u32::from(id)))
    }

    fn pool(&mut self, v: Value) -> PoolId {
        if v.is(value::PAIR) {
            return PoolId(v.place() as u16);
        }
        self.odd.note("pool ids that are no pairs of numbers count as the default pool");
        PoolId(0)
    }

    fn unknown(&mut self, place: u8, key: Value) {
        let Some(name) = key.name() else {
            return self.odd.note("keys that are no texts were skipped");
        };
        if let Some(count) = self.unknown.get_mut(&(place, name)) {
            *count += 1;
        } else if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.insert((place, name), 1);
        } else {
            self.unlisted += 1;
        }
    }

    /// The unknown keys, in order of place and name.
    pub(super) fn unknown_keys(&self) -> Vec<super::UnknownKey> {
        let mut keys: Vec<_> = self
            .unknown
            .iter()
            .map(|(&(place, name), &count)| super::UnknownKey {
                place: PLACES.get(usize::from(place)).copied().unwrap_or("elsewhere"),
                key: self.names.names.get(name).to_owned(),
                count,
            })
            .collect();
        keys.sort_by(|a, b| (a.place, &a.key).cmp(&(b.place, &b.key)));
        keys
    }

    // Dictionaries.

    /// What a dictionary with these keys is.
    pub(super) fn shape(entries: &[Value]) -> Shape {
        for pair in entries.chunks_exact(2) {
            let Some(word) = pair[0].name().and_then(Word::of) else { continue };
            match word {
                Word::Action => return Shape::Event,
                Word::Filename => return Shape::Frame,
                Word::State => return Shape::Block,
                Word::SegmentType | Word::Blocks | Word::TotalSize => return Shape::Segment,
                Word::Stage => return Shape::Annotation,
                Word::RealSize => return Shape::History,
                Word::Segments | Word::DeviceTraces => return Shape::Root,
                Word::Conf | Word::MaxSplitSize | Word::ExpandableSegments => {
                    return Shape::Settings;
                }
                _ => {}
            }
        }
        Shape::Other
    }

    /// A finished dictionary, given as keys and values in turn.
    pub(super) fn dict(&mut self, entries: &[Value]) -> Result<Value, FormatError> {
        match Tables::shape(entries) {
            Shape::Event => self.event(entries),
            Shape::Frame => Ok(self.frame(entries)),
            Shape::Block => self.block(entries),
            Shape::Segment => self.segment(entries),
            Shape::Annotation => self.annotation(entries),
            Shape::History => self.history(entries),
            Shape::Settings => Ok(self.settings(entries)),
            Shape::Root => self.root(entries),
            Shape::Other => Ok(self.counts(entries)),
        }
    }

    fn event(&mut self, entries: &[Value]) -> Result<Value, FormatError> {
        let mut row = NO_EVENT;
        let mut extra = EventExtra::default();
        let (mut plain, mut sized) = (true, false);
        for pair in entries.chunks_exact(2) {
            let (key, v) = (pair[0], pair[1]);
            let Some(word) = key.name().and_then(Word::of) else {
                self.unknown(IN_EVENT, key);
                continue;
            };
            match word {
                Word::Action => row.action = action(v),
                Word::Addr | Word::DeviceFree => row.address = self.bits(v),
                Word::Size => {
                    sized = true;
                    row.size = self.count(v);
                }
                Word::Stream => row.stream = self.stream(v),
                Word::Frames => row.stack = self.stack(v),
                Word::TimeUs => {
                    self.seen.time = true;
                    row.time_us = self.count(v);
                }
                Word::CompileContext => {
                    self.seen.compile_context = true;
                    extra.compile_context = v.name().filter(|n| *n != Word::NotCompiled.id());
                    plain &= extra.compile_context.is_none();
                }
                Word::UserMetadata => {
                    self.seen.user_metadata = true;
                    extra.user_metadata = v.name().filter(|n| *n != Word::Empty.id());
                    plain &= extra.user_metadata.is_none();
                }
                Word::PoolId => {
                    self.seen.pool = true;
                    self.events_have_pools = true;
                    row.pool = self.pool(v);
                }
                Word::InternalMetadata => {
                    self.seen.internal_metadata = true;
                    extra.internal_metadata = v.name().filter(|n| *n != Word::Empty.id());
                    plain &= extra.internal_metadata.is_none();
                }
                Word::Category => {
                    extra.category = v.name();
                    plain &= extra.category.is_none();
                }
                Word::ForwardFrames => {
                    if let Some(texts) = self.texts(v) {
                        extra.forward_frames = texts.to_vec();
                        plain = false;
                    }
                }
                _ => self.unknown(IN_EVENT, key),
            }
        }
        if row.action == Action::Other {
            extra.action = entries
                .chunks_exact(2)
                .find(|pair| pair[0] == Value::text(Word::Action.id()))
                .and_then(|pair| pair[1].name());
            plain = false;
        } else if !sized {
            self.odd.note("events without a size count as 0 bytes");
        }
        if !plain {
            row.extra = self.extra(extra);
        }
        let id = place(self.events_before as usize + self.events.len(), "events")?;
        self.events.push(row);
        Ok(Value::new(value::EVENT, id))
    }

    pub(super) fn extra(&mut self, extra: EventExtra) -> ExtraId {
        if let Some(id) = self.extra_ids.get(&extra) {
            return ExtraId(*id);
        }
        let id = self.extras.len() as u32;
        self.extras.push(extra.clone());
        self.extra_ids.insert(extra, id);
        ExtraId(id)
    }

    fn frame(&mut self, entries: &[Value]) -> Value {
        let none = Word::Empty.id();
        let mut frame = Frame { file: none, function: none, line: 0, fx: None };
        let mut fx = FxNode { op: none, name: none, original_trace: none, info: none };
        let mut has_fx = false;
        for pair in entries.chunks_exact(2) {
            let (key, v) = (pair[0], pair[1]);
            let text = v.name().unwrap_or(none);
            match key.name().and_then(Word::of) {
                Some(Word::Filename) => frame.file = text,
                Some(Word::Name) => frame.function = text,
                Some(Word::Line) => frame.line = u32::try_from(self.count(v)).unwrap_or(0),
                Some(Word::FxNodeOp) => (fx.op, has_fx) = (text, true),
                Some(Word::FxNodeName) => (fx.name, has_fx) = (text, true),
                Some(Word::FxOriginalTrace) => (fx.original_trace, has_fx) = (text, true),
                Some(Word::FxNodeInfo) => (fx.info, has_fx) = (text, true),
                _ => self.unknown(IN_FRAME, key),
            }
        }
        frame.fx = has_fx.then_some(fx);
        Value::new(value::FRAME, self.frames.intern(frame).0)
    }

    fn block(&mut self, entries: &[Value]) -> Result<Value, FormatError> {
        let mut row = Block {
            address: NO_ADDRESS,
            size: Bytes::ZERO,
            requested: Bytes::ZERO,
            state: BlockState::Free,
            stack: StackId::NONE,
        };
        let mut history = None;
        for pair in entries.chunks_exact(2) {
            let (key, v) = (pair[0], pair[1]);
            match key.name().and_then(Word::of) {
                Some(Word::Address) => {
                    self.seen.block_address = true;
                    row.address = self.bits(v);
                }
                Some(Word::Size) => row.size = Bytes::new(self.count(v)),
                Some(Word::RequestedSize) => row.requested = Bytes::new(self.count(v)),
                Some(Word::State) => row.state = self.state(v),
                Some(Word::Frames) => row.stack = self.stack(v),
                Some(Word::History) => {
                    self.seen.history = true;
                    // The first entry is the owner of today.
                    let first = self.group(v, value::HISTORY).map(|group| group.begin as usize);
                    history = first.and_then(|at| self.histories.get(at).copied());
                }
                _ => self.unknown(IN_BLOCK, key),
            }
        }
        if let Some((stack, real_size)) = history {
            row.stack = if row.stack.is_none() { stack } else { row.stack };
            if row.requested == Bytes::ZERO && row.state != BlockState::Free {
                row.requested = Bytes::new(real_size);
            }
        }
        let id = place(self.blocks.len(), "blocks")?;
        self.blocks.push(row);
        Ok(Value::new(value::BLOCK, id))
    }

    fn state(&mut self, v: Value) -> BlockState {
        match v.name().and_then(Word::of) {
            Some(Word::ActiveAllocated) => BlockState::Allocated,
            Some(Word::ActivePendingFree | Word::ActiveAwaitingFree) => BlockState::PendingFree,
            Some(Word::Inactive) => BlockState::Free,
            _ => {
                self.odd.note("blocks in an unknown state count as free");
                BlockState::Free
            }
        }
    }

    fn history(&mut self, entries: &[Value]) -> Result<Value, FormatError> {
        let (mut stack, mut size) = (StackId::NONE, 0);
        for pair in entries.chunks_exact(2) {
            match pair[0].name().and_then(Word::of) {
                Some(Word::RealSize) => size = self.count(pair[1]),
                Some(Word::Frames) => stack = self.stack(pair[1]),
                Some(Word::Addr) => {}
                _ => self.unknown(IN_HISTORY, pair[0]),
            }
        }
        let id = place(self.histories.len(), "entries of histories")?;
        self.histories.push((stack, size));
        Ok(Value::new(value::HISTORY, id))
    }

    fn segment(&mut self, entries: &[Value]) -> Result<Value, FormatError> {
        let mut row = Segment {
            device: 0,
            address: 0,
            total_size: Bytes::ZERO,
            allocated_size: Bytes::ZERO,
            active_size: Bytes::ZERO,
            requested_size: None,
            stream: StreamId(0),
            kind: SegmentKind::Large,
            pool: PoolId(0),
            expandable: false,
            stack: StackId::NONE,
            blocks: 0..0,
        };
        for pair in entries.chunks_exact(2) {
            let (key, v) = (pair[0], pair[1]);
            match key.name().and_then(Word::of) {
                Some(Word::Device) => row.device = u32::try_from(self.count(v)).unwrap_or(0),
                Some(Word::Address) => row.address = self.bits(v),
                Some(Word::TotalSize) => row.total_size = Bytes::new(self.count(v)),
                Some(Word::AllocatedSize) => row.allocated_size = Bytes::new(self.count(v)),
                Some(Word::ActiveSize) => row.active_size = Bytes::new(self.count(v)),
                Some(Word::RequestedSize) => row.requested_size = Some(Bytes::new(self.count(v))),
                Some(Word::Stream) => row.stream = self.stream(v),
                Some(Word::SegmentType) => {
                    if v.name() == Some(Word::Small.id()) {
                        row.kind = SegmentKind::Small;
                    }
                }
                Some(Word::SegmentPoolId) => row.pool = self.pool(v),
                Some(Word::IsExpandable) => row.expandable = v == Value::new(value::BOOL, 1),
                Some(Word::Frames) => row.stack = self.stack(v),
                Some(Word::Blocks) => {
                    if let Some(group) = self.group(v, value::BLOCK) {
                        row.blocks = group.begin..group.end;
                    }
                }
                _ => self.unknown(IN_SEGMENT, key),
            }
        }
        let mut next = row.address;
        let blocks = row.blocks.start as usize..row.blocks.end as usize;
        for block in self.blocks.get_mut(blocks).unwrap_or_default() {
            if block.address == NO_ADDRESS {
                block.address = next;
            }
            next = block.address.saturating_add(block.size.get());
        }
        let id = place(self.segments.len(), "segments")?;
        self.segments.push(row);
        Ok(Value::new(value::SEGMENT, id))
    }

    fn annotation(&mut self, entries: &[Value]) -> Result<Value, FormatError> {
        let mut row =
            Annotation { name: Word::Empty.id(), stage: Stage::Start, device: -1, time_us: 0 };
        for pair in entries.chunks_exact(2) {
            let (key, v) = (pair[0], pair[1]);
            match key.name().and_then(Word::of) {
                Some(Word::Name) => row.name = v.name().unwrap_or(row.name),
                Some(Word::Stage) => {
                    if v.name() == Some(Word::End.id()) {
                        row.stage = Stage::End;
                    }
                }
                Some(Word::Device) => {
                    row.device = self.number(v).and_then(|n| i32::try_from(n).ok()).unwrap_or(-1);
                }
                Some(Word::TimeUs) => row.time_us = self.count(v),
                _ => self.unknown(IN_ANNOTATION, key),
            }
        }
        let id = place(self.annotations.len(), "annotations")?;
        self.annotations.push(row);
        Ok(Value::new(value::ANNOTATION, id))
    }

    fn settings(&mut self, entries: &[Value]) -> Value {
        let mut settings = Settings::default();
        for pair in entries.chunks_exact(2) {
            let (key, v) = (pair[0], pair[1]);
            let Some(name) = key.name() else { continue };
            let flag = v.is(value::BOOL).then(|| v.place() == 1);
            match Word::of(name) {
                Some(Word::Conf) => settings.conf = self.shown(v),
                Some(Word::MaxSplitSize) => {
                    // -1, or the largest number of the type, is no limit.
                    let limit = self.number(v).filter(|n| (0..i128::from(i64::MAX)).contains(n));
                    settings.max_split_size = limit.map(|n| Bytes::new(n as u64));
                }
                Some(Word::GarbageCollectionThreshold) => {
                    settings.garbage_collection_threshold = match v.tag() {
                        value::FLOAT => self.floats.get(v.place() as usize).copied(),
                        _ => self.number(v).map(|n| n as f64),
                    };
                }
                Some(Word::ExpandableSegments) => settings.expandable_segments = flag,
                Some(Word::RoundupPower2Divisions) if v.is(value::COUNTS) => {
                    settings.roundup_power2_divisions =
                        self.counts.get(v.place() as usize).copied();
                }
                word => {
                    self.seen.capture_reuse |= word == Some(Word::GraphCaptureReuse);
                    let key = self.names.names.get(name).to_owned();
                    settings.other.push((key, self.shown(v)));
                }
            }
        }
        self.seen.settings = true;
        self.settings.get_or_insert(settings);
        Value::SETTINGS
    }

    /// A value as text, for settings that this reader does not know.
    fn shown(&self, v: Value) -> String {
        match v.tag() {
            value::TEXT => self.names.names.get(NameId(v.place())).to_owned(),
            value::BOOL => (v.place() == 1).to_string(),
            value::FLOAT => {
                self.floats.get(v.place() as usize).map(f64::to_string).unwrap_or_default()
            }
            value::NONE => "None".to_owned(),
            value::EMPTY => "[]".to_owned(),
            _ => self.number(v).map_or_else(|| "...".to_owned(), |n| n.to_string()),
        }
    }

    /// `{"1": 0, "2": 0, ... "32768": 0}`, by power of two; anything else is not kept.
    fn counts(&mut self, entries: &[Value]) -> Value {
        let mut counts = [0; 16];
        if entries.is_empty() {
            return Value::EMPTY;
        }
        for pair in entries.chunks_exact(2) {
            let power = pair[0].name().and_then(|n| self.names.names.get(n).parse::<u32>().ok());
            let power = power.filter(|p| p.is_power_of_two()).map(|p| p.trailing_zeros() as usize);
            let count = self.number(pair[1]).and_then(|n| u32::try_from(n).ok());
            match (power.and_then(|p| counts.get_mut(p)), count) {
                (Some(slot), Some(count)) => *slot = count,
                _ => return Value::OTHER,
            }
        }
        self.counts.push(counts);
        Value::new(value::COUNTS, self.counts.len() as u32 - 1)
    }

    pub(super) fn root(&mut self, entries: &[Value]) -> Result<Value, FormatError> {
        let mut root = Root {
            segments: Value::NOTHING,
            traces: Value::NOTHING,
            settings: false,
            annotations: Value::NOTHING,
            host_segments: Value::NOTHING,
            host_traces: Value::NOTHING,
        };
        for pair in entries.chunks_exact(2) {
            let (key, v) = (pair[0], pair[1]);
            match key.name().and_then(Word::of) {
                Some(Word::Segments) => root.segments = v,
                Some(Word::DeviceTraces) => root.traces = v,
                Some(Word::AllocatorSettings) => root.settings = v == Value::SETTINGS,
                Some(Word::ExternalAnnotations) => {
                    self.seen.annotations = true;
                    root.annotations = v;
                }
                Some(Word::HostSegments) => {
                    self.seen.host = true;
                    root.host_segments = v;
                }
                Some(Word::HostTraces) => {
                    self.seen.host = true;
                    root.host_traces = v;
                }
                _ => self.unknown(TOP, key),
            }
        }
        let id = place(self.roots.len(), "snapshots")?;
        self.roots.push(root);
        Ok(Value::new(value::ROOT, id))
    }
}

fn action(v: Value) -> Action {
    match v.name().and_then(Word::of) {
        Some(Word::Alloc) => Action::Alloc,
        Some(Word::FreeRequested) => Action::FreeRequested,
        Some(Word::FreeCompleted) => Action::FreeCompleted,
        Some(Word::SegmentAlloc) => Action::SegmentAlloc,
        Some(Word::SegmentFree) => Action::SegmentFree,
        Some(Word::SegmentMap) => Action::SegmentMap,
        Some(Word::SegmentUnmap) => Action::SegmentUnmap,
        Some(Word::Snapshot) => Action::Snapshot,
        Some(Word::Oom) => Action::OutOfMemory,
        _ => Action::Other,
    }
}

/// The place of a new row; tables hold fewer than 2^32.
fn place(length: usize, what: &'static str) -> Result<u32, FormatError> {
    u32::try_from(length).ok().filter(|n| *n < u32::MAX).ok_or(FormatError::TooLarge {
        section: "memory snapshot",
        what,
        value: length as u64,
        limit: u64::from(u32::MAX) - 1,
    })
}
