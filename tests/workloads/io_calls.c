/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `io_calls DIRECTORY ROUNDS`: reads, writes and does other things to files, pipes and sockets, in
 * every way that there is, with four threads and a child process. For each file it prints
 * `file READS BYTES WRITES BYTES OTHERS ERRORS NS NAME`: the calls that it made, what they
 * returned, and their time from before the call to after it. `others` are those that open, close
 * and do something else. The child prints `child` in place of `file`. With another argument it uses
 * no sockets.
 *
 * `io_calls loop CALLS WORK`: writes a byte to /dev/null CALLS times, each after WORK
 * multiplications, and prints the time of one, `call NS`.
 *
 * `io_calls wait SECONDS [DESCRIPTORS]`: reads its own program a hundred times a second, by the
 * last of DESCRIPTORS descriptors of it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define BLOCK	   4096

enum kind { READ, WRITE, OTHER };

struct file {
	char name[PATH_BYTES];
	long reads, read_bytes, writes, written, others, errors, ns;
};

static struct file data, copy, relative, below, inherited, shared, missing, client, accepted, zero;
static struct file *const all[] = {&data,	&copy,	  &relative, &below,	&inherited,
				   &shared, &missing, &client,   &accepted, &zero};
#define FILES (sizeof(all) / sizeof(*all))
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static char block[BLOCK];
static const char *directory;
static long rounds;

