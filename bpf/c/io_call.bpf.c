/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tracing of I/O (-i): each system call that reads, writes, opens, closes or does something
 * else to a file, of followed processes, with its time and user stack.
 *
 * While these programs are attached, the kernel takes the slow way into and out of every system
 * call of every process. So they are loaded and attached for -i alone, and what is not traced is
 * recognised first: a call by its number, a process by what this CPU last saw.
 *
 * Exits and entries do not always pair:
 *
 * - A call that seccomp refuses only has an exit. It has failed, and took no time.
 * - rt_sigreturn(2) leaves with the registers of the code that a signal interrupted, and no number.
 * - A call that a signal interrupts leaves with a code that the program does not see (ERESTARTSYS
 *   and the like). Then one of three things happens:
 *
 *	    call leaves with ERESTARTSYS: sent, and kept in io_thread.interrupted
 *	       |                   |                          |
 *	 it is made again,    rt_sigreturn leaves      the handler jumps elsewhere,
 *	 from the same place  after the call, with    or the thread exits:
 *	       |              the result (EINTR)       nothing follows
 *	       |                   |
 *	       +-------------------+--> sent again, with the time of the first entry
 *
 *   Of the records of one thread with the same beginning, user space keeps the last one.
 *
 * Since Linux 7.2 a thread can be preempted inside these programs. Until it continues, the kernel
 * skips the program for all other threads of that CPU (`active` of a program). An interrupt that
 * came while interrupts were off is delivered inside the program, so this is common: with one CPU,
 * one call in ten was not seen. There each program is loaded twice. The second does what the first
 * did not, and is skipped itself only if two threads are preempted in both, which a context switch
 * then notices (calls_unseen).
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "io_stack.h"
#include "io_trace.h"
#include "record.h"

char LICENSE[] SEC("license") = "GPL";

/* Set by bpf/src/load.rs. */
const volatile struct traced_call traced_calls[TRACED_CALLS];

struct io_record_scratches kc_io_scratch SEC(".maps");

struct io_threads kc_io_threads SEC(".maps");

/* Results with which a call leaves that the kernel may make again (include/linux/errno.h). */
static __always_inline bool is_interrupted(long result)
{
	enum {
		ERESTARTSYS = 512,
		ERESTARTNOINTR = 513,
		ERESTARTNOHAND = 514,
		ERESTART_RESTARTBLOCK = 516,
	};

	return result == -ERESTARTSYS || result == -ERESTARTNOINTR || result == -ERESTARTNOHAND ||
	       result == -ERESTART_RESTARTBLOCK;
}

/* Whether SIGSYS is pending: seccomp has refused the system call of a thread and sent the
 * signal. */
static __always_inline bool has_pending_sigsys(const struct task_struct *task)
{
	const int SIGSYS = 31;

	return task->pending.signal.sig[0] >> (SIGSYS - 1) & 1;
}

/* Keeps a call that was interrupted. Calls that began further down the stack, or in the same place,
 * were left by a jump. */
static __always_inline void keep_interrupted(struct io_thread *thread, const struct pt_regs *regs,
					     __u64 entered_ns, __u32 call_index)
{
	__u64 ip = user_ip(regs), sp = user_sp(regs);
	__u32 count = 0;

	for (__u32 index = 0; index < MAX_INTERRUPTED - 1; index++) {
		if (index >= thread->interrupted_count || thread->interrupted[index].sp <= sp)
			break;
		count = index + 1;
	}
	thread->interrupted[count].ip = ip;
	thread->interrupted[count].sp = sp;
	thread->interrupted[count].entered_ns = entered_ns;
	thread->interrupted[count].call_index = call_index;
	thread->interrupted_count = count + 1;
}

/* Takes the interrupted call that was made from where a thread is. Returns its index in
 * traced_calls and sets the time at which the thread entered it, or returns UNTRACED_CALL. */
static __always_inline __u32 take_interrupted(struct io_thread *thread, const struct pt_regs *regs)
{
	__u64 ip = user_ip(regs), sp = user_sp(regs);

	for (__u32 index = 0; index < MAX_INTERRUPTED; index++) {
		const struct interrupted_call *call = &thread->interrupted[index];

		if (index >= thread->interrupted_count)
			break;
		if (call->ip != ip || call->sp != sp)
			continue;
		thread->interrupted_count = index;
		thread->entered_ns = call->entered_ns;
		return call->call_index;
	}
	return UNTRACED_CALL;
}

