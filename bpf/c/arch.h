/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the BPF side knows of the processor, all of it here. */
#ifndef KCOLLECT_ARCH_H
#define KCOLLECT_ARCH_H

#include "kernel.h"

#if defined(__TARGET_ARCH_x86)

/* Ring 3, 32-bit programs included: the low two bits of the code segment are the privilege level.
 */
static __always_inline bool in_user_mode(const struct tick_regs *regs)
{
	return (regs->cs & 3) == 3;
}

static __always_inline __u64 leaf(const struct tick_regs *regs)
{
	return regs->ip;
}

/* Of registers that were saved on the way from user mode. */
static __always_inline __u64 user_ip(const struct pt_regs *regs)
{
	return regs->ip;
}

/* The same by DWARF number, and where the thread is. */
static __always_inline void user_registers(const struct pt_regs *regs, __u64 *pc, __u64 *registers)
{
	*pc = regs->ip;
	registers[0] = regs->ax;
	registers[1] = regs->dx;
	registers[2] = regs->cx;
	registers[3] = regs->bx;
	registers[4] = regs->si;
	registers[5] = regs->di;
	registers[6] = regs->bp;
	registers[7] = regs->sp;
	registers[8] = regs->r8;
	registers[9] = regs->r9;
	registers[10] = regs->r10;
	registers[11] = regs->r11;
	registers[12] = regs->r12;
	registers[13] = regs->r13;
	registers[14] = regs->r14;
	registers[15] = regs->r15;
}

/* A program of 32 bits, whose frames are others: its code segment is not __USER_CS. */
static __always_inline bool is_narrow(const struct pt_regs *regs)
{
	return regs->cs != 0x33;
}

/* THREAD_SIZE: four pages on every x86-64 kernel but a KASAN one, whose deeper half then counts as
 * interrupt work; nobody profiles those for speed. */
#define KERNEL_STACK_SIZE (16 * 1024)

/* How a thread entered the kernel: its system call's number, or -1 for an exception or interrupt.
 */
static __always_inline long system_call(const struct pt_regs *regs)
{
	return (long)regs->orig_ax;
}

/* All that wait on a futex: futex, futex_waitv, futex_wake, futex_wait, futex_requeue; and of a
 * 32-bit program futex, futex_time64 and the same new ones. */
static __always_inline bool is_futex(struct task_struct *task, long call)
{
	const __u32 TS_COMPAT = 2;

	if (call == 449 || (call >= 454 && call <= 456))
		return true;
	return task->thread_info.status & TS_COMPAT ? call == 240 || call == 422 : call == 202;
}

/* Was it the fetch of an instruction that faulted? Bit 4 of the error code says so where the CPU
 * knows non-executable pages. */
static __always_inline bool is_text_fault(__u64 address, const struct pt_regs *regs, __u64 error)
{
	return error & (1 << 4) || address == regs->ip;
}

#elif defined(__TARGET_ARCH_arm64)

/* PSR_MODE_EL0t is mode 0; bit 4 marks a 32-bit program. */
static __always_inline bool in_user_mode(const struct tick_regs *regs)
{
	return (regs->pstate & 0xf) == 0;
}

static __always_inline __u64 leaf(const struct tick_regs *regs)
{
	return regs->pc;
}

static __always_inline __u64 user_ip(const struct pt_regs *regs)
{
	return regs->pc;
}

#define KERNEL_STACK_SIZE (16 * 1024)

static __always_inline long system_call(const struct pt_regs *regs)
{
	return regs->syscallno;
}

static __always_inline bool is_futex(struct task_struct *task, long call)
{
	(void)task;
	return call == 98 || call == 449 || (call >= 454 && call <= 456);
}

static __always_inline bool is_text_fault(__u64 address, const struct pt_regs *regs, __u64 error)
{
	(void)error;
	return address == regs->pc;
}

#endif

#endif
