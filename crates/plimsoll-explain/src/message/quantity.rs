//! Sizes, counts and shares as logs print them. A printed size is rounded, so it carries how far off it may be; what
//! follows from two sizes is then only said where the rounding allows it.

use plimsoll_units::Bytes;

/// A size as printed: the bytes that the text says, and half a step of its last digit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// What the text says.
    pub bytes: Bytes,
    /// The true value lies within this much of `bytes`; zero where the text is exact.
    pub slack: Bytes,
}

impl Printed {
    /// An exact size.
    pub const fn exact(bytes: Bytes) -> Printed {
        Printed { bytes, slack: Bytes::ZERO }
    }

    /// The least that it can be.
    pub fn low(self) -> Bytes {
        self.bytes - self.slack
    }

    /// The most that it can be.
    pub fn high(self) -> Bytes {
        self.bytes + self.slack
    }
}

/// What the letters GB, MB and KB mean in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// 2^30, 2^20, 2^10, as most frameworks compute whatever they print.
    Binary,
    /// 10^9, 10^6, 10^3.
    Decimal,
    /// A bare number is MiB.
    Mebi,
}

/// Decimals that a printed size may have; more is no size.
const MAX_DECIMALS: usize = 9;
/// Digits before the point; more exceed 16 EiB.
const MAX_DIGITS: usize = 20;

/// Reads a size at the start of `text` and returns it with its length in bytes. Blanks may stand between number and
/// unit; a number without a unit is bytes, unless `units` says MiB.
pub fn size(text: &str, units: Units) -> Option<(Printed, usize)> {
    let (whole, decimals, number_end) = number(text)?;
    let after = text.get(number_end..)?;
    let blanks = after.len() - after.trim_start_matches(' ').len();
    let letters = after.get(blanks..)?;
    let word_end = letters.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(letters.len());
    let word = letters.get(..word_end)?;
    let (scale, end) = match scale(word, units) {
        Some(scale) if blanks <= 1 => (scale, number_end + blanks + word_end),
        // "16 tensors" is a count; the unit must be known or absent.
        _ if word.is_empty() || blanks > 0 => {
            (if units == Units::Mebi { 1 << 20 } else { 1 }, number_end)
        }
        _ => return None,
    };
    let denominator = 10u128.checked_pow(u32::try_from(decimals).ok()?)?;
    let bytes = whole.checked_mul(scale)?.checked_add(denominator / 2)? / denominator;
    let slack = if decimals == 0 && scale == 1 { 0 } else { scale.div_ceil(denominator * 2) };
    let printed = Printed {
        bytes: Bytes::new(u64::try_from(bytes).ok()?),
        slack: Bytes::new(u64::try_from(slack).ok()?),
    };
    Some((printed, end))
}

fn scale(word: &str, units: Units) -> Option<u128> {
    let binary = units != Units::Decimal;
    let choose = |power: u32| if binary { 1u128 << (10 * power) } else { 1000u128.pow(power) };
    Some(match word {
        "B" | "bytes" | "byte" | "Bytes" => 1,
        "KiB" | "Ki" => 1 << 10,
        "MiB" | "Mi" => 1 << 20,
        "GiB" | "Gi" => 1 << 30,
        "TiB" | "Ti" => 1 << 40,
        "K" | "KB" | "kB" | "k" => choose(1),
        "M" | "MB" | "mb" => choose(2),
        "G" | "GB" | "gb" => choose(3),
        "T" | "TB" => choose(4),
        _ => return None,
    })
}

