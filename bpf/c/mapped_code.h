/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which code is mapped at an address of a process, as the kernel knows it: from the maple tree of
 * its address space (include/linux/maple_tree.h) to the mapping, to the file, to the file's table.
 *
 * The kernel's helper for it, bpf_find_vma(), fails where its lock is not to be had, which in an
 * interrupt is after the first call. So the tree is read without a lock, as the kernel's own
 * readers under RCU do. It may change meanwhile: all is read by loads that may fail, and a mapping
 * counts only if it is one of this address space and has the address.
 */
#ifndef KCOLLECT_MAPPED_CODE_H
#define KCOLLECT_MAPPED_CODE_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "maple.h"
#include "unwind_tables.h"

#define VM_EXEC 4
/* In rw_semaphore.count. */
#define RWSEM_WRITER_LOCKED 1
#define NS_PER_S 1000000000

/* A tree of this height has more mappings than a process may have. */
#define MAX_MAPLE_HEIGHT 8

struct file_tables {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FILES);
	__type(key, struct code_file);
	__type(value, struct file_table);
};

extern struct file_tables kc_file_tables SEC(".maps");

enum code_kind {
	/* The file has a table. */
	CODE_TABLE,
	/* No file, or one without a table: unwind by frame pointer. */
	CODE_FRAME_POINTER,
	/* The file is not known yet, or its table is not there yet, or the mapping is being made. */
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
	/* Where a word of the kernel is read to: the stack of all callers together is short. */
	__u64 word;
};

/* Returns the word at an address of the kernel, or 0 if it can't be read. By loads that may fail
 * where the kernel has them: a call for each word is ten times as dear. */
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

/* Returns a field of a structure of the kernel; of one of 32 bits also what follows it. */
#define KERNEL_FIELD(code, type, address, field) \
	kernel_word(code, (address) + bpf_core_field_offset(type, field))

/* Returns the address of the mapping at an address, or 0. */
static __always_inline __u64 find_mapping(struct mapped_code *code, __u64 mm, __u64 address)
{
	__u64 entry = KERNEL_FIELD(code, struct mm_struct, mm, mm_mt.ma_root), slot;

	/* A tree of one mapping has no node. */
	if ((entry & 3) != MAPLE_ROOT_MARK)
		return entry;
	for (__u32 height = 0; height < MAX_MAPLE_HEIGHT; height++) {
		__u32 type = MAPLE_TYPE(entry);
		__u64 node = entry & ~(__u64)(MAPLE_NODE_BYTES - 1);

		for (__u32 place = 1; place <= RANGE_PIVOTS; place++)
			code->node[place] = kernel_word(code, node + place * sizeof(__u64));
		if (type == MAPLE_ARANGE_64)
			slot = maple_slot(code->node, ARANGE_PIVOTS, address);
		else
			slot = maple_slot(code->node, RANGE_PIVOTS, address);
		entry = kernel_word(code, node + slot * sizeof(__u64));
		if (type <= MAPLE_LEAF_64)
			return entry;
	}
	return 0;
}

/* Returns when a file was written to. */
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

/* Fills in how code of a file is unwound that is mapped from an offset on. */
static __always_inline void find_table(struct mapped_code *code, __u64 offset, __u64 address)
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
	offset += address - code->start;
	for (__u32 number = 0; number < MAX_SEGMENTS; number++) {
		const struct file_segment *segment = &table->segments[number];

		if (offset >= segment->offset && offset < segment->end) {
			code->bias = address - (offset + segment->delta);
			code->kind = CODE_TABLE;
			return;
		}
	}
}

/* Returns whether the mappings of an address space are being changed, perhaps by the thread that was
 * interrupted. */
static __always_inline bool changes(struct mapped_code *code, __u64 mm)
{
	return bpf_core_field_exists(struct mm_struct, mmap_lock.count) &&
	       KERNEL_FIELD(code, struct mm_struct, mm, mmap_lock.count) & RWSEM_WRITER_LOCKED;
}

/* Finds the code at an address of an address space. Returns 0, or 1 if there is none. */
static __always_inline int find_code(struct mapped_code *code, __u64 mm, __u64 address)
{
	__u64 mapping = find_mapping(code, mm, address), start, end, file, inode;

	start = KERNEL_FIELD(code, struct vm_area_struct, mapping, vm_start);
	end = KERNEL_FIELD(code, struct vm_area_struct, mapping, vm_end);
	code->start = code->end = 0;
	__builtin_memset(&code->file, 0, sizeof(code->file));
	if (!mapping || KERNEL_FIELD(code, struct vm_area_struct, mapping, vm_mm) != mm ||
	    address < start || address >= end) {
		code->kind = CODE_PENDING;
		return !changes(code, mm);
	}
	if (!(KERNEL_FIELD(code, struct vm_area_struct, mapping, vm_flags) & VM_EXEC))
		return 1;
	code->start = start;
	code->end = end;
	file = KERNEL_FIELD(code, struct vm_area_struct, mapping, vm_file);
	if (file) {
		inode = KERNEL_FIELD(code, struct file, file, f_inode);
		code->file.inode = KERNEL_FIELD(code, struct inode, inode, i_ino);
		code->file.modified_ns = modified_ns(code, inode);
		code->file.generation = KERNEL_FIELD(code, struct inode, inode, i_generation);
		code->file.device = KERNEL_FIELD(code, struct super_block,
						 KERNEL_FIELD(code, struct inode, inode, i_sb), s_dev);
	} else if (start != KERNEL_FIELD(code, struct mm_struct, mm, context.vdso)) {
		code->kind = CODE_FRAME_POINTER;
		return 0;
	}
	find_table(code, KERNEL_FIELD(code, struct vm_area_struct, mapping, vm_pgoff) << PAGE_BITS,
		   address);
	return 0;
}

#endif
