//! What the allocator asks of the driver: segments, address reservations, pages. The default [`Device`] makes
//! addresses up and counts bytes; [`RecordedDriver`] hands out the addresses of a recording; [`DriverLog`] notes
//! what was asked of any other one. A driver is a type parameter, so an unused one costs nothing.

use plimsoll_units::Bytes;

use super::PoolKind;
use super::config::LARGE_ROUNDING;
use crate::PoolId;

/// Where made-up addresses begin: where drivers begin, more or less.
const FIRST_ADDRESS: u64 = 0x7000_0000_0000;
/// Where addresses end; an entry of the free lists holds no more.
pub(super) const LAST_ADDRESS: u64 = 1 << 57;

/// For whom the driver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Small or large requests.
    pub kind: PoolKind,
    /// Memory pool.
    pub pool: PoolId,
    /// Stream.
    pub stream: u16,
}

/// The driver of one device. Addresses are multiples of 512 below 2^57; ranges never overlap while they are held.
pub trait Driver {
    /// A new segment (`cudaMalloc`): its address, or `None` when the device has no room for it.
    fn alloc_segment(&mut self, client: Client, size: Bytes) -> Option<u64>;

    /// Takes a segment back (`cudaFree`).
    fn free_segment(&mut self, client: Client, address: u64, size: Bytes);

    /// An address range for an expandable segment (`cuMemAddressReserve`), without memory behind it.
    fn reserve(&mut self, client: Client, size: Bytes, page: Bytes) -> Option<u64>;

    /// Puts memory behind pages of a reservation; whether there was enough.
    fn map(&mut self, client: Client, address: u64, size: Bytes) -> bool;

    /// Takes the memory behind pages back.
    fn unmap(&mut self, client: Client, address: u64, size: Bytes);

    /// Takes an address range back.
    fn release(&mut self, _client: Client, _address: u64, _size: Bytes) {}

    /// A range that was held before the replay began.
    fn adopt(&mut self, _client: Client, _address: u64, _size: Bytes) {}

    /// What it still has to give (`cudaMemGetInfo`); `None` for as much as is asked for.
    fn free_bytes(&self) -> Option<Bytes>;

    /// What it has in all; sets the length of address reservations. `None` where that is not known.
    fn total_bytes(&self) -> Option<Bytes>;
}

/// A device that makes addresses up: they grow, none is used twice, and they are the same in every run.
#[derive(Clone, Debug)]
pub struct Device {
    capacity: Option<Bytes>,
    used: u64,
    next_address: u64,
}

impl Device {
    /// A device with that many bytes to give; `None` for as many as are asked for.
    pub const fn new(capacity: Option<Bytes>) -> Self {
        Device { capacity, used: 0, next_address: FIRST_ADDRESS }
    }

    fn take_addresses(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let address = self.next_address.checked_next_multiple_of(alignment)?;
        let end = address.checked_add(size).filter(|end| *end <= LAST_ADDRESS)?;
        self.next_address = end.next_multiple_of(LARGE_ROUNDING);
        Some(address)
    }

    /// The bytes in use if `size` more fit.
    fn after(&self, size: Bytes) -> Option<u64> {
        let after = self.used.checked_add(size.get())?;
        self.capacity.is_none_or(|capacity| after <= capacity.get()).then_some(after)
    }
}

impl Driver for Device {
    fn alloc_segment(&mut self, _: Client, size: Bytes) -> Option<u64> {
        let after = self.after(size)?;
        let address = self.take_addresses(size.get(), LARGE_ROUNDING)?;
        self.used = after;
        Some(address)
    }

    fn free_segment(&mut self, _: Client, _: u64, size: Bytes) {
        self.used = self.used.saturating_sub(size.get());
    }

    fn reserve(&mut self, _: Client, size: Bytes, page: Bytes) -> Option<u64> {
        self.take_addresses(size.get(), page.get().max(LARGE_ROUNDING))
    }

    fn map(&mut self, _: Client, _: u64, size: Bytes) -> bool {
        match self.after(size) {
            Some(after) => {
                self.used = after;
                true
            }
            None => false,
        }
    }

    fn unmap(&mut self, _: Client, _: u64, size: Bytes) {
        self.used = self.used.saturating_sub(size.get());
    }

