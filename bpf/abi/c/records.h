/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The records that the BPF programs send to user space. Numbers are append-only. Padding is named
 * and zero: with other padding, the Rust side does not compile. Fields of an enumeration's numbers
 * are integers, since Rust's enumerations are smaller than C's (-fshort-enums in build.rs).
 */
#ifndef KCOLLECT_RECORDS_H
#define KCOLLECT_RECORDS_H

#include "integers.h"
#include "unwind_tables.h"

/* Max frames of a kernel stack in a record: as many as the kernel keeps by default
 * (kernel.perf_event_max_stack). */
#define MAX_KERNEL_FRAMES 127

/* The deepest user stack that is unwound. */
#define MAX_USER_FRAMES 1000

/* The red zone of the ABI: a function may use as much below its stack pointer, so a stack copy
 * begins there. OpenSSL's SHA-2 has its frame address there. */
#define RED_ZONE_BYTES 128

/* Max words that can follow a user_return_record. */
#define MAX_USER_RETURN_WORDS 8192

/* Bytes of an iterator over threads that are read at once. As many less one may be in the kernel's
 * buffer when a program writes the records of the next thread. */
#define ITERATOR_READ_BYTES 4096

/* The kernel's TASK_COMM_LEN. */
#define NAME_BYTES 16

/* The microstates of a thread, numbered as in the experiment. The three of a thread on a CPU are
 * distinguished by ticks; the programs add them up as one time, under STATE_USER. */
enum state {
	STATE_USER = 0,
	STATE_SYSTEM = 1,
	STATE_TRAP = 2,
	STATE_TEXT_FAULT = 3,
	STATE_DATA_FAULT = 4,
	STATE_KERNEL_FAULT = 5,
	STATE_USER_LOCK = 6,
	STATE_SLEEP = 7,
	STATE_WAIT_CPU = 8,
	STATE_STOPPED = 9,
};

/* The number of microstates. */
#define STATES 10

/* What is known of a state interval in addition to its state. The times of details are summed like
 * the times of states, and are numbered after them. */
enum detail {
	/* Of a blocked time, in whatever state: the scheduler counts it as a wait for block I/O. */
	DETAIL_BLOCK_IO = 10,
	/* Of WAIT_CPU: the thread was preempted. The rest of WAIT_CPU begins with a wake-up. */
	DETAIL_PREEMPTED = 11,
	/* Of WAIT_CPU: the thread was preempted because its cgroup's quota was used up. */
	DETAIL_THROTTLED = 12,
	/* Of WAIT_CPU: the hypervisor ran something else while the thread was on the CPU. */
	DETAIL_STOLEN = 13,
	/* No detail; its sum is not read. */
	DETAIL_NONE = 15,
};

/* One more than the last detail whose times are summed. */
#define DETAILS_END (DETAIL_STOLEN + 1)

/* Why a thread was blocked, and so whether it suffered or was idle (docs/waits.md). The numbers are
 * those of the experiment. */
enum cause {
	/* Neither: what ended the wait says too little, or was not seen. */
	CAUSE_UNDECIDED = 0,

	/* Suffered: the thread needed it in the middle of work. */
	CAUSE_DEVICE = 1,      /* block I/O */
	CAUSE_KERNEL = 2,      /* a lock of the kernel, or another wait that no signal ends */
	CAUSE_LOCK = 3,	       /* a lock of the program */
	CAUSE_CHILD = 4,       /* a child process */
	CAUSE_WRITE = 5,       /* space in something that it writes to */
	CAUSE_THREAD_END = 6,  /* the end of a thread */
	CAUSE_ANSWER = 7,      /* an answer to what it had asked */
	CAUSE_MIDDLE = 8,      /* another thread, in a place where it does not take work */

	/* Idle: it had nothing to do. */
	CAUSE_TIMER = 9,       /* its own timer */
	CAUSE_OUTSIDE = 10,    /* an interrupt: the network, a terminal, another device */
	CAUSE_NEW_WORK = 11,   /* work that it had not asked for */

	/* Neither: it was still blocked at the end. */
	CAUSE_NOT_ENDED = 12,
};

/* The number of causes. */
#define CAUSES 13

_Static_assert(CAUSES == CAUSE_NOT_ENDED + 1, "one more than the last one");

