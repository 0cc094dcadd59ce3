/* level.h - which instruction sets the fast code may use on this machine.
 * Files named simd_*.c are compiled once per level of the architecture, with LEVEL defined as the level's name and LEVEL_IS_<name> for
 * #ifdef. Every level computes the same bits, so a level is a matter of speed only. A new one is a line each in CpuLevel, LEVELS_FAST,
 * level.c (name, condition) and the Makefile (compiler flags). A level may have code of its own for the matrix product, its roofline and
 * attention only (LEVELS_PRODUCT); in all else it is an earlier level. */
#ifndef RATOON_BACKEND_CPU_LEVEL_H
#define RATOON_BACKEND_CPU_LEVEL_H

#include <stdbool.h>

typedef enum {
    LEVEL_PORTABLE,                                /* plain C */
    LEVEL_AVX2,                                    /* AVX2, FMA, F16C */
    LEVEL_AVXVNNI,                                 /* AVX-VNNI besides */
    LEVEL_AVX512,                                  /* AVX2, and AVX-512 F, BW, DQ, VL and VNNI besides */
    LEVEL_AMX,                                     /* int8 tiles (AMX), AVX-512 VBMI and GFNI besides */
    LEVEL_NEON,                                    /* 64-bit ARM with dot products (sdot) */
    LEVEL_I8MM,                                    /* int8 matrix products (smmla) besides */
    LEVEL_COUNT
} CpuLevel;
#define LEVEL_WORDS "portable, avx2, avxvnni, avx512, amx, neon or i8mm"

/* The fast levels of this architecture, each better than those before it. */
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

/* "rows_portable, rows_avx2, ...", to declare what each level defines, and the initialiser of a table [LEVEL_COUNT] of their addresses;
 * LEVEL_PRODUCT_...: of the product, its roofline and attention. */
#define LEVEL_EACH(stem)          stem##_portable LEVELS_FAST(LEVEL_EACH_NEXT, stem)
#define LEVEL_TABLE(stem)         {[LEVEL_PORTABLE] = &stem##_portable LEVELS_FAST(LEVEL_TABLE_NEXT, stem) LEVELS_SHARED(LEVEL_TABLE_NEXT, stem)}
#define LEVEL_PRODUCT_EACH(stem)  LEVEL_EACH(stem) LEVELS_PRODUCT(LEVEL_EACH_NEXT, stem)
#define LEVEL_PRODUCT_TABLE(stem) {[LEVEL_PORTABLE] = &stem##_portable LEVELS_FAST(LEVEL_TABLE_NEXT, stem) LEVELS_PRODUCT(LEVEL_TABLE_NEXT, stem)}
#define LEVEL_EACH_NEXT(stem, end, name)  , stem##_##name
#define LEVEL_TABLE_NEXT(stem, end, name) , [LEVEL_##end] = &stem##_##name

bool        level_here(CpuLevel l);                /* processor and operating system both support it */
CpuLevel    level_best(void);
const char *level_name(CpuLevel l);                /* "portable", "avx2", ... */
bool        level_from_name(CpuLevel *out, const char *name);  /* false: no such level; it may still not be here */

/* LEVEL_NAME(product) in a simd_ file is product_portable, product_avx2 or whatever it is compiled for. */
#ifdef LEVEL
#define LEVEL_NAME(stem)         LEVEL_JOIN(stem, LEVEL)
#define LEVEL_JOIN(stem, level)  LEVEL_JOINED(stem, level)
#define LEVEL_JOINED(stem, name) stem##_##name
#endif

#endif
