/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A program that copies its code to anonymous memory at the same addresses, as programs do that
 * want huge pages for it, and spins there. Arguments: the way, and for how many ms. `moved`: the
 * copy is moved over the code, which the kernel does not report. `mapped`: the kernel reports it.
 */

#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clocks.h"

#define MS 1000000ull

__attribute__((noinline)) static void hot_inner(void)
{
	for (uint64_t round = 0; round < 200000; round++)
		__asm__ volatile("" : "+r"(round));
	__asm__ volatile("");
}

__attribute__((noinline)) static void hot_outer(void)
{
	hot_inner();
	__asm__ volatile("");
}

__attribute__((noinline)) static void phase(uint64_t ms)
{
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + ms * MS;

	while (clock_ns(CLOCK_MONOTONIC) < end)
		hot_outer();
	__asm__ volatile("");
}

static void copy_code(const char *way)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uintptr_t start = 0, end = 0, from, to;
	char line[500], rights[8];

	check(maps != NULL, "/proc/self/maps");
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 &&
		    from <= (uintptr_t)phase && (uintptr_t)phase < to)
			start = from, end = to;
	fclose(maps);
	check(end != 0, "the mapping of the code");
	size_t bytes = end - start;
	char *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(copy != MAP_FAILED, "mmap");
	memcpy(copy, (void *)start, bytes);
	check(mprotect(copy, bytes, PROT_READ | PROT_EXEC) == 0, "mprotect");
	void *moved = mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start);
	check(moved == (void *)start, way);
	/* That the memory is made executable is reported at the address where it is now. */
	if (strcmp(way, "mapped") == 0) {
		check(mprotect(moved, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "mprotect");
		check(mprotect(moved, bytes, PROT_READ | PROT_EXEC) == 0, "mprotect");
	}
}

int main(int argc, char **argv)
{
	check(argc == 3, "two arguments");
	copy_code(argv[1]);
	printf("pid %d\n", getpid());
	fflush(stdout);
	phase(strtoull(argv[2], NULL, 10));
	return 0;
}
