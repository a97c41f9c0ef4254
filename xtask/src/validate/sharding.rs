//! `sharding` as a parallel layout.

use plimsoll_estimate::request::{PipelineSchedule, Sharding, ZeroStage};
use serde_json::{Map, Value};

use super::megatron::Args;
use super::row::{Row, before, flag, whole, words};

/// Ranks of a node, assumed where a Megatron row states neither ranks nor a data-parallel degree.
const NODE: u64 = 8;

struct Keys<'a>(Option<&'a Map<String, Value>>);

impl Keys<'_> {
    fn get(&self, names: &[&str]) -> Option<(String, &Value)> {
        self.0?.iter().find_map(|(key, value)| {
            let key = key.to_ascii_lowercase();
            (names.contains(&key.as_str()) && !value.is_null()).then_some((key, value))
        })
    }

    fn degree(&self, names: &[&str]) -> Option<u64> {
        self.get(names).and_then(|(_, v)| whole(v)).filter(|n| (1..=MOST).contains(n))
    }

    /// The entry of fully sharded data parallelism, in any of its spellings.
    fn fsdp(&self) -> Option<(String, &Value)> {
        self.starting(&["fsdp", "simplefsdp", "hsdp"])
    }

    /// `ZeRO`, `ZeRO-3`, `zero2`.
    fn zero(&self) -> Option<(String, &Value)> {
        self.starting(&["zero"])
    }

    fn starting(&self, starts: &[&str]) -> Option<(String, &Value)> {
        self.0?.iter().find_map(|(key, value)| {
            let key = key.to_ascii_lowercase();
            let found = starts.iter().any(|s| key.starts_with(s)) && !value.is_null();
            found.then_some((key, value))
        })
    }

    fn on(&self, names: &[&str]) -> bool {
        self.get(names).and_then(|(_, v)| flag(v)).unwrap_or(false)
    }
}

/// The most ranks that are believed.
const MOST: u64 = 1 << 20;

/// Data-parallel ranks, where the row says enough.
pub fn data_ranks(row: &Row) -> Option<u64> {
    let map = row.get("sharding").and_then(Value::as_object);
    let keys = Keys(map);
    let fsdp = || keys.fsdp().and_then(|(_, v)| whole(v)).filter(|n| (1..=MOST).contains(n));
    if let Some(stated) = keys.degree(&["dp"]).or(keys.degree(&["ddp"])).or_else(fsdp) {
        return Some(stated);
    }
    let degree = |name| keys.degree(&[name]).unwrap_or(1);
    let others = degree("tp").saturating_mul(degree("pp")).saturating_mul(degree("cp"));
    row.whole("n_gpus").map(|n| (n / others.max(1)).max(1))
}

/// The layout of a row with so many layers in its model.
pub fn layout(row: &Row, layers: u64) -> Result<(Sharding, Option<String>), String> {
    let mut sharding = Sharding::default();
    let Some(map) = row.get("sharding").and_then(Value::as_object) else {
        let text = row.lower("sharding");
        if text.contains("naive") || text.contains("device_map") {
            // One micro-batch passes through the devices, and the fullest is reported.
            sharding.pipeline = row.whole("n_gpus").or_else(|| before(&text, "gpu")).unwrap_or(2);
            sharding.schedule = PipelineSchedule::DeviceMap;
            let note = "layers dealt to devices by size";
            return Ok((sharding, Some(note.to_owned())));
        }
        if !(text.is_empty() || text == "none" || text == "false") {
            return Err(format!("sharding is not understood: {text}"));
        }
        let several = row.whole("n_gpus").is_some_and(|n| n > 1);
        let note = (several && text.is_empty()).then(|| "several GPUs without sharding".to_owned());
        return Ok((sharding, note));
    };
    let keys = Keys(Some(map));
    if let Some((key, value)) =
        map.iter().find(|(_, v)| v.as_str().is_some_and(|s| s.contains("SWIFT")))
    {
        return Err(format!(
            "degrees are not stated: {key} by {}",
            words(value).unwrap_or_default()
        ));
    }
    sharding.tensor = keys.degree(&["tp"]).unwrap_or(1);
    sharding.pipeline = keys.degree(&["pp"]).unwrap_or(1);
    sharding.context = keys.degree(&["cp"]).unwrap_or(1);
    sharding.expert = keys.degree(&["ep"]).unwrap_or(1);
    sharding.sequence = keys.on(&["sp"]) && sharding.tensor > 1;
    // `vocab_TP: false` gives every rank the logits of its own tokens instead of its own part of the vocabulary: as many.
    sharding.loss_parallel =
        keys.on(&["loss_parallel"]) || sharding.tensor > 1 && keys.get(&["vocab_tp"]).is_some();
    let mut note = None;
    data(row, &keys, &mut sharding, &mut note)?;
    pipeline(row, &keys, &mut sharding, layers);
    Ok((sharding, note))
}

