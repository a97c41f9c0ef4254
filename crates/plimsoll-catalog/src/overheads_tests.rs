//! Tests of contexts, workspaces and communicators against the readings they come from.

use super::*;
use crate::gpus::{Gpu, find_gpu, gpus};
use crate::machines::parse_machine;

/// The constants are the least-squares line through the points beside them.
#[test]
fn the_fit_is_the_fit() {
    let file = context_file();
    let n = file.points.len() as i128;
    let sum = |of: fn(&Point) -> u64| file.points.iter().map(|p| i128::from(of(p))).sum::<i128>();
    let (x, y) = (sum(|p| p.sms), sum(|p| p.mib));
    let (xx, xy) = (sum(|p| p.sms * p.sms), sum(|p| p.sms * p.mib));
    let spread = n * xx - x * x;
    let slope_kib = 1024 * (n * xy - x * y) / spread;
    let base_kib = (1024 * y - slope_kib * x) / n;
    assert!((slope_kib - i128::from(file.fit.kib_per_sm)).abs() <= 2, "{slope_kib}");
    assert!((base_kib - i128::from(file.fit.base_kib)).abs() <= 200, "{base_kib}");
}

#[test]
fn points_and_held_out_readings_lie_in_the_band() {
    let file = context_file();
    for point in file.points.iter().chain(&file.held_out) {
        assert_eq!(find_gpu(&point.gpu).unwrap().sms, Some(point.sms), "{}", point.gpu);
        let span = file.fit.span(point.sms);
        let reading = Bytes::mib(point.mib);
        assert!(span.low <= reading && reading <= span.high, "{}: {}", point.gpu, span.typical);
    }
}

#[test]
fn contexts_are_ordered_and_grow_with_the_card() {
    for software in ["torch", "vllm", "llama.cpp", "onnxruntime", "sglang", "jax", "Ollama"] {
        for gpu in gpus() {
            let span = context_bytes(&parse_machine(&gpu.id).unwrap(), software).unwrap();
            assert!(span.low <= span.typical && span.typical <= span.high, "{} {software}", gpu.id);
            assert!(span.high < gpu.usable.low, "{} {software}", gpu.id);
        }
    }
    let typical = |machine, software| {
        context_bytes(&parse_machine(machine).unwrap(), software).unwrap().typical
    };
    assert!(typical("a100-80g:1g.10gb", "torch") < typical("a100-80g", "torch"));
    assert!(typical("t4", "torch") < typical("h100-80g", "torch"));
    assert!(typical("v100-16g", "torch-eager") > typical("v100-16g", "torch") * 2);
    assert_eq!(typical("24GiB", "torch"), Bytes::mib(400));
    let error = context_bytes(&parse_machine("t4").unwrap(), "theano").unwrap_err();
    assert!(error.to_string().contains("llama.cpp"), "{error}");
}

fn capability(gpu: &Gpu) -> Option<u64> {
    let (major, minor) = gpu.target.compute_capability()?;
    Some(u64::from(major) * 10 + u64::from(minor))
}

#[test]
fn workspaces_follow_the_compute_capability() {
    for (id, cublas, cublaslt) in [
        ("a100-80g", 8_519_680, 4 << 20),
        ("h100-80g", 32 << 20, 32 << 20),
        ("v100-16g", 8_519_680, 1 << 20),
        ("rtx-4090", 8_519_680, 4 << 20),
        // Of an unknown library, as of an unknown device.
        ("mi300x", 8_519_680, 0),
    ] {
        let gpu = find_gpu(id).unwrap();
        assert_eq!(cublas_workspace(capability(gpu)).typical.get(), cublas, "{id}");
        assert_eq!(cublaslt_workspace(gpu).typical.get(), cublaslt, "{id}");
    }
    // Every NVIDIA device has a row.
    for gpu in gpus().filter(|gpu| gpu.vendor == "nvidia") {
        assert!(capability(gpu).is_some_and(|c| !cublas_workspace(Some(c)).guess || c >= 100));
        assert!(!cublaslt_workspace(gpu).typical.is_zero(), "{}", gpu.id);
    }
}

#[test]
fn communicators_and_engines_are_looked_up_by_world_and_version() {
    assert!(communicator_bytes(1).typical.is_zero());
    let mut last = Bytes::ZERO;
    for world in [1, 2, 3, 4, 8, 9, 16, 1024, 1_000_000] {
        let span = communicator_bytes(world);
        assert!(span.low <= span.typical && span.typical <= span.high && span.typical >= last);
        last = span.typical;
    }
    assert_eq!(nccl_channel_bytes(), Bytes::mib(4));
    for (version, world, mib) in [
        (Some("0.19.0"), 1, 256),
        (Some("v0.19"), 2, 2120),
        (Some("0.11.x"), 1, 100),
        (Some("0.7.3"), 2, 558),
        (Some("0.6.4 dev"), 2, 3666),
        (None, 4, 2243),
        (Some("nightly"), 8, 2243),
    ] {
        let growth = engine_growth("vllm", version, world).map(|span| span.typical);
        assert_eq!(growth, Some(Bytes::mib(mib)), "{version:?} {world}");
    }
    assert!(engine_start("vllm", None, 2).is_some());
    assert!(engine_start("vllm", None, 1).is_none());
    assert!(engine_growth("unknown", None, 1).is_none());
    assert_eq!(major_minor(""), None);
    assert_eq!(major_minor("99999999999999999999.1"), None);
}
