//! Low arguments: the command line as typed. Every option stands once, with its help; words come from the engine's
//! tables. Which workload an option belongs to is its help heading, checked in [`crate::high`].

mod estimate;
mod value;

use std::ffi::OsString;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Parser, Subcommand, ValueEnum};
use plimsoll_engine::Size;

pub use estimate::EngineName;
pub use estimate::{
    EstimateArgs, InferArgs, LlamaCppArgs, LoraArgs, MachineArgs, OutputArgs, ServingArgs,
    SglangArgs, ShardingArgs, SizeArgs, TrainingArgs, VllmArgs, WorkloadArgs, headings,
};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Says what fits in GPU memory, before the run.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, styles = STYLES, max_term_width = 110)]
pub struct Cli {
    /// When to colour.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Will it fit, what uses the memory, and what is the most that fits?
    #[command(after_long_help = EXAMPLES)]
    Estimate(Box<EstimateArgs>),
    /// Why did it run out of memory? Reads memory snapshots, logs and error messages.
    #[command(after_long_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Would other allocator settings, or another card, have fitted? Replays a memory snapshot.
    #[command(after_long_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Which stacks and purposes grew between two memory snapshots?
    Diff(DiffArgs),
    /// Write a memory snapshot as a web page, a Perfetto trace, a flame graph or tables.
    #[command(after_long_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// List the models of the catalogue.
    Models(ListArgs),
    /// List the GPUs of the catalogue.
    Gpus(ListArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

const EXAMPLES: &str = "\
Examples:
  plimsoll estimate meta-llama/Llama-3.1-8B --train --gpu a100-80g --batch 4 --seq 4096 --checkpoint full
  plimsoll estimate ./my-model/ --finetune qlora --rank 16 --gpu rtx-4090 --seq 2048 --find batch
  plimsoll estimate model.Q4_K_M.gguf --engine llama.cpp --gpu rtx-3090 --ctx 32768 --cache-type q8_0 --find ctx
  plimsoll estimate mixtral-8x7b --engine vllm --gpu 'h100-80g*2' --tp 2 --max-model-len 32768
  plimsoll estimate --data image:3840x2160x3:f32 --batch 8 --gpu 24GiB

Exit codes: 0 fits, 1 does not fit, 2 usage, 3 model, 4 network, 5 GPU, 6 not modelled, 7 output.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  plimsoll explain snapshot.pickle
  plimsoll explain rank*.pickle
  plimsoll explain train.log
  python train.py 2>&1 | plimsoll explain -
  plimsoll explain rank*.log --json

Exit codes: 0 explained, 2 usage, 3 file, 7 output, 8 nothing in it that is known.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  plimsoll replay snapshot.pickle
  plimsoll replay snapshot.pickle --set expandable_segments=true --set max_split_size_mb=128 --capacity 24GiB
  plimsoll replay snapshot.pickle --tune

Exit codes: 0 fits (or nothing else was asked), 1 would not fit, 2 usage, 3 file, 7 output.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  plimsoll export snapshot.pickle --to html
  plimsoll export snapshot.pickle --to flamegraph.svg -o peak.svg
  plimsoll export rank3.pickle --to jsonl --table blocks --rank 3 -o -

Exit codes: 0 written, 2 usage, 3 file, 7 output.";

/// `plimsoll explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Memory snapshots, or logs and error messages, also of several ranks, plain or gzip or zstd; - reads standard
    /// input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// Only this device of a snapshot.
    #[arg(long, value_name = "INDEX")]
    pub device: Option<u32>,
    /// Memory of the card in all, such as 80GiB.
    #[arg(long, value_name = "SIZE")]
    pub total: Option<Size>,
    /// What the driver says is in use by everyone (nvidia-smi): the difference is memory outside the allocator.
    #[arg(long, value_name = "SIZE")]
    pub used: Option<Size>,
    /// Rows of each list.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Print JSON (schema plimsoll.explain/1).
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A memory snapshot, plain or gzip or zstd; - reads standard input.
    #[arg(value_name = "FILE")]
    pub file: String,
    /// Change one setting of the allocator, by its name in PYTORCH_CUDA_ALLOC_CONF.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// All settings at once, as PYTORCH_CUDA_ALLOC_CONF has them, instead of the recorded ones.
    #[arg(long, value_name = "TEXT")]
    pub conf: Option<String>,
    /// Bytes that the driver has for the allocator.
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Size>,
    /// Memory of the card in all; fractions are of it.
    #[arg(long, value_name = "SIZE")]
    pub total: Option<Size>,
    /// Search the settings that fit the capacity, or that reserve least.
    #[arg(long)]
    pub tune: bool,
    /// Device of the snapshot; the one with most events where absent.
    #[arg(long, value_name = "INDEX")]
    pub device: Option<u32>,
    /// Print JSON (schema plimsoll.replay/1).
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The memory snapshot before.
    #[arg(value_name = "BEFORE")]
    pub before: String,
    /// The memory snapshot after.
    #[arg(value_name = "AFTER")]
    pub after: String,
    /// Device of both; the one with most events where absent.
    #[arg(long, value_name = "INDEX")]
    pub device: Option<u32>,
    /// Rows of each list.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Print JSON (schema plimsoll.diff/1).
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A memory snapshot, plain or gzip or zstd; - reads standard input.
    #[arg(value_name = "FILE")]
    pub file: String,
    /// What to write.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: ExportTo,
    /// Which table, for csv, jsonl and parquet.
    #[arg(long, value_enum, value_name = "TABLE", default_value_t = TableName::Blocks)]
    pub table: TableName,
    /// Where to; the input's name with another ending where absent, - is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<String>,
    /// Number written into every row, so that tables of many ranks can be put together.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rank: u32,
    /// Memory of the card in all: the load line of the page.
    #[arg(long, value_name = "SIZE")]
    pub total: Option<Size>,
    /// Device of the snapshot; the one with most events where absent.
    #[arg(long, value_name = "INDEX")]
    pub device: Option<u32>,
}

/// What an export writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportTo {
    /// One self-contained web page: timeline, addresses, live set, flame graph.
    Html,
    /// A trace for ui.perfetto.dev and chrome://tracing.
    Perfetto,
    /// The live set at the peak as a flame graph.
    #[value(name = "flamegraph.svg", alias = "flamegraph", alias = "svg")]
    FlameGraph,
    /// A table as comma-separated values.
    Csv,
    /// A table as JSON lines.
    Jsonl,
    /// A table as a Parquet file (builds with the feature `parquet`).
    Parquet,
}

