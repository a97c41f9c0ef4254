//! The text of `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF`: read into settings by torch's grammar, and written
//! back as the shortest line. Beside it single settings, `key=value`, as an option of the command line takes them.
//!
//! Grammar: `key:value,key:value`; a value may be a list, `[a:b,c:d]`; blanks count for nothing. A key that torch does
//! not know, a value out of range and a colon that is missing are errors. (torch from 2.9 on overlooks a wrong
//! separator; older releases refuse it, and so does this reader.)
//!
//! Keys, ranges and what each does to a value were read in `c10/core/AllocatorConfig.cpp` and
//! `c10/cuda/CUDAAllocatorConfig.cpp` and checked against the parser of torch 2.15.0, 2026-11-30.

use std::fmt;

use plimsoll_units::Bytes;

use super::conf_keys::{Effect, Key, MALLOC_ASYNC, Setting};
use super::{PyTorchConfig, RoundupDivisions};

/// A release of torch, major and minor.
pub type TorchRelease = (u16, u16);

/// The longest text that is read: far longer than any line of settings.
const MAX_TEXT: usize = 64 << 10;

/// From this release on `>` of `roundup_power2_divisions` starts above the last key's class, before it started with it
/// (the parser moved to `c10/core` and lost the overlap).
const OPEN_CLASS_ABOVE: TorchRelease = (2, 9);

/// A text that torch would refuse, or a setting that no text can say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No release of torch knows the key.
    #[error("`{key}` is no setting of torch's allocator{}", .nearest.map_or(String::new(), |n| format!("; did you mean {n}?")))]
    Unknown {
        /// As given.
        key: String,
        /// The known key that is closest to it.
        nearest: Option<&'static str>,
    },
    /// The key came with a later release.
    #[error("{key} needs torch {}.{}, this is {}.{}; leave it out or use a newer torch", .since.0, .since.1, .release.0, .release.1)]
    TooNew {
        /// The key.
        key: &'static str,
        /// The release that brought it.
        since: TorchRelease,
        /// The release in question.
        release: TorchRelease,
    },
    /// The value is not accepted.
    #[error("{key} is `{value}`, but it must be {accepted}; {cure}")]
    Value {
        /// The key.
        key: &'static str,
        /// As given.
        value: String,
        /// What torch accepts.
        accepted: String,
        /// What to write instead.
        cure: String,
    },
    /// The text ends where a value should stand.
    #[error("{key} has no value; write {key}:VALUE, where it must be {accepted}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What torch accepts.
        accepted: String,
    },
    /// A separator is missing.
    #[error("`{found}` stands where `{expected}` should; settings are written key:value,key:value")]
    Syntax {
        /// What stands there.
        found: String,
        /// What should.
        expected: char,
    },
    /// The settings hold a value that the environment cannot say.
    #[error("{key} is {value}, which no text of settings can say: it takes {accepted}")]
    Unwritable {
        /// The key.
        key: &'static str,
        /// What it is.
        value: String,
        /// What could be said.
        accepted: &'static str,
    },
    /// The text is too long to be settings.
    #[error("the settings have {0} characters; more than {MAX_TEXT} are not read")]
    TooLong(usize),
}

/// Who serves the requests of torch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The caching allocator.
    #[default]
    Native,
    /// The driver's stream-ordered pool, `backend:cudaMallocAsync`.
    CudaMallocAsync,
}

