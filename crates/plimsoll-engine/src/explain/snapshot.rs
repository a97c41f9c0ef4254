//! Memory snapshots: explained, replayed, compared and exported. One file is in memory at a time, except where two are
//! compared.

use std::io::{Read, Write};

use plimsoll_explain::{
    self as explain, Difference, ExactReplay, ExplainOptions, Export, Format, PageText, Ranks,
    Recording, Remark, RemarkKind, Table, TuneOptions, Tuning, WhatIf, devices, recording,
};
use plimsoll_formats::FormatError;
use plimsoll_formats::snapshot::{self, Snapshot, Writer};
use plimsoll_timeline::{Backend, PyTorchSettings};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::EXPLAIN_SCHEMA;
use super::response::{Explanation, ExplanationKind, Finding, SourceSummary};
use crate::error::EngineError;

/// The schema that [`ReplayResponse`] follows.
pub const REPLAY_SCHEMA: &str = "plimsoll.replay/1";
/// The schema that [`DiffResponse`] follows.
pub const DIFF_SCHEMA: &str = "plimsoll.diff/1";

/// What is known besides the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Device index; every device of the file where absent.
    pub device: Option<u32>,
    /// Memory of the device in all.
    pub total: Option<Bytes>,
    /// What the driver says is in use by everyone at the end.
    pub used: Option<Bytes>,
    /// Rows of each list.
    pub listed: Option<usize>,
}

/// What snapshots show.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SnapshotReport {
    /// Release of torch that wrote the first file, as far as its fields tell.
    pub writer: &'static str,
    /// One for each device of each file, in order.
    pub devices: Vec<DeviceReport>,
    /// Where there are several, side by side.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub ranks: Option<Ranks>,
    /// What the reader could live with.
    pub remarks: Vec<String>,
}

impl SnapshotReport {
    /// Whether a request failed in any of the recordings.
    pub fn failed(&self) -> bool {
        self.devices.iter().any(|device| device.explanation.failed.is_some())
    }
}

/// One device of one file.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceReport {
    /// The file, with the device where the file has several.
    pub label: String,
    /// What it shows.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub explanation: explain::Explanation,
}

/// Explains snapshots one after the other.
///
/// Files are fed with [`read`](Self::read); [`finish`](Self::finish) compares them where there are several.
#[derive(Default)]
pub struct SnapshotExplainer {
    options: SnapshotOptions,
    sources: Vec<SourceSummary>,
    writer: Option<&'static str>,
    devices: Vec<DeviceReport>,
    remarks: Vec<String>,
    /// Why the first file that was left out was.
    failed: Option<EngineError>,
}

/// Counts what passes through.
struct Counting<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.bytes += n as u64;
        Ok(n)
    }
}

/// What is wrong with a file, with the cure that snapshots have: nobody downloads them.
fn unreadable(error: &FormatError) -> String {
    match error {
        FormatError::Truncated { available, .. } => format!(
            "the snapshot is cut short after {available} bytes, before the first segment or event; the dump was \
             interrupted, the disk was full or the copy is incomplete: dump or copy it again"
        ),
        FormatError::Pickle { .. } => {
            format!("{error}; the file is damaged: dump or copy it again")
        }
        error => error.to_string(),
    }
}

/// Reads a snapshot under the name that messages use.
fn open(name: &str, reader: impl Read) -> Result<(Snapshot, u64), EngineError> {
    let mut counting = Counting { inner: reader, bytes: 0 };
    let snapshot = snapshot::read(&mut counting).map_err(|error| EngineError::ModelInput {
        name: name.to_owned(),
        message: unreadable(&error),
    })?;
    Ok((snapshot, counting.bytes))
}

/// What the reader could live with.
fn remarks(name: &str, snapshot: &Snapshot) -> Vec<String> {
    let unknown = snapshot.unknown.iter().map(|unknown| {
        format!(
            "{name}: key `{}` of {} is not known and was passed over",
            unknown.key, unknown.place
        )
    });
    snapshot.remarks.iter().map(|remark| format!("{name}: {remark}")).chain(unknown).collect()
}

