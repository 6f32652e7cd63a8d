/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Rotation: one experiment of a recording ends and the next one begins. The account of each thread
 * is closed at exactly that instant, rotation_ns, and continues in the next experiment.
 * kc_close_all reaches all threads within milliseconds. A thread that is switched earlier is closed
 * at its context switch. So no switch is missed, and no thread that starts or exits meanwhile.
 */
#ifndef KCOLLECT_ROTATION_H
#define KCOLLECT_ROTATION_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "clock.h"
#include "grid.h"
#include "ring.h"
#include "steal.h"
#include "thread.h"

/* Whether a thread's account has to be closed at the rotation `epoch_start_ns`, with which the
 * current epoch began. A thread that kc_close_all does not see keeps its account: one that is
 * closed when the experiment has been written comes too late. */
static __always_inline bool belongs_to_previous_epoch(struct thread *thread, __u64 epoch_start_ns)
{
	return epoch_start_ns > recording_start_ns && thread->account.tracking == TRACKED &&
	       thread->epoch_start_ns < epoch_start_ns;
}

/* Number of boundaries of a CPU before a rotation. A CPU may not have counted all of them yet. */
static __always_inline __u64 index_at_rotation(struct cpu_stats *stats, __u64 rotation)
{
	struct grid grid = {.origin_ns = stats->origin_ns, .index = stats->index};

	if (stats->begun_ns == rotation)
		return stats->index_at_rotation;
	if (grid.origin_ns)
		grid_advance(&grid, rotation, period_ns);
	return grid.index;
}

/* Time stolen from a thread's CPU since the thread was switched in. */
static __always_inline __u64 stolen_from(struct thread *thread)
{
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &thread->cpu);

	return stats ? stolen_until_count(stats) : 0;
}

/* A closed account continues from the same instant, `at_ns` by the scheduler's clock, in the state
 * in which it was closed. `index`: the boundaries before the rotation on the CPU that the thread
 * left. */
static __always_inline void reopen_account(struct thread *thread, __u64 rotation, __u64 index,
					   __u64 at_ns, __u32 state, __u32 detail, __u64 run_delay)
{
	thread->grid_index = index;
	track(thread, rotation, at_ns, state, detail, run_delay, thread->account.run_time_ns);
}

#endif
