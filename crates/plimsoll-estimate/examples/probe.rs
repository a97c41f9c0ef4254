//! Scratch.
use plimsoll_estimate::request::*;
use plimsoll_estimate::*;
use plimsoll_units::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let data: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&args[1]).unwrap()).unwrap();
    let entry = data.as_array().unwrap().iter().find(|e| e["name"] == args[2].as_str()).unwrap();
    let t0 = std::time::Instant::now();
    let model = plimsoll_model::hf::from_value(&entry["config"]).unwrap().architecture;
    let inv = plimsoll_model::inventory::inventory(&model);
    println!("params {} {:?}", inv.elements(), t0.elapsed());
    let mut training = Training::default();
    let mut strategy = Strategy::default();
    for a in &args[3..] {
        let (k, v) = a.split_once('=').unwrap();
        match k {
            "b" => training.batch = v.parse().unwrap(),
            "s" => training.sequence = v.parse().unwrap(),
            "prec" => {
                training.precision = match v {
                    "bf16" => Precision::pure(DType::Bf16),
                    "fp32" => Precision::pure(DType::F32),
                    "amp" => Precision::autocast(DType::Bf16),
                    _ => panic!(),
                }
            }
            "attn" => {
                training.attention = match v {
                    "eager" => AttentionKernel::Eager,
                    "flash" => AttentionKernel::Flash,
                    _ => AttentionKernel::Sdpa,
                }
            }
            "ckpt" => {
                strategy.checkpointing = match v {
                    "full" => Checkpointing::Full,
                    "sel" => Checkpointing::Selective,
                    _ => Checkpointing::None,
                }
            }
            "form" => {
                training.optimizer_form = match v {
                    "loop" => OptimizerForm::Loop,
                    "fused" => OptimizerForm::Fused,
                    _ => OptimizerForm::Foreach,
                }
            }
            "stack" => {
                training.stack = match v {
                    "titan" => Stack::Torchtitan,
                    "fused" => Stack::TransformersFused,
                    "litgpt" => Stack::LitGpt,
                    "plain" => Stack::Plain,
                    _ => Stack::Transformers,
                }
            }
            "fsdp" => {
                strategy.sharding.data = v.parse().unwrap();
                strategy.sharding.zero = ZeroStage::Fsdp2;
            }
            "opt" => {
                training.optimizer = match v {
                    "none" => Optimizer::None,
                    _ => Optimizer::AdamW,
                }
            }
            "scope" => {
                training.scope = match v {
                    "fwd" => StepScope::Forward,
                    "fb" => StepScope::ForwardBackward,
                    _ => StepScope::SteadyStep,
                }
            }
            "lora" => {
                training.method = Method::Lora(Lora {
                    rank: v.parse().unwrap(),
                    targets: LoraTargets::QueryValue,
                    ..Lora::default()
                })
            }
            _ => panic!("{k}"),
        }
    }
    let device = Device {
        name: "x".into(),
        usable: Bytes::gib(80),
        free: None,
        count: 1,
        compute_capability: Some((8, 0)),
        unified: false,
        context: Spread::default(),
    };
    for _ in 0..3 {
        let t0 = std::time::Instant::now();
        let e = training::estimate(&model, &inv, &training, &strategy, &device).unwrap();
        let dt = t0.elapsed();
        println!(
            "allocated {} reserved {} phase {:?} events {} in {:?}",
            e.peak.allocated,
            e.peak.reserved,
            e.peak_phase,
            e.timeline.as_ref().unwrap().events().len(),
            dt
        );
        for (c, b) in &e.categories {
            print!("{} {}; ", c.label(), b);
        }
        println!();
    }
}
