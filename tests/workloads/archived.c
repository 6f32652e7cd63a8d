/* A program and a shared library whose functions are called as the command line of the compiler
   says, which distinguishes two of them that are put under one path in turn. The program
   spends its time, for as many seconds as its argument says, in itself, in the library and in the
   vDSO. Compiled by the checks that need it, with -DLIBRARY for the library, and with
   -DIDLE for one in which nothing runs. */

unsigned long IN_LIBRARY(unsigned long turns);

static inline void work(unsigned long turns)
{
	for (unsigned long turn = 0; turn < turns; turn++)
		__asm__ volatile("" : : "r"(turn));
}

#ifdef LIBRARY

unsigned long IN_LIBRARY(unsigned long turns)
{
	work(turns);
	return turns;
}

#elif defined(IDLE)

unsigned long never_called(unsigned long turns)
{
	return turns;
}

#else

#include <stdlib.h>
#include <time.h>

/* What a user who may not read the program must not see. */
const char *const marker = "the text of an archived program";

__attribute__((noinline)) static void IN_PROGRAM(unsigned long turns)
{
	work(turns);
	__asm__ volatile("" : : "r"(marker));
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double end = now() + (argc > 1 ? atof(argv[1]) : 1);
	do {
		IN_PROGRAM(1000000);
		IN_LIBRARY(1000000);
		for (int turn = 0; turn < 10000; turn++)
			now();
	} while (now() < end);
	return 0;
}

#endif
