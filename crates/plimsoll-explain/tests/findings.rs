//! Findings on programs whose memory is known.

mod emulator;

use emulator::program::{Frames, Program};
use emulator::{Op, Process};
use plimsoll_explain::{
    ExplainOptions, Explanation, Finding, Rule, StepRule, TuneOptions, Unusable, Weight, diff,
    explain, ranks, recording, tune, what_if,
};
use plimsoll_formats::snapshot::{Action, Snapshot, Stage};
use plimsoll_timeline::{Category, PyTorchConfig};
use plimsoll_units::Bytes;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

const INIT: Frames<'_> = &[
    ("/v/site-packages/torch/nn/modules/linear.py", 106, "__init__"),
    ("/home/u/model.py", 12, "__init__"),
    ("/home/u/train.py", 5, "<module>"),
];
const FORWARD: Frames<'_> = &[
    ("??", 0, "at::_ops::linear::call(at::Tensor const&)"),
    ("/v/site-packages/torch/nn/modules/linear.py", 125, "forward"),
    ("/v/site-packages/torch/nn/modules/module.py", 1740, "_call_impl"),
    ("/home/u/model.py", 20, "forward"),
    ("/v/site-packages/torch/nn/modules/module.py", 1740, "_call_impl"),
    ("/home/u/train.py", 9, "<module>"),
];
const LOSS: Frames<'_> = &[
    ("/v/site-packages/torch/nn/functional.py", 3104, "cross_entropy"),
    ("/home/u/train.py", 10, "<module>"),
];
const BACKWARD: Frames<'_> = &[
    ("??", 0, "at::_ops::mm::call(at::Tensor const&)"),
    ("??", 0, "torch::autograd::generated::MmBackward0::apply(x)"),
    ("??", 0, "torch::autograd::Engine::thread_main(x)"),
];
const OPTIMIZER: Frames<'_> = &[
    ("/v/site-packages/torch/optim/adamw.py", 380, "_multi_tensor_adamw"),
    ("/v/site-packages/torch/optim/optimizer.py", 493, "wrapper"),
    ("/home/u/train.py", 12, "<module>"),
];
const ZERO_GRAD: Frames<'_> = &[
    ("/v/site-packages/torch/optim/optimizer.py", 900, "zero_grad"),
    ("/home/u/train.py", 13, "<module>"),
];
const LOG: Frames<'_> = &[("/home/u/train.py", 14, "log")];

/// Steps of training with Adam; each size tells what it is.
fn training(steps: u64, leak: u64) -> Program {
    // Expandable segments split every block exactly, so that sizes are those of the requests.
    let mut config = PyTorchConfig::default();
    config.expandable_segments = true;
    let mut p = Program::new(config);
    let weight = 3 * MIB;
    for _ in 0..4 {
        p.alloc(INIT, weight);
    }
    let mut made_states = false;
    for _ in 0..steps {
        let activations: Vec<usize> = (0..4).map(|_| p.alloc(FORWARD, 5 * MIB)).collect();
        let loss = p.alloc(LOSS, 7 * MIB);
        let mut gradients = Vec::new();
        for activation in activations.into_iter().rev() {
            let scratch = p.alloc(BACKWARD, 2 * MIB);
            gradients.push(p.alloc(BACKWARD, weight));
            p.free(BACKWARD, activation);
            p.free(BACKWARD, scratch);
        }
        p.free(BACKWARD, loss);
        if !made_states {
            for _ in 0..8 {
                p.alloc(OPTIMIZER, weight);
            }
            made_states = true;
        }
        let scratch = p.alloc(OPTIMIZER, 9 * MIB);
        p.free(OPTIMIZER, scratch);
        for gradient in gradients {
            p.free(ZERO_GRAD, gradient);
        }
        if leak > 0 {
            p.alloc(LOG, leak);
        }
    }
    p
}

fn explained(snapshot: &Snapshot) -> Explanation {
    explain(&recording(snapshot, 0).unwrap(), &ExplainOptions::default())
}

