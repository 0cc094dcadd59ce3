/* roofline.h - what this machine can do at most: bytes read from memory, int8 and f32 operations per second. A pass of n rows takes at
 * least max(bytes / bandwidth, operations / int8 rate); kernels are reported as a share of that. It is measured in short rounds, so that
 * they can lie between the passes that are compared with it: neighbours on the host slow both, and the fastest of each counts. */
#ifndef RATOON_BACKEND_CPU_ROOFLINE_H
#define RATOON_BACKEND_CPU_ROOFLINE_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/level.h"
#include "base/error.h"

typedef struct Roofline Roofline;
/* Multiplications and additions are counted one by one: of the widest dot-product and multiply-add instruction that the level uses. */
typedef struct { double bytes_per_s, int8_ops_per_s, f32_ops_per_s; } Peaks;

/* threads as for pool_open. Takes memory of four last-level caches, at least 256 MiB and at most 1 GiB. */
Status  roofline_open(Roofline **out, int32_t threads, CpuLevel level, Error *err);
void    roofline_close(Roofline *r);               /* NULL is fine */
int32_t roofline_threads(const Roofline *r);
/* One round, about a twentieth of a second, on the first n of its threads; what was faster than in `fastest` replaces it there. */
void    roofline_round(Peaks *fastest, Roofline *r, int32_t n);

/* Per level: reads n bytes (a multiple of 256); runs rounds of 12 independent instructions (of tiles, a sixteenth of the rounds) and returns
 * their operations. */
typedef struct { int64_t (*read)(const uint8_t *p, size_t n); double (*dots)(int64_t rounds), (*flops)(int64_t rounds); } RooflineKernels;
extern const RooflineKernels LEVEL_PRODUCT_EACH(roofline);

#endif
