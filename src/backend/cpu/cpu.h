/* cpu.h - inside of the CPU backend: what its operations share.
 * All memory that operations need is taken at open: a scratch per thread, the quantised input of a product and the rotary angles of a
 * pass. So nothing is allocated in a pass, and own_bytes is exact. Only cpu*.c files include this. */
#ifndef RATOON_BACKEND_CPU_CPU_H
#define RATOON_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "base/pool.h"

enum {
    SCRATCH_BYTES = 8 << 20,                       /* per thread: attention, delta rule, draw_top_k of up to 400,000 tokens */
    INPUT_BYTES = 32 << 20,                        /* quantised rows; more rows are multiplied in parts */
    TURN_ROWS = 1024, TURN_PAIRS = 1024, TURN_FLOATS = 1 << 18,
    SMALL_WORK = 20000                             /* floating-point operations that are not worth waking a thread */
};

/* Cosines and sines of the rows of a pass, which all its layers share, with everything they were made from. */
typedef struct {
    int32_t n_rows, n_rot;                         /* n_rows 0: nothing here */
    float   mscale;
    int32_t lane[TURN_ROWS * POS_LANES], lane_of[TURN_PAIRS];
    double  freq[TURN_PAIRS];
    float   turn[TURN_FLOATS];                     /* [n_rows, cos n_rot / 2, sin n_rot / 2] */
} Turns;

typedef struct {
    Backend              be;                       /* first: the table's Backend * is ours */
    Pool                *pool;
    int32_t              threads;
    size_t               part_bytes;               /* matmul_part_bytes() */
    const MatmulKernels *mm;
    const RowKernels    *rows;
    const AttendKernels *att;
    const DeltaKernels  *dn;
    uint8_t             *scratch;                  /* [threads, SCRATCH_BYTES] */
    uint8_t             *input;                    /* [INPUT_BYTES] */
    Turns               *turns;
    Error                error;                    /* the first failure since the last sync */
} Cpu;

static inline Cpu *cpu_of(Backend *b) { return (Cpu *) (void *) b; }
static inline bool cpu_failed(const Cpu *c) { return c->error.code != ST_OK; }
static inline void *cpu_scratch(const Cpu *c, int32_t thread) { return c->scratch + (size_t) thread * SCRATCH_BYTES; }

/* Runs n tasks, together if the work (operations, roughly) is worth it. */
static inline void cpu_run(Cpu *c, PoolTask task, void *arg, int32_t n, int64_t work)
{
    if (work >= SMALL_WORK) {
        pool_run(c->pool, task, arg, n);
        return;
    }
    for (int32_t i = 0; i < n; i++) task(arg, i, 0);
}

/* Fill in their part of the table. */
void cpu_rows_ops(Backend *b);                     /* cpu_rows.c: products, norms, elementwise, rotation, ends of passes */
void cpu_state_ops(Backend *b);                    /* cpu_state.c: keys and values, attention, convolution, delta rule, fold */

#endif
