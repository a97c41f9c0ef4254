//! The readers on small rows: words in, settings out.

use plimsoll_estimate::request::{
    AdapterKind, AttentionKernel, Checkpointing, LoraTargets, Method, Optimizer, OptimizerForm,
    PipelineSchedule, Precision, ZeroStage,
};
use plimsoll_units::DType;
use serde_json::{Value, json};

use super::row::Row;
use super::{bounds, framework, model, settings, sharding, training};

fn row(value: &Value) -> Row {
    Row::new(value).unwrap()
}

#[test]
fn precisions() {
    let fsdp = Precision { compute: DType::Bf16, ..Precision::pure(DType::F32) };
    let amp = Precision { autocast: true, ..Precision::pure(DType::Bf16) };
    for (text, expected) in [
        ("fp32", Precision::pure(DType::F32)),
        ("bf16-true", Precision::pure(DType::Bf16)),
        ("bf16 (pure)", Precision::pure(DType::Bf16)),
        ("bf16 (pure, torch_dtype bfloat16, bf16=True autocast)", amp),
        ("bf16 weights + bf16 AMP", amp),
        ("fp32 params, bf16 autocast", Precision::autocast(DType::Bf16)),
        ("fp16 AMP", Precision::autocast(DType::F16)),
        ("FSDP mixed precision: fp32 params/optimizer, bf16 compute, fp32 gradient reduce", fsdp),
        (
            "bf16 params + fp32 main params/grads",
            Precision::master_weights(DType::Bf16, DType::F32),
        ),
    ] {
        let found = settings::precision(&row(&json!({"precision": text})), true, false);
        assert_eq!(found, Ok(expected), "{text}");
    }
    assert!(settings::precision(&row(&json!({})), true, false).is_err());
    let zero = json!({"precision": "bf16", "sharding": {"ZeRO": 2, "DP": 8}});
    let expected = Precision::master_weights(DType::Bf16, DType::Bf16);
    assert_eq!(settings::precision(&row(&zero), true, false), Ok(expected));
}

#[test]
fn optimizers() {
    for (text, framework, expected) in [
        ("AdamW", "Megatron-LM core", (Optimizer::AdamW, OptimizerForm::Fused)),
        ("AdamW (torch)", "ms-swift", (Optimizer::AdamW, OptimizerForm::Foreach)),
        ("torch AdamW foreach=False", "", (Optimizer::AdamW, OptimizerForm::Loop)),
        ("per-parameter AdamW", "", (Optimizer::AdamW, OptimizerForm::Loop)),
        ("AdamW fused into backward", "", (Optimizer::AdamW, OptimizerForm::InBackward)),
        ("bitsandbytes Adam8bit", "", (Optimizer::AdamW8bit, OptimizerForm::Fused)),
        ("Adafactor", "", (Optimizer::Adafactor, OptimizerForm::Loop)),
        ("SGD momentum", "", (Optimizer::Momentum, OptimizerForm::Foreach)),
        ("none", "", (Optimizer::None, OptimizerForm::Loop)),
    ] {
        let row = row(&json!({"optimizer": text, "framework": framework}));
        let found = settings::optimizer(&row, framework::of(&row));
        assert_eq!(found, Ok(expected), "{text}");
    }
    let paged = json!({"optimizer": "AdamW (bnb PagedAdamW when quantized)", "precision": "bf16-true, base bnb.nf4"});
    assert_eq!(settings::optimizer(&row(&paged), None).map(|o| o.0), Ok(Optimizer::PagedAdamW));
    let plain =
        json!({"optimizer": "AdamW (bnb PagedAdamW when quantized)", "precision": "bf16-true"});
    assert_eq!(settings::optimizer(&row(&plain), None).map(|o| o.0), Ok(Optimizer::AdamW));
}

#[test]
fn checkpoints() {
    for (value, expected) in [
        (json!("none"), Checkpointing::None),
        (json!(null), Checkpointing::None),
        (json!(true), Checkpointing::Full),
        (json!("full (every block)"), Checkpointing::Full),
        (json!("selective (per-op)"), Checkpointing::Selective),
        (json!("every 4 block(s), use_reentrant=False"), Checkpointing::Groups { k: 4 }),
    ] {
        let row = row(&json!({"activation_checkpointing": value}));
        assert_eq!(settings::checkpointing(&row, None), Ok(expected), "{row:?}");
    }
}

