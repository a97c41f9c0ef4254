//! Messages as frameworks print them, with the figures that must be read. The texts are facts of the sources that the
//! table of messages names; values are those of the quoted logs, shortened to what matters.

use plimsoll_explain::message::figure::{Amount, Reading};
use plimsoll_explain::message::{Log, Reader};

fn read(text: &str) -> Log {
    let mut reader = Reader::new();
    reader.source("log");
    reader.feed(text.as_bytes());
    reader.finish()
}

fn show(readings: &[Reading]) -> String {
    let one = |r: &Reading| {
        let value = match &r.value {
            Amount::Size(size) => size.bytes.to_string(),
            Amount::Count(n) => n.to_string(),
            Amount::Permille(n) => format!("{n} permille"),
            Amount::Text(text) => text.clone(),
        };
        let of = r.of.as_deref().map_or(String::new(), |of| format!(" [{of}]"));
        format!("{}{of} {value}", r.key.name())
    };
    readings.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The first failure: row, device and figures.
#[track_caller]
fn failure(text: &str, expected: (&str, &str, &str)) {
    let log = read(text);
    let got = log
        .failures
        .first()
        .map(|f| (f.pattern.key, f.device.clone().unwrap_or_default(), show(&f.readings)));
    let got = got.as_ref().map(|(key, device, figures)| (*key, device.as_str(), figures.as_str()));
    assert_eq!(got, Some(expected), "{text}");
}

/// The last usage line of the row: its figures.
#[track_caller]
fn usage(text: &str, pattern: &str, expected: &str) {
    let log = read(text);
    let got = log.usage.iter().find(|u| u.pattern == pattern).map(|u| show(&u.readings));
    assert_eq!(got.as_deref(), Some(expected), "{text}: {:?}", log.usage);
}

#[test]
fn torch_through_the_versions() {
    // 0.4 to 1.3
    failure(
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)",
        (
            "torch-oom",
            "GPU 0",
            "asked for 12.50 MiB; capacity 10.92 GiB; free 9.28 GiB; in tensors 8.57 MiB; reserved but unallocated 4.68 MiB",
        ),
    );
    // 1.4 to 2.0
    failure(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.73 GiB (GPU 3; 8.00 GiB total capacity; 17.20 GiB already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        (
            "torch-oom",
            "GPU 3",
            "asked for 10.73 GiB; capacity 8.00 GiB; free 0 B; in tensors 17.20 GiB; reserved 19.15 GiB",
        ),
    );
    // 2.1, with its spelling
    failure(
        "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacty of 23.69 GiB of which 7.11 GiB is free. Process 2006998 has 256.00 MiB memory in use. Including non-PyTorch memory, this process has 16.31 GiB memory in use. Of the allocated memory 16.01 GiB is allocated by PyTorch, and 7.47 MiB is reserved by PyTorch but unallocated.",
        (
            "torch-oom",
            "GPU 0",
            "asked for 8.00 GiB; capacity 23.69 GiB; free 7.11 GiB; this process 16.31 GiB; in tensors 16.01 GiB; reserved but unallocated 7.47 MiB; process [2006998] 256.00 MiB",
        ),
    );
    // 2.4 and later, in a container, with private pools
    failure(
        "ERROR 04-01 23:46:56 [engine.py:160] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB is free. Process 562167 has 15.25 GiB memory in use. Of the allocated memory 13.73 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 736.86 MiB is reserved by PyTorch but unallocated.",
        (
            "torch-oom",
            "GPU 0",
            "asked for 546.00 MiB; capacity 15.77 GiB; free 514.19 MiB; in tensors 13.73 GiB; in private pools 46.00 MiB; reserved but unallocated 736.86 MiB; process [562167] 15.25 GiB",
        ),
    );
    // HIP with a limit
    failure(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with 17.00 MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated.",
        (
            "torch-oom",
            "GPU 0",
            "asked for 2.00 MiB; capacity 255.98 GiB; free 244.65 GiB; allowed 1.05 GiB; in tensors 1017.01 MiB; in private pools 17.00 MiB; reserved but unallocated 54.99 MiB",
        ),
    );
    // XPU
    failure(
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 GiB of which 5.65 GiB is free. Of the allocated memory 195.50 KiB is allocated by PyTorch, and 1.81 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
        (
            "torch-oom",
            "GPU 0",
            "asked for 4.66 GiB; capacity 5.65 GiB; free 5.65 GiB; in tensors 195.50 KiB; reserved but unallocated 1.81 MiB",
        ),
    );
    // IPEX
    failure(
        "RuntimeError: XPU out of memory. Tried to allocate 1.71 GiB (GPU 0; 15.56 GiB total capacity; 176.00 MiB already allocated; 176.00 MiB reserved in total by PyTorch)",
        (
            "torch-oom",
            "GPU 0",
            "asked for 1.71 GiB; capacity 15.56 GiB; in tensors 176.00 MiB; reserved 176.00 MiB",
        ),
    );
}

#[test]
fn torch_over_several_lines_ranks_and_ends() {
    let wrapped = "\x1b[31mtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB.\x1b[0m\r\nGPU 0 has a total capacity of 44.39 GiB of which 12.06 MiB is free.\r\nProcess 6324 has 8.06 GiB memory in use.\r\nIncluding non-PyTorch memory, this process has 36.30 GiB memory in use.\r\n";
    failure(
        wrapped,
        (
            "torch-oom",
            "GPU 0",
            "asked for 298.00 MiB; capacity 44.39 GiB; free 12.06 MiB; this process 36.30 GiB; process [6324] 8.06 GiB",
        ),
    );
    let line = |rank: u32, text: &str| format!("[rank{rank}]: {text}\n");
    let (head, tail) = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
        "of which 1.00 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
    );
    let mixed = [
        line(0, &format!("{head} 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB")),
        line(1, &format!("{head} 4.00 GiB. GPU 1 has a total capacity of 23.65 GiB")),
        line(1, tail),
        line(0, tail),
        line(0, &format!("{head} 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB {tail}")),
    ];
    let log = read(&mixed.concat());
    let got: Vec<_> = log
        .failures
        .iter()
        .map(|f| (f.line, f.origin.as_deref(), f.device.as_deref(), f.prints, show(&f.readings)))
        .collect();
    let figures = |size: &str, card: &str| {
        format!(
            "asked for {size}; capacity {card}; free 1.00 GiB; in tensors 20.00 GiB; reserved but unallocated 0 B"
        )
    };
    assert_eq!(
        got,
        [
            (1, Some("rank 0"), Some("GPU 0"), 2, figures("2.00 GiB", "23.64 GiB")),
            (2, Some("rank 1"), Some("GPU 1"), 1, figures("4.00 GiB", "23.65 GiB")),
        ]
    );
    assert_eq!(log.failure_prints, 3);
}

