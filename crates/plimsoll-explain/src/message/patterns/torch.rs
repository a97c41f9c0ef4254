//! PyTorch on every device, CUDA's libraries, and the trainers that run on them.

use super::super::figure::{Amount, Key, Reading};
use super::super::quantity::{self, Units};
use super::super::table::Framework::{Cuda, DeepSpeed, PyTorch, Transformers, Triton};
use super::super::table::{Field, Form, Kind, More, Pattern};

pub const TORCH: &[Pattern] = &[
    Pattern::new("torch-oom", PyTorch, Kind::Oom, " out of memory. Tried to allocate ")
        .fields(&[
            Field::size(Key::Requested, "Tried to allocate ", ""),
            Field::size(Key::Capacity, "has a total capacity of ", ""),
            Field::size(Key::Capacity, "has a total capacty of ", ""),
            Field::size(Key::Capacity, "", " total capacity;"),
            Field::size(Key::Free, "of which ", " is free"),
            Field::size(Key::Free, "", " free;"),
            Field::size(Key::ProcessUse, "this process has ", " memory in use"),
            Field::size(Key::Allowed, "", " allowed;"),
            Field::size(Key::Allocated, "Of the allocated memory ", ""),
            Field::size(Key::Allocated, "", " already allocated"),
            Field::size(Key::PrivatePools, "", " allocated in private pools"),
            Field::size(Key::Unallocated, "", " is reserved by PyTorch but unallocated"),
            Field::size(Key::Reserved, "", " reserved in total by PyTorch"),
            // What older versions call cached is held by the allocator and by no tensor.
            Field::size(Key::Unallocated, "", " cached)"),
        ])
        .special(processes)
        .more(More::Until {
            lines: 8,
            ends: &["but unallocated", "reserved in total by PyTorch", "cached)", "expandable_segments"],
        })
        .from(
            "0.4 to 2.15; CUDA, HIP and XPU: 'cached' to 1.3, 'reserved in total' 1.4 to 2.0, 'has a total capacity' from 2.1 ('capacty' to 2.1), private pools from 2.4, 'allowed;' with a memory limit",
            "pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp; pytorch/pytorch#16417, #59778, #124673; kaito-project/kaito#976; ROCm/TheRock#2118; intel/torch-xpu-ops#3011",
        ),
    Pattern::new("torch-async-oom", PyTorch, Kind::Oom, " would exceed allowed memory")
        .fields(&[
            Field::size(Key::Allocated, "Currently allocated : ", ""),
            Field::size(Key::Requested, "Requested : ", ""),
            Field::size(Key::Capacity, "Device limit : ", ""),
            Field::size(Key::Free, "Free (according to CUDA): ", ""),
            Field::size(Key::Allowed, "user-supplied memory fraction) : ", ""),
        ])
        .more(More::Until { lines: 6, ends: &["memory fraction) : "] })
        .from(
            "1.12 and later with backend:cudaMallocAsync",
            "pytorch/pytorch c10/cuda/CUDAMallocAsyncAllocator.cpp; huggingface/text-generation-inference#563",
        ),
    Pattern::new("torch-mps-oom", PyTorch, Kind::Oom, "MPS backend out of memory")
        .fields(&[
            Field::size(Key::Allocated, "MPS allocated: ", ""),
            Field::size(Key::OtherAllocations, "other allocations: ", ""),
            Field::size(Key::Allowed, "max allowed: ", ""),
            Field::size(Key::Requested, "Tried to allocate ", ""),
        ])
        .more(More::Until { lines: 3, ends: &["private pool", "shared pool"] })
        .from(
            "1.13 and later; older ones print GB for GiB",
            "pytorch/pytorch#96814, #105839; Comfy-Org/ComfyUI#7440",
        ),
    Pattern::new("torch-mps-buffer", PyTorch, Kind::Oom, "Invalid buffer size: ")
        .fields(&[Field::size(Key::Requested, "Invalid buffer size: ", "")])
        .from("2.0 and later on MPS", "recalled"),
    Pattern::new("torch-exabyte", PyTorch, Kind::Oom, "Tried to allocate more than 1EB memory")
        .from("1.9 and later", "pytorch/pytorch#65365; NVIDIA/nccl#1284"),
    Pattern::new("torch-cpu-oom", PyTorch, Kind::Host, "you tried to allocate ")
        .fields(&[Field::size(Key::Requested, "you tried to allocate ", "")])
        .from("0.3 and later; Linux and Windows", "pytorch/pytorch#5434"),
    Pattern::new("torch-echo", PyTorch, Kind::Echo, "OutOfMemoryError")
        .from("1.13 and later: the exception's name without its text", "pytorch/pytorch#173049"),
    Pattern::new("cuda-error-oom", Cuda, Kind::Oom, "CUDA error: out of memory")
        .from("PyTorch, llama.cpp and others", "ollama/ollama#5913"),
    Pattern::new("cuda-driver-oom", Cuda, Kind::Oom, "CUDA driver error: out of memory")
        .from("PyTorch 2.0 and later, expandable segments and compiled kernels", "recalled"),
    Pattern::new("hip-error-oom", Cuda, Kind::Oom, "HIP error: out of memory")
        .from("PyTorch on ROCm", "recalled"),
    Pattern::new("cuda-runtime-oom", Cuda, Kind::Oom, "cuda runtime error (2) : out of memory")
        .from("PyTorch 0.1 to 1.4", "pytorch/pytorch#7634"),
    Pattern::new("cuda-error-name", Cuda, Kind::Oom, "CUDA_ERROR_OUT_OF_MEMORY")
        .fields(&[
            Field::size(Key::Requested, "(", ") from device"),
            Field::size(Key::Requested, "failed to allocate ", ""),
        ])
        .from("the driver's name for it; TensorFlow, XLA, JAX", "jax-ml/jax#788; kerlomz/captcha_trainer#16"),
    Pattern::new("hip-error-name", Cuda, Kind::Oom, "hipErrorOutOfMemory").from("ROCm", "recalled"),
    Pattern::new("nccl-oom", Cuda, Kind::Oom, "'out of memory'")
        .only(|line| line.contains("NCCL") || line.contains("Cuda failure"))
        .from("NCCL 2.4 and later: Cuda failure ... 'out of memory'", "NVIDIA/nccl#1235, #962"),
    Pattern::new("cublas-alloc", Cuda, Kind::Perhaps, "CUBLAS_STATUS_ALLOC_FAILED")
        .from("every cuBLAS", "recalled"),
    Pattern::new("cublas-init", Cuda, Kind::Perhaps, "CUBLAS_STATUS_NOT_INITIALIZED")
        .from("every cuBLAS", "recalled"),
    Pattern::new("cudnn-alloc", Cuda, Kind::Perhaps, "CUDNN_STATUS_ALLOC_FAILED")
        .from("every cuDNN", "recalled"),
    Pattern::new("cudnn-init", Cuda, Kind::Perhaps, "CUDNN_STATUS_NOT_INITIALIZED")
        .from("every cuDNN", "recalled"),
    Pattern::new("triton-resources", Triton, Kind::NotMemory, "out of resource: shared memory")
        .fields(&[
            Field::count(Key::SharedNeeded, "Required: ", ""),
            Field::count(Key::SharedLimit, "Hardware limit: ", ""),
        ])
        .from("Triton 2.0 and later", "triton-lang/triton#8182; vllm-project/vllm#36802"),
    Pattern::new("deepspeed-usage", DeepSpeed, Kind::Usage, "Max_MA ")
        .fields(&[
            Field::size(Key::Allocated, "MA ", ""),
            Field::size(Key::PeakAllocated, "Max_MA ", ""),
            Field::size(Key::Reserved, " CA ", ""),
            Field::size(Key::PeakReserved, "Max_CA ", ""),
        ])
        .from("DeepSpeed 0.3 and later; prints GB for GiB", "deepspeedai/DeepSpeed#522, #2302"),
    Pattern::new("deepspeed-host", DeepSpeed, Kind::Usage, "CPU Virtual Memory: ")
        .fields(&[
            Field::size(Key::HostUsed, "used = ", ""),
            Field::share(Key::HostShare, "percent = ", ""),
        ])
        .from("DeepSpeed 0.3 and later", "deepspeedai/DeepSpeed#522"),
    Pattern::new("deepspeed-estimate", DeepSpeed, Kind::Usage, "GB | ")
        .only(|line| line.contains("offload_param=") || line.contains("cpu_offload="))
        .special(deepspeed_estimate)
        .from("DeepSpeed 0.4 and later: estimate_zero2/3_model_states_mem_needs", "deepspeedai/DeepSpeed#965"),
    Pattern::new("deepspeed-plain", DeepSpeed, Kind::Usage, "MaxMemAllocated=")
        .fields(&[
            Field::size(Key::Allocated, "MemAllocated=", ""),
            Field::size(Key::PeakAllocated, "MaxMemAllocated=", ""),
        ])
        .from("DeepSpeed's throughput timer", "deepspeedai/DeepSpeed#4158"),
    Pattern::new("detectron-usage", PyTorch, Kind::Usage, "max_mem: ")
        .fields(&[Field {
            key: Key::PeakAllocated,
            before: "max_mem: ",
            after: "",
            form: Form::Size(Units::Mebi),
        }])
        .from("Detectron2's trainer", "recalled"),
    Pattern::new("torchtitan-usage", PyTorch, Kind::Usage, "memory: ")
        .only(|line| line.contains("GiB(") && line.contains('%'))
        .fields(&[Field::size(Key::PeakReserved, "memory: ", "(")])
        .from("torchtitan's metrics", "recalled"),
    Pattern::new("nvidia-smi", Cuda, Kind::Usage, "MiB / ")
        .special(nvidia_smi)
        .from("nvidia-smi's table", "vllm-project/vllm#7768"),
    Pattern::new("gpu-name", Cuda, Kind::Fact, "NVIDIA ")
        .special(gpu_name)
        .from("nvidia-smi, llama.cpp, Ollama, collect_env", "vllm-project/vllm#5416, #7768"),
    Pattern::new("gpu-name-geforce", Cuda, Kind::Fact, "GeForce ")
        .special(gpu_name)
        .from("older drivers without the brand", "recalled"),
    Pattern::new("gpu-name-tesla", Cuda, Kind::Fact, "Tesla ")
        .special(gpu_name)
        .from("nvidia-smi for T4, P100, V100", "pytorch/pytorch#5434"),
    Pattern::new("expandable", PyTorch, Kind::Fact, "expandable_segments:True")
        .only(|line| !line.contains("try setting"))
        .from("PyTorch 2.1 and later: the setting, not the hint", "pytorch/pytorch#173049"),
    Pattern::new("trainer-batch", Transformers, Kind::Fact, "Instantaneous batch size per device")
        .from("Transformers 2.9 and later", "recalled"),
    Pattern::new("trainer-accumulate", Transformers, Kind::Fact, "Gradient Accumulation steps")
        .from("Transformers 2.9 and later", "UCSB-NLP-Chang/DiffSTE#17"),
    Pattern::new("trainer-parameters", Transformers, Kind::Fact, "Number of trainable parameters")
        .from("Transformers 4.21 and later", "recalled"),
    Pattern::new("peft-parameters", Transformers, Kind::Fact, "trainable params: ")
        .from("PEFT's print_trainable_parameters", "recalled"),
    Pattern::new("trainer-checkpointing", Transformers, Kind::Fact, "gradient_checkpointing")
        .from("options of Transformers and trainers built on it", "recalled"),
    Pattern::new("trainer-model", Transformers, Kind::Fact, "model_name_or_path")
        .from("options of Transformers' scripts, LLaMA-Factory, TRL", "recalled"),
    Pattern::new("trainer-base-model", Transformers, Kind::Fact, "base_model")
        .from("Axolotl's configuration", "recalled"),
    Pattern::new("trainer-device-batch", Transformers, Kind::Fact, "per_device_train_batch_size")
        .from("options of Transformers", "recalled"),
    Pattern::new("trainer-micro-batch", DeepSpeed, Kind::Fact, "micro_batch_size")
        .from("DeepSpeed, Megatron, Axolotl", "recalled"),
    Pattern::new("trainer-seq", Transformers, Kind::Fact, "max_seq_length")
        .from("TRL's and Transformers' scripts", "recalled"),
    Pattern::new("trainer-cutoff", Transformers, Kind::Fact, "cutoff_len")
        .from("LLaMA-Factory", "recalled"),
    Pattern::new("hub-cache", Transformers, Kind::Fact, "models--")
        .from("huggingface_hub's cache folders", "recalled"),
];

