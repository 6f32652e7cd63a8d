/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The clock of each CPU.
 *
 * `kc_clock_tick` runs at every firing of the CPU's cpu-clock event, in the timer interrupt, on top
 * of whatever the CPU was doing, and records that. Boundaries at which the hypervisor ran something
 * else are ticks of a wait (steal.h). A CPU that sleeps in the idle loop may not fire
 * at all: some hypervisors park it together with its timers. So `kc_cpu_idle` watches the loop's
 * sleep and counts the boundaries that passed in it, or they would be charged to the thread that
 * runs first afterwards. `kc_grid_settle` does the same on request, when the CPU is asleep while
 * recording stops; `kc_grid_begin` starts the grid.
 *
 * They run on the CPU whose statistics they write, with interrupts off. Only the last two, and
 * `kc_grid_rotate`, have interrupts on, on the CPU of the thread that runs them (BPF_PROG_RUN).
 * A firing in the middle of one counts nothing: its boundary is counted the next time.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "clock.h"
#include "record.h"
#include "run_queue.h"
#include "steal.h"
#include "thread.h"
#include "user_return.h"

char LICENSE[] SEC("license") = "GPL";

const volatile bool turn_interrupts_off;
const volatile bool calls_are_preempted;
const volatile bool use_run_queues;
const volatile bool use_sched_info;
const volatile __u64 period_ns;
const volatile bool record_idle;
const volatile __u32 max_kernel_frames;
const volatile bool counters_overflow;
const volatile __u64 steal_from_rq;

volatile bool recording;
volatile __u64 recording_start_ns;
volatile __u64 rotation_ns;
volatile __u64 until_ns;

/* Moves the boundaries to where the clock's timer fires, by the due time of this firing. */
static __always_inline void align(struct cpu_stats *stats, void *ctx, __u64 now_ns)
{
	struct bpf_perf_event_data_kern *kernel = ctx;
	__u64 due_ns;

	if (!bpf_core_field_exists(struct hrtimer, node.expires))
		return;
	due_ns = BPF_CORE_READ(kernel, event, hw.hrtimer.node.expires);
	if (due_ns <= now_ns)
		stats->origin_ns = grid_align(stats->home_ns, due_ns, period_ns);
}

static __always_inline void clock_tick(struct bpf_perf_event_data *ctx, struct cpu_stats *stats,
				       __u64 now_ns, __u32 cpu)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 size = sizeof(struct record_header);
	bool user, borrowed = false;
	struct tick_scratch *out;
	struct thread *thread;
	struct passed passed;
	__u64 index;
	long got;

	align(stats, ctx, now_ns);
	/* The boundary of a late firing may be before the wake-up: then it is this thread's. */
	if (is_next_threads_time(task) &&
	    BPF_CORE_READ(task, se.cfs_rq, rq, clock) - stats->offset_ns <
		    stats->origin_ns + (stats->index + 1) * period_ns)
		return;
	index = stats->index;
	passed = count_passed(stats, now_ns);
	if (!passed.ticks)
		return;

	user = in_user_mode(&ctx->regs);
	if (!user)
		borrowed = on_borrowed_stack(task, &ctx->regs);
	if (!user && !borrowed && !task->pid) {
		count_idle(stats, cpu, passed.ticks);
		return;
	}
	if (task->pid)
		passed = since_arrival(stats, task, index, passed);
	if (!passed.ticks)
		return;
	/* Only the last boundary is known to belong to the interrupt that ended the sleep. */
	if (passed.ticks > 1 && stats->in_idle) {
		count_idle(stats, cpu, passed.ticks - 1);
		passed.ticks = 1;
	}
	/* Nothing is stolen from an idle CPU. */
	if (!task->pid)
		passed.stolen_ticks = 0;

	out = only_element(&kc_scratch);
	if (!out)
		return;
	describe(&out->record, task, stats->last_ns, cpu, user ? TICK_USER : TICK_KERNEL,
		 passed.ticks);
	out->record.blocked = passed.stolen_ticks;
	count_busy(stats, user ? &stats->user : &stats->kernel, passed);
	if (!user) {
		if (borrowed)
			out->record.flags |= FLAG_IRQ_WORK;
		got = bpf_get_stack(ctx, out->stack, sizeof(out->stack), 0);
		size = add_stack(&out->record, got);
		if (out->record.flags & FLAG_NO_STACK) {
			out->stack[0] = kernel_ip(&ctx->regs);
			out->record.frames = 1;
			size += sizeof(__u64);
		}
	}
	if (task->pid) {
		thread = bpf_task_storage_get(&kc_threads, task, 0, 0);
		out->record.user_return = next_user_return(stats, task, thread, true, cpu);
	}
	send_tick(stats, out, size);
}

