/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The unwinder as ordinary functions, for bpf/abi/src/unwind; and the layouts and numbers of these
 * headers as a table, which bpf/abi/src/tests/layout.rs compares with the Rust side. */
#include <stddef.h>

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

struct abi_entry {
	const char *name;
	__u64 value;
};

/* A structure's size, a field's offset, a number. */
#define SIZE(type)	   {#type, sizeof(struct type)},
#define FIELD(type, field) {#type "." #field, offsetof(struct type, field)},
#define NUMBER(number)	   {#number, number},

/* clang-format off */
const struct abi_entry kcollect_abi[] = {
	SIZE(record_header)
	FIELD(record_header, time_ns)
	FIELD(record_header, cpu)
	FIELD(record_header, pid)
	FIELD(record_header, tid)
	FIELD(record_header, ticks)
	FIELD(record_header, blocked)
	FIELD(record_header, user_return)
	FIELD(record_header, kind)
	FIELD(record_header, state)
	FIELD(record_header, detail)
	FIELD(record_header, zero)
	FIELD(record_header, frames)
	FIELD(record_header, flags)
	FIELD(record_header, name)

	SIZE(thread_record)
	FIELD(thread_record, header)
	FIELD(thread_record, task)
	FIELD(thread_record, as_of_ns)
	FIELD(thread_record, since_ns)
	FIELD(thread_record, tracked_ns)
	FIELD(thread_record, ns)
	FIELD(thread_record, ns[DETAIL_BLOCK_IO])
	FIELD(thread_record, ns[DETAIL_PREEMPTED])
	FIELD(thread_record, ns[DETAIL_THROTTLED])
	FIELD(thread_record, ns[DETAIL_STOLEN])
	FIELD(thread_record, counts)
	FIELD(thread_record, counts[MINOR_FAULTS])
	FIELD(thread_record, counts[MAJOR_FAULTS])
	FIELD(thread_record, counts[VOLUNTARY_SWITCHES])
	FIELD(thread_record, counts[INVOLUNTARY_SWITCHES])
	FIELD(thread_record, counts[READ_CHARS])
	FIELD(thread_record, counts[WRITTEN_CHARS])
	FIELD(thread_record, counts[READ_CALLS])
	FIELD(thread_record, counts[WRITE_CALLS])
	FIELD(thread_record, counts[READ_BYTES])
	FIELD(thread_record, counts[WRITTEN_BYTES])
	FIELD(thread_record, cgroup)
	FIELD(thread_record, hierarchy)
	FIELD(thread_record, user)

	SIZE(user_return_record)
	FIELD(user_return_record, header)
	FIELD(user_return_record, ip)
	FIELD(user_return_record, sp)
	FIELD(user_return_record, file)
	FIELD(user_return_record, execution)
	FIELD(user_return_record, call_site)
	FIELD(user_return_record, end)
	FIELD(user_return_record, via_frame_pointer)
	FIELD(user_return_record, unwound)
	FIELD(user_return_record, known)
	FIELD(user_return_record, exact)
	FIELD(user_return_record, via_scan)

	SIZE(overflow_record)
	FIELD(overflow_record, header)
	FIELD(overflow_record, value)
	FIELD(overflow_record, counter)
	FIELD(overflow_record, zero)
	SIZE(lock_wait_record)
	FIELD(lock_wait_record, header)
	FIELD(lock_wait_record, begin_ns)
	FIELD(lock_wait_record, object)
	FIELD(lock_wait_record, operation)
	FIELD(lock_wait_record, zero)
	SIZE(io_call_record)
	FIELD(io_call_record, header)
	FIELD(io_call_record, begin_ns)
	FIELD(io_call_record, result)
	FIELD(io_call_record, arguments)
	FIELD(io_call_record, files)
	FIELD(io_call_record, call)
	FIELD(io_call_record, extra_bytes)
	FIELD(io_call_record, table)
	FIELD(io_call_record, call_site)
	SIZE(io_file_record)
	FIELD(io_file_record, header)
	FIELD(io_file_record, file)
	FIELD(io_file_record, inode)
	FIELD(io_file_record, mode)
	FIELD(io_file_record, bytes)
	FIELD(io_file_record, end)
	SIZE(block_record)
	FIELD(block_record, header)
	FIELD(block_record, address)
	FIELD(block_record, bytes)
	FIELD(block_record, weighted_bytes)
	FIELD(block_record, freed)
	FIELD(block_record, zero)
	SIZE(probe_use)
	FIELD(probe_use, taken_ns)
	FIELD(probe_use, closed)
	SIZE(usdt_operand)
	FIELD(usdt_operand, kind)
	FIELD(usdt_operand, bytes)
	FIELD(usdt_operand, word)
	FIELD(usdt_operand, offset)
	SIZE(traced_call)
	FIELD(traced_call, traced)
	FIELD(traced_call, extra)
	FIELD(traced_call, extra_argument)
	FIELD(traced_call, zero)

	SIZE(cpu_stats)
	FIELD(cpu_stats, origin_ns)
	FIELD(cpu_stats, index)
	FIELD(cpu_stats, user)
	FIELD(cpu_stats, kernel)
	FIELD(cpu_stats, idle)
	FIELD(cpu_stats, unsent)
	FIELD(cpu_stats, lost)
	FIELD(cpu_stats, lost_records)
	FIELD(cpu_stats, late)
	FIELD(cpu_stats, truncated)
	FIELD(cpu_stats, no_stack)
	FIELD(cpu_stats, last_ns)
	FIELD(cpu_stats, in_idle)
	FIELD(cpu_stats, next_ns)
	FIELD(cpu_stats, offset_ns)
	FIELD(cpu_stats, offset_stale)
	FIELD(cpu_stats, off_cpu_lost)
	FIELD(cpu_stats, thread_records_lost)
	FIELD(cpu_stats, threads_untracked)
	FIELD(cpu_stats, begun_ns)
	FIELD(cpu_stats, user_returns_lost)
	FIELD(cpu_stats, busy)
	FIELD(cpu_stats, home_ns)
	FIELD(cpu_stats, stolen)
	FIELD(cpu_stats, steal_at)
	FIELD(cpu_stats, steal_ns)
	FIELD(cpu_stats, switch_steal_ns)
	FIELD(cpu_stats, raced_look_ups)
	FIELD(cpu_stats, woken_ns)
	FIELD(cpu_stats, lock_waits_lost)
	FIELD(cpu_stats, lock_waits_skipped)
	FIELD(cpu_stats, lock_waits_skipped_ns)
	FIELD(cpu_stats, lock_second)
	FIELD(cpu_stats, lock_waits)
	FIELD(cpu_stats, io_calls_lost)
	FIELD(cpu_stats, ignored_execution)
	FIELD(cpu_stats, index_at_rotation)
	FIELD(cpu_stats, last_pid)
	FIELD(cpu_stats, last_tid)
	FIELD(cpu_stats, blocks_lost)
	FIELD(cpu_stats, programs_ns)
	FIELD(cpu_stats, unmeasured)
	FIELD(cpu_stats, measured_ns)
	FIELD(cpu_stats, settling)
	FIELD(cpu_stats, in_programs)
	FIELD(cpu_stats, calls_unseen)
	FIELD(cpu_stats, arrived_ns)
	FIELD(cpu_stats, unused)

	SIZE(counter_stats)
	FIELD(counter_stats, since_overflow)
	FIELD(counter_stats, events)
	FIELD(counter_stats, recorded)
	FIELD(counter_stats, lost)

	SIZE(unwind_rule)
	FIELD(unwind_rule, cfa_offset)
	FIELD(unwind_rule, fp_offset)
	FIELD(unwind_rule, cfa_plus)
	FIELD(unwind_rule, ra_words)
	FIELD(unwind_rule, bx_words)
	FIELD(unwind_rule, bx_base)
	FIELD(unwind_rule, cfa_kind)
	FIELD(unwind_rule, cfa_register)
	FIELD(unwind_rule, fp_kind)
	FIELD(unwind_rule, fp_base)
	FIELD(unwind_rule, ra_kind)
	FIELD(unwind_rule, ra_base)

	SIZE(unwind_state)
	FIELD(unwind_state, pc)
	FIELD(unwind_state, registers)
	FIELD(unwind_state, known)
	FIELD(unwind_state, exact)
	FIELD(unwind_state, descents)
	FIELD(unwind_state, bx_at)

	SIZE(unwind_scan)

	SIZE(native_reader)
	FIELD(native_reader, read)
	FIELD(native_reader, find)
	FIELD(native_reader, context)

	SIZE(code_file)
	FIELD(code_file, inode)
	FIELD(code_file, modified_ns)
	FIELD(code_file, device)
	FIELD(code_file, generation)

	SIZE(file_segment)
	FIELD(file_segment, offset)
	FIELD(file_segment, end)
	FIELD(file_segment, delta)

	SIZE(file_table)
	FIELD(file_table, segments)
	FIELD(file_table, first_page)
	FIELD(file_table, pages)
	FIELD(file_table, directory)
	FIELD(file_table, zero)

	SIZE(page)
	FIELD(page, chunk)
	FIELD(page, start)
	FIELD(page, rows)

	SIZE(row)
	FIELD(row, low)
	FIELD(row, rule)

	NUMBER(TICK_USER)
	NUMBER(TICK_KERNEL)
	NUMBER(TICK_IDLE)
	NUMBER(RECORD_OFF_CPU)
	NUMBER(RECORD_THREAD)
	NUMBER(RECORD_USER_RETURN)
	NUMBER(RECORD_OVERFLOW)
	NUMBER(RECORD_LOCK_WAIT)
	NUMBER(RECORD_IO_CALL)
	NUMBER(RECORD_BLOCK)
	NUMBER(RECORD_IO_SUBMITTED)
	NUMBER(RECORD_IO_FILE)
	NUMBER(PATH_CUT)
	NUMBER(PATH_ROOTED)
	NUMBER(PATH_DETACHED)
	NUMBER(EXTRA_PATH)
	NUMBER(EXTRA_DESCRIPTORS)
	NUMBER(EXTRA_ADDRESS)
	NUMBER(EXTRA_PEER_ADDRESS)
	NUMBER(EXTRA_MESSAGE_BYTES)
	NUMBER(IO_CALLS)
	NUMBER(CALLS_NATIVE)
	NUMBER(CALLS_COMPAT)
	NUMBER(CALLS_IO_URING)
	NUMBER(CALL_TABLES)
	NUMBER(FIRST_REGISTERED_FILE)
	NUMBER(ANY_REGISTERED_FILE)
	NUMBER(MORE_RESULTS)
	NUMBER(MAX_IO_EXTRA_BYTES)
	NUMBER(IO_CALL_SITES)
	NUMBER(ALLOCATION_CALL_SITE)
	NUMBER(FUNCTION_MALLOC)
	NUMBER(FUNCTION_CALLOC)
	NUMBER(FUNCTION_REALLOC)
	NUMBER(FUNCTION_REALLOCARRAY)
	NUMBER(FUNCTION_MEMALIGN)
	NUMBER(FUNCTION_POSIX_MEMALIGN)
	NUMBER(FUNCTION_NEW)
	NUMBER(FUNCTION_FREE)
	NUMBER(FUNCTION_SAMPLED)
	NUMBER(FUNCTION_SAMPLED_FREE)
	NUMBER(OPERAND_CONSTANT)
	NUMBER(OPERAND_REGISTER)
	NUMBER(OPERAND_MEMORY)
	NUMBER(USDT_OPERANDS)
	NUMBER(MAX_USDT_OPERANDS)
	NUMBER(PROBE_USE_SHIFT)
	NUMBER(PROBE_COST_SHIFT)
	NUMBER(PROBE_OPERANDS_SHIFT)
	NUMBER(OPERATION_UNKNOWN)

	NUMBER(FLAG_IRQ_WORK)
	NUMBER(FLAG_TRUNCATED)
	NUMBER(FLAG_NO_STACK)
	NUMBER(FLAG_THREAD_EXITED)
	NUMBER(FLAG_EXITING)
	NUMBER(FLAG_AT_SWITCH_OUT)
	NUMBER(FLAG_STACK_COPY)
	NUMBER(FLAG_KERNEL_THREAD)
	NUMBER(FLAG_USER_WORKER)

	NUMBER(STATE_WAIT_CPU)
	NUMBER(STATES)
	NUMBER(DETAIL_BLOCK_IO)
	NUMBER(DETAIL_PREEMPTED)
	NUMBER(DETAIL_THROTTLED)
	NUMBER(DETAILS_END)
	NUMBER(KERNEL_COUNTS)
	NUMBER(MAX_KERNEL_FRAMES)

	NUMBER(UNWIND_CONTINUES)
	NUMBER(UNWIND_COMPLETE)
	NUMBER(UNWIND_DEPTH_LIMIT)
	NUMBER(UNWIND_NO_MAPPING)
	NUMBER(UNWIND_NO_TABLE)
	NUMBER(UNWIND_NO_RULE)
	NUMBER(UNWIND_UNSUPPORTED)
	NUMBER(UNWIND_UNREADABLE)
	NUMBER(UNWIND_NOT_ASCENDING)
	NUMBER(UNWIND_EXECUTING)
	NUMBER(UNWIND_UNVERIFIED)
	NUMBER(UNWIND_ENDS)

	NUMBER(CFA_ABSENT)
	NUMBER(CFA_STOP)
	NUMBER(CFA_UNSUPPORTED)
	NUMBER(CFA_REGISTER)
	NUMBER(CFA_DEREF)
	NUMBER(CFA_PLT)
	NUMBER(FP_SAME)
	NUMBER(FP_AT)
	NUMBER(FP_LOST)
	NUMBER(RA_AT)
	NUMBER(RA_INTERRUPTED)
	NUMBER(RA_REGISTER)
	NUMBER(VIA_SCAN)
	NUMBER(UNCONFIRMED)
	NUMBER(UNWIND_CFA)
	NUMBER(UNWIND_SAME)
	NUMBER(UNWIND_LOST)
	NUMBER(UNWIND_FP)
	NUMBER(UNWIND_SP)
	NUMBER(UNWIND_REGISTERS)
	NUMBER(SCAN_STACK_WORDS)
	NUMBER(ITERATOR_READ_BYTES)
	NUMBER(MAX_USER_FRAMES)
	NUMBER(MAX_USER_RETURN_WORDS)
	NUMBER(RED_ZONE_BYTES)

	NUMBER(MAX_SEGMENTS)
	NUMBER(COPIED_CODE_DEVICE)
	NUMBER(MAX_PAGES)
	NUMBER(MAX_RULES)
	NUMBER(ROWS_PER_CHUNK)
	NUMBER(MAX_CHUNKS)

	NUMBER(CPUS_PER_RING)
	NUMBER(MAX_COUNTERS)
	NUMBER(SCRATCHES_PER_CPU)
	NUMBER(NO_LOCK_WAITS)
	NUMBER(MAX_BLOCKS)
	NUMBER(MAX_PROBE_USES)
	NUMBER(LOG2_STEPS)
	NUMBER(LOG2_BITS)
	NUMBER(SCALE_BITS)
	NUMBER(MAX_MEAN_BYTES)
	NUMBER(MAX_LOCK_WAITS_PER_CPU_AND_SECOND)
};
/* clang-format on */

const __u64 kcollect_abi_entries = sizeof(kcollect_abi) / sizeof(kcollect_abi[0]);
