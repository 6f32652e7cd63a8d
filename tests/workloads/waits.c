/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * waits MODE SECONDS: threads of which a person can say for each wait whether they suffered or
 * were idle. Each prints that before it begins, by the function that waits.
 *
 * A thread suffers if it needs something in the middle of work: a lock, a disk, space, an answer.
 * It is idle if it has nothing to do until somebody gives it work, or until a time that it chose.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "subjects.h"

static void *no_result;

/* Places of waits. */

static PLACE void await_child(void)
{
	check(wait(NULL) > 0, "wait");
}

static PLACE void await_thread(pthread_t thread)
{
	check(pthread_join(thread, &no_result) == 0, "pthread_join");
}

static PLACE void lock(pthread_mutex_t *mutex)
{
	pthread_mutex_lock(mutex);
}

static PLACE ssize_t await_answer(int descriptor, char *bytes, size_t size)
{
	return read(descriptor, bytes, size);
}

static PLACE ssize_t await_request(int descriptor, char *bytes, size_t size)
{
	return read(descriptor, bytes, size);
}

static PLACE ssize_t send_bytes(int descriptor, const char *bytes, size_t size)
{
	return write(descriptor, bytes, size);
}

#define MAIN SUFFERED(await_child) "," SUFFERED(await_thread)

static pthread_t start(void *(*function)(void *), const void *argument)
{
	pthread_t thread;

	check(pthread_create(&thread, NULL, function, (void *)argument) == 0, "pthread_create");
	return thread;
}

