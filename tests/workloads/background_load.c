/*
 * background_load SECONDS: blocks in system calls of many kinds and prints what interrupted them,
 * which should be nothing.
 *
 * A profiler that sent a signal to sample a stack, or attached to a process, would be seen here:
 * handlers count the signals, none of them restarts a call, and every call that ends otherwise than
 * it should is counted by kind. What the process was started with is printed as well: environment,
 * open files, limits, memory map, state of its signals.
 *
 * It prints lines: `call KIND TIMES INTERRUPTED SHORT EARLY`; `signal NUMBER TIMES`; `code COUNT
 * COUNT`, how many executable mappings there were at the beginning and at the end; `pid` and its
 * number; `origin` and what it was started with.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clocks.h"

/* How long each call waits, nanoseconds. */
enum { NAP = 3000000 };
enum { BLOCK = 4096, LARGE = 256 << 10 };

/* How a call ended. */
enum end { FINE, INTERRUPTED, SHORT, EARLY, ENDS };

static volatile int over;
static sig_atomic_t signals[_NSIG];
static const struct timespec nap = {.tv_nsec = NAP};

static void count(int number)
{
	__atomic_add_fetch(&signals[number], 1, __ATOMIC_RELAXED);
}

static struct timespec soon(clockid_t clock)
{
	uint64_t at = clock_ns(clock) + NAP;
	return (struct timespec){.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
}

/* A call that should give `value`. */
static enum end gives(int64_t value, int64_t result)
{
	if (result == value)
		return FINE;
	return result >= 0 ? SHORT : errno == EINTR ? INTERRUPTED : EARLY;
}

/* A call that should fail for want of time. */
static enum end times_out(int reason, int64_t result)
{
	if (result < 0 && errno == reason)
		return FINE;
	return result < 0 && errno == EINTR ? INTERRUPTED : EARLY;
}

/* The other side of a call: rests, and then lets it continue. */
static void rest(void)
{
	struct timespec span = nap;
	while (nanosleep(&span, &span) != 0)
		;
}

static enum end call_nanosleep(void)
{
	struct timespec left = nap;
	return gives(0, nanosleep(&nap, &left));
}

static enum end call_clock_nanosleep(void)
{
	struct timespec until = soon(CLOCK_MONOTONIC);
	errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	return gives(0, -errno);
}

static int pipe_small[2], pipe_large[2], sockets[2];

static void *feed_pipe(void *unused)
{
	char block[BLOCK] = {0};
	while (!over) {
		rest();
		check(write(pipe_small[1], block, BLOCK) == BLOCK, "write");
	}
	close(pipe_small[1]);
	return unused;
}

static enum end call_read(void)
{
	char block[BLOCK];
	ssize_t size = read(pipe_small[0], block, BLOCK);
	return size == 0 ? FINE : gives(BLOCK, size);
}

static void *drain_pipe(void *unused)
{
	static char block[LARGE];
	do
		rest();
	while (read(pipe_large[0], block, LARGE) > 0);
	return unused;
}

/* More than the pipe holds: the call is over when the other side has read most of it. */
static enum end call_write(void)
{
	static char block[LARGE];
	return gives(LARGE, write(pipe_large[1], block, LARGE));
}

static void *feed_socket(void *unused)
{
	static char block[LARGE / 4];
	while (!over)
		for (int part = 0; part < 4; part++) {
			rest();
			check(send(sockets[1], block, sizeof block, 0) == sizeof block, "send");
		}
	close(sockets[1]);
	return unused;
}

static enum end call_recv(void)
{
	static char block[LARGE];
	ssize_t size = recv(sockets[0], block, LARGE, MSG_WAITALL);
	return size == 0 ? FINE : gives(LARGE, size);
}

/* The sender may have begun its four parts anew: unread, they fill the socket, and it would wait
 * for ever. */
static void drain_socket(void)
{
	static char block[LARGE];
	while (recv(sockets[0], block, LARGE, 0) > 0)
		;
}

static enum end call_poll(void)
{
	struct pollfd none = {.fd = -1};
	return gives(0, poll(&none, 1, NAP / 1000000));
}

static enum end call_select(void)
{
	struct timeval span = {.tv_usec = NAP / 1000};
	return gives(0, select(0, NULL, NULL, NULL, &span));
}

static enum end call_pselect(void)
{
	return gives(0, pselect(0, NULL, NULL, NULL, &nap, NULL));
}

static enum end call_epoll_wait(void)
{
	static int epoll;
	struct epoll_event event;
	if (epoll == 0)
		check((epoll = epoll_create1(0)) > 0, "epoll_create1");
	return gives(0, epoll_wait(epoll, &event, 1, NAP / 1000000));
}

static enum end call_futex(void)
{
	static uint32_t word;
	return times_out(ETIMEDOUT, syscall(SYS_futex, &word, FUTEX_WAIT, 0, &nap, NULL, 0));
}

static enum end call_sem_timedwait(void)
{
	static sem_t semaphore;
	struct timespec until = soon(CLOCK_REALTIME);
	return times_out(ETIMEDOUT, sem_timedwait(&semaphore, &until));
}

static int semaphores, messages;

static enum end call_semtimedop(void)
{
	struct sembuf take = {.sem_op = -1};
	return times_out(EAGAIN, semtimedop(semaphores, &take, 1, &nap));
}

struct message {
	long type;
	char text[64];
};

static void *feed_messages(void *unused)
{
	struct message message = {.type = 1};
	while (!over) {
		rest();
		check(msgsnd(messages, &message, sizeof message.text, 0) == 0, "msgsnd");
	}
	return unused;
}

static enum end call_msgrcv(void)
{
	struct message message;
	return over ? FINE
		    : gives(sizeof message.text,
			    msgrcv(messages, &message, sizeof message.text, 0, 0));
}

static enum end call_sigtimedwait(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return times_out(EAGAIN, sigtimedwait(&set, NULL, &nap));
}

static enum end call_waitpid(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct timespec span = {.tv_nsec = 10 * NAP};
		_exit(nanosleep(&span, NULL) == 0 ? 0 : errno == EINTR ? 2 : 1);
	}
	check(child > 0, "fork");
	while (waitpid(child, &status, 0) != child)
		if (errno == EINTR)
			return INTERRUPTED;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? FINE : INTERRUPTED;
}

