//! Low arguments: the command line as typed. Every option stands once, with its help; words come from the engine's
//! tables. Which workload an option belongs to is its help heading, checked in [`crate::high`].

mod estimate;
mod value;

use std::ffi::OsString;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Parser, Subcommand, ValueEnum};

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
    /// Why did it run out of memory? Reads logs and error messages of frameworks and engines.
    #[command(after_long_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
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
  plimsoll explain train.log
  python train.py 2>&1 | plimsoll explain -
  plimsoll explain rank*.log --json

Exit codes: 0 explained, 2 usage, 3 file, 7 output, 8 nothing in it that is known.";

/// `plimsoll explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Logs or error messages, also of several ranks, plain or gzip or zstd; - reads standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// Print JSON (schema plimsoll.explain/1).
    #[arg(long)]
    pub json: bool,
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
