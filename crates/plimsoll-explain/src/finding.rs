//! What every analysis of this crate hands out: a finding, that is one thing worth knowing, said in a sentence with
//! its numbers, what to do about it in order, and a command that checks it. Snapshots and logs share the type, so
//! that a report, a page or a script reads both the same way.

use plimsoll_units::Bytes;

/// One thing worth knowing.
///
/// ```
/// use plimsoll_explain::{Finding, Weight};
/// use plimsoll_units::Bytes;
/// let finding = Finding::new("fragmentation", Weight::Cause, "free memory in pieces that are too small")
///     .say("4.00 GiB are reserved but unused, more than the 1.50 GiB that were asked for")
///     .bytes("reserved but unused", Bytes::gib(4))
///     .act("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
///     .check("plimsoll replay snapshot.pickle --set expandable_segments=true");
/// assert_eq!(finding.figures.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable key for scripts, lower case with dashes: `fragmentation`, `other-process`.
    pub code: &'static str,
    /// How much it matters.
    pub weight: Weight,
    /// A few words without a full stop.
    pub title: String,
    /// Sentences with the numbers in them, without a full stop at the end.
    pub sentence: String,
    /// The numbers, by name, in the order of the sentence.
    pub figures: Vec<Figure>,
    /// What to change, the first thing to try first; each an imperative phrase.
    pub actions: Vec<String>,
    /// A command that checks or models the finding, as typed in a shell; absent where there is none.
    pub command: Option<String>,
}

/// How much a finding matters; the order is that of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    /// Why memory ran out, or would.
    Cause,
    /// It took memory, but is not the reason.
    Contribution,
    /// The input contradicts itself, or a part of it could not be used.
    Doubt,
    /// Worth knowing.
    Note,
}

impl Weight {
    /// The word in reports and JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Weight::Cause => "cause",
            Weight::Contribution => "contribution",
            Weight::Doubt => "doubt",
            Weight::Note => "note",
        }
    }
}

/// A named number or word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name in words, lower case: `reserved but unused`.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// The value of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes.
    Bytes(Bytes),
    /// A count: tokens, blocks, steps.
    Count(u64),
    /// A share of something, in thousandths.
    Permille(u64),
    /// Words.
    Text(String),
}

impl Finding {
    /// A finding that says nothing yet.
    pub fn new(code: &'static str, weight: Weight, title: impl Into<String>) -> Finding {
        Finding {
            code,
            weight,
            title: title.into(),
            sentence: String::new(),
            figures: Vec::new(),
            actions: Vec::new(),
            command: None,
        }
    }

    /// Adds a sentence; its first letter becomes a capital, unless it begins with a name such as `train.py:31`.
    #[must_use]
    pub fn say(mut self, sentence: impl AsRef<str>) -> Finding {
        if !self.sentence.is_empty() {
            self.sentence.push_str(". ");
        }
        let sentence = sentence.as_ref();
        let first = sentence.split_whitespace().next().unwrap_or_default();
        let word = first.trim_end_matches([',', ';', ':']);
        let mut letters = sentence.chars();
        if word.chars().all(|c| c.is_alphabetic() || c == '-' || c == '\'') {
            self.sentence.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        }
        self.sentence.push_str(letters.as_str());
        self
    }

    /// Adds a figure.
    #[must_use]
    pub fn figure(mut self, name: impl Into<String>, value: Value) -> Finding {
        self.figures.push(Figure { name: name.into(), value });
        self
    }

    /// Adds a figure in bytes.
    #[must_use]
    pub fn bytes(self, name: impl Into<String>, bytes: Bytes) -> Finding {
        self.figure(name, Value::Bytes(bytes))
    }

    /// Adds a count.
    #[must_use]
    pub fn count(self, name: impl Into<String>, count: u64) -> Finding {
        self.figure(name, Value::Count(count))
    }

    /// Adds something to change.
    #[must_use]
    pub fn act(mut self, action: impl Into<String>) -> Finding {
        self.actions.push(action.into());
        self
    }

    /// Sets the command that checks it.
    #[must_use]
    pub fn check(mut self, command: impl Into<String>) -> Finding {
        self.command = Some(command.into());
        self
    }
}