/// What a text of settings says.
///
/// ```
/// use plimsoll_timeline::PyTorchSettings;
/// use plimsoll_units::Bytes;
/// let settings: PyTorchSettings = "max_split_size_mb: 128, expandable_segments:True".parse()?;
/// assert_eq!(settings.config.max_split_size, Some(Bytes::mib(128)));
/// assert_eq!(settings.line()?, "expandable_segments:True,max_split_size_mb:128");
/// # Ok::<(), plimsoll_timeline::SettingError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PyTorchSettings {
    /// The rules of the caching allocator. Limit and capacity are the machine's: see
    /// [`config_for`](Self::config_for).
    pub config: PyTorchConfig,
    /// Which allocator it is that serves requests.
    pub backend: Backend,
    /// `per_process_memory_fraction`; 1 and absent mean no limit.
    pub memory_fraction: Option<f64>,
    /// `throw_on_cudamalloc_oom`: fail at the fraction without the chain of attempts.
    pub throw_on_oom: bool,
    /// Settings that were accepted and change no byte of device memory, as `key:value`: timing and pinned host memory.
    pub without_effect: Vec<String>,
    /// What torch does with the text that its author may not expect.
    pub remarks: Vec<String>,
    /// `max_non_split_rounding_mb`, where it was said; else it follows the large segment.
    non_split: Option<Bytes>,
}

impl std::str::FromStr for PyTorchSettings {
    type Err = SettingError;

    /// Reads a text as the newest torch does.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        PyTorchSettings::read(text, None)
    }
}

impl PyTorchSettings {
    /// Reads a text as a release of torch does; the newest where none is given.
    ///
    /// # Errors
    /// [`SettingError`] names key, value, what is accepted and the cure.
    pub fn read(text: &str, release: Option<TorchRelease>) -> Result<Self, SettingError> {
        if text.len() > MAX_TEXT {
            return Err(SettingError::TooLong(text.len()));
        }
        let tokens = tokens(text);
        let mut settings = PyTorchSettings::default();
        let pairs = pairs(&tokens, release)?;
        // Sizes are compared with the large segment, wherever it stands in the text.
        let large = |key: &Key| key.setting == Setting::LargeSegment;
        for (key, value) in pairs.iter().filter(|(key, _)| large(key)) {
            settings.apply(key, value, release)?;
        }
        for (key, value) in pairs.iter().filter(|(key, _)| !large(key)) {
            settings.apply(key, value, release)?;
        }
        settings.finish();
        Ok(settings)
    }

