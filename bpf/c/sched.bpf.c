/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The states of all threads. At each context switch `kc_sched_switch` updates the accounts of both
 * threads (account.h). When a thread is on a CPU again and boundaries of the tick grid have passed,
 * a record is sent with their number and the kernel stack in which the thread was off the CPU;
 * shorter off-CPU intervals cost no data.
 *
 * All times are of the scheduler's clock, which is up to date in the run queue at a switch.
 *
 * Rare work is in functions of its own: the verifier merges the paths at the end of a function. If
 * such a function were inlined, each path through the code after it would be checked for each path
 * through it, and every thousand instructions delay the start by a millisecond. Work at each switch
 * is inlined, since a call takes 20 ns and more on some CPUs.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "account.h"
#include "cause.h"
#include "clock.h"
#include "grid.h"
#include "lock_wait.h"
#include "off_cpu.h"
#include "record.h"
#include "rotation.h"
#include "rotation_switch.h"
#include "run_queue.h"
#include "sched_info.h"
#include "steal.h"
#include "thread.h"
#include "thread_record.h"
#include "user_return.h"
#include "user_stack.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u64 lock_threshold_ns;
const volatile bool watch_wakers;
const volatile __u8 call_causes[IO_CALLS];
const volatile __u64 create_storage = BPF_LOCAL_STORAGE_GET_F_CREATE;

volatile __u64 any_offset_ns;

/* A thread that waits again in the same place after so much time on a CPU has not ended its
 * wait. */
#define CONTINUES_WITHIN_NS 200000
/* A wake-up may be seen before the switch-out that it ends. */
#define WAKE_UP_RACE_NS 50000

/* Number of boundaries counted by now on the CPU that a thread left. Boundaries of another CPU may
 * have passed without being counted yet; a CPU that went offline counts none. */
static __always_inline __u64 grid_index_now(struct cpu_stats *left, struct cpu_stats *here)
{
	struct grid grid = {.origin_ns = left->origin_ns, .index = left->index};

	if (left != here && left->origin_ns)
		grid_advance(&grid, bpf_ktime_get_ns(), period_ns);
	return grid.index;
}

/* Emits the off-CPU record of a thread that is being switched in. */
static __noinline int send_off_cpu(struct cpu_stats *stats, struct task_struct *task,
				   struct thread *thread, const struct off_cpu *off_cpu,
				   __u64 epoch_start_ns)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct tick_scratch *out = only_element(&kc_scratch);
	struct cpu_stats *left = bpf_map_lookup_elem(&kc_cpu_stats, &thread->cpu);
	__u32 user_return;
	__u64 size;
	long got;

	if (!out || !left)
		return 0;
	got = bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0);
	user_return = user_return_at_arrival(got, stats, task, thread, cpu);
	describe_off_cpu(left, grid_index_now(left, stats), &out->record, task,
			 record_time(epoch_start_ns), thread, off_cpu, user_return, cpu);
	if (watch_wakers && out->record.cause)
		out->record.cause = thread->wake.shown_cause;
	size = add_stack(&out->record, got);
	if (!send(cpu, out, SCRATCH_LENGTH(size)))
		stats->off_cpu_lost += out->record.ticks;
	return 0;
}

/* Sends the last record of a thread that exits, at its last switch-out: a global function, which
 * the verifier checks once. */
__attribute__((noinline)) int kc_thread_exit(__u64 epoch_start_ns, __u64 now_ns, __u64 stolen_ns)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&kc_threads, task, 0, 0);
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct thread_record *out = only_element(&kc_scratch);
	/* Perhaps long after its account was closed, with the data. */
	__u64 time_ns = bpf_ktime_get_ns();

	if (!thread || !stats)
		return 0;
	evict_return_wait(task->pid, thread);
	if (thread->account.tracking == TRACKED && claim_tracking(&thread->account, TRACKED)) {
		account_close(&thread->account, now_ns, 0, task->se.sum_exec_runtime, stolen_ns);
		time_ns = record_time(epoch_start_ns);
	}
	/* Claimed by kc_close_all, which writes the record; or the thread was never recorded. */
	if (thread->account.tracking == TRACKING_CLAIMED || !thread->account.tracked_ns)
		return 0;
	if (!out) {
		stats->thread_records_lost++;
		return 0;
	}
	fill_thread_record(out, task, time_ns, thread, &thread->account, cpu);
	out->header.flags |= FLAG_THREAD_EXITED;
	out->since_ns = out->header.time_ns;
	if (!send(cpu, out, sizeof(*out)))
		stats->thread_records_lost++;
	return 0;
}

