//! Finds which of many literals stand in a line, in one pass. A log of gigabytes is mostly lines that hold none, so
//! the pass is a table look-up per byte: the first four bytes of every literal are hashed into a bitmap, and only
//! where that says "perhaps" are literals compared.

/// Literals to look for; each at least four bytes long.
#[derive(Clone, Debug)]
pub struct Scanner {
    bitmap: Vec<u64>,
    /// First four bytes, literal, index; sorted by the bytes.
    literals: Vec<(u32, &'static [u8], usize)>,
}

const BITS: u32 = 16;
/// 2^32 divided by the golden ratio, which spreads neighbouring keys.
const SPREAD: u32 = 0x9e37_79b9;

const fn slot(key: u32) -> usize {
    (key.wrapping_mul(SPREAD) >> (32 - BITS)) as usize
}

impl Scanner {
    /// Prepares the search. Literals shorter than four bytes are never found; a test holds the table to that.
    pub fn new(literals: impl IntoIterator<Item = &'static str>) -> Scanner {
        let mut scanner = Scanner { bitmap: vec![0; 1 << (BITS - 6)], literals: Vec::new() };
        for (index, literal) in literals.into_iter().enumerate() {
            let Some(start) = literal.as_bytes().first_chunk::<4>() else { continue };
            let key = u32::from_be_bytes(*start);
            let slot = slot(key);
            if let Some(word) = scanner.bitmap.get_mut(slot / 64) {
                *word |= 1 << (slot % 64);
            }
            scanner.literals.push((key, literal.as_bytes(), index));
        }
        scanner.literals.sort_unstable();
        scanner
    }

    /// Calls `each` with the index of every literal found and where it begins, from left to right.
    pub fn find(&self, line: &[u8], mut each: impl FnMut(usize, usize)) {
        let Some(start) = line.first_chunk::<3>() else { return };
        let mut key = start.iter().fold(0u32, |key, b| key << 8 | u32::from(*b));
        for (end, byte) in line.iter().enumerate().skip(3) {
            key = key << 8 | u32::from(*byte);
            let slot = slot(key);
            let word = self.bitmap.get(slot / 64).copied().unwrap_or(0);
            if word >> (slot % 64) & 1 != 0 {
                let at = end - 3;
                let first = self.literals.partition_point(|(k, _, _)| *k < key);
                for (_, literal, index) in
                    self.literals.iter().skip(first).take_while(|(k, _, _)| *k == key)
                {
                    if line.get(at..).is_some_and(|rest| rest.starts_with(literal)) {
                        each(*index, at);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORDS: [&str; 5] = ["abab", "ababc", "babc", "cccc", "abxabx"];

    proptest! {
        #[test]
        fn finds_what_a_plain_search_finds(text in "[abcx]{0,60}") {
            let mut found = Vec::new();
            Scanner::new(WORDS).find(text.as_bytes(), |index, at| found.push((at, index)));
            found.sort_unstable();
            let mut expected = Vec::new();
            for (index, word) in WORDS.iter().enumerate() {
                for at in 0..text.len() {
                    if text[at..].starts_with(word) {
                        expected.push((at, index));
                    }
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
