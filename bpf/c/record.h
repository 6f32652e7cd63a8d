/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How a record is put together, whatever it tells. */
#ifndef KCOLLECT_RECORD_H
#define KCOLLECT_RECORD_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "maps.h"

#define PF_EXITING 0x00000004
#define PF_KTHREAD 0x00200000

/* kernel.perf_event_max_stack, MAX_FRAMES at the most. */
const volatile __u32 max_frames;

/* Are there counters that overflow? These may do so in the middle of another program: in an
 * interrupt that nothing holds back, or by what that program itself makes the kernel do. Set by
 * load.rs. */
const volatile bool counting;

static __always_inline void set_busy(struct cpu_books *book, __u64 busy)
{
	if (counting)
		*(volatile __u64 *)&book->busy = busy;
}

static __always_inline void describe(struct record *record, struct task_struct *task, __u64 time,
				     __u32 cpu, __u8 kind, __u32 ticks)
{
	*record = (struct record){
		.time = time,
		.cpu = cpu,
		.pid = task->tgid,
		.tid = task->pid,
		.ticks = ticks,
		.kind = kind,
		.flags = (task->flags & PF_KTHREAD ? OF_KERNEL : 0) |
			 (task->flags & PF_EXITING ? EXITING : 0),
	};
	bpf_probe_read_kernel(record->name, sizeof(record->name), task->comm);
}

/* A stack of `got` bytes lies behind the record, or none where that is negative. Gives the size of
 * both. */
static __always_inline __u64 add_stack(struct record *record, long got)
{
	if (got < (long)sizeof(__u64)) {
		record->flags |= TICK_NO_STACK;
		return sizeof(*record);
	}
	if (got >= (long)(max_frames * sizeof(__u64)))
		record->flags |= TICK_TRUNCATED;
	record->frames = got / sizeof(__u64);
	return sizeof(*record) + got;
}

/* Sends a tick with its stack, or counts it as lost. */
static __always_inline void send_tick(struct cpu_books *book, struct scratch *out, __u64 size)
{
	if (out->record.flags & TICK_TRUNCATED)
		book->truncated++;
	if (out->record.flags & TICK_NO_STACK)
		book->no_stack++;
	if (!send(out->record.cpu, out, SCRATCH_LENGTH(size))) {
		book->lost += out->record.ticks;
		book->lost_records++;
	}
}

#endif
