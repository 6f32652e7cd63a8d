/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The unwind tables as user space writes them and the BPF programs read them: from a process to its
 * mappings, from a mapping to the pages of its table, from a page to its rows, from a row to a rule
 * (struct unwind_rule). Their Rust mirror is bpf/abi/src/layout.rs, and a test compares every
 * offset.
 */
#ifndef KCOLLECT_UNWIND_TABLES_H
#define KCOLLECT_UNWIND_TABLES_H

/* Powers of two: an index into them is masked, so that the verifier need not know its range. */
#define MAX_MAPPINGS   65536
#define MAX_PAGES      65536
#define MAX_RULES      65536
#define ROWS_PER_CHUNK 65536
#define MAX_CHUNKS     1024
#define MAX_PROCESSES  65536

/* In process.execution: not known yet. The iteration that begins tracking fills it in. */
#define ANY_EXECUTION 0xffffffff

/* What is known of a process. */
struct process {
	__u32 execution; /* the task->self_exec_id that the mappings belong to, or ANY_EXECUTION */
	__u32 first;	 /* index of its first mapping */
	__u32 count;
	__u32 mappings_version; /* sent with each stack that is unwound by them */
	__u32 ignored;		/* the process is not followed */
};

enum mapping_kind {
	/* The file has a table. */
	MAPPING_TABLE,
	/* No file, or one without a table: unwind by frame pointer. */
	MAPPING_FRAME_POINTER,
	/* The table is not there yet. */
	MAPPING_PENDING,
};

/* Code that is mapped in a process. The mappings of a process are adjacent, by rising start. */
struct mapping {
	__u64 start, end;
	__u64 bias;	  /* subtracted from an address: one of the file's own address space */
	__u32 first_page; /* number of the first page that the table has */
	__u32 pages;	  /* how many */
	__u32 directory;  /* index of the first page */
	__u32 kind;	  /* enum mapping_kind */
};

/* Where the rows of 64 KiB of addresses are. */
struct page {
	__u16 chunk;
	__u16 start; /* in the chunk */
	__u32 rows;
};

/* The rule for addresses from this one to the next row's. */
struct row {
	__u16 low; /* low 16 bits of an address of the file's own address space */
	__u16 rule;
};

_Static_assert(sizeof(struct process) == 20, "as in layout.rs");
_Static_assert(sizeof(struct mapping) == 40, "as in layout.rs");
_Static_assert(sizeof(struct page) == 8, "as in layout.rs");
_Static_assert(sizeof(struct row) == 4, "as in layout.rs");

#endif
