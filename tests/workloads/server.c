/*
 * server SECONDS CPU: threads that serve the requests of a client process, each request by call
 * paths that are known.
 *
 * It is C without frame pointers, as distributions compile daemons. Each thread measures its call
 * paths by three clocks of the kernel: CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID, and its waits for
 * a CPU in schedstat. What is left of a call is the time that it was blocked. Each process prints
 * one line of JSON.
 *
 * Everything is on one CPU, so that threads wait for it too. It warms up for a quarter of the time,
 * in functions of other names, so that a profiler has read its files before the time that counts.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clocks.h"

/* A function that is in the call tree. */
#define PATH __attribute__((noinline))
/* One that is not. */
#define PART static inline __attribute__((always_inline))

enum { CONNECTIONS = 3 };
/* What each request is for, in turn; `h` only on the first connection. */
static const char REQUESTS[] = "abcdefgih";
/* Iterations of one unit of work, about a tenth of a millisecond. */
enum { UNIT = 80000 };
/* Of the cold file, bytes; and from one touch to the next, as far as the kernel maps around a
 * fault. */
enum { COLD = 16 << 20, STRIDE = 64 << 10 };

#define PATHS(X)                                               \
	X(RECEIVE, "serve/receive/read", "sleep")              \
	X(PARSE, "serve/parse/spin", "")                       \
	X(LOOK_UP, "serve/look_up/spin", "")                   \
	X(COMPRESS, "serve/deliver/compress/spin", "")         \
	X(TREE, "serve/tree/descend*12/spin", "")              \
	X(COPY, "serve/copy/read", "")                         \
	X(FAST, "serve/ask_fast/await_reply/read", "sleep")    \
	X(SLOW, "serve/ask_slow/await_reply/read", "sleep")    \
	X(LOCK, "serve/update/pthread_mutex_lock", "lock")     \
	X(HOLD, "serve/update/rest/clock_nanosleep", "sleep")  \
	X(NAP, "serve/back_off/rest/clock_nanosleep", "sleep") \
	X(TOUCH, "serve/load/touch", "datapfault")             \
	X(GROW, "serve/grow/touch_page", "datapfault")         \
	X(FAULT, "pager/read", "sleep")                        \
	X(FETCH, "pager/rest/clock_nanosleep", "sleep")        \
	X(JOIN, "main", "lock")                                \
	X(THINK, "client/rest/clock_nanosleep", "sleep")       \
	X(ANSWER, "client/await_reply/read", "sleep")          \
	X(QUERY, "backend/await_reply/read", "sleep")          \
	X(DELAY, "backend/rest/clock_nanosleep", "sleep")

#define NUMBER(name, path, state) name,
enum path { PATHS(NUMBER) COUNT };

static const struct {
	const char *path, *state;
} KNOWN[] = {
#define TEXT(name, path, state) {path, state},
	PATHS(TEXT)};

/* The times of a path, nanoseconds; `stretches` is the number of pieces on and off the CPU that
 * they were cut into, and `switches` is how many of these were off the CPU. */
struct tally {
	uint64_t cpu, waited, blocked, stretches, switches;
};

struct thread {
	pthread_t id;
	void (*warm_up)(struct thread *), (*perform)(struct thread *);
	int request, backend;
	int number;
	int schedstat;
	struct tally tallies[COUNT];
};

struct instant {
	uint64_t wall, cpu, waited, switches;
};

static uint64_t waited_ns(int schedstat)
{
	char text[64];
	ssize_t size = pread(schedstat, text, sizeof text - 1, 0);
	unsigned long long run, waited;
	check(size > 0, "schedstat");
	text[size] = 0;
	check(sscanf(text, "%llu %llu", &run, &waited) == 2, "schedstat");
	return waited;
}

/* Reads the two clocks that pass while this thread does not run, without a wait for the CPU in
 * between. */
static PATH void read_wall_clocks(const struct thread *thread, struct instant *instant)
{
	uint64_t again;
	do {
		instant->wall = clock_ns(CLOCK_MONOTONIC);
		instant->waited = waited_ns(thread->schedstat);
		again = clock_ns(CLOCK_MONOTONIC);
	} while (again - instant->wall > 100000);
}

/* Reads the clock that passes while the thread runs. That brings the scheduler's account up to
 * date, and the thread's time slice may be over: it waits on the way out of the call. */
