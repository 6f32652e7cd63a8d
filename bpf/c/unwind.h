/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * One frame of a user stack, left by a rule: the only unwinder there is. It is pure: what it reads
 *of the stack it reads by unwind_read(), which whoever includes this has defined, in the kernel and
 *natively.
 *
 *	static __always_inline int unwind_read(void *reader, __u64 address, __u64 *word); (0 when it
 *could be read)
 *
 * Only pc, stack pointer and frame pointer are followed. The other registers are known in the
 *innermost frame. Further out, those that functions save for their callers are not, and a rule that
 *needs one is refused: a wrong caller is worse than none. The rest nobody saves: whoever needs one
 *of them across a call knows that it stays, as OpenSSL's AES-GCM does, whose frame address is in
 *rax.
 */
#ifndef KCOLLECT_UNWIND_H
#define KCOLLECT_UNWIND_H

/* DWARF numbers of x86-64. */
#define UNWIND_FP	 6
#define UNWIND_SP	 7
#define UNWIND_REGISTERS 16
/* A bit for each that a function need not keep for its caller: rax, rdx, rcx, rsi, rdi, r8 to r11.
 */
#define UNWIND_UNSAVED 0xf37
/* Its text, as words of it read: little endian, the first instruction lowest. */
#define TEXT_RET	     0xc3
#define TEXT_PUSH_FP	     0xe5894855	      /* push %rbp; mov %rsp,%rbp */
#define TEXT_PUSH_FP_JVM     0xec8b4855	      /* the same in other bytes */
#define TEXT_TRAMPOLINE	     0xd1ff08ec8348   /* sub $8,%rsp; call *%rcx */
#define TEXT_TRAMPOLINE_CALL 0xc308c48348d1ff /* call *%rcx; add $8,%rsp; ret */
#define TEXT_MCALL	     0xe958d4ff /* call *%r12, without its first byte; pop %rax; jmp */
#define TEXT_SYSTEMSTACK     0xf825048b4864d7ff /* call *%rdi; mov %fs:..f8,%rax */
#define TEXT_MCALL_NOP	     0xe95890d4ff	/* the same of Go since 1.22 */
/* In place of a register: relative to the canonical frame address. */
#define UNWIND_CFA 255

enum unwind_cfa_kind {
	CFA_ABSENT,
	CFA_STOP,
	CFA_UNSUPPORTED,
	CFA_REGISTER,
	CFA_DEREF,
	CFA_PLT,
};

enum unwind_fp_kind {
	FP_SAME,
	FP_AT,
	FP_LOST,
};

enum unwind_ra_kind {
	RA_AT,
	RA_INTERRUPTED,
	RA_REGISTER,
};

/* How to leave a frame; Rule::encode of user-collector makes them. */
struct unwind_rule {
	__s32 cfa_offset;
	__s16 cfa_plus; /* deref: added after it; PLT: the threshold */
	__s16 fp_offset;
	__s16 ra_offset;
	__u8 cfa_kind;	   /* enum unwind_cfa_kind */
	__u8 cfa_register; /* DWARF number; unsupported: why */
	__u8 fp_kind;	   /* enum unwind_fp_kind */
	__u8 fp_base;	   /* DWARF number, or UNWIND_CFA */
	__u8 ra_kind;	   /* enum unwind_ra_kind */
	__u8 ra_base;	   /* as fp_base */
};

/* Why a stack ends where it does. */
enum unwind_end {
	UNWIND_ON,	    /* it does not: there is a caller */
	UNWIND_COMPLETE,    /* at the thread's first function */
	UNWIND_DEEP,	    /* there was no room for more */
	UNWIND_NO_MAPPING,  /* no code is known to be mapped at the pc */
	UNWIND_NO_TABLE,    /* there is no table of the file at the pc (yet), nor a frame pointer to
			       guess by */
	UNWIND_NO_RULE,	    /* the table says nothing of the pc */
	UNWIND_UNSUPPORTED, /* it says something that can't be followed */
	UNWIND_UNREADABLE,  /* the stack could not be read */
	UNWIND_ASTRAY,	    /* the caller's frame would not lie above its callee's */
	UNWIND_ENDS,
};

struct unwind_state {
	__u64 pc;
	__u64 registers[UNWIND_REGISTERS]; /* by DWARF number */
	__u32 known;			   /* a bit for each of them */
	__u32 exact; /* pc is where it was interrupted, not a return address */
};

/* The address by which rules and functions are found: of a caller, inside its call. */
static __always_inline __u64 unwind_at(const struct unwind_state *state)
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