SEC("perf_event")
int kc_clock_tick(struct bpf_perf_event_data *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	__u64 now_ns = bpf_ktime_get_ns();

	if (!stats || !stats->origin_ns || stats->settling)
		return 0;
	clock_tick(ctx, stats, now_ns, cpu);
	count_programs(stats, bpf_ktime_get_ns() - now_ns);
	return 0;
}

/* Keeps kc_clock_tick of this CPU from counting, or lets it: for programs that count with
 * interrupts on. A boundary whose firing is skipped is counted by whatever counts next. */
static __always_inline void set_settling(struct cpu_stats *stats, __u64 settling)
{
	asm volatile("" ::: "memory");
	*(volatile __u64 *)&stats->settling = settling;
	asm volatile("" ::: "memory");
}

/* Counts the boundaries that have passed in a sleep until now. */
static __always_inline void count_sleep(struct cpu_stats *stats, __u32 cpu, __u64 now_ns)
{
	__u32 ticks;

	if (!stats->origin_ns)
		return;
	ticks = count_passed(stats, now_ns).ticks;
	if (ticks)
		count_idle(stats, cpu, ticks);
	/* Those after a rotation are counted on their own. */
	if (stats->next_ns > now_ns)
		return;
	ticks = count_passed(stats, now_ns).ticks;
	if (ticks)
		count_idle(stats, cpu, ticks);
}

/* Counts the boundaries that have passed when an idle CPU's sleep begins, and the thread that ran
 * before was not seen leaving. */
static __always_inline void count_until_idle(struct cpu_stats *stats, __u64 now_ns)
{
	__u32 ticks;

	if (!stats->origin_ns || stats->next_ns > now_ns)
		return;
	ticks = count_passed(stats, now_ns).ticks;
	if (ticks)
		count_unseen(stats, ticks);
}

/* The idle loop begins a sleep (the argument is its depth) or ends it (-1). */
SEC("tp_btf/cpu_idle")
int kc_cpu_idle(__u64 *ctx)
{
	__u32 state = ctx[0];
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	bool asleep = state != (__u32)-1;

	if (!stats)
		return 0;
	/* Old kernels (6.1) end a sleep with interrupts on. */
	set_settling(stats, 1);
	/* A switch to the idle thread was not seen, or no thread would be the last one. */
	if (asleep && stats->last_tid) {
		count_until_idle(stats, bpf_ktime_get_ns());
		stats->last_tid = 0;
	}
	if (!asleep && !is_next_threads_time(bpf_get_current_task_btf()))
		count_sleep(stats, cpu, bpf_ktime_get_ns());
	stats->in_idle = asleep;
	set_settling(stats, 0);
	return 0;
}

/* Run by bpf/src/clocks.rs on a CPU just before its clock starts: the grid begins here. */
SEC("raw_tp")
int kc_grid_begin(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);

	(void)ctx;
	if (stats) {
		if (has_run_queues())
			stolen_since_switch(stats, bpf_get_current_task_btf()->se.cfs_rq->rq);
		stolen_since_count(stats);
		stats->origin_ns = stats->home_ns = bpf_ktime_get_ns();
		stats->index = 0;
		stats->begun_ns = 0;
		stats->next_ns = stats->origin_ns + period_ns;
		stats->offset_stale = 1;
	}
	return 0;
}

/* Charges the boundaries that have passed by the end of recording or by a rotation to the thread
 * that runs. The CPU's timer may fire too late for that. */
static __always_inline void settle(struct cpu_stats *stats, __u32 cpu, __u64 end_ns)
{
	struct tick_scratch *out = only_element(&kc_scratch);
	struct passed passed;

	if (stats->in_idle) {
		count_sleep(stats, cpu, end_ns);
		return;
	}
	passed = count_passed(stats, end_ns);
	if (!passed.ticks || !out)
		return;
	describe(&out->record, bpf_get_current_task_btf(), stats->last_ns, cpu, TICK_KERNEL,
		 passed.ticks);
	out->record.blocked = passed.stolen_ticks;
	count_busy(stats, &stats->kernel, passed);
	send_tick(stats, out, add_stack(&out->record, -1));
}

/* Run by bpf/src/recording.rs on each CPU in turn when recording stops. */
SEC("raw_tp")
int kc_grid_settle(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);

	(void)ctx;
	if (!stats || !stats->origin_ns)
		return 0;
	set_settling(stats, 1);
	settle(stats, cpu, until_ns);
	set_settling(stats, 0);
	return 0;
}

/* Run by bpf/src/recording.rs on each CPU in turn after a rotation. */
SEC("raw_tp")
int kc_grid_rotate(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	__u64 rotation = rotation_ns;

	(void)ctx;
	if (!stats)
		return 0;
	set_settling(stats, 1);
	if (stats->begun_ns != rotation) {
		if (stats->origin_ns)
			settle(stats, cpu, rotation);
		begin_grid(stats, rotation);
	}
	set_settling(stats, 0);
	return 0;
}
