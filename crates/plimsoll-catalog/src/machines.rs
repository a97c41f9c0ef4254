//! What `--gpu` means: which GPU, or which slice of one, or a bare capacity; how many; and how much is free.
//! Knows nothing of models. Context and library memory are taken out later: see [`crate::overheads`].

use plimsoll_units::{Bytes, DType};
use serde::Serialize;

use crate::gpus::{self, Basis, Gpu, LacksDType, MigProfile, UnknownGpu, clip};

/// One or more equal devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// The GPU; `None` for a bare capacity, which has no compute facts.
    pub gpu: Option<&'static Gpu>,
    /// The MIG slice of the GPU that is used, where it is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<&'static MigProfile>,
    /// How many devices (or slices).
    pub count: u64,
    /// What a framework can use of one device: its typical total, before any context.
    pub usable: Bytes,
    /// The lowest total that was seen; equal to `usable` for a bare capacity.
    pub usable_low: Bytes,
    /// The highest total that was seen.
    pub usable_high: Bytes,
    /// What is free on one device when others use it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<Bytes>,
    /// What had to be assumed, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
}

/// Why a text is not a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// Nothing was given.
    #[error(
        "the GPU is empty; write a name such as h100-80g, `h100-80g*8`, or a capacity such as 24GiB"
    )]
    Empty,
    /// No GPU has the name, and it is not a capacity either.
    #[error(transparent)]
    Unknown(#[from] UnknownGpu),
    /// A number without a unit.
    #[error("`{text}` has no unit; write {text}GiB for a capacity, or a GPU such as h100-80g")]
    NoUnit {
        /// What was given.
        text: String,
    },
    /// A size that is not one.
    #[error("capacity of one GPU: {0}")]
    Size(#[from] plimsoll_units::ParseBytesError),
    /// A capacity outside what a device can have.
    #[error(
        "a GPU with {text} is not accepted; one device has between {MIN_CAPACITY} and {MAX_CAPACITY}"
    )]
    Capacity {
        /// What was given.
        text: String,
    },
    /// A count outside the accepted range, or not a number.
    #[error("`{text}` is not a number of GPUs; write 1 to {MAX_COUNT}, such as h100-80g*8")]
    Count {
        /// What was given.
        text: String,
    },
    /// Several kinds of GPU at once.
    #[error(
        "`{text}` mixes GPUs; an estimate is for equal devices: give the smallest one and the count"
    )]
    Mixed {
        /// What was given.
        text: String,
    },
    /// The GPU cannot be cut at all.
    #[error("{gpu} has no MIG slices; leave out `:{profile}`")]
    NoMig {
        /// The GPU, or the capacity.
        gpu: String,
        /// The profile asked for.
        profile: String,
    },
    /// The GPU has no such slice.
    #[error("{gpu} has no MIG profile `{profile}`; it has {}", .known.join(", "))]
    UnknownProfile {
        /// The GPU's id.
        gpu: String,
        /// The profile asked for.
        profile: String,
        /// What it has.
        known: Vec<String>,
    },
    /// More free memory than the device has.
    #[error("free memory of {free} is not possible on {machine}: it has {usable}")]
    Free {
        /// What was given.
        free: Bytes,
        /// The device.
        machine: String,
        /// What it has.
        usable: Bytes,
    },
    /// No free memory at all.
    #[error("free memory is zero; give what `nvidia-smi` shows as free, such as 19GiB")]
    NoFree,
}

/// The largest number of devices that is accepted.
pub const MAX_COUNT: u64 = 1_000_000;
/// The smallest capacity that is accepted for one device.
pub const MIN_CAPACITY: Bytes = Bytes::mib(64);
/// The largest capacity that is accepted for one device.
pub const MAX_CAPACITY: Bytes = Bytes::gib(64 * 1024);

