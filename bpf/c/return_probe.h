/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Return probes of any program (bpftrace, perf): where one is on a function, the kernel replaces
 * the return address on the stack by a trampoline's, in the page [uprobes]. It keeps the original,
 * keyed by the address on the stack where it was. That address is what is compared here:
 * counting would go wrong after longjmp(3), which leaves entries of functions that never returned.
 *
 * The kernel's structures are read as words. A pointer that is read through its type is looked up
 * among all types of the kernel by the verifier, which takes tens of microseconds each time.
 */
#ifndef KCOLLECT_RETURN_PROBE_H
#define KCOLLECT_RETURN_PROBE_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "mapped_code.h"
#include "user_scratch.h"

/* As deep as the kernel lets probed calls be nested (MAX_URETPROBE_DEPTH). */
#define MAX_RETURN_PROBES 64

/* Address of the newest probed call of a thread, a struct return_instance, or 0. */
static __always_inline __u64 newest_instance(struct mapped_code *code, struct task_struct *task)
{
	__u64 utask;

	if (!bpf_core_field_exists(task->utask))
		return 0;
	utask = KERNEL_FIELD(code, struct task_struct, (__u64)task, utask);
	return utask ? KERNEL_FIELD(code, struct uprobe_task, utask, return_instances) : 0;
}

/* The address that stands in place of return addresses on a thread's stack, or 0. `mm` is the
 * address of its struct mm_struct. */
static __always_inline __u64 trampoline_of(struct mapped_code *code, struct task_struct *task,
					   __u64 mm)
{
	__u64 area;

	if (!bpf_core_field_exists(task->mm->uprobes_state.xol_area) || !mm ||
	    !newest_instance(code, task))
		return 0;
	area = KERNEL_FIELD(code, struct mm_struct, mm, uprobes_state.xol_area);
	return area ? KERNEL_FIELD(code, struct xol_area, area, vaddr) : 0;
}

/* A walk through the return addresses that were replaced. */
struct replaced_returns {
	struct user_scratch *out;
	__u64 instance; /* the address of the next one */
};

/* A field of the next one. */
#define REPLACED_RETURN(at, field) \
	KERNEL_FIELD(&(at)->out->code, struct return_instance, (at)->instance, field)

static long find_original(__u64 number, struct replaced_returns *at)
{
	struct unwind_state *state = &at->out->state;

	(void)number;
	if (!at->instance)
		return 1;
	if (REPLACED_RETURN(at, stack) == state->registers[UNWIND_SP] - sizeof(__u64)) {
		state->pc = REPLACED_RETURN(at, orig_ret_vaddr);
		return 1;
	}
	at->instance = REPLACED_RETURN(at, next);
	return 0;
}

/* The unwind went to a caller at the trampoline: goes to the true one. */
static __always_inline void restore_return_address(struct user_scratch *out,
						   struct task_struct *task)
{
	struct replaced_returns at = {.out = out, .instance = newest_instance(&out->code, task)};

	bpf_loop(MAX_RETURN_PROBES, find_original, &at, 0);
}

#endif
