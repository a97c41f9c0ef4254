//! Out-of-memory messages and logs of engines and trainers: read, as a stream of any length, into failures, usage
//! and settings; then judged.
//!
//! Reading looks for the literals of a table ([`table`]) and takes the figures around them. It keeps a bounded number
//! of everything, so a log of gigabytes costs no more memory than a short one. Judging ([`judge`]) checks the
//! arithmetic between the figures and says what they mean together.

pub mod figure;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod hostile;
pub mod judge;
mod line;
mod patterns;
pub mod quantity;
mod scan;
pub mod settings;
pub mod table;
mod trace;

use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;

use figure::{Amount, Key, Reading};
use line::Lines;
use scan::Scanner;
use settings::Run;
use table::{Framework, Kind, More, Pattern};
use trace::{Place, Trace};

pub use trace::Phase;

/// Failures that are kept apart; further ones are counted.
const MAX_FAILURES: usize = 256;
/// Places of usage lines that are kept.
const MAX_USAGE: usize = 1024;
/// Processes whose tracebacks are followed at a time.
const MAX_TRACES: usize = 1024;
/// Messages over several lines that can be open at a time.
const MAX_PENDING: usize = 64;
/// The longest text of a message.
const MAX_TEXT: usize = 24 << 10;
/// The longest excerpt that is kept of a message.
const MAX_EXCERPT: usize = 600;
/// Usage lines before the first failure that are kept.
const BEFORE: usize = 6;
/// Points that a series of usage keeps.
const POINTS: usize = 64;

/// What a log says.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The files, in the order given.
    pub sources: Vec<Source>,
    /// Lines too long to be read whole.
    pub cut_lines: u64,
    /// Messages that memory ran out, in order; equal ones once.
    pub failures: Vec<Failure>,
    /// How many such messages there were, equal ones counted each.
    pub failure_prints: u64,
    /// Failures by process and device, with their number of different messages.
    pub groups: BTreeMap<Group, u64>,
    /// The last usage line of each kind, process and buffer.
    pub usage: Vec<Usage>,
    /// Usage lines shortly before the first failure.
    pub before: Vec<Usage>,
    /// How a figure went over time, by process.
    pub series: BTreeMap<(Option<String>, Key), Series>,
    /// The run's settings.
    pub run: Run,
    /// Frameworks whose messages were seen, with their number.
    pub frameworks: BTreeMap<Framework, u64>,
    /// Remarks that sound like memory but are not.
    pub not_memory: Vec<Failure>,
}

/// One file or stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its lines; carriage returns end lines too.
    pub lines: u64,
}

/// Where failures happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Index into [`Log::sources`].
    pub source: usize,
    /// The process, where a prefix names it.
    pub origin: Option<String>,
    /// The device, where the message names it.
    pub device: Option<String>,
}

/// A message that memory ran out.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its row of the table.
    pub pattern: &'static Pattern,
    /// Index into [`Log::sources`].
    pub source: usize,
    /// Its line, from 1.
    pub line: u64,
    /// The process, where a prefix names it.
    pub origin: Option<String>,
    /// The device, where the message names it.
    pub device: Option<String>,
    /// Its figures.
    pub readings: Vec<Reading>,
    /// The message, shortened.
    pub text: String,
    /// Where the program was, from the traceback before the message.
    pub place: Option<Place>,
    /// The last progress before it: step and steps.
    pub step: Option<(u64, u64)>,
    /// How often it was printed.
    pub prints: u64,
}

/// A line that says how much is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Key of its row of the table.
    pub pattern: &'static str,
    /// Who prints it.
    pub framework: Framework,
    /// Index into [`Log::sources`].
    pub source: usize,
    /// Its line, from 1.
    pub line: u64,
    /// The process.
    pub origin: Option<String>,
    /// Its figures.
    pub readings: Vec<Reading>,
}

/// How a figure went over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// How often it was printed.
    pub count: u64,
    /// Values at even distances, at most 64; the last is the newest.
    pub points: Vec<u64>,
    every: u64,
}

