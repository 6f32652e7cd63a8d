/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Rings and books.
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

struct tick_scratch {
	struct tick_record record;
	__u64 stack[MAX_FRAMES];
};

struct absence_scratch {
	struct absence_record record;
	__u64 stack[MAX_FRAMES];
};

/* A record is put together here, because its length is known only when the stack is. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tick_scratch);
} scratch SEC(".maps");

/* The same for an absence: a tick may come on top of the program that puts it together. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct absence_scratch);
} absence_scratch SEC(".maps");

/* What is kept with each thread, and goes with it. */
struct thread {
	struct account account;
	__u64 next; /* the next boundary of the CPU that it left, scheduler's clock */
	__u32 user_fault; /* the last fault of user mode: enum state */
	__u32 kernel_fault; /* a fault was taken in the kernel, perhaps in this very system call */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* Send `size` bytes. The reader comes round on a timer; it is woken only when a quarter is full,
 * for a wake-up per record would cost more than the record. */
static __always_inline long send(void *ring, void *record, __u64 size)
{
	__u64 used = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	__u64 room = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);

	return bpf_ringbuf_output(ring, record, size,
				  used > room / 4 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

#endif
