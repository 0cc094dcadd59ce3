#include "backend/cpu/roofline.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"

static const int64_t INSTRUCTIONS = 4000000;

struct Roofline {
    Pool    *pool;
    const RooflineKernels *k;
    uint8_t *at; size_t bytes, span;               /* span: bytes per task in the current round */
    uint64_t *sum;                                 /* [threads] keeps the reading loop from being optimised away */
    double  *ops;                                  /* [threads] */
};

static void read_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Roofline *r = arg;
    r->sum[i] += (uint64_t) r->k->read(r->at + r->span * (size_t) i, r->span);    /* may wrap */
}

static void fill_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Roofline *r = arg;
    memset(r->at + r->span * (size_t) i, 1, r->span);
}

static void dot_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Roofline *r = arg;
    r->ops[i] = r->k->dots(INSTRUCTIONS);
}

static void flop_task(void *arg, int32_t i, int32_t thread)
{
    (void) thread;
    const Roofline *r = arg;
    r->ops[i] = r->k->flops(INSTRUCTIONS);
}

static double run(Roofline *r, PoolTask task, int32_t n)
{
    double begun = seconds_now();
    pool_run(r->pool, task, r, n);
    return seconds_now() - begun;
}

/* More than the caches hold, or the caches' speed would be measured. Unknown cache sizes are 0 or negative. */
static size_t memory_bytes(void)
{
    const size_t least = (size_t) 256 << 20, most = (size_t) 1 << 30;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache <= 0) return most;
    if ((size_t) cache > most / 4) return most;
    return 4 * (size_t) cache < least ? least : 4 * (size_t) cache;
}

Status roofline_open(Roofline **out, int32_t threads, CpuLevel level, Error *err)
{
    static const RooflineKernels *const kernels[LEVEL_COUNT] = LEVEL_PRODUCT_TABLE(roofline);
    const size_t huge = (size_t) 2 << 20;
    *out = NULL;
    Roofline *r = calloc(1, sizeof *r);
    if (!r) return fail(err, ST_MEMORY, "roofline: out of memory");
    Status st = pool_open(&r->pool, threads, err);
    if (st == ST_OK) {
        size_t n = (size_t) pool_threads(r->pool);
        r->k = kernels[level];
        r->bytes = (memory_bytes() + huge - 1) / huge * huge;
        r->at = aligned_alloc(huge, r->bytes);
        r->sum = calloc(n, sizeof *r->sum);
        r->ops = calloc(n, sizeof *r->ops);
        if (!r->at || !r->sum || !r->ops)
            st = fail(err, ST_MEMORY, "roofline: out of memory for %zu MiB to read", r->bytes >> 20);
    }
    if (st != ST_OK) {
        roofline_close(r);
        return st;
    }
    madvise(r->at, r->bytes, MADV_HUGEPAGE);       /* as weights have them; may be refused */
    r->span = huge;
    run(r, fill_task, (int32_t) (r->bytes / huge));
    *out = r;
    return ST_OK;
}

void roofline_close(Roofline *r)
{
    if (!r) return;
    pool_close(r->pool);
    free(r->at);
    free(r->sum);
    free(r->ops);
    free(r);
}

int32_t roofline_threads(const Roofline *r) { return pool_threads(r->pool); }

static void raise_to(double *at, double x)
{
    if (x > *at) *at = x;
}

/* Operations per second of a task that records its operations. */
static double rate(Roofline *r, PoolTask task, int32_t n)
{
    double seconds = run(r, task, n), ops = 0;
    for (int32_t i = 0; i < n; i++) ops += r->ops[i];
    return ops / seconds;
}

RooflineRead roofline_read(uint64_t bytes, size_t has, int32_t n)
{
    const size_t least = (size_t) 1 << 20;         /* per thread; less would measure how fast threads start */
    const bool all = bytes == 0 || bytes >= has;
    size_t each = (all ? has : (size_t) bytes) / (size_t) n, most = has / (size_t) n;
    if (each < least) each = least < most ? least : most;
    return (RooflineRead) { each / 256 * 256, all ? 1 : (int32_t) (most / each), !all };
}

/* Passes of reading, each with a wait for all threads at its end, as a model's layers have. */
static double read_rate(Roofline *r, int32_t n, uint64_t bytes)
{
    const RooflineRead how = roofline_read(bytes, r->bytes, n);
    double seconds = 0;
    r->span = how.span;
    if (how.warm) run(r, read_task, n);
    for (int32_t i = 0; i < how.times; i++) seconds += run(r, read_task, n);
    return (double) how.span * n * how.times / seconds;
}

void roofline_round(Peaks *fastest, Roofline *r, int32_t n, uint64_t bytes)
{
    raise_to(&fastest->bytes_per_s, read_rate(r, n, bytes));
    raise_to(&fastest->int8_ops_per_s, rate(r, dot_task, n));
    raise_to(&fastest->f32_ops_per_s, rate(r, flop_task, n));
}