static long now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void require(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static long counted(struct file *file, enum kind kind, long result, long begin)
{
	long ns = now_ns() - begin;

	pthread_mutex_lock(&counting);
	file->ns += ns;
	if (result < 0) {
		file->errors++;
	} else if (kind == READ) {
		file->reads++;
		file->read_bytes += result;
	} else if (kind == WRITE) {
		file->writes++;
		file->written += result;
	} else {
		file->others++;
	}
	pthread_mutex_unlock(&counting);
	return result;
}

/* Makes a call, counts it, and returns what it returned. */
#define DO(file, kind, call)                              \
	({                                                \
		long begin = now_ns();                    \
		counted(&(file), kind, (call), begin);    \
	})

static void call_it(struct file *file, const char *name)
{
	snprintf(file->name, sizeof(file->name), "%s", name);
}

static void call_it_in(struct file *file, const char *name)
{
	snprintf(file->name, sizeof(file->name), "%s/%s", directory, name);
}

static void whole_files(void)
{
	struct iovec parts[2] = {{block, 100}, {block + 100, 200}};
	int fd = DO(data, OTHER, open(data.name, O_RDWR | O_CREAT | O_TRUNC, 0600)), other;

	require(fd >= 0, data.name);
	for (long round = 0; round < rounds; round++) {
		DO(data, WRITE, write(fd, block, BLOCK));
		DO(data, WRITE, pwrite(fd, block, 17, 5));
		DO(data, WRITE, writev(fd, parts, 2));
		DO(data, WRITE, pwritev(fd, parts, 1, 9));
	}
	DO(data, OTHER, fsync(fd));
	DO(data, OTHER, fdatasync(fd));
	DO(data, OTHER, lseek(fd, 0, SEEK_SET));
	for (long round = 0; round < rounds; round++) {
		DO(data, READ, read(fd, block, 1000));
		DO(data, READ, pread(fd, block, 33, 3));
		DO(data, READ, readv(fd, parts, 2));
		DO(data, READ, preadv(fd, parts, 2, 0));
	}
	/* One that moves bytes reads one file and writes the other. */
	other = DO(copy, OTHER, open(copy.name, O_WRONLY | O_CREAT | O_TRUNC, 0600));
	require(other >= 0, copy.name);
	DO(data, OTHER, lseek(fd, 0, SEEK_SET));
	for (long round = 0; round < rounds; round++) {
		long moved = DO(copy, WRITE, sendfile(other, fd, 0, 500));

		data.reads++;
		data.read_bytes += moved;
		moved = DO(copy, WRITE, copy_file_range(fd, 0, other, 0, 300, 0));
		data.reads++;
		data.read_bytes += moved;
	}
	DO(copy, OTHER, ftruncate(other, 7));
	DO(copy, OTHER, close(other));
	/* A duplicate has the name. */
	other = DO(data, OTHER, dup(fd));
	DO(data, OTHER, close(fd));
	DO(data, READ, pread(other, block, 10, 0));
	fd = DO(data, OTHER, fcntl(other, F_DUPFD_CLOEXEC, 100));
	DO(data, OTHER, close(other));
	DO(data, READ, pread(fd, block, 11, 0));
	DO(data, OTHER, close(fd));
	/* Not open, so it belongs to no file. */
	require(read(fd, block, 1) < 0 && errno == EBADF, "read");
	require(DO(missing, OTHER, open(missing.name, O_RDONLY)) < 0, "it is there");
}

static void paths(void)
{
	int at = open(directory, O_DIRECTORY | O_RDONLY), fd;

	require(at >= 0, directory);
	fd = DO(below, OTHER, openat(at, "below", O_WRONLY | O_CREAT, 0600));
	require(fd >= 0, below.name);
	DO(below, WRITE, write(fd, block, 12));
	DO(below, OTHER, close(fd));
	close(at);
	require(!chdir(directory), directory);
	fd = DO(relative, OTHER, open("./relative", O_WRONLY | O_CREAT, 0600));
	require(fd >= 0, relative.name);
	DO(relative, WRITE, write(fd, block, 13));
	DO(relative, OTHER, close(fd));
}

/* Two messages at once. The calls return their number. */
static long send_two(int socket)
{
	struct iovec parts[] = {{block, 25}, {block, 35}};
	struct mmsghdr both[] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
				 {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};

	require(sendmmsg(socket, both, 2, 0) == 2, "sendmmsg");
	return both[0].msg_len + both[1].msg_len;
}

static long receive_two(int socket)
{
	struct iovec parts[] = {{block, 25}, {block, 35}};
	struct mmsghdr both[] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
				 {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};

	require(recvmmsg(socket, both, 2, MSG_WAITALL, 0) == 2, "recvmmsg");
	return both[0].msg_len + both[1].msg_len;
}

static void sockets(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}, peer;
	socklen_t length = sizeof(address), peer_length = sizeof(peer);
	int listens = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), out, in;
	char name[64];

	require(!bind(listens, (struct sockaddr *)&address, sizeof(address)), "bind");
	require(!getsockname(listens, (struct sockaddr *)&address, &length), "getsockname");
	require(!listen(listens, 1), "listen");
	out = socket(AF_INET, SOCK_STREAM, 0);
	/* The two small messages of a round would wait for each other. */
	require(!setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), "setsockopt");
	require(!connect(out, (struct sockaddr *)&address, sizeof(address)), "connect");
	in = DO(accepted, OTHER, accept(listens, (struct sockaddr *)&peer, &peer_length));
	require(in >= 0, "accept");
	snprintf(name, sizeof(name), "tcp to 127.0.0.1:%d", ntohs(address.sin_port));
	call_it(&client, name);
	/* Bound to any port: the number was not known then. */
	snprintf(name, sizeof(name), "tcp 127.0.0.1:0 - 127.0.0.1:%d", ntohs(peer.sin_port));
	call_it(&accepted, name);
	for (long round = 0; round < rounds; round++) {
		struct iovec part = {block, 40};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

		DO(client, WRITE, send(out, block, 30, 0));
		DO(client, WRITE, sendmsg(out, &message, 0));
		DO(client, WRITE, send_two(out));
		DO(accepted, READ, recv(in, block, 30, MSG_WAITALL));
		DO(accepted, READ, recvmsg(in, &message, MSG_WAITALL));
		DO(accepted, READ, receive_two(in));
		DO(accepted, WRITE, write(in, block, 20));
		DO(client, READ, read(out, block, 20));
	}
	DO(accepted, OTHER, close(in));
	DO(client, OTHER, close(out));
	close(listens);
}

static void *write_shared(void *descriptor)
{
	for (long round = 0; round < rounds; round++)
		DO(shared, WRITE, write((int)(long)descriptor, block, 50));
	return 0;
}

static void threads(void)
{
	pthread_t writers[4];
	int fd = DO(shared, OTHER, open(shared.name, O_WRONLY | O_CREAT | O_APPEND, 0600));

	require(fd >= 0, shared.name);
	for (int number = 0; number < 4; number++)
		pthread_create(&writers[number], 0, write_shared, (void *)(long)fd);
	for (int number = 0; number < 4; number++)
		pthread_join(writers[number], 0);
	DO(shared, OTHER, close(fd));
}

