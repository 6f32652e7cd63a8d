/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* `proctorture ACTION...`: does one action after the other. Each makes it hard to find where a
 * process is.
 *
 *   one:MS two:MS      spins for so much CPU time, in burn_one called by call_one; likewise two
 *   name:HEX           gives itself a name of these bytes
 *   sleep:MS           sleeps
 *   until:NS           sleeps until a moment of CLOCK_MONOTONIC
 *   wait:PATH          sleeps until there is a file of that name
 *   say:WORD           writes its process id, the word and the time to standard output
 *   fork               a child does the rest; the process waits for all its children and goes no
 *                      further
 *   both               a child and the process itself do the rest
 *   start:ACTION       a child made by fork, and then another proctorture, does an action, and
 *                      is waited for
 *   vfork:ACTION       likewise, by vfork
 *   spawn:ACTION       likewise, by posix_spawn
 *   system:COMMAND     a shell does something, and is waited for
 *   popen:COMMAND      likewise
 *   twin:MS            a child spins in burn_one for so long and ends; another one of the same
 *                      number does the rest
 *   doze:MS            likewise, but the child sleeps for so long
 *   space              a child in a new pid namespace does the rest
 *   root:PATH          continues in user and mount namespaces of its own, where PATH is the root
 *                      directory
 *   exec:PATH          another program does the rest
 *   memory             a copy of this program in memory (memfd) does the rest
 *   die                kills itself
 *   leader:MS          the first thread ends; another spins in burn_two for so long, and ends
 *                      the process
 *   deep:N,MS          burn_deep at the bottom of N calls of dig
 *   nowhere:MS         spins with a stack pointer to nowhere
 *   jit:MS jitfp:MS    spins in code made in memory, called without and with a frame pointer
 *   moved:MS           spins in code that was mapped elsewhere (mremap)
 *   maps               from now on, a thread maps a page of this program and unmaps it again, as
 *                      fast as it can
 *   dump:WHAT          maps an executable file jit-PID.dump, which then is a sparse file of 1 TiB
 *                      (WHAT is sparse), or gives way to a pipe, a link or a device
 *   swap:A,B,N,US      N times: loads library A, burns so long in it, unloads it, and twice as
 *                      long with B
 *
 * Compiled without frame pointers, so that its stacks are unwound by tables or not at all. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline))
/* What is called last is a jump otherwise, and the caller is not on the stack. */
#define CALLED __asm__ volatile("")
#define MS     1000000ull

static uint64_t now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static inline __attribute__((always_inline)) void burn(uint64_t ns)
{
	uint64_t end = now(CLOCK_PROCESS_CPUTIME_ID) + ns;

	do {
		for (uint64_t round = 0; round < 200000; round++)
			__asm__ volatile("" : "+r"(round));
	} while (now(CLOCK_PROCESS_CPUTIME_ID) < end);
}

static void fail(const char *what)
{
	perror(what);
	exit(3);
}

#define BURNERS(NAME)                              \
	APART static void burn_##NAME(uint64_t ns) \
	{                                          \
		burn(ns);                          \
		CALLED;                            \
	}                                          \
	APART static void call_##NAME(uint64_t ns) \
	{                                          \
		burn_##NAME(ns);                   \
		CALLED;                            \
	}

BURNERS(one)
BURNERS(two)

APART static void burn_deep(uint64_t ns)
{
	burn(ns);
	CALLED;
}

APART static void dig(uint64_t depth, uint64_t ns)
{
	volatile char buffer[24];

	buffer[0] = 1;
	if (depth)
		dig(depth - 1, ns);
	else
		burn_deep(ns);
	CALLED;
	(void)buffer[0];
}

/* Some hundred microseconds of `dec; jnz`. */
#define ROUNDS (1 << 18)

/* Nothing of it needs a stack. */
APART static void spin_nowhere(void)
{
	uint64_t rounds = ROUNDS;

	__asm__ volatile("movq %%rsp, %%r12\n"
			 "movq $0x10, %%rsp\n"
			 "1: decq %0\n"
			 "jnz 1b\n"
			 "movq %%r12, %%rsp\n"
			 : "+r"(rounds)
			 :
			 : "r12", "cc", "memory");
	CALLED;
}

static const unsigned char BARE[] = {0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3}; /* dec %rdi; jnz; ret */
static const unsigned char FRAMED[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff,
				       0xcf, 0x75, 0xfb, 0x5d, 0xc3};

static void *made(const void *code, size_t length)
{
	void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);

	if (page == MAP_FAILED)
		fail("mmap");
	memcpy(page, code, length);
	return page;
}

APART static void call_made(void *code, uint64_t ns)
{
	uint64_t end = now(CLOCK_PROCESS_CPUTIME_ID) + ns;

	do
		((void (*)(uint64_t))code)(ROUNDS);
	while (now(CLOCK_PROCESS_CPUTIME_ID) < end);
	CALLED;
}