impl Series {
    fn push(&mut self, value: u64) {
        self.every = self.every.max(1);
        if self.count.is_multiple_of(self.every) {
            if self.points.len() >= POINTS {
                // Every second point stays, so that the distances remain even.
                let mut index = 0u32;
                self.points.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.every *= 2;
            }
            self.points.push(value);
        }
        self.count += 1;
    }
}

struct Table {
    patterns: Vec<&'static Pattern>,
    scanner: Scanner,
}

/// Literals that belong to no row: tracebacks and progress bars.
const EXTRA: [&str; 4] = ["Traceback (most", "File \"", "it/s", "s/it"];

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let patterns: Vec<&'static Pattern> = patterns::all().collect();
    let triggers: Vec<&'static str> = patterns.iter().map(|p| p.trigger).chain(EXTRA).collect();
    Table { scanner: Scanner::new(triggers), patterns }
});

/// The rows of the table, for references.
pub fn messages() -> impl Iterator<Item = &'static Pattern> {
    patterns::all()
}

/// A message that may go on.
struct Pending {
    pattern: &'static Pattern,
    line: u64,
    origin: Option<String>,
    text: String,
    left: usize,
}

/// Reads logs piece by piece.
///
/// ```
/// use plimsoll_explain::message::Reader;
/// let mut reader = Reader::new();
/// reader.source("train.log");
/// reader.feed(b"RuntimeError: CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; ");
/// reader.feed(b"781.59 MiB already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)\n");
/// let log = reader.finish();
/// assert_eq!(log.failures.len(), 1);
/// ```
#[derive(Default)]
pub struct Reader {
    lines: Lines,
    log: Log,
    pending: Vec<Pending>,
    traces: BTreeMap<Option<String>, Trace>,
    recent: VecDeque<Usage>,
    step: Option<(u64, u64)>,
    echo: Option<Failure>,
    seen: BTreeMap<String, usize>,
    usage_at: BTreeMap<String, usize>,
    hits: Vec<usize>,
}

impl Reader {
    /// A reader that has read nothing.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// Begins a further file.
    pub fn source(&mut self, name: &str) {
        self.end_source();
        self.log.sources.push(Source { name: name.to_owned(), bytes: 0, lines: 0 });
    }

    /// Reads on.
    pub fn feed(&mut self, chunk: &[u8]) {
        if self.log.sources.is_empty() {
            self.source("-");
        }
        if let Some(source) = self.log.sources.last_mut() {
            source.bytes = source.bytes.saturating_add(chunk.len() as u64);
        }
        let mut lines = std::mem::take(&mut self.lines);
        lines.feed(chunk, |line| self.line(line));
        self.lines = lines;
    }

    /// Ends the last file and hands over what was read.
    pub fn finish(mut self) -> Log {
        self.end_source();
        let Reader { mut log, echo, lines, .. } = self;
        if log.failures.is_empty()
            && let Some(echo) = echo
        {
            log.failure_prints = echo.prints;
            log.groups.insert(group(&echo), 1);
            log.failures.push(echo);
        }
        log.cut_lines = lines.cut;
        log.failures.sort_by_key(|f| (f.source, f.line));
        log
    }

