/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `allocations [MILLISECONDS [sampled|churn|later]]`: after a pause, which SIGUSR1 ends,
 * functions that allocate blocks, each in another way, and free some. For each it prints
 * `memory NAME ALLOCATED LIVE COUNT`: the bytes that it allocated, those that are left, and in how
 * many blocks it allocated them. `sampled`: many blocks of two sizes, in four threads. `churn`:
 * blocks that are freed at once, as fast as possible for two seconds of CPU time, and
 * `pair NANOSECONDS`, the time that passes for each of them, and then a large one that stays.
 * `later`: `churn`, and after 12 seconds blocks that stay, one in a quarter of a millisecond.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATH __attribute__((noinline))

/* So that no call is left out by the compiler. */
static void *volatile kept;

static void require(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static void print(const char *name, unsigned long bytes, unsigned long live, unsigned long count)
{
	printf("memory %s %lu %lu %lu\n", name, bytes, live, count);
}

/* All of them stay. */
static PATH void keep(void)
{
	for (int times = 0; times < 100; times++) {
		kept = malloc(1000);
		require(!!kept, "malloc");
	}
	print("keep", 100000, 100000, 100);
}

/* None of them stays. */
static PATH void borrow(void)
{
	for (int times = 0; times < 5000; times++) {
		kept = malloc(48);
		require(!!kept, "malloc");
		free(kept);
	}
	print("borrow", 240000, 0, 5000);
}

/* Every second one stays. */
static PATH void zeroed(void)
{
	for (int times = 0; times < 50; times++) {
		kept = calloc(10, 30);
		require(!!kept, "calloc");
		if (times % 2)
			free(kept);
	}
	print("zeroed", 15000, 7500, 50);
}

/* Grows in steps, from nothing on; each step is an allocation. */
static PATH void grow(void)
{
	unsigned long all = 0;
	void *block = 0;

	for (unsigned long bytes = 16; bytes <= 16 << 10; bytes *= 2) {
		block = realloc(block, bytes);
		kept = block;
		require(!!block, "realloc");
		all += bytes;
	}
	print("grow", all, 16 << 10, 11);
}

/* The same by arrays, and freed by a size of nothing. */
static PATH void grow_array(void)
{
	void *block = reallocarray(0, 10, 100);

	kept = block;
	block = reallocarray(block, 20, 100);
	kept = block;
	require(!!block, "reallocarray");
	kept = realloc(block, 0);
	print("grow_array", 3000, 0, 2);
}

static PATH void aligned(void)
{
	unsigned long all = 0, live = 0;

	for (int times = 0; times < 20; times++) {
		void *block = 0;

		require(!posix_memalign(&block, 256, 5000), "posix_memalign");
		kept = block;
		all += 5000;
		live += 5000;
		/* With an alignment that all blocks have, it is malloc. */
		require(!posix_memalign(&block, 8, 100), "posix_memalign");
		kept = block;
		all += 100;
		live += 100;
		kept = aligned_alloc(512, 1024);
		all += 1024;
		free(kept);
		kept = memalign(64, 200);
		all += 200;
		live += 200;
	}
	print("aligned", all, live, 80);
}

/* No block, and none that counts. */
static PATH void refused(void)
{
	for (int times = 0; times < 10; times++) {
		kept = malloc((size_t)1 << 62);
		require(!kept, "a block that cannot be");
		kept = calloc((size_t)1 << 40, (size_t)1 << 40);
		require(!kept, "a block that cannot be");
	}
	print("refused", 0, 0, 0);
}

static PATH void *handed(void)
{
	kept = malloc(777);
	require(!!kept, "malloc");
	return kept;
}

static void *take_all(void *blocks)
{
	void **all = blocks;

	for (int number = 0; number < 200; number++)
		free(all[number]);
	return 0;
}

/* Freed by another thread. */
static void hand_over(void)
{
	void *blocks[200];
	pthread_t thread;

	for (int number = 0; number < 200; number++)
		blocks[number] = handed();
	require(!pthread_create(&thread, 0, take_all, blocks), "pthread_create");
	require(!pthread_join(thread, 0), "pthread_join");
	print("handed", 200 * 777, 0, 200);
}

/* Blocks of one size; every second one is freed: for samples. */
static PATH void *many(void *size)
{
	unsigned long bytes = (unsigned long)size;

	for (int times = 0; times < 20000; times++) {
		kept = malloc(bytes);
		void *block = kept;

		require(!!block, "malloc");
		if (times % 2)
			free(block);
	}
	return 0;
}

static PATH void *many_small(void *size)
{
	return many(size);
}

static PATH void *many_large(void *size)
{
	return many(size);
}

static void sampled(void)
{
	void *(*const functions[])(void *) = {many_small, many_large, many_small, many_large};
	pthread_t threads[4];

	for (int number = 0; number < 4; number++)
		require(!pthread_create(&threads[number], 0, functions[number],
					(void *)(number % 2 ? 6000UL : 120UL)),
			"pthread_create");
	for (int number = 0; number < 4; number++)
		require(!pthread_join(threads[number], 0), "pthread_join");
	print("many_small", 40000UL * 120, 20000UL * 120, 40000);
	print("many_large", 40000UL * 6000, 20000UL * 6000, 40000);
}

static double seconds_of(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* The probes of these calls take more than the calls. */
static PATH void churn(void)
{
	double until = seconds_of(CLOCK_PROCESS_CPUTIME_ID) + 2;
	double start = seconds_of(CLOCK_MONOTONIC);
	unsigned long count = 0;

	while (seconds_of(CLOCK_PROCESS_CPUTIME_ID) < until)
		for (int times = 0; times < 1000; times++, count++) {
			kept = malloc(100);
			require(!!kept, "malloc");
			free(kept);
		}
	printf("pair %.3f\n", (seconds_of(CLOCK_MONOTONIC) - start) * 1e9 / count);
	print("churn", count * 100, 0, count);
}

/* The allocator maps memory for it alone. */
static PATH void hoard(void)
{
	kept = malloc(64 << 20);
	require(!!kept, "malloc");
	print("hoard", 64 << 20, 64 << 20, 1);
}

static PATH void later(void)
{
	struct timespec pause = {.tv_nsec = 250000};

	sleep(12);
	for (int times = 0; times < 4000; times++) {
		kept = malloc(1000);
		require(!!kept, "malloc");
		nanosleep(&pause, NULL);
	}
	print("later", 4000000, 4000000, 4000);
}

static void end_pause(int number)
{
	(void)number;
}

int main(int count, char **arguments)
{
	static char buffer[BUFSIZ];
	long milliseconds = count > 1 ? atol(arguments[1]) : 0;
	struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};

	signal(SIGUSR1, end_pause);
	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	nanosleep(&pause, 0);
	if (count > 2) {
		if (!strcmp(arguments[2], "sampled")) {
			sampled();
		} else if (!strcmp(arguments[2], "churn")) {
			churn();
			hoard();
		} else {
			churn();
			hoard();
			later();
		}
		return 0;
	}
	keep();
	borrow();
	zeroed();
	grow();
	grow_array();
	aligned();
	refused();
	hand_over();
	return 0;
}