static int listening, backlog;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static enum end call_accept(void)
{
	return times_out(EAGAIN, accept(listening, NULL, NULL));
}

static void *accept_connections(void *unused)
{
	while (!over) {
		rest();
		close(accept(backlog, NULL, NULL));
	}
	close(backlog);
	return unused;
}

/* No other connection may wait to be accepted: the call waits until the one before it is. */
static enum end call_connect(void)
{
	int result, to = socket(AF_UNIX, SOCK_STREAM, 0);
	check(to >= 0, "socket");
	result = connect(to, (struct sockaddr *)&address, sizeof address);
	if (over)
		errno = result = 0;
	close(to);
	return gives(0, result);
}

static char lock_path[] = "/tmp/background_load-XXXXXX";

static void *hold_locks(void *unused)
{
	int file = open(lock_path, O_RDWR);
	struct flock lock = {.l_type = F_WRLCK}, none = {.l_type = F_UNLCK};
	check(file >= 0, lock_path);
	while (!over) {
		check(flock(file, LOCK_EX) == 0, "flock");
		check(fcntl(file, F_OFD_SETLKW, &lock) == 0, "fcntl");
		rest();
		flock(file, LOCK_UN);
		fcntl(file, F_OFD_SETLKW, &none);
		rest();
	}
	close(file);
	return unused;
}

static enum end call_flock(void)
{
	static int file;
	enum end end;
	if (file == 0)
		check((file = open(lock_path, O_RDWR)) > 0, lock_path);
	end = gives(0, flock(file, LOCK_EX));
	flock(file, LOCK_UN);
	rest();
	return end;
}

static enum end call_fcntl(void)
{
	static int file;
	struct flock lock = {.l_type = F_WRLCK}, none = {.l_type = F_UNLCK};
	enum end end;
	if (file == 0)
		check((file = open(lock_path, O_RDWR)) > 0, lock_path);
	end = gives(0, fcntl(file, F_OFD_SETLKW, &lock));
	fcntl(file, F_OFD_SETLKW, &none);
	rest();
	return end;
}

static enum end call_timerfd(void)
{
	static int timer;
	struct itimerspec once = {.it_value = nap};
	uint64_t times;
	if (timer == 0)
		check((timer = timerfd_create(CLOCK_MONOTONIC, 0)) > 0, "timerfd_create");
	check(timerfd_settime(timer, 0, &once, NULL) == 0, "timerfd_settime");
	return gives(sizeof times, read(timer, &times, sizeof times));
}

static int ring;

static enum end call_io_uring_enter(void)
{
	struct __kernel_timespec span = {.tv_nsec = NAP};
	struct io_uring_getevents_arg argument = {.ts = (uintptr_t)&span};
	unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
	return times_out(
		ETIME, syscall(SYS_io_uring_enter, ring, 0, 1, flags, &argument, sizeof argument));
}

