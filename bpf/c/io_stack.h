/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The user stacks of traced system calls. A thread makes the same calls from the same call sites
 * over and over, so the last stack of each is known by a number, and is sent only once. A call site
 * is a hash of pc and stack pointer.
 *
 * Where each frame is follows from the pc, the stack pointer and the return addresses before it, by
 * the rules of the unwind tables; where a rule needs the frame pointer, from that too. So a stack
 * is the same as the previous call's if the pc and the stack pointer are the same, and so are the
 * words where the return addresses were, and the frame pointers that a rule needs. Where these
 * words are is kept if they are not too many and not too far apart; otherwise the stack is unwound,
 * and the frames are compared. All comparisons are of 64-bit hashes.
 *
 * When a stack is copied, because a table is not there yet, only the words next to the stack
 * pointer are compared: a copy for each call would fill the ring.
 */
#ifndef KCOLLECT_IO_STACK_H
#define KCOLLECT_IO_STACK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "deciding_words.h"
#include "hash.h"
#include "records.h"
#include "ring.h"
#include "user_return.h"
#include "user_scratch.h"
#include "user_stack.h"
#include "user_unwind.h"

/* Number of words of a copied stack that are compared, a power of two. Functions of unoptimised
 * programs take hundreds of bytes each. */
#define NEXT_WORDS     (STACK_PARTS * PART_WORDS)
#define MIN_NEXT_WORDS 64

/* A call site in a thread: the last stack there. */
struct io_call_site {
	__u64 ip, sp, fp;
	__u64 frames; /* hash of the frames */
	__u64 next;   /* hash of the words next to the pointer; 0: they don't identify the stack */
	__u32 number; /* of that stack */
	__u32 zero;
	struct deciding_words deciding;
};

/* A call that a signal has interrupted, in a thread: the kernel may make it again. */
struct interrupted_call {
	__u64 ip, sp;	  /* after the instruction that made it */
	__u64 entered_ns; /* as in struct io_thread */
	__u32 call_index; /* in traced_calls */
	__u32 zero;
};

/* A signal's handler may make calls, which another signal interrupts. */
#define MAX_INTERRUPTED 4

/* What is kept of a thread that makes traced system calls. */
struct io_thread {
	__u64 entered_ns; /* when the call that it is in began, CLOCK_MONOTONIC; or 0 */
	__u32 interrupted_count;
	__u32 handled; /* the first program has seen the end of the call; the second clears it */
	/* The outermost one first. */
	struct interrupted_call interrupted[MAX_INTERRUPTED];
	struct io_call_site call_sites[IO_CALL_SITES];
};

/* Whether a word of a stack can be a return address: in the program's own code, or elsewhere than
 * numbers usually are. A low word is one of nanoseconds, most likely; mmap(2) with MAP_32BIT, as
 * some compilers at run time use it, begins above a thousand million. */
static __always_inline bool can_be_code(__u64 word, __u64 code, __u64 code_bytes)
{
	return word - code < code_bytes || is_mapped_high(word) ||
	       (word >= 1000000000 && !(word >> 32));
}

struct next_words {
	const __u64 *words;
	__u64 code, code_bytes, hash;
};

static long hash_next_word(__u64 index, struct next_words *next)
{
	__u64 word = next->words[index & (NEXT_WORDS - 1)];

	if (can_be_code(word, next->code, next->code_bytes))
		next->hash = add_to_hash(next->hash, word);
	return 0;
}

/* Hash of the words next to the stack pointer that can be return addresses; 0 if they can't be
 * read. Other words, such as times, may change from call to call. */
static __always_inline __u64 hash_next(struct io_stack_scratch *scratch, struct task_struct *task,
				       __u64 sp)
{
	struct next_words next = {
		.words = scratch->words,
		.code = task->mm->start_code,
		.code_bytes = task->mm->end_code - task->mm->start_code,
		.hash = 1,
	};
	__u32 count = NEXT_WORDS;

	/* The stack may end before that. */
	if (bpf_probe_read_user(scratch->words, NEXT_WORDS * sizeof(__u64), (void *)sp)) {
		count = MIN_NEXT_WORDS;
		if (bpf_probe_read_user(scratch->words, MIN_NEXT_WORDS * sizeof(__u64), (void *)sp))
			return 0;
	}
	bpf_loop(count, hash_next_word, &next, 0);
	return next.hash ? next.hash : 1;
}

