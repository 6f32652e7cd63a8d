/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The unwinder: from one frame of a user stack to its caller, by a rule. It compiles for BPF and
 * natively (bpf/abi/src/unwind), so that both make the same frames. How memory is read is a
 * parameter, a constant in each caller: BPF has no calls by pointer, so the compiler has to inline
 * it.
 *
 * Only pc, stack pointer, frame pointer and rbx are followed. By rbx the dynamic linker finds the
 * frame of its symbol resolver, in which each program begins. Few other functions do, so the place
 * where it is saved is kept, and read only where a rule needs it. The other registers are known in
 * the innermost frame. In its callers, registers that functions save are unknown, and a rule that
 * needs one is refused: a wrong caller is worse than none. Registers that functions do not save are
 * taken to be unchanged: hand-written code that uses one across a call relies on that, as OpenSSL's
 * AES-GCM does, whose frame address is in rax.
 */
#ifndef KCOLLECT_UNWIND_H
#define KCOLLECT_UNWIND_H

#include "integers.h"

/* DWARF numbers of rbx, the frame pointer and the stack pointer; number of general registers.
 * x86-64. */
#define UNWIND_BX	 3
#define UNWIND_FP	 6
#define UNWIND_SP	 7
#define UNWIND_REGISTERS 16
/* A bit for each that a function need not save: rax, rdx, rcx, rsi, rdi, r8 to r11. */
#define UNWIND_UNSAVED 0xf37
/* Machine code as a little-endian word: the first instruction is in the lowest bytes. */
#define TEXT_RET	     0xc3
#define TEXT_PUSH_FP	     0xe5894855	      /* push %rbp; mov %rsp,%rbp */
#define TEXT_PUSH_FP_JVM     0xec8b4855	      /* the same in other bytes */
#define TEXT_TRAMPOLINE	     0xd1ff08ec8348   /* sub $8,%rsp; call *%rcx */
#define TEXT_TRAMPOLINE_CALL 0xc308c48348d1ff /* call *%rcx; add $8,%rsp; ret */
#define TEXT_MCALL	     0xe958d4ff /* call *%r12, without its first byte; pop %rax; jmp */
#define TEXT_SYSTEMSTACK     0xf825048b4864d7ff /* call *%rdi; mov %fs:..f8,%rax */
#define TEXT_MCALL_NOP	     0xe95890d4ff	/* the same of Go since 1.22 */
/* Bits of unwind_state.known above the registers' bits. The frame pointer comes from a frame whose
 * code has no rule, and may have used the register for something else. */
#define UNWIND_FP_UNSURE (1 << 16)
/* The frame pointer was found by following another one. */
#define UNWIND_FP_CHAIN (1 << 17)
/* How often a rule may lead to a lower address, which is on another stack. Rules that lead in a
 * circle do so each time round, so the unwind ends. */
#define MAX_DESCENTS 16
/* In place of a register number in a rule: relative to the canonical frame address. */
#define UNWIND_CFA 255
/* Likewise, of rbx alone: it is unchanged (UNWIND_SAME), or not known (UNWIND_LOST). */
#define UNWIND_SAME 254
#define UNWIND_LOST 253

/* How the canonical frame address is found. */
enum unwind_cfa_kind {
	CFA_ABSENT,	 /* there is no rule */
	CFA_STOP,	 /* the frame is the outermost one */
	CFA_UNSUPPORTED, /* the rule can't be expressed; cfa_register is the reason */
	CFA_REGISTER,	 /* register + offset */
	CFA_DEREF,	 /* *(register + offset) + plus */
	/* register + offset, and 8 more in the second part of an entry of the PLT */
	CFA_PLT,
};

/* How the caller's frame pointer is found. */
enum unwind_fp_kind {
	FP_SAME, /* it is unchanged */
	FP_AT,	 /* it is stored at base + offset */
	FP_LOST, /* it is not known */
};

/* How the caller's pc is found. */
enum unwind_ra_kind {
	RA_AT,		/* a return address at base + offset */
	RA_INTERRUPTED, /* the pc that a signal interrupted, at base + offset */
	RA_REGISTER,	/* a return address in a register */
};

/* How to find the caller of a frame. user-collector makes rules of .eh_frame. A rule of zeros is
 * CFA_ABSENT. */
