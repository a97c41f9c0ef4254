//! A measured training row as a request, and the estimate beside the measurement.

use plimsoll_catalog::machines::{Machine, parse_machine};
use plimsoll_catalog::overheads::{communicator_bytes, context_bytes};
use plimsoll_estimate::interval::{self, Counter};
use plimsoll_estimate::request::{
    Method, OptimizerForm, Stack, Strategy, Training, ZeroGrad, ZeroStage,
};
use plimsoll_estimate::{Device, Estimate, Spread, training};
use plimsoll_units::Bytes;
use serde_json::Value;

use super::case::{Case, Kind, Prediction};
use super::framework;
use super::model::{self, Model};
use super::row::{Row, number};
use super::{settings, sharding};

/// Everything an estimate needs.
pub struct Request {
    /// The model.
    pub model: Model,
    /// The step.
    pub training: Training,
    /// The layout.
    pub strategy: Strategy,
    /// The device.
    pub device: Device,
    /// What had to be assumed.
    pub notes: Vec<String>,
}

/// Tasks that no transformer builder covers yet, by words of `task`.
const NO_BUILDER: [(&str, &str); 6] = [
    ("diffusion", "diffusion models have no builder yet"),
    ("gan", "GANs have no builder yet"),
    ("cnn", "convolutional models have no builder yet"),
    ("vit", "vision training has no builder yet"),
    ("asr", "speech models have no training builder yet"),
    ("speech", "speech models have no training builder yet"),
];

/// The request that would reproduce a row; the error is the reason why there is none.
pub fn request(row: &Row) -> Result<Request, String> {
    let task = row.lower("task");
    if let Some((_, reason)) = NO_BUILDER.iter().find(|(word, _)| task.contains(word)) {
        return Err((*reason).to_owned());
    }
    let model = model::resolve(row)?;
    let entry = framework::of(row);
    let mut notes = Vec::new();
    let (method, note) = settings::method(row, entry, &model.architecture)?;
    notes.extend(note);
    let layers = model.architecture.layers().count() as u64;
    let (mut layout, note) = sharding::layout(row, layers)?;
    layout.loss_parallel |= layout.tensor > 1 && entry.is_some_and(|e| e.loss_parallel);
    layout.bucket_view |= entry.is_some_and(|e| e.reduces_in_place);
    let zero = entry.and_then(|e| match &method {
        Method::Full => e.full_zero,
        Method::Lora(l) if l.base.is_some() && settings::deepspeed(row) => e.quantized_zero,
        _ => None,
    });
    if layout.data == 1 {
        layout.zero = match zero {
            Some(2) => ZeroStage::Two,
            Some(3) => ZeroStage::Three,
            _ => layout.zero,
        };
    }
    sharding::frozen_parts(row, &mut layout, method != Method::Full);
    notes.extend(note);
    let (batch, accumulation) = settings::micro_batch(row, layout.pipeline, entry)?;
    // Only the first micro-batch is as long as that.
    let accumulation = if entry.is_some_and(|e| e.longest_first) { 1 } else { accumulation };
    let (sequence, target) = match model.lengths {
        Some((encoder, decoder)) => (encoder, Some(decoder)),
        None => (row.whole("seq_len").ok_or("sequence length is not stated")?, None),
    };
    let stack = settings::stack(row, entry);
    let full = method == Method::Full;
    let (optimizer, form) = settings::optimizer(row, entry)?;
    // DeepSpeed replaces AdamW by its FusedAdam.
    let form = if zero.is_some() { OptimizerForm::Fused } else { form };
    let device = device(
        row,
        [layout.data, layout.tensor, layout.pipeline, layout.context]
            .into_iter()
            .fold(1, u64::saturating_mul),
    )?;
    let precision = settings::mixed(
        row,
        entry,
        settings::precision(row, full, zero.is_some())?,
        &method,
        &layout,
    );
    let keeps = stack == Stack::Megatron
        || framework::before_torch_2(row)
        || entry.is_some_and(|e| e.keeps_gradients);
    let zero_grad = if keeps { ZeroGrad::Keep } else { ZeroGrad::AfterStep };
    let training = Training {
        method,
        precision,
        optimizer,
        optimizer_form: form,
        batch,
        sequence,
        target_sequence: target,
        lengths: settings::lengths(row, entry),
        accumulation,
        attention: settings::attention(row, entry, &model.architecture, device.compute_capability),
        loss: settings::loss(row, entry, stack, batch.saturating_mul(sequence)),
        stack,
        zero_grad,
        scope: settings::scope(row, entry),
        compile: settings::compile(row),
        dropout: true,
        ema: false,
        sparsity: None,
        expandable_segments: entry
            .is_some_and(|e| framework::since(row, e.expandable_from.as_deref())),
        reinforcement: None,
    };
    let strategy = Strategy {
        checkpointing: settings::checkpointing(row, entry)?,
        sharding: layout,
        offload: settings::offload(row, settings::deepspeed(row))?,
    };
    Ok(Request { model, training, strategy, device, notes })
}

