/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What an unwind of a user stack works with: the tables that user space has published
 * (bpf/src/tables is their only writer), and the memory where a stack is put together.
 */
#ifndef KCOLLECT_USER_SCRATCH_H
#define KCOLLECT_USER_SCRATCH_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "limits.h"
#include "mapped_code.h"
#include "records.h"
#include "unwind_scan.h"
#include "unwind_tables.h"

struct rows {
	struct row row[ROWS_PER_CHUNK];
};

/* In sections of their own, so that user space can map them. The kernel shows the sections as maps,
 * by these names. */
extern struct page pages[MAX_PAGES];
extern struct unwind_rule rules[MAX_RULES];

struct row_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	/* By size: the compiler emits no types for a map within a map. */
	__uint(value_size, sizeof(struct rows));
};

struct row_chunks {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_CHUNKS);
	__type(key, __u32);
	__array(values, struct row_chunk);
};

extern struct row_chunks kc_row_chunks SEC(".maps");

#define USER_WORDS MAX_USER_RETURN_WORDS
/* A stack copy is read in pieces. */
#define PIECE_BYTES 4096

/* The stack of a thread that does not run is read by a window on it, in the words after the
 * frames. */
#define WINDOW_BYTES 2048
#define WINDOW_WORD  1024

/* Where a user stack is built. */
struct user_scratch {
	__u64 busy;
	struct unwind_state state;
	struct mapped_code code; /* where the last frame was, or what a scan looked at */
	__u64 mm;		 /* address of the process's mm_struct */
	struct unwind_scan scan;
	__u32 end; /* enum unwind_end */
	__u32 via_frame_pointer;
	__u32 via_scan; /* as in the record */
	__u32 scan_words;    /* left for scans */
	__u32 scan_wanted;   /* see step_without_rule() */
	__u32 own_looked_up; /* the thread's own stack was, for code without a table */
	__u32 scan_depth;    /* of the frame whose caller the last scan found, or 0 */
	__u32 depth;
	__u32 unwound;	/* number of frames whose caller was found */
	__u32 pending;	/* a table was needed that is not there yet */
	__u32 unmapped; /* no mapping was found at the last frame */
	__u32 rule;	/* by which its caller was found, or 0 */
	__u32 index;	/* of this scratch, for global functions, which take no pointer to it */
	__u32 zero;	  /* never written; to the verifier any number */
	__u64 trampoline; /* in place of return addresses: see return_probe.h */
	__u64 copy_from;  /* of a stack copy: its first address, and where that is in `words` */
	__u64 copy_first;
	/* Where the window on the stack of a thread that does not run begins. */
	__u64 window;
	struct user_return_record record;
	__u64 words[USER_WORDS + PIECE_BYTES / 8];
};

/* One for the iteration over threads, then for each CPU one for programs that run with interrupts
 * off, and others that a thread claims when it returns to user mode, where it may be preempted.
 * Sized by bpf/src/load.rs. */
#define ITER_SCRATCH	   0
#define FIRST_SCRATCH(cpu) (1 + (cpu) * SCRATCHES_PER_CPU)

struct user_scratches {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 + SCRATCHES_PER_CPU);
	__type(key, __u32);
	__type(value, struct user_scratch);
};

extern struct user_scratches kc_user_scratch SEC(".maps");

static __always_inline struct user_scratch *scratch_at(__u32 scratch_index)
{
	return bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);
}

#endif
