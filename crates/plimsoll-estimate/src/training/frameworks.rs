//! Peaks of training frameworks' own code: LitGPT on torch's meta device, loops and losses of Transformers and torchtune
//! by what they hold.

use plimsoll_catalog::models;
use plimsoll_model::{Architecture, build, hf, inventory};
use plimsoll_timeline::Category;
use plimsoll_units::{Bytes, DType};

use super::{build_options, estimate};
use crate::request::*;
use crate::{Device, Estimate, Spread};

fn named(name: &str, layers: u64) -> Architecture {
    let mut config: serde_json::Value =
        serde_json::from_str(models::find(name).unwrap().config).unwrap();
    config["num_hidden_layers"] = layers.into();
    hf::from_value(&config).unwrap().architecture
}

fn run(model: &Architecture, training: &Training, strategy: &Strategy) -> Estimate {
    let device = Device {
        name: "80 GiB".to_owned(),
        usable: Bytes::gib(80),
        free: None,
        count: 1,
        compute_capability: Some((8, 6)),
        unified: false,
        context: Spread::default(),
    };
    estimate(model, &inventory::inventory(model), training, strategy, &device).unwrap()
}

fn names(list: &[&str]) -> LoraTargets {
    LoraTargets::Names(list.iter().map(|n| (*n).to_owned()).collect())
}

/// LitGPT's `finetune/lora.py` with its defaults: BF16, dropout, chunked head.
fn litgpt(batch: u64, sequence: u64, lora: Lora) -> Training {
    Training {
        method: Method::Lora(Lora { dropout: true, dtype: DType::Bf16, ..lora }),
        precision: Precision::pure(DType::Bf16),
        batch,
        sequence,
        accumulation: 8,
        attention: AttentionKernel::Sdpa,
        stack: Stack::LitGpt,
        dropout: true,
        ..Training::default()
    }
}

/// Peaks of LitGPT 0.4.0 on the meta device in the third iteration (GiB): Fabric's casts around the model, flash
/// attention and fused dropout by their outputs, and bitsandbytes' 4-bit product until 0.43.1 by its code. The device adds
/// a workspace and the remainders that the allocator does not split off.
#[test]
fn peaks_equal_those_of_litgpt() {
    let some = ["query", "value"];
    let all = ["query", "key", "value", "projection", "mlp", "head"];
    let kept = WeightQuantization { keeps_inputs: true, ..WeightQuantization::of(DType::Nf4) };
    for (model, batch, sequence, targets, base, expected) in [
        ("mistralai/Mistral-7B-v0.1", 2, 512, &some[..], None, 3.093),
        ("mistralai/Mistral-7B-v0.1", 2, 512, &some[..], Some(kept), 2.500),
        ("stabilityai/stablelm-base-alpha-3b", 2, 1024, &some[..], None, 4.095),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 8, 512, &all[..], None, 3.509),
    ] {
        let model = named(model, 4);
        let lora = Lora { rank: 32, targets: names(targets), base, ..Lora::default() };
        let training = Training {
            optimizer: if base.is_some() { Optimizer::PagedAdamW } else { Optimizer::AdamW },
            optimizer_form: OptimizerForm::Fused,
            ..litgpt(batch, sequence, lora)
        };
        let e = run(&model, &training, &Strategy::default());
        let peak = e.peak.allocated.as_gib_f64();
        let error = (peak - expected) / expected;
        assert!(error.abs() < 0.03, "{}: {peak:.3} GiB, {expected} expected", model.family);
    }
}

/// One A for all of q, k and v, and a B for those that have one: the counts that LitGPT prints.
#[test]
fn joint_adapters_have_the_parameters_that_litgpt_prints() {
    for (name, layers, expected) in [
        ("meta-llama/Llama-2-7b-hf", 32, 4_194_304),
        ("meta-llama/Llama-2-13b-hf", 40, 6_553_600),
        ("microsoft/phi-1_5", 24, 1_572_864),
        ("stabilityai/stablelm-base-alpha-3b", 16, 2_097_152),
    ] {
        let model = named(name, layers);
        let lora = Lora { rank: 8, targets: names(&["query", "value"]), ..Lora::default() };
        let options = build_options(&model, &litgpt(1, 512, lora), &Strategy::default());
        let graph = build(&model, &inventory::inventory(&model), &options).unwrap();
        let learning = graph.owned_params().filter(|p| p.trainable).map(|p| p.elements);
        assert_eq!(learning.sum::<u64>(), expected, "{name}");
    }
}

/// Checkpoints on the host leave the device before the loss.
#[test]
fn offloaded_checkpoints_leave_the_device() {
    let model = named("meta-llama/Llama-3.2-3B", 8);
    let training = Training { batch: 2, sequence: 4096, ..Training::default() };
    let kept = Strategy { checkpointing: Checkpointing::Full, ..Strategy::default() };
    let mut moved = kept.clone();
    moved.offload.activations = true;
    let training = Training { scope: StepScope::ForwardBackward, ..training };
    let (kept, moved) = (run(&model, &training, &kept), run(&model, &training, &moved));
    // Eight checkpoints of 2 x 4096 x 3072 elements; the last is on the device while its layer runs.
    let one = training.precision.compute.bytes(2 * 4096 * 3072);
    assert!(moved.peak.allocated + one * 6 <= kept.peak.allocated);
    assert!(moved.host >= one * 8, "{}", moved.host);
}

/// Forms of the loss by what exists at once: Transformers 4.48 has BF16 logits, their F32 copy, its shifted copy and
/// log-probabilities; 4.45 has no BF16 logits then; 4.49 has no shifted copy.
#[test]
fn shifted_losses_hold_what_their_release_held() {
    let model = named("mistralai/Mistral-7B-v0.1", 1);
    let logits = |loss, batch| {
        let training = Training {
            precision: Precision::pure(DType::Bf16),
            optimizer: Optimizer::None,
            scope: StepScope::Forward,
            batch,
            sequence: 1024,
            loss,
            ..Training::default()
        };
        let e = run(&model, &training, &Strategy::default());
        let bytes = e.categories.iter().find(|(c, _)| *c == Category::LogitsAndLoss);
        let unit = 2 * 1024 * 32_000 * batch;
        (bytes.map_or(0, |(_, b)| b.get()) as f64 / unit as f64).round() as u64
    };
    assert_eq!(logits(Loss::Shifted { in_model: false }, 2), 7);
    assert_eq!(logits(Loss::Shifted { in_model: true }, 2), 6);
    assert_eq!(logits(Loss::CrossEntropy, 2), 5);
    // One sequence without its last position is contiguous as it is.
    assert_eq!(logits(Loss::Shifted { in_model: true }, 1), 4);
}
