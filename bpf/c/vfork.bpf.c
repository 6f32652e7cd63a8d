/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Processes whose parent waits until they call exec or exit, as in vfork(2), and so in posix_spawn,
 * system and popen. The side-band reports them as any other fork; this record adds that the parent
 * waits.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "record.h"
#include "user_stack.h"

char LICENSE[] SEC("license") = "GPL";

/* Of the system call's interface. */
#define CLONE_VFORK  0x00004000
#define CLONE_THREAD 0x00010000

SEC("tp_btf/task_newtask")
int kc_vfork_start(__u64 *ctx)
{
	struct task_struct *child = (void *)ctx[0];
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats;
	struct record_header record;

	if (!capture_user_stacks || (ctx[1] & (CLONE_VFORK | CLONE_THREAD)) != CLONE_VFORK)
		return 0;
	/* The child's start is before the side-band's record of the fork: a reader of both, in
	 * order of time, has this one first. */
	describe(&record, child, child->start_time, cpu, RECORD_VFORK_START, 0);
	stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	if (!send(cpu, &record, sizeof(record)) && stats)
		__sync_fetch_and_add(&stats->vfork_starts_lost, 1);
	return 0;
}
