/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Nodes of the kernel's maple tree (include/linux/maple_tree.h), as they have been since Linux 6.1:
 * 256 bytes, of which the first word leads to the parent; then the pivots, which are the highest
 * addresses of all children but the last; then the children. Pure: a test compiles it natively.
 */
#ifndef KCOLLECT_MAPLE_H
#define KCOLLECT_MAPLE_H

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

/* Returns the index in a node of the child for an address. Pivots behind that of the last child but
 * one are 0, or the highest address of the node. Ranges are of whole pages. Without a branch: the
 * verifier follows one way. */
static __always_inline __u64 maple_slot(const __u64 *node, const __u32 pivots, __u64 address)
{
	__u64 below = 0;

	for (__u32 pivot = 1; pivot <= pivots; pivot++) {
		below += (((node[pivot] - 1) >> PAGE_BITS) - (address >> PAGE_BITS)) >> 63;
		/* One after the other: all at once take more stack than a program has. */
		asm volatile("" : "+r"(below));
	}
	return 1 + pivots + below;
}

/* Returns whether a mapping may have changed while it was looked up without a lock. `before` and
 * `after` are the sequence number of its address space's lock before and after, which changes where
 * a writer ends (since Linux 6.13 also where one begins). A mapping that a writer changes has the
 * number `of_mapping` of that writer, which may change other mappings meanwhile. */
static __always_inline bool look_up_raced(__u32 before, __u32 after, __u32 of_mapping)
{
	return before != after || of_mapping == after;
}

#endif
