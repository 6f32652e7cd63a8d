/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The unwind of user stacks: its tables, and its global functions, each of which the verifier
 * checks once. There is no program here: those that capture user stacks are in the other files,
 * which inline user_return.h.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "user_return.h"
#include "user_stack.h"

char LICENSE[] SEC("license") = "GPL";

volatile bool few_copies;
volatile bool has_copied_code;

const volatile bool capture_user_stacks;
const volatile bool capture_on_return;
const volatile bool use_maple_tree;

struct page pages[MAX_PAGES] SEC(".bss.kc_pages");
struct unwind_rule rules[MAX_RULES] SEC(".bss.kc_rules");

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_find_code(__u32 scratch_index, __u64 address)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? find_code(&out->code, out->mm, address) : 1;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_find_own_stack(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	if (out)
		find_own_stack(out, bpf_get_current_task_btf());
	return 0;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_unwind_step(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? step(out, bpf_get_current_task_btf(), 0) : 1;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_scan(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? scan(out, bpf_get_current_task_btf()) : 1;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_by_rule(__u32 scratch_index, __u32 rule)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? unwind_by_rule(&out->state, &rules[rule & (MAX_RULES - 1)], 0)
		   : UNWIND_UNSUPPORTED;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_try_rule(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? unwind_try_rule(&out->scan, 0) : 0;
}

/* Declared in user_stack.h. */
__attribute__((noinline)) int kc_unwind_stack(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	if (out)
		unwind_stack(out, scratch_index);
	return 0;
}

/* Declared in user_stack.h. */
__attribute__((noinline)) int kc_finish_capture(__u32 scratch_index, __u32 cpu)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	if (out)
		finish_capture(out, bpf_get_current_task_btf(), scratch_index, cpu);
	return 0;
}

/* Declared in user_stack.h. */
__attribute__((noinline)) int kc_restore_copy(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	if (out)
		restore_copy(out, bpf_get_current_task_btf());
	return 0;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_find_rule(__u32 scratch_index, __u64 address)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? find_rule(out, &out->code, address) : 0;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_leads_on(__u32 scratch_index, __u64 address, __u64 sp)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? unwind_leads_on(&out->scan, 0, out, address, sp) : 0;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_caller_leads_on(__u32 scratch_index)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &scratch_index);

	return out ? unwind_caller_leads_on(&out->scan, &out->state, 0, out) : 0;
}
