/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The account of one thread: which state it is in, since when, and for how long it has been in
 * each. Pure: time comes in as an argument, so this compiles natively and is tested there
 * (bpf/src/account.rs).
 *
 * A thread is on a CPU or off it. Off it, it is blocked for a reason that was known when it left,
 * and then, from its wake-up on, waits for a CPU; one that was preempted waits from the beginning.
 * The wake-up needs no hook: the scheduler itself sums up how long the thread has waited
 * (run_delay), so at its return the growth of that sum is the wait and the rest is the block.
 *
 * Every interval is closed by the event that ends it and none is dropped: the times of a thread sum
 * up to the time that it was watched.
 */
#ifndef KCOLLECT_ACCOUNT_H
#define KCOLLECT_ACCOUNT_H

/* The states of a thread, as numbered in the experiment. The three of a thread on a CPU are told
 * apart by ticks; here they are one time, under STATE_USER. */
enum state {
	STATE_USER = 0,
	STATE_SYSTEM = 1,
	STATE_TRAP = 2,
	STATE_TEXT_FAULT = 3,
	STATE_DATA_FAULT = 4,
	STATE_KERNEL_FAULT = 5,
	STATE_USER_LOCK = 6,
	STATE_SLEEP = 7,
	STATE_WAIT_CPU = 8,
	STATE_STOPPED = 9,
	STATES = 10,
};

#define STATE_ON_CPU STATE_USER

/* What more is known of some of that time: sums of their own, beside those of the states and
 * numbered after them. */
enum detail {
	DETAIL_BLOCK_IO = 10, /* of the time blocked, in whatever state: the scheduler knows it as a
				 wait for block I/O */
	DETAIL_PREEMPTED =
		11, /* of WAIT_CPU: the CPU was taken away; the rest is from a wake-up on */
	DETAIL_THROTTLED = 12, /* of WAIT_CPU: taken away because a cgroup's quota was used up */
	DETAIL_NONE = 15,      /* a sum that nobody reads */
	TIMES = 13,
};

/* Room for a power of two, so that the verifier needs no more than a mask to see an index within
 * it. */
#define STATE_SLOTS	  16
#define STATE_SLOT(state) ((state) & (STATE_SLOTS - 1))

/* In the order of use: a change of thread touches the first two cache lines. */
struct account {
	__u64 since;	 /* when the open interval began, ns of the scheduler's clock */
	__u64 run_delay; /* the scheduler's sum of waits at that time, ns */
	__u64 run_time;	 /* the scheduler's sum of times on a CPU at the last return, ns */
	__u32 state;	 /* of the open interval: enum state */
	__u32 detail;	 /* of the same: enum detail */
	__u32 watched;	 /* enum watched */
	__u32 zero;
	__u64 ns[STATE_SLOTS]; /* by enum state, and by enum detail */
	__u64 entered;	       /* when watching began */
	__u64 lived;	       /* sum of earlier times of watching, ns */
};

/* Who enters or closes an account that others may want to change at that moment claims it first. */
enum watched {
	WATCHED_NOT = 0,
	WATCHED_CLAIMED = 1,
	WATCHED = 2,
};

/* What a closed interval off the CPU was made of: [from, woken) in `state`, [woken, to) waiting. */
struct absence {
	__u64 from, woken, to;
	__u32 state;
	__u32 detail;
};

static inline void account_open(struct account *account, __u64 now, __u32 state, __u32 detail,
				__u64 run_delay)
{
	account->since = now;
	account->state = state;
	account->detail = detail;
	account->run_delay = run_delay;
}

/* Watch a thread from `now` on, which is in `state`. Its earlier times of watching count on. */
static inline void account_enter(struct account *account, __u64 now, __u32 state, __u32 detail,
				 __u64 run_delay, __u64 run_time)
{
	account_open(account, now, state, detail, run_delay);
	account->run_time = run_time;
	account->entered = now;
	account->watched = WATCHED;
}

/* The thread leaves its CPU, into `state`; `run_time` is the scheduler's sum of its times on one.
 * That sum is the judge: what the CPU did between the thread's end and the switch (balancing,
 * interrupts, a hypervisor's other guests) is not the thread's, and counts to the state that it
 * goes into. */