/* Sums of causes: of waits in STATE_USER_LOCK from LOCK_CAUSES on, of all others below it. A power
 * of two, so that a mask bounds an index for the verifier. */
#define LOCK_CAUSES 16
#define CAUSE_SLOTS (2 * LOCK_CAUSES)

/* What a record is. */
enum record_kind {
	/* A tick in user mode: no stack. */
	TICK_USER = 0,
	/* A tick in the kernel, with the kernel stack, leaf first. */
	TICK_KERNEL = 1,
	/* A tick in the idle task with no interrupt's work on top of it: no stack. */
	TICK_IDLE = 2,
	/* A thread is on a CPU again, and boundaries passed in its off-CPU interval. With the
	 * kernel stack of that interval. */
	RECORD_OFF_CPU = 3,
	/* struct thread_record */
	RECORD_THREAD = 4,
	/* struct user_return_record */
	RECORD_USER_RETURN = 5,
	/* struct overflow_record */
	RECORD_OVERFLOW = 7,
	/* struct lock_wait_record */
	RECORD_LOCK_WAIT = 8,
	/* struct io_call_record */
	RECORD_IO_CALL = 9,
	/* struct block_record */
	RECORD_BLOCK = 10,
	/* struct io_call_record, of an operation that a thread handed to io_uring: its result is
	 * not known yet. A RECORD_IO_CALL follows, with the same user stack. */
	RECORD_IO_SUBMITTED = 11,
	/* struct io_file_record */
	RECORD_IO_FILE = 12,
};

/* Facts of a record in addition to its kind. */
enum record_flags {
	/* An interrupt or softirq ran on the CPU, off the thread's own stack. */
	FLAG_IRQ_WORK = 1,
	/* The stack was deeper than the kernel's limit. */
	FLAG_TRUNCATED = 2,
	/* The kernel returned no stack: the record has the leaf alone, or nothing. */
	FLAG_NO_STACK = 4,
	/* The last record of this thread. */
	FLAG_THREAD_EXITED = 8,
	/* The thread is exiting: it will not be in user mode again, and frees its memory. */
	FLAG_EXITING = 16,
	/* The tick was taken in a context switch: the first frames belong to the BPF program. */
	FLAG_AT_SWITCH_OUT = 32,
	/* The user stack was unwound to some frame, and a stack copy follows. */
	FLAG_STACK_COPY = 64,
	/* A thread of the kernel. */
	FLAG_KERNEL_THREAD = 128,
	/* A thread that the kernel made in a process, such as a worker of io_uring or vhost. It
	 * never runs user code. */
	FLAG_USER_WORKER = 256,
};

/* The beginning of every record. In ticks and off-CPU records, `frames` 64-bit addresses follow. */
struct record_header {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 cpu;
	__u32 pid; /* thread group, initial pid namespace; 0 is idle */
	__u32 tid;
	/* Boundaries that this record stands for; 1 for a tick, unless the timer was late. */
	__u32 ticks;
	/* Off-CPU record: the part of `ticks` spent in `state`; the rest is WAIT_CPU. Tick: the
	 * part of `ticks` that passed while the hypervisor ran something else. Thread record: 1 if
	 * the thread had a page fault in the kernel. */
	__u32 blocked;
	/* Number of the thread's next return to user mode, whose record has the user stack; 0 when
	 * none will come. */
	__u32 user_return;
	__u8 kind;   /* enum record_kind */
	__u8 state;  /* of an off-CPU and a thread record: enum state */
	__u8 detail; /* of the same: enum detail */
	__u8 cause;  /* of an off-CPU record, of its blocked part: enum cause */
	__u16 frames;
	__u16 flags; /* enum record_flags */
	char name[NAME_BYTES]; /* the thread's, padded with zeros */
	/* Off-CPU record: the thread that woke this one; 0: an interrupt did, or it was not
	 * seen. */
	__u32 waker;
	__u32 zero;
};

/* What the kernel counts of a thread by itself, since the thread was tracked first. */
enum kernel_count {
	MINOR_FAULTS,	      /* page faults without I/O */
	MAJOR_FAULTS,	      /* page faults with I/O */
	VOLUNTARY_SWITCHES,   /* the thread gave its CPU up */
	INVOLUNTARY_SWITCHES, /* it was preempted */
	READ_CHARS,	      /* bytes read by read(2) and the like, from anything */
	WRITTEN_CHARS,	      /* bytes written so */
	READ_CALLS,	      /* system calls that read */
	WRITE_CALLS,	      /* system calls that write */
	READ_BYTES,	      /* from block devices */
	WRITTEN_BYTES,	      /* to be written to block devices */
};

