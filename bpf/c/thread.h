/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the programs keep with each thread, in task storage, which is freed with the thread. */
#ifndef KCOLLECT_THREAD_H
#define KCOLLECT_THREAD_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "records.h"

/* In thread.user_return: a record was sent whose user stack the next return to user mode sends. */
#define RETURN_AWAITED 1

/* In thread.flags. */
enum thread_flag {
	/* Boundaries passed in the last off-CPU interval, as they may in the next. */
	WAS_LONG = 1,
	/* The user stack was captured at the last switch-out, with the current number. */
	CAPTURED = 2,
	/* The last user stack was too deep for the time in which the scheduler holds a lock. */
	DEEP = 4,
	/* A record was sent whose user stack the next return to user mode has to send, but nothing
	 * waits for that return yet. */
	RETURN_WANTED = 8,
};

/* Where the kernel has no sched_info: sched_info.h. CLOCK_MONOTONIC. */
struct waits {
	__u64 delay_ns;	  /* sum of the waits for a CPU that have ended */
	__u64 queued_ns;  /* when the open one began, or 0 */
	__u64 arrival_ns; /* of the last switch-in */
};

/* Who set a thread going, and when: scheduler's clock >> 10, never 0. Number 0: an interrupt. 0 as
 * the time: it is not known. */
struct hop {
	__u32 tid, at;
};

/* The wakers before the last one that are kept. */
#define HOPS 4

/* What woke a thread, and where it takes work (waking.bpf.c). Wakers write it, also those on other
 * CPUs, without a lock: an update that is lost costs the cause of one wait. Times are the
 * scheduler's. */
struct wake {
	__u64 woken_ns;	   /* when it was last woken */
	__u64 ran_ns;	   /* its time on a CPU until then */
	__u64 given_ns;	   /* when it was last given something to do */
	__u64 place;	   /* where it waits: its system call and its user stack pointer */
	__u64 earlier_place; /* where it waited before, in another place */
	__u64 idle_place;    /* where it takes work; 0: not known */
	__u64 other_place; /* another one where threads end its waits */
	__u64 step_place;  /* where it last waited in several steps, each to a time-out */
	struct hop history[HOPS];
	__u32 waker;	      /* 0: an interrupt */
	__u32 maker;	      /* the thread that made it, if that was seen */
	__u8 cause;	      /* enum cause, of its last wait */
	__u8 continues;	      /* its last wait ended by a time-out, and may continue */
	__u8 elsewhere;	      /* waits since the last one at idle_place */
	__u8 woke_others;     /* since it was woken itself */
	__u8 by_time_out;     /* what set it going was a time-out, if it wakes others now */
	__u8 owes_answer;     /* it was asked for something, and has not answered */
	__u8 asked_by_socket; /* ever */
	__s8 idle_score;      /* how sure idle_place is */
	__s8 other_score;     /* how sure it is that work is taken at other_place too */
	__u8 step_cause;      /* the cause of that wait, in the end */
	__u8 shown_cause;     /* of the wait that ended: the cause of its record */
	__u8 zero[5];
};

struct thread {
	struct account account;
	__u64 epoch_start_ns; /* of the epoch that the account belongs to: clock.h */
	/* Boundaries counted on its CPU: off the CPU, until its switch-out; on it, until its
	 * switch-in. */
	__u64 grid_index;
	__u32 cpu;	    /* that CPU */
	__u32 flags;	    /* enum thread_flag */
	__u32 kernel_fault; /* a page fault happened in the kernel, perhaps in this system call */
	/* Twice the number of its last return to user mode, and RETURN_AWAITED: one word, one
	 * store. */
	__u32 user_return;
	__u32 has_baseline;	 /* `baseline` is known */
	__u32 faulted_in_kernel; /* a page fault happened in the kernel, ever */
	__u32 tid;		 /* under which it is tracked: exec may change it (exec.bpf.c) */
	/* Where stacks are captured at switch-out: the place in user mode that the number stands
	 * for, or ip 0. */
	__u64 ip, sp, callers_hash;
	struct wake wake;
	struct waits waits;
	__u64 baseline[KERNEL_COUNTS]; /* the kernel's counts when the thread was tracked first */
};

struct threads {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
};

extern struct threads kc_threads SEC(".maps");

/* BPF_LOCAL_STORAGE_GET_F_CREATE. Set to 0 by bpf/src/load.rs in tests alone, where no thread is to
 * get storage. */
extern const volatile __u64 create_storage;

/* Counts a return to user mode, which is not awaited any more. */
static __always_inline void advance_user_return(struct thread *thread)
{
	thread->user_return = (thread->user_return & ~RETURN_AWAITED) + 2;
}

/* Claims an account, to begin or end its tracking, unless another program does so at this
 * moment. */
static __always_inline bool claim_tracking(struct account *account, __u32 from)
{
	return __sync_val_compare_and_swap(&account->tracking, from, TRACKING_CLAIMED) == from;
}

/* Tracks a thread in an epoch: see account_track(). */
static __always_inline void track(struct thread *thread, __u64 epoch_start_ns, __u64 now_ns,
				  __u32 state, __u32 detail, __u64 run_delay, __u64 run_time)
{
	thread->epoch_start_ns = epoch_start_ns;
	account_track(&thread->account, now_ns, state, detail, run_delay, run_time);
}

#endif
