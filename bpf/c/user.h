/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The user stack of a thread: walked here by the tables that user space has filled
 * (bpf/src/tables.rs is their one writer), and where there are none yet, copied as it is, to be
 * walked there.
 *
 * A program that runs for a millisecond is gone before anybody has heard of it; with a copy of its
 * stack its ticks are as good as others. Copies are large, and are made only while the ring has
 * room to spare.
 */
#ifndef KCOLLECT_USER_H
#define KCOLLECT_USER_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "maps.h"
#include "record.h"

static __always_inline int unwind_read(void *reader, __u64 address, __u64 *word);

#include "unwind.h"

/* Powers of two: what indexes them is masked, and so need not be trusted. */
#define MAPPINGS       65536
#define PAGES	       65536
#define RULES	       65536
#define ROWS	       65536
#define MOST_CHUNKS    1024
#define MOST_PROCESSES 65536

enum mapping_kind {
	MAPPING_TABLE,	 /* its file has a table */
	MAPPING_GUESS,	 /* no file, or one without a table: by frame pointer */
	MAPPING_PENDING, /* the table is not there yet */
};

/* Code that is mapped in a process. Those of one process lie together, by rising start. */
struct mapping {
	__u64 start, end;
	__u64 bias;	  /* an address minus this is one of the file's own address space */
	__u32 first_page; /* number of the first page that the table has */
	__u32 pages;	  /* how many */
	__u32 directory;  /* index of the first of them in `pages` */
	__u32 kind;	  /* enum mapping_kind */
};

/* Rows of 64 KiB of pc: where they are. */
struct page {
	__u16 chunk;
	__u16 start; /* in the chunk */
	__u32 rows;
};

struct row {
	__u16 low; /* of the pc in the file's own address space */
	__u16 rule;
};

struct rows {
	struct row row[ROWS];
};

struct mapping mappings[MAPPINGS] SEC(".bss.mappings");
struct page pages[PAGES] SEC(".bss.pages");
struct unwind_rule rules[RULES] SEC(".bss.rules");

struct chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	/* By size: of a map within a map the compiler tells no types. */
	__uint(value_size, sizeof(struct rows));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MOST_CHUNKS);
	__type(key, __u32);
	__array(values, struct chunk);
} chunks SEC(".maps");

/* What user space knows of a process. */
struct process {
	__u32 execution; /* of which task->self_exec_id the mappings are; or ANY_EXECUTION, until
			    watch_all has told it */
	__u32 first;	 /* index of the first in `mappings` */
	__u32 count;
	__u32 version; /* of the mappings: goes with each stack that is walked by them */
	__u32 ignored; /* nobody follows it */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_PROCESSES);
	__type(key, __u32);
	__type(value, struct process);
} processes SEC(".maps");

#define ANY_EXECUTION 0xffffffff

/* The deepest stack that is walked. */
#define DEEPEST 1000

/* A copy: the registers, and of the stack as much: a compiler's recursion takes tens of KiB. */
#define PIECE  4096
#define PIECES 15
/* Where the ring fills up: brief programs need no more. */
#define FEW_PIECES  2
#define SMALL_PIECE 128
/* Below the stack pointer, as much is the function's too. */
#define RED_ZONE 128

/* As many words can be sent: with what they follow, they are no longer than a mask. */
#define USER_WORDS 8192
#define MOST_WORDS 8176
/* What an iterator writes of one thread, all together, fits its file's 32 KiB, or nothing of it is
 * read. */
#define SLEEPERS_WORDS		   3700
#define USER_RECORD_LENGTH(length) ((length) & (8 * USER_WORDS - 1))

/* A user stack is put together here. */
struct user_scratch {
	__u64 busy;
	struct unwind_state state;
	__u32 first, count; /* of the process's mappings */
	__u32 end;	    /* enum unwind_end */
	__u32 guessed;
	__u32 depth;
	__u32 stuck;   /* how many frames were left */
	__u32 pending; /* the table of a file was needed that is not there yet */
	__u32 zero;    /* nobody writes it; the verifier doesn't know that */
	__u64 window;  /* of another thread's stack: from this address on, the upper part of `words`
			  has it */
	struct entry_record record;
	__u64 words[USER_WORDS + PIECE / 8];
};

