/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `growth`: functions that get memory from the kernel, each in another way, and give a part of it
 * back. For each it prints `memory NAME ALLOCATED LIVE COUNT`: the bytes that it got, those that
 * are left, and in how many pieces it got them.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define PATH __attribute__((noinline))

static const int ACCESS = PROT_READ | PROT_WRITE;

static void require(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static PATH char *get(unsigned long pages, int access)
{
	char *at = mmap(0, pages * PAGE, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	require(at != MAP_FAILED, "mmap");
	return at;
}

static void print(const char *name, unsigned long allocated, unsigned long live, int count)
{
	printf("memory %s %lu %lu %d\n", name, allocated * PAGE, live * PAGE, count);
}

/* All of it stays. */
static PATH void keep(void)
{
	for (int times = 0; times < 10; times++)
		get(256, ACCESS);
	print("keep", 2560, 2560, 10);
}

/* Nothing stays. */
static PATH void borrow(void)
{
	for (int times = 0; times < 20; times++) {
		char *at = get(100, ACCESS);

		require(!munmap(at, 100 * PAGE), "munmap");
	}
	print("borrow", 2000, 0, 20);
}

/* A hole in the middle, and the end. */
static PATH void give_back(void)
{
	char *at = get(100, ACCESS);

	require(!munmap(at + 10 * PAGE, 20 * PAGE), "munmap");
	require(!munmap(at + 90 * PAGE, 10 * PAGE), "munmap");
	print("give_back", 100, 70, 1);
}

/* Reserved memory counts when it may be used. */
static PATH void reserve(void)
{
	char *at = get(10000, PROT_NONE);

	require(!mprotect(at, 50 * PAGE, ACCESS), "mprotect");
	require(!mprotect(at + 50 * PAGE, 7 * PAGE, ACCESS), "mprotect");
	require(!mprotect(at, 5 * PAGE, PROT_NONE), "mprotect");
	print("reserve", 57, 52, 2);
}

/* Moved, it is new memory. */
static PATH void move(void)
{
	char *to = get(64, PROT_NONE), *at = get(30, ACCESS);

	at = mremap(at, 30 * PAGE, 60 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	require(at == to, "mremap");
	print("move", 90, 60, 2);
}

/* The heap of brk. The C library may have moved it already, and nothing else does here. */
static PATH void extend(void)
{
	require(sbrk(33 * PAGE) != (void *)-1, "sbrk");
	require(sbrk(-3 * (long)PAGE) != (void *)-1, "sbrk");
	print("extend", 33, 30, 1);
}

int main(void)
{
	static char output[BUFSIZ];

	/* The library would get memory for it. */
	setvbuf(stdout, output, _IOFBF, sizeof(output));
	/* What a profiler has to learn of the program it learns now. */
	usleep(500000);
	keep();
	borrow();
	give_back();
	reserve();
	move();
	extend();
	return 0;
}
