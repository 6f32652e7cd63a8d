/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The unwind tables as user space writes them and the BPF programs read them: from a file to the
 * pages of its table, from a page to its rows, from a row to a rule (struct unwind_rule). Which
 * file is mapped at an address, the programs read from the kernel.
 */
#ifndef KCOLLECT_UNWIND_TABLES_H
#define KCOLLECT_UNWIND_TABLES_H

#include "integers.h"

/* Max pages of all unwind tables. A power of two like the next three: an index into them is masked,
 * so that the verifier has its range. */
#define MAX_PAGES 65536
/* Max unwind rules. */
#define MAX_RULES 65536
/* Unwind rows in a chunk of memory. */
#define ROWS_PER_CHUNK 65536
/* Max chunks. */
#define MAX_CHUNKS 1024

/* Entries of maps by process and by file: no powers of two. */
#define MAX_PROCESSES 65536
#define MAX_FILES     65536

/* A file with code, as the kernel identifies it; all 0 is the vDSO. The number of an
 * inode is used again, with another generation; and a file can be written to. */
struct code_file {
	__u64 inode;	   /* its number */
	__u64 modified_ns; /* its mtime, nanoseconds since 1970; wraps */
	__u32 device; /* as the kernel encodes it: the major number above 20 bits of the minor */
	__u32 generation; /* the inode's; 0 where the file system has none */
};

/* The device of code that a program has copied from a file to anonymous memory, at the addresses
 * that it had in the file's mapping. The inode is the process, `modified_ns` where the kernel's
 * mapping begins, and the generation task->self_exec_id. Offsets are addresses of the process. */
#define COPIED_CODE_DEVICE 0xffffffff

/* Segments of a file that are kept with its table. One has the code, as a rule. */
#define MAX_SEGMENTS 4

/* A part of a file, and where it is loaded. */
struct file_segment {
	__u64 offset; /* in the file, of the page that it begins in */
	__u64 end;    /* in the file */
	__u64 delta; /* added to an offset: an address of the file's own address space; wraps */
};

/* What is known of a file. Of one without a table `pages` is 0: unwind by frame pointer. */
struct file_table {
	struct file_segment segments[MAX_SEGMENTS]; /* of those not used, offset and end are 0 */
	__u32 first_page; /* number of the first page that the table has */
	__u32 pages;	  /* how many; 0: the file has no table */
	__u32 directory;  /* index of the first page */
	__u32 zero;
};

/* Where the rows of 64 KiB of addresses are. */
struct page {
	__u16 chunk; /* number of the chunk */
	__u16 start; /* the first row, in the chunk */
	__u32 rows;  /* how many */
};

/* The rule for addresses from this one to the next row's. */
struct row {
	__u16 low; /* low 16 bits of an address of the file's own address space */
	__u16 rule; /* number of the rule */
};

_Static_assert(sizeof(struct code_file) == 24, "the same for every compiler");
_Static_assert(sizeof(struct file_segment) == 24, "the same for every compiler");
_Static_assert(sizeof(struct file_table) == 112, "the same for every compiler");
_Static_assert(sizeof(struct page) == 8, "the same for every compiler");
_Static_assert(sizeof(struct row) == 4, "the same for every compiler");

#endif
