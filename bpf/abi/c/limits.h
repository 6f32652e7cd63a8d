/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Numbers on which the BPF programs and what loads them (bpf/src) agree. bpf/abi/build.rs generates
 * bpf_abi::layout of these headers, with the comments. */
#ifndef KCOLLECT_LIMITS_H
#define KCOLLECT_LIMITS_H

/* Number of CPUs that share a ring. */
#define CPUS_PER_RING 8

/* Max counters that can overflow: a power of two. */
#define MAX_COUNTERS 16

/* User stacks that can be built on a CPU at the same time (struct user_scratch). */
#define SCRATCHES_PER_CPU 4

/* In place of the shortest lock wait that is recorded, ns: none is. */
#define NO_LOCK_WAITS (~0ULL)

/* Max lock waits that a CPU sends per second. At 5 to 10 us each, they take a twentieth of its
 * time. */
#define MAX_LOCK_WAITS_PER_CPU_AND_SECOND 5000

/* A bit of a system call's facts (call_causes): it takes something out of what it reads, so that
 * another thread may write again. The rest is a cause. */
#define CALL_READS 0x80

/* Max blocks of all traced processes that are allocated at a time. */
#define MAX_BLOCKS 1048576

/* Max processes whose allocators are probed at a time. */
#define MAX_PROBE_USES 1024

/* Max usdt_operands that differ. */
#define MAX_USDT_OPERANDS 256

/* Steps of a table of logarithms, from 1 to 2. */
#define LOG2_STEPS 256

/* The bits of fractions in that table. */
#define LOG2_BITS 24

/* The bits of fractions of bytes by which logarithms are multiplied. */
#define SCALE_BITS 5

/* The greatest mean of bytes between two samples: one more bit would not fit the product. */
#define MAX_MEAN_BYTES (1U << 30)

#endif
