/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * sick MODE SECONDS CPU: one illness of a machine each, whose cause is known. The threads that are
 * to be found print who they are, as those of `waits` do.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "subjects.h"

static int cpu;

static pid_t fork_child(void)
{
	pid_t child = fork();

	check(child >= 0, "fork");
	if (child == 0)
		check(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
	return child;
}

static void pin(void)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET((size_t)cpu, &cpus);
	check(sched_setaffinity(0, sizeof cpus, &cpus) == 0, "sched_setaffinity");
}

static PLACE void await_child(void)
{
	check(wait(NULL) > 0, "wait");
}

/* A lock of a file, as of a row in a table: one process sleeps while it has it, and another one
 * wants it. */

static PLACE void lock_row(int file)
{
	check(flock(file, LOCK_EX) == 0, "flock");
}

static void transactions(void)
{
	char name[] = "/var/tmp/kcollect-sick-XXXXXX";

	check(mkstemp(name) >= 0, "/var/tmp");
	for (int is_long = 0; is_long < 2; is_long++) {
		if (fork_child() == 0) {
			int file = open(name, O_RDWR | O_CLOEXEC);

			check(file >= 0, name);
			subject(is_long ? "long" : "short", SUFFERED(lock_row));
			while (goes_on()) {
				lock_row(file);
				if (is_long)
					sleep_us(20000);
				flock(file, LOCK_UN);
				sleep_us(is_long ? 300 : 1000);
			}
			_exit(0);
		}
	}
	await_child();
	await_child();
	unlink(name);
}

/* A client that asks over UDP, as for a name, and a server that takes 50 ms for each answer. */

static PLACE void await_answer(int socket)
{
	char bytes[64];

	check(recv(socket, bytes, sizeof bytes, 0) > 0, "recv");
}

static PLACE ssize_t await_question(int socket, struct sockaddr_in *from)
{
	char bytes[64];
	socklen_t size = sizeof *from;

	return recvfrom(socket, bytes, sizeof bytes, 0, (void *)from, &size);
}

static void slow_name_server(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	int server = socket(AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0);
	pid_t child;

	check(bind(server, (void *)&address, sizeof address) == 0 &&
		      getsockname(server, (void *)&address, &size) == 0 &&
		      connect(client, (void *)&address, size) == 0,
	      "socket");
	child = fork_child();
	if (child == 0) {
		struct sockaddr_in from;

		subject("resolver", IDLE(await_question));
		while (await_question(server, &from) > 0) {
			sleep_us(50000);
			sendto(server, "answer", 6, 0, (void *)&from, sizeof from);
		}
		_exit(0);
	}
	subject("asks", SUFFERED(await_answer));
	while (goes_on()) {
		check(send(client, "name?", 5, 0) == 5, "send");
		await_answer(client);
		spin_us(1000);
	}
	kill(child, SIGKILL);
	await_child();
}

/* A thread that has work for a fifth of a CPU, which two spinning processes take. */

static void spin_process(const char *name)
{
	if (fork_child() == 0) {
		pin();
		subject(name, "");
		while (goes_on())
			spin_us(1000);
		_exit(0);
	}
}

static void noisy_neighbours(void)
{
	spin_process("noisy");
	spin_process("noisy");
	pin();
	subject("worker", "");
	while (goes_on()) {
		spin_us(2000);
		sleep_us(8000);
	}
	await_child();
	await_child();
}

/* A parent whose child sleeps and does not end. */

static void stuck_child(void)
{
	pid_t child = fork_child();

	if (child == 0) {
		subject("stuck", "");
		while (goes_on())
			sleep_us(100000);
		_exit(0);
	}
	subject("parent", SUFFERED(await_child));
	await_child();
}

/* A thread of the lowest priority has a mutex that another one needs, and spinning processes keep
 * it from running. */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static PLACE void lock_mutex(void)
{
	pthread_mutex_lock(&mutex);
}

static void *low(void *argument)
{
	pin();
	subject("low", SUFFERED(lock_mutex));
	check(setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19) == 0, "setpriority");
	while (goes_on()) {
		lock_mutex();
		spin_us(10000);
		pthread_mutex_unlock(&mutex);
		sleep_us(100);
	}
	return argument;
}

static void inversion(void)
{
	pthread_t thread;

	spin_process("medium");
	check(pthread_create(&thread, NULL, low, NULL) == 0, "pthread_create");
	subject("high", SUFFERED(lock_mutex));
	while (goes_on()) {
		lock_mutex();
		pthread_mutex_unlock(&mutex);
		sleep_us(2000);
	}
	pthread_join(thread, NULL);
	await_child();
}

/* A process that uses more memory than its group may have: it waits for its pages. */

static PLACE void touch(volatile char *bytes, size_t size)
{
	for (size_t at = 0; at < size; at += 4096)
		bytes[at]++;
}

static void memory(void)
{
	enum { SIZE = 64 << 20 };
	char name[] = "/var/tmp/kcollect-sick-XXXXXX";
	int file = mkstemp(name);
	volatile char *bytes;

	check(file >= 0 && unlink(name) == 0 && ftruncate(file, SIZE) == 0, "/var/tmp");
	check(posix_fallocate(file, 0, SIZE) == 0, "/var/tmp");
	bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	check(bytes != MAP_FAILED, "mmap");
	subject("hungry", SUFFERED(touch));
	while (goes_on())
		touch(bytes, SIZE);
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";
	double seconds = count > 3 ? atof(arguments[2]) : 0;
	static const struct {
		const char *name;
		void (*run)(void);
	} MODES[] = {
		{"transactions", transactions},	    {"name-server", slow_name_server},
		{"neighbours", noisy_neighbours},   {"stuck-child", stuck_child},
		{"inversion", inversion},	    {"memory", memory},
	};

	until_ns = clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
	cpu = count > 3 ? atoi(arguments[3]) : 0;
	for (size_t one = 0; one < sizeof MODES / sizeof *MODES; one++) {
		if (seconds > 0 && strcmp(mode, MODES[one].name) == 0) {
			MODES[one].run();
			return 0;
		}
	}
	fprintf(stderr, "usage: sick MODE SECONDS CPU\n");
	return 64;
}
