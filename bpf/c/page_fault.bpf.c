/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Page faults: notes those in the kernel, and finds those in which a thread blocks. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "page_fault.h"
#include "record.h"
#include "thread.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u64 page_fault_from;
const volatile __u64 page_fault_to;
const volatile bool kernel_faults_are_noted;

__attribute__((noinline)) __u32 kc_fault_of_current(bool user)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u8 instruction[INSTRUCTION_BYTES];
	struct tick_scratch *out = only_element(&kc_scratch);
	struct pt_regs *regs;

	if (!out || !in_page_fault(task, out, user))
		return 0;
	if (!user)
		return STATE_KERNEL_FAULT;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	return regs && bpf_probe_read_user(instruction, sizeof(instruction), (void *)user_ip(regs))
		       ? STATE_TEXT_FAULT
		       : STATE_DATA_FAULT;
}

SEC("tp_btf/page_fault_kernel")
int kc_kernel_fault(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&kc_threads, task, 0, 0);

	(void)ctx;
	if (thread) {
		thread->kernel_fault = 1;
		thread->faulted_in_kernel = 1;
	}
	return 0;
}