/* Begins to track a thread that is switched out. It was switched in before recording started, or
 * the program was not run then. All boundaries that have passed are counted for the thread, also
 * those in a sleep between the start and its switch-in: its off-CPU interval gets none. */
static __noinline int track_at_switch_out(struct cpu_stats *stats, struct task_struct *prev,
					  struct thread *thread, __u64 epoch_start_ns, __u32 cpu)
{
	__u64 epoch_start_sched_ns = epoch_start_ns + stats->offset_ns,
	      arrival_ns = last_arrival(prev, thread);

	thread->grid_index = stats->index;
	thread->cpu = cpu;
	thread->tid = prev->pid;
	if (arrival_ns > epoch_start_sched_ns && prev->start_time < epoch_start_ns)
		track(thread, epoch_start_ns, epoch_start_sched_ns, STATE_SLEEP, DETAIL_NONE,
		      past_delay(prev, thread), RUN_TIME_UNKNOWN);
	else
		track(thread, epoch_start_ns,
		      arrival_ns > epoch_start_sched_ns ? arrival_ns : epoch_start_sched_ns,
		      STATE_ON_CPU, DETAIL_NONE, past_delay(prev, thread), RUN_TIME_UNKNOWN);
	return 0;
}

/* Begins to track a thread that is switched in. A new thread has waited since it was created. A
 * thread that existed when recording started, and that kc_track_all has not reached yet, was
 * blocked then, or already waiting. */
static __noinline int track_at_switch_in(struct cpu_stats *stats, struct task_struct *next,
					 struct thread *thread, __u64 epoch_start_ns, __u64 now_ns)
{
	__u64 epoch_start_sched_ns = epoch_start_ns + stats->offset_ns,
	      from = last_queued(next, thread);
	__u32 state = STATE_WAIT_CPU;
	struct grid grid = {};

	thread->account.cause = CAUSE_UNDECIDED;

	if (!from || from > now_ns)
		from = now_ns;
	if (next->start_time < epoch_start_ns || from < epoch_start_sched_ns) {
		if (from > epoch_start_sched_ns)
			state = blocked_state(next, thread, 0, 0, false);
		from = epoch_start_sched_ns;
	}
	/* The boundaries of that time are the thread's. Where user stacks are captured at
	 * switch-out, a thread that has not run yet has no stack, and its ticks are left out. */
	grid.origin_ns = stats->origin_ns;
	if (grid.origin_ns && (capture_on_return || !capture_user_stacks))
		grid_advance(&grid, from - stats->offset_ns, period_ns);
	if (grid.index && grid.index < thread->grid_index)
		thread->grid_index = grid.index;
	thread->tid = next->pid;
	track(thread, epoch_start_ns, from, state, DETAIL_NONE, past_delay(next, thread),
	      next->se.sum_exec_runtime);
	return 0;
}

/* Emits the off-CPU record of a thread that is being switched out and whose switch-in was not seen.
 * The kernel and user stacks of that time are no longer known. */
static __always_inline void send_missed_off_cpu(struct cpu_stats *stats, struct task_struct *task,
						struct thread *thread, __u64 epoch_start_ns,
						__u32 cpu)
{
	__u64 arrival_ns = last_arrival(task, thread), index;
	struct off_cpu off_cpu = account_missed_switch_in(&thread->account, arrival_ns,
							  past_delay(task, thread));
	struct cpu_stats *left = bpf_map_lookup_elem(&kc_cpu_stats, &thread->cpu);
	struct tick_scratch *out = only_element(&kc_scratch);

	if (is_lock_wait(&off_cpu, task))
		send_lock_wait(stats, task, thread, &off_cpu, false);
	if (!left || !out)
		return;
	index = grid_index_now(left, stats);
	index = thread->grid_index + grid_before(left->origin_ns, thread->grid_index, index,
						 arrival_ns - any_offset_ns, period_ns);
	if (index <= thread->grid_index)
		return;
	describe_off_cpu(left, index, &out->record, task, record_time(epoch_start_ns), thread,
			 &off_cpu, 0, cpu);
	if (!send(cpu, out, SCRATCH_LENGTH(add_stack(&out->record, -1))))
		stats->off_cpu_lost += out->record.ticks;
}