/* Of each CPU one for programs that run with interrupts off, and those that a thread claims on its
 * way to user mode, where another one may take the CPU from it. Sized by load.rs. */
#define SCRATCHES 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCRATCHES);
	__type(key, __u32);
	__type(value, struct user_scratch);
} user_scratch SEC(".maps");

/* Who reads the stack of a thread that does not run. */
struct sleeper {
	struct user_scratch *out;
	struct task_struct *task;
};

/* A piece of its stack at a time lies in the words that no frame takes. */
#define WINDOW	    2048
#define WINDOW_WORD 1024

static __always_inline int read_sleeper(struct sleeper *sleeper, __u64 address, __u64 *word)
{
	struct user_scratch *out = sleeper->out;
	void *window = out->words + WINDOW_WORD;

	if (address - out->window > WINDOW - sizeof(*word)) {
		out->window = address;
		if (bpf_copy_from_user_task(window, WINDOW, (void *)address, sleeper->task, 0)) {
			/* Near the end of the stack. */
			out->window = -(__u64)WINDOW;
			return bpf_copy_from_user_task(word, sizeof(*word), (void *)address,
						       sleeper->task, 0);
		}
	}
	*word = *(__u64 *)(window + ((address - out->window) & (WINDOW - 1)));
	return 0;
}

/* Of the thread that runs, or of one that does not. */
static __always_inline int unwind_read(void *reader, __u64 address, __u64 *word)
{
	if (reader)
		return read_sleeper(reader, address, word);
	return bpf_probe_read_user(word, sizeof(*word), (void *)address);
}

/*
 * Two binary searches, for the last of some that begin not above an address. Their state is masked
 * at each step and their lengths are read anew, so that the verifier, which follows both ways of
 * each comparison, finds them the same at the next step.
 */

/* The mapping that holds an address. */
static __always_inline struct mapping *find_mapping(const struct user_scratch *out, __u64 address)
{
	__u32 below = out->zero, first = out->first;
	struct mapping *found;

	for (__u32 span = MAPPINGS / 2; span; span >>= 1) {
		__u32 next = below + span;

		if (next <= *(volatile __u32 *)&out->count &&
		    mappings[(first + next - 1) & (MAPPINGS - 1)].start <= address)
			below = next;
		below &= MAPPINGS - 1;
	}
	if (!below)
		return 0;
	found = &mappings[(first + below - 1) & (MAPPINGS - 1)];
	return address < found->end ? found : 0;
}

/* The number of the rule for an address of a mapping that has a table; 0 where there is none. */
static __always_inline __u32 find_rule(const struct user_scratch *out,
				       const struct mapping *mapping, __u64 address)
{
	__u32 below = out->zero, start, zero = 0, number;
	struct rows *rows;
	struct page *page;
	__u64 index;
	void *chunk;

	address -= mapping->bias;
	index = (address >> 16) - mapping->first_page;
	if (index >= mapping->pages)
		return 0;
	page = &pages[(mapping->directory + index) & (PAGES - 1)];
	number = page->chunk;
	chunk = bpf_map_lookup_elem(&chunks, &number);
	if (!chunk)
		return 0;
	rows = bpf_map_lookup_elem(chunk, &zero);
	if (!rows)
		return 0;
	start = page->start;
	address &= 0xffff;
	for (__u32 span = ROWS; span; span >>= 1) {
		__u32 next = below + span;

		if (next <= *(volatile __u32 *)&page->rows &&
		    rows->row[(start + next - 1) & (ROWS - 1)].low <= address)
			below = next;
		below &= 2 * ROWS - 1;
	}
	return below ? rows->row[(start + below - 1) & (ROWS - 1)].rule : 0;
}

