//! Bytes of a pickle, buffered here so that an opcode costs one comparison.

use std::io::{ErrorKind, Read};

use crate::FormatError;

const SECTION: &str = "memory snapshot";
/// Bytes read at once.
const BUFFER: usize = 1 << 17;
/// Longest single text.
pub(super) const MAX_TEXT: u64 = 64 << 20;

/// A reader, what of it is in memory, and the offset that messages name.
pub(super) struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// Offset of the buffer's first byte.
    base: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Input { reader, buffer: vec![0; BUFFER], at: 0, end: 0, base: 0 }
    }

    /// What was read and not taken, and the reader.
    pub(super) fn into_parts(self) -> (Vec<u8>, R) {
        let mut buffer = self.buffer;
        buffer.truncate(self.end);
        buffer.drain(..self.at);
        (buffer, self.reader)
    }

    /// Continues with another reader over the same bytes.
    pub(super) fn map<T>(self, wrap: impl FnOnce(R) -> T) -> Input<T> {
        let Input { reader, buffer, at, end, base } = self;
        Input { reader: wrap(reader), buffer, at, end, base }
    }

    pub(super) fn reader(&self) -> &R {
        &self.reader
    }

    /// Offset of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Reads until `needed` bytes are in memory or the input ends; how many are there.
    #[cold]
    fn fill(&mut self, needed: usize) -> Result<usize, FormatError> {
        self.buffer.copy_within(self.at..self.end, 0);
        self.base += self.at as u64;
        self.end -= self.at;
        self.at = 0;
        while self.end < needed {
            if self.end == self.buffer.len() {
                // Grows with what is there, not with what a length announces.
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // A compressed stream that stops early is a file cut short.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => break,
                Err(e) => {
                    let (offset, reason) = (self.base + self.end as u64, e.to_string());
                    return Err(FormatError::Io { section: SECTION, offset, reason });
                }
            }
        }
        Ok(self.end)
    }

    /// What is in memory and not taken.
    #[inline]
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Takes bytes that [`rest`](Self::rest) showed.
    #[inline]
    pub(super) fn advance(&mut self, n: usize) {
        self.at = self.end.min(self.at + n);
    }

    /// Up to `n` next bytes without taking them.
    pub(super) fn peek(&mut self, n: usize) -> Result<&[u8], FormatError> {
        if self.end - self.at < n {
            self.fill(n)?;
        }
        Ok(&self.buffer[self.at..self.end.min(self.at + n)])
    }

    /// The next `n` bytes.
    #[inline]
    pub(super) fn take(&mut self, n: usize) -> Result<&[u8], FormatError> {
        if self.end - self.at < n {
            self.fill_all(n)?;
        }
        let bytes = &self.buffer[self.at..self.at + n];
        self.at += n;
        Ok(bytes)
    }

    #[cold]
    fn fill_all(&mut self, n: usize) -> Result<(), FormatError> {
        let got = self.fill(n)?;
        if got < n {
            let offset = self.position();
            let (end, available) = (offset.saturating_add(n as u64), offset + got as u64);
            return Err(FormatError::Truncated { section: SECTION, offset, end, available });
        }
        Ok(())
    }

    /// The next `N` bytes.
    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// The next bytes, as many as a length in the file says.
    pub(super) fn text(&mut self, length: u64) -> Result<&[u8], FormatError> {
        if length > MAX_TEXT {
            let (what, value, limit) = ("a text whose length in bytes is", length, MAX_TEXT);
            return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
        }
        self.take(length as usize)
    }

    /// A line without its end, for messages; `None` where it is longer than 200 bytes.
    pub(super) fn line(&mut self) -> Result<Option<String>, FormatError> {
        let bytes = self.peek(200)?;
        let Some(end) = bytes.iter().position(|b| *b == b'\n') else { return Ok(None) };
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        self.at += end + 1;
        Ok(Some(line))
    }

    /// Whether anything but zeros follows.
    pub(super) fn more(&mut self) -> Result<bool, FormatError> {
        loop {
            if self.buffer[self.at..self.end].iter().any(|b| *b != 0) {
                return Ok(true);
            }
            self.at = self.end;
            if self.fill(1)? == 0 {
                return Ok(false);
            }
        }
    }
}
