/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Why a wait ends, where the waiting thread's own state (cause.h) does not say it: from what wakes
 * the thread, and what had set that going. The rule is the second half of the table of
 * docs/waits.md; its lines are named by their numbers there.
 *
 * `kc_waking` runs at each wake-up, on the CPU and in the context that wakes: in the waker, or in
 * an interrupt on top of any thread. It is attached only where wake-ups are watched (-W).
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "arch.h"
#include "cause.h"
#include "clock.h"
#include "record.h"
#include "ring.h"
#include "thread.h"

char LICENSE[] SEC("license") = "GPL";

/* Distances from a CPU's run queue to other variables of the CPU, modulo 2^64. 0: this kernel has
 * no such variable, or keeps the count of interrupts in the thread. Set by bpf/src/causes.rs. */
const volatile __u64 preempt_count_from_rq;
const volatile __u64 hrtimers_from_rq;
const volatile __u64 timers_from_rq;

/* Functions of timers that end a wait by its time-out. */
const volatile __u64 hrtimer_wakeup_address;
const volatile __u64 process_timeout_address;

/* include/linux/preempt.h */
#define NMI_OR_INTERRUPT 0xff0000
#define SERVING_SOFTIRQ	 0x100

#define HRTIMER_BASES 8
#define TIMER_BASES   3

/* include/linux/socket.h, include/uapi/linux/in.h, and types of files and of sockets */
#define AF_UNIX	     1
#define AF_INET	     2
#define AF_INET6     10
#define SOCK_STREAM  1
#define IPPROTO_TCP  6
#define FILE_TYPE    0170000
#define FILE_IS_SOCKET 0140000

/* The system call, and where in its page the stack ends: how deep it is differs between threads. */
#define PLACE_OF_PROGRAM 0xffff000000000fff

/* In inet_bind_bucket.fastreuse, as bits. */
#define CHOSEN_BY_CONNECT 0xff

/* How sure an idle place is. See learn_place(). */
#define SURE_STEP     4
#define KNOWN_SCORE   8
#define MAX_SCORE     32
#define OTHER_KNOWN   6
#define OTHER_MAX     8
#define FORGOTTEN_AFTER 64

/* A field of one of the kernel's structures at any address, or 0 if it can't be read. It is read by
 * a load that may fail, where the kernel has such loads: a call takes ten times as long. */
#define READ(type, address, field)                                                                 \
	(bpf_ksym_exists(bpf_rdonly_cast)                                                          \
		 ? ((const type *)bpf_rdonly_cast((void *)(address),                               \
						  bpf_core_type_id_kernel(type)))                   \
			   ->field                                                                 \
		 : BPF_CORE_READ((const type *)(address), field))

/* A word at an address, likewise: a structure of words that lies there for this. */
static __always_inline __u64 read_word(__u64 address)
{
	const __u64 before = bpf_core_field_offset(struct maple_range_64, pivot);

	address -= before;
	return READ(struct maple_range_64, address, pivot[0]);
}

/* The kernel's count of what this CPU is in the middle of. */
static __always_inline __u32 preempt_count(struct task_struct *current, __u64 run_queue)
{
	if (preempt_count_from_rq)
		return read_word(run_queue + preempt_count_from_rq);
#if defined(__TARGET_ARCH_arm64)
	return BPF_CORE_READ((struct task_struct___counting_thread *)current,
			     thread_info.preempt.count);
#else
	(void)current;
	return 0;
#endif
}

/* The function of the timer that this CPU runs at this moment, or 0. */
static __noinline __u64 running_timer(__u64 run_queue)
{
	__u64 base, timer;

	if (hrtimers_from_rq) {
		base = run_queue + hrtimers_from_rq;
		base += bpf_core_field_offset(struct hrtimer_cpu_base, clock_base);
		base += bpf_core_field_offset(struct hrtimer_clock_base, running);
		for (__u32 index = 0; index < HRTIMER_BASES; index++) {
			timer = read_word(base);
			if (timer)
				return read_word(timer +
						 bpf_core_field_offset(struct hrtimer, function));
			base += bpf_core_type_size(struct hrtimer_clock_base);
		}
	}
	if (timers_from_rq) {
		base = run_queue + timers_from_rq +
		       bpf_core_field_offset(struct timer_base, running_timer);
		for (__u32 index = 0; index < TIMER_BASES; index++) {
			timer = read_word(base);
			if (timer)
				return read_word(timer + bpf_core_field_offset(struct timer_list,
									       function));
			base += bpf_core_type_size(struct timer_base);
		}
	}
	return 0;
}

