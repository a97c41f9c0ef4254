//! What an estimate needs to know of the machine: plain numbers that the facade looks up in the catalogue.

use plimsoll_units::Bytes;

/// One device and how many of its kind there are.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// For texts: `NVIDIA H100 80GB`.
    pub name: String,
    /// Bytes that frameworks see in total (`cudaMemGetInfo`), per device.
    pub usable: Bytes,
    /// Bytes that are free when the program starts, where other processes hold the rest.
    pub free: Option<Bytes>,
    /// Devices.
    pub count: u64,
    /// CUDA compute capability.
    pub compute_capability: Option<(u64, u64)>,
    /// CPU and GPU share the memory.
    pub unified: bool,
    /// Context, loaded kernels and libraries of the software in question, outside the framework's allocator.
    pub context: Spread,
}

/// A measured quantity with its 90 % range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Lower end.
    pub low: Bytes,
    /// Usual value.
    pub typical: Bytes,
    /// Upper end.
    pub high: Bytes,
    /// Where it comes from.
    pub source: String,
}

impl Device {
    /// Bytes that a program may fill: what is free, or all that is usable.
    pub fn capacity(&self) -> Bytes {
        self.free.unwrap_or(self.usable).min(self.usable)
    }

    /// The cuBLAS workspace that torch allocates at the first product and keeps.
    pub(crate) fn cublas_workspace(&self) -> Bytes {
        let capability = self.compute_capability.map(|(major, minor)| major * 10 + minor);
        plimsoll_catalog::overheads::cublas_workspace(capability).typical
    }
}
