/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The unwind of user stacks: its tables, and the global functions of user_unwind.h, lowest first.
 * There is no program here: those that capture user stacks are in the other files, which inline
 * user_return.h.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "mapped_code.h"
#include "return_probe.h"
#include "ring.h"
#include "unwind_scan.h"
#include "user_return.h"
#include "user_scratch.h"
#include "user_stack.h"
#include "user_unwind.h"

char LICENSE[] SEC("license") = "GPL";

volatile bool few_copies;
volatile bool has_copied_code;

const volatile bool capture_user_stacks;
const volatile bool capture_on_return;
const volatile bool use_maple_tree;

struct page pages[MAX_PAGES] SEC(".bss.kc_pages");
struct unwind_rule rules[MAX_RULES] SEC(".bss.kc_rules");

__attribute__((noinline)) int kc_find_code(__u32 scratch_index, __u64 address)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? find_code(&out->code, out->mm, address) : 1;
}

__attribute__((noinline)) int kc_find_rule(__u32 scratch_index, __u64 address)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? find_rule(out, &out->code, address) : 0;
}

__attribute__((noinline)) int kc_by_rule(__u32 scratch_index, __u32 rule)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? unwind_by_rule(&out->state, &rules[rule & (MAX_RULES - 1)], read_own_word, out)
		   : UNWIND_UNSUPPORTED;
}

__attribute__((noinline)) int kc_try_rule(__u32 scratch_index)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? unwind_try_rule_impl(&out->scan, &own_stack_hooks, out) : 0;
}

__attribute__((noinline)) int kc_has_valid_caller(__u32 scratch_index, __u64 address, __u64 sp)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? unwind_has_valid_caller_impl(&out->scan, &own_stack_hooks, out, address, sp)
		   : 0;
}

__attribute__((noinline)) int kc_is_valid_caller(__u32 scratch_index)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? unwind_is_valid_caller_impl(&out->scan, &own_stack_hooks, out, &out->state)
		   : 0;
}

/* The C library has the end of a thread's stack at its thread pointer. The stack of the process's
 * first thread is elsewhere. */
static __always_inline void find_own_stack(struct user_scratch *out, struct task_struct *task)
{
	__u64 end = thread_pointer(task);

	out->own_looked_up = 1;
	if (task->pid == task->tgid || !end)
		return;
	kc_find_code(out->index, end);
	if (out->code.mapping && !out->code.last_raced)
		unwind_begin_stack(&out->scan, MAPPING_FIELD(&out->code, vm_start), end);
}

__attribute__((noinline)) int kc_find_own_stack(__u32 scratch_index)
{
	struct user_scratch *out = scratch_at(scratch_index);

	if (out)
		find_own_stack(out, bpf_get_current_task_btf());
	return 0;
}

__attribute__((noinline)) int kc_unwind_step(__u32 scratch_index)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? step(out, bpf_get_current_task_btf(), &own_stack_hooks, out) : 1;
}

static long scan_word(__u64 index, struct user_scratch **out)
{
	return unwind_scan_word(&(*out)->scan, &own_stack_hooks, *out, index);
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
	    !unwind_scan_failed(&out->scan, out->end, &out->state, read_own_word, out))
		return 1;
	unwind_resume_scan(&out->scan);
	scan_words(out);
	/* The frames that it led to are not part of the stack. */
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

__attribute__((noinline)) int kc_scan(__u32 scratch_index)
{
	struct user_scratch *out = scratch_at(scratch_index);

	return out ? scan(out, bpf_get_current_task_btf()) : 1;
}

__attribute__((noinline)) int kc_unwind_stack(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	if (out && begin_unwind(out, scratch_index))
		bpf_loop(MAX_USER_FRAMES + 1, unwind_frame, &scratch_index, 0);
	return 0;
}

static long restore_word(__u64 number, struct replaced_returns *at)
{
	struct user_scratch *out = at->out;
	__u32 first = out->copy_first, end = out->record.header.frames;
	__u64 stack, word;

	(void)number;
	if (!at->instance)
		return 1;
	stack = REPLACED_RETURN(at, stack);
	word = (stack - out->copy_from) / sizeof(__u64);
	if (stack >= out->copy_from && word < end - first)
		*word_at(out, first + word) = REPLACED_RETURN(at, orig_ret_vaddr);
	at->instance = REPLACED_RETURN(at, next);
	return 0;
}

__attribute__((noinline)) int kc_restore_copy(__u32 scratch_index)
{
	struct user_scratch *out = scratch_at(scratch_index);
	struct replaced_returns at = {.out = out};

	if (!out)
		return 0;
	at.instance = newest_instance(&out->code, bpf_get_current_task_btf());
	bpf_loop(MAX_RETURN_PROBES, restore_word, &at, 0);
	return 0;
}

static __always_inline void finish_capture(struct user_scratch *out, struct task_struct *task,
					   __u32 scratch_index, __u32 cpu)
{
	__u32 full;

	if (!end_unwind(out, task))
		return;
	full = fullness(cpu);
	if (full >= 4 || (few_copies && !wakeup_allowed_on(out, cpu))) {
		out->record.end = UNWIND_NO_TABLE;
		return;
	}
	copy_stack(out, 0, full < 2 ? MAX_PIECES : FEW_PIECES);
	if (out->trampoline)
		kc_restore_copy(scratch_index);
}

__attribute__((noinline)) int kc_finish_capture(__u32 scratch_index, __u32 cpu)
{
	struct user_scratch *out = scratch_at(scratch_index);

	if (out)
		finish_capture(out, bpf_get_current_task_btf(), scratch_index, cpu);
	return 0;
}
