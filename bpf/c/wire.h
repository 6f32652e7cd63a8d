/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What crosses from the kernel to user space, defined once, here. The Rust mirror is
 * bpf/src/wire.rs; both sides assert the sizes. Numbers are append-only; padding is named and
 * zeroed.
 */
#ifndef KCOLLECT_WIRE_H
#define KCOLLECT_WIRE_H

/* As many frames as the kernel keeps at its default (kernel.perf_event_max_stack). */
#define MAX_FRAMES 127

/* As the kernel keeps a thread's name. */
#define NAME_LENGTH 16

enum record_kind {
	TICK_USER = 0,	    /* the CPU was in user mode: no stack */
	TICK_KERNEL = 1,    /* in the kernel: the kernel stack, leaf first */
	TICK_IDLE = 2,	    /* the idle task, and no interrupt's work on top of it: no stack */
	RECORD_ABSENCE = 3, /* a thread came back to a CPU and boundaries had passed while it was
			       away, in the stack */
	RECORD_THREAD = 4,  /* struct thread_record */
	RECORD_ENTRY = 5,   /* struct entry_record */
	RECORD_BIRTH = 6,   /* a process was made whose parent waits until it has executed a program
			       or ended; `time` is its own start */
	RECORD_OVERFLOW = 7, /* struct overflow_record */
};

enum record_flags {
	TICK_IRQ_WORK =
		1, /* off the thread's own stack: an interrupt or softirq borrowed the CPU */
	TICK_TRUNCATED = 2, /* the stack was deeper than MAX_FRAMES */
	TICK_NO_STACK = 4,  /* the kernel gave no stack: the leaf alone is here, or nothing */
	THREAD_ENDED = 8,   /* the last of this thread; else it lives on */
	EXITING = 16, /* the thread ends: it will not be in user mode again, and gives its memory up
		       */
	TICK_LEAVING = 32, /* taken when the thread left its CPU: the first frames are those of the
			      taking */
	ENTRY_COPIED = 64, /* it was walked to some frame, of which a copy follows */
	OF_KERNEL = 128,   /* the thread is the kernel's own */
};

/* What every record begins with. Ticks and absences: followed by `frames` 64-bit addresses. */
struct record {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 cpu;
	__u32 pid;     /* the process (thread group), initial pid namespace; 0 is idle */
	__u32 tid;     /* the thread */
	__u32 ticks;   /* interval boundaries this record stands for; of a tick: 1 unless the timer
			  was held up */
	__u32 blocked; /* of an absence: those of `ticks` that fell into `state`; the rest fell into
			  WAIT_CPU */
	__u32 entry; /* number of the thread's next entry to user mode, which tells its user stack;
			0: none is expected */
	__u8 kind;   /* enum record_kind */
	__u8 state;  /* of an absence, and of a thread: enum state */
	__u8 detail; /* of the same: enum detail */
	__u8 flags;  /* enum record_flags */
	__u16 frames;
	__u16 zero;
	char name[NAME_LENGTH]; /* the thread's, padded with zeros */
};

/* The books of one CPU, written by programs that run on it with interrupts off; boundaries, not
 * firings. What was sent is user + kernel + idle - unsent - lost; what the CPU lived through while
 * recording is user + kernel + idle. Three cache lines, so that CPUs don't share. */
struct cpu_books {
	__u64 origin; /* struct grid; 0 while the CPU has no clock */
	__u64 index;
	__u64 user;
	__u64 kernel;
	__u64 idle;
	__u64 unsent; /* idle boundaries not sent, by request (-x on) */
	__u64 lost;   /* boundaries whose record found no room in the ring */
	__u64 lost_records;
	__u64 made_up; /* boundaries beyond the first of a firing on a busy CPU: the timer was held
			  up */
	__u64 truncated; /* records with TICK_TRUNCATED */
	__u64 no_stack;	 /* records with TICK_NO_STACK */
	__u64 last;	 /* when the clock last fired or idleness was last counted, ns */
	__u64 in_idle;	 /* the CPU is in the idle loop's sleep, interrupts on top of it included */
	__u64 next;	 /* the next boundary, CLOCK_MONOTONIC */
	__u64 offset;	 /* scheduler's clock minus CLOCK_MONOTONIC */
	__u64 offset_stale;  /* not taken since the last tick */
	__u64 absences_lost; /* boundaries in absence records that found no room */
	__u64 threads_lost;  /* thread records that found no room, or threads for which there was no
				memory */
	__u64 begun;	     /* the begin_ns that the grid knows of */
	__u64 entries_lost;  /* entries to user mode that could not be waited for or told */
	__u64 births_lost;   /* records of a birth that found no room in the ring */
	__u64 busy; /* a program runs on this CPU that no other may disturb in its work on threads;
		       where counters overflow */
	__u64 home; /* the origin when data began, or when the clock was started since */
	__u64 zero[1];
};