static PATH void read_cpu_clock(struct instant *instant)
{
	struct rusage usage;
	check(getrusage(RUSAGE_THREAD, &usage) == 0, "getrusage");
	instant->switches = (uint64_t)(usage.ru_nvcsw + usage.ru_nivcsw);
	instant->cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static PATH struct instant before(const struct thread *thread)
{
	struct instant instant;
	read_cpu_clock(&instant);
	read_wall_clocks(thread, &instant);
	return instant;
}

static PATH void note(struct thread *thread, enum path path, const struct instant *before)
{
	struct instant after;
	struct tally *tally = &thread->tallies[path];
	uint64_t wall, cpu, waited;

	read_wall_clocks(thread, &after);
	read_cpu_clock(&after);
	wall = after.wall - before->wall;
	cpu = after.cpu - before->cpu;
	waited = after.waited - before->waited;
	tally->cpu += cpu;
	tally->waited += waited;
	tally->blocked += wall > cpu + waited ? wall - cpu - waited : 0;
	tally->switches += after.switches - before->switches;
	tally->stretches += after.switches - before->switches + 1;
}

/* Makes a call and notes its times. */
#define NOTED(thread, path, call)                        \
	do {                                             \
		struct instant before_ = before(thread); \
		call;                                    \
		note(thread, path, &before_);            \
	} while (0)

static void begin(struct thread *thread)
{
	thread->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	check(thread->schedstat >= 0, "/proc/thread-self/schedstat");
}

static volatile uint64_t sink;

static PATH void spin(unsigned units)
{
	uint64_t value = units;
	for (unsigned round = 0; round < units * UNIT; round++) {
		value = value * 6364136223846793005u + 1;
		__asm__ volatile("" : "+r"(value));
	}
	sink = value;
}

static PATH void rest(struct thread *thread, enum path path, long us)
{
	struct timespec span = {.tv_sec = 0, .tv_nsec = us * 1000};
	NOTED(thread, path,
	      check(clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL) == 0, "clock_nanosleep"));
}

/* Returns a byte from the other side; 0 at the end. */
static PATH char await_reply(struct thread *thread, enum path path, int socket)
{
	char byte = 0;
	ssize_t size;
	NOTED(thread, path, size = read(socket, &byte, 1));
	check(size >= 0, "read");
	return size == 1 ? byte : 0;
}

static void send_byte(int socket, char byte)
{
	check(write(socket, &byte, 1) == 1, "write");
}

static PATH char receive(struct thread *thread)
{
	char byte = 0;
	ssize_t size;
	NOTED(thread, RECEIVE, size = read(thread->request, &byte, 1));
	check(size >= 0, "read");
	return size == 1 ? byte : 0;
}

static PATH void parse(struct thread *thread)
{
	NOTED(thread, PARSE, spin(6));
}

static PATH void look_up(struct thread *thread)
{
	NOTED(thread, LOOK_UP, spin(30));
}

static PATH void compress(struct thread *thread, const char *text)
{
	sink = (uint64_t)text[1];
	NOTED(thread, COMPRESS, spin(45));
}

/* A function whose frame has a size that is known when it runs. */
static PATH void deliver(struct thread *thread)
{
	size_t size = 100 + sink % 100;
	char text[size];
	memset(text, (int)size, size);
	compress(thread, text);
	sink = (uint64_t)text[size - 1];
}

static PATH unsigned descend(struct thread *thread, unsigned depth)
{
	if (depth > 1)
		return descend(thread, depth - 1) + 1;
	NOTED(thread, TREE, spin(25));
	return 1;
}

static PATH void tree(struct thread *thread)
{
	check(descend(thread, 12) == 12, "descend");
}

static PATH void copy(struct thread *thread)
{
	static __thread char text[1 << 20];
	static int zero = -1;
	if (zero < 0)
		zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	for (int round = 0; round < 30; round++)
		NOTED(thread, COPY,
		      check(read(zero, text, sizeof text) == sizeof text, "/dev/zero"));
}

static PATH void ask_fast(struct thread *thread)
{
	send_byte(thread->backend, 6);
	await_reply(thread, FAST, thread->backend);
}

