/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The unwinder as ordinary functions, for bpf/abi/src/unwind. bpf/abi/build.rs generates the Rust
 * side of this file and of the headers. */
#include "cpu_stats.h"
#include "integers.h"
#include "limits.h"
#include "records.h"
#include "unwind_scan.h"
#include "unwind_tables.h"

/* Reads a word of a stack; returns 0 when it could be read. Finds the rule for an address, as
 * unwind_hooks.rule_at does. */
struct native_reader {
	int (*read)(void *context, __u64 address, __u64 *word);
	int (*find)(void *context, __u64 address, struct unwind_rule *rule);
	void *context;
};

static __always_inline int read_word(void *context, __u64 address, __u64 *word)
{
	struct native_reader *reader = context;

	return reader->read(reader->context, address, word);
}

static __always_inline int rule_at(void *context, __u64 address, struct unwind_rule *rule)
{
	struct native_reader *reader = context;

	return reader->find(reader->context, address, rule);
}

static const struct unwind_hooks hooks = {
	.read = read_word,
	.rule_at = rule_at,
	.try_rule = unwind_try_rule_impl,
	.has_valid_caller = unwind_has_valid_caller_impl,
	.is_valid_caller = unwind_is_valid_caller_impl,
};

void kcollect_unwind_begin(struct unwind_scan *scan, __u64 own_start, __u64 own_end);
__u64 kcollect_unwind_address(const struct unwind_state *state);
__u32 kcollect_unwind_by_rule(struct unwind_state *state, const struct unwind_rule *rule,
			      struct native_reader *reader, const struct unwind_scan *scan);
__u32 kcollect_unwind_without_rule(struct unwind_state *state, struct native_reader *reader,
				   struct unwind_scan *scan, __u32 no_table, __u32 *words,
				   __u32 *via_scan, __u32 *unconfirmed);

__u32 kcollect_unwind_scan_again(struct unwind_state *state, struct native_reader *reader,
				 struct unwind_scan *scan, __u32 *words, __u32 *end,
				 __u32 *unconfirmed);

__u64 kcollect_unwind_address(const struct unwind_state *state)
{
	return unwind_address(state);
}

__u32 kcollect_unwind_by_rule(struct unwind_state *state, const struct unwind_rule *rule,
			      struct native_reader *reader, const struct unwind_scan *scan)
{
	enum unwind_end end = unwind_by_rule(state, rule, read_word, reader);

	for (__u32 number = 1; number <= SCAN_SAVED && unwind_fp_may_be_saved(state, rule, end);
	     number++)
		if (unwind_take_saved_fp(scan, state, number) &&
		    unwind_by_rule(state, rule, read_word, reader) == UNWIND_CONTINUES)
			return UNWIND_CONTINUES;
	return end;
}

static void scan_words(struct unwind_scan *scan, struct native_reader *reader, __u32 *words)
{
	for (__u32 index = 0; index < SCAN_WORDS && *words; index++) {
		--*words;
		if (unwind_scan_word(scan, &hooks, reader, index))
			break;
	}
}

void kcollect_unwind_begin(struct unwind_scan *scan, __u64 own_start, __u64 own_end)
{
	unwind_begin_stack(scan, own_start, own_end);
}

/* Goes to the caller by the frame pointer, or by a scan of at most `words` words, and of no more
 * than a scan may look at. */
__u32 kcollect_unwind_without_rule(struct unwind_state *state, struct native_reader *reader,
				   struct unwind_scan *scan, __u32 no_table, __u32 *words,
				   __u32 *via_scan, __u32 *unconfirmed)
{
	__u32 outermost = SCAN_WORDS;
	enum unwind_end end;
	bool sure;

	scan->no_table = no_table;
	end = unwind_without_rule(scan, state, &hooks, reader, &sure);
	*via_scan = 0;
	*unconfirmed = 0;
	if (sure)
		return end;
	scan_words(scan, reader, words);
	if (unwind_begin_outermost(scan, end))
		scan_words(scan, reader, &outermost);
	*via_scan = scan->call != CALL_NONE;
	end = unwind_end_scan(scan, state, end);
	*unconfirmed = end == UNWIND_CONTINUES && unwind_is_unconfirmed(scan);
	return end;
}

/* Continues the last scan if the caller that it found led nowhere, and returns whether it did.
 * `end` is how the stack ended, or that it continues. */
__u32 kcollect_unwind_scan_again(struct unwind_state *state, struct native_reader *reader,
				 struct unwind_scan *scan, __u32 *words, __u32 *end,
				 __u32 *unconfirmed)
{
	if (!unwind_scan_failed(scan, *end, state, read_word, reader))
		return 0;
	unwind_resume_scan(scan);
	scan_words(scan, reader, words);
	*end = unwind_end_scan(scan, state, *end);
	*unconfirmed = *end == UNWIND_CONTINUES && unwind_is_unconfirmed(scan);
	return 1;
}
