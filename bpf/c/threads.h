/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The states of all threads: `on_switch` at every change of thread on a CPU keeps the two accounts
 * that it touches (account.h). A thread that comes back after boundaries of the tick grid have passed
 * is told of with them and with the kernel stack in which it was away; short absences cost no data.
 *
 * `watch_all` enters the threads that exist when data begin, `close_all` closes all accounts when data
 * stop and gives them to whoever reads the iterator.
 *
 * All times are of the scheduler's clock, which on_switch finds ready in the run queue.
 */
#ifndef KCOLLECT_THREADS_H
#define KCOLLECT_THREADS_H

#include "tick.h"
#include "account.h"

#define TASK_STOPPED_OR_TRACED 0x0c
#define TASK_DEAD 0x80
#define PF_KTHREAD 0x00200000
#define SYSTEM_CALL_NONE (-1)

/* Frames on top of a stack taken in sched_switch: this program, and what calls it. */
#define OWN_FRAMES 2

/* Where exceptions of pages are handled in the kernel: from load.rs, by the kernel's symbols. */
const volatile __u64 page_fault_from;
const volatile __u64 page_fault_to;

/* The scheduler's clock, as the run queue of a thread on this CPU has it: fresh in sched_switch. */
static __always_inline __u64 rq_clock(struct task_struct *task)
{
	return task->se.cfs_rq->rq->clock;
}

/* The scheduler's clock now, anywhere. */
static __always_inline __u64 sched_clock_now(struct cpu_books *book)
{
	return bpf_ktime_get_ns() + book->offset;
}

/* For how long a thread has ever waited for a CPU, the wait that is going on included. */
static __always_inline __u64 run_delay(struct task_struct *task, __u64 now)
{
	__u64 queued = task->sched_info.last_queued;

	return task->sched_info.run_delay + (queued && now > queued ? now - queued : 0);
}

/* Is a page fault being handled in this stack? */
static __always_inline bool in_page_fault(const __u64 *stack, __u32 frames)
{
	for (__u32 frame = 0; frame < 32 && frame < frames; frame++)
		if (stack[frame] >= page_fault_from && stack[frame] < page_fault_to)
			return true;
	return false;
}

/* Why does a thread block? `state` is the scheduler's reason. */
static __always_inline __u32 reason(struct task_struct *task, struct thread *thread, __u32 state)
{
	struct absence_scratch *out;
	struct pt_regs *regs;
	__u32 zero = 0;
	long call, got;

	if (state & TASK_STOPPED_OR_TRACED)
		return STATE_STOPPED;
	if (task->flags & PF_KTHREAD)
		return STATE_SLEEP;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!regs)
		return STATE_SLEEP;
	call = system_call(regs);
	if (call == SYSTEM_CALL_NONE)
		return thread->user_fault ? thread->user_fault : STATE_SLEEP;
	if (thread->kernel_fault) {
		/* In this system call, or in one before: the stack tells. */
		out = bpf_map_lookup_elem(&absence_scratch, &zero);
		got = out ? bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0) : 0;
		if (out && got > 0 && in_page_fault(out->stack, got / sizeof(__u64)))
			return STATE_KERNEL_FAULT;
		thread->kernel_fault = 0;
	}
	return is_futex(task, call) ? STATE_USER_LOCK : STATE_SLEEP;
}

/* What a thread's account says, as told; the account begins anew. */
static __always_inline struct thread_record told(struct task_struct *task, struct account *account, __u32 cpu)
{
	struct thread_record record = {
		.head = {
			.time = bpf_ktime_get_ns(),
			.cpu = cpu,
			.pid = task->tgid,
			.tid = task->pid,
			.mode = RECORD_THREAD,
		},
		.lived = account->lived,
	};

	__builtin_memcpy(record.ns, account->ns, sizeof(record.ns));
	__builtin_memset(account, 0, sizeof(*account));
	return record;
}