/* Takes one frame down and goes to its caller; not 0 when the walk has ended. */
static __always_inline int step(struct user_scratch *out, void *reader)
{
	const struct mapping *mapping;
	__u32 end, number;
	__u64 address;

	if (out->depth >= DEEPEST) {
		out->end = UNWIND_DEEP;
		return 1;
	}
	address = unwind_at(&out->state);
	mapping = find_mapping(out, address);
	out->stuck = out->depth;
	/* A caller where no code is was no caller. The leaf is where it is. */
	if (mapping || !out->depth) {
		out->words[out->depth & (WINDOW_WORD - 1)] = address;
		out->depth++;
	}
	if (!mapping) {
		out->end = UNWIND_NO_MAPPING;
		return 1;
	}
	if (mapping->kind == MAPPING_PENDING) {
		out->end = UNWIND_NO_TABLE;
		out->pending = 1;
		return 1;
	}
	number = mapping->kind == MAPPING_TABLE ? find_rule(out, mapping, address) : 0;
	if (number) {
		end = unwind_leave(&out->state, &rules[number & (RULES - 1)], reader);
	} else {
		out->guessed = 1;
		end = unwind_guess(&out->state, reader);
	}
	out->end = end;
	return end != UNWIND_ON;
}

/* A function of its own, which the verifier looks at once. */
__attribute__((noinline)) int unwind_step(__u32 place)
{
	struct user_scratch *out = bpf_map_lookup_elem(&user_scratch, &place);

	return out ? step(out, 0) : 1;
}

static long sleeper_step(__u64 index, struct sleeper *sleeper)
{
	(void)index;
	return step(sleeper->out, sleeper);
}

/* Reads a piece of the stack of the thread that runs, or of another one. */
static __always_inline long read_piece(void *to, __u32 size, __u64 from, struct task_struct *other)
{
	return other ? bpf_copy_from_user_task(to, size, (void *)from, other, 0)
		     : bpf_probe_read_user(to, size, (void *)from);
}

/* Masked where it is used, so that the verifier sees what the compiler knows; `words` has room for
 * a piece beyond. */
static __always_inline __u64 *word_at(struct user_scratch *out, __u32 place)
{
	barrier_var(place);
	return out->words + (place & (USER_WORDS - 1));
}

/* Copies what the walk can go on by from the frame that could not be left: its registers, and the
 * stack from its pointer on, so many pieces and a part of one. */
static __always_inline void copy_stack(struct user_scratch *out, struct task_struct *other,
				       __u32 pieces)
{
	const __u32 most = other ? SLEEPERS_WORDS : MOST_WORDS;
	__u64 from = out->state.registers[UNWIND_SP];
	__u32 place = out->stuck & (WINDOW_WORD - 1);

	out->record.walked = place;
	out->record.known = out->state.known;
	out->record.exact = out->state.exact;
	__builtin_memcpy(word_at(out, place), out->state.registers, sizeof(out->state.registers));
	place += UNWIND_REGISTERS;
	*word_at(out, place++) = out->state.pc;
	/* Where it can't be read, it is filled with zeros. */
	read_piece(word_at(out, place), RED_ZONE, from - RED_ZONE, other);
	place += RED_ZONE / 8;
	for (__u32 piece = 0; piece < PIECES && piece < pieces; piece++) {
		if (place > most - PIECE / 8 || read_piece(word_at(out, place), PIECE, from, other))
			break;
		place += PIECE / 8;
		from += PIECE;
	}
	for (__u32 piece = 0; piece < PIECE / SMALL_PIECE; piece++) {
		if (place > most - SMALL_PIECE / 8 ||
		    read_piece(word_at(out, place), SMALL_PIECE, from, other))
			break;
		place += SMALL_PIECE / 8;
		from += SMALL_PIECE;
	}
	out->record.head.flags |= ENTRY_COPIED;
	out->record.head.frames = place;
	out->record.guessed &= !!out->stuck;
}

/* Does anybody follow the process of a thread, as far as is known? */
static __always_inline bool is_followed(struct task_struct *task)
{
	__u32 pid = task->tgid;
	struct process *process = bpf_map_lookup_elem(&processes, &pid);

	return !process || !process->ignored || process->execution != (__u32)task->self_exec_id;
}

