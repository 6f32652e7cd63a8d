/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The unwind of a user stack, frame by frame: of the current task, or of a task that does not run.
 * Global functions are in user_unwind.bpf.c: the verifier checks each of them once.
 */
#ifndef KCOLLECT_USER_UNWIND_H
#define KCOLLECT_USER_UNWIND_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "mapped_code.h"
#include "return_probe.h"
#include "user_scratch.h"

/* How the stack of a thread that does not run is read. */
struct sleeper {
	struct user_scratch *out;
	struct task_struct *task;
};

/* A window on its stack is kept in the words after the frames. */
#define WINDOW_BYTES 2048
#define WINDOW_WORD  1024

static __always_inline int read_sleeper(struct sleeper *sleeper, __u64 address, __u64 *word)
{
	struct user_scratch *out = sleeper->out;
	void *window = out->words + WINDOW_WORD;

	if (address - out->window > WINDOW_BYTES - sizeof(*word)) {
		out->window = address;
		if (bpf_copy_from_user_task(window, WINDOW_BYTES, (void *)address, sleeper->task,
					    0)) {
			/* Near the end of the stack. */
			out->window = -(__u64)WINDOW_BYTES;
			return bpf_copy_from_user_task(word, sizeof(*word), (void *)address,
						       sleeper->task, 0);
		}
	}
	*word = *(__u64 *)(window + ((address - out->window) & (WINDOW_BYTES - 1)));
	return 0;
}

/* Reads a word of the stack of the thread that runs, or of one that does not. */
static __always_inline int unwind_read(void *reader, __u64 address, __u64 *word)
{
	if (reader)
		return read_sleeper(reader, address, word);
	return bpf_probe_read_user(word, sizeof(*word), (void *)address);
}

/* Finds the code at an address of the process whose stack is unwound: a global function, which the
 * verifier checks once for all callers. It is in user_unwind.bpf.c. Returns 0, or 1 if there is
 * none. */
int kc_find_code(__u32 scratch_index, __u64 address);

/* A look-up takes a tenth of the time that a mapping does, so that few race with a writer again. */
#define MAX_LOOK_UPS 4

/* Returns the code at an address, or 0. Most callers are in the same mapping as their callee. */
static __always_inline const struct mapped_code *code_at(struct user_scratch *out, __u64 address)
{
	if (address >= out->code.start && address < out->code.end)
		return &out->code;
	for (__u32 look_up = 0; look_up < MAX_LOOK_UPS; look_up++) {
		if (kc_find_code(out->index, address))
			return 0;
		if (!out->code.threw_away)
			break;
	}
	return &out->code;
}

/* Returns the number of the rule for an address of code that has a table, or 0: by a binary search
 * for the last row that begins at or below the address. Its state is masked at each step and its
 * length is read anew, so that the verifier, which follows both branches of each comparison, finds
 * equal states at the next step. */
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

/* find_rule() in the code that was found last, as a global function, which the verifier checks
 * once: a scan calls it in several places. It is in user_unwind.bpf.c. */
int kc_find_rule(__u32 scratch_index, __u64 address);

/* Finds a rule for a scan. The finder is the scratch. It finds the code itself, since functions may
 * call each other no deeper than a scan does then. */