static __always_inline void emit_absence(struct cpu_books *book, struct task_struct *task, struct thread *thread,
					 const struct absence *absence, __u32 cpu)
{
	__u32 all = grid_until(thread->next, absence->to, period_ns);
	__u32 blocked = grid_until(thread->next, absence->woken, period_ns);
	__u32 ring_index = cpu / CPUS_PER_RING, zero = 0, state = absence->state;
	struct absence_scratch *out = bpf_map_lookup_elem(&absence_scratch, &zero);
	void *ring = bpf_map_lookup_elem(&rings, &ring_index);
	__u64 size = sizeof(out->record);
	long got;

	if (!out)
		return;
	__builtin_memset(&out->record, 0, sizeof(out->record));
	out->record.head = (struct tick_record){
		.time = bpf_ktime_get_ns(),
		.cpu = cpu,
		.pid = task->tgid,
		.tid = task->pid,
		.ticks = all,
		.mode = RECORD_ABSENCE,
	};
	/* Masked, not compared: older verifiers lose a comparison that the compiler made on a copy. What lies
	 * behind the counts is the stack, written next. */
	out->record.counts[STATE_SLOT(state)] = blocked;
	out->record.counts[STATE_WAIT_CPU] += all - blocked;
	got = bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0);
	if (got > 0) {
		if (got >= (long)(max_frames * sizeof(__u64)))
			out->record.head.flags |= TICK_TRUNCATED;
		out->record.head.frames = got / sizeof(__u64);
		size += got;
	} else {
		out->record.head.flags |= TICK_NO_STACK;
	}
	if (!ring || size > sizeof(*out) || send(ring, out, size))
		book->absences_lost += all;
}

static __always_inline void leave(struct cpu_books *book, struct task_struct *prev, __u64 now, bool preempted,
				  __u32 prev_state, __u32 cpu)
{
	struct thread *thread = bpf_task_storage_get(&threads, prev, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u32 state, ring_index = cpu / CPUS_PER_RING;
	struct thread_record record;
	void *ring;

	if (!thread) {
		book->threads_lost++;
		return;
	}
	if (prev_state & TASK_DEAD) {
		ring = bpf_map_lookup_elem(&rings, &ring_index);
		if (thread->account.watched) {
			account_repair(&thread->account, prev->sched_info.last_arrival,
				       prev->sched_info.run_delay);
			account_close(&thread->account, now, 0);
		}
		record = told(prev, &thread->account, cpu);
		if (!ring || send(ring, &record, sizeof(record)))
			book->threads_lost++;
		return;
	}
	state = preempted || !prev_state ? STATE_WAIT_CPU : reason(prev, thread, prev_state);
	if (thread->account.watched) {
		account_repair(&thread->account, prev->sched_info.last_arrival, prev->sched_info.run_delay);
		account_leave(&thread->account, now, state, prev->sched_info.run_delay, prev->se.sum_exec_runtime);
	} else {
		account_enter(&thread->account, now, state, prev->sched_info.run_delay, prev->se.sum_exec_runtime);
	}
	thread->next = book->next + book->offset;
}

static __always_inline void arrive(struct cpu_books *book, struct task_struct *next, __u64 now, __u32 cpu)
{
	struct thread *thread = bpf_task_storage_get(&threads, next, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u64 delay = run_delay(next, now);
	struct absence absence;

	if (!thread) {
		book->threads_lost++;
		return;
	}
	if (!thread->account.watched) {
		/* New: it has waited since it was forked. Or new to us: then that long at the least. */
		__u64 queued = next->sched_info.last_queued;

		account_enter(&thread->account, queued && queued < now ? queued : now, STATE_WAIT_CPU,
			      next->sched_info.run_delay, next->se.sum_exec_runtime);
		thread->next = ~0ULL;
	}
	absence = account_return(&thread->account, now, delay, next->se.sum_exec_runtime);
	if (absence.to >= thread->next)
		emit_absence(book, next, thread, &absence, cpu);
}

/* A boundary has passed and the clock has not fired for it, for a timer's interrupt may come late by
 * more than a thread runs: it belongs to the thread that leaves now, not to whatever follows. */
static __always_inline void charge(__u64 *ctx, struct cpu_books *book, struct task_struct *prev, __u64 now,
				   __u32 cpu)
{
	__u32 ticks = passed(book, now), zero = 0;
	struct tick_scratch *out;
	long got;

	if (!ticks || !recording)
		return;
	if (!prev->pid) {
		count_idle(book, cpu, now, ticks);
		return;
	}
	out = bpf_map_lookup_elem(&scratch, &zero);
	if (!out)
		return;
	book->kernel += ticks;
	book->made_up += ticks - 1;
	out->record = (struct tick_record){
		.time = now,
		.cpu = cpu,
		.pid = prev->tgid,
		.tid = prev->pid,
		.ticks = ticks,
		.mode = TICK_KERNEL,
	};
	got = bpf_get_stack(ctx, out->stack, sizeof(out->stack), OWN_FRAMES);
	if (got < (long)sizeof(__u64)) {
		out->record.flags = TICK_NO_STACK;
		book->no_stack++;
		got = 0;
	} else if (got >= (long)(max_frames * sizeof(__u64))) {
		out->record.flags = TICK_TRUNCATED;
		book->truncated++;
	}
	out->record.frames = got / sizeof(__u64);
	emit(book, out, sizeof(out->record) + got);
}

SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	__u32 prev_state = ctx[3], cpu = bpf_get_smp_processor_id();
	struct cpu_books *book;
	__u64 now;

	if (!recording && !(prev_state & TASK_DEAD))
		return 0;
	book = bpf_map_lookup_elem(&books, &cpu);
	if (!book)
		return 0;
	now = rq_clock(prev->pid ? prev : next);
	if (book->offset_stale) {
		book->offset = now - bpf_ktime_get_ns();
		book->offset_stale = 0;
	}
	if (now - book->offset >= book->next && book->origin)
		charge(ctx, book, prev, now - book->offset, cpu);
	if (prev->pid)
		leave(book, prev, now, ctx[0], prev_state, cpu);
	if (next->pid && recording)
		arrive(book, next, now, cpu);
	return 0;
}

SEC("tp_btf/page_fault_user")
int on_user_fault(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&threads, task, 0, 0);

	if (thread)
		thread->user_fault = is_text_fault(ctx[0], (struct pt_regs *)ctx[1], ctx[2]) ? STATE_TEXT_FAULT
											     : STATE_DATA_FAULT;
	return 0;
}

