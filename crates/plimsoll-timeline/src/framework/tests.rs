use proptest::prelude::*;

use super::*;
use crate::{Category, PhaseKind, ReplayOptions, Timeline, TimelineBuilder};

#[test]
fn texts_are_read_and_written() {
    for (text, canonical, words) in [
        ("pytorch", "pytorch", "PyTorch's caching allocator, default settings"),
        (
            "pytorch:expandable_segments:True,max_split_size_mb:128",
            "pytorch:expandable_segments:True,max_split_size_mb:128",
            "PyTorch's caching allocator, expandable_segments:True,max_split_size_mb:128",
        ),
        (
            "cuda-malloc-async",
            "cuda-malloc-async",
            "PyTorch on the driver's pool, backend:cudaMallocAsync",
        ),
        (
            "pytorch:backend:cudaMallocAsync",
            "cuda-malloc-async",
            "PyTorch on the driver's pool, backend:cudaMallocAsync",
        ),
        (
            "TensorFlow",
            "tensorflow",
            "TensorFlow's BFC allocator, all memory that it may use from the start",
        ),
        (
            "tf:allow_growth",
            "tensorflow:allow_growth",
            "TensorFlow's BFC allocator, grows on demand",
        ),
        (
            "tensorflow: allow-growth=true, memory_limit=4GiB, garbage_collection=false",
            "tensorflow:allow_growth,memory_limit=4294967296,garbage_collection=false",
            "TensorFlow's BFC allocator, grows on demand, unused regions are never given back, limit 4.00 GiB",
        ),
        ("jax", "jax", "JAX's BFC allocator, 0.75 of the device from the start, up to 1 on demand"),
        (
            "jax:fraction=0.75+",
            "jax",
            "JAX's BFC allocator, 0.75 of the device from the start, up to 1 on demand",
        ),
        (
            "jax:fraction=.75",
            "jax:fraction=0.75",
            "JAX's BFC allocator, 0.75 of the device from the start",
        ),
        (
            "jax:fraction=0.5-0.85",
            "jax:fraction=0.5-0.85",
            "JAX's BFC allocator, 0.5 of the device from the start, up to 0.85 on demand",
        ),
        (
            "jax:fraction=1+",
            "jax:fraction=1",
            "JAX's BFC allocator, 1 of the device from the start",
        ),
        (
            "jax:preallocate=false,fraction=0.9",
            "jax:preallocate=false,fraction=0.9",
            "JAX's BFC allocator, grows on demand up to 0.9 of the device",
        ),
        ("jax:platform", "jax:platform", "JAX with cudaMalloc per buffer"),
        ("onnxruntime", "onnxruntime", "ONNX Runtime's BFC arena, regions that double"),
        (
            "ort:arena_extend_strategy=kSameAsRequested,gpu_mem_limit=2GiB",
            "onnxruntime:same-as-requested,gpu_mem_limit=2147483648",
            "ONNX Runtime's BFC arena, regions as requested, limit 2.00 GiB",
        ),
    ] {
        let choice: AllocatorChoice = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(choice.to_string(), canonical, "{text}");
        assert_eq!(choice.describe(), words, "{text}");
        assert_eq!(canonical.parse(), Ok(choice), "{text}");
    }
}

#[test]
fn other_texts_are_refused() {
    for (text, message) in [
        (
            "",
            "`` is not a known allocator; accepted: pytorch, cuda-malloc-async, tensorflow, jax, onnxruntime",
        ),
        (
            "mxnet",
            "`mxnet` is not a known allocator; accepted: pytorch, cuda-malloc-async, tensorflow, jax, onnxruntime",
        ),
        ("pytorch:foo:1", "`foo` is no setting of torch's allocator"),
        (
            "tensorflow:growth",
            "TensorFlow has no setting `growth`; accepted: allow_growth, memory_limit=SIZE, fraction=F, garbage_collection=false, cuda_malloc_async",
        ),
        ("tensorflow:allow_growth=maybe", "allow_growth is `maybe`, but it must be true or false"),
        ("tensorflow:memory_limit=0", "memory_limit is `0`, but it must be a size such as 8GiB"),
        (
            "jax:fraction=1.5",
            "fraction is `1.5`, but it must be above 0 and at most 1 (0.75), with a cap of at least as much where the pool may grow (0.75+ for all, 0.75-0.85), of six decimals at most",
        ),
        (
            "jax:fraction=0.8-0.7",
            "fraction is `0.8-0.7`, but it must be above 0 and at most 1 (0.75), with a cap of at least as much where the pool may grow (0.75+ for all, 0.75-0.85), of six decimals at most",
        ),
        (
            "onnxruntime:arena_extend_strategy=2",
            "arena_extend_strategy is `2`, but it must be kNextPowerOfTwo or kSameAsRequested",
        ),
    ] {
        let error = text.parse::<AllocatorChoice>().unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
    }
}