#[test]
fn torch_on_other_allocators() {
    failure(
        "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 15.16 GiB\nRequested               : 512.00 KiB\nDevice limit            : 15.99 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n",
        (
            "torch-async-oom",
            "GPU 0",
            "in tensors 15.16 GiB; asked for 512.00 KiB; capacity 15.99 GiB; free 0 B",
        ),
    );
    for unit in ["GB", "GiB"] {
        failure(
            &format!(
                "RuntimeError: MPS backend out of memory (MPS allocated: 9.57 {unit}, other allocations: 17.35 {unit}, max allowed: 27.20 {unit}). Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"
            ),
            (
                "torch-mps-oom",
                "",
                "in tensors 9.57 GiB; other allocations 17.35 GiB; allowed 27.20 GiB; asked for 292.50 MiB",
            ),
        );
    }
    failure(
        "[enforce fail at alloc_cpu.cpp:135] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)",
        ("torch-cpu-oom", "", "asked for 1024.00 TiB"),
    );
    failure(
        "E tensorflow/stream_executor/cuda/cuda_driver.cc:936] failed to allocate 378.60M (396990720 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY",
        ("cuda-error-name", "", "asked for 378.60 MiB"),
    );
    for (text, key) in [
        ("RuntimeError: CUDA error: out of memory", "cuda-error-oom"),
        (
            "RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:66",
            "cuda-runtime-oom",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cublas-alloc",
        ),
        ("NCCL WARN Cuda failure 2 'out of memory'", "nccl-oom"),
        ("torch.OutOfMemoryError", "torch-echo"),
    ] {
        failure(text, (key, "", ""));
    }
}

