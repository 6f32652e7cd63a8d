//! Allocates ranges of numbers: row numbers in a chunk, and page numbers in the directory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Numbers from 0 on. An allocation is the first unused range that is large enough.
#[derive(Debug)]
pub(super) struct Ranges {
    unused: BTreeMap<u32, u32>,
}

impl Ranges {
    pub(super) fn new(size: u32) -> Ranges {
        Ranges {
            unused: BTreeMap::from([(0, size)]),
        }
    }

    pub(super) fn allocate(&mut self, count: u32) -> Option<Range<u32>> {
        if count == 0 {
            return Some(0..0);
        }
        let (&start, &length) = self.unused.iter().find(|(_, length)| **length >= count)?;
        self.unused.remove(&start);
        if length > count {
            self.unused.insert(start + count, length - count);
        }
        Some(start..start + count)
    }

    pub(super) fn free(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &length)) = self.unused.range(..start).next_back()
            && before + length == start
        {
            self.unused.remove(&before);
            start = before;
        }
        if let Some(length) = self.unused.remove(&end) {
            end += length;
        }
        self.unused.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn freed_ranges_become_one_again() {
        let mut ranges = Ranges::new(10);
        let [a, b, c] = [3, 4, 3].map(|count| ranges.allocate(count).unwrap());
        assert_eq!((&a, &b, &c), (&(0..3), &(3..7), &(7..10)));
        assert_eq!(ranges.allocate(1), None);
        ranges.free(a);
        ranges.free(c);
        assert_eq!(ranges.allocate(4), None);
        ranges.free(b);
        assert_eq!(ranges.allocate(10), Some(0..10));
    }

    proptest! {
        #[test]
        fn no_number_is_allocated_twice_and_none_is_lost(
            steps in proptest::collection::vec((any::<bool>(), 0_u32..20), 0..200)
        ) {
            let mut ranges = Ranges::new(100);
            let mut held: Vec<Range<u32>> = Vec::new();
            for (allocate, count) in steps {
                if allocate {
                    held.extend(ranges.allocate(count));
                } else if !held.is_empty() {
                    ranges.free(held.swap_remove(count as usize % held.len()));
                }
                let mut numbers: Vec<u32> = held.iter().cloned().flatten().collect();
                let unused: u32 = ranges.unused.values().sum();
                prop_assert_eq!(numbers.len() + unused as usize, 100);
                numbers.sort_unstable();
                numbers.dedup();
                prop_assert_eq!(numbers.len() + unused as usize, 100);
            }
        }
    }
}
