//! Where results go: stdout, or the file that was named.

use std::io::Write;
use std::path::Path;

use plimsoll_engine::Response;
use serde::Serialize;

use crate::exit::CliError;

/// Writes text to stdout, without colours where it is no terminal or `NO_COLOR` is set.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| CliError::Write { what: "the result".to_owned(), error })
}

/// Writes bytes to stdout as they are.
pub fn raw(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| CliError::Write { what: "the result".to_owned(), error })
}

/// Pretty JSON with a final line break.
pub fn json<T: Serialize>(value: &T) -> Result<String, CliError> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::Write { what: "JSON".to_owned(), error: error.into() })?;
    text.push('\n');
    Ok(text)
}

/// Columns of a report: the terminal's, within what stays readable; 100 where there is no terminal.
pub fn width() -> usize {
    const READABLE: std::ops::RangeInclusive<usize> = 40..=120;
    let told = std::env::var("COLUMNS").ok().and_then(|c| c.parse::<usize>().ok());
    let terminal = || terminal_size::terminal_size().map(|(columns, _)| usize::from(columns.0));
    told.or_else(terminal).unwrap_or(100).clamp(*READABLE.start(), *READABLE.end())
}

/// Draws memory over one step into an SVG or PNG file.
pub fn plot(response: &Response, path: &Path) -> Result<(), CliError> {
    let name = path.display().to_string();
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let bytes = match ending.as_str() {
        "svg" => plimsoll_engine::picture(response).into_bytes(),
        "png" => pixels(response, &name)?,
        _ => {
            return Err(CliError::usage(
                format!("--plot {name}: the ending says no format"),
                "name the file .svg or .png",
            ));
        }
    };
    std::fs::write(path, bytes).map_err(|error| CliError::Write { what: name, error })
}

#[cfg(feature = "png")]
fn pixels(response: &Response, name: &str) -> Result<Vec<u8>, CliError> {
    let fail = |error: plimsoll_engine::plot::RenderError| CliError::Write {
        what: name.to_owned(),
        error: std::io::Error::other(error.to_string()),
    };
    plimsoll_engine::plot::png(&plimsoll_engine::picture(response), 2.0).map_err(fail)
}

#[cfg(not(feature = "png"))]
fn pixels(_: &Response, name: &str) -> Result<Vec<u8>, CliError> {
    Err(CliError::usage(format!("--plot {name}: this build draws no pixels"), "name the file .svg"))
}