/// The estimate of a request.
pub fn estimate(request: &Request) -> Result<Estimate, String> {
    let r = request;
    let guarded = std::panic::catch_unwind(|| {
        training::estimate(
            &r.model.architecture,
            &r.model.inventory,
            &r.training,
            &r.strategy,
            &r.device,
        )
    });
    match guarded {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("the estimate panicked".into()),
    }
}

/// The machine of a row: its name in the catalogue with the capacity that was seen, else the capacity alone.
pub fn machine(row: &Row) -> Result<Machine, String> {
    let text = row.text("gpu").unwrap_or_default();
    let capacity = row
        .number("gpu_mem_gib")
        .or_else(|| row.number("capacity_gib"))
        .map(|gib| Bytes::new((gib * f64::from(1 << 30)) as u64));
    let first = text.split(['/', '(']).next().unwrap_or("").trim();
    let spelled = first.replace('_', "-");
    let named = [text.as_str(), first, spelled.as_str()]
        .into_iter()
        .filter(|t| !t.is_empty())
        .find_map(|t| parse_machine(t).ok());
    match (named, capacity) {
        (Some(machine), Some(capacity)) => machine.with_usable(capacity).map_err(|e| e.to_string()),
        (Some(machine), None) => Ok(machine),
        (None, Some(capacity)) => Ok(Machine::bare(capacity, 1)),
        // No capacity is needed to say how much is used.
        (None, None) => Ok(Machine::bare(Bytes::gib(80), 1)),
    }
}

fn device(row: &Row, ranks: u64) -> Result<Device, String> {
    let machine = machine(row)?;
    let software = if framework::before_torch_2(row) { "torch-eager" } else { "torch" };
    let span = context_bytes(&machine, software).map_err(|e| e.to_string())?;
    let stated = row.get("also_measured").and_then(|a| a.get("cuda_context_mib")).and_then(number);
    let several = if ranks > 1 { Some(communicator_bytes(ranks)) } else { None };
    let mut context = match stated {
        Some(mib) => {
            let bytes = Bytes::mib(mib as u64);
            Spread { low: bytes, typical: bytes, high: bytes, source: "stated by the row".into() }
        }
        None => Spread {
            low: span.low,
            typical: span.typical,
            high: span.high,
            source: span.source.to_owned(),
        },
    };
    if let Some(extra) = several {
        context.low += extra.low;
        context.typical += extra.typical;
        context.high += extra.high;
    }
    Ok(Device {
        name: machine.label(),
        usable: machine.usable,
        free: None,
        count: ranks.max(1),
        compute_capability: machine.compute_capability(),
        unified: machine.is_unified(),
        context,
    })
}

