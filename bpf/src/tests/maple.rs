//! Tests of `c/maple.h`, compiled natively.

use proptest::prelude::*;

use super::native::{native_look_up_raced, native_maple_slot};

const RANGE_PIVOTS: usize = 15;
const ARANGE_PIVOTS: usize = 9;
const PAGE_BYTES: u64 = 4096;

/// Returns the number of the child for an address, in a node with these highest addresses.
fn child(pivots: &[u64], leaf: bool, address: u64) -> u64 {
    let count = if leaf { RANGE_PIVOTS } else { ARANGE_PIVOTS };
    let mut node = [0; 1 + RANGE_PIVOTS];
    node[1..=pivots.len()].copy_from_slice(pivots);
    // SAFETY: the node has all words that are read, and no pointer to it is kept.
    unsafe { native_maple_slot(node.as_ptr(), leaf, address) - 1 - count as u64 }
}

#[test]
fn a_child_has_the_addresses_up_to_its_pivot() {
    let pivots = [0xfff, 0x2fff, 0x7fff_ffff_efff];
    for (address, expected) in [
        (0, 0),
        (0xfff, 0),
        (0x1000, 1),
        (0x2fff, 1),
        (0x3000, 2),
        (0x7fff_ffff_efff, 2),
        (0x7fff_ffff_f000, 3),
        (u64::MAX, 3),
    ] {
        assert_eq!(child(&pivots, true, address), expected, "{address:#x}");
        assert_eq!(child(&pivots, false, address), expected, "{address:#x}");
    }
    // The highest address of the node may be after the last pivot.
    let with_end = [0xfff, 0x2fff, u64::MAX];
    assert_eq!(child(&with_end, true, 0x3000), 2);
    assert_eq!(child(&with_end, true, u64::MAX), 2);
}

#[test]
fn a_look_up_during_a_write_counts_only_if_the_writer_has_another_mapping() {
    for (before, after, of_mapping, raced) in [
        // Linux 6.13: a writer has an odd number.
        (4, 4, 3, false),
        (4, 4, u32::MAX, false),
        (5, 5, 3, false),
        (5, 5, 5, true),
        (4, 5, 3, true),
        (5, 6, 3, true),
        (4, 6, 5, true),
        (u32::MAX, 0, 3, true),
        // Linux 6.4: a writer has the number that its end increments.
        (3, 3, u32::MAX, false),
        (3, 3, 2, false),
        (3, 3, 3, true),
        (3, 4, 3, true),
        // Older: none.
        (0, 0, u32::MAX, false),
    ] {
        // SAFETY: a function of three numbers.
        let result = unsafe { native_look_up_raced(before, after, of_mapping) };
        assert_eq!(result, raced, "{before} {after} {of_mapping}");
    }
}

proptest! {
    #[test]
    fn chosen_child_is_the_first_that_ends_at_the_address_or_after(
        mut pages in proptest::collection::btree_set(1_u64..1 << 35, 1..RANGE_PIVOTS),
        leaf in any::<bool>(),
        chosen in any::<proptest::sample::Index>(),
        near in 0_u64..3,
    ) {
        if !leaf {
            pages = pages.into_iter().take(ARANGE_PIVOTS).collect();
        }
        let pivots: Vec<u64> = pages.iter().map(|page| page * PAGE_BYTES - 1).collect();
        let address = pivots[chosen.index(pivots.len())] + near - 1;
        let expected = pivots.partition_point(|pivot| *pivot < address);
        prop_assert_eq!(child(&pivots, leaf, address), expected as u64);
    }
}
