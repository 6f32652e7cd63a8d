/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The names of the files that a program has registered with a ring of io_uring.
 *
 * They have no descriptor, and a place among them may get another file at any time, by a system
 * call, by an operation, or by another ring. So each operation says which file it used, and the
 * path of a file is read here when the first operation on it is seen.
 */
#ifndef KCOLLECT_IO_FILE_H
#define KCOLLECT_IO_FILE_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "hash.h"
#include "records.h"
#include "ring.h"

/* Files whose path was sent. One that is no longer among them is sent again. */
#define MAX_NAMED_FILES 16384

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_NAMED_FILES);
	__type(key, __u64);
	__type(value, __u8);
} kc_io_files SEC(".maps");

#define MAX_NAME_BYTES 256

/* A power of two, above the length of any record, and with space for a name after any path. */
#define FILE_RECORD_BYTES	   1024
#define FILE_RECORD_LENGTH(length) ((length) & (FILE_RECORD_BYTES - 1))

struct io_file_scratch {
	struct io_file_record record;
	__u8 path[FILE_RECORD_BYTES - sizeof(struct io_file_record)];
	__u64 busy;
};

/* A record's length is known only when the path is. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct io_file_scratch);
} kc_io_file_scratch SEC(".maps");

/* Max directories and mounts on a path. */
#define MAX_PATH_STEPS 256

struct path_walk {
	struct vfsmount *mount;
	struct dentry *dentry;
	__u32 bytes;
	__u32 end; /* enum path_end */
};

/* Adds the name of a file or directory to a path, and moves on to its directory. The root of a
 * mounted file system has no name, and the directory that it is mounted on is next. */
static long add_name(__u64 index, struct path_walk *walk)
{
	__u32 at = walk->bytes, length;
	struct io_file_scratch *out = only_element(&kc_io_file_scratch);
	struct vfsmount *filesystem = walk->mount;
	struct dentry *dentry = walk->dentry, *directory;

	(void)index;
	if (!out)
		return 1;
	if (dentry == BPF_CORE_READ(filesystem, mnt_root)) {
		__u64 inside = bpf_core_field_offset(struct mount, mnt);
		struct mount *mount = (struct mount *)((__u64)filesystem - inside);
		struct mount *on = BPF_CORE_READ(mount, mnt_parent);

		walk->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
		walk->mount = (struct vfsmount *)((__u64)on + inside);
		if (mount != on)
			return 0;
		walk->end = PATH_ROOTED;
		return 1;
	}
	length = BPF_CORE_READ(dentry, d_name.len);
	if (length >= MAX_NAME_BYTES || at + length + 1 > MAX_IO_EXTRA_BYTES)
		return 1;
	at &= MAX_IO_EXTRA_BYTES - 1;
	length &= MAX_NAME_BYTES - 1;
	bpf_probe_read_kernel(&out->path[at], length, BPF_CORE_READ(dentry, d_name.name));
	out->path[at + length] = '/';
	walk->bytes += length + 1;
	directory = BPF_CORE_READ(dentry, d_parent);
	walk->end = directory == dentry ? PATH_DETACHED : PATH_CUT;
	walk->dentry = directory;
	return directory == dentry;
}

/* A number that no other file has, nor the same file by another path. Addresses alone are not
 * enough, since the kernel reuses them. It reuses numbers of inodes too, with another
 * generation. */
static __always_inline __u64 number_of_file(const struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	__u64 hash;

	if (!inode)
		return 0;
	hash = add_to_hash(0, (__u64)BPF_CORE_READ(file, f_path.dentry));
	hash = add_to_hash(hash, (__u64)BPF_CORE_READ(file, f_path.mnt));
	hash = add_to_hash(hash, BPF_CORE_READ(inode, i_ino));
	return add_to_hash(hash, BPF_CORE_READ(inode, i_generation));
}

static __always_inline void send_path(struct io_file_scratch *out, const struct file *file,
				      __u64 number, const struct record_header *header)
{
	struct path_walk walk = {
		.mount = BPF_CORE_READ(file, f_path.mnt),
		.dentry = BPF_CORE_READ(file, f_path.dentry),
		.end = PATH_CUT,
	};
	__u8 sent = 1;
	__u32 words;

	bpf_loop(MAX_PATH_STEPS, add_name, &walk, 0);
	words = (walk.bytes + 7) / 8;
	out->record.header = *header;
	out->record.header.time_ns = bpf_ktime_get_ns();
	out->record.header.cpu = bpf_get_smp_processor_id();
	out->record.header.kind = RECORD_IO_FILE;
	out->record.header.user_return = 0;
	out->record.header.frames = words;
	out->record.file = number;
	out->record.inode = BPF_CORE_READ(file, f_inode, i_ino);
	out->record.mode = BPF_CORE_READ(file, f_inode, i_mode);
	out->record.bytes = walk.bytes;
	out->record.end = walk.end;
	/* If there is no space in the ring, the next operation sends it. */
	if (send(out->record.header.cpu, out,
		 FILE_RECORD_LENGTH(sizeof(out->record) + 8 * words)))
		bpf_map_update_elem(&kc_io_files, &number, &sent, 0);
}

/* Sends the path of a file if that was not sent before. Returns the number of the file, or 0 if
 * there is no file. */
static __always_inline __u64 name_file(const struct file *file, const struct record_header *header)
{
	__u64 number = file ? number_of_file(file) : 0;
	struct io_file_scratch *out;

	if (!number || bpf_map_lookup_elem(&kc_io_files, &number))
		return number;
	out = only_element(&kc_io_file_scratch);
	/* Another program runs on this CPU in the middle of this: the next operation names it. */
	if (!out || __sync_val_compare_and_swap(&out->busy, 0, 1))
		return number;
	send_path(out, file, number, header);
	out->busy = 0;
	return number;
}

/* The file at a place, counted from 0, among those that are registered with a ring. */
static __always_inline const struct file *registered_file(const struct io_ring_ctx *ring,
							   __u32 place)
{
	/* The lowest bits are flags. */
	const __u64 flags = 7;
	const struct io_file_table___array *array = (void *)&ring->file_table;
	const struct io_ring_ctx___file_count *count = (void *)ring;
	struct io_rsrc_node *node = 0;
	unsigned long file = 0;

	if (bpf_core_field_exists(array->files)) {
		if (place < BPF_CORE_READ(count, nr_user_files))
			bpf_probe_read_kernel(&file, sizeof(file),
					      BPF_CORE_READ(array, files) + place);
	} else if (place < BPF_CORE_READ(ring, file_table.data.nr)) {
		bpf_probe_read_kernel(&node, sizeof(node),
				      BPF_CORE_READ(ring, file_table.data.nodes) + place);
		if (node)
			file = BPF_CORE_READ(node, file_ptr);
	}
	return (const struct file *)(file & ~flags);
}

#endif
