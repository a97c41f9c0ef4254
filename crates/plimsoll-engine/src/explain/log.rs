//! Logs: fed piece by piece, explained at the end.

use std::io::{self, Read};

use plimsoll_catalog::models;
use plimsoll_explain::message::judge::{self, Knowledge, ModelFacts};
use plimsoll_explain::message::table::{CHECKED, Kind};
use plimsoll_explain::message::{Failure, Log, Reader, Usage, messages};
use plimsoll_explain::{Finding as Found, Weight};
use plimsoll_model::hf;

use super::command;
use super::response::{
    DevicePart, Explanation, ExplanationKind, FailurePlace, FailureSummary, LogReport, Meaning,
    SettingRow, SourceSummary, UsageSummary,
};
use crate::error::EngineError;
use crate::response::Figure;

/// Reads logs of any length and explains them.
///
/// ```
/// use plimsoll_engine::LogExplainer;
/// let text = "RuntimeError: CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; \
///     781.59 MiB already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)";
/// let mut explainer = LogExplainer::new();
/// explainer.read("train.log", text.as_bytes()).unwrap();
/// let explanation = explainer.finish().unwrap();
/// assert_eq!(explanation.findings[0].code, "free-but-refused");
/// ```
#[derive(Default)]
pub struct LogExplainer {
    reader: Reader,
}

/// A message that logs are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// Its key.
    pub key: &'static str,
    /// Who prints it.
    pub framework: &'static str,
    /// What it is, in a word or two.
    pub kind: &'static str,
    /// The words that betray it.
    pub words: &'static str,
    /// Versions that print it.
    pub versions: &'static str,
    /// Where the text was read; `recalled` where it was not read again.
    pub source: &'static str,
}

/// Every message that logs are searched for, and the day on which their sources were read.
pub fn explained_messages() -> (&'static str, Vec<MessageRow>) {
    let kind = |kind| match kind {
        Kind::Oom => "out of memory",
        Kind::Refused => "refused to start",
        Kind::Host => "host memory",
        Kind::Perhaps => "perhaps memory",
        Kind::Echo => "repeats another",
        Kind::Usage => "usage",
        Kind::Fact => "run",
        Kind::NotMemory => "not memory",
    };
    let rows = messages().map(|p| MessageRow {
        key: p.key,
        framework: p.framework.name(),
        kind: kind(p.kind),
        words: p.trigger.trim(),
        versions: p.versions,
        source: p.source,
    });
    (CHECKED, rows.collect())
}

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

impl LogExplainer {
    /// Has read nothing.
    pub fn new() -> LogExplainer {
        LogExplainer::default()
    }

