/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Counters that overflow: every so many events the thread that runs is recorded, with its stack.
 *
 * `overflow` runs at each overflow of a perf event of any kind but one: of a tracepoint the kernel
 * lets a program see every hit and no overflow, so `hit` counts them itself. The kernel runs
 * neither on top of the other, nor on top of `tick`. But they may run on top of the programs that
 * follow threads, which then are not to be disturbed: such a record has no user side.
 *
 * What they could not send is counted here. What the kernel did not call them for is known to
 * load.rs, which reads the counters.
 */
#ifndef KCOLLECT_OVERFLOW_H
#define KCOLLECT_OVERFLOW_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "entry.h"
#include "maps.h"
#include "record.h"
#include "tick.h"

/* A power of two. */
#define MOST_COUNTERS 16

/* kcollect itself, set by load.rs. Its user side is not told: a record of a page fault takes memory
 * that has to be faulted in, and with a copy of a stack more than one page of it. */
const volatile __u32 own_pid;

/* Of tracepoints: after how many hits a counter overflows. */
const volatile __u64 hit_interval[MOST_COUNTERS];

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MOST_COUNTERS);
	__type(key, __u32);
	__type(value, struct counted);
} counters SEC(".maps");

struct overflow_scratch {
	struct overflow_record record;
	__u64 stack[MAX_FRAMES];
	__u64 spare[(SCRATCH - sizeof(struct overflow_record)) / sizeof(__u64) - MAX_FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct overflow_scratch);
} overflow_scratch SEC(".maps");

/* Records the thread that runs. `regs`: what was interrupted, if that may have been user mode. */
static __always_inline void record_overflow(void *ctx, const struct tick_regs *regs,
					    struct counted *counted, __u32 counter, __u64 value)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct overflow_scratch *out = bpf_map_lookup_elem(&overflow_scratch, &zero);
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 size = sizeof(struct overflow_record);
	bool user = regs && in_user_mode(regs);
	struct record *head;

	if (!book || !out)
		return;
	head = &out->record.head;
	describe(head, task, bpf_ktime_get_ns(), cpu, RECORD_OVERFLOW, 1);
	out->record.value = value;
	out->record.counter = counter;
	if (!user) {
		if (regs && on_borrowed_stack(task, regs))
			head->flags |= TICK_IRQ_WORK;
		size += add_stack(head, bpf_get_stack(ctx, out->stack, sizeof(out->stack), 0)) -
			sizeof(*head);
		if (regs && head->flags & TICK_NO_STACK) {
			out->stack[0] = leaf(regs);
			head->frames = 1;
			size += sizeof(__u64);
		}
	}
	if (task->pid && (__u32)task->tgid != own_pid) {
		if (book->busy)
			__sync_fetch_and_add(&book->entries_lost, 1);
		else
			head->entry = next_entry(
				book, task, bpf_task_storage_get(&threads, task, 0, 0), true, cpu);
	}
	if (send(cpu, out, SCRATCH_LENGTH(size)))
		counted->sent += value;
	else
		counted->lost += value;
}

SEC("perf_event")
int overflow(struct bpf_perf_event_data *ctx)
{
	__u32 counter = bpf_get_attach_cookie(ctx) & (MOST_COUNTERS - 1);
	struct counted *counted = bpf_map_lookup_elem(&counters, &counter);

	if (counted && recording)
		record_overflow(ctx, (const struct tick_regs *)&ctx->regs, counted, counter,
				ctx->sample_period);
	return 0;
}

/* Gives 1, or the kernel would not let the perf event count it. */
SEC("tracepoint")
int hit(void *ctx)
{
	__u32 counter = bpf_get_attach_cookie(ctx) & (MOST_COUNTERS - 1);
	struct counted *counted = bpf_map_lookup_elem(&counters, &counter);
	__u64 interval;

	if (!counted || !recording)
		return 1;
	/* The verifier forgets what the look-up may have changed. */
	barrier_var(counter);
	interval = hit_interval[counter & (MOST_COUNTERS - 1)];
	counted->events++;
	if (++counted->since < interval)
		return 1;
	counted->since = 0;
	record_overflow(ctx, 0, counted, counter, interval);
	return 1;
}

#endif
