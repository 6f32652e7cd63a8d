/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The pure headers as ordinary functions, used by the tests in bpf/src/tests. */
#include "account.h"
#include "draw.h"
#include "grid.h"
#include "integers.h"
#include "maple.h"

__u32 native_grid_advance(struct grid *grid, __u64 now_ns, __u64 period);
__u64 native_grid_align(__u64 home_ns, __u64 at_ns, __u64 period);
__u32 native_grid_before(__u64 origin_ns, __u64 from, __u64 to, __u64 end_ns, __u64 period);
__u32 native_grid_stolen(__u64 origin_ns, __u64 from, __u64 to, __u64 now_ns, __u64 stolen_ns,
			 __u64 period);
void native_track(struct account *account, __u64 now_ns, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time);
void native_switch_out(struct account *account, __u64 now_ns, __u32 state, __u32 detail,
		       __u64 run_delay, __u64 run_time, __u64 stolen_ns);
struct off_cpu native_switch_in(struct account *account, __u64 now_ns, __u64 run_delay,
				__u64 run_time);
struct off_cpu native_missed_switch_in(struct account *account, __u64 arrival_ns, __u64 run_delay);
struct off_cpu native_close(struct account *account, __u64 now_ns, __u64 run_delay, __u64 run_time,
			    __u64 stolen_ns);
int native_conserves_time(const struct account *account);

__u64 native_maple_slot(const __u64 *node, bool leaf, __u64 address);

bool native_look_up_raced(__u32 before, __u32 after, __u32 of_mapping);

__u64 native_draw_bytes(__u32 random, __u64 scale, const __u32 *table);

__u64 native_draw_bytes(__u32 random, __u64 scale, const __u32 *table)
{
	return draw_bytes(random, scale, table);
}

bool native_look_up_raced(__u32 before, __u32 after, __u32 of_mapping)
{
	return look_up_raced(before, after, of_mapping);
}

__u64 native_maple_slot(const __u64 *node, bool leaf, __u64 address)
{
	return maple_slot(node, leaf ? RANGE_PIVOTS : ARANGE_PIVOTS, address);
}

__u32 native_grid_advance(struct grid *grid, __u64 now_ns, __u64 period)
{
	return grid_advance(grid, now_ns, period);
}

__u64 native_grid_align(__u64 home_ns, __u64 at_ns, __u64 period)
{
	return grid_align(home_ns, at_ns, period);
}

__u32 native_grid_before(__u64 origin_ns, __u64 from, __u64 to, __u64 end_ns, __u64 period)
{
	return grid_before(origin_ns, from, to, end_ns, period);
}

__u32 native_grid_stolen(__u64 origin_ns, __u64 from, __u64 to, __u64 now_ns, __u64 stolen_ns,
			 __u64 period)
{
	return grid_stolen(origin_ns, from, to, now_ns, stolen_ns, period);
}

void native_track(struct account *account, __u64 now_ns, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time)
{
	account_track(account, now_ns, state, detail, run_delay, run_time);
}

void native_switch_out(struct account *account, __u64 now_ns, __u32 state, __u32 detail,
		       __u64 run_delay, __u64 run_time, __u64 stolen_ns)
{
	account_switch_out(account, now_ns, state, detail, run_delay, run_time, stolen_ns);
}

struct off_cpu native_switch_in(struct account *account, __u64 now_ns, __u64 run_delay,
				__u64 run_time)
{
	return account_switch_in(account, now_ns, run_delay, run_time);
}

struct off_cpu native_missed_switch_in(struct account *account, __u64 arrival_ns, __u64 run_delay)
{
	return account_missed_switch_in(account, arrival_ns, run_delay);
}

struct off_cpu native_close(struct account *account, __u64 now_ns, __u64 run_delay, __u64 run_time,
			    __u64 stolen_ns)
{
	return account_close(account, now_ns, run_delay, run_time, stolen_ns);
}

int native_conserves_time(const struct account *account)
{
	return account_conserves_time(account);
}
