//! Where every tensor of a recording lay, and what was reserved: a replay that keeps places instead of comparing them.

use plimsoll_timeline::{Allocator, BlockHandle, Event, OutOfMemory, PyTorchAllocator, TensorId};

use super::script::Script;
use super::start::as_recorded;
use super::walk::{Observer, Step, walk};
use crate::recording::Recording;

/// Places of tensors and the course of reserved memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// Address and bytes of each tensor's block, by tensor; (0, 0) where it never had one.
    pub blocks: Vec<(u64, u64)>,
    /// Reserved bytes from an event on; the first entry is the state before any.
    pub reserved: Vec<(u32, u64)>,
}

/// Replays a recording under its own settings. Where the allocator cannot begin from the recorded start state, sizes
/// are the requests and addresses those of the trace.
pub(crate) fn place(recording: &Recording<'_>) -> Placed {
    let mut placed = Placed { blocks: recorded_places(recording), reserved: Vec::new() };
    let script = Script::new(&recording.driver);
    let Ok((mut torch, blocks)) = as_recorded(recording, recording.config.clone(), script) else {
        return placed;
    };
    placed.reserved.push((0, Allocator::usage(&torch).reserved.get()));
    let mut observer = Places { recording, placed };
    walk(recording, &mut torch, blocks, &mut observer);
    observer.placed
}

/// Addresses of the trace and of the start state, with requested sizes rounded.
fn recorded_places(recording: &Recording<'_>) -> Vec<(u64, u64)> {
    let tensors = recording.timeline.allocations();
    let mut blocks = vec![(0, 0); tensors.len()];
    for (block, start) in blocks.iter_mut().zip(&recording.start_blocks) {
        *block = (start.address, start.size.get());
    }
    for (event, index) in recording.timeline.events().iter().zip(&recording.trace_index) {
        if let Event::Alloc(id) = event
            && let Some(recorded) = recording.events().get(*index as usize)
        {
            let id = id.0 as usize;
            blocks[id] = (recorded.address, recording.config.rounded(tensors[id].requested).get());
        }
    }
    blocks
}

struct Places<'r, 's> {
    recording: &'r Recording<'s>,
    placed: Placed,
}

impl<'r> Observer<Script<'r>> for Places<'r, '_> {
    fn before(&mut self, torch: &mut PyTorchAllocator<Script<'r>>, step: Step) {
        torch.driver_mut().begin_step(self.recording, step);
    }

    fn allocated(
        &mut self,
        torch: &PyTorchAllocator<Script<'r>>,
        _event: u32,
        id: TensorId,
        block: &BlockHandle,
    ) {
        self.placed.blocks[id.0 as usize] = (torch.address(block), torch.block_size(block).get());
    }

    fn after(
        &mut self,
        torch: &mut PyTorchAllocator<Script<'r>>,
        step: Step,
        _result: Result<(), OutOfMemory>,
    ) -> bool {
        let reserved = Allocator::usage(torch).reserved.get();
        if let Step::Event(event, _) = step
            && self.placed.reserved.last().is_none_or(|(_, last)| *last != reserved)
        {
            self.placed.reserved.push((event, reserved));
        }
        true
    }
}
