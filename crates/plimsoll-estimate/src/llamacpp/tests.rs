//! Numbers that llama.cpp itself printed, and laws that any estimate must keep.

use plimsoll_model::Architecture;
use plimsoll_units::{Bytes, DType};
use proptest::prelude::*;

use super::estimate;
use crate::device::{Device, Spread};
use crate::error::EstimateError;
use crate::request::{LlamaCpp, Offload};
use crate::term::{Estimate, Figure};

fn model(config: &str) -> Architecture {
    plimsoll_model::hf::from_config(config.as_bytes()).unwrap().architecture
}

fn llama_3_8b() -> Architecture {
    model(
        r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": false}"#,
    )
}

fn card() -> Device {
    Device {
        name: "card".to_owned(),
        usable: Bytes::gib(24),
        free: None,
        count: 1,
        compute_capability: None,
        unified: false,
        context: Spread::default(),
    }
}

fn run(model: &Architecture, request: &LlamaCpp) -> Estimate {
    estimate(model, &[], request, &card()).unwrap()
}

fn figure(e: &Estimate, key: &str) -> Bytes {
    match e.figures.iter().find(|(k, _)| k == key) {
        Some((_, Figure::Bytes(b))) => *b,
        other => panic!("{key}: {other:?}"),
    }
}

