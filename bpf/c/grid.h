/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tick grid of one CPU: which interval boundaries have passed and are not counted yet. Pure:
 * time is an argument, so this also compiles natively and is tested there (bpf/src/tests/grid.rs).
 *
 * Boundary k is at origin + k * period; the CPU's clock fires just after each. But not always:
 * where interrupts were off, or the hypervisor had preempted the CPU, or had parked an idle CPU
 * with its timers, boundaries pass without a firing and the kernel reports nothing. Counting
 * firings would lose that time; counting boundaries does not, whichever program counts and
 * whenever.
 *
 * The boundaries have to be where the timer fires, or a thread that is switched out between a
 * boundary and a firing well after it would look like one whose firing is overdue. The timer is
 * started after the grid has begun: a few microseconds, or, on an overloaded machine, any time. And
 * the kernel stops and restarts the timer of an event that has fired
 * kernel.perf_event_max_sample_rate / HZ times since the CPU's last scheduler tick, and an idle CPU
 * has no scheduler tick: each time the timer fires at other instants from then on. So the grid is
 * aligned by each firing's due time (grid_align).
 *
 * However often they move, the boundaries stay within half a period of where they were when
 * recording started (home): so the ticks of a time are that time, plus or minus one and a half. If
 * they were moved from their last place by the shorter way, they would drift, and the losses of the
 * steps would add up.
 *
 * A boundary belongs to the thread on whose time it passed, by the scheduler's clock: each context
 * switch counts the boundaries that have passed by then. The timer's interrupt leaves some of them
 * to the switch. A thread that is woken and preempts another one has the CPU's time from its
 * wake-up on, though it runs only when the interrupt that woke it has ended. That takes
 * microseconds, and in a virtual machine as long as some threads run. If these boundaries went to
 * the preempted thread, a thread that blocks often and shares its CPU with a thread that never
 * blocks would miss a third of its ticks.
 */
#ifndef KCOLLECT_GRID_H
#define KCOLLECT_GRID_H

#include "integers.h"

struct grid {
	__u64 origin_ns; /* CLOCK_MONOTONIC */
	__u64 index;	 /* the last boundary that was counted */
};

/* Counts the boundaries that passed since the last call. */
static inline __u32 grid_advance(struct grid *grid, __u64 now_ns, __u64 period)
{
	__u64 index = now_ns > grid->origin_ns ? (now_ns - grid->origin_ns) / period : 0, passed;

	if (index <= grid->index)
		return 0;
	passed = index - grid->index;
	grid->index = index;
	/* 2^31 boundaries of 100 us are two days without a tick: more than a packet can carry. */
	return passed > 0x7fffffffULL ? 0x7fffffffU : (__u32)passed;
}

/* The origin nearest to `home_ns` that puts a boundary at the instant `at_ns`; `home_ns` itself if
 * `at_ns` is not after it. */
static inline __u64 grid_align(__u64 home_ns, __u64 at_ns, __u64 period)
{
	__u64 past = at_ns > home_ns ? (at_ns - home_ns) % period : 0;

	return past <= period / 2 ? home_ns + past : home_ns + past - period;
}

/* Number of the boundaries in (from, to] before the instant `end_ns`. */
static inline __u32 grid_before(__u64 origin_ns, __u64 from, __u64 to, __u64 end_ns, __u64 period)
{
	__u64 index = end_ns > origin_ns ? (end_ns - origin_ns) / period : 0;

	if (index <= from)
		return 0;
	return index < to ? index - from : to - from;
}

/* A boundary for which the timer fires so soon was not stolen: the CPU ran. */
#define PUNCTUAL_NS 50000

/* Number of the boundaries in (from, to] that passed while the hypervisor ran something else, if it
 * did so for `stolen_ns` of the time before `now_ns`. The timer of such a boundary is overdue when
 * the CPU runs again, and fires at once; any other boundary's timer fired in time. */
static inline __u32 grid_stolen(__u64 origin_ns, __u64 from, __u64 to, __u64 now_ns,
				__u64 stolen_ns, __u64 period)
{
	__u64 end_ns = now_ns - PUNCTUAL_NS,
	      stolen_from_ns = end_ns > stolen_ns ? end_ns - stolen_ns : 0;

	return grid_before(origin_ns, from, to, end_ns, period) -
	       grid_before(origin_ns, from, to, stolen_from_ns, period);
}

#endif