/* Whether what a thread works on in its system call is a connection that it accepted (1), one that
 * it asked for (-1), or neither. The port of a TCP socket was chosen by connect() if the bucket of
 * the port is not to be used again; a Unix socket that listened has an address, and one that
 * connected has a peer with one. */
static __noinline int side_of_connection(struct task_struct *current, __u64 descriptor)
{
	const struct fdtable *table;
	const struct files_struct *files = current->files;
	const struct inode *inode;
	const struct sock *sk, *peer;
	const struct inet_bind_bucket *bucket;
	const void *socket;
	__u64 file;
	__u16 family;

	if (!files)
		return 0;
	table = files->fdt;
	if (descriptor >= table->max_fds)
		return 0;
	file = read_word((__u64)table->fd + descriptor * sizeof(void *));
	if (!file)
		return 0;
	inode = READ(struct file, file, f_inode);
	if ((READ(struct inode, inode, i_mode) & FILE_TYPE) != FILE_IS_SOCKET)
		return 0;
	socket = READ(struct file, file, private_data);
	sk = READ(struct socket, socket, sk);
	family = READ(struct sock, sk, __sk_common.skc_family);
	if (family == AF_UNIX) {
		peer = READ(struct unix_sock, sk, peer);
		return !!READ(struct unix_sock, sk, addr) -
		       (peer && READ(struct unix_sock, peer, addr));
	}
	if ((family == AF_INET || family == AF_INET6) &&
	    READ(struct sock, sk, sk_type) == SOCK_STREAM &&
	    READ(struct sock, sk, sk_protocol) == IPPROTO_TCP) {
		bucket = READ(struct inet_connection_sock, sk, icsk_bind_hash);
		return bucket && READ(struct inet_bind_bucket, bucket, fastreuse) == CHOSEN_BY_CONNECT ? -1 : 1;
	}
	return 0;
}

/* A history begins with a thread, or an interrupt (0), and continues with what had set that
 * going. */
static __always_inline void begin_history(struct wake *wake, const struct wake *by, __u32 tid,
					  __u64 now_ns)
{
	const struct hop none = {};

	for (__u32 hop = HOPS - 1; hop > 0; hop--)
		wake->history[hop] = by ? by->history[hop - 1] : none;
	wake->history[0] = (struct hop){.tid = tid, .at = (__u32)(now_ns >> 10) | 1};
}

static __always_inline bool in_history(const struct wake *wake, __u32 tid)
{
	return wake->history[0].tid == tid || wake->history[1].tid == tid ||
	       wake->history[2].tid == tid || wake->history[3].tid == tid;
}

/* Whether all that had set a thread going is younger than `since_ns`. */
static __always_inline bool is_younger(const struct wake *wake, __u64 since_ns)
{
	__u32 since = since_ns >> 10;
	bool younger = wake->history[0].at;

	for (__u32 hop = 0; hop < HOPS; hop++)
		if (wake->history[hop].at && (__s32)(wake->history[hop].at - since) < 0)
			younger = false;
	return younger;
}

static __always_inline bool knows_idle_place(const struct wake *wake)
{
	return wake->idle_place && wake->idle_score >= KNOWN_SCORE;
}

/* A thread takes work where others wake it that it had not set going. Where those are much fewer
 * than others, it waits for answers there, or competes. */
static __always_inline void learn_place(struct wake *wake, bool sure, bool asked)
{
	if (wake->place == wake->idle_place) {
		if (sure && wake->idle_score < MAX_SCORE)
			wake->idle_score += SURE_STEP;
		else if (asked && wake->idle_score > 0)
			wake->idle_score--;
	} else if (sure && wake->idle_score >= KNOWN_SCORE) {
		/* It may have moved: code that was interpreted has another stack once it is
		 * compiled. */
		wake->idle_score -= SURE_STEP;
	} else if (sure) {
		wake->idle_place = wake->place;
		wake->idle_score = SURE_STEP;
		wake->elsewhere = 0;
	}
}

/* A place is forgotten if the thread does not come back to it. */
static __always_inline void note_elsewhere(struct wake *wake)
{
	wake->elsewhere++;
	if (wake->elsewhere > FORGOTTEN_AFTER) {
		wake->idle_place = 0;
		wake->idle_score = 0;
		wake->elsewhere = 0;
	}
}