fn find<'e>(explanation: &'e Explanation, code: &str) -> Option<&'e Finding> {
    explanation.findings.iter().find(|finding| finding.code == code)
}

fn categories(shares: &[plimsoll_explain::CategoryShare]) -> Vec<(Category, u64)> {
    let mut shares: Vec<_> =
        shares.iter().map(|share| (share.category, share.bytes.get() / MIB)).collect();
    shares.sort();
    shares
}

#[test]
fn training_is_sorted_by_purpose() {
    let snapshot = training(3, 0).dump();
    let explanation = explained(&snapshot);
    assert!(explanation.exact.exact);
    // The peak: everything but the gradients of the last three layers, once there are states.
    assert_eq!(
        categories(&explanation.peak.live.by_category),
        [
            (Category::Parameters, 12),
            (Category::Gradients, 3),
            (Category::OptimizerStates, 24),
            (Category::Activations, 22),
            (Category::LogitsAndLoss, 7),
        ]
    );
    let states = &explanation.end.live.by_category[0];
    assert_eq!((states.category, states.tensors), (Category::OptimizerStates, 8));
    assert_eq!(states.rules[0].name, Rule::KeptByOptimizer.words());
    assert_eq!(
        categories(&explanation.end.live.by_category),
        [(Category::Parameters, 12), (Category::OptimizerStates, 24)]
    );
    let lines: Vec<&str> =
        explanation.peak.live.by_line.iter().map(|share| share.name.as_str()).collect();
    assert!(lines.contains(&"u/model.py:20 forward"), "{lines:?}");
    let modules: Vec<&str> =
        explanation.peak.live.by_module.iter().map(|share| share.name.as_str()).collect();
    assert!(modules.contains(&"model:20/linear:125"), "{modules:?}");
    assert!(modules.contains(&"backward/MmBackward0"), "{modules:?}");
}

#[test]
fn blocks_from_before_the_recording_are_sorted_by_who_frees_them() {
    let mut p = Program::unrecorded(PyTorchConfig::default());
    let weight = p.alloc(INIT, 3 * MIB);
    let gradient = p.alloc(BACKWARD, 4 * MIB);
    let moment = p.alloc(OPTIMIZER, 5 * MIB);
    p.record();
    p.free(OPTIMIZER, moment);
    p.free(ZERO_GRAD, gradient);
    let snapshot = p.dump();
    let explanation = explained(&snapshot);
    let _ = weight;
    assert_eq!(
        categories(&explanation.peak.live.by_category),
        [(Category::Parameters, 3), (Category::Gradients, 4), (Category::OptimizerStates, 5)]
    );
    assert!(find(&explanation, "unrecorded").is_some());
}

#[test]
fn a_leak_is_found_with_its_bytes_and_line() {
    for leak in [MIB / 2, 3 * MIB] {
        let explanation = explained(&training(6, leak).dump());
        let [found] = explanation.leaks.as_slice() else { panic!("{:#?}", explanation.leaks) };
        assert_eq!(found.bytes_per_step, Bytes::new(leak));
        assert_eq!(found.tensors_per_step, 1);
        assert_eq!(found.line, "u/train.py:14 log");
        assert_eq!(found.held, Bytes::new(6 * leak));
        let finding = find(&explanation, "leak").unwrap();
        assert!(finding.sentence.contains("train.py:14 log"), "{}", finding.sentence);
    }
}

#[test]
fn what_is_made_once_or_freed_again_is_no_leak() {
    let explanation = explained(&training(6, 0).dump());
    assert_eq!(explanation.leaks, []);
    assert_eq!(explanation.steps.rule, Some(StepRule::OptimizerStacks));
    assert_eq!(explanation.steps.count(), 5);
}

#[test]
fn scopes_tell_the_steps_before_stacks_do() {
    let mut p = training(2, 0);
    for step in 0..4 {
        p.scope(&format!("ProfilerStep#{step}"), Stage::Start);
        let x = p.alloc(FORWARD, MIB);
        p.free(FORWARD, x);
        p.scope(&format!("ProfilerStep#{step}"), Stage::End);
    }
    let explanation = explained(&p.dump());
    assert_eq!(explanation.steps.rule, Some(StepRule::ProfilerSteps));
    assert_eq!(explanation.steps.count(), 3);
}

