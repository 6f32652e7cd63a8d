/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a context switch does after a rotation (rotation.h). */
#ifndef KCOLLECT_ROTATION_SWITCH_H
#define KCOLLECT_ROTATION_SWITCH_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "clock.h"
#include "grid.h"
#include "off_cpu.h"
#include "record.h"
#include "rotation.h"
#include "sched_info.h"
#include "thread.h"
#include "thread_record.h"

/* Whether boundaries before a rotation passed in the off-CPU interval of a thread. */
static __always_inline bool has_boundaries_before(struct thread *thread, __u64 rotation)
{
	struct cpu_stats *left = bpf_map_lookup_elem(&kc_cpu_stats, &thread->cpu);

	return thread->account.state != STATE_ON_CPU && left &&
	       index_at_rotation(left, rotation) > thread->grid_index;
}

/* Closes at the rotation the account of a thread that is being switched, and sends what it did
 * before that. Returns false if kc_close_all does that at this moment. `user_return` is the number
 * for the record of an off-CPU interval; its kernel stack is known as long as the thread has not
 * run since.
 *
 * The scheduler may have read its clock before the rotation, and the CPU may have stood still since
 * then. A thread that is switched in, or whose switch-in was not seen, was on the CPU at the
 * rotation. One that is switched out was on the CPU until the scheduler read its clock, and then
 * waited. */
static __noinline bool end_at_switch(struct task_struct *task, struct thread *thread,
				     __u64 rotation, __u64 stolen_ns, __u32 user_return)
{
	__u64 at_ns = rotation + any_offset_ns, end_ns = at_ns, run_time = RUN_TIME_UNKNOWN;
	__u64 clock_ns = scheduler_clock(task), delay, since_ns, index;
	bool comes = task != bpf_get_current_task_btf();
	struct account *account = &thread->account;
	struct cpu_stats *left = bpf_map_lookup_elem(&kc_cpu_stats, &thread->cpu);
	__u32 cpu = bpf_get_smp_processor_id(), state, detail;
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct tick_scratch *out = only_element(&kc_scratch);
	struct thread_record *record;
	struct off_cpu off_cpu = {}, ended;
	bool was_off;
	long got = -1;

	if (!stats || !claim_tracking(account, TRACKED))
		return false;
	if (thread->epoch_start_ns >= rotation) {
		account->tracking = TRACKED;
		return true;
	}
	state = account->state;
	detail = account->detail;
	was_off = state != STATE_ON_CPU;
	if (was_off)
		end_ns = comes ? clock_ns : last_arrival(task, thread);
	else if (!comes && clock_ns < at_ns)
		run_time = task->se.sum_exec_runtime;
	delay = run_delay(task, thread, end_ns < at_ns ? end_ns : at_ns);
	if (end_ns < at_ns) {
		off_cpu = account_switch_in(account, end_ns, delay, account->run_time_ns);
		state = STATE_ON_CPU;
		detail = DETAIL_NONE;
	}
	since_ns = account->since_ns - any_offset_ns;
	ended = account_end(account, at_ns, delay, run_time, stolen_ns);
	index = left ? index_at_rotation(left, rotation) : thread->grid_index;
	if (end_ns >= at_ns)
		off_cpu = ended;
	else if (left)
		index = thread->grid_index + grid_before(left->origin_ns, thread->grid_index, index,
							 end_ns - any_offset_ns, period_ns);
	if (left && out && was_off && index > thread->grid_index) {
		if (comes)
			got = bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0);
		describe_off_cpu(left, index, &out->record, task, rotation, thread, &off_cpu,
				 user_return, cpu);
		if (end_ns >= at_ns)
			note_not_ended(&out->record);
		if (!send(cpu, out, SCRATCH_LENGTH(add_stack(&out->record, got))))
			stats->off_cpu_lost += out->record.ticks;
	}
	record = (struct thread_record *)out;
	if (record) {
		fill_thread_record(record, task, rotation, thread, account, cpu);
		record->header.state = state;
		record->header.detail = detail;
		record->since_ns = since_ns;
	}
	if (!record || !send(cpu, record, sizeof(*record)))
		stats->thread_records_lost++;
	reopen_account(thread, rotation, index, at_ns, state, detail, delay);
	return true;
}

#endif
