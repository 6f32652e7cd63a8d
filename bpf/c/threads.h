/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The states of all threads: `on_switch` at every change of thread on a CPU keeps the two accounts
 * that it touches (account.h). A thread that comes back after boundaries of the tick grid have
 * passed is told of with them and with the kernel stack in which it was away; short absences cost
 * no data.
 *
 * All times are of the scheduler's clock, which on_switch finds ready in the run queue.
 */
#ifndef KCOLLECT_THREADS_H
#define KCOLLECT_THREADS_H

#include "tick.h"
#include "account.h"

#define TASK_STOPPED_OR_TRACED 0x0c
#define TASK_DEAD	       0x80
#define SYSTEM_CALL_NONE       (-1)

/* A timer's interrupt that has not come after so long, ns, is held up. */
#define LATE 100000

/* Where exceptions of pages are handled in the kernel: from load.rs, by the kernel's symbols. */
const volatile __u64 page_fault_from;
const volatile __u64 page_fault_to;

/* The scheduler's clock, as the run queue of a thread on this CPU has it: fresh in sched_switch. */
static __always_inline __u64 rq_clock(struct task_struct *task)
{
	return task->se.cfs_rq->rq->clock;
}

/* The scheduler's clock minus CLOCK_MONOTONIC, as the CPU that looked last has it. */
volatile __u64 any_offset;

/* Is a thread on a CPU, or does it wait for one? Newer kernels put off taking one from the queue
 * that has gone to sleep. */
static __always_inline bool is_queued(struct task_struct *task)
{
	return task->on_rq &&
	       !(bpf_core_field_exists(task->se.sched_delayed) && task->se.sched_delayed);
}

/* For how long a thread has ever waited for a CPU, the wait that is going on included. One that is
 * moved to another CPU while it is not off the queue yet goes to sleep with a mark of when that was
 * (Linux 6.12), as if it had waited since. */
static __always_inline __u64 run_delay(struct task_struct *task, __u64 now)
{
	__u64 queued = is_queued(task) ? task->sched_info.last_queued : 0;

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

/* Why does a thread block? `state` is the scheduler's reason; `out` has room for a stack. */
static __always_inline __u32 reason(struct task_struct *task, struct thread *thread, __u32 state,
				    struct scratch *out)
{
	struct pt_regs *regs;
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
		got = out ? bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0) : 0;
		if (out && got > 0 && in_page_fault(out->stack, got / sizeof(__u64)))
			return STATE_KERNEL_FAULT;
		thread->kernel_fault = 0;
	}
	return is_futex(task, call) ? STATE_USER_LOCK : STATE_SLEEP;
}

/* Has its cgroup used up its quota? */
static __always_inline bool is_throttled(struct task_struct *task)
{
	struct cfs_rq___group_throttling *group = (void *)task->se.cfs_rq;

	if (bpf_core_field_exists(struct task_struct___thread_throttling, throttled))
		return ((struct task_struct___thread_throttling *)task)->throttled;
	return bpf_core_field_exists(group->throttle_count) && group->throttle_count;
}

/* What more is known of an absence that begins. */
static __always_inline __u32 detail_of(struct task_struct *task, __u32 state)
{
	if (state == STATE_WAIT_CPU)
		return is_throttled(task) ? DETAIL_THROTTLED : DETAIL_PREEMPTED;
	return BPF_CORE_READ_BITFIELD(task, in_iowait) ? DETAIL_BLOCK_IO : DETAIL_NONE;
}

static __always_inline void count(struct task_struct *task, __u64 *counts)
{
	counts[MINOR_FAULTS] = task->min_flt;
	counts[MAJOR_FAULTS] = task->maj_flt;
	counts[VOLUNTARY_SWITCHES] = task->nvcsw;
	counts[INVOLUNTARY_SWITCHES] = task->nivcsw;
	counts[READ_CHARS] = task->ioac.rchar;
	counts[WRITTEN_CHARS] = task->ioac.wchar;
	counts[READ_CALLS] = task->ioac.syscr;
	counts[WRITE_CALLS] = task->ioac.syscw;
	counts[READ_BYTES] = task->ioac.read_bytes;
	counts[WRITTEN_BYTES] = task->ioac.write_bytes;
}

