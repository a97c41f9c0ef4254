//! What is made of messages: the codes of findings in order, and sentences where the arithmetic matters.

use plimsoll_explain::message::judge::{self, Knowledge, ModelFacts};
use plimsoll_explain::message::{Log, Reader};
use plimsoll_explain::{Finding, Weight};

fn read(text: &str) -> Log {
    let mut reader = Reader::new();
    reader.source("log");
    reader.feed(text.as_bytes());
    reader.finish()
}

fn findings(text: &str) -> Vec<Finding> {
    judge::findings(&read(text), &Knowledge::default())
}

/// Weights and codes in the order of the report.
#[track_caller]
fn check(text: &str, expected: &[(Weight, &str)]) -> Vec<Finding> {
    let findings = findings(text);
    let got: Vec<(Weight, &str)> = findings.iter().map(|f| (f.weight, f.code)).collect();
    assert_eq!(got, expected, "{text}\n{findings:#?}");
    findings
}

/// A message of torch 2.4 and later.
fn torch(request: &str, free: &str, middle: &str, allocated: &str, unallocated: &str) -> String {
    format!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request}. GPU 0 has a total capacity of 23.64 GiB of which {free} is free. {middle}Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated.\n"
    )
}

use Weight::{Cause, Contribution, Doubt, Note};

#[test]
fn fragmentation_where_the_gaps_would_have_been_enough() {
    let found = check(
        &torch(
            "1.50 GiB",
            "1.00 GiB",
            "Including non-PyTorch memory, this process has 22.63 GiB memory in use. ",
            "17.00 GiB",
            "5.20 GiB",
        ),
        &[(Cause, "fragmentation")],
    );
    let sentence = &found[0].sentence;
    assert!(sentence.contains("5.20 GiB are reserved but in no tensor, 23 %"), "{sentence}");
    assert!(sentence.contains("512.00 MiB were missing"), "{sentence}");
    assert!(found[0].actions[0].contains("expandable_segments:True"));
}

#[test]
fn gaps_that_are_too_few_only_contribute() {
    check(
        &torch(
            "3.00 GiB",
            "1.00 GiB",
            "Including non-PyTorch memory, this process has 22.63 GiB memory in use. ",
            "21.00 GiB",
            "1.20 GiB",
        ),
        &[(Cause, "too-big"), (Contribution, "fragmentation")],
    );
}

#[test]
fn expandable_segments_that_are_on_are_not_advised() {
    let text = format!(
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n{}",
        torch(
            "1.50 GiB",
            "1.00 GiB",
            "Including non-PyTorch memory, this process has 22.63 GiB memory in use. ",
            "17.00 GiB",
            "5.20 GiB"
        )
    );
    check(&text, &[(Cause, "too-big"), (Contribution, "unallocated")]);
}

#[test]
fn other_processes_are_told_from_this_one_in_a_container() {
    // QwenLM/Qwen2.5-Omni#240: the second process is the one that failed.
    let text = "CUDA out of memory. Tried to allocate 124.68 GiB. GPU 0 has a total capacity of 95.22 GiB of which 51.23 GiB is free. Process 608946 has 14.91 GiB memory in use. Process 734147 has 29.07 GiB memory in use. Of the allocated memory 25.50 GiB is allocated by PyTorch, and 3.14 GiB is reserved by PyTorch but unallocated.";
    let found = check(
        text,
        &[
            (Cause, "larger-than-device"),
            (Contribution, "other-process"),
            (Contribution, "fragmentation"),
            (Contribution, "one-large-tensor"),
        ],
    );
    assert!(found[1].sentence.contains("rocess 608946 holds 14.91 GiB"), "{}", found[1].sentence);
    let log = read(text);
    let parts = judge::division(&log, log.failures.first());
    let sum: u64 = parts.iter().map(|(_, b)| b.get()).sum();
    assert!(sum.abs_diff(102_241_695_170) < 64 << 20, "{parts:?}");
}

#[test]
fn another_process_that_took_the_room_is_the_cause() {
    let found = check(
        &torch(
            "2.00 GiB",
            "100.00 MiB",
            "Process 77 has 12.00 GiB memory in use. Including non-PyTorch memory, this process has 11.54 GiB memory in use. ",
            "11.00 GiB",
            "50.00 MiB",
        ),
        &[(Cause, "other-process")],
    );
    assert!(found[0].sentence.contains("Without them the request would have fitted"));
}

