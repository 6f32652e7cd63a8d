/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Whether a thread that blocks is handling a page fault. Its kernel stack shows that, but takes
 * time to read. So it is read only if the thread entered the kernel by an exception, or has had a
 * page fault in the kernel: kc_kernel_fault notes these. Faults in user mode, which are ten times
 * as many, need no note.
 */
#ifndef KCOLLECT_PAGE_FAULT_H
#define KCOLLECT_PAGE_FAULT_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "record.h"

/* In how many frames of a stack the handling of a page fault is looked for: in the kernel in the
 * innermost, in user mode in the outermost. */
#define KERNEL_FAULT_FRAMES 32
#define USER_FAULT_FRAMES   8

/* Where the kernel handles page faults: set by bpf/src/load.rs, from the kernel's symbols. */
extern const volatile __u64 page_fault_from;
extern const volatile __u64 page_fault_to;
/* kc_kernel_fault runs: a thread without a note is in no page fault of the kernel. Set by
 * bpf/src/load.rs. */
extern const volatile bool kernel_faults_are_noted;

/* A search of a stack for the handling of a page fault, from a frame on. */
struct fault_search {
	const struct tick_scratch *stack;
	__u64 first;
	__u64 found;
};

static long is_fault_frame(__u64 frame, struct fault_search *search)
{
	__u64 index = search->first + frame, address;

	if (index >= MAX_KERNEL_FRAMES)
		return 1;
	address = search->stack->stack[index];
	search->found = address >= page_fault_from && address < page_fault_to;
	return search->found;
}

/* Whether a thread that blocks is handling a page fault of user mode or of the kernel. Without
 * kallsyms, assume that every block from user mode is a page fault, and that no other is. */
static __always_inline bool in_page_fault(struct task_struct *task, struct tick_scratch *out,
					  bool user)
{
	struct fault_search search = {.stack = out};
	__u64 frames, max_frames = user ? USER_FAULT_FRAMES : KERNEL_FAULT_FRAMES;
	long got;

	if (!page_fault_from)
		return user;
	got = bpf_get_task_stack(task, out->stack, sizeof(out->stack), 0);
	frames = got > 0 ? got / sizeof(__u64) : 0;
	if (frames > max_frames) {
		search.first = user ? frames - max_frames : 0;
		frames = max_frames;
	}
	bpf_loop(frames, is_fault_frame, &search, 0);
	return search.found;
}

/* State of the current thread, which blocks, if it is in a page fault of user mode or of the
 * kernel; otherwise 0. If the instruction can't be read, the thread waits for that, also if only
 * the end can't, in the next page. A global function in page_fault.bpf.c, which the verifier checks
 * once. */
__u32 kc_fault_of_current(bool user);

#endif
