/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The record of a user stack: how it begins, ends, and is sent. In between the stack is unwound by
 * the tables that user space has published (user_unwind.h). Where a table is missing, the stack is
 * copied here, to be unwound in user space.
 *
 * A short-lived process may exit before user space has read the files that it maps. With stack
 * copies its ticks have complete stacks too. Copies are large, and are made only while the ring has
 * space for them.
 */
#ifndef KCOLLECT_USER_STACK_H
#define KCOLLECT_USER_STACK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.h"
#include "mapped_code.h"
#include "record.h"
#include "return_probe.h"
#include "unwind_scan.h"
#include "unwind_tables.h"
#include "user_scratch.h"

/* User stacks are wanted. */
extern const volatile bool capture_user_stacks;

/* Unfollowed processes by tgid; the value is the task->self_exec_id for which that holds. */
struct ignored {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __u32);
};

extern struct ignored kc_ignored SEC(".maps");

/* Size of a stack copy in pieces, without the registers: a compiler's recursion takes tens of
 * KiB. */
#define MAX_PIECES 15
/* When the ring fills up: enough for short-lived processes. */
#define FEW_PIECES	  2
#define SMALL_PIECE_BYTES 128
/* Max words that are sent: with their header they are no longer than a mask. */
#define MAX_SENT_WORDS 8176
/* The records that an iterator writes of one thread have to fit the kernel's buffer, after those
 * that were not read yet. Otherwise they are dropped, although the thread's account is closed
 * already. */
#define MAX_ITER_WORDS	      3200
#define ITERATOR_BUFFER_BYTES 32768
/* As long as kcollect's shortest round. */
#define WAKE_NS			   10000000
#define USER_RECORD_LENGTH(length) ((length) & (8 * USER_WORDS - 1))

/* A stack is copied only if user space is then woken for it. Set by bpf/src/recording.rs. */
extern volatile bool few_copies;

/* Reads a piece of the stack of the thread that runs, or of another one. */
static __always_inline long read_piece(void *to, __u32 size, __u64 from, struct task_struct *other)
{
	return other ? bpf_copy_from_user_task(to, size, (void *)from, other, 0)
		     : bpf_probe_read_user(to, size, (void *)from);
}

/* Address of a word in the scratch. The index is masked here, as the verifier needs it; `words` has
 * space for one more piece. */
static __always_inline __u64 *word_at(struct user_scratch *out, __u32 index)
{
	barrier_var(index);
	return out->words + (index & (USER_WORDS - 1));
}

/* A copy of a stack that is being made. */
struct stack_copy {
	struct user_scratch *out;
	struct task_struct *other; /* whose stack it is; 0: the running thread's */
	__u64 from;
	__u32 index; /* of a word of the scratch */
};

/* Copies a piece; returns 1 if it is the end. */
static __always_inline long copy_piece(struct stack_copy *at, struct task_struct *other,
				       __u32 max_words, __u32 bytes)
{
	if (at->index > max_words - bytes / 8 ||
	    read_piece(word_at(at->out, at->index), bytes, at->from, other))
		return 1;
	at->index += bytes / 8;
	at->from += bytes;
	return 0;
}

static long copy_own_piece(__u64 number, struct stack_copy *at)
{
	(void)number;
	return copy_piece(at, 0, MAX_SENT_WORDS, PIECE_BYTES);
}

static long copy_own_small_piece(__u64 number, struct stack_copy *at)
{
	(void)number;
	return copy_piece(at, 0, MAX_SENT_WORDS, SMALL_PIECE_BYTES);
}

static long copy_other_piece(__u64 number, struct stack_copy *at)
{
	(void)number;
	return copy_piece(at, at->other, MAX_ITER_WORDS, PIECE_BYTES);
}

static long copy_other_small_piece(__u64 number, struct stack_copy *at)
{
	(void)number;
	return copy_piece(at, at->other, MAX_ITER_WORDS, SMALL_PIECE_BYTES);
}