/* The number of these counts. */
#define KERNEL_COUNTS (WRITTEN_BYTES + 1)

/* A thread's exact times and counts since it was tracked first: sent when the thread exits, and of
 * all living threads whenever they are iterated over. */
struct thread_record {
	struct record_header header; /* state and detail: of the open state interval */
	/* Address of the task_struct, which no other living thread has. A tid is reused sooner. */
	__u64 task;
	__u64 as_of_ns;	  /* the times and counts are those until then, CLOCK_MONOTONIC */
	__u64 since_ns;	  /* when the open state interval began, CLOCK_MONOTONIC */
	__u64 tracked_ns; /* for how long the thread was tracked */
	/* By enum state and enum detail; all time on a CPU is in the first. */
	__u64 ns[DETAILS_END];
	/* Blocked time by cause: see CAUSE_SLOTS. STATE_STOPPED is in none. */
	__u64 cause_ns[CAUSE_SLOTS];
	__u64 counts[KERNEL_COUNTS]; /* by enum kernel_count */
	__u64 cgroup;		     /* inode of its control group; 0: not read */
	__u32 hierarchy;	     /* that the group is in: 0 is version 2 */
	__u32 user;		     /* effective user id, initial user namespace */
};

/* Bits of user_return_record.via_scan: a caller was found by a scan of the stack (VIA_SCAN), and
 * nothing confirms one that a scan or the frame pointer found (UNCONFIRMED). */
#define VIA_SCAN    1
#define UNCONFIRMED 2

/* A thread returns to user mode, or was there, and records with this number were sent before: this
 * is the user stack of all of them. Followed by `frames` 64-bit words: the user stack, leaf first,
 * callers as addresses inside the call. The last part of it may be a stack copy: 16 general
 * registers of the frame that could not be unwound, by DWARF number, its pc, and the stack from
 * RED_ZONE_BYTES below its pointer on. */
struct user_return_record {
	struct record_header header; /* user_return: the number */
	__u64 ip;
	__u64 sp;
	/* Of a stack copy: the file at its pc, whose table was not there. Of others: the first
	 * anonymous code without a table, as in COPIED_CODE_DEVICE; 0: none. */
	struct code_file file;
	__u32 execution; /* task->self_exec_id: how often the process called exec */
	/* Which numbers `user_return` is one of: 0, as in struct io_call_record, or
	 * ALLOCATION_CALL_SITE. */
	__u32 call_site;
	__u8 end;		/* enum unwind_end */
	__u8 via_frame_pointer; /* a caller was found by the frame pointer */
	/* Of a stack copy: */
	__u16 unwound; /* number of frames before it */
	__u16 known;   /* a bit for each register of the frame that is known */
	__u8 exact;    /* its pc is where it was interrupted, not a return address */
	/* Of the frames: a caller was found by a scan of the stack (VIA_SCAN), and by one, or by a
	 * frame pointer, that nothing confirms (UNCONFIRMED). */
	__u8 via_scan;
};

/* A counter overflowed while the thread was on the CPU. Followed by `frames` 64-bit addresses: the
 * kernel stack, leaf first; none in user mode. */
struct overflow_record {
	struct record_header header;
	__u64 value;   /* number of events that it stands for */
	__u32 counter; /* index, as user space numbers them */
	__u32 zero;
};

/* A thread is on a CPU again after it was blocked in a futex. `time_ns` is when it was switched
 * in, `state` is the state of the wait. Followed by `frames` 64-bit addresses: the kernel stack of
 * the wait, leaf first. */
struct lock_wait_record {
	struct record_header header;
	__u64 begin_ns; /* when it blocked, CLOCK_MONOTONIC */
	__u64 object;	/* address of the futex word, or of futex_waitv(2)'s array; 0: unknown */
	/* futex(2)'s command, as in <linux/futex.h>; the number of any other system call. */
	__u32 operation;
	__u32 zero;
};

/* The operation of a wait whose end was not seen. */
#define OPERATION_UNKNOWN 0xffff

