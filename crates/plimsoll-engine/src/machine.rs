//! The machine of a request: the catalogue's facts as the estimator wants them.

use plimsoll_catalog::machines::{self, Machine};
use plimsoll_catalog::overheads;
use plimsoll_estimate::request::{Serving, Workload};
use plimsoll_estimate::{Device, Spread};
use plimsoll_units::Bytes;

use crate::error::EngineError;
use crate::response::MachineSummary;

/// Reads the machine text and what is free of it.
pub(crate) fn machine(text: &str, free: Option<Bytes>) -> Result<Machine, EngineError> {
    let fail = |error: machines::MachineError| EngineError::Machine { message: error.to_string() };
    let machine = machines::parse_machine(text).map_err(fail)?;
    match free {
        Some(free) => machine.with_free(free).map_err(fail),
        None => Ok(machine),
    }
}

/// Which software's context a workload pays for.
pub(crate) fn software(workload: Option<&Workload>) -> &'static str {
    match workload {
        Some(Workload::Serving(Serving::LlamaCpp(_))) => "llama.cpp",
        Some(Workload::Serving(Serving::Vllm(_))) => "vllm",
        Some(Workload::Serving(Serving::Sglang(_))) => "sglang",
        _ => "torch",
    }
}

/// What an estimate needs to know of one device.
pub(crate) fn device(machine: &Machine, workload: Option<&Workload>) -> Device {
    let capability = machine.gpu.and_then(|gpu| gpu.target.compute_capability());
    Device {
        name: machine.gpu.map_or_else(|| machine.usable.to_string(), |gpu| gpu.name.clone()),
        usable: machine.usable,
        free: machine.free,
        count: machine.count,
        compute_capability: capability.map(|(major, minor)| (u64::from(major), u64::from(minor))),
        unified: machine.gpu.is_some_and(|gpu| gpu.unified),
        context: context(machine, software(workload)),
    }
}

fn context(machine: &Machine, software: &str) -> Spread {
    match overheads::context_bytes(machine, software) {
        Ok(span) => Spread {
            low: span.low,
            typical: span.typical,
            high: span.high,
            source: span.source.to_owned(),
        },
        Err(_) => Spread::default(),
    }
}

pub(crate) fn summary(machine: &Machine) -> MachineSummary {
    let label = match (machine.gpu, machine.count) {
        (Some(_), _) => machine.label(),
        (None, 1) => format!("a device of {}", machine.usable),
        (None, n) => format!("{n} devices of {}", machine.usable),
    };
    MachineSummary {
        id: machine.label(),
        label,
        name: machine
            .gpu
            .map_or_else(|| format!("a device of {}", machine.usable), |gpu| gpu.name.clone()),
        count: machine.count,
        usable: machine.usable,
        free: machine.free,
    }
}

/// Catalogue GPUs of the same vendor and kind that offer at least a tenth more than `machine`, smallest first.
pub(crate) fn bigger(machine: &Machine) -> Vec<String> {
    let vendor = machine.gpu.map_or("nvidia", |gpu| gpu.vendor.as_str());
    let unified = machine.gpu.is_some_and(|gpu| gpu.unified);
    let mut larger: Vec<_> = plimsoll_catalog::gpus::gpus()
        .filter(|gpu| gpu.vendor == vendor && gpu.unified == unified)
        .filter(|gpu| gpu.usable.typical >= machine.budget().scale(11, 10))
        .collect();
    larger.sort_by(|a, b| a.usable.typical.cmp(&b.usable.typical).then_with(|| a.id.cmp(&b.id)));
    larger.into_iter().map(|gpu| gpu.id.clone()).collect()
}
