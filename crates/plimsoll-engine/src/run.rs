//! Request in, response out.

use std::sync::Arc;

use plimsoll_catalog::inputs;
use plimsoll_estimate::request::{Inference, Serving, Strategy, Workload};
use plimsoll_estimate::{Estimate, framework};
use plimsoll_timeline::{AllocatorChoice, Category, ChoiceError};
use plimsoll_units::Bytes;

use crate::changes;
use crate::describe;
use crate::error::EngineError;
use crate::find;
use crate::job::{Extra, Job, Resident};
use crate::machine;
use crate::model::{self, Model, ModelSource};
use crate::request::{InferRequest, Request, WorkloadRequest};
use crate::response::{AllocatorSummary, CategoryBytes, Diagnostic, Response, Search, Summary};
use crate::weights;
use crate::workload;
use crate::{Choice, ESTIMATE_SCHEMA, REQUEST_SCHEMA};

/// Reads a request from JSON and answers it.
///
/// # Errors
///
/// [`EngineError::Request`] where the text is not a request, else as [`estimate`].
pub fn estimate_json(text: &str) -> Result<Response, EngineError> {
    estimate(&serde_json::from_str(text)?)
}

/// Answers a request.
///
/// ```
/// use plimsoll_engine::{Request, WorkloadRequest, estimate};
/// let request = Request {
///     machine: Some("24GiB".into()),
///     data: vec!["image:3840x2160x3:f32".into()],
///     data_batch: Some(8),
///     ..Request::default()
/// };
/// let response = estimate(&request)?;
/// assert_eq!(response.peak.allocated.get(), 8 * 3840 * 2160 * 3 * 4);
/// # Ok::<(), plimsoll_engine::EngineError>(())
/// ```
///
/// # Errors
///
/// [`EngineError`] says what is wrong with the request, the model or the machine, and what is accepted.
pub fn estimate(request: &Request) -> Result<Response, EngineError> {
    let mut job = resolve(request)?;
    let mut search: Option<Search> = None;
    if let Some(Choice(what)) = &request.find {
        search = Some(find::run(&mut job, *what)?);
    }
    let estimate = job.estimate()?;
    let judgement = job.judge(&estimate);
    let found = search.as_ref().is_some_and(|s| s.value.is_some());
    let wanted = request.changes && !judgement.verdict.fits() && !found;
    let changes = if wanted { changes::nearest(&job) } else { Vec::new() };
    let mut response = assemble(&job, estimate, request);
    response.fits = judgement.verdict.fits();
    response.verdict = judgement.verdict;
    response.reason = judgement.reason;
    response.search = search;
    response.changes = changes;
    Ok(response)
}

/// Resolves every name and word of a request.
pub(crate) fn resolve(request: &Request) -> Result<Job, EngineError> {
    if request.schema != REQUEST_SCHEMA {
        return Err(EngineError::Schema {
            found: request.schema.clone(),
            accepted: REQUEST_SCHEMA,
        });
    }
    if request.model.is_none() && request.data.is_empty() {
        return Err(EngineError::NoModel);
    }
    let text = request.machine.as_deref().ok_or(EngineError::NoMachine)?;
    let mut machine = machine::machine(text, request.free.map(|s| s.0))?;
    // One GPU that nobody counted becomes as many as the degrees ask for.
    if machine.count == 1 && !text.contains('*') {
        machine.count = workload::asked_ranks(&request.strategy);
    }
    let devices = machine.count;
    let bare = bare_weights(request);
    let source = request.model.as_ref().filter(|_| bare.is_none());
    let mut model = source.map(model::resolve).transpose()?;
    let mut residents = Vec::with_capacity(request.with.len());
    for with in &request.with {
        let model = Arc::new(model::resolve(&with.model)?);
        let mut inference = workload::inference(&with.infer)?;
        if let Some(limit) = model.architecture.max_positions {
            let (seq, generate) = (with.infer.seq.is_none(), with.infer.generate.is_none());
            shorten(&mut inference, limit, seq, generate);
        }
        residents.push(Resident { model, inference });
    }
    let (mut workload, strategy) = match &model {
        None => (None, Strategy::default()),
        Some(model) => {
            let fallback = default_workload(model);
            let asked = request.workload.as_ref().unwrap_or(&fallback);
            let strategy = match asked {
                WorkloadRequest::Train(_) => workload::strategy(&request.strategy, devices)?,
                _ => Strategy::default(),
            };
            (Some(workload::workload(asked, &request.strategy, devices)?), strategy)
        }
    };
    if let (Some(model), Some(workload)) = (&model, &mut workload) {
        within_limit(workload, model, request.workload.as_ref());
    }
    if let (Some(model), Some(Workload::Serving(Serving::LlamaCpp(_)))) = (&mut model, &workload) {
        let mix = match &request.workload {
            Some(WorkloadRequest::LlamaCpp(l)) => l.quant.as_deref(),
            _ => None,
        };
        weights::for_llama_cpp(model, mix)?;
    }
    let mut extra = data(request)?;
    extra.extend(bare);
    let allocator = allocator(request, workload.as_ref())?;
    // Settings that somebody names replace those of the stack's launcher.
    if let (Some(_), AllocatorChoice::PyTorch(settings), Some(Workload::Training(t))) =
        (&request.allocator, &allocator, &mut workload)
    {
        t.expandable_segments = settings.config.expandable_segments;
    }
    let model = model.map(Arc::new);
    Ok(Job { model, workload, strategy, machine, residents, allocator, extra })
}

