/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Threads that say of themselves who they are and what their waits are, and what they all do. */
#ifndef SUBJECTS_H
#define SUBJECTS_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clocks.h"

/* A function that is in the stack of each wait in it: by it the wait is told from others. */
#define PLACE __attribute__((noinline))

/* What a person says of the waits in a function. */
#define SUFFERED(function) "\"" #function "\":\"suffered\""
#define IDLE(function)	   "\"" #function "\":\"idle\""

static uint64_t until_ns;

static inline int goes_on(void)
{
	return clock_ns(CLOCK_MONOTONIC) < until_ns;
}

static inline void spin_us(uint64_t us)
{
	uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + us * 1000;

	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end)
		;
}

static inline void sleep_us(uint64_t us)
{
	struct timespec span = {.tv_sec = (time_t)(us / 1000000),
				.tv_nsec = (long)(us % 1000000) * 1000};

	nanosleep(&span, NULL);
}

/* Names this thread, and prints a line of JSON: who it is, and what its waits are. One call of
 * write() for a line, since other processes print to the same file. */
static inline void subject(const char *name, const char *waits)
{
	char line[512];
	int size = snprintf(line, sizeof line,
			    "{\"thread\":\"%s\",\"pid\":%d,\"tid\":%ld,\"waits\":{%s}}\n", name,
			    getpid(), syscall(SYS_gettid), waits);

	check(prctl(PR_SET_NAME, name) == 0, "prctl");
	check(size < (int)sizeof line && write(STDOUT_FILENO, line, (size_t)size) == size,
	      "standard output");
}

#endif