/// `Process 562167 has 15.25 GiB memory in use`, any number of them.
fn processes(text: &str, readings: &mut Vec<Reading>) {
    for (at, word) in text.match_indices("Process ").take(64) {
        let Some(rest) = text.get(at + word.len()..) else { continue };
        let Some((pid, length)) = quantity::count(rest) else { continue };
        let Some(rest) = rest.get(length..).and_then(|r| r.strip_prefix(" has ")) else { continue };
        if let Some((used, length)) = quantity::size(rest, Units::Binary)
            && rest.get(length..).is_some_and(|r| r.starts_with(" memory in use"))
        {
            let of = Some(pid.to_string());
            readings.push(Reading { key: Key::OtherUse, value: Amount::Size(used), of });
        }
    }
}

/// `   70.00GB |   0.25GB | offload_param=cpu, ...`
fn deepspeed_estimate(text: &str, readings: &mut Vec<Reading>) {
    let mut columns = text.split('|').map(str::trim);
    let mut next = || columns.next().map(str::to_owned);
    let (Some(cpu), Some(gpu), options) = (next(), next(), next()) else { return };
    for (key, column) in [(Key::EstimateCpu, cpu), (Key::EstimateGpu, gpu)] {
        let value = column.rsplit(' ').next().unwrap_or_default();
        if let Some((size, _)) = quantity::size(value, Units::Binary) {
            readings.push(Reading { key, value: Amount::Size(size), of: options.clone() });
        }
    }
}

