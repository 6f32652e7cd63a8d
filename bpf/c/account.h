/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The account of one thread: its state, since when, and the time that it has spent in each state.
 * Pure: time is an argument, so this also compiles natively and is tested there
 * (bpf/src/tests/account.rs).
 *
 * A thread is on a CPU or off it. Off it, the thread is blocked for a reason that was known when it
 * left, and then, from its wake-up on, waits for a CPU. A preempted thread waits from the
 * beginning. The wake-up needs no hook: the scheduler adds up how long the thread has waited
 * (run_delay), so when the thread is on a CPU again the growth of that sum is the wait and the rest
 * is the blocked time.
 *
 * While the hypervisor runs something else on the CPU that a thread is on, the thread waits for a
 * CPU too. When exactly is not known: it counts as the end of the time on the CPU.
 *
 * Every interval is closed by the event that ends it and none is dropped: the times of a thread add
 * up to the time for which it was tracked.
 */
#ifndef KCOLLECT_ACCOUNT_H
#define KCOLLECT_ACCOUNT_H

#include "integers.h"
#include "records.h"

#define STATE_ON_CPU STATE_USER

/* A power of two, so that a mask bounds an index for the verifier. */
#define TIME_SLOTS	 16
#define TIME_SLOT(state) ((state) & (TIME_SLOTS - 1))

/* In place of the scheduler's sum of a running thread: the sum lags, the clock does not. */
#define RUN_TIME_UNKNOWN (~0ULL)

/* In the order of use: a context switch touches the first two cache lines. */
struct account {
	__u64 since_ns;	    /* when the open interval began, scheduler's clock */
	__u64 run_delay_ns; /* the scheduler's sum of waits at that time */
	__u64 run_time_ns;  /* the scheduler's sum of times on a CPU at the last switch-in */
	__u32 state;	    /* of the open interval: enum state */
	__u32 detail;	    /* of the open interval: enum detail */
	__u32 tracking;	    /* enum tracking */
	__u32 cause;	    /* of the last off-CPU interval: enum cause */
	__u64 ns[TIME_SLOTS]; /* by enum state, and by enum detail */
	__u64 begun_ns;	      /* when tracking began */
	__u64 tracked_ns;     /* sum of earlier times of tracking */
	__u64 cause_ns[CAUSE_SLOTS];
	/* Waits that ended by a time-out, and that the thread may continue: they get the cause of
	 * the last one. */
	__u64 pending_ns;
	__u32 pending_slot; /* their cause if the thread does not continue */
	__u32 continues;    /* 1: the wait that ends now is to be added to them */
};

/* Tracking begins and ends with a claim: two programs may try at the same time. */
enum tracking {
	NOT_TRACKED = 0,
	TRACKING_CLAIMED = 1,
	TRACKED = 2,
};

/* A closed off-CPU interval: [from, woken) in `state`, [woken, to) waiting for a CPU. */
struct off_cpu {
	__u64 from_ns, woken_ns, to_ns;
	__u32 state;
	__u32 detail;
};

static inline void account_begin_interval(struct account *account, __u64 now_ns, __u32 state,
					  __u32 detail, __u64 run_delay)
{
	account->since_ns = now_ns;
	account->state = state;
	account->detail = detail;
	account->run_delay_ns = run_delay;
}

/* Tracks a thread from `now_ns` on, which is in `state`. Earlier times of tracking are kept. */
static inline void account_track(struct account *account, __u64 now_ns, __u32 state, __u32 detail,
				 __u64 run_delay, __u64 run_time)
{
	account_begin_interval(account, now_ns, state, detail, run_delay);
	account->run_time_ns = run_time;
	account->begun_ns = now_ns;
	account->tracking = TRACKED;
}

/* The thread leaves its CPU, into `state`; `run_time` is the scheduler's sum of its times on a CPU.
 * That sum decides: the rest of the time since its switch-in is not the thread's. Up to `stolen_ns`
 * of the rest, which the hypervisor stole from the CPU meanwhile, was a wait for the CPU. What is
 * left (balancing, interrupts) belongs to the next state. */