/// The recording of a device that was asked for, or of the only one that has anything.
fn one_device<'s>(
    name: &str,
    snapshot: &'s Snapshot,
    device: Option<u32>,
) -> Result<Recording<'s>, EngineError> {
    let found = devices(snapshot);
    let device = match (device, found.as_slice()) {
        (Some(device), _) => device,
        // With several devices the one with most events is meant: the others only exchange with it.
        (None, several) => several
            .iter()
            .copied()
            .max_by_key(|device| {
                let events = snapshot.traces.get(*device as usize).map_or(0, |t| t.events.len());
                (events, std::cmp::Reverse(*device))
            })
            .unwrap_or(0),
    };
    recording(snapshot, device).map_err(|error| EngineError::ModelInput {
        name: name.to_owned(),
        message: error.to_string(),
    })
}

/// A release in words.
const fn writer_words(writer: Writer) -> &'static str {
    match writer {
        Writer::V2_0 => "torch 2.0",
        Writer::V2_1 => "torch 2.1",
        Writer::V2_2 => "torch 2.2",
        Writer::V2_3 => "torch 2.3 or 2.4",
        Writer::V2_5 => "torch 2.5 to 2.7",
        Writer::V2_8 => "torch 2.8",
        Writer::V2_9 => "torch 2.9",
        Writer::V2_10 => "torch 2.10 or 2.11",
        Writer::V2_12 => "torch 2.12 or 2.13",
        Writer::V2_14 => "torch 2.14 or later",
        _ => "an unknown release of torch",
    }
}

impl SnapshotExplainer {
    /// Has read nothing.
    pub fn new(options: SnapshotOptions) -> Self {
        SnapshotExplainer { options, ..SnapshotExplainer::default() }
    }

    /// Reads and explains a file.
    ///
    /// # Errors
    /// [`EngineError::ModelInput`] where it is no snapshot or holds nothing.
    pub fn read(&mut self, name: &str, reader: impl Read) -> Result<(), EngineError> {
        let (snapshot, bytes) = open(name, reader)?;
        self.take(name, &snapshot, bytes)
    }

    /// As [`read`](Self::read), for one of many files: what cannot be read is remarked and left out.
    pub fn try_read(&mut self, name: &str, reader: impl Read) {
        let read = open(name, reader);
        if let Err(error) = read.and_then(|(snapshot, bytes)| self.take(name, &snapshot, bytes)) {
            self.remarks.push(format!("left out: {error}"));
            self.failed.get_or_insert(error);
        }
    }

    fn take(&mut self, name: &str, snapshot: &Snapshot, bytes: u64) -> Result<(), EngineError> {
        let found = match self.options.device {
            Some(device) => vec![device],
            None => devices(snapshot),
        };
        if found.is_empty() {
            // Says which devices there are, or that there are none and why.
            one_device(name, snapshot, None)?;
        }
        let recordings = (found.iter())
            .map(|device| one_device(name, snapshot, Some(*device)))
            .collect::<Result<Vec<_>, _>>()?;
        self.sources.push(SourceSummary { name: name.to_owned(), bytes, lines: None });
        self.writer.get_or_insert(writer_words(snapshot.writer));
        self.remarks.extend(remarks(name, snapshot));
        for (device, recording) in found.iter().zip(&recordings) {
            let mut options = ExplainOptions::default();
            options.file = name.to_owned();
            options.listed = self.options.listed.unwrap_or(options.listed);
            options.device_total = self.options.total;
            options.device_used = self.options.used;
            let label =
                if found.len() > 1 { format!("{name}, device {device}") } else { name.to_owned() };
            let explanation = explain::explain(recording, &options);
            self.devices.push(DeviceReport { label, explanation });
        }
        Ok(())
    }

