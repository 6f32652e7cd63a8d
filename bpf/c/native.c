/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The pure headers as ordinary functions: unwind.h for src/unwind.rs, the others for the tests in
 * bpf/src. */
typedef unsigned char __u8;
typedef short __s16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef _Bool bool;
#define true 1
#define false 0
#define __always_inline inline __attribute__((always_inline))

/* Reads a word of a stack for whoever asked; 0 when it could be read. */
struct native_reader {
	int (*read)(void *whose, __u64 address, __u64 *word);
	void *whose;
};

static __always_inline int unwind_read(void *reader, __u64 address, __u64 *word)
{
	struct native_reader *native = reader;

	return native->read(native->whose, address, word);
}

#include "account.h"
#include "grid.h"
#include "unwind.h"

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period);

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period)
{
	return grid_advance(grid, now, period);
}

__u64 native_grid_align(__u64 home, __u64 at, __u64 period);

__u64 native_grid_align(__u64 home, __u64 at, __u64 period)
{
	return grid_align(home, at, period);
}

__u32 native_grid_before(__u64 origin, __u64 from, __u64 to, __u64 end, __u64 period);
void native_enter(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time);
void native_leave(struct account *account, __u64 now, __u32 state, __u32 detail, __u64 run_delay,
		  __u64 run_time);
struct absence native_return(struct account *account, __u64 now, __u64 run_delay, __u64 run_time);
struct absence native_repair(struct account *account, __u64 arrival, __u64 run_delay);
struct absence native_close(struct account *account, __u64 now, __u64 run_delay, __u64 run_time);
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

struct absence native_repair(struct account *account, __u64 arrival, __u64 run_delay)
{
	return account_repair(account, arrival, run_delay);
}

struct absence native_close(struct account *account, __u64 now, __u64 run_delay, __u64 run_time)
{
	return account_close(account, now, run_delay, run_time);
}

int native_is_whole(const struct account *account)
{
	return account_is_whole(account);
}

__u64 native_unwind_at(const struct unwind_state *state);
__u32 native_unwind_leave(struct unwind_state *state, const struct unwind_rule *rule,
			  struct native_reader *reader);
__u32 native_unwind_guess(struct unwind_state *state, struct native_reader *reader);

__u64 native_unwind_at(const struct unwind_state *state)
{
	return unwind_at(state);
}

__u32 native_unwind_leave(struct unwind_state *state, const struct unwind_rule *rule,
			  struct native_reader *reader)
{
	return unwind_leave(state, rule, reader);
}

__u32 native_unwind_guess(struct unwind_state *state, struct native_reader *reader)
{
	return unwind_guess(state, reader);
}

_Static_assert(sizeof(struct unwind_state) == 144, "State of src/unwind.rs");
_Static_assert(sizeof(struct native_reader) == 16, "Reader of src/unwind.rs");
