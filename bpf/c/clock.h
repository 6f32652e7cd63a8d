/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* When data are taken, and how the boundaries of a CPU's tick grid are counted. */
#ifndef KCOLLECT_CLOCK_H
#define KCOLLECT_CLOCK_H

#include "kernel.h"
#include "grid.h"
#include "record.h"

extern const volatile __u64 period_ns;
extern const volatile bool record_idle;

/* Threads are tracked only while `recording` is set; the grid goes on regardless, so that a pause
 * moves no boundary. Only boundaries after begin_ns count, and none after until_ns (0: no end yet),
 * however late a CPU counts them. CLOCK_MONOTONIC. Written by bpf/src/load.rs: until_ns is in the
 * past until begin_ns and `recording` are set, so that a CPU that looks meanwhile counts nothing,
 * rather than boundaries that no record will have. */
extern volatile bool recording;
extern volatile __u64 begin_ns;
extern volatile __u64 until_ns;

/* Returns the boundaries that passed on this CPU since they were last counted. */
static __always_inline __u32 count_passed(struct cpu_stats *stats, __u64 now)
{
	struct grid grid = {.origin = stats->origin_ns, .index = stats->index};
	__u64 begin = begin_ns, until = until_ns;
	__u32 ticks;

	if (stats->begun_ns != begin) {
		stats->begun_ns = begin;
		stats->home_ns = stats->origin_ns;
		grid_advance(&grid, begin, period_ns);
	}
	if (until && now > until)
		now = until;
	ticks = grid_advance(&grid, now, period_ns);
	stats->index = grid.index;
	stats->last_ns = now;
	stats->next_ns = stats->origin_ns + (grid.index + 1) * period_ns;
	stats->offset_stale = 1;
	return ticks;
}

static __always_inline void count_idle(struct cpu_stats *stats, __u32 cpu, __u64 now, __u32 ticks)
{
	struct tick_scratch *out;
	__u32 zero = 0;

	stats->idle += ticks;
	out = record_idle ? bpf_map_lookup_elem(&kc_scratch, &zero) : 0;
	if (!out) {
		stats->unsent += ticks;
		return;
	}
	out->record = (struct record_header){
		.time_ns = now,
		.cpu = cpu,
		.ticks = ticks,
		.kind = TICK_IDLE,
	};
	send_tick(stats, out, sizeof(out->record));
}

#endif
