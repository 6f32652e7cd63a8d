/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which code is mapped at an address of a process, as the kernel has it: from the maple tree of
 * its address space (include/linux/maple_tree.h) to the mapping, to the file, to the file's table.
 *
 * The kernel's helper for this, bpf_find_vma(), fails if it cannot take its lock, which in an
 * interrupt is the case from the second call on. So the tree is read without a lock, as the
 * kernel's own readers under RCU do. It may change meanwhile: everything is read by loads that may
 * fail. A mapping counts only if it belongs to this address space, has the address, and was not
 * changed by a writer meanwhile, as far as the kernel numbers its writers.
 */
#ifndef KCOLLECT_MAPPED_CODE_H
#define KCOLLECT_MAPPED_CODE_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "maple.h"
#include "unwind_tables.h"

#define VM_EXEC	  4
#define VM_SHARED 8
/* In rw_semaphore.count. */
#define RWSEM_WRITER_LOCKED 1
#define NS_PER_S	    1000000000

/* A tree of this height has more mappings than a process may have. */
#define MAX_MAPLE_HEIGHT 8

/* The nodes of the kernel's maple trees are as maple.h has them. Set by bpf/src/load.rs. */
extern const volatile bool use_maple_tree;

struct file_tables {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FILES);
	__type(key, struct code_file);
	__type(value, struct file_table);
};

extern struct file_tables kc_file_tables SEC(".maps");

/* There is code that programs have copied from files (COPIED_CODE_DEVICE). Set by
 * bpf/src/tables. */
extern volatile bool has_copied_code;

enum code_kind {
	/* The file has a table. */
	CODE_TABLE,
	/* There is no file, or it has no table, or the memory is shared, as it may be with JIT code
	 * that is written by way of another mapping: unwind by frame pointer. */
	CODE_FRAME_POINTER,
	/* The file is not known yet, or its table is not there yet, or the mapping is being made.
	 */
	CODE_PENDING,
};

/* Code that is mapped. */
struct mapped_code {
	__u64 start, end; /* 0: none */
	__u64 bias;	  /* subtracted from an address: one of the file's own address space */
	__u32 first_page, pages, directory; /* as in struct file_table */
	__u32 kind;			    /* enum code_kind */
	struct code_file file;
	/* The first words of a node of the tree: its pivots. */
	__u64 node[1 + RANGE_PIVOTS];
	/* What a look-up works with, here since the stack of all callers together is short. */
	__u64 address, mapping, inode, offset;
	__u64 entry;	/* of the tree */
	__u64 word;	/* of the kernel */
	__u32 sequence; /* of the lock, when the look-up began */
	__u32 not_found;
	__u32 raced;	      /* look-ups that raced with a writer */
	__u32 last_raced;     /* the last one did: its result was thrown away */
	__u32 pid, execution; /* of the process, as in COPIED_CODE_DEVICE */
	/* Where the first anonymous mapping begins that has code and no table; or 0. */
	__u64 anonymous;
};

/* The word at an address of the kernel, or 0 if it can't be read. It is read by a load that may
 * fail, where the kernel has such loads: a call takes ten times as long. */
static __always_inline __u64 kernel_word(struct mapped_code *code, __u64 address)
{
	if (bpf_ksym_exists(bpf_rdonly_cast)) {
		const __u64 before = bpf_core_field_offset(struct maple_range_64, pivot);
		const struct maple_range_64 *at = bpf_rdonly_cast(
			(void *)(address - before), bpf_core_type_id_kernel(struct maple_range_64));

		return at->pivot[0];
	}
	bpf_probe_read_kernel(&code->word, sizeof(code->word), (void *)address);
	return code->word;
}

/* Reads the first words of a node of the tree, in the same way. */
static __always_inline void read_pivots(struct mapped_code *code, __u64 node)
{
	const __u32 bytes = RANGE_PIVOTS * sizeof(__u64);
	const struct maple_range_64 *at;

	if (!bpf_ksym_exists(bpf_rdonly_cast)) {
		bpf_probe_read_kernel(&code->node[1], bytes, (void *)(node + sizeof(__u64)));
		return;
	}
	at = bpf_rdonly_cast((void *)node, bpf_core_type_id_kernel(struct maple_range_64));
	for (__u32 pivot = 0; pivot < RANGE_PIVOTS; pivot++)
		code->node[1 + pivot] = at->pivot[pivot];
}

