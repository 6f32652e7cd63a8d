/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Stolen time: the hypervisor runs something else while a thread is on this virtual CPU.
 *
 * The kernel has two sums of it for each CPU. The hypervisor writes one, which is always up to
 * date. The run queue has the other: it is up to date in sched_switch, and is exactly what the
 * scheduler leaves out of the times of threads on the CPU. So context switches read the run
 * queue's, and ticks the hypervisor's. BPF programs cannot name variables of a CPU; the
 * hypervisor's sum lies at a fixed distance from the run queue, which a thread leads to.
 *
 * Without a hypervisor that writes it, and on kernels that do not leave it out of the times of
 * threads (CONFIG_PARAVIRT_TIME_ACCOUNTING), nothing is stolen: it is time on the CPU, as in
 * getrusage(2).
 */
#ifndef KCOLLECT_STEAL_H
#define KCOLLECT_STEAL_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "cpu_stats.h"

/* Distance from a CPU's run queue to the sum that the hypervisor writes; 0 if the hypervisor writes
 * no sum. Set by bpf/src/steal.rs. */
extern const volatile __u64 steal_from_rq;

/* Time stolen from this CPU since the last context switch. */
static __always_inline __u64 stolen_since_switch(struct cpu_stats *stats, struct rq *rq)
{
	__u64 before = stats->switch_steal_ns, steal;

	if (!steal_from_rq || !bpf_core_field_exists(rq->prev_steal_time_rq))
		return 0;
	steal = rq->prev_steal_time_rq;
	stats->switch_steal_ns = steal;
	stats->steal_at = (__u64)rq + steal_from_rq;
	return before && steal > before ? steal - before : 0;
}

/* Time stolen from this CPU since the last call. */
static __always_inline __u64 stolen_since_count(struct cpu_stats *stats)
{
	__u64 before = stats->steal_ns, steal;

	if (!stats->steal_at ||
	    bpf_probe_read_kernel(&steal, sizeof(steal), (void *)stats->steal_at))
		return 0;
	stats->steal_ns = steal;
	return before && steal > before ? steal - before : 0;
}

/* Time stolen from a CPU, which may be another one, between its last context switch and the last
 * time that boundaries were counted there. When recording stops, that is its end. */
static __always_inline __u64 stolen_until_count(struct cpu_stats *stats)
{
	__u64 before = stats->switch_steal_ns;

	return before && stats->steal_ns > before ? stats->steal_ns - before : 0;
}

#endif
