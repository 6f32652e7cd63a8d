/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The record of a thread's exact times and counts. */
#ifndef KCOLLECT_THREAD_RECORD_H
#define KCOLLECT_THREAD_RECORD_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "clock.h"
#include "record.h"
#include "thread.h"

static __always_inline void read_kernel_counts(struct task_struct *task, __u64 *counts)
{
	counts[MINOR_FAULTS] = task->min_flt;
	counts[MAJOR_FAULTS] = task->maj_flt;
	counts[VOLUNTARY_SWITCHES] = task->nvcsw;
	counts[INVOLUNTARY_SWITCHES] = task->nivcsw;
	counts[READ_CHARS] = task->ioac.rchar;
	counts[WRITTEN_CHARS] = task->ioac.wchar;
	counts[READ_CALLS] = task->ioac.syscr;
	counts[WRITE_CALLS] = task->ioac.syscw;
	counts[READ_BYTES] = task->ioac.read_bytes;
	counts[WRITTEN_BYTES] = task->ioac.write_bytes;
}

/* No kernel has as many controllers. */
#define MAX_CONTROLLERS 32

/* The deepest group of controllers, or `group` if none is below its root. */
static __always_inline struct cgroup *deepest_group(struct css_set *set, struct cgroup *group)
{
	void *controllers = (void *)set + bpf_core_field_offset(set->subsys);
	__u32 count = bpf_core_field_size(set->subsys) / sizeof(void *);
	int level, deepest = 0;

	for (__u32 index = 0; index < MAX_CONTROLLERS && index < count; index++) {
		struct cgroup_subsys_state *state = 0;
		struct cgroup *candidate;

		bpf_probe_read_kernel(&state, sizeof(state), controllers + index * sizeof(void *));
		if (!state)
			continue;
		candidate = BPF_CORE_READ(state, cgroup);
		level = BPF_CORE_READ(candidate, level);
		if (level > deepest) {
			deepest = level;
			group = candidate;
		}
	}
	return group;
}

/* Fills in the control group of a thread. Kernel threads are in the root of all. While a process
 * lives, its leading thread is enough: it may have thousands. */
static __always_inline void read_group(struct thread_record *out, struct task_struct *task)
{
	struct css_set *set;
	struct cgroup *group;

	out->cgroup = 0;
	out->hierarchy = 0;
	if (!bpf_core_field_exists(task->cgroups) || task->flags & PF_KTHREAD)
		return;
	if (task->pid != task->tgid && !(task->flags & PF_EXITING))
		return;
	set = BPF_CORE_READ(task, cgroups);
	group = BPF_CORE_READ(set, dfl_cgrp);
	if (!BPF_CORE_READ(group, level))
		group = deepest_group(set, group);
	out->cgroup = BPF_CORE_READ(group, kn, id);
	out->hierarchy = BPF_CORE_READ(group, root, hierarchy_id);
}

/* Fills in a thread's record. `account` is the thread's, or a copy with the open interval closed.
 */
static __always_inline void fill_thread_record(struct thread_record *out, struct task_struct *task,
					       __u64 time_ns, struct thread *thread,
					       const struct account *account, __u32 cpu)
{
	describe(&out->header, task, time_ns, cpu, RECORD_THREAD, 0);
	/* In an exec by another thread, the first thread gets that one's number when it is a
	 * zombie, which may be before it leaves its CPU for the last time. */
	out->header.tid = thread->tid;
	out->header.blocked = thread->faulted_in_kernel;
	out->task = (__u64)task;
	out->as_of_ns = account->since_ns - any_offset_ns;
	out->tracked_ns = account->tracked_ns;
	__builtin_memcpy(out->ns, account->ns, sizeof(out->ns));
	__builtin_memcpy(out->cause_ns, account->cause_ns, sizeof(out->cause_ns));
	read_kernel_counts(task, out->counts);
	for (__u32 index = 0; index < KERNEL_COUNTS; index++)
		out->counts[index] -= thread->baseline[index];
	read_group(out, task);
	out->user = BPF_CORE_READ(task, cred, euid.val);
}

#endif