/* As a global function, which the verifier checks once. */
__attribute__((noinline)) int kc_send_missed_off_cpu(__u64 epoch_start_ns)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&kc_threads, task, 0, 0);
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);

	if (thread && stats)
		send_missed_off_cpu(stats, task, thread, epoch_start_ns, cpu);
	return 0;
}

/* end_at_switch() of a thread that is switched out: a global function, as above. */
__attribute__((noinline)) int kc_end_at_switch_out(__u64 rotation, __u64 stolen_ns)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&kc_threads, task, 0, 0);

	return thread && end_at_switch(task, thread, rotation, stolen_ns, 0);
}

/* When a thread is switched out, if it has run for as long as the scheduler's sum says. Without run
 * queues `now_ns` may be too early for that: the clock was read some microseconds after the
 * scheduler's, in particular at an arrival. */
static __always_inline __u64 end_of_running(const struct account *account, __u64 now_ns,
					    __u64 run_time)
{
	__u64 before = account->run_time_ns, end_ns = account->since_ns + run_time - before;

	if (before == RUN_TIME_UNKNOWN || run_time < before)
		return now_ns;
	return end_ns > now_ns ? end_ns : now_ns;
}

/* Where a thread waits: its system call and its user stack pointer. */
static __always_inline __u64 place_of(struct task_struct *task)
{
	struct pt_regs *regs;

	if (task->flags & PF_KTHREAD)
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	return regs ? (__u64)system_call_number(regs) << 48 ^ user_sp(regs) : 0;
}

/* A thread leaves its CPU into a blocked state whose own cause is noted already. */
static __always_inline void leave_to_wait(struct task_struct *task, struct thread *thread,
					  __u64 now_ns)
{
	struct wake *wake = &thread->wake;
	__u64 place = place_of(task);

	if (thread->account.pending_ns &&
	    (place != wake->place || wake->woke_others ||
	     thread->account.ns[STATE_ON_CPU] - wake->ran_ns > CONTINUES_WITHIN_NS)) {
		wake->step_place = wake->place;
		wake->step_cause = thread->account.pending_slot & (LOCK_CAUSES - 1);
		account_flush_pending(&thread->account);
	}
	if (place != wake->place)
		wake->earlier_place = wake->place;
	wake->place = place;
	if (wake->woken_ns + WAKE_UP_RACE_NS < now_ns) {
		wake->cause = CAUSE_UNDECIDED;
		wake->continues = 0;
		wake->waker = 0;
	}
}

/* Notes the cause of a blocked time of the current thread that has begun: a function of its own,
 * and without what can be had otherwise, since the stack below switch_out() has no space left. */
static __noinline int begin_wait(struct thread *thread, __u32 scheduler_state)
{
	struct task_struct *task = bpf_get_current_task_btf();

	thread->account.cause = own_cause(task, thread->account.state, scheduler_state);
	if (watch_wakers)
		leave_to_wait(task, thread, thread->account.since_ns);
	return 0;
}

