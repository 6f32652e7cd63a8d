/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `exec_thread`: of three threads the one that began last executes this program again, as
 * `exec_thread again`: the kernel ends the others and gives it the number of the first one. Prints
 * what happened when, `EVENT NS` by CLOCK_MONOTONIC, since its start:
 *
 * `begin`, `before_other` and `after_other`, between which that thread was made, `exec`, `again`,
 * `end`; and `other TID`.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORK_NS 100000000L

static unsigned long value = 1;

static long now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void print(const char *event, long number)
{
	printf("%s %ld\n", event, number);
	fflush(stdout);
}

/* Returns the time that this thread has been on a CPU. */
static long cpu_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

__attribute__((noinline)) static void work(void)
{
	for (long end = cpu_ns() + WORK_NS; cpu_ns() < end;)
		for (int times = 0; times < 10000; times++)
			__asm__ volatile("" : "+r"(value));
}

static void *idle(void *argument)
{
	for (;;)
		pause();
	return argument;
}

static void *other(void *argument)
{
	print("other", syscall(SYS_gettid));
	usleep(300000);
	work();
	print("exec", now_ns());
	execl("/proc/self/exe", "exec_thread", "again", NULL);
	perror("exec");
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc > 1 && !strcmp(argv[1], "again")) {
		print("again", now_ns());
		work();
		usleep(1200000);
		print("end", now_ns());
		return 0;
	}
	print("begin", now_ns());
	if (pthread_create(&thread, NULL, idle, NULL))
		return 1;
	work();
	print("before_other", now_ns());
	if (pthread_create(&thread, NULL, other, NULL))
		return 1;
	print("after_other", now_ns());
	for (;;)
		pause();
}