    /// Reads the two variables as torch finds them in its environment, an absent one as `None`. Where both are set
    /// and differ, a remark says which one counts: `PYTORCH_CUDA_ALLOC_CONF` in torch 2.15 (measured), although its
    /// documentation says the other; the releases that first had both took `PYTORCH_ALLOC_CONF`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_environment(
        cuda: Option<&str>,
        generic: Option<&str>,
        release: Option<TorchRelease>,
    ) -> Result<Self, SettingError> {
        let text = cuda.or(generic).unwrap_or_default();
        let mut settings = PyTorchSettings::read(text, release)?;
        if let (Some(cuda), Some(generic)) = (cuda, generic)
            && tokens(cuda) != tokens(generic)
        {
            settings.remarks.push(
                "PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set and differ: torch 2.15 reads the first, \
                 other releases the second; set one of them"
                    .to_owned(),
            );
        }
        Ok(settings)
    }

    /// Changes one setting, written `key=value` (or `key:value`). Booleans may be written in lower case.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn set(&mut self, assignment: &str) -> Result<(), SettingError> {
        if assignment.len() > MAX_TEXT {
            return Err(SettingError::TooLong(assignment.len()));
        }
        let at = assignment.find(['=', ':']).unwrap_or(assignment.len());
        let (name, rest) = assignment.split_at(at);
        let key = Key::find(name.trim(), None)?;
        let value = rest.get(1..).unwrap_or_default().trim();
        let mut value = match value.to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" => vec!["True"],
            "false" | "off" | "no" => vec!["False"],
            _ => tokens(value),
        };
        value.retain(|token| !token.is_empty());
        match value.as_slice() {
            [] => {
                Err(SettingError::Missing { key: key.name, accepted: key.accepted(self.large()) })
            }
            [_] => self.change(key, &value),
            ["[", .., "]"] => self.change(key, &value),
            [_, found, ..] => {
                Err(SettingError::Syntax { found: (*found).to_owned(), expected: ',' })
            }
        }
    }

    fn change(&mut self, key: &'static Key, value: &[&str]) -> Result<(), SettingError> {
        let mut changed = self.clone();
        // A later word replaces an earlier one.
        let same = |line: &String| line.split(':').next() == Some(key.name);
        changed.without_effect.retain(|line| !same(line));
        changed.remarks.clear();
        changed.apply(key, value, None)?;
        changed.finish();
        changed.check_sizes()?;
        *self = changed;
        Ok(())
    }

    /// The rules on a device of `total` bytes: the fraction becomes a limit.
    pub fn config_for(&self, total: Bytes) -> PyTorchConfig {
        let mut config = self.config.clone();
        // The same product of doubles that torch truncates.
        let share = |fraction: f64| Bytes::new((fraction * total.get() as f64) as u64);
        config.memory_limit = self.memory_fraction.filter(|f| *f < 1.0).map(share);
        if self.throw_on_oom {
            config.reject_above = Some(self.memory_fraction.map_or(total, share));
        }
        config
    }

    /// The shortest text that says the same; empty for torch's defaults. Settings without an effect are left out.
    ///
    /// # Errors
    /// [`SettingError::Unwritable`] where a size is not a whole number of MiB or is out of torch's range.
    pub fn line(&self) -> Result<String, SettingError> {
        let mut parts: Vec<String> = Vec::new();
        let mut say = |key: &str, value: String| parts.push(format!("{key}:{value}"));
        if self.backend == Backend::CudaMallocAsync {
            say("backend", MALLOC_ASYNC.to_owned());
        }
        let c = &self.config;
        if c.expandable_segments {
            say("expandable_segments", "True".to_owned());
        }
        if let Some(threshold) = c.garbage_collection_threshold {
            if !(threshold > 0.0 && threshold < 1.0) {
                return Err(unwritable(
                    Setting::GarbageCollection,
                    threshold,
                    "a fraction between 0 and 1",
                ));
            }
            say("garbage_collection_threshold", threshold.to_string());
        }
        let large = c.large_segment;
        if large != Bytes::mib(20) {
            if large <= Bytes::mib(10) {
                return Err(unwritable(Setting::LargeSegment, large, "more than 10 MiB"));
            }
            say("large_segment_size_mb", mib(Setting::LargeSegment, large)?);
        }
        // It matters to oversize requests only, and there are none without a largest split.
        if c.max_split_size.is_some() && c.max_non_split_rounding != large {
            at_least(Setting::MaxNonSplitRounding, c.max_non_split_rounding, large)?;
            say(
                "max_non_split_rounding_mb",
                mib(Setting::MaxNonSplitRounding, c.max_non_split_rounding)?,
            );
        }
        if let Some(size) = c.max_split_size {
            at_least(Setting::MaxSplitSize, size, large)?;
            say("max_split_size_mb", mib(Setting::MaxSplitSize, size)?);
        }
        if let Some(fraction) = self.memory_fraction.filter(|f| *f < 1.0) {
            if !(0.0..=1.0).contains(&fraction) {
                return Err(unwritable(Setting::MemoryFraction, fraction, "a fraction of 0 to 1"));
            }
            say("per_process_memory_fraction", fraction.to_string());
        }
        if let Some(divisions) = divisions_text(&c.roundup_power2_divisions)? {
            say("roundup_power2_divisions", divisions);
        }
        if self.throw_on_oom {
            say("throw_on_cudamalloc_oom", "True".to_owned());
        }
        Ok(parts.join(","))
    }

    fn large(&self) -> Bytes {
        self.config.large_segment
    }

    /// Sizes that were in range before the large segment changed.
    fn check_sizes(&self) -> Result<(), SettingError> {
        let large = self.large();
        let sizes = [
            (Setting::MaxSplitSize, self.config.max_split_size),
            (Setting::MaxNonSplitRounding, self.non_split),
        ];
        for (setting, size) in sizes {
            let key = Key::of(setting);
            if let Some(size) = size.filter(|size| *size < large) {
                return Err(key.refuse(&(size.get() >> 20).to_string(), large));
            }
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.config.max_non_split_rounding = self.non_split.unwrap_or(self.config.large_segment);
        if self.backend == Backend::CudaMallocAsync {
            let native = PyTorchConfig {
                max_non_split_rounding: Bytes::mib(20),
                ..PyTorchConfig::default()
            };
            let said = PyTorchConfig { memory_limit: None, capacity: None, ..self.config.clone() };
            let remark = "backend:cudaMallocAsync ignores the settings of the caching allocator";
            if said != native && !self.remarks.iter().any(|r| r == remark) {
                self.remarks.push(remark.to_owned());
            }
        }
    }

    /// Applies one value; a list comes with its brackets.
    fn apply(
        &mut self,
        key: &'static Key,
        value: &[&str],
        release: Option<TorchRelease>,
    ) -> Result<(), SettingError> {
        let large = self.large();
        let refuse = |text: &str| key.refuse(text, large);
        let one = match value {
            [one] => *one,
            list if key.takes_list() => list[0],
            list => return Err(refuse(&list.concat())),
        };
        match key.setting {
            Setting::LargeSegment => {
                let size = self.size(key, one, 11)?.unwrap_or(Bytes::mib(1 << 33));
                self.config.large_segment = size;
            }
            Setting::MaxSplitSize => {
                self.config.max_split_size = self.size(key, one, large.get() >> 20)?;
            }
            Setting::MaxNonSplitRounding => {
                self.non_split =
                    Some(self.size(key, one, large.get() >> 20)?.unwrap_or(Bytes::MAX));
            }
            Setting::GarbageCollection => {
                let threshold = self.fraction(key, one)?;
                if !(threshold > 0.0 && threshold < 1.0) {
                    return Err(refuse(one));
                }
                self.config.garbage_collection_threshold = Some(threshold);
            }
            Setting::MemoryFraction => {
                let fraction = self.fraction(key, one)?;
                if !(0.0..=1.0).contains(&fraction) {
                    return Err(refuse(one));
                }
                self.memory_fraction = Some(fraction);
            }
            Setting::Divisions => {
                self.config.roundup_power2_divisions = self.divisions(key, value, release)?;
            }
            Setting::Expandable => self.config.expandable_segments = boolean(key, one)?,
            Setting::ThrowOnOom => self.throw_on_oom = boolean(key, one)?,
            Setting::Backend => {
                self.backend = match one {
                    "native" => Backend::Native,
                    MALLOC_ASYNC | "hipMallocAsync" => Backend::CudaMallocAsync,
                    _ => return Err(refuse(one)),
                }
            }
            Setting::Other(effect) => {
                match effect {
                    Effect::Flag => drop(boolean(key, one)?),
                    Effect::Threads => {
                        let n = self.whole(key, one)?;
                        if !(n.is_power_of_two() && n <= 128) {
                            return Err(refuse(one));
                        }
                    }
                    Effect::Positive if self.whole(key, one)? == 0 => return Err(refuse(one)),
                    Effect::Count => drop(self.whole(key, one)?),
                    // A malformed reservation is skipped by torch, not refused.
                    Effect::Positive | Effect::Reservation => {}
                }
                self.without_effect.push(format!("{}:{}", key.name, value.concat()));
            }
        }
        Ok(())
    }

    /// A whole number as `std::stoull` reads it: what follows the digits is dropped, which a remark says.
    fn whole(&mut self, key: &'static Key, text: &str) -> Result<u64, SettingError> {
        let digits = text.strip_prefix('+').unwrap_or(text);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (number, rest) = digits.split_at(end);
        let number = number.parse().map_err(|_| key.refuse(text, self.large()))?;
        self.remark_rest(key, text, number, rest);
        Ok(number)
    }

    fn remark_rest(&mut self, key: &Key, text: &str, number: impl fmt::Display, rest: &str) {
        if !rest.is_empty() {
            let remark = format!("torch reads {number} of {}:{text} and drops `{rest}`", key.name);
            self.remarks.push(remark);
        }
    }

    /// A size in MiB of at least `least`; `None` for one that is as good as unlimited.
    fn size(
        &mut self,
        key: &'static Key,
        text: &str,
        least: u64,
    ) -> Result<Option<Bytes>, SettingError> {
        // A negative number wraps around to the largest one.
        if key.setting != Setting::LargeSegment
            && text.strip_prefix('-').is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n > 0))
        {
            self.remarks.push(format!("torch reads {}:{text} as no limit at all", key.name));
            return Ok(None);
        }
        let n = self.whole(key, text)?;
        if n < least {
            return Err(key.refuse(text, self.large()));
        }
        Ok((n <= u64::MAX >> 21).then(|| Bytes::mib(n)))
    }

    /// A fraction as `std::stod` reads it, in decimal.
    fn fraction(&mut self, key: &'static Key, text: &str) -> Result<f64, SettingError> {
        let numeric = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
        let end = text.find(|c| !numeric(c)).unwrap_or(text.len());
        let longest =
            (1..=end.min(40)).rev().find_map(|n| Some((n, text.get(..n)?.parse::<f64>().ok()?)));
        let (used, number) = longest.ok_or_else(|| key.refuse(text, self.large()))?;
        self.remark_rest(key, text, number, text.get(used..).unwrap_or_default());
        Ok(number)
    }

    fn divisions(
        &mut self,
        key: &'static Key,
        value: &[&str],
        release: Option<TorchRelease>,
    ) -> Result<RoundupDivisions, SettingError> {
        let refuse = |text: &str, large| key.refuse(text, large);
        let large = self.large();
        let ["[", inner @ .., "]"] = value else {
            let n = self.whole(key, value[0])?;
            let n = u32::try_from(n).ok().filter(|n| n.is_power_of_two());
            return n.map(RoundupDivisions::uniform).ok_or_else(|| refuse(value[0], large));
        };
        let mut classes = [0u32; 16];
        let (mut last, mut first) = (0, true);
        let mut entries = inner.split(|token| *token == ",").peekable();
        while let Some(entry) = entries.next() {
            let [class, ":", steps] = entry else {
                // `[...,]` and `[]` are let through.
                if entry.is_empty() && entries.peek().is_none() {
                    break;
                }
                return Err(refuse(&entry.concat(), large));
            };
            let steps = u32::try_from(self.whole(key, steps)?)
                .ok()
                .filter(|n| *n == 0 || n.is_power_of_two())
                .ok_or_else(|| refuse(&entry.concat(), large))?;
            if *class == ">" {
                let above = release.is_none_or(|r| r >= OPEN_CLASS_ABOVE);
                let from = last + usize::from(above);
                classes.iter_mut().skip(from).for_each(|c| *c = steps);
                continue;
            }
            let boundary = self.whole(key, class)?;
            if !boundary.is_power_of_two() {
                return Err(refuse(&entry.concat(), large));
            }
            let index = (boundary.ilog2() as usize).min(classes.len() - 1);
            if std::mem::take(&mut first) {
                classes.iter_mut().take(index).for_each(|c| *c = steps);
            }
            classes[index] = steps;
            last = index;
        }
        Ok(RoundupDivisions(classes))
    }
}

