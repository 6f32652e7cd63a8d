/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Rings, books, and what is kept with each thread.
 *
 * One ring serves CPUS_PER_RING CPUs: one for all is a point of contention on large machines, one
 * each wastes memory on them. bpf/src/load.rs makes the rings and is the only one to fill `rings`.
 */
#ifndef KCOLLECT_MAPS_H
#define KCOLLECT_MAPS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "account.h"
#include "wire.h"

#define CPUS_PER_RING 8

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* Sized by load.rs for the largest CPU id the machine can have. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct ring);
} rings SEC(".maps");

/* By CPU id, not by position: ids have holes on some machines. Written by programs on that CPU; by
 * load.rs only while it is offline. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_books);
} books SEC(".maps");

/* As large as any length that fits its mask: older verifiers lose a comparison that the compiler
 * made on a copy. */
#define SCRATCH		       2048
#define SCRATCH_LENGTH(length) ((length) & (SCRATCH - 1))

struct scratch {
	struct record record;
	__u64 stack[MAX_FRAMES];
	__u64 spare[(SCRATCH - sizeof(struct record)) / sizeof(__u64) - MAX_FRAMES];
};

/* A record is put together here, because its length is known only when the stack is: by programs
 * that run with interrupts off, */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

struct walk_scratch {
	struct scratch absence;
	struct thread_record thread;
	struct account account;
};

/* and by those that walk the threads, one at a time, on top of which the others may come. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walk_scratch);
} walk_scratch SEC(".maps");

/* Something was recorded that its next entry tells of. */
#define ENTRY_AWAITED 1

/* What is kept with each thread, and goes with it. */
struct thread {
	struct account account;
	__u64 index; /* the boundaries counted on the CPU that it left, until it did; on a CPU:
			until it came */
	__u32 cpu;   /* that CPU */
	__u32 zero;
	__u32 user_fault;   /* the last fault of user mode: enum state */
	__u32 kernel_fault; /* a fault was taken in the kernel, perhaps in this very system call */
	__u32 entry;   /* twice the number of its last entry to user mode, and ENTRY_AWAITED: one
			  word, one store */
	__u32 counted; /* `before` is known */
	__u64 ip, sp, print; /* where entries are not seen: the place in user mode that the number
				stands for; or ip 0 */
	__u64 before[COUNTERS]; /* what the kernel had counted when it was watched first */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* Where entries are not seen: the user stack of a thread at the place where it left its CPU last.
 */
#define KEPT_FRAMES	    244
#define KEPT		    2048
#define KEPT_LENGTH(length) ((length) & (KEPT - 1))

struct kept_place {
	struct entry_record record;
	__u64 words[(KEPT - sizeof(struct entry_record)) / sizeof(__u64)];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kept_place);
} places SEC(".maps");

/* Threads whose next entry to user mode is waited for, or was. By tid; a task work can't live in
 * `threads`. */
struct entry_wait {
	struct bpf_task_work work;
};

#define MOST_ENTRIES 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_ENTRIES);
	__type(key, __u32);
	__type(value, struct entry_wait);
} entry_waits SEC(".maps");

/* How much was taken out of the rings and waits in user space, in eighths of what may
 * (bpf/src/rings.rs). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} backlog SEC(".maps");

/* How full is a CPU's ring, or what is behind it, in eighths? */
static __always_inline __u32 fullness(__u32 cpu)
{
	__u32 index = cpu / CPUS_PER_RING, only = 0, full;
	void *ring = bpf_map_lookup_elem(&rings, &index);
	__u32 *behind = bpf_map_lookup_elem(&backlog, &only);

	if (!ring || !behind)
		return 8;
	full = 8 * bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) /
	       bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
	return full > *behind ? full : *behind;
}

/* Send `size` bytes into the ring of a CPU; false where there is no room. The reader comes round on
 * a timer; it is woken only when an eighth is full, for a wake-up per record would cost more than
 * the record; and before copies of stacks get shorter, which they do from a quarter on. */
static __always_inline bool send(__u32 cpu, void *record, __u64 size)
{
	__u32 index = cpu / CPUS_PER_RING;
	void *ring = bpf_map_lookup_elem(&rings, &index);
	__u64 used, room;

	if (!ring)
		return false;
	used = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	room = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
	return !bpf_ringbuf_output(ring, record, size,
				   used > room / 8 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

#endif
