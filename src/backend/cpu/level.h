/* level.h - which instruction sets the fast code may use on this machine.
 * Files named simd_*.c are compiled once per level of the architecture, with LEVEL defined as the level's name and
 * LEVEL_IS_<name> for #ifdef. All levels compute the same bits; they differ in speed only. A new level needs one line
 * each in CpuLevel, LEVELS_FAST, level.c (name, condition) and the Makefile (compiler flags). A level may have its own
 * code only for the matrix product, its roofline and attention (LEVELS_PRODUCT), and otherwise use that of an earlier
 * level. */
#ifndef RATOON_BACKEND_CPU_LEVEL_H
#define RATOON_BACKEND_CPU_LEVEL_H

#include <stdbool.h>

typedef enum {
    LEVEL_PORTABLE,                                /* plain C */
    LEVEL_AVX2,                                    /* AVX2, FMA, F16C */
    LEVEL_AVXVNNI,                                 /* also AVX-VNNI */
    LEVEL_AVX512,                                  /* AVX2, and also AVX-512 F, BW, DQ, VL and VNNI */
    LEVEL_AMX,                                     /* int8 tiles (AMX), and also AVX-512 VBMI and GFNI */
    LEVEL_NEON,                                    /* 64-bit ARM with dot products (sdot) */
    LEVEL_I8MM,                                    /* also int8 matrix products (smmla) */
    LEVEL_COUNT
} CpuLevel;
#define LEVEL_WORDS "portable, avx2, avxvnni, avx512, amx, neon or i8mm"

/* The fast levels of this architecture, in ascending order of speed. */
#if defined(__x86_64__)
#define LEVELS_FAST(X, stem) X(stem, AVX2, avx2) X(stem, AVXVNNI, avxvnni) X(stem, AVX512, avx512)
#define LEVELS_PRODUCT(X, stem) X(stem, AMX, amx)
#define LEVELS_SHARED(X, stem) X(stem, AMX, avx512)
#elif defined(__aarch64__)
#define LEVELS_FAST(X, stem) X(stem, NEON, neon) X(stem, I8MM, i8mm)
#define LEVELS_PRODUCT(X, stem)
#define LEVELS_SHARED(X, stem)
#else
#define LEVELS_FAST(X, stem)
#define LEVELS_PRODUCT(X, stem)
#define LEVELS_SHARED(X, stem)
#endif

/* Expands to "rows_portable, rows_avx2, ...": to declare what each level defines, and to initialise a table
 * [LEVEL_COUNT] of the addresses. LEVEL_PRODUCT_...: the same for the product, its roofline and attention. */
#define LEVEL_EACH(stem)          stem##_portable LEVELS_FAST(LEVEL_EACH_NEXT, stem)
#define LEVEL_TABLE(stem) \
    {[LEVEL_PORTABLE] = &stem##_portable LEVELS_FAST(LEVEL_TABLE_NEXT, stem) LEVELS_SHARED(LEVEL_TABLE_NEXT, stem)}
#define LEVEL_PRODUCT_EACH(stem)  LEVEL_EACH(stem) LEVELS_PRODUCT(LEVEL_EACH_NEXT, stem)
#define LEVEL_PRODUCT_TABLE(stem) \
    {[LEVEL_PORTABLE] = &stem##_portable LEVELS_FAST(LEVEL_TABLE_NEXT, stem) LEVELS_PRODUCT(LEVEL_TABLE_NEXT, stem)}
#define LEVEL_EACH_NEXT(stem, end, name)  , stem##_##name
#define LEVEL_TABLE_NEXT(stem, end, name) , [LEVEL_##end] = &stem##_##name

bool        level_here(CpuLevel l);                /* supported by both processor and operating system */
CpuLevel    level_best(void);
const char *level_name(CpuLevel l);                /* "portable", "avx2", ... */
bool        level_from_name(CpuLevel *out, const char *name);  /* false: no such level. true does not mean that this
                                                                * machine has it */

/* LEVEL_NAME(product) in a simd_ file is product_portable, product_avx2, ... depending on the level it is compiled
 * for. */
#ifdef LEVEL
#define LEVEL_NAME(stem)         LEVEL_JOIN(stem, LEVEL)
#define LEVEL_JOIN(stem, level)  LEVEL_JOINED(stem, level)
#define LEVEL_JOINED(stem, name) stem##_##name
#endif

#endif