static void print_all(const char *word)
{
	for (size_t number = 0; number < FILES; number++) {
		struct file *file = all[number];

		if (file->reads + file->writes + file->others + file->errors)
			printf("%s %ld %ld %ld %ld %ld %ld %ld %s\n", word, file->reads,
			       file->read_bytes, file->writes, file->written, file->others,
			       file->errors, file->ns, file->name);
	}
	fflush(stdout);
}

/* The child writes to what its parent has opened. */
static void child(void)
{
	int fd = DO(inherited, OTHER, open(inherited.name, O_WRONLY | O_CREAT, 0600)), status;
	pid_t pid;

	require(fd >= 0, inherited.name);
	pid = fork();
	if (!pid) {
		for (size_t number = 0; number < FILES; number++)
			memset(&all[number]->reads, 0, sizeof(data) - sizeof(data.name));
		for (long round = 0; round < rounds; round++)
			DO(inherited, WRITE, write(fd, block, 21));
		DO(inherited, OTHER, close(fd));
		print_all("child");
		_exit(0);
	}
	require(pid > 0 && waitpid(pid, &status, 0) == pid, "fork");
	DO(inherited, OTHER, close(fd));
}

static volatile unsigned long product = 3;

static int loop(long calls, long work)
{
	int fd = open("/dev/null", O_WRONLY);
	long begin = now_ns();

	for (long call = 0; call < calls; call++) {
		unsigned long value = product;

		for (long times = 0; times < work; times++) {
			value = value * 0x5851f42d4c957f2d + 1;
			/* Not to be worked out beforehand. */
			__asm__ volatile("" : "+r"(value));
		}
		product = value;
		if (write(fd, block, 1) != 1)
			return 1;
	}
	printf("call %.1f\n", (double)(now_ns() - begin) / calls);
	return 0;
}

static int wait_and_read(long seconds, long descriptors)
{
	const rlim_t wanted = descriptors + 10;
	struct rlimit most = {wanted, wanted};
	int fd = open("/proc/self/exe", O_RDONLY);
	long end;

	require(fd >= 0, "/proc/self/exe");
	/* Not everyone may have more than the limit. */
	if (descriptors >= 1000 && setrlimit(RLIMIT_NOFILE, &most)) {
		require(!getrlimit(RLIMIT_NOFILE, &most), "getrlimit");
		most.rlim_cur = most.rlim_max;
		require(!setrlimit(RLIMIT_NOFILE, &most), "setrlimit");
		descriptors = most.rlim_max < wanted ? (long)most.rlim_max - 10 : descriptors;
	}
	for (long number = 1; number < descriptors; number++)
		fd = dup(fd);
	require(fd >= 0, "dup");
	puts("ready");
	fflush(stdout);
	end = now_ns() + seconds * 1000000000L;
	while (now_ns() < end) {
		require(pread(fd, block, 100, 0) == 100, "pread");
		usleep(10000);
	}
	return 0;
}

int main(int argc, char **argv)
{
	int fd;

	if (argc < 3)
		return 2;
	rounds = atol(argv[2]);
	if (!strcmp(argv[1], "loop"))
		return loop(rounds, argc > 3 ? atol(argv[3]) : 0);
	if (!strcmp(argv[1], "wait"))
		return wait_and_read(rounds, argc > 3 ? atol(argv[3]) : 1);
	directory = argv[1];
	call_it_in(&data, "data");
	call_it_in(&copy, "copy");
	call_it_in(&relative, "relative");
	call_it_in(&below, "below");
	call_it_in(&inherited, "inherited");
	call_it_in(&shared, "shared");
	call_it_in(&missing, "missing");
	call_it(&zero, "/dev/zero");
	/* What a profiler has to learn of the program it learns now. */
	usleep(500000);
	fd = DO(zero, OTHER, open("/dev/zero", O_RDONLY));
	DO(zero, READ, read(fd, block, BLOCK));
	whole_files();
	paths();
	if (argc < 4)
		sockets();
	threads();
	child();
	DO(zero, OTHER, close(fd));
	print_all("file");
	return 0;
}