/* What of a thread's memory goes with a traced system call. */
enum io_extra {
	EXTRA_NONE = 0,
	EXTRA_PATH = 1,		/* a path, which ends with NUL */
	EXTRA_DESCRIPTORS = 2,	/* two descriptors that the call returned, of 32 bits each */
	EXTRA_ADDRESS = 3,	/* a socket address, whose length is the next argument */
	EXTRA_PEER_ADDRESS = 4, /* one that the call returned */
	EXTRA_MESSAGE_BYTES = 5, /* of the messages that the call sent or received, 64 bits */
};

/* What is traced of a system call. */
struct traced_call {
	__u8 traced;	     /* 1: it is traced */
	__u8 extra;	     /* enum io_extra */
	__u8 extra_argument; /* which argument points to it, from 0 */
	__u8 zero;
};

/* Traced calls have a number below this one. They are kept by number: first 64-bit programs' calls,
 * then 32-bit programs' calls, then the operations of io_uring. */
#define IO_CALLS 512

/* Which numbers the number of a traced system call is one of. */
enum call_table {
	CALLS_NATIVE = 0,   /* of 64-bit programs */
	CALLS_COMPAT = 1,   /* of 32-bit programs */
	CALLS_IO_URING = 2, /* operations of io_uring */
};

/* Number of tables, a power of two: one per call_table, and an empty one. */
#define CALL_TABLES 4

/* Of an operation of io_uring, instead of a descriptor: the first number of the files that the
 * program has registered, and have no descriptor. */
#define FIRST_REGISTERED_FILE 0x40000000

/* Its second argument, if its result says among which registered files it is. */
#define ANY_REGISTERED_FILE 0xffffffff

/* Arguments of a call that a record has. */
#define IO_ARGUMENTS 4

/* A bit of the second argument of an operation of io_uring: more results follow. */
#define MORE_RESULTS (1ULL << 32)

/* Max bytes that a traced call brings from the thread's memory; a longer path is cut. */
#define MAX_IO_EXTRA_BYTES 512

/* A traced system call has ended: `time_ns` is when. Followed by `frames` 64-bit words, in which
 * the extra bytes are.
 *
 * Or an operation of io_uring has, which began when a thread handed it over. Its first argument is
 * the descriptor. The second one is, of an operation that opens, 0, or where among the registered
 * files its result is put, from 1 on; ANY_REGISTERED_FILE if the result says that; and
 * MORE_RESULTS. The third one is which file the first one is, and the fourth one which was opened
 * (struct io_file_record): of registered files alone, otherwise, or if that is not known, 0. */
struct io_call_record {
	struct record_header header; /* user_return: the number, of this call site */
	__u64 begin_ns;		     /* CLOCK_MONOTONIC; 0: the beginning was not seen */
	__s64 result;		     /* a negative error number of a call that failed */
	__u64 arguments[IO_ARGUMENTS];
	/* Which table its descriptors are in: address of the files_struct, which no other table has
	 * at that time. Processes may share one (CLONE_FILES). 0: not known. */
	__u64 files;
	__u32 call;	   /* the system call's number */
	__u16 extra_bytes; /* of what follows; MAX_IO_EXTRA_BYTES of a path that is longer */
	__u8 table;	   /* enum call_table */
	/* The user stacks of traced system calls are numbered for each call site of a thread, which
	 * is a hash of pc and stack pointer. So calls from several ones, in turn, send each stack
	 * once. ALLOCATION_CALL_SITE, if a function was probed and not the call. */
	__u8 call_site;
};

/* Where a file's path ends. */
enum path_end {
	PATH_CUT = 0,	   /* there is more of it */
	PATH_ROOTED = 1,   /* at the root */
	PATH_DETACHED = 2, /* the file is in no directory */
};

/* A registered file of io_uring was used. Followed by `frames` 64-bit words, in which its path is:
 * the names of the file, its directory and so on, each with a slash after it. */
struct io_file_record {
	struct record_header header; /* of the thread that handed over the operation */
	__u64 file;  /* in the arguments of its operations; two files have two numbers */
	__u64 inode; /* its number */
	__u32 mode;  /* with the file's type */
	__u16 bytes; /* of the path */
	__u16 end;   /* enum path_end */
};

/* Call sites are 1 to IO_CALL_SITES. */
#define IO_CALL_SITES 32

