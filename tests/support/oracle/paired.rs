//! Comparison of settings on a machine whose speed drifts.
//!
//! A virtual machine is faster in one minute than in the next, by more than what is measured here.
//! So all settings are measured in every round, shortly after one another, and what is compared is
//! a setting with the base *of its round*: the drift falls on both. [`ratios`] are those pairs, a
//! [`Spread`] is their summary, and [`order`] keeps a setting from always being measured after the
//! same other one, whose caches and dirty pages it would inherit.

/// The middle and both ends of a few measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The middle one, or the mean of the middle two.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of values in any order and unit; `None` of no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self {
            min,
            median: f64::midpoint(low, high),
            max,
        })
    }
}

/// Returns the ratios of two series with one value a round, in rounds that have both.
pub fn ratios(values: &[Option<f64>], base: &[Option<f64>]) -> Vec<f64> {
    values
        .iter()
        .zip(base)
        .filter_map(|(value, base)| Some((*value)? / (*base)?))
        .collect()
}

/// Returns the order of `count` settings in a round: a row of a Williams design (E. J. Williams,
/// 1949).
///
/// A mere rotation would leave every setting after the same one in every round. Here, in `count`
/// rounds (`2 * count` if it is odd) every setting follows every other one equally often.
pub fn order(count: usize, round: usize) -> Vec<usize> {
    // 0, 1, last, 2, last but one, …: of an even count, every difference between neighbours occurs
    // once.
    let mut row: Vec<usize> = (0..count)
        .map(|place| {
            let step = place.div_ceil(2);
            let slot = if place % 2 == 1 { step } else { count - step };
            (slot + round) % count
        })
        .collect();
    // With an odd count, half of the differences occur twice; the mirrored rows have the other
    // half.
    if count % 2 == 1 && round % 2 == 1 {
        row.reverse();
    }
    row
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_middle_and_both_ends() {
        assert_eq!(Spread::of(&[]), None);
        let of = |values: &[f64]| {
            let spread = Spread::of(values).unwrap();
            (spread.min, spread.median, spread.max)
        };
        assert_eq!(of(&[2.0]), (2.0, 2.0, 2.0));
        assert_eq!(of(&[3.0, 1.0, 9.0]), (1.0, 3.0, 9.0));
        assert_eq!(of(&[4.0, 1.0, 9.0, 2.0]), (1.0, 3.0, 9.0));
    }

    #[test]
    fn only_rounds_with_both_are_compared() {
        let base = [Some(2.0), Some(4.0), None, Some(5.0)];
        let values = [Some(3.0), None, Some(1.0), Some(5.0)];
        assert_eq!(ratios(&values, &base), [1.5, 1.0]);
    }

    #[test]
    fn drift_cancels_in_pairs() {
        let base = [Some(100.0), Some(200.0), Some(400.0)];
        let values = base.map(|value| value.map(|value: f64| value * 1.25));
        let spread = Spread::of(&ratios(&values, &base)).unwrap();
        assert_eq!((spread.min, spread.max), (1.25, 1.25));
    }

    proptest! {
        #[test]
        fn every_setting_follows_every_other_equally_often(count in 1usize..16) {
            let rounds = if count % 2 == 0 { count } else { 2 * count };
            let mut pairs = BTreeMap::new();
            for round in 0..rounds {
                let row = order(count, round);
                let mut sorted = row.clone();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, (0..count).collect::<Vec<_>>());
                for pair in row.windows(2) {
                    *pairs.entry((pair[0], pair[1])).or_insert(0) += 1;
                }
            }
            prop_assert_eq!(pairs.len(), count * (count - 1));
            let times = if count % 2 == 0 { 1 } else { 2 };
            prop_assert!(pairs.values().all(|&seen| seen == times));
        }
    }
}