struct unwind_rule {
	__s32 cfa_offset; /* bytes, added to the register */
	__s16 fp_offset;  /* bytes */
	__s8 cfa_plus;	  /* deref: added to the word; PLT: the offset at which the push is done */
	__s8 ra_words;	  /* offset in words of 8 bytes */
	__s8 bx_words;	  /* likewise */
	__u8 bx_base;	  /* as fp_base, or UNWIND_SAME, or UNWIND_LOST */
	__u8 cfa_kind;	  /* enum unwind_cfa_kind */
	__u8 cfa_register; /* DWARF number; unsupported: why */
	__u8 fp_kind;	   /* enum unwind_fp_kind */
	__u8 fp_base;	   /* DWARF number, or UNWIND_CFA */
	__u8 ra_kind;	   /* enum unwind_ra_kind */
	__u8 ra_base;	   /* as fp_base */
};

/* Instead of an unwind_end: the stack does not end, there is a caller. */
#define UNWIND_CONTINUES 0

/* Why a stack ends where it does. */
enum unwind_end {
	/* At the thread's first function, as its rule says. */
	UNWIND_COMPLETE = 1,
	/* There was no space for more frames. */
	UNWIND_DEPTH_LIMIT,
	/* No code is known to be mapped at the pc. */
	UNWIND_NO_MAPPING,
	/* The file at the pc has no table, or none yet, and no frame pointer is known. */
	UNWIND_NO_TABLE,
	/* The table has no rule for the pc. */
	UNWIND_NO_RULE,
	/* The rule can't be followed, or needs a register that is known in the innermost frame
	 * only. */
	UNWIND_UNSUPPORTED,
	/* The stack could not be read. */
	UNWIND_UNREADABLE,
	/* The caller's frame is not above its callee's. */
	UNWIND_NOT_ASCENDING,
	/* There is no user stack: its program was replaced by another, which has not begun. */
	UNWIND_EXECUTING,
	/* There is no caller, but some may be missing: the last function is not known to be where
	 * threads begin, or a step was by a scan or a frame pointer that nothing confirms. */
	UNWIND_UNVERIFIED,
};

struct unwind_state {
	__u64 pc;
	__u64 registers[UNWIND_REGISTERS]; /* by DWARF number */
	__u32 known;	/* a bit for each of them, UNWIND_FP_UNSURE, UNWIND_FP_CHAIN */
	__u16 exact;	/* pc is where it was interrupted, not a return address */
	__u16 descents; /* how often a rule has led to a lower address */
	__u64 bx_at;	/* where rbx is saved, which is not read yet; or 0 */
};

/* Reads a word at an address of the process whose stack is unwound. Returns 0 if that succeeds. */
typedef int unwind_read(void *context, __u64 address, __u64 *word);

/* The address by which rules and functions are found: in a caller it is inside the call. */
static __always_inline __u64 unwind_address(const struct unwind_state *state)
{
	return state->exact ? state->pc : state->pc - 1;
}

static __always_inline int unwind_register(const struct unwind_state *state, __u8 number,
					   __u64 *value)
{
	if (number >= UNWIND_REGISTERS || !(state->known >> number & 1))
		return -1;
	*value = state->registers[number & (UNWIND_REGISTERS - 1)];
	return 0;
}

static __always_inline int unwind_base(const struct unwind_state *state, __u8 base, __u64 cfa,
				       __u64 *value)
{
	if (base == UNWIND_CFA) {
		*value = cfa;
		return 0;
	}
	return unwind_register(state, base, value);
}

/* Whether the machine code before an address is a call by a register or by memory: ff /2 with all
 * addressing modes; prefixes don't matter. `text` is the eight bytes before it. */
static __always_inline bool unwind_is_indirect_call(__u64 text)
{
	__u32 two = text >> 48, three = (text >> 40) & 0xffff, four = (text >> 32) & 0xffff,
	      six = (text >> 16) & 0xffff, seven = (text >> 8) & 0xffff;

	/* The opcode is in the low byte; mod, /2 and rm are in the high one. */
	return (two & 0xf8ff) == 0xd0ff ||
	       ((two & 0xf8ff) == 0x10ff && two >> 8 != 0x14 && two >> 8 != 0x15) ||
	       ((three & 0xf8ff) == 0x50ff && three >> 8 != 0x54) || three == 0x14ff ||
	       four == 0x54ff || six == 0x15ff || ((six & 0xf8ff) == 0x90ff && six >> 8 != 0x94) ||
	       seven == 0x94ff || seven == 0x14ff;
}

/* Whether a call is before an address: 1, or 0, or -1 if the code can't be read. */
static __always_inline int unwind_after_call(unwind_read *read, void *context, __u64 address)
{
	__u64 text;

	if (read(context, address - 8, &text))
		return -1;
	return (text >> 24 & 0xff) == 0xe8 || unwind_is_indirect_call(text);
}

