/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The clock of each CPU.
 *
 * `tick` runs at every firing of the CPU's cpu-clock event, in the timer interrupt, on top of
 * whatever the CPU was doing, and says what that was. A CPU that sleeps in the idle loop may not
 * fire at all: some hypervisors park it together with its timers. So `idle` watches the loop's
 * sleep and counts the boundaries that passed in it, or they would be charged to whatever runs
 * first afterwards. `settle` does the same on request, for a CPU that is asleep when data stop;
 * `begin` sets the grid.
 *
 * All run with interrupts off on the CPU whose books they write.
 */
#ifndef KCOLLECT_TICK_H
#define KCOLLECT_TICK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "entry.h"
#include "grid.h"
#include "maps.h"
#include "record.h"

const volatile __u64 period_ns;
const volatile bool record_idle;

/* Threads are watched only while this is set; the grid goes on regardless, so that a pause shifts
 * no boundary. Only boundaries after begin_ns count, and none after until_ns (0: no end yet),
 * however late a CPU comes to count them. CLOCK_MONOTONIC. Written by load.rs: until_ns lies in the
 * past until all the others tell of new data, so that a CPU that looks meanwhile counts nothing,
 * rather than something that nobody is told of. */
volatile bool recording;
volatile __u64 begin_ns;
volatile __u64 until_ns;

/* Is the CPU at work for an interrupt, on top of the thread? Interrupts and softirqs run on stacks
 * of their own, so a stack pointer off the thread's stack tells. */
static __always_inline bool on_borrowed_stack(struct task_struct *task,
					      const struct tick_regs *regs)
{
	return regs->sp - (unsigned long)task->stack >= KERNEL_STACK_SIZE;
}

/* Boundaries that passed on this CPU since they were last counted. */
static __always_inline __u32 passed(struct cpu_books *book, __u64 now)
{
	struct grid grid = {.origin = book->origin, .index = book->index};
	__u64 begin = begin_ns, until = until_ns;
	__u32 ticks;

	if (book->begun != begin) {
		book->begun = begin;
		book->home = book->origin;
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

static __always_inline void count_idle(struct cpu_books *book, __u32 cpu, __u64 now, __u32 ticks)
{
	struct scratch *out;
	__u32 zero = 0;

	book->idle += ticks;
	out = record_idle ? bpf_map_lookup_elem(&scratch, &zero) : 0;
	if (!out) {
		book->unsent += ticks;
		return;
	}
	out->record = (struct record){
		.time = now,
		.cpu = cpu,
		.ticks = ticks,
		.kind = TICK_IDLE,
	};
	send_tick(book, out, sizeof(out->record));
}

/* Lets the boundaries lie where the clock's timer fires, by when it was due that fires now. */
static __always_inline void align(struct cpu_books *book, void *ctx, __u64 now)
{
	struct bpf_perf_event_data_kern *kernel = ctx;
	__u64 due;

	if (!bpf_core_field_exists(struct hrtimer, node.expires))
		return;
	due = BPF_CORE_READ(kernel, event, hw.hrtimer.node.expires);
	if (due <= now)
		book->origin = grid_align(book->home, due, period_ns);
}

SEC("perf_event")
int tick(struct bpf_perf_event_data *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, ticks;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 now = bpf_ktime_get_ns(), size = sizeof(struct record);
	bool user, borrowed = false;
	struct scratch *out;
	long got;

	if (!book || !book->origin)
		return 0;
	align(book, ctx, now);
	ticks = passed(book, now);
	if (!ticks)
		return 0;

	user = in_user_mode(&ctx->regs);
	if (!user)
		borrowed = on_borrowed_stack(task, &ctx->regs);
	if (!user && !borrowed && !task->pid) {
		count_idle(book, cpu, now, ticks);
		return 0;
	}
	if (ticks > 1) {
		/* Only the last boundary is known to belong to the interrupt that ended the sleep.
		 */
		if (book->in_idle) {
			count_idle(book, cpu, now, ticks - 1);
			ticks = 1;
		}
		book->made_up += ticks - 1;
	}

	out = bpf_map_lookup_elem(&scratch, &zero);
	if (!out)
		return 0;
	describe(&out->record, task, now, cpu, user ? TICK_USER : TICK_KERNEL, ticks);
	if (user) {
		book->user += ticks;
	} else {
		book->kernel += ticks;
		if (borrowed)
			out->record.flags |= TICK_IRQ_WORK;
		got = bpf_get_stack(ctx, out->stack, sizeof(out->stack), 0);
		size = add_stack(&out->record, got);
		if (out->record.flags & TICK_NO_STACK) {
			out->stack[0] = leaf(&ctx->regs);
			out->record.frames = 1;
			size += sizeof(__u64);
		}
	}
	if (task->pid)
		out->record.entry = next_entry(
			book, task, bpf_task_storage_get(&threads, task, 0, 0), true, cpu);
	send_tick(book, out, size);
	return 0;
}

/* Counts what of a sleep has passed. */
static __always_inline void settle_sleep(struct cpu_books *book, __u32 cpu)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 ticks = book->origin ? passed(book, now) : 0;

	if (ticks)
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
		book->origin = book->home = bpf_ktime_get_ns();
		book->index = 0;
		book->begun = 0;
		book->next = book->origin + period_ns;
		book->offset_stale = 1;
	}
	return 0;
}

/* Run by load.rs on each CPU in turn when data stop: what has passed by then counts, for whoever
 * runs. Its timer may come too late for that. */
SEC("raw_tp")
int settle(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, ticks;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct scratch *out;
	__u64 now;

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
	if (!ticks || !out)
		return 0;
	describe(&out->record, bpf_get_current_task_btf(), now, cpu, TICK_KERNEL, ticks);
	book->kernel += ticks;
	book->made_up += ticks - 1;
	send_tick(book, out, add_stack(&out->record, -1));
	return 0;
}

#endif
