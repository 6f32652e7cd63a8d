/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The join of kernel and user stacks: a thread's user stack is the same from one return to user
 * mode to the next, so all records in between have the number of the next return, and the user
 * stack is sent once, with that number.
 *
 * A tick finds the thread on the CPU, with its memory at hand, and the user stack is sent at once,
 * with a number of its own. At a switch-in, the memory of another thread is still there. Kernels
 * that can call back when a thread returns to user mode (6.18) call the thread's own callback then.
 * A callback begins with an interrupt that the CPU sends itself, which in a virtual machine can
 * take 10 us. So if boundaries passed in the last off-CPU interval of a thread, its user stack is
 * sent at its next switch-out instead, which takes 3 us.
 * On other kernels the user stack is captured at each switch-out, unless the thread was at the same
 * place in user mode before; the number then stands for that place.
 */
#ifndef KCOLLECT_USER_RETURN_H
#define KCOLLECT_USER_RETURN_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "record.h"
#include "thread.h"
#include "user_scratch.h"
#include "user_stack.h"
#include "user_unwind.h"

/* User stacks are captured by callback. Set by bpf/src/load.rs, so that the other way can be tested
 * on a kernel that has callbacks. */
extern const volatile bool capture_on_return;

/* Threads whose next return to user mode is or was waited for, by tid. The kernel allows no task
 * work in task storage. */
struct return_wait {
	struct bpf_task_work work;
};

#define MAX_RETURN_WAITS 65536

struct return_waits {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_RETURN_WAITS);
	__type(key, __u32);
	__type(value, struct return_wait);
};

extern struct return_waits kc_return_waits SEC(".maps");

/* Where stacks are captured at switch-out: the user stack of a thread at its last switch-out. */
#define KEPT_FRAMES	    244
#define KEPT_BYTES	    2048
#define KEPT_LENGTH(length) ((length) & (KEPT_BYTES - 1))

struct kept_stack {
	struct user_return_record record;
	__u64 words[(KEPT_BYTES - sizeof(struct user_return_record)) / sizeof(__u64)];
};

struct kept_stacks {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kept_stack);
};

extern struct kept_stacks kc_kept_stacks SEC(".maps");

/* Claims memory for a user stack, for a program that runs in the thread. Returns NULL if all of it
 * is in use. */
static __always_inline struct user_scratch *claim_scratch(__u32 cpu, __u32 *scratch_index)
{
	struct user_scratch *out;

	*scratch_index = FIRST_SCRATCH(cpu);
	for (__u32 claimed = 1; claimed < SCRATCHES_PER_CPU; claimed++) {
		++*scratch_index;
		out = bpf_map_lookup_elem(&kc_user_scratch, scratch_index);
		if (out && !__sync_val_compare_and_swap(&out->busy, 0, 1))
			return out;
	}
	return 0;
}

/* Sends the user stack of the thread that runs. Called with interrupts off, or in the thread.
 * Returns the number of its frames. */
static __always_inline __u32 send_user_return(struct task_struct *task, __u32 number,
					      bool in_thread)
{
	__u32 cpu = bpf_get_smp_processor_id(), scratch_index = FIRST_SCRATCH(cpu);
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	__u64 start_ns = bpf_ktime_get_ns(), preempted = task->nivcsw;
	struct user_scratch *out;
	__u32 frames;

	if (!stats)
		return 0;
	out = in_thread ? claim_scratch(cpu, &scratch_index)
			: bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);
	if (!out) {
		__sync_fetch_and_add(&stats->user_returns_lost, 1);
		return 0;
	}
	describe_user_return(out, task, number, cpu);
	capture_user_stack(scratch_index, cpu);
	frames = out->record.header.frames;
	send_user_stack(out, stats, cpu);
	if (!in_thread)
		return frames;
	out->busy = 0;
	/* Other threads may have run meanwhile. */
	if (task->nivcsw == preempted)
		count_programs(stats, bpf_ktime_get_ns() - start_ns);
	return frames;
}

/* Max frames of a stack that is captured at switch-out in place of a callback. Each takes some
 * 50 ns. */
#define SWITCH_OUT_FRAMES 64

