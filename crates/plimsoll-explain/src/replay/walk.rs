//! One walk over a recording's requests on an allocator, for every kind of replay: the timeline's events and,
//! between them, the requests that failed while it was recorded.

use plimsoll_timeline::{
    Allocator, BlockHandle, Driver, Event, OutOfMemory, PyTorchAllocator, TensorId, Usage,
};
use plimsoll_units::Bytes;

use crate::recording::{RecordedOom, Recording};

/// What is about to happen or has just happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A timeline event.
    Event(u32, Event),
    /// A request that failed in the recording, by index.
    Failed(usize),
}

impl Step {
    /// The trace event that it stands for.
    pub fn trace_index(self, recording: &Recording<'_>) -> u32 {
        match self {
            Step::Event(index, _) => {
                recording.trace_index.get(index as usize).copied().unwrap_or(u32::MAX)
            }
            Step::Failed(at) => recording.ooms.get(at).map_or(u32::MAX, |oom| oom.trace_index),
        }
    }
}

/// Looks at a walk.
pub(super) trait Observer<D: Driver> {
    /// Before a step that may ask the driver: an allocation, an emptied cache, a request that failed.
    fn before(&mut self, _torch: &mut PyTorchAllocator<D>, _step: Step) {}

    /// A tensor got its block.
    fn allocated(
        &mut self,
        _torch: &PyTorchAllocator<D>,
        _event: u32,
        _id: TensorId,
        _block: &BlockHandle,
    ) {
    }

    /// After a step; `Err` holds why a request failed. `false` ends the walk.
    fn after(
        &mut self,
        torch: &mut PyTorchAllocator<D>,
        step: Step,
        result: Result<(), OutOfMemory>,
    ) -> bool;
}

/// Walks from the start state. `blocks` holds the blocks of the existing tensors; a tensor without a block is passed
/// over. Returns whether it came to the end.
pub(super) fn walk<D: Driver>(
    recording: &Recording<'_>,
    torch: &mut PyTorchAllocator<D>,
    mut blocks: Vec<Option<BlockHandle>>,
    observer: &mut impl Observer<D>,
) -> bool {
    let timeline = &recording.timeline;
    blocks.resize_with(timeline.allocations().len(), || None);
    let mut failed = recording.ooms.iter().enumerate().peekable();
    for (index, event) in (0u32..).zip(timeline.events()) {
        while let Some((at, oom)) = failed.next_if(|(_, oom)| oom.event <= index) {
            if !try_failed(torch, at, oom, observer) {
                return false;
            }
        }
        let step = Step::Event(index, *event);
        let mut result = Ok(());
        match *event {
            Event::Alloc(id) => {
                observer.before(torch, step);
                let tensor = &timeline.allocations()[id.0 as usize];
                match torch.malloc_in(tensor.pool, tensor.requested, tensor.stream) {
                    Ok(block) => {
                        observer.allocated(torch, index, id, &block);
                        blocks[id.0 as usize] = Some(block);
                    }
                    Err(error) => result = Err(error),
                }
            }
            Event::Free(id) | Event::FreeCompleted(id) => {
                if let Some(block) = blocks[id.0 as usize].take() {
                    torch.free(block);
                }
            }
            Event::FreeRequested(id) => {
                if let Some(block) = &blocks[id.0 as usize] {
                    torch.request_free(block);
                }
            }
            Event::RecordStream(id, stream) => {
                if let Some(block) = &blocks[id.0 as usize] {
                    torch.record_stream(block, stream);
                }
            }
            Event::EmptyCache => {
                observer.before(torch, step);
                torch.empty_cache();
            }
            Event::BeginPool(pool) => torch.begin_pool(pool),
            Event::EndPool(pool) => torch.end_pool(pool),
            Event::BeginCapture => torch.begin_capture(),
            Event::EndCapture => torch.end_capture(),
            Event::ReleasePool(pool) => torch.release_pool(pool),
        }
        if !observer.after(torch, step, result) {
            return false;
        }
    }
    failed.all(|(at, oom)| try_failed(torch, at, oom, observer))
}

/// A request that failed once is tried again; if it succeeds now, its block goes back at once, since the recorded
/// program went on without it.
fn try_failed<D: Driver>(
    torch: &mut PyTorchAllocator<D>,
    at: usize,
    oom: &RecordedOom,
    observer: &mut impl Observer<D>,
) -> bool {
    let step = Step::Failed(at);
    observer.before(torch, step);
    let result = torch.malloc_in(oom.pool, oom.rounded, oom.stream);
    match result {
        Ok(block) => {
            let go_on = observer.after(torch, step, Ok(()));
            torch.free(block);
            go_on
        }
        Err(error) => observer.after(torch, step, Err(error)),
    }
}

/// Highest values, and the events that they were reached at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Peaks {
    /// The most that was asked for at once.
    pub requested: Bytes,
    /// The most that was allocated at once.
    pub allocated: Bytes,
    /// The first timeline event after which that was so; absent where the start state holds most.
    pub allocated_event: Option<u32>,
    /// The most that was held from the driver at once.
    pub reserved: Bytes,
    /// The first timeline event after which that was so.
    pub reserved_event: Option<u32>,
}

impl Peaks {
    /// The peaks of a state before any event.
    pub(super) fn starting_with(usage: Usage) -> Self {
        Peaks {
            requested: usage.requested,
            allocated: usage.allocated,
            reserved: usage.reserved,
            ..Peaks::default()
        }
    }

    /// Takes note of the state after an event.
    pub(super) fn note(&mut self, event: Option<u32>, usage: Usage) {
        self.requested = self.requested.max(usage.requested);
        if usage.allocated > self.allocated {
            (self.allocated, self.allocated_event) = (usage.allocated, event);
        }
        if usage.reserved > self.reserved {
            (self.reserved, self.reserved_event) = (usage.reserved, event);
        }
    }
}

/// Bytes in use after a step.
pub(super) fn usage<D: Driver>(torch: &PyTorchAllocator<D>) -> Usage {
    Allocator::usage(torch)
}
