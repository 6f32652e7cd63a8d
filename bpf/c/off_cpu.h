/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Why a thread is off the CPU, how long it has waited for a CPU, and the off-CPU record. */
#ifndef KCOLLECT_OFF_CPU_H
#define KCOLLECT_OFF_CPU_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "account.h"
#include "arch.h"
#include "clock.h"
#include "grid.h"
#include "page_fault.h"
#include "record.h"
#include "sched_info.h"
#include "thread.h"
#include "user_return.h"

#define TASK_STOPPED_OR_TRACED 0x0c
#define JOBCTL_TRAP_FREEZE     (1 << 23)
#define TASK_FROZEN	       0x8000 /* since Linux 6.1: by a control group of version 1 */
#define TASK_DEAD	       0x80

/* asm-generic/errno-base.h */
#define EPERM 1

/* Whether the kernel can run the owner of a mutex by the time of a thread that is blocked on it
 * (CONFIG_SCHED_PROXY_EXEC), which then stays in the run queue. Other kernels have one pointer by
 * two names. */
static __always_inline bool has_proxy_execution(void)
{
	return bpf_core_field_exists(struct rq___proxy_execution, donor) &&
	       bpf_core_field_offset(struct rq___proxy_execution, donor) !=
		       bpf_core_field_offset(struct rq___proxy_execution, curr);
}

/* Whether a thread in the run queue waits for a mutex and not for a CPU. */
static __always_inline bool is_blocked_in_queue(struct task_struct *task)
{
	const __u64 WAKING = -1; /* of Linux 7.0 and 7.1: it has the mutex */
	__u64 mutex;

	if (!has_proxy_execution())
		return false;
	if (bpf_core_field_exists(struct task_struct___is_blocked, is_blocked))
		return BPF_CORE_READ((struct task_struct___is_blocked *)task, is_blocked);
	if (!bpf_core_field_exists(struct task_struct___blocked_on, blocked_on))
		return false;
	mutex = (__u64)BPF_CORE_READ((struct task_struct___blocked_on *)task, blocked_on);
	return mutex && mutex != WAKING;
}

/* Whether a thread is on a CPU or waits for one, 1 or 0. Newer kernels leave a thread that has gone
 * to sleep in the queue for a while. There are no branches, since each doubles what an old verifier
 * follows after it. */
static __always_inline __u64 is_queued(struct task_struct *task)
{
	__u64 queued = !!task->on_rq;

	if (bpf_core_field_exists(task->se.sched_delayed))
		queued &= !task->se.sched_delayed;
	if (has_proxy_execution())
		queued &= !is_blocked_in_queue(task);
	return queued;
}

/* Total time that a thread has waited for a CPU, including the current wait. A thread that is
 * migrated to another CPU while it is still in the queue goes to sleep with last_queued set (Linux
 * 6.12), as if it had waited since. */
static __always_inline __u64 run_delay(struct task_struct *task, const struct thread *thread,
				       __u64 now_ns)
{
	__u64 queued_ns = is_queued(task) * last_queued(task, thread);

	return past_delay(task, thread) +
	       (queued_ns && now_ns > queued_ns ? now_ns - queued_ns : 0);
}

/* Whether the control group of a thread is frozen, as `docker pause` does. A thread that waits for
 * the child of its vfork is marked as frozen too, and is not asked to be. */
static __always_inline bool is_frozen(struct task_struct *task, __u32 state)
{
	return state & TASK_FROZEN ||
	       (bpf_core_field_exists(task->frozen) && BPF_CORE_READ_BITFIELD(task, frozen) &&
		task->jobctl & JOBCTL_TRAP_FREEZE);
}

/* The state of a thread that blocks. `state` is the scheduler's; `out` has space for the stack of a
 * thread that is not the current one, whose faults all count as data faults. */
