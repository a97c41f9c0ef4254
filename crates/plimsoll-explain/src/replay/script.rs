//! The driver of an exact replay: it answers each request as the recording says it was answered, and notes what was
//! asked. Where the recording gives memory back before it gets a segment, the driver must have refused before.

use std::collections::BTreeMap;
use std::ops::Range;

use plimsoll_timeline::{Client, Device, Driver, DriverCall, DriverEvent};
use plimsoll_units::Bytes;

use super::walk::Step;
use crate::recording::{RecordedCall, Recording};

/// A driver that follows a recording.
#[derive(Clone, Debug)]
pub(super) struct Script<'a> {
    calls: &'a [RecordedCall],
    /// The recorded calls of the request under way.
    window: Range<usize>,
    /// Calls before this one are answered.
    next: usize,
    /// Segments and pages given back during this request.
    given_back: usize,
    /// Whether the request under way failed in the recording.
    fails: bool,
    /// What was asked during this request.
    asked: Vec<DriverEvent>,
    /// What is held, by first address: a damaged recording may give one range twice.
    held: BTreeMap<u64, u64>,
    /// Makes up the addresses of calls that were not recorded.
    beyond: Device,
}

/// Addresses are multiples of this...
const BLOCK: u64 = 512;
/// ...those of reservations of this...
const PAGE: u64 = 2 << 20;
/// ...and none reaches beyond this. Recorded ones that do not keep to it are not handed out.
const LAST_ADDRESS: u64 = 1 << 57;

impl<'a> Script<'a> {
    pub fn new(calls: &'a [RecordedCall]) -> Self {
        let mut beyond = Device::new(None);
        let client = Client {
            kind: plimsoll_timeline::PoolKind::Large,
            pool: plimsoll_timeline::PoolId::DEFAULT,
            stream: 0,
        };
        for call in calls {
            beyond.adopt(client, call.event.address, call.event.size);
        }
        Script {
            calls,
            window: 0..0,
            next: 0,
            given_back: 0,
            fails: false,
            asked: Vec::new(),
            held: BTreeMap::new(),
            beyond,
        }
    }

    /// A request begins: it owns the recorded calls up to a trace event, inclusive.
    fn begin(&mut self, trace_index: u32, fails: bool) {
        let begin = self.window.end;
        let rest = &self.calls[begin..];
        let length = rest.iter().take_while(|call| call.trace_index <= trace_index).count();
        self.window = begin..begin + length;
        self.next = begin;
        self.given_back = 0;
        self.fails = fails;
        self.asked.clear();
    }

    /// The request of a step begins.
    pub fn begin_step(&mut self, recording: &Recording<'_>, step: Step) {
        self.begin(step.trace_index(recording), matches!(step, Step::Failed(_)));
    }

    /// What the recording says of the request, and what was asked for.
    pub fn compare(&self) -> (&'a [RecordedCall], &[DriverEvent]) {
        (&self.calls[self.window.clone()], &self.asked)
    }

    /// The next recorded call that gives memory, or why there is none.
    fn next_given(&self) -> Given {
        let window = &self.calls[self.next..self.window.end];
        let gives =
            |call: DriverCall| matches!(call, DriverCall::SegmentAlloc | DriverCall::SegmentMap);
        match window.iter().position(|call| gives(call.event.call)) {
            // What is given back first is given back because there was nothing to give.
            Some(at) => {
                let at = self.next + at;
                let before = self.calls[self.window.start..at]
                    .iter()
                    .filter(|call| !gives(call.event.call))
                    .count();
                if before > self.given_back { Given::Refused } else { Given::Call(at) }
            }
            None if self.fails => Given::Refused,
            None => {
                let recorded = self.calls[self.window.clone()].iter();
                let frees = recorded.filter(|call| !gives(call.event.call)).count();
                if frees > self.given_back { Given::Refused } else { Given::Nothing }
            }
        }
    }

