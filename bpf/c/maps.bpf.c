/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The maps that several of the other files use. Where a map belongs to one of them alone, it is
 * there.
 *
 * This file is linked first: a map whose declaration reaches libbpf's linker before its definition
 * has offset 0 in the BTF of the linked object (libbpf 1.7, linker_append_btf), and libbpf would
 * not find it.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "clock.h"
#include "mapped_code.h"
#include "record.h"
#include "ring.h"
#include "thread.h"
#include "user_return.h"
#include "user_scratch.h"
#include "user_stack.h"

char LICENSE[] SEC("license") = "GPL";

struct rings kc_rings SEC(".maps");
struct backlog kc_backlog SEC(".maps");
struct cpu_stats_array kc_cpu_stats SEC(".maps");
struct cpu_stats_array kc_ended_stats SEC(".maps");
struct scratch_array kc_scratch SEC(".maps");
struct threads kc_threads SEC(".maps");

struct row_chunks kc_row_chunks SEC(".maps");
struct ignored kc_ignored SEC(".maps");
struct file_tables kc_file_tables SEC(".maps");
struct user_scratches kc_user_scratch SEC(".maps");
struct return_waits kc_return_waits SEC(".maps");
struct kept_stacks kc_kept_stacks SEC(".maps");