static inline void account_switch_out(struct account *account, __u64 now_ns, __u32 state,
				      __u32 detail, __u64 run_delay, __u64 run_time,
				      __u64 stolen_ns)
{
	__u64 ran = run_time > account->run_time_ns ? run_time - account->run_time_ns : 0;
	__u64 length = now_ns > account->since_ns ? now_ns - account->since_ns : 0;

	if (stolen_ns > length)
		stolen_ns = length;
	if (run_time == RUN_TIME_UNKNOWN || account->run_time_ns == RUN_TIME_UNKNOWN)
		ran = length - stolen_ns;
	if (ran > length)
		ran = length;
	if (stolen_ns > length - ran)
		stolen_ns = length - ran;
	account->ns[STATE_ON_CPU] += ran;
	account->ns[STATE_WAIT_CPU] += stolen_ns;
	account->ns[DETAIL_STOLEN] += stolen_ns;
	account->run_time_ns = run_time;
	account->cause = CAUSE_UNDECIDED;
	account_begin_interval(account, account->since_ns + ran + stolen_ns, state, detail,
			       run_delay);
}

/* The open off-CPU interval as if it ended at `now_ns`; `run_delay` includes the current wait. */
static inline struct off_cpu account_off_cpu(const struct account *account, __u64 now_ns,
					     __u64 run_delay)
{
	struct off_cpu off_cpu = {.from_ns = account->since_ns,
				  .to_ns = now_ns,
				  .state = account->state,
				  .detail = account->detail};
	__u64 length, waited;

	/* Clocks of two CPUs may differ a little: an interval is never negative. */
	if (off_cpu.to_ns < off_cpu.from_ns)
		off_cpu.to_ns = off_cpu.from_ns;
	length = off_cpu.to_ns - off_cpu.from_ns;
	waited = run_delay > account->run_delay_ns ? run_delay - account->run_delay_ns : 0;
	if (off_cpu.state == STATE_WAIT_CPU || waited > length)
		waited = length;
	off_cpu.woken_ns = off_cpu.to_ns - waited;
	return off_cpu;
}

/* The element of account.cause_ns for waits in `state`. */
static inline __u32 cause_slot(__u32 cause, __u32 state)
{
	return (cause & (LOCK_CAUSES - 1)) | (state == STATE_USER_LOCK ? LOCK_CAUSES : 0);
}

/* Adds to a sum of causes. The compiler may know the range of `slot`, and leave out the mask, by
 * which a verifier knows it. */
static inline void account_add_cause(struct account *account, __u64 slot, __u64 ns)
{
	asm volatile("" : "+r"(slot));
	account->cause_ns[slot & (CAUSE_SLOTS - 1)] += ns;
}

/* Ends waits that the thread did not continue. */
static inline void account_flush_pending(struct account *account)
{
	account_add_cause(account, account->pending_slot, account->pending_ns);
	account->pending_ns = 0;
}

/* Adds a blocked time in the account's state to the sums of causes. All else is in the account,
 * since the callers' stacks are full. */
static inline void account_cause(struct account *account, __u64 ns)
{
	__u32 slot = cause_slot(account->cause, account->state);

	if (account->state == STATE_STOPPED)
		return;
	/* What is pending was in the same state, or it is no part of this wait. */
	if ((slot ^ account->pending_slot) & LOCK_CAUSES)
		account_flush_pending(account);
	account->pending_ns += ns;
	account->pending_slot = slot;
	if (!account->continues)
		account_flush_pending(account);
	account->continues = 0;
}

/* The thread is on a CPU again; `run_time` is the scheduler's sum of its times on a CPU.
 *
 * If no program saw the thread leave (the kernel does not run a program that is running already),
 * the scheduler's sum is the time that it spent on a CPU since. The reason for the rest is not
 * known, and it counts as sleep. */
