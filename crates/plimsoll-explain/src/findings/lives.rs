//! When each tensor came into being and when it was let go, in timeline events.

use plimsoll_timeline::Event;

use crate::recording::Recording;

/// No event.
pub(crate) const NEVER: u32 = u32::MAX;

/// Births and deaths by tensor.
#[derive(Clone, Debug)]
pub(crate) struct Lives {
    /// The event that allocates it; [`NEVER`] for tensors that were there before.
    pub born: Vec<u32>,
    /// The event that frees it or requests that; [`NEVER`] if it is live at the end.
    pub freed: Vec<u32>,
}

impl Lives {
    pub fn of(recording: &Recording<'_>) -> Self {
        let tensors = recording.timeline.allocations().len();
        let mut lives = Lives { born: vec![NEVER; tensors], freed: vec![NEVER; tensors] };
        for (index, event) in (0u32..).zip(recording.timeline.events()) {
            match *event {
                Event::Alloc(id) => lives.born[id.0 as usize] = index,
                Event::Free(id) | Event::FreeRequested(id) => lives.freed[id.0 as usize] = index,
                _ => {}
            }
        }
        lives
    }

    /// Whether a tensor is live right after an event; `None` is the moment before the first one.
    pub fn is_live(&self, tensor: usize, after: Option<u32>) -> bool {
        let born = self.born[tensor];
        match after {
            None => born == NEVER,
            Some(event) => {
                let freed = self.freed[tensor];
                (born == NEVER || born <= event) && (freed == NEVER || freed > event)
            }
        }
    }
}
