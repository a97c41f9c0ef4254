//! Printed lines of logs as tables, the engine's refusals, and laws.

use plimsoll_catalog::models;
use plimsoll_model::inventory::inventory;
use plimsoll_model::{Architecture, Inventory, hf};
use plimsoll_units::{Bytes, DType};
use proptest::prelude::*;

use super::estimate;
use crate::kv::{CacheLayout, bytes_per_token, layer_caches};
use crate::request::{LoraServing, Version, Vllm};
use crate::tensor_parallel::StoredBytes;
use crate::{Device, Estimate, EstimateError, Figure, Spread};

fn model(name: &str) -> (Architecture, Inventory) {
    let entry = models::find(name).unwrap();
    let architecture = hf::from_config(entry.config.as_bytes()).unwrap().architecture;
    let list = inventory(&architecture);
    (architecture, list)
}

fn h100(count: u64) -> Device {
    Device {
        name: "NVIDIA H100 80GB".into(),
        usable: Bytes::mib(81_090),
        free: None,
        count,
        compute_capability: Some((9, 0)),
        unified: false,
        context: Spread { typical: Bytes::mib(522), ..Spread::default() },
    }
}

fn v(minor: u64) -> Option<Version> {
    Some(Version { major: 0, minor, patch: 0 })
}

fn run(name: &str, request: &Vllm, device: &Device) -> Result<Estimate, EstimateError> {
    let (architecture, list) = model(name);
    estimate(&architecture, &list, None, request, device)
}

fn count(estimate: &Estimate, key: &str) -> u64 {
    match estimate.figures.iter().find(|(k, _)| k == key) {
        Some((_, Figure::Count(n))) => *n,
        other => panic!("{key}: {other:?}"),
    }
}

