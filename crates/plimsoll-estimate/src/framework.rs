//! The same tensors under another allocator: an estimate that was made for PyTorch's, with reserved and driver-visible
//! bytes as another framework's policy makes them. The tensors stay those of the timeline.

use plimsoll_timeline::{
    AllocatorChoice, Category, DeviceMemory, Footprint, FrameworkReplay, ReplayOptions,
};
use plimsoll_units::Bytes;

use crate::Device;
use crate::term::{Assumption, Diagnostic, Estimate, Figure, Interval, Severity, Term};

/// Categories and peaks are wanted, no curve and no origins.
const REPLAY: ReplayOptions = ReplayOptions { points: 2, origins: 0 };

/// The memory of a device as a framework finds it.
pub fn device_memory(device: &Device) -> DeviceMemory {
    DeviceMemory {
        total: device.usable,
        available: device.capacity().saturating_sub(device.context.typical),
        compute_major: device.compute_capability.map(|(major, _)| major),
    }
}

/// What an estimate takes for granted where nobody names an allocator.
pub(crate) fn assumption(choice: &AllocatorChoice) -> Assumption {
    Assumption {
        about: "allocator".to_owned(),
        value: choice.describe(),
        reason: match choice.is_default() {
            true => "PYTORCH_CUDA_ALLOC_CONF is taken as unset",
            false => "decides what is reserved for the same tensors",
        }
        .to_owned(),
        option: "--allocator".to_owned(),
    }
}

/// Puts an estimate that has a timeline on the allocator of a choice; `capacity` is what the verdict compares with.
/// Peaks, categories, terms and interval change, and notes say what the framework's policy hides. The default choice
/// changes nothing, nor does an estimate without a timeline change.
pub fn apply(estimate: &mut Estimate, choice: &AllocatorChoice, device: &Device, capacity: Bytes) {
    let Some(timeline) = &estimate.timeline else { return };
    settings(estimate.diagnostics.as_mut(), choice);
    if choice.is_default() {
        return;
    }
    estimate.assumptions.retain(|a| a.about != "allocator");
    estimate.assumptions.push(assumption(choice));
    let replay = choice.replay(timeline, &device_memory(device), &REPLAY);
    let context = device.context.typical;
    let above = estimate.interval.high.saturating_sub(estimate.peak.device);
    let held = Held::of(&replay, choice, capacity.saturating_sub(context), above);
    categories(estimate, &replay.footprint, context);
    terms(estimate, &replay.footprint, choice, &held);
    let total = held.reserved + context + held.untouched;
    estimate.interval = interval(estimate, &held, total, device, capacity);
    estimate.peak.allocated = replay.footprint.allocated_peak;
    estimate.peak.reserved = held.reserved;
    estimate.peak.device = total;
    let phase = replay.footprint.peak_phase.map(|p| p.kind.label().to_owned());
    estimate.peak_phase = phase.or(estimate.peak_phase.take());
    let mut figure = |name: &str, bytes: Bytes| {
        estimate.figures.push((name.to_owned(), Figure::Bytes(bytes)));
    };
    figure("allocator_in_use_peak", replay.footprint.allocated_peak);
    if let Some(limit) = replay.limit {
        figure("allocator_limit", limit);
    }
    if let Some(bytes) = replay.preallocates {
        figure("allocator_preallocates", bytes);
    }
    remarks(&mut estimate.diagnostics, choice, &replay, &held);
}

/// What an allocator holds of a device.
struct Held {
    reserved: Bytes,
    /// The most that it can get.
    most: Bytes,
    /// What it leaves alone although the program does not fit into the rest; zero where the program fits.
    untouched: Bytes,
    fails: bool,
    preallocated: bool,
    /// The need at the upper end of the interval, where that is more than it can get.
    high: Option<Bytes>,
}

