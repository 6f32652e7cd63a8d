//! Tests of the statistics of a CPU.

use proptest::prelude::*;
use zerocopy::FromBytes as _;

use crate::CpuStats;

proptest! {
    #[test]
    fn counts_outlast_a_clock(bytes in proptest::collection::vec(any::<u8>(), size_of::<CpuStats>())) {
        let stats = CpuStats::read_from_bytes(&bytes).unwrap();
        let kept = stats.without_clock();
        prop_assert_eq!(kept.counts(), stats.counts());
        prop_assert_eq!((kept.origin_ns, kept.next_ns, kept.in_idle), (0, 0, 0));
    }
}