static __always_inline void switch_out(struct cpu_stats *stats, struct task_struct *prev,
				       __u64 epoch_start_ns, __u64 now_ns, __u64 stolen_ns,
				       bool preempted, __u32 prev_state, __u32 cpu, bool run_queues)
{
	/* A thread that exits before recording starts needs no storage. This has no branch, since
	 * an old verifier would follow everything after it twice. */
	struct thread *thread = bpf_task_storage_get(&kc_threads, prev, 0,
						     recording & create_storage);
	bool tracked;
	__u32 state;

	if (!thread) {
		if (recording)
			stats->threads_untracked++;
		return;
	}
	if (!has_sched_info())
		thread->waits.queued_ns = preempted || !prev_state ? now_ns : 0;
	tracked = thread->account.tracking == TRACKED;
	/* If that fails, another program begins to track it at this moment: its next context switch
	 * accounts for the time until then. */
	if (!tracked && recording && claim_tracking(&thread->account, NOT_TRACKED)) {
		track_at_switch_out(stats, prev, thread, epoch_start_ns, cpu);
		tracked = true;
	}
	if (tracked && belongs_to_previous_epoch(thread, epoch_start_ns)) {
		if (!kc_end_at_switch_out(epoch_start_ns, stolen_ns))
			return;
		stolen_ns = 0;
	}
	if (tracked && thread->account.state != STATE_ON_CPU)
		kc_send_missed_off_cpu(epoch_start_ns);
	if (prev_state & TASK_DEAD)
		kc_thread_exit(epoch_start_ns, now_ns, stolen_ns);
	if (!tracked || prev_state & TASK_DEAD)
		return;
	state = preempted || !prev_state ? STATE_WAIT_CPU
					 : blocked_state(prev, thread, prev_state, 0, true);
	if (!run_queues)
		now_ns = end_of_running(&thread->account, now_ns, prev->se.sum_exec_runtime);
	account_switch_out(&thread->account, now_ns, state, detail_of(prev, state),
			   past_delay(prev, thread), prev->se.sum_exec_runtime, stolen_ns);
	if (thread->account.state != STATE_WAIT_CPU)
		begin_wait(thread, prev_state);
	thread->grid_index = stats->index;
	thread->cpu = cpu;
	capture_at_switch_out(stats, prev, thread, cpu);
}

/* A thread is back from a blocked state: what woke it says why, where its own state does not. A
 * wait that may continue gets the cause of its end. Its record is sent now, with the cause that the
 * last such wait in that place had in the end. */
static __noinline int arrive_from_wait(struct thread *thread)
{
	struct account *account = &thread->account;
	struct wake *wake = &thread->wake;

	if (account->state == STATE_WAIT_CPU || account->state == STATE_ON_CPU)
		return 0;
	if (account->cause == CAUSE_UNDECIDED) {
		account->cause = wake->cause;
		account->continues = wake->continues;
	}
	wake->shown_cause = account->cause;
	if (account->continues && wake->place == wake->step_place) {
		wake->shown_cause = wake->step_cause;
	} else if (!account->continues && account->pending_ns) {
		wake->step_place = wake->place;
		wake->step_cause = account->cause;
	}
	wake->ran_ns = account->ns[STATE_ON_CPU];
	wake->woke_others = 0;
	return 0;
}

static __always_inline void account_arrival(struct cpu_stats *stats, struct task_struct *next,
					    struct thread *thread, __u64 epoch_start_ns,
					    __u64 now_ns, __u32 cpu)
{
	__u64 delay = run_delay(next, thread, now_ns), index;
	struct cpu_stats *left = stats;
	struct off_cpu off_cpu;
	__u32 user_return = 0;
	bool unseen, was_off;

	if (thread->account.tracking != TRACKED) {
		if (!claim_tracking(&thread->account, NOT_TRACKED))
			return;
		thread->grid_index = stats->index;
		thread->cpu = cpu;
		track_at_switch_in(stats, next, thread, epoch_start_ns, now_ns);
	}
	if (belongs_to_previous_epoch(thread, epoch_start_ns)) {
		if (has_boundaries_before(thread, epoch_start_ns))
			user_return = next_user_return(stats, next, thread, false, cpu);
		was_off = thread->account.state != STATE_ON_CPU;
		if (!end_at_switch(next, thread, epoch_start_ns, 0, user_return))
			return;
		if (was_off && thread->account.state == STATE_ON_CPU)
			goto arrived;
	}
	unseen = thread->account.state == STATE_ON_CPU;
	if (watch_wakers)
		arrive_from_wait(thread);
	off_cpu = account_switch_in(&thread->account, now_ns, delay, next->se.sum_exec_runtime);
	if (thread->cpu != cpu) {
		left = bpf_map_lookup_elem(&kc_cpu_stats, &thread->cpu);
		if (!left)
			return;
	}
	index = grid_index_now(left, stats);
	/* Its last switch-out was not seen; boundaries that had passed until then were counted on
	 * that CPU. */
	if (unseen) {
		thread->flags &= ~CAPTURED;
		thread->grid_index += grid_before(left->origin_ns, thread->grid_index, index,
						  off_cpu.from_ns - any_offset_ns, period_ns);
	}
	if (index > thread->grid_index) {
		send_off_cpu(stats, next, thread, &off_cpu, epoch_start_ns);
		thread->flags |= WAS_LONG;
	}
	if (is_lock_wait(&off_cpu, next))
		send_lock_wait(stats, next, thread, &off_cpu, true);
arrived:
	thread->grid_index = stats->index;
	thread->cpu = cpu;
	if (thread->flags & RETURN_WANTED)
		await_user_return(stats, next, thread);
}