/// Passes of an inference loop; `layers` of each.
fn inference(passes: u64, layers: u64) -> Snapshot {
    const EMBED: Frames<'_> = &[("/home/u/model.py", 7, "embed")];
    const HEAD: Frames<'_> = &[("/home/u/model.py", 9, "head")];
    let mut p = Program::new(PyTorchConfig::default());
    for _ in 0..passes {
        let mut hidden = p.alloc(EMBED, 2 * MIB);
        for _ in 0..layers {
            let next = p.alloc(FORWARD, 3 * MIB);
            p.free(FORWARD, hidden);
            hidden = next;
        }
        let logits = p.alloc(HEAD, 4 * MIB);
        p.free(HEAD, hidden);
        p.free(HEAD, logits);
    }
    p.dump()
}

#[test]
fn passes_are_steps_and_layers_are_not() {
    let explanation = explained(&inference(5, 8));
    assert_eq!(explanation.steps.rule, Some(StepRule::Repetition));
    assert_eq!(explanation.steps.count(), 4);
    assert_eq!(explained(&inference(1, 8)).steps.rule, None);
}

fn limited(mib: u64) -> PyTorchConfig {
    let mut config = PyTorchConfig::default();
    config.capacity = Some(Bytes::mib(mib));
    config
}

/// Fills a device with segments of two large blocks and a small one, frees the large ones and asks for more than any
/// piece.
fn fragmented() -> Snapshot {
    const LARGE: Frames<'_> = &[("/home/u/a.py", 1, "large")];
    const SMALL: Frames<'_> = &[("/home/u/a.py", 2, "small")];
    let mut p = Program::new(limited(200));
    let mut large = Vec::new();
    for _ in 0..10 {
        // They fill a segment of 20 MiB; the half MiB that remains is not split off.
        large.push(p.alloc(LARGE, 9 * MIB));
        large.push(p.alloc(LARGE, 9 * MIB));
        p.alloc(SMALL, 3 * MIB / 2);
    }
    for tag in large {
        p.free(LARGE, tag);
    }
    assert_eq!(p.try_alloc(LARGE, 40 * MIB), None);
    p.dump()
}

#[test]
fn fragmentation_is_the_cause_where_enough_is_free() {
    let snapshot = fragmented();
    let recording = recording(&snapshot, 0).unwrap();
    let explanation = explain(&recording, &ExplainOptions::default());
    let failed = explanation.failed.as_ref().unwrap();
    assert_eq!(failed.rounded, Bytes::mib(40));
    assert_eq!(failed.capacity, Bytes::mib(200));
    assert!(!failed.limited);
    let found = &failed.state.fragmentation;
    let [part] = found.free.as_slice() else { panic!("{:#?}", found.free) };
    assert_eq!((part.why, part.bytes), (Unusable::TooSmall, Bytes::mib(180)));
    assert_eq!((part.blocks, found.largest_free), (10, Bytes::mib(18)));
    assert_eq!((found.pinned, found.pinned_free), (10, Bytes::mib(180)));
    assert_eq!(found.pinned_segments[0].lines, ["u/a.py:2 small"]);
    let finding = find(&explanation, "out-of-memory").unwrap();
    assert_eq!(finding.weight, Weight::Cause);
    assert!(finding.actions[0].contains("expandable_segments:True"), "{:?}", finding.actions);
    assert!(find(&explanation, "pinned-segments").is_some());
}

