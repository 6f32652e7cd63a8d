/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the BPF side knows of the processor, all of it here. */
#ifndef KCOLLECT_ARCH_H
#define KCOLLECT_ARCH_H

#include "kernel.h"

#if defined(__TARGET_ARCH_x86)

/* Ring 3, 32-bit programs included: the low two bits of the code segment are the privilege level. */
static __always_inline bool in_user_mode(const struct tick_regs *regs)
{
	return (regs->cs & 3) == 3;
}

static __always_inline __u64 leaf(const struct tick_regs *regs)
{
	return regs->ip;
}

/* THREAD_SIZE: four pages on every x86-64 kernel but a KASAN one, whose deeper half then counts as
 * interrupt work; nobody profiles those for speed. */
#define KERNEL_STACK_SIZE (16 * 1024)

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

#define KERNEL_STACK_SIZE (16 * 1024)

#endif

#endif
