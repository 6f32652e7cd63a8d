/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* `program CALL UNTIL_NS`: a 32-bit program that makes one blocking system call again and again
 * until a moment of CLOCK_MONOTONIC. CALL is its number in the table of i386, where numbers mean
 * other calls than in a 64-bit program: 162 nanosleep, 240 futex, 422 futex_time64.
 *
 * It measures its time as every workload does: at the first and the last instant of its work it
 * writes what three clocks say, and its parent does the sums. All that blocks it in between is that
 * call. Without arguments it ends at once.
 *
 * It needs no C library: not every machine has one for 32-bit programs, but a compiler and a linker
 * are there. */

typedef unsigned long long u64;
typedef unsigned int u32;

enum {
	READ = 3,
	WRITE = 4,
	OPEN = 5,
	LSEEK = 19,
	NANOSLEEP = 162,
	FUTEX = 240,
	EXIT_GROUP = 252,
	CLOCK_GETTIME64 = 403,
	FUTEX_TIME64 = 422,
};

enum { MONOTONIC = 1, PROCESS_CPU = 2 };
enum { FUTEX_WAIT_PRIVATE = 128 };
enum { ETIMEDOUT = 110 };

struct time32 {
	int seconds;
	int nanoseconds;
};

struct time64 {
	u64 seconds;
	u64 nanoseconds;
};

/* What it writes, twice. `schedstat` is the text of the file, as far as it reaches, and zeros. */
struct instant {
	u64 wall_ns;
	u64 cpu_ns;
	char schedstat[64];
};

/* How long one call blocks: at least so long, and shorter than that and the range together. Lengths
 * at random keep no step with the profiler's clock (`workload/naps.rs`). */
#define NAP_NS 1000000
#define NAP_RANGE_NS (1 << 21)

static int call(int number, int one, int two, int three, int four)
{
	int result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(one), "c"(two), "d"(three), "S"(four)
			 : "memory");
	return result;
}

static void end(int code)
{
	for (;;)
		call(EXIT_GROUP, code, 0, 0, 0);
}

static u64 clock(int which)
{
	struct time64 now;

	if (call(CLOCK_GETTIME64, which, (int)&now, 0, 0))
		end(2);
	return now.seconds * 1000000000 + now.nanoseconds;
}

static u64 number(const char *text)
{
	u64 value = 0;

	while (*text)
		value = value * 10 + (u64)(*text++ - '0');
	return value;
}

static void look(struct instant *now, int schedstat)
{
	/* First what may end this thread's turn on the CPU: the wait for the next is then in both
	 * of the others. */
	now->cpu_ns = clock(PROCESS_CPU);
	now->wall_ns = clock(MONOTONIC);
	call(LSEEK, schedstat, 0, 0, 0);
	if (call(READ, schedstat, (int)now->schedstat, sizeof(now->schedstat), 0) <= 0)
		end(3);
}

/* The length of the next nap, nanoseconds: Marsaglia's xorshift, the same ones in each run. */
static u32 nap_ns(void)
{
	static u32 state = 997;

	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return NAP_NS + state % NAP_RANGE_NS;
}

/* Blocks for one nap; whether it was the call that was meant. */
static int nap(int which)
{
	const u32 length = nap_ns();
	const struct time32 short_nap = {0, (int)length};
	const struct time64 long_nap = {0, length};
	u32 word = 1;

	switch (which) {
	case NANOSLEEP:
		return call(which, (int)&short_nap, 0, 0, 0) == 0;
	case FUTEX:
		return call(which, (int)&word, FUTEX_WAIT_PRIVATE, 1, (int)&short_nap) ==
		       -ETIMEDOUT;
	case FUTEX_TIME64:
		return call(which, (int)&word, FUTEX_WAIT_PRIVATE, 1, (int)&long_nap) == -ETIMEDOUT;
	default:
		return 0;
	}
}

/* What the kernel puts on the stack of a new program: how many words, and where they are. */
__attribute__((used)) void work(const u32 *stack)
{
	static struct instant first, last;
	const char *const *words = (const char *const *)(stack + 1);
	int which, schedstat;
	u64 until;

	if (stack[0] < 3)
		end(0);
	which = (int)number(words[1]);
	until = number(words[2]);
	schedstat = call(OPEN, (int)"/proc/self/schedstat", 0, 0, 0);
	look(&first, schedstat);
	while (clock(MONOTONIC) < until)
		if (!nap(which))
			end(4);
	look(&last, schedstat);
	if (call(WRITE, 1, (int)&first, sizeof(first), 0) != sizeof(first) ||
	    call(WRITE, 1, (int)&last, sizeof(last), 0) != sizeof(last))
		end(5);
	end(0);
}

__asm__(".globl _start\n"
	"_start:\n"
	"	movl %esp, %eax\n"
	"	andl $-16, %esp\n"
	"	subl $12, %esp\n"
	"	pushl %eax\n"
	"	call work\n");
