/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the BPF programs count on each CPU, read by user space from maps. */
#ifndef KCOLLECT_CPU_STATS_H
#define KCOLLECT_CPU_STATS_H

#include "integers.h"

/* Interval boundaries of one CPU by what became of them, and its tick grid. Written by programs
 * that run on this CPU with interrupts off. user + kernel + idle + stolen boundaries are the time
 * recorded; all but unsent + lost of them were sent. Six cache lines, so that CPUs share none. */
struct cpu_stats {
	/* When the tick grid began (struct grid), CLOCK_MONOTONIC; 0 while the CPU has no clock. */
	__u64 origin_ns;
	__u64 index;	    /* the last boundary that was counted (struct grid) */
	__u64 user;	    /* boundaries in user mode */
	__u64 kernel;	    /* boundaries in the kernel */
	__u64 idle;	    /* boundaries in the idle task */
	__u64 unsent;	    /* idle boundaries that were not sent, by request (-x on) */
	__u64 lost;	    /* boundaries whose record found the ring full */
	__u64 lost_records; /* records that found the ring full */
	/* Boundaries beyond the first of a firing on a busy CPU, whose timer was late. */
	__u64 late;
	__u64 truncated; /* records with FLAG_TRUNCATED */
	__u64 no_stack;	 /* records with FLAG_NO_STACK */
	/* When the clock last fired or idle time was last counted, CLOCK_MONOTONIC; 0 before. */
	__u64 last_ns;
	__u64 in_idle;	    /* 1: the CPU is in the idle loop's sleep, or in an interrupt in it */
	__u64 next_ns;	    /* the next boundary, CLOCK_MONOTONIC */
	__u64 offset_ns;    /* scheduler's clock minus CLOCK_MONOTONIC */
	__u64 offset_stale; /* 1: offset_ns was not taken since the last tick */
	__u64 off_cpu_lost; /* boundaries of off-CPU records that found the ring full */
	__u64 thread_records_lost; /* thread records that found the ring full */
	/* Times that the kernel had no memory for a thread's account: at a context switch (the
	 * thread is tracked from its next one), or when recording starts. */
	__u64 threads_untracked;
	__u64 begun_ns; /* the begin_ns that the grid has counted up to */
	/* Returns to user mode that could not be waited for or sent: records with their numbers
	 * have no user stack. */
	__u64 user_returns_lost;
	/* 1: a program works on threads of this CPU. Only set where counters overflow, whose
	 * programs may interrupt it. */
	__u64 busy;
	__u64 home_ns; /* origin_ns when recording started or the clock was last started */
	/* Boundaries that passed while the hypervisor ran something else, and a thread was here. */
	__u64 stolen;
	/* Address of the kernel's sum of the time stolen from this CPU; 0: it has none. */
	__u64 steal_at;
	__u64 steal_ns;	       /* that sum when boundaries were last counted */
	__u64 switch_steal_ns; /* the run queue's sum at the last context switch */
	/* Look-ups of mapped code that were thrown away, since the mappings changed meanwhile. */
	__u64 raced_look_ups;
	__u64 woken_ns;	       /* when the reader was last woken for a stack copy */
	__u64 lock_waits_lost; /* lock waits that found the ring full */
	/* Lock waits that were not sent, since there were too many in the same second. */
	__u64 lock_waits_skipped;
	__u64 lock_waits_skipped_ns; /* the time of those that were not sent */
	__u64 lock_second;	     /* the second in which lock waits were last sent */
	__u64 lock_waits;	     /* how many were sent in that second */
	__u64 io_calls_lost;	     /* traced system calls that found the ring full */
	/* The last process that made a system call here and is not followed: its number, and below
	 * it how often it had called exec. */
	__u64 ignored_execution;
	__u64 index_at_rotation; /* `index` at the end of the last experiment */
	/* The thread that the last context switch brought here that the programs have seen. */
	__u32 last_pid, last_tid;
	/* Changes of blocks that found the ring or the table of blocks full. */
	__u64 blocks_lost;
	/* What the programs took at context switches, ticks and returns to user mode, ns. One
	 * switch of MEASURED_SWITCHES is measured, and stands for those since the last one. */
	__u64 programs_ns;
	__u64 unmeasured;  /* context switches since the last that was measured */
	__u64 measured_ns; /* start of the measured switch; here, as the BPF stack is full */
	/* 1: a program that user space runs counts boundaries. The clock's timer may interrupt
	 * it. */
	__u64 settling;
	/* A byte for each program at system calls: 1 while it runs here (enum call_program). */
	__u64 in_programs;
	/* Context switches while both programs for the same end of calls were inside: calls of the
	 * thread that came were not seen. */
	__u64 calls_unseen;
	/* When the last context switch was, CLOCK_MONOTONIC: only where run queues are not read. */
	__u64 arrived_ns;
	__u64 run_queue; /* address of this CPU's run queue: only where wake-ups are watched */
	__u64 unused;	 /* fills the last cache line */
};

/* Programs at system calls. Two for each end, where one may be preempted (c/io_call.bpf.c). */
enum call_program {
	CALL_EXIT = 0,
	CALL_EXIT_AGAIN = 1,
	CALL_ENTER = 2,
	CALL_ENTER_AGAIN = 3,
};

/* No multiple of the number of threads that take turns, such as two: it is a prime number. */
#define MEASURED_SWITCHES 61

/* A counter on one CPU. */
struct counter_stats {
	__u64 since_overflow; /* of a tracepoint: events since the last overflow */
	__u64 events;	      /* of a tracepoint: all events */
	__u64 recorded;	      /* events that sent records stand for */
	__u64 lost;	      /* events of records that found the ring full */
};

_Static_assert(sizeof(struct cpu_stats) == 384, "the same for every compiler");
_Static_assert(sizeof(struct counter_stats) == 32, "the same for every compiler");

#endif