/* Notes whether a program runs on this CPU, where a thread may be preempted in it. */
static __always_inline void set_inside(enum call_program program, __u8 inside)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats;

	if (!calls_are_preempted)
		return;
	stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	if (stats)
		((__u8 *)&stats->in_programs)[program] = inside;
}

/* Notes that a thread enters a traced call; the second program, where the first did not. */
static __always_inline void enter_call(__u64 *ctx, bool second)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct cpu_stats *stats = traced_on(task, traced_call_index(task, ctx[1]),
					    bpf_get_smp_processor_id());
	struct io_thread *thread;

	if (!stats || !is_process_traced(stats, task))
		return;
	thread = bpf_task_storage_get(&kc_io_threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread || (second && thread->entered_ns))
		return;
	thread->entered_ns = bpf_ktime_get_ns();
	thread->handled = 0;
	if (thread->interrupted_count)
		take_interrupted(thread, (const struct pt_regs *)ctx[0]);
}

SEC("tp_btf/sys_enter")
int kc_sys_enter(__u64 *ctx)
{
	set_inside(CALL_ENTER, 1);
	enter_call(ctx, false);
	set_inside(CALL_ENTER, 0);
	return 0;
}

SEC("tp_btf/sys_enter")
int kc_sys_enter_again(__u64 *ctx)
{
	set_inside(CALL_ENTER_AGAIN, 1);
	enter_call(ctx, true);
	set_inside(CALL_ENTER_AGAIN, 0);
	return 0;
}

/* The messages of a call, whose number it returned: MAX_MESSAGES at most. */
#define MAX_MESSAGES 1024

struct message_sum {
	__u64 length_at;
	__u64 distance;
	__u64 bytes;
};

static long add_message(__u64 index, struct message_sum *sum)
{
	__u32 length;

	(void)index;
	if (bpf_probe_read_user(&length, sizeof(length), (void *)sum->length_at))
		return 1;
	sum->bytes += length;
	sum->length_at += sum->distance;
	return 0;
}

/* Bytes of the messages of a call: each is a struct mmsghdr, at whose end the kernel has put its
 * length. */
static __always_inline __u64 message_bytes(const struct io_call_record *record, const void *from)
{
	struct message_sum sum = {
		.length_at = (__u64)from + (record->table == CALLS_COMPAT ? 28 : 56),
		.distance = record->table == CALLS_COMPAT ? 32 : 64,
	};
	__u64 count = record->result;

	if (record->result > 0)
		bpf_loop(count < MAX_MESSAGES ? count : MAX_MESSAGES, add_message, &sum, 0);
	return sum.bytes;
}

/* Reads what goes with a call into the record. Returns how many bytes. */
static __always_inline __u32 read_extra(struct io_record_scratch *out, __u8 kind, __u8 argument)
{
	const void *from = (const void *)out->record.arguments[argument & (IO_ARGUMENTS - 1)];
	__u64 length = out->record.arguments[(argument + 1) & (IO_ARGUMENTS - 1)];
	__u64 bytes;
	long got;

	switch (kind) {
	case EXTRA_PATH:
		got = bpf_probe_read_user_str(out->extra, MAX_IO_EXTRA_BYTES, from);
		/* A path that was cut has no NUL of its own. */
		return got <= 0 ? 0 : got == MAX_IO_EXTRA_BYTES ? MAX_IO_EXTRA_BYTES : got - 1;
	case EXTRA_DESCRIPTORS:
		return out->record.result || bpf_probe_read_user(out->extra, 8, from) ? 0 : 8;
	case EXTRA_ADDRESS:
		length = length < 110 ? length : 110;
		return bpf_probe_read_user(out->extra, length & 127, from) ? 0 : length & 127;
	case EXTRA_PEER_ADDRESS:
		if (!from || out->record.result < 0)
			return 0;
		if (!bpf_probe_read_user(out->extra, 28, from))
			return 28;
		return bpf_probe_read_user(out->extra, 16, from) ? 0 : 16;
	case EXTRA_MESSAGE_BYTES:
		bytes = message_bytes(&out->record, from);
		__builtin_memcpy(out->extra, &bytes, sizeof(bytes));
		return sizeof(bytes);
	}
	return 0;
}