/// Reads `h100-80g`, `h100-80g*8`, `2x NVIDIA GeForce RTX 3090`, `a100-80g:3g.40gb*2` (the `mig-` before a profile
/// may stand or not), `NVIDIA A100 80GB PCIe MIG 1g.10gb`, or a capacity such as `23.6GiB` or `80GB*4`.
///
/// ```
/// use plimsoll_catalog::machines::parse_machine;
/// let node = parse_machine("h100-80g*8").unwrap();
/// assert_eq!((node.count, node.label().as_str()), (8, "h100-80g*8"));
/// assert!(node.usable < node.gpu.unwrap().printed);
/// assert!(parse_machine("23.6GiB").unwrap().gpu.is_none());
/// ```
///
/// # Errors
/// [`MachineError`], which names the part that is wrong and what is accepted.
pub fn parse_machine(text: &str) -> Result<Machine, MachineError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(MachineError::Empty);
    }
    if text.contains(" + ") {
        return Err(MachineError::Mixed { text: clip(text) });
    }
    // A name may itself look like a product (`MI300X 8`?), so the whole text is tried before it is taken apart.
    // A star is in no name.
    if !text.contains('*')
        && let Some(found) = gpus::recognize(text)
    {
        return Ok(Machine::whole(found.gpu, 1, found.assumption));
    }
    let (body, count) = split_count(text)?;
    let (name, profile) = split_profile(body);
    match gpus::recognize(name) {
        Some(found) => match profile {
            None => Ok(Machine::whole(found.gpu, count, found.assumption)),
            Some(profile) => Machine::cut(found.gpu, profile, count, found.assumption),
        },
        None => match (capacity(name)?, profile) {
            (Some(size), None) => Ok(Machine::bare(size, count)),
            (Some(size), Some(profile)) => {
                Err(MachineError::NoMig { gpu: size.exact(), profile: clip(profile) })
            }
            (None, _) => Err(UnknownGpu::new(name).into()),
        },
    }
}

/// The text without its count, and the count: `8x NAME`, `NAME*8`, `NAME x8`, `NAME x 8`, and `NAMEx8` where no GPU
/// has the whole as its name.
fn split_count(text: &str) -> Result<(&str, u64), MachineError> {
    let times = |c: char| matches!(c, 'x' | 'X' | '*' | '\u{d7}');
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if digits > 0
        && let Some(rest) = text[digits..].trim_start().strip_prefix(times)
        && !rest.trim().is_empty()
    {
        return Ok((rest.trim(), count(&text[..digits])?));
    }
    if let Some((name, number)) = text.rsplit_once(['*', '\u{d7}']) {
        return Ok((name.trim(), count(number.trim())?));
    }
    if let Some((name, number)) = text.rsplit_once(['x', 'X'])
        && !name.trim().is_empty()
        && !number.trim().is_empty()
        && number.trim().bytes().all(|b| b.is_ascii_digit())
    {
        return Ok((name.trim(), count(number.trim())?));
    }
    Ok((text, 1))
}

fn count(text: &str) -> Result<u64, MachineError> {
    match text.parse::<u64>() {
        Ok(n) if (1..=MAX_COUNT).contains(&n) => Ok(n),
        _ => Err(MachineError::Count { text: clip(text) }),
    }
}

/// `NAME:mig-3g.40gb`, `NAME:3g.40gb` or torch's `NAME MIG 3g.40gb`.
fn split_profile(text: &str) -> (&str, Option<&str>) {
    if let Some((name, profile)) = text.split_once(':') {
        return (name.trim(), Some(profile.trim()));
    }
    match text.find(" MIG ") {
        Some(at) => (text[..at].trim(), Some(text[at + " MIG ".len()..].trim())),
        None => (text, None),
    }
}

/// The size, where the text begins like one; `None` where it is no size at all.
fn capacity(text: &str) -> Result<Option<Bytes>, MachineError> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Ok(None);
    }
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    match text.parse::<Bytes>() {
        Ok(_) if !has_unit => Err(MachineError::NoUnit { text: clip(text) }),
        Ok(size) if (MIN_CAPACITY..=MAX_CAPACITY).contains(&size) => Ok(Some(size)),
        Ok(_) => Err(MachineError::Capacity { text: clip(text) }),
        // `3g.40gb` or `4090ti-x` begin with a digit but were meant as names: let the name's error speak.
        Err(_) if !looks_like_size(text) => Ok(None),
        Err(error) => Err(plimsoll_units::ParseBytesError { text: clip(text), ..error }.into()),
    }
}