    fn adopt(&mut self, _: Client, address: u64, size: Bytes) {
        self.used = self.used.saturating_add(size.get());
        let end = address.saturating_add(size.get()).min(LAST_ADDRESS);
        self.next_address = self.next_address.max(end.next_multiple_of(LARGE_ROUNDING));
    }

    fn free_bytes(&self) -> Option<Bytes> {
        self.capacity.map(|capacity| capacity.saturating_sub(Bytes::new(self.used)))
    }

    fn total_bytes(&self) -> Option<Bytes> {
        self.capacity
    }
}

/// What the driver was asked for and answered, as a snapshot's trace writes it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverEvent {
    /// What.
    pub call: DriverCall,
    /// First address of the range; 0 where the driver refused.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
}

/// A call that moves memory. Reservations of addresses are no events in torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverCall {
    /// `segment_alloc`.
    SegmentAlloc,
    /// `segment_free`.
    SegmentFree,
    /// `segment_map`.
    SegmentMap,
    /// `segment_unmap`.
    SegmentUnmap,
    /// A segment or pages that the driver did not have; torch writes nothing, but what follows shows it.
    Refused,
}

/// Notes what is asked of another driver, in order.
///
/// ```
/// use plimsoll_timeline::{Device, DriverCall, DriverLog, PyTorchAllocator, PyTorchConfig};
/// use plimsoll_units::Bytes;
/// let driver = DriverLog::new(Device::new(None));
/// let mut torch = PyTorchAllocator::with_driver(PyTorchConfig::default(), driver);
/// torch.malloc(Bytes::mib(3), 0)?;
/// let log: Vec<_> = torch.driver_mut().drain().collect();
/// assert_eq!((log[0].call, log[0].size), (DriverCall::SegmentAlloc, Bytes::mib(20)));
/// # Ok::<(), plimsoll_timeline::OutOfMemory>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DriverLog<D> {
    driver: D,
    events: Vec<DriverEvent>,
}

impl<D: Driver> DriverLog<D> {
    /// Notes what is asked of `driver`.
    pub const fn new(driver: D) -> Self {
        DriverLog { driver, events: Vec::new() }
    }

    /// What was asked since the last call, in order. Drain it after every request to keep it small.
    pub fn drain(&mut self) -> impl Iterator<Item = DriverEvent> {
        self.events.drain(..)
    }

    /// What was asked and not drained.
    pub fn events(&self) -> &[DriverEvent] {
        &self.events
    }

    /// The driver that answers.
    pub fn inner(&self) -> &D {
        &self.driver
    }

    /// The driver that answers.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    fn note(&mut self, call: DriverCall, address: u64, size: Bytes) {
        self.events.push(DriverEvent { call, address, size });
    }
}

impl<D: Driver> Driver for DriverLog<D> {
    fn alloc_segment(&mut self, client: Client, size: Bytes) -> Option<u64> {
        let address = self.driver.alloc_segment(client, size);
        match address {
            Some(address) => self.note(DriverCall::SegmentAlloc, address, size),
            None => self.note(DriverCall::Refused, 0, size),
        }
        address
    }

    fn free_segment(&mut self, client: Client, address: u64, size: Bytes) {
        self.note(DriverCall::SegmentFree, address, size);
        self.driver.free_segment(client, address, size);
    }

    fn reserve(&mut self, client: Client, size: Bytes, page: Bytes) -> Option<u64> {
        self.driver.reserve(client, size, page)
    }

    fn map(&mut self, client: Client, address: u64, size: Bytes) -> bool {
        let mapped = self.driver.map(client, address, size);
        match mapped {
            true => self.note(DriverCall::SegmentMap, address, size),
            false => self.note(DriverCall::Refused, 0, size),
        }
        mapped
    }

    fn unmap(&mut self, client: Client, address: u64, size: Bytes) {
        self.note(DriverCall::SegmentUnmap, address, size);
        self.driver.unmap(client, address, size);
    }

    fn release(&mut self, client: Client, address: u64, size: Bytes) {
        self.driver.release(client, address, size);
    }

    fn adopt(&mut self, client: Client, address: u64, size: Bytes) {
        self.driver.adopt(client, address, size);
    }

