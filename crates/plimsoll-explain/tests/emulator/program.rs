//! A program with source lines: what the findings should say of it is known.

use plimsoll_formats::snapshot::{Annotation, Builder, Snapshot, StackId, Stage, Writer};
use plimsoll_timeline::PyTorchConfig;

use super::Process;

/// A process and the names of what it does.
pub struct Program {
    pub process: Process,
    builder: Builder,
}

/// File, line, function; innermost first.
pub type Frames<'a> = &'a [(&'a str, u32, &'a str)];

impl Program {
    /// A program that records from its first moment.
    pub fn new(config: PyTorchConfig) -> Self {
        let mut program = Program::unrecorded(config);
        program.record();
        program
    }

    /// A program that does not record yet.
    pub fn unrecorded(config: PyTorchConfig) -> Self {
        Program { process: Process::new(config), builder: Builder::new(Writer::V2_10) }
    }

    pub fn record(&mut self) {
        self.process.record();
        self.process.set_time(1_000_000);
    }

    fn go(&mut self, frames: Frames<'_>) -> StackId {
        let ids: Vec<_> = (frames.iter())
            .map(|(file, line, function)| self.builder.frame(file, *line, function).unwrap())
            .collect();
        let stack = self.builder.stack(&ids).unwrap();
        self.process.at(stack);
        stack
    }

    /// Allocates at a line; a tag to free it by.
    pub fn alloc(&mut self, frames: Frames<'_>, size: u64) -> usize {
        self.try_alloc(frames, size).expect("there is memory enough")
    }

    pub fn try_alloc(&mut self, frames: Frames<'_>, size: u64) -> Option<usize> {
        self.go(frames);
        self.process.malloc(size)
    }

    pub fn free(&mut self, frames: Frames<'_>, tag: usize) {
        self.go(frames);
        self.process.free(tag, false);
    }

    pub fn free_later(&mut self, frames: Frames<'_>, tag: usize) {
        self.go(frames);
        self.process.free(tag, true);
    }

    pub fn empty_cache(&mut self, frames: Frames<'_>) {
        self.go(frames);
        self.process.run(&[super::Op::EmptyCache]);
    }

    pub fn scope(&mut self, name: &str, stage: Stage) {
        let name = self.builder.name(name).unwrap();
        let time_us = self.process.time();
        self.builder.annotation(Annotation { name, stage, device: 0, time_us });
    }

    pub fn dump(self) -> Snapshot {
        self.process.dump_into(self.builder.finish())
    }
}
