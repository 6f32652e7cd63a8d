/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A process whose first thread ends while others continue. Arguments: LIBRARY FILE MS. One thread
 * spins in hot_worker, one spins in LIBRARY (workloads/swapped.c), which is mapped after that, and
 * one reads FILE and allocates a block of BLOCK bytes every 10 ms. All end after so long. Prints
 * how often that was done. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "clocks.h"

#define BLOCK 12345
#define MS 1000000ull

static uint64_t end;
static const char *library, *file;

__attribute__((noinline)) static void hot_worker(void)
{
	for (uint64_t round = 0; round < 200000; round++)
		__asm__ volatile("" : "+r"(round));
	__asm__ volatile("");
}

static void *spins(void *argument)
{
	while (clock_ns(CLOCK_MONOTONIC) < end)
		hot_worker();
	return argument;
}

static void *loads(void *argument)
{
	usleep(200000);
	void *loaded = dlopen(library, RTLD_NOW);
	check(loaded != NULL, library);
	void (*enter)(uint64_t) = (void (*)(uint64_t))dlsym(loaded, "enter");
	check(enter != NULL, "enter");
	while (clock_ns(CLOCK_MONOTONIC) < end)
		enter(10 * MS);
	return argument;
}

static void *reads(void *argument)
{
	char text[16];
	unsigned rounds = 0;
	usleep(200000);
	int opened = open(file, O_RDONLY);

	check(opened >= 0, file);
	while (clock_ns(CLOCK_MONOTONIC) < end) {
		check(pread(opened, text, sizeof(text), 0) == sizeof(text), "pread");
		void *volatile block = malloc(BLOCK);
		free(block);
		rounds++;
		usleep(10000);
	}
	printf("rounds %u\n", rounds);
	fflush(stdout);
	return argument;
}

int main(int argc, char **argv)
{
	void *(*threads[])(void *) = { spins, loads, reads };
	pthread_t thread;

	check(argc == 4, "three arguments");
	library = argv[1];
	file = argv[2];
	end = clock_ns(CLOCK_MONOTONIC) + strtoull(argv[3], NULL, 10) * MS;
	for (unsigned i = 0; i < 3; i++)
		check(pthread_create(&thread, NULL, threads[i], NULL) == 0, "pthread_create");
	printf("pid %d\n", getpid());
	fflush(stdout);
	usleep(100000);
	pthread_exit(NULL);
}