static __always_inline void switch_in(struct cpu_stats *stats, struct task_struct *next,
				      __u64 epoch_start_ns, __u64 now_ns, __u32 cpu)
{
	struct thread *thread = bpf_task_storage_get(&kc_threads, next, 0, create_storage);

	/* The thread that this one preempts is changing the storage. The next switch-out accounts
	 * for this interval. */
	if (!thread)
		return;
	account_arrival(stats, next, thread, epoch_start_ns, now_ns, cpu);
	if (!has_sched_info())
		note_arrival(&thread->waits, now_ns);
}

/* Charges boundaries that have passed and are not counted yet to the thread that is switched out,
 * and not to the next one. */
static __noinline int charge_switch_out(__u64 *ctx, struct cpu_stats *stats,
					struct task_struct *prev, __u64 now_ns, __u32 cpu)
{
	__u64 index = stats->index;
	struct passed passed = count_passed(stats, now_ns);
	struct tick_scratch *out;
	struct thread *thread;

	if (!passed.ticks)
		return 0;
	if (!prev->pid) {
		count_idle(stats, cpu, passed.ticks);
		return 0;
	}
	passed = since_arrival(stats, prev, index, passed);
	if (!passed.ticks)
		return 0;
	out = only_element(&kc_scratch);
	if (!out)
		return 0;
	count_busy(stats, &stats->kernel, passed);
	describe(&out->record, prev, stats->last_ns, cpu, TICK_KERNEL, passed.ticks);
	out->record.blocked = passed.stolen_ticks;
	out->record.flags |= FLAG_AT_SWITCH_OUT;
	thread = bpf_task_storage_get(&kc_threads, prev, 0, 0);
	out->record.user_return = next_user_return(stats, prev, thread, true, cpu);
	send_tick(stats, out,
		  add_stack(&out->record, bpf_get_stack(ctx, out->stack, sizeof(out->stack), 0)));
	return 0;
}

/* The better of a known clock offset and a measured one. The run queue's clock is read when the
 * scheduler begins, and the time from there to this program may be long, as when a hypervisor
 * preempts the CPU: the larger offset is the one with the shorter delay. It may fall by 500
 * millionths at most, the largest rate by which a time service adjusts CLOCK_MONOTONIC, and only if
 * the scheduler has read its clock. */
static __always_inline __u64 better_offset(__u64 known, __u64 measured, bool clock_read)
{
	__u64 least = known - (clock_read ? period_ns >> 11 : 0);

	return known && (__s64)(measured - least) < 0 ? least : measured;
}

/* A thread that blocks enters the scheduler, which reads its clock. After a wake-up that preempts,
 * the clock was read at the wake-up (is_next_threads_time), some microseconds ago: an offset
 * measured by it would put the woken thread's time after the boundaries that passed since. */
static __always_inline void note_offset(struct cpu_stats *stats, __u64 measured, bool clock_read)
{
	stats->offset_ns = better_offset(stats->offset_ns ? stats->offset_ns : any_offset_ns,
					 measured, clock_read);
	stats->offset_stale = !clock_read;
	any_offset_ns = better_offset(any_offset_ns, measured, clock_read);
}

/* The scheduler's clock without a run queue, at the switch from `prev`. A thread's arrival is when
 * the scheduler read its clock for the switch that brought it here. */
