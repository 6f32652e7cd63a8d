/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * When a thread was last switched in, since when it waits for a CPU, and how long it has waited in
 * all.
 *
 * The scheduler keeps that for each thread (sched_info), which needs no hook. On a kernel without
 * CONFIG_SCHED_INFO, or with other names, the programs keep the same in thread.waits, by
 * CLOCK_MONOTONIC, with a hook at each wake-up (wakeup.bpf.c):
 *
 *	sleeps        runnable             runs            preempted
 *	------|-------------------------|---------------|--------------
 *	      queued_ns = now           delay_ns += now - queued_ns
 *	                                arrival_ns = now
 *	                                queued_ns = 0   queued_ns = now
 */
#ifndef KCOLLECT_SCHED_INFO_H
#define KCOLLECT_SCHED_INFO_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "run_queue.h"
#include "thread.h"

static __always_inline __u64 last_arrival(struct task_struct *task, const struct thread *thread)
{
	return has_sched_info() ? task->sched_info.last_arrival : thread->waits.arrival_ns;
}

static __always_inline __u64 last_queued(struct task_struct *task, const struct thread *thread)
{
	return has_sched_info() ? task->sched_info.last_queued : thread->waits.queued_ns;
}

/* The waits until its last switch-in. */
static __always_inline __u64 past_delay(struct task_struct *task, const struct thread *thread)
{
	return has_sched_info() ? task->sched_info.run_delay : thread->waits.delay_ns;
}

/* What the scheduler does at a switch-in, where the programs do it. */
static __always_inline void note_arrival(struct waits *waits, __u64 now_ns)
{
	if (waits->queued_ns && now_ns > waits->queued_ns)
		waits->delay_ns += now_ns - waits->queued_ns;
	waits->queued_ns = 0;
	waits->arrival_ns = now_ns;
}

#endif
