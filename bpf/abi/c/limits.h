/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Numbers on which the BPF programs and what loads them (bpf/src) agree. Their Rust mirror is
 * bpf/abi/src/layout.rs, and a test compares each. */
#ifndef KCOLLECT_LIMITS_H
#define KCOLLECT_LIMITS_H

/* One ring serves that many CPUs. */
#define CPUS_PER_RING 8

/* Counters that can overflow: a power of two. */
#define MAX_COUNTERS 16

/* A CPU has so much memory for user stacks that are put together (struct user_scratch). */
#define SCRATCHES_PER_CPU 4

/* In place of the shortest lock wait that is recorded, ns: none is. */
#define NO_LOCK_WAITS (~0ULL)

/* The most lock waits that a CPU sends in a second. With 5 to 10 us for each, a twentieth of it. */
#define MAX_LOCK_WAITS_PER_CPU_AND_SECOND 5000

/* The most blocks of all traced processes that are allocated at a time. */
#define MAX_BLOCKS 1048576

/* The most processes whose allocators are probed at a time. */
#define MAX_PROBE_USES 1024

/* The most usdt_operands that differ. */
#define MAX_USDT_OPERANDS 256

/* Steps of a table of logarithms, from 1 to 2. */
#define LOG2_STEPS 256

/* The bits of its fractions. */
#define LOG2_BITS 24

/* The bits of fractions of bytes by which logarithms are multiplied. */
#define SCALE_BITS 5

/* The greatest mean of bytes between two samples: one more bit would not fit the product. */
#define MAX_MEAN_BYTES (1U << 30)

#endif