/* A field of a kernel structure, read as 64 bits: after a 32-bit field also what follows it. */
#define KERNEL_FIELD(code, type, address, field) \
	kernel_word(code, (address) + bpf_core_field_offset(type, field))

/* Address of the mapping at an address, or 0. */
static __always_inline __u64 find_mapping(struct mapped_code *code, __u64 mm)
{
	code->entry = KERNEL_FIELD(code, struct mm_struct, mm, mm_mt.ma_root);
	/* A tree of one mapping has no node. */
	if ((code->entry & 3) != MAPLE_ROOT_MARK)
		return code->entry;
	for (__u32 height = 0; height < MAX_MAPLE_HEIGHT; height++) {
		__u64 node = code->entry & ~(__u64)(MAPLE_NODE_BYTES - 1), slot;
		__u32 type = MAPLE_TYPE(code->entry);

		read_pivots(code, node);
		slot = maple_slot(code->node, maple_pivots(type), code->address);
		code->entry = kernel_word(code, node + slot * sizeof(__u64));
		if (type <= MAPLE_LEAF_64)
			return code->entry;
	}
	return 0;
}

/* When a file was last written to. */
static __always_inline __u64 modified_ns(struct mapped_code *code, __u64 inode)
{
	if (bpf_core_field_exists(struct inode, i_mtime_sec))
		return KERNEL_FIELD(code, struct inode, inode, i_mtime_sec) * NS_PER_S +
		       (__u32)KERNEL_FIELD(code, struct inode, inode, i_mtime_nsec);
	if (bpf_core_field_exists(struct inode___private_time, __i_mtime))
		return KERNEL_FIELD(code, struct inode___private_time, inode, __i_mtime.tv_sec) *
			       NS_PER_S +
		       KERNEL_FIELD(code, struct inode___private_time, inode, __i_mtime.tv_nsec);
	return KERNEL_FIELD(code, struct inode___public_time, inode, i_mtime.tv_sec) * NS_PER_S +
	       KERNEL_FIELD(code, struct inode___public_time, inode, i_mtime.tv_nsec);
}

/* Fills in how the code at the address is unwound, by its file and the offset in it. */
static __always_inline void find_table(struct mapped_code *code)
{
	struct file_table *table = bpf_map_lookup_elem(&kc_file_tables, &code->file);

	code->kind = CODE_PENDING;
	if (!table)
		return;
	code->kind = CODE_FRAME_POINTER;
	if (!table->pages)
		return;
	code->first_page = table->first_page;
	code->pages = table->pages;
	code->directory = table->directory;
	for (__u32 number = 0; number < MAX_SEGMENTS; number++) {
		const struct file_segment *segment = &table->segments[number];

		if (code->offset >= segment->offset && code->offset < segment->end) {
			code->bias = code->address - (code->offset + segment->delta);
			code->kind = CODE_TABLE;
			return;
		}
	}
}

/* Anonymous code may be a file's, whose table user space has published for the mapping. */
static __always_inline bool is_copied_code(struct mapped_code *code)
{
	code->file.device = COPIED_CODE_DEVICE;
	code->file.inode = code->pid;
	code->file.modified_ns = code->start;
	code->file.generation = code->execution;
	code->offset = code->address;
	find_table(code);
	if (code->kind == CODE_TABLE)
		return true;
	code->kind = CODE_FRAME_POINTER;
	return false;
}

/* Whether the mappings of an address space are being changed, perhaps by the thread that was
 * interrupted. */
static __always_inline bool mm_is_changing(struct mapped_code *code, __u64 mm)
{
	return bpf_core_field_exists(struct mm_struct, mmap_lock.count) &&
	       KERNEL_FIELD(code, struct mm_struct, mm, mmap_lock.count) & RWSEM_WRITER_LOCKED;
}

