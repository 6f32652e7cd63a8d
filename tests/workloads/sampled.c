/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* `sampled BLOCKS`: a program that samples its own allocations and says which, by the USDTs
 * `otel_memory:alloc` and `otel_memory:free`, and counts what it said.
 *
 * It comes to them only while they are watched: the kernel counts that in two semaphores. It waits
 * for that at the start, at most some seconds. The arguments are where the compiler puts them: in
 * registers, in memory or nowhere, as constants. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SEMAPHORE __attribute__((section(".probes"), used, visibility("hidden")))
volatile uint16_t otel_memory_alloc_semaphore SEMAPHORE;
volatile uint16_t otel_memory_free_semaphore SEMAPHORE;

#define NOTE(name, operands)                                                                       \
	"990: nop\n"                                                                               \
	".pushsection .note.stapsdt, \"\", \"note\"\n"                                             \
	".balign 4\n"                                                                              \
	".4byte 992f - 991f, 994f - 993f, 3\n"                                                     \
	"991: .asciz \"stapsdt\"\n"                                                                \
	"992: .balign 4\n"                                                                         \
	"993: .8byte 990b, _.stapsdt.base, otel_memory_" name "_semaphore\n"                       \
	".asciz \"otel_memory\"\n"                                                                 \
	".asciz \"" name "\"\n"                                                                    \
	".asciz \"" operands "\"\n"                                                                \
	"994: .balign 4\n"                                                                         \
	".popsection\n"                                                                            \
	".ifndef _.stapsdt.base\n"                                                                 \
	".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n"                \
	".weak _.stapsdt.base\n"                                                                   \
	".hidden _.stapsdt.base\n"                                                                 \
	"_.stapsdt.base: .space 1\n"                                                               \
	".popsection\n"                                                                            \
	".endif\n"

#define ALLOCATED(block, size, weighted, where)                                                    \
	__asm__ volatile(NOTE("alloc", "8@%0 8@%1 8@%2") ::"r"(block), where(size), "m"(weighted))

/* How long to wait for the semaphores, and a step of that, in microseconds. */
enum { WAIT = 5000000, STEP = 10000 };
/* One of this many blocks is sampled. */
enum { EVERY = 8 };

/* What is said of the blocks of a function: bytes and number of all for which they stand. */
struct sum {
	uint64_t allocated, live, count;
};

static struct sum kept, passed;

static void add(struct sum *sum, uint64_t bytes, uint64_t count)
{
	sum->allocated += bytes * count;
	sum->live += bytes * count;
	sum->count += count;
}

/* Blocks whose size is a constant: one that is sampled stands for three. */
__attribute__((noinline)) static void *keep(int sample)
{
	const uint64_t size = 4096;
	volatile uint64_t weighted = 3 * size;
	void *block = malloc(size);

	if (sample && otel_memory_alloc_semaphore) {
		ALLOCATED(block, (uint64_t)4096, weighted, "n");
		add(&kept, size, 3);
	}
	return block;
}

/* Blocks of many sizes, which are freed. One stands for seven. */
__attribute__((noinline)) static void pass(int sample, uint64_t size)
{
	volatile uint64_t weighted = 7 * size;
	void *block = malloc(size);

	if (sample && otel_memory_alloc_semaphore) {
		ALLOCATED(block, size, weighted, "r");
		add(&passed, size, 7);
	}
	if (sample && otel_memory_free_semaphore) {
		__asm__ volatile(NOTE("free", "8@%0")::"r"(block));
		passed.live -= 7 * size;
	}
	free(block);
}

static void print(const char *name, const struct sum *sum)
{
	printf("memory %s %lu %lu %lu\n", name, sum->allocated, sum->live, sum->count);
}

int main(int count, char **arguments)
{
	long blocks = count > 1 ? atol(arguments[1]) : 0;

	for (long waited = 0; waited < WAIT && !otel_memory_free_semaphore; waited += STEP)
		usleep(STEP);
	/* The unwind tables come a little later. */
	usleep(500000);
	for (long block = 0; block < blocks; block++) {
		if (!keep(block % EVERY == 0))
			return 1;
		pass(block % EVERY == 1, 1 + block % 1000);
	}
	print("keep", &kept);
	print("pass", &passed);
	return 0;
}