/// MiB with two decimals, as logs print sizes.
fn printed(b: Bytes) -> String {
    let hundredths = (b.get() * 100 + (1 << 19)) >> 20;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[test]
fn llama_3_8b_compute_buffers_are_those_of_the_logs() {
    let m = llama_3_8b();
    let at = |context, flash_attention, cache, build, ubatch| LlamaCpp {
        context: Some(context),
        flash_attention,
        cache_k: cache,
        cache_v: cache,
        build,
        ubatch,
        ..LlamaCpp::default()
    };
    // (request, KV, compute) in MiB; logs of 2024 to 2026.
    let cases = [
        (at(512, false, DType::F16, Some(4000), 512), "64.00", "258.50"),
        (at(16_384, true, DType::F16, Some(5781), 1024), "2048.00", "613.01"),
        (at(16_384, true, DType::F16, None, 512), "2048.00", "124.01"),
        (at(131_072, true, DType::F16, None, 512), "16384.00", "236.01"),
        (at(65_536, true, DType::Q8_0, None, 512), "4352.00", "352.09"),
        (at(131_072, true, DType::Q4_0, None, 512), "4608.00", "672.09"),
    ];
    for (request, kv, compute) in cases {
        let e = run(&m, &request);
        assert_eq!(
            (printed(figure(&e, "kv")).as_str(), printed(figure(&e, "compute")).as_str()),
            (kv, compute),
            "{request:?}"
        );
    }
}

#[test]
fn terms_and_categories_sum_to_the_peak() {
    let mut device = card();
    device.context = Spread {
        low: Bytes::mib(150),
        typical: Bytes::mib(300),
        high: Bytes::mib(500),
        source: String::new(),
    };
    let request = LlamaCpp { context: Some(8192), mmproj: Bytes::mib(800), ..LlamaCpp::default() };
    let e = estimate(&llama_3_8b(), &[], &request, &device).unwrap();
    assert_eq!(e.terms.iter().map(|t| t.bytes).sum::<Bytes>(), e.peak.device);
    assert_eq!(e.categories.iter().map(|(_, b)| *b).sum::<Bytes>(), e.peak.device);
    assert!(e.interval.low <= e.peak.device && e.peak.device <= e.interval.high);
}

#[test]
fn several_devices_share_layers_and_keep_copies_of_the_inputs() {
    let device = Device { count: 2, ..card() };
    let request = LlamaCpp { context: Some(8192), ..LlamaCpp::default() };
    let e = estimate(&llama_3_8b(), &[], &request, &device).unwrap();
    let kv: Vec<u64> = (0..2).map(|i| figure(&e, &format!("device{i}.kv")).get() >> 20).collect();
    // 33 parts with the output layer: 17 and 16, the last without a cache.
    assert_eq!(kv, [544, 480]);
    assert!(e.diagnostics.iter().any(|d| d.code == "pipeline-copies"));
}

#[test]
fn every_model_of_the_catalogue_has_an_estimate_or_a_reason() {
    let request = LlamaCpp { context: Some(4096), ..LlamaCpp::default() };
    let mut estimated = 0;
    for entry in plimsoll_catalog::models::models().step_by(3) {
        let Ok(imported) = plimsoll_model::hf::from_config(entry.config.as_bytes()) else {
            continue;
        };
        let model = imported.architecture;
        let tensors = crate::weights::gguf_tensors(
            &model,
            &plimsoll_model::inventory::inventory(&model),
            "Q4_K_M",
        )
        .unwrap();
        let Ok(e) = estimate(&model, &tensors, &request, &card()) else { continue };
        estimated += 1;
        let compute = figure(&e, "compute");
        assert!(compute > Bytes::mib(1) && compute < Bytes::gib(8), "{}: {compute}", entry.name);
        assert_eq!(e.terms.iter().map(|t| t.bytes).sum::<Bytes>(), e.peak.device, "{}", entry.name);
    }
    assert!(estimated > 50, "{estimated}");
}

#[test]
fn absurd_widths_are_refused() {
    let mut m = llama_3_8b();
    m.hidden = u64::MAX / 2;
    let request = LlamaCpp { context: Some(4096), ..LlamaCpp::default() };
    let error = estimate(&m, &[], &request, &card()).unwrap_err();
    assert!(error.to_string().contains("hidden size"), "{error}");
}

#[test]
fn contradictions_are_errors_that_say_what_to_do() {
    let m = llama_3_8b();
    let base = LlamaCpp { context: Some(4096), ..LlamaCpp::default() };
    let cases = [
        (LlamaCpp { context: Some(0), ..base.clone() }, "context"),
        (LlamaCpp { context: Some(1 << 40), ..base.clone() }, "context"),
        (LlamaCpp { ubatch: 0, ..base.clone() }, "ubatch"),
        (LlamaCpp { cache_k: DType::Q6K, ..base.clone() }, "cache_k"),
        (LlamaCpp { flash_attention: false, cache_v: DType::Q8_0, ..base.clone() }, "cache_v"),
        (LlamaCpp { tensor_split: vec![1, 1], ..base.clone() }, "tensor_split"),
        (
            LlamaCpp {
                offload: Offload {
                    overrides: vec![("blk.(".to_owned(), true)],
                    ..Offload::default()
                },
                ..base
            },
            "offload.overrides",
        ),
    ];
    for (request, expected) in cases {
        match estimate(&m, &[], &request, &card()) {
            Err(EstimateError::Invalid { field, accepted, cure, .. }) => {
                assert_eq!(field, expected);
                assert!(!accepted.is_empty() && !cure.is_empty());
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn more_context_or_batch_never_needs_less(
        context in 256u64..40_000, ubatch in 32u64..1024, flash in any::<bool>(), build in 3000u64..10_000,
    ) {
        let m = llama_3_8b();
        let request = LlamaCpp {
            context: Some(context), ubatch, flash_attention: flash, build: Some(build), ..LlamaCpp::default()
        };
        let here = run(&m, &request);
        let wider = run(&m, &LlamaCpp { ubatch: ubatch * 2, ..request.clone() });
        let longer = run(&m, &LlamaCpp { context: Some(context * 2), ..request });
        prop_assert!(figure(&longer, "kv") >= figure(&here, "kv"));
        prop_assert!(longer.peak.device >= here.peak.device);
        prop_assert!(wider.peak.device >= here.peak.device);
    }

    #[test]
    fn more_layers_on_the_device_never_move_caches_off(n in 0u64..40) {
        let m = llama_3_8b();
        let at = |n| LlamaCpp {
            context: Some(2048),
            offload: Offload { gpu_layers: Some(n), ..Offload::default() },
            ..LlamaCpp::default()
        };
        let (fewer, more) = (run(&m, &at(n)), run(&m, &at(n + 1)));
        prop_assert!(figure(&more, "kv") >= figure(&fewer, "kv"));
        prop_assert_eq!(
            figure(&more, "kv") + figure(&more, "host_kv"),
            figure(&fewer, "kv") + figure(&fewer, "host_kv")
        );
    }
}