    /// The explanation of all files.
    ///
    /// # Errors
    /// [`EngineError::NoModel`] where no file was read; where none could be, why the first could not.
    pub fn finish(self) -> Result<Explanation, EngineError> {
        let SnapshotExplainer { sources, writer, devices, remarks, failed, .. } = self;
        let labelled: Vec<(String, &explain::Explanation)> =
            devices.iter().map(|d| (d.label.clone(), &d.explanation)).collect();
        let ranks = (devices.len() > 1).then(|| explain::ranks(&labelled));
        let main = ranks.as_ref().map_or(0, |ranks| ranks.worst);
        let Some(worst) = devices.get(main) else {
            return Err(failed.unwrap_or(EngineError::NoModel));
        };
        let mut findings: Vec<Finding> = Vec::new();
        if let Some(ranks) = &ranks {
            findings.extend(ranks.findings.iter().cloned().map(Finding::from));
        }
        findings.extend(worst.explanation.findings.iter().cloned().map(Finding::from));
        Ok(Explanation {
            schema: EXPLAIN_SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            kind: ExplanationKind::Snapshot,
            sources,
            headline: headline(worst, devices.len()),
            findings,
            log: None,
            snapshot: Some(SnapshotReport {
                writer: writer.unwrap_or("an unknown release of torch"),
                devices,
                ranks,
                remarks,
            }),
            model_with: None,
        })
    }
}

/// The answer in one line.
fn headline(report: &DeviceReport, devices: usize) -> String {
    let explanation = &report.explanation;
    let which = match devices {
        1 => String::new(),
        n => format!("{} of {n} recordings: ", report.label),
    };
    if let Some(failed) = &explanation.failed {
        let at = failed.state.moment.as_ref().map_or("", |moment| moment.place.as_str());
        let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
        let had = if failed.limited { "was granted at most" } else { "had" };
        return format!(
            "out of memory: {which}{} were asked for{at}, {} of the {} that the process {had} were allocated, {} reserved",
            failed.rounded,
            failed.state.in_use.allocated,
            failed.capacity,
            failed.state.in_use.reserved
        );
    }
    let peak = &explanation.peak;
    let at = peak.moment.as_ref().filter(|moment| !moment.place.is_empty());
    let at = at.map_or(String::new(), |moment| format!(" at {}", moment.place));
    format!(
        "peak: {which}{} allocated{at}, {} reserved at most",
        peak.in_use.allocated, explanation.exact.peaks.reserved
    )
}

/// What a recording would have done.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplayResponse {
    /// Version of this schema: `plimsoll.replay/1`.
    pub schema: &'static str,
    /// Version of Plimsoll.
    pub version: &'static str,
    /// The file.
    pub source: String,
    /// Device index.
    pub device: u32,
    /// Release of torch that wrote the file, as far as its fields tell.
    pub writer: &'static str,
    /// The recorded settings, as the environment variable's text; empty for torch's defaults.
    pub recorded_settings: String,
    /// Whether a replay under the recorded settings reproduces the recording exactly.
    pub exact: bool,
    /// Where it departs, and why.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Value>"))]
    pub departures: Vec<explain::Departure>,
    /// Highest values under the recorded settings.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub peak: explain::Peaks,
    /// The whole replay under the recorded settings.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub replay: ExactReplay,
    /// The settings that were asked for, where some were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// What they would have done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub what_if: Option<WhatIf>,
    /// The search for settings, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub tuning: Option<Tuning>,
    /// What was assumed, what is missing.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Value>"))]
    pub remarks: Vec<Remark>,
}

impl ReplayResponse {
    /// Whether what was asked for fits; true where nothing but the recorded settings was replayed.
    pub fn fits(&self) -> bool {
        match (&self.what_if, &self.tuning) {
            (_, Some(tuning)) => tuning.winner.as_ref().is_some_and(|winner| winner.fits),
            (Some(what_if), None) => what_if.fits,
            (None, None) => true,
        }
    }
}

/// What to replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayOptions {
    /// Device index; the one with most events where absent.
    pub device: Option<u32>,
    /// Settings to change, `key=value` each.
    pub set: Vec<String>,
    /// Settings instead of the recorded ones, as the environment variable has them.
    pub conf: Option<String>,
    /// Bytes that the driver has for the allocator.
    pub capacity: Option<Bytes>,
    /// Memory of the device in all; fractions are of it.
    pub total: Option<Bytes>,
    /// Search the settings.
    pub tune: bool,
}