/* Whether a thread that waits elsewhere does so mostly when it owes nobody an answer: threads of a
 * runtime wait for the network in one place and for each other in another. */
static __always_inline bool is_other_idle_place(struct wake *wake)
{
	if (wake->place != wake->other_place) {
		wake->other_place = wake->place;
		wake->other_score = 0;
	}
	if (wake->owes_answer && wake->other_score > -OTHER_MAX)
		wake->other_score--;
	if (!wake->owes_answer && wake->other_score < OTHER_MAX)
		wake->other_score++;
	return wake->other_score >= OTHER_KNOWN;
}

/* Whether threads of one program wait in one place of it, however deep their stacks are. */
static __always_inline bool is_same_place(__u64 one, __u64 other)
{
	return !((one ^ other) & PLACE_OF_PROGRAM);
}

/* Lines 12 to 18: a thread wakes another one. */
static __always_inline __u32 by_thread(struct task_struct *task, struct thread *thread,
				       struct task_struct *current, struct wake *waker,
				       __u64 descriptor, long call, __u64 now_ns)
{
	bool same_process = current->tgid == task->tgid;
	struct wake *wake = &thread->wake;
	bool blocked = thread->account.state != STATE_ON_CPU &&
		       thread->account.state != STATE_WAIT_CPU;
	__u64 since_ns = thread->account.since_ns;
	/* A child works for its parent, and a thread for the one that made it, while it lives. */
	bool asked = waker->maker == task->pid || current->real_parent == task ||
		     in_history(waker, task->pid);
	bool busy = blocked && waker->given_ns < since_ns;
	/* Threads that wait in the same place of one program compete: none gives the other work. */
	bool competes = same_process && (is_same_place(wake->place, waker->place) ||
					 is_same_place(wake->place, waker->earlier_place));
	bool sure = blocked && !asked && !competes && is_younger(waker, since_ns);
	__u32 cause = CAUSE_NEW_WORK;
	bool continues_work = false; /* which something else had set going */
	int side = 0;

	if (call >= 0 && !is_futex(current, call))
		side = side_of_connection(current, descriptor);
	if (blocked && !side)
		learn_place(wake, sure, asked);
	if (side < 0) {
		if (blocked) {
			wake->idle_place = wake->place;
			wake->idle_score = MAX_SCORE;
		}
		wake->elsewhere = 0;
		wake->owes_answer = wake->asked_by_socket = 1;
	} else if (side > 0 && (asked || busy)) {
		cause = CAUSE_ANSWER;
	} else if (blocked && knows_idle_place(wake)) {
		if (wake->place == wake->idle_place) {
			wake->elsewhere = 0;
			if (!wake->asked_by_socket)
				wake->owes_answer = 1;
		} else if (!is_other_idle_place(wake)) {
			cause = CAUSE_MIDDLE;
			continues_work = true;
			note_elsewhere(wake);
		}
	} else if (blocked && competes && (asked || wake->place == wake->step_place)) {
		cause = CAUSE_MIDDLE;
	} else if (asked) {
		/* The main thread gives work, and so does a parent. */
		bool gives = same_process ? current->pid == current->tgid
					  : task->real_parent->pid == current->tgid;

		/* Of two that set each other going it is not known which one asks, unless one of
		 * them takes work somewhere. */
		if (!gives)
			cause = knows_idle_place(waker) || waker->maker == task->pid ||
						current->real_parent == task
					? CAUSE_ANSWER
					: CAUSE_UNDECIDED;
	}
	if (cause == CAUSE_ANSWER)
		waker->owes_answer = 0;
	if (!continues_work)
		begin_history(wake, waker, current->pid, now_ns);
	if (cause == CAUSE_NEW_WORK)
		wake->given_ns = now_ns;
	return cause;
}

/* Lines 8 and 9: an interrupt wakes a thread. `own`: the thread's own state says why it waits. */
static __always_inline void by_interrupt(struct wake *wake, __u64 timer, bool own, __u64 now_ns)
{
	bool time_out = !own && timer &&
			(timer == hrtimer_wakeup_address || timer == process_timeout_address);

	wake->waker = 0;
	wake->cause = timer ? CAUSE_TIMER : CAUSE_OUTSIDE;
	wake->continues = time_out;
	wake->by_time_out = 0;
	/* In the middle of work it is neither a sleep of its own, nor the end of what it was
	 * given. */
	if (knows_idle_place(wake) && wake->place != wake->idle_place) {
		note_elsewhere(wake);
		return;
	}
	if (time_out) {
		wake->by_time_out = 1;
		return;
	}
	begin_history(wake, 0, 0, now_ns);
	wake->given_ns = now_ns;
}