/* A page of this program's own file, moved. The function fits into it. */
__attribute__((section(".text.moved"), aligned(4096), noinline, used)) static void
spin_moved(uint64_t rounds)
{
	__asm__ volatile("1: decq %0\n jnz 1b\n" : "+r"(rounds) : : "cc");
	CALLED;
}
__attribute__((section(".text.moved"), aligned(4096), noinline, used)) static void after_moved(void)
{
	CALLED;
}

static void move(uint64_t ns)
{
	void *to = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	to = mremap((void *)spin_moved, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	if (to == MAP_FAILED)
		fail("mremap");
	call_made(to, ns);
}

static void swap(char *what)
{
	char *paths[] = {strtok(what, ","), strtok(0, ",")};
	uint64_t times = strtoull(strtok(0, ","), 0, 10),
		 ns = strtoull(strtok(0, ","), 0, 10) * 1000;
	uint64_t spent[2] = {0, 0};
	void *first[2] = {0, 0};
	uint64_t same = 0;

	for (uint64_t time = 0; time < times; time++)
		for (int which = 0; which < 2; which++) {
			void *library = dlopen(paths[which], RTLD_NOW);
			void (*function)(uint64_t);
			uint64_t before;

			if (!library)
				fail(dlerror());
			*(void **)&function = dlsym(library, "enter");
			if (!first[which])
				first[which] = (void *)function;
			same += (void *)function == first[0];
			before = now(CLOCK_PROCESS_CPUTIME_ID);
			function(ns << which);
			spent[which] += now(CLOCK_PROCESS_CPUTIME_ID) - before;
			dlclose(library);
		}
	printf("%d swapped %llu %llu %llu\n", getpid(), (unsigned long long)spent[0],
	       (unsigned long long)spent[1], (unsigned long long)same);
	fflush(stdout);
}

static void name(const char *hex)
{
	char bytes[17] = {0};

	for (int place = 0; place < 16 && hex[0] && hex[1]; place++, hex += 2) {
		char pair[3] = {hex[0], hex[1], 0};

		bytes[place] = (char)strtoul(pair, 0, 16);
	}
	if (prctl(PR_SET_NAME, bytes))
		fail("prctl");
}

static void say(const char *word)
{
	printf("%d %s %llu\n", getpid(), word, (unsigned long long)now(CLOCK_MONOTONIC));
	fflush(stdout);
}

static void nap(uint64_t ns)
{
	struct timespec time = {ns / 1000000000, ns % 1000000000};

	nanosleep(&time, 0);
}

static void wait_for(pid_t child)
{
	int status;

	if (child < 0)
		fail("fork");
	waitpid(child, &status, 0);
}

/* Has an action done by another proctorture, begun by fork, vfork or posix_spawn. */
static void begin(char way, char *program, char *action)
{
	char *words[] = {program, action, 0};
	pid_t child = -1;

	if (way == 's') {
		if (posix_spawn(&child, program, 0, 0, words, environ))
			fail("posix_spawn");
	} else {
		child = way == 'v' ? vfork() : fork();
		if (!child) {
			execv(program, words);
			_exit(3);
		}
	}
	wait_for(child);
}

/* Forks a child that has this number. Gives 0 in the child. Needs root. */
static pid_t again(pid_t wanted)
{
	for (int tries = 0; tries < 200; tries++) {
		FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");
		pid_t child;

		if (!last || fprintf(last, "%d", wanted - 1) < 0 || fclose(last))
			fail("ns_last_pid");
		child = fork();
		if (!child) {
			if (getpid() == wanted)
				return 0;
			_exit(0);
		}
		wait_for(child);
		if (child == wanted)
			return child;
	}
	fail("a number used twice");
	return -1;
}

static void memory(char **rest)
{
	int from = open("/proc/self/exe", O_RDONLY), to = memfd_create("proctorture", 0);
	char *words[64] = {"proctorture"};
	char block[65536];
	ssize_t got;

	while ((got = read(from, block, sizeof(block))) > 0)
		if (write(to, block, got) != got)
			fail("memfd");
	for (int word = 0; word < 62 && rest[word]; word++)
		words[word + 1] = rest[word];
	fexecve(to, words, environ);
	fail("fexecve");
}

static void dump(const char *what)
{
	/* As jitdump-specification.txt of perf has it. */
	struct {
		uint32_t magic, version, size, machine, pad, pid;
		uint64_t time, flags;
	} head = {0x4a695444, 1, sizeof(head), 62, 0, getpid(), 0, 0};
	char path[64];
	int file, left = 0;

	snprintf(path, sizeof(path), "jit-%d.dump", getpid());
	file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (write(file, &head, sizeof(head)) != sizeof(head))
		fail(path);
	if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
		fail("mmap");
	if (!strcmp(what, "sparse"))
		left = ftruncate(file, 1ll << 40);
	else
		unlink(path);
	if (!strcmp(what, "pipe"))
		left = mkfifo(path, 0600);
	else if (!strcmp(what, "link"))
		left = symlink("/etc/shadow", path);
	else if (!strcmp(what, "device"))
		left = mknod(path, S_IFCHR | 0600, makedev(1, 5));
	if (left)
		fail(what);
	close(file);
}

static void *survive(void *ns)
{
	/* The first thread goes first. */
	nap(20 * MS);
	call_two((uint64_t)ns);
	exit(0);
}

APART static void *map_pages(void *program)
{
	for (;;) {
		void *page = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, (intptr_t)program,
				  0);

		if (page == MAP_FAILED)
			fail("mmap");
		munmap(page, 4096);
	}
	return 0;
}