#[test]
fn host_memory() {
    failure(
        "[ 7063.247407] Memory cgroup out of memory: Killed process 63214 (uwsgi) total-vm:3149468kB, anon-rss:164992kB, file-rss:52176kB, shmem-rss:92kB",
        ("kernel-killed", "", "address space 3.00 GiB; resident 161.13 MiB"),
    );
    failure(
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 5.62 GiB for an array with shape (1000, 1000, 754) and data type float64",
        ("numpy-oom", "", "asked for 5.62 GiB; shape (1000, 1000, 754)"),
    );
    for (text, key) in [
        (
            "RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            "loader-bus",
        ),
        ("run.sh: line 3: 12345 Killed                  python train.py", "killed"),
        ("Killed", "killed"),
        ("command terminated with exit code 137", "exit-137"),
        ("  Exit Code:    137\n  exit code: 137", "exit-137-field"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "slurm-oom"),
    ] {
        failure(text, (key, "", ""));
    }
    for text in ["Killed it on the benchmark", "epoch 137", "error code 1370"] {
        assert!(read(text).failures.is_empty(), "{text}");
    }
}

#[test]
fn vllm() {
    failure(
        "ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache (23648). Try increasing `gpu_memory_utilization`",
        ("vllm-too-long", "", "longest sequence 29000; KV tokens 23648"),
    );
    failure(
        "(EngineCore_DP0 pid=1094) ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum model length is 34736. Try increasing",
        (
            "vllm-too-long-bytes",
            "",
            "longest sequence 262144; KV cache needed 24.00 GiB; KV cache 3.18 GiB; length that fits 34736",
        ),
    );
    failure(
        "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB). Decrease GPU memory utilization",
        (
            "vllm-free",
            "",
            "capacity 79.15 GiB; utilization 900 permille; budget 71.24 GiB; free 59.32 GiB",
        ),
    );
    failure(
        "ValueError: Free memory on device cuda:1 (19.77/22.05 GiB) on startup is less than desired GPU memory utilization (0.9, 19.84 GiB).",
        (
            "vllm-free",
            "GPU 1",
            "capacity 22.05 GiB; utilization 900 permille; budget 19.84 GiB; free 19.77 GiB",
        ),
    );
    failure(
        "ERROR [core.py:708]     raise ValueError(\"No available memory for the cache blocks. \"\nERROR [core.py:708] ValueError: No available memory for the cache blocks. Try increasing",
        ("vllm-no-blocks", "", ""),
    );
    for (text, pattern, expected) in [
        (
            "INFO [worker.py:267] model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; the rest of the memory reserved for KV Cache is 1.57GiB.",
            "vllm-split",
            "weights 21.21 GiB; outside PyTorch 204.80 MiB; activation peak 378.88 MiB; KV cache 1.57 GiB",
        ),
        (
            "INFO [worker.py:267] the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.99) = 23.35GiB",
            "vllm-budget",
            "capacity 23.58 GiB; utilization 990 permille; budget 23.35 GiB",
        ),
        (
            "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.98GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=2.89GiB gpu_memory_utilization=0.90",
            "vllm-split-0.6.4",
            "capacity 23.58 GiB; peak of the trial run 17.98 GiB; outside PyTorch 358.40 MiB; KV cache 2.89 GiB; utilization 900 permille",
        ),
        ("Loading model weights took 14.9888 GB", "vllm-weights", "weights 14.99 GiB"),
        (
            "Model loading took 14.9889 GiB and 3.652170 seconds",
            "vllm-weights-v1",
            "weights 14.99 GiB",
        ),
        ("GPU KV cache size: 158,656 tokens", "vllm-kv-tokens", "KV tokens 158656"),
        ("Available KV cache memory: 8.11 GiB", "vllm-kv-bytes", "KV cache 8.11 GiB"),
        ("# GPU blocks: 1478, # CPU blocks: 2048", "vllm-blocks", "KV blocks 1478"),
        (
            "Maximum concurrency for 32,768 tokens per request: 4.84x",
            "vllm-concurrency",
            "longest sequence 32768; sequences at full length 4840 permille",
        ),
    ] {
        usage(text, pattern, expected);
    }
}