/// torch's tokens: words, and the four separators by themselves. Blanks are dropped, even inside a word; a word that
/// had some is kept whole, as it is no key and no value either.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find([',', ':', '[', ']']) {
        tokens.push(rest[..at].trim());
        tokens.push(&rest[at..=at]);
        rest = &rest[at + 1..];
    }
    tokens.push(rest.trim());
    tokens.retain(|token| !token.is_empty());
    tokens
}

type Pair<'a> = (&'static Key, &'a [&'a str]);

/// Keys with the tokens of their values.
fn pairs<'a>(
    tokens: &'a [&'a str],
    release: Option<TorchRelease>,
) -> Result<Vec<Pair<'a>>, SettingError> {
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    let mut rest = tokens;
    while let [name, after @ ..] = rest {
        let key = Key::find(name, release)?;
        let missing =
            || SettingError::Missing { key: key.name, accepted: key.accepted(Bytes::mib(20)) };
        let after = match after {
            [":", after @ ..] => after,
            [] => return Err(missing()),
            [found, ..] => {
                return Err(SettingError::Syntax { found: (*found).to_owned(), expected: ':' });
            }
        };
        let length = match after {
            [] | [",", ..] | ["]", ..] => return Err(missing()),
            [":", ..] => return Err(SettingError::Syntax { found: ":".to_owned(), expected: ',' }),
            ["[", list @ ..] => match list.iter().position(|token| *token == "]") {
                Some(end) => end + 2,
                None => {
                    return Err(SettingError::Syntax { found: after.concat(), expected: ']' });
                }
            },
            _ => 1,
        };
        let (value, after) = after.split_at(length);
        pairs.push((key, value));
        rest = match after {
            [] => after,
            [",", after @ ..] => after,
            [found, ..] => {
                return Err(SettingError::Syntax { found: (*found).to_owned(), expected: ',' });
            }
        };
    }
    Ok(pairs)
}

