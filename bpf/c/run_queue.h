/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The run queue that a thread leads to, and the scheduler's clock.
 *
 * The scheduler's clock is a field of the run queue. On a kernel where the programs do not find it
 * (without CONFIG_FAIR_GROUP_SCHED, or with other names), it is CLOCK_MONOTONIC plus the
 * difference between the two when the thread came that leaves now: its sched_info has that time by
 * the scheduler's clock.
 */
#ifndef KCOLLECT_RUN_QUEUE_H
#define KCOLLECT_RUN_QUEUE_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

static __always_inline bool has_run_queues(void)
{
	return bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	       bpf_core_field_exists(struct cfs_rq, rq) && bpf_core_field_exists(struct rq, clock);
}

#endif