static __noinline __u64 clock_by_arrival(struct cpu_stats *stats, struct task_struct *prev)
{
	__u64 now_ns = bpf_ktime_get_ns();

	/* The offset falls once a tick at most: most measurements have a delay in them. */
	if (!has_sched_info())
		return now_ns;
	if (prev->pid && stats->last_tid == (__u32)prev->pid && stats->arrived_ns) {
		note_offset(stats, prev->sched_info.last_arrival - stats->arrived_ns,
			    stats->offset_stale);
		stats->offset_stale = 0;
	}
	stats->arrived_ns = now_ns;
	return now_ns + (stats->offset_ns ? stats->offset_ns : any_offset_ns);
}

static __always_inline void context_switch(__u64 *ctx, struct cpu_stats *stats, __u32 cpu,
					   bool run_queues)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	__u32 prev_state = ctx[3];
	__u64 now_ns, stolen_ns = 0, end_ns, epoch_start_ns;
	struct rq *rq;

	if (run_queues) {
		/* The scheduler's clock in this CPU's run queue is up to date. */
		rq = (prev->pid ? prev : next)->se.cfs_rq->rq;
		if (watch_wakers)
			stats->run_queue = (__u64)rq;
		now_ns = rq->clock;
		if (stats->offset_stale)
			note_offset(stats, now_ns - bpf_ktime_get_ns(),
				    prev->pid && !ctx[0] && prev_state);
	} else {
		now_ns = clock_by_arrival(stats, prev);
	}
	if (!recording && !(prev_state & TASK_DEAD))
		return;
	if (now_ns - stats->offset_ns >= stats->next_ns && stats->origin_ns)
		charge_switch_out(ctx, stats, prev, now_ns - stats->offset_ns, cpu);
	/* Recording has stopped, and kc_close_all closes the accounts at that instant. */
	end_ns = until_ns;
	if (end_ns && now_ns - stats->offset_ns > end_ns) {
		if (!(prev_state & TASK_DEAD))
			return;
		now_ns = end_ns + stats->offset_ns;
	}
	if (run_queues)
		stolen_ns = stolen_since_switch(stats, rq);
	epoch_start_ns = epoch_of_switch();
	if (prev->pid)
		switch_out(stats, prev, epoch_start_ns, now_ns, stolen_ns, ctx[0], prev_state, cpu,
			   run_queues);
	if (next->pid && recording)
		switch_in(stats, next, epoch_start_ns, now_ns, cpu);
}

/* Whether both programs for an end of system calls have a preempted thread inside: the kernel skips
 * them for all others. */
static __always_inline bool calls_are_skipped(__u64 in_programs)
{
	const __u64 EXIT = 1ULL << 8 * CALL_EXIT | 1ULL << 8 * CALL_EXIT_AGAIN;
	const __u64 ENTER = 1ULL << 8 * CALL_ENTER | 1ULL << 8 * CALL_ENTER_AGAIN;

	return (in_programs & EXIT) == EXIT || (in_programs & ENTER) == ENTER;
}

/* `run_queues` is a constant in each program: an old verifier follows twice as much if it has to
 * see that itself. */
static __always_inline int sched_switch(__u64 *ctx, bool run_queues)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct task_struct *next = (void *)ctx[2];

	if (!stats)
		return 0;
	if (calls_are_preempted && calls_are_skipped(stats->in_programs))
		stats->calls_unseen++;
	stats->unmeasured++;
	if (stats->unmeasured >= MEASURED_SWITCHES)
		stats->measured_ns = bpf_ktime_get_ns();
	set_busy(stats, 1);
	context_switch(ctx, stats, cpu, run_queues);
	stats->last_pid = next->tgid;
	stats->last_tid = next->pid;
	set_busy(stats, 0);
	if (stats->unmeasured >= MEASURED_SWITCHES) {
		count_programs(stats,
			       (bpf_ktime_get_ns() - stats->measured_ns) * stats->unmeasured);
		stats->unmeasured = 0;
	}
	return 0;
}

SEC("tp_btf/sched_switch")
int kc_sched_switch(__u64 *ctx)
{
	return sched_switch(ctx, true);
}

/* Where run queues are not read. */
SEC("tp_btf/sched_switch")
int kc_sched_switch_alone(__u64 *ctx)
{
	return sched_switch(ctx, false);
}
