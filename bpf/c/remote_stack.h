/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The user stack of a thread that does not run: unwound or copied from another thread, by a program
 * that may sleep. */
#ifndef KCOLLECT_REMOTE_STACK_H
#define KCOLLECT_REMOTE_STACK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "records.h"
#include "unwind_scan.h"
#include "user_scratch.h"
#include "user_stack.h"
#include "user_unwind.h"

/* A task other than the current one, whose stack is unwound. */
struct remote_task {
	struct user_scratch *out;
	struct task_struct *task;
};

/* Reads a word by way of the window on the stack. */
static __always_inline int read_remote_word(void *context, __u64 address, __u64 *word)
{
	struct remote_task *remote = context;
	struct user_scratch *out = remote->out;
	void *window = out->words + WINDOW_WORD;

	if (address - out->window > WINDOW_BYTES - sizeof(*word)) {
		out->window = address;
		if (bpf_copy_from_user_task(window, WINDOW_BYTES, (void *)address, remote->task,
					    0)) {
			/* Near the end of the stack. */
			out->window = -(__u64)WINDOW_BYTES;
			return bpf_copy_from_user_task(word, sizeof(*word), (void *)address,
						       remote->task, 0);
		}
	}
	*word = *(__u64 *)(window + ((address - out->window) & (WINDOW_BYTES - 1)));
	return 0;
}

/* Without hooks of scans: its stack is not scanned. */
static const struct unwind_hooks remote_stack_hooks = {.read = read_remote_word};

static long remote_step(__u64 index, struct remote_task *remote)
{
	(void)index;
	return step(remote->out, remote->task, &remote_stack_hooks, remote);
}

static __always_inline void capture_remote_stack(struct user_scratch *out, struct task_struct *task)
{
	struct remote_task remote = {.out = out, .task = task};

	out->window = -(__u64)WINDOW_BYTES;
	if (begin_unwind(out, ITER_SCRATCH))
		bpf_loop(MAX_USER_FRAMES + 1, remote_step, &remote, 0);
	if (end_unwind(out, task))
		copy_stack(out, task, MAX_PIECES);
}

#endif