/// The allocator that was asked for: it needs tensors that come and go, and all of them.
fn allocator(
    request: &Request,
    workload: Option<&Workload>,
) -> Result<AllocatorChoice, EngineError> {
    let Some(text) = &request.allocator else { return Ok(AllocatorChoice::default()) };
    let refuse = |message: &str| EngineError::value("--allocator", message);
    let choice: AllocatorChoice =
        text.parse().map_err(|error: ChoiceError| EngineError::value("--allocator", error))?;
    match workload {
        Some(Workload::Training(_) | Workload::Inference(_)) => {}
        _ => {
            return Err(refuse(
                "it belongs to training and plain inference, whose tensors are known one by one",
            ));
        }
    }
    let alone = request.with.is_empty() && request.data.is_empty();
    if !alone && !choice.is_default() {
        return Err(refuse("it knows the tensors of one model only; leave out --with and --data"));
    }
    Ok(choice)
}

/// Lengths that nobody gave are no longer than what the model was made for.
fn within_limit(workload: &mut Workload, model: &Model, asked: Option<&WorkloadRequest>) {
    let Some(limit) = model.architecture.max_positions else { return };
    match (workload, asked) {
        (Workload::Training(t), Some(WorkloadRequest::Train(asked))) if asked.seq.is_none() => {
            t.sequence = t.sequence.min(limit);
        }
        (Workload::Inference(i), Some(WorkloadRequest::Infer(asked))) => {
            shorten(i, limit, asked.seq.is_none(), asked.generate.is_none());
        }
        (Workload::Inference(i), None) => shorten(i, limit, true, true),
        _ => {}
    }
}

fn shorten(i: &mut Inference, limit: u64, prompt: bool, generate: bool) {
    if generate {
        i.generate = i.generate.min(limit / 4);
    }
    if prompt {
        i.prompt = i.prompt.min(limit.saturating_sub(i.generate).max(1));
    }
}

/// Weights that nothing describes, where they are all that is asked about.
fn bare_weights(request: &Request) -> Option<Extra> {
    if !matches!(request.workload, None | Some(WorkloadRequest::Infer(_))) {
        return None;
    }
    let Some(ModelSource::Read(input)) = &request.model else { return None };
    let bytes = input.bare_weights()?;
    Some(Extra { category: Category::Parameters, label: input.label.clone(), bytes, bare: true })
}

/// What is asked of a model where nobody says: llama.cpp for its own format, plain inference for all others.
fn default_workload(model: &Model) -> WorkloadRequest {
    if model.source == "gguf" {
        WorkloadRequest::LlamaCpp(Box::default())
    } else {
        WorkloadRequest::Infer(InferRequest::default())
    }
}

fn data(request: &Request) -> Result<Vec<Extra>, EngineError> {
    let batch = workload::positive("--batch", request.data_batch)?.unwrap_or(1);
    let parse = |text: &String| {
        let fail = |error: inputs::InputError| EngineError::value("--data", error);
        let input = inputs::parse_input(text).map_err(fail)?;
        let bytes = input.batch_bytes(batch).map_err(fail)?;
        let label = format!("{text}, batch of {batch}");
        Ok(Extra { category: Category::Inputs, label, bytes, bare: false })
    };
    request.data.iter().map(parse).collect()
}

