//! What a row of the table of messages is: a literal that betrays the message, the figures around it, and where the
//! text is from. Rows stand in [`super::patterns`], by framework.

use super::figure::{Amount, Key, Reading};
use super::quantity::{self, Units};

/// A message that is recognised.
#[derive(Debug)]
pub struct Pattern {
    /// Stable key: `torch-oom`.
    pub key: &'static str,
    /// Who prints it.
    pub framework: Framework,
    /// What it is.
    pub kind: Kind,
    /// The literal that betrays it, at least four bytes.
    pub trigger: &'static str,
    /// The figures in it.
    pub fields: &'static [Field],
    /// Figures that no field can describe.
    pub special: Option<fn(&str, &mut Vec<Reading>)>,
    /// Whether the message goes on over further lines.
    pub more: More,
    /// Where the literal alone is not enough: whether this line is the message.
    pub only: Option<fn(&str) -> bool>,
    /// Versions that print it, as far as known.
    pub versions: &'static str,
    /// Where the text was read.
    pub source: &'static str,
}

/// The day on which the sources of the table were last read.
pub const CHECKED: &str = "2026-11-30";

impl Pattern {
    /// A row without figures; the others build on it.
    pub const fn new(
        key: &'static str,
        framework: Framework,
        kind: Kind,
        trigger: &'static str,
    ) -> Pattern {
        Pattern {
            key,
            framework,
            kind,
            trigger,
            fields: &[],
            special: None,
            more: More::No,
            only: None,
            versions: "",
            source: "",
        }
    }

    /// With figures.
    pub const fn fields(mut self, fields: &'static [Field]) -> Pattern {
        self.fields = fields;
        self
    }

    /// With figures that a function reads.
    pub const fn special(mut self, special: fn(&str, &mut Vec<Reading>)) -> Pattern {
        self.special = Some(special);
        self
    }

    /// Over several lines.
    pub const fn more(mut self, more: More) -> Pattern {
        self.more = more;
        self
    }

    /// Only lines for which `only` holds.
    pub const fn only(mut self, only: fn(&str) -> bool) -> Pattern {
        self.only = Some(only);
        self
    }

    /// With its origin.
    pub const fn from(mut self, versions: &'static str, source: &'static str) -> Pattern {
        self.versions = versions;
        self.source = source;
        self
    }

    /// Reads the figures out of the text of a message, which begins at the trigger's line.
    pub fn read(&self, text: &str) -> Vec<Reading> {
        let mut readings = Vec::new();
        for field in self.fields {
            // Fields of one figure are spellings of it, the best first.
            if readings.iter().any(|r: &Reading| r.key == field.key) {
                continue;
            }
            if let Some(value) = field.read(text) {
                readings.push(Reading { key: field.key, value, of: None });
            }
        }
        if let Some(special) = self.special {
            special(text, &mut readings);
        }
        readings
    }
}

/// Who prints a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Framework {
    /// PyTorch, whatever the device.
    PyTorch,
    /// CUDA's driver and libraries.
    Cuda,
    /// Linux and container runtimes.
    Host,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp and what is built on it.
    LlamaCpp,
    /// Ollama.
    Ollama,
    /// DeepSpeed.
    DeepSpeed,
    /// JAX and the XLA compiler.
    Jax,
    /// TensorFlow.
    TensorFlow,
    /// ONNX Runtime.
    OnnxRuntime,
    /// Triton, the language.
    Triton,
    /// Hugging Face Transformers and trainers.
    Transformers,
}

impl Framework {
    /// Every framework.
    pub const ALL: [Framework; 13] = [
        Framework::PyTorch,
        Framework::Cuda,
        Framework::Host,
        Framework::Vllm,
        Framework::Sglang,
        Framework::LlamaCpp,
        Framework::Ollama,
        Framework::DeepSpeed,
        Framework::Jax,
        Framework::TensorFlow,
        Framework::OnnxRuntime,
        Framework::Triton,
        Framework::Transformers,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Framework::PyTorch => "PyTorch",
            Framework::Cuda => "CUDA",
            Framework::Host => "host",
            Framework::Vllm => "vLLM",
            Framework::Sglang => "SGLang",
            Framework::LlamaCpp => "llama.cpp",
            Framework::Ollama => "Ollama",
            Framework::DeepSpeed => "DeepSpeed",
            Framework::Jax => "JAX",
            Framework::TensorFlow => "TensorFlow",
            Framework::OnnxRuntime => "ONNX Runtime",
            Framework::Triton => "Triton",
            Framework::Transformers => "Transformers",
        }
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Memory of a device ran out.
    Oom,
    /// An engine refused to start for want of memory.
    Refused,
    /// Memory of the host ran out.
    Host,
    /// It may be memory, or something else.
    Perhaps,
    /// A sentence that only repeats another message.
    Echo,
    /// It says how much is used.
    Usage,
    /// It says what runs: model, options, GPU.
    Fact,
    /// It sounds like memory, but is not.
    NotMemory,
}

