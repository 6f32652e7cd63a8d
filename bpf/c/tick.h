/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The clock of each CPU.
 *
 * `tick` runs at every firing of the CPU's cpu-clock event, in the timer interrupt, on top of
 * whatever the CPU was doing, and says what that was. A CPU that sleeps in the idle loop may not fire
 * at all: some hypervisors park it together with its timers. So `idle` watches the loop's sleep and
 * counts the boundaries that passed in it, or they would be charged to whatever runs first
 * afterwards. `settle` does the same on request, for a CPU that is asleep when data stop; `begin`
 * sets the grid.
 *
 * All run with interrupts off on the CPU whose books they write.
 */
#ifndef KCOLLECT_TICK_H
#define KCOLLECT_TICK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "grid.h"
#include "wire.h"
#include "maps.h"

const volatile __u64 period_ns;
const volatile bool record_idle;
/* kernel.perf_event_max_stack, MAX_FRAMES at the most. */
const volatile __u32 max_frames;

/* Data are taken only while this is set; the grid goes on regardless, so that a pause shifts no
 * boundary. Only boundaries after begin_ns count, and when data stop, none after until_ns (0: no end yet),
 * however late a CPU comes to count them. CLOCK_MONOTONIC. Written by load.rs. */
volatile bool recording;
volatile __u64 begin_ns;
volatile __u64 until_ns;

/* Is the CPU at work for an interrupt, on top of the thread? Interrupts and softirqs run on stacks
 * of their own, so a stack pointer off the thread's stack tells. */
static __always_inline bool on_borrowed_stack(struct task_struct *task, const struct tick_regs *regs)
{
	return regs->sp - (unsigned long)BPF_CORE_READ(task, stack) >= KERNEL_STACK_SIZE;
}

/* Boundaries that passed on this CPU since they were last counted. */
static __always_inline __u32 passed(struct cpu_books *book, __u64 now)
{
	struct grid grid = { .origin = book->origin, .index = book->index };
	__u64 begin = begin_ns, until = until_ns;
	__u32 ticks;

	if (book->begun != begin) {
		book->begun = begin;
		grid_advance(&grid, begin, period_ns);
	}
	if (until && now > until)
		now = until;
	ticks = grid_advance(&grid, now, period_ns);
	book->index = grid.index;
	book->last = now;
	book->next = book->origin + (grid.index + 1) * period_ns;
	book->offset_stale = 1;
	return ticks;
}

static __always_inline void emit(struct cpu_books *book, struct tick_scratch *out, __u64 size)
{
	__u32 ring_index = out->record.cpu / CPUS_PER_RING;
	void *ring = bpf_map_lookup_elem(&rings, &ring_index);

	if (!ring || size > sizeof(*out) || send(ring, out, size)) {
		book->lost += out->record.ticks;
		book->lost_records++;
	}
}

static __always_inline void count_idle(struct cpu_books *book, __u32 cpu, __u64 now, __u32 ticks)
{
	struct tick_scratch *out;
	__u32 zero = 0;

	book->idle += ticks;
	out = record_idle ? bpf_map_lookup_elem(&scratch, &zero) : 0;
	if (!out) {
		book->unsent += ticks;
		return;
	}
	out->record = (struct tick_record){
		.time = now,
		.cpu = cpu,
		.ticks = ticks,
		.mode = TICK_IDLE,
	};
	emit(book, out, sizeof(out->record));
}

SEC("perf_event")
int tick(struct bpf_perf_event_data *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, ticks;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	__u64 now = bpf_ktime_get_ns(), id, size;
	struct tick_scratch *out;
	bool user, borrowed = false;
	long got;

	if (!book || !book->origin)
		return 0;
	ticks = passed(book, now);
	if (!ticks || !recording)
		return 0;

	user = in_user_mode(&ctx->regs);
	if (!user)
		borrowed = on_borrowed_stack((void *)bpf_get_current_task(), &ctx->regs);
	id = bpf_get_current_pid_tgid();
	if (!user && !borrowed && !(__u32)id) {
		count_idle(book, cpu, now, ticks);
		return 0;
	}
	if (ticks > 1) {
		/* Only the last boundary is known to belong to the interrupt that ended the sleep. */
		if (book->in_idle) {
			count_idle(book, cpu, now, ticks - 1);
			ticks = 1;
		}
		book->made_up += ticks - 1;
	}

	out = bpf_map_lookup_elem(&scratch, &zero);
	if (!out)
		return 0;
	out->record = (struct tick_record){
		.time = now,
		.cpu = cpu,
		.pid = id >> 32,
		.tid = (__u32)id,
		.ticks = ticks,
		.mode = user ? TICK_USER : TICK_KERNEL,
		.flags = borrowed ? TICK_IRQ_WORK : 0,
	};
	size = sizeof(out->record);
	if (user) {
		book->user += ticks;
		emit(book, out, size);
		return 0;
	}

	book->kernel += ticks;
	got = bpf_get_stack(ctx, out->stack, sizeof(out->stack), 0);
	if (got < (long)sizeof(__u64)) {
		out->stack[0] = leaf(&ctx->regs);
		got = sizeof(__u64);
		out->record.flags |= TICK_NO_STACK;
		book->no_stack++;
	} else if (got >= (long)(max_frames * sizeof(__u64))) {
		out->record.flags |= TICK_TRUNCATED;
		book->truncated++;
	}
	out->record.frames = got / sizeof(__u64);
	emit(book, out, size + got);
	return 0;
}

/* Counts what of a sleep has passed. */
static __always_inline void settle_sleep(struct cpu_books *book, __u32 cpu)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 ticks = book->origin ? passed(book, now) : 0;

	if (ticks && recording)
		count_idle(book, cpu, now, ticks);
}

/* The idle loop begins a sleep (its depth) or ends it (-1). */
SEC("tp_btf/cpu_idle")
int idle(__u64 *ctx)
{
	__u32 state = ctx[0];
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	bool asleep = state != (__u32)-1;

	if (!book)
		return 0;
	if (!asleep)
		settle_sleep(book, cpu);
	book->in_idle = asleep;
	return 0;
}

/* Run by load.rs on a CPU just before its clock starts: the grid begins here. */
SEC("raw_tp")
int begin(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);

	(void)ctx;
	if (book) {
		book->origin = bpf_ktime_get_ns();
		book->index = 0;
		book->begun = 0;
		book->next = book->origin + period_ns;
		book->offset_stale = 1;
	}
	return 0;
}

/* Run by load.rs on each CPU in turn when data stop: what has passed by then counts, for whoever runs. Its
 * timer may come too late for that. */
SEC("raw_tp")
int settle(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, ticks;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct tick_scratch *out;
	__u64 now, id;

	(void)ctx;
	if (!book || !book->origin)
		return 0;
	if (book->in_idle) {
		settle_sleep(book, cpu);
		return 0;
	}
	now = bpf_ktime_get_ns();
	ticks = passed(book, now);
	out = bpf_map_lookup_elem(&scratch, &zero);
	if (!ticks || !recording || !out)
		return 0;
	id = bpf_get_current_pid_tgid();
	out->record = (struct tick_record){
		.time = now,
		.cpu = cpu,
		.pid = id >> 32,
		.tid = (__u32)id,
		.ticks = ticks,
		.mode = TICK_KERNEL,
		.flags = TICK_NO_STACK,
	};
	book->kernel += ticks;
	book->made_up += ticks - 1;
	book->no_stack++;
	emit(book, out, sizeof(out->record));
	return 0;
}

#endif
