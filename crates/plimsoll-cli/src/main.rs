//! The command line. Low arguments (as typed, [`args`]) become high arguments (a resolved
//! [`plimsoll_engine::Request`], [`high`]), the engine answers, [`render`] shows. Data goes to stdout, words about
//! the run to stderr. Nothing is computed here.

use std::process::ExitCode;

fn main() -> ExitCode {
    plimsoll_cli::main(std::env::args_os()).into()
}