impl Kind {
    /// Whether it says that memory ran out.
    pub const fn is_failure(self) -> bool {
        matches!(self, Kind::Oom | Kind::Refused | Kind::Host | Kind::Perhaps)
    }
}

/// How a message goes on after its first line.
#[derive(Clone, Copy, Debug)]
pub enum More {
    /// It does not.
    No,
    /// Up to `lines` further lines, ending after one that holds one of the texts.
    Until {
        /// The most further lines.
        lines: usize,
        /// What its last line holds.
        ends: &'static [&'static str],
    },
}

/// A figure in the text: the value stands after `before` and is followed by `after`.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Which figure.
    pub key: Key,
    /// What stands before it; where empty, the value is the last word before `after`.
    pub before: &'static str,
    /// What follows it; empty for anything.
    pub after: &'static str,
    /// How it is written.
    pub form: Form,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A size.
    Size(Units),
    /// A count.
    Count,
    /// A share or ratio.
    Permille,
    /// Words up to `after`.
    Text,
}

/// The longest text value that is kept.
const MAX_TEXT: usize = 160;

impl Field {
    /// A size in binary units.
    pub const fn size(key: Key, before: &'static str, after: &'static str) -> Field {
        Field { key, before, after, form: Form::Size(Units::Binary) }
    }

    /// A count.
    pub const fn count(key: Key, before: &'static str, after: &'static str) -> Field {
        Field { key, before, after, form: Form::Count }
    }

    /// A share.
    pub const fn share(key: Key, before: &'static str, after: &'static str) -> Field {
        Field { key, before, after, form: Form::Permille }
    }

    /// Words.
    pub const fn text(key: Key, before: &'static str, after: &'static str) -> Field {
        Field { key, before, after, form: Form::Text }
    }

    fn read(&self, text: &str) -> Option<Amount> {
        if self.before.is_empty() {
            return self.read_backwards(text);
        }
        text.match_indices(self.before).take(16).find_map(|(at, before)| {
            let rest = text.get(at + before.len()..)?.trim_start_matches(' ');
            let (amount, length) = self.parse(rest)?;
            rest.get(length..)?.starts_with(self.after).then_some(amount)
        })
    }

    /// The value is one or two words before `after`.
    fn read_backwards(&self, text: &str) -> Option<Amount> {
        text.match_indices(self.after).take(16).find_map(|(at, _)| {
            let head = text.get(..at)?;
            let mut start = head.len();
            for _ in 0..2 {
                let trimmed = head.get(..start)?.trim_end();
                start = trimmed.rfind([' ', '(', ';', ',', '[']).map_or(0, |n| n + 1);
                let word = head.get(start..)?;
                if let Some((amount, length)) = self.parse(word)
                    && length == word.len()
                {
                    return Some(amount);
                }
            }
            None
        })
    }

    fn parse(&self, text: &str) -> Option<(Amount, usize)> {
        match self.form {
            Form::Size(units) => {
                quantity::size(text, units).map(|(printed, n)| (Amount::Size(printed), n))
            }
            Form::Count => quantity::count(text).map(|(count, n)| (Amount::Count(count), n)),
            Form::Permille => {
                quantity::permille(text).map(|(share, n)| (Amount::Permille(share), n))
            }
            Form::Text => {
                let end = if self.after.is_empty() { None } else { text.find(self.after) };
                let end = end.unwrap_or(text.len());
                let words = text.get(..end)?.trim();
                (!words.is_empty())
                    .then(|| (Amount::Text(words.chars().take(MAX_TEXT).collect()), end))
            }
        }
    }
}