#[test]
fn the_default_is_plain_pytorch() {
    assert!(AllocatorChoice::default().is_default());
    for text in [
        "pytorch",
        "pytorch:",
        "pytorch:expandable_segments:False",
        "pytorch:release_lock_on_cudamalloc:True",
    ] {
        assert!(text.parse::<AllocatorChoice>().unwrap().is_default(), "{text}");
    }
    for text in ["pytorch:expandable_segments:True", "cuda-malloc-async", "jax"] {
        assert!(!text.parse::<AllocatorChoice>().unwrap().is_default(), "{text}");
    }
}

/// Weights of 4 GiB, activations of 2 and then 3 GiB.
fn timeline() -> Timeline {
    let mut t = TimelineBuilder::new();
    let origin = t.origin("", "x");
    t.phase(PhaseKind::Load, 0);
    t.alloc(Bytes::gib(4), Category::Parameters, origin);
    t.phase(PhaseKind::Forward, 0);
    for n in [2, 3] {
        let activation = t.alloc(Bytes::gib(n), Category::Activations, origin);
        t.free(activation);
    }
    t.finish()
}

/// What each framework holds on a device of 24 GiB, 22.5 of them free: in GiB, in use and reserved at the peak.
#[test]
fn frameworks_hold_what_their_policy_says() {
    let memory = DeviceMemory {
        total: Bytes::gib(24),
        available: Bytes::new(45 << 29),
        compute_major: Some(8),
    };
    for (text, in_use, reserved) in [
        // Two GiB are free when three are wanted: the cache keeps them.
        ("pytorch", Bytes::gib(7), Bytes::gib(9)),
        ("cuda-malloc-async", Bytes::gib(7), Bytes::gib(7)),
        ("tensorflow", Bytes::gib(7), Bytes::gib(21)),
        // Regions of 4 GiB twice; the second one is split for both.
        ("tensorflow:allow_growth", Bytes::gib(7), Bytes::gib(8)),
        ("tensorflow:memory_limit=9GiB", Bytes::gib(7), Bytes::gib(9)),
        ("jax", Bytes::gib(7), Bytes::gib(18)),
        ("jax:fraction=0.5", Bytes::gib(7), Bytes::gib(12)),
        ("jax:preallocate=false", Bytes::gib(7), Bytes::gib(8)),
        ("jax:platform", Bytes::gib(7), Bytes::gib(7)),
        // Weights are set aside; regions of 2 and, doubled, 4 GiB.
        ("onnxruntime", Bytes::gib(7), Bytes::gib(10)),
        ("onnxruntime:same-as-requested", Bytes::gib(7), Bytes::gib(9)),
    ] {
        let choice: AllocatorChoice = text.parse().unwrap();
        let replay = choice.replay(&timeline(), &memory, &ReplayOptions::default());
        assert_eq!(replay.footprint.failure, None, "{text}");
        assert_eq!(
            (replay.footprint.allocated_peak, replay.footprint.reserved_peak),
            (in_use, reserved),
            "{text}"
        );
    }
}

#[test]
fn what_does_not_fit_says_how_much_it_would_be() {
    let memory =
        DeviceMemory { total: Bytes::gib(8), available: Bytes::gib(7), compute_major: Some(8) };
    for text in
        ["tensorflow", "jax:fraction=0.75", "jax:preallocate=false", "tensorflow:cuda_malloc_async"]
    {
        let choice: AllocatorChoice = text.parse().unwrap();
        let replay = choice.replay(&timeline(), &memory, &ReplayOptions::default());
        assert!(replay.footprint.failure.is_some(), "{text}");
        assert!(replay.footprint.allocated_peak >= Bytes::gib(7), "{text}");
    }
    // The growing pool of JAX grows past the weights, not into the gap: 6 GiB with a gap of 2, and 1 that is left,
    // do not make 3.
    let replay = |text: &str, memory| {
        let jax: AllocatorChoice = text.parse().unwrap();
        jax.replay(&timeline(), &memory, &ReplayOptions::default()).footprint
    };
    assert!(replay("jax", memory).failure.is_some());
    // 4.5 GiB, then nine tenths of nine tenths of the 4.5 that it would like.
    let memory =
        DeviceMemory { total: Bytes::gib(9), available: Bytes::mib(8704), compute_major: None };
    let grown = replay("jax:fraction=0.5+", memory);
    assert_eq!(grown.failure, None);
    assert_eq!(grown.reserved_peak.get() >> 20, 4608 + 3732);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(
        name in prop::sample::select(vec!["jax", "tf", "ort", "pytorch", "cuda-malloc-async", ""]),
        rest in ":?[a-z_=:,.0-9+-]{0,40}",
    ) {
        fuzz_choice(format!("{name}{rest}").as_bytes());
    }
}
