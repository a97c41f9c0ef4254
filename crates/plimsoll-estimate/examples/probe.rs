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
    let mut config = entry["config"].clone();
    for a in &args[3..] {
        if let Some(n) = a.strip_prefix("layers=") {
            let n: u64 = n.parse().unwrap();
            for k in [
                "num_hidden_layers",
                "n_layer",
                "num_layers",
                "n_layers",
                "encoder_layers",
                "decoder_layers",
                "num_decoder_layers",
            ] {
                if config.get(k).is_some() {
                    config[k] = n.into();
                }
            }
            if let Some(t) = config.get_mut("layer_types").and_then(|t| t.as_array_mut()) {
                t.truncate(n as usize);
            }
        }
    }
    let model = plimsoll_model::hf::from_value(&config).unwrap().architecture;
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
            "v" | "layers" => {}
            "dropout" => training.dropout = v == "1",
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
    let verbose = args.iter().any(|a| a == "v=1");
    let t0 = std::time::Instant::now();
    let e = training::estimate(&model, &inv, &training, &strategy, &device).unwrap();
    let dt = t0.elapsed();
    let t = e.timeline.as_ref().unwrap();
    println!(
        "allocated {} reserved {} phase {:?} events {} in {:?}",
        e.peak.allocated,
        e.peak.reserved,
        e.peak_phase,
        t.events().len(),
        dt
    );
    for (c, b) in &e.categories {
        print!("{} {}; ", c.label(), b);
    }
    println!();
    let f = plimsoll_timeline::replay_with(
        t,
        &Default::default(),
        &plimsoll_timeline::ReplayOptions { origins: 4000, points: 10 },
    );
    let params: u64 = e
        .categories
        .iter()
        .filter(|c| c.0 == plimsoll_timeline::Category::Parameters)
        .map(|c| c.1.get())
        .sum();
    println!("NET {:.2}", (e.peak.allocated.get() - params) as f64 / 1048576.0 - 8.125);
    if verbose {
        let mut m: std::collections::BTreeMap<String, (u64, u32)> = Default::default();
        for o in &f.live.by_origin {
            let x = m.entry(o.what.to_string()).or_default();
            x.0 += o.bytes.get();
            x.1 += o.tensors;
        }
        let mut v: Vec<_> = m.into_iter().collect();
        v.sort_by_key(|x| std::cmp::Reverse(x.1.0));
        for (k, (b, n)) in v.iter().take(40) {
            println!("   {:10.2} MiB x{} {}", *b as f64 / 1048576.0, n, k);
        }
    }
}
