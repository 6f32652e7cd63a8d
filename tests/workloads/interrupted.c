/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `interrupted DIRECTORY`: makes calls whose entry and exit do not pair: seccomp refuses them, a
 * signal interrupts them, they have an x32 number; and returns from signal handlers. For each file
 * it prints `file READS BYTES WRITES BYTES OTHERS ERRORS NS NAME` as io_calls does, and for the
 * child that is killed in a call `child`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS	   200
#define SIGNALS	   10
#define BETWEEN_NS 20000000L
#define X32_BIT	   0x40000000

static char path[4096];
static pthread_t reader;
static volatile int interrupted, inner;
static sigjmp_buf outside;

static void require(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static long now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void pause_ns(long ns)
{
	struct timespec time = {ns / 1000000000L, ns % 1000000000L};

	while (nanosleep(&time, &time))
		;
}

/* Opens a new FIFO in the directory. It counts as one other call. */
static int fifo(const char *directory, const char *name)
{
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	require(!mkfifo(path, 0600), "mkfifo");
	fd = open(path, O_RDWR);
	require(fd >= 0, path);
	return fd;
}

static void print(const char *who, long reads, long writes, long errors, long ns, const char *name)
{
	printf("%s %ld %ld %ld %ld 1 %ld %ld %s\n", who, reads, reads, writes, writes, errors, ns,
	       name);
}

static void handle(int signal, void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	require(!sigaction(signal, &action, NULL), "sigaction");
}

static void count(int signal)
{
	(void)signal;
	interrupted++;
}

static void jump(int signal)
{
	(void)signal;
	siglongjmp(outside, 1);
}

/* Reads in a handler, where another signal interrupts it. */
static void read_inside(int signal)
{
	char byte;

	(void)signal;
	if (!interrupted++)
		require(read(inner, &byte, 1) == 1, "inner read");
}

/* What the thread does that sends signals. */
struct sender {
	int signal, count, fd;
	int second, second_fd; /* a signal for the handler of the first, and its FIFO */
	volatile int done;
};

static void *send_signals(void *argument)
{
	struct sender *sender = argument;

	for (int number = 0; number < sender->count && !sender->done; number++) {
		pause_ns(BETWEEN_NS);
		pthread_kill(reader, sender->signal);
		if (sender->second && !number) {
			pause_ns(BETWEEN_NS);
			pthread_kill(reader, sender->second);
			pause_ns(BETWEEN_NS);
			require(write(sender->second_fd, "x", 1) == 1, "write");
		}
	}
	pause_ns(BETWEEN_NS);
	if (sender->fd >= 0)
		require(write(sender->fd, "x", 1) == 1, "write");
	return NULL;
}

/* Reads a byte while the signals come. Returns the time of the last call. */
static long read_interrupted(int fd, struct sender *sender, long *errors)
{
	pthread_t thread;
	long begin, result;
	char byte;

	interrupted = 0;
	require(!pthread_create(&thread, NULL, send_signals, sender), "pthread_create");
	do {
		begin = now_ns();
		result = read(fd, &byte, 1);
		begin = now_ns() - begin;
		*errors += result < 0;
	} while (result < 0 && errno == EINTR);
	require(result == 1, "read");
	pthread_join(thread, NULL);
	return begin;
}

static void refused_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fsync, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fdatasync, 2, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};
	int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY);
	char byte;

	require(null >= 0 && zero >= 0, "open");
	handle(SIGSYS, count, 0);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	require(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
	for (int round = 0; round < ROUNDS; round++) {
		require(fsync(null) == -1 && errno == EPERM, "fsync is refused");
		require(write(null, "x", 1) == 1, "write");
		fdatasync(zero);
		require(read(zero, &byte, 1) == 1, "read");
		raise(SIGUSR1);
		syscall(X32_BIT | __NR_read, zero, &byte, 1);
	}
	require(interrupted == 2 * ROUNDS, "each signal is handled");
	print("file", 0, ROUNDS, ROUNDS, 0, "/dev/null");
	print("file", ROUNDS, 0, ROUNDS, 0, "/dev/zero");
}

static void restarted(const char *directory)
{
	struct sender sender = {.signal = SIGUSR1, .count = SIGNALS};
	long errors = 0, ns;

	sender.fd = fifo(directory, "restarted");
	handle(SIGUSR1, count, SA_RESTART);
	ns = read_interrupted(sender.fd, &sender, &errors);
	require(!errors, "no error is seen");
	print("file", 1, 1, 0, ns, path);
}

static void failed(const char *directory)
{
	struct sender sender = {.signal = SIGUSR1, .count = SIGNALS};
	long errors = 0, ns;

	sender.fd = fifo(directory, "failed");
	handle(SIGUSR1, count, 0);
	ns = read_interrupted(sender.fd, &sender, &errors);
	print("file", 1, 1, errors, ns, path);
}

static void nested(const char *directory)
{
	struct sender sender = {.signal = SIGUSR1, .second = SIGUSR2, .count = 2};
	char name[sizeof(path)];
	long errors = 0, ns;

	inner = sender.second_fd = fifo(directory, "inner");
	strcpy(name, path);
	sender.fd = fifo(directory, "outer");
	handle(SIGUSR1, read_inside, SA_RESTART);
	handle(SIGUSR2, count, SA_RESTART);
	ns = read_interrupted(sender.fd, &sender, &errors);
	require(!errors, "no error is seen");
	print("file", 1, 1, 0, 0, name);
	print("file", 1, 1, 0, ns, path);
}

static void left_by_jump(const char *directory)
{
	static struct sender sender = {.signal = SIGUSR1, .count = 1000, .fd = -1};
	static pthread_t thread;
	static int fd;
	char byte;

	fd = fifo(directory, "left");
	handle(SIGUSR1, jump, 0);
	if (!sigsetjmp(outside, 1)) {
		require(!pthread_create(&thread, NULL, send_signals, &sender), "pthread_create");
		read(fd, &byte, 1);
	}
	handle(SIGUSR1, SIG_IGN, 0);
	sender.done = 1;
	pthread_join(thread, NULL);
	print("file", 0, 0, 1, 0, path);
}

static void killed(const char *directory)
{
	int fd = fifo(directory, "killed"), status;
	char byte;
	pid_t child = fork();

	require(child >= 0, "fork");
	if (!child) {
		read(fd, &byte, 1);
		_exit(0);
	}
	pause_ns(10 * BETWEEN_NS);
	kill(child, SIGTERM);
	require(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "the child is killed");
	print("file", 0, 0, 0, 0, path);
	printf("child 0 0 0 0 0 1 0 %s\n", path);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	reader = pthread_self();
	handle(SIGUSR1, count, 0);
	/* What a profiler has to learn of the program it learns now. */
	pause_ns(300000000);
	refused_calls();
	restarted(argv[1]);
	failed(argv[1]);
	nested(argv[1]);
	left_by_jump(argv[1]);
	killed(argv[1]);
	fflush(stdout);
	pause_ns(300000000);
	return 0;
}