/// A number followed by at most one short word.
fn looks_like_size(text: &str) -> bool {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '_'));
    let word = rest.trim();
    word.len() <= 5
        && word.bytes().all(|b| b.is_ascii_alphabetic())
        && word.to_ascii_lowercase().ends_with('b')
}

impl Machine {
    /// `count` whole GPUs.
    fn whole(gpu: &'static Gpu, count: u64, assumption: Option<String>) -> Self {
        Machine {
            gpu: Some(gpu),
            slice: None,
            count,
            usable: gpu.usable.typical,
            usable_low: gpu.usable.low,
            usable_high: gpu.usable.high,
            free: None,
            assumptions: assumption.into_iter().chain(usable_remark(gpu)).collect(),
        }
    }

    /// `count` devices of a capacity, about which nothing else is known.
    pub fn bare(capacity: Bytes, count: u64) -> Self {
        Machine {
            gpu: None,
            slice: None,
            count,
            usable: capacity,
            usable_low: capacity,
            usable_high: capacity,
            free: None,
            assumptions: Vec::new(),
        }
    }

    fn cut(
        gpu: &'static Gpu,
        profile: &str,
        count: u64,
        assumption: Option<String>,
    ) -> Result<Self, MachineError> {
        let profiles = gpu.mig_profiles();
        if profiles.is_empty() {
            return Err(MachineError::NoMig { gpu: gpu.id.clone(), profile: clip(profile) });
        }
        let lower = profile.to_ascii_lowercase();
        let wanted = lower.strip_prefix("mig-").unwrap_or(&lower);
        // The media engines that +me adds change nothing about memory.
        let wanted = wanted.strip_suffix("+me").or(wanted.strip_suffix(".me")).unwrap_or(wanted);
        let slice = profiles
            .iter()
            .find(|p| p.name == wanted || p.aliases.iter().any(|alias| alias == wanted))
            .ok_or_else(|| MachineError::UnknownProfile {
                gpu: gpu.id.clone(),
                profile: clip(profile),
                known: profiles.iter().map(|p| p.name.clone()).collect(),
            })?;
        let derived = slice.derived.then(|| {
            format!(
                "no print-out of {} on {} was found; its memory is taken as a fraction of the GPU",
                slice.name, gpu.id
            )
        });
        Ok(Machine {
            gpu: Some(gpu),
            slice: Some(slice),
            count,
            usable: Bytes::mib(slice.typical_mib),
            usable_low: Bytes::mib(slice.low_mib),
            usable_high: Bytes::mib(slice.typical_mib),
            free: None,
            assumptions: assumption.into_iter().chain(derived).collect(),
        })
    }

    /// The same machine with only `free` bytes of each device available: other processes hold the rest.
    ///
    /// # Errors
    /// [`MachineError::NoFree`] for zero, [`MachineError::Free`] for more than the device was ever seen to have.
    pub fn with_free(self, free: Bytes) -> Result<Self, MachineError> {
        if free.is_zero() {
            return Err(MachineError::NoFree);
        }
        if free > self.usable_high {
            return Err(MachineError::Free {
                free,
                machine: self.label(),
                usable: self.usable_high,
            });
        }
        Ok(Machine { free: Some(free), ..self })
    }

    /// The same machine with a total that was read on it, in place of the catalogue's: what `torch.cuda.mem_get_info`
    /// gave, or a log printed.
    ///
    /// # Errors
    /// [`MachineError::Capacity`] outside what one device can have.
    pub fn with_usable(self, usable: Bytes) -> Result<Self, MachineError> {
        if !(MIN_CAPACITY..=MAX_CAPACITY).contains(&usable) {
            return Err(MachineError::Capacity { text: usable.to_string() });
        }
        Ok(Machine {
            usable,
            usable_low: usable,
            usable_high: usable,
            free: self.free.map(|free| free.min(usable)),
            assumptions: Vec::new(),
            ..self
        })
    }

