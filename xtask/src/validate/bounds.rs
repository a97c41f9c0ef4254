//! Rows that only say whether a run fitted. Their `config` is a sentence; it is read into the fields of a measured row,
//! so that one reader serves both.

use serde_json::{Value, json};

use super::case::{Case, Kind, Verdict};
use super::row::{Row, after, before};
use super::settings::any;
use super::training;

/// Tokens of a packed row where the text says only that rows are packed (fms-acceleration packs 4,096).
const PACKED: u64 = 4096;

/// The row scored.
pub fn score(row: &Row) -> Case {
    let mut case = Case::of(row, Kind::Bound);
    match verdict(row, &mut case) {
        Ok(verdict) => case.verdict = Some(verdict),
        Err(reason) => case.reason = Some(reason),
    }
    case
}

/// Whether the run fitted, by the words of `kind`.
fn fitted(row: &Row) -> Result<bool, String> {
    let kind = row.lower("kind");
    if any(&kind, &["oom", "did not finish", "out of memory", "fail"]) && !kind.contains("bracket")
    {
        Ok(false)
    } else if any(&kind, &["fits", "bracket"]) {
        Ok(true)
    } else {
        Err(format!("kind is not understood: {kind}"))
    }
}

fn verdict(row: &Row, case: &mut Case) -> Result<Verdict, String> {
    let capacity = row.number("capacity_gib").ok_or("the capacity is not stated")?;
    let capacity = capacity * f64::from(1 << 30);
    let seen = fitted(row)?;
    let as_row = expand(row);
    let request = training::request(&as_row)?;
    let estimate = training::estimate(&request)?;
    case.settings = training::describe(&request);
    case.notes = request.notes.clone();
    case.model_kind = super::model::kind(&request.model.architecture).to_owned();
    let need = estimate.peak.device.get() as f64;
    let mut predicted = need <= capacity;
    // A bracket is right where the batch that ran fits and the one that failed does not.
    if let Some(fails) = row.whole("fails_batch").filter(|_| seen) {
        let mut next = as_row;
        next.set("micro_batch", fails);
        let more = training::estimate(&training::request(&next)?)?;
        predicted &= more.peak.device.get() as f64 > capacity;
    }
    Ok(Verdict { predicted, seen, bytes: (need, capacity) })
}

/// The row with the settings of its `config` in fields of their own.
pub fn expand(row: &Row) -> Row {
    let mut out = row.clone();
    let text = row.lower("config");
    let model = row.lower("model");
    let mut put = |key: &str, value: Option<Value>| {
        if let (None, Some(value)) = (row.get(key), value) {
            out.set(key, value);
        }
    };
    // The repository named in `source` is the software that ran, where no framework is stated.
    put("framework", Some(json!(format!("{text} {}", row.lower("source")))));
    let batch = ["micro batch", "per-device batch", "local batch", "batch"];
    let batch = row.whole("fits_batch").or_else(|| batch.iter().find_map(|k| after(&text, k)));
    put("micro_batch", batch.map(Value::from));
    let sequence = ["seq_len", "max_seq", "max_length", "seq", "ctx"];
    let sequence = sequence
        .iter()
        .find_map(|k| after(&text, k).or_else(|| after(&model, k)))
        .or_else(|| before(&text, "tokens"))
        .or_else(|| text.contains("packed").then_some(PACKED));
    put("seq_len", sequence.map(Value::from));
    put("precision", Some(json!(precision(&text))).filter(|p| p != ""));
    put("activation_checkpointing", Some(json!(checkpointing(&text))));
    let attention = ["naive attention", "flash-attn", "eager attention", "sdpa"];
    put("attention_impl", attention.iter().find(|a| text.contains(*a)).map(|a| json!(a)));
    put("compile", Some(json!(text.contains("compile"))));
    let gpus = before(&text, "gpu").or_else(|| after(&text, "devices in yaml")).unwrap_or(1);
    put("n_gpus", Some(json!(gpus)));
    put("sharding", Some(sharding(&text, gpus)));
    let kernels = text.split(',').next().unwrap_or("").trim().to_owned();
    put("framework_config", kernels.contains('-').then(|| json!(kernels)));
    let lora = row.lower("task").contains("lora");
    put("lora", lora.then(|| lora_defaults(&text, &model, &row.lower("source"))));
    if text.contains("cpu offload true") {
        put("offload", Some(json!("CPU offload")));
    }
    if text.contains("sgd") {
        put("optimizer", Some(json!("SGD momentum")));
    }
    out
}

