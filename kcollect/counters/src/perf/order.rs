//! Sorts the records of many rings by time.
//!
//! Rings are drained in rounds; within a round the records of different rings come in any order. A
//! record is in its ring very soon after its time. So all records that are old enough when a round
//! begins have arrived when that round is drained, and are released in order.
//!
//! A record that still arrives late is counted, and released next: its time is right, but it is
//! processed after records with later times.

use types::units::Nanos;

/// Items that wait to be released in the order of time.
#[derive(Debug)]
pub struct TimeOrder<T> {
    /// Each with its time in nanoseconds.
    pending: Vec<(Nanos, T)>,
    /// The time before which items were released.
    released_ns: Nanos,
    late: u64,
}

impl<T> Default for TimeOrder<T> {
    fn default() -> Self {
        TimeOrder {
            pending: Vec::new(),
            released_ns: Nanos::ZERO,
            late: 0,
        }
    }
}

impl<T> TimeOrder<T> {
    /// Adds an item with its time.
    pub fn push(&mut self, time_ns: Nanos, item: T) {
        if time_ns < self.released_ns {
            self.late += 1;
        }
        self.pending.push((time_ns, item));
    }

    /// Removes and returns all items before `until_ns`, in order. Items of the same time keep the
    /// order in which they were added.
    pub fn release(&mut self, until_ns: Nanos) -> Vec<(Nanos, T)> {
        self.released_ns = self.released_ns.max(until_ns);
        self.pending.sort_by_key(|(time_ns, _)| *time_ns);
        let released = self
            .pending
            .partition_point(|(time_ns, _)| *time_ns < until_ns);
        let later = self.pending.split_off(released);
        std::mem::replace(&mut self.pending, later)
    }

    /// Removes and returns all items, in order. Items that are added later are not late.
    pub fn release_all(&mut self) -> Vec<(Nanos, T)> {
        let mut all = std::mem::take(&mut self.pending);
        all.sort_by_key(|(time_ns, _)| *time_ns);
        all
    }

    /// Returns the items that were not yet released, with their times, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &(Nanos, T)> {
        self.pending.iter()
    }

    /// Returns how many items were added after their time had been released.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_DELAY: u64 = 20;

    #[test]
    fn rounds_release_what_is_complete() {
        let mut order = TimeOrder::default();
        for (time, item) in [(30, 'c'), (10, 'a'), (20, 'b'), (20, 'B')] {
            order.push(Nanos(time), item);
        }
        assert_eq!(order.release(Nanos(20)), [(Nanos(10), 'a')]);
        order.push(Nanos(25), 'x');
        assert_eq!(
            order.release(Nanos(30)),
            [(Nanos(20), 'b'), (Nanos(20), 'B'), (Nanos(25), 'x')]
        );
        assert_eq!(order.release(Nanos::MAX), [(Nanos(30), 'c')]);
        assert_eq!(order.late(), 0);
    }

    #[test]
    fn a_late_item_is_counted_and_released_next() {
        let mut order = TimeOrder::default();
        order.push(Nanos(10), 'a');
        assert_eq!(order.release(Nanos(50)).len(), 1);
        order.push(Nanos(40), 'l');
        order.push(Nanos(60), 'b');
        assert_eq!(
            order.release(Nanos(70)),
            [(Nanos(40), 'l'), (Nanos(60), 'b')]
        );
        assert_eq!(order.late(), 1);
    }

    proptest! {
        /// Two rings, drained at any moments, each record arriving within the delay: nothing is
        /// lost or doubled, and all is in order.
        #[test]
        fn rounds_sort_all_rings(
            mut records in proptest::collection::vec((100_u64..1000, 0_u64..MAX_DELAY), 0..200),
            mut rounds in proptest::collection::vec(100_u64..1100, 0..20),
        ) {
            records.sort_by_key(|(time, delay)| time + delay);
            rounds.sort_unstable();
            let (mut order, mut out, mut sent) = (TimeOrder::default(), Vec::new(), 0);
            for round in rounds {
                let arrived = records.partition_point(|(time, delay)| time + delay < round);
                records[sent..arrived].iter().for_each(|record| order.push(Nanos(record.0), *record));
                sent = arrived;
                out.extend(order.release(Nanos(round - MAX_DELAY)));
            }
            records[sent..].iter().for_each(|record| order.push(Nanos(record.0), *record));
            out.extend(order.release(Nanos::MAX));
            prop_assert!(out.is_sorted_by_key(|(time, _)| *time));
            prop_assert_eq!(out.len(), records.len());
            prop_assert_eq!(order.late(), 0);
        }
    }
}