    fn end_source(&mut self) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.finish(|line| self.line(line));
        self.lines = lines;
        for pending in std::mem::take(&mut self.pending) {
            self.complete(pending);
        }
        self.traces.clear();
        self.step = None;
    }

    fn number(&self) -> u64 {
        self.log.sources.last().map_or(0, |s| s.lines)
    }

    fn line(&mut self, raw: &[u8]) {
        if let Some(source) = self.log.sources.last_mut() {
            source.lines += 1;
        }
        let table = &*TABLE;
        let mut hits = std::mem::take(&mut self.hits);
        hits.clear();
        let coloured = raw.contains(&0x1b);
        if !coloured {
            table.scanner.find(raw, |index, _| hits.push(index));
            if hits.is_empty() && self.pending.is_empty() {
                self.hits = hits;
                return;
            }
        }
        let text = line::clean(raw);
        if coloured {
            table.scanner.find(text.as_bytes(), |index, _| hits.push(index));
        }
        let origin = line::origin(&text);
        if !self.pending.is_empty() {
            self.go_on(&text, origin.as_deref());
        }
        hits.sort_unstable();
        hits.dedup();
        let mut fact = None;
        for index in &hits {
            match table.patterns.get(*index) {
                Some(pattern) => self.hit(pattern, &text, &origin, &mut fact),
                None => self.extra(*index - table.patterns.len(), &text, &origin),
            }
        }
        self.hits = hits;
    }

    /// Appends the line to the open messages of its process.
    fn go_on(&mut self, text: &str, origin: Option<&str>) {
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            // A line without a prefix may belong to anyone.
            if origin.is_none() || origin == pending.origin.as_deref() {
                if pending.text.len() < MAX_TEXT {
                    squeeze(text, &mut pending.text);
                }
                pending.left = pending.left.saturating_sub(1);
            }
            if pending.left == 0 || ended(pending.pattern, &pending.text) {
                let pending = self.pending.remove(index);
                self.complete(pending);
            } else {
                index += 1;
            }
        }
    }

    fn hit(
        &mut self,
        pattern: &'static Pattern,
        text: &str,
        origin: &Option<String>,
        fact: &mut Option<Framework>,
    ) {
        if pattern.only.is_some_and(|only| !only(text)) {
            return;
        }
        *self.log.frameworks.entry(pattern.framework).or_default() += 1;
        if pattern.kind == Kind::Fact {
            self.fact(pattern, text, fact);
            return;
        }
        // A second message of the same kind ends the first.
        let same = |p: &Pending| p.pattern.key == pattern.key && p.origin == *origin;
        if let Some(index) = self.pending.iter().position(same) {
            let pending = self.pending.remove(index);
            self.complete(pending);
        }
        let start = text.find(pattern.trigger).map_or(0, |at| start_of_message(text, at));
        let mut message = String::new();
        squeeze(text.get(start..).unwrap_or(text), &mut message);
        let left = match pattern.more {
            More::Until { lines, .. } if !ended(pattern, &message) => lines,
            _ => 0,
        };
        let pending =
            Pending { pattern, line: self.number(), origin: origin.clone(), text: message, left };
        if left == 0 || self.pending.len() >= MAX_PENDING {
            self.complete(pending);
        } else {
            self.pending.push(pending);
        }
    }

    fn fact(&mut self, pattern: &'static Pattern, text: &str, fact: &mut Option<Framework>) {
        let names = pattern.read(text);
        for reading in &names {
            if let (Key::GpuName, Amount::Text(name)) = (reading.key, &reading.value) {
                self.log.run.gpu(name);
            }
        }
        match pattern.key {
            "expandable" => self.log.run.expandable = true,
            _ if !names.is_empty() => {}
            // Several keys of a line need one look.
            _ if *fact != Some(pattern.framework) => {
                *fact = Some(pattern.framework);
                self.log.run.read(pattern.framework, text);
            }
            _ => {}
        }
    }

    fn extra(&mut self, index: usize, text: &str, origin: &Option<String>) {
        if index >= 2 {
            self.step = trace::progress(text).or(self.step);
            return;
        }
        if self.traces.len() >= MAX_TRACES {
            self.traces.clear();
        }
        let trace = self.traces.entry(origin.clone()).or_default();
        match index {
            0 => *trace = Trace::default(),
            _ => trace.frame(text),
        }
    }

    fn complete(&mut self, pending: Pending) {
        let Pending { pattern, line, origin, text, .. } = pending;
        let readings = pattern.read(&text);
        let source = self.log.sources.len().saturating_sub(1);
        if pattern.kind == Kind::Usage {
            let usage = Usage {
                pattern: pattern.key,
                framework: pattern.framework,
                source,
                line,
                origin,
                readings,
            };
            self.usage(usage);
            return;
        }
        let place = self.traces.get(&origin).and_then(Trace::place);
        let failure = Failure {
            pattern,
            source,
            line,
            device: device(&text),
            readings,
            text: text.chars().take(MAX_EXCERPT).collect(),
            place,
            step: self.step,
            prints: 1,
            origin,
        };
        match pattern.kind {
            Kind::Echo => match &mut self.echo {
                Some(echo) => echo.prints += 1,
                None => self.echo = Some(failure),
            },
            Kind::NotMemory => {
                if self.log.not_memory.len() < 8 {
                    self.log.not_memory.push(failure);
                }
            }
            _ => self.fail(failure),
        }
    }

    fn fail(&mut self, failure: Failure) {
        if self.log.failure_prints == 0 {
            self.log.before = std::mem::take(&mut self.recent).into();
        }
        self.log.failure_prints += 1;
        let identity = format!(
            "{} {} {:?} {:?} {:?}",
            failure.pattern.key, failure.source, failure.origin, failure.device, failure.readings
        );
        let known = self.seen.get(&identity).and_then(|index| self.log.failures.get_mut(*index));
        match known {
            Some(known) => known.prints += 1,
            None => {
                if self.log.groups.len() < MAX_FAILURES {
                    *self.log.groups.entry(group(&failure)).or_default() += 1;
                }
                if self.log.failures.len() < MAX_FAILURES {
                    self.seen.insert(identity, self.log.failures.len());
                    self.log.failures.push(failure);
                }
            }
        }
    }

    fn usage(&mut self, usage: Usage) {
        if usage.readings.is_empty() {
            return;
        }
        for reading in &usage.readings {
            let followed = matches!(
                reading.key,
                Key::Allocated
                    | Key::PeakAllocated
                    | Key::Reserved
                    | Key::PeakReserved
                    | Key::HostUsed
            );
            if let (true, Some(bytes)) = (followed, reading.value.bytes())
                && (self.log.series.len() < MAX_USAGE)
            {
                let series = self.log.series.entry((usage.origin.clone(), reading.key));
                series.or_default().push(bytes.get());
            }
        }
        if self.log.failure_prints == 0 {
            if self.recent.len() >= BEFORE {
                self.recent.pop_front();
            }
            self.recent.push_back(usage.clone());
        }
        let of = usage.readings.first().and_then(|r| r.of.clone());
        let place = format!("{} {} {:?} {of:?}", usage.pattern, usage.source, usage.origin);
        let known = self.usage_at.get(&place).copied();
        if let Some(slot) = known.and_then(|index| self.log.usage.get_mut(index)) {
            *slot = usage;
        } else if self.log.usage.len() < MAX_USAGE {
            self.usage_at.insert(place, self.log.usage.len());
            self.log.usage.push(usage);
        }
    }
}