/// A table of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableName {
    /// One row for each allocation.
    Blocks,
    /// One row for each event of the trace.
    Events,
    /// One row for each frame of each stack.
    Stacks,
    /// Memory in use after each event that changes it.
    Curve,
}

/// Options of the catalogue's lists.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only rows whose name, alias or family contains this.
    #[arg(default_value = "")]
    pub filter: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On terminals, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Makes the choice hold for everything printed from now on.
    pub fn apply(self) {
        match self {
            Color::Auto => {}
            Color::Always => anstream::ColorChoice::Always.write_global(),
            Color::Never => anstream::ColorChoice::Never.write_global(),
        }
    }
}

/// Spellings with one dash and several letters, as llama.cpp's tools have them.
pub const SHORT_SPELLINGS: [(&str, &str); 9] = [
    ("-ngl", "--ngl"),
    ("-ot", "--override-tensor"),
    ("-ub", "--ubatch"),
    ("-np", "--np"),
    ("-fa", "--flash-attn"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ts", "--tensor-split"),
    ("-ncmoe", "--n-cpu-moe"),
];

/// Replaces [`SHORT_SPELLINGS`] by the long options that the parser knows.
pub fn rewrite(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    arguments
        .into_iter()
        .map(|argument| {
            literal |= argument == "--";
            let long = SHORT_SPELLINGS.iter().find(|(short, _)| !literal && argument == *short);
            long.map_or(argument, |(_, long)| OsString::from(*long))
        })
        .collect()
}

/// Ids of the options that stood on the command line.
pub fn given(matches: &ArgMatches) -> Vec<String> {
    matches
        .ids()
        .filter(|id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine))
        .map(|id| id.as_str().to_owned())
        .collect()
}
