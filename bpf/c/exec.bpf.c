/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A thread that does not lead its process executes a program: the kernel ends all other threads,
 * and gives it the number of the one that led. Its task_struct stays, and with it what is kept of
 * the thread. User space knows threads by their numbers, so here one thread ends and another one
 * begins, at the same instant: no time is lost, and none is counted twice.
 *
 *	leader   1  ------ pause ------|           its last record, as when any thread exits
 *	other    2  ------ execve ---------|       its last record, from here
 *	other    1                         |------ new sums, from 0
 *
 * The kernel has changed the number, and next gives the thread the name of the program. Until then
 * it has the old name, as in the records before; the side-band's record of the exec follows.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "account.h"
#include "clock.h"
#include "record.h"
#include "rotation.h"
#include "sched_info.h"
#include "thread.h"
#include "thread_record.h"
#include "user_return.h"

char LICENSE[] SEC("license") = "GPL";

/* An interrupt may use what the programs share that run with interrupts off. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread_record);
} kc_exec_record SEC(".maps");

/* The thread's earlier user stacks are not known under the new number, so the stack of the next
 * return to user mode is requested again. */
static __always_inline void forget_stacks(struct thread *thread)
{
	evict_return_wait(thread->tid, thread);
	advance_user_return(thread);
	thread->flags &= ~(CAPTURED | RETURN_WANTED);
	thread->ip = 0;
}

SEC("tp_btf/task_rename")
int kc_exec_rename(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct thread *thread = bpf_task_storage_get(&kc_threads, task, 0, 0);
	__u64 epoch_start_ns = epoch_of_switch(), now_ns;
	struct thread_record *out;

	/* A thread may give another one its name. */
	if (ctx[0] != (__u64)task || !recording || !stats || !thread ||
	    thread->tid == (__u32)task->pid)
		return 0;
	forget_stacks(thread);
	out = only_element(&kc_exec_record);
	/* The account may be in the claim of an iteration that closes it for a rotation. */
	if (!out || belongs_to_previous_epoch(thread, epoch_start_ns) ||
	    !claim_tracking(&thread->account, TRACKED)) {
		__sync_fetch_and_add(&stats->thread_records_lost, 1);
		return 0;
	}
	now_ns = bpf_ktime_get_ns() + (stats->offset_ns ? stats->offset_ns : any_offset_ns);
	/* What was stolen from the CPU meanwhile is counted when the thread leaves it. */
	account_end(&thread->account, now_ns, past_delay(task, thread), RUN_TIME_UNKNOWN, 0);
	fill_thread_record(out, task, record_time(epoch_start_ns), thread, &thread->account, cpu);
	out->header.flags |= FLAG_THREAD_EXITED;
	out->since_ns = out->header.time_ns;
	if (!send(cpu, out, sizeof(*out)))
		__sync_fetch_and_add(&stats->thread_records_lost, 1);
	__builtin_memset(thread->account.ns, 0, sizeof(thread->account.ns));
	thread->account.tracked_ns = 0;
	read_kernel_counts(task, thread->baseline);
	thread->tid = task->pid;
	track(thread, thread->epoch_start_ns, thread->account.since_ns, STATE_ON_CPU, DETAIL_NONE,
	      past_delay(task, thread), RUN_TIME_UNKNOWN);
	return 0;
}