/// Replays a snapshot.
///
/// # Errors
/// [`EngineError::ModelInput`] where the file is no snapshot, [`EngineError::Value`] where a setting is wrong.
pub fn replay_snapshot(
    name: &str,
    reader: impl Read,
    options: &ReplayOptions,
) -> Result<ReplayResponse, EngineError> {
    let (snapshot, _) = open(name, reader)?;
    let recording = one_device(name, &snapshot, options.device)?;
    let mut recorded = PyTorchSettings::default();
    recorded.config = recording.config.clone();
    let line = |settings: &PyTorchSettings| settings.line().unwrap_or_default();

    let asked = !options.set.is_empty()
        || options.conf.is_some()
        || (options.capacity.is_some() && !options.tune);
    let mut settings = match &options.conf {
        Some(text) => {
            let mut read = PyTorchSettings::read(text, None)
                .map_err(|error| wrong_setting("--conf", &error))?;
            // What no text says stays as recorded.
            read.config.tie_break = recording.config.tie_break;
            read
        }
        None => recorded.clone(),
    };
    for assignment in &options.set {
        well_formed(assignment)?;
        settings.set(assignment).map_err(|error| wrong_setting("--set", &error))?;
    }
    if asked {
        replayable(&settings, options)?;
    }
    if (asked || options.tune)
        && recording.timeline.events().is_empty()
        && recording.ooms.is_empty()
    {
        return Err(EngineError::ModelInput {
            name: name.to_owned(),
            message: "there is nothing to replay under other settings: the file shows one moment and no history; \
                      record with torch.cuda.memory._record_memory_history(max_entries=...) before the part of \
                      interest, and dump before the recording is switched off"
                .to_owned(),
        });
    }
    let what_if = asked.then(|| {
        let total = options.total.or(options.capacity);
        let mut config = match total {
            Some(total) => settings.config_for(total),
            None => settings.config.clone(),
        };
        config.capacity = options.capacity;
        explain::what_if(&recording, &config)
    });
    let tuning = options.tune.then(|| {
        let mut tune = TuneOptions::for_recording(&recording, options.capacity);
        tune.device_total = options.total;
        explain::tune(&recording, &tune)
    });
    let replay = explain::replay_exact(&recording);
    Ok(ReplayResponse {
        schema: REPLAY_SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        source: name.to_owned(),
        device: recording.device,
        writer: writer_words(snapshot.writer),
        recorded_settings: line(&recorded),
        exact: replay.exact,
        departures: replay.departures.clone(),
        peak: replay.peaks,
        replay,
        settings: asked.then(|| line(&settings)),
        what_if,
        tuning,
        remarks: (remarks(name, &snapshot).into_iter())
            .map(|text| Remark { kind: RemarkKind::Incomplete, text })
            .chain(recording.remarks.iter().cloned())
            .collect(),
    })
}

/// One setting, written as one.
fn well_formed(assignment: &str) -> Result<(), EngineError> {
    let wrong = |message| Err(EngineError::Value { option: "--set".to_owned(), message });
    let Some((_, value)) = assignment.split_once(['=', ':']) else {
        return wrong(format!(
            "`{assignment}` has no value; write KEY=VALUE, such as max_split_size_mb=128"
        ));
    };
    if value.contains(',') && !value.trim_start().starts_with('[') {
        return wrong(format!(
            "`{assignment}` is several settings; write --set once for each, or all of them in --conf"
        ));
    }
    Ok(())
}

/// Whether a replay can say anything of the settings: some are fractions of the card, one is another allocator.
fn replayable(settings: &PyTorchSettings, options: &ReplayOptions) -> Result<(), EngineError> {
    let wrong = |option: &str, message: String| {
        Err(EngineError::Value { option: option.to_owned(), message })
    };
    let option = if options.set.is_empty() { "--conf" } else { "--set" };
    if settings.backend != Backend::Native {
        return wrong(
            option,
            "backend:cudaMallocAsync is the driver's allocator, which does not follow torch's rules and is not \
             replayed; leave it out"
                .to_owned(),
        );
    }
    if options.total.is_none() && options.capacity.is_none() {
        let fraction = settings.memory_fraction.filter(|fraction| *fraction < 1.0);
        if let Some(fraction) = fraction {
            return wrong(
                option,
                format!(
                    "per_process_memory_fraction:{fraction} is a fraction of the card's memory; say that with --total, \
                     such as --total 80GiB"
                ),
            );
        }
    }
    Ok(())
}

