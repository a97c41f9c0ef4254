//! `find`: which size of a workload a search raises, and how far.

use plimsoll_estimate::Estimate;
use plimsoll_estimate::llamacpp::{LARGEST_UBATCH, MOST_SEQUENCES};
use plimsoll_estimate::request::{Inference, LlamaCpp, Serving, Sglang, Training, Vllm, Workload};

use crate::Choice;
use crate::choices::Find;
use crate::error::EngineError;
use crate::job::Job;
use crate::response::Search;
use crate::search;
use crate::verdict::{Verdict, concurrency_permille};

/// The size that a search raises: its option, how to set it, and its natural limit.
struct Target {
    option: &'static str,
    set: Set,
    /// Tokens: no more than the model was made for.
    tokens: bool,
    /// The most that the engine accepts.
    most: u64,
}

/// Where in a workload a size stands.
enum Set {
    Training(fn(&mut Training, u64)),
    Inference(fn(&mut Inference, u64)),
    LlamaCpp(fn(&mut LlamaCpp, u64)),
    Vllm(fn(&mut Vllm, u64)),
    Sglang(fn(&mut Sglang, u64)),
}

impl Target {
    fn set(&self, job: &mut Job, n: u64) {
        match (&mut job.workload, &self.set) {
            (Some(Workload::Training(t)), Set::Training(set)) => set(t, n),
            (Some(Workload::Inference(i)), Set::Inference(set)) => set(i, n),
            (Some(Workload::Serving(Serving::LlamaCpp(l))), Set::LlamaCpp(set)) => set(l, n),
            (Some(Workload::Serving(Serving::Vllm(v))), Set::Vllm(set)) => set(v, n),
            (Some(Workload::Serving(Serving::Sglang(s))), Set::Sglang(set)) => set(s, n),
            _ => {}
        }
    }
}

/// No search goes beyond this, whatever fits.
const SEARCH_LIMIT: u64 = 1 << 24;

fn target(job: &Job, find: Find) -> Result<Target, EngineError> {
    let refuse = |accepted: &str| {
        let message =
            format!("`{}` means nothing for this workload; accepted: {accepted}", Choice(find));
        Err(EngineError::value("--find", message))
    };
    let (option, set) = match (&job.workload, find) {
        (Some(Workload::Training(_)), Find::Batch) => {
            ("--batch", Set::Training(|t, n| t.batch = n))
        }
        (Some(Workload::Training(_)), Find::Sequence | Find::Context) => {
            ("--seq", Set::Training(|t, n| t.sequence = n))
        }
        (Some(Workload::Training(_)), _) => return refuse("batch, seq"),
        (Some(Workload::Inference(_)), Find::Batch | Find::Concurrency) => {
            ("--batch", Set::Inference(|i, n| i.batch = n))
        }
        (Some(Workload::Inference(_)), _) => ("--seq", Set::Inference(|i, n| i.prompt = n)),
        (Some(Workload::Serving(Serving::LlamaCpp(_))), Find::Batch) => {
            ("--ubatch", Set::LlamaCpp(|l, n| (l.ubatch, l.batch) = (n, l.batch.max(n))))
        }
        // The context is shared by the sequences: each keeps what one has now.
        (Some(Workload::Serving(Serving::LlamaCpp(_))), Find::Concurrency) => {
            let set: fn(&mut LlamaCpp, u64) = |l, n| {
                let each = l.context.map(|c| c / l.sequences.max(1));
                l.sequences = n;
                l.context = each.map(|c| c.saturating_mul(n));
            };
            ("--np", Set::LlamaCpp(set))
        }
        (Some(Workload::Serving(Serving::LlamaCpp(_))), _) => {
            ("--ctx", Set::LlamaCpp(|l, n| l.context = Some(n)))
        }
        (Some(Workload::Serving(Serving::Vllm(_))), Find::Concurrency | Find::Batch) => {
            ("--max-num-seqs", Set::Vllm(|v, n| v.max_num_seqs = Some(n)))
        }
        (Some(Workload::Serving(Serving::Vllm(_))), _) => {
            ("--max-model-len", Set::Vllm(|v, n| v.max_model_len = Some(n)))
        }
        (Some(Workload::Serving(Serving::Sglang(_))), Find::Context | Find::Sequence) => {
            ("--context-length", Set::Sglang(|s, n| s.context = Some(n)))
        }
        (Some(_), _) => return refuse("ctx"),
        (None, _) => return refuse("nothing, as a search needs a model"),
    };
    let tokens = matches!(option, "--seq" | "--ctx" | "--max-model-len" | "--context-length");
    let most = match option {
        "--np" => MOST_SEQUENCES,
        "--ubatch" => LARGEST_UBATCH,
        _ => SEARCH_LIMIT,
    };
    Ok(Target { option, set, tokens, most })
}

