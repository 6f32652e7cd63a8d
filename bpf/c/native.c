/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The pure headers as ordinary functions, for the tests in bpf/src. */
typedef unsigned int __u32;
typedef unsigned long long __u64;

#include "grid.h"

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period);

__u32 native_grid_advance(struct grid *grid, __u64 now, __u64 period)
{
	return grid_advance(grid, now, period);
}
