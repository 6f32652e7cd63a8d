/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The unwind of a user stack, frame by frame. The stack is the running thread's, or, with other
 * hooks, of a thread that does not run (remote_stack.h).
 */
#ifndef KCOLLECT_USER_UNWIND_H
#define KCOLLECT_USER_UNWIND_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "mapped_code.h"
#include "records.h"
#include "return_probe.h"
#include "unwind_scan.h"
#include "unwind_tables.h"
#include "user_scratch.h"

/*
 * Global functions, in user_unwind.bpf.c: the verifier checks each once, for all callers. They work
 * in a scratch, to which they take no pointer, on the thread that runs.
 */

/* Finds the code at an address. Returns 0, or 1 if there is no code. */
int kc_find_code(__u32 scratch_index, __u64 address);

/* find_rule() in the code that was found last. */
int kc_find_rule(__u32 scratch_index, __u64 address);

/* unwind_by_rule(). */
int kc_by_rule(__u32 scratch_index, __u32 rule);

/* Hooks of the unwinder: unwind_try_rule_impl() and so on. */
int kc_try_rule(__u32 scratch_index);
int kc_has_valid_caller(__u32 scratch_index, __u64 address, __u64 sp);
int kc_is_valid_caller(__u32 scratch_index);

/* Finds the thread's own stack, for JIT code. */
int kc_find_own_stack(__u32 scratch_index);

/* step(). */
int kc_unwind_step(__u32 scratch_index);

/* Scans the stack if a step has asked for it, or the last scan was wrong. Returns 0 if there is a
 * caller, or 1 at the end of the stack. A step does not call it: functions that call each other
 * share 512 bytes of stack, which is too little for it. */
int kc_scan(__u32 scratch_index);

/* Unwinds the stack whose record describe_user_return() has begun. */
int kc_unwind_stack(__u32 scratch_index);

/* Ends the unwind, and copies the stack if a table was not there. */
int kc_finish_capture(__u32 scratch_index, __u32 cpu);

/* Puts the original return addresses into the copy of the stack. */
int kc_restore_copy(__u32 scratch_index);

/* A look-up takes a tenth of the time that a mapping does, so that few race with a writer again. */
#define MAX_LOOK_UPS 4

/* The code at an address, or 0. Most callers are in the same mapping as their callee. */
static __always_inline const struct mapped_code *code_at(struct user_scratch *out, __u64 address)
{
	if (address >= out->code.start && address < out->code.end)
		return &out->code;
	for (__u32 look_up = 0; look_up < MAX_LOOK_UPS; look_up++) {
		if (kc_find_code(out->index, address))
			return 0;
		if (!out->code.last_raced)
			break;
	}
	return &out->code;
}

/* Number of the rule for an address of code that has a table, or 0: found by a binary search for
 * the last row that begins at or below the address. Its state is masked at each step and its length
 * is read anew, so that the verifier, which follows both branches of each comparison, finds equal
 * states at the next step. */
static __always_inline __u32 find_rule(const struct user_scratch *out,
				       const struct mapped_code *code, __u64 address)
{
	__u32 below = out->zero, start, zero = 0, number;
	struct rows *rows;
	struct page *page;
	__u64 index;
	void *chunk;

	address -= code->bias;
	index = (address >> 16) - code->first_page;
	if (index >= code->pages)
		return 0;
	page = &pages[(code->directory + index) & (MAX_PAGES - 1)];
	number = page->chunk;
	chunk = bpf_map_lookup_elem(&kc_row_chunks, &number);
	if (!chunk)
		return 0;
	rows = bpf_map_lookup_elem(chunk, &zero);
	if (!rows)
		return 0;
	start = page->start;
	address &= 0xffff;
	for (__u32 span = ROWS_PER_CHUNK; span; span >>= 1) {
		__u32 next = below + span;

		if (next <= *(volatile __u32 *)&page->rows &&
		    rows->row[(start + next - 1) & (ROWS_PER_CHUNK - 1)].low <= address)
			below = next;
		below &= 2 * ROWS_PER_CHUNK - 1;
	}
	return below ? rows->row[(start + below - 1) & (ROWS_PER_CHUNK - 1)].rule : 0;
}

static __always_inline int read_own_word(void *context, __u64 address, __u64 *word)
{
	(void)context;
	return bpf_probe_read_user(word, sizeof(*word), (void *)address);
}

/* It finds the code itself, since functions may call each other no deeper than a scan does then. */
static __always_inline int rule_at_hook(void *context, __u64 address, struct unwind_rule *rule)
{
	struct user_scratch *out = context;
	const struct mapped_code *code = code_at(out, address);
	__u32 number;

	if (!code || code->kind == CODE_PENDING)
		return -1;
	number = code->kind == CODE_TABLE ? kc_find_rule(out->index, address) : 0;
	if (!number)
		return 0;
	*rule = rules[number & (MAX_RULES - 1)];
	return 1;
}

static __always_inline bool try_rule_hook(struct unwind_scan *scan,
					  const struct unwind_hooks *hooks, void *context)
{
	(void)scan;
	(void)hooks;
	return kc_try_rule(((struct user_scratch *)context)->index);
}

