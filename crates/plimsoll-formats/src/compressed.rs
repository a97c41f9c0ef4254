//! Gzip and zstd, unpacked while they are read. What is not compressed passes through. Files of several members or
//! frames are one stream, as their tools treat them.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// `.gz`.
    Gzip,
    /// `.zst`.
    Zstd,
}

impl Compression {
    /// What the first four bytes of a file say; `None` where it is not compressed, or in another way.
    pub fn of(first: &[u8]) -> Option<Compression> {
        match first {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Some(Compression::Zstd)
            }
            _ => None,
        }
    }
}

/// Bytes of a file, unpacked. An end within a compressed stream is [`ErrorKind::UnexpectedEof`].
pub struct Reader<R>(Inner<R>);

enum Inner<R> {
    Plain(Counted<R>),
    Gzip(Box<MultiGzDecoder<Counted<R>>>),
    Zstd(Box<Zstd<R>>),
}

/// Looks at the first bytes of `reader` and unpacks what follows if they ask for it.
///
/// # Errors
///
/// Those of `reader`.
pub fn open<R: Read>(reader: R) -> io::Result<Reader<R>> {
    let mut reader = Counted { first: [0; 4], length: 0, at: 0, reader, count: 0, ended: false };
    while reader.length < reader.first.len() {
        match reader.reader.read(&mut reader.first[reader.length..]) {
            Ok(0) => break,
            Ok(n) => reader.length += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Reader(match Compression::of(&reader.first[..reader.length]) {
        None => Inner::Plain(reader),
        Some(Compression::Gzip) => Inner::Gzip(Box::new(MultiGzDecoder::new(reader))),
        Some(Compression::Zstd) => Inner::Zstd(Box::new(Zstd {
            decoder: FrameDecoder::new(),
            source: BufReader::with_capacity(1 << 16, reader),
            begun: false,
        })),
    }))
}

impl<R: Read> Reader<R> {
    /// How many compressed bytes were read; `None` where nothing is compressed.
    pub fn compressed_bytes(&self) -> Option<u64> {
        match &self.0 {
            Inner::Plain(_) => None,
            Inner::Gzip(gzip) => Some(gzip.get_ref().count),
            Inner::Zstd(zstd) => Some(zstd.source.get_ref().count),
        }
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Plain(reader) => reader.read(buffer),
            Inner::Gzip(gzip) => gzip.read(buffer).map_err(|e| match e.kind() {
                // A header that stops early is not told apart from a wrong one.
                ErrorKind::InvalidInput if gzip.get_ref().ended => ErrorKind::UnexpectedEof.into(),
                _ => e,
            }),
            Inner::Zstd(zstd) => zstd.read(buffer),
        }
    }
}

/// A reader whose first bytes were looked at, and how many bytes it gave.
struct Counted<R> {
    first: [u8; 4],
    length: usize,
    at: usize,
    reader: R,
    count: u64,
    ended: bool,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = if self.at < self.length {
            let mut first = &self.first[self.at..self.length];
            let n = first.read(buffer)?;
            self.at += n;
            n
        } else {
            self.reader.read(buffer)?
        };
        self.ended |= n == 0 && !buffer.is_empty();
        self.count += n as u64;
        Ok(n)
    }
}

struct Zstd<R> {
    decoder: FrameDecoder,
    source: BufReader<Counted<R>>,
    /// A frame is being read.
    begun: bool,
}

impl<R: Read> Zstd<R> {
    /// Begins the next frame; `false` at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.begun = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut frame = (&mut self.source).take(u64::from(length));
                    io::copy(&mut frame, &mut io::sink())?;
                }
                Err(e) => return Err(self.error(&e)),
            }
        }
        Ok(false)
    }

    fn error(&self, e: &FrameDecoderError) -> io::Error {
        if self.source.get_ref().ended {
            return ErrorKind::UnexpectedEof.into();
        }
        let text = match e {
            FrameDecoderError::WindowSizeTooBig { .. } => {
                "the zstd window is above 128 MiB; unpack the file with `zstd -d --long=31` first"
                    .to_owned()
            }
            e => format!("damaged zstd data: {e}"),
        };
        io::Error::new(ErrorKind::InvalidData, text)
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBlocks;
        loop {
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.begun && !self.decoder.is_finished() {
                if let Err(e) = self.decoder.decode_blocks(&mut self.source, UptoBlocks(1)) {
                    return Err(self.error(&e));
                }
            } else if !self.next_frame()? {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        use ruzstd::encoding::{CompressionLevel, compress_to_vec};
        compress_to_vec(data, CompressionLevel::Fastest)
    }

    fn unpack(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        open(bytes)?.read_to_end(&mut data)?;
        Ok(data)
    }

    #[test]
    fn unpacks_what_is_packed_and_passes_what_is_not() {
        let text = "the same words again and again ".repeat(20_000).into_bytes();
        assert_eq!(unpack(&text).unwrap(), text);
        assert_eq!(unpack(b"ab").unwrap(), b"ab");
        assert_eq!(unpack(b"").unwrap(), b"");
        for packed in [gzip(&text), zstd(&text)] {
            assert!(packed.len() < text.len() / 10);
            assert_eq!(unpack(&packed).unwrap(), text);
            // Several members or frames are one stream.
            let twice = [&packed[..], &packed[..]].concat();
            assert_eq!(unpack(&twice).unwrap(), [&text[..], &text[..]].concat());
        }
        // A frame to skip, then one to read.
        let skip = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(b"abc")].concat();
        assert_eq!(unpack(&skip).unwrap(), b"abc");
    }

    #[test]
    fn an_early_end_is_told_apart_from_damage() {
        let text: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        for packed in [gzip(&text), zstd(&text)] {
            for end in [5, 9, 20, packed.len() / 2, packed.len() - 5] {
                let error = unpack(&packed[..end]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{end}: {error}");
            }
            let mut damaged = packed.clone();
            let middle = damaged.len() / 2;
            damaged[middle..middle + 64].fill(0xff);
            if let Err(error) = unpack(&damaged) {
                assert_ne!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            }
        }
    }
}