/* The caller's frame is known, and of its other registers those in `kept`. */
static __always_inline enum unwind_end unwind_to(struct unwind_state *state, __u64 pc, __u64 sp,
						 __u64 fp, bool has_fp, bool interrupted,
						 __u32 kept)
{
	/*
	 * Whoever starts a thread without saying that it is the first leaves 0 where a return
	 * address would be. But a call of a null pointer is interrupted at 0, and it has a caller.
	 */
	if (!pc && !interrupted)
		return UNWIND_COMPLETE;
	state->pc = pc;
	state->registers[UNWIND_SP] = sp;
	state->registers[UNWIND_FP] = fp;
	state->known = (state->known & kept) | 1 << UNWIND_SP | (has_fp ? 1 << UNWIND_FP : 0);
	state->exact = interrupted;
	return UNWIND_ON;
}

/* Leaves a frame by its rule. What `state` says is the caller's where the answer is UNWIND_ON. */
static __always_inline enum unwind_end unwind_leave(struct unwind_state *state,
						    const struct unwind_rule *rule, void *reader)
{
	__u64 cfa, base, pc, sp, fp = state->registers[UNWIND_FP];
	bool has_fp = state->known >> UNWIND_FP & 1;

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
	if (unwind_register(state, rule->cfa_register, &cfa))
		return UNWIND_UNSUPPORTED;
	cfa += rule->cfa_offset;
	if (rule->cfa_kind == CFA_DEREF) {
		if (unwind_read(reader, cfa, &cfa))
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
		if (unwind_read(reader, base + rule->ra_offset, &pc))
			return UNWIND_UNREADABLE;
	}
	if (rule->fp_kind == FP_AT) {
		has_fp = !unwind_base(state, rule->fp_base, cfa, &base) &&
			 !unwind_read(reader, base + rule->fp_offset, &fp);
	} else if (rule->fp_kind == FP_LOST) {
		has_fp = false;
	}
	/*
	 * A signal's handler may have a stack of its own, anywhere. And a function that has taken
	 * its return address off the stack, as vfork has, stands where its caller does.
	 */
	sp = state->registers[UNWIND_SP];
	if ((cfa < sp && rule->ra_kind != RA_INTERRUPTED) || (cfa == sp && rule->ra_kind == RA_AT))
		return UNWIND_ASTRAY;
	return unwind_to(state, pc, cfa, fp, has_fp, rule->ra_kind == RA_INTERRUPTED,
			 rule->ra_kind == RA_INTERRUPTED ? 0 : UNWIND_UNSAVED);
}

/*
 * How far above the stack pointer the caller's is, in code without rules, where the text tells; 0
 * where it doesn't. `word` is the eight bytes from two before the pc.
 *
 * Where code that keeps a frame pointer is interrupted before it has set it, or after it has
 * restored it, the frame pointer is its caller's, who would be left out. And CPython's perf
 * trampolines, one for each function of Python, keep none.
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

/* Leaves a frame of code without rules, as its text tells, where that can be read, or else as if it
 * kept a frame pointer: a guess. */
static __always_inline enum unwind_end unwind_guess(struct unwind_state *state, void *reader)
{
	__u64 sp = state->registers[UNWIND_SP], fp = state->registers[UNWIND_FP], pc, next, text;
	bool has_fp = state->known >> UNWIND_FP & 1, pushed;
	__u32 height = 0;

	if (unwind_read(reader, state->pc - 2, &text)) {
		text = 0;
	} else {
		/* Go's runtime.mcall has left the goroutine's stack for the thread's, and begins it
		 * anew each time. */
		if (!state->exact &&
		    ((__u32)text == TEXT_MCALL || (text & 0xffffffffff) == TEXT_MCALL_NOP))
			return UNWIND_COMPLETE;
		height = unwind_height(state, text, &pushed);
	}
	if (height) {
		if (unwind_read(reader, sp + height - 8, &pc) ||
		    (pushed && unwind_read(reader, sp, &fp)))
			return UNWIND_UNREADABLE;
		return unwind_to(state, pc, sp + height, fp, has_fp, false, 0);
	}
	/* What it was before it was lost says nothing. */
	if (!has_fp)
		return UNWIND_NO_TABLE;
	if (!fp)
		return UNWIND_COMPLETE;
	/* Go's runtime.systemstack calls on the thread's stack, with the frame pointer of the
	 * goroutine's. */
	if (fp & 7 || (fp < sp && (state->exact || text != TEXT_SYSTEMSTACK)))
		return UNWIND_ASTRAY;
	if (unwind_read(reader, fp, &next) || unwind_read(reader, fp + 8, &pc))
		return UNWIND_UNREADABLE;
	return unwind_to(state, pc, fp + 16, next, true, false, 0);
}

_Static_assert(sizeof(struct unwind_rule) == 16, "Rule::SIZE of user-collector");

#endif
