/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tracing of allocators (-H on): blocks by sampled bytes, with the user stacks that allocated
 * them, and when they are freed. User space probes the functions of the allocators that a traced
 * process has (bpf/src/allocations.rs), with what each does in its cookie.
 *
 * Each thread counts the bytes that it asks for down from a random number; the block that has the
 * byte at zero is sampled. Nothing is kept of other blocks, and a freed block is looked up among
 * the sampled ones.
 *
 * A block's address is known when its call returns. A return probe costs as much as another probe,
 * so where the kernel has sessions (6.13) only the returns of sampled calls are probed. Otherwise
 * all returns are, and the stack pointer tells which of them count.
 *
 * What the probes of a process take is counted, so that user space can remove them if it is too
 * much.
 *
 * An allocator that samples blocks itself says so by USDTs, which are probed in place of functions:
 * they are reached for these blocks alone.
 *
 * These programs run in the thread, which may be preempted.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "arch.h"
#include "clock.h"
#include "draw.h"
#include "limits.h"
#include "record.h"
#include "user_return.h"
#include "user_scratch.h"
#include "user_stack.h"
#include "user_unwind.h"

char LICENSE[] SEC("license") = "GPL";

/* The mean of the bytes between two samples, as draw_bytes() needs it; 0: each block is sampled.
 * Set by bpf/src/allocations.rs, as the table. */
const volatile __u64 draw_scale;
const volatile __u32 log2_table[LOG2_STEPS + 1];

/* A function of an allocator needs no more stack until it calls another one. */
#define MAX_NESTED_BYTES 4096

/* A block that was sampled and is not freed. */
struct block {
	__u64 address;
	__u32 pid;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_BLOCKS);
	__type(key, struct block);
	__type(value, __u8);
} kc_blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_PROBE_USES);
	__type(key, __u32);
	__type(value, struct probe_use);
} kc_probe_uses SEC(".maps");

/* Where the arguments of USDTs are, by the index in the cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_USDT_OPERANDS);
	__type(key, __u32);
	__type(value, struct usdt_operands);
} kc_usdt_operands SEC(".maps");

/* What is kept of a thread that allocates. */
struct allocating_thread {
	__s64 left; /* bytes until the next sample */
	__u32 drawn;
	__u32 number; /* of its last user stack */
	/* The last call of a function that may call another probed function: where its return
	 * address is (0: no such call), the return address, and the function. */
	__u64 outer_sp, outer_caller, outer_function;
	/* The call whose return is awaited: where its return address is, or 0. */
	__u64 sp;
	__u64 bytes;
	__u64 entered_ns;
	__u64 old_address; /* the sampled block that it reallocates, or 0 */
	__u64 put_at;	   /* where it puts the address; 0: it returns that */
	__u32 user_return; /* the number of its user stack */
	__u32 sampled;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct allocating_thread);
} kc_allocating SEC(".maps");

/* A call of an allocator's function. */
struct call {
	__u64 function; /* enum allocator_function */
	__u64 block;	/* that it frees or reallocates, or 0 */
	__u64 bytes;	/* that it asks for */
	__u64 put_at;
};

static __always_inline __u64 product(__u64 count, __u64 size)
{
	/* One that does not fit is refused by the allocator. */
	return (count | size) >> 32 ? 0 : count * size;
}

static __always_inline struct call read_call(const struct pt_regs *regs, __u64 cookie)
{
	__u64 first = first_argument(regs), second = second_argument(regs);
	struct call call = {.function = cookie & PROBE_FUNCTION_MASK};

	switch (call.function) {
	case FUNCTION_MALLOC:
	case FUNCTION_NEW:
		call.bytes = first;
		break;
	case FUNCTION_CALLOC:
		call.bytes = product(first, second);
		break;
	case FUNCTION_REALLOC:
		call.block = first;
		call.bytes = second;
		break;
	case FUNCTION_REALLOCARRAY:
		call.block = first;
		call.bytes = product(second, third_argument(regs));
		break;
	case FUNCTION_MEMALIGN:
		call.bytes = second;
		break;
	case FUNCTION_POSIX_MEMALIGN:
		call.put_at = first;
		call.bytes = third_argument(regs);
		break;
	case FUNCTION_FREE:
		call.block = first;
		break;
	}
	return call;
}