/* What a thread's account says; `account` is it, or a copy with the open interval closed. */
static __always_inline void tell(struct thread_record *out, struct task_struct *task,
				 struct thread *thread, const struct account *account, __u32 cpu)
{
	describe(&out->head, task, bpf_ktime_get_ns(), cpu, RECORD_THREAD, 0);
	out->task = (__u64)task;
	out->as_of = account->since - any_offset;
	out->lived = account->lived;
	__builtin_memcpy(out->ns, account->ns, sizeof(out->ns));
	count(task, out->counts);
	for (__u32 index = 0; index < COUNTERS; index++)
		out->counts[index] -= thread->before[index];
}

static __always_inline bool claim(struct account *account, __u32 from)
{
	return __sync_val_compare_and_swap(&account->watched, from, WATCHED_CLAIMED) == from;
}

/* The boundaries that are counted by now on the CPU that a thread left. Those of another CPU than
 * this one may have passed without being counted yet; one that went offline counts none. */
static __always_inline __u64 index_now(struct cpu_books *left, struct cpu_books *here)
{
	struct grid grid = {.origin = left->origin, .index = left->index};

	if (left != here && left->origin)
		grid_advance(&grid, bpf_ktime_get_ns(), period_ns);
	return grid.index;
}

/* Puts an absence together, without its stack; `index` is what index_now() gives. */
static __always_inline void describe_absence(struct cpu_books *left, __u64 index,
					     struct record *out, struct task_struct *task,
					     struct thread *thread, const struct absence *absence,
					     __u32 entry, __u32 cpu)
{
	describe(out, task, bpf_ktime_get_ns(), cpu, RECORD_ABSENCE, index - thread->index);
	out->blocked = grid_before(left->origin, thread->index, index, absence->woken - any_offset,
				   period_ns);
	out->state = absence->state;
	out->detail = absence->detail;
	out->entry = entry;
}

static __always_inline void send_absence(struct cpu_books *book, struct cpu_books *left,
					 __u64 index, struct task_struct *task,
					 struct thread *thread, const struct absence *absence,
					 __u32 cpu)
{
	__u32 zero = 0;
	struct scratch *out = bpf_map_lookup_elem(&scratch, &zero);
	__u64 size;

	if (!out)
		return;
	describe_absence(left, index, &out->record, task, thread, absence,
			 next_entry(book, task, thread, false, cpu), cpu);
	size = add_stack(&out->record, bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0));
	if (!send(cpu, out, SCRATCH_LENGTH(size)))
		book->absences_lost += out->record.ticks;
}

/* Tells of a thread that ends. */
static __always_inline void end(struct cpu_books *book, struct task_struct *task,
				struct thread *thread, __u64 now, __u32 cpu)
{
	__u32 zero = 0;
	struct thread_record *out = bpf_map_lookup_elem(&scratch, &zero);

	forget_entry(task, thread);
	if (thread->account.watched == WATCHED && claim(&thread->account, WATCHED))
		account_close(&thread->account, now, 0, task->se.sum_exec_runtime);
	/* Claimed by the walk that closes all, which tells of it. Or its life was outside of all
	 * data. */
	if (thread->account.watched == WATCHED_CLAIMED || !thread->account.lived)
		return;
	if (!out) {
		book->threads_lost++;
		return;
	}
	tell(out, task, thread, &thread->account, cpu);
	out->head.flags |= THREAD_ENDED;
	out->since = out->head.time;
	if (!send(cpu, out, sizeof(*out)))
		book->threads_lost++;
}

/* Enters a thread that leaves its CPU, and that nobody has seen come to it: it did before data
 * began, or the program was not called. */
static __always_inline void enter_leaving(struct cpu_books *book, struct task_struct *prev,
					  struct account *account)
{
	__u64 begin = begin_ns + book->offset, arrival = prev->sched_info.last_arrival;