static __always_inline void note_depth(struct thread *thread, __u32 frames)
{
	if (frames > SWITCH_OUT_FRAMES)
		thread->flags |= DEEP;
	else
		thread->flags &= ~DEEP;
}

/* Runs in the thread when it returns to user mode. */
static int on_user_return(struct bpf_map *map, void *key, void *value)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&kc_threads, task, 0, 0);

	(void)map;
	(void)key;
	(void)value;
	if (!thread)
		return 0;
	/* Sent first: the record of a tick in between has this number too. */
	note_depth(thread, send_user_return(task, thread->user_return / 2 + 1, true));
	advance_user_return(thread);
	return 0;
}

static __always_inline bool wait_for_user_return(struct task_struct *task)
{
	struct return_wait *wait;
	__u32 tid = task->pid;

	wait = bpf_map_lookup_elem(&kc_return_waits, &tid);
	if (!wait) {
		struct return_wait none = {};

		bpf_map_update_elem(&kc_return_waits, &tid, &none, BPF_NOEXIST);
		wait = bpf_map_lookup_elem(&kc_return_waits, &tid);
	}
	if (!wait)
		return false;
	if (bpf_ksym_exists(bpf_task_work_schedule_resume))
		return !bpf_task_work_schedule_resume(task, &wait->work, &kc_return_waits,
						      on_user_return);
	if (bpf_ksym_exists(bpf_task_work_schedule_resume_impl))
		return !bpf_task_work_schedule_resume_impl(task, &wait->work, &kc_return_waits,
							   on_user_return, (void *)0);
	return false;
}

/* Hash of the callers among the next 16 words of the stack. Only words that can be addresses of
 * code count: in the same 4 GiB as the instruction, in a position-independent executable, or in one
 * that is linked to low addresses. Other words, such as times, change from one sleep to the
 * next. */
static __always_inline __u64 hash_of_callers(struct user_scratch *out, __u64 ip, __u64 sp)
{
	__u64 callers_hash = 0;

	if (bpf_probe_read_user(out->words, 16 * sizeof(*out->words), (void *)sp))
		return 0;
	for (__u32 number = 0; number < 16; number++) {
		__u64 word = out->words[number];

		if (word >> 32 == ip >> 32 || word >> 44 == 5 || word - 0x400000 < 0x4000000)
			callers_hash = (callers_hash ^ word) * 0x9e3779b97f4a7c15;
	}
	return callers_hash;
}

/* Whether the user stack of a thread that leaves its CPU is captured in place of a callback: the
 * off-CPU interval will be long, as the last one was, and no callback is awaited. */
static __always_inline bool replaces_callback(struct thread *thread)
{
	__u32 before = thread->flags;

	thread->flags &= ~(WAS_LONG | CAPTURED);
	return (before & (WAS_LONG | DEEP)) == WAS_LONG && !(thread->user_return & RETURN_AWAITED);
}

/* Keeps the place in user mode of a thread that leaves its CPU. Returns whether it is another than
 * at the last switch-out: then the user stack has to be captured. */
static __always_inline bool user_pc_changed(struct user_scratch *out, struct task_struct *task,
					    struct thread *thread)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 ip = user_ip(regs), sp = user_sp(regs);
	__u64 callers_hash = hash_of_callers(out, ip, sp);

	if (thread->ip == ip && thread->sp == sp && thread->callers_hash == callers_hash)
		return false;
	thread->ip = ip;
	thread->sp = sp;
	thread->callers_hash = callers_hash;
	return true;
}

/* Captures the user stack of a thread that leaves its CPU, with its memory still at hand. On a
 * kernel with callbacks it is sent. On others it is kept with the thread, and sent if boundaries
 * pass in the off-CPU interval. */
static __always_inline void capture_at_switch_out(struct cpu_stats *stats, struct task_struct *task,
						  struct thread *thread, __u32 cpu)
{
	__u32 scratch_index = FIRST_SCRATCH(cpu);
	struct kept_stack *kept = 0;
	struct user_scratch *out;

