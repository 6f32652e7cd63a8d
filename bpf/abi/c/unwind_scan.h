/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The last way out of code without rules, such as assembly: a scan of the stack for a return
 * address. It compiles for BPF and natively, as unwind.h does. What depends on the one or the other
 * are hooks (struct unwind_hooks).
 *
 * There are three kinds of scan (enum unwind_scan_kind). In each, a return address is a word after
 * a call of code. None of this is a proof, so the record says that there was a scan.
 *
 * 1. SCAN_CALLER looks upwards from the stack pointer for a caller that has rules.
 * a. A rule has to lead from the word to another return address, or say that it is the first
 * function. Functions in between that have no rule either are passed over.
 * b. A return address of a call that has returned long ago, in a part of the stack that was not
 * overwritten since, looks the same. So the target of the call counts, where the instruction
 * shows it. A target without rules fits, unless its address is above the code that was left. A
 * target with rules leads to code without rules only if it jumps there: such a word is taken if
 * there is no better one.
 *
 * 2. SCAN_OTHER_STACK looks upwards on a stack that is not the thread's own. JIT code may call on
 * such a one: BEAM, Erlang's machine, has a stack for each Erlang process.
 * a. Callers are return addresses into code without rules.
 * b. The stack ends with an address of such code that does not follow a call.
 * c. Code that does not use the frame pointer leaves it to a function of the thread's own stack,
 * which is the next one after the last caller here.
 *
 * 3. SCAN_OUTERMOST looks downwards from the end of the thread's own stack for the function
 * that the thread's first function has called. It follows a scan that has found no caller: one of
 * another stack, or one of the thread's own stack where the frame pointer leads nowhere either.
 * a. The thread's own stack is known where the C library has it: it ends at the thread pointer.
 * b. It continues below another stack if a register that calls keep leads to it.
 * c. The size of the frame that left it is not known, and what lies there may be left from old
 * calls. So the stack continues with the outermost function, the only one that is certain.
 */
#ifndef KCOLLECT_UNWIND_SCAN_H
#define KCOLLECT_UNWIND_SCAN_H

#include "unwind.h"

/* Max words that one scan reads, and all scans of a stack together. */
#define SCAN_WORDS	 1024
#define SCAN_STACK_WORDS 2048

/* Registers that functions save: rbx, rbp, r12 to r15. */
#define SCAN_KEPT 0xf048

/* Addresses of the stack that a scan keeps, for one may be the frame pointer, which the code has
 * saved; and how far above the word such an address is. */
#define SCAN_SAVED	 8
#define SCAN_SAVED_BYTES (1 << 20)

/* How well the call before a word fits the code without rules that the stack is in: the greater,
 * the better (1b above). */
enum unwind_call {
	/* There is no call before the word. */
	CALL_NONE,
	/* The target of the call has rules, or is above that code. */
	CALL_ELSEWHERE,
	/* The target of the call is unknown, or has no rules and is not above that code. */
	CALL_FITS,
};

/* What is looked for, and where: see 1, 2 and 3 above. */
enum unwind_scan_kind {
	SCAN_CALLER,
	SCAN_OTHER_STACK,
	SCAN_OUTERMOST,
};

struct unwind_scan {
	/* Of the frame whose code has no rule. */
	__u64 address, sp, fp;
	__u32 known;
	/* Of the best caller so far. */
	__u32 call; /* enum unwind_call */
	__u64 caller_pc, caller_sp, caller_fp;
	__u32 caller_known;
	__u32 ended;	    /* the stack ends where the scan did */
	__u32 passes;	    /* a word may be the return address of a caller without rules */
	__u32 caller_skips; /* there was one before the caller, so that callers may be missing */
	/* Of the caller that is tried. */
	struct unwind_state trial;
	struct unwind_rule rule, next_rule;
	/* What was read. Here, since a BPF program and all functions that it calls share 512 bytes
	 * of stack. */
	__u64 word, text, target;
	__u64 trial_fp;
	__u64 saves; /* how many addresses of the stack were found, of which the last are kept */
	__u64 saved[SCAN_SAVED];
	/* Where the thread's own stack is; 0 if that is not known, or was used. */
	__u64 own_start, own_end;
	__u64 back;	/* on another stack: where a register leads to the thread's own; or 0 */
	__u32 kind;	/* enum unwind_scan_kind */
	__u32 no_table; /* the code has no table: JIT code, or a file that has rules for none */
	/* The frame pointer leads from another stack back to the thread's own, for when there are
	 * no more callers on the other one. */
	__u32 leads_back;
};