/* What the kernel counts of a thread by itself, since the thread was watched first. */
enum counter {
	MINOR_FAULTS,
	MAJOR_FAULTS,
	VOLUNTARY_SWITCHES,
	INVOLUNTARY_SWITCHES,
	READ_CHARS, /* by read(2) and the like, from anything */
	WRITTEN_CHARS,
	READ_CALLS,
	WRITE_CALLS,
	READ_BYTES,    /* from block devices */
	WRITTEN_BYTES, /* to block devices, at last */
	COUNTERS,
};

/* A thread's account: of one that ends, when it ends; of all that live, whenever they are walked.
 * Sums since it was watched first. */
struct thread_record {
	struct record head; /* state and detail: of the open interval */
	__u64 task; /* tells it from all threads that live at that time, whatever becomes of its tid
		     */
	__u64 as_of;  /* what follows is what it did until then, CLOCK_MONOTONIC, ns */
	__u64 since;  /* when the open interval began, CLOCK_MONOTONIC, ns; before that nothing
			 changed */
	__u64 lived;  /* how long it was watched, ns */
	__u64 ns[13]; /* by enum state; on a CPU, in whatever mode: the first; and by enum detail */
	__u64 counts[COUNTERS]; /* by enum counter */
};

/* A thread of which records with this number were sent goes back to user mode, or was there: the
 * place in which its user stack was all the time. Followed by `frames` 64-bit words: the user
 * stack, leaf first, callers as addresses inside the call; the last part of it may be a copy of
 * what it is to be walked by: the registers of the frame that could not be left, by DWARF number,
 * its pc, and the stack from RED_ZONE below its pointer on. */
struct entry_record {
	struct record head; /* entry: the number */
	__u64 ip;
	__u64 sp;
	__u32 execution; /* how often the thread had executed a program */
	__u32 version; /* of the process's mappings, by which the stack was walked; 0: it was not */
	__u8 end;      /* enum unwind_end */
	__u8 guessed;  /* a frame was left by its frame pointer */
	/* Of a copy: */
	__u16 walked; /* so many frames come before it */
	__u16 known;  /* a bit for each register of the frame that is known */
	__u16 exact;  /* its pc is where it was interrupted, not a return address */
};

/* A counter has overflowed in a thread that was on the CPU. Followed by `frames` 64-bit addresses:
 * the kernel stack, leaf first; none in user mode. */
struct overflow_record {
	struct record head;
	__u64 value;   /* how many events it stands for */
	__u32 counter; /* which: as load.rs numbers them */
	__u32 zero;
};

/* A counter on one CPU. */
struct counted {
	__u64 since;  /* of a tracepoint: events since the last overflow */
	__u64 events; /* of a tracepoint: all events */
	__u64 sent;   /* events that records stand for, */
	__u64 lost;   /* and those of records that found no room in the ring */
};

_Static_assert(sizeof(struct record) == 56, "wire.rs mirrors this");
_Static_assert(sizeof(struct thread_record) == 272, "wire.rs mirrors this");
_Static_assert(sizeof(struct entry_record) == 88, "wire.rs mirrors this");
_Static_assert(sizeof(struct overflow_record) == 72, "wire.rs mirrors this");
_Static_assert(sizeof(struct counted) == 32, "overflow.rs mirrors this");
_Static_assert(sizeof(struct cpu_books) == 192, "wire.rs mirrors this");

#endif
