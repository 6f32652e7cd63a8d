/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Iterations over all threads, run by reading the iterator: `kc_track_all` makes the storage of the
 * threads that exist and, once recording has started, begins to track them; `kc_report_all` writes
 * their times at a sample; `kc_close_all` closes the accounts when recording stops or an experiment
 * ends, and writes the off-CPU intervals that were still open.
 *
 * The records go to the reader of the iterator and not into a ring, where they may find no space.
 * The records of one thread have to fit the kernel's buffer together (MAX_ITER_WORDS), or a program
 * is run again for a thread whose account it has closed.
 *
 * The threads run meanwhile. Beginning and closing claim the account first; reporting copies it and
 * checks that the copy conserves time.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "account.h"
#include "cause.h"
#include "clock.h"
#include "grid.h"
#include "off_cpu.h"
#include "record.h"
#include "remote_stack.h"
#include "rotation.h"
#include "sched_info.h"
#include "thread.h"
#include "thread_record.h"
#include "user_scratch.h"
#include "user_stack.h"

char LICENSE[] SEC("license") = "GPL";

/* Programs that iterate over the threads build records here, one at a time; programs with
 * interrupts off may run on top of them. */
struct iter_scratch {
	struct tick_scratch off_cpu;
	struct thread_record thread;
	struct account account;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct iter_scratch);
} kc_iter_scratch SEC(".maps");

/* State at `from_ns` of a thread that has had no visible context switch since. */
static __always_inline __u32 state_at(__u64 from_ns, struct task_struct *task,
				      struct thread *thread, struct tick_scratch *out)
{
	if (task->on_cpu)
		return STATE_ON_CPU;
	if (is_queued(task)) {
		if (last_queued(task, thread) <= from_ns)
			return STATE_WAIT_CPU;
		/* Woken since: it had been blocked. */
		return blocked_state(task, thread, 0, out, false);
	}
	return blocked_state(task, thread, task->__state, out, false);
}

SEC("iter/task")
int kc_track_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id(), state;
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct iter_scratch *out = only_element(&kc_iter_scratch);
	struct thread *thread;
	struct grid grid;
	__u64 from_ns;

	if (!task || !stats || !out || task->__state & TASK_DEAD)
		return 0;
	thread = bpf_task_storage_get(&kc_threads, task, 0, create_storage);
	if (!recording)
		return 0;
	if (!thread) {
		__sync_fetch_and_add(&stats->threads_untracked, 1);
		return 0;
	}
	if (!thread->has_baseline && !thread->account.tracked_ns &&
	    task->start_time < recording_start_ns)
		read_kernel_counts(task, thread->baseline);
	thread->has_baseline = 1;
	if (!claim_tracking(&thread->account, NOT_TRACKED))
		return 0;
	/* All threads without a context switch since are tracked from the same instant, however
	 * long the iteration takes. */
	from_ns = task->start_time > recording_start_ns ? task->start_time : recording_start_ns;
	/* The CPU that it left is not known; this CPU's grid may not be counted up to now. */
	grid.origin_ns = stats->origin_ns;
	grid.index = 0;
	grid_advance(&grid, from_ns, period_ns);
	thread->grid_index = grid.index;
	thread->cpu = cpu;
	thread->tid = task->pid;
	from_ns += any_offset_ns;
	state = state_at(from_ns, task, thread, &out->off_cpu);
	thread->account.cause = own_cause(task, state, task->__state);
	track(thread, recording_start_ns, from_ns, state,
	      state == STATE_ON_CPU ? DETAIL_NONE : detail_of(task, state),
	      run_delay(task, thread, from_ns),
	      state == STATE_ON_CPU ? RUN_TIME_UNKNOWN : task->se.sum_exec_runtime);
	return 0;
}

/* The instant that kc_report_all reports times of, CLOCK_MONOTONIC; for a thread with a context
 * switch since, it is that switch. */
volatile __u64 report_ns;