#[test]
fn a_limit_of_the_process_is_told_where_the_device_had_room() {
    let mut snapshot = fragmented();
    let oom = snapshot.traces[0].events.iter_mut().find(|e| e.action == Action::OutOfMemory);
    // What the driver has free stands where other events have their address.
    oom.unwrap().address = 60 << 30;
    let recording = recording(&snapshot, 0).unwrap();
    let explanation = explain(&recording, &ExplainOptions::default());
    let failed = explanation.failed.as_ref().unwrap();
    assert!(failed.limited);
    // Not the 60 GiB that it never had.
    assert_eq!(failed.capacity, Bytes::mib(200));
    let finding = find(&explanation, "out-of-memory").unwrap();
    assert!(finding.actions[0].contains("set_per_process_memory_fraction"), "{finding:#?}");
    assert!(finding.actions[1].contains("expandable_segments:True"), "{finding:#?}");
}

/// Blocks that own a MiB of slack each, and a request that needs what they own together.
#[test]
fn the_setting_that_would_have_helped_is_found() {
    let mut p = Program::new(limited(120));
    for _ in 0..9 {
        p.alloc(FORWARD, 11 * MIB);
    }
    assert_eq!(p.try_alloc(FORWARD, 13 * MIB), None);
    let snapshot = p.dump();
    let recording = recording(&snapshot, 0).unwrap();
    let mut config = recording.config.clone();
    config.capacity = Some(Bytes::mib(120));
    assert!(!what_if(&recording, &config).fits);
    config.expandable_segments = true;
    let outcome = what_if(&recording, &config);
    assert!(outcome.fits, "{:#?}", outcome.failure);

    let options = TuneOptions::for_recording(&recording, Some(Bytes::mib(120)));
    let tuning = tune(&recording, &options);
    assert!(!tuning.recorded.fits);
    let winner = tuning.winner.unwrap();
    assert_eq!(winner.environment, "PYTORCH_ALLOC_CONF=expandable_segments:True");
    assert_eq!(winner.reserved_peak, Bytes::mib(120));
    // Nothing helps where less than what is asked for is there.
    let options = TuneOptions::for_recording(&recording, Some(Bytes::mib(90)));
    let tuning = tune(&recording, &options);
    assert_eq!(tuning.winner, None);
    let closest = tuning.others[0].failure.as_deref().unwrap();
    assert!(closest.contains("more than the capacity"), "{closest}");
}

#[test]
fn too_much_in_use_is_said_where_nothing_is_free() {
    let mut p = Program::new(limited(100));
    for _ in 0..9 {
        p.alloc(FORWARD, 10 * MIB);
    }
    assert_eq!(p.try_alloc(FORWARD, 40 * MIB), None);
    let snapshot = p.dump();
    let recording = recording(&snapshot, 0).unwrap();
    let mut options = ExplainOptions::default();
    options.device_total = Some(Bytes::mib(130));
    let explanation = explain(&recording, &options);
    let finding = find(&explanation, "out-of-memory").unwrap();
    assert!(finding.sentence.contains("30.00 MiB are missing"), "{}", finding.sentence);
    assert!(finding.actions[0].contains("activations"), "{:?}", finding.actions);
    let outside = explanation.outside.unwrap();
    assert_eq!((outside.used, outside.outside), (Bytes::mib(120), Bytes::mib(30)));
    // A replay on the same capacity fails at the same request, one on more does not.
    let mut config = recording.config.clone();
    config.capacity = Some(Bytes::mib(100));
    assert!(what_if(&recording, &config).failure.unwrap().failed_in_recording);
    config.capacity = Some(Bytes::mib(130));
    assert!(what_if(&recording, &config).fits);
}

#[test]
fn memory_that_another_stream_holds_is_told_apart() {
    let mut p = Program::new(PyTorchConfig::default());
    let held = p.alloc(FORWARD, 30 * MIB);
    p.free_later(FORWARD, held);
    p.alloc(FORWARD, 40 * MIB);
    let explanation = explained(&p.dump());
    let part = explanation.peak.fragmentation.free[0];
    assert_eq!((part.why, part.bytes), (Unusable::Pending, Bytes::mib(30)));
    assert!(find(&explanation, "reserved-unused").unwrap().sentence.contains("another stream"));
}

