/* roofline.h - the most that this machine can do per second: bytes read from memory, int8 and f32 operations. A pass of
 * n rows takes at least max(bytes / bandwidth, operations / int8 rate); kernels are reported as a share of that. The
 * measurement runs in short rounds, which can be interleaved with the passes that are compared with it: neighbours on
 * the host slow both, and the fastest round and pass count. */
#ifndef RATOON_BACKEND_CPU_ROOFLINE_H
#define RATOON_BACKEND_CPU_ROOFLINE_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/level.h"
#include "base/error.h"

typedef struct Roofline Roofline;

/* threads: as for pool_open. Takes memory of four times the last-level cache, at least 256 MiB and at most 1 GiB. */
Status  roofline_open(Roofline **out, int32_t threads, CpuLevel level, Error *err);
void    roofline_close(Roofline *r);               /* NULL is fine */
int32_t roofline_threads(const Roofline *r);
/* A round of backend.h's measure; more bytes than were taken are read as 0. Multiplications and additions are counted
 * separately, for the widest dot-product and multiply-add instructions that the level uses. */
void    roofline_round(Peaks *fastest, Roofline *r, int32_t n, uint64_t bytes);
/* How a round on n threads reads: `span` bytes per thread, `times` over; warm: once before, since they stay in the
 * caches between passes. has: bytes of memory to read. */
typedef struct { size_t span; int32_t times; bool warm; } RooflineRead;
RooflineRead roofline_read(uint64_t bytes, size_t has, int32_t n);

/* Per level. read: reads n bytes (a multiple of 256). The others run rounds of 12 independent instructions (a sixteenth
 * of the rounds if these are tile instructions) and return the number of operations. */
typedef struct {
    int64_t (*read)(const uint8_t *p, size_t n);
    double (*dots)(int64_t rounds), (*flops)(int64_t rounds);
} RooflineKernels;
extern const RooflineKernels LEVEL_PRODUCT_EACH(roofline);

#endif