static inline __attribute__((always_inline)) struct off_cpu
account_switch_in(struct account *account, __u64 now_ns, __u64 run_delay, __u64 run_time)
{
	struct off_cpu off_cpu;

	if (account->state == STATE_ON_CPU)
		account_switch_out(account, now_ns, STATE_SLEEP, DETAIL_NONE, account->run_delay_ns,
				   run_time, 0);
	off_cpu = account_off_cpu(account, now_ns, run_delay);
	account->ns[TIME_SLOT(off_cpu.state)] += off_cpu.woken_ns - off_cpu.from_ns;
	if (off_cpu.woken_ns > off_cpu.from_ns)
		account_cause(account, off_cpu.woken_ns - off_cpu.from_ns);
	account->ns[STATE_WAIT_CPU] += off_cpu.to_ns - off_cpu.woken_ns;
	account->ns[TIME_SLOT(off_cpu.detail)] +=
		(off_cpu.state == STATE_WAIT_CPU ? off_cpu.to_ns : off_cpu.woken_ns) -
		off_cpu.from_ns;
	account_begin_interval(account, off_cpu.to_ns, STATE_ON_CPU, DETAIL_NONE, run_delay);
	account->run_time_ns = run_time;
	return off_cpu;
}

/* The thread is switched out, and no program saw its switch-in, which was at `arrival_ns`,
 * according to the scheduler. */
static inline struct off_cpu account_missed_switch_in(struct account *account, __u64 arrival_ns,
						      __u64 run_delay)
{
	return account_switch_in(account, arrival_ns, run_delay, account->run_time_ns);
}

/* Whether the states add up to the tracked time, and the causes to the blocked states. A copy that
 * was made while the account changed may not, and has to be made again. */
static inline int account_conserves_time(const struct account *account)
{
	__u64 sum = 0, caused = account->pending_ns, blocked = 0;

	for (__u32 state = 0; state < STATES; state++)
		sum += account->ns[state];
	for (__u32 state = STATE_TEXT_FAULT; state <= STATE_SLEEP; state++)
		blocked += account->ns[state];
	for (__u32 slot = 0; slot < CAUSE_SLOTS; slot++)
		caused += account->cause_ns[slot];
	return caused == blocked &&
	       sum == account->tracked_ns +
			      (account->tracking ? account->since_ns - account->begun_ns : 0);
}

/* Closes the open interval, whatever it is, of an account that this program has claimed; `run_time`
 * is the scheduler's sum of the thread's times on a CPU, and `stolen_ns` as in account_switch_out.
 * Time of a last interval on a CPU that is missing from this sum was a wait for the CPU. */
static inline __attribute__((always_inline)) struct off_cpu
account_end(struct account *account, __u64 now_ns, __u64 run_delay, __u64 run_time, __u64 stolen_ns)
{
	struct off_cpu none = {}, off_cpu;
	__u32 cause = account->cause;

	if (account->state == STATE_ON_CPU) {
		account_switch_out(account, now_ns, STATE_WAIT_CPU, DETAIL_NONE, run_delay,
				   run_time, stolen_ns);
		if (now_ns > account->since_ns)
			account->ns[STATE_WAIT_CPU] += now_ns - account->since_ns;
		account_begin_interval(account,
				       now_ns > account->since_ns ? now_ns : account->since_ns,
				       STATE_ON_CPU, DETAIL_NONE, run_delay);
		off_cpu = none;
	} else {
		if (cause == CAUSE_UNDECIDED)
			account->cause = CAUSE_NOT_ENDED;
		off_cpu = account_switch_in(account, now_ns, run_delay, account->run_time_ns);
		account->cause = cause;
	}
	account_flush_pending(account);
	account->tracked_ns += account->since_ns - account->begun_ns;
	return off_cpu;
}

/* The same, and ends tracking. */
static inline struct off_cpu account_close(struct account *account, __u64 now_ns, __u64 run_delay,
					   __u64 run_time, __u64 stolen_ns)
{
	struct off_cpu off_cpu = account_end(account, now_ns, run_delay, run_time, stolen_ns);

	account->tracking = NOT_TRACKED;
	return off_cpu;
}

#endif
