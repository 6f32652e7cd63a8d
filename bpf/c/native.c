/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The pure headers as ordinary functions, for the tests in bpf/src/tests. */
#include "integers.h"

#include "account.h"
#include "grid.h"
#include "maple.h"

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period);
__u64 native_grid_align(__u64 home, __u64 at, __u64 period);
__u32 native_grid_before(__u64 origin, __u64 from, __u64 to, __u64 end, __u64 period);
__u32 native_grid_stolen(__u64 origin, __u64 from, __u64 to, __u64 now, __u64 stolen, __u64 period);
void native_track(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time);
void native_switch_out(struct account *account, __u64 now, __u32 state, __u32 detail,
		       __u64 run_delay, __u64 run_time, __u64 stolen);
struct off_cpu native_switch_in(struct account *account, __u64 now, __u64 run_delay,
				__u64 run_time);
struct off_cpu native_missed_switch_in(struct account *account, __u64 arrival, __u64 run_delay);
struct off_cpu native_close(struct account *account, __u64 now, __u64 run_delay, __u64 run_time,
			    __u64 stolen);
int native_conserves_time(const struct account *account);

__u64 native_maple_slot(const __u64 *node, bool leaf, __u64 address);

bool native_look_up_raced(__u32 before, __u32 after, __u32 of_mapping);

bool native_look_up_raced(__u32 before, __u32 after, __u32 of_mapping)
{
	return look_up_raced(before, after, of_mapping);
}

__u64 native_maple_slot(const __u64 *node, bool leaf, __u64 address)
{
	return maple_slot(node, leaf ? RANGE_PIVOTS : ARANGE_PIVOTS, address);
}

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period)
{
	return grid_advance(grid, now, period);
}

__u64 native_grid_align(__u64 home, __u64 at, __u64 period)
{
	return grid_align(home, at, period);
}

__u32 native_grid_before(__u64 origin, __u64 from, __u64 to, __u64 end, __u64 period)
{
	return grid_before(origin, from, to, end, period);
}

__u32 native_grid_stolen(__u64 origin, __u64 from, __u64 to, __u64 now, __u64 stolen, __u64 period)
{
	return grid_stolen(origin, from, to, now, stolen, period);
}

void native_track(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time)
{
	account_track(account, now, state, detail, run_delay, run_time);
}

void native_switch_out(struct account *account, __u64 now, __u32 state, __u32 detail,
		       __u64 run_delay, __u64 run_time, __u64 stolen)
{
	account_switch_out(account, now, state, detail, run_delay, run_time, stolen);
}

struct off_cpu native_switch_in(struct account *account, __u64 now, __u64 run_delay, __u64 run_time)
{
	return account_switch_in(account, now, run_delay, run_time);
}

struct off_cpu native_missed_switch_in(struct account *account, __u64 arrival, __u64 run_delay)
{
	return account_missed_switch_in(account, arrival, run_delay);
}

struct off_cpu native_close(struct account *account, __u64 now, __u64 run_delay, __u64 run_time,
			    __u64 stolen)
{
	return account_close(account, now, run_delay, run_time, stolen);
}

int native_conserves_time(const struct account *account)
{
	return account_conserves_time(account);
}
