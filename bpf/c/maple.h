/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Nodes of the kernel's maple tree (include/linux/maple_tree.h), as they have been since Linux 6.1:
 * 256 bytes, of which the first word leads to the parent; then the pivots, which are the highest
 * addresses of all children but the last; then the children. Pure: a test compiles it natively.
 */
#ifndef KCOLLECT_MAPLE_H
#define KCOLLECT_MAPLE_H

#include "integers.h"

#define MAPLE_NODE_BYTES 256
/* In the two lowest bits of the root's address. */
#define MAPLE_ROOT_MARK 2
/* The type is in the low byte of a node's address. A leaf's children are what is looked for. */
#define MAPLE_TYPE(node) ((node) >> 3 & 15)
#define MAPLE_LEAF_64	 1
#define MAPLE_ARANGE_64	 3
#define RANGE_PIVOTS	 15
#define ARANGE_PIVOTS	 9
#define PAGE_BITS	 12

/* 1 if a number is less than another, otherwise 0, where they differ by less than half
 * of all numbers. Without a branch, which a compiler would make of a comparison: the verifier
 * follows one way. */
static __always_inline __u64 maple_less(__u64 number, __u64 other)
{
	__u64 difference = number - other;

	asm volatile("" : "+r"(difference));
	return difference >> 63;
}

/* Number of pivots of a node. */
static __always_inline __u64 maple_pivots(__u64 type)
{
	return RANGE_PIVOTS - maple_less(type ^ MAPLE_ARANGE_64, 1) * (RANGE_PIVOTS - ARANGE_PIVOTS);
}

/* Index of an address's child in a node with `pivots` pivots. Pivots after the last child but one's
 * are 0, or the highest address of the node. Ranges are of whole pages. */
static __always_inline __u64 maple_slot(const __u64 *node, __u64 pivots, __u64 address)
{
	__u64 below = 0, has_all = maple_less(ARANGE_PIVOTS, pivots);

	for (__u32 pivot = 1; pivot <= RANGE_PIVOTS; pivot++) {
		__u64 is_below = maple_less((node[pivot] - 1) >> PAGE_BITS, address >> PAGE_BITS);

		below += pivot <= ARANGE_PIVOTS ? is_below : is_below & has_all;
	}
	return 1 + pivots + below;
}

/* Whether a mapping may have changed while it was looked up without a lock. `before` and `after`
 * are the sequence number of its address space's lock before and after the look-up. It changes when
 * a writer ends (since Linux 6.13 also when one begins). A mapping that a writer changes gets that
 * writer's number, `of_mapping`; the writer may change other mappings meanwhile. */
static __always_inline bool look_up_raced(__u32 before, __u32 after, __u32 of_mapping)
{
	return before != after || of_mapping == after;
}

#endif