static __always_inline __u64 probe_cost(__u64 cookie)
{
	return cookie >> PROBE_COST_SHIFT & 0xffff;
}

/* Counts what a probe takes. Returns where, or NULL if the probe is being removed. */
static __always_inline struct probe_use *count_probe(__u64 cookie)
{
	__u32 index = cookie >> PROBE_USE_SHIFT & 0xffff;
	struct probe_use *use = bpf_map_lookup_elem(&kc_probe_uses, &index);

	if (!use || use->closed)
		return 0;
	use->taken_ns += probe_cost(cookie);
	return use;
}

static __always_inline void count_lost(__u32 cpu)
{
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);

	if (stats)
		__sync_fetch_and_add(&stats->blocks_lost, 1);
}

static __always_inline bool send_record(struct task_struct *task, struct block_record *record,
					__u64 time_ns, __u32 user_return)
{
	__u32 cpu = bpf_get_smp_processor_id();

	describe(&record->header, task, time_ns, cpu, RECORD_BLOCK, 0);
	record->header.user_return = user_return;
	if (send(cpu, record, sizeof(*record)))
		return true;
	count_lost(cpu);
	return false;
}

static __always_inline bool send_block(struct task_struct *task, __u64 time_ns, __u64 address,
				       __u64 bytes, bool freed, __u32 user_return)
{
	struct block_record record = {.address = address, .bytes = bytes, .freed = freed};

	return send_record(task, &record, time_ns, user_return);
}

/* Removes a block, before the allocator can allocate another one at its address. Returns whether it
 * was sampled. */
static __always_inline bool remove_block(struct task_struct *task, __u64 address)
{
	struct block block = {.address = address, .pid = task->tgid};

	return address && !bpf_map_delete_elem(&kc_blocks, &block);
}

/* Keeps a block that was sampled. Returns whether there is space. */
static __always_inline bool keep_block(struct task_struct *task, __u64 address)
{
	struct block block = {.address = address, .pid = task->tgid};
	__u8 kept = 1;

	/* A block that is already there was freed, and its free was missed. */
	return !bpf_map_update_elem(&kc_blocks, &block, &kept, 0);
}

/* A block is freed: sends that, if it was sampled. */
static __always_inline void free_block(struct task_struct *task, __u64 address, __u64 time_ns)
{
	if (remove_block(task, address))
		send_block(task, time_ns, address, 0, true, 0);
}

static __always_inline void draw(struct allocating_thread *thread)
{
	thread->left = draw_bytes(bpf_get_prandom_u32(), draw_scale, log2_table);
}

/* Counts the bytes of a call. Returns whether one of them is sampled. */
static __always_inline bool count_bytes(struct allocating_thread *thread, __u64 bytes)
{
	if (!draw_scale)
		return true;
	if (!thread->drawn) {
		thread->drawn = 1;
		draw(thread);
	}
	/* An allocator refuses more. */
	if (bytes >> 47)
		return false;
	thread->left -= bytes;
	if (thread->left > 0)
		return false;
	draw(thread);
	return true;
}

/* Whether a call is a part of another one, which is counted: realloc(0, size) calls malloc, for
 * example. The outer call's return address stays in place until that call returns. A later call
 * from the same place has the same return address, but calls the same function. */
static __always_inline bool is_nested(struct allocating_thread *thread, const struct call *call,
				      __u64 sp)
{
	__u64 outer_sp = thread->outer_sp, caller;

	if (!outer_sp)
		return false;
	if (sp <= outer_sp && outer_sp - sp < MAX_NESTED_BYTES &&
	    (sp < outer_sp || call->function != thread->outer_function) &&
	    !bpf_probe_read_user(&caller, sizeof(caller), (void *)outer_sp) &&
	    caller == thread->outer_caller)
		return true;
	thread->outer_sp = 0;
	return false;
}

