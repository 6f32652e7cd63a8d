/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Draws from an exponential distribution, without floating point: the bytes that a thread allocates
 * until one of them is sampled. As each byte is sampled with the same probability, whatever was
 * before it, a block's probability depends on its size alone, and its weight can be computed from
 * that.
 */
#ifndef KCOLLECT_DRAW_H
#define KCOLLECT_DRAW_H

#include "integers.h"
#include "limits.h"

/* -log2((random + 1) / 2^32), in units of 2^-LOG2_BITS: 0 to 32. `table` has log2(1 + i /
 * LOG2_STEPS) in the same units, for i from 0 to LOG2_STEPS. */
static __always_inline __u64 negative_log2(__u32 random, const volatile __u32 *table)
{
	__u64 number = (__u64)random + 1, fraction;
	__u32 exponent = 0, step, low, high;

	for (__u32 bit = 16; bit; bit /= 2) {
		if (number >> exponent >> bit)
			exponent += bit;
	}
	if (number >> 32)
		exponent = 32;
	/* 32 bits below the highest one. */
	fraction = number << (32 - exponent) & 0xffffffff;
	step = fraction >> 24;
	low = table[step & (LOG2_STEPS - 1)];
	high = table[(step & (LOG2_STEPS - 1)) + 1];
	return ((__u64)(32 - exponent) << LOG2_BITS) - low -
	       ((high - low) * (fraction >> 8 & 0xffff) >> 16);
}

/* Number of bytes until the next sample. `scale` is their mean times log(2), in units of
 * 2^-SCALE_BITS. */
static __always_inline __u64 draw_bytes(__u32 random, __u64 scale, const volatile __u32 *table)
{
	return 1 + (negative_log2(random, table) * scale >> (LOG2_BITS + SCALE_BITS));
}

#endif
