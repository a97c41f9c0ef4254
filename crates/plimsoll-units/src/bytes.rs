//! An exact count of bytes. Arithmetic saturates at [`Bytes::MAX`] instead of wrapping or panicking:
//! sizes come from files and users, and "more than 16 EiB" must stay a value that compares as too large.
//! [`Bytes::is_saturated`] tells the facade to reject such a request.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Rem, Sub, SubAssign};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes, exact, never negative.
///
/// ```
/// use plimsoll_units::Bytes;
/// let card: Bytes = "23.6GiB".parse().unwrap();
/// assert_eq!(card, Bytes::new(25_340_307_046));
/// assert_eq!(card.to_string(), "23.60 GiB");
/// assert_eq!("80GB".parse::<Bytes>().unwrap().get(), 80_000_000_000);
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

/// 2^10, 2^20, 2^30, 2^40.
const BINARY: [(&str, u64); 4] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);
    /// The value that saturated arithmetic ends in: 2^64 - 1.
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// A count of single bytes.
    pub const fn new(bytes: u64) -> Self {
        Bytes(bytes)
    }

    /// `n` x 2^10 bytes, saturating.
    pub const fn kib(n: u64) -> Self {
        Bytes(n.saturating_mul(1 << 10))
    }

    /// `n` x 2^20 bytes, saturating.
    pub const fn mib(n: u64) -> Self {
        Bytes(n.saturating_mul(1 << 20))
    }

    /// `n` x 2^30 bytes, saturating.
    pub const fn gib(n: u64) -> Self {
        Bytes(n.saturating_mul(1 << 30))
    }

    /// The count.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether some sum or product on the way here exceeded 2^64 - 1.
    pub const fn is_saturated(self) -> bool {
        self.0 == u64::MAX
    }

    /// Whether the count is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The difference, or zero where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The difference, or `None` where `other` is larger.
    pub const fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_sub(other.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// Rounded up to a multiple of `quantum`; a zero quantum leaves the value as it is.
    #[must_use]
    pub const fn round_up(self, quantum: Bytes) -> Bytes {
        if quantum.0 == 0 {
            return self;
        }
        match self.0 % quantum.0 {
            0 => self,
            rest => Bytes(self.0.saturating_add(quantum.0 - rest)),
        }
    }

    /// `self` x `numerator` / `denominator`, rounded down, exact in between. A zero denominator gives zero.
    #[must_use]
    pub const fn scale(self, numerator: u64, denominator: u64) -> Bytes {
        if denominator == 0 {
            return Bytes::ZERO;
        }
        let wide = self.0 as u128 * numerator as u128 / denominator as u128;
        if wide > u64::MAX as u128 { Bytes::MAX } else { Bytes(wide as u64) }
    }

    /// Divided into `parts`, rounded up: the share of the rank that holds most.
    #[must_use]
    pub const fn share(self, parts: u64) -> Bytes {
        if parts == 0 { self } else { Bytes(self.0.div_ceil(parts)) }
    }

    /// GiB as a float, for plots and ratios only; never feed it back into a memory formula.
    pub fn as_gib_f64(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }

    /// MiB as a float, for plots and ratios only.
    pub fn as_mib_f64(self) -> f64 {
        self.0 as f64 / (1u64 << 20) as f64
    }

    /// The exact value in the largest binary unit that leaves a finite decimal: `"1.5 GiB"`, `"1000 B"`.
    /// Every value prints exactly, since 2^-40 has 40 decimals; values below 1 KiB print in bytes.
    pub fn exact(self) -> String {
        let Some((unit, size)) = BINARY.iter().rev().find(|(_, size)| self.0 >= *size) else {
            return format!("{} B", self.0);
        };
        let mut text = (self.0 / size).to_string();
        let mut rest = (self.0 % size) as u128;
        if rest != 0 {
            text.push('.');
            while rest != 0 {
                rest *= 10;
                text.push(char::from(b'0' + (rest / u128::from(*size)) as u8));
                rest %= u128::from(*size);
            }
        }
        format!("{text} {unit}")
    }
}

/// Two decimals in the largest fitting binary unit, rounded half up in integers; the text that reports show.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_saturated() {
            return f.pad("more than 16 EiB");
        }
        let Some((unit, size)) = BINARY.iter().rev().find(|(_, size)| self.0 >= *size) else {
            return f.pad(&format!("{} B", self.0));
        };
        let hundredths = (u128::from(self.0) * 100 + u128::from(*size) / 2) / u128::from(*size);
        f.pad(&format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

/// Saturates at zero; use [`Bytes::checked_sub`] where a negative result would be an error.
impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        self.saturating_sub(other)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        *self = *self - other;
    }
}

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, n: u64) -> Bytes {
        Bytes(self.0.saturating_mul(n))
    }
}

