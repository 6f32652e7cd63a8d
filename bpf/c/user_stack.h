/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The user stack of a thread: unwound here by the tables that user space has published
 * (bpf/src/tables is their only writer), or, where a table is missing, copied, to be unwound in
 * user space.
 *
 * A short-lived process may exit before user space has read the files that it maps; a stack copy
 * makes its ticks as good as others. Copies are large, and are made only while the ring has room
 * for them.
 */
#ifndef KCOLLECT_USER_STACK_H
#define KCOLLECT_USER_STACK_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "mapped_code.h"
#include "record.h"
#include "unwind_tables.h"

struct unwind_rule;

static __always_inline int unwind_read(void *reader, __u64 address, __u64 *word);
static __always_inline int unwind_rule_at(void *finder, __u64 address, struct unwind_rule *rule);

struct unwind_scan;

static __always_inline bool unwind_rule_leads_on(struct unwind_scan *scan, void *reader,
						 void *finder);

#include "unwind_scan.h"
#include "return_probe.h"

/* User stacks are wanted. */
extern const volatile bool capture_user_stacks;

struct rows {
	struct row row[ROWS_PER_CHUNK];
};

/* In sections of their own, so that user space can map them. The kernel shows the sections as maps,
 * by these names. */
extern struct page pages[MAX_PAGES];
extern struct unwind_rule rules[MAX_RULES];

struct row_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	/* By size: the compiler emits no types for a map within a map. */
	__uint(value_size, sizeof(struct rows));
};

struct row_chunks {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_CHUNKS);
	__type(key, __u32);
	__array(values, struct row_chunk);
};

extern struct row_chunks kc_row_chunks SEC(".maps");

/* Processes that are not followed: the task->self_exec_id of which that is known. */
struct ignored {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __u32);
};

extern struct ignored kc_ignored SEC(".maps");

/* Size of a stack copy, beside the registers: a compiler's recursion takes tens of KiB. */
#define PIECE_BYTES 4096
#define MAX_PIECES  15
/* When the ring fills up: enough for short-lived processes. */
#define FEW_PIECES	  2
#define SMALL_PIECE_BYTES 128
/* The most words that are sent: with their header they are no longer than a mask. */
#define USER_WORDS     MAX_USER_RETURN_WORDS
#define MAX_SENT_WORDS 8176
/* All that an iterator writes of one thread has to fit the file's 32 KiB, or none of it is read. */
#define MAX_ITER_WORDS		   3700
/* As kcollect's shortest round. */
#define WAKE_NS			   10000000
#define USER_RECORD_LENGTH(length) ((length) & (8 * USER_WORDS - 1))

/* Where a user stack is put together. */
struct user_scratch {
	__u64 busy;
	struct unwind_state state;
	struct mapped_code code; /* where the last frame was, or what a scan looked at */
	__u64 mm;		 /* address of the process's mm_struct */
	struct unwind_scan scan;
	__u32 end; /* enum unwind_end */
	__u32 via_frame_pointer;
	__u32 via_scan;
	__u32 scan_words;	       /* left for scans */
	__u32 scan_wanted, scan_exact; /* see step_without_rule() */
	__u32 scan_depth;	       /* of the frame whose caller the last scan found, or 0 */
	__u32 depth;
	__u32 unwound;	  /* number of frames whose caller was found */
	__u32 pending;	  /* a table was needed that is not there yet */
	__u32 unmapped;	  /* no mapping was found at the last frame */
	__u32 zero;	  /* never written, which the verifier doesn't know */
	__u64 trampoline; /* in place of return addresses: see return_probe.h */
	__u64 copy_from;  /* of a stack copy: its first address, and where that is in `words` */
	__u64 copy_first;
	/* Of another thread's stack: the upper part of `words` has it from this address on. */
	__u64 window;
	struct user_return_record record;
	__u64 words[USER_WORDS + PIECE_BYTES / 8];
};

/* One for the iteration over threads, then for each CPU one for programs that run with interrupts
 * off, and others that a thread claims when it returns to user mode, where it may be preempted.
 * Sized by bpf/src/load.rs. */
#define ITER_SCRATCH	   0
#define SCRATCHES_PER_CPU  4
#define FIRST_SCRATCH(cpu) (1 + (cpu)*SCRATCHES_PER_CPU)