/// Raises a size to the most that fits, and leaves the job with it.
pub(crate) fn run(job: &mut Job, find: Find) -> Result<Search, EngineError> {
    let target = target(job, find)?;
    let own_limit = job.model.as_ref().and_then(|m| m.architecture.max_positions);
    if find == Find::Concurrency
        && let Some(Workload::Serving(Serving::LlamaCpp(l))) = &mut job.workload
        && l.context.is_none()
    {
        l.context = own_limit;
    }
    let limit = own_limit.filter(|_| target.tokens).unwrap_or(SEARCH_LIMIT).min(target.most);
    let found = search::largest(limit, |n| {
        let mut tried = job.clone();
        target.set(&mut tried, n);
        attempt(&tried, find, n)
    })?;
    let (next, next_device, why) = match found.failing {
        Some((n, (device, why))) => (n, device, why),
        None if limit == target.most && limit < SEARCH_LIMIT => {
            (limit + 1, None, format!("the engine accepts at most {limit}"))
        }
        None if limit < SEARCH_LIMIT => {
            (limit + 1, None, format!("the model's own limit is {limit} tokens"))
        }
        None => (limit + 1, None, format!("searches end at {SEARCH_LIMIT}")),
    };
    if let Some(n) = found.value {
        target.set(job, n);
    }
    Ok(Search {
        find: Choice(find).to_string(),
        option: target.option.to_owned(),
        value: found.value,
        next,
        next_device,
        why,
        evaluated: found.evaluated,
    })
}

type Outcome = (bool, (Option<plimsoll_units::Bytes>, String));

/// Whether one value fits, and why not.
fn attempt(job: &Job, find: Find, n: u64) -> Result<Outcome, EngineError> {
    let estimate = match job.estimate() {
        Ok(estimate) => estimate,
        // Sizes beyond 63 bits are too large to fit; every other error is one.
        Err(EngineError::TooLarge) => return Ok((false, (None, "more than 8 EiB".to_owned()))),
        Err(error) => return Err(error),
    };
    let mut judgement = job.judge(&estimate);
    if find == Find::Concurrency
        && judgement.verdict.fits()
        && let Some(why) = crowded(&estimate, n)
    {
        judgement.verdict = Verdict::DoesNotFit;
        judgement.reason = Some(why);
    }
    let place = match (&estimate.peak_phase, &estimate.peak_module) {
        (Some(phase), Some(module)) => format!(", at the peak in {phase} of {module}"),
        (Some(phase), None) => format!(", at the peak in {phase}"),
        _ => String::new(),
    };
    let why = judgement.reason.map_or_else(String::new, |reason| format!("{reason}{place}"));
    Ok((judgement.verdict.fits(), (Some(estimate.peak.device), why)))
}

/// Why an engine's KV pool cannot serve `n` sequences of the greatest length at a time.
fn crowded(estimate: &Estimate, n: u64) -> Option<String> {
    let permille = concurrency_permille(estimate)?;
    (permille < n.saturating_mul(1000)).then(|| {
        let (whole, rest) = (permille / 1000, permille % 1000);
        format!("the KV cache holds {whole}.{rest:03} sequences of the greatest length")
    })
}
