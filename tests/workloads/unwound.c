/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Stacks of every shape that a C compiler makes, one after another for as long as it is let; for
 * checks/stacks/unwinder.rs. With an argument that begins with 's', signals only; with 'v', the
 * clock of the vDSO only; with 'f', odd frames only.
 */
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))

static volatile unsigned long sink;
static volatile sig_atomic_t handled;

KEPT static void leaf(void)
{
	for (int i = 0; i < 20; i++)
		sink += i;
}

KEPT static unsigned long deep(unsigned long depth, unsigned long carried)
{
	unsigned long kept = carried * 3 + depth;

	if (!depth) {
		leaf();
		return kept;
	}
	kept += deep(depth - 1, kept);
	return kept ^ sink;
}

/* More arguments than registers, locals of a wider alignment than the stack's, and a buffer of
 * unknown size: the way back is by r10 at first and by what is stored below rbp then. */
KEPT static unsigned long realigned(unsigned long a, unsigned long b, unsigned long c,
				    unsigned long d, unsigned long e, unsigned long f,
				    unsigned long g, unsigned long h)
{
	unsigned long wide[16] __attribute__((aligned(64)));
	char *buffer = alloca(16 + (a & 63));

	memset(wide, (int)b, sizeof(wide));
	memset(buffer, (int)c, 16 + (a & 63));
	leaf();
	return wide[d & 15] + buffer[e & 15] + f + g + h + deep(3, a);
}

KEPT static unsigned long with_alloca(size_t size)
{
	char *buffer = alloca(size);

	memset(buffer, 1, size);
	leaf();
	return buffer[size / 2] + strlen("a string in the library");
}

/* Frames larger than a byte or two can say. */
KEPT static unsigned long large(unsigned long n)
{
	volatile char buffer[70000];

	buffer[n % sizeof(buffer)] = 1;
	leaf();
	return buffer[0] + deep(2, n);
}

static int compare(const void *left, const void *right)
{
	leaf();
	return *(const int *)left - *(const int *)right;
}

KEPT static void by_the_library(void)
{
	int numbers[24];
	char text[400];

	for (int i = 0; i < 24; i++)
		numbers[i] = i * 37 % 24;
	qsort(numbers, 24, sizeof(numbers[0]), compare);
	snprintf(text, sizeof(text), "%d %s %.17g %Lf", numbers[3], "text", 3.14159 * numbers[5],
		 (long double)1 / 3);
	sink += strtod(text, NULL) + strlen(text);
	free(memcpy(malloc(400), text, sizeof(text)));
}

static jmp_buf place;

KEPT static void jumps(int depth)
{
	if (depth)
		jumps(depth - 1);
	else if (handled >= 0)
		longjmp(place, 1);
	leaf();
}

KEPT static void child(void)
{
	pid_t pid = vfork();

	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
}

KEPT static void handler_work(int depth)
{
	leaf();
	if (depth)
		handler_work(depth - 1);
	sink++;
}

static sigjmp_buf rescue;
static void *other_stack;

static void on_signal(int number)
{
	handler_work(3);
	handled = number;
	if (number == SIGSEGV)
		siglongjmp(rescue, 1);
}

static void on_signal_info(int number, siginfo_t *info, void *context)
{
	(void)info;
	(void)context;
	on_signal(number);
}

KEPT static void signals(void)
{
	for (int other = 0; other < 2; other++) {
		struct sigaction action = {.sa_sigaction = on_signal_info,
					   .sa_flags = SA_SIGINFO | (other ? SA_ONSTACK : 0)};
		void (*volatile nowhere)(void) = NULL;

		sigaction(SIGUSR1, &action, NULL);
		raise(SIGUSR1);
		sigaction(SIGSEGV, &action, NULL);
		if (!sigsetjmp(rescue, 1))
			nowhere();
	}
}

KEPT static void clocks(void)
{
	struct timespec now;

	for (int i = 0; i < 50; i++) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		sink += now.tv_nsec;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
		sink += time(NULL);
	}
}

int main(int count, char **arguments)
{
	char what = count > 1 ? arguments[1][0] : 'a';
	stack_t stack = {.ss_size = 64 * 1024};
	static unsigned long n;

	other_stack = malloc(stack.ss_size);
	stack.ss_sp = other_stack;
	sigaltstack(&stack, NULL);
	for (;; n++) {
		/* Each stops a program that is traced, so that it would do little else. */
		if (what == 's' || (what == 'a' && n % 16 == 3))
			signals();
		if (what == 'v' || what == 'a')
			clocks();
		if (what == 's' || what == 'v')
			continue;
		sink += realigned(n, 2, 3, 4, 5, 6, 7, 8);
		sink += with_alloca(n % 500 + 1);
		sink += large(n);
		if (!setjmp(place))
			jumps(5);
		child();
		if (what == 'f')
			continue;
		sink += deep(20 + n % 40, n);
		by_the_library();
	}
}