	if (!capture_user_stacks || (capture_on_return && !replaces_callback(thread)) ||
	    task->flags & (PF_NO_USER_CODE | PF_EXITING) || !is_followed(task))
		return;
	out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);
	if (!out)
		return;
	if (!capture_on_return) {
		if (!user_pc_changed(out, task, thread))
			return;
		kept = bpf_task_storage_get(&kc_kept_stacks, task, 0,
					    BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!kept) {
			thread->ip = 0;
			__sync_fetch_and_add(&stats->user_returns_lost, 1);
			return;
		}
	}
	advance_user_return(thread);
	describe_user_return(out, task, thread->user_return / 2, cpu);
	capture_user_stack(scratch_index, cpu);
	if (capture_on_return) {
		thread->flags |= CAPTURED;
		note_depth(thread, out->record.header.frames);
	}
	if (!kept || out->record.header.flags & FLAG_STACK_COPY ||
	    out->record.header.frames > KEPT_FRAMES) {
		send_user_stack(out, stats, cpu);
		return;
	}
	__builtin_memcpy(&kept->record, &out->record, sizeof(kept->record));
	bpf_probe_read_kernel(kept->words, sizeof(kept->words), out->words);
	thread->user_return |= RETURN_AWAITED;
}

static __always_inline void send_kept_stack(struct cpu_stats *stats, struct task_struct *task,
					    struct thread *thread, __u32 cpu)
{
	struct kept_stack *kept = bpf_task_storage_get(&kc_kept_stacks, task, 0, 0);
	__u64 size;

	if (!kept)
		return;
	thread->user_return &= ~RETURN_AWAITED;
	kept->record.header.time_ns = bpf_ktime_get_ns();
	size = sizeof(kept->record) + 8 * (__u64)kept->record.header.frames;
	if (!send(cpu, kept, KEPT_LENGTH(size)))
		__sync_fetch_and_add(&stats->user_returns_lost, 1);
}

/* Number for a record of a thread since its last return to user mode, or 0 if it will not return
 * again. `current`: the thread is on this CPU. */
static __always_inline __u32 next_user_return(struct cpu_stats *stats, struct task_struct *task,
					      struct thread *thread, bool current, __u32 cpu)
{
	__u32 number;

	if (!capture_user_stacks || !thread || task->flags & PF_NO_USER_CODE || !is_followed(task))
		return 0;
	if (current && capture_on_return && thread->user_return & RETURN_AWAITED)
		return thread->user_return / 2 + 1;
	if (current) {
		/* An exiting thread still has its memory for a while. Read by a call: at a load of
		 * this pointer, the verifier looks for four types by name, linearly. */
		if (task->flags & PF_EXITING && !BPF_CORE_READ(task, mm))
			return 0;
		advance_user_return(thread);
		number = thread->user_return / 2;
		thread->ip = 0;
		send_user_return(task, number, false);
		return number;
	}
	if (!capture_on_return) {
		if (!thread->ip)
			return 0;
		if (thread->user_return & RETURN_AWAITED)
			send_kept_stack(stats, task, thread, cpu);
		return thread->user_return / 2;
	}
	if (thread->flags & CAPTURED)
		return thread->user_return / 2;
	number = thread->user_return / 2 + 1;
	if (thread->user_return & RETURN_AWAITED)
		return number;
	if (task->flags & PF_EXITING)
		return 0;
	thread->flags |= RETURN_WANTED;
	return number;
}

/* Waits for the return to user mode whose number next_user_return() has returned. Inlined into the
 * program itself and into none of its functions: older verifiers take the callback for a function
 * that is called here, and add its stack to the stacks of all callers. */
static __always_inline void await_user_return(struct cpu_stats *stats, struct task_struct *task,
					      struct thread *thread)
{
	thread->flags &= ~RETURN_WANTED;
	if (wait_for_user_return(task)) {
		thread->user_return |= RETURN_AWAITED;
		return;
	}
	/* No stack will have that number. */
	thread->user_return += 2;
	__sync_fetch_and_add(&stats->user_returns_lost, 1);
}

/* The thread exits, or gets another tid. */
static __always_inline void evict_return_wait(__u32 tid, struct thread *thread)
{
	if (capture_user_stacks && capture_on_return && thread->user_return)
		bpf_map_delete_elem(&kc_return_waits, &tid);
}

#endif
