/* bulk_sum.h - XXH3-64 of large buffers. Some builds of libxxhash, Debian's for one, choose among the instruction sets
 * of an x86-64 at run time, but only through their second header; the sum is the same either way. */
#ifndef RATOON_BASE_BULK_SUM_H
#define RATOON_BASE_BULK_SUM_H

#include <xxhash.h>
#if defined __x86_64__ && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

static inline uint64_t bulk_sum(const void *bytes, size_t n) { return XXH3_64bits(bytes, n); }

#endif
