//! Makes snapshots from nothing, for tests and benchmarks.

use super::rows::Tables;
use super::value;
use super::{
    Annotation, Block, EventExtra, ExtraId, Frame, FrameId, NameId, PoolId, Segment, Settings,
    Snapshot, StackId, StreamId, Trace, TraceEvent, Writer,
};
use crate::FormatError;

/// A snapshot in the making. Ids that it gives are those of the finished snapshot.
pub struct Builder {
    tables: Tables,
    settings: Option<Settings>,
    traces: Vec<Trace>,
    writer: Writer,
}

impl Builder {
    /// An empty snapshot, as a release of torch writes it.
    pub fn new(writer: Writer) -> Self {
        Builder { tables: Tables::new(), settings: None, traces: Vec::new(), writer }
    }

    /// Interns text.
    ///
    /// # Errors
    /// Above 4 GiB of distinct text.
    pub fn name(&mut self, text: &str) -> Result<NameId, FormatError> {
        self.tables.names.intern(text)
    }

    /// Interns a frame of a source line.
    ///
    /// # Errors
    /// As [`name`](Self::name).
    pub fn frame(&mut self, file: &str, line: u32, function: &str) -> Result<FrameId, FormatError> {
        let (file, function) = (self.name(file)?, self.name(function)?);
        Ok(self.tables.frames.intern(Frame { file, function, line, fx: None }))
    }

    /// Interns a stack, innermost frame first.
    ///
    /// # Errors
    /// Above 2^32 frames of distinct stacks.
    pub fn stack(&mut self, frames: &[FrameId]) -> Result<StackId, FormatError> {
        self.tables.stacks.intern(frames)
    }

    /// A stream, by its raw handle.
    pub fn stream(&mut self, raw: u64) -> StreamId {
        let raw = self.tables.integer(i128::from(raw));
        self.tables.stream(raw)
    }

    /// A memory pool, by its pair of numbers.
    pub fn pool(&mut self, pair: (u64, u64)) -> PoolId {
        let (a, b) = (self.tables.integer(pair.0.into()), self.tables.integer(pair.1.into()));
        self.tables
            .pair(a, b)
            .filter(|v| v.is(value::PAIR))
            .map_or(PoolId(0), |v| PoolId(v.place() as u16))
    }

    /// Rare fields of an event.
    pub fn extra(&mut self, extra: EventExtra) -> ExtraId {
        if extra == EventExtra::default() { ExtraId::NONE } else { self.tables.extra(extra) }
    }

    /// Adds a segment with its blocks, by address; the range of the blocks is filled in here.
    pub fn segment(&mut self, mut segment: Segment, blocks: &[Block]) {
        let begin = self.tables.blocks.len() as u32;
        self.tables.blocks.extend_from_slice(blocks);
        segment.blocks = begin..self.tables.blocks.len() as u32;
        self.tables.segments.push(segment);
    }

    /// Adds an event to the trace of a device.
    pub fn event(&mut self, device: usize, event: TraceEvent) {
        while self.traces.len() <= device {
            self.traces.push(Trace::default());
        }
        let has_pools = self.writer >= Writer::V2_12;
        let trace = &mut self.traces[device];
        trace.has_pools = has_pools;
        trace.events.push(event);
    }

    /// Adds a scope's begin or end.
    pub fn annotation(&mut self, annotation: Annotation) {
        self.tables.annotations.push(annotation);
    }

    /// Sets the settings.
    pub fn settings(&mut self, settings: Settings) {
        self.settings = Some(settings);
    }

    /// The snapshot.
    pub fn finish(self) -> Snapshot {
        let mut segments = self.tables.segments;
        segments.sort_by_key(|s| (s.device, s.address));
        Snapshot {
            names: self.tables.names.names,
            frames: self.tables.frames.frames,
            stacks: self.tables.stacks.stacks,
            streams: self.tables.streams,
            pools: self.tables.pools,
            segments,
            blocks: self.tables.blocks,
            traces: self.traces,
            extras: self.tables.extras,
            settings: self.settings,
            annotations: self.tables.annotations,
            host_segments: Vec::new(),
            host_traces: Vec::new(),
            writer: self.writer,
            cut_at: None,
            unknown: Vec::new(),
            remarks: Vec::new(),
        }
    }
}