#[test]
fn layouts() {
    let torchtitan = json!({"sharding": {"FSDP2": 4, "CP": 2, "TP": 8, "PP": 8, "pp_schedule": "1F1B", "SP": true}});
    let (found, _) = sharding::layout(&row(&torchtitan), 126).unwrap();
    assert_eq!((found.data, found.context, found.tensor, found.pipeline), (8, 2, 8, 8));
    assert_eq!((found.zero, found.schedule), (ZeroStage::Fsdp2, PipelineSchedule::OneFOneB));
    assert!(found.sequence && found.keep_unsharded);

    let megatron = json!({
        "sharding": {"TP": 1, "PP": 4, "distributed_optimizer": true, "DP": 2, "virtual_pp_arg": 1},
        "reporting_rank": "last rank only (last pipeline stage: output layer + loss)",
    });
    let (found, _) = sharding::layout(&row(&megatron), 12).unwrap();
    assert_eq!(found.schedule, PipelineSchedule::Interleaved { chunks: 3 });
    assert_eq!((found.stage, found.data), (Some(3), 2));

    let dealt = json!({"sharding": "naive device_map layer split (2 GPUs, larger GPU reported)", "n_gpus": 2});
    assert_eq!(sharding::layout(&row(&dealt), 40).unwrap().0.pipeline, 2);
    let unstated = json!({"sharding": {"TP": 8, "PP": 1, "distributed_optimizer": true}});
    assert!(sharding::layout(&row(&unstated), 40).is_err());
    assert!(sharding::layout(&row(&json!({"sharding": "something else"})), 40).is_err());
}

#[test]
fn models() {
    for (text, layers, parameters) in [
        ("meta-llama/Llama-2-7b-hf (torchtrain llama_7b)", 32, 6_738_415_616),
        (
            "cs336 BasicsTransformerLM xl/2.7B (d2560, ff10240 SwiGLU, 32 layers, 32 heads, vocab 10000, untied)",
            32,
            3_406_809_600,
        ),
        (
            "Llama-2-7B shape truncated to 2 layer(s) (h4096, ffn11008, 32 heads, vocab 32000, untied)",
            2,
            666_914_816,
        ),
        ("MPT-style 7b", 32, 6_658_859_008),
    ] {
        let found = model::resolve(&row(&json!({"model": text, "seq_len": 2048}))).unwrap();
        assert_eq!(found.architecture.layers().count(), layers, "{text}");
        assert_eq!(found.inventory.elements(), parameters, "{text}");
    }
    assert!(model::resolve(&row(&json!({"model": "nobody/knows-this"}))).is_err());
    assert!(model::resolve(&row(&json!({}))).is_err());
}

#[test]
fn megatron_arguments() {
    let dense = json!({
        "model": "Megatron test", "megatron_args": {
            "num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32,
            "group-query-attention": true, "num-query-groups": 8, "vocab-size": 131073,
            "untie-embeddings-and-output-weights": true, "max-position-embeddings": 8192,
        }
    });
    let found = model::resolve(&row(&dense)).unwrap();
    let embedding = found.architecture.embedding.as_ref().unwrap();
    assert_eq!(embedding.vocab, 131_200);
    assert_eq!(model::kind(&found.architecture), "dense");
    let patterned = json!({"model": "Megatron test", "megatron_args": {"hybrid-layer-pattern": "M*M", "num-layers": 3}});
    assert!(model::resolve(&row(&patterned)).is_err());
}

