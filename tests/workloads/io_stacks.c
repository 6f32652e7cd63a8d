/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * `io_stacks CALLS`: writes to /dev/null from stacks that are alike: the stack pointer is the same
 * at each write, and what differs is above it. Prints `FUNCTION CALLS` for each function that was
 * on the stack.
 *
 * `one` and `two` have the same frame, and differ in the return address into them. `small` and
 * `large` have frames of different size, and call a function that has space for an array of
 * variable length, so that its frame is found by the frame pointer: with the right lengths the
 * stack pointer is the same below it, and the words of the other way are still there, in the array.
 * The frame pointer is in its register at the write, or saved in a frame in between.
 */
#include <alloca.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FUNCTION   __attribute__((noinline)) static
#define LARGE	   256
#define LENGTH	   1024
#define STEP	   16
#define NO_TAIL()  __asm__ volatile("")
/* The function has all of it in its frame. */
#define KEEPS(it)  __asm__ volatile("" : : "r"(it) : "memory")
/* The function saves it. */
#define TAKES_FP() __asm__ volatile("" ::: "rbp")

static volatile unsigned long in_one, in_two, in_small, in_large, in_other_small, in_other_large;
static volatile unsigned long sp, writes;
static int fd;
static size_t length = LENGTH;

FUNCTION void leaf(void)
{
	volatile char local;

	sp = (unsigned long)&local;
	if (writes && write(fd, "", 1) != 1)
		abort();
	NO_TAIL();
}

FUNCTION void saving_leaf(void)
{
	TAKES_FP();
	leaf();
	NO_TAIL();
}

FUNCTION void with_array(size_t bytes, void (*call)(void))
{
	volatile char *buffer = alloca(bytes);

	buffer[0] = 1;
	call();
	NO_TAIL();
}

FUNCTION void one(void)
{
	in_one++;
	leaf();
	NO_TAIL();
}

FUNCTION void two(void)
{
	in_two++;
	leaf();
	NO_TAIL();
}

FUNCTION void small(void)
{
	in_small++;
	with_array(length, leaf);
	NO_TAIL();
}

FUNCTION void large(void)
{
	char frame[LARGE];

	KEEPS(frame);
	in_large++;
	with_array(length, leaf);
	NO_TAIL();
}

FUNCTION void other_small(void)
{
	in_other_small++;
	with_array(length, saving_leaf);
	NO_TAIL();
}

FUNCTION void other_large(void)
{
	char frame[LARGE];

	KEEPS(frame);
	in_other_large++;
	with_array(length, saving_leaf);
	NO_TAIL();
}

FUNCTION unsigned long sp_of(void (*way)(void), size_t bytes)
{
	length = bytes;
	way();
	return sp;
}

/* The length with which a way has this stack pointer. */
static size_t length_of(void (*way)(void), unsigned long wanted)
{
	for (size_t bytes = 0; bytes <= LENGTH; bytes += STEP)
		if (sp_of(way, bytes) == wanted && bytes + LARGE <= LENGTH)
			return bytes;
	fprintf(stderr, "no shorter array has the same stack pointer\n");
	exit(1);
}

int main(int argc, char **argv)
{
	static void (*const ways[])(void) = {one, two, small, large, other_small, other_large};
	size_t lengths[] = {0, 0, LENGTH, 0, LENGTH, 0};
	unsigned long number = 1, calls = argc > 1 ? strtoul(argv[1], 0, 10) : 0;

	fd = open("/dev/null", O_WRONLY);
	if (fd < 0 || sp_of(one, 0) != sp_of(two, 0))
		return 1;
	lengths[3] = length_of(large, sp_of(small, LENGTH));
	lengths[5] = length_of(other_large, sp_of(other_small, LENGTH));
	in_one = in_two = in_small = in_large = in_other_small = in_other_large = 0;
	/* What a profiler has to learn of the program it learns now. */
	usleep(500000);
	for (writes = 1; writes <= calls; writes++) {
		number = number * 0x5851f42d4c957f2d + 1;
		sp_of(ways[(number >> 40) % 6], lengths[(number >> 40) % 6]);
	}
	printf("one %lu\ntwo %lu\nsmall %lu\nlarge %lu\nother_small %lu\nother_large %lu\n", in_one,
	       in_two, in_small, in_large, in_other_small, in_other_large);
	return 0;
}