/* Whether a thread is blocked and its own state says why. */
static __always_inline bool says_itself(const struct account *account)
{
	return account->cause != CAUSE_UNDECIDED && account->state != STATE_ON_CPU;
}

static __always_inline int note_waking(struct task_struct *task)
{
	struct task_struct *current = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id(), count;
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct thread *thread, *other;
	struct pt_regs *regs;
	struct wake *wake, *waker;
	__u64 descriptor = 0, timer = 0, now_ns, run_queue;
	bool interrupt = false;
	__u8 facts = 0;
	int side;
	long call = NO_SYSTEM_CALL;

	if (!stats || !stats->run_queue || !recording)
		return 0;
	regs = current->flags & PF_KTHREAD ? 0 : (struct pt_regs *)bpf_task_pt_regs(current);
	if (regs) {
		call = system_call_number(regs);
		facts = call_facts(current, call);
	}
	count = preempt_count(current, stats->run_queue);
	if (count & (NMI_OR_INTERRUPT | SERVING_SOFTIRQ)) {
		timer = running_timer(stats->run_queue);
		/* A thread that sends to this machine itself serves the softirq that delivers
		 * it. */
		interrupt = timer || count & NMI_OR_INTERRUPT || call < 0 ||
			    (facts & ~CALL_READS) == CAUSE_UNDECIDED;
	}
	if (!interrupt && current == task)
		return 0;
	thread = bpf_task_storage_get(&kc_threads, task, 0, create_storage);
	if (!thread)
		return 0;
	wake = &thread->wake;
	/* The run queue's clock may be as old as the last switch here, which is enough for the
	 * order of what threads do. In an interrupt on an idle CPU it may be much older. */
	run_queue = stats->run_queue;
	now_ns = interrupt ? bpf_ktime_get_ns() + any_offset_ns
			   : READ(struct rq, run_queue, clock);
	wake->woken_ns = now_ns;
	if (interrupt || current->flags & PF_KTHREAD) {
		by_interrupt(wake, timer, says_itself(&thread->account), now_ns);
		return 0;
	}
	wake->continues = 0;
	wake->by_time_out = 0;
	wake->waker = current->pid;
	other = bpf_task_storage_get(&kc_threads, current, 0, create_storage);
	if (!other)
		return 0;
	waker = &other->wake;
	waker->woke_others = 1;
	/* It did not continue to wait: the time-out set it going. */
	if (waker->by_time_out) {
		waker->by_time_out = 0;
		waker->given_ns = waker->woken_ns;
		begin_history(waker, 0, 0, waker->woken_ns);
	}
	if (regs)
		descriptor = first_argument(regs);
	/* Line 10. Who reads a request from a socket also wakes the one that waits for the answer,
	 * and continues to wait. */
	if (facts & CALL_READS) {
		side = side_of_connection(current, descriptor);
		wake->cause = side > 0	 ? CAUSE_ANSWER
			      : side < 0 ? CAUSE_NEW_WORK
					 : CAUSE_WRITE;
		wake->continues = 1;
		return 0;
	}
	/* Line 11. */
	if (current->flags & PF_EXITING && thread->account.state == STATE_USER_LOCK) {
		wake->cause = CAUSE_THREAD_END;
		return 0;
	}
	if (says_itself(&thread->account))
		return 0;
	wake->cause = by_thread(task, thread, current, waker, descriptor, call, now_ns);
	return 0;
}

SEC("tp_btf/sched_waking")
int kc_waking(__u64 *ctx)
{
	return note_waking((void *)ctx[0]);
}

/* A new thread continues the history of the one that made it. */
SEC("tp_btf/sched_wakeup_new")
int kc_waking_new(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0], *current = bpf_get_current_task_btf();
	struct thread *thread, *maker;

	if (!recording)
		return 0;
	thread = bpf_task_storage_get(&kc_threads, task, 0, create_storage);
	maker = bpf_task_storage_get(&kc_threads, current, 0, 0);
	if (!thread)
		return 0;
	thread->wake.maker = current->pid;
	if (maker) {
		begin_history(&thread->wake, &maker->wake, current->pid,
			      bpf_ktime_get_ns() + any_offset_ns);
		maker->wake.woke_others = 1;
	}
	return 0;
}
