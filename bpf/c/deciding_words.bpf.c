/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Notes, while a stack is unwound, which words decide where its frames are. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "deciding_words.h"
#include "hash.h"
#include "ring.h"
#include "unwind.h"
#include "unwind_tables.h"
#include "user_scratch.h"

char LICENSE[] SEC("license") = "GPL";

struct io_stack_scratches kc_io_stack SEC(".maps");

/* Index in the scratch of the word that is `at` words from the stack pointer; one past the end of
 * the scratch if that word is not in it. */
static __always_inline __u32 index_in_parts(struct deciding_words *deciding, __u32 at)
{
	for (__u32 part = 0; part < STACK_PARTS; part++) {
		__u32 first = deciding->parts[part].at, words = deciding->parts[part].words;

		if (!words)
			first = deciding->parts[part].at = at;
		if (at - first >= PART_WORDS)
			continue;
		if (words <= at - first)
			deciding->parts[part].words = at - first + 1;
		return PART_WORDS * part + (at - first);
	}
	return STACK_PARTS * PART_WORDS;
}

/* Adds a word that decides the stack. Returns it. */
static __always_inline __u64 add_deciding_word(struct io_stack_scratch *scratch, __u64 at)
{
	struct deciding_words *deciding = &scratch->deciding;
	__u32 count = deciding->count, index = STACK_PARTS * PART_WORDS;
	__u64 word;

	if (at <= MAX_AT && count < MAX_DECIDING)
		index = index_in_parts(deciding, at);
	if (index >= STACK_PARTS * PART_WORDS ||
	    bpf_probe_read_user(&word, sizeof(word), (void *)(scratch->sp + 8 * at))) {
		scratch->undecided = 1;
		return 0;
	}
	/* For the verifier it is masked after the barrier. */
	barrier_var(count);
	deciding->at[count & (MAX_DECIDING - 1)] = index;
	deciding->hash = add_to_hash(deciding->hash, word);
	deciding->count = count + 1;
	return word;
}

/* Notes what decided the step to the last frame. */
static __always_inline void note_step(const struct user_scratch *out,
				      struct io_stack_scratch *scratch)
{
	const struct unwind_rule *rule = &rules[out->rule & (MAX_RULES - 1)];
	__u64 cfa = out->state.registers[UNWIND_SP], fp_at;

	if (!out->rule || (rule->cfa_kind != CFA_REGISTER && rule->cfa_kind != CFA_PLT)) {
		scratch->undecided = 1;
		return;
	}
	if (rule->cfa_register == UNWIND_FP) {
		if (scratch->fp_at == FP_IN_REGISTER)
			scratch->deciding.needs_fp = 1;
		else
			add_deciding_word(scratch, scratch->fp_at);
	} else if (rule->cfa_register != UNWIND_SP) {
		scratch->undecided = 1;
	}
	if (rule->fp_kind == FP_AT) {
		fp_at = (cfa + rule->fp_offset - scratch->sp) / 8;
		scratch->fp_at = rule->fp_base == UNWIND_CFA && fp_at <= MAX_AT ? fp_at
										: FP_ELSEWHERE;
	}
	/* In a signal's frame the return address is elsewhere. With return probes, an address in
	 * their page is in its place. */
	if (add_deciding_word(scratch, (cfa - 8 - scratch->sp) / 8) != out->state.pc)
		scratch->undecided = 1;
}

__attribute__((noinline)) int kc_note_step(__u32 scratch_index)
{
	struct user_scratch *out = scratch_at(scratch_index);
	struct io_stack_scratch *scratch = only_element(&kc_io_stack);

	if (out && scratch)
		note_step(out, scratch);
	return 0;
}
