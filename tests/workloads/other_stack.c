/*
 * Calls on another stack, which lies below or above the thread's own. The switch has call frame
 * information, like the switches in Rust's psm and gcc's split stacks.
 *
 *	other_stack SECONDS lower|higher
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define KEPT __attribute__((noinline))
#define SIZE (256 << 10)

static volatile unsigned long sink;
static double seconds;
static char *other;

void call_on(void (*function)(void), void *top);

__asm__(".text\n.globl call_on\n.type call_on,@function\ncall_on:\n"
	".cfi_startproc\n"
	"push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset rbp,-16\n"
	"mov %rsp,%rbp\n.cfi_def_cfa_register rbp\n"
	"mov %rsi,%rsp\n"
	"call *%rdi\n"
	"mov %rbp,%rsp\n"
	"pop %rbp\n.cfi_def_cfa rsp,8\n"
	"ret\n.cfi_endproc\n.size call_on,.-call_on\n");

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

KEPT static void hot_leaf(void)
{
	for (int i = 0; i < 1000000; i++)
		sink += i;
}

KEPT static void on_other_stack(void)
{
	double end = now() + seconds;

	while (now() < end)
		hot_leaf();
	sink++;
}

KEPT static void body(void)
{
	call_on(on_other_stack, other + SIZE);
	sink++;
}

static void *thread(void *argument)
{
	body();
	sink++;
	return argument;
}

int main(int argc, char **argv)
{
	char *two = mmap(NULL, 4 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int higher = argc > 2 && !strcmp(argv[2], "higher");
	pthread_attr_t attributes;
	pthread_t created;

	seconds = argc > 1 ? atof(argv[1]) : 1;
	other = higher ? two + 2 * SIZE : two;
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, higher ? two : two + 2 * SIZE, SIZE);
	pthread_create(&created, &attributes, thread, NULL);
	pthread_join(created, NULL);
	return 0;
}
