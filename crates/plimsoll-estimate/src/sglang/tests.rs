//! The engine's own defaults, its identity, and sums.

use plimsoll_catalog::models;
use plimsoll_model::hf;
use plimsoll_model::inventory::inventory;
use plimsoll_units::Bytes;

use super::estimate;
use crate::request::Sglang;
use crate::{Device, Estimate, Figure, Spread};

fn run(name: &str, request: &Sglang, device: &Device) -> Estimate {
    let entry = models::find(name).unwrap();
    let architecture = hf::from_config(entry.config.as_bytes()).unwrap().architecture;
    estimate(&architecture, &inventory(&architecture), None, request, device).unwrap()
}

fn device(mib: u64) -> Device {
    Device {
        name: "card".into(),
        usable: Bytes::mib(mib),
        free: None,
        count: 8,
        compute_capability: Some((9, 0)),
        unified: false,
        context: Spread { typical: Bytes::mib(500), ..Spread::default() },
    }
}

fn count(estimate: &Estimate, key: &str) -> u64 {
    match estimate.figures.iter().find(|(k, _)| k == key) {
        Some((_, Figure::Count(n))) => *n,
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn the_static_fraction_follows_the_device() {
    // 24 GB: 512 + 1.5·2048 + 2·24 + 1024/8 MiB are set aside; 80 GB: 512 + 1.5·8192 + 2·256 + 1024/8 MiB.
    for (mib, expected) in [(24_000, 843), (81_000, 834)] {
        let found = run("Qwen/Qwen3-0.6B", &Sglang::default(), &device(mib));
        assert_eq!(count(&found, "mem_fraction_static_permille"), expected);
    }
}

#[test]
fn the_latent_cache_is_whole_on_every_rank() {
    let tokens = |tensor| {
        let request = Sglang { tensor, static_permille: Some(900), ..Sglang::default() };
        run("deepseek-ai/DeepSeek-V2-Lite", &request, &device(81_000))
    };
    let per_token = |e: &Estimate| match e.figures.iter().find(|(k, _)| k == "kv_bytes_per_token") {
        Some((_, Figure::Bytes(bytes))) => bytes.get(),
        other => panic!("{other:?}"),
    };
    assert_eq!(per_token(&tokens(1)), 27 * 576 * 2);
    assert_eq!(per_token(&tokens(8)), 27 * 576 * 2);
}

#[test]
fn terms_and_categories_sum_to_the_device_peak() {
    for request in [
        Sglang::default(),
        Sglang {
            tensor: 2,
            draft_weights: Bytes::gib(1),
            speculative_tokens: 4,
            ..Sglang::default()
        },
        Sglang { static_permille: Some(10), ..Sglang::default() },
    ] {
        let found = run("Qwen/Qwen3-8B", &request, &device(81_000));
        let terms: Bytes = found.terms.iter().map(|t| t.bytes).sum();
        let categories: Bytes = found.categories.iter().map(|(_, b)| *b).sum();
        assert_eq!((terms, categories), (found.peak.device, found.peak.device));
    }
}

#[test]
fn a_fraction_below_the_weights_is_refused() {
    let request = Sglang { static_permille: Some(100), ..Sglang::default() };
    let found = run("Qwen/Qwen3-8B", &request, &device(24_000));
    let finding = found.diagnostics.iter().find(|d| d.code == "kv-below-one-request").unwrap();
    assert!(finding.cure.contains("--mem-fraction-static"), "{}", finding.cure);
}

#[test]
fn every_catalogued_model_is_estimated_or_refused_with_a_cure() {
    let large = u64::MAX;
    let extreme = Sglang {
        context: Some(large),
        chunked_prefill: Some(large),
        graph_batch: Some(large),
        speculative_tokens: large,
        draft_weights: Bytes::MAX,
        ..Sglang::default()
    };
    for entry in models::models() {
        let Ok(imported) = hf::from_config(entry.config.as_bytes()) else { continue };
        let list = inventory(&imported.architecture);
        for request in [&Sglang::default(), &extreme] {
            match estimate(&imported.architecture, &list, None, request, &device(81_000)) {
                Ok(found) => assert!(!found.terms.is_empty(), "{}", entry.name),
                Err(error) => assert!(error.to_string().contains("; "), "{error}"),
            }
        }
    }
}
