//! Text inside XML and HTML.

/// Escapes what would be markup, and control characters, which have no place in XML.
pub(crate) fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            c if c.is_control() => "\u{fffd}".to_owned(),
            c => c.to_string(),
        })
        .collect()
}