/* Goes to the caller, whose frame is known; of its other registers those in `kept` are. */
static __always_inline enum unwind_end unwind_go_to(struct unwind_state *state, __u64 pc, __u64 sp,
						    __u64 fp, bool has_fp, bool interrupted,
						    __u32 kept)
{
	/*
	 * A first function without a rule that says so has 0 for a return address, and so may any
	 * word that was taken for one. But a call of a null pointer is interrupted at 0, and it has
	 * a caller.
	 */
	if (!pc && !interrupted)
		return UNWIND_UNVERIFIED;
	state->pc = pc;
	state->registers[UNWIND_SP] = sp;
	state->registers[UNWIND_FP] = fp;
	state->known = (state->known & kept) | 1 << UNWIND_SP | (has_fp ? 1 << UNWIND_FP : 0);
	state->exact = interrupted;
	state->bx_at = 0;
	return UNWIND_CONTINUES;
}

/* Reads rbx where a callee has saved it. */
static __always_inline int unwind_read_bx(struct unwind_state *state, unwind_read *read,
					  void *context)
{
	if (!state->bx_at)
		return 0;
	if (read(context, state->bx_at, &state->registers[UNWIND_BX]))
		return -1;
	state->known |= 1 << UNWIND_BX;
	state->bx_at = 0;
	return 0;
}

/* Goes to the caller by a rule. `state` is the caller's if this returns UNWIND_CONTINUES. */
static __always_inline enum unwind_end unwind_by_rule(struct unwind_state *state,
						      const struct unwind_rule *rule,
						      unwind_read *read, void *context)
{
	__u64 cfa, base, pc, sp, fp = state->registers[UNWIND_FP], bx_at = 0;
	bool has_fp = state->known >> UNWIND_FP & 1;
	__u32 kept = UNWIND_UNSAVED;
	enum unwind_end end;
	bool descends;

	switch (rule->cfa_kind) {
	case CFA_ABSENT:
		return UNWIND_NO_RULE;
	case CFA_STOP:
		return UNWIND_COMPLETE;
	case CFA_REGISTER:
	case CFA_DEREF:
	case CFA_PLT:
		break;
	default:
		return UNWIND_UNSUPPORTED;
	}
	if (rule->cfa_register == UNWIND_BX && unwind_read_bx(state, read, context))
		return UNWIND_UNREADABLE;
	if (unwind_register(state, rule->cfa_register, &cfa))
		return UNWIND_UNSUPPORTED;
	cfa += rule->cfa_offset;
	if (rule->cfa_kind == CFA_DEREF) {
		if (read(context, cfa, &cfa))
			return UNWIND_UNREADABLE;
		cfa += rule->cfa_plus;
	} else if (rule->cfa_kind == CFA_PLT && (__s64)(state->pc & 15) >= rule->cfa_plus) {
		cfa += 8;
	}

	if (rule->ra_kind == RA_REGISTER) {
		if (!state->exact || unwind_register(state, rule->ra_base, &pc))
			return UNWIND_UNSUPPORTED;
	} else {
		if (unwind_base(state, rule->ra_base, cfa, &base))
			return UNWIND_UNSUPPORTED;
		if (read(context, base + 8 * (__s64)rule->ra_words, &pc))
			return UNWIND_UNREADABLE;
	}
	/*
	 * A function may call on another stack, which may lie above its own. Then its frame is by
	 * another register than the stack pointer, and its return address is after a call.
	 */
	sp = state->registers[UNWIND_SP];
	descends = cfa < sp && rule->ra_kind != RA_INTERRUPTED;
	if (descends && (rule->ra_kind != RA_AT || rule->cfa_register == UNWIND_SP || cfa & 7 ||
			 state->descents >= MAX_DESCENTS))
		return UNWIND_NOT_ASCENDING;
	if (descends || (state->known & UNWIND_FP_UNSURE && rule->cfa_register == UNWIND_FP))
		if (unwind_after_call(read, context, pc) <= 0)
			return descends ? UNWIND_NOT_ASCENDING : UNWIND_UNSUPPORTED;
	if (state->known & UNWIND_FP_UNSURE && rule->fp_kind == FP_SAME)
		kept |= UNWIND_FP_UNSURE;
	if (rule->fp_kind == FP_AT) {
		has_fp = !unwind_base(state, rule->fp_base, cfa, &base) &&
			 !read(context, base + rule->fp_offset, &fp);
	} else if (rule->fp_kind == FP_LOST) {
		has_fp = false;
	}
	if (rule->bx_base == UNWIND_SAME) {
		bx_at = state->bx_at;
		kept |= 1 << UNWIND_BX;
	} else if (rule->bx_base != UNWIND_LOST && !unwind_base(state, rule->bx_base, cfa, &base)) {
		bx_at = base + 8 * (__s64)rule->bx_words;
	}
	/*
	 * A signal handler may have a stack of its own, anywhere. And a function that has popped
	 * its return address, as vfork does, has its caller's stack pointer.
	 */
	if (cfa == sp && rule->ra_kind == RA_AT)
		return UNWIND_NOT_ASCENDING;
	state->descents += descends;
	end = unwind_go_to(state, pc, cfa, fp, has_fp, rule->ra_kind == RA_INTERRUPTED,
			   rule->ra_kind == RA_INTERRUPTED ? 0 : kept);
	state->bx_at = bx_at;
	return end;
}

