//! Requests as JSON, through the whole facade: what is accepted, what is refused and how, and the laws of searches
//! and changes.

use plimsoll_engine::{ErrorKind, Response, Verdict, estimate_json};

fn answer(request: &str) -> Response {
    estimate_json(request).unwrap_or_else(|error| panic!("{request}: {error}"))
}

#[test]
fn refusals_say_whose_fault_it_is() {
    for (request, kind, words) in [
        ("", ErrorKind::Usage, "EOF"),
        ("5", ErrorKind::Usage, "invalid type"),
        (r#"{"modle": "gpt2"}"#, ErrorKind::Usage, "unknown field `modle`"),
        (
            r#"{"schema": "plimsoll.request/9", "model": "gpt2"}"#,
            ErrorKind::Usage,
            "plimsoll.request/1",
        ),
        (r#"{"machine": "h100-80g"}"#, ErrorKind::Usage, "no model"),
        (r#"{"model": "gpt2"}"#, ErrorKind::Usage, "no GPU"),
        (r#"{"model": 5, "machine": "h100-80g"}"#, ErrorKind::Usage, "a model is a name"),
        (r#"{"model": "gtp2", "machine": "h100-80g"}"#, ErrorKind::Model, "not in the catalogue"),
        (r#"{"model": "gpt2", "machine": "h1000"}"#, ErrorKind::Machine, "h1000"),
        (
            r#"{"model": {"config": {"model_type": "llama"}}, "machine": "h100-80g"}"#,
            ErrorKind::Model,
            "hidden_size",
        ),
        (
            r#"{"model": "gpt2", "machine": "h100-80g", "workload": {"train": {"optimizer": "adamv"}}}"#,
            ErrorKind::Usage,
            "adamw8bit",
        ),
        (
            r#"{"model": "gpt2", "machine": "h100-80g", "workload": {"vllm": {}}, "strategy": {"zero": "3"}}"#,
            ErrorKind::Usage,
            "belongs to training",
        ),
        (
            r#"{"model": "gpt2", "machine": "h100-80g", "workload": {"train": {"batch": 0}}}"#,
            ErrorKind::Usage,
            "at least 1",
        ),
        (
            r#"{"model": "gpt2", "machine": "h100-80g", "workload": {"train": {}}, "free": "1 gallon"}"#,
            ErrorKind::Usage,
            "not a size",
        ),
    ] {
        let error = estimate_json(request).expect_err(request);
        assert_eq!(error.kind(), kind, "{request}: {error}");
        assert!(error.to_string().contains(words), "{request}: {error}");
    }
}

#[test]
fn a_configuration_in_place_equals_the_catalogue() {
    let named = answer(
        r#"{"model": "gpt2", "machine": "rtx-3090", "workload": {"train": {"batch": 2, "seq": 512}}}"#,
    );
    let entry = plimsoll_catalog::models::find("gpt2").unwrap();
    let placed = answer(&format!(
        r#"{{"model": {{"config": {}}}, "machine": "rtx-3090", "workload": {{"train": {{"batch": 2, "seq": 512}}}}}}"#,
        entry.config
    ));
    assert_eq!(named.peak, placed.peak);
    assert_eq!(named.model.unwrap().parameters, 124_439_808);
}

#[test]
fn totals_are_the_sums_of_their_parts() {
    for workload in [
        r#"{"train": {"batch": 2, "seq": 512}}"#,
        r#"{"train": {"method": "qlora", "batch": 2, "seq": 512}}"#,
        r#"{"infer": {"batch": 4}}"#,
        r#"{"llama.cpp": {"ctx": 4096, "quant": "Q4_K_M"}}"#,
        r#"{"vllm": {"max_model_len": 4096}}"#,
        r#"{"sglang": {"context": 4096}}"#,
    ] {
        let r = answer(&format!(
            r#"{{"model": "llama-3.2-1b", "machine": "rtx-3090", "workload": {workload}}}"#
        ));
        let terms: u64 = r.terms.iter().map(|t| t.bytes.get()).sum();
        assert_eq!(terms, r.peak.device.get(), "{workload}");
        assert!(r.interval.low <= r.peak.device && r.peak.device <= r.interval.high, "{workload}");
        assert!(r.peak.allocated <= r.peak.reserved && r.peak.reserved <= r.peak.device);
        assert_eq!(r.margin, r.capacity.get() as i64 - r.peak.device.get() as i64);
    }
}

/// The checker is simpler than the search: walk up from 1 until a value fails. Reserved memory wobbles with the batch, so
/// that the search may pass a failing value on its way to a larger one that fits.
#[test]
fn a_search_reaches_what_a_linear_scan_does() {
    for (model, machine, seq) in
        [("gpt2", "4GiB", 256), ("gpt2", "8GiB", 512), ("bert-base-uncased", "6GiB", 128)]
    {
        let request = |batch: &str, find: &str| {
            format!(
                r#"{{"model": "{model}", "machine": "{machine}", "changes": false,
                    "workload": {{"train": {{{batch} "seq": {seq}}}}} {find}}}"#
            )
        };
        let found = answer(&request("", r#", "find": "batch""#)).search.unwrap();
        let fits = |n: u64| answer(&request(&format!(r#""batch": {n},"#), "")).fits;
        let scanned = (1..).take_while(|n| fits(*n)).last().unwrap_or(0);
        let value = found.value.unwrap_or(0);
        assert!(value >= scanned && (value == 0 || fits(value)), "{model} on {machine}");
        assert_eq!(found.next, value + 1);
        assert!(!fits(found.next) && !found.why.is_empty());
    }
}

#[test]
fn every_change_fits_when_it_is_made() {
    let base = r#""model": "llama-3.2-1b", "machine": "rtx-3090""#;
    let r = answer(&format!(r#"{{{base}, "workload": {{"train": {{"batch": 8, "seq": 2048}}}}}}"#));
    assert_eq!(r.verdict, Verdict::DoesNotFit);
    assert!(!r.changes.is_empty());
    assert!(r.changes.windows(2).all(|pair| pair[0].cost <= pair[1].cost));
    for change in &r.changes {
        assert!(change.device <= change.capacity, "{change:?}");
    }
}

#[test]
fn a_second_model_adds_its_own() {
    let alone = r#"{"model": "llama-3.2-1b", "machine": "rtx-3090", "workload": {"vllm": {"max_model_len": 4096}}}"#;
    let one = answer(alone);
    let both = answer(
        &alone.replace("\"workload\"", r#""with": [{"model": "bert-base-uncased"}], "workload""#),
    );
    assert!(both.peak.allocated.get() > one.peak.allocated.get() + 4 * 109_000_000);
    assert!(both.interval.low <= both.peak.device && both.peak.device <= both.interval.high);
    let data = r#"{"machine": "24GiB", "data": ["tokens:1000x1024:f16", "image:100x100x3:u8"], "data_batch": 2}"#;
    assert_eq!(answer(data).peak.allocated.get(), 2 * (1000 * 1024 * 2 + 100 * 100 * 3));
}

#[test]
fn the_same_request_gives_the_same_bytes() {
    let request = r#"{"model": "mixtral-8x7b", "machine": "h100-80g*2", "workload": {"vllm": {}}}"#;
    let json = || serde_json::to_string(&answer(request)).unwrap();
    assert_eq!(json(), json());
}

/// Searches end where the engine's own limits do, not in an error.
#[test]
fn searches_stop_at_the_limits_of_llama_cpp() {
    for (find, option, most) in [("concurrency", "--np", 4096), ("batch", "--ubatch", 1 << 20)] {
        let response = answer(&format!(
            r#"{{"model": "Qwen/Qwen2.5-0.5B", "machine": "64TiB", "workload": {{"llama.cpp": {{}}}}, "find": "{find}"}}"#
        ));
        let search = response.search.expect("a search was asked for");
        assert_eq!((search.option.as_str(), search.value), (option, Some(most)), "{}", search.why);
        assert!(search.why.contains("accepts at most"), "{}", search.why);
    }
}

/// PPO holds a reference, a reward and a value model beside the policy, and a rollout engine its share.
#[test]
fn models_beside_the_policy_are_counted() {
    let ask = |rl: &str| {
        answer(&format!(
            r#"{{"model": "gpt2", "machine": "h100-80g", "workload": {{"train": {{"batch": 1, "seq": 128{rl}}}}}}}"#
        ))
    };
    let (alone, grpo, ppo) = (ask(""), ask(r#", "rl": "grpo""#), ask(r#", "rl": "ppo""#));
    assert!(grpo.peak.device > alone.peak.device);
    assert!(ppo.peak.device > grpo.peak.device);
}

/// An estimate can be asked for another framework's allocator.
#[test]
fn an_allocator_can_be_chosen() {
    let ask = |more: &str| {
        answer(&format!(
            r#"{{"model": "llama-3.2-1b", "machine": "a100-80g", "workload": {{"train": {{"batch": 1, "seq": 512}}}}{more}}}"#
        ))
    };
    let plain = ask("");
    assert_eq!(plain.allocator, None);
    for (choice, description) in [
        ("pytorch", "PyTorch's caching allocator, default settings"),
        (
            "pytorch:expandable_segments:True",
            "PyTorch's caching allocator, expandable_segments:True",
        ),
        ("cuda-malloc-async", "PyTorch on the driver's pool, backend:cudaMallocAsync"),
        ("tensorflow", "TensorFlow's BFC allocator, all memory that it may use from the start"),
        ("tensorflow:allow_growth", "TensorFlow's BFC allocator, grows on demand"),
        ("jax", "JAX's BFC allocator, 0.75 of the device from the start, up to 1 on demand"),
        ("jax:platform", "JAX with cudaMalloc per buffer"),
        ("onnxruntime", "ONNX Runtime's BFC arena, regions that double"),
        ("onnxruntime:same-as-requested", "ONNX Runtime's BFC arena, regions as requested"),
    ] {
        let r = ask(&format!(r#", "allocator": "{choice}""#));
        let summary = r.allocator.as_ref().unwrap();
        assert_eq!((summary.choice.as_str(), summary.description.as_str()), (choice, description));
        let said = r.assumptions.iter().find(|a| a.about == "allocator").unwrap();
        assert_eq!((said.value.as_str(), said.option.as_str()), (description, "--allocator"));
        let terms: u64 = r.terms.iter().map(|t| t.bytes.get()).sum();
        assert_eq!(terms, r.peak.device.get(), "{choice}");
        assert!(
            r.peak.allocated <= r.peak.reserved && r.peak.reserved <= r.peak.device,
            "{choice}"
        );
        let remark = r.diagnostics.iter().any(|d| d.code == "memory-policy");
        assert_eq!(remark, choice == "jax" || choice == "tensorflow", "{choice}");
        if choice == "pytorch" {
            assert_eq!(r.peak, plain.peak);
        }
        assert!(plimsoll_engine::picture(&r).starts_with("<svg"), "{choice}");
    }
}

/// A pool that is taken from the start answers a search by what fits into it.
#[test]
fn a_search_obeys_the_limit_of_an_allocator() {
    let most = |choice: &str| {
        answer(&format!(
            r#"{{"model": "gpt2", "machine": "8GiB", "changes": false, "find": "batch",
                "workload": {{"train": {{"seq": 256}}}}, "allocator": "{choice}"}}"#
        ))
        .search
        .and_then(|s| s.value)
        .unwrap()
    };
    // PyTorch's cache leaves holes that best fit over one pool does not have.
    let batches = ["jax:fraction=0.5", "jax:fraction=0.75", "jax:fraction=0.9"].map(most);
    assert!(batches.is_sorted_by(|a, b| a < b), "{batches:?}");
    assert!(batches[0] < most("pytorch"));
}

#[test]
fn allocators_that_do_not_apply_are_refused() {
    for (more, message) in [
        (r#""allocator": "mxnet""#, "`mxnet` is not a known allocator"),
        (
            r#""allocator": "pytorch:max_split_size_mb:8""#,
            "max_split_size_mb is `8`, but it must be",
        ),
        (
            r#""allocator": "jax", "workload": {"vllm": {}}"#,
            "it belongs to training and plain inference",
        ),
        (r#""allocator": "jax", "with": [{"model": "gpt2"}]"#, "leave out --with and --data"),
    ] {
        let text = format!(r#"{{"model": "llama-3.2-1b", "machine": "rtx-4090", {more}}}"#);
        let error = estimate_json(&text).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("--allocator"), "{error}");
    }
}