#[test]
fn limits_refusals_and_contradictions() {
    // ROCm/TheRock#2118
    check(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with 17.00 MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated.",
        &[(Cause, "memory-limit"), (Contribution, "outside-allocator"), (Note, "segment-size")],
    );
    // pytorch/pytorch#16417
    check(
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)",
        &[(Cause, "free-but-refused"), (Contribution, "outside-allocator")],
    );
    // YingqianWang/iPASSR#9: Windows moves memory to the host.
    check(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.73 GiB (GPU 0; 8.00 GiB total capacity; 17.20 GiB already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch)",
        &[
            (Cause, "larger-than-device"),
            (Contribution, "fragmentation"),
            (Contribution, "one-large-tensor"),
            (Doubt, "beyond-the-card"),
        ],
    );
    // ROCm/TheRock#4598: unified memory.
    check(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.49 GiB of which 84.98 GiB is free. Of the allocated memory 1.67 GiB is allocated by PyTorch, and 8.08 GiB is reserved by PyTorch but unallocated.",
        &[
            (Cause, "larger-than-device"),
            (Contribution, "fragmentation"),
            (Contribution, "one-large-tensor"),
            (Doubt, "free-beyond-the-card"),
        ],
    );
}

#[test]
fn a_small_segment_is_no_small_tensor() {
    let own = "Including non-PyTorch memory, this process has 23.60 GiB memory in use. ";
    for (request, words) in [
        ("20.00 MiB", Some("between 1 and 10 MiB")),
        ("2.00 MiB", Some("at most 1 MiB")),
        ("22.00 MiB", None),
    ] {
        let found = findings(&torch(request, "11.06 MiB", own, "23.00 GiB", "194.87 MiB"));
        let note = found.iter().find(|f| f.code == "segment-size");
        assert_eq!(note.map(|f| f.sentence.contains(words.unwrap_or(""))), words.map(|_| true));
    }
}

#[test]
fn logits_are_recognised_by_the_vocabulary() {
    // 4 x 4096 tokens x 128256 x 4 bytes = 7.83 GiB
    let text = format!(
        "  Instantaneous batch size per device = 4\n--model_name_or_path x --max_seq_length 4096\n{}",
        torch(
            "7.83 GiB",
            "2.00 GiB",
            "Including non-PyTorch memory, this process has 21.60 GiB memory in use. ",
            "21.00 GiB",
            "100.00 MiB"
        )
    );
    let model = ModelFacts { name: "llama".to_owned(), vocabulary: 128_256, parameters: 1 };
    let knowledge = Knowledge { model: Some(model) };
    let found = judge::findings(&read(&text), &knowledge);
    assert_eq!(found[0].code, "one-large-tensor");
    assert!(
        found[0]
            .sentence
            .contains("logits in float32: batch 4 x 4096 tokens x vocabulary 128256 of llama"),
        "{}",
        found[0].sentence
    );
}

#[test]
fn growth_is_told_from_a_run_that_is_too_big() {
    let mut text = String::new();
    for step in 0..40 {
        text.push_str(&format!(
            "[utils.py:827:see_memory_usage] MA {}.{} GB         Max_MA 22.00 GB         CA 22.5 GB         Max_CA 23 GB\n",
            8 + step / 4,
            25 * (step % 4)
        ));
    }
    text.push_str(&torch("20.00 MiB", "11.06 MiB", "", "22.90 GiB", "20.00 MiB"));
    let found = findings(&text);
    let growth = found.iter().find(|f| f.code == "growth").map(|f| f.sentence.clone());
    assert!(growth.is_some_and(|s| s.contains("n tensors rose from")), "{found:?}");
}

#[test]
fn many_failures_are_counted_by_place() {
    let mut text = String::new();
    for rank in 0..4 {
        let request = if rank == 2 { "3.00 GiB" } else { "1.00 GiB" };
        let message = torch(request, "100.00 MiB", "", "22.00 GiB", "20.00 MiB")
            .replace("GPU 0", &format!("GPU {rank}"));
        text.push_str(&format!("[rank{rank}]: {message}"));
    }
    let found = findings(&text);
    let several = found.iter().find(|f| f.code == "several-failures").unwrap();
    assert!(
        several.sentence.contains("4 different messages, printed 4 times, from 4 places"),
        "{}",
        several.sentence
    );
    assert!(
        several.sentence.contains("The largest request, 3.00 GiB, is at log:3, rank 2"),
        "{}",
        several.sentence
    );
}

