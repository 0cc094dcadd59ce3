/* roofline.h - what this machine can do at most: bytes read from memory and int8 operations per second. A pass of n rows takes at least
 * max(bytes / bandwidth, operations / int8 rate); kernels are reported as a share of that. */
#ifndef RATOON_BACKEND_CPU_ROOFLINE_H
#define RATOON_BACKEND_CPU_ROOFLINE_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/level.h"
#include "base/error.h"

/* The fastest of several rounds, about a second in all. bytes_per_s: reading 128 MiB per thread. int8_ops_per_s: multiplications and
 * additions counted, of the widest dot-product instruction that the level uses. */
Status roofline_measure(double *bytes_per_s, double *int8_ops_per_s, int32_t threads, CpuLevel level, Error *err);

/* Per level: reads n bytes (a multiple of 256); runs rounds of 12 independent dot products and returns their operations. */
typedef struct { int64_t (*read)(const uint8_t *p, size_t n); double (*dots)(int64_t rounds); } RooflineKernels;
extern const RooflineKernels LEVEL_EACH(roofline);

#endif
