/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* All programs in one object, so that they share their maps. */
#include "tick.h"
#include "threads.h"
#include "walk.h"
#include "births.h"
#include "overflow.h"

char LICENSE[] SEC("license") = "GPL";