#[test]
fn vllm_gets_values_that_start() {
    // vllm-project/vllm#10517
    let text = "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.98GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=2.89GiB gpu_memory_utilization=0.90\nValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache (23648). Try increasing";
    let found = check(text, &[(Cause, "sequence-too-long"), (Note, "engine-memory")]);
    assert!(
        found[0].sentence.contains("2.89 GiB are there, 3.54 GiB are needed"),
        "{}",
        found[0].sentence
    );
    assert_eq!(found[0].actions[0], "--max-model-len 23648 if that is long enough");
    assert!(
        found[0].actions[1].starts_with("--gpu-memory-utilization 0.93"),
        "{:?}",
        found[0].actions
    );

    let found = check(
        "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB).",
        &[(Cause, "budget-not-free")],
    );
    assert_eq!(found[0].actions[0], "--gpu-memory-utilization 0.74");
    assert!(found[0].sentence.contains("11.92 GiB are missing"), "{}", found[0].sentence);
}

#[test]
fn sglang_moves_its_share_both_ways() {
    let found = check(
        "[2025-03-12 TP0] Load weight end. type=X, avail mem=4.10 GB, mem usage=40.00 GB.\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        &[(Cause, "static-share-too-small"), (Note, "engine-memory")],
    );
    assert!(
        found[0].sentence.contains("eights take 40.00 GiB of 44.10 GiB, 90 %"),
        "{}",
        found[0].sentence
    );
    let found = findings(
        "server_args=ServerArgs(model_path='x/y', mem_fraction_static=0.88)\nException: Capture cuda graph failed: invalid argument",
    );
    assert_eq!(found[0].actions[0], "--mem-fraction-static 0.83 (it is 0.88)");
    let found = findings(
        "Prefill out of memory. Try to lower your batch size.\nTry to allocate 4096 tokens.\nAvailable full tokens: 3136 (full_available_size=3136 + full_evictable_size_=0)",
    );
    assert_eq!(found[0].code, "pool-full");
    assert!(found[0].sentence.contains("4096 tokens were wanted, 3136 were free"));
}

#[test]
fn llama_cpp_names_the_buffer() {
    let found = check(
        "load_tensors: offloaded 33/33 layers to GPU\nload_tensors:        CUDA0 model buffer size =  4685.30 MiB\nllama_kv_cache:      CUDA0 KV buffer size = 16384.00 MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9332334592\n",
        &[(Cause, "compute-buffer")],
    );
    assert!(
        found[0].sentence.contains("KV on CUDA0 16.00 GiB, model on CUDA0 4.58 GiB"),
        "{}",
        found[0].sentence
    );
    assert!(found[0].sentence.contains("Together 29.27 GiB on GPU 0"), "{}", found[0].sentence);
}

#[test]
fn compilers_arenas_and_hosts() {
    for (text, code) in [
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.",
            "program-too-large",
        ),
        (
            "Ran out of memory in memory space hbm. Used 63.80G of 30.75G hbm. Exceeded hbm capacity by 33.05G.",
            "program-too-large",
        ),
        (
            "OOM when allocating tensor with shape[32,12,4096,4096] and type float on /job:localhost",
            "too-big",
        ),
        (
            "Failed to allocate memory for requested buffer of size 4585490524328388608",
            "absurd-size",
        ),
        ("Available memory of 0 is smaller than requested bytes of 2048", "arena-limit"),
        (
            "RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error.",
            "shared-memory",
        ),
        (
            "Memory cgroup out of memory: Killed process 1 (python) total-vm:1kB, anon-rss:2kB",
            "host-memory",
        ),
        ("exited with code 137", "host-memory"),
        ("RuntimeError: CUDA error: out of memory", "driver-error"),
        ("CUBLAS_STATUS_ALLOC_FAILED", "library-error"),
        (
            "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB). Tried to allocate 292.50 MiB on private pool.",
            "mps-limit",
        ),
        (
            "error=\"model requires more system memory (446.3 GiB) than is available (37.3 GiB)\"",
            "host-too-small",
        ),
    ] {
        let found = findings(text);
        assert_eq!(found.first().map(|f| (f.weight, f.code)), Some((Cause, code)), "{text}");
        assert!(!found[0].actions.is_empty() && !found[0].sentence.is_empty(), "{text}");
    }
    let found =
        findings("out of resource: shared memory, Required: 131072, Hardware limit: 101376.");
    assert_eq!(found[0].code, "on-chip-memory");
    assert_eq!(found[0].figures.len(), 2);
}
