/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tracing of I/O (-i): each system call that reads, writes, opens, closes or does something
 * else to a file, of followed processes, with its time and user stack.
 *
 * While these programs are attached, the kernel takes the slow way into and out of every system
 * call of every process. So they are loaded and attached for -i alone, and what is not traced is
 * recognised first: a call by its number, a process by what this CPU last saw.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "clock.h"
#include "io_stack.h"
#include "io_trace.h"
#include "record.h"
#include "user_return.h"

char LICENSE[] SEC("license") = "GPL";

/* Set by bpf/src/load.rs. */
const volatile struct traced_call traced_calls[TRACED_CALLS];

struct io_record_scratches kc_io_scratch SEC(".maps");

struct io_stack_scratches kc_io_stack SEC(".maps");

struct io_threads kc_io_threads SEC(".maps");

/* Declared in io_stack.h. */
__attribute__((noinline)) int kc_note_step(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);
	__u32 zero = 0;
	struct io_stack_scratch *scratch = bpf_map_lookup_elem(&kc_io_stack, &zero);

	if (out && scratch)
		note_step(out, scratch);
	return 0;
}

SEC("tp_btf/sys_enter")
int kc_sys_enter(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct cpu_stats *stats = traced_on(task, traced_call_index(task, ctx[1]),
					    bpf_get_smp_processor_id());
	struct io_thread *thread;

	if (!stats || !is_process_traced(stats, task))
		return 0;
	thread = bpf_task_storage_get(&kc_io_threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (thread)
		thread->entered_ns = bpf_ktime_get_ns();
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

/* Returns the bytes of the messages of a call: each is a struct mmsghdr, at whose end the kernel
 * has put its length. */
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
	four_arguments(task, regs, out->record.arguments);
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

static __always_inline void end_io_call(struct cpu_stats *stats, struct task_struct *task,
					struct pt_regs *regs, long result, __u32 call_index,
					__u32 cpu)
{
	struct io_thread *thread = bpf_task_storage_get(&kc_io_threads, task, 0, 0);
	struct io_record_scratch *out;
	__u32 zero = 0;

	/* The beginning may not have been seen. */
	if (!(thread && thread->entered_ns) && !is_process_traced(stats, task))
		return;
	out = bpf_map_lookup_elem(&kc_io_scratch, &zero);
	if (!out || __sync_val_compare_and_swap(&out->busy, 0, 1)) {
		stats->io_calls_lost++;
		return;
	}
	send_io_call(stats, task, out, thread, regs, result, call_index, cpu);
	out->busy = 0;
}

SEC("tp_btf/sys_exit")
int kc_sys_exit(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	__u32 call_index = traced_call_index(task, system_call_number(regs));
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = traced_on(task, call_index, cpu);

	if (stats)
		WITH_INTERRUPTS_OFF(end_io_call(stats, task, regs, ctx[1], call_index, cpu));
	return 0;
}
