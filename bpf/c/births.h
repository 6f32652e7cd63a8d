/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Processes that begin in their parent's place: it stands still until the child has executed a
 * program or ended, as in vfork(2), and so in posix_spawn, system and popen. The side-band tells of
 * them as of any fork; here is what it leaves out.
 */
#ifndef KCOLLECT_BIRTHS_H
#define KCOLLECT_BIRTHS_H

#include "entry.h"

/* Of the system call's interface. */
#define CLONE_VFORK  0x00004000
#define CLONE_THREAD 0x00010000

SEC("tp_btf/task_newtask")
int on_birth(__u64 *ctx)
{
	struct task_struct *child = (void *)ctx[0];
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_books *book;
	struct record record;

	if (!tell_entries || (ctx[1] & (CLONE_VFORK | CLONE_THREAD)) != CLONE_VFORK)
		return 0;
	/* Of a moment before the side-band's record, so that who reads both in order knows it then.
	 */
	describe(&record, child, child->start_time, cpu, RECORD_BIRTH, 0);
	book = bpf_map_lookup_elem(&books, &cpu);
	if (!send(cpu, &record, sizeof(record)) && book)
		__sync_fetch_and_add(&book->births_lost, 1);
	return 0;
}

#endif
