#include "backend/cpu/roofline.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/pool.h"

enum { ROUNDS = 5 };
static const size_t SPAN = (size_t) 128 << 20;
static const int64_t DOTS = 4000000;

typedef struct { const RooflineKernels *k; uint8_t *at; int64_t *sum; double *ops; } Job;

static void read_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Job *j = arg;
    j->sum[i] += j->k->read(j->at + SPAN * (size_t) i, SPAN);
}

static void fill_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Job *j = arg;
    memset(j->at + SPAN * (size_t) i, 1, SPAN);
}

static void dot_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Job *j = arg;
    j->ops[i] = j->k->dots(DOTS);
}

static double run(Pool *p, PoolTask task, Job *j, int32_t n)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    pool_run(p, task, j, n);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double) (b.tv_sec - a.tv_sec) + (double) (b.tv_nsec - a.tv_nsec) * 1e-9;
}

Status roofline_measure(double *bytes_per_s, double *int8_ops_per_s, int32_t threads, CpuLevel level, Error *err)
{
    static const RooflineKernels *const kernels[LEVEL_COUNT] = LEVEL_TABLE(roofline);
    Pool *p;
    TRY(pool_open(&p, threads, err));
    int32_t n = pool_threads(p);
    Job j = { .k = kernels[level], .at = aligned_alloc(64, SPAN * (size_t) n), .sum = calloc((size_t) n, sizeof *j.sum), .ops = calloc((size_t) n, sizeof *j.ops) };
    Status st = j.at && j.sum && j.ops ? ST_OK : fail(err, ST_MEMORY, "roofline: out of memory");
    *bytes_per_s = *int8_ops_per_s = 0;
    if (st == ST_OK) run(p, fill_task, &j, n);
    for (int32_t r = 0; st == ST_OK && r < ROUNDS; r++) {
        double bytes = (double) SPAN * n / run(p, read_task, &j, n), seconds = run(p, dot_task, &j, n), ops = 0;
        for (int32_t i = 0; i < n; i++) ops += j.ops[i];
        if (bytes > *bytes_per_s) *bytes_per_s = bytes;
        if (ops / seconds > *int8_ops_per_s) *int8_ops_per_s = ops / seconds;
    }
    free(j.at);
    free(j.sum);
    free(j.ops);
    pool_close(p);
    return st;
}
