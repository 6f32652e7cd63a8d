/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The tracing of I/O by io_uring (-i): each operation that a thread of a followed process submits,
 * from then until it completes, with the user stack of that thread.
 *
 * What an operation does is known when it is submitted, and its result when it completes, on any
 * thread. In between its record is kept here. An operation that completes again and again
 * (multishot) posts all results but the last one without the request, with only its user data.
 *
 * A completion for which the ring has no space goes into a list, and its tracepoint has the user
 * data and the result, but not the request. These need not be unique, so the request is looked up
 * in the kernel's list of requests whose completions are being posted.
 *
 * If the program wants no completion of a successful operation (IOSQE_CQE_SKIP_SUCCESS), it ends
 * without a tracepoint. It is counted as lost when it is submitted.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "io_file.h"
#include "io_stack.h"
#include "io_trace.h"
#include "record.h"

char LICENSE[] SEC("license") = "GPL";

/* The third argument of io_uring_complete is a pointer to what completed, and not its user data,
 * after which its result comes. Set by bpf/src/io_uring.rs. */
const volatile bool completion_is_pointer;

/* Flags of a request, set by bpf/src/io_uring.rs; 0 if they are not known. The request has not
 * completed, but will be issued again. And: if it fails, the requests that are linked to it are
 * cancelled without completions. */
const volatile __u64 reissue_flag, skip_linked_flag;

/* A program has as many requests at a time as its queues are long, or more. Further requests count
 * as lost. */
#define MAX_IO_URING_REQUESTS 16384

/* A request, and 0; or a ring, and the user data of a request. */
struct io_request_key {
	__u64 object;
	__u64 user_data;
};

/* Requests that have not completed; those that complete more than once also by ring and user data.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_IO_URING_REQUESTS);
	__type(key, struct io_request_key);
	__type(value, struct io_call_record);
} kc_io_requests SEC(".maps");

/* Of <linux/io_uring.h>. */
enum {
	IORING_OP_RECVMSG = 10,
	IORING_OP_ACCEPT = 13,
	IORING_OP_OPENAT = 18,
	IORING_OP_CLOSE = 19,
	IORING_OP_RECV = 27,
	IORING_OP_OPENAT2 = 28,
	IORING_OP_SOCKET = 45,
	IORING_OP_READ_MULTISHOT = 49,
	/* Bits of a request's flags too. */
	IOSQE_FIXED_FILE = 1,
	IOSQE_CQE_SKIP_SUCCESS = 64,
	ECANCELED = 125,
};

static __always_inline bool may_complete_again(__u8 opcode)
{
	return opcode == IORING_OP_RECVMSG || opcode == IORING_OP_ACCEPT ||
	       opcode == IORING_OP_RECV || opcode == IORING_OP_READ_MULTISHOT;
}

/* Reads a member of what the requests of an operation begin with; 0 where the kernel has none. */
#define MEMBER(request, type, member)                                                       \
	({                                                                                  \
		__u32 value_ = 0;                                                           \
		if (bpf_core_field_exists(type, member))                                    \
			bpf_core_read(&value_, sizeof(value_), &((type *)request)->member); \
		value_;                                                                     \
	})

/* Number of the registered file that a request opens or closes, from 1 on; 0 for a descriptor. */
static __always_inline __u32 file_slot(const struct io_kiocb *request)
{
	switch (request->opcode) {
	case IORING_OP_OPENAT:
	case IORING_OP_OPENAT2:
		return MEMBER(request, struct io_open, file_slot);
	case IORING_OP_ACCEPT:
		return MEMBER(request, struct io_accept, file_slot);
	case IORING_OP_SOCKET:
		return MEMBER(request, struct io_socket, file_slot);
	case IORING_OP_CLOSE:
		return MEMBER(request, struct io_close, file_slot);
	}
	return 0;
}

/* The descriptor of a request, or the number of its registered file. */
static __always_inline __u32 descriptor_of(const struct io_kiocb *request, __u32 slot)
{
	if (request->opcode == IORING_OP_CLOSE)
		return slot ? FIRST_REGISTERED_FILE + slot - 1
			    : MEMBER(request, struct io_close, fd);
	return request->flags & IOSQE_FIXED_FILE ? FIRST_REGISTERED_FILE + request->cqe.fd
						 : request->cqe.fd;
}