impl Held {
    fn of(
        replay: &FrameworkReplay,
        choice: &AllocatorChoice,
        available: Bytes,
        above: Bytes,
    ) -> Held {
        let f = &replay.footprint;
        let most = replay.limit.map_or(available, |limit| limit.min(available));
        let preallocated = replay.preallocates.is_some();
        // A cache is part of what PyTorch needs: it was kept because nothing fitted into it.
        let caches = matches!(choice, AllocatorChoice::PyTorch(_));
        let need = if caches { f.reserved_peak } else { f.allocated_peak };
        let Some(failure) = &f.failure else {
            let (reserved, untouched) = (f.reserved_peak, Bytes::ZERO);
            let high = Some(need + above).filter(|high| *high > most);
            return Held { reserved, most, untouched, fails: false, preallocated, high };
        };
        // Without limits it would hold as much; at the least, what was missing when it failed.
        let error = &failure.error;
        let free = error.free.unwrap_or(Bytes::ZERO);
        let missing = error.rounded.saturating_sub(free).max(Bytes::new(256));
        let need = need.max(most + missing);
        let untouched = available.saturating_sub(most);
        let high = Some(need + above);
        Held { reserved: need, most, untouched, fails: true, preallocated, high }
    }
}

fn categories(estimate: &mut Estimate, f: &Footprint, context: Bytes) {
    estimate.categories = f.live.by_category.clone();
    if !context.is_zero() {
        estimate.categories.push((Category::Context, context));
    }
}

/// Roots as before, as large as the other allocator makes them; the rest is what it holds and nobody uses.
fn terms(estimate: &mut Estimate, f: &Footprint, choice: &AllocatorChoice, held: &Held) {
    let roots = std::mem::take(&mut estimate.terms);
    let (context, roots): (Vec<Term>, Vec<Term>) =
        roots.into_iter().partition(|t| t.key == "context");
    let mut live: Vec<Term> = Vec::new();
    for (category, bytes) in &f.live.by_category {
        let key = category.label().replace(' ', "_");
        let same = |t: &&Term| t.key.eq_ignore_ascii_case(&key);
        let mut term = match roots.iter().find(same) {
            Some(term) => term.clone(),
            None => Term::new(key, category.label(), *bytes),
        };
        resize(&mut term, *bytes, choice.framework());
        live.push(term);
    }
    let sum: Bytes = live.iter().map(|t| t.bytes).sum();
    estimate.terms = live;
    let what = match held.preallocated {
        true => "taken from the start and not used",
        false => "reserved but free",
    };
    estimate.terms.push(
        Term::new("allocator", what, held.reserved.saturating_sub(sum))
            .formula("reserved peak - allocated peak")
            .input("reserved peak", held.reserved)
            .input("allocated peak", f.allocated_peak)
            .source(format!("replay on {}", choice.describe())),
    );
    if !held.untouched.is_zero() {
        estimate.terms.push(
            Term::new("policy", "left alone by the allocator's limit", held.untouched)
                .formula("device - context - limit")
                .input("limit", held.most),
        );
    }
    estimate.terms.extend(context);
}

/// Gives a term another size: what rounding adds is a child of its own, what it saves is taken off the largest.
fn resize(term: &mut Term, bytes: Bytes, framework: &str) {
    term.bytes = bytes;
    if term.children.is_empty() {
        return;
    }
    let sum: Bytes = term.children.iter().map(|t| t.bytes).sum();
    if bytes > sum {
        let label = format!("rounding by {framework}'s allocator");
        let rest = Term::new(format!("{}.allocator", term.key), label, bytes - sum);
        term.children.push(rest);
        return;
    }
    let mut over = sum - bytes;
    while !over.is_zero() {
        let Some(largest) = term.children.iter_mut().max_by_key(|t| t.bytes) else { return };
        let less = over.min(largest.bytes);
        if less.is_zero() {
            return;
        }
        resize(largest, largest.bytes - less, framework);
        over -= less;
    }
}

/// The tensors are as uncertain as before; a pool that was taken from the start is not, as long as they fit into it.
fn interval(
    estimate: &Estimate,
    held: &Held,
    total: Bytes,
    device: &Device,
    capacity: Bytes,
) -> Interval {
    let was = estimate.peak.device;
    let below = was.saturating_sub(estimate.interval.low);
    let above = estimate.interval.high.saturating_sub(was);
    let context = &device.context;
    let mut interval = match held.preallocated && !held.fails {
        true => Interval {
            low: total.saturating_sub(context.typical.saturating_sub(context.low)),
            high: total + context.high.saturating_sub(context.typical),
        },
        false => Interval { low: total.saturating_sub(below), high: total + above },
    };
    // Tensors at the upper end of their interval may not find room within the limit.
    if let Some(high) = held.high {
        interval.high = interval.high.max(capacity + high.saturating_sub(held.most));
    }
    interval
}