fn wrong_setting(option: &str, error: &plimsoll_timeline::SettingError) -> EngineError {
    EngineError::Value { option: option.to_owned(), message: error.to_string() }
}

/// What differs between two snapshots.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiffResponse {
    /// Version of this schema: `plimsoll.diff/1`.
    pub schema: &'static str,
    /// Version of Plimsoll.
    pub version: &'static str,
    /// The file before.
    pub before: String,
    /// The file after.
    pub after: String,
    /// The answer in one line.
    pub headline: String,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What differs.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub difference: Difference,
    /// What was assumed, what is missing, each with its file.
    pub remarks: Vec<String>,
}

/// Compares two snapshots.
///
/// # Errors
/// [`EngineError::ModelInput`] where a file is no snapshot or holds nothing.
pub fn diff_snapshots(
    before: (&str, impl Read),
    after: (&str, impl Read),
    device: Option<u32>,
    listed: usize,
) -> Result<DiffResponse, EngineError> {
    let (old, _) = open(before.0, before.1)?;
    let (new, _) = open(after.0, after.1)?;
    let mut said = remarks(before.0, &old);
    said.extend(remarks(after.0, &new));
    let old = one_device(before.0, &old, device)?;
    let new = one_device(after.0, &new, device)?;
    for (name, recording) in [(before.0, &old), (after.0, &new)] {
        said.extend(recording.remarks.iter().map(|remark| format!("{name}: {}", remark.text)));
    }
    let difference = explain::diff(&old, &new, listed);
    let (was, is) = (difference.peak.before.allocated, difference.peak.after.allocated);
    let change =
        if is >= was { format!("{} more", is - was) } else { format!("{} less", was - is) };
    Ok(DiffResponse {
        schema: DIFF_SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        before: before.0.to_owned(),
        after: after.0.to_owned(),
        headline: format!("{change} at the peak: {was} before, {is} after"),
        findings: difference.findings.iter().cloned().map(Finding::from).collect(),
        difference,
        remarks: said,
    })
}

/// What to export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// The page.
    Html,
    /// A trace for Perfetto.
    Perfetto,
    /// The flame graph at the peak.
    FlameGraph,
    /// A table as comma-separated values.
    Csv(Table),
    /// A table as JSON lines.
    JsonLines(Table),
    /// A table as a Parquet file.
    #[cfg(feature = "parquet")]
    Parquet(Table),
}

/// Exports a snapshot.
///
/// # Errors
/// [`EngineError::ModelInput`] where the file is no snapshot; in the inner result, what the receiver reports, or what
/// the reader could live with.
pub fn export_snapshot(
    name: &str,
    reader: impl Read,
    device: Option<u32>,
    rank: u32,
    total: Option<Bytes>,
    format: ExportFormat,
    to: &mut (dyn Write + Send),
) -> Result<std::io::Result<Vec<String>>, EngineError> {
    let (snapshot, _) = open(name, reader)?;
    let recording = one_device(name, &snapshot, device)?;
    let said = remarks(name, &snapshot);
    if format == ExportFormat::Html {
        let page = page(name, &snapshot, &recording, total);
        return Ok(to.write_all(page.as_bytes()).map(|()| said));
    }
    let export = Export::new(&recording, rank);
    let written = match format {
        ExportFormat::Html => Ok(()),
        ExportFormat::Perfetto => explain::write_perfetto(&export, to),
        ExportFormat::FlameGraph => {
            let peak = explain::replay_exact(&recording).peaks.allocated_event;
            to.write_all(explain::flame_graph(&export, peak, name).as_bytes())
        }
        ExportFormat::Csv(table) => explain::write_table(&export, table, Format::Csv, to),
        ExportFormat::JsonLines(table) => {
            explain::write_table(&export, table, Format::JsonLines, to)
        }
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet(table) => explain::write_parquet(&export, table, to),
    };
    Ok(written.map(|()| said))
}