/* Keeps the record of a request until it completes. Returns whether there is space. */
static __always_inline bool keep_request(const struct io_kiocb *request,
					 struct io_call_record *record)
{
	struct io_request_key key = {.object = (__u64)request};

	if (bpf_map_update_elem(&kc_io_requests, &key, record, 0))
		return false;
	if (!may_complete_again(record->call))
		return true;
	key.object = (__u64)request->ctx;
	key.user_data = request->cqe.user_data;
	/* Kept until there is a result, which does not come with the request. */
	record->arguments[3] = (__u64)request;
	return !bpf_map_update_elem(&kc_io_requests, &key, record, 0);
}

/* Notes which registered file an operation used, and which it has opened. */
static __always_inline void note_files(struct io_call_record *record,
				       const struct io_ring_ctx *ring,
				       const struct io_kiocb *request, __s64 result)
{
	__u32 place = record->arguments[1];

	record->arguments[3] = 0;
	/* What is closed is gone by now. */
	if (record->call == IORING_OP_CLOSE)
		return;
	if (BPF_CORE_READ(request, flags) & IOSQE_FIXED_FILE)
		record->arguments[2] = name_file(BPF_CORE_READ(request, file), &record->header);
	if (!place || result < 0)
		return;
	place = place == ANY_REGISTERED_FILE ? (__u32)result : place - 1;
	record->arguments[3] = name_file(registered_file(ring, place), &record->header);
}

static __always_inline void submit(struct cpu_stats *stats, struct task_struct *task,
				   struct io_record_scratch *out, const struct io_kiocb *request,
				   __u32 cpu)
{
	__u32 slot = file_slot(request);
	struct io_request_key key = {.object = (__u64)request};
	struct io_call_record *record = &out->record;
	struct io_thread *thread;

	describe(&record->header, task, bpf_ktime_get_ns(), cpu, RECORD_IO_CALL, 0);
	record->begin_ns = record->header.time_ns;
	record->result = 0;
	__builtin_memset(record->arguments, 0, sizeof(record->arguments));
	record->arguments[0] = descriptor_of(request, slot);
	record->arguments[1] = slot;
	if (request->opcode == IORING_OP_CLOSE && slot)
		record->arguments[2] = name_file(registered_file(request->ctx, slot - 1),
						 &record->header);
	record->call = request->opcode;
	record->extra_bytes = 0;
	record->table = CALLS_IO_URING;
	record->call_site = 0;
	record->files = files_of(task);
	/* The kernel's thread that polls a ring has no user stack. */
	thread = task->flags & PF_NO_USER_CODE
			 ? 0
			 : bpf_task_storage_get(&kc_io_threads, task, 0,
						BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (thread)
		capture_io_stack(task, thread, (struct pt_regs *)bpf_task_pt_regs(task), record,
				 cpu);
	/* The request was another operation's, whose end was not seen. */
	if (bpf_map_lookup_elem(&kc_io_requests, &key))
		stats->io_calls_lost++;
	if (!keep_request(request, record)) {
		stats->io_calls_lost++;
		return;
	}
	if (!record->header.user_return)
		return;
	record->header.kind = RECORD_IO_SUBMITTED;
	record->header.time_ns = bpf_ktime_get_ns();
	if (!send(cpu, record, sizeof(*record)))
		stats->io_calls_lost++;
}

static __always_inline void submit_with_scratch(struct cpu_stats *stats, struct task_struct *task,
						const struct io_kiocb *request, __u32 cpu)
{
	struct io_record_scratch *out = claim_io_record(stats);

	if (!out)
		return;
	submit(stats, task, out, request, cpu);
	out->busy = 0;
}

/* Linux 6.1 calls it io_uring_submit_sqe: bpf/src/io_uring.rs. */
SEC("tp_btf/io_uring_submit_req")
int kc_io_submit(__u64 *ctx)
{
	const struct io_kiocb *request = (const struct io_kiocb *)ctx[0];
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = traced_on(task, CALLS_IO_URING * IO_CALLS + request->opcode, cpu);

	if (!stats || !is_process_traced(stats, task))
		return 0;
	/* Its end would not be seen. */
	if (request->flags & IOSQE_CQE_SKIP_SUCCESS) {
		stats->io_calls_lost++;
		return 0;
	}
	WITH_INTERRUPTS_OFF(submit_with_scratch(stats, task, request, cpu));
	return 0;
}

static __always_inline void send_completion(struct io_call_record *record, __s64 result)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_stats *stats = bpf_map_lookup_elem(&kc_cpu_stats, &cpu);

	if (!recording || !stats)
		return;
	record->header.time_ns = bpf_ktime_get_ns();
	record->header.cpu = cpu;
	record->result = result;
	if (!send(cpu, record, sizeof(*record)))
		stats->io_calls_lost++;
}

