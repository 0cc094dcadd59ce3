/* matmul_fast.h - what the files of fast kernels share, and the product function that each level defines for
 * simd_matmul.c; it returns false for a type it has no kernel for. */
#ifndef RATOON_BACKEND_CPU_MATMUL_FAST_H
#define RATOON_BACKEND_CPU_MATMUL_FAST_H

#include "backend/cpu/matmul_layout.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
/* CHUNK_ROWS: rows of sums kept at once. STRIP: columns of a strip. AHEAD: how many strips ahead weights are prefetched
 * into the second-level cache (the next strip is prefetched into the first). */
enum { CHUNK_ROWS = 64, STRIP = 256, AHEAD = 4 };
/* What a tile prefetches while it works: `lines` lines of the next strip, from `at` bytes into it, and the same part of
 * the strip AHEAD strips on. next NULL: the data is in the cache already, prefetch nothing. bytes: of a strip. */
INLINE void prefetch(const uint8_t *next, int at, int lines, int bytes)
{
    if (!next) return;
    for (int i = 0; i < lines; i++) {
        __builtin_prefetch(next + at + i * LINE + (AHEAD - 1) * bytes, 0, 2);
        __builtin_prefetch(next + at + i * LINE);
    }
}
typedef int32_t word __attribute__((may_alias));

bool LEVEL_NAME(product_fast)(float *y, size_t y_stride, Type t, const void *packed, const void *act, int32_t n,
                              int32_t rows, int32_t cols, int32_t group0, int32_t group1);

#endif
