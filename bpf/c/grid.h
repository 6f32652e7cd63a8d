/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tick grid of one CPU: which interval boundaries have passed and are not counted yet. Pure:
 * time comes in as an argument, so this compiles natively and is tested there (bpf/src/grid.rs).
 *
 * Boundary k lies at origin + k * period; the CPU's clock fires just after each. But not always:
 * where interrupts were off, or the hypervisor had taken the CPU away, or had parked an idle CPU
 * with its timers, boundaries pass without a firing and the kernel says nothing. Counting firings
 * would lose that time; counting boundaries does not, whoever asks and whenever.
 *
 * The boundaries have to lie where the timer fires, or what leaves the CPU between a boundary and a
 * firing a good while later would be taken for one whose firing is overdue. The timer is started
 * after the grid has begun: a few microseconds, or, where more wants to run than there are CPUs,
 * any time. And the kernel stops and restarts the timer of an event that has fired
 * kernel.perf_event_max_sample_rate / HZ times since the CPU's last scheduler tick, which an idle
 * CPU has none of: each time it fires at other instants from then on. So each firing tells when it
 * was due (grid_align).
 *
 * The boundaries stay within half a period of where they lay when data began (home), however often
 * they move: so the ticks of a time are that time, give or take one and a half. Moved from where
 * they last lay by the shorter way, they would wander off, and what is lost in one step and another
 * would add up.
 *
 * A boundary belongs to who is on the CPU when it is counted. That is a little after it has passed,
 * by the latency of an interrupt, which is the same for all: short of that, samples would all fall
 * at the end of a stay on the CPU for loads that change thread faster than a timer fires. So a
 * thread that leaves takes the boundaries counted until then as its own, and its absence those
 * counted from then on.
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

/* The origin nearest to `home` that lets a boundary lie at the instant `at`; `home` itself if `at`
 * is not after it. */
static inline __u64 grid_align(__u64 home, __u64 at, __u64 period)
{
	__u64 past = at > home ? (at - home) % period : 0;

	return past <= period / 2 ? home + past : home + past - period;
}

/* Of the boundaries in (from, to], how many are before the instant `end`? */
static inline __u32 grid_before(__u64 origin, __u64 from, __u64 to, __u64 end, __u64 period)
{
	__u64 index = end > origin ? (end - origin) / period : 0;

	if (index <= from)
		return 0;
	return index < to ? index - from : to - from;
}

#endif
