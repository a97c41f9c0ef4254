//! Numbers as bytes as text: variable-length integers, deflated, in base64. The page unpacks each piece when it needs
//! it, with what every browser has.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// A row of numbers on its way into the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Packer(Vec<u8>);

impl Packer {
    /// Seven bits a byte, low ones first.
    pub fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A difference: small ones of either sign are short.
    pub fn difference(&mut self, from: u64, to: u64) {
        let difference = to.wrapping_sub(from) as i64;
        self.number(((difference << 1) ^ (difference >> 63)) as u64);
    }

    /// The text of the packed numbers.
    pub fn text(&self) -> String {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
        // Writing to memory does not fail.
        let deflated = encoder.write_all(&self.0).and_then(|()| encoder.finish());
        base64(&deflated.unwrap_or_default())
    }
}

/// Base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let word = part.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - part.len()));
        for digit in 0..4 {
            if digit <= part.len() {
                text.push(char::from(DIGITS[(word >> (18 - 6 * digit) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn differences_of_either_sign_are_short() {
        let mut packer = Packer::default();
        packer.difference(10, 9);
        packer.difference(9, 10);
        packer.number(300);
        assert_eq!(packer.0, [1, 2, 0xac, 0x02]);
    }
}
