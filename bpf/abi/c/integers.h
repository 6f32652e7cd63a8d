/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The kernel's integer types, for BPF and for native C. */
#ifndef KCOLLECT_INTEGERS_H
#define KCOLLECT_INTEGERS_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef _Bool bool;
#define true		1
#define false		0
#define __always_inline inline __attribute__((always_inline))

#endif
