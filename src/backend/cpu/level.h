/* level.h - which instruction sets the fast code may use on this machine.
 * Files named simd_*.c are compiled once per level with LEVEL defined as its number; every level computes the same bits, so a level is
 * a matter of speed only. A level contains all below it. */
#ifndef RATOON_BACKEND_CPU_LEVEL_H
#define RATOON_BACKEND_CPU_LEVEL_H

#include <stdbool.h>

typedef enum {
    LEVEL_PORTABLE,                                /* plain C */
    LEVEL_AVX2,                                    /* AVX2, FMA, F16C */
    LEVEL_AVX512,                                  /* AVX-512 F, BW, DQ, VL and VNNI besides */
    LEVEL_COUNT
} CpuLevel;

bool        level_here(CpuLevel l);                /* processor and operating system both support it */
CpuLevel    level_best(void);
const char *level_name(CpuLevel l);                /* "portable", "avx2", "avx512" */
bool        level_from_name(CpuLevel *out, const char *name);  /* false: no such level; it may still not be here */

/* LEVEL_NAME(product) in a simd_ file is product_portable, product_avx2 or product_avx512. */
#ifdef LEVEL
#if LEVEL == 0
#define LEVEL_NAME(stem) stem##_portable
#elif LEVEL == 1
#define LEVEL_NAME(stem) stem##_avx2
#else
#define LEVEL_NAME(stem) stem##_avx512
#endif
#endif

#endif