/* What the unwinder asks of the code around it. Each user has one constant of this type, so that
 * the compiler inlines the hooks: BPF has no calls by pointer. All hooks get the user's `context`.
 */
struct unwind_hooks {
	unwind_read *read;
	/* Finds the rule for an address. Returns 1 and the rule; 0 where code without a rule is
	 * mapped; -1 where no code is known to be, or its table is not there yet. */
	int (*rule_at)(void *context, __u64 address, struct unwind_rule *rule);
	/* The functions of the same names with _impl: these themselves, or, in BPF, global
	 * functions that call them, each of which the verifier checks once. */
	bool (*try_rule)(struct unwind_scan *scan, const struct unwind_hooks *hooks, void *context);
	bool (*has_valid_caller)(struct unwind_scan *scan, const struct unwind_hooks *hooks,
				 void *context, __u64 address, __u64 sp);
	/* 0: a stack whose thread does not run, and which is not scanned. */
	bool (*is_valid_caller)(struct unwind_scan *scan, const struct unwind_hooks *hooks,
				void *context, const struct unwind_state *caller);
};

/* Begins a stack of a thread whose own stack is from `own_start` to `own_end`. */
static __always_inline void unwind_begin_stack(struct unwind_scan *scan, __u64 own_start,
					       __u64 own_end)
{
	scan->own_start = own_start;
	scan->own_end = own_end;
	scan->back = 0;
}

static __always_inline bool unwind_in_own_stack(const struct unwind_scan *scan, __u64 address)
{
	return address >= scan->own_start && address < scan->own_end;
}

/* Finds where a register leads back to the thread's own stack, in a frame that is not on it. */
static __always_inline void unwind_look_back(struct unwind_scan *scan,
					     const struct unwind_state *state)
{
	if (!state->exact || unwind_in_own_stack(scan, state->registers[UNWIND_SP]))
		return;
	for (__u32 number = 0; number < UNWIND_REGISTERS; number++) {
		__u64 address = state->registers[number];

		if (!(SCAN_KEPT & state->known & 1 << number) ||
		    !unwind_in_own_stack(scan, address))
			continue;
		if (!scan->back || address < scan->back)
			scan->back = address;
	}
}

/* Begins a scan from a frame whose code has no rule. */
static __always_inline void unwind_begin_scan(struct unwind_scan *scan,
					      const struct unwind_state *state)
{
	scan->address = unwind_address(state);
	scan->sp = state->registers[UNWIND_SP];
	scan->fp = state->registers[UNWIND_FP];
	scan->known = 1 << UNWIND_SP;
	/* Most functions keep it, which shows where a rule leads by it. */
	if (state->known >> UNWIND_FP & 1)
		scan->known |= 1 << UNWIND_FP | UNWIND_FP_UNSURE;
	scan->call = CALL_NONE;
	scan->ended = 0;
	scan->passes = 0;
	scan->caller_skips = 0;
	scan->saves = 0;
	__builtin_memset(scan->saved, 0, sizeof(scan->saved));
	unwind_look_back(scan, state);
	scan->leads_back = 0;
	scan->kind = scan->back && !unwind_in_own_stack(scan, scan->sp) ? SCAN_OTHER_STACK
									: SCAN_CALLER;
}

/* Begins a scan for the outermost function of the thread's own stack, after one that has found no
 * caller. Returns whether there is such a stack. */
static __always_inline bool unwind_begin_outermost(struct unwind_scan *scan, enum unwind_end end)
{
	if (scan->call != CALL_NONE || !scan->own_end || scan->kind == SCAN_OUTERMOST ||
	    (end == UNWIND_CONTINUES && scan->leads_back) ||
	    (!scan->back && (end == UNWIND_CONTINUES || !unwind_in_own_stack(scan, scan->sp))))
		return false;
	scan->kind = SCAN_OUTERMOST;
	return true;
}

/* Follows the target of a call through an entry of the PLT, which is jmp *slot(%rip), or endbr64
 * and this jmp. */
static __always_inline void unwind_pass_plt(struct unwind_scan *scan,
					    const struct unwind_hooks *hooks, void *context)
{
	__u64 entry = scan->target;

	if (hooks->read(context, entry, &scan->text))
		return;
	if ((__u32)scan->text == 0xfa1e0ff3) {
		entry += (scan->text >> 32 & 0xff) == 0xf2 ? 5 : 4;
		if (hooks->read(context, entry, &scan->text))
			return;
	}
	if ((scan->text & 0xffff) != 0x25ff)
		return;
	entry += 6 + (__s64)(__s32)(scan->text >> 16);
	if (!hooks->read(context, entry, &scan->word))
		scan->target = scan->word;
}

