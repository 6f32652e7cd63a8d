/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `locked SECONDS [MICROSECONDS]`: threads that wait for each other by each means of pthreads. Of
 * each lock the program prints `lock NAME ADDRESS BYTES WAITS NS`: how often its threads were
 * blocked there, by the kernel's count of their voluntary context switches, and for how long, from
 * the call to its return. `others` are the joins of all threads but the first. A lock is held for
 * 2000 microseconds by default.
 *
 * `locked ping TRIPS`: two threads wake each other TRIPS times, as fast as they can, and the
 * program prints the time of one, `trip NS`.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

struct lock {
	const char *name;
	void *address;
	size_t bytes;
	_Atomic long waits, ns;
};

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t condition;
	long turns;
} waited_for = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore, ping, pong;

#define LOCK(name, object) {name, &(object), sizeof(object), 0, 0}
static struct lock of_mutex = LOCK("mutex", mutex), of_rwlock = LOCK("rwlock", rwlock),
		   of_barrier = LOCK("barrier", barrier),
		   of_semaphore = LOCK("semaphore", semaphore),
		   of_condition = LOCK("condition", waited_for), of_join = {"join", 0, 0x1000, 0, 0},
		   of_others = {"others", 0, 0, 0, 0};

#define MEETINGS 100

static long end_ns, hold_us = 2000, trips;

static long now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

static void rest(long us)
{
	struct timespec time = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&time, 0);
}

/* Calls, and counts whether that blocked. */
#define WAITING(lock, call)                                                                        \
	do {                                                                                       \
		long before = switches(), start = now_ns();                                        \
		call;                                                                              \
		long end = now_ns(), blocked = switches() - before;                                \
		if (blocked) {                                                                     \
			(lock)->waits += blocked;                                                  \
			(lock)->ns += end - start;                                                 \
		}                                                                                  \
	} while (0)

static int goes_on(void)
{
	return now_ns() < end_ns;
}

static void *want_mutex(void *argument)
{
	while (goes_on()) {
		WAITING(&of_mutex, pthread_mutex_lock(&mutex));
		rest(hold_us);
		pthread_mutex_unlock(&mutex);
		rest(hold_us / 2);
	}
	return argument;
}

static void *write_locked(void *argument)
{
	while (goes_on()) {
		WAITING(&of_rwlock, pthread_rwlock_wrlock(&rwlock));
		rest(hold_us);
		pthread_rwlock_unlock(&rwlock);
		rest(hold_us / 2);
	}
	return argument;
}

static void *read_locked(void *argument)
{
	while (goes_on()) {
		WAITING(&of_rwlock, pthread_rwlock_rdlock(&rwlock));
		pthread_rwlock_unlock(&rwlock);
		rest(hold_us / 2);
	}
	return argument;
}

static void *take(void *argument)
{
	for (;;) {
		WAITING(&of_semaphore, sem_wait(&semaphore));
		if (!goes_on())
			return argument;
	}
}

static void *post(void *argument)
{
	do {
		rest(hold_us);
		sem_post(&semaphore);
	} while (goes_on());
	/* The last one may have come too early to end the other thread. */
	sem_post(&semaphore);
	return argument;
}

/* Both threads meet there equally often. */
static void *meet(void *late)
{
	for (int turn = 0; turn < MEETINGS; turn++) {
		if (late)
			rest(hold_us);
		WAITING(&of_barrier, pthread_barrier_wait(&barrier));
	}
	return late;
}

static void *wait_for_turn(void *argument)
{
	for (long turn = 1; turn > 0; turn++) {
		WAITING(&of_condition, pthread_mutex_lock(&waited_for.mutex));
		while (waited_for.turns >= 0 && waited_for.turns < turn)
			WAITING(&of_condition,
				pthread_cond_wait(&waited_for.condition, &waited_for.mutex));
		if (waited_for.turns < 0)
			turn = -1;
		pthread_mutex_unlock(&waited_for.mutex);
	}
	return argument;
}

static void *make_turns(void *argument)
{
	int more;

	do {
		rest(hold_us);
		more = goes_on();
		/* The other thread may be preempted while it holds this. */
		WAITING(&of_condition, pthread_mutex_lock(&waited_for.mutex));
		waited_for.turns = more ? waited_for.turns + 1 : -1;
		pthread_mutex_unlock(&waited_for.mutex);
		pthread_cond_signal(&waited_for.condition);
	} while (more);
	return argument;
}

static void *play(void *first)
{
	for (long trip = 0; trip < trips; trip++) {
		sem_post(first ? &pong : &ping);
		sem_wait(first ? &ping : &pong);
	}
	return first;
}

static pthread_t start_thread(void *(*thread)(void *), void *argument)
{
	pthread_t id;

	if (pthread_create(&id, 0, thread, argument))
		exit(71);
	return id;
}

static void print(const struct lock *lock)
{
	printf("lock %s %#lx %zu %ld %ld\n", lock->name, (unsigned long)lock->address, lock->bytes,
	       lock->waits, lock->ns);
}

static void play_together(void)
{
	long start = now_ns();
	pthread_t one, other;

	sem_init(&ping, 0, 0);
	sem_init(&pong, 0, 0);
	one = start_thread(play, &ping);
	other = start_thread(play, 0);
	pthread_join(one, 0);
	pthread_join(other, 0);
	printf("trip %.1f\n", (double)(now_ns() - start) / trips);
}

int main(int argc, char **argv)
{
	pthread_t threads[10];
	int count = 0;

	if (argc < 2)
		return 64;
	if (argc > 2 && !strcmp(argv[1], "ping")) {
		trips = atol(argv[2]);
		play_together();
		return 0;
	}
	end_ns = now_ns() + (long)(atof(argv[1]) * 1e9);
	pthread_barrier_init(&barrier, 0, 2);
	sem_init(&semaphore, 0, 0);
	if (argc > 2)
		hold_us = atol(argv[2]);
	threads[count++] = start_thread(want_mutex, 0);
	threads[count++] = start_thread(want_mutex, 0);
	threads[count++] = start_thread(write_locked, 0);
	threads[count++] = start_thread(read_locked, 0);
	threads[count++] = start_thread(take, 0);
	threads[count++] = start_thread(post, 0);
	threads[count++] = start_thread(meet, 0);
	threads[count++] = start_thread(meet, &barrier);
	threads[count++] = start_thread(wait_for_turn, 0);
	threads[count++] = start_thread(make_turns, 0);
	of_join.address = (void *)threads[0];
	WAITING(&of_join, pthread_join(threads[0], 0));
	for (int thread = 1; thread < count; thread++)
		WAITING(&of_others, pthread_join(threads[thread], 0));
	print(&of_join);
	print(&of_mutex);
	print(&of_rwlock);
	print(&of_semaphore);
	print(&of_condition);
	print(&of_barrier);
	print(&of_others);
	return 0;
}
