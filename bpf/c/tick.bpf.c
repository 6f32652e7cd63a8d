/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The clock tick: runs at every firing of a CPU's cpu-clock event, in the timer interrupt, on top of
 * whatever the CPU was doing, and says what that was.
 */
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
 * boundary. Written by load.rs. */
volatile bool recording;

/* Is the CPU at work for an interrupt, on top of the thread? Interrupts and softirqs run on stacks
 * of their own, so a stack pointer off the thread's stack tells. */
static __always_inline bool on_borrowed_stack(struct task_struct *task, const struct tick_regs *regs)
{
	return regs->sp - (unsigned long)BPF_CORE_READ(task, stack) >= KERNEL_STACK_SIZE;
}

SEC("perf_event")
int tick(struct bpf_perf_event_data *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id(), ring_index = cpu / CPUS_PER_RING, zero = 0, ticks;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct tick_scratch *out;
	__u64 now = bpf_ktime_get_ns(), id, size;
	struct grid grid;
	void *ring;
	long got;

	if (!book)
		return 0;
	grid = (struct grid){ .origin = book->origin, .index = book->index };
	ticks = grid_advance(&grid, now, period_ns);
	book->origin = grid.origin;
	book->index = grid.index;
	book->last = now;
	if (!recording)
		return 0;
	book->made_up += ticks - 1;

	out = bpf_map_lookup_elem(&scratch, &zero);
	if (!out)
		return 0;
	id = bpf_get_current_pid_tgid();
	out->record = (struct tick_record){
		.time = now,
		.cpu = cpu,
		.pid = id >> 32,
		.tid = (__u32)id,
		.ticks = ticks,
	};
	size = sizeof(out->record);

	if (in_user_mode(&ctx->regs)) {
		out->record.mode = TICK_USER;
		book->user += ticks;
	} else {
		struct task_struct *task = (void *)bpf_get_current_task();
		bool borrowed = on_borrowed_stack(task, &ctx->regs);

		if (!out->record.pid && !borrowed) {
			out->record.mode = TICK_IDLE;
			book->idle += ticks;
			if (!record_idle) {
				book->unsent += ticks;
				return 0;
			}
		} else {
			out->record.mode = TICK_KERNEL;
			out->record.flags = borrowed ? TICK_IRQ_WORK : 0;
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
			size += got;
		}
	}

	ring = bpf_map_lookup_elem(&rings, &ring_index);
	if (!ring || size > sizeof(*out) || send(ring, out, size)) {
		book->lost += ticks;
		book->lost_records++;
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