static __always_inline void begin_outer(struct allocating_thread *thread, const struct call *call,
					__u64 sp)
{
	if (bpf_probe_read_user(&thread->outer_caller, sizeof(__u64), (void *)sp))
		return;
	thread->outer_sp = sp;
	thread->outer_function = call->function;
}

/* Unwinds the user stack of a sampled call. If a table is not there yet, the stack is copied only
 * while the ring has space for many: better a cut stack than a lost block. */
static __always_inline void capture_allocation(struct user_scratch *out, struct task_struct *task,
					       __u32 scratch_index, __u32 cpu)
{
	kc_unwind_stack(scratch_index);
	if (out->pending && fullness(cpu) && !wakeup_allowed_on(out, cpu)) {
		end_unwind(out, task);
		out->record.end = UNWIND_NO_TABLE;
		return;
	}
	kc_finish_capture(scratch_index, cpu);
}

/* Sends the user stack of a sampled call. Returns its number, or 0. */
static __always_inline __u32 send_allocation_stack(struct task_struct *task,
						   struct allocating_thread *thread)
{
	__u32 cpu = bpf_get_smp_processor_id(), scratch_index;
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);
	struct user_scratch *out;

	if (!stats || !capture_user_stacks)
		return 0;
	out = claim_scratch(cpu, &scratch_index);
	if (!out) {
		__sync_fetch_and_add(&stats->user_returns_lost, 1);
		return 0;
	}
	describe_user_return(out, task, ++thread->number, cpu);
	out->record.call_site = ALLOCATION_CALL_SITE;
	capture_allocation(out, task, scratch_index, cpu);
	send_user_stack(out, stats, cpu);
	out->busy = 0;
	return thread->number;
}

/* Whether the ring has space for a sampled block. Half of the ring is left to ticks, since blocks
 * may come without end. */
static __always_inline bool ring_has_space(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (fullness(cpu) < 4)
		return true;
	count_lost(cpu);
	return false;
}

/* An argument of a USDT; 0 if it can't be read. */
static __always_inline __u64 usdt_argument(const struct pt_regs *regs,
					   const struct usdt_operand *operand)
{
	__u64 value = 0;

	if (operand->kind == OPERAND_CONSTANT)
		return operand->offset;
	if (bpf_probe_read_kernel(&value, sizeof(value), (const __u64 *)regs + operand->word))
		return 0;
	if (operand->kind == OPERAND_MEMORY &&
	    bpf_probe_read_user(&value, sizeof(value), (void *)(value + operand->offset)))
		return 0;
	/* A smaller one is the low part of the word. */
	return operand->bytes < 8 ? value & ((1ULL << 8 * (operand->bytes & 7)) - 1) : value;
}

/* The allocator says that it has sampled a block. */
static __always_inline void on_allocator_sample(const struct pt_regs *regs,
						struct task_struct *task,
						const struct usdt_operands *operands)
{
	struct block_record record = {
		.address = usdt_argument(regs, &operands->at[0]),
		.bytes = usdt_argument(regs, &operands->at[1]),
		.weighted_bytes = usdt_argument(regs, &operands->at[2]),
	};
	struct allocating_thread *thread;

	if (!recording || !record.address || !record.bytes || !ring_has_space())
		return;
	thread = bpf_task_storage_get(&kc_allocating, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread || !keep_block(task, record.address)) {
		count_lost(bpf_get_smp_processor_id());
		return;
	}
	if (!send_record(task, &record, bpf_ktime_get_ns(), send_allocation_stack(task, thread)))
		remove_block(task, record.address);
}

/* A USDT of the allocator is reached. */
static __always_inline void reach_usdt(const struct pt_regs *regs, struct task_struct *task,
				       __u64 cookie, struct probe_use *use)
{
	__u64 start_ns = bpf_ktime_get_ns();
	__u32 index = cookie >> PROBE_OPERANDS_SHIFT;
	struct usdt_operands *operands = bpf_map_lookup_elem(&kc_usdt_operands, &index);

	if (!operands)
		return;
	if ((cookie & PROBE_FUNCTION_MASK) == FUNCTION_SAMPLED_FREE) {
		free_block(task, usdt_argument(regs, &operands->at[0]), start_ns);
		return;
	}
	on_allocator_sample(regs, task, operands);
	use->taken_ns += bpf_ktime_get_ns() - start_ns;
}