/* Returns 0 in the child, which ends with its parent. */
static pid_t fork_child(void)
{
	pid_t child = fork();

	check(child >= 0, "fork");
	if (child == 0)
		check(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
	return child;
}

/* Two processes and two pipes: one computes for 1 ms and asks, the other answers after 5 ms. */

static void pingpong(void)
{
	int requests[2], answers[2];
	char byte = 0;

	check(pipe(requests) == 0 && pipe(answers) == 0, "pipe");
	if (fork_child() == 0) {
		close(requests[1]);
		close(answers[0]);
		subject("answers", IDLE(await_request) "," SUFFERED(send_bytes));
		while (await_request(requests[0], &byte, 1) == 1) {
			spin_us(5000);
			if (send_bytes(answers[1], &byte, 1) != 1)
				break;
		}
		_exit(0);
	}
	if (fork_child() == 0) {
		close(requests[0]);
		close(answers[1]);
		subject("asks", SUFFERED(await_answer) "," SUFFERED(send_bytes));
		while (goes_on()) {
			spin_us(1000);
			if (send_bytes(requests[1], &byte, 1) != 1 ||
			    await_answer(answers[0], &byte, 1) != 1)
				break;
		}
		_exit(0);
	}
	close(requests[0]);
	close(requests[1]);
	close(answers[0]);
	close(answers[1]);
	await_child();
	await_child();
}

/* Pools of workers. */

struct job {
	int is_done, stages;
	pthread_mutex_t mutex;
	pthread_cond_t done;
	struct job *next;
};

struct queue {
	pthread_mutex_t mutex;
	pthread_cond_t given;
	struct job *first, **end;
	int is_closed;
};

#define QUEUE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, 0}
static struct queue queues[2] = {QUEUE, QUEUE};

static PLACE void await_job(struct queue *queue)
{
	pthread_cond_wait(&queue->given, &queue->mutex);
}

static PLACE void await_result(struct job *job)
{
	pthread_cond_wait(&job->done, &job->mutex);
}

static void give(struct queue *queue, struct job *job)
{
	job->next = NULL;
	lock(&queue->mutex);
	if (!queue->first)
		queue->end = &queue->first;
	*queue->end = job;
	queue->end = &job->next;
	pthread_cond_signal(&queue->given);
	pthread_mutex_unlock(&queue->mutex);
}

/* Returns no job if the queue is closed. */
static struct job *take(struct queue *queue)
{
	struct job *job;

	lock(&queue->mutex);
	while (!queue->first && !queue->is_closed)
		await_job(queue);
	job = queue->first;
	if (job)
		queue->first = job->next;
	pthread_mutex_unlock(&queue->mutex);
	return job;
}

static void close_queue(struct queue *queue)
{
	lock(&queue->mutex);
	queue->is_closed = 1;
	pthread_cond_broadcast(&queue->given);
	pthread_mutex_unlock(&queue->mutex);
}

static void *worker(void *argument)
{
	struct queue *queue = argument;
	struct job *job;

	subject("worker", IDLE(await_job) "," SUFFERED(lock));
	while ((job = take(queue))) {
		int stages = job->stages;

		spin_us(800);
		if (stages == 0) {
			free(job);
		} else if (stages > 1) {
			job->stages--;
			give(&queues[1], job);
		} else {
			lock(&job->mutex);
			job->is_done = 1;
			pthread_cond_signal(&job->done);
			pthread_mutex_unlock(&job->mutex);
		}
	}
	return NULL;
}

static void *customer(void *argument)
{
	struct job job = {.mutex = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

	subject("customer", SUFFERED(await_result) "," SUFFERED(lock));
	while (goes_on()) {
		spin_us(200);
		job.is_done = 0;
		job.stages = *(const int *)argument;
		give(&queues[0], &job);
		lock(&job.mutex);
		while (!job.is_done)
			await_result(&job);
		pthread_mutex_unlock(&job.mutex);
	}
	return NULL;
}

/* With 0 stages nobody waits for what the workers do. */
static void pool(int stages, int count, int customers)
{
	pthread_t workers[4], asking[4];

	subject("pool", SUFFERED(lock) "," MAIN);
	for (int number = 0; number < count; number++)
		workers[number] = start(worker, &queues[stages > 1 && number >= count / 2]);
	while (stages == 0 && goes_on()) {
		struct job *job = calloc(1, sizeof *job);

		check(!!job, "calloc");
		spin_us(500);
		give(&queues[0], job);
	}
	for (int number = 0; number < customers; number++)
		asking[number] = start(customer, &stages);
	for (int number = 0; number < customers; number++)
		await_thread(asking[number]);
	close_queue(&queues[0]);
	close_queue(&queues[1]);
	for (int number = 0; number < count; number++)
		await_thread(workers[number]);
}

/* Locks, which three threads hold for 1 ms, in turn. */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static sem_t semaphore;
static struct {
	pthread_mutex_t mutex;
	pthread_cond_t given_back;
	int is_taken;
} flag = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static PLACE void take_flag(void)
{
	lock(&flag.mutex);
	while (flag.is_taken)
		pthread_cond_wait(&flag.given_back, &flag.mutex);
	flag.is_taken = 1;
	pthread_mutex_unlock(&flag.mutex);
}

static PLACE void give_flag_back(void)
{
	lock(&flag.mutex);
	flag.is_taken = 0;
	pthread_cond_signal(&flag.given_back);
	pthread_mutex_unlock(&flag.mutex);
}

static PLACE void take_semaphore(void)
{
	check(sem_wait(&semaphore) == 0, "sem_wait");
}

static PLACE void take_rwlock(int writes)
{
	if (writes)
		pthread_rwlock_wrlock(&rwlock);
	else
		pthread_rwlock_rdlock(&rwlock);
}

static PLACE void map_and_unmap(void)
{
	size_t size = 4 << 20;
	char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	check(bytes != MAP_FAILED, "mmap");
	munmap(bytes, size);
}

enum kind { MUTEX, CONDITION, SEMAPHORE, RWLOCK, ADDRESS_SPACE };
static enum kind kind;

static void *locker(void *argument)
{
	int first = !argument;

	subject("locker", SUFFERED(lock) "," SUFFERED(take_flag) "," SUFFERED(take_semaphore) ","
			  SUFFERED(take_rwlock) "," SUFFERED(map_and_unmap));
	while (goes_on()) {
		switch (kind) {
		case MUTEX:
			lock(&mutex);
			spin_us(1000);
			pthread_mutex_unlock(&mutex);
			break;
		case CONDITION:
			take_flag();
			spin_us(1000);
			give_flag_back();
			break;
		case SEMAPHORE:
			take_semaphore();
			spin_us(1000);
			sem_post(&semaphore);
			break;
		case RWLOCK:
			take_rwlock(first);
			spin_us(1000);
			pthread_rwlock_unlock(&rwlock);
			break;
		case ADDRESS_SPACE:
			map_and_unmap();
			break;
		}
		spin_us(500);
	}
	return NULL;
}

static void lockers(enum kind of)
{
	pthread_t threads[3];

	kind = of;
	check(sem_init(&semaphore, 0, 1) == 0, "sem_init");
	subject("lockers", MAIN);
	for (long number = 0; number < 3; number++)
		threads[number] = start(locker, number ? "" : NULL);
	for (int number = 0; number < 3; number++)
		await_thread(threads[number]);
}

/* Servers and their clients. */

struct address {
	struct sockaddr_storage bytes;
	socklen_t size;
};

static sa_family_t family = AF_UNIX;

/* The address is one that is free. */
static int listen_somewhere(struct address *address)
{
	int listener = socket(family, SOCK_STREAM, 0);
	struct sockaddr_in loopback = {.sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	check(listener >= 0, "socket");
	if (family == AF_INET)
		check(bind(listener, (void *)&loopback, sizeof loopback) == 0, "bind");
	else
		check(bind(listener, (void *)&(struct sockaddr_un){.sun_family = AF_UNIX},
			   sizeof(sa_family_t)) == 0,
		      "bind");
	address->size = sizeof address->bytes;
	check(getsockname(listener, (void *)&address->bytes, &address->size) == 0, "getsockname");
	check(listen(listener, 16) == 0, "listen");
	return listener;
}

static int connect_to(const struct address *address)
{
	int connection = socket(family, SOCK_STREAM, 0), on = 1;

	check(connection >= 0, "socket");
	check(connect(connection, (const void *)&address->bytes, address->size) == 0, "connect");
	if (family == AF_INET)
		setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return connection;
}

static PLACE int await_connections(struct pollfd *connections, nfds_t count)
{
	return poll(connections, count, -1);
}

/* Serves whoever connects; for that it asks the next server, if there is one. */
static void serve(int listener, const struct address *next)
{
	struct pollfd connections[16] = {{.fd = listener, .events = POLLIN}};
	char bytes[64] = {0};
	nfds_t count = 1;
	int asked = -1;

	subject("server", IDLE(await_connections) "," SUFFERED(await_answer) ","
			  SUFFERED(send_bytes));
	if (next)
		asked = connect_to(next);
	while (await_connections(connections, count) > 0) {
		if (connections[0].revents)
			connections[count++] =
				(struct pollfd){accept(listener, NULL, NULL), POLLIN, 0};
		for (nfds_t one = 1; one < count; one++) {
			if (!connections[one].revents)
				continue;
			if (read(connections[one].fd, bytes, sizeof bytes) <= 0) {
				close(connections[one].fd);
				connections[one--] = connections[--count];
				continue;
			}
			spin_us(300);
			if (next && (send_bytes(asked, bytes, sizeof bytes) <= 0 ||
				     await_answer(asked, bytes, sizeof bytes) <= 0))
				return;
			send_bytes(connections[one].fd, bytes, sizeof bytes);
		}
	}
}

static void servers(int count, int clients)
{
	struct address addresses[4];
	int listeners[4], pids[4];
	char bytes[64] = {0};

	for (int one = 0; one < count; one++)
		listeners[one] = listen_somewhere(&addresses[one]);
	for (int one = 0; one < count; one++) {
		pids[one] = fork_child();
		if (pids[one] == 0) {
			serve(listeners[one], one + 1 < count ? &addresses[one + 1] : NULL);
			_exit(0);
		}
	}
	for (int one = 0; one < clients; one++) {
		if (fork_child() == 0) {
			int server = connect_to(&addresses[0]);

			subject("client", SUFFERED(await_answer) "," SUFFERED(send_bytes));
			while (goes_on()) {
				spin_us(200);
				if (send_bytes(server, bytes, sizeof bytes) <= 0 ||
				    await_answer(server, bytes, sizeof bytes) <= 0)
					break;
			}
			_exit(0);
		}
	}
	for (int one = 0; one < clients; one++)
		await_child();
	for (int one = 0; one < count; one++)
		kill(pids[one], SIGKILL);
	for (int one = 0; one < count; one++)
		await_child();
}

/* A server that sends events which nobody has asked for. */

static PLACE void nap(uint64_t us)
{
	sleep_us(us);
}

static PLACE ssize_t await_event(int descriptor, char *bytes, size_t size)
{
	return read(descriptor, bytes, size);
}

static void push(void)
{
	struct address address;
	int listener = listen_somewhere(&address), connections[2], pids[2];
	char bytes[64] = {0};

	for (int one = 0; one < 2; one++) {
		pids[one] = fork_child();
		if (pids[one] == 0) {
			int server = connect_to(&address);

			subject("listener", IDLE(await_event));
			while (await_event(server, bytes, sizeof bytes) > 0)
				spin_us(300);
			_exit(0);
		}
	}
	for (int one = 0; one < 2; one++)
		connections[one] = accept(listener, NULL, NULL);
	subject("speaker", IDLE(nap) "," SUFFERED(send_bytes));
	while (goes_on()) {
		nap(2000);
		spin_us(500);
		for (int one = 0; one < 2; one++)
			send_bytes(connections[one], bytes, sizeof bytes);
	}
	for (int one = 0; one < 2; one++)
		kill(pids[one], SIGKILL);
	for (int one = 0; one < 2; one++)
		await_child();
}

/* Threads that sleep. */

static PLACE void await_tick(int timer)
{
	uint64_t count;

	check(read(timer, &count, sizeof count) == sizeof count, "timerfd");
}

static void *sleeper(void *argument)
{
	subject("sleeper", IDLE(nap));
	while (goes_on()) {
		nap(3000);
		spin_us(300);
	}
	return argument;
}

static void *ticker(void *argument)
{
	const struct timespec often = {.tv_sec = 0, .tv_nsec = 4000000};
	const struct itimerspec times = {often, often};
	int timer = timerfd_create(CLOCK_MONOTONIC, 0);

	check(timer >= 0 && timerfd_settime(timer, 0, &times, NULL) == 0, "timerfd");
	subject("ticker", IDLE(await_tick));
	while (goes_on()) {
		await_tick(timer);
		spin_us(300);
	}
	return argument;
}

static void timers(void)
{
	pthread_t first = start(sleeper, NULL), second = start(ticker, NULL);

	await_thread(first);
	await_thread(second);
}

/* A process that has children do its work, and one that has threads do it, one after the other. */

static void children(void)
{
	subject("parent", MAIN);
	while (goes_on()) {
		if (fork_child() == 0) {
			spin_us(20000);
			_exit(0);
		}
		await_child();
	}
}

static void *short_work(void *argument)
{
	spin_us(20000);
	return argument;
}

static void join(void)
{
	subject("joiner", MAIN);
	while (goes_on())
		await_thread(start(short_work, NULL));
}

/* A pipe whose reader is slower than its writer. */

static void pipeline(void)
{
	enum { CHUNK = 1 << 16 };
	static char bytes[CHUNK];
	int ends[2];

	check(pipe(ends) == 0, "pipe");
	if (fork_child() == 0) {
		close(ends[1]);
		subject("reader", IDLE(await_request));
		while (await_request(ends[0], bytes, CHUNK) > 0)
			spin_us(2000);
		_exit(0);
	}
	close(ends[0]);
	subject("writer", SUFFERED(send_bytes) "," MAIN);
	while (goes_on() && send_bytes(ends[1], bytes, CHUNK) > 0)
		;
	close(ends[1]);
	await_child();
}

/* A process that wants each of its writes on the disk. */

static PLACE void save(int file, const char *bytes, size_t size)
{
	check(pwrite(file, bytes, size, 0) == (ssize_t)size && fsync(file) == 0, "/var/tmp");
}

static void saves(void)
{
	enum { SIZE = 1 << 20 };
	static char bytes[SIZE];
	char name[] = "/var/tmp/kcollect-waits-XXXXXX";
	int file = mkstemp(name);

	check(file >= 0 && unlink(name) == 0, "/var/tmp");
	subject("saver", SUFFERED(save));
	while (goes_on()) {
		memset(bytes, bytes[0] + 1, SIZE);
		save(file, bytes, SIZE);
	}
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";
	double seconds = count > 2 ? atof(arguments[2]) : 0;
#define IS(name) (strcmp(mode, name) == 0)

	until_ns = clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
	signal(SIGPIPE, SIG_IGN);
	if (IS("rpc-tcp") || IS("hub-tcp"))
		family = AF_INET;
	if (seconds <= 0)
		mode = "";
	if (IS("pingpong"))
		pingpong();
	else if (IS("pool-fire"))
		pool(0, 4, 0);
	else if (IS("pool-future"))
		pool(1, 4, 1);
	else if (IS("pool-stages"))
		pool(2, 4, 1);
	else if (IS("pool-busy"))
		pool(1, 1, 4);
	else if (IS("mutex"))
		lockers(MUTEX);
	else if (IS("condlock"))
		lockers(CONDITION);
	else if (IS("semlock"))
		lockers(SEMAPHORE);
	else if (IS("rwlock"))
		lockers(RWLOCK);
	else if (IS("mmap-lock"))
		lockers(ADDRESS_SPACE);
	else if (IS("rpc") || IS("rpc-tcp"))
		servers(3, 1);
	else if (IS("hub") || IS("hub-tcp"))
		servers(1, 4);
	else if (IS("push"))
		push();
	else if (IS("timers"))
		timers();
	else if (IS("children"))
		children();
	else if (IS("pipeline"))
		pipeline();
	else if (IS("join"))
		join();
	else if (IS("fsync"))
		saves();
	else {
		fprintf(stderr, "usage: waits MODE SECONDS\n");
		return 64;
	}
	return 0;
}
