/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* When recording is on, and how the boundaries of a CPU's tick grid are counted. */
#ifndef KCOLLECT_CLOCK_H
#define KCOLLECT_CLOCK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "grid.h"
#include "record.h"
#include "run_queue.h"
#include "sched_info.h"
#include "steal.h"
#include "thread.h"

extern const volatile __u64 period_ns;
extern const volatile bool record_idle;

/*
 * Threads are tracked only while `recording` is set; the grid continues regardless, so that a pause
 * moves no boundary. Only boundaries after recording_start_ns count, and none after until_ns (0: no
 * end yet), however late a CPU counts them. CLOCK_MONOTONIC. Written by bpf/src/recording.rs:
 * until_ns is in the past until recording_start_ns and `recording` are set, so that a CPU that
 * reads them in between counts nothing, rather than boundaries that no record will have.
 *
 * One recording may make several experiments, each of an epoch: what comes after rotation_ns
 * belongs to the next one. rotation_ns is set before that instant. recording_start_ns follows when
 * the accounts of all threads belong to the next epoch.
 */
extern volatile bool recording;
extern volatile __u64 recording_start_ns;
extern volatile __u64 rotation_ns;
extern volatile __u64 until_ns;

/* The scheduler's clock minus CLOCK_MONOTONIC, as last measured by any CPU. */
extern volatile __u64 any_offset_ns;

/* The scheduler's clock at this moment, at a context switch of `task`. */
static __always_inline __u64 scheduler_clock(struct task_struct *task)
{
	return has_run_queues() ? BPF_CORE_READ(task, se.cfs_rq, rq, clock)
				: bpf_ktime_get_ns() + any_offset_ns;
}

/* Start of the epoch that an instant belongs to: recording_start_ns, or the rotation. All times are
 * CLOCK_MONOTONIC. */
static __always_inline __u64 epoch_of(__u64 time_ns)
{
	__u64 rotation = rotation_ns;

	return time_ns > rotation ? rotation : recording_start_ns;
}

/* Start of the epoch that a context switch at this moment belongs to. The scheduler may have read
 * its clock at a wake-up some time ago, which would put the switch before a rotation at which the
 * accounts are being closed. */
static __always_inline __u64 epoch_of_switch(void)
{
	__u64 epoch_start_ns = recording_start_ns, rotation = rotation_ns;

	return rotation > epoch_start_ns && bpf_ktime_get_ns() > rotation ? rotation
									  : epoch_start_ns;
}

/* Time of a record that is built now and belongs to the epoch that started at `epoch_start_ns`: on
 * that epoch's side of a rotation, and no later than the end of recording. */
static __always_inline __u64 record_time(__u64 epoch_start_ns)
{
	__u64 now_ns = bpf_ktime_get_ns(), until = until_ns, rotation = rotation_ns;

	if (until && now_ns > until)
		now_ns = until;
	if (epoch_start_ns < rotation)
		return now_ns <= rotation ? now_ns : rotation;
	/* User space puts its own record of the rotation one nanosecond after it. */
	return now_ns > rotation + 1 ? now_ns : rotation + 2;
}

/* The statistics of each CPU at the last rotation. */
extern struct cpu_stats_array kc_ended_stats SEC(".maps");

/* Begins to count the boundaries after `epoch_start_ns`. */
static __noinline int begin_grid(struct cpu_stats *stats, __u64 epoch_start_ns)
{
	struct grid grid = {.origin_ns = stats->origin_ns, .index = stats->index};
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *ended = bpf_map_lookup_elem(&kc_ended_stats, &cpu);

	if (ended)
		__builtin_memcpy(ended, stats, sizeof(*ended));
	stats->index_at_rotation = grid.index;
	grid_advance(&grid, epoch_start_ns, period_ns);
	stats->index = grid.index;
	stats->next_ns = stats->origin_ns + (grid.index + 1) * period_ns;
	stats->begun_ns = epoch_start_ns;
	stats->home_ns = stats->origin_ns;
	return 0;
}

/* Boundaries that passed. */
struct passed {
	__u32 ticks;
	__u32 stolen_ticks; /* of these, while the hypervisor ran something else */
};

/* Counts the boundaries that passed on this CPU since they were last counted: if a rotation was in
 * between, those before it, and those after it the next time. */
