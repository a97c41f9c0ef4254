//! Fetched files as files: what was fetched of each can be opened and read again, as if the file were there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// A file of a model, or as much of it as was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FetchedFile {
    /// It lies whole in the hub cache.
    Local(PathBuf),
    /// These pieces of it were fetched, by offset; they do not overlap.
    Pieces { pieces: BTreeMap<u64, Vec<u8>>, file_len: u64 },
}

impl FetchedFile {
    /// The first bytes of a file.
    pub(crate) fn head(bytes: Vec<u8>, file_len: Option<u64>) -> FetchedFile {
        let file_len = file_len.unwrap_or(bytes.len() as u64);
        FetchedFile::Pieces { pieces: BTreeMap::from([(0, bytes)]), file_len }
    }

    pub(crate) fn open(&self) -> io::Result<FetchedReader<'_>> {
        Ok(FetchedReader(match self {
            FetchedFile::Local(path) => Inner::Local(BufReader::new(File::open(path)?)),
            FetchedFile::Pieces { pieces, file_len } => {
                Inner::Pieces { pieces, file_len: *file_len, position: 0 }
            }
        }))
    }
}

/// Reads a fetched file. Its length is that of the whole file; reading what was not fetched is an error.
#[derive(Debug)]
pub struct FetchedReader<'a>(Inner<'a>);

#[derive(Debug)]
enum Inner<'a> {
    Local(BufReader<File>),
    Pieces { pieces: &'a BTreeMap<u64, Vec<u8>>, file_len: u64, position: u64 },
}

impl Read for FetchedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (pieces, file_len, position) = match &mut self.0 {
            Inner::Local(file) => return file.read(buffer),
            Inner::Pieces { pieces, file_len, position } => (pieces, *file_len, position),
        };
        if *position >= file_len || buffer.is_empty() {
            return Ok(0);
        }
        let piece = pieces.range(..=*position).next_back();
        let rest = piece.and_then(|(begin, bytes)| {
            bytes.get(usize::try_from(*position - begin).ok()?..).filter(|rest| !rest.is_empty())
        });
        let Some(rest) = rest else {
            return Err(io::Error::other(format!(
                "byte {position} was not fetched, only the header was"
            )));
        };
        let n = rest.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(rest) {
            *to = *from;
        }
        *position += n as u64;
        Ok(n)
    }
}

impl Seek for FetchedReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            Inner::Local(file) => file.seek(to),
            Inner::Pieces { file_len, position, .. } => {
                *position = moved(to, *position, *file_len)?;
                Ok(*position)
            }
        }
    }
}

/// Where a seek ends.
pub(crate) fn moved(to: SeekFrom, position: u64, file_len: u64) -> io::Result<u64> {
    let to = match to {
        SeekFrom::Start(n) => Some(n),
        SeekFrom::End(n) => file_len.checked_add_signed(n),
        SeekFrom::Current(n) => position.checked_add_signed(n),
    };
    to.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_read_as_a_file_with_a_hole() {
        let pieces = BTreeMap::from([(0, b"abcd".to_vec()), (8, b"ij".to_vec())]);
        let file = FetchedFile::Pieces { pieces, file_len: 10 };
        let mut reader = file.open().unwrap();
        let mut four = [0; 4];
        reader.read_exact(&mut four).unwrap();
        assert_eq!(&four, b"abcd");
        let error = reader.read(&mut four).unwrap_err().to_string();
        assert_eq!(error, "byte 4 was not fetched, only the header was");
        assert_eq!(reader.seek(SeekFrom::End(-2)).unwrap(), 8);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"ij");
        assert!(reader.seek(SeekFrom::Current(-11)).is_err());
    }
}