/* Sends a call that has ended. */
static __always_inline void send_io_call(struct cpu_stats *stats, struct task_struct *task,
					 struct io_record_scratch *out, struct io_thread *thread,
					 struct pt_regs *regs, long result, __u32 call_index,
					 __u32 cpu)
{
	__u64 begin_ns = thread ? thread->entered_ns : 0, now_ns = bpf_ktime_get_ns();
	__u32 bytes, words;

	describe(&out->record.header, task, now_ns, cpu, RECORD_IO_CALL, 0);
	out->record.begin_ns = begin_ns;
	out->record.result = result;
	system_call_arguments(task, regs, out->record.arguments);
	out->record.files = files_of(task);
	out->record.call = call_index & (IO_CALLS - 1);
	out->record.table = call_index / IO_CALLS;
	call_index &= TRACED_CALLS - 1;
	bytes = read_extra(out, traced_calls[call_index].extra,
			   traced_calls[call_index].extra_argument);
	words = (bytes + 7) / 8;
	out->record.extra_bytes = bytes;
	out->record.header.frames = words;
	out->record.call_site = 0;
	if (thread) {
		thread->entered_ns = 0;
		capture_io_stack(task, thread, regs, &out->record, cpu);
	}
	if (!send(cpu, out, IO_RECORD_LENGTH(sizeof(out->record) + 8 * words)))
		stats->io_calls_lost++;
}

/* Index in traced_calls of the call that a signal's handler has returned to, whose result is in the
 * registers; UNTRACED_CALL if it is not traced. */
static __always_inline __u32 call_before_handler(struct io_thread *thread,
						 const struct pt_regs *regs)
{
	if (!thread || !thread->interrupted_count)
		return UNTRACED_CALL;
	return take_interrupted(thread, regs);
}

static __always_inline void end_io_call(struct cpu_stats *stats, struct task_struct *task,
					struct pt_regs *regs, long result, __u32 call_index,
					struct io_thread *thread, __u32 cpu)
{
	struct io_record_scratch *out = claim_io_record(stats);

	if (!out)
		return;
	if (thread && is_interrupted(result))
		keep_interrupted(thread, regs, thread->entered_ns, call_index);
	send_io_call(stats, task, out, thread, regs, result, call_index, cpu);
	out->busy = 0;
}

/* Sends the traced call that a thread leaves; the second program, where the first did not. */
static __always_inline void leave_call(__u64 *ctx, bool second)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	long number = system_call_number(regs), result = ctx[1];
	__u32 call_index = traced_call_index(task, number);
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats;
	struct io_thread *thread;

	stats = number == NO_SYSTEM_CALL ? traced_process_on(task, cpu)
					 : traced_on(task, call_index, cpu);
	if (!stats)
		return;
	thread = bpf_task_storage_get(&kc_io_threads, task, 0, 0);
	if (second) {
		if (!thread || thread->handled) {
			if (thread)
				thread->handled = 0;
			return;
		}
	} else if (thread) {
		thread->handled = 1;
	}
	if (number == NO_SYSTEM_CALL) {
		call_index = call_before_handler(thread, regs);
		if (call_index == UNTRACED_CALL)
			return;
		/* The registers of a 32-bit program are not extended by their sign. */
		if (is_compat(task))
			result = (__s32)result;
	}
	if (!(thread && thread->entered_ns)) {
		/* The beginning may not have been seen. */
		if (!is_process_traced(stats, task))
			return;
		/* Or seccomp has refused it and sent SIGSYS: the result is the number of the call.
		 */
		if (has_pending_sigsys(task))
			result = -1;
	}
	WITH_INTERRUPTS_OFF(
		end_io_call(stats, task, regs, result, call_index, thread, cpu));
}

SEC("tp_btf/sys_exit")
int kc_sys_exit(__u64 *ctx)
{
	set_inside(CALL_EXIT, 1);
	leave_call(ctx, false);
	set_inside(CALL_EXIT, 0);
	return 0;
}

SEC("tp_btf/sys_exit")
int kc_sys_exit_again(__u64 *ctx)
{
	set_inside(CALL_EXIT_AGAIN, 1);
	leave_call(ctx, true);
	set_inside(CALL_EXIT_AGAIN, 0);
	return 0;
}