/* Begins the record of where a thread is in user mode. */
static __always_inline void describe_entry(struct user_scratch *out, struct task_struct *task,
					   __u32 number, __u32 cpu)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	describe(&out->record.head, task, bpf_ktime_get_ns(), cpu, RECORD_ENTRY, 0);
	out->record.head.entry = number;
	user_registers(regs, &out->state.pc, out->state.registers);
	out->state.known = (1 << UNWIND_REGISTERS) - 1;
	out->state.exact = 1;
	out->depth = 0;
	out->guessed = 0;
	out->stuck = 0;
	out->pending = 0;
	out->record.ip = out->state.pc;
	out->record.sp = out->state.registers[UNWIND_SP];
	out->record.execution = task->self_exec_id;
	out->record.version = 0;
	out->record.walked = out->record.known = out->record.exact = 0;
	out->end = is_narrow(regs) ? UNWIND_UNSUPPORTED : UNWIND_NO_MAPPING;
}

/* What is known of the process of a thread, for the program that it executes. A process that was
 * just forked has what its parent has: if that has changed since, what is walked by it is not
 * believed. */
static __always_inline struct process *known_process(struct task_struct *task)
{
	__u32 pid = task->tgid, parent = task->real_parent->tgid;
	struct process *process = bpf_map_lookup_elem(&processes, &pid);

	if (!process)
		process = bpf_map_lookup_elem(&processes, &parent);
	return process && process->execution == (__u32)task->self_exec_id ? process : 0;
}

/* Are the mappings of the thread's process known? Then the walk can begin. */
static __always_inline bool begin_walk(struct user_scratch *out, struct task_struct *task)
{
	struct process *process = known_process(task);

	if (out->end == UNWIND_UNSUPPORTED) {
		out->words[0] = out->state.pc;
		out->depth = 1;
		return false;
	}
	if (!process)
		return false;
	out->record.version = process->version;
	out->first = process->first;
	out->count = process->count;
	return true;
}

/* Is a copy needed, because something is not known yet? */
static __always_inline bool end_walk(struct user_scratch *out, struct task_struct *task)
{
	out->record.head.frames = out->depth;
	out->record.end = out->end;
	out->record.guessed = out->guessed;
	/* Where nothing is known to be mapped, something may have been since the mappings were
	 * told: user space hears of it in time. */
	if (out->end == UNWIND_NO_MAPPING && out->stuck) {
		/* So a frame before may have been left by the wrong table: from the beginning. */
		user_registers((struct pt_regs *)bpf_task_pt_regs(task), &out->state.pc,
			       out->state.registers);
		out->state.known = (1 << UNWIND_REGISTERS) - 1;
		out->state.exact = 1;
		out->stuck = 0;
	}
	return out->pending || out->end == UNWIND_NO_MAPPING;
}

/* Walks the user stack of the thread that runs, or copies it. */
static __always_inline void take_user_stack(struct user_scratch *out, struct task_struct *task,
					    __u32 place, __u32 cpu)
{
	__u32 full;

	if (begin_walk(out, task))
		for (__u32 frame = 0; frame <= DEEPEST; frame++)
			if (unwind_step(place))
				break;
	if (!end_walk(out, task))
		return;
	full = fullness(cpu);
	if (full < 4)
		copy_stack(out, 0, full < 2 ? PIECES : FEW_PIECES);
	else
		out->record.end = UNWIND_NO_TABLE;
}

/* The same of a thread that does not run. */
static __always_inline void take_sleepers_stack(struct user_scratch *out, struct task_struct *task)
{
	struct sleeper sleeper = {.out = out, .task = task};

	out->window = -(__u64)WINDOW;
	if (begin_walk(out, task))
		bpf_loop(DEEPEST + 1, sleeper_step, &sleeper, 0);
	if (end_walk(out, task))
		copy_stack(out, task, PIECES);
}

/* Sends it. */
static __always_inline void send_user_stack(struct user_scratch *out, struct cpu_books *book,
					    __u32 cpu)
{
	__u64 size = sizeof(out->record) + 8 * (__u64)out->record.head.frames;

	if (!send(cpu, &out->record, USER_RECORD_LENGTH(size)))
		__sync_fetch_and_add(&book->entries_lost, 1);
}

_Static_assert(sizeof(struct entry_record) + 8 * MOST_WORDS < 8 * USER_WORDS,
	       "longer than its mask");

#endif