static __always_inline __u32 blocked_state(struct task_struct *task, struct thread *thread,
					   __u32 state, struct tick_scratch *out, bool is_current)
{
	struct pt_regs *regs;
	__u32 fault = 0;
	bool user;
	long call;

	if (state & TASK_STOPPED_OR_TRACED || is_frozen(task, state))
		return STATE_STOPPED;
	if (task->flags & PF_KTHREAD)
		return STATE_SLEEP;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!regs)
		return STATE_SLEEP;
	call = system_call_number(regs);
	user = call == NO_SYSTEM_CALL;
	if (user || thread->kernel_fault || !kernel_faults_are_noted) {
		/* In this system call or in an earlier one: the stack shows which. From user mode
		 * it may be for something else too, as when a signal ends the thread. */
		if (is_current)
			fault = kc_fault_of_current(user);
		else if (out && in_page_fault(task, out, user))
			fault = user ? STATE_DATA_FAULT : STATE_KERNEL_FAULT;
		if (fault)
			return fault;
		thread->kernel_fault = 0;
	}
	return !user && is_futex(task, call) ? STATE_USER_LOCK : STATE_SLEEP;
}

/* Whether the quota of the thread's cgroup is used up. */
static __always_inline bool is_throttled(struct task_struct *task)
{
	if (bpf_core_field_exists(struct task_struct___thread_throttling, throttled))
		return ((struct task_struct___thread_throttling *)task)->throttled;
	/* Only here: to check that a pointer is read takes the verifier 0.1 ms each time. */
	return bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	       bpf_core_field_exists(struct cfs_rq___group_throttling, throttle_count) &&
	       ((struct cfs_rq___group_throttling *)task->se.cfs_rq)->throttle_count;
}

/* The detail of an off-CPU interval that begins. */
static __always_inline __u32 detail_of(struct task_struct *task, __u32 state)
{
	if (state == STATE_WAIT_CPU)
		return is_throttled(task) ? DETAIL_THROTTLED : DETAIL_PREEMPTED;
	return BPF_CORE_READ_BITFIELD(task, in_iowait) ? DETAIL_BLOCK_IO : DETAIL_NONE;
}

/* Number of the return to user mode whose record has the user stack of a thread that is switched
 * in, and whose kernel stack took `got` bytes. A kernel that protects a process refuses both its
 * stacks and its callbacks: the missing kernel stack is counted, and no user stack is waited
 * for. */
static __always_inline __u32 user_return_at_arrival(long got, struct cpu_stats *stats,
						    struct task_struct *task, struct thread *thread,
						    __u32 cpu)
{
	return got == -EPERM ? 0 : next_user_return(stats, task, thread, false, cpu);
}

/* Fills an off-CPU record, except its stack. `left` are the statistics of the CPU that the thread
 * left, `index` that CPU's boundaries by `time_ns`. */
static __always_inline void describe_off_cpu(struct cpu_stats *left, __u64 index,
					     struct record_header *out, struct task_struct *task,
					     __u64 time_ns, struct thread *thread,
					     const struct off_cpu *off_cpu, __u32 user_return,
					     __u32 cpu)
{
	describe(out, task, time_ns, cpu, RECORD_OFF_CPU, index - thread->grid_index);
	out->blocked = grid_before(left->origin_ns, thread->grid_index, index,
				   off_cpu->woken_ns - any_offset_ns, period_ns);
	out->state = off_cpu->state;
	out->detail = off_cpu->detail;
	if (off_cpu->state != STATE_WAIT_CPU && off_cpu->state != STATE_STOPPED) {
		out->cause = thread->account.cause;
		out->waker = thread->wake.waker;
	}
	out->user_return = user_return;
}

/* Says in a record, if nothing else does, that the thread was still blocked. */
static __always_inline void note_not_ended(struct record_header *record)
{
	bool blocked = record->state != STATE_WAIT_CPU && record->state != STATE_STOPPED;

	if (blocked && record->cause == CAUSE_UNDECIDED)
		record->cause = CAUSE_NOT_ENDED;
}

#endif
