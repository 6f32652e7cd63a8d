/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The clocks of the workloads, and the end of a workload that the kernel refuses something. */
#ifndef CLOCKS_H
#define CLOCKS_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Ends the process with the error of the last system call, unless `holds`. */
static inline void check(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		_exit(1);
	}
}

/* Returns a clock, nanoseconds. */
static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec time;

	check(clock_gettime(clock, &time) == 0, "clock_gettime");
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

#endif