/// The page with its words.
fn page(
    name: &str,
    snapshot: &Snapshot,
    recording: &Recording<'_>,
    total: Option<Bytes>,
) -> String {
    let mut options = ExplainOptions::default();
    options.file = name.to_owned();
    options.device_total = total;
    let explained = explain::explain(recording, &options);
    let peaks = explained.exact.peaks;
    let mut facts = vec![
        ("allocated at the peak".to_owned(), peaks.allocated.to_string()),
        ("reserved at most".to_owned(), peaks.reserved.to_string()),
        ("requested at most".to_owned(), peaks.requested.to_string()),
        ("events".to_owned(), explained.events.to_string()),
    ];
    if let Some(failed) = &explained.failed {
        facts.push(("failed request".to_owned(), failed.rounded.to_string()));
    }
    let capacity = explained.failed.as_ref().map(|failed| failed.capacity).or(total);
    let exact = if explained.exact.exact {
        "replayed exactly under its own settings"
    } else {
        "a replay departs from it: figures are near the truth"
    };
    let text = PageText {
        title: name.rsplit(['/', '\\']).next().unwrap_or(name).to_owned(),
        subtitle: format!(
            "written by {}, device {}; {exact}",
            writer_words(snapshot.writer),
            recording.device
        ),
        facts,
        findings: explained.findings,
        capacity,
    };
    explain::page(recording, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_written_as_one() {
        for (assignment, wrong) in [
            ("max_split_size_mb=128", ""),
            ("max_split_size_mb:128", ""),
            ("roundup_power2_divisions=[256:1,512:2,>:4]", ""),
            ("max_split_size_mb", "`max_split_size_mb` has no value; write KEY=VALUE"),
            ("", "`` has no value; write KEY=VALUE"),
            ("expandable_segments=True,max_split_size_mb=128", "is several settings"),
        ] {
            match well_formed(assignment) {
                Ok(()) => assert_eq!(wrong, "", "{assignment}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!wrong.is_empty() && error.contains(wrong), "{error}");
                }
            }
        }
    }

    #[test]
    fn no_verdict_without_what_it_needs() {
        let total = ReplayOptions { total: Some(Bytes::gib(80)), ..ReplayOptions::default() };
        for (text, options, wrong) in [
            ("expandable_segments:True", ReplayOptions::default(), ""),
            ("per_process_memory_fraction:0.5", total.clone(), ""),
            ("per_process_memory_fraction:1.0", ReplayOptions::default(), ""),
            ("per_process_memory_fraction:0.5", ReplayOptions::default(), "--total"),
            ("backend:cudaMallocAsync", total, "is not replayed"),
        ] {
            let settings = PyTorchSettings::read(text, None).unwrap();
            match replayable(&settings, &options) {
                Ok(()) => assert_eq!(wrong, "", "{text}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!wrong.is_empty() && error.contains(wrong), "{error}");
                }
            }
        }
    }

    #[test]
    fn of_many_files_the_bad_ones_are_left_out() {
        let cut = b"\x80\x04}q\0(X\x08\0\0\0segm";
        let mut explainer = SnapshotExplainer::new(SnapshotOptions::default());
        explainer.try_read("a", &cut[..]);
        explainer.try_read("b", &b"{}"[..]);
        assert_eq!(explainer.remarks.len(), 2);
        assert!(explainer.remarks[1].starts_with("left out: b: this is not a memory snapshot"));
        // Nothing is left, so the first reason is the answer.
        let error = explainer.finish().unwrap_err().to_string();
        assert!(error.starts_with("a: the snapshot is cut short after"), "{error}");
    }

    #[test]
    fn damage_has_a_cure() {
        // An item for a container that is none.
        let error = open("f", &b"\x80\x04K\x01K\x01a."[..]).map(|_| ()).unwrap_err().to_string();
        assert!(error.ends_with("the file is damaged: dump or copy it again"), "{error}");
    }
}
