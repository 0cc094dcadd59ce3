/* cpu.h - internals of the CPU backend: what its operations share.
 * The backend that cpu_open makes holds no memory and runs no operations; a fork has everything they need: threads, a
 * scratch for each, and the quantised input of a product. So passes allocate nothing, and fork_bytes is exact. Only
 * cpu*.c files include this. */
#ifndef RATOON_BACKEND_CPU_CPU_H
#define RATOON_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/expert_store.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/roofline.h"
#include "base/pool.h"

enum {
    SCRATCH_BYTES = 8 << 20,                /* per thread: attention, delta rule, draw_top_k of up to 400,000 tokens */
    INPUT_BYTES = 32 << 20,                 /* quantised rows; more rows are multiplied in several parts */
    SMALL_WORK = 20000                      /* floating-point operations below which waking a thread does not pay */
};

typedef struct {
    Backend              be;                       /* first, so that the table's Backend * points to a Cpu */
    Pool                *pool;                     /* forks only, like scratch and input */
    int32_t              threads;                  /* of this fork, or the default of forks */
    bool                 in_place;                 /* weights keep the file's layout, and may lie in its map */
    CpuLevel             level;
    size_t               part_bytes;               /* matmul_part_bytes() */
    const MatmulKernels *mm;
    const RowKernels    *rows;
    const AttendKernels *att;
    const DeltaKernels  *dn;
    uint8_t             *scratch;                  /* [threads, SCRATCH_BYTES] */
    uint8_t             *input;                    /* [INPUT_BYTES] */
    ExpertStore        **store;                    /* of the backend and all its forks; *store NULL: whole stacks */
    ExpertReader        *reader;                   /* of a fork, if there is a store */
    Roofline            *roof;                     /* of a fork that has run measure */
    Routes               routes;                   /* since they were last asked for */
    Error                error;                    /* the first failure since the last sync */
} Cpu;

static inline Cpu *cpu_of(Backend *b) { return (Cpu *) (void *) b; }
static inline bool cpu_failed(const Cpu *c) { return c->error.code != ST_OK; }
static inline void *cpu_scratch(const Cpu *c, int32_t thread) { return c->scratch + (size_t) thread * SCRATCH_BYTES; }

/* Runs n tasks, in parallel if the work (roughly, in operations) is worth it. */
static inline void cpu_run(Cpu *c, PoolTask task, void *arg, int32_t n, int64_t work)
{
    if (work >= SMALL_WORK) {
        pool_run(c->pool, task, arg, n);
        return;
    }
    for (int32_t i = 0; i < n; i++) task(arg, i, 0);
}

/* Matrix i of a stack. */
static inline const uint8_t *cpu_matrix(Cpu *c, const Tensor *w, int32_t i)
{
    return (const uint8_t *) w->data + c->be.weight_bytes(&c->be, w->type, w->rows, w->cols) * (size_t) i;
}

/* Quantises rows [row0, row0 + n) of x into each form whose act is not NULL, ACT_F32 apart. */
void cpu_quantise(Cpu *c, const void *const act[ACT_COUNT], const Tensor *x, int32_t row0, int32_t n);

/* Columns [16 * group0, 16 * group1) of y = act w^T for n rows, act in the form of w's type: matmul_act_form.
 * matrix: the one of w, as cpu_matrix says. With weights in place, scratch holds a group at a time. */
void cpu_product(const Cpu *c, float *y, size_t y_stride, const Tensor *w, const uint8_t *matrix, const void *act,
                 int32_t n, int32_t group0, int32_t group1, void *scratch);

/* How many rows of a prompt `experts` can take at once for any of these mixtures, so that it reads each expert once: a
 * power of two. */
int32_t cpu_experts_rows(const Stacked *s, int32_t n, int32_t used);

/* Each fills in its part of the operation table. */
void cpu_rows_ops(Backend *b);              /* cpu_rows.c: products, norms, elementwise, rotation, ends of passes */
void cpu_experts_ops(Backend *b);           /* cpu_experts.c: mixtures of experts */
void cpu_state_ops(Backend *b);             /* cpu_state.c: keys and values, attention, convolution, delta rule, fold */

#endif