SEC("tp_btf/page_fault_kernel")
int on_kernel_fault(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&threads, task, 0, 0);

	(void)ctx;
	if (thread)
		thread->kernel_fault = 1;
	return 0;
}

/* In which state is a thread that we have not seen move? */
static __always_inline __u32 state_of(struct task_struct *task, struct thread *thread)
{
	if (task->on_cpu)
		return STATE_ON_CPU;
	if (task->on_rq == 1 &&
	    !(bpf_core_field_exists(task->se.sched_delayed) && task->se.sched_delayed))
		return STATE_WAIT_CPU;
	return reason(task, thread, task->__state);
}

SEC("iter/task")
int watch_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct thread *thread;
	__u64 now;

	if (!task || !book || task->__state & TASK_DEAD)
		return 0;
	thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread) {
		book->threads_lost++;
		return 0;
	}
	if (thread->account.watched)
		return 0;
	now = sched_clock_now(book);
	account_enter(&thread->account, now, state_of(task, thread), run_delay(task, now), task->se.sum_exec_runtime);
	thread->next = book->next + book->offset;
	return 0;
}

SEC("iter/task")
int close_all(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct thread_record record;
	struct thread *thread;
	struct absence absence;
	__u64 now;

	if (!task || !book)
		return 0;
	thread = bpf_task_storage_get(&threads, task, 0, 0);
	if (!thread || !thread->account.watched)
		return 0;
	now = sched_clock_now(book);
	absence = account_close(&thread->account, now, run_delay(task, now));
	if (absence.to >= thread->next && absence.to)
		emit_absence(book, task, thread, &absence, cpu);
	record = told(task, &thread->account, cpu);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

#endif