fn group(failure: &Failure) -> Group {
    Group { source: failure.source, origin: failure.origin.clone(), device: failure.device.clone() }
}

fn ended(pattern: &Pattern, text: &str) -> bool {
    match pattern.more {
        More::No => true,
        More::Until { ends, .. } => ends.iter().any(|end| text.contains(end)),
    }
}

/// Where the sentence around `at` begins: after the last `: ` or `] ` before it, so that times and file names do not
/// count as figures. The words of the trigger's own sentence stay.
fn start_of_message(text: &str, at: usize) -> usize {
    let head = text.get(..at).unwrap_or_default();
    let colon = head.rfind("Error: ").map(|n| n + 7);
    colon.or_else(|| head.rfind("] ").map(|n| n + 2)).unwrap_or(0)
}

/// Appends the line with every run of blanks as one.
fn squeeze(line: &str, out: &mut String) {
    for word in line.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
}

/// The device that a message names: `GPU 3`.
fn device(text: &str) -> Option<String> {
    for before in
        ["GPU ", "on device cuda:", "on device ordinal ", "n device ", "failed to allocate CUDA"]
    {
        for (at, word) in text.match_indices(before).take(8) {
            let rest = text.get(at + word.len()..).unwrap_or_default();
            let digits: String = rest.chars().take_while(char::is_ascii_digit).take(4).collect();
            let after = rest.get(digits.len()..).unwrap_or_default();
            // "GPU 0 has", "(GPU 0;", but not "GPU 12.5 GiB".
            if !digits.is_empty() && !after.starts_with('.') {
                return Some(format!("GPU {digits}"));
            }
        }
    }
    None
}
