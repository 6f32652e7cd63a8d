/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counters that overflow: at every interval of events the thread that runs is recorded, with its
 * stack.
 *
 * `kc_overflow` runs at each overflow of a perf event of any kind but one: for a tracepoint the
 * kernel runs a program at every hit and not at overflows, so `kc_tracepoint` counts the hits
 * itself. The kernel runs neither on top of the other, nor on top of `kc_clock_tick`. But they may
 * run on top of the programs that follow threads, and must not disturb these: such a record has no
 * user stack.
 *
 * Events whose record could not be sent are counted here. bpf/src/counters.rs reads from the perf
 * events how many there were.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "clock.h"
#include "limits.h"
#include "record.h"
#include "thread.h"
#include "user_return.h"

char LICENSE[] SEC("license") = "GPL";

/* kcollect's own process, set by bpf/src/load.rs. Its user stack is not captured: the record of a
 * page fault takes memory that has to be faulted in, and with a stack copy more than one page. */
const volatile __u32 own_pid;

/* For tracepoints: the number of hits after which a counter overflows. */
const volatile __u64 hit_interval[MAX_COUNTERS];

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_COUNTERS);
	__type(key, __u32);
	__type(value, struct counter_stats);
} kc_counters SEC(".maps");

struct overflow_scratch {
	struct overflow_record record;
	__u64 stack[MAX_KERNEL_FRAMES];
	__u64 spare[(SCRATCH_BYTES - sizeof(struct overflow_record)) / sizeof(__u64) -
		    MAX_KERNEL_FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct overflow_scratch);
} kc_ovfl_scratch SEC(".maps");

/* Records the thread that runs. `regs`: the interrupted registers, if that may have been user mode.
 */
static __always_inline void record_overflow(void *ctx, const struct tick_regs *regs,
					    struct counter_stats *counter_stats, __u32 counter,
					    __u64 value)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct overflow_scratch *out = only_element(&kc_ovfl_scratch);
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 size = sizeof(struct overflow_record);
	bool user = regs && in_user_mode(regs);
	struct record_header *header;

	if (!stats || !out)
		return;
	header = &out->record.header;
	describe(header, task, bpf_ktime_get_ns(), cpu, RECORD_OVERFLOW, 1);
	out->record.value = value;
	out->record.counter = counter;
	if (!user) {
		if (regs && on_borrowed_stack(task, regs))
			header->flags |= FLAG_IRQ_WORK;
		size += add_stack(header, bpf_get_stack(ctx, out->stack, sizeof(out->stack), 0)) -
			sizeof(*header);
		if (regs && header->flags & FLAG_NO_STACK) {
			out->stack[0] = kernel_ip(regs);
			header->frames = 1;
			size += sizeof(__u64);
		}
	}
	if (task->pid && (__u32)task->tgid != own_pid) {
		if (stats->busy)
			__sync_fetch_and_add(&stats->user_returns_lost, 1);
		else
			header->user_return = next_user_return(
				stats, task, bpf_task_storage_get(&kc_threads, task, 0, 0), true,
				cpu);
	}
	if (send(cpu, out, SCRATCH_LENGTH(size)))
		counter_stats->recorded += value;
	else
		counter_stats->lost += value;
}

SEC("perf_event")
int kc_overflow(struct bpf_perf_event_data *ctx)
{
	__u32 counter = bpf_get_attach_cookie(ctx) & (MAX_COUNTERS - 1);
	struct counter_stats *counter_stats = bpf_map_lookup_elem(&kc_counters, &counter);

	if (counter_stats && recording)
		record_overflow(ctx, (const struct tick_regs *)&ctx->regs, counter_stats, counter,
				ctx->sample_period);
	return 0;
}

static __always_inline void count_hit(void *ctx, struct counter_stats *counter_stats,
				      __u32 counter)
{
	__u64 interval;

	/* Masked again: the verifier loses the range of a variable on the stack at a look-up. */
	barrier_var(counter);
	interval = hit_interval[counter & (MAX_COUNTERS - 1)];
	counter_stats->events++;
	if (++counter_stats->since_overflow < interval)
		return;
	counter_stats->since_overflow = 0;
	record_overflow(ctx, 0, counter_stats, counter, interval);
}

/* Returns 1, or the perf event would not count the hit. */
SEC("tracepoint")
int kc_tracepoint(void *ctx)
{
	__u32 counter = bpf_get_attach_cookie(ctx) & (MAX_COUNTERS - 1);
	struct counter_stats *counter_stats = bpf_map_lookup_elem(&kc_counters, &counter);

	if (counter_stats && recording)
		WITH_INTERRUPTS_OFF(count_hit(ctx, counter_stats, counter));
	return 1;
}
