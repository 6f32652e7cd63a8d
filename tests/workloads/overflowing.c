/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `overflowing PAGES STORES CALLS NAPS`: does each thing that often on the path main, left, and
 * three times as often on the path main, right: touches a fresh page, stores to `watched`, calls
 * getppid, sleeps for a millisecond; after a sleep. It prints what the kernel has counted of it in
 * the end: page faults and context switches.
 *
 * Its addresses are the same as in its file, so that a breakpoint on `watched` can be set before it
 * starts.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline))

volatile long watched;

struct work {
	char *fresh;
	long pages, stores, calls, naps;
};

APART static void touch(struct work *work, long pages)
{
	for (long page = 0; page < pages; page++) {
		*(volatile char *)work->fresh = 1;
		work->fresh += 4096;
	}
}

APART static void store(long stores)
{
	for (long number = 0; number < stores; number++)
		watched = number;
}

APART static void ask(long calls)
{
	for (long number = 0; number < calls; number++)
		(void)getppid();
}

APART static void nap(long naps)
{
	struct timespec time = {.tv_nsec = 1000000};

	for (long number = 0; number < naps; number++)
		nanosleep(&time, NULL);
}

APART static void all(struct work *work, long times)
{
	touch(work, times * work->pages);
	store(times * work->stores);
	ask(times * work->calls);
	nap(times * work->naps);
}

APART static void left(struct work *work, long times)
{
	all(work, times);
	__asm__ volatile("");
}

APART static void right(struct work *work, long times)
{
	all(work, 3 * times);
	__asm__ volatile("");
}

int main(int count, char **words)
{
	struct rusage usage;
	struct work work;

	if (count != 5)
		return 64;
	work.pages = atol(words[1]);
	work.stores = atol(words[2]);
	work.calls = atol(words[3]);
	work.naps = atol(words[4]);
	work.fresh = mmap(NULL, 4096 * 4 * (size_t)work.pages, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (work.fresh == MAP_FAILED ||
	    madvise(work.fresh, 4096 * 4 * (size_t)work.pages, MADV_NOHUGEPAGE))
		return 71;
	/* Until it is known what is mapped here, stacks are copied, and there is no space for
	 * thousands in a few milliseconds. */
	nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL);
	/* So that neither the code nor what it needs is faulted in on one of the paths. */
	left(&work, 0);
	right(&work, 0);
	ask(1);
	nap(1);
	left(&work, 1);
	right(&work, 1);
	if (getrusage(RUSAGE_SELF, &usage))
		return 71;
	printf("FAULTS %ld SWITCHES %ld\n", usage.ru_minflt + usage.ru_majflt,
	       usage.ru_nvcsw + usage.ru_nivcsw);
	return 0;
}
