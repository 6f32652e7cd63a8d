/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The words of a user stack that decide where its frames are: return addresses, and the frame
 * pointers that a rule needs. A stack in which they are the same is the same.
 */
#ifndef KCOLLECT_DECIDING_WORDS_H
#define KCOLLECT_DECIDING_WORDS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "hash.h"

/* Max words that are compared. */
#define MAX_DECIDING 32

/* The words are read in parts: a read of user memory costs as much as reading many more words, but
 * a stack may have a buffer in it. */
#define STACK_PARTS 4
#define PART_WORDS  128

/* The words of a stack that decide where its frames are. */
struct deciding_words {
	__u64 hash;
	__u32 count;	/* 0: they don't decide it */
	__u32 needs_fp; /* the frame pointer decides too */
	struct {
		__u32 at; /* in words from the stack pointer on */
		__u32 words;
	} parts[STACK_PARTS];	/* those after the last have no words */
	__u16 at[MAX_DECIDING]; /* indexes in `words` of the scratch, where one part follows another
				 */
};

/* Where the caller's frame pointer is saved, in words from the stack pointer on; or the register
 * has it; or that is not known. */
#define MAX_AT	       0xffff
#define FP_IN_REGISTER 0x10000
#define FP_ELSEWHERE   0x10001

/* Where the words that decide a stack are found. */
struct io_stack_scratch {
	__u64 words[STACK_PARTS * PART_WORDS];
	__u64 sp;
	__u32 undecided; /* something else decides too */
	__u32 fp_at;
	struct deciding_words deciding;
};

struct io_stack_scratches {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct io_stack_scratch);
};

extern struct io_stack_scratches kc_io_stack SEC(".maps");

/* Hash of the words that decided the last stack; 0 if they can't be read. */
static __always_inline __u64 hash_deciding(struct io_stack_scratch *scratch,
					   const struct deciding_words *deciding, __u64 sp)
{
	__u32 count = deciding->count;
	__u64 hash = 1;

	for (__u32 part = 0; part < STACK_PARTS; part++) {
		__u32 words = deciding->parts[part].words;

		if (!words)
			break;
		if (words > PART_WORDS ||
		    bpf_probe_read_user(scratch->words + PART_WORDS * part, 8 * words,
					(void *)(sp + 8 * (__u64)deciding->parts[part].at)))
			return 0;
	}
	for (__u32 number = 0; number < MAX_DECIDING && number < count; number++)
		hash = add_to_hash(
			hash,
			scratch->words[deciding->at[number] & (STACK_PARTS * PART_WORDS - 1)]);
	return hash;
}

/* Notes what decided the last step of an unwind. A global function in deciding_words.bpf.c, which
 * the verifier checks once. */
int kc_note_step(__u32 scratch_index);

#endif
