/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Why a thread is blocked, as far as its own state says that: the robust half of the rule of
 * docs/waits.md. It needs no hook. Where the own state does not say it, what woke the thread may
 * (waking.bpf.c), if that is watched.
 */
#ifndef KCOLLECT_CAUSE_H
#define KCOLLECT_CAUSE_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "arch.h"
#include "record.h"
#include "records.h"
#include "thread.h"

#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_NOLOAD	     0x400 /* with the above: an idle thread of the kernel */
#define TASK_FREEZABLE	     0x2000

/* Wake-ups are watched. Set by bpf/src/load.rs. */
extern const volatile bool watch_wakers;

/* What a wait in a system call says, by the number of the call: a cause, and CALL_READS. Set by
 * bpf/src/causes.rs. Only calls of 64-bit programs are here. */
extern const volatile __u8 call_causes[IO_CALLS];

/* What is known of a system call by its number. */
static __always_inline __u8 call_facts(struct task_struct *task, long call)
{
	if (call < 0 || is_compat(task))
		return 0;
	return call_causes[call & (IO_CALLS - 1)];
}

/* Bits of a futex command that say how, and not what: a private futex, and which clock. */
#define FUTEX_PRIVATE 128
#define FUTEX_FLAGS   (FUTEX_PRIVATE | 256)

/* A number above those of all threads (PID_MAX_LIMIT). */
#define THREADS_END (1U << 22)

/* What a wait in a futex says. Mutexes of glibc, Rust and Go wait with 2 where others wait too,
 * those of musl with the owner and bit 31. Who waits for the end of a thread waits for its number
 * to be cleared, in a word that the kernel takes as shared. */
static __always_inline __u32 futex_cause(struct task_struct *task, const struct pt_regs *regs,
					 long call)
{
	const __u32 WAIT = 0, LOCK_PI = 6, WAIT_BITSET = 9, LOCK_PI2 = 13;
	/* The registers of a system call's first three arguments are those of a function's. */
	__u32 command = second_argument(regs), value = third_argument(regs);
	__u32 operation = command & ~FUTEX_FLAGS;

	if (!is_futex_command(call) || is_compat(task))
		return CAUSE_UNDECIDED;
	if (operation == LOCK_PI || operation == LOCK_PI2)
		return CAUSE_LOCK;
	if (operation != WAIT && operation != WAIT_BITSET)
		return CAUSE_UNDECIDED;
	if (value == 2 || (value >> 31 && (value & ~(1U << 31)) < THREADS_END))
		return CAUSE_LOCK;
	if (!(command & FUTEX_PRIVATE) && value >= task->tgid && value < THREADS_END)
		return CAUSE_THREAD_END;
	return CAUSE_UNDECIDED;
}

/* The cause of a blocked time that begins, or CAUSE_UNDECIDED. `state` is ours, `scheduler_state`
 * the scheduler's, 0 if it is not known. */
static __always_inline __u32 own_cause(struct task_struct *task, __u32 state, __u32 scheduler_state)
{
	bool uninterruptible = scheduler_state & TASK_UNINTERRUPTIBLE &&
			       !(scheduler_state & TASK_NOLOAD);
	struct pt_regs *regs;
	__u32 cause;
	long call;

	if (state == STATE_WAIT_CPU || state == STATE_STOPPED || state == STATE_ON_CPU)
		return CAUSE_UNDECIDED;
	if (BPF_CORE_READ_BITFIELD(task, in_iowait))
		return CAUSE_DEVICE;
	if (task->flags & PF_KTHREAD)
		return uninterruptible ? CAUSE_KERNEL : CAUSE_NEW_WORK;
	if (state != STATE_SLEEP && state != STATE_USER_LOCK)
		return CAUSE_KERNEL;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!regs)
		return CAUSE_UNDECIDED;
	call = system_call_number(regs);
	cause = call_facts(task, call) & ~CALL_READS;
	/* The parent of a vfork waits so, and nothing else in these calls. */
	if (uninterruptible && !(cause == CAUSE_CHILD && scheduler_state & TASK_FREEZABLE))
		return CAUSE_KERNEL;
	if (state == STATE_USER_LOCK)
		return futex_cause(task, regs, call);
	return cause;
}

#endif
