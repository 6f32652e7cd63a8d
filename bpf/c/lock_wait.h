/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tracing of lock waits (-s): every time that a thread of a followed process was blocked in a
 * futex for as long as the threshold, with its stack.
 *
 * It needs no probe: the switch-in has the off-CPU interval that it ends. The thread is still in
 * its system call, so the registers with which it entered the kernel have the futex.
 *
 * A lock that is handed back and forth can be waited for a hundred thousand times a second, so the
 * number of records is bounded. Waits beyond that are counted, with their time.
 */
#ifndef KCOLLECT_LOCK_WAIT_H
#define KCOLLECT_LOCK_WAIT_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "arch.h"
#include "cause.h"
#include "clock.h"
#include "limits.h"
#include "off_cpu.h"
#include "record.h"
#include "thread.h"
#include "user_stack.h"

/* The shortest wait that is recorded, ns; NO_LOCK_WAITS: none is. Set by bpf/src/load.rs. */
extern const volatile __u64 lock_threshold_ns;

struct lock_wait_scratch {
	struct lock_wait_record record;
	__u64 stack[MAX_KERNEL_FRAMES];
};

_Static_assert(sizeof(struct lock_wait_scratch) <= SCRATCH_BYTES, "as long as other records");

static __always_inline bool is_lock_wait(const struct off_cpu *off_cpu, struct task_struct *task)
{
	return off_cpu->state == STATE_USER_LOCK &&
	       off_cpu->to_ns - off_cpu->from_ns >= lock_threshold_ns && is_followed(task);
}

/* Counts a wait. Returns whether it may be sent in this second. */
static __always_inline bool within_rate_limit(struct cpu_stats *stats,
					      const struct off_cpu *off_cpu)
{
	__u64 second = off_cpu->to_ns / 1000000000;

	if (stats->lock_second != second) {
		stats->lock_second = second;
		stats->lock_waits = 0;
	}
	if (stats->lock_waits < MAX_LOCK_WAITS_PER_CPU_AND_SECOND) {
		stats->lock_waits++;
		return true;
	}
	stats->lock_waits_skipped++;
	stats->lock_waits_skipped_ns += off_cpu->to_ns - off_cpu->from_ns;
	return false;
}

/* Sends the wait of a thread that is being switched in. `seen`: this is its switch-in. If not, the
 * thread has run since, and the futex and the stacks are no longer known. */
static __noinline int send_lock_wait(struct cpu_stats *stats, struct task_struct *task,
				     struct thread *thread, const struct off_cpu *off_cpu,
				     bool seen)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 arguments[IO_ARGUMENTS] = {}, size = sizeof(struct lock_wait_record);
	struct record_header *header;
	struct lock_wait_scratch *out;
	long call, got = -1;

	if (!within_rate_limit(stats, off_cpu))
		return 0;
	out = only_element(&kc_scratch);
	if (!out || !regs)
		return 0;
	header = &out->record.header;
	describe(header, task, off_cpu->to_ns - any_offset_ns, cpu, RECORD_LOCK_WAIT, 0);
	header->state = STATE_USER_LOCK;
	out->record.begin_ns = off_cpu->from_ns - any_offset_ns;
	out->record.object = 0;
	out->record.operation = OPERATION_UNKNOWN;
	out->record.zero = 0;
	if (seen) {
		call = system_call_number(regs);
		system_call_arguments(task, regs, arguments);
		out->record.object = arguments[0];
		out->record.operation = is_futex_command(call) ? arguments[1] & ~FUTEX_FLAGS : call;
		got = bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0);
		header->user_return = user_return_at_arrival(got, stats, task, thread, cpu);
	}
	size += add_stack(header, got) - sizeof(*header);
	if (!send(cpu, out, SCRATCH_LENGTH(size)))
		stats->lock_waits_lost++;
	return 0;
}

#endif