#[test]
fn sglang() {
    failure(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        ("sglang-static", "", ""),
    );
    for (text, pattern, expected) in [
        (
            "[2025-07-02 07:41:58 DP0 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=21.73 GB, mem usage=166.59 GB.",
            "sglang-loaded",
            "available 21.73 GiB; weights 166.59 GiB",
        ),
        (
            "[2025-10-16 09:06:22 TP5] KV Cache is allocated. #tokens: 2795207, K size: 53.31 GB, V size: 53.31 GB",
            "sglang-kv",
            "KV tokens 2795207; KV cache 106.62 GiB",
        ),
        (
            "[2025-11-30 12:50:15] Capture cuda graph end. Time elapsed: 5.37 s. mem usage=1.44 GB. avail mem=38.05 GB.",
            "sglang-graphs",
            "CUDA graphs 1.44 GiB; available 38.05 GiB",
        ),
    ] {
        usage(text, pattern, expected);
    }
}

#[test]
fn llama_cpp_and_ollama() {
    failure(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9332334592\n",
        ("ggml-alloc", "GPU 0", "asked for 8.69 GiB"),
    );
    failure(
        "error=\"model requires more system memory (446.3 GiB) than is available (37.3 GiB)\"",
        ("ollama-host", "", "host memory needed 446.30 GiB; host memory free 37.30 GiB"),
    );
    for (text, pattern, expected) in [
        (
            "load_tensors:        CUDA0 model buffer size = 48928.09 MiB",
            "ggml-size",
            "buffer [model on CUDA0] 47.78 GiB",
        ),
        (
            "llm_load_tensors:      CUDA1 buffer size =  8652.00 MiB",
            "ggml-size",
            "buffer [model on CUDA1] 8.45 GiB",
        ),
        (
            "llama_kv_cache_init:     CUDA10 KV buffer size =    16.49 MiB",
            "ggml-size",
            "buffer [KV on CUDA10] 16.49 MiB",
        ),
        (
            "load_tensors: offloaded 78/81 layers to GPU",
            "ggml-offloaded",
            "layers on the GPU 78; layers of the model 81",
        ),
        (
            "time=2025-01-16 level=INFO msg=\"offload to cuda\" layers.requested=-1 layers.model=62 layers.offload=5 layers.split=\"\" memory.available=\"[23.3 GiB]\" memory.required.full=\"415.7 GiB\" memory.required.partial=\"17.6 GiB\" memory.required.kv=\"9.5 GiB\" memory.weights.total=\"385.0 GiB\" memory.graph.full=\"654.0 MiB\"",
            "ollama-plan",
            "layers of the model 62; layers on the GPU 5; available 23.30 GiB; needed for all layers 415.70 GiB; needed as placed 17.60 GiB; of it KV cache 9.50 GiB; of it compute buffers 654.00 MiB; weights 385.00 GiB",
        ),
        (
            "time=2026-01-20 source=device.go:251 msg=\"kv cache\" device=CUDA0 size=\"800.0 MiB\"",
            "ollama-part",
            "buffer [KV on CUDA0] 800.00 MiB",
        ),
    ] {
        usage(text, pattern, expected);
    }
}

#[test]
fn deepspeed() {
    usage(
        "[2022-02-21 23:37:48,850] [INFO] [utils.py:827:see_memory_usage] MA 4.89 GB         Max_MA 4.95 GB         CA 6.68 GB         Max_CA 7 GB",
        "deepspeed-usage",
        "in tensors 4.89 GiB; peak in tensors 4.95 GiB; reserved 6.68 GiB; peak reserved 7.00 GiB",
    );
    usage(
        "[utils.py:832:see_memory_usage] CPU Virtual Memory:  used = 50.45 GB, percent = 40.2%",
        "deepspeed-host",
        "host memory used 50.45 GiB; share of host memory 402 permille",
    );
    usage(
        "   71.71GB |   0.12GB | cpu_offload=1, cpu_offload_params=1",
        "deepspeed-estimate",
        "host memory [cpu_offload=1, cpu_offload_params=1] 71.71 GiB; GPU memory [cpu_offload=1, cpu_offload_params=1] 122.88 MiB",
    );
    usage(
        "   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1",
        "deepspeed-estimate",
        "host memory [offload_param=cpu , offload_optimizer=cpu , zero_init=1] 70.00 GiB; GPU memory [offload_param=cpu , offload_optimizer=cpu , zero_init=1] 256.00 MiB",
    );
}

