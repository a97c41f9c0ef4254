//! A file on the hub as `Read + Seek`, fetched in blocks as they are asked for. For files whose header is not at
//! their beginning: the directory of a zip archive is at its end.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use crate::HubError;
use crate::fetched::{FetchedFile, moved};
use crate::http::{Client, Target};

/// Bytes of one request.
const BLOCK: u64 = 256 << 10;
/// Most bytes that are fetched of one file.
const MAX_FETCHED: u64 = 64 << 20;

pub(crate) struct RemoteFile<'a> {
    client: &'a Client,
    target: &'a Target<'a>,
    blocks: BTreeMap<u64, Vec<u8>>,
    position: u64,
    file_len: u64,
    fetched: u64,
    /// The error behind the last failed read, which `io::Error` cannot carry whole.
    pub(crate) failure: Option<HubError>,
}

impl<'a> RemoteFile<'a> {
    pub(crate) fn open(client: &'a Client, target: &'a Target<'a>) -> Result<Self, HubError> {
        let piece = client.range(target, 0, BLOCK)?;
        let file_len = piece.file_len.ok_or_else(|| HubError::Range {
            url: target.url.clone(),
            range: format!("bytes=0-{}", BLOCK - 1),
            answer: "a file of unknown length".to_owned(),
        })?;
        let fetched = piece.bytes.len() as u64;
        let blocks = BTreeMap::from([(0, piece.bytes)]);
        Ok(RemoteFile { client, target, blocks, position: 0, file_len, fetched, failure: None })
    }

    /// What was fetched of it.
    pub(crate) fn into_fetched(self) -> FetchedFile {
        let pieces = self.blocks.into_iter().map(|(block, bytes)| (block * BLOCK, bytes)).collect();
        FetchedFile::Pieces { pieces, file_len: self.file_len }
    }

    fn fetch(&mut self, block: u64) -> Result<(), HubError> {
        if self.fetched >= MAX_FETCHED {
            return Err(HubError::TooLarge {
                url: format!("the header of {}", self.target.url),
                bytes: self.fetched,
                limit: MAX_FETCHED,
            });
        }
        let begin = block.saturating_mul(BLOCK);
        let length = BLOCK.min(self.file_len.saturating_sub(begin));
        let piece = self.client.range(self.target, begin, length)?;
        let got = piece.bytes.len() as u64;
        if got != length {
            return Err(HubError::Truncated {
                url: self.target.url.clone(),
                got,
                expected: length,
            });
        }
        self.fetched += got;
        self.blocks.insert(block, piece.bytes);
        Ok(())
    }
}

impl Read for RemoteFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.file_len || buffer.is_empty() {
            return Ok(0);
        }
        let (block, within) = (self.position / BLOCK, (self.position % BLOCK) as usize);
        if !self.blocks.contains_key(&block)
            && let Err(e) = self.fetch(block)
        {
            let text = e.to_string();
            self.failure = Some(e);
            return Err(io::Error::other(text));
        }
        let bytes = self.blocks.get(&block).and_then(|bytes| bytes.get(within..)).unwrap_or(&[]);
        let n = bytes.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.position += n as u64;
        Ok(n)
    }
}

impl Seek for RemoteFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = moved(to, self.position, self.file_len)?;
        Ok(self.position)
    }
}