/* How well the call before an address fits. */
static __always_inline enum unwind_call unwind_call_before(struct unwind_scan *scan,
							   const struct unwind_hooks *hooks,
							   void *context, __u64 address)
{
	__u64 text, after;
	bool known = false;
	int found;

	if (hooks->read(context, address - 8, &scan->text))
		return CALL_NONE;
	text = scan->text;
	after = address + (__s64)(__s32)(text >> 32);
	if ((text >> 24 & 0xff) == 0xe8) {
		scan->target = after;
		known = hooks->rule_at(context, after, &scan->rule) >= 0;
	}
	if (!known) {
		if (!unwind_is_indirect_call(text))
			return CALL_NONE;
		if ((text >> 16 & 0xffff) != 0x15ff || hooks->read(context, after, &scan->target))
			return CALL_FITS;
	}
	unwind_pass_plt(scan, hooks, context);
	found = hooks->rule_at(context, scan->target, &scan->rule);
	if (found < 0)
		return CALL_NONE;
	return !found && scan->target <= scan->address ? CALL_FITS : CALL_ELSEWHERE;
}

static __always_inline void unwind_begin_trial(struct unwind_scan *scan, __u64 pc, __u64 sp,
					       __u32 known)
{
	scan->trial.pc = pc;
	scan->trial.registers[UNWIND_SP] = sp;
	scan->trial.known = known;
	scan->trial.exact = scan->trial.descents = 0;
	scan->trial.bx_at = 0;
}

/* Whether a rule leads from the frame in `trial` to a word after a call. */
static __always_inline bool unwind_try_rule_impl(struct unwind_scan *scan,
						 const struct unwind_hooks *hooks, void *context)
{
	return unwind_by_rule(&scan->trial, &scan->rule, hooks->read, context) ==
		       UNWIND_CONTINUES &&
	       unwind_after_call(hooks->read, context, scan->trial.pc) > 0;
}

/* Whether a rule leads from the frame in `trial` to a return address. */
static __always_inline bool unwind_trial_has_caller(struct unwind_scan *scan,
						    const struct unwind_hooks *hooks, void *context)
{
	return hooks->try_rule(scan, hooks, context) &&
	       hooks->rule_at(context, scan->trial.pc - 1, &scan->next_rule) >= 0;
}

/* Whether a rule leads from a frame at an address, whose stack pointer was at `sp`, to a caller,
 * with the frame pointer as the code without rules has it, or as it may have saved it. */
static __always_inline bool unwind_has_valid_caller_impl(struct unwind_scan *scan,
							 const struct unwind_hooks *hooks,
							 void *context, __u64 address, __u64 sp)
{
	if (hooks->rule_at(context, address - 1, &scan->rule) <= 0)
		return false;
	scan->trial_fp = scan->fp;
	/* A first function is an end. A zero instead of a return address is more likely any zero.
	 */
	if (scan->rule.cfa_kind == CFA_STOP)
		return true;
	for (__u32 number = 0; number <= SCAN_SAVED; number++) {
		__u32 known = scan->known;

		if (number) {
			if (scan->rule.cfa_register != UNWIND_FP)
				return false;
			scan->trial_fp = scan->saved[(scan->saves - number) & (SCAN_SAVED - 1)];
			if (scan->trial_fp < sp)
				continue;
			known = 1 << UNWIND_SP | 1 << UNWIND_FP | UNWIND_FP_UNSURE;
		}
		unwind_begin_trial(scan, address, sp, known);
		scan->trial.registers[UNWIND_FP] = scan->trial_fp;
		if (unwind_trial_has_caller(scan, hooks, context))
			return true;
	}
	return false;
}

/* Whether the caller that was found by the frame pointer can be one: it is in code without rules,
 * or a rule leads from it to its own caller. A register that the code uses for something else may
 * point to a return address too. */
static __always_inline bool unwind_is_valid_caller_impl(struct unwind_scan *scan,
							const struct unwind_hooks *hooks,
							void *context,
							const struct unwind_state *caller)
{
	int found = hooks->rule_at(context, unwind_address(caller), &scan->rule);

	if (found <= 0 || scan->rule.cfa_kind == CFA_STOP || scan->rule.ra_kind == RA_INTERRUPTED)
		return true;
	unwind_begin_trial(scan, caller->pc, caller->registers[UNWIND_SP],
			   1 << UNWIND_SP | 1 << UNWIND_FP);
	scan->trial.registers[UNWIND_FP] = caller->registers[UNWIND_FP];
	return unwind_trial_has_caller(scan, hooks, context);
}

