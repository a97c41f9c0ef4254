//! The allocator of a framework by name and settings, as one text (`jax:preallocate=false,fraction=0.9`), and the
//! replay of a timeline on it: so that a question can be asked for another framework than the one that it was
//! predicted for.

mod replay;
mod text;

use plimsoll_units::Bytes;

use crate::{Backend, BfcConfig, PyTorchSettings};

pub use replay::{DeviceMemory, FrameworkReplay};
pub use text::{ChoiceError, fuzz_choice};

/// A share of a device's memory in millionths, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

impl Share {
    /// Everything.
    pub const ALL: Share = Share(1_000_000);

    /// The share of some bytes, rounded down.
    pub const fn of(self, total: Bytes) -> Bytes {
        total.scale(self.0 as u64, 1_000_000)
    }
}

/// TensorFlow's settings that concern the memory of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorFlow {
    /// `set_memory_growth(True)`, `TF_FORCE_GPU_ALLOW_GROWTH=true`.
    pub allow_growth: bool,
    /// Limit of a logical device.
    pub memory_limit: Option<Bytes>,
    /// `per_process_gpu_memory_fraction`.
    pub fraction: Option<Share>,
    /// `TF_ENABLE_GPU_GARBAGE_COLLECTION`.
    pub garbage_collection: bool,
    /// `TF_GPU_ALLOCATOR=cuda_malloc_async`.
    pub malloc_async: bool,
}

impl Default for TensorFlow {
    fn default() -> Self {
        TensorFlow {
            allow_growth: false,
            memory_limit: None,
            fraction: None,
            garbage_collection: true,
            malloc_async: false,
        }
    }
}

/// Who serves JAX's buffers (`XLA_PYTHON_CLIENT_ALLOCATOR`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JaxAllocator {
    /// The best-fit allocator.
    #[default]
    Bfc,
    /// `platform`: `cudaMalloc` and `cudaFree` per buffer.
    Platform,
    /// `cuda_async`: the driver's pool.
    CudaAsync,
}

/// JAX's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Jax {
    /// `XLA_PYTHON_CLIENT_PREALLOCATE`.
    pub preallocate: bool,
    /// `XLA_CLIENT_MEM_FRACTION`, or the first half of a memory-fraction policy.
    pub fraction: Share,
    /// What the pool may grow to for ordinary buffers, where it was preallocated.
    pub cap: Option<Share>,
    /// Who serves.
    pub allocator: JaxAllocator,
}

impl Default for Jax {
    /// Policy `0.75+`, the newest default: 75 % at the first buffer, then all of the device if need be.
    fn default() -> Self {
        Jax {
            preallocate: true,
            fraction: Share(750_000),
            cap: Some(Share::ALL),
            allocator: JaxAllocator::Bfc,
        }
    }
}

/// Settings of ONNX Runtime's CUDA arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnnxRuntime {
    /// `arena_extend_strategy=kSameAsRequested`.
    pub same_as_requested: bool,
    /// `gpu_mem_limit`.
    pub limit: Option<Bytes>,
    /// `initial_chunk_size_bytes`.
    pub initial_chunk: Option<Bytes>,
    /// `max_dead_bytes_per_chunk`.
    pub max_dead_bytes: Option<Bytes>,
    /// `initial_growth_chunk_size_bytes`.
    pub initial_growth: Option<Bytes>,
    /// `max_power_of_two_extend_bytes`.
    pub max_extension: Option<Bytes>,
}

impl OnnxRuntime {
    fn config(&self) -> BfcConfig {
        let mut config = BfcConfig::onnxruntime(self.same_as_requested);
        config.limit = self.limit;
        config.first_region = self.initial_chunk.unwrap_or(config.first_region);
        config.max_dead_bytes = self.max_dead_bytes.unwrap_or(config.max_dead_bytes);
        config.regrowth = self.initial_growth.or(config.regrowth);
        if let (crate::Growth::Doubling { cap }, Some(_)) = (&mut config.growth, self.max_extension)
        {
            *cap = self.max_extension;
        }
        config
    }
}