#[test]
fn adapters() {
    let model = model::resolve(&row(&json!({"model": "meta-llama/Llama-3.2-3B"}))).unwrap();
    let read = |lora: Value| {
        let row = row(&json!({"task": "lora", "lora": lora}));
        match settings::method(&row, None, &model.architecture).unwrap().0 {
            Method::Lora(lora) => lora,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(json!({"r": 8, "targets": "all-linear"})).targets, LoraTargets::AllLinear);
    let names = |list: &[&str]| LoraTargets::Names(list.iter().map(|n| (*n).to_owned()).collect());
    assert_eq!(
        read(json!({"r": 8, "targets": ["v_proj", "q_proj"]})).targets,
        names(&["v_proj", "q_proj"])
    );
    let stated =
        read(json!({"trainable_params": 1_572_864, "targets": "query,value (default r=8)"}));
    assert_eq!((stated.rank, stated.targets), (8, names(&["query", "value"])));
    let dora = json!({"r": 32, "targets": ["q_proj", "v_proj"], "trainable_params": 9_289_728, "type": "LORA"});
    assert!(read(dora).dora);
    let scaled = json!({"adapter": "adapterv2", "trainable_params": 4_279_744});
    assert_eq!(read(scaled).kind, AdapterKind::ScaleShift);
    let saved = json!({"r": 64, "targets": "c_attn", "modules_to_save": "wte,lm_head"});
    assert!(read(saved).train_embeddings);
}

#[test]
fn sentences_of_bounds() {
    let row = row(&json!({
        "kind": "oom", "model": "Qwen/Qwen3-32B", "task": "pretrain", "gpu": "H100 96GB", "capacity_gib": 95.04,
        "config": "seq 4096, full AC, local batch 64, FSDP4 TP8, eager, torchtitan",
    }));
    let request = training::request(&bounds::expand(&row)).unwrap();
    let s = &request.strategy.sharding;
    assert_eq!((request.training.batch, request.training.sequence), (64, 4096));
    assert_eq!((s.data, s.tensor, s.zero), (4, 8, ZeroStage::Fsdp2));
    assert_eq!(request.strategy.checkpointing, Checkpointing::Full);
    assert_eq!(request.training.attention, AttentionKernel::Sdpa);
}

#[test]
fn rows_that_cannot_be_modelled_say_why() {
    for value in [
        json!({"measured_gib": 3.0, "task": "cnn-train (detection)", "model": "x"}),
        json!({"measured_gib": 3.0, "task": "pretrain", "model": "nobody/knows-this"}),
        json!({"measured_gib": "3", "task": "pretrain", "model": "meta-llama/Llama-2-7b-hf"}),
        json!({"task": "pretrain"}),
        json!({"engine": "unheard-of", "measured": {}}),
        json!({"kind": "oom", "config": "", "model": "x"}),
        json!({}),
    ] {
        let case = super::score_row(&row(&value));
        assert!(case.reason.is_some_and(|r| !r.is_empty()), "{value}");
    }
}

#[test]
fn spellings_of_layouts() {
    for (value, data, zero) in [
        (json!({"FSDP HYBRID_SHARD": 8}), 8, ZeroStage::Fsdp1),
        (json!({"ZeRO-3": 16}), 16, ZeroStage::Three),
        (json!({"ZeRO": 2, "nodes": 2, "DP": 4}), 4, ZeroStage::Two),
        (json!({"DDP": 8}), 8, ZeroStage::Ddp),
        (json!({"DP": "4"}), 4, ZeroStage::Ddp),
    ] {
        let (found, _) = sharding::layout(&row(&json!({"sharding": value})), 32).unwrap();
        assert_eq!((found.data, found.zero), (data, zero), "{value}");
    }
}

/// Any field may be missing, null, or of another kind: a row is then scored or listed with a reason, never a panic.
#[test]
fn damaged_rows_are_never_fatal() {
    let text = include_str!("../../../validation/cases/training.jsonl");
    for line in text.lines().step_by(61) {
        let Value::Object(map) = serde_json::from_str(line).unwrap() else { panic!("{line}") };
        for key in map.keys() {
            let big = json!(9_000_000_000_000_000_u64);
            for damage in [Value::Null, json!(""), json!(-1), big, json!([1]), json!({"x": {}})] {
                // Sizes that are believed would only make the run long.
                let sizes = ["seq_len", "micro_batch", "grad_accum", "local_batch"];
                if sizes.contains(&key.as_str()) && damage.is_u64() {
                    continue;
                }
                let mut copy = map.clone();
                copy.insert(key.clone(), damage);
                let _ = super::score_row(&row(&Value::Object(copy)));
            }
        }
    }
}
