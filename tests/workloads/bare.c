/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* `program ACTION...`: a program without libraries that spins for some CPU time in a function that
 * is named when it is compiled (BURN, called by CALL). It has two actions: `one:MS` and `say:WORD`.
 * For machines of 32 bits and of 64. It reads its CPU time about every half millisecond: in a
 * virtual machine int 0x80 takes some 12 us, which is system time and not the function's. */

typedef unsigned long long u64;

struct time64 {
	u64 seconds;
	u64 nanoseconds;
};

#ifdef __i386__
enum { WRITE = 4, EXIT_GROUP = 252, CLOCK_GETTIME = 403 };
#else
enum { WRITE = 1, EXIT_GROUP = 231, CLOCK_GETTIME = 228 };
#endif

static inline __attribute__((always_inline)) long call(long number, long one, long two, long three)
{
	long result;

#ifdef __i386__
	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(one), "c"(two), "d"(three)
			 : "memory");
#else
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(one), "S"(two), "d"(three)
			 : "rcx", "r11", "memory");
#endif
	return result;
}

static inline __attribute__((always_inline)) u64 cpu_ns(void)
{
	struct time64 time;

	call(CLOCK_GETTIME, 2, (long)&time, 0);
	return time.seconds * 1000000000 + time.nanoseconds;
}

__attribute__((noinline)) void BURN(u64 ns)
{
	u64 end = cpu_ns() + ns;

	do {
		for (long round = 0; round < 1500000; round++)
			__asm__ volatile("" : "+r"(round));
	} while (cpu_ns() < end);
	__asm__ volatile("");
}

__attribute__((noinline)) void CALL(u64 ns)
{
	BURN(ns);
	__asm__ volatile("");
}

__attribute__((used)) void work(const long *stack)
{
	const char *const *words = (const char *const *)(stack + 1);

	for (long index = 1; index < stack[0]; index++) {
		const char *word = words[index];
		u64 number = 0;

		if (word[0] != 'o')
			continue;
		for (word += 4; *word; word++)
			number = number * 10 + (u64)(*word - '0');
		CALL(number * 1000000);
	}
	for (;;)
		call(EXIT_GROUP, 0, 0, 0);
}

#ifdef __i386__
__asm__(".globl _start\n"
	"_start:\n"
	"	movl %esp, %eax\n"
	"	andl $-16, %esp\n"
	"	subl $12, %esp\n"
	"	pushl %eax\n"
	"	call work\n");
#else
__asm__(".globl _start\n"
	".type _start, @function\n"
	"_start:\n"
	"	.cfi_startproc\n"
	"	.cfi_undefined rip\n"
	"	movq %rsp, %rdi\n"
	"	andq $-16, %rsp\n"
	"	call work\n"
	"	.cfi_endproc\n");
#endif