/// An allocator and its settings.
///
/// ```
/// use plimsoll_timeline::AllocatorChoice;
/// let jax: AllocatorChoice = "jax:preallocate=false,fraction=0.9".parse()?;
/// assert_eq!(jax.framework(), "JAX");
/// assert_eq!(jax.to_string(), "jax:preallocate=false,fraction=0.9");
/// let torch: AllocatorChoice = "pytorch:expandable_segments:True".parse()?;
/// assert_eq!(torch.framework(), "PyTorch");
/// # Ok::<(), plimsoll_timeline::ChoiceError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AllocatorChoice {
    /// PyTorch, caching allocator or driver's pool.
    PyTorch(Box<PyTorchSettings>),
    /// TensorFlow.
    TensorFlow(TensorFlow),
    /// JAX.
    Jax(Jax),
    /// ONNX Runtime.
    OnnxRuntime(OnnxRuntime),
}

impl Default for AllocatorChoice {
    fn default() -> Self {
        AllocatorChoice::PyTorch(Box::default())
    }
}

impl AllocatorChoice {
    /// The framework's name.
    pub fn framework(&self) -> &'static str {
        match self {
            AllocatorChoice::PyTorch(_) => "PyTorch",
            AllocatorChoice::TensorFlow(_) => "TensorFlow",
            AllocatorChoice::Jax(_) => "JAX",
            AllocatorChoice::OnnxRuntime(_) => "ONNX Runtime",
        }
    }

    /// Whether it is PyTorch's caching allocator with default settings.
    pub fn is_default(&self) -> bool {
        match self {
            AllocatorChoice::PyTorch(s) => {
                let plain = PyTorchSettings::default();
                s.config == plain.config
                    && s.backend == Backend::Native
                    && s.memory_fraction.is_none_or(|f| f >= 1.0)
                    && !s.throw_on_oom
            }
            _ => false,
        }
    }

    /// What it is, in words: allocator and the settings that decide about memory.
    pub fn describe(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        let name = match self {
            AllocatorChoice::PyTorch(s) => {
                let line = s.line().unwrap_or_default();
                words.push(match line.as_str() {
                    "" => "default settings".to_owned(),
                    line => line.to_owned(),
                });
                match s.backend {
                    Backend::Native => "PyTorch's caching allocator",
                    Backend::CudaMallocAsync => "PyTorch on the driver's pool",
                }
            }
            AllocatorChoice::TensorFlow(t) if t.malloc_async => "TensorFlow on the driver's pool",
            AllocatorChoice::TensorFlow(t) => {
                words.push(match t.allow_growth {
                    true => "grows on demand".to_owned(),
                    false => "all memory that it may use from the start".to_owned(),
                });
                if !t.garbage_collection {
                    words.push("unused regions are never given back".to_owned());
                }
                "TensorFlow's BFC allocator"
            }
            AllocatorChoice::Jax(j) => match j.allocator {
                JaxAllocator::Platform => "JAX with cudaMalloc per buffer",
                JaxAllocator::CudaAsync => "JAX on the driver's pool",
                JaxAllocator::Bfc => {
                    let share = text::share_text(j.fraction);
                    words.push(match (j.preallocate, j.cap) {
                        (true, None) => format!("{share} of the device from the start"),
                        (true, Some(cap)) => {
                            let cap = text::share_text(cap);
                            format!("{share} of the device from the start, up to {cap} on demand")
                        }
                        (false, _) => format!("grows on demand up to {share} of the device"),
                    });
                    "JAX's BFC allocator"
                }
            },
            AllocatorChoice::OnnxRuntime(o) => {
                words.push(match o.same_as_requested {
                    true => "regions as requested".to_owned(),
                    false => "regions that double".to_owned(),
                });
                "ONNX Runtime's BFC arena"
            }
        };
        let limit = match self {
            AllocatorChoice::TensorFlow(t) => t.memory_limit,
            AllocatorChoice::OnnxRuntime(o) => o.limit,
            _ => None,
        };
        words.extend(limit.map(|limit| format!("limit {limit}")));
        match words.is_empty() {
            true => name.to_owned(),
            false => format!("{name}, {}", words.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests;
