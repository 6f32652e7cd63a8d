/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What crosses from the kernel to user space, defined once, here. The Rust mirror is
 * bpf/src/wire.rs; both sides assert the sizes. Numbers are append-only; padding is named and
 * zeroed.
 */
#ifndef KCOLLECT_WIRE_H
#define KCOLLECT_WIRE_H

/* As many frames as the kernel keeps at its default (kernel.perf_event_max_stack). */
#define MAX_FRAMES 127

enum tick_mode {
	TICK_USER = 0,	 /* the CPU was in user mode: no stack */
	TICK_KERNEL = 1, /* in the kernel: the kernel stack, leaf first */
	TICK_IDLE = 2,	 /* the idle task, and no interrupt's work on top of it: no stack */
	RECORD_ABSENCE = 3, /* not a tick: struct absence_record */
	RECORD_THREAD = 4,  /* not a tick: struct thread_record */
};

enum tick_flags {
	TICK_IRQ_WORK = 1,  /* off the thread's own stack: an interrupt or softirq borrowed the CPU */
	TICK_TRUNCATED = 2, /* the stack was deeper than MAX_FRAMES */
	TICK_NO_STACK = 4,  /* the kernel gave no stack: the leaf alone is here, or nothing */
};

/* One firing of one CPU's clock, or the idle time before it. Followed by `frames` 64-bit addresses. */
struct tick_record {
	__u64 time;  /* CLOCK_MONOTONIC, ns */
	__u32 cpu;
	__u32 pid;   /* the process (thread group), initial pid namespace; 0 is idle */
	__u32 tid;   /* the thread */
	__u32 ticks; /* interval boundaries this record stands for, 1 unless the timer was held up */
	__u8 mode;   /* enum tick_mode */
	__u8 flags;  /* enum tick_flags */
	__u16 frames;
	__u32 zero;
};

/* The books of one CPU, written by programs that run on it with interrupts off; boundaries, not
 * firings. What was sent is user + kernel + idle - unsent - lost; what the CPU lived through while
 * recording is user + kernel + idle. Three cache lines, so that CPUs don't share. */
struct cpu_books {
	__u64 origin; /* struct grid; 0 while the CPU has no clock */
	__u64 index;
	__u64 user;
	__u64 kernel;
	__u64 idle;
	__u64 unsent;	/* idle boundaries not sent, by request (-x on) */
	__u64 lost;	/* boundaries whose record found no room in the ring */
	__u64 lost_records;
	__u64 made_up;	/* boundaries beyond the first of a firing on a busy CPU: the timer was held up */
	__u64 truncated; /* records with TICK_TRUNCATED */
	__u64 no_stack; /* records with TICK_NO_STACK */
	__u64 last;	/* when the clock last fired or idleness was last counted, ns */
	__u64 in_idle;	/* the CPU is in the idle loop's sleep, interrupts on top of it included */
	__u64 next;	/* the next boundary, CLOCK_MONOTONIC */
	__u64 offset;	/* scheduler's clock minus CLOCK_MONOTONIC */
	__u64 offset_stale; /* not taken since the last tick */
	__u64 absences_lost; /* boundaries in absence records that found no room */
	__u64 threads_lost; /* thread records that found no room, or threads for which there was no memory */
	__u64 begun; /* the begin_ns that the grid knows of */
	__u64 zero[5];
};

/* A thread came back to a CPU and boundaries had passed while it was away: so many in each state.
 * Followed by `frames` addresses, the kernel stack in which it was away. */
struct absence_record {
	struct tick_record head; /* mode RECORD_ABSENCE; ticks: the sum */
	__u32 counts[10];	 /* by enum state */
};

/* What one thread did while it was watched: sent when it ends, and for all that live when data stop. */
struct thread_record {
	struct tick_record head; /* mode RECORD_THREAD */
	__u64 ns[10];		 /* by enum state; on a CPU, in whatever mode: the first */
	__u64 lived;		 /* how long it was watched, ns */
};

_Static_assert(sizeof(struct tick_record) == 32, "wire.rs mirrors this");
_Static_assert(sizeof(struct absence_record) == 72, "wire.rs mirrors this");
_Static_assert(sizeof(struct thread_record) == 120, "wire.rs mirrors this");
_Static_assert(sizeof(struct cpu_books) == 192, "wire.rs mirrors this");

#endif