    fn free_bytes(&self) -> Option<Bytes> {
        self.driver.free_bytes()
    }

    fn total_bytes(&self) -> Option<Bytes> {
        self.driver.total_bytes()
    }
}

/// Hands out the addresses of a recording in recorded order. Where a request departs from the recording (another
/// size, another kind of call, nothing recorded any more) the address is made up, above every recorded one, and
/// counted as a departure.
#[derive(Clone, Debug)]
pub struct RecordedDriver {
    events: Vec<DriverEvent>,
    next: usize,
    end: usize,
    departures: u64,
    beyond: Device,
    total: Option<Bytes>,
}

impl RecordedDriver {
    /// A driver that answers as the recorded calls say. [`DriverCall::SegmentFree`] and
    /// [`DriverCall::SegmentUnmap`] are answers too: the call of the same address takes them off the list.
    /// `total` is the device's memory, where it is known.
    pub fn new(events: Vec<DriverEvent>, total: Option<Bytes>) -> Self {
        let mut beyond = Device::new(None);
        let client = Client { kind: PoolKind::Small, pool: PoolId::DEFAULT, stream: 0 };
        for event in &events {
            beyond.adopt(client, event.address.min(LAST_ADDRESS), event.size);
        }
        let end = events.len();
        RecordedDriver { events, next: 0, end, departures: 0, beyond, total }
    }

    /// Only the recorded calls before index `end` may be handed out from now on. What was recorded before `begin`
    /// and not asked for counts as departed. Without a window every recorded call may be handed out in order.
    pub fn window(&mut self, begin: usize, end: usize) {
        if begin > self.next {
            self.departures += (begin - self.next) as u64;
            self.next = begin.min(self.events.len());
        }
        self.end = end.min(self.events.len());
    }

    /// Index of the recorded call that comes next.
    pub const fn position(&self) -> usize {
        self.next
    }

    /// Calls that were not made as recorded, so far.
    pub const fn departures(&self) -> u64 {
        self.departures
    }

    fn peek(&self) -> Option<&DriverEvent> {
        self.events[..self.end].get(self.next)
    }

    /// The next recorded call if it is this one.
    fn take(&mut self, call: DriverCall, address: Option<u64>, size: Bytes) -> Option<u64> {
        let same = self.peek().filter(|event| {
            event.call == call && event.size == size && address.is_none_or(|at| at == event.address)
        });
        match same {
            Some(event) => {
                let address = event.address;
                self.next += 1;
                Some(address)
            }
            None => {
                self.departures += 1;
                None
            }
        }
    }

    /// Whether the driver refused at this point of the recording.
    fn refused(&mut self) -> bool {
        let refused = self.peek().is_some_and(|event| event.call == DriverCall::Refused);
        self.next += usize::from(refused);
        refused
    }
}

impl Driver for RecordedDriver {
    fn alloc_segment(&mut self, client: Client, size: Bytes) -> Option<u64> {
        if self.refused() {
            return None;
        }
        let recorded = self.take(DriverCall::SegmentAlloc, None, size);
        recorded.or_else(|| self.beyond.alloc_segment(client, size))
    }

    fn free_segment(&mut self, _: Client, address: u64, size: Bytes) {
        self.take(DriverCall::SegmentFree, Some(address), size);
    }

    fn reserve(&mut self, client: Client, size: Bytes, page: Bytes) -> Option<u64> {
        // The first mapping of a reservation is at its beginning.
        let first = self.peek().filter(|e| e.call == DriverCall::SegmentMap).map(|e| e.address);
        first.or_else(|| self.beyond.reserve(client, size, page))
    }

    fn map(&mut self, _: Client, address: u64, size: Bytes) -> bool {
        if self.refused() {
            return false;
        }
        self.take(DriverCall::SegmentMap, Some(address), size);
        true
    }

    fn unmap(&mut self, _: Client, address: u64, size: Bytes) {
        self.take(DriverCall::SegmentUnmap, Some(address), size);
    }

    fn adopt(&mut self, client: Client, address: u64, size: Bytes) {
        self.beyond.adopt(client, address, size);
    }

    fn free_bytes(&self) -> Option<Bytes> {
        None
    }

    fn total_bytes(&self) -> Option<Bytes> {
        self.total
    }
}