/* Begins a scan, and goes to the caller of code without rules by its frame pointer. If that is not
 * `sure`, the scan may find a better one. */
static __always_inline enum unwind_end unwind_without_rule(struct unwind_scan *scan,
							   struct unwind_state *state,
							   const struct unwind_hooks *hooks,
							   void *context, bool *sure)
{
	bool leaves, returns;
	enum unwind_end end;

	unwind_begin_scan(scan, state);
	leaves = !state->exact && unwind_in_own_stack(scan, scan->sp) &&
		 !unwind_in_own_stack(scan, scan->fp);
	returns = scan->kind == SCAN_OTHER_STACK && unwind_in_own_stack(scan, scan->fp);
	end = unwind_by_frame_pointer(state, hooks->read, context, leaves || returns, sure);
	if (end != UNWIND_CONTINUES) {
		*sure = *sure && !scan->back;
		return end;
	}
	if (!hooks->is_valid_caller || !*sure || !(state->known & UNWIND_FP_CHAIN))
		return end;
	*sure = hooks->is_valid_caller(scan, hooks, context, state);
	if (*sure && leaves)
		scan->back = scan->sp;
	if (*sure && returns) {
		scan->leads_back = 1;
		*sure = false;
	}
	return end;
}

/* Takes the word at an address of the stack for the return address of the caller. */
static __always_inline void unwind_take_caller(struct unwind_scan *scan, enum unwind_call call,
					       __u64 address)
{
	scan->call = call;
	scan->caller_skips = scan->passes || scan->kind == SCAN_OUTERMOST;
	scan->caller_pc = scan->word;
	scan->caller_sp = address + 8;
	scan->caller_fp = scan->fp;
	scan->caller_known = scan->known;
}

/* Reads the word at an address of the stack. Returns 0, or 1 if it is no address of code, or -1 if
 * it can't be read. */
static __always_inline int unwind_read_candidate(struct unwind_scan *scan,
						 const struct unwind_hooks *hooks, void *context,
						 __u64 address)
{
	if (hooks->read(context, address, &scan->word))
		return -1;
	return scan->word < 4096 || scan->word >> 47;
}

/* Looks at the word at an address of a stack that is not the thread's own. */
static __always_inline int unwind_scan_other_stack(struct unwind_scan *scan,
						   const struct unwind_hooks *hooks, void *context,
						   __u64 address)
{
	int none = unwind_read_candidate(scan, hooks, context, address);

	if (none)
		return none < 0;
	if (hooks->rule_at(context, scan->word - 1, &scan->rule))
		return 0;
	if (unwind_after_call(hooks->read, context, scan->word) > 0)
		unwind_take_caller(scan, CALL_FITS, address);
	return 1;
}

/* Looks at the word at an address of the stack for the return address of what the thread's first
 * function has called. */
static __always_inline int unwind_scan_outermost(struct unwind_scan *scan,
						 const struct unwind_hooks *hooks, void *context,
						 __u64 address)
{
	int none;

	if (address < (scan->back ? scan->back : scan->sp))
		return 1;
	none = unwind_read_candidate(scan, hooks, context, address);
	if (none)
		return none < 0;
	if (hooks->rule_at(context, scan->word - 1, &scan->rule) <= 0 ||
	    scan->rule.cfa_kind == CFA_STOP ||
	    unwind_after_call(hooks->read, context, scan->word) <= 0)
		return 0;
	unwind_begin_trial(scan, scan->word, address + 8, 1 << UNWIND_SP);
	scan->next_rule.cfa_kind = CFA_ABSENT;
	if (!unwind_trial_has_caller(scan, hooks, context) || scan->next_rule.cfa_kind != CFA_STOP)
		return 0;
	scan->known = 1 << UNWIND_SP;
	unwind_take_caller(scan, CALL_FITS, address);
	return 1;
}

/* Looks at the word at an address of the stack for the return address of a caller that has
 * rules. */
static __always_inline int unwind_scan_caller(struct unwind_scan *scan,
					      const struct unwind_hooks *hooks, void *context,
					      __u64 address)
{
	int none = unwind_read_candidate(scan, hooks, context, address);
	enum unwind_call call;
	__u64 word;
	int found;

	if (none) {
		scan->ended = none < 0;
		return none < 0;
	}
	word = scan->word;
	if (word - address < SCAN_SAVED_BYTES)
		scan->saved[scan->saves++ & (SCAN_SAVED - 1)] = word;
	found = hooks->rule_at(context, word - 1, &scan->rule);
	if (!found && !scan->passes && unwind_after_call(hooks->read, context, word) > 0)
		scan->passes = 1;
	if (found <= 0)
		return 0;
	call = unwind_call_before(scan, hooks, context, word);
	if (call <= scan->call || !hooks->has_valid_caller(scan, hooks, context, word, address + 8))
		return 0;
	scan->word = word;
	unwind_take_caller(scan, call, address);
	if (scan->trial_fp != scan->fp) {
		scan->caller_fp = scan->trial_fp;
		scan->caller_known |= 1 << UNWIND_FP | UNWIND_FP_UNSURE;
	}
	return call == CALL_FITS;
}

