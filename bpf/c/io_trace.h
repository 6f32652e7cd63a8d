/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the programs that trace I/O share, of system calls and of io_uring: which calls are traced,
 * of which processes, and the memory for a record. */
#ifndef KCOLLECT_IO_TRACE_H
#define KCOLLECT_IO_TRACE_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "clock.h"
#include "io_stack.h"
#include "records.h"
#include "ring.h"
#include "user_stack.h"

#define TRACED_CALLS (CALL_TABLES * IO_CALLS)

/* By number, one table after the other (enum call_table). */
extern const volatile struct traced_call traced_calls[TRACED_CALLS];

#define IO_RECORD_BYTES		 1024
#define IO_RECORD_LENGTH(length) ((length) & (IO_RECORD_BYTES - 1))

struct io_record_scratch {
	struct io_call_record record;
	__u8 extra[IO_RECORD_BYTES - sizeof(struct io_call_record)];
	__u64 busy;
};

/* A record's length is known only when the path is. */
struct io_record_scratches {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct io_record_scratch);
};

extern struct io_record_scratches kc_io_scratch SEC(".maps");

/* Claims the memory for a record, and counts a lost call if another program of this CPU has it. */
static __always_inline struct io_record_scratch *claim_io_record(struct cpu_stats *stats)
{
	struct io_record_scratch *out = only_element(&kc_io_scratch);

	if (out && !__sync_val_compare_and_swap(&out->busy, 0, 1))
		return out;
	stats->io_calls_lost++;
	return 0;
}

struct io_threads {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct io_thread);
};

extern struct io_threads kc_io_threads SEC(".maps");

/* Index in traced_calls that no system call has: the last table is empty. */
#define UNTRACED_CALL (TRACED_CALLS - 1)

/* Index of a system call in traced_calls. Numbers outside of the table are not traced: -1, which
 * the kernel sets when it has replaced the registers (rt_sigreturn(2), the calls of uprobes), and
 * numbers with the x32 bit. */
static __always_inline __u32 traced_call_index(struct task_struct *task, long call)
{
	if (call < 0 || call >= IO_CALLS)
		return UNTRACED_CALL;
	return is_compat(task) ? CALLS_COMPAT * IO_CALLS + call : call;
}

/* The table of descriptors of a thread. Read by a call: at a load of this pointer, the verifier
 * looks for its type by name, linearly. */
static __always_inline __u64 files_of(struct task_struct *task)
{
	return (__u64)BPF_CORE_READ(task, files);
}

/* The process of a thread and how often it has called exec, as one word that is read and written at
 * once. All threads of a process have the same word until it calls exec again. */
static __always_inline __u64 execution_key(struct task_struct *task)
{
	return (__u64)task->tgid << 32 | (__u32)task->self_exec_id;
}

/* The statistics of this CPU if calls of the thread that runs may be traced. NULL if its process is
 * the last one that was found here not to be followed. */
static __always_inline struct cpu_stats *traced_process_on(struct task_struct *task, __u32 cpu)
{
	struct cpu_stats *stats;

	if (!recording)
		return 0;
	stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	return stats && stats->ignored_execution != execution_key(task) ? stats : 0;
}

/* The same, if the call is one of those that are traced. */
static __always_inline struct cpu_stats *traced_on(struct task_struct *task, __u32 call_index,
						   __u32 cpu)
{
	return traced_calls[call_index & (TRACED_CALLS - 1)].traced ? traced_process_on(task, cpu)
								    : 0;
}

/* Whether the process of a thread is followed. If not, that is final, and is remembered on this CPU
 * until another process runs. */
static __always_inline bool is_process_traced(struct cpu_stats *stats, struct task_struct *task)
{
	if (is_followed(task))
		return true;
	stats->ignored_execution = execution_key(task);
	return false;
}

#endif