static long unwind_and_note(__u64 index, __u32 *scratch_index)
{
	if (unwind_frame(index, scratch_index))
		return 1;
	kc_note_step(*scratch_index);
	return 0;
}

struct frames_hash {
	struct user_scratch *out;
	__u64 hash;
};

static long hash_frame(__u64 index, struct frames_hash *frames)
{
	frames->hash = add_to_hash(frames->hash, *word_at(frames->out, index));
	return 0;
}

static __always_inline __u64 hash_frames(struct user_scratch *out)
{
	struct frames_hash frames = {.out = out, .hash = 1};

	bpf_loop(out->record.header.frames, hash_frame, &frames, 0);
	return frames.hash;
}

/* Unwinds or copies the stack, and keeps what distinguishes it from others. Returns whether it
 * turns out to be the same as the last one of this call site. */
static __always_inline bool capture_at_call_site(struct user_scratch *out,
						 struct io_stack_scratch *scratch,
						 struct task_struct *task,
						 struct io_call_site *last, bool same_call_site,
						 __u32 scratch_index, __u32 cpu)
{
	bool same;
	__u64 frames;

	scratch->sp = last->sp;
	scratch->undecided = 0;
	scratch->fp_at = FP_IN_REGISTER;
	__builtin_memset(&scratch->deciding, 0, sizeof(scratch->deciding));
	scratch->deciding.hash = 1;
	if (begin_unwind(out, scratch_index))
		bpf_loop(MAX_USER_FRAMES + 1, unwind_and_note, &scratch_index, 0);
	last->next = 0;
	last->deciding.count = 0;
	if (!scratch->undecided && out->rule && out->end == UNWIND_COMPLETE)
		__builtin_memcpy(&last->deciding, &scratch->deciding, sizeof(last->deciding));
	kc_finish_capture(scratch_index, cpu);
	if (out->record.header.flags & FLAG_STACK_COPY) {
		last->frames = 0;
		last->next = hash_next(scratch, task, last->sp);
		return false;
	}
	frames = hash_frames(out);
	same = same_call_site && last->frames == frames;
	last->frames = frames;
	return same;
}

/* Puts the number of the user stack into a record, and sends the stack if it is another one than
 * the last of this call site. */
static __always_inline void capture_io_stack(struct task_struct *task, struct io_thread *thread,
					     struct pt_regs *regs, struct io_call_record *record,
					     __u32 cpu)
{
	__u64 ip = user_ip(regs), sp = user_sp(regs), fp = user_fp(regs);
	__u32 number = add_to_hash(ip, sp) >> 32 & (IO_CALL_SITES - 1), scratch_index;
	struct io_call_site *last = &thread->call_sites[number];
	struct io_stack_scratch *scratch;
	struct cpu_stats *stats;
	struct user_scratch *out;
	bool same_call_site;

	scratch = only_element(&kc_io_stack);
	stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	if (!capture_user_stacks || !scratch || !stats)
		return;
	same_call_site = last->number && last->ip == ip && last->sp == sp;
	if (same_call_site &&
	    (last->deciding.count
		     ? (!last->deciding.needs_fp || last->fp == fp) &&
			       hash_deciding(scratch, &last->deciding, sp) == last->deciding.hash
		     : last->next && hash_next(scratch, task, sp) == last->next)) {
		record->call_site = 1 + number;
		record->header.user_return = last->number;
		return;
	}
	out = claim_scratch(cpu, &scratch_index);
	if (!out) {
		__sync_fetch_and_add(&stats->user_returns_lost, 1);
		return;
	}
	record->call_site = 1 + number;
	last->ip = ip;
	last->sp = sp;
	last->fp = fp;
	describe_user_return(out, task, last->number + 1, cpu);
	out->record.call_site = record->call_site;
	if (!capture_at_call_site(out, scratch, task, last, same_call_site, scratch_index, cpu)) {
		last->number++;
		send_user_stack(out, stats, cpu);
	}
	record->header.user_return = last->number;
	out->busy = 0;
}

#endif
