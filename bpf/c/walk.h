/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Walks over all threads, for whoever reads the iterator: `watch_all` enters those that exist when
 * data begin, `tell_all` says what their accounts say at a sample, `close_all` closes the accounts
 * when data stop, and gives what was still open with the kernel stack it is open in.
 *
 * Each thread's absence and account are written here and not into a ring: however many there are,
 * nobody has to make room. The reader must take less at a time than the kernel buffers (32 KiB), or
 * a program is run again for a thread whose account it has closed.
 *
 * Threads move while they are walked. Entering and closing claim the account first; telling copies
 * it and looks whether the copy conserves time.
 */
#ifndef KCOLLECT_WALK_H
#define KCOLLECT_WALK_H

#include "threads.h"

/* In which state was a thread at `from` that we have not seen move since? */
static __always_inline __u32 state_at(__u64 from, struct task_struct *task, struct thread *thread,
				      struct scratch *out)
{
	if (task->on_cpu)
		return STATE_ON_CPU;
	if (is_queued(task)) {
		if (task->sched_info.last_queued <= from)
			return STATE_WAIT_CPU;
		/* Woken since: it had been blocked. */
		return reason(task, thread, 0, out);
	}
	return reason(task, thread, task->__state, out);
}

/* A snapshot tells what a process has mapped, and not by which number the kernel knows what it
 * executes. If it has executed something else in between, that will be told, and what was walked by
 * the snapshot is not believed. */
static __always_inline void learn_execution(struct task_struct *task)
{
	__u32 pid = task->tgid;
	struct process *process;

	if (!tell_entries || task->pid != task->tgid)
		return;
	process = bpf_map_lookup_elem(&processes, &pid);
	if (process && process->execution == ANY_EXECUTION)
		process->execution = task->self_exec_id;
}

SEC("iter/task")
int watch_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, state;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct walk_scratch *out = bpf_map_lookup_elem(&walk_scratch, &zero);
	struct thread *thread;
	struct grid grid;
	__u64 from;

	if (!task || !book || !out || task->__state & TASK_DEAD)
		return 0;
	learn_execution(task);
	thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread) {
		__sync_fetch_and_add(&book->threads_lost, 1);
		return 0;
	}
	if (!thread->counted && !thread->account.lived && task->start_time < begin_ns)
		count(task, thread->before);
	thread->counted = 1;
	if (!claim(&thread->account, WATCHED_NOT))
		return 0;
	/* All that did not move since are entered as of one instant, however long the walk takes.
	 */
	from = task->start_time > begin_ns ? task->start_time : begin_ns;
	/* The CPU that it left is not known; this one's grid may have been looked at a while ago.
	 */
	grid.origin = book->origin;
	grid.index = 0;
	grid_advance(&grid, from, period_ns);
	thread->index = grid.index;
	thread->cpu = cpu;
	from += any_offset;
	state = state_at(from, task, thread, &out->absence);
	account_enter(&thread->account, from, state,
		      state == STATE_ON_CPU ? DETAIL_NONE : detail_of(task, state),
		      run_delay(task, from), state == STATE_ON_CPU ? 0 : task->se.sum_exec_runtime);
	return 0;
}

/* As of this instant tell_all tells, CLOCK_MONOTONIC, ns; of a thread that has moved since, as of
 * its last move. */
volatile __u64 tell_ns;

SEC("iter/task")
int tell_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, state, detail;
	struct walk_scratch *out = bpf_map_lookup_elem(&walk_scratch, &zero);
	struct thread *thread;
	__u64 now;

	if (!task || !out)
		return 0;
	thread = bpf_task_storage_get(&threads, task, 0, 0);
	if (!thread || thread->account.watched != WATCHED)
		return 0;
	for (__u32 attempt = 0; attempt < 4; attempt++) {
		out->account = thread->account;
		if (account_is_whole(&out->account))
			break;
	}
	/* It moves faster than we read: what it said last stands until the next time. */
	if (!account_is_whole(&out->account) || out->account.watched != WATCHED)
		return 0;
	state = out->account.state;
	detail = out->account.detail;
	out->thread.since = out->account.since - any_offset;
	now = tell_ns + any_offset;
	account_close(&out->account, now, run_delay(task, now), RUN_TIME_BEHIND);
	tell(&out->thread, task, thread, &out->account, cpu);
	out->thread.head.state = state;
	out->thread.head.detail = detail;
	bpf_seq_write(ctx->meta->seq, &out->thread, sizeof(out->thread));
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct user_scratch);
} sleeper_scratch SEC(".maps");

/* Tells the user side of a thread that is away while data stop, and may be for ever. Gives its
 * number; 0 where there is none. */
static __always_inline __u32 tell_sleeper(struct bpf_iter__task *ctx, struct task_struct *task,
					  struct thread *thread, __u32 cpu)
{
	__u32 zero = 0, number;
	struct user_scratch *out = bpf_map_lookup_elem(&sleeper_scratch, &zero);
	__u64 size;

	if (!out || !tell_entries || task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_EXITING) ||
	    !is_followed(task))
		return 0;
	number = thread->entry / 2 + 1;
	describe_entry(out, task, number, cpu);
	take_sleepers_stack(out, task);
	size = sizeof(out->record) + 8 * (__u64)out->record.head.frames;
	bpf_seq_write(ctx->meta->seq, &out->record, USER_RECORD_LENGTH(size));
	return number;
}

/* It may sleep, for it reads the memory of threads that do. */
SEC("iter.s/task")
int close_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, state, detail;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct walk_scratch *out = bpf_map_lookup_elem(&walk_scratch, &zero);
	struct absence absence;
	struct cpu_books *left;
	struct thread *thread;
	__u64 now, size;
	long got;

	if (!task || !book || !out)
		return 0;
	thread = bpf_task_storage_get(&threads, task, 0, 0);
	if (!thread || !claim(&thread->account, WATCHED))
		return 0;
	now = until_ns + any_offset;
	state = thread->account.state;
	detail = thread->account.detail;
	out->thread.since = thread->account.since - any_offset;
	absence = account_close(&thread->account, now, run_delay(task, now), RUN_TIME_BEHIND);
	/* Data have stopped on all CPUs: what has passed there by then is counted. */
	left = bpf_map_lookup_elem(&books, &thread->cpu);
	if (left && state != STATE_ON_CPU && left->index > thread->index) {
		describe_absence(left, left->index, &out->absence.record, task, thread, &absence,
				 tell_sleeper(ctx, task, thread, cpu), cpu);
		got = bpf_get_task_stack(task, out->absence.stack, sizeof(out->absence.stack), 0);
		size = add_stack(&out->absence.record, got);
		bpf_seq_write(ctx->meta->seq, &out->absence, SCRATCH_LENGTH(size));
	}
	tell(&out->thread, task, thread, &thread->account, cpu);
	out->thread.head.state = state;
	out->thread.head.detail = detail;
	bpf_seq_write(ctx->meta->seq, &out->thread, sizeof(out->thread));
	return 0;
}

#endif
