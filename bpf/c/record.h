/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How the programs build records of any kind. */
#ifndef KCOLLECT_RECORD_H
#define KCOLLECT_RECORD_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "cpu_stats.h"
#include "records.h"
#include "ring.h"

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000
/* Linux 6.4 and newer. An exiting io_uring worker has this flag alone. Unused before. */
#define PF_USER_WORKER 0x00004000

/* Threads that the kernel makes in a process (io_uring, vhost) and that never run user code. */
#define PF_USER_WORKERS (PF_IO_WORKER | PF_USER_WORKER)
/* Threads without a user stack. */
#define PF_NO_USER_CODE (PF_KTHREAD | PF_USER_WORKERS)

/* kernel.perf_event_max_stack, at most MAX_KERNEL_FRAMES. */
extern const volatile __u32 max_kernel_frames;

/* Counters overflow in this recording. An overflow may interrupt another program: in an interrupt
 * that is never masked, or because of what that program itself makes the kernel do. */
extern const volatile bool counters_overflow;

/* Programs turn interrupts off where they use memory of their CPU. Since Linux 7.2 a thread may be
 * preempted in the middle of a program at a system call, and with PREEMPT_RT at any tracepoint: by
 * threads that run the same program, or one that expects interrupts to be off. Before Linux 6.15,
 * where it is not needed, the verifier refuses global functions in such a place. Set by
 * bpf/src/load.rs. */
extern const volatile bool turn_interrupts_off;
/* Whether system calls are traced on a kernel that preempts the programs there. Set by
 * bpf/src/load.rs. */
extern const volatile bool calls_are_preempted;

#define WITH_INTERRUPTS_OFF(statement)                                                             \
	do {                                                                                       \
		unsigned long flags_;                                                              \
		if (turn_interrupts_off)                                                           \
			bpf_local_irq_save(&flags_);                                               \
		statement;                                                                         \
		if (turn_interrupts_off)                                                           \
			bpf_local_irq_restore(&flags_);                                            \
	} while (0)

/* A power of two above any record's length, so that a length can be masked: older verifiers lose a
 * comparison that the compiler made on a copy. */
#define SCRATCH_BYTES	       2048
#define SCRATCH_LENGTH(length) ((length) & (SCRATCH_BYTES - 1))

struct tick_scratch {
	struct record_header record;
	__u64 stack[MAX_KERNEL_FRAMES];
	__u64 spare[(SCRATCH_BYTES - sizeof(struct record_header)) / sizeof(__u64) -
		    MAX_KERNEL_FRAMES];
};

/* Programs that run with interrupts off build a record here, because its length is known only when
 * the stack is. */
struct scratch_array {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tick_scratch);
};

extern struct scratch_array kc_scratch SEC(".maps");

/* Adds the time that a program took. A program that runs in a thread may be interrupted by another
 * program. */
static __always_inline void count_programs(struct cpu_stats *stats, __u64 took_ns)
{
	__sync_fetch_and_add(&stats->programs_ns, took_ns);
}

static __always_inline void set_busy(struct cpu_stats *stats, __u64 busy)
{
	if (counters_overflow)
		*(volatile __u64 *)&stats->busy = busy;
}

static __always_inline void describe(struct record_header *record, struct task_struct *task,
				     __u64 time_ns, __u32 cpu, __u8 kind, __u32 ticks)
{
	*record = (struct record_header){
		.time_ns = time_ns,
		.cpu = cpu,
		.pid = task->tgid,
		.tid = task->pid,
		.ticks = ticks,
		.kind = kind,
		.flags = (task->flags & PF_KTHREAD ? FLAG_KERNEL_THREAD : 0) |
			 (task->flags & PF_USER_WORKERS ? FLAG_USER_WORKER : 0) |
			 (task->flags & PF_EXITING ? FLAG_EXITING : 0),
	};
	bpf_probe_read_kernel(record->name, sizeof(record->name), task->comm);
}

/* Notes that a stack of `got` bytes follows the header, or none if that is negative. Returns the
 * size of both. */
static __always_inline __u64 add_stack(struct record_header *record, long got)
{
	if (got < (long)sizeof(__u64)) {
		record->flags |= FLAG_NO_STACK;
		return sizeof(*record);
	}
	if (got >= (long)(max_kernel_frames * sizeof(__u64)))
		record->flags |= FLAG_TRUNCATED;
	record->frames = got / sizeof(__u64);
	return sizeof(*record) + got;
}

/* Sends a tick with its stack, or counts it as lost. */
static __always_inline void send_tick(struct cpu_stats *stats, struct tick_scratch *out, __u64 size)
{
	if (out->record.flags & FLAG_TRUNCATED)
		stats->truncated++;
	if (out->record.flags & FLAG_NO_STACK)
		stats->no_stack++;
	if (!send(out->record.cpu, out, SCRATCH_LENGTH(size))) {
		stats->lost += out->record.ticks;
		stats->lost_records++;
	}
}

#endif