/* Copies what the unwind needs to continue from the last frame: its registers, and the stack from
 * its stack pointer, `pieces` pieces and a part of one. */
static __always_inline void copy_stack(struct user_scratch *out, struct task_struct *other,
				       __u32 pieces)
{
	struct stack_copy at = {.out = out, .other = other};
	__u64 from = out->state.registers[UNWIND_SP];
	__u32 index = out->unwound & (WINDOW_WORD - 1);

	out->record.unwound = index;
	if (out->state.bx_at &&
	    !read_piece(&out->state.registers[UNWIND_BX], sizeof(__u64), out->state.bx_at, other))
		out->state.known |= 1 << UNWIND_BX;
	__builtin_memcpy(&out->record.file, &out->code.file, sizeof(out->record.file));
	/* A frame pointer that is not sure needs more than a bit. */
	out->record.known = out->state.known & UNWIND_FP_UNSURE ? 1 << UNWIND_SP
								: (__u16)out->state.known;
	out->record.exact = out->state.exact;
	__builtin_memcpy(word_at(out, index), out->state.registers, sizeof(out->state.registers));
	index += UNWIND_REGISTERS;
	*word_at(out, index++) = out->state.pc;
	/* Filled with zeros if it can't be read. */
	read_piece(word_at(out, index), RED_ZONE_BYTES, from - RED_ZONE_BYTES, other);
	index += RED_ZONE_BYTES / 8;
	out->copy_from = at.from = from;
	out->copy_first = at.index = index;
	if (other) {
		bpf_loop(pieces, copy_other_piece, &at, 0);
		bpf_loop(PIECE_BYTES / SMALL_PIECE_BYTES, copy_other_small_piece, &at, 0);
	} else {
		bpf_loop(pieces, copy_own_piece, &at, 0);
		bpf_loop(PIECE_BYTES / SMALL_PIECE_BYTES, copy_own_small_piece, &at, 0);
	}
	out->record.header.flags |= FLAG_STACK_COPY;
	out->record.header.frames = at.index;
	out->record.via_frame_pointer &= !!out->unwound;
	if (!out->unwound)
		out->record.via_scan = 0;
}

/* Whether the process of a thread is followed, as far as is known. */
static __always_inline bool is_followed(struct task_struct *task)
{
	__u32 pid = task->tgid;
	__u32 *execution = bpf_map_lookup_elem(&kc_ignored, &pid);

	return !execution || *execution != (__u32)task->self_exec_id;
}

/* Begins the record of a return to user mode. */
static __always_inline void describe_user_return(struct user_scratch *out, struct task_struct *task,
						 __u32 number, __u32 cpu)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	describe(&out->record.header, task, bpf_ktime_get_ns(), cpu, RECORD_USER_RETURN, 0);
	out->record.header.user_return = number;
	out->record.call_site = 0;
	user_registers(regs, &out->state.pc, out->state.registers);
	out->state.known = (1 << UNWIND_REGISTERS) - 1;
	out->state.exact = 1;
	out->state.descents = 0;
	out->state.bx_at = 0;
	out->depth = 0;
	out->via_frame_pointer = 0;
	out->via_scan = 0;
	out->scan_words = SCAN_STACK_WORDS;
	out->scan_depth = 0;
	out->unwound = 0;
	out->pending = 0;
	out->unmapped = 0;
	out->scan_wanted = 0;
	out->own_looked_up = 0;
	unwind_begin_stack(&out->scan, 0, 0);
	out->mm = KERNEL_FIELD(&out->code, struct task_struct, (__u64)task, mm);
	out->trampoline = trampoline_of(&out->code, task, out->mm);
	out->code.start = out->code.end = 0;
	out->code.raced = 0;
	out->code.pid = task->tgid;
	out->code.execution = task->self_exec_id;
	out->code.anonymous = 0;
	out->record.ip = out->state.pc;
	out->record.sp = out->state.registers[UNWIND_SP];
	out->record.execution = task->self_exec_id;
	__builtin_memset(&out->record.file, 0, sizeof(out->record.file));
	out->record.unwound = out->record.known = out->record.exact = 0;
	out->end = is_32bit(regs) ? UNWIND_UNSUPPORTED : UNWIND_NO_MAPPING;
}