/* The user stacks of a thread's allocations are numbered by themselves, as if of this call site. */
#define ALLOCATION_CALL_SITE 33

/* What a probed function of an allocator does, named after the C function with the same
 * arguments. */
enum allocator_function {
	FUNCTION_MALLOC = 1,	     /* (size) */
	FUNCTION_CALLOC = 2,	     /* (count, size) */
	FUNCTION_REALLOC = 3,	     /* (block, size) */
	FUNCTION_REALLOCARRAY = 4,   /* (block, count, size) */
	FUNCTION_MEMALIGN = 5,	     /* (alignment, size) */
	FUNCTION_POSIX_MEMALIGN = 6, /* (where the address is put, alignment, size) */
	FUNCTION_NEW = 7,	     /* (size), by way of malloc where it is not an allocator's own */
	FUNCTION_FREE = 8,	     /* (block) */
	/* No functions, but USDTs of an allocator that samples blocks itself: (block, size, bytes
	 * of all blocks that it stands for) and (block). */
	FUNCTION_SAMPLED = 9,
	FUNCTION_SAMPLED_FREE = 10,
};

/* Where an argument of a USDT is. */
enum usdt_operand_kind {
	OPERAND_CONSTANT = 0, /* `offset` */
	OPERAND_REGISTER = 1, /* the value of a register */
	OPERAND_MEMORY = 2,   /* a word at a register and `offset` */
};

/* An argument of a USDT. */
struct usdt_operand {
	__u8 kind;    /* enum usdt_operand_kind */
	__u8 bytes;   /* its size: 1, 2, 4 or 8 */
	__u16 word;   /* index of the register's word in struct pt_regs */
	__s32 offset; /* a constant, or the distance from a register */
};

/* Max arguments of a USDT that are read. */
#define USDT_OPERANDS 3

/* The arguments of a USDT. */
struct usdt_operands {
	struct usdt_operand at[USDT_OPERANDS];
};

/* The cookie of a probe: an allocator_function, from bit PROBE_USE_SHIFT on the index of the
 * probe_use in which it is counted, from bit PROBE_COST_SHIFT on what a call takes longer by it,
 * nanoseconds, and from bit PROBE_OPERANDS_SHIFT on the index of the usdt_operands of
 * FUNCTION_SAMPLED and FUNCTION_SAMPLED_FREE. */
enum probe_cookie {
	PROBE_FUNCTION_MASK = 0xff, /* the allocator_function */
	PROBE_USE_SHIFT = 16,	    /* the first of 16 bits with the index of a probe_use */
	PROBE_COST_SHIFT = 32,	    /* the first of 16 bits with nanoseconds */
	PROBE_OPERANDS_SHIFT = 48,  /* the first bit of the index of the usdt_operands */
};

/* How much the probes of a process were used, on one CPU. */
struct probe_use {
	/* What they took, ns: a fixed cost of each call, and the measured time of the programs at
	 * sampled calls. */
	__u64 taken_ns;
	__u64 closed; /* 1: these probes are being taken out, and do nothing */
};

/* A block of an allocator was allocated: `time_ns` is when the call had returned; or freed: when
 * that was called. */
struct block_record {
	struct record_header header; /* user_return: the number, of ALLOCATION_CALL_SITE; or 0 */
	__u64 address;
	__u64 bytes; /* as the program asked for; 0 of one that was freed */
	/* Of all blocks that it stands for, where the program has sampled it; otherwise 0. */
	__u64 weighted_bytes;
	__u32 freed;
	__u32 zero;
};

_Static_assert(sizeof(struct record_header) == 64, "the same for every compiler");
_Static_assert(sizeof(struct thread_record) == 560, "the same for every compiler");
_Static_assert(sizeof(struct user_return_record) == 120, "the same for every compiler");
_Static_assert(sizeof(struct overflow_record) == 80, "the same for every compiler");
_Static_assert(sizeof(struct lock_wait_record) == 88, "the same for every compiler");
_Static_assert(sizeof(struct io_call_record) == 128, "the same for every compiler");
_Static_assert(sizeof(struct io_file_record) == 88, "the same for every compiler");
_Static_assert(sizeof(struct block_record) == 96, "the same for every compiler");
_Static_assert(sizeof(struct probe_use) == 16, "the same for every compiler");

#endif