/* Looks at the next word. Returns 1 at the end of the scan. */
static __always_inline int unwind_scan_word(struct unwind_scan *scan,
					    const struct unwind_hooks *hooks, void *context,
					    __u64 index)
{
	switch (scan->kind) {
	case SCAN_OTHER_STACK:
		return unwind_scan_other_stack(scan, hooks, context, scan->sp + 8 * index);
	case SCAN_OUTERMOST:
		return unwind_scan_outermost(scan, hooks, context, scan->own_end - 8 * (index + 1));
	default:
		return unwind_scan_caller(scan, hooks, context, scan->sp + 8 * index);
	}
}

/* Whether the end of a stack shows that the caller that a scan has found was wrong: then the scan
 * continues after it. A return address where no code is known may be in code that was mapped just
 * now. */
static __always_inline bool unwind_scan_failed(const struct unwind_scan *scan, enum unwind_end end,
					       const struct unwind_state *state, unwind_read *read,
					       void *context)
{
	if (end == UNWIND_COMPLETE || end == UNWIND_UNVERIFIED || end == UNWIND_DEPTH_LIMIT ||
	    scan->kind == SCAN_OUTERMOST)
		return false;
	return end != UNWIND_NO_MAPPING || unwind_after_call(read, context, state->pc) <= 0;
}

/* Continues a scan after the caller that it found. */
static __always_inline void unwind_resume_scan(struct unwind_scan *scan)
{
	scan->sp = scan->caller_sp;
	scan->call = CALL_NONE;
}

/* Whether a rule that has found no caller may find one with another frame pointer: one of those
 * that the code before has saved, if the last scan saw it. */
static __always_inline bool unwind_fp_may_be_saved(const struct unwind_state *state,
						   const struct unwind_rule *rule,
						   enum unwind_end end)
{
	return end != UNWIND_CONTINUES && state->known & UNWIND_FP_UNSURE &&
	       rule->cfa_register == UNWIND_FP;
}

/* Takes one of SCAN_SAVED such frame pointers, counted from 1. Returns whether it can be one. */
static __always_inline bool unwind_take_saved_fp(const struct unwind_scan *scan,
						 struct unwind_state *state, __u32 number)
{
	__u64 fp = scan->saved[(scan->saves - number) & (SCAN_SAVED - 1)];

	if (fp < state->registers[UNWIND_SP])
		return false;
	state->registers[UNWIND_FP] = fp;
	return true;
}

/* Whether nothing confirms the caller after a scan: one that it found may not be the next, and one
 * by the frame pointer would have needed no scan, unless it leads back. */
static __always_inline bool unwind_is_unconfirmed(const struct unwind_scan *scan)
{
	return scan->call != CALL_NONE ? scan->caller_skips : !scan->leads_back;
}

/* Ends a scan: goes to the caller that it found. If there is no caller, the stack ends as without
 * the scan, which `end` and `state` have. */
static __always_inline enum unwind_end
unwind_end_scan(struct unwind_scan *scan, struct unwind_state *state, enum unwind_end end)
{
	bool other_stack = scan->own_end && !unwind_in_own_stack(scan, scan->sp);

	/* It is tried once. */
	if (scan->kind == SCAN_OUTERMOST)
		scan->own_end = scan->back = 0;
	if (scan->call != CALL_NONE) {
		unwind_go_to(state, scan->caller_pc, scan->caller_sp, scan->caller_fp,
			     scan->caller_known >> UNWIND_FP & 1, false, 0);
		state->known |= scan->caller_known & UNWIND_FP_UNSURE;
		return UNWIND_CONTINUES;
	}
	/* Zero in a register that any code may use ends no stack that continues. But the first
	 * function of a program, which has no rule in the dynamic linker, calls with the zero that
	 * the kernel has put there. */
	if (end == UNWIND_UNVERIFIED && !scan->ended &&
	    (state->exact || scan->no_table || other_stack))
		return UNWIND_NO_TABLE;
	return end;
}

_Static_assert(sizeof(struct unwind_scan) == 400, "the same for every compiler");

#endif