    /// Whether a recorded range can be handed out.
    fn is_free(&self, address: u64, size: u64, alignment: u64) -> bool {
        let Some(end) = address.checked_add(size).filter(|end| *end <= LAST_ADDRESS) else {
            return false;
        };
        let below = self.held.range(..end).next_back();
        address.is_multiple_of(alignment) && below.is_none_or(|(_, stop)| *stop <= address)
    }

    fn hold(&mut self, address: u64, size: Bytes) {
        self.held.insert(address, address.saturating_add(size.get()));
    }

    fn let_go(&mut self, address: u64, size: Bytes) {
        let end = address.saturating_add(size.get());
        let Some((&start, &stop)) = self.held.range(..=address).next_back() else { return };
        // Pages may be taken out of the middle of a range.
        self.held.remove(&start);
        if start < address {
            self.held.insert(start, address);
        }
        if end < stop {
            self.held.insert(end, stop);
        }
    }

    fn take(&mut self, call: DriverCall, address: Option<u64>, size: Bytes) -> Option<u64> {
        let Given::Call(at) = self.next_given() else { return None };
        let event = self.calls[at].event;
        let same = event.call == call
            && event.size == size
            && address.is_none_or(|address| address == event.address);
        if same {
            self.next = at + 1;
        }
        same.then_some(event.address)
    }
}

enum Given {
    /// Index of the call.
    Call(usize),
    /// The driver had nothing at this moment.
    Refused,
    /// The recording shows no such call.
    Nothing,
}

impl Driver for Script<'_> {
    fn alloc_segment(&mut self, client: Client, size: Bytes) -> Option<u64> {
        if matches!(self.next_given(), Given::Refused) {
            return None;
        }
        let recorded = self.take(DriverCall::SegmentAlloc, None, size);
        let address = match recorded.filter(|at| self.is_free(*at, size.get(), BLOCK)) {
            Some(address) => address,
            None => self.beyond.alloc_segment(client, size)?,
        };
        self.hold(address, size);
        self.asked.push(DriverEvent { call: DriverCall::SegmentAlloc, address, size });
        Some(address)
    }

    fn free_segment(&mut self, _: Client, address: u64, size: Bytes) {
        self.given_back += 1;
        self.let_go(address, size);
        self.asked.push(DriverEvent { call: DriverCall::SegmentFree, address, size });
    }

    fn reserve(&mut self, client: Client, size: Bytes, page: Bytes) -> Option<u64> {
        // The first mapping of a reservation is at its beginning; where the driver refuses now, it comes later.
        let later = self.calls[self.next..].iter();
        let mut maps = later.filter(|call| call.event.call == DriverCall::SegmentMap);
        let first = maps.next().map(|call| call.event.address);
        let usable = |at: &u64| {
            at.checked_add(size.get()).is_some_and(|end| end <= LAST_ADDRESS)
                && self.is_free(*at, PAGE, PAGE)
        };
        first.filter(usable).or_else(|| self.beyond.reserve(client, size, page))
    }

    fn map(&mut self, _: Client, address: u64, size: Bytes) -> bool {
        if matches!(self.next_given(), Given::Refused) {
            return false;
        }
        self.take(DriverCall::SegmentMap, Some(address), size);
        self.hold(address, size);
        self.asked.push(DriverEvent { call: DriverCall::SegmentMap, address, size });
        true
    }

    fn unmap(&mut self, _: Client, address: u64, size: Bytes) {
        self.given_back += 1;
        self.let_go(address, size);
        self.asked.push(DriverEvent { call: DriverCall::SegmentUnmap, address, size });
    }

    fn adopt(&mut self, client: Client, address: u64, size: Bytes) {
        if !size.is_zero() {
            self.hold(address, size);
        }
        self.beyond.adopt(client, address, size);
    }

    fn free_bytes(&self) -> Option<Bytes> {
        None
    }

    fn total_bytes(&self) -> Option<Bytes> {
        None
    }
}