static void begin_map_pages(void)
{
	intptr_t program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	pthread_t thread;

	if (program < 0 || pthread_create(&thread, 0, map_pages, (void *)program))
		fail("maps");
}

int main(int count, char **words)
{
	for (int index = 1; index < count; index++) {
		char *action = words[index], *what = strchr(action, ':');
		uint64_t ns = 0;

		if (what) {
			*what++ = 0;
			ns = strtoull(what, 0, 10) * MS;
		}
#define IS(WORD) (!strcmp(action, WORD))
		if (IS("one")) {
			call_one(ns);
		} else if (IS("two")) {
			call_two(ns);
		} else if (IS("name")) {
			name(what);
		} else if (IS("sleep")) {
			nap(ns);
		} else if (IS("until")) {
			uint64_t until = ns / MS, is = now(CLOCK_MONOTONIC);

			if (until > is)
				nap(until - is);
		} else if (IS("wait")) {
			while (access(what, F_OK))
				nap(2 * MS);
		} else if (IS("say")) {
			say(what);
		} else if (IS("fork")) {
			pid_t child = fork();

			if (child) {
				wait_for(child);
				while (wait(0) > 0)
					;
				return 0;
			}
		} else if (IS("both")) {
			if (fork() < 0)
				fail("fork");
		} else if (IS("start") || IS("vfork") || IS("spawn")) {
			begin(IS("start") ? 'f' : action[0], words[0], what);
		} else if (IS("system")) {
			if (system(what))
				fail(what);
		} else if (IS("popen")) {
			FILE *shell = popen(what, "r");

			if (!shell || pclose(shell))
				fail(what);
		} else if (IS("twin") || IS("doze")) {
			pid_t child = fork();

			if (!child) {
				name("6669727374"); /* first */
				say("first");
				if (IS("doze"))
					nap(ns);
				else
					call_one(ns);
				return 0;
			}
			wait_for(child);
			if (again(child))
				return 0;
			name("7365636f6e64"); /* second */
			say("second");
		} else if (IS("space")) {
			pid_t child;

			if (unshare(CLONE_NEWPID))
				fail("unshare");
			child = fork();
			if (child) {
				printf("%d space 0\n", child);
				fflush(stdout);
				wait_for(child);
				return 0;
			}
		} else if (IS("root")) {
			if (unshare(CLONE_NEWUSER | CLONE_NEWNS) || chroot(what) || chdir("/"))
				fail(what);
		} else if (IS("exec")) {
			words[index] = what;
			execv(what, words + index);
			fail(what);
		} else if (IS("memory")) {
			memory(words + index + 1);
		} else if (IS("dump")) {
			dump(what);
		} else if (IS("leader")) {
			pthread_t thread;

			if (pthread_create(&thread, 0, survive, (void *)ns))
				fail("pthread_create");
			pthread_exit(0);
		} else if (IS("die")) {
			kill(getpid(), SIGKILL);
		} else if (IS("deep")) {
			char *rest;
			uint64_t depth = strtoull(what, &rest, 10);

			dig(depth, strtoull(rest + 1, 0, 10) * MS);
		} else if (IS("maps")) {
			begin_map_pages();
		} else if (IS("nowhere")) {
			uint64_t end = now(CLOCK_PROCESS_CPUTIME_ID) + ns;

			do
				spin_nowhere();
			while (now(CLOCK_PROCESS_CPUTIME_ID) < end);
		} else if (IS("jit")) {
			call_made(made(BARE, sizeof(BARE)), ns);
		} else if (IS("jitfp")) {
			call_made(made(FRAMED, sizeof(FRAMED)), ns);
		} else if (IS("moved")) {
			move(ns);
		} else if (IS("swap")) {
			swap(what);
		} else {
			fprintf(stderr, "no such action: %s\n", action);
			return 2;
		}
	}
	return 0;
}