    /// What one device offers now: the free bytes where they are known, its usable bytes otherwise.
    pub fn budget(&self) -> Bytes {
        self.free.unwrap_or(self.usable)
    }

    /// `h100-80g*8`, `a100-80g:3g.40gb`, `23.6 GiB`: a text that [`parse_machine`] reads back.
    pub fn label(&self) -> String {
        let device = match (self.gpu, self.slice) {
            (Some(gpu), Some(slice)) => format!("{}:{}", gpu.id, slice.name),
            (Some(gpu), None) => gpu.id.clone(),
            (None, _) => format!("{}B", self.usable.get()),
        };
        if self.count == 1 { device } else { format!("{device}*{}", self.count) }
    }

    /// The name for reports: the driver's, with the slice, or the capacity.
    pub fn device_name(&self) -> String {
        match (self.gpu, self.slice) {
            (Some(gpu), Some(slice)) => format!("{} MIG {}", gpu.name, slice.name),
            (Some(gpu), None) => gpu.name.clone(),
            (None, _) => format!("a GPU with {}", self.usable),
        }
    }

    /// CUDA compute capability as (major, minor), where it is an NVIDIA device.
    pub fn compute_capability(&self) -> Option<(u64, u64)> {
        let (major, minor) = self.gpu?.target.compute_capability()?;
        Some((major.into(), minor.into()))
    }

    /// Whether the operating system shares the memory.
    pub fn is_unified(&self) -> bool {
        self.gpu.is_some_and(|gpu| gpu.unified)
    }

    /// Whether the devices can read each other's memory. MIG slices cannot, so nothing shards across them.
    pub fn peer_to_peer(&self) -> bool {
        self.slice.is_none()
    }

    /// Streaming multiprocessors of one device or slice.
    pub fn sms(&self) -> Option<u64> {
        self.slice.map(|slice| slice.sms).or_else(|| self.gpu?.sms)
    }

    /// Memory bandwidth of one device or slice in GB/s.
    pub fn bandwidth_gbps(&self) -> Option<u64> {
        let gpu = self.gpu?;
        let Some(slice) = self.slice else { return Some(gpu.bandwidth_gbps) };
        let slices = gpu.mig.as_deref().and_then(gpus::mig_memory_slices)?;
        Some(gpu.bandwidth_gbps * slice.memory_slices / slices)
    }

    /// Dense peak of one device or slice in GFLOP/s for arithmetic in `dtype`.
    pub fn peak_gflops(&self, dtype: DType) -> Option<u64> {
        let gpu = self.gpu?;
        let peak = gpu.peak(dtype)?;
        match (self.slice, gpu.sms) {
            (Some(slice), Some(sms)) if sms > 0 => Some(peak * slice.sms / sms),
            _ => Some(peak),
        }
    }

    /// Whether arithmetic in `dtype` runs in hardware; a bare capacity is believed.
    ///
    /// # Errors
    /// [`LacksDType`] with the reason and the nearest precision that the GPU has.
    pub fn check_dtype(&self, dtype: DType) -> Result<(), LacksDType> {
        self.gpu.map_or(Ok(()), |gpu| gpu.check_dtype(dtype))
    }
}

/// What to say when the usable bytes come from a rule, or are shared with the system.
fn usable_remark(gpu: &Gpu) -> Option<String> {
    if gpu.unified {
        return Some(format!(
            "{} shares its memory with the system; give what is free with --free",
            gpu.id
        ));
    }
    let how = match gpu.usable.basis {
        Basis::Derived => "derived from the printed total by a rule",
        Basis::Recalled => "general knowledge",
        _ => return None,
    };
    let (low, high) = (gpu.usable.low, gpu.usable.high);
    Some(format!("usable memory of {} is {how} ({low} to {high}), not measured", gpu.id))
}

#[cfg(test)]
#[path = "machines_tests.rs"]
mod tests;