static __always_inline int unwind_rule_at(void *finder, __u64 address, struct unwind_rule *rule)
{
	struct user_scratch *out = finder;
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

/* unwind_try_rule() of the stack of the thread that runs: a global function, which the verifier
 * checks once. It is in user_unwind.bpf.c. */
int kc_try_rule(__u32 scratch_index);

static __always_inline bool unwind_tries_rule(struct unwind_scan *scan, void *reader,
					      void *finder)
{
	(void)scan;
	(void)reader;
	return kc_try_rule(((struct user_scratch *)finder)->index);
}

/* unwind_leads_on() of the stack of the thread that runs: a global function, likewise. */
int kc_leads_on(__u32 scratch_index, __u64 address, __u64 sp);

static __always_inline bool unwind_does_lead_on(struct unwind_scan *scan, void *reader,
						void *finder, __u64 address, __u64 sp)
{
	(void)scan;
	(void)reader;
	return kc_leads_on(((struct user_scratch *)finder)->index, address, sp);
}

/* unwind_caller_leads_on() of the thread that runs, to whose caller its state has gone: a global
 * function, likewise. */
int kc_caller_leads_on(__u32 scratch_index);

static __always_inline bool unwind_does_caller_lead_on(struct unwind_scan *scan,
						       const struct unwind_state *caller,
						       void *reader, void *finder)
{
	(void)scan;
	(void)caller;
	(void)reader;
	return kc_caller_leads_on(((struct user_scratch *)finder)->index);
}

/* Looks at a word of the stack of the thread that runs. */
static long scan_word(__u64 index, struct user_scratch **out)
{
	return unwind_scan_word(&(*out)->scan, 0, *out, index);
}

/* unwind_by_rule() of the thread that runs: a global function, which the verifier checks once. It
 * is in user_unwind.bpf.c. */
int kc_by_rule(__u32 scratch_index, __u32 rule);

/* Goes to the caller of a frame by a rule. The frame pointer of another thread is always sure:
 * there was no scan. */
static __always_inline enum unwind_end step_by_rule(struct user_scratch *out, __u32 rule,
						    void *reader)
{
	enum unwind_end end;

	if (reader)
		return unwind_by_rule(&out->state, &rules[rule], reader);
	end = kc_by_rule(out->index, rule);
	for (__u32 number = 1;
	     number <= SCAN_SAVED && unwind_fp_may_be_saved(&out->state, &rules[rule], end);
	     number++)
		if (unwind_take_saved_fp(&out->scan, &out->state, number) &&
		    kc_by_rule(out->index, rule) == UNWIND_CONTINUES)
			return UNWIND_CONTINUES;
	return end;
}

/* Finds the thread's own stack, for JIT code: a global function, which the
 * verifier checks once. It is in user_unwind.bpf.c. */
int kc_find_own_stack(__u32 scratch_index);

/* The C library has the end of a thread's stack at its thread pointer. The stack of the process's
 * first thread is elsewhere. */
static __always_inline void find_own_stack(struct user_scratch *out, struct task_struct *task)
{
	__u64 end = thread_pointer(task);

	out->own_looked_up = 1;
	if (task->pid == task->tgid || !end)
		return;
	kc_find_code(out->index, end);
	if (out->code.mapping && !out->code.threw_away)
		unwind_begin_stack(&out->scan, MAPPING_FIELD(&out->code, vm_start), end);
}

/* Goes to the caller of a frame whose code has no rule, by its frame pointer. `scan_wanted`: that
 * is not sure, and a scan may find a better one. The stack of another thread is not scanned. */
static __always_inline enum unwind_end step_without_rule(struct user_scratch *out, void *reader)
{
	enum unwind_end end;
	bool sure;

	out->scan.no_table = out->code.kind != CODE_TABLE;
	if (!reader && out->code.kind == CODE_FRAME_POINTER && !out->own_looked_up)
		kc_find_own_stack(out->index);
	out->scan_depth = 0;
	end = unwind_without_rule(&out->scan, &out->state, reader, out, !reader, &sure);
	if (sure || reader) {
		out->via_frame_pointer = 1;
		if (!sure && end == UNWIND_CONTINUES)
			out->via_scan |= UNCONFIRMED;
	} else {
		out->scan_wanted = 1;
	}
	return end;
}

/* Writes one frame and goes to its caller. Returns 0, or 1 at the end of the stack. */
static __always_inline int step(struct user_scratch *out, struct task_struct *task, void *reader)
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
		end = step_by_rule(out, number & (MAX_RULES - 1), reader);
	} else {
		end = step_without_rule(out, reader);
	}
	out->end = end;
	if (out->scan_wanted)
		return 1;
	if (end == UNWIND_CONTINUES && out->trampoline && out->state.pc == out->trampoline)
		restore_return_address(out, task);
	return end != UNWIND_CONTINUES;
}

static __always_inline void scan_words(struct user_scratch *out)
{
	bool outermost = out->scan.kind == SCAN_OUTERMOST;
	bool all = outermost || out->scan_words > SCAN_WORDS;
	long scanned = bpf_loop(all ? SCAN_WORDS : out->scan_words, scan_word, &out, 0);

	if (!outermost)
		out->scan_words -= scanned;
}

/* Continues the last scan if the caller that it found led nowhere. Returns 0, or 1 at the end of
 * the stack. */
static __always_inline int scan_again(struct user_scratch *out)
{
	if (!out->scan_depth || out->pending ||
	    !unwind_scan_failed(&out->scan, out->end, &out->state, 0))
		return 1;
	unwind_resume_scan(&out->scan);
	scan_words(out);
	/* What it led to was none of the stack. */
	out->depth = out->scan_depth;
	if (out->scan.call == CALL_NONE) {
		out->scan_depth = 0;
		return 1;
	}
	if (unwind_is_unconfirmed(&out->scan))
		out->via_scan |= UNCONFIRMED;
	unwind_end_scan(&out->scan, &out->state, out->end);
	return 0;
}

/* Scans if a step has asked for it, or the last scan was wrong. Returns 0 if there is a caller, or
 * 1 at the end of the stack. */
static __always_inline int scan(struct user_scratch *out, struct task_struct *task)
{
	if (!out->scan_wanted)
		return scan_again(out);
	out->scan_wanted = 0;
	scan_words(out);
	if (unwind_begin_outermost(&out->scan, out->end))
		scan_words(out);
	out->end = unwind_end_scan(&out->scan, &out->state, out->end);
	if (out->end == UNWIND_CONTINUES && unwind_is_unconfirmed(&out->scan))
		out->via_scan |= UNCONFIRMED;
	if (out->scan.call != CALL_NONE) {
		out->via_scan |= VIA_SCAN;
		out->scan_depth = out->depth;
		return 0;
	}
	out->via_frame_pointer = 1;
	if (out->end == UNWIND_CONTINUES && out->trampoline && out->state.pc == out->trampoline)
		restore_return_address(out, task);
	return out->end != UNWIND_CONTINUES;
}

/* scan() as a global function. The step does not call it: functions that call each other share 512
 * bytes of stack, which is too little for it. It is in user_unwind.bpf.c. */
int kc_scan(__u32 scratch_index);

/* step() for the thread that runs: a global function, which the verifier checks once for all
 * callers. It is in user_unwind.bpf.c. */
int kc_unwind_step(__u32 scratch_index);

static long sleeper_step(__u64 index, struct sleeper *sleeper)
{
	(void)index;
	return step(sleeper->out, sleeper->task, sleeper);
}
#endif