/// The row scored.
pub fn score(row: &Row) -> Case {
    let mut case = Case::of(row, Kind::Training);
    let Some(measured) = row.number("measured_gib").filter(|g| *g > 0.0) else {
        case.reason = Some("no measured figure".into());
        return case;
    };
    match request(row).and_then(|r| estimate(&r).map(|e| (r, e))) {
        Err(reason) => case.reason = Some(reason),
        Ok((request, estimate)) => {
            case.model_kind = model::kind(&request.model.architecture).to_owned();
            case.workload = interval::workload(
                &request.model.architecture,
                &request.training,
                &request.strategy,
            );
            case.settings = describe(&request);
            case.notes = request.notes.clone();
            let metric = row.lower("metric");
            let gib = |g: f64| g * f64::from(1 << 30);
            // Scripts of one's own print `max_memory_allocated` where they do not say.
            let plain = request.training.stack == Stack::Plain;
            // torchtune's own logger prints `active_bytes.all.peak`.
            let active = row.lower("notes").contains("metric is peak \"active\"");
            let open = matches!(metric.as_str(), "" | "unspecified");
            let stated =
                if (plain || active) && open { "max_memory_allocated".to_owned() } else { metric };
            case.predictions.push(prediction(
                &stated,
                &case.workload,
                &estimate,
                gib(measured),
                true,
            ));
            for (metric, gib_value) in also(row) {
                case.predictions.push(prediction(
                    metric,
                    &case.workload,
                    &estimate,
                    gib(gib_value),
                    false,
                ));
            }
        }
    }
    case
}

/// Second readings of the same run.
fn also(row: &Row) -> Vec<(&'static str, f64)> {
    let Some(map) = row.get("also_measured").and_then(Value::as_object) else { return Vec::new() };
    let read = |key: &str| map.get(key).and_then(number);
    let mut list = Vec::new();
    list.extend(read("peak_active_gib").map(|g| ("max_memory_allocated", g)));
    list.extend(read("reserved_gib").map(|g| ("max_memory_reserved", g)));
    list.extend(read("nvidia_smi_peak_mib_mean").map(|m| ("nvidia-smi", m / 1024.0)));
    list
}

fn prediction(
    metric: &str,
    workload: &str,
    estimate: &Estimate,
    measured: f64,
    main: bool,
) -> Prediction {
    let peak = &estimate.peak;
    // An unstated counter is read as reserved memory: the middle of the three.
    let (value, counter) = match metric {
        "max_memory_allocated" => (peak.allocated, Counter::Allocated),
        "nvidia-smi" => (peak.device, Counter::Device),
        _ => (peak.reserved, Counter::Reserved),
    };
    let bounds = match counter {
        Counter::Device => estimate.interval,
        _ => interval::bounds(workload, counter, value),
    };
    let metric = if metric.is_empty() { "unspecified" } else { metric };
    Prediction {
        metric: if main { metric.to_owned() } else { format!("also-{metric}") },
        counter: counter.name(),
        main,
        predicted: value.get() as f64,
        measured,
        interval: Some((bounds.low.get() as f64, bounds.high.get() as f64)),
        bar: None,
        parts: estimate
            .categories
            .iter()
            .map(|(c, b)| (c.label().to_owned(), b.get() as f64))
            .collect(),
        phase: estimate.peak_phase.clone().unwrap_or_default(),
        others: format!(
            "a {:.2} r {:.2} d {:.2}",
            peak.allocated.as_gib_f64(),
            peak.reserved.as_gib_f64(),
            peak.device.as_gib_f64()
        ),
    }
}

pub fn describe(request: &Request) -> String {
    let t = &request.training;
    let s = &request.strategy.sharding;
    let method = match &t.method {
        Method::Lora(l) => format!(
            "lora r{} {:?} {:?}{}{}",
            l.rank,
            l.dtype,
            l.base.map(|b| b.dtype),
            if l.train_embeddings { " +emb" } else { "" },
            if l.dora { " dora" } else { "" },
        ),
        other => format!("{other:?}"),
    };
    let p = &t.precision;
    format!(
        "{} {method} w{:?} c{:?} g{:?} m{:?}{}{} {:?}/{:?} b{} s{} acc{} {:?} {:?} {:?} {:?} {:?} dp{} {:?} tp{} pp{} {:?} stage{:?} cp{} ep{}{}{}",
        request.model.name,
        p.weights,
        p.compute,
        p.gradients,
        p.master,
        if p.autocast { " amp" } else { "" },
        if p.fp8 { " fp8" } else { "" },
        t.optimizer,
        t.optimizer_form,
        t.batch,
        t.sequence,
        t.accumulation,
        t.attention,
        t.loss,
        t.stack,
        t.scope,
        request.strategy.checkpointing,
        s.data,
        s.zero,
        s.tensor,
        s.pipeline,
        s.schedule,
        s.stage,
        s.context,
        s.expert,
        if s.sequence { " sp" } else { "" },
        if t.compile { " compiled" } else { "" },
    )
}
