//! Memory that no allocator of a framework shows: the driver's context with the kernels it loaded, the workspaces
//! of cuBLAS and cuBLASLt, the buffers of NCCL and of the engines. Facts, readings and the fit through them are in
//! `data/context.json` and `data/libraries.json`. Allocator waste is not here; neither is anything a model causes.

use std::sync::OnceLock;

use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::gpus::{Gpu, clip};
use crate::machines::Machine;

/// An amount that is known only within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Span {
    /// The least to expect.
    pub low: Bytes,
    /// The best single figure.
    pub typical: Bytes,
    /// The most to expect.
    pub high: Bytes,
    /// Where it is from.
    pub source: &'static str,
    /// True where no reading stands behind it.
    pub guess: bool,
}

impl Span {
    const NONE: Span = Span {
        low: Bytes::ZERO,
        typical: Bytes::ZERO,
        high: Bytes::ZERO,
        source: "nothing to hold",
        guess: false,
    };
}

/// A name of a runtime that the context table does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a runtime with a known context; known ones are {}", .known.join(", "))]
pub struct UnknownSoftware {
    /// What was asked for.
    pub name: String,
    /// What is known.
    pub known: Vec<String>,
}

#[derive(Deserialize)]
struct ContextFile {
    fit: Fit,
    #[cfg(test)]
    points: Vec<Point>,
    #[cfg(test)]
    held_out: Vec<Point>,
    software: Vec<Software>,
    other_vendors: Vec<Vendor>,
}

#[derive(Deserialize)]
struct Fit {
    base_kib: u64,
    kib_per_sm: u64,
    low_percent: u64,
    high_percent: u64,
    source: String,
}

/// A reading of the context on one card.
#[cfg(test)]
#[derive(Deserialize)]
struct Point {
    gpu: String,
    sms: u64,
    mib: u64,
}

#[derive(Deserialize)]
struct Software {
    id: String,
    names: Vec<String>,
    extra_low_mib: u64,
    extra_typical_mib: u64,
    extra_high_mib: u64,
    source: String,
    #[serde(default)]
    guess: bool,
}

#[derive(Deserialize)]
struct Vendor {
    vendor: String,
    low_mib: u64,
    typical_mib: u64,
    high_mib: u64,
    source: String,
    guess: bool,
}

fn context_file() -> &'static ContextFile {
    static FILE: OnceLock<ContextFile> = OnceLock::new();
    FILE.get_or_init(|| {
        crate::embedded::parse(include_str!("../data/context.json"), "context.json")
    })
}

/// The driver's context and the kernels that `software` loads, for one process on one device of `machine`.
///
/// On NVIDIA it grows with the number of multiprocessors (a least-squares fit over public readings), so a MIG slice
/// has a smaller one. `software` is `torch`, `torch-eager` (before CUDA 11.7), `vllm`, `sglang`, `llama.cpp`,
/// `onnxruntime`, `onnxruntime-eager`, `jax` or `tensorrt`.
///
/// ```
/// use plimsoll_catalog::{machines::parse_machine, overheads::context_bytes};
/// let h100 = parse_machine("h100-80g").unwrap();
/// let context = context_bytes(&h100, "torch").unwrap();
/// assert_eq!(context.typical.to_string(), "524.29 MiB");
/// ```
///
/// # Errors
/// [`UnknownSoftware`] with the known names.
pub fn context_bytes(machine: &Machine, software: &str) -> Result<Span, UnknownSoftware> {
    let file = context_file();
    let wanted = software.trim().to_ascii_lowercase();
    let Some(entry) = file.software.iter().find(|s| s.id == wanted || s.names.contains(&wanted))
    else {
        return Err(UnknownSoftware {
            name: clip(software),
            known: file.software.iter().map(|s| s.id.clone()).collect(),
        });
    };
    let vendor = machine.gpu.map_or("unknown", |gpu| gpu.vendor.as_str());
    let base = match machine.sms() {
        Some(sms) if vendor == "nvidia" => file.fit.span(sms),
        _ => {
            file.other_vendors.iter().find(|v| v.vendor == vendor).map_or(Span::NONE, Vendor::span)
        }
    };
    // A bare capacity or another vendor has its own source; the runtime's share is added to it all the same.
    Ok(Span {
        low: base.low + Bytes::mib(entry.extra_low_mib),
        typical: base.typical + Bytes::mib(entry.extra_typical_mib),
        high: base.high + Bytes::mib(entry.extra_high_mib),
        source: if entry.extra_typical_mib > 0 { &entry.source } else { base.source },
        guess: base.guess || entry.guess,
    })
}

impl Fit {
    fn span(&'static self, sms: u64) -> Span {
        let typical = Bytes::kib(self.base_kib) + Bytes::kib(self.kib_per_sm) * sms;
        Span {
            low: typical.scale(self.low_percent, 100),
            typical,
            high: typical.scale(self.high_percent, 100),
            source: &self.source,
            guess: false,
        }
    }
}

impl Vendor {
    fn span(&'static self) -> Span {
        Span {
            low: Bytes::mib(self.low_mib),
            typical: Bytes::mib(self.typical_mib),
            high: Bytes::mib(self.high_mib),
            source: &self.source,
            guess: self.guess,
        }
    }
}

#[derive(Deserialize)]
struct LibraryFile {
    nccl_channel_kib: u64,
    cublas_workspace: Vec<Workspace>,
    cublaslt_workspace: Vec<Workspace>,
    engine_growth: Vec<EngineRow>,
    engine_start: Vec<EngineRow>,
    nccl_communicator: Vec<CommunicatorRow>,
}