	if (arrival > begin && prev->start_time < begin_ns)
		account_enter(account, begin, STATE_SLEEP, DETAIL_NONE, prev->sched_info.run_delay,
			      0);
	else
		account_enter(account, arrival > begin ? arrival : begin, STATE_ON_CPU, DETAIL_NONE,
			      prev->sched_info.run_delay, 0);
}

/* Enters a thread that comes to a CPU. A new one has waited since it was made. One that was there
 * when data began, and has not been walked to yet, was blocked then, or waited already. */
static __always_inline void enter_arriving(struct cpu_books *book, struct task_struct *next,
					   struct thread *thread, __u64 now)
{
	__u64 begin = begin_ns + book->offset, from = next->sched_info.last_queued;
	__u32 state = STATE_WAIT_CPU;

	if (!from || from > now)
		from = now;
	if (next->start_time < begin_ns || from < begin) {
		if (from > begin)
			state = reason(next, thread, 0, 0);
		from = begin;
	}
	account_enter(&thread->account, from, state, DETAIL_NONE, next->sched_info.run_delay,
		      next->se.sum_exec_runtime);
}

/* A thread leaves that nobody has seen come: how long it was away is known, and where is not any
 * more, nor in which place of user mode. */
static __always_inline void make_up_absence(struct cpu_books *book, struct task_struct *task,
					    struct thread *thread, __u32 cpu)
{
	__u64 arrival = task->sched_info.last_arrival, index;
	struct absence absence = account_repair(&thread->account, arrival,
						task->sched_info.run_delay);
	struct cpu_books *left = bpf_map_lookup_elem(&books, &thread->cpu);
	__u32 zero = 0;
	struct scratch *out = bpf_map_lookup_elem(&scratch, &zero);

	if (!left || !out)
		return;
	index = index_now(left, book);
	index = thread->index +
		grid_before(left->origin, thread->index, index, arrival - any_offset, period_ns);
	if (index == thread->index)
		return;
	describe_absence(left, index, &out->record, task, thread, &absence, 0, cpu);
	if (!send(cpu, out, SCRATCH_LENGTH(add_stack(&out->record, -1))))
		book->absences_lost += out->record.ticks;
}

