/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The user stacks of traced system calls. A thread makes the same calls from the same places over
 * and over, so the last stack of each place is known by a number, and is sent only once.
 *
 * Whether a stack is that of the call before is compared word by word where all of it is near the
 * stack pointer; where it is deeper it is unwound, and the frames are compared. The comparison is of
 * hashes of 64 bits. Of a stack that is copied, because a table is not there yet, only the words
 * near the pointer are compared: a copy for each call would fill the ring.
 */
#ifndef KCOLLECT_IO_STACK_H
#define KCOLLECT_IO_STACK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "user_return.h"
#include "user_stack.h"

/* A stack of so many words is compared as it is. */
#define NEAR_WORDS 64

/* A place in a thread: the last stack there. */
struct io_place {
	__u64 ip, sp;
	__u64 near;   /* hash of the words; 0: they are not all of the stack */
	__u64 frames; /* hash of the frames */
	__u32 number; /* of that stack */
	__u32 zero;
};

/* What is kept of a thread that makes traced system calls. */
struct io_thread {
	__u64 entered_ns; /* when the call that it is in began, CLOCK_MONOTONIC; or 0 */
	struct io_place places[IO_PLACES];
};

static __always_inline __u64 hashed(__u64 hash, __u64 word)
{
	return (hash ^ word) * 0x9e3779b97f4a7c15 ^ hash >> 29;
}

/* Returns whether a word of a stack can be a return address: in the program's own code, or elsewhere
 * than numbers usually are. A low word is one of nanoseconds, most likely; mmap(2) with MAP_32BIT, as
 * some compilers at run time use it, begins above a thousand million. */
static __always_inline bool may_be_code(__u64 word, __u64 code, __u64 code_bytes)
{
	return word - code < code_bytes || is_mapped_high(word) ||
	       (word >= 1000000000 && !(word >> 32));
}

/* Returns a hash of what can be a return address among the words of a stack from its pointer on; 0
 * if they can't be read. Other words, such as times, may change from call to call. */
static __always_inline __u64 hash_near(struct user_scratch *out, struct task_struct *task, __u64 sp)
{
	__u64 hash = 1, code = task->mm->start_code, code_bytes = task->mm->end_code - code;

	if (bpf_probe_read_user(out->words, NEAR_WORDS * sizeof(__u64), (void *)sp))
		return 0;
	for (__u32 number = 0; number < NEAR_WORDS; number++) {
		__u64 word = out->words[number];

		if (may_be_code(word, code, code_bytes))
			hash = hashed(hash, word);
	}
	return hash ? hash : 1;
}

struct frames_hash {
	struct user_scratch *out;
	__u64 hash;
};

static long hash_frame(__u64 index, struct frames_hash *frames)
{
	frames->hash = hashed(frames->hash, *word_at(frames->out, index));
	return 0;
}

/* Puts the number of the user stack into a record, and sends the stack if it is another one than the
 * last of this place. */
static __always_inline void capture_io_stack(struct task_struct *task, struct io_thread *thread,
					     struct pt_regs *regs, struct io_call_record *record,
					     __u32 cpu)
{
	__u64 ip = user_ip(regs), sp = user_sp(regs), near, extent;
	__u32 number = hashed(ip, sp) >> 32, place;
	struct frames_hash frames = {};
	struct cpu_stats *stats;
	struct io_place *last;
	struct user_scratch *out;
	bool is_copy, is_near;

	if (!capture_user_stacks)
		return;
	last = &thread->places[number & (IO_PLACES - 1)];
	out = claim_scratch(cpu, &place);
	stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	if (!out || !stats) {
		if (stats)
			__sync_fetch_and_add(&stats->user_returns_lost, 1);
		return;
	}
	near = hash_near(out, task, sp);
	record->place = 1 + (number & (IO_PLACES - 1));
	if (last->number && last->ip == ip && last->sp == sp && near && last->near == near)
		goto known;
	describe_user_return(out, task, last->number + 1, cpu);
	out->record.place = record->place;
	capture_user_stack(out, task, place, cpu);
	frames.out = out;
	frames.hash = ip;
	is_copy = out->record.header.flags & FLAG_STACK_COPY;
	if (!is_copy)
		bpf_loop(out->record.header.frames, hash_frame, &frames, 0);
	extent = out->state.registers[UNWIND_SP] - sp;
	is_near = extent <= NEAR_WORDS * sizeof(__u64) && out->end == UNWIND_COMPLETE;
	last->near = is_copy || is_near ? near : 0;
	if (!is_copy && last->number && last->ip == ip && last->sp == sp &&
	    last->frames == frames.hash)
		goto known;
	last->ip = ip;
	last->sp = sp;
	last->frames = frames.hash;
	last->number++;
	send_user_stack(out, stats, cpu);
known:
	record->header.user_return = last->number;
	out->busy = 0;
}

#endif