/// Digits without the point, how many of them are decimals, and the length of the text. Thousands may be set apart by
/// commas or underscores.
fn number(text: &str) -> Option<(u128, usize, usize)> {
    let bytes = text.as_bytes();
    let (mut value, mut digits, mut decimals, mut end) = (0u128, 0usize, 0usize, 0usize);
    let mut point = false;
    while let Some(byte) = bytes.get(end) {
        let next = bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
        match byte {
            b'0'..=b'9' => {
                digits += 1;
                if digits > MAX_DIGITS + MAX_DECIMALS {
                    return None;
                }
                // Decimals beyond the ninth say nothing.
                if !point || decimals < MAX_DECIMALS {
                    value = value.checked_mul(10)?.checked_add(u128::from(byte - b'0'))?;
                    decimals += usize::from(point);
                }
            }
            b'.' if !point && digits > 0 && next => point = true,
            b',' | b'_' if !point && digits > 0 && next && thousands(bytes, end) => {}
            _ => break,
        }
        end += 1;
    }
    (digits > 0).then_some((value, decimals, end))
}

/// Whether exactly three digits follow the mark, so that it sets thousands apart.
fn thousands(bytes: &[u8], mark: usize) -> bool {
    let run = bytes.iter().skip(mark + 1).take_while(|b| b.is_ascii_digit()).take(4).count();
    run == 3
}

/// Reads a count at the start of `text`: `178,880`, `1_000`; a sign before it is refused.
pub fn count(text: &str) -> Option<(u64, usize)> {
    let (value, decimals, end) = number(text)?;
    let whole = value / 10u128.checked_pow(u32::try_from(decimals).ok()?)?;
    Some((u64::try_from(whole).ok()?, end))
}

/// Reads a share at the start of `text` in thousandths: `0.90`, `4.61x`, `57.1%`.
pub fn permille(text: &str) -> Option<(u64, usize)> {
    let (value, decimals, end) = number(text)?;
    let percent = text.get(end..)?.trim_start().starts_with('%');
    let factor = if percent { 10 } else { 1000 };
    let scaled = value.checked_mul(factor)? / 10u128.checked_pow(u32::try_from(decimals).ok()?)?;
    Some((u64::try_from(scaled).ok()?, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_carry_their_rounding() {
        for (text, units, bytes, slack, length) in [
            ("20.00 MiB.", Units::Binary, 20 << 20, 5243, 9),
            ("1024.00 KiB (", Units::Binary, 1 << 20, 6, 11),
            ("0 bytes free", Units::Binary, 0, 0, 7),
            ("0B", Units::Binary, 0, 0, 2),
            ("21.21GiB; x", Units::Binary, 22_774_064_087, 5_368_710, 8),
            ("18.02 GB,", Units::Binary, 19_348_827_668, 5_368_710, 8),
            ("70.00GB |", Units::Decimal, 70_000_000_000, 5_000_000, 7),
            ("14.9888 GB", Units::Binary, 16_094_101_452, 53_688, 10),
            ("285081600\n", Units::Binary, 285_081_600, 0, 9),
            ("6144", Units::Mebi, 6144 << 20, 512 << 10, 4),
            ("48928.09 MiB", Units::Binary, 51_304_820_900, 5243, 12),
            ("16 tensors", Units::Binary, 16, 0, 2),
            ("26,184,840kB", Units::Binary, 26_813_276_160, 512, 12),
        ] {
            let expected =
                Some((Printed { bytes: Bytes::new(bytes), slack: Bytes::new(slack) }, length));
            assert_eq!(size(text, units), expected, "{text}");
        }
        for text in ["", "GiB", "-1 GiB", "nan", "16tensors", "99999999999999999999999 TiB"] {
            assert_eq!(size(text, Units::Binary), None, "{text}");
        }
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!(count("178,880 tokens"), Some((178_880, 7)));
        assert_eq!(count("7344)."), Some((7344, 4)));
        assert_eq!(count("1,2"), Some((1, 1)));
        assert_eq!(count("-561981"), None);
        assert_eq!(permille("0.90) ="), Some((900, 4)));
        assert_eq!(permille("4.84x"), Some((4840, 4)));
        assert_eq!(permille("57.1%)"), Some((571, 4)));
    }
}
