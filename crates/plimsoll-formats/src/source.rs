//! A cursor over `Read + Seek` that knows how much is left. Everything is asked for by length, checked against
//! the end of the input first, and read in pieces, so that an announced length never becomes an allocation by
//! itself.

use std::io::{BufReader, Read, Seek, SeekFrom};

use crate::FormatError;

/// Largest piece that is allocated before its bytes have arrived.
const PIECE: u64 = 1 << 16;

/// An input with a position and an end.
pub(crate) struct Source<R> {
    reader: BufReader<R>,
    position: u64,
    /// Where the input ends.
    available: u64,
    /// Where the whole file ends, which is further away when the input is only its beginning.
    file_len: u64,
}

impl<R: Read + Seek> Source<R> {
    /// Begins at the start of `reader`. `file_len` is given where `reader` holds only a prefix.
    pub(crate) fn new(
        mut reader: R,
        section: &'static str,
        file_len: Option<u64>,
    ) -> Result<Self, FormatError> {
        let io = |e: std::io::Error| FormatError::Io { section, offset: 0, reason: e.to_string() };
        let available = reader.seek(SeekFrom::End(0)).map_err(io)?;
        reader.seek(SeekFrom::Start(0)).map_err(io)?;
        let file_len = file_len.unwrap_or(available).max(available);
        Ok(Source { reader: BufReader::new(reader), position: 0, available, file_len })
    }

    /// Offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of the whole file from here on, whether the input holds them or not.
    pub(crate) fn left_in_file(&self) -> u64 {
        self.file_len.saturating_sub(self.position)
    }

    fn need(&self, section: &'static str, length: u64) -> Result<u64, FormatError> {
        let end = self.position.saturating_add(length);
        if end > self.available {
            return Err(FormatError::Truncated {
                section,
                offset: self.position,
                end,
                available: self.available,
            });
        }
        Ok(end)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(
        &mut self,
        section: &'static str,
    ) -> Result<[u8; N], FormatError> {
        let end = self.need(section, N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|e| self.io(section, &e))?;
        self.position = end;
        Ok(bytes)
    }

    /// The next `length` bytes; the caller has bounded `length`.
    pub(crate) fn bytes(
        &mut self,
        section: &'static str,
        length: u64,
    ) -> Result<Vec<u8>, FormatError> {
        let end = self.need(section, length)?;
        let mut bytes = Vec::with_capacity(length.min(PIECE) as usize);
        let read = (&mut self.reader).take(length).read_to_end(&mut bytes);
        let read = read.map_err(|e| self.io(section, &e))? as u64;
        if read != length {
            let available = self.position + read;
            let offset = self.position;
            return Err(FormatError::Truncated { section, offset, end, available });
        }
        self.position = end;
        Ok(bytes)
    }

    /// Leaves out the next `length` bytes.
    pub(crate) fn skip(&mut self, section: &'static str, length: u64) -> Result<(), FormatError> {
        let end = self.need(section, length)?;
        match i64::try_from(length) {
            Ok(forward) => self.reader.seek_relative(forward),
            Err(_) => self.reader.seek(SeekFrom::Start(end)).map(drop),
        }
        .map_err(|e| self.io(section, &e))?;
        self.position = end;
        Ok(())
    }

    fn io(&self, section: &'static str, e: &std::io::Error) -> FormatError {
        FormatError::Io { section, offset: self.position, reason: e.to_string() }
    }
}
