/*
 * Spins and sleeps under known callers, in the first thread and in another one where there are
 * threads: leaf_* < middle < outer < main or thread.
 *
 *	known_callers SECONDS
 *
 * Compiled by the check with C libraries and flags of all kinds.
 */
#include <poll.h>
#ifdef THREADS
#include <pthread.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline))

static volatile unsigned long sink;
static int seconds;
static char texts[2][1 << 16];

static double now(void)
{
	struct timeval time;

	gettimeofday(&time, NULL);
	return time.tv_sec + time.tv_usec / 1e6;
}

KEPT void leaf_spin(void)
{
	for (int i = 0; i < 3000000; i++)
		sink += i;
}

KEPT void leaf_poll(void)
{
	poll(NULL, 0, 5);
	sink++;
}

KEPT void leaf_library(void)
{
	for (int i = 0; i < 300; i++) {
		memcpy(texts[0], texts[1], sizeof(texts[0]));
		memset(texts[1], i, sizeof(texts[1]));
		snprintf(texts[0], 100, "%d %d", seconds, i);
	}
	sink++;
}

KEPT void middle(void)
{
	leaf_spin();
	leaf_poll();
	leaf_library();
	sink++;
}

KEPT void outer(void)
{
	double end = now() + seconds;

	while (now() < end)
		middle();
	sink++;
}

#ifdef THREADS
static void *thread(void *argument)
{
	outer();
	sink++;
	return argument;
}
#endif

int main(int argc, char **argv)
{
	seconds = argc > 1 ? atoi(argv[1]) : 1;
#ifdef THREADS
	pthread_t other;

	pthread_create(&other, NULL, thread, NULL);
#endif
	outer();
#ifdef THREADS
	pthread_join(other, NULL);
#endif
	return 0;
}
