/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Return probes of any program (bpftrace, perf): where one is on a function, the kernel replaces
 * the return address on the stack by that of a trampoline, the page [uprobes]. It keeps the
 * original, by the address on the stack where it was. That address is what is compared here:
 * counting would go wrong after longjmp(3), which leaves entries of functions that never returned.
 */
#ifndef KCOLLECT_RETURN_PROBE_H
#define KCOLLECT_RETURN_PROBE_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include "unwind.h"

/* As deep as the kernel lets probed calls be nested (MAX_URETPROBE_DEPTH). */
#define MAX_RETURN_PROBES 64

/* Returns the newest probed call of a thread, or 0. */
static __always_inline struct return_instance *newest_instance(struct task_struct *task)
{
	if (!bpf_core_field_exists(task->utask) || !task->utask)
		return 0;
	return task->utask->return_instances;
}

/* Returns the address that stands in place of return addresses on a thread's stack, or 0. */
static __always_inline __u64 trampoline_of(struct task_struct *task)
{
	struct xol_area *area;

	if (!bpf_core_field_exists(task->mm->uprobes_state.xol_area) || !newest_instance(task) ||
	    !task->mm)
		return 0;
	area = task->mm->uprobes_state.xol_area;
	return area ? area->vaddr : 0;
}

/* The unwind went to a caller at the trampoline: goes to the true one. */
static __always_inline void restore_return_address(struct unwind_state *state,
						   struct task_struct *task)
{
	__u64 address = state->registers[UNWIND_SP] - sizeof(__u64);
	struct return_instance *instance = newest_instance(task);

	for (__u32 number = 0; number < MAX_RETURN_PROBES && instance; number++) {
		if (instance->stack == address) {
			state->pc = instance->orig_ret_vaddr;
			return;
		}
		instance = instance->next;
	}
}

#endif