static __always_inline bool has_valid_caller_hook(struct unwind_scan *scan,
						  const struct unwind_hooks *hooks, void *context,
						  __u64 address, __u64 sp)
{
	(void)scan;
	(void)hooks;
	return kc_has_valid_caller(((struct user_scratch *)context)->index, address, sp);
}

static __always_inline bool is_valid_caller_hook(struct unwind_scan *scan,
						 const struct unwind_hooks *hooks, void *context,
						 const struct unwind_state *caller)
{
	(void)scan;
	(void)hooks;
	(void)caller;
	return kc_is_valid_caller(((struct user_scratch *)context)->index);
}

/* Of the stack of the thread that runs; the context is the scratch. */
static const struct unwind_hooks own_stack_hooks = {
	.read = read_own_word,
	.rule_at = rule_at_hook,
	.try_rule = try_rule_hook,
	.has_valid_caller = has_valid_caller_hook,
	.is_valid_caller = is_valid_caller_hook,
};

/* Goes to the caller of a frame by a rule. The frame pointer of another thread is always sure:
 * there was no scan. */
static __always_inline enum unwind_end step_by_rule(struct user_scratch *out, __u32 rule,
						    const struct unwind_hooks *hooks, void *context)
{
	enum unwind_end end;

	if (hooks != &own_stack_hooks)
		return unwind_by_rule(&out->state, &rules[rule], hooks->read, context);
	end = kc_by_rule(out->index, rule);
	for (__u32 number = 1;
	     number <= SCAN_SAVED && unwind_fp_may_be_saved(&out->state, &rules[rule], end);
	     number++)
		if (unwind_take_saved_fp(&out->scan, &out->state, number) &&
		    kc_by_rule(out->index, rule) == UNWIND_CONTINUES)
			return UNWIND_CONTINUES;
	return end;
}

/* Goes to the caller of a frame whose code has no rule, by its frame pointer. `scan_wanted`: that
 * is not sure, and a scan may find a better one. The stack of another thread is not scanned. */
static __always_inline enum unwind_end
step_without_rule(struct user_scratch *out, const struct unwind_hooks *hooks, void *context)
{
	bool own = hooks == &own_stack_hooks, sure;
	enum unwind_end end;

	out->scan.no_table = out->code.kind != CODE_TABLE;
	if (own && out->code.kind == CODE_FRAME_POINTER && !out->own_looked_up)
		kc_find_own_stack(out->index);
	out->scan_depth = 0;
	end = unwind_without_rule(&out->scan, &out->state, hooks, context, &sure);
	if (sure || !own) {
		out->via_frame_pointer = 1;
		if (!sure && end == UNWIND_CONTINUES)
			out->via_scan |= UNCONFIRMED;
	} else {
		out->scan_wanted = 1;
	}
	return end;
}

/* Writes one frame and goes to its caller, with hooks for the stack of `task`. Returns 0, or 1 at
 * the end of the stack. */
static __always_inline int step(struct user_scratch *out, struct task_struct *task,
				const struct unwind_hooks *hooks, void *context)
{
	const struct mapped_code *code;
	__u32 end, number;
	__u64 address;

	if (out->depth >= MAX_USER_FRAMES) {
		out->end = UNWIND_DEPTH_LIMIT;
		return 1;
	}
	address = unwind_address(&out->state);
	code = code_at(out, address);
	out->unwound = out->depth;
	out->unmapped = !code || !code->end;
	/* An address without code is no caller. The leaf is kept wherever it is. */
	if (code || !out->depth) {
		out->words[out->depth & (WINDOW_WORD - 1)] = address;
		out->depth++;
	}
	if (!code) {
		out->end = UNWIND_NO_MAPPING;
		return 1;
	}
	if (code->kind == CODE_PENDING) {
		out->end = UNWIND_NO_TABLE;
		out->pending = 1;
		return 1;
	}
	number = code->kind == CODE_TABLE ? find_rule(out, code, address) : 0;
	out->rule = number & (MAX_RULES - 1);
	if (number) {
		end = step_by_rule(out, number & (MAX_RULES - 1), hooks, context);
	} else {
		end = step_without_rule(out, hooks, context);
	}
	out->end = end;
	if (out->scan_wanted)
		return 1;
	if (end == UNWIND_CONTINUES && out->trampoline && out->state.pc == out->trampoline)
		restore_return_address(out, task);
	return end != UNWIND_CONTINUES;
}

/* One step of the thread that runs, with a scan if there has to be one. */
static inline long unwind_frame(__u64 index, __u32 *scratch_index)
{
	(void)index;
	return kc_unwind_step(*scratch_index) && kc_scan(*scratch_index);
}

/* Unwinds the user stack of the thread that runs, or copies it. */
static __always_inline void capture_user_stack(__u32 scratch_index, __u32 cpu)
{
	kc_unwind_stack(scratch_index);
	kc_finish_capture(scratch_index, cpu);
}

#endif