/* A field of the mapping that was found. */
#define MAPPING_FIELD(code, field) KERNEL_FIELD(code, struct vm_area_struct, (code)->mapping, field)

/* The sequence number of an address space's lock, or 0 if the kernel has no such number. */
static __always_inline __u32 lock_sequence(struct mapped_code *code, __u64 mm)
{
	if (bpf_core_field_exists(struct mm_struct, mm_lock_seq.sequence))
		return KERNEL_FIELD(code, struct mm_struct, mm, mm_lock_seq.sequence);
	if (bpf_core_field_exists(struct mm_struct___plain_sequence, mm_lock_seq))
		return KERNEL_FIELD(code, struct mm_struct___plain_sequence, mm, mm_lock_seq);
	return 0;
}

/* The lock's sequence number when the mapping that was found was last locked for writing. */
static __always_inline __u32 mapping_sequence(struct mapped_code *code)
{
	if (code->mapping && bpf_core_field_exists(struct vm_area_struct, vm_lock_seq))
		return MAPPING_FIELD(code, vm_lock_seq);
	return code->sequence - 1;
}

/* find_code() without checking for writers. */
static __always_inline int read_code(struct mapped_code *code, __u64 mm)
{
	__u64 file, flags;

	code->mapping = find_mapping(code, mm);
	if (!code->mapping || MAPPING_FIELD(code, vm_mm) != mm ||
	    code->address < MAPPING_FIELD(code, vm_start) ||
	    code->address >= MAPPING_FIELD(code, vm_end)) {
		code->mapping = 0;
		return !mm_is_changing(code, mm);
	}
	flags = MAPPING_FIELD(code, vm_flags);
	if (!(flags & VM_EXEC))
		return 1;
	code->start = MAPPING_FIELD(code, vm_start);
	code->end = MAPPING_FIELD(code, vm_end);
	file = MAPPING_FIELD(code, vm_file);
	/* Programs are never shared; and each write to memory that is changes its file. */
	if (file && !(flags & VM_SHARED)) {
		code->inode = KERNEL_FIELD(code, struct file, file, f_inode);
		code->file.inode = KERNEL_FIELD(code, struct inode, code->inode, i_ino);
		code->file.modified_ns = modified_ns(code, code->inode);
		code->file.generation = KERNEL_FIELD(code, struct inode, code->inode, i_generation);
		code->file.device =
			KERNEL_FIELD(code, struct super_block,
				     KERNEL_FIELD(code, struct inode, code->inode, i_sb), s_dev);
	} else if (file || code->start != KERNEL_FIELD(code, struct mm_struct, mm, context.vdso)) {
		code->kind = CODE_FRAME_POINTER;
		if (file)
			return 0;
		if (has_copied_code && is_copied_code(code))
			return 0;
		if (!code->anonymous)
			code->anonymous = code->start;
		return 0;
	}
	code->offset = (MAPPING_FIELD(code, vm_pgoff) << PAGE_BITS) + code->address - code->start;
	find_table(code);
	return 0;
}

/* Finds the code at an address of an address space. Returns 0, or 1 if there is no code. */
static __always_inline int find_code(struct mapped_code *code, __u64 mm, __u64 address)
{
	code->address = address;
	code->start = code->end = 0;
	__builtin_memset(&code->file, 0, sizeof(code->file));
	code->kind = CODE_PENDING;
	/* The stack is copied, as where a table is missing. */
	if (!use_maple_tree) {
		code->mapping = 0;
		code->last_raced = 0;
		return 0;
	}
	code->sequence = lock_sequence(code, mm);
	code->not_found = read_code(code, mm);
	code->last_raced = look_up_raced(code->sequence, lock_sequence(code, mm),
					 mapping_sequence(code));
	if (!code->last_raced)
		return code->not_found;
	code->raced++;
	/* The stack is copied, as where a table is missing. */
	code->start = code->end = 0;
	__builtin_memset(&code->file, 0, sizeof(code->file));
	code->kind = CODE_PENDING;
	return 0;
}

#endif