#[test]
fn jax_tensorflow_and_onnx() {
    failure(
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:  372.76MiB\n              constant allocation:    48.5KiB\n        maybe_live_out allocation:    9.64GiB\n     preallocated temp allocation:    4.44GiB\n                 total allocation:   14.44GiB\n              total fragmentation:  680.30MiB (4.60%)\nPeak buffers:\n        Buffer 1:\n                Size: 96.00MiB\n                Operator: op_name=\"jit(f)/dot_general\" source_file=\"x.py\" source_line=689\n                XLA Label: custom-call\n                Shape: bf16[128,6,256,256]\n                ==========================\n\n        Buffer 2:\n                Size: 384.0KiB\n                Entry Parameter Subshape: f32[256,128,3]\n",
        (
            "xla-oom",
            "",
            "asked for 4.44 GiB; arguments 372.76 MiB; constants 48.50 KiB; outputs 9.64 GiB; temporaries 4.44 GiB; total of the program 14.44 GiB; gaps in the plan 680.30 MiB; large buffer [bf16[128,6,256,256] jit(f)/dot_general] 96.00 MiB; large buffer [f32[256,128,3] an argument] 384.00 KiB",
        ),
    );
    failure(
        "RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on device ordinal 0",
        ("xla-request", "GPU 0", "asked for 176.00 MiB"),
    );
    failure(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 63.80G of 30.75G hbm. Exceeded hbm capacity by 33.05G.\n\nTotal hbm usage >= 65.05G:\n    reserved          1.25G\n    program          63.80G\n    arguments            0B\n\n  Largest program allocations in hbm:\n\n  1. Size: 2.00G\n     Operator: op_name=\"jit(step)/attention\"\n     Shape: f32[32,4096,4096]{1,2,0:T(8,128)}\n",
        (
            "tpu-hbm",
            "",
            "total of the program 63.80 GiB; capacity 30.75 GiB; too much 33.05 GiB; reserved by the system 1.25 GiB; program 63.80 GiB; arguments 0 B; large buffer [f32[32,4096,4096] jit(step)/attention] 2.00 GiB",
        ),
    );
    failure(
        "W tensorflow/core/common_runtime/bfc_allocator.cc:273] Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.72GiB.  Current allocation summary follows.",
        ("tf-bfc", "", "asked for 3.72 GiB"),
    );
    failure(
        "ResourceExhaustedError: OOM when allocating tensor with shape[25088,4096] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        ("tf-tensor", "", "shape [25088,4096] float; asked for 392.00 MiB"),
    );
    usage(
        "I bfc_allocator.cc:702] Stats: \nLimit:                 68719476736\nInUse:                 68719476736\nMaxInUse:              68719476736\nNumAllocs:                      32\nMaxAllocSize:           6359738368\n",
        "tf-stats",
        "limit of the allocator 64.00 GiB; in use 64.00 GiB; peak in use 64.00 GiB; largest allocation 5.92 GiB",
    );
    failure(
        "[E:onnxruntime:, sequential_executor.cc:514 ExecuteKernel] Non-zero status code returned while running FusedConv node. Name:'Conv_3' Status Message: bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 643840",
        ("ort-arena", "", "asked for 628.75 KiB; shape FusedConv node. Name:'Conv_3'"),
    );
    failure(
        "AllocateRawInternal(size_t, bool) Available memory of 0 is smaller than requested bytes of 2048",
        ("ort-limit", "", "left in the arena 0 B; asked for 2.00 KiB"),
    );
}

#[test]
fn lookalikes_are_no_failures() {
    for text in [
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
        "W bfc_allocator.cc:219] Allocator (GPU_0_bfc) ran out of memory trying to allocate 538.33MiB. The caller indicates that this is not a failure, but",
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "loss 0.1370",
    ] {
        let log = read(text);
        assert!(log.failures.is_empty(), "{text}: {:?}", log.failures);
        assert!(!log.run.expandable, "{text}");
    }
}
