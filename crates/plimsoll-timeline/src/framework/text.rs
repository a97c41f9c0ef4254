//! The text of a choice: `NAME`, or `NAME:SETTING,SETTING=VALUE`. PyTorch's settings are its environment's.

use std::fmt;
use std::str::FromStr;

use plimsoll_units::Bytes;

use super::{AllocatorChoice, Jax, JaxAllocator, OnnxRuntime, Share, TensorFlow};
use crate::{Backend, PyTorchSettings, SettingError};

/// The longest text that is read.
const MAX_TEXT: usize = 64 << 10;

/// The names that a choice may begin with.
const NAMES: &str = "pytorch, cuda-malloc-async, tensorflow, jax, onnxruntime";
const TENSORFLOW: &str =
    "allow_growth, memory_limit=SIZE, fraction=F, garbage_collection=false, cuda_malloc_async";
const JAX: &str = "preallocate=false, fraction=F, F+ or F-G, platform, cuda_async";
const ONNX: &str = "same-as-requested, next-power-of-two, gpu_mem_limit=SIZE, initial_chunk=SIZE, \
                    max_dead_bytes=SIZE, initial_growth=SIZE, max_extension=SIZE";

/// A text that is no choice of an allocator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// No such allocator.
    #[error("`{0}` is not a known allocator; accepted: {NAMES}")]
    Name(String),
    /// The framework has no such setting.
    #[error("{framework} has no setting `{setting}`; accepted: {accepted}")]
    Setting {
        /// The framework.
        framework: &'static str,
        /// As given.
        setting: String,
        /// What there is.
        accepted: &'static str,
    },
    /// The setting does not take the value.
    #[error("{setting} is `{value}`, but it must be {accepted}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// As given.
        value: String,
        /// What it takes.
        accepted: &'static str,
    },
    /// Settings of PyTorch.
    #[error(transparent)]
    PyTorch(#[from] SettingError),
    /// The text is too long to be a choice.
    #[error("the text has {0} characters; more than {MAX_TEXT} are not read")]
    TooLong(usize),
}

impl FromStr for AllocatorChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        if text.len() > MAX_TEXT {
            return Err(ChoiceError::TooLong(text.len()));
        }
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "pytorch" | "torch" => Ok(AllocatorChoice::PyTorch(Box::new(settings.parse()?))),
            "cuda-malloc-async" | "cudamallocasync" | "cuda_malloc_async" => {
                let mut torch: PyTorchSettings = settings.parse()?;
                torch.set("backend=cudaMallocAsync")?;
                Ok(AllocatorChoice::PyTorch(Box::new(torch)))
            }
            "tensorflow" | "tf" => tensorflow(settings).map(AllocatorChoice::TensorFlow),
            "jax" | "xla" => jax(settings).map(AllocatorChoice::Jax),
            "onnxruntime" | "onnx" | "ort" => {
                onnxruntime(settings).map(AllocatorChoice::OnnxRuntime)
            }
            other => Err(ChoiceError::Name(shortened(other))),
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Settings of a text as key and value; a setting without a value is empty.
fn pairs(text: &str) -> impl Iterator<Item = (String, &str)> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| {
        let (key, value) = part.split_once(['=', ':']).unwrap_or((part, ""));
        (key.trim().to_ascii_lowercase().replace('-', "_"), value.trim())
    })
}

fn flag(setting: &'static str, value: &str) -> Result<bool, ChoiceError> {
    match value.to_ascii_lowercase().as_str() {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => {
            Err(ChoiceError::Value { setting, value: shortened(value), accepted: "true or false" })
        }
    }
}

fn size(setting: &'static str, value: &str) -> Result<Bytes, ChoiceError> {
    let accepted = "a size such as 8GiB";
    let wrong = || ChoiceError::Value { setting, value: shortened(value), accepted };
    value.parse().ok().filter(|size: &Bytes| !size.is_zero()).ok_or_else(wrong)
}

