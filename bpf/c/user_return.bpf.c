/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * User stacks: the unwind tables and the step of the unwind. The programs that capture user stacks
 * are in the other files, which inline user_return.h.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "user_return.h"
#include "user_stack.h"

char LICENSE[] SEC("license") = "GPL";

volatile bool few_copies;

const volatile bool capture_user_stacks;
const volatile bool capture_on_return;

struct page pages[MAX_PAGES] SEC(".bss.pages");
struct unwind_rule rules[MAX_RULES] SEC(".bss.rules");

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_find_code(__u32 place, __u64 address)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	return out ? find_code(&out->code, out->mm, address) : 1;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_find_own_stack(__u32 place)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	if (out)
		find_own_stack(out, bpf_get_current_task_btf());
	return 0;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_unwind_step(__u32 place)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	return out ? step(out, place, bpf_get_current_task_btf(), 0) : 1;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_scan(__u32 place)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	return out ? scan(out, place, bpf_get_current_task_btf()) : 1;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_by_rule(__u32 place, __u32 rule)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	return out ? unwind_by_rule(&out->state, &rules[rule & (MAX_RULES - 1)], 0)
		   : UNWIND_UNSUPPORTED;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_try_rule(__u32 place)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	return out ? unwind_try_rule(&out->scan, 0, (void *)(__u64)place) : 0;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_unwind_frame(__u32 place)
{
	return kc_unwind_step(place) && kc_scan(place);
}

/* Declared in user_stack.h. */
__attribute__((noinline)) int kc_restore_copy(__u32 place)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	if (out)
		restore_copy(out, bpf_get_current_task_btf());
	return 0;
}

/* Declared in user_unwind.h. */
__attribute__((noinline)) int kc_rule_number_at(__u32 place, __u64 address)
{
	struct user_scratch *out = bpf_map_lookup_elem(&kc_user_scratch, &place);

	return out ? rule_number_at(out, place, address) : -1;
}
