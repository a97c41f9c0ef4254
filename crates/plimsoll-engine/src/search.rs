//! The most that fits. The answer is exact on the monotone envelope: the largest `n` such that `n` and every
//! smaller value that was tried fits, while `n + 1` does not. Allocator rounding can make a larger size need
//! slightly less than a smaller one; a value that fits beyond one that fails is not offered, because a run that
//! grows up to it would pass the failing one.

use std::collections::BTreeMap;

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found<T> {
    /// The largest value that fits on the envelope; `None` where 1 already fails.
    pub value: Option<u64>,
    /// The failing value after it, with its outcome; `None` where `limit` itself fits.
    pub failing: Option<(u64, T)>,
    /// Values that were tried.
    pub evaluated: u64,
}

/// Raises `n` from 1 to at most `limit`. `try_value` says whether a value fits, with whatever the caller wants to
/// know of the failing neighbour.
pub(crate) fn largest<T, E>(
    limit: u64,
    mut try_value: impl FnMut(u64) -> Result<(bool, T), E>,
) -> Result<Found<T>, E> {
    let mut outcomes: BTreeMap<u64, T> = BTreeMap::new();
    let mut evaluated = 0;
    let mut fits = |n: u64, outcomes: &mut BTreeMap<u64, T>| -> Result<bool, E> {
        evaluated += 1;
        let (fits, outcome) = try_value(n)?;
        if !fits {
            outcomes.insert(n, outcome);
        }
        Ok(fits)
    };
    let (mut good, mut bad) = (0, None);
    let mut probe = 1u64;
    // Exponential phase: double while it fits.
    while good < limit {
        let n = probe.min(limit);
        if fits(n, &mut outcomes)? {
            good = n;
            probe = n.saturating_mul(2);
        } else {
            bad = Some(n);
            break;
        }
    }
    // Bisection: `good` fits, `bad` does not.
    while let Some(over) = bad
        && over - good > 1
    {
        let middle = good + (over - good) / 2;
        if fits(middle, &mut outcomes)? {
            good = middle;
        } else {
            bad = Some(middle);
        }
    }
    let failing = bad.and_then(|n| outcomes.remove(&n).map(|outcome| (n, outcome)));
    Ok(Found { value: (good > 0).then_some(good), failing, evaluated })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn search(limit: u64, fits: impl Fn(u64) -> bool) -> Found<u64> {
        largest(limit, |n| Ok::<_, Infallible>((fits(n), n))).unwrap()
    }

    /// The checker: walk up from 1 until something fails.
    fn scan(limit: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
        (1..=limit).take_while(|n| fits(*n)).last()
    }

    #[test]
    fn edges() {
        for (limit, line, value, failing) in [
            (100, 0, None, Some(1)),
            (100, 1, Some(1), Some(2)),
            (100, 37, Some(37), Some(38)),
            (100, 99, Some(99), Some(100)),
            (100, 100, Some(100), None),
            (1, 5, Some(1), None),
            (u64::MAX, u64::MAX, Some(u64::MAX), None),
        ] {
            let found = search(limit, |n| n <= line);
            assert_eq!(found.value, value, "line {line}");
            assert_eq!(found.failing.map(|f| f.0), failing, "line {line}");
        }
    }

    proptest! {
        #[test]
        fn equals_a_linear_scan_where_memory_grows(limit in 1u64..600, line in 0u64..700) {
            let found = search(limit, |n| n <= line);
            prop_assert_eq!(found.value, scan(limit, |n| n <= line));
            prop_assert!(found.evaluated <= 2 * 11);
        }

        #[test]
        fn is_sound_where_memory_wobbles(limit in 1u64..300, holes in proptest::collection::vec(1u64..300, 0..6)) {
            let fits = |n: u64| n <= 200 && !holes.contains(&n);
            let found = search(limit, fits);
            if let Some(n) = found.value {
                prop_assert!(fits(n));
                prop_assert!(n == limit || !fits(n + 1));
            } else {
                prop_assert!(!fits(1));
            }
        }
    }
}