#[test]
fn a_state_without_history_is_still_explained() {
    let mut p = Program::unrecorded(PyTorchConfig::default());
    p.alloc(INIT, 30 * MIB);
    let explanation = explained(&p.dump());
    assert_eq!(explanation.events, 0);
    assert_eq!(explanation.peak.live.bytes, Bytes::mib(30));
    assert!(explanation.remarks.iter().any(|remark| remark.text.contains("no history")));
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        5 => (1..(30 * MIB), 0..2u16).prop_map(|(size, stream)| Op::Alloc(size, stream, 0)),
        4 => any::<usize>().prop_map(Op::Free),
        1 => any::<usize>().prop_map(Op::FreeLater),
        1 => any::<usize>().prop_map(Op::Complete),
        1 => Just(Op::EmptyCache),
    ];
    prop::collection::vec(op, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Whatever the recording, each way of sorting adds up, what is free and in use adds up to what is reserved, and
    /// the curve reaches the peaks.
    #[test]
    fn figures_add_up(ops in ops(), cut in any::<prop::sample::Index>()) {
        let mut process = Process::new(PyTorchConfig::default());
        let cut = cut.index(ops.len());
        process.run(&ops[..cut]);
        process.record();
        process.run(&ops[cut..]);
        let snapshot = process.dump();
        let Ok(recording) = recording(&snapshot, 0) else { return Ok(()) };
        let mut options = ExplainOptions::default();
        options.listed = 1_000_000;
        let explanation = explain(&recording, &options);
        prop_assert!(explanation.exact.exact);
        for state in [&explanation.peak, &explanation.end] {
            let live = &state.live;
            prop_assert_eq!(live.bytes, state.in_use.allocated);
            prop_assert_eq!(live.requested, state.in_use.requested);
            prop_assert_eq!(live.by_category.iter().map(|s| s.bytes).sum::<Bytes>(), live.bytes);
            prop_assert_eq!(live.by_module.iter().map(|s| s.bytes).sum::<Bytes>(), live.bytes);
            prop_assert_eq!(live.by_line.iter().map(|s| s.bytes).sum::<Bytes>(), live.bytes);
            prop_assert_eq!(live.by_stack.iter().map(|s| s.bytes).sum::<Bytes>(), live.bytes);
            let free = state.fragmentation.free_bytes();
            prop_assert_eq!(free + state.in_use.allocated, state.in_use.reserved);
        }
        let peaks = explanation.exact.peaks;
        prop_assert_eq!(explanation.peak.in_use.allocated, peaks.allocated);
        let highest = explanation.curve.iter().map(|point| point.reserved).max();
        prop_assert!(highest.unwrap_or_default() <= peaks.reserved);
    }
}

/// Three tensors of two lines; the names of another program first, so that no number in the file is the same.
fn allocating(first: Frames<'_>, large: u64) -> Snapshot {
    let mut config = PyTorchConfig::default();
    config.expandable_segments = true;
    let mut p = Program::new(config);
    let tag = p.alloc(first, MIB);
    p.free(first, tag);
    p.alloc(LOG, 2 * MIB);
    p.alloc(LOG, 2 * MIB);
    p.alloc(FORWARD, large);
    p.dump()
}

