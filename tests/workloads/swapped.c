/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A library in two versions that differ in nothing but names: what one has at an address, the other
 * has there too. `enter` is called, it calls MIDDLE, and that spins in LEAF for the given
 * nanoseconds of CPU time. MIDDLE has another size of frame in the other library, so that the table
 * of the one is wrong for the other. */

#include <stdint.h>
#include <time.h>

static uint64_t cpu_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

__attribute__((noinline)) void LEAF(uint64_t ns)
{
	uint64_t end = cpu_ns() + ns;

	do {
		for (uint64_t round = 0; round < 200000; round++)
			__asm__ volatile("" : "+r"(round));
	} while (cpu_ns() < end);
	__asm__ volatile("");
}

__attribute__((noinline)) void MIDDLE(uint64_t ns)
{
	volatile char buffer[STACK_BYTES];

	buffer[0] = 1;
	LEAF(ns);
	(void)buffer[0];
	__asm__ volatile("");
}

void enter(uint64_t ns)
{
	MIDDLE(ns);
	__asm__ volatile("");
}