/* Sends a result of an operation that completes again. */
static __always_inline void send_result(struct io_call_record *record,
					const struct io_ring_ctx *ring, __s64 result)
{
	const struct io_kiocb *request = (const struct io_kiocb *)record->arguments[3];

	record->arguments[1] |= MORE_RESULTS;
	note_files(record, ring, request, result);
	send_completion(record, result);
	/* The next result is waited for from now on. */
	record->begin_ns = record->header.time_ns;
	record->arguments[3] = (__u64)request;
}

/* A request whose completion was posted last on a CPU. */
struct last_posted {
	__u64 ring;
	__u64 request;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct last_posted);
} kc_io_posted SEC(".maps");

/* Sends the operation of a request that has completed. */
static __always_inline void complete_request(const struct io_ring_ctx *ring,
					     const struct io_kiocb *request,
					     const struct io_cqe *completion)
{
	struct io_request_key key = {.object = (__u64)request};
	struct io_request_key results_key = {.object = (__u64)ring};
	struct io_call_record *record, *results;
	struct last_posted *last;

	last = only_element(&kc_io_posted);
	if (last) {
		last->ring = (__u64)ring;
		last->request = (__u64)request;
	}
	record = bpf_map_lookup_elem(&kc_io_requests, &key);
	if (!record)
		return;
	results_key.user_data = completion->user_data;
	results = may_complete_again(record->call)
			  ? bpf_map_lookup_elem(&kc_io_requests, &results_key)
			  : 0;
	if (results) {
		record->begin_ns = results->begin_ns;
		bpf_map_delete_elem(&kc_io_requests, &results_key);
	}
	note_files(record, ring, request, completion->res);
	send_completion(record, completion->res);
	bpf_map_delete_elem(&kc_io_requests, &key);
}

static __always_inline void on_complete(__u64 *ctx)
{
	const struct io_ring_ctx *ring = (const struct io_ring_ctx *)ctx[0];
	const struct io_kiocb *request = (const struct io_kiocb *)ctx[1];
	struct io_request_key key = {.object = ctx[0]};
	struct io_call_record *record;
	struct io_cqe completion = {};

	if (request) {
		bpf_core_read(&completion, sizeof(completion), &request->cqe);
		complete_request(ring, request, &completion);
		return;
	}
	if (completion_is_pointer) {
		/* A struct io_uring_cqe, which begins as a struct io_cqe does. */
		bpf_probe_read_kernel(&completion, sizeof(completion), (void *)ctx[2]);
	} else {
		completion.user_data = ctx[2];
		completion.res = ctx[3];
	}
	key.user_data = completion.user_data;
	record = bpf_map_lookup_elem(&kc_io_requests, &key);
	if (record)
		send_result(record, ring, completion.res);
}

SEC("tp_btf/io_uring_complete")
int kc_io_complete(__u64 *ctx)
{
	WITH_INTERRUPTS_OFF(on_complete(ctx));
	return 0;
}

/* A completion for which the ring has no space, and its request. */
struct overflow {
	struct io_cqe completion;
	__u64 next;
	__u64 found;
};

