/* matmul_fast.h - what the files of fast kernels share, and what simd_matmul.c finds there: one product per level, which answers false
 * for a type it has no kernel for. */
#ifndef RATOON_BACKEND_CPU_MATMUL_FAST_H
#define RATOON_BACKEND_CPU_MATMUL_FAST_H

#include "backend/cpu/matmul_layout.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
enum { CHUNK_ROWS = 64, STRIP = 256, AHEAD = 2 };   /* rows of sums kept at once; columns of a strip; strips asked for in advance */
INLINE void prefetch(const uint8_t *p, int lines)
{
    for (int i = 0; i < lines; i++) __builtin_prefetch(p + i * LINE);
}
typedef int32_t word __attribute__((may_alias));

bool LEVEL_NAME(product_fast)(float *y, size_t y_stride, Type t, const void *packed, const void *act, int32_t n, int32_t rows, int32_t cols,
                              int32_t group0, int32_t group1);

#endif