fn boolean(key: &'static Key, text: &str) -> Result<bool, SettingError> {
    match text {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(key.refuse(text, Bytes::mib(20))),
    }
}

fn unwritable(setting: Setting, value: impl fmt::Display, accepted: &'static str) -> SettingError {
    SettingError::Unwritable { key: Key::of(setting).name, value: value.to_string(), accepted }
}

fn at_least(setting: Setting, size: Bytes, large: Bytes) -> Result<(), SettingError> {
    if size < large {
        return Err(unwritable(setting, size, "at least the large segment"));
    }
    Ok(())
}

fn mib(setting: Setting, size: Bytes) -> Result<String, SettingError> {
    if !size.get().is_multiple_of(1 << 20) {
        return Err(unwritable(setting, size, "a whole number of MiB"));
    }
    Ok((size.get() >> 20).to_string())
}

/// The shortest value that gives these divisions, the same under every release; `None` where they are torch's default.
fn divisions_text(divisions: &RoundupDivisions) -> Result<Option<String>, SettingError> {
    let classes = divisions.0;
    if let Some(bad) = classes.iter().find(|n| **n != 0 && !n.is_power_of_two()) {
        return Err(unwritable(Setting::Divisions, bad, "powers of two and 0"));
    }
    let run = classes.iter().take_while(|n| **n == classes[0]).count();
    if run == classes.len() {
        return Ok((classes[0] != 0).then(|| classes[0].to_string()));
    }
    // The first key also fills all classes below its own; classes that no key names stay 0.
    let first = if classes[0] == 0 { 0 } else { run - 1 };
    let mut parts = vec![format!("{}:{}", 1u32 << first, classes[0])];
    let end = classes[classes.len() - 1];
    let tail = classes.len() - classes.iter().rev().take_while(|n| **n == end).count();
    for (index, steps) in classes.iter().enumerate().skip(run) {
        if end != 0 && index == tail + 1 {
            parts.push(format!(">:{end}"));
            break;
        }
        if *steps != 0 {
            parts.push(format!("{}:{steps}", 1u32 << index));
        }
    }
    Ok(Some(format!("[{}]", parts.join(","))))
}

/// Reads any text, and what it says once more from the line that is written of it: no panic, and the same settings.
pub fn fuzz_settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut changed = PyTorchSettings::default();
    let _ = changed.set(text);
    for release in [None, Some((2, 4))] {
        let Ok(settings) = PyTorchSettings::read(text, release) else { continue };
        let Ok(line) = settings.line() else { continue };
        let again: Option<PyTorchSettings> = line.parse().ok();
        let again = again.and_then(|a| a.line().ok());
        assert_eq!(again.as_deref(), Some(line.as_str()), "{text}");
    }
}

#[cfg(test)]
mod tests;