fn mib(estimate: &Estimate, key: &str) -> f64 {
    match estimate.figures.iter().find(|(k, _)| k == key) {
        Some((_, Figure::Bytes(bytes))) => bytes.as_mib_f64(),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn bytes_per_token_match_published_values() {
    for (name, dtype, expected) in [
        ("meta-llama/Llama-3.1-8B", DType::Bf16, 131_072),
        ("openai/gpt-oss-20b", DType::Bf16, 49_152),
        ("deepseek-ai/DeepSeek-V3", DType::Bf16, 70_272),
        ("deepseek-ai/DeepSeek-V3", DType::F8E4M3, 40_016),
    ] {
        let layout = CacheLayout { tensor: 1, dtype, packed_latent: true };
        let (_, all) = bytes_per_token(&layer_caches(&model(name).0, &layout));
        assert_eq!(all, expected, "{name} {dtype}");
    }
}

/// GiB as logs print them, in MiB; a printed hundredth is 10.24 MiB.
#[test]
fn logs_of_0_19_come_out_as_printed() {
    for (name, tensor, util, weights, peak, tokens) in [
        ("meta-llama/Llama-3.1-8B", 1, 950, 14.99, 1.89, 476_016),
        ("google/gemma-2-27b", 1, 950, 50.72, 3.66, 58_672),
        ("google/gemma-7b", 1, 950, 15.91, 3.63, 129_760),
        ("Qwen/Qwen2.5-7B", 1, 950, 14.25, 2.21, 1_096_000),
        ("Qwen/Qwen2.5-7B", 4, 950, 3.55, 2.21, 5_043_280),
        ("Qwen/Qwen2.5-72B", 2, 950, 67.80, 2.29, 19_920),
        ("Qwen/Qwen3-30B-A3B", 1, 950, 56.88, 2.68, 168_288),
        ("openai/gpt-oss-20b", 2, 900, 7.01, 2.87, 2_591_776),
    ] {
        let request = Vllm {
            version: v(19),
            tensor,
            utilization_permille: Some(util),
            max_model_len: Some(8192),
            ..Vllm::default()
        };
        let found = run(name, &request, &h100(tensor)).unwrap();
        assert_eq!(count(&found, "max_num_seqs"), 1024);
        assert_eq!(count(&found, "max_num_batched_tokens"), 8192);
        assert!((mib(&found, "weights") / 1024.0 - weights).abs() < 0.15, "{name}");
        assert!((mib(&found, "profile_peak") / 1024.0 - peak).abs() < 0.05, "{name}");
        let error = count(&found, "kv_tokens") as f64 / tokens as f64 - 1.0;
        assert!(error.abs() < 0.02, "{name}: {error}");
    }
}

#[test]
fn terms_and_categories_sum_to_the_device_peak() {
    for request in [
        Vllm::default(),
        Vllm { prompt_logprobs: true, enforce_eager: true, ..Vllm::default() },
        Vllm { cpu_offload: Bytes::gib(4), ..Vllm::default() },
        Vllm { lora: LoraServing { count: 4, rank: 24 }, speculative_tokens: 3, ..Vllm::default() },
        Vllm { tensor: 2, pipeline: 2, expert: true, ..Vllm::default() },
        Vllm { weights: Some(DType::F8E4M3), cache: Some(DType::F8E4M3), ..Vllm::default() },
    ] {
        let found = run("meta-llama/Llama-3.1-8B", &request, &h100(4)).unwrap();
        let terms: Bytes = found.terms.iter().map(|t| t.bytes).sum();
        let categories: Bytes = found.categories.iter().map(|(_, b)| *b).sum();
        assert_eq!((terms, categories), (found.peak.device, found.peak.device), "{request:?}");
        for term in found.terms.iter().filter(|t| !t.children.is_empty()) {
            assert_eq!(
                term.children.iter().map(|t| t.bytes).sum::<Bytes>(),
                term.bytes,
                "{}",
                term.key
            );
        }
        assert!(
            found.interval.low <= found.peak.device && found.peak.device <= found.interval.high
        );
    }
}

#[test]
fn stored_tensors_decide_what_quantized_modules_weigh() {
    let (mut architecture, list) = model("Qwen/Qwen2.5-7B");
    architecture.quantization = Some(plimsoll_model::arch::Quantization {
        method: "awq".into(),
        dtype: DType::Int4G128,
        skip: vec!["lm_head".into()],
    });
    let mut tensors = Vec::new();
    let mut total = Bytes::ZERO;
    for parameter in &list.parameters {
        let packed = parameter.is_linear() && !parameter.name.contains("lm_head");
        let module = parameter.name.trim_end_matches(".weight");
        // An unusual layout on purpose: 6 bits and a scale for every 64.
        let parts = if packed {
            vec![("qweight", parameter.elements() * 3 / 4), ("scales", parameter.elements() / 32)]
        } else {
            vec![("weight", parameter.elements() * 2)]
        };
        for (part, bytes) in parts {
            total += Bytes::new(bytes);
            tensors.push((format!("{module}.{part}"), Bytes::new(bytes)));
        }
    }
    let stored = StoredBytes::new(tensors.iter().map(|(name, bytes)| (&**name, *bytes)));
    let request = Vllm { version: v(19), ..Vllm::default() };
    let found = estimate(&architecture, &list, Some(&stored), &request, &h100(1)).unwrap();
    let error = mib(&found, "weights") / total.as_mib_f64() - 1.0;
    assert!((0.0..0.02).contains(&error), "{error}");
}

#[test]
fn refusals_name_the_field_and_the_cure() {
    let turing = Device { compute_capability: Some((7, 5)), ..h100(8) };
    let ampere = Device { compute_capability: Some((8, 0)), ..h100(8) };
    for (request, device, wanted) in [
        (Vllm { tensor: 3, ..Vllm::default() }, h100(8), "use 2 or 4"),
        (Vllm { tensor: 16, ..Vllm::default() }, h100(8), "there are 8"),
        (Vllm { tensor: 0, ..Vllm::default() }, h100(8), "at least 1"),
        (Vllm { dtype: Some(DType::Bf16), ..Vllm::default() }, turing, "--dtype half"),
        (Vllm { cache: Some(DType::F8E4M3), ..Vllm::default() }, ampere, "8.9"),
        (Vllm { cache: Some(DType::Q4K), ..Vllm::default() }, h100(1), "kv_cache_dtype"),
        (Vllm { utilization_permille: Some(1200), ..Vllm::default() }, h100(1), "1.200"),
        (Vllm { max_num_seqs: Some(0), ..Vllm::default() }, h100(1), "max_num_seqs"),
    ] {
        let error = run("meta-llama/Llama-3.1-8B", &request, &device).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    // Without a type, the engine falls back to half.
    let turing = Device { compute_capability: Some((7, 5)), ..h100(1) };
    let found = run("meta-llama/Llama-3.1-8B", &Vllm::default(), &turing).unwrap();
    assert!(found.assumptions.iter().any(|a| a.value == "f16"));
}

#[test]
fn the_suggested_length_fits_and_one_more_does_not() {
    let small = Device { usable: Bytes::gib(22), name: "24 GB card".into(), ..h100(1) };
    let ask = |length| {
        let request = Vllm { version: v(19), max_model_len: Some(length), ..Vllm::default() };
        run("meta-llama/Llama-3.1-8B", &request, &small).unwrap()
    };
    let refused = |e: &Estimate| e.diagnostics.iter().any(|d| d.code == "kv-below-one-request");
    let whole = ask(131_072);
    assert!(refused(&whole) && whole.peak.device > small.usable);
    let longest = count(&whole, "longest_request");
    let finding = whole.diagnostics.iter().find(|d| d.code == "kv-below-one-request").unwrap();
    assert!(
        finding.cure.contains(&format!("lower --max-model-len to {longest}")),
        "{}",
        finding.cure
    );
    assert!(!refused(&ask(longest)));
    assert!(refused(&ask(longest + 1)));
}

#[test]
fn every_catalogued_model_is_estimated_or_refused_with_a_cure() {
    let large = u64::MAX;
    let requests = [
        Vllm::default(),
        Vllm { tensor: 8, expert: true, speculative_tokens: 2, ..Vllm::default() },
        Vllm {
            max_model_len: Some(large),
            max_num_seqs: Some(large),
            max_num_batched_tokens: Some(large),
            block_size: Some(large),
            speculative_tokens: large,
            lora: LoraServing { count: large, rank: large },
            cpu_offload: Bytes::MAX,
            draft_weights: Bytes::new(large / 2),
            prompt_logprobs: true,
            ..Vllm::default()
        },
        Vllm { tensor: large, ..Vllm::default() },
        Vllm { block_size: Some(0), max_model_len: Some(1), pipeline: 2, ..Vllm::default() },
    ];
    for entry in models::models() {
        let Ok(imported) = hf::from_config(entry.config.as_bytes()) else { continue };
        let architecture = imported.architecture;
        let list = inventory(&architecture);
        for (index, request) in requests.iter().enumerate() {
            match estimate(&architecture, &list, None, request, &h100(8)) {
                Ok(found) if index < 2 => {
                    let terms: Bytes = found.terms.iter().map(|t| t.bytes).sum();
                    assert_eq!(terms, found.peak.device, "{}", entry.name);
                    assert!(count(&found, "kv_tokens") < 1 << 40, "{}", entry.name);
                }
                Ok(_) => {}
                Err(error) => assert!(error.to_string().contains("; "), "{error}"),
            }
        }
    }
}

#[test]
fn a_busy_device_refuses_to_start() {
    let busy = Device { free: Some(Bytes::gib(60)), ..h100(1) };
    let found = run("meta-llama/Llama-3.1-8B", &Vllm::default(), &busy).unwrap();
    assert!(found.diagnostics.iter().any(|d| d.code == "startup-refused"));
}

#[test]
fn utilization_default_rises_in_0_22() {
    for (minor, expected) in [(21, 900), (22, 920)] {
        let request = Vllm { version: v(minor), ..Vllm::default() };
        let found = run("meta-llama/Llama-3.1-8B", &request, &h100(1)).unwrap();
        assert_eq!(count(&found, "utilization_permille"), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn larger_limits_never_leave_more_tokens(
        minor in 6u64..26,
        sequences in 1u64..1024,
        batched in 1024u64..32_768,
        more in 1u64..4096,
    ) {
        let ask = |sequences, batched| {
            let request = Vllm {
                version: v(minor),
                max_num_seqs: Some(sequences),
                max_num_batched_tokens: Some(batched),
                max_model_len: Some(8192),
                enforce_eager: true,
                ..Vllm::default()
            };
            let found = run("Qwen/Qwen3-0.6B", &request, &h100(1)).unwrap();
            (mib(&found, "profile_peak"), count(&found, "kv_tokens"))
        };
        let base = ask(sequences, batched);
        for larger in [ask(sequences + more, batched), ask(sequences, batched + more)] {
            prop_assert!(larger.0 >= base.0 && larger.1 <= base.1, "{base:?} {larger:?}");
        }
    }

    #[test]
    fn heavier_weights_leave_fewer_tokens(minor in 6u64..26, adapters in 0u64..16, draft in 0u64..16) {
        let ask = |adapters, draft| {
            let request = Vllm {
                version: v(minor),
                lora: LoraServing { count: adapters, rank: 64 },
                draft_weights: Bytes::gib(draft),
                ..Vllm::default()
            };
            count(&run("Qwen/Qwen3-0.6B", &request, &h100(1)).unwrap(), "kv_tokens")
        };
        let base = ask(adapters, draft);
        prop_assert!(ask(adapters + 1, draft) <= base);
        prop_assert!(ask(adapters, draft + 1) < base);
    }

    #[test]
    fn more_ranks_never_hold_more_each(power in 0u32..3, experts in any::<bool>()) {
        let (architecture, list) = model("Qwen/Qwen3-30B-A3B");
        let ask = |tensor| {
            let request = Vllm { version: v(19), tensor, expert: experts, ..Vllm::default() };
            let found = estimate(&architecture, &list, None, &request, &h100(16)).unwrap();
            mib(&found, "weights")
        };
        let tensor = 1 << power;
        prop_assert!(ask(tensor * 2) < ask(tensor));
    }
}