/* Completions are posted in the order of the list of requests, so the one after the last is usually
 * right. Otherwise only this many from the beginning are compared: a program that never reaps
 * completions must not pay for the whole list each time. */
#define MAX_AFTER_LAST 64
#define MAX_FROM_FIRST 256

/* Compares a request that has completed with a completion. Other requests with the same user data
 * and result have completed too, so a request that has not completed is never matched. */
static __always_inline bool is_completed_by(const struct io_kiocb *request,
					    const struct io_cqe *completion)
{
	struct io_request_key key = {.object = (__u64)request};

	return BPF_CORE_READ(request, cqe.user_data) == completion->user_data &&
	       BPF_CORE_READ(request, cqe.res) == completion->res &&
	       !(BPF_CORE_READ(request, flags) & reissue_flag) &&
	       bpf_map_lookup_elem(&kc_io_requests, &key);
}

static long compare_request(__u64 index, struct overflow *overflow)
{
	struct io_wq_work_node *node = (struct io_wq_work_node *)overflow->next;
	const struct io_kiocb *request;

	(void)index;
	if (!node)
		return 1;
	request = (const struct io_kiocb *)((__u64)node -
					    bpf_core_field_offset(struct io_kiocb, comp_list));
	overflow->next = (__u64)BPF_CORE_READ(node, next);
	if (is_completed_by(request, &overflow->completion))
		overflow->found = (__u64)request;
	return overflow->found != 0;
}

/* The request that a worker of io_uring works on: Linux 6.12 and older post the completion
 * there. */
static __always_inline const struct io_kiocb *request_of_worker(struct task_struct *task)
{
	struct io_worker *worker = task->worker_private;
	struct io_wq_work *work;

	if (!(task->flags & PF_IO_WORKER) || !bpf_core_field_exists(worker->cur_work))
		return 0;
	work = BPF_CORE_READ(worker, cur_work);
	return work ? (const struct io_kiocb *)((__u64)work -
						bpf_core_field_offset(struct io_kiocb, work))
		    : 0;
}

static __always_inline void on_overflow(__u64 *ctx)
{
	const struct io_ring_ctx *ring = (const struct io_ring_ctx *)ctx[0];
	struct overflow overflow = {.completion = {.user_data = ctx[1], .res = ctx[2]}};
	struct task_struct *task = bpf_get_current_task_btf();
	const struct io_kiocb *request = request_of_worker(task), *posted;
	struct last_posted *last = only_element(&kc_io_posted);

	if (!recording || !last)
		return;
	if (request && is_completed_by(request, &overflow.completion)) {
		complete_request(ring, request, &overflow.completion);
		return;
	}
	if (last->ring == (__u64)ring) {
		posted = (const struct io_kiocb *)last->request;
		overflow.next = (__u64)BPF_CORE_READ(posted, comp_list.next);
		bpf_loop(MAX_AFTER_LAST, compare_request, &overflow, 0);
	}
	if (!overflow.found) {
		overflow.next = (__u64)BPF_CORE_READ(ring, submit_state.compl_reqs.first);
		bpf_loop(MAX_FROM_FIRST, compare_request, &overflow, 0);
	}
	if (overflow.found)
		complete_request(ring, (const struct io_kiocb *)overflow.found,
				 &overflow.completion);
}

SEC("tp_btf/io_uring_cqe_overflow")
int kc_io_overflow(__u64 *ctx)
{
	WITH_INTERRUPTS_OFF(on_overflow(ctx));
	return 0;
}

/* A request that is linked to a failed one is cancelled. */
SEC("tp_btf/io_uring_fail_link")
int kc_io_fail_link(__u64 *ctx)
{
	const struct io_kiocb *failed = (const struct io_kiocb *)ctx[0];
	const struct io_kiocb *linked = (const struct io_kiocb *)ctx[1];
	struct io_cqe completion = {.res = -ECANCELED};

	if (!(failed->flags & skip_linked_flag))
		return 0;
	completion.user_data = linked->cqe.user_data;
	WITH_INTERRUPTS_OFF(complete_request(linked->ctx, linked, &completion));
	return 0;
}