fn assemble(job: &Job, estimate: Estimate, request: &Request) -> Response {
    let capacity = job.capacity();
    let mut diagnostics: Vec<Diagnostic> = Vec::new();
    for model in job.model.iter().chain(job.residents.iter().map(|r| &r.model)) {
        diagnostics.extend(model.diagnostics.iter().cloned());
    }
    diagnostics.extend(describe::warnings(job, &estimate));
    diagnostics.extend(estimate.diagnostics.into_iter().map(Diagnostic::from));
    dedup(&mut diagnostics);
    let mut assumptions: Vec<_> = describe::assumptions(job, request);
    assumptions.extend(estimate.assumptions.into_iter().map(crate::response::Assumption::from));
    Response {
        schema: ESTIMATE_SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        fits: false,
        verdict: crate::Verdict::DoesNotFit,
        reason: None,
        capacity,
        margin: signed_difference(capacity, estimate.peak.device),
        peak: estimate.peak.into(),
        interval: estimate.interval.into(),
        peak_phase: estimate.peak_phase,
        peak_module: estimate.peak_module,
        categories: estimate
            .categories
            .iter()
            .filter(|(_, bytes)| !bytes.is_zero())
            .map(|(category, bytes)| CategoryBytes {
                category: *category,
                label: category.label(),
                bytes: *bytes,
            })
            .collect(),
        host: estimate.host,
        request: Summary { workload: describe::workload(job), strategy: describe::strategy(job) },
        model: job.model.as_ref().map(|m| m.summary()),
        machine: machine::summary(&job.machine),
        allocator: request.allocator.is_some().then(|| AllocatorSummary {
            framework: job.allocator.framework(),
            choice: job.allocator.to_string(),
            description: job.allocator.describe(),
        }),
        figures: estimate
            .figures
            .into_iter()
            .map(|(name, figure)| crate::response::Figure { name, value: figure.into() })
            .collect(),
        terms: estimate.terms.into_iter().map(crate::response::Term::from).collect(),
        assumptions,
        diagnostics,
        search: None,
        changes: Vec::new(),
        timeline: estimate.timeline,
        replayed_on: Some((
            job.allocator.clone(),
            framework::device_memory(&machine::device(&job.machine, job.workload.as_ref())),
        )),
    }
}

fn dedup(diagnostics: &mut Vec<Diagnostic>) {
    let mut seen: Vec<Diagnostic> = Vec::with_capacity(diagnostics.len());
    for d in diagnostics.drain(..) {
        if !seen.iter().any(|s| s.code == d.code && s.message == d.message) {
            seen.push(d);
        }
    }
    *diagnostics = seen;
}

fn signed_difference(a: Bytes, b: Bytes) -> i64 {
    let wide = i128::from(a.get()) - i128::from(b.get());
    wide.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// The GPUs on which a request fits, each with its outcome; the whole catalogue, in its order.
///
/// # Errors
///
/// As [`estimate`]; a GPU on which the request is impossible is left out.
pub fn all_gpus(request: &Request) -> Result<Vec<GpuOutcome>, EngineError> {
    let count = match &request.machine {
        Some(text) => machine::machine(text, None)?.count,
        None => 1,
    };
    let first = plimsoll_catalog::gpus::gpus().next().map(|g| g.id.clone()).unwrap_or_default();
    let base = Request { machine: Some(format!("{first}*{count}")), free: None, ..request.clone() };
    let job = resolve(&base)?;
    let mut outcomes = Vec::new();
    for gpu in plimsoll_catalog::gpus::gpus() {
        let mut job = job.clone();
        job.machine = machine::machine(&format!("{}*{count}", gpu.id), None)?;
        let Ok(estimate) = job.estimate() else { continue };
        let judgement = job.judge(&estimate);
        outcomes.push(GpuOutcome {
            id: job.machine.label(),
            capacity: job.capacity(),
            device: estimate.peak.device,
            verdict: judgement.verdict,
            margin: signed_difference(job.capacity(), estimate.peak.device),
        });
    }
    Ok(outcomes)
}

/// One row of [`all_gpus`].
#[derive(Clone, Debug, serde::Serialize)]
pub struct GpuOutcome {
    /// The GPU, with its count.
    pub id: String,
    /// Bytes that one device offers.
    pub capacity: Bytes,
    /// Bytes at the peak.
    pub device: Bytes,
    /// The answer.
    pub verdict: crate::Verdict,
    /// Capacity less peak.
    pub margin: i64,
}

/// Whether a source is a name to look up, for faces that must tell names from files.
pub fn is_catalogue_name(name: &str) -> bool {
    plimsoll_catalog::models::find(name).is_ok()
}

/// The source of a catalogue name.
impl From<&str> for ModelSource {
    fn from(name: &str) -> Self {
        ModelSource::Name(name.to_owned())
    }
}
