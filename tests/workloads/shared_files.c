/*
 * `shared_files WAY DIRECTORY`: reads a file by a descriptor that came to the process in a way that
 * no open of its own shows. Prints how often it has read which file: `reads COUNT PATH`.
 *
 * cloned: another process, which shares the descriptors (CLONE_FILES), has replaced the file.
 * thread: a thread has descriptors of its own, and the same number is another file there.
 * passed: the descriptor came in a message (SCM_RIGHTS).
 * getfd: it was taken from another process (pidfd_getfd).
 * exec: a file had the number that exec closes, and another one came there in a message.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READS 60

static char one[4096], two[4096];

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static int open_file(const char *path, int flags)
{
	int file = open(path, O_RDONLY | flags);

	check(file >= 0, path);
	return file;
}

static void make(const char *path)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	check(file >= 0 && write(file, "sixteen bytes...", 16) == 16, path);
	close(file);
}

/* For longer than a descriptor takes to be looked up. */
static void read_often(int file, const char *path)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	char bytes[16];

	for (int count = 0; count < READS; count++) {
		check(pread(file, bytes, sizeof(bytes), 0) == sizeof(bytes), "pread");
		nanosleep(&pause, 0);
	}
	printf("reads %d %s\n", READS, path);
	fflush(stdout);
}

static void send_file(int to, int file)
{
	char byte = 0, control[CMSG_SPACE(sizeof(file))] = {0};
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(file));
	memcpy(CMSG_DATA(header), &file, sizeof(file));
	check(sendmsg(to, &message, 0) == 1, "sendmsg");
}

static int receive_file(int from)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control)};
	int file;

	check(recvmsg(from, &message, 0) == 1, "recvmsg");
	memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(file));
	return file;
}

static int replace(void *file)
{
	int number = *(int *)file;

	close(number);
	_exit(open_file(two, 0) != number);
}

/* A function of its own stack: no memory is shared, descriptors are. */
static void cloned(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	int file = open_file(one, 0), status = 1;
	pid_t child;

	read_often(file, one);
	child = clone(replace, stack + sizeof(stack), CLONE_FILES | SIGCHLD, &file);
	check(child > 0 && waitpid(child, &status, 0) == child && !status, "clone");
	read_often(file, two);
}

static void *own_descriptors(void *argument)
{
	int file = *(int *)argument;

	check(!unshare(CLONE_FILES), "unshare");
	close(file);
	check(open_file(two, 0) == file, "another number");
	read_often(file, two);
	return 0;
}

static void thread(void)
{
	int file = open_file(one, 0);
	pthread_t other;

	read_often(file, one);
	check(!pthread_create(&other, 0, own_descriptors, &file), "pthread_create");
	pthread_join(other, 0);
	read_often(file, one);
}

/* Starts a process that has a file open, sends it through a socket and stays. */
static pid_t keeper(int *from)
{
	int ends[2], file;
	pid_t child;

	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	child = fork();
	check(child >= 0, "fork");
	if (!child) {
		close(ends[0]);
		file = open_file(two, 0);
		check(dup2(file, 100) == 100, "dup2");
		send_file(ends[1], file);
		pause();
	}
	close(ends[1]);
	*from = ends[0];
	return child;
}

static void passed(void)
{
	int from;
	pid_t child = keeper(&from);

	read_often(receive_file(from), two);
	kill(child, SIGKILL);
}

static void getfd(void)
{
	int from, pidfd, file;
	pid_t child = keeper(&from);

	/* It has the file open from here on. */
	close(receive_file(from));
	pidfd = syscall(SYS_pidfd_open, child, 0);
	file = syscall(SYS_pidfd_getfd, pidfd, 100, 0);
	check(file >= 0, "pidfd_getfd");
	read_often(file, two);
	kill(child, SIGKILL);
}

/* Reads a file that exec closes, and executes itself with the socket. */
static void before_exec(const char *program, const char *directory)
{
	int from, file, below;
	char number[16], closed[16];
	pid_t child = keeper(&from);

	check(fcntl(from, F_DUPFD, 50) == 50, "fcntl");
	below = dup(0);
	file = open_file(one, O_CLOEXEC);
	read_often(file, one);
	/* For the files that the dynamic linker opens. */
	close(below);
	snprintf(number, sizeof(number), "%d", child);
	snprintf(closed, sizeof(closed), "%d", file);
	execl(program, program, "executed", directory, number, closed, (char *)0);
	check(0, "execl");
}

static void executed(pid_t child, int closed)
{
	int file;

	check(dup(0) == closed - 1, "dup");
	file = receive_file(50);
	check(file == closed, "another number");
	read_often(file, two);
	kill(child, SIGKILL);
}

int main(int count, char **words)
{
	if (count < 3)
		return 2;
	snprintf(one, sizeof(one), "%s/one", words[2]);
	snprintf(two, sizeof(two), "%s/two", words[2]);
	if (strcmp(words[1], "executed")) {
		make(one);
		make(two);
	}
	if (!strcmp(words[1], "cloned"))
		cloned();
	else if (!strcmp(words[1], "thread"))
		thread();
	else if (!strcmp(words[1], "passed"))
		passed();
	else if (!strcmp(words[1], "getfd"))
		getfd();
	else if (!strcmp(words[1], "exec"))
		before_exec(words[0], words[2]);
	else if (!strcmp(words[1], "executed") && count == 5)
		executed(atoi(words[3]), atoi(words[4]));
	else
		return 2;
	return 0;
}