struct user_scratches {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 + SCRATCHES_PER_CPU);
	__type(key, __u32);
	__type(value, struct user_scratch);
};

extern struct user_scratches kc_user_scratch SEC(".maps");

/* How the stack of a thread that does not run is read. */
struct sleeper {
	struct user_scratch *out;
	struct task_struct *task;
};

/* A window on its stack is kept in the words above those of frames. */
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
 * verifier checks once for all callers. It is in user_return.bpf.c. Returns 0, or 1 if there is
 * none. */
int kc_find_code(__u32 place, __u64 address);

/* A look-up takes a tenth of the time that a mapping does, so that few race with a writer again. */
#define MAX_LOOK_UPS 4

/* Returns the code at an address, or 0. Most callers are in the same mapping as their callee. */
static __always_inline const struct mapped_code *code_at(struct user_scratch *out, __u32 place,
							 __u64 address)
{
	if (address >= out->code.start && address < out->code.end)
		return &out->code;
	for (__u32 look_up = 0; look_up < MAX_LOOK_UPS; look_up++) {
		if (kc_find_code(place, address))
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

/* Returns the number of the rule for an address, 0 where there is none, or -1 where no code is
 * known or its table is not there yet. */
static __always_inline int rule_number_at(struct user_scratch *out, __u32 place, __u64 address)
{
	const struct mapped_code *code = code_at(out, place, address);

	if (!code || code->kind == CODE_PENDING)
		return -1;
	return code->kind == CODE_TABLE ? find_rule(out, code, address) : 0;
}

/* rule_number_at() as a global function, which the verifier checks once: a scan calls it in several
 * places. It is in user_return.bpf.c. */
int kc_rule_number_at(__u32 place, __u64 address);

/* Finds a rule for a scan. The finder is the place of the scratch. */
static __always_inline int unwind_rule_at(void *finder, __u64 address, struct unwind_rule *rule)
{
	int number = kc_rule_number_at((__u64)finder, address);

	if (number <= 0)
		return number;
	*rule = rules[number & (MAX_RULES - 1)];
	return 1;
}

/* unwind_try_rule() of the stack of the thread that runs: a global function, which the verifier
 * checks once. It is in user_return.bpf.c. */
int kc_try_rule(__u32 place);

static __always_inline bool unwind_rule_leads_on(struct unwind_scan *scan, void *reader,
						 void *finder)
{
	(void)scan;
	(void)reader;
	return kc_try_rule((__u64)finder);
}

/* Where the scan of the stack of the thread that runs is put together. */
struct scan_place {
	struct user_scratch *out;
	__u32 place;
};

static long scan_word(__u64 index, struct scan_place *at)
{
	return unwind_scan_word(&at->out->scan, 0, (void *)(__u64)at->place,
				at->out->scan.sp + 8 * index);
}

/* unwind_by_rule() of the thread that runs: a global function, which the verifier checks once. It
 * is in user_return.bpf.c. */
int kc_by_rule(__u32 place, __u32 rule);

/* Goes to the caller of a frame by a rule. The frame pointer of another thread is always sure:
 * there was no scan. */
static __always_inline enum unwind_end step_by_rule(struct user_scratch *out, __u32 place,
						    __u32 rule, void *reader)
{
	enum unwind_end end;

	if (reader)
		return unwind_by_rule(&out->state, &rules[rule], reader);
	end = kc_by_rule(place, rule);
	for (__u32 number = 1;
	     number <= SCAN_SAVED && unwind_fp_may_be_saved(&out->state, &rules[rule], end);
	     number++)
		if (unwind_take_saved_fp(&out->scan, &out->state, number) &&
		    kc_by_rule(place, rule) == UNWIND_CONTINUES)
			return UNWIND_CONTINUES;
	return end;
}

/* Goes to the caller of a frame whose code has no rule, by its frame pointer. `scan_wanted`: that
 * is not sure, and a scan may find a better one. The stack of another thread is not scanned. */
static __always_inline enum unwind_end step_without_rule(struct user_scratch *out, __u32 place,
							 void *reader)
{
	enum unwind_end end;
	bool sure;

	unwind_begin_scan(&out->scan, &out->state);
	out->scan_depth = 0;
	out->scan_exact = out->state.exact;
	end = unwind_by_frame_pointer(&out->state, reader, &sure);
	if (!reader && sure && end == UNWIND_CONTINUES && out->state.known & UNWIND_FP_CHAIN)
		sure = unwind_caller_leads_on(&out->scan, &out->state, reader,
					      (void *)(__u64)place);
	if (sure || reader)
		out->via_frame_pointer = 1;
	else
		out->scan_wanted = 1;
	return end;
}

/* Writes one frame and goes to its caller. Returns 0, or 1 at the end of the stack. */
static __always_inline int step(struct user_scratch *out, __u32 place, struct task_struct *task,
				void *reader)
{
	const struct mapped_code *code;
	__u32 end, number;
	__u64 address;

	if (out->depth >= MAX_USER_FRAMES) {
		out->end = UNWIND_DEPTH_LIMIT;
		return 1;
	}
	address = unwind_address(&out->state);
	code = code_at(out, place, address);
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
	if (number) {
		end = step_by_rule(out, place, number & (MAX_RULES - 1), reader);
	} else {
		end = step_without_rule(out, place, reader);
	}
	out->end = end;
	if (out->scan_wanted)
		return 1;
	if (end == UNWIND_CONTINUES && out->trampoline && out->state.pc == out->trampoline)
		restore_return_address(&out->state, task);
	return end != UNWIND_CONTINUES;
}

static __always_inline void scan_words(struct user_scratch *out, __u32 place)
{
	struct scan_place at = {.out = out, .place = place};
	__u32 words = out->scan_words, most = words < SCAN_WORDS ? words : SCAN_WORDS;

	out->scan_words = words - bpf_loop(most, scan_word, &at, 0);
}

/* Goes on with the last scan, if the caller that it found led nowhere. Returns 0, or 1 at the end
 * of the stack. */
static __always_inline int scan_again(struct user_scratch *out, __u32 place)
{
	if (!out->scan_depth || out->pending || !unwind_scan_failed(out->end, &out->state, 0))
		return 1;
	unwind_resume_scan(&out->scan);
	scan_words(out, place);
	/* What it led to was none of the stack. */
	out->depth = out->scan_depth;
	if (out->scan.call == CALL_NONE) {
		out->scan_depth = 0;
		return 1;
	}
	unwind_end_scan(&out->scan, &out->state, out->end, false);
	return 0;
}

/* Scans where a step has asked for it, or the last scan was wrong. Returns 0 if there is a caller,
 * or 1 at the end of the stack. */
static __always_inline int scan(struct user_scratch *out, __u32 place, struct task_struct *task)
{
	if (!out->scan_wanted)
		return scan_again(out, place);
	out->scan_wanted = 0;
	scan_words(out, place);
	out->end = unwind_end_scan(&out->scan, &out->state, out->end, out->scan_exact);
	if (out->scan.call != CALL_NONE) {
		out->via_scan = 1;
		out->scan_depth = out->depth;
		return 0;
	}
	out->via_frame_pointer = 1;
	if (out->end == UNWIND_CONTINUES && out->trampoline && out->state.pc == out->trampoline)
		restore_return_address(&out->state, task);
	return out->end != UNWIND_CONTINUES;
}

/* scan() as a global function. Not called by the step: all functions that call each other together
 * have too little stack for it. It is in user_return.bpf.c. */
int kc_scan(__u32 place);

/* One step, with a scan if there has to be one. A function of its own: Linux 6.1 refuses the loop
 * in which the compiler would put the two calls. It is in user_return.bpf.c. */
int kc_unwind_frame(__u32 place);

/* step() for the thread that runs: a global function, which the verifier checks once for all
 * callers. It is in user_return.bpf.c. */
int kc_unwind_step(__u32 place);

static long sleeper_step(__u64 index, struct sleeper *sleeper)
{
	(void)index;
	return step(sleeper->out, ITER_SCRATCH, sleeper->task, sleeper);
}

/* Reads a piece of the stack of the thread that runs, or of another one. */
static __always_inline long read_piece(void *to, __u32 size, __u64 from, struct task_struct *other)
{
	return other ? bpf_copy_from_user_task(to, size, (void *)from, other, 0)
		     : bpf_probe_read_user(to, size, (void *)from);
}

/* Returns the place of a word, masked here for the verifier;
 * `words` has room for a piece more. */
static __always_inline __u64 *word_at(struct user_scratch *out, __u32 place)
{
	barrier_var(place);
	return out->words + (place & (USER_WORDS - 1));
}

/* Puts the original return addresses into the copy of the stack of the thread that runs: a global
 * function, as kc_unwind_step(). It is in user_return.bpf.c. */
int kc_restore_copy(__u32 place);

static __always_inline void restore_copy(struct user_scratch *out, struct task_struct *task)
{
	struct return_instance *instance = newest_instance(task);
	__u32 first = out->copy_first, end = out->record.header.frames;

	for (__u32 number = 0; number < MAX_RETURN_PROBES && instance; number++) {
		__u64 word = (instance->stack - out->copy_from) / sizeof(__u64);

		if (instance->stack >= out->copy_from && word < end - first)
			*word_at(out, first + word) = instance->orig_ret_vaddr;
		instance = instance->next;
	}
}

/* Copies what the unwind needs to go on from the last frame: its registers, and the stack from its
 * pointer on, `pieces` pieces and a part of one. */
static __always_inline void copy_stack(struct user_scratch *out, struct task_struct *other,
				       __u32 pieces)
{
	const __u32 most = other ? MAX_ITER_WORDS : MAX_SENT_WORDS;
	__u64 from = out->state.registers[UNWIND_SP];
	__u32 place = out->unwound & (WINDOW_WORD - 1);

	out->record.unwound = place;
	if (out->state.bx_at &&
	    !read_piece(&out->state.registers[UNWIND_BX], sizeof(__u64), out->state.bx_at, other))
		out->state.known |= 1 << UNWIND_BX;
	__builtin_memcpy(&out->record.file, &out->code.file, sizeof(out->record.file));
	/* A frame pointer that is not sure needs more than a bit. */
	out->record.known = out->state.known & UNWIND_FP_UNSURE ? 1 << UNWIND_SP
								: (__u16)out->state.known;
	out->record.exact = out->state.exact;
	__builtin_memcpy(word_at(out, place), out->state.registers, sizeof(out->state.registers));
	place += UNWIND_REGISTERS;
	*word_at(out, place++) = out->state.pc;
	/* Filled with zeros if it can't be read. */
	read_piece(word_at(out, place), RED_ZONE_BYTES, from - RED_ZONE_BYTES, other);
	place += RED_ZONE_BYTES / 8;
	out->copy_from = from;
	out->copy_first = place;
	for (__u32 piece = 0; piece < MAX_PIECES && piece < pieces; piece++) {
		if (place > most - PIECE_BYTES / 8 ||
		    read_piece(word_at(out, place), PIECE_BYTES, from, other))
			break;
		place += PIECE_BYTES / 8;
		from += PIECE_BYTES;
	}
	for (__u32 piece = 0; piece < PIECE_BYTES / SMALL_PIECE_BYTES; piece++) {
		if (place > most - SMALL_PIECE_BYTES / 8 ||
		    read_piece(word_at(out, place), SMALL_PIECE_BYTES, from, other))
			break;
		place += SMALL_PIECE_BYTES / 8;
		from += SMALL_PIECE_BYTES;
	}
	out->record.header.flags |= FLAG_STACK_COPY;
	out->record.header.frames = place;
	out->record.via_frame_pointer &= !!out->unwound;
	out->record.via_scan &= !!out->unwound;
}

/* Returns whether the process of a thread is followed, as far as is known. */
static __always_inline bool is_followed(struct task_struct *task)
{
	__u32 pid = task->tgid;
	__u32 *execution = bpf_map_lookup_elem(&kc_ignored, &pid);

	return !execution || *execution != (__u32)task->self_exec_id;
}

/* Begins the record of a return to user mode. */
static __always_inline void describe_user_return(struct user_scratch *out, struct task_struct *task,
						 __u32 number, __u32 cpu)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	describe(&out->record.header, task, bpf_ktime_get_ns(), cpu, RECORD_USER_RETURN, 0);
	out->record.header.user_return = number;
	user_registers(regs, &out->state.pc, out->state.registers);
	out->state.known = (1 << UNWIND_REGISTERS) - 1;
	out->state.exact = 1;
	out->state.bx_at = 0;
	out->depth = 0;
	out->via_frame_pointer = 0;
	out->via_scan = 0;
	out->scan_words = SCAN_STACK_WORDS;
	out->scan_depth = 0;
	out->unwound = 0;
	out->pending = 0;
	out->unmapped = 0;
	out->scan_wanted = 0;
	out->trampoline = trampoline_of(task);
	out->mm = (__u64)task->mm;
	out->code.start = out->code.end = 0;
	out->code.raced = 0;
	out->record.ip = out->state.pc;
	out->record.sp = out->state.registers[UNWIND_SP];
	out->record.execution = task->self_exec_id;
	__builtin_memset(&out->record.file, 0, sizeof(out->record.file));
	out->record.unwound = out->record.known = out->record.exact = 0;
	out->end = is_32bit(regs) ? UNWIND_UNSUPPORTED : UNWIND_NO_MAPPING;
}

/* Returns whether the unwind can begin. */
static __always_inline bool begin_unwind(struct user_scratch *out)
{
	if (out->end != UNWIND_UNSUPPORTED)
		return true;
	out->words[0] = out->state.pc;
	out->depth = 1;
	return false;
}

/* Returns whether a stack copy is needed, because a table is not there yet. */
static __always_inline bool end_unwind(struct user_scratch *out, struct task_struct *task)
{
	/* In execve(2) the registers are those of the old program, and the mappings soon those of
	 * the new one. */
	if (out->depth == 1 && out->unmapped && BPF_CORE_READ_BITFIELD(task, in_execve)) {
		out->end = UNWIND_EXECUTING;
		out->depth = 0;
		out->pending = 0;
	}
	out->record.header.frames = out->depth;
	out->record.end = out->end;
	out->record.via_frame_pointer = out->via_frame_pointer;
	out->record.via_scan = out->via_scan;
	return out->pending;
}

/* Unwinds the user stack of the thread that runs, or copies it. */
static __always_inline void capture_user_stack(struct user_scratch *out, struct task_struct *task,
					       __u32 place, __u32 cpu)
{
	__u32 full;

	if (begin_unwind(out))
		for (__u32 frame = 0; frame <= MAX_USER_FRAMES; frame++)
			if (kc_unwind_frame(place))
				break;
	if (!end_unwind(out, task))
		return;
	full = fullness(cpu);
	if (full >= 4) {
		out->record.end = UNWIND_NO_TABLE;
		return;
	}
	copy_stack(out, 0, full < 2 ? MAX_PIECES : FEW_PIECES);
	if (out->trampoline)
		kc_restore_copy(place);
}

/* Unwinds or copies the user stack of a thread that does not run. */
static __always_inline void capture_sleeper_stack(struct user_scratch *out,
						  struct task_struct *task)
{
	struct sleeper sleeper = {.out = out, .task = task};

	out->window = -(__u64)WINDOW_BYTES;
	if (begin_unwind(out))
		bpf_loop(MAX_USER_FRAMES + 1, sleeper_step, &sleeper, 0);
	if (end_unwind(out, task))
		copy_stack(out, task, MAX_PIECES);
}

/* Returns whether user space should be woken for a stack: it lacks the table of a file. Seldom, for
 * it takes time to make one. */
static __always_inline bool wakes(const struct user_scratch *out, struct cpu_stats *stats)
{
	__u64 now = out->record.header.time_ns;

	if (!(out->record.header.flags & FLAG_STACK_COPY) || !out->record.file.inode ||
	    now - stats->woken_ns < WAKE_NS)
		return false;
	stats->woken_ns = now;
	return true;
}

/* Sends the user stack. */
static __always_inline void send_user_stack(struct user_scratch *out, struct cpu_stats *stats,
					    __u32 cpu)
{
	__u64 size = sizeof(out->record) + 8 * (__u64)out->record.header.frames;
	bool wake = wakes(out, stats);

	if (out->code.raced)
		__sync_fetch_and_add(&stats->raced_look_ups, out->code.raced);

	if (!send_and_wake(cpu, &out->record, USER_RECORD_LENGTH(size), wake))
		__sync_fetch_and_add(&stats->user_returns_lost, 1);
}

_Static_assert(sizeof(struct user_return_record) + 8 * MAX_SENT_WORDS < 8 * USER_WORDS,
	       "longer than its mask");

#endif
