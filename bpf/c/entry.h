/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The join of kernel and user side: a thread's user stack is the same from one entry to user mode
 * to the next, so whatever is recorded in between carries the number of the coming entry, and the
 * user side is told once, with that number.
 *
 * A tick finds the thread on the CPU, with its user side at hand, and tells at once; so it has a
 * number of its own. A thread that comes back from an absence is found with another one's memory
 * around it. Where the kernel calls back on the way to user mode (6.18), the thread tells by itself
 * then. Elsewhere the user side is taken when it leaves its CPU, unless it left it at the same
 * place before; the number stands for that place.
 */
#ifndef KCOLLECT_ENTRY_H
#define KCOLLECT_ENTRY_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "maps.h"
#include "record.h"
#include "user.h"

#define PF_IO_WORKER 0x00000010

/* Does anybody ask for user sides? And are they told by callback: set by load.rs, so that the other
 * way can be tested on a kernel that has this one. A callback begins with an interrupt that the CPU
 * sends itself, which in a virtual machine can take 10 us: not for nothing. */
const volatile bool tell_entries;
const volatile bool callback_on_entry;

/* Tells the user side of the thread that runs: by a program that runs with interrupts off, or in
 * the thread. */
static __always_inline void send_entry(struct task_struct *task, __u32 number, bool in_thread)
{
	__u32 cpu = bpf_get_smp_processor_id(), place = cpu * SCRATCHES;
	struct cpu_books *book = bpf_map_lookup_elem(&books, &cpu);
	struct user_scratch *out = 0;

	if (!book)
		return;
	if (!in_thread) {
		out = bpf_map_lookup_elem(&user_scratch, &place);
	} else {
		for (__u32 claimed = 1; claimed < SCRATCHES; claimed++) {
			place++;
			out = bpf_map_lookup_elem(&user_scratch, &place);
			if (out && !__sync_val_compare_and_swap(&out->busy, 0, 1))
				break;
			out = 0;
		}
	}
	if (!out) {
		__sync_fetch_and_add(&book->entries_lost, 1);
		return;
	}
	describe_entry(out, task, number, cpu);
	take_user_stack(out, task, place, cpu);
	send_user_stack(out, book, cpu);
	if (in_thread)
		out->busy = 0;
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
	send_entry(task, thread->entry / 2 + 1, true);
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
	return wait && !bpf_task_work_schedule_resume_impl(task, &wait->work, &entry_waits,
							   on_entry, (void *)0);
}

/* A place is also known by its callers, as far as the next 16 words of the stack have them: by the
 * words that can be addresses of code, in the 4 GiB around the instruction, in a program that was
 * linked to lie anywhere, or in one that was linked to lie low. The others change from sleep to
 * sleep, as times do. */
static __always_inline __u64 print_of(__u64 ip, __u64 sp)
{
	__u64 words[16], print = 0;

	if (bpf_probe_read_user(words, sizeof(words), (void *)sp))
		return 0;
	for (__u32 number = 0; number < 16; number++) {
		__u64 word = words[number];

		if (word >> 32 == ip >> 32 || word >> 44 == 5 || word - 0x400000 < 0x4000000)
			print = (print ^ word) * 0x9e3779b97f4a7c15;
	}
	return print;
}

/* Where entries are not seen: a thread leaves its CPU, with its memory still at hand. Where it is
 * in user mode is kept with it, and told if boundaries pass in its absence. */
static __always_inline void keep_place(struct cpu_books *book, struct task_struct *task,
				       struct thread *thread, __u32 cpu)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u32 place = cpu * SCRATCHES;
	struct user_scratch *out;
	struct kept_place *kept;
	__u64 print;

	if (!tell_entries || callback_on_entry ||
	    task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_EXITING) || !is_followed(task))
		return;
	print = print_of(regs->ip, regs->sp);
	if (thread->ip == regs->ip && thread->sp == regs->sp && thread->print == print)
		return;
	kept = bpf_task_storage_get(&places, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	out = bpf_map_lookup_elem(&user_scratch, &place);
	if (!kept || !out) {
		__sync_fetch_and_add(&book->entries_lost, 1);
		return;
	}
	thread->ip = regs->ip;
	thread->sp = regs->sp;
	thread->print = print;
	thread->entry = (thread->entry & ~ENTRY_AWAITED) + 2;
	describe_entry(out, task, thread->entry / 2, cpu);
	take_user_stack(out, task, place, cpu);
	if (out->record.head.flags & ENTRY_COPIED || out->record.head.frames > KEPT_FRAMES) {
		send_user_stack(out, book, cpu);
		return;
	}
	__builtin_memcpy(&kept->record, &out->record, sizeof(kept->record));
	bpf_probe_read_kernel(kept->words, sizeof(kept->words), out->words);
	thread->entry |= ENTRY_AWAITED;
}

static __always_inline void send_kept(struct cpu_books *book, struct task_struct *task,
				      struct thread *thread, __u32 cpu)
{
	struct kept_place *kept = bpf_task_storage_get(&places, task, 0, 0);
	__u64 size;

	if (!kept)
		return;
	thread->entry &= ~ENTRY_AWAITED;
	kept->record.head.time = bpf_ktime_get_ns();
	size = sizeof(kept->record) + 8 * (__u64)kept->record.head.frames;
	if (!send(cpu, kept, KEPT_LENGTH(size)))
		__sync_fetch_and_add(&book->entries_lost, 1);
}

/* The number for a record of what a thread did since it left user mode; 0 for one that will not be
 * there. `current`: it is on this CPU. */
static __always_inline __u32 next_entry(struct cpu_books *book, struct task_struct *task,
					struct thread *thread, bool current, __u32 cpu)
{
	__u32 number;

	if (!tell_entries || !thread || task->flags & (PF_KTHREAD | PF_IO_WORKER) ||
	    !is_followed(task))
		return 0;
	if (current && callback_on_entry && thread->entry & ENTRY_AWAITED)
		return thread->entry / 2 + 1;
	if (current) {
		/* An ending thread has its memory for a while. */
		if (task->flags & PF_EXITING && !task->mm)
			return 0;
		thread->entry = (thread->entry & ~ENTRY_AWAITED) + 2;
		number = thread->entry / 2;
		thread->ip = 0;
		send_entry(task, number, false);
		return number;
	}
	if (!callback_on_entry) {
		if (!thread->ip)
			return 0;
		if (thread->entry & ENTRY_AWAITED)
			send_kept(book, task, thread, cpu);
		return thread->entry / 2;
	}
	number = thread->entry / 2 + 1;
	if (thread->entry & ENTRY_AWAITED)
		return number;
	if (task->flags & PF_EXITING)
		return 0;
	if (!wait_for_entry(task)) {
		__sync_fetch_and_add(&book->entries_lost, 1);
		return 0;
	}
	thread->entry |= ENTRY_AWAITED;
	return number;
}

/* The thread ends. */
static __always_inline void forget_entry(struct task_struct *task, struct thread *thread)
{
	__u32 tid = task->pid;

	if (tell_entries && callback_on_entry && thread->entry)
		bpf_map_delete_elem(&entry_waits, &tid);
}

#endif
