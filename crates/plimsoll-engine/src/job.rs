//! A request, resolved: everything that an estimate needs, ready to be varied by searches and changes.

use std::sync::Arc;

use plimsoll_catalog::machines::Machine;
use plimsoll_estimate::request::{Inference, Strategy, Workload};
use plimsoll_estimate::training::Within;
use plimsoll_estimate::{Assumption, Estimate, Peak, Term, framework};
use plimsoll_model::arch::Ffn;
use plimsoll_timeline::{AllocatorChoice, Category};
use plimsoll_units::{Bytes, DType};

use crate::backend;
use crate::error::EngineError;
use crate::machine;
use crate::model::Model;
use crate::verdict::{Judgement, judge};

/// The largest estimate: 8 EiB, so that a margin, which may be negative, is exact.
const LARGEST: Bytes = Bytes::new(i64::MAX as u64);

/// One question to the estimator.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// `None` where only data is asked about.
    pub model: Option<Arc<Model>>,
    pub workload: Option<Workload>,
    pub strategy: Strategy,
    pub machine: Machine,
    pub residents: Vec<Resident>,
    /// Whose allocator serves the tensors.
    pub allocator: AllocatorChoice,
    /// What else lies on the device: input batches, weights that nothing describes.
    pub extra: Vec<Extra>,
}

/// Exact bytes on the device beside the model.
#[derive(Clone, Debug)]
pub(crate) struct Extra {
    pub category: Category,
    pub label: String,
    pub bytes: Bytes,
    /// Weights of a model that nothing describes.
    pub bare: bool,
}

/// A further model on the same device.
#[derive(Clone, Debug)]
pub(crate) struct Resident {
    pub model: Arc<Model>,
    pub inference: Inference,
}

impl Job {
    /// Bytes that one device offers.
    pub fn capacity(&self) -> Bytes {
        self.machine.budget().min(self.machine.usable_high)
    }

    /// Refuses arithmetic that the device has no units for and that no library emulates, and expert ranks where
    /// there are no experts.
    fn check(&self) -> Result<(), EngineError> {
        let ranks = self.strategy.sharding.expert;
        if ranks > 1
            && let Some(model) = &self.model
            && !model.architecture.layers().any(|l| matches!(l.ffn, Ffn::Moe(_)))
        {
            let message = format!("it is {ranks}, but {} has no experts; leave it out", model.name);
            return Err(EngineError::value("--ep", message));
        }
        match &self.workload {
            Some(Workload::Training(t)) if t.precision.fp8 => self
                .machine
                .check_dtype(DType::F8E4M3)
                .map_err(|lacks| EngineError::value("--precision", lacks)),
            _ => Ok(()),
        }
    }

    /// The estimate with all that shares the device.
    pub fn estimate(&self) -> Result<Estimate, EngineError> {
        match self.estimate_within(Bytes::MAX)? {
            Within::Estimate(estimate) => Ok(*estimate),
            Within::Exceeds { .. } => Err(EngineError::TooLarge),
        }
    }

    /// The estimate if it fits, or if that is not certain without it. Bounds are those of PyTorch's allocator.
    pub fn estimate_if_it_may_fit(&self) -> Result<Within, EngineError> {
        self.estimate_within(match self.allocator {
            AllocatorChoice::PyTorch(_) => self.capacity(),
            _ => Bytes::MAX,
        })
    }

    /// Whether a program that allocates that much exceeds the device.
    pub fn exceeds(&self, allocated: Bytes) -> bool {
        let device = machine::device(&self.machine, self.workload.as_ref());
        allocated + device.context.typical > self.capacity()
    }

    fn estimate_within(&self, limit: Bytes) -> Result<Within, EngineError> {
        self.check()?;
        let device = machine::device(&self.machine, self.workload.as_ref());
        let mut estimate = match (&self.model, &self.workload) {
            (Some(model), Some(workload)) => {
                match backend::estimate_within(model, workload, &self.strategy, &device, limit)? {
                    Within::Estimate(estimate) => *estimate,
                    exceeds => return Ok(exceeds),
                }
            }
            _ => context_only(&device.context),
        };
        framework::apply(&mut estimate, &self.allocator, &device, self.capacity());
        for resident in &self.residents {
            let workload = Workload::Inference(resident.inference.clone());
            let other =
                backend::estimate(&resident.model, &workload, &Strategy::default(), &device)?;
            share(&mut estimate, other, resident);
        }
        for extra in &self.extra {
            add(&mut estimate, extra.category, extra.bytes);
            let key = if extra.bare { "weights" } else { "inputs.data" };
            estimate.terms.push(Term::new(key, extra.label.clone(), extra.bytes));
        }
        match estimate.peak.device > LARGEST {
            true => Err(EngineError::TooLarge),
            false => Ok(Within::Estimate(Box::new(estimate))),
        }
    }

    /// Judges an estimate of this job.
    pub fn judge(&self, estimate: &Estimate) -> Judgement {
        judge(estimate, self.capacity())
    }
}

/// What a process holds that has loaded nothing yet.
fn context_only(context: &plimsoll_estimate::Spread) -> Estimate {
    let device = context.typical;
    Estimate {
        peak: Peak { allocated: Bytes::ZERO, reserved: Bytes::ZERO, device },
        interval: plimsoll_estimate::Interval { low: context.low, high: context.high },
        categories: vec![(Category::Context, device)],
        terms: vec![
            Term::new("context", "context and libraries", device).source(context.source.clone()),
        ],
        assumptions: Vec::new(),
        diagnostics: Vec::new(),
        peak_phase: None,
        peak_module: None,
        host: Bytes::ZERO,
        figures: Vec::new(),
        timeline: None,
    }
}

/// Adds exact bytes of a category to an estimate.
fn add(estimate: &mut Estimate, category: Category, bytes: Bytes) {
    estimate.peak.allocated += bytes;
    estimate.peak.reserved += bytes;
    estimate.peak.device += bytes;
    estimate.interval.low += bytes;
    estimate.interval.high += bytes;
    match estimate.categories.iter_mut().find(|(c, _)| *c == category) {
        Some((_, total)) => *total += bytes,
        None => {
            estimate.categories.push((category, bytes));
            estimate.categories.sort_by_key(|(c, _)| *c);
        }
    }
}

/// Adds a further model that runs in the same process: its context is not paid a second time. Both peaks are
/// assumed to coincide, which is an upper bound where the models take turns.
fn share(estimate: &mut Estimate, other: Estimate, resident: &Resident) {
    let mut children = Vec::new();
    for (category, bytes) in &other.categories {
        if *category != Category::Context {
            add(estimate, *category, *bytes);
            children.push(Term::new(
                format!("with.{}", category.label().replace(' ', "_")),
                category.label(),
                *bytes,
            ));
        }
    }
    // The other model's own spread widens the interval on both sides.
    let added: Bytes = children.iter().map(|t| t.bytes).sum();
    estimate.interval.high += other.interval.high.saturating_sub(other.peak.device);
    estimate.interval.low -= other.peak.device.saturating_sub(other.interval.low).min(added);
    let name = &resident.model.name;
    estimate.terms.push(Term::sum(format!("with.{name}"), format!("{name} beside it"), children));
    estimate.host += other.host;
    estimate.assumptions.push(Assumption {
        about: format!("{name} beside it"),
        value: format!(
            "batch {}, {} + {} tokens, in the same process, both peaks at once",
            resident.inference.batch, resident.inference.prompt, resident.inference.generate
        ),
        reason: "an upper bound where the models take turns".to_owned(),
        option: "--with NAME,batch=N,seq=N,dtype=T".to_owned(),
    });
}
