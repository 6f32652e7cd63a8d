/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The rings into which the programs write records, and the statistics of each CPU.
 *
 * One ring serves CPUS_PER_RING CPUs: one ring for all CPUs would be a point of contention on large
 * machines, and one for each CPU a waste of memory. bpf/src/rings.rs makes the rings and is the
 * only writer of `kc_rings`.
 */
#ifndef KCOLLECT_RING_H
#define KCOLLECT_RING_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "cpu_stats.h"
#include "limits.h"

/* The element of a map that has one, perhaps one for each CPU. */
static __always_inline void *only_element(void *map)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(map, &zero);
}

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* Sized by bpf/src/load.rs for the largest CPU id that the machine can have. */
struct rings {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct ring);
};

extern struct rings kc_rings SEC(".maps");

/* By CPU id, not by position: on some machines the ids have gaps. Written by programs on that CPU,
 * and by bpf/src/clocks.rs while the CPU is offline. */
struct cpu_stats_array {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_stats);
};

extern struct cpu_stats_array kc_cpu_stats SEC(".maps");

/* How much of what was read from the rings still waits in user space, in eighths of the limit
 * (bpf/src/rings.rs). */
struct backlog {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
};

extern struct backlog kc_backlog SEC(".maps");

/* How full a CPU's ring or the memory of its reader is, whichever is fuller, in eighths. */
static __always_inline __u32 fullness(__u32 cpu)
{
	__u32 index = cpu / CPUS_PER_RING, full;
	void *ring = bpf_map_lookup_elem(&kc_rings, &index);
	__u32 *after = only_element(&kc_backlog);

	if (!ring || !after)
		return 8;
	full = 8 * bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) /
	       bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
	return full > *after ? full : *after;
}

/* Sends `size` bytes into the ring of a CPU. Returns false if there is no space. The reader drains
 * the rings periodically and is woken only when an eighth of a ring is full, since a wake-up for
 * each record would cost more than the record. Stack copies get shorter later, from a quarter on.
 * `wake`: wake the reader in any case. */
static __always_inline bool send_and_wake(__u32 cpu, void *record, __u64 size, bool wake)
{
	__u32 index = cpu / CPUS_PER_RING;
	void *ring = bpf_map_lookup_elem(&kc_rings, &index);
	__u64 used, capacity;

	if (!ring)
		return false;
	used = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	capacity = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
	return !bpf_ringbuf_output(ring, record, size,
				   wake || used > capacity / 8 ? BPF_RB_FORCE_WAKEUP
							   : BPF_RB_NO_WAKEUP);
}

static __always_inline bool send(__u32 cpu, void *record, __u64 size)
{
	return send_and_wake(cpu, record, size, false);
}

#endif
