//! A small SVG writer: elements as text, coordinates with one decimal, text escaped. Nothing that is not finite is
//! ever written.

use std::fmt::Write;

/// A picture in the making.
#[derive(Clone, Debug)]
pub(super) struct Svg {
    text: String,
    width: f64,
    height: f64,
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    pub fn right(&self) -> f64 {
        self.x + self.width
    }

    pub fn bottom(&self) -> f64 {
        self.y + self.height
    }

    pub fn overlaps(&self, other: &Area) -> bool {
        self.x < other.right()
            && other.x < self.right()
            && self.y < other.bottom()
            && other.y < self.bottom()
    }

    pub fn holds(&self, other: &Area) -> bool {
        self.x <= other.x
            && self.y <= other.y
            && other.right() <= self.right()
            && other.bottom() <= self.bottom()
    }
}

/// A coordinate with at most one decimal; zero where the value is not finite.
pub(super) fn coordinate(value: f64) -> String {
    let tenths = if value.is_finite() { (value * 10.0).round() as i64 } else { 0 };
    let sign = if tenths < 0 { "-" } else { "" };
    let (whole, rest) = (tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10);
    if rest == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{rest}") }
}

/// Text for content and attributes; characters that XML forbids become a replacement mark.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Average width of a letter, in font sizes: measured 0.50 for bold Noto Sans, and a little more for other fonts.
const EM: f64 = 0.54;

/// About how wide a text is; generous, since the reader's font is not known.
pub(super) fn text_width(text: &str, font_size: f64) -> f64 {
    text.chars().count() as f64 * font_size * EM
}

/// The text, cut to a width with an ellipsis.
pub(super) fn fitted(text: &str, font_size: f64, width: f64) -> String {
    if text_width(text, font_size) <= width {
        return text.to_owned();
    }
    let room = (width / (font_size * EM)) as usize;
    let mut cut: String = text.chars().take(room.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

impl Svg {
    /// An empty picture with its accessible name and style sheet.
    pub fn new(width: f64, height: f64, title: &str, description: &str, style: &str) -> Self {
        let (w, h) = (coordinate(width), coordinate(height));
        let (title, description) = (escape(title), escape(description));
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
             role=\"img\" aria-labelledby=\"t d\">\n<title id=\"t\">{title}</title>\n\
             <desc id=\"d\">{description}</desc>\n<style>{style}</style>\n",
        );
        Svg { text, width, height }
    }

    /// The paper, over everything.
    pub fn paper(&mut self) {
        let all = Area { x: 0.0, y: 0.0, width: self.width, height: self.height };
        self.rect(all, "paper", "");
    }

    /// A fill: a colour under lines in a tile of 8 x 8.
    pub fn pattern(&mut self, id: &str, fill: &str, hatch: &str) {
        let _ = write!(
            self.text,
            "<pattern id=\"{id}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"8\" height=\"8\" fill=\"{fill}\"/>"
        );
        if !hatch.is_empty() {
            let _ = write!(self.text, "<path class=\"hatch\" d=\"{hatch}\"/>");
        }
        self.text.push_str("</pattern>\n");
    }

    /// A rectangle; `more` holds further attributes.
    pub fn rect(&mut self, area: Area, class: &str, more: &str) {
        let _ = writeln!(
            self.text,
            "<rect{} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}/>",
            class_of(class),
            coordinate(area.x),
            coordinate(area.y),
            coordinate(area.width.max(0.0)),
            coordinate(area.height.max(0.0)),
            spaced(more),
        );
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = writeln!(
            self.text,
            "<line{} x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            class_of(class),
            coordinate(from.0),
            coordinate(from.1),
            coordinate(to.0),
            coordinate(to.1),
        );
    }

    pub fn circle(&mut self, at: (f64, f64), radius: f64, class: &str) {
        let _ = writeln!(
            self.text,
            "<circle{} cx=\"{}\" cy=\"{}\" r=\"{}\"/>",
            class_of(class),
            coordinate(at.0),
            coordinate(at.1),
            coordinate(radius),
        );
    }

    pub fn path(&mut self, d: &str, class: &str, more: &str) {
        let _ = writeln!(self.text, "<path{} d=\"{d}\"{}/>", class_of(class), spaced(more));
    }

    /// Text with its baseline at `at`.
    pub fn text(&mut self, at: (f64, f64), class: &str, text: &str) {
        let _ = writeln!(
            self.text,
            "<text{} x=\"{}\" y=\"{}\">{}</text>",
            class_of(class),
            coordinate(at.0),
            coordinate(at.1),
            escape(text),
        );
    }

    /// The whole file.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

fn class_of(class: &str) -> String {
    if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") }
}

fn spaced(more: &str) -> String {
    if more.is_empty() { String::new() } else { format!(" {more}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short_and_finite() {
        for (value, text) in [
            (0.0, "0"),
            (-0.04, "0"),
            (-0.26, "-0.3"),
            (12.34, "12.3"),
            (100.0, "100"),
            (f64::NAN, "0"),
            (f64::INFINITY, "0"),
        ] {
            assert_eq!(coordinate(value), text);
        }
    }

    #[test]
    fn hostile_text_stays_text() {
        assert_eq!(escape("a<b>&\"\u{1}\n"), "a&lt;b&gt;&amp;&quot;\u{fffd} ");
        assert_eq!(fitted("abcdefghij", 10.0, 29.0), "abcd…");
        assert_eq!(fitted("short", 10.0, 290.0), "short");
    }
}