#[derive(Deserialize)]
struct Workspace {
    target_from: String,
    target_below: String,
    bytes: u64,
    source: String,
    #[serde(default)]
    guess: bool,
}

impl Workspace {
    fn span(&'static self) -> Span {
        let bytes = Bytes::new(self.bytes);
        Span { low: bytes, typical: bytes, high: bytes, source: &self.source, guess: self.guess }
    }
}

#[derive(Deserialize)]
struct EngineRow {
    engine: String,
    version_from: String,
    version_below: Option<String>,
    world_from: u64,
    world_below: u64,
    low_mib: u64,
    typical_mib: u64,
    high_mib: u64,
    source: String,
}

#[derive(Deserialize)]
struct CommunicatorRow {
    world_from: u64,
    world_below: u64,
    low_mib: u64,
    typical_mib: u64,
    high_mib: u64,
    source: String,
}

fn library_file() -> &'static LibraryFile {
    static FILE: OnceLock<LibraryFile> = OnceLock::new();
    FILE.get_or_init(|| {
        crate::embedded::parse(include_str!("../data/libraries.json"), "libraries.json")
    })
}

/// The workspace that PyTorch gives each cuBLAS handle and stream, by compute capability x 10. It is an allocation of
/// the caching allocator that lives until the process ends. Without a capability (no known GPU, or another vendor's,
/// whose BLAS library has a workspace as well) that of most NVIDIA devices.
pub fn cublas_workspace(capability: Option<u64>) -> Span {
    let rows = &library_file().cublas_workspace;
    match capability.and_then(|capability| workspace(rows, capability)) {
        Some(row) => row.span(),
        None => rows.first().map_or(Span::NONE, |row| Span { guess: true, ..row.span() }),
    }
}

/// The workspace that PyTorch gives cuBLASLt, used by linear layers with a bias and by scaled products.
pub fn cublaslt_workspace(gpu: &Gpu) -> Span {
    let capability = gpu.target.compute_capability();
    capability
        .map(|(major, minor)| u64::from(major) * 10 + u64::from(minor))
        .and_then(|capability| workspace(&library_file().cublaslt_workspace, capability))
        .map_or(Span::NONE, Workspace::span)
}

fn workspace(rows: &'static [Workspace], capability: u64) -> Option<&'static Workspace> {
    let sm = |text: &str| text.strip_prefix("sm_").and_then(|digits| digits.parse::<u64>().ok());
    rows.iter().find(|row| {
        sm(&row.target_from).is_some_and(|from| capability >= from)
            && sm(&row.target_below).is_some_and(|below| capability < below)
    })
}

/// Buffers of one NCCL communicator over `world` ranks, per rank. A job with tensor, data and pipeline groups has
/// one for each; they are outside the caching allocator.
pub fn communicator_bytes(world: u64) -> Span {
    library_file()
        .nccl_communicator
        .iter()
        .find(|row| (row.world_from..row.world_below).contains(&world))
        .map_or(Span::NONE, |row| Span {
            low: Bytes::mib(row.low_mib),
            typical: Bytes::mib(row.typical_mib),
            high: Bytes::mib(row.high_mib),
            source: &row.source,
            guess: false,
        })
}

/// The buffer that NCCL holds per channel and connection (`NCCL_BUFFSIZE`).
pub fn nccl_channel_bytes() -> Bytes {
    Bytes::kib(library_file().nccl_channel_kib)
}

/// What an engine of that version lets grow outside its allocator while it profiles (vLLM prints it as non-torch
/// memory), for `world` ranks. `None` where nothing is known. A version is `0.19.0`, `0.8.x`, `v0.11`; an absent or
/// unreadable one counts as the newest.
pub fn engine_growth(engine: &str, version: Option<&str>, world: u64) -> Option<Span> {
    engine_row(&library_file().engine_growth, engine, version, world)
}

/// What an engine with several ranks already uses when its worker starts, beyond one context: its communicators.
pub fn engine_start(engine: &str, version: Option<&str>, world: u64) -> Option<Span> {
    engine_row(&library_file().engine_start, engine, version, world)
}

fn engine_row(
    rows: &'static [EngineRow],
    engine: &str,
    version: Option<&str>,
    world: u64,
) -> Option<Span> {
    const NEWEST: (u64, u64) = (u64::MAX, u64::MAX);
    let version = version.and_then(major_minor).unwrap_or(NEWEST);
    let bound = |text: &str| major_minor(text).unwrap_or_default();
    rows.iter()
        .find(|row| {
            row.engine.eq_ignore_ascii_case(engine.trim())
                && version >= bound(&row.version_from)
                && row.version_below.as_deref().is_none_or(|below| version < bound(below))
                && (row.world_from..row.world_below).contains(&world)
        })
        .map(|row| Span {
            low: Bytes::mib(row.low_mib),
            typical: Bytes::mib(row.typical_mib),
            high: Bytes::mib(row.high_mib),
            source: &row.source,
            guess: false,
        })
}

/// The first two numbers of a version; a missing second one is zero.
fn major_minor(version: &str) -> Option<(u64, u64)> {
    let version = version.trim().trim_start_matches(['v', 'V']);
    let mut numbers = version.split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse::<u64>().ok()
    });
    let major = numbers.next()??;
    Some((major, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
#[path = "overheads_tests.rs"]
mod tests;
