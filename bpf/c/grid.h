/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tick grid of one CPU: which interval boundaries have passed and are not counted yet. Pure:
 * time comes in as an argument, so this compiles natively and is tested there (bpf/src/grid.rs).
 *
 * Boundary k lies at origin + k * period; the CPU's clock fires just after each. But not always:
 * where interrupts were off, or the hypervisor had taken the CPU away, or had parked an idle CPU with
 * its timers, boundaries pass without a firing and the kernel says nothing. Counting firings would
 * lose that time; counting boundaries does not, whoever asks and whenever.
 */
#ifndef KCOLLECT_GRID_H
#define KCOLLECT_GRID_H

struct grid {
	__u64 origin; /* ns */
	__u64 index;  /* the last boundary that was counted */
};

/* Counts the boundaries that passed since the last call; 0 when somebody else has counted them. */
static inline __u32 grid_advance(struct grid *grid, __u64 now, __u64 period)
{
	__u64 index = now > grid->origin ? (now - grid->origin) / period : 0, passed;

	if (index <= grid->index)
		return 0;
	passed = index - grid->index;
	grid->index = index;
	/* 2^31 boundaries of 100 us are two days without a tick: more than a packet can carry. */
	return passed > 0x7fffffffULL ? 0x7fffffffU : (__u32)passed;
}

/* Boundaries before `to`, if the first one lies at `next`. */
static inline __u32 grid_until(__u64 next, __u64 to, __u64 period)
{
	__u64 passed = to < next ? 0 : 1 + (to - next) / period;

	return passed > 0x7fffffffULL ? 0x7fffffffU : (__u32)passed;
}

#endif
