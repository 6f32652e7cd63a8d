/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Since when a thread waits for a CPU, on kernels that don't keep it themselves (sched_info.h). */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "thread.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline int note_wakeup(struct task_struct *task)
{
	struct thread *thread = bpf_task_storage_get(&kc_threads, task, 0,
						     recording & create_storage);

	if (thread)
		thread->waits.queued_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_wakeup")
int kc_wakeup(__u64 *ctx)
{
	return note_wakeup((void *)ctx[0]);
}

SEC("tp_btf/sched_wakeup_new")
int kc_wakeup_new(__u64 *ctx)
{
	return note_wakeup((void *)ctx[0]);
}
