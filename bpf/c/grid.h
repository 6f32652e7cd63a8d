/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tick grid of one CPU: how many interval boundaries a tick stands for. Pure: time comes in as
 * an argument, so this compiles natively and is tested there (bpf/src/grid.rs).
 *
 * The perf timer of a CPU fires at origin + k * period, each firing late by some latency. Where
 * interrupts were off, or the hypervisor had taken the CPU away, for longer than a period, the
 * kernel skips the boundaries it has missed and says nothing. Counting firings would lose that
 * time; counting boundaries does not. The latency of a firing can't be negative, so the earliest
 * firing seen is the best estimate of the grid: an earlier one moves the origin, and every firing
 * stands for one boundary at the least.
 */
#ifndef KCOLLECT_GRID_H
#define KCOLLECT_GRID_H

struct grid {
	__u64 origin; /* ns; 0 before the first firing */
	__u64 index;  /* the last boundary counted; boundary k lies at origin + k * period */
};

/* Boundaries passed since the last call: 1 for a timer on time, more after a gap. */
static inline __u32 grid_advance(struct grid *grid, __u64 now, __u64 period)
{
	__u64 index, passed;

	if (!grid->origin) {
		grid->origin = now;
		grid->index = 0;
		return 1;
	}
	index = now > grid->origin ? (now - grid->origin) / period : 0;
	if (index <= grid->index) {
		grid->index += 1;
		grid->origin = now - grid->index * period;
		return 1;
	}
	passed = index - grid->index;
	grid->index = index;
	/* 2^32 boundaries of 100 us are five days without a tick on this CPU: not a gap to make up for. */
	return passed > 0xffffffffULL ? 0xffffffffU : (__u32)passed;
}

#endif