static __always_inline void leave(struct cpu_books *book, struct task_struct *prev, __u64 now,
				  bool preempted, __u32 prev_state, __u32 cpu)
{
	struct thread *thread = bpf_task_storage_get(&threads, prev, 0,
						     BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u32 state, zero = 0;

	if (!thread) {
		book->threads_lost++;
		return;
	}
	if (thread->account.watched != WATCHED) {
		/* Being entered at this moment: what it does until its next change of CPU is made
		 * good then. */
		if (!recording || !claim(&thread->account, WATCHED_NOT)) {
			if (prev_state & TASK_DEAD)
				end(book, prev, thread, now, cpu);
			return;
		}
		enter_leaving(book, prev, &thread->account);
	}
	if (thread->account.state != STATE_ON_CPU)
		make_up_absence(book, prev, thread, cpu);
	if (prev_state & TASK_DEAD) {
		end(book, prev, thread, now, cpu);
		return;
	}
	state = preempted || !prev_state
			? STATE_WAIT_CPU
			: reason(prev, thread, prev_state,
				 thread->kernel_fault ? bpf_map_lookup_elem(&scratch, &zero) : 0);
	account_leave(&thread->account, now, state, detail_of(prev, state),
		      prev->sched_info.run_delay, prev->se.sum_exec_runtime);
	thread->index = book->index;
	thread->cpu = cpu;
	keep_place(book, prev, thread, cpu);
}

static __always_inline void arrive(struct cpu_books *book, struct task_struct *next, __u64 now,
				   __u32 cpu)
{
	struct thread *thread = bpf_task_storage_get(&threads, next, 0,
						     BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u64 delay = run_delay(next, now), index;
	struct cpu_books *left = book;
	struct absence absence;
	bool unseen;

	/* The storage is being changed by the thread that this one takes the CPU from. Made good
	 * when it leaves. */
	if (!thread)
		return;
	if (thread->account.watched != WATCHED) {
		if (!claim(&thread->account, WATCHED_NOT))
			return;
		thread->index = book->index;
		thread->cpu = cpu;
		enter_arriving(book, next, thread, now);
	}
	unseen = thread->account.state == STATE_ON_CPU;
	absence = account_return(&thread->account, now, delay, next->se.sum_exec_runtime);
	if (thread->cpu != cpu) {
		left = bpf_map_lookup_elem(&books, &thread->cpu);
		if (!left)
			return;
	}
	index = index_now(left, book);
	/* Nobody saw it leave the CPU that it came to last; what had passed until then was counted
	 * there. */
	if (unseen)
		thread->index += grid_before(left->origin, thread->index, index,
					     absence.from - any_offset, period_ns);
	if (index > thread->index)
		send_absence(book, left, index, next, thread, &absence, cpu);
	thread->index = book->index;
	thread->cpu = cpu;
}

/* A boundary has passed and the clock has not fired for it, and it is not to be expected soon: it
 * belongs to the thread that leaves now, not to whatever follows. */
static __always_inline void charge(__u64 *ctx, struct cpu_books *book, struct task_struct *prev,
				   __u64 now, __u32 cpu)
{
	__u32 ticks = passed(book, now), zero = 0;
	struct scratch *out;

	if (!ticks)
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
	describe(&out->record, prev, now, cpu, TICK_KERNEL, ticks);
	out->record.flags |= TICK_LEAVING;
	out->record.entry = next_entry(book, prev, bpf_task_storage_get(&threads, prev, 0, 0), true,
				       cpu);
	send_tick(book, out,
		  add_stack(&out->record, bpf_get_stack(ctx, out->stack, sizeof(out->stack), 0)));
}

/* What an offset is by what it was known as and what it seems to be. The run queue's clock is read
 * when the scheduler begins, and it may take its time until it comes here, or a hypervisor may take
 * it: so the offset is what it is when that was short. It may fall by 500 millionths at most, as
 * fast as a time service lets CLOCK_MONOTONIC run. */
static __always_inline __u64 better_offset(__u64 known, __u64 seems)
{
	__u64 least = known - (period_ns >> 11);

	return known && (__s64)(seems - least) < 0 ? least : seems;
}

static __always_inline void note_offset(struct cpu_books *book, __u64 now)
{
	__u64 seems = now - bpf_ktime_get_ns();

	book->offset = better_offset(book->offset ? book->offset : any_offset, seems);
	book->offset_stale = 0;
	any_offset = better_offset(any_offset, seems);
}

static __always_inline void change(__u64 *ctx, struct cpu_books *book, __u32 cpu)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	__u32 prev_state = ctx[3];
	__u64 now = rq_clock(prev->pid ? prev : next);

	if (book->offset_stale)
		note_offset(book, now);
	if (!recording && !(prev_state & TASK_DEAD))
		return;
	/* Before a sleep of the CPU, whose timers may sleep with it, or when the interrupt is late
	 * for another reason. */
	if (now - book->offset >= book->next + (next->pid ? LATE : 0) && book->origin)
		charge(ctx, book, prev, now - book->offset, cpu);
	if (prev->pid)
		leave(book, prev, now, ctx[0], prev_state, cpu);
	if (next->pid && recording)
		arrive(book, next, now, cpu);
}

SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);

	if (!book)
		return 0;
	set_busy(book, 1);
	change(ctx, book, cpu);
	set_busy(book, 0);
	return 0;
}

SEC("tp_btf/page_fault_user")
int on_user_fault(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&threads, task, 0, 0);

	if (thread)
		thread->user_fault = is_text_fault(ctx[0], (struct pt_regs *)ctx[1], ctx[2])
					     ? STATE_TEXT_FAULT
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

#endif