#[test]
fn stacks_are_compared_by_what_they_say() {
    let (a, b) = (allocating(INIT, 10 * MIB), allocating(ZERO_GRAD, 30 * MIB));
    let (a, b) = (recording(&a, 0).unwrap(), recording(&b, 0).unwrap());
    let same = diff(&a, &a, 10);
    assert!(same.peak.by_stack.iter().all(|stack| stack.before == stack.after));
    assert_eq!(same.settings, []);
    assert!(same.findings[0].sentence.contains("the same as before"), "{:?}", same.findings);

    let difference = diff(&a, &b, 10);
    for state in [&difference.peak, &difference.end] {
        let [grown, log] = state.by_stack.as_slice() else { panic!("{:#?}", state.by_stack) };
        assert_eq!((grown.before, grown.after), (Bytes::mib(10), Bytes::mib(30)));
        assert_eq!(grown.line, "u/model.py:20 forward");
        assert_eq!((log.tensors_before, log.tensors_after), (2, 2));
        assert_eq!(state.by_category[0].name, "activations");
    }
    assert_eq!(difference.reserved_peak.before, Bytes::mib(22));
    assert_eq!(difference.reserved_peak.after, Bytes::mib(42));
    let grown = difference.findings.iter().find(|finding| finding.code == "stack-grew").unwrap();
    assert!(grown.sentence.contains("30.00 MiB at the peak instead of 10.00 MiB"));

    // A stack that is gone, and settings that changed.
    let other = inference(1, 2);
    let other = recording(&other, 0).unwrap();
    let difference = diff(&a, &other, 100);
    assert!(difference.peak.by_stack.iter().any(|stack| stack.after.is_zero()));
    assert_eq!(difference.settings[0].name, "expandable_segments");
}

#[test]
fn the_worst_rank_and_what_makes_it_so_are_found() {
    let snapshots: Vec<Snapshot> =
        [10, 10, 50, 10].iter().map(|mib| allocating(INIT, mib * MIB)).collect();
    let explained: Vec<Explanation> = snapshots.iter().map(explained).collect();
    let labelled: Vec<(String, &Explanation)> =
        (0..).zip(&explained).map(|(rank, e)| (format!("rank{rank}.pickle"), e)).collect();
    let found = ranks(&labelled);
    assert_eq!((found.worst, found.lightest), (2, 0));
    assert_eq!(found.imbalance, Bytes::mib(40));
    assert_eq!(found.by_category[0].name, "activations");
    assert_eq!(found.by_category[0].middle, Bytes::mib(10));
    assert_eq!(found.by_line[0].name, "u/model.py:20 forward");
    let codes: Vec<&str> = found.findings.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["worst-rank", "imbalance"]);
    // Two equal ranks have nothing to tell apart, and none at all is no panic.
    let found = ranks(&labelled[..2]);
    assert_eq!((found.imbalance, found.by_category.len()), (Bytes::ZERO, 0));
    assert_eq!(ranks(&[]).findings, []);
}

/// What one allocation on a stack is taken for, when it stays to the end and something else follows.
fn category_of(frames: Frames<'_>) -> Category {
    let mut p = Program::new(PyTorchConfig::default());
    p.alloc(frames, 5 * MIB);
    let other = p.alloc(FORWARD, 4096);
    p.free(FORWARD, other);
    let explanation = explained(&p.dump());
    explanation.end.live.by_stack[0].category
}