fn data(
    row: &Row,
    keys: &Keys<'_>,
    sharding: &mut Sharding,
    note: &mut Option<String>,
) -> Result<(), String> {
    let others = sharding.tensor.saturating_mul(sharding.pipeline).saturating_mul(sharding.context);
    if let Some((key, value)) = keys.fsdp() {
        let stated = whole(value).filter(|n| (1..=MOST).contains(n));
        let ranks = stated.or_else(|| row.whole("n_gpus").map(|n| n / others)).unwrap_or(1).max(1);
        // FSDP shards over the context-parallel ranks too.
        sharding.data = ranks.saturating_mul(sharding.context);
        sharding.zero = match key.as_str() {
            "fsdp no_shard" => ZeroStage::Ddp,
            "fsdp2" | "simplefsdp" | "hsdp" => ZeroStage::Fsdp2,
            _ => ZeroStage::Fsdp1,
        };
        sharding.bucket_view = key == "fsdp no_shard";
        let reshard =
            keys.get(&["reshard_after_forward"]).and_then(|(_, v)| words(v)).unwrap_or_default();
        let never = matches!(reshard.as_str(), "never" | "false");
        // torchtitan's pipeline of FSDP stages keeps them unsharded between micro-batches.
        let staged = key == "fsdp2" && sharding.pipeline > 1 && reshard != "always";
        sharding.keep_unsharded = key == "fsdp shard_grad_op" || never || staged;
        if row.lower("precision").contains("fp32 gradient reduce") {
            sharding.reduce_bytes = Some(4);
        }
        return Ok(());
    }
    // The stage stands behind the colon, or in the key itself, and then the ranks behind the colon.
    let mut ranks = data_ranks(row);
    let stage = keys.zero().and_then(|(key, value)| {
        let digit = key.chars().find(char::is_ascii_digit);
        match digit.and_then(|d| d.to_digit(10)) {
            Some(stage) => {
                ranks = whole(value).filter(|n| (1..=MOST).contains(n)).or(ranks);
                Some(u64::from(stage))
            }
            None => whole(value),
        }
    });
    sharding.zero = match stage.filter(|s| *s > 0) {
        Some(1) => ZeroStage::One,
        Some(2) => ZeroStage::Two,
        Some(_) => ZeroStage::Three,
        None if keys.on(&["distributed_optimizer"]) => ZeroStage::DistributedOptimizer,
        None => ZeroStage::Ddp,
    };
    if let Some(args) = row.get("megatron_args").and_then(Value::as_object)
        && Args(args).on("use-megatron-fsdp")
    {
        sharding.zero = ZeroStage::Fsdp2;
    }
    if let Some(ranks) = ranks {
        sharding.data = ranks;
        return Ok(());
    }
    if sharding.zero > ZeroStage::Ddp {
        return Err(
            "ranks are not stated, and the share of the optimizer states hangs on them".into()
        );
    }
    let ranks = NODE.max(others).max(sharding.expert.saturating_mul(sharding.pipeline));
    *note = Some(format!("{ranks} ranks assumed: none are stated"));
    sharding.data = (ranks / others).max(1);
    Ok(())
}

/// FSDP1 until torch 2.1 does not reshard a module whose flat parameter needs no gradient: its post-backward hook hangs
/// on that gradient. Frozen layers stay whole once gathered.
pub fn frozen_parts(row: &Row, sharding: &mut Sharding, frozen: bool) {
    let version = row.lower("version");
    let old = ["torch 2.0", "torch 2.1"].iter().any(|v| version.contains(v));
    if frozen && old && sharding.zero == ZeroStage::Fsdp1 {
        sharding.keep_unsharded = true;
    }
}

fn pipeline(row: &Row, keys: &Keys<'_>, sharding: &mut Sharding, layers: u64) {
    let stages = sharding.pipeline;
    if stages <= 1 {
        return;
    }
    let schedule = keys
        .get(&["pp_schedule"])
        .and_then(|(_, v)| words(v))
        .unwrap_or_default()
        .to_ascii_lowercase();
    let notes = row.lower("notes");
    let per_chunk = keys.degree(&["virtual_pp_arg"]);
    sharding.schedule = if schedule.contains("gpipe") || notes.contains("gpipe") {
        PipelineSchedule::GPipe
    } else if schedule.contains("interleaved") {
        PipelineSchedule::Interleaved { chunks: 2 }
    } else if let Some(per_chunk) = per_chunk {
        // The argument counts layers per chunk.
        let chunks = layers / stages / per_chunk.max(1);
        if chunks > 1 {
            PipelineSchedule::Interleaved { chunks }
        } else {
            PipelineSchedule::OneFOneB
        }
    } else {
        PipelineSchedule::OneFOneB
    };
    if row.lower("reporting_rank").contains("last") {
        sharding.stage = Some(stages - 1);
    } else if let Some(rank) = row.whole("rank") {
        let ranks = row.whole("n_gpus").unwrap_or(stages);
        sharding.stage = Some(rank * stages / ranks.max(1));
    }
}