static inline void account_leave(struct account *account, __u64 now, __u32 state, __u32 detail,
				 __u64 run_delay, __u64 run_time)
{
	__u64 ran = run_time > account->run_time ? run_time - account->run_time : 0;
	__u64 length = now > account->since ? now - account->since : 0;

	if (ran > length)
		ran = length;
	account->ns[STATE_ON_CPU] += ran;
	account->run_time = run_time;
	account_open(account, account->since + ran, state, detail, run_delay);
}

/* What the open interval off the CPU is made of if it ends `now`; `run_delay` includes the wait
 * that is going on. */
static inline struct absence account_absence(const struct account *account, __u64 now,
					     __u64 run_delay)
{
	struct absence absence = {.from = account->since,
				  .to = now,
				  .state = account->state,
				  .detail = account->detail};
	__u64 length, waited;

	/* Clocks of two CPUs may differ by a hair: an interval is never negative. */
	if (absence.to < absence.from)
		absence.to = absence.from;
	length = absence.to - absence.from;
	waited = run_delay > account->run_delay ? run_delay - account->run_delay : 0;
	if (absence.state == STATE_WAIT_CPU || waited > length)
		waited = length;
	absence.woken = absence.to - waited;
	return absence;
}

/* The thread is on a CPU again; `run_time` is the scheduler's sum of its times on one.
 *
 * Did it never leave, as far as we saw? A kernel may keep a program from seeing an event (it does
 * so when the program is running already). Then the scheduler's own sum tells how much of the time
 * since was spent on a CPU; why it was away for the rest is not known, and it counts as sleep. */
static inline struct absence account_return(struct account *account, __u64 now, __u64 run_delay,
					    __u64 run_time)
{
	struct absence absence;

	if (account->state == STATE_ON_CPU)
		account_leave(account, now, STATE_SLEEP, DETAIL_NONE, account->run_delay, run_time);
	absence = account_absence(account, now, run_delay);
	account->ns[STATE_SLOT(absence.state)] += absence.woken - absence.from;
	account->ns[STATE_WAIT_CPU] += absence.to - absence.woken;
	account->ns[STATE_SLOT(absence.detail)] +=
		(absence.state == STATE_WAIT_CPU ? absence.to : absence.woken) - absence.from;
	account_open(account, absence.to, STATE_ON_CPU, DETAIL_NONE, run_delay);
	account->run_time = run_time;
	return absence;
}

/* The thread is about to leave a CPU, and as far as we saw it had never come to one: it came at
 * `arrival`, as the scheduler has it. */
static inline struct absence account_repair(struct account *account, __u64 arrival, __u64 run_delay)
{
	return account_return(account, arrival, run_delay, account->run_time);
}

/* Does the account conserve time? One that is read while it changes may not, and is to be read
 * again. */
static inline int account_is_whole(const struct account *account)
{
	__u64 sum = 0;

	for (__u32 state = 0; state < STATES; state++)
		sum += account->ns[state];
	return sum == account->lived + (account->watched ? account->since - account->entered : 0);
}

/* What the scheduler's sum says of a thread that is running and goes on: it is behind, the clock is
 * not. */
#define RUN_TIME_BEHIND (~0ULL)

/* Closes the open interval, whatever it is, and watches no more; `run_time` is the scheduler's sum
 * of the thread's times on a CPU. What the CPU was not the thread's in its last interval it waited
 * for. */
static inline struct absence account_close(struct account *account, __u64 now, __u64 run_delay,
					   __u64 run_time)
{
	struct absence none = {}, absence;

	if (account->state == STATE_ON_CPU) {
		account_leave(account, now, STATE_WAIT_CPU, DETAIL_NONE, run_delay, run_time);
		if (now > account->since)
			account->ns[STATE_WAIT_CPU] += now - account->since;
		account_open(account, now > account->since ? now : account->since, STATE_ON_CPU,
			     DETAIL_NONE, run_delay);
		absence = none;
	} else {
		absence = account_return(account, now, run_delay, account->run_time);
	}
	account->lived += account->since - account->entered;
	account->watched = WATCHED_NOT;
	return absence;
}

#endif