/* No call, but it is at work in user mode when it is interrupted. */
static enum end call_nothing(void)
{
	uint64_t until = clock_ns(CLOCK_MONOTONIC) + NAP;
	while (clock_ns(CLOCK_MONOTONIC) < until)
		;
	return FINE;
}

struct kind {
	const char *name;
	enum end (*call)(void);
	/* It cannot end before its time. */
	int timed;
	void *(*other)(void *);
	uint64_t times, ends[ENDS];
};

static struct kind kinds[] = {
	{.name = "nothing", .call = call_nothing, .timed = 1},
	{.name = "nanosleep", .call = call_nanosleep, .timed = 1},
	{.name = "clock_nanosleep", .call = call_clock_nanosleep, .timed = 1},
	{.name = "read", .call = call_read, .other = feed_pipe},
	{.name = "write", .call = call_write, .other = drain_pipe},
	{.name = "recv", .call = call_recv, .other = feed_socket},
	{.name = "poll", .call = call_poll, .timed = 1},
	{.name = "select", .call = call_select, .timed = 1},
	{.name = "pselect", .call = call_pselect, .timed = 1},
	{.name = "epoll_wait", .call = call_epoll_wait, .timed = 1},
	{.name = "futex", .call = call_futex, .timed = 1},
	{.name = "sem_timedwait", .call = call_sem_timedwait},
	{.name = "semtimedop", .call = call_semtimedop},
	{.name = "msgrcv", .call = call_msgrcv, .other = feed_messages},
	{.name = "sigtimedwait", .call = call_sigtimedwait, .timed = 1},
	{.name = "waitpid", .call = call_waitpid},
	{.name = "accept", .call = call_accept},
	{.name = "connect", .call = call_connect, .other = accept_connections},
	{.name = "flock", .call = call_flock, .other = hold_locks},
	{.name = "fcntl", .call = call_fcntl},
	{.name = "timerfd", .call = call_timerfd, .timed = 1},
	{.name = "io_uring_enter", .call = call_io_uring_enter},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void *repeat(void *argument)
{
	struct kind *kind = argument;
	while (!over) {
		uint64_t start = clock_ns(CLOCK_MONOTONIC);
		enum end end = kind->call();
		if (end == FINE && kind->timed && clock_ns(CLOCK_MONOTONIC) - start < NAP)
			end = EARLY;
		kind->ends[end]++;
		kind->times++;
	}
	if (kind->call == call_write)
		close(pipe_large[1]);
	if (kind->call == call_recv)
		drain_socket();
	return NULL;
}

static void prepare(void)
{
	struct timeval wait = {.tv_usec = NAP / 1000};
	struct sockaddr_un unnamed = {.sun_family = AF_UNIX};
	struct io_uring_params params = {0};

	check(pipe(pipe_small) == 0 && pipe(pipe_large) == 0, "pipe");
	check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
	check((semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0, "semget");
	check((messages = msgget(IPC_PRIVATE, 0600)) >= 0, "msgget");
	check((listening = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0, "socket");
	/* Bound without a name, each gets one of its own. */
	check(bind(listening, (struct sockaddr *)&unnamed, sizeof(sa_family_t)) == 0 &&
		      listen(listening, 1) == 0,
	      "listen");
	check(setsockopt(listening, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0,
	      "setsockopt");
	check((backlog = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0, "socket");
	snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "background_load-%d", getpid());
	check(bind(backlog, (struct sockaddr *)&address, sizeof address) == 0 &&
		      listen(backlog, 0) == 0,
	      "listen");
	/* The last connection may be accepted already: no other comes, and the acceptor has to see
	 * that the work is over. */
	check(setsockopt(backlog, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0, "setsockopt");
	check(mkstemp(lock_path) >= 0, lock_path);
	ring = (int)syscall(SYS_io_uring_setup, 1, &params);
}

/* All lines of a file, or those that begin with one of some words. */
static void print_file(const char *path, const char *words)
{
	char line[4096], word[64];
	FILE *file = fopen(path, "re");
	check(file != NULL, path);
	while (fgets(line, sizeof line, file)) {
		snprintf(word, sizeof word, " %.*s ", (int)strcspn(line, ":"), line);
		if (words == NULL || strstr(words, word) != NULL)
			printf("origin %s: %s", path, line);
	}
	fclose(file);
}

/* Counts mappings that can be executed. */
static int executable(void)
{
	char line[4096];
	int count = 0;
	FILE *file = fopen("/proc/self/maps", "re");
	check(file != NULL, "/proc/self/maps");
	while (fgets(line, sizeof line, file)) {
		const char *modes = strchr(line, ' ');
		count += modes != NULL && modes[3] == 'x';
	}
	fclose(file);
	return count;
}

static void print_origin(char **environment)
{
	struct dirent *entry;
	DIR *files = opendir("/proc/self/fd");
	char cwd[4096];
	struct sigaction action;

	print_file("/proc/self/maps", NULL);
	print_file("/proc/self/limits", NULL);
	print_file("/proc/self/status",
		   " Umask TracerPid Groups ShdPnd SigPnd SigBlk SigIgn SigCgt CapInh CapPrm "
		   "CapEff CapBnd CapAmb "
		   "NoNewPrivs Seccomp Seccomp_filters Threads Cpus_allowed Mems_allowed Uid Gid ");
	print_file("/proc/self/oom_score_adj", NULL);
	print_file("/proc/self/cgroup", NULL);
	for (; *environment != NULL; environment++)
		printf("origin environment: %s\n", *environment);
	check(getcwd(cwd, sizeof cwd) != NULL, "getcwd");
	printf("origin scheduling: policy %d, nice %d\n", sched_getscheduler(0),
	       getpriority(PRIO_PROCESS, 0));
	check(files != NULL, "/proc/self/fd");
	while ((entry = readdir(files)) != NULL) {
		struct stat status;
		int file = atoi(entry->d_name);
		if (entry->d_name[0] == '.' || file == dirfd(files))
			continue;
		check(fstat(file, &status) == 0, "fstat");
		printf("origin file: %d, mode %o, flags %o %o\n", file, status.st_mode,
		       fcntl(file, F_GETFL), fcntl(file, F_GETFD));
	}
	closedir(files);
	for (int number = 1; number < _NSIG; number++)
		if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
			printf("origin disposition: %d is not left to the kernel\n", number);
}

int main(int argument_count, char **arguments, char **environment)
{
	static const int WATCHED[] = {SIGPROF, SIGIO,	SIGUSR1, SIGUSR2, SIGVTALRM, SIGALRM,
				      SIGURG,  SIGTRAP, SIGCONT, SIGHUP,  SIGSYS};
	double seconds = argument_count > 1 ? atof(arguments[1]) : 0;
	struct sigaction action = {.sa_handler = count};
	pthread_t callers[KINDS], others[KINDS];
	int at_start;
	uint64_t until;

	if (seconds <= 0) {
		fprintf(stderr, "usage: background_load SECONDS\n");
		return 64;
	}
	print_origin(environment);
	printf("pid %d\n", getpid());
	for (size_t number = 0; number < sizeof WATCHED / sizeof *WATCHED; number++)
		check(sigaction(WATCHED[number], &action, NULL) == 0, "sigaction");
	for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
		check(sigaction(number, &action, NULL) == 0, "sigaction");
	prepare();
	at_start = executable();
	for (int number = 0; number < KINDS; number++) {
		struct kind *kind = &kinds[number];
		if (kind->call == call_io_uring_enter && ring < 0)
			continue;
		check(pthread_create(&callers[number], NULL, repeat, kind) == 0, "pthread_create");
		if (kind->other != NULL)
			check(pthread_create(&others[number], NULL, kind->other, NULL) == 0,
			      "pthread_create");
	}
	until = clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
	while (clock_ns(CLOCK_MONOTONIC) < until)
		rest();
	printf("code %d %d\n", at_start, executable());
	over = 1;
	for (int number = 0; number < KINDS; number++) {
		const struct kind *kind = &kinds[number];
		if (kind->call == call_io_uring_enter && ring < 0)
			continue;
		/* One that waits still: the other side may have ended without a last message. */
		if (kind->call == call_msgrcv)
			check(msgsnd(messages, &(struct message){.type = 1},
				     sizeof(struct message) - sizeof(long), 0) == 0,
			      "msgsnd");
		check(pthread_join(callers[number], NULL) == 0, "pthread_join");
		if (kind->other != NULL)
			check(pthread_join(others[number], NULL) == 0, "pthread_join");
		printf("call %s %llu %llu %llu %llu\n", kind->name, (unsigned long long)kind->times,
		       (unsigned long long)kind->ends[INTERRUPTED],
		       (unsigned long long)kind->ends[SHORT],
		       (unsigned long long)kind->ends[EARLY]);
	}
	for (int number = 1; number < _NSIG; number++)
		if (sigaction(number, NULL, &action) == 0 && action.sa_handler == count)
			printf("signal %d %d\n", number, signals[number]);
	semctl(semaphores, 0, IPC_RMID);
	msgctl(messages, IPC_RMID, NULL);
	unlink(lock_path);
	return 0;
}