static PATH void ask_slow(struct thread *thread)
{
	send_byte(thread->backend, 18);
	await_reply(thread, SLOW, thread->backend);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes the lock that all threads take, and sleeps while it has it. */
static PATH void update(struct thread *thread)
{
	for (int round = 0; round < 3; round++) {
		NOTED(thread, LOCK, pthread_mutex_lock(&lock));
		rest(thread, HOLD, 3000);
		pthread_mutex_unlock(&lock);
	}
}

static PATH void back_off(struct thread *thread)
{
	rest(thread, NAP, 5000);
}

static PATH unsigned touch(const volatile char *bytes)
{
	unsigned sum = 0;
	for (size_t at = 0; at < COLD; at += STRIDE)
		sum += (unsigned char)bytes[at];
	return sum;
}

/* Reads a mapped file whose pages were dropped from memory. It is on a disk: pages of a tmpfs
 * cannot be dropped. */
static PATH void load(struct thread *thread)
{
	static int file = -1;
	static char *bytes;
	if (file < 0) {
		char name[] = "/var/tmp/kcollect-server-XXXXXX";
		static char text[1 << 20];
		file = mkstemp(name);
		check(file >= 0 && unlink(name) == 0, "/var/tmp");
		memset(text, 1, sizeof text);
		for (int part = 0; part < COLD / (int)sizeof text; part++)
			check(write(file, text, sizeof text) == sizeof text, "/var/tmp");
		check(fsync(file) == 0, "/var/tmp");
		bytes = mmap(NULL, COLD, PROT_READ, MAP_PRIVATE, file, 0);
		check(bytes != MAP_FAILED, "mmap");
		check(madvise(bytes, COLD, MADV_RANDOM) == 0, "madvise");
	}
	check(madvise(bytes, COLD, MADV_DONTNEED) == 0, "madvise");
	check(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
	NOTED(thread, TOUCH, sink = touch(bytes));
}

/* Pages that another thread puts in place when they are touched: a fault takes as long as that
 * thread takes. */
static volatile char *pages;
static int faults = -1;

enum { PAGE = 4096 };

static PATH void touch_page(int number)
{
	sink = (unsigned char)pages[number * PAGE];
}

static PATH void grow(struct thread *thread)
{
	check(madvise((char *)pages + thread->number * PAGE, PAGE, MADV_DONTNEED) == 0, "madvise");
	NOTED(thread, GROW, touch_page(thread->number));
}

/* Makes those pages; whether this kernel has userfaultfd. */
static int open_faults(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING,
					.range.len = (CONNECTIONS + 1) * PAGE};

	faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (faults < 0)
		return 0;
	pages = mmap(NULL, range.range.len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(pages != MAP_FAILED, "mmap");
	range.range.start = (uintptr_t)pages;
	check(ioctl(faults, UFFDIO_API, &api) == 0 && ioctl(faults, UFFDIO_REGISTER, &range) == 0,
	      "userfaultfd");
	return 1;
}

static uint64_t warm, until;

/* Whether a moment has passed. */
static int over(uint64_t moment)
{
	return clock_ns(CLOCK_MONOTONIC) >= moment;
}

/* The last of the pages is touched at the end. */
PART void put_pages(struct thread *thread, uint64_t moment)
{
	static struct uffdio_zeropage page = {.range.len = PAGE};
	/* On an overloaded machine the last page may be wanted before the warm-up is over. */
	while (page.range.start != (uintptr_t)pages + CONNECTIONS * PAGE && !over(moment)) {
		struct uffd_msg fault;
		NOTED(thread, FAULT,
		      check(read(faults, &fault, sizeof fault) == sizeof fault, "userfaultfd"));
		rest(thread, FETCH, 4000);
		page.range.start = fault.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
		check(ioctl(faults, UFFDIO_ZEROPAGE, &page) == 0, "userfaultfd");
	}
}

PART void reply(struct thread *thread, uint64_t moment)
{
	char request;
	while (!over(moment) && (request = receive(thread)) != 0) {
		parse(thread);
		switch (request) {
		case 'a':
			look_up(thread);
			break;
		case 'b':
			deliver(thread);
			break;
		case 'c':
			tree(thread);
			break;
		case 'd':
			copy(thread);
			break;
		case 'e':
			ask_fast(thread);
			ask_slow(thread);
			break;
		case 'f':
			update(thread);
			break;
		case 'g':
			back_off(thread);
			break;
		case 'h':
			load(thread);
			break;
		case 'i':
			if (faults >= 0)
				grow(thread);
			break;
		}
		send_byte(thread->request, request);
	}
}

PART void ask(struct thread *thread, uint64_t moment)
{
	for (unsigned number = 0; !over(moment); number++) {
		char request = REQUESTS[number % (sizeof REQUESTS - 1)];
		if (request == 'h' && thread->number != 0)
			continue;
		rest(thread, THINK, 2000);
		send_byte(thread->request, request);
		check(await_reply(thread, ANSWER, thread->request) == request, "reply");
	}
}

/* Replies after as many milliseconds as the request has. */
PART void delay(struct thread *thread, uint64_t moment)
{
	char span;
	while (!over(moment) && (span = await_reply(thread, QUERY, thread->backend)) != 0) {
		rest(thread, DELAY, span * 1000L);
		send_byte(thread->backend, span);
	}
}

enum { ALWAYS = -1 };

static PATH void warm_up_serve(struct thread *thread)
{
	reply(thread, warm);
}
static PATH void serve(struct thread *thread)
{
	reply(thread, (uint64_t)ALWAYS);
}
static PATH void warm_up_pager(struct thread *thread)
{
	put_pages(thread, warm);
}
static PATH void pager(struct thread *thread)
{
	put_pages(thread, (uint64_t)ALWAYS);
}
static PATH void warm_up_backend(struct thread *thread)
{
	delay(thread, warm);
}
static PATH void backend(struct thread *thread)
{
	delay(thread, (uint64_t)ALWAYS);
}
static PATH void warm_up_client(struct thread *thread)
{
	ask(thread, warm);
}

static PATH void client(struct thread *thread)
{
	ask(thread, until);
	shutdown(thread->request, SHUT_WR);
	shutdown(thread->backend, SHUT_RD);
}

static PATH void *start(void *argument)
{
	struct thread *thread = argument;
	begin(thread);
	thread->warm_up(thread);
	memset(thread->tallies, 0, sizeof thread->tallies);
	thread->perform(thread);
	return NULL;
}

static void print(const char *process, const struct thread *threads, int count)
{
	char line[8192];
	size_t size = (size_t)sprintf(line,
				      "{\"server\":\"%s\",\"pid\":%d,\"threads\":%d,\"paths\":[",
				      process, getpid(), count);
	int first = 1;
	for (int path = 0; path < COUNT; path++) {
		struct tally sum = {0};
		for (int thread = 0; thread < count; thread++) {
			const struct tally *tally = &threads[thread].tallies[path];
			sum.cpu += tally->cpu;
			sum.waited += tally->waited;
			sum.blocked += tally->blocked;
			sum.stretches += tally->stretches;
			sum.switches += tally->switches;
		}
		if (sum.stretches == 0)
			continue;
		size += (size_t)sprintf(line + size,
					"%s{\"path\":\"%s\",\"state\":\"%s\",\"cpu_ns\":%llu,"
					"\"waited_ns\":%llu,\"blocked_ns\":%llu,"
					"\"stretches\":%llu,\"switches\":%llu}",
					first ? "" : ",", KNOWN[path].path, KNOWN[path].state,
					(unsigned long long)sum.cpu, (unsigned long long)sum.waited,
					(unsigned long long)sum.blocked,
					(unsigned long long)sum.stretches,
					(unsigned long long)sum.switches);
		first = 0;
	}
	size += (size_t)sprintf(line + size, "]}\n");
	check(write(STDOUT_FILENO, line, size) == (ssize_t)size, "standard output");
}

/* The threads; 0 is the process's first. */
static struct thread threads[1 + 2 * CONNECTIONS];

static void run(int number, void (*warm_up)(struct thread *), void (*perform)(struct thread *))
{
	threads[number].number = (number - 1) % CONNECTIONS;
	threads[number].warm_up = warm_up;
	threads[number].perform = perform;
	check(pthread_create(&threads[number].id, NULL, start, &threads[number]) == 0,
	      "pthread_create");
}

int main(int count, char **arguments)
{
	int requests[CONNECTIONS][2], backends[CONNECTIONS][2];
	double seconds = count > 2 ? atof(arguments[1]) : 0;
	cpu_set_t cpus;
	pid_t child;
	int all;

	if (seconds <= 0) {
		fprintf(stderr, "usage: server SECONDS CPU\n");
		return 64;
	}
	CPU_ZERO(&cpus);
	CPU_SET((size_t)atoi(arguments[2]), &cpus);
	check(sched_setaffinity(0, sizeof cpus, &cpus) == 0, "sched_setaffinity");
	warm = clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 0.25e9);
	until = warm + (uint64_t)(seconds * 0.75e9);
	for (int number = 0; number < CONNECTIONS; number++) {
		check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, requests[number]) == 0,
		      "socketpair");
		check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, backends[number]) == 0,
		      "socketpair");
	}

	child = fork();
	check(child >= 0, "fork");
	all = child == 0 ? 1 + 2 * CONNECTIONS : 1 + CONNECTIONS;
	for (int number = 1; number <= 2 * CONNECTIONS; number++) {
		threads[number].request = requests[(number - 1) % CONNECTIONS][child == 0];
		threads[number].backend = backends[(number - 1) % CONNECTIONS][child == 0];
	}
	for (int number = 0; number < CONNECTIONS; number++) {
		close(requests[number][child != 0]);
		close(backends[number][child != 0]);
	}
	begin(&threads[0]);
	if (child > 0 && open_faults())
		run(1 + CONNECTIONS, warm_up_pager, pager);
	for (int number = 1; number < all; number++)
		if (child > 0)
			run(number, warm_up_serve, serve);
		else if (number <= CONNECTIONS)
			run(number, warm_up_client, client);
		else
			run(number, warm_up_backend, backend);
	for (int number = 1; number < all; number++)
		NOTED(&threads[0], JOIN, pthread_join(threads[number].id, NULL));
	if (faults >= 0) {
		touch_page(CONNECTIONS);
		NOTED(&threads[0], JOIN, pthread_join(threads[all++].id, NULL));
	}
	if (child > 0) {
		int status;
		check(waitpid(child, &status, 0) == child && status == 0, "client");
	}
	print(child == 0 ? "client" : "server", threads, all);
	return 0;
}