SEC("iter/task")
int kc_report_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id(), state, detail;
	struct iter_scratch *out = only_element(&kc_iter_scratch);
	struct thread *thread;
	/* Read before the account: a thread that exits after the account was copied has its last
	 * record after this one, and does not come back to life. */
	__u64 time_ns = bpf_ktime_get_ns(), now_ns;

	if (!task || !out)
		return 0;
	thread = bpf_task_storage_get(&kc_threads, task, 0, 0);
	if (!thread || thread->account.tracking != TRACKED)
		return 0;
	for (__u32 attempt = 0; attempt < 4; attempt++) {
		out->account = thread->account;
		if (account_conserves_time(&out->account))
			break;
	}
	/* It changes faster than it can be copied: its last record stands until the next time. */
	if (!account_conserves_time(&out->account) || out->account.tracking != TRACKED)
		return 0;
	state = out->account.state;
	detail = out->account.detail;
	out->thread.since_ns = out->account.since_ns - any_offset_ns;
	now_ns = report_ns + any_offset_ns;
	account_close(&out->account, now_ns, run_delay(task, thread, now_ns), RUN_TIME_UNKNOWN,
		      stolen_from(thread));
	fill_thread_record(&out->thread, task, time_ns, thread, &out->account, cpu);
	out->thread.header.state = state;
	out->thread.header.detail = detail;
	bpf_seq_write(ctx->meta->seq, &out->thread, sizeof(out->thread));
	return 0;
}

/* Writes the user stack of a thread that is off the CPU when recording stops, and may stay there.
 * Returns its number, or 0. */
static __noinline __u32 write_remote_stack(struct seq_file *seq, struct task_struct *task,
					   __u64 end_ns, struct thread *thread, __u32 cpu)
{
	__u32 scratch_index = ITER_SCRATCH, number;
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);
	__u64 size;

	if (!out || !capture_user_stacks || task->flags & (PF_NO_USER_CODE | PF_EXITING) ||
	    !is_followed(task))
		return 0;
	number = thread->user_return / 2 + 1;
	describe_user_return(out, task, number, cpu);
	out->record.header.time_ns = end_ns;
	capture_remote_stack(out, task);
	size = sizeof(out->record) + 8 * (__u64)out->record.header.frames;
	bpf_seq_write(seq, &out->record, USER_RECORD_LENGTH(size));
	return number;
}

/* A sleepable program, since it reads the memory of sleeping threads. */
SEC("iter.s/task")
int kc_close_all(struct bpf_iter__task *ctx)
{
	/* Read once: see is_throttled(). */
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id(), state, detail;
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct iter_scratch *out = only_element(&kc_iter_scratch);
	struct off_cpu off_cpu;
	struct cpu_stats *left;
	struct thread *thread;
	__u64 end_ns, now_ns, delay, index, size;
	long got;

	if (!task || !stats || !out)
		return 0;
	thread = bpf_task_storage_get(&kc_threads, task, 0, 0);
	end_ns = recording ? rotation_ns : until_ns;
	if (!thread || (recording && !belongs_to_previous_epoch(thread, end_ns)) ||
	    !claim_tracking(&thread->account, TRACKED))
		return 0;
	/* A context switch was first. */
	if (recording && thread->epoch_start_ns >= end_ns) {
		thread->account.tracking = TRACKED;
		return 0;
	}
	now_ns = end_ns + any_offset_ns;
	delay = run_delay(task, thread, now_ns);
	state = thread->account.state;
	detail = thread->account.detail;
	out->thread.since_ns = thread->account.since_ns - any_offset_ns;
	/* It stays claimed until all of it is written. */
	off_cpu = account_end(&thread->account, now_ns, delay, RUN_TIME_UNKNOWN,
			      stolen_from(thread));
	/* Recording has stopped on all CPUs, so all boundaries until then are counted. */
	left = bpf_map_lookup_elem(&kc_cpu_stats, &thread->cpu);
	index = !left	    ? thread->grid_index
		: recording ? index_at_rotation(left, end_ns)
			    : left->index;
	if (left && state != STATE_ON_CPU && index > thread->grid_index) {
		describe_off_cpu(left, index, &out->off_cpu.record, task, end_ns, thread, &off_cpu,
				 write_remote_stack(seq, task, end_ns, thread, cpu), cpu);
		note_not_ended(&out->off_cpu.record);
		got = bpf_get_task_stack(task, out->off_cpu.stack, sizeof(out->off_cpu.stack), 0);
		size = add_stack(&out->off_cpu.record, got);
		bpf_seq_write(seq, &out->off_cpu, SCRATCH_LENGTH(size));
	}
	fill_thread_record(&out->thread, task, end_ns, thread, &thread->account, cpu);
	out->thread.header.state = state;
	out->thread.header.detail = detail;
	if (bpf_seq_write(seq, &out->thread, sizeof(out->thread)))
		__sync_fetch_and_add(&stats->thread_records_lost, 1);
	if (recording)
		reopen_account(thread, end_ns, index, now_ns, state, detail, delay);
	else
		thread->account.tracking = NOT_TRACKED;
	return 0;
}