#[test]
fn stacks_tell_what_memory_is_for() {
    let call = ("/v/site-packages/torch/nn/modules/module.py", 1740, "_call_impl");
    let engine = ("??", 0, "torch::autograd::Engine::thread_main(x)");
    let train = ("/home/u/train.py", 1, "<module>");
    let cases: &[(Frames<'_>, Category)] = &[
        (INIT, Category::Parameters),
        (FORWARD, Category::Activations),
        (LOSS, Category::LogitsAndLoss),
        (OPTIMIZER, Category::OptimizerStates),
        (
            &[("/v/site-packages/safetensors/torch.py", 313, "load_file"), train],
            Category::Parameters,
        ),
        (
            &[("/v/site-packages/torch/nn/modules/module.py", 900, "_apply"), train],
            Category::Parameters,
        ),
        (&[("??", 0, "torch::autograd::AccumulateGrad::apply(x)"), engine], Category::Gradients),
        // Checkpointed layers: the first time a forward pass, the second time within the backward pass.
        (
            &[
                ("/home/u/model.py", 20, "forward"),
                call,
                ("/v/torch/utils/checkpoint.py", 1, "checkpoint"),
                train,
            ],
            Category::Activations,
        ),
        (
            &[
                ("/home/u/model.py", 20, "forward"),
                call,
                ("/v/torch/utils/checkpoint.py", 2, "recompute"),
                engine,
            ],
            Category::Activations,
        ),
        (
            &[
                ("??", 0, "at::cuda::getCurrentCUDABlasHandle(bool)"),
                ("/home/u/model.py", 20, "forward"),
                call,
                train,
            ],
            Category::Workspace,
        ),
        (
            &[
                ("??", 0, "c10d::ProcessGroupNCCL::allgather(x)"),
                ("/home/u/model.py", 20, "forward"),
                call,
                train,
            ],
            Category::Communication,
        ),
        (
            &[
                ("/v/site-packages/transformers/cache_utils.py", 120, "update"),
                ("/home/u/model.py", 20, "forward"),
                call,
                train,
            ],
            Category::KvCache,
        ),
        (&[("/v/vllm/worker/cache_engine.py", 80, "_allocate_kv_cache"), train], Category::KvCache),
        // Words within longer names mean nothing: einops' recipes, Megatron's schedules.
        (&[("/v/site-packages/einops/x.py", 1, "_apply_recipe"), train], Category::Activations),
        (
            &[
                ("/home/u/model.py", 20, "forward"),
                call,
                (
                    "/v/megatron/core/pipeline_parallel/schedules.py",
                    5,
                    "forward_backward_no_pipelining",
                ),
                train,
            ],
            Category::Activations,
        ),
        (&[("/home/u/a.py", 1, "main")], Category::Unknown),
    ];
    for (frames, expected) in cases {
        assert_eq!(category_of(frames), *expected, "{frames:?}");
    }
}

#[test]
fn persistent_sizes_in_threes_are_weights_and_moments() {
    let mut p = Program::unrecorded(PyTorchConfig::default());
    for size in [3 * MIB, 5 * MIB, 6 * MIB] {
        for _ in 0..3 {
            p.alloc(INIT, size);
        }
    }
    p.record();
    let activation = p.alloc(FORWARD, MIB);
    p.free(BACKWARD, activation);
    let scratch = p.alloc(OPTIMIZER, MIB);
    p.free(OPTIMIZER, scratch);
    let explanation = explained(&p.dump());
    let counts: Vec<(Category, u64)> =
        explanation.end.live.by_category.iter().map(|s| (s.category, s.tensors)).collect();
    assert_eq!(counts, [(Category::OptimizerStates, 6), (Category::Parameters, 3)]);
}

#[test]
fn a_recording_that_ends_in_the_backward_pass_still_shows_gradients() {
    let mut p = Program::new(PyTorchConfig::default());
    p.alloc(INIT, 3 * MIB);
    let activation = p.alloc(FORWARD, 5 * MIB);
    p.alloc(BACKWARD, 3 * MIB);
    p.alloc(BACKWARD, 4 * MIB);
    p.free(BACKWARD, activation);
    let explanation = explained(&p.dump());
    let shares = &explanation.end.live.by_category;
    let gradients = shares.iter().find(|share| share.category == Category::Gradients).unwrap();
    assert_eq!(gradients.tensors, 1);
    assert_eq!(gradients.rules[0].name, Rule::SizeOfParameter.words());
    assert!(shares.iter().any(|share| share.category == Category::Activations));
}

#[test]
fn pools_of_graphs_are_told_with_what_is_free_in_them() {
    let mut process = Process::new(PyTorchConfig::default());
    process.record();
    process.run(&[
        Op::Alloc(30 * MIB, 0, 0),
        Op::Alloc(12 * MIB, 0, 1),
        Op::Alloc(14 * MIB, 0, 1),
        Op::Free(1),
        Op::Alloc(40 * MIB, 0, 0),
    ]);
    let explanation = explained(&process.dump());
    let found = &explanation.peak.fragmentation;
    assert_eq!(found.private, Bytes::mib(26));
    let part = found.free.iter().find(|part| part.why == Unusable::OtherPool).unwrap();
    assert_eq!(part.bytes, Bytes::mib(12));
    let finding = find(&explanation, "private-pools").unwrap();
    assert!(finding.sentence.contains("26.00 MiB of the 96.00 MiB"), "{}", finding.sentence);
}
