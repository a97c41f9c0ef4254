//! Draws a terminal: text with the colours that the program prints, as an SVG. Each run of one style is placed by
//! its column and stretched to its width, so the picture looks the same with any monospace font.

use std::fmt::Write as _;

const CELL: f64 = 8.4;
const LINE: f64 = 19.0;
const MARGIN: f64 = 18.0;

/// Colours of SGR 30 to 37 on a dark ground.
const PALETTE: [&str; 8] =
    ["#6e7681", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc"];
const GROUND: &str = "#0d1117";
const TEXT: &str = "#c9d1d9";

#[derive(Clone, Copy, Default, PartialEq)]
struct Style {
    bold: bool,
    dim: bool,
    colour: Option<usize>,
}

impl Style {
    /// Applies the parameters of an SGR sequence; unknown ones change nothing.
    fn apply(&mut self, parameters: &str) {
        for parameter in parameters.split(';') {
            match parameter.parse() {
                Ok(0) | Err(_) => *self = Style::default(),
                Ok(1) => self.bold = true,
                Ok(2) => self.dim = true,
                Ok(n @ 30..=37) => self.colour = Some(n - 30),
                Ok(39) => self.colour = None,
                Ok(n @ 90..=97) => self.colour = Some(n - 90),
                Ok(_) => {}
            }
        }
    }

    fn attributes(self) -> String {
        let mut out = String::new();
        if let Some(colour) = self.colour {
            let _ = write!(out, " fill=\"{}\"", PALETTE[colour]);
        }
        if self.bold {
            out.push_str(" font-weight=\"bold\"");
        }
        if self.dim {
            out.push_str(" opacity=\"0.7\"");
        }
        out
    }
}

/// The picture of a command and what it printed.
pub fn svg(command: &str, printed: &str) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for word in command.split(' ') {
        let last = lines.last_mut().unwrap();
        if last.len() + word.len() > 96 {
            last.push_str(" \\");
            lines.push(format!("    {word}"));
        } else {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.push_str(word);
        }
    }
    lines[0].insert_str(0, "\x1b[90m$\x1b[0m ");
    lines.extend(printed.trim_end().lines().map(str::to_owned));
    let mut body = String::new();
    let mut columns = 0;
    let mut style = Style::default();
    for (row, line) in lines.iter().enumerate() {
        let y = MARGIN + LINE * (row as f64 + 0.75);
        columns = columns.max(draw(&mut body, line, y, &mut style));
    }
    let title = escape(&format!("The output of {command}"));
    let width = 2.0 * MARGIN + CELL * columns as f64;
    let height = 2.0 * MARGIN + LINE * lines.len() as f64;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{GROUND}\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" \
         font-size=\"14\" fill=\"{TEXT}\" xml:space=\"preserve\">\n{body}</g>\n</svg>\n"
    )
}

/// Draws a line; returns its columns.
fn draw(body: &mut String, line: &str, y: f64, style: &mut Style) -> usize {
    let mut column = 0;
    for (index, part) in line.split("\x1b[").enumerate() {
        let text = match (index, part.split_once('m')) {
            (0, _) => part,
            (_, Some((parameters, text))) => {
                style.apply(parameters);
                text
            }
            (_, None) => part,
        };
        // Spaces between runs are left to the columns.
        let trimmed = text.trim_start();
        column += text.chars().count() - trimmed.chars().count();
        for piece in pieces(trimmed) {
            let shown = piece.trim_end();
            let cells = shown.chars().count();
            if cells > 0 {
                let x = MARGIN + CELL * column as f64;
                let length = CELL * cells as f64;
                let _ = writeln!(
                    body,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\"{}>{}</text>",
                    style.attributes(),
                    escape(shown)
                );
            }
            column += piece.chars().count();
        }
    }
    column
}

/// Text cut after every gap of two spaces or more, so that columns of a table stay columns.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut gap = 0;
    for (at, c) in text.char_indices() {
        if c != ' ' && gap >= 2 {
            pieces.push(&text[start..at]);
            start = at;
        }
        gap = if c == ' ' { gap + 1 } else { 0 };
    }
    pieces.push(&text[start..]);
    pieces
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