/*
 * Returns how far the caller's stack pointer is above the callee's, in code without rules, if the
 * machine code at the pc shows it, or 0. `word` is the eight bytes from two before the pc.
 *
 * Before a function has set its frame pointer, and after it has restored it, the register holds the
 * caller's, and unwinding by it would skip the caller. And CPython's perf trampolines, one for each
 * Python function, have no frame pointer.
 */
static __always_inline __u32 unwind_height(const struct unwind_state *state, __u64 word,
					   bool *pushed)
{
	__u64 text = word >> 16;

	*pushed = false;
	if (!state->exact)
		return (word & 0xffffffffffffff) == TEXT_TRAMPOLINE_CALL ? 16 : 0;
	if ((__u8)text == TEXT_RET || text == TEXT_TRAMPOLINE || (__u32)text == TEXT_PUSH_FP ||
	    (__u32)text == TEXT_PUSH_FP_JVM)
		return 8;
	if ((text & 0xffffffffff) == TEXT_TRAMPOLINE_CALL >> 16 ||
	    text == (TEXT_TRAMPOLINE_CALL & 0xffffffffffff))
		return 16;
	*pushed = (__u32)(word >> 8) == TEXT_PUSH_FP || (__u32)(word >> 8) == TEXT_PUSH_FP_JVM;
	return *pushed ? 16 : 0;
}

/* Goes to the caller of code without rules: by the machine code at the pc if that is known, or else
 * by the frame pointer, which the code may use for something else: it is `sure` if it leads to a
 * return address after a call, or ends a chain of frame pointers. It `leaves` the stack if it is
 * on another one. */
static __always_inline enum unwind_end unwind_by_frame_pointer(struct unwind_state *state,
							       unwind_read *read, void *context,
							       bool leaves, bool *sure)
{
	__u64 sp = state->registers[UNWIND_SP], fp = state->registers[UNWIND_FP], pc, next, text;
	bool has_fp = state->known >> UNWIND_FP & 1, pushed;
	__u32 height = 0, chain = state->known & UNWIND_FP_CHAIN;
	enum unwind_end end;

	*sure = true;
	if (read(context, state->pc - 2, &text)) {
		text = 0;
	} else {
		/* Go's runtime.mcall switches from the goroutine's stack to the thread's, and
		 * begins that anew each time. */
		if (!state->exact &&
		    ((__u32)text == TEXT_MCALL || (text & 0xffffffffff) == TEXT_MCALL_NOP))
			return UNWIND_COMPLETE;
		height = unwind_height(state, text, &pushed);
	}
	if (height) {
		if (read(context, sp + height - 8, &pc) || (pushed && read(context, sp, &fp)))
			return UNWIND_UNREADABLE;
		return unwind_go_to(state, pc, sp + height, fp, has_fp, false, 0);
	}
	*sure = false;
	/* Its last known value may be of any frame. */
	if (!has_fp)
		return UNWIND_NO_TABLE;
	*sure = !fp && chain;
	if (!fp)
		return UNWIND_UNVERIFIED;
	/* Go's runtime.systemstack calls on the thread's stack with the frame pointer of the
	 * goroutine's stack. */
	if (fp & 7 || (fp < sp && !leaves && (state->exact || text != TEXT_SYSTEMSTACK)))
		return UNWIND_NOT_ASCENDING;
	if (read(context, fp, &next) || read(context, fp + 8, &pc))
		return UNWIND_UNREADABLE;
	*sure = pc ? unwind_after_call(read, context, pc) > 0 : !!chain;
	end = unwind_go_to(state, pc, fp + 16, next, true, false, 0);
	if (end == UNWIND_CONTINUES)
		state->known |= UNWIND_FP_CHAIN;
	return end;
}

_Static_assert(sizeof(struct unwind_rule) == 16, "the same for every compiler");
_Static_assert(sizeof(struct unwind_state) == 152, "the same for every compiler");

#endif