/// A fraction of at most six decimals, exactly: `0.75`, `.5`, `1`.
fn share(text: &str) -> Option<Share> {
    let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |s: &str| s.len() <= 6 && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || whole.len() + decimals.len() == 0 {
        return None;
    }
    let whole: u32 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let decimals: u32 = format!("{decimals:0<6}").parse().ok()?;
    let millionths = whole.checked_mul(1_000_000)?.checked_add(decimals)?;
    (1..=1_000_000).contains(&millionths).then_some(Share(millionths))
}

/// The shortest decimal of a share.
pub(super) fn share_text(share: Share) -> String {
    let Share(millionths) = share;
    let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn tensorflow(text: &str) -> Result<TensorFlow, ChoiceError> {
    let mut t = TensorFlow::default();
    for (key, value) in pairs(text) {
        match key.as_str() {
            "allow_growth" | "memory_growth" => t.allow_growth = flag("allow_growth", value)?,
            "memory_limit" => t.memory_limit = Some(size("memory_limit", value)?),
            "fraction" | "per_process_gpu_memory_fraction" => {
                t.fraction = Some(share(value).ok_or_else(|| ChoiceError::Value {
                    setting: "fraction",
                    value: shortened(value),
                    accepted: "above 0 and at most 1, of six decimals at most",
                })?);
            }
            "garbage_collection" => t.garbage_collection = flag("garbage_collection", value)?,
            "cuda_malloc_async" => t.malloc_async = flag("cuda_malloc_async", value)?,
            _ => {
                return Err(ChoiceError::Setting {
                    framework: "TensorFlow",
                    setting: shortened(&key),
                    accepted: TENSORFLOW,
                });
            }
        }
    }
    Ok(t)
}

fn jax(text: &str) -> Result<Jax, ChoiceError> {
    let mut j = Jax::default();
    for (key, value) in pairs(text) {
        match key.as_str() {
            "preallocate" => j.preallocate = flag("preallocate", value)?,
            "fraction" | "mem_fraction" => {
                (j.fraction, j.cap) = policy(value).ok_or_else(|| ChoiceError::Value {
                    setting: "fraction",
                    value: shortened(value),
                    accepted: "above 0 and at most 1 (0.75), with a cap of at least as much where the pool may grow \
                               (0.75+ for all, 0.75-0.85), of six decimals at most",
                })?;
            }
            "platform" if flag("platform", value)? => j.allocator = JaxAllocator::Platform,
            "cuda_async" if flag("cuda_async", value)? => j.allocator = JaxAllocator::CudaAsync,
            "bfc" if flag("bfc", value)? => j.allocator = JaxAllocator::Bfc,
            "platform" | "cuda_async" | "bfc" => {}
            _ => {
                return Err(ChoiceError::Setting {
                    framework: "JAX",
                    setting: shortened(&key),
                    accepted: JAX,
                });
            }
        }
    }
    Ok(j)
}

/// `START`, `START+` or `START-CAP`, as XLA's memory-fraction policy is written.
fn policy(text: &str) -> Option<(Share, Option<Share>)> {
    if let Some(start) = text.trim().strip_suffix('+') {
        let start = share(start)?;
        return Some((start, Some(Share::ALL).filter(|cap| *cap != start)));
    }
    let Some((start, cap)) = text.split_once('-') else { return Some((share(text)?, None)) };
    let (start, cap) = (share(start)?, share(cap)?);
    (cap >= start).then_some((start, Some(cap).filter(|cap| *cap != start)))
}

fn onnxruntime(text: &str) -> Result<OnnxRuntime, ChoiceError> {
    let mut o = OnnxRuntime::default();
    for (key, value) in pairs(text) {
        match key.as_str() {
            "same_as_requested" | "ksameasrequested" => {
                o.same_as_requested = flag("same-as-requested", value)?;
            }
            "next_power_of_two" | "knextpoweroftwo" => {
                o.same_as_requested = !flag("next-power-of-two", value)?;
            }
            "arena_extend_strategy" => {
                o.same_as_requested = match value.to_ascii_lowercase().as_str() {
                    "ksameasrequested" | "1" => true,
                    "knextpoweroftwo" | "0" => false,
                    _ => {
                        return Err(ChoiceError::Value {
                            setting: "arena_extend_strategy",
                            value: shortened(value),
                            accepted: "kNextPowerOfTwo or kSameAsRequested",
                        });
                    }
                };
            }
            "gpu_mem_limit" | "limit" => o.limit = Some(size("gpu_mem_limit", value)?),
            "initial_chunk" | "initial_chunk_size_bytes" => {
                o.initial_chunk = Some(size("initial_chunk", value)?);
            }
            "max_dead_bytes" | "max_dead_bytes_per_chunk" => {
                o.max_dead_bytes = Some(size("max_dead_bytes", value)?);
            }
            "initial_growth" | "initial_growth_chunk_size_bytes" => {
                o.initial_growth = Some(size("initial_growth", value)?);
            }
            "max_extension" | "max_power_of_two_extend_bytes" => {
                o.max_extension = Some(size("max_extension", value)?);
            }
            _ => {
                return Err(ChoiceError::Setting {
                    framework: "ONNX Runtime",
                    setting: shortened(&key),
                    accepted: ONNX,
                });
            }
        }
    }
    Ok(o)
}

/// The canonical text: reads back as the same choice.
impl fmt::Display for AllocatorChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings: Vec<String> = Vec::new();
        let name = match self {
            AllocatorChoice::PyTorch(s) => {
                // What no text can say is left out.
                let line = s.line().unwrap_or_default();
                let rest = line.strip_prefix("backend:cudaMallocAsync").unwrap_or(&line);
                settings.push(rest.trim_start_matches(',').to_owned());
                match s.backend {
                    Backend::Native => "pytorch",
                    Backend::CudaMallocAsync => "cuda-malloc-async",
                }
            }
            AllocatorChoice::TensorFlow(t) => {
                if t.allow_growth {
                    settings.push("allow_growth".to_owned());
                }
                settings
                    .extend(t.memory_limit.map(|limit| format!("memory_limit={}", limit.get())));
                settings.extend(t.fraction.map(|share| format!("fraction={}", share_text(share))));
                if !t.garbage_collection {
                    settings.push("garbage_collection=false".to_owned());
                }
                if t.malloc_async {
                    settings.push("cuda_malloc_async".to_owned());
                }
                "tensorflow"
            }
            AllocatorChoice::Jax(j) => {
                let default = Jax::default();
                if !j.preallocate {
                    settings.push("preallocate=false".to_owned());
                }
                if (j.fraction, j.cap) != (default.fraction, default.cap) {
                    let start = share_text(j.fraction);
                    settings.push(match j.cap {
                        None => format!("fraction={start}"),
                        Some(Share::ALL) => format!("fraction={start}+"),
                        Some(cap) => format!("fraction={start}-{}", share_text(cap)),
                    });
                }
                match j.allocator {
                    JaxAllocator::Bfc => {}
                    JaxAllocator::Platform => settings.push("platform".to_owned()),
                    JaxAllocator::CudaAsync => settings.push("cuda_async".to_owned()),
                }
                "jax"
            }
            AllocatorChoice::OnnxRuntime(o) => {
                if o.same_as_requested {
                    settings.push("same-as-requested".to_owned());
                }
                let sizes = [
                    ("gpu_mem_limit", o.limit),
                    ("initial_chunk", o.initial_chunk),
                    ("max_dead_bytes", o.max_dead_bytes),
                    ("initial_growth", o.initial_growth),
                    ("max_extension", o.max_extension),
                ];
                let said = sizes.into_iter().filter_map(|(key, size)| Some((key, size?)));
                settings.extend(said.map(|(key, size)| format!("{key}={}", size.get())));
                "onnxruntime"
            }
        };
        settings.retain(|setting| !setting.is_empty());
        match settings.is_empty() {
            true => f.pad(name),
            false => write!(f, "{name}:{}", settings.join(",")),
        }
    }
}

/// Reads any text, and what it says once more: no panic, and the same choice.
pub fn fuzz_choice(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(choice) = text.parse::<AllocatorChoice>() {
        let written = choice.to_string();
        let again: Option<AllocatorChoice> = written.parse().ok();
        assert_eq!(again.map(|a| a.to_string()), Some(written), "{text}");
        let _ = choice.describe();
    }
}