fn note(code: &str, message: String, cure: &str) -> Diagnostic {
    Diagnostic { severity: Severity::Note, code: code.into(), message, cure: cure.into() }
}

/// What PyTorch does with a text of settings that its author may not expect.
fn settings(diagnostics: &mut Vec<Diagnostic>, choice: &AllocatorChoice) {
    let AllocatorChoice::PyTorch(s) = choice else { return };
    diagnostics.extend(s.remarks.iter().map(|r| note("allocator-settings", r.clone(), "")));
    if !s.without_effect.is_empty() {
        let message = format!("{} change no byte of device memory", s.without_effect.join(", "));
        diagnostics.push(note("allocator-settings", message, ""));
    }
}

fn remarks(
    diagnostics: &mut Vec<Diagnostic>,
    choice: &AllocatorChoice,
    replay: &FrameworkReplay,
    held: &Held,
) {
    let framework = choice.framework();
    let need = replay.footprint.allocated_peak;
    if let (Some(bytes), false) = (replay.preallocates, held.fails) {
        let cure = match choice {
            AllocatorChoice::Jax(_) => "XLA_PYTHON_CLIENT_PREALLOCATE=false lets it grow instead",
            AllocatorChoice::TensorFlow(_) => "set_memory_growth(True) lets it grow instead",
            _ => "",
        };
        let message = format!(
            "nvidia-smi shows the policy, not the need: {framework} takes {bytes} with its first buffer, and uses \
             {need} of what it holds"
        );
        diagnostics.push(note("memory-policy", message, cure));
    }
    if let (false, Some(high)) = (held.fails, held.high) {
        let message = format!(
            "{framework} holds {} at most; tensors at the upper end of their interval need {high} of it",
            held.most
        );
        diagnostics.push(note("allocator-tight", message, ""));
    }
    if let Some(failure) = &replay.footprint.failure {
        let (missing, most) = (failure.error.rounded, held.most);
        diagnostics.push(note(
            "allocator-fails",
            format!(
                "{framework} holds {most} at most, and finds no room for a tensor of {missing}"
            ),
            "",
        ));
    }
    if !matches!(choice, AllocatorChoice::PyTorch(_)) {
        diagnostics.push(note(
            "tensors-of-pytorch",
            format!(
                "the tensors are those that PyTorch allocates; {framework}'s compiler and kernels may need others"
            ),
            "",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Inference;
    use crate::{Spread, inference};
    use plimsoll_model::{hf, inventory};

    fn device() -> Device {
        Device {
            name: "24 GiB".into(),
            usable: Bytes::gib(24),
            free: None,
            count: 1,
            compute_capability: Some((8, 9)),
            unified: false,
            context: Spread {
                low: Bytes::mib(300),
                typical: Bytes::mib(400),
                high: Bytes::mib(500),
                source: String::new(),
            },
        }
    }

    fn estimate(prompt: u64) -> Estimate {
        let config = br#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
            "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;
        let model = hf::from_config(config).unwrap().architecture;
        let request = Inference { prompt, generate: 16, ..Inference::default() };
        let list = inventory::inventory(&model);
        inference::estimate(&model, &list, &request, &device()).unwrap()
    }

    fn on(choice: &str, prompt: u64) -> Estimate {
        let mut e = estimate(prompt);
        apply(&mut e, &choice.parse().unwrap(), &device(), Bytes::gib(24));
        e
    }

    fn check_sums(e: &Estimate, what: &str) {
        let roots: Bytes = e.terms.iter().map(|t| t.bytes).sum();
        assert_eq!(roots, e.peak.device, "{what}");
        fn sums(t: &Term) {
            let children: Bytes = t.children.iter().map(|c| c.bytes).sum();
            assert!(t.children.is_empty() || children == t.bytes, "{}", t.key);
            t.children.iter().for_each(sums);
        }
        e.terms.iter().for_each(sums);
        assert!(e.interval.low <= e.peak.device && e.peak.device <= e.interval.high, "{what}");
    }

    #[test]
    fn the_default_changes_nothing() {
        let (plain, same) = (estimate(1024), on("pytorch", 1024));
        assert_eq!(
            (plain.peak, plain.interval, &plain.terms),
            (same.peak, same.interval, &same.terms)
        );
        let said = same.assumptions.iter().find(|a| a.about == "allocator").unwrap();
        assert_eq!(said.value, "PyTorch's caching allocator, default settings");
    }

    #[test]
    fn terms_sum_to_the_device_on_every_allocator() {
        for choice in [
            "pytorch:expandable_segments:True",
            "pytorch:per_process_memory_fraction:0.5",
            "cuda-malloc-async",
            "tensorflow",
            "tensorflow:allow_growth",
            "tensorflow:memory_limit=4GiB",
            "jax",
            "jax:preallocate=false,fraction=0.9",
            "jax:platform",
            "onnxruntime",
            "onnxruntime:same-as-requested",
        ] {
            check_sums(&on(choice, 1024), choice);
        }
    }

    #[test]
    fn a_policy_is_shown_beside_the_need() {
        let plain = estimate(1024);
        let jax = on("jax", 1024);
        assert_eq!(jax.peak.reserved, Bytes::gib(18));
        assert_eq!(jax.peak.device, Bytes::gib(18) + Bytes::mib(400));
        let need = jax.figures.iter().find(|f| f.0 == "allocator_in_use_peak").unwrap();
        assert_eq!(need.1, Figure::Bytes(jax.peak.allocated));
        assert!(jax.peak.allocated <= plain.peak.allocated + Bytes::gib(1));
        let remark = jax.diagnostics.iter().find(|d| d.code == "memory-policy").unwrap();
        assert!(
            remark.message.contains("takes 18.00 GiB with its first buffer"),
            "{}",
            remark.message
        );
    }

    /// 15 GiB of weights do not fit into 12, although the device has 24.
    #[test]
    fn a_limit_below_the_need_exceeds_the_device() {
        for choice in [
            "jax:fraction=0.5",
            "tensorflow:memory_limit=12GiB",
            "onnxruntime:gpu_mem_limit=12GiB",
            "pytorch:per_process_memory_fraction:0.5",
            "jax:preallocate=false,fraction=0.5",
        ] {
            let e = on(choice, 1024);
            let over = e.peak.device.saturating_sub(Bytes::gib(24));
            assert!(over > Bytes::gib(2) && over < Bytes::gib(8), "{choice}: {over}");
            assert!(e.diagnostics.iter().any(|d| d.code == "allocator-fails"), "{choice}");
            check_sums(&e, choice);
        }
    }

    #[test]
    fn a_need_that_may_exceed_the_limit_widens_the_interval() {
        let roomy = on("jax:fraction=0.75", 1024);
        assert!(roomy.interval.high < Bytes::gib(24));
        let need = on("jax", 1024).peak.allocated;
        let tight = format!("tensorflow:memory_limit={}", need.get() + (100 << 20));
        let tight = on(&tight, 1024);
        assert!(tight.peak.device < Bytes::gib(24) && tight.interval.high > Bytes::gib(24));
        assert!(tight.diagnostics.iter().any(|d| d.code == "allocator-tight"));
    }

    #[test]
    fn settings_without_effect_are_named() {
        let e = on("pytorch:release_lock_on_cudamalloc:True,max_split_size_mb:128MB", 64);
        let notes: Vec<&str> = (e.diagnostics.iter().filter(|d| d.code == "allocator-settings"))
            .map(|d| d.message.as_str())
            .collect();
        assert_eq!(
            notes,
            [
                "torch reads 128 of max_split_size_mb:128MB and drops `MB`",
                "release_lock_on_cudamalloc:True change no byte of device memory",
            ]
        );
    }
}
