//! One time-ordered stream from many rings.
//!
//! Rings are drained in rounds; within a round records come in any order against those of other
//! rings. A record is in its ring very soon after its time, so what is old enough at the beginning
//! of a round is complete once that round is drained, and goes out sorted.
//!
//! A record that comes later all the same goes out next, counted: its time is right, only the state
//! of the world it is judged by may be a little newer.

/// Sorts items by time, in rounds.
#[derive(Debug)]
pub struct Order<T> {
    pending: Vec<(u64, T)>,
    released: u64,
    late: u64,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Order {
            pending: Vec::new(),
            released: 0,
            late: 0,
        }
    }
}

impl<T> Order<T> {
    /// Adds an item with its time.
    pub fn push(&mut self, time: u64, item: T) {
        if time < self.released {
            self.late += 1;
        }
        self.pending.push((time, item));
    }

    /// Takes out everything before `time`, in order; items of one instant in the order they came.
    pub fn release(&mut self, time: u64) -> Vec<(u64, T)> {
        self.released = self.released.max(time);
        self.pending.sort_by_key(|(time, _)| *time);
        let kept = self.pending.partition_point(|(item, _)| *item < time);
        let later = self.pending.split_off(kept);
        std::mem::replace(&mut self.pending, later)
    }

    /// The items that wait, with their times, in no order.
    pub fn waiting(&self) -> impl Iterator<Item = &(u64, T)> {
        self.pending.iter()
    }

    /// How many items came after their time had been released.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARGIN: u64 = 20;

    #[test]
    fn rounds_release_what_is_complete() {
        let mut order = Order::default();
        for (time, item) in [(30, 'c'), (10, 'a'), (20, 'b'), (20, 'B')] {
            order.push(time, item);
        }
        assert_eq!(order.release(20), [(10, 'a')]);
        order.push(25, 'x');
        assert_eq!(order.release(30), [(20, 'b'), (20, 'B'), (25, 'x')]);
        assert_eq!(order.release(u64::MAX), [(30, 'c')]);
        assert_eq!(order.late(), 0);
    }

    #[test]
    fn a_latecomer_is_counted_and_goes_out_next() {
        let mut order = Order::default();
        order.push(10, 'a');
        assert_eq!(order.release(50).len(), 1);
        order.push(40, 'l');
        order.push(60, 'b');
        assert_eq!(order.release(70), [(40, 'l'), (60, 'b')]);
        assert_eq!(order.late(), 1);
    }

    proptest! {
        /// Two rings, drained at any moments, each record arriving within the margin: nothing is
        /// lost, nothing doubled, all is in order.
        #[test]
        fn rounds_sort_all_rings(
            mut records in proptest::collection::vec((100_u64..1000, 0_u64..MARGIN), 0..200),
            mut rounds in proptest::collection::vec(100_u64..1100, 0..20),
        ) {
            records.sort_by_key(|(time, delay)| time + delay);
            rounds.sort_unstable();
            let (mut order, mut out, mut sent) = (Order::default(), Vec::new(), 0);
            for round in rounds {
                let arrived = records.partition_point(|(time, delay)| time + delay < round);
                records[sent..arrived].iter().for_each(|record| order.push(record.0, *record));
                sent = arrived;
                out.extend(order.release(round - MARGIN));
            }
            records[sent..].iter().for_each(|record| order.push(record.0, *record));
            out.extend(order.release(u64::MAX));
            prop_assert!(out.is_sorted_by_key(|(time, _)| *time));
            prop_assert_eq!(out.len(), records.len());
            prop_assert_eq!(order.late(), 0);
        }
    }
}