    /// Reads a further file to its end.
    ///
    /// # Errors
    ///
    /// Those of `reader`; what was read until then is kept.
    pub fn read(&mut self, name: &str, mut reader: impl Read) -> io::Result<()> {
        self.reader.source(name);
        let mut chunk = vec![0; CHUNK];
        loop {
            match reader.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(n) => self.reader.feed(chunk.get(..n).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Explains what was read.
    ///
    /// # Errors
    ///
    /// [`EngineError::NothingKnown`] where no line was recognised.
    pub fn finish(self) -> Result<Explanation, EngineError> {
        let log = self.reader.finish();
        if log.failures.is_empty() && log.usage.is_empty() && log.not_memory.is_empty() {
            return Err(nothing(&log));
        }
        Ok(explanation(&log))
    }
}

fn nothing(log: &Log) -> EngineError {
    let lines: u64 = log.sources.iter().map(|s| s.lines).sum();
    let names: Vec<&str> = log.sources.iter().map(|s| s.name.as_str()).collect();
    let mut frameworks: Vec<&str> = messages().map(|p| p.framework.name()).collect();
    frameworks.dedup();
    frameworks.sort_unstable();
    frameworks.dedup();
    let end = if lines == 1 { "" } else { "s" };
    EngineError::NothingKnown {
        name: names.join(", "),
        lines: format!("{lines} line{end}"),
        messages: messages().count(),
        frameworks: frameworks.join(", "),
    }
}

fn explanation(log: &Log) -> Explanation {
    let modelled = command::modelled(log);
    let mut findings = judge::findings(log, &knowledge(log));
    if let (Some(modelled), Some(first)) = (&modelled, findings.first_mut())
        && first.weight == Weight::Cause
    {
        first.command = Some(modelled.command.clone());
    }
    Explanation {
        schema: super::EXPLAIN_SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        kind: ExplanationKind::Log,
        sources: log
            .sources
            .iter()
            .map(|s| SourceSummary { name: s.name.clone(), bytes: s.bytes, lines: Some(s.lines) })
            .collect(),
        headline: headline(log, &findings),
        log: Some(report(log)),
        snapshot: None,
        findings: findings.into_iter().map(Into::into).collect(),
        model_with: modelled,
    }
}

/// What the catalogue knows of the run's model.
fn knowledge(log: &Log) -> Knowledge {
    let model = log.run.model.as_deref().and_then(command::catalogue_model).and_then(|name| {
        let entry = models::find(name).ok()?;
        let imported = hf::from_config(entry.config.as_bytes()).ok()?;
        Some(ModelFacts {
            name: entry.name.to_owned(),
            vocabulary: imported.architecture.embedding.map_or(0, |e| e.vocab),
            parameters: entry.parameters,
        })
    });
    Knowledge { model }
}

fn headline(log: &Log, findings: &[Found]) -> String {
    let cause = findings.iter().find(|f| f.weight == Weight::Cause).map(|f| f.title.as_str());
    let Some(main) = judge::main_failure(log) else {
        let names: Vec<&str> = log.frameworks.keys().map(|f| f.name()).collect();
        let said = findings.first().map_or(String::new(), |f| format!(": {}", f.title));
        return format!("no failure in the log of {}{said}", names.join(" and "));
    };
    let place = [main.device.as_deref(), main.origin.as_deref()];
    let place: Vec<&str> = place.into_iter().flatten().collect();
    let place = if place.is_empty() { String::new() } else { format!(" on {}", place.join(", ")) };
    let what = match main.pattern.kind {
        Kind::Refused => "refused to start",
        Kind::Perhaps => "may have run out of memory",
        _ => "ran out of memory",
    };
    let who = match main.pattern.framework.name() {
        "host" => "the host",
        name => name,
    };
    let cause = cause.map_or(String::new(), |c| format!(": {c}"));
    format!("{who} {what}{place}{cause}")
}

fn report(log: &Log) -> LogReport {
    let failures: Vec<&Failure> = log.failures.iter().collect();
    let main = judge::main_failure(log);
    let other = |f: Option<&Failure>| {
        f.filter(|f| main.is_none_or(|m| !std::ptr::eq(*f, m))).map(|f| failure(log, f))
    };
    LogReport {
        frameworks: log.frameworks.keys().map(|f| f.name()).collect(),
        failures: log.failures.len() as u64,
        printed: log.failure_prints,
        capacity: judge::capacity(log, main).map(|c| c.bytes),
        division: judge::division(log, main)
            .into_iter()
            .map(|(name, bytes)| DevicePart { name, bytes })
            .collect(),
        main: main.map(|f| failure(log, f)),
        first: other(log.failures.first()),
        worst: if failures.len() > 1 { other(judge::worst(&failures)) } else { None },
        places: log
            .groups
            .iter()
            .map(|(group, count)| FailurePlace {
                source: name(log, group.source),
                origin: group.origin.clone(),
                device: group.device.clone(),
                failures: *count,
            })
            .collect(),
        before: log.before.iter().map(|u| usage(log, u)).collect(),
        usage: log.usage.iter().map(|u| usage(log, u)).collect(),
        model: log.run.model.clone(),
        gpus: log.run.gpus.clone(),
        settings: log
            .run
            .settings
            .iter()
            .map(|(setting, value)| SettingRow { name: setting.name(), value: value.clone() })
            .collect(),
        cut_lines: log.cut_lines,
    }
}

fn name(log: &Log, source: usize) -> String {
    log.sources.get(source).map_or_else(|| "-".to_owned(), |s| s.name.clone())
}

fn failure(log: &Log, failure: &Failure) -> FailureSummary {
    FailureSummary {
        message: failure.pattern.key,
        framework: failure.pattern.framework.name(),
        source: name(log, failure.source),
        line: failure.line,
        origin: failure.origin.clone(),
        device: failure.device.clone(),
        place: failure.place.as_ref().map(|p| match p.phase {
            Some(phase) => format!("{}, in {}", p.frame, phase.words()),
            None => p.frame.clone(),
        }),
        printed: failure.prints,
        text: failure.text.clone(),
        figures: failure.readings.iter().map(Meaning::from).collect(),
    }
}

fn usage(log: &Log, usage: &Usage) -> UsageSummary {
    let figures = usage.readings.iter().map(Meaning::from);
    UsageSummary {
        message: usage.pattern,
        source: name(log, usage.source),
        line: usage.line,
        origin: usage.origin.clone(),
        figures: figures.map(|m| Figure { name: m.name, value: m.value }).collect(),
    }
}
