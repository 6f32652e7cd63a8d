/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The join of kernel and user side: a thread's user stack is the same from one entry to user mode to
 * the next, so whatever is recorded in between carries the number of the coming entry, and the user
 * side is told once, with that number.
 *
 * A tick finds the thread on the CPU, with its user side at hand, and tells at once; so it has a number
 * of its own. A thread that comes back from an absence is found with another one's memory around it. Where
 * the kernel calls back on the way to user mode (6.18), the thread tells by itself then. Elsewhere the
 * number stands for a place in user mode, and changes when the thread is found at another one: a thread
 * that went to user mode and came back to the same place has the same number, and is told of once.
 */
#ifndef KCOLLECT_ENTRY_H
#define KCOLLECT_ENTRY_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "maps.h"
#include "record.h"

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000

/* Does anybody ask for user sides? And are they told by callback: set by load.rs, so that the other way can be tested on
 * a kernel that has this one. A callback begins with an interrupt that the CPU sends itself, which in a virtual machine
 * can take 10 us: not for nothing. */
const volatile bool tell_entries;
const volatile bool callback_on_entry;

static __always_inline void send_entry(struct task_struct *task, __u32 number)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct entry_record record = {};

	if (!book)
		return;
	describe(&record.head, task, bpf_ktime_get_ns(), cpu, RECORD_ENTRY, 0);
	record.head.entry = number;
	if (task->flags & PF_EXITING)
		record.head.flags = ENTRY_AT_EXIT;
	record.ip = user_ip(regs);
	record.sp = regs->sp;
	if (!send(cpu, &record, sizeof(record)))
		__sync_fetch_and_add(&book->entries_lost, 1);
}

/* In the thread, on its way to user mode. */
static int on_entry(struct bpf_map *map, void *key, void *value)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&threads, task, 0, 0);

	(void)map;
	(void)key;
	(void)value;
	if (!thread)
		return 0;
	/* Told first: what a tick records meanwhile has this number too. */
	send_entry(task, thread->entry / 2 + 1);
	thread->entry = (thread->entry & ~ENTRY_AWAITED) + 2;
	return 0;
}

static __always_inline bool wait_for_entry(struct task_struct *task)
{
	struct entry_wait *wait;
	__u32 tid = task->pid;

	if (!bpf_ksym_exists(bpf_task_work_schedule_resume_impl))
		return false;
	wait = bpf_map_lookup_elem(&entry_waits, &tid);
	if (!wait) {
		struct entry_wait none = {};

		bpf_map_update_elem(&entry_waits, &tid, &none, BPF_NOEXIST);
		wait = bpf_map_lookup_elem(&entry_waits, &tid);
	}
	return wait && !bpf_task_work_schedule_resume_impl(task, &wait->work, &entry_waits, on_entry, (void *)0);
}

/* The number for a record of what a thread did since it left user mode; 0 for one that will not be there. `current`: it
 * is on this CPU. */
static __always_inline __u32 next_entry(struct cpu_books *book, struct task_struct *task, struct thread *thread,
					bool current)
{
	struct pt_regs *regs;
	__u32 number;

	if (!tell_entries || !thread || task->flags & (PF_KTHREAD | PF_IO_WORKER))
		return 0;
	if (callback_on_entry) {
		number = thread->entry / 2 + 1;
		if (thread->entry & ENTRY_AWAITED)
			return number;
		if (task->flags & PF_EXITING)
			return 0;
		if (current) {
			send_entry(task, number);
			thread->entry += 2;
		} else if (wait_for_entry(task)) {
			thread->entry |= ENTRY_AWAITED;
		} else {
			__sync_fetch_and_add(&book->entries_lost, 1);
			return 0;
		}
		return number;
	}
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!(thread->entry & ENTRY_AWAITED) || thread->ip != user_ip(regs) || thread->sp != regs->sp) {
		thread->ip = user_ip(regs);
		thread->sp = regs->sp;
		thread->entry = ((thread->entry + 1) & ~ENTRY_AWAITED) + ENTRY_AWAITED;
		send_entry(task, thread->entry / 2 + 1);
	}
	return thread->entry / 2 + 1;
}

/* The thread ends. */
static __always_inline void forget_entry(struct task_struct *task, struct thread *thread)
{
	__u32 tid = task->pid;

	if (tell_entries && callback_on_entry && thread->entry)
		bpf_map_delete_elem(&entry_waits, &tid);
}

#endif