/* Begins the unwind. Returns whether the stack can be unwound. */
static __always_inline bool begin_unwind(struct user_scratch *out, __u32 scratch_index)
{
	out->index = scratch_index;
	if (out->end != UNWIND_UNSUPPORTED)
		return true;
	out->words[0] = out->state.pc;
	out->depth = 1;
	return false;
}

/* Ends the unwind. Returns whether a stack copy is needed, because a table is not there yet. */
static __always_inline bool end_unwind(struct user_scratch *out, struct task_struct *task)
{
	/* In execve(2) the registers still belong to the old program, and the mappings soon to the
	 * new one. */
	if (out->depth == 1 && out->unmapped && BPF_CORE_READ_BITFIELD(task, in_execve)) {
		out->end = UNWIND_EXECUTING;
		out->depth = 0;
		out->pending = 0;
	}
	if (out->end == UNWIND_COMPLETE && out->via_scan & UNCONFIRMED)
		out->end = UNWIND_UNVERIFIED;
	out->record.header.frames = out->depth;
	out->record.end = out->end;
	out->record.via_frame_pointer = out->via_frame_pointer;
	out->record.via_scan = out->via_scan;
	if (out->code.anonymous && !out->pending) {
		out->record.file.device = COPIED_CODE_DEVICE;
		out->record.file.inode = out->code.pid;
		out->record.file.modified_ns = out->code.anonymous;
		out->record.file.generation = out->code.execution;
	}
	return out->pending;
}

/* Whether user space may be woken now for a stack that needs the table of a file. */
static __always_inline bool wakeup_allowed(const struct user_scratch *out, struct cpu_stats *stats)
{
	return out->record.file.inode && out->record.header.time_ns - stats->woken_ns >= WAKE_NS;
}

/* The same for the statistics of a CPU. A function of its own, so that it takes no part of its
 * callers' stacks: together these may have 512 bytes. */
static inline __noinline bool wakeup_allowed_on(const struct user_scratch *out, __u32 cpu)
{
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);

	return stats && out && wakeup_allowed(out, stats);
}

/* Whether to wake user space for a stack that needs the table of a file. The next wake-up is
 * allowed only some time later, since it takes time to build a table. */
static __always_inline bool claim_wakeup(const struct user_scratch *out, struct cpu_stats *stats)
{
	if (!(out->record.header.flags & FLAG_STACK_COPY) || !wakeup_allowed(out, stats))
		return false;
	stats->woken_ns = out->record.header.time_ns;
	return true;
}

/* Sends the user stack. */
static __always_inline void send_user_stack(struct user_scratch *out, struct cpu_stats *stats,
					    __u32 cpu)
{
	__u64 size = sizeof(out->record) + 8 * (__u64)out->record.header.frames;
	bool wake = claim_wakeup(out, stats);

	if (out->code.raced)
		__sync_fetch_and_add(&stats->raced_look_ups, out->code.raced);

	if (!send_and_wake(cpu, &out->record, USER_RECORD_LENGTH(size), wake))
		__sync_fetch_and_add(&stats->user_returns_lost, 1);
}

_Static_assert(sizeof(struct user_return_record) + 8 * MAX_SENT_WORDS < 8 * USER_WORDS,
	       "longer than its mask");
_Static_assert(ITERATOR_READ_BYTES + sizeof(struct user_return_record) + 8 * MAX_ITER_WORDS +
			       sizeof(struct tick_scratch) + sizeof(struct thread_record) <
		       ITERATOR_BUFFER_BYTES,
	       "an iterator's buffer is too small for all of a thread");

#endif
