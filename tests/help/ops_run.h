/* ops_run.h - runs one case of an operation on one backend, whose memory the host neither reads nor writes. A case is a
 * function of a Run (the backend) and a Turn (a shape, a round). It takes memory, runs operations on the fork in use,
 * fetches the results and hands them to run_give: the reference's results are noted, and every other backend must give
 * the same bits in the same order. Cases themselves check expectations in double and rules within one backend. All
 * memory that a turn takes, from the backend and the host, is released when it ends. */
#ifndef RATOON_TESTS_HELP_OPS_RUN_H
#define RATOON_TESTS_HELP_OPS_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "rows_helper.h"

typedef struct { void *p; size_t bytes; bool of_host; } Held;
typedef struct { uint8_t *byte; size_t n, cap; } Notes;

typedef struct {
    const char *name;                              /* the backend's, for messages */
    Backend    *opened, *fork[2], *b;              /* b: the fork in use; the second has another number of threads */
    bool        reference;
    Notes      *notes;                             /* of the reference, shared by all runs */
    size_t      read;                              /* how many of them have been compared */
    Held       *held;
    size_t      n_held, cap_held;
} Run;

typedef struct { int32_t rows, cols; LayerSpec layer; } Shape;
typedef struct {
    const char *name;                              /* the case's */
    int32_t     rows, cols;
    LayerSpec   layer;
    int32_t     round, turn;                       /* round of this shape; turn: round of all shapes */
} Turn;

/* Returns true only for "cpu" and "cpu:LEVEL": for what concerns that backend alone, like the words of its errors. */
bool   run_is_cpu(const Run *r);
bool   run_is_gpu(const Run *r);                   /* true for "cuda" and "cuda:N" */
_Noreturn void run_fail(const Run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void   run_must(const Run *r, bool is, const char *what);

/* Memory until the turn ends, or until run_drop back to an earlier r->n_held. host NULL: zeros. */
void  *run_memory(Run *r, size_t bytes, const void *host);
void  *run_host(Run *r, size_t bytes);
void   run_drop(Run *r, size_t n_held);
/* Ends a turn, whether it passed or failed. */
void   run_end(Run *r);

void   run_settle(Run *r);                         /* waits; a failure fails the test */
void   run_use(Run *r, int32_t fork);              /* for what follows; queued work is done first */
void   run_fetch(Run *r, void *host, const void *at, size_t bytes);

/* Bits are compared, but any NaN is as good as another: processors make different ones. */
void   run_give(Run *r, const char *what, const float *got, int64_t n);
void   run_give_bytes(Run *r, const char *what, const void *got, size_t bytes);
/* The reference's bytes, on every backend: for results that take long to compute again. */
void   run_share(Run *r, void *host, size_t bytes);
void   run_expect(const Run *r, const char *what, const float *got, const double *want, int64_t n, double tolerance);
/* Checks a rule within one backend. */
void   run_same(const Run *r, const char *what, const float *got, const float *want, int64_t n);

/* Floats in the backend's memory, and the host's copy of their first content. */
typedef struct { Tensor t; float *h; } Mat;
Mat    mat_of(Run *r, int32_t rows, int32_t cols, float *h);
Mat    mat_make(Run *r, int32_t rows, int32_t cols, uint64_t key, float by);   /* h_fill */
Tensor mat_ids(Run *r, int32_t rows, int32_t cols, const int32_t *id);
Tensor mat_blank(Run *r, int32_t rows, int32_t cols);                          /* NaN: what is not written shows */
float *mat_get(Run *r, const Tensor *t);

#endif
