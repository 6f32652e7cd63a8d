/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The pure headers as ordinary functions, for the tests in bpf/src. */
typedef unsigned int __u32;
typedef unsigned long long __u64;

#include "account.h"
#include "grid.h"

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period);

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period)
{
	return grid_advance(grid, now, period);
}

__u32 native_grid_before(__u64 origin, __u64 from, __u64 to, __u64 end, __u64 period);
void native_enter(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time);
void native_leave(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time);
struct absence native_return(struct account *account, __u64 now, __u64 run_delay, __u64 run_time);
void native_repair(struct account *account, __u64 arrival, __u64 run_delay);
struct absence native_close(struct account *account, __u64 now, __u64 run_delay);
int native_is_whole(const struct account *account);

__u32 native_grid_before(__u64 origin, __u64 from, __u64 to, __u64 end, __u64 period)
{
	return grid_before(origin, from, to, end, period);
}

void native_enter(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time)
{
	account_enter(account, now, state, detail, run_delay, run_time);
}

void native_leave(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time)
{
	account_leave(account, now, state, detail, run_delay, run_time);
}

struct absence native_return(struct account *account, __u64 now, __u64 run_delay, __u64 run_time)
{
	return account_return(account, now, run_delay, run_time);
}

void native_repair(struct account *account, __u64 arrival, __u64 run_delay)
{
	account_repair(account, arrival, run_delay);
}

struct absence native_close(struct account *account, __u64 now, __u64 run_delay)
{
	return account_close(account, now, run_delay);
}

int native_is_whole(const struct account *account)
{
	return account_is_whole(account);
}