/// Rounds down; a zero divisor gives zero.
impl Div<u64> for Bytes {
    type Output = Bytes;
    fn div(self, n: u64) -> Bytes {
        Bytes(self.0.checked_div(n).unwrap_or(0))
    }
}

impl Rem<Bytes> for Bytes {
    type Output = Bytes;
    fn rem(self, quantum: Bytes) -> Bytes {
        Bytes(self.0.checked_rem(quantum.0).unwrap_or(0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(values: I) -> Bytes {
        values.fold(Bytes::ZERO, Add::add)
    }
}

impl<'a> Sum<&'a Bytes> for Bytes {
    fn sum<I: Iterator<Item = &'a Bytes>>(values: I) -> Bytes {
        values.copied().sum()
    }
}

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a size: {reason}; write a number and a unit, such as 24GiB, 23.6GiB, 80GB or 512MiB"
)]
pub struct ParseBytesError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Reads `24GiB`, `23.6 GiB`, `80GB`, `1_000_000`, `512m`. Binary units are KiB, MiB, GiB, TiB and the
    /// single letters k, m, g, t (as `docker` and `java` read them); KB, MB, GB, TB are decimal. A fraction
    /// of a byte is rounded to the nearest byte, in integers.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| ParseBytesError { text: text.to_owned(), reason };
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        if !number.contains(|c: char| c.is_ascii_digit()) {
            return Err(fail("it does not begin with a number"));
        }
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" | "byte" | "bytes" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(fail("the unit is unknown")),
        };
        let digits = number.replace('_', "");
        let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
        if fraction.contains('.') {
            return Err(fail("it has two decimal points"));
        }
        if fraction.len() > 18 {
            return Err(fail("it has more than 18 decimals"));
        }
        let whole: u128 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| fail("it is too large"))?
        };
        let denominator = 10u128.pow(fraction.len() as u32);
        let fraction: u128 = if fraction.is_empty() {
            0
        } else {
            fraction.parse().map_err(|_| fail("it is not a number"))?
        };
        let total = whole
            .checked_mul(u128::from(scale))
            .and_then(|n| {
                n.checked_add((fraction * u128::from(scale) + denominator / 2) / denominator)
            })
            .ok_or_else(|| fail("it is too large"))?;
        match u64::try_from(total) {
            Ok(n) if n != u64::MAX => Ok(Bytes(n)),
            _ => Err(fail("it is too large")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("24GiB", 24 << 30),
            ("24g", 24 << 30),
            ("80 GB", 80_000_000_000),
            ("23.6GiB", 25_340_307_046),
            (".5MiB", 524_288),
            ("1_024B", 1024),
            ("9007199254.740993 MB", 9_007_199_254_740_993),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in ["", "GiB", "1.2.3GB", "24 gallons", "-1GiB", "99999999999999999999TiB", "1e3"]
        {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(error.to_string().contains("24GiB"), "{error}");
        }
    }

    #[test]
    fn prints_rounded_and_exact() {
        assert_eq!(Bytes(85_899_345_921).to_string(), "80.00 GiB");
        assert_eq!(Bytes(85_899_345_921).exact(), "80.000000000931322574615478515625 GiB");
        assert_eq!(Bytes(1023).exact(), "1023 B");
        assert_eq!(Bytes::MAX.to_string(), "more than 16 EiB");
        assert!((Bytes::MAX + Bytes(1)).is_saturated());
    }

    proptest! {
        #[test]
        fn exact_text_reads_back(n in (0u64..1 << 41).prop_map(|n| n << 22)) {
            let text = Bytes(n).exact();
            let (number, unit) = text.split_once(' ').unwrap();
            prop_assert_eq!(format!("{number}{unit}").parse::<Bytes>().unwrap(), Bytes(n));
        }

        #[test]
        fn scale_matches_wide_arithmetic(n in any::<u64>(), a in 0u64..10_000, b in 1u64..10_000) {
            let wide = u128::from(n) * u128::from(a) / u128::from(b);
            prop_assert_eq!(u128::from(Bytes(n).scale(a, b).get()), wide.min(u128::from(u64::MAX)));
        }
    }
}
