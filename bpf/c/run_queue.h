/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The run queue that a thread leads to, and the scheduler's clock.
 *
 * The scheduler's clock is a field of the run queue. On a kernel where the programs do not find it
 * (without CONFIG_FAIR_GROUP_SCHED, or with other names), it is CLOCK_MONOTONIC plus the difference
 * between the two at the last switch-in of the thread that is switched out: its sched_info has that
 * time by the scheduler's clock. Without sched_info (sched_info.h) it is CLOCK_MONOTONIC alone.
 */
#ifndef KCOLLECT_RUN_QUEUE_H
#define KCOLLECT_RUN_QUEUE_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Set by bpf/src/load.rs: false also where a test asks for the second way. */
extern const volatile bool use_run_queues;
extern const volatile bool use_sched_info;

static __always_inline bool has_sched_info(void)
{
	return use_sched_info &&
	       bpf_core_field_exists(((struct task_struct *)0)->sched_info.last_arrival) &&
	       bpf_core_field_exists(((struct task_struct *)0)->sched_info.last_queued) &&
	       bpf_core_field_exists(((struct task_struct *)0)->sched_info.run_delay);
}

static __always_inline bool has_run_queues(void)
{
	return use_run_queues && bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	       bpf_core_field_exists(struct cfs_rq, rq) && bpf_core_field_exists(struct rq, clock);
}

#endif