/// `14214MiB / 24564MiB`
fn nvidia_smi(text: &str, readings: &mut Vec<Reading>) {
    let Some((head, tail)) = text.split_once("MiB / ") else { return };
    let used = head.rsplit([' ', '|']).next().unwrap_or_default();
    let total = tail.trim_start();
    for (key, word) in [(Key::UsedNow, used), (Key::Capacity, total)] {
        if let Some((size, _)) = quantity::size(word, Units::Mebi) {
            readings.push(Reading { key, value: Amount::Size(size), of: None });
        }
    }
}

/// The driver's name of a GPU: up to a wide gap, a comma, a bar or a quote.
fn gpu_name(text: &str, readings: &mut Vec<Reading>) {
    let Some(at) = ["NVIDIA ", "GeForce ", "Tesla "].iter().filter_map(|w| text.find(w)).min()
    else {
        return;
    };
    let rest = text.get(at..).unwrap_or_default();
    let end = rest.find([',', '|', '"', '\'', '(', ';', ':', ']', '\t']).unwrap_or(rest.len());
    let name: String = rest.get(..end).unwrap_or_default().chars().take(48).collect();
    // nvidia-smi's columns follow: persistence mode.
    let name = name.trim_end().trim_end_matches(" Off").trim_end_matches(" On").trim_end();
    if name.bytes().any(|b| b.is_ascii_digit()) {
        let value = Amount::Text(name.to_owned());
        readings.push(Reading { key: Key::GpuName, value, of: None });
    }
}
