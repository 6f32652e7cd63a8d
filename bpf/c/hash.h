/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef KCOLLECT_HASH_H
#define KCOLLECT_HASH_H

#include "integers.h"

/* Adds a word to a hash that begins with any number. */
static __always_inline __u64 add_to_hash(__u64 hash, __u64 word)
{
	return (hash ^ word) * 0x9e3779b97f4a7c15 ^ hash >> 29;
}

#endif
