/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The smallest scheduler of sched_ext: it has a name, and the kernel's defaults for everything
 * else, which run threads from one queue of the machine in the order in which they come. */

/* libbpf fills in the rest of the kernel's type, with zeros. */
struct sched_ext_ops {
	char name[128];
};

__attribute__((section(".struct_ops.link"), used)) struct sched_ext_ops scheduler = {
	.name = "kcollect_test",
};

char LICENSE[] __attribute__((section("license"), used)) = "GPL";
