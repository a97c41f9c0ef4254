//! The pages that `torch.cuda._memory_viz` writes: HTML with a snapshot in it, as base64 in a JSON text.

use std::io::{self, ErrorKind, Read};

/// What stands before the text, spaces left out.
const MARKER: &[u8] = b"\"base64\":\"";
/// Bytes read at once.
const BUFFER: usize = 1 << 16;

/// The snapshot of a page, decoded while it is read.
pub(super) struct Page<R> {
    reader: R,
    buffer: Vec<u8>,
    at: usize,
    /// Bits that do not make a byte yet, and how many.
    bits: u32,
    pending: u32,
    ended: bool,
}

impl<R: Read> Page<R> {
    /// Goes to the snapshot of a page whose first bytes are in `buffer`; `None` where there is none.
    pub(super) fn find(buffer: Vec<u8>, reader: R) -> io::Result<Option<Self>> {
        let mut page = Page { reader, buffer, at: 0, bits: 0, pending: 0, ended: false };
        let mut matched = 0;
        while matched < MARKER.len() {
            let Some(byte) = page.byte()? else { return Ok(None) };
            if byte == MARKER[matched] {
                matched += 1;
            } else if !(byte.is_ascii_whitespace() && matched > 1) {
                matched = usize::from(byte == MARKER[0]);
            }
        }
        Ok(Some(page))
    }

    pub(super) fn reader(&self) -> &R {
        &self.reader
    }

    fn byte(&mut self) -> io::Result<Option<u8>> {
        while self.at == self.buffer.len() {
            self.at = 0;
            self.buffer.resize(BUFFER, 0);
            let got = match self.reader.read(&mut self.buffer) {
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {
                    self.buffer.clear();
                    continue;
                }
                Err(e) => {
                    self.buffer.clear();
                    return Err(e);
                }
            };
            self.buffer.truncate(got);
            if got == 0 {
                return Ok(None);
            }
        }
        self.at += 1;
        Ok(self.buffer.get(self.at - 1).copied())
    }
}

impl<R: Read> Read for Page<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < buffer.len() && !self.ended {
            let Some(byte) = self.byte()? else {
                self.ended = true;
                break;
            };
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' | b'-' => 62,
                b'/' | b'_' => 63,
                b'"' | b'=' => {
                    self.ended = true;
                    break;
                }
                // JSON may write a slash as `\/`.
                b'\\' | b'\n' | b'\r' => continue,
                _ => {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "the page's base64 is damaged",
                    ));
                }
            };
            self.bits = (self.bits << 6 | u32::from(value)) & 0xffff;
            self.pending += 6;
            if self.pending >= 8 {
                self.pending -= 8;
                buffer[written] = (self.bits >> self.pending) as u8;
                written += 1;
            }
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_and_decodes() {
        for (html, expected) in [
            ("<html>[{\"name\": \"s\", \"base64\": \"SGVsbG8=\"}]", Some("Hello")),
            ("<html>[{\"base64\":\"SGVs\\/w==\"", Some("Hel\u{f}")),
            ("<html>url(data:image/png;base64,AAAA) \"base\"base64\":\"SGVs", Some("Hel")),
            ("<html>\"base64\"", None),
            ("<html>", None),
        ] {
            let page = Page::find(html.as_bytes()[..3].to_vec(), &html.as_bytes()[3..]).unwrap();
            let text = page.map(|mut page| {
                let mut bytes = Vec::new();
                page.read_to_end(&mut bytes).unwrap();
                bytes.iter().map(|b| char::from(b & 0x7f)).collect::<String>()
            });
            let expected = expected.map(|e| e.replace('\u{f}', "\u{7f}"));
            assert_eq!(text, expected, "{html}");
        }
    }
}