/* A function of an allocator is called. Returns whether its return is awaited. */
static __always_inline bool enter(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 cookie = bpf_get_attach_cookie(regs), sp = user_sp(regs), now_ns;
	struct probe_use *use = count_probe(cookie);
	struct call call = read_call(regs, cookie);
	struct allocating_thread *thread;
	bool sampled;

	if (!use)
		return false;
	if (call.function >= FUNCTION_SAMPLED) {
		reach_usdt(regs, task, cookie, use);
		return false;
	}
	/* What is freed in a pause was allocated before. */
	if (call.function == FUNCTION_FREE || !recording) {
		free_block(task, call.block, bpf_ktime_get_ns());
		return false;
	}
	thread = bpf_task_storage_get(&kc_allocating, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread) {
		count_lost(bpf_get_smp_processor_id());
		return false;
	}
	if (is_nested(thread, &call, sp))
		return false;
	sampled = call.bytes && count_bytes(thread, call.bytes) && ring_has_space();
	if (!remove_block(task, call.block))
		call.block = 0;
	if (sampled || call.block || call.function >= FUNCTION_REALLOC)
		begin_outer(thread, &call, sp);
	if (!sampled && !call.block)
		return false;
	now_ns = bpf_ktime_get_ns();
	thread->user_return = sampled ? send_allocation_stack(task, thread) : 0;
	thread->sampled = sampled;
	thread->bytes = call.bytes;
	thread->entered_ns = now_ns;
	thread->old_address = call.block;
	thread->put_at = call.put_at;
	thread->sp = sp;
	/* The return is a probe too. */
	use->taken_ns += probe_cost(cookie) + bpf_ktime_get_ns() - now_ns;
	return true;
}

/* Sends a block that was sampled, and keeps it. */
static __always_inline void send_sampled_block(struct task_struct *task,
					       struct allocating_thread *thread, __u64 address)
{
	if (!keep_block(task, address))
		count_lost(bpf_get_smp_processor_id());
	else if (!send_block(task, bpf_ktime_get_ns(), address, thread->bytes, false,
			     thread->user_return))
		remove_block(task, address);
}

/* A function of an allocator returns. */
static __always_inline void leave(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct allocating_thread *thread = bpf_task_storage_get(&kc_allocating, task, 0, 0);
	__u64 address = return_value(regs);

	if (!thread || !thread->sp || thread->sp + RETURN_ADDRESS_BYTES != user_sp(regs))
		return;
	thread->sp = 0;
	thread->outer_sp = 0;
	if (thread->put_at &&
	    (address || bpf_probe_read_user(&address, sizeof(address), (void *)thread->put_at)))
		return;
	/* A block whose size becomes 0 is freed. One that can't be reallocated is still there. */
	if (thread->old_address && (address || !thread->bytes))
		send_block(task, thread->entered_ns, thread->old_address, 0, true, 0);
	else if (thread->old_address)
		keep_block(task, thread->old_address);
	if (thread->sampled && address)
		send_sampled_block(task, thread, address);
}

/* Whether the program of a session runs at the return of the function. */
static __always_inline bool is_return(struct pt_regs *regs)
{
	if (bpf_ksym_exists(bpf_session_is_return))
		return bpf_session_is_return(regs);
	return bpf_ksym_exists(bpf_session_is_return___no_context) &&
	       bpf_session_is_return___no_context();
}

/* A probe whose program decides at a call whether its return is probed. */
SEC("?uprobe.session")
int kc_allocator(struct pt_regs *regs)
{
	if (!is_return(regs))
		return !enter(regs);
	leave(regs);
	return 0;
}

/* The same in two programs, for older kernels. */
SEC("?uprobe")
int kc_allocator_in(struct pt_regs *regs)
{
	enter(regs);
	return 0;
}

SEC("?uretprobe")
int kc_allocator_out(struct pt_regs *regs)
{
	leave(regs);
	return 0;
}