fn precision(text: &str) -> String {
    let base = if any(text, &["nf4-dq"]) {
        "bf16-true, base nf4-dq"
    } else if any(text, &["nf4"]) {
        "bf16-true, base nf4"
    } else if text.contains("gptq") {
        "GPTQ 4-bit base, fp16 weights, fp16 AMP"
    } else if text.contains("bnb") {
        "NF4 base, bf16 pure"
    } else if any(text, &["bf16-true"]) {
        "bf16-true"
    } else if any(text, &["amp_fp8", "fp8"]) {
        "FSDP mixed precision: fp32 params, bf16 compute; float8"
    } else if any(text, &["full_shard", "torchtitan"]) {
        // FSDP keeps F32 shards and computes in bf16.
        "FSDP mixed precision: fp32 params, bf16 compute"
    } else if any(text, &["autocast", "amp"]) {
        if text.contains("fp16") { "fp16 AMP" } else { "fp32 params, bf16 autocast" }
    } else if text.contains("bf16") {
        "bf16"
    } else if text.contains("fp32") {
        "fp32"
    } else if any(text, &["fp16"]) {
        "fp16 AMP"
    } else if any(text, &["zero", "gc", "flash-attn"]) {
        "bf16"
    } else {
        ""
    };
    base.to_owned()
}

fn checkpointing(text: &str) -> &'static str {
    let without = ["no checkpointing", "checkpointing false", "no ac"];
    let with =
        ["full ac", "checkpointing true", "gradient checkpointing", "gradient_checkpointing"];
    let word = text.split([',', ' ']).any(|w| w == "gc" || w == "ac");
    if any(text, &without) {
        "none"
    } else if text.contains("selective") {
        "selective"
    } else if any(text, &with) || word {
        "full"
    } else {
        "none"
    }
}

fn sharding(text: &str, gpus: u64) -> Value {
    if text.contains("naive layer split") {
        return json!(format!("naive layer split over {gpus} gpus"));
    }
    let mut map = serde_json::Map::new();
    let mut put = |key: &str, value: Option<u64>| {
        if let Some(value) = value {
            map.insert(key.to_owned(), json!(value));
        }
    };
    let fsdp = after(text, "fsdp").filter(|n| *n > 0);
    put("TP", after(text, "tp"));
    put("PP", after(text, "pp"));
    put("CP", after(text, "cp"));
    put("EP", after(text, "ep"));
    match after(text, "zero") {
        Some(stage) => {
            put("ZeRO", Some(stage));
            put("DP", Some(gpus));
        }
        None if fsdp.is_some() => put("FSDP2", fsdp),
        None if any(text, &["fsdp", "full_shard"]) && gpus > 1 => {
            put("FSDP FULL_SHARD", Some(gpus))
        }
        None if gpus > 1 => put("FSDP", Some(gpus)),
        None => {}
    }
    if map.contains_key("TP") {
        map.insert("SP".to_owned(), json!(true));
    }
    if map.is_empty() { json!("none") } else { Value::Object(map) }
}

/// Adapters where the sentence does not describe them: the defaults of the software's own recipes.
fn lora_defaults(text: &str, model: &str, source: &str) -> Value {
    let rank = after(text, "rank").or_else(|| after(text, "r"));
    // LitGPT's config hub adapts every linear layer of Gemma, Phi-3 and TinyLlama, queries and values of the others.
    let hub = source.contains("config_hub");
    if hub && any(model, &["gemma", "phi-3", "tinyllama"]) {
        let targets = "query,key,value,projection,mlp,head";
        return json!({"r": rank.unwrap_or(16), "dropout": 0.1, "targets": targets});
    }
    if hub {
        return json!({"r": rank.unwrap_or(32), "dropout": 0.05, "targets": "query,value"});
    }
    if source.contains("litgpt") {
        json!({"r": rank.unwrap_or(8), "targets": "query,value"})
    } else if source.contains("fms") {
        json!({"r": rank.unwrap_or(16), "dropout": 0.1, "targets": "q_proj k_proj v_proj o_proj"})
    } else {
        json!({"r": rank.unwrap_or(8), "targets": "DEFAULT fused qkv"})
    }
}