static __always_inline struct passed count_passed(struct cpu_stats *stats, __u64 now_ns)
{
	__u64 epoch_start_ns = epoch_of(now_ns), until = until_ns,
	      stolen_ns = stolen_since_count(stats);
	__u64 end_ns = until && now_ns > until ? until : now_ns, from;
	struct passed passed;
	struct grid grid;

	/* Boundaries in a pause do not count. */
	if (stats->begun_ns < recording_start_ns)
		begin_grid(stats, recording_start_ns);
	if (stats->begun_ns < epoch_start_ns) {
		if (stats->origin_ns + (stats->index + 1) * period_ns <= epoch_start_ns)
			end_ns = epoch_start_ns;
		else
			begin_grid(stats, epoch_start_ns);
	}
	grid.origin_ns = stats->origin_ns;
	grid.index = from = stats->index;
	passed.ticks = grid_advance(&grid, end_ns, period_ns);
	passed.stolen_ticks = grid_stolen(stats->origin_ns, from, grid.index, now_ns, stolen_ns,
					  period_ns);
	stats->index = grid.index;
	stats->last_ns = end_ns;
	stats->next_ns = stats->origin_ns + (grid.index + 1) * period_ns;
	stats->offset_stale = 1;
	return passed;
}

/* Whether this CPU's time is the next thread's already, by the scheduler: a wake-up has preempted
 * the thread that runs, and the context switch will not read the clock again (RQCF_REQ_SKIP).
 * Boundaries are left until then, because the times of both threads change at the wake-up. The
 * pointers are read by a helper: where they are loaded, the verifier looks for their types by name
 * at each visit, which takes a millisecond. */
static __always_inline bool is_next_threads_time(struct task_struct *task)
{
	const __u32 REQUEST_SKIP = 1;

	return has_run_queues() && bpf_core_field_exists(struct rq, clock_update_flags) &&
	       BPF_CORE_READ(task, se.cfs_rq, rq, clock_update_flags) & REQUEST_SKIP;
}

/* Counts boundaries of a thread on the CPU: those that were not stolen, in `mode`. */
static __always_inline void count_busy(struct cpu_stats *stats, __u64 *mode, struct passed passed)
{
	__u32 ran = passed.ticks - passed.stolen_ticks;

	stats->stolen += passed.stolen_ticks;
	*mode += ran;
	stats->late += ran ? ran - 1 : 0;
}

/* Counts boundaries that passed while the CPU ran a thread that the kernel hides from programs, as
 * some kernels do with protected processes. They become ticks of the thread whose switch-in was
 * last seen, in the kernel, without a stack. */
static __noinline int count_unseen(struct cpu_stats *stats, __u32 ticks)
{
	struct tick_scratch *out = only_element(&kc_scratch);

	if (!out)
		return 0;
	stats->kernel += ticks;
	out->record = (struct record_header){
		.time_ns = stats->last_ns,
		.cpu = bpf_get_smp_processor_id(),
		.pid = stats->last_pid,
		.tid = stats->last_tid,
		.ticks = ticks,
		.kind = TICK_KERNEL,
	};
	send_tick(stats, out, add_stack(&out->record, -1));
	return 0;
}

/* Removes from the boundaries after `from`, which were just counted, those that passed before
 * `task` was switched in. The last switch-in that was seen was another thread's (last_tid). */
static __always_inline struct passed
since_arrival(struct cpu_stats *stats, struct task_struct *task, __u64 from, struct passed passed)
{
	const struct thread *thread = 0;
	__u32 unseen;

	if (!stats->last_tid || stats->last_tid == (__u32)task->pid)
		return passed;
	if (!has_sched_info())
		thread = bpf_task_storage_get(&kc_threads, task, 0, 0);
	if (!has_sched_info() && !thread)
		return passed;
	unseen = grid_before(stats->origin_ns, from, from + passed.ticks,
			     last_arrival(task, thread) - any_offset_ns, period_ns);
	if (!unseen)
		return passed;
	count_unseen(stats, unseen);
	passed.ticks -= unseen;
	if (passed.stolen_ticks > passed.ticks)
		passed.stolen_ticks = passed.ticks;
	return passed;
}

/* Counts boundaries of an idle CPU that count_passed has just returned. */
static __always_inline void count_idle(struct cpu_stats *stats, __u32 cpu, __u32 ticks)
{
	struct tick_scratch *out;

	stats->idle += ticks;
	out = record_idle ? only_element(&kc_scratch) : 0;
	if (!out) {
		stats->unsent += ticks;
		return;
	}
	out->record = (struct record_header){
		.time_ns = stats->last_ns,
		.cpu = cpu,
		.ticks = ticks,
		.kind = TICK_IDLE,
	};
	send_tick(stats, out, sizeof(out->record));
}

#endif
