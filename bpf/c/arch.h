/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Everything that depends on the processor. */
#ifndef KCOLLECT_ARCH_H
#define KCOLLECT_ARCH_H

#include "kernel.h"

#if defined(__TARGET_ARCH_x86)

/* Fields of struct pt_regs and of struct tick_regs. */
#define REG_IP	       ip
#define REG_FP	       bp
#define REG_ARGUMENT_1 di
#define REG_ARGUMENT_2 si
#define REG_ARGUMENT_3 dx
#define REG_RETURN     ax

/* Ring 3, 32-bit programs included: the low two bits of the code segment are the privilege level.
 */
static __always_inline bool in_user_mode(const struct tick_regs *regs)
{
	return (regs->cs & 3) == 3;
}

/* Whether the kernel maps files and memory at an address, except files that are linked to low
 * addresses. */
static __always_inline bool is_mapped_high(__u64 address)
{
	return address >> 44 == 5 || address >> 44 == 7;
}

/* Copies the user registers by DWARF number, and the pc. */
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

/* Whether a program is a 32-bit one, which has other frames: its code segment is not __USER_CS. */
static __always_inline bool is_32bit(const struct pt_regs *regs)
{
	return regs->cs != 0x33;
}

/* The thread pointer of the thread that runs. */
static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	return task->thread.fsbase;
}

/* THREAD_SIZE: four pages on every x86-64 kernel without KASAN. With KASAN the deeper half of a
 * stack counts as interrupt work; such kernels are not profiled for speed. */
#define KERNEL_STACK_BYTES (16 * 1024)

/* Number of the system call by which a thread entered the kernel; -1 after an exception or
 * interrupt. */
static __always_inline long system_call_number(const struct pt_regs *regs)
{
	return (long)regs->orig_ax;
}

/* Whether a thread is in a system call of a 32-bit program. */
static __always_inline bool is_compat(struct task_struct *task)
{
	const __u32 TS_COMPAT = 2;

	return task->thread_info.status & TS_COMPAT;
}

/* Whether a system call is one of futexes: futex, futex_waitv, futex_wake, futex_wait,
 * futex_requeue; and in a 32-bit program futex, futex_time64 and the same new ones. */
static __always_inline bool is_futex(struct task_struct *task, long call)
{
	if (call == 449 || (call >= 454 && call <= 456))
		return true;
	return is_compat(task) ? call == 240 || call == 422 : call == 202;
}

/* Writes the first four arguments of a system call. */
static __always_inline void system_call_arguments(struct task_struct *task,
						  const struct pt_regs *regs, __u64 arguments[4])
{
	bool compat = is_compat(task);

	arguments[0] = compat ? (__u32)regs->bx : regs->di;
	arguments[1] = compat ? (__u32)regs->cx : regs->si;
	arguments[2] = compat ? (__u32)regs->dx : regs->dx;
	arguments[3] = compat ? (__u32)regs->si : regs->r10;
}

/* Whether a system call is futex(2) itself, whose second argument is a command. */
static __always_inline bool is_futex_command(long call)
{
	return call < 449;
}

/* Bytes that a return from a function pops off the stack. */
#define RETURN_ADDRESS_BYTES 8

/* The longest instruction. */
#define INSTRUCTION_BYTES 15

#elif defined(__TARGET_ARCH_arm64)

#define REG_IP	       pc
#define REG_FP	       regs[29]
#define REG_ARGUMENT_1 regs[0]
#define REG_ARGUMENT_2 regs[1]
#define REG_ARGUMENT_3 regs[2]
#define REG_RETURN     regs[0]

#define INSTRUCTION_BYTES 4

/* PSR_MODE_EL0t is mode 0; bit 4 marks a 32-bit program. */
static __always_inline bool in_user_mode(const struct tick_regs *regs)
{
	return (regs->pstate & 0xf) == 0;
}

/* Whether the kernel maps files and memory at an address, except files that are linked to low
 * addresses. */
static __always_inline bool is_mapped_high(__u64 address)
{
	return address >> 44 == 0xa || address >> 44 == 0xf;
}

/* Copies what an unwind by frame pointers needs, where x86-64 has it: unwind tables are x86-64's,
 * and so are the numbers of registers. */
static __always_inline void user_registers(const struct pt_regs *regs, __u64 *pc, __u64 *registers)
{
	*pc = regs->pc;
	registers[6] = regs->regs[29];
	registers[7] = regs->sp;
}

/* PSR_MODE32_BIT. */
static __always_inline bool is_32bit(const struct pt_regs *regs)
{
	return regs->pstate & 0x10;
}

static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	return task->thread.uw.tp_value;
}

#define KERNEL_STACK_BYTES (16 * 1024)

static __always_inline long system_call_number(const struct pt_regs *regs)
{
	return regs->syscallno;
}

static __always_inline bool is_futex(struct task_struct *task, long call)
{
	(void)task;
	return call == 98 || call == 449 || (call >= 454 && call <= 456);
}

static __always_inline bool is_compat(struct task_struct *task)
{
	(void)task;
	return false;
}

static __always_inline void system_call_arguments(struct task_struct *task,
						  const struct pt_regs *regs, __u64 arguments[4])
{
	(void)task;
	arguments[0] = regs->orig_x0;
	arguments[1] = regs->regs[1];
	arguments[2] = regs->regs[2];
	arguments[3] = regs->regs[3];
}

static __always_inline bool is_futex_command(long call)
{
	return call == 98;
}

#define RETURN_ADDRESS_BYTES 0

#endif

static __always_inline __u64 kernel_ip(const struct tick_regs *regs)
{
	return regs->REG_IP;
}

/* The user address in registers that were saved on entry to the kernel. */
static __always_inline __u64 user_ip(const struct pt_regs *regs)
{
	return regs->REG_IP;
}

static __always_inline __u64 user_sp(const struct pt_regs *regs)
{
	return regs->sp;
}

static __always_inline __u64 user_fp(const struct pt_regs *regs)
{
	return regs->REG_FP;
}

/* The arguments of a function at its beginning; and the value that it returned. */
static __always_inline __u64 first_argument(const struct pt_regs *regs)
{
	return regs->REG_ARGUMENT_1;
}

static __always_inline __u64 second_argument(const struct pt_regs *regs)
{
	return regs->REG_ARGUMENT_2;
}

static __always_inline __u64 third_argument(const struct pt_regs *regs)
{
	return regs->REG_ARGUMENT_3;
}

static __always_inline __u64 return_value(const struct pt_regs *regs)
{
	return regs->REG_RETURN;
}

/* The number of no system call: after an exception or interrupt, and where a system call has set
 * all registers. */
#define NO_SYSTEM_CALL (-1)

/* Whether the CPU works for an interrupt, on top of the thread. Interrupts and softirqs run on
 * stacks of their own, so the stack pointer is outside of the thread's stack. */
static __always_inline bool on_borrowed_stack(struct task_struct *task,
					      const struct tick_regs *regs)
{
	return regs->sp - (unsigned long)task->stack >= KERNEL_STACK_BYTES;
}

#endif
